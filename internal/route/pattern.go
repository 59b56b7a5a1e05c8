package route

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gobwas/glob"
)

// Pattern is a parsed pattern. It is immutable and safe for concurrent use.
//
// A pattern is a type with wildcards for segments or parts of them:
//
//   - alone between dots: exactly one segment
//     cre*  a*b    within a segment: any run of characters, also none
//     **           alone between dots: any number of segments, also none
//     ?            exactly one character
//     [ab] [a-z0-9_] [!ab]
//     one character of the class, or one that is not in it; a dash
//     that is first or last stands for itself
//     {a,b.c}      alternatives, which may be nested and span dots
//
// The pattern "*" and the empty one match every type, as "**" does.
type Pattern struct {
	source   string
	variants []variant
}

// variant is one of the patterns without braces that a pattern expands to.
type variant []segment

type segmentKind uint8

const (
	literal segmentKind = iota
	anyOne              // *
	anyMany             // **, never twice in a row
	partial             // matched by glob
)

type segment struct {
	kind segmentKind
	text string // of a literal or partial one; classes are in gobwas's syntax
	glob *glob.Pattern
	// tail is the text of the variant from here on if it is simple: literals and *, and
	// optionally a ** at the end. Otherwise it is empty.
	tail string
}

// Parse parses a pattern, or returns its offence.
//
// It rejects patterns that cannot match a type (an empty segment, white space, a
// backslash), ambiguous ones (** with other characters in its segment, [^a]), and large
// ones: more than [MaxPatternBytes], more than [MaxAlternatives], or classes and
// alternatives beyond their own limits.
func Parse(pattern string) (*Pattern, *Offence) {
	if len(pattern) > MaxPatternBytes {
		return nil, offence(MaxPatternBytes, "it is longer than %d bytes", MaxPatternBytes)
	}
	pattern = strings.Clone(pattern) // its parts are kept, and would keep a larger string in memory
	if pattern == "" || pattern == "*" {
		return &Pattern{source: pattern, variants: []variant{{{kind: anyMany, tail: "**"}}}}, nil
	}
	for i := 0; i < len(pattern); {
		r, size := utf8.DecodeRuneInString(pattern[i:])
		if r == '\\' {
			return nil, offence(i, "a backslash is not allowed: event types hold no character that needs an escape")
		}
		if reason := badRune(r, size); reason != "" {
			return nil, offence(i, "%s", reason)
		}
		i += size
	}
	if off := ofAnotherSystem(pattern); off != nil {
		return nil, off
	}
	x := expander{pattern: pattern}
	expansions, off := x.sequence(false)
	if off != nil {
		return nil, off
	}
	p := &Pattern{source: pattern}
	for _, e := range expansions {
		v, off := e.parse(pattern)
		if off != nil {
			return nil, off
		}
		if !slices.ContainsFunc(p.variants, v.equal) {
			p.variants = append(p.variants, v)
		}
	}
	return p, nil
}

// foreignWildcards are whole segments of patterns of NATS, AMQP and MQTT, and what they mean here.
var foreignWildcards = map[string]string{">": "**", "#": "**", "+": "*"}

// ofAnotherSystem returns the offence of a pattern with the wildcards or the separators of another system, or nil. They are
// taken for such where a whole segment is a wildcard.
func ofAnotherSystem(pattern string) *Offence {
	const separators = "./:"
	found := ""
	at := 0
	var meant strings.Builder
	for begin := 0; begin <= len(pattern); {
		end := len(pattern)
		if i := strings.IndexAny(pattern[begin:], separators); i >= 0 {
			end = begin + i
		}
		part := pattern[begin:end]
		ours, foreign := foreignWildcards[part]
		slashed := begin > 0 && pattern[begin-1] != '.' || end < len(pattern) && pattern[end] != '.'
		if (foreign || slashed && (part == "*" || part == "**")) && found == "" {
			found, at = part, begin
		}
		if foreign {
			part = ours
		}
		meant.WriteString(part)
		if end < len(pattern) {
			meant.WriteByte('.')
		}
		begin = end + 1
	}
	if found == "" {
		return nil
	}
	reason := "dots separate the segments of a type"
	if foreignWildcards[found] != "" {
		reason = found + " is no wildcard here"
	}
	if _, off := Parse(meant.String()); off == nil { // unlike that of http://*, which was not meant so
		return offence(at, "%s: write %q", reason, meant.String())
	}
	return nil
}

// parse splits an expansion into segments.
func (e expansion) parse(pattern string) (v variant, off *Offence) {
	var begins []int // of the segments in e.text
	end := 0         // of the last segment
	for begin := 0; begin <= len(e.text); {
		text, _, next := cutSegment(e.text, begin)
		if text == "" {
			return nil, e.emptySegment(pattern, begin)
		}
		s := segment{text: text}
		switch stars := begin + strings.Index(text, "**"); {
		case text == "*":
			s = segment{kind: anyOne}
		case stars >= begin && e.at[stars]+1 != e.at[stars+1]:
			return nil, offence(int(e.at[stars+1]), "two stars meet where alternatives join: write out the patterns")
		case text == "**":
			s = segment{kind: anyMany}
		case stars >= begin:
			return nil, offence(int(e.at[stars]), "** must be a whole segment: put dots around it, or use *")
		case strings.ContainsAny(text, "*?["):
			g, err := glob.Compile(text)
			if err != nil {
				return nil, offence(int(e.at[begin]), "the segment is not a glob: %v", err)
			}
			s.kind, s.glob = partial, g
		}
		if s.kind != anyMany || len(v) == 0 || v[len(v)-1].kind != anyMany {
			v, begins, end = append(v, s), append(begins, begin), begin+len(text)
		}
		begin = next
	}
	for i := len(v) - 1; i >= 0 && v[i].kind != partial && (v[i].kind != anyMany || i == len(v)-1); i-- {
		v[i].tail = e.text[begins[i]:end]
	}
	return v, nil
}

// emptySegment returns the offence of the empty segment at i of the expansion, at a dot
// beside it.
func (e expansion) emptySegment(pattern string, i int) *Offence {
	if i < len(e.text) { // a dot, with a dot or nothing before it
		at := int(e.at[i])
		if i == 0 && at == 0 || i > 0 && int(e.at[i-1]) == at-1 {
			return offence(at, "a segment is empty: %s", dotRemedy(pattern, at))
		}
		return offence(at, "with these alternatives, the segment before this dot is empty")
	}
	if e.text == "" {
		return offence(0, "with these alternatives, the pattern is empty: use * for every type")
	}
	at := int(e.at[i-1])
	if at == len(pattern)-1 {
		return offence(at, "the last segment is empty: remove the dot at the end")
	}
	return offence(at, "with these alternatives, the segment after this dot is empty")
}

func (v variant) equal(w variant) bool {
	return slices.EqualFunc(v, w, func(a, b segment) bool { return a.kind == b.kind && a.text == b.text })
}

// String returns the pattern that was passed to [Parse].
func (p *Pattern) String() string { return p.source }

// Match reports whether typ, a valid type, matches the pattern. Use it for a single
// pattern, and [Table] for many. It takes time polynomial in the lengths of both and
// allocates nothing in the steady state.
func (p *Pattern) Match(typ string) bool {
	for _, v := range p.variants {
		if v.match(typ) {
			return true
		}
	}
	return false
}

// match goes from left to right, and backtracks only to the last **, to give it one more
// segment. Backtracking to an earlier ** cannot find more matches.
func (v variant) match(typ string) bool {
	at, i := 0, 0           // next segment begins at typ[at], is for v[i]
	retryAt, retry := 0, -1 // v[retry] is the last **, which ends before typ[retryAt]
	for at <= len(typ) {
		text, _, next := cutSegment(typ, at)
		switch {
		case i < len(v) && v[i].kind == anyMany:
			retryAt, retry = at, i
			i++
		case i < len(v) && v[i].matches(text):
			at = next
			i++
		case retry >= 0:
			_, _, retryAt = cutSegment(typ, retryAt)
			at, i = retryAt, retry+1
		default:
			return false
		}
	}
	return i == len(v) || i == len(v)-1 && v[i].kind == anyMany
}

func (s *segment) matches(text string) bool {
	switch s.kind {
	case literal:
		return s.text == text
	case partial:
		return s.glob.Match(text)
	default:
		return true
	}
}
