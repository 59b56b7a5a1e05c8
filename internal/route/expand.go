package route

import (
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxExpandedBytes bounds the total size of the expansions of one pattern.
	maxExpandedBytes = 64 << 10
	// maxClassRunes bounds a class of more than one range, which is compiled
	// into the set of its characters.
	maxClassRunes = 256
)

// expander expands the braces of a pattern, because gobwas/glob takes exponential time for
// alternatives. It also translates classes.
type expander struct {
	pattern string
	pos     int
}

// expansion is a pattern, or a part of one, without braces. at says for each
// byte of text which byte of the pattern it comes from.
type expansion struct {
	text string
	at   []uint16
}

// sequence reads to the end of the pattern, or, within braces, to the end of an
// alternative.
func (x *expander) sequence(within bool) ([]expansion, *Offence) {
	done := []expansion{{}}
	for x.pos < len(x.pattern) {
		begin := x.pos
		var next []expansion
		var off *Offence
		switch c := x.pattern[x.pos]; {
		case c == '{':
			next, off = x.alternatives()
		case c == '[':
			next, off = x.class()
		case c == ']':
			return nil, offence(begin, "this ] closes nothing: no [ opens a class before it")
		case c == '}' && !within:
			return nil, offence(begin, "this } closes nothing: no { opens alternatives before it")
		case within && (c == '}' || c == ','):
			return done, nil
		default:
			next = []expansion{x.plain(within)}
		}
		if off != nil {
			return nil, off
		}
		if done, off = product(done, next, begin); off != nil {
			return nil, off
		}
	}
	return done, nil
}

// product joins each of the expansions before with each of those after.
func product(before, after []expansion, begin int) ([]expansion, *Offence) {
	if len(before)*len(after) > MaxAlternatives {
		return nil, tooManyAlternatives(begin)
	}
	if bytes(before)*len(after)+bytes(after)*len(before) > maxExpandedBytes {
		return nil, offence(begin, "it is longer than %d bytes with its alternatives and classes written out", maxExpandedBytes)
	}
	joined := make([]expansion, 0, len(before)*len(after))
	for _, a := range before {
		for _, b := range after {
			joined = append(joined, expansion{a.text + b.text, slices.Concat(a.at, b.at)})
		}
	}
	return joined, nil
}

func bytes(expansions []expansion) (n int) {
	for _, e := range expansions {
		n += len(e.text)
	}
	return n
}

func tooManyAlternatives(at int) *Offence {
	return offence(at, "its alternatives stand for more than %d patterns: subscribe several times", MaxAlternatives)
}

// plain reads characters without a meaning for the expander.
func (x *expander) plain(within bool) expansion {
	begin := x.pos
	var at []uint16
	for ; x.pos < len(x.pattern); x.pos++ {
		c := x.pattern[x.pos]
		if strings.IndexByte("{}[]", c) >= 0 || within && c == ',' {
			break
		}
		at = append(at, uint16(x.pos))
	}
	return expansion{x.pattern[begin:x.pos], at}
}

// alternatives reads from { to }.
func (x *expander) alternatives() ([]expansion, *Offence) {
	open := x.pos
	var all []expansion
	for {
		x.pos++ // the { or ,
		one, off := x.sequence(true)
		if off != nil {
			return nil, off
		}
		if all = append(all, one...); len(all) > MaxAlternatives {
			return nil, tooManyAlternatives(open)
		}
		if x.pos == len(x.pattern) {
			return nil, offence(x.pos, "the { at byte %d is not closed: add a }", open)
		}
		if x.pattern[x.pos] == '}' {
			x.pos++
			return all, nil
		}
	}
}

type runeRange struct{ lo, hi rune }

// class reads from [ to ] and writes the class as gobwas/glob takes it.
func (x *expander) class() ([]expansion, *Offence) {
	open := x.pos
	x.pos++
	not := strings.HasPrefix(x.pattern[x.pos:], "!")
	if not {
		x.pos++
	}
	if strings.HasPrefix(x.pattern[x.pos:], "^") {
		return nil, offence(x.pos, "a class cannot begin with ^: write [!…] for the characters that are not in it")
	}
	var ranges []runeRange
	count := 0
	for !strings.HasPrefix(x.pattern[x.pos:], "]") {
		begin := x.pos
		lo, off := x.classRune(open)
		if off != nil {
			return nil, off
		}
		hi := lo
		if rest := x.pattern[x.pos:]; len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			x.pos++
			if hi, off = x.classRune(open); off != nil {
				return nil, off
			}
		}
		if hi < lo {
			return nil, offence(begin, "the range is reversed: write %c-%c", hi, lo)
		}
		ranges = append(ranges, runeRange{lo, hi})
		count += int(hi-lo) + 1
	}
	x.pos++
	if len(ranges) == 0 {
		return nil, offence(open, "the class is empty: put a character between [ and ]")
	}
	if len(ranges) > 1 && count > maxClassRunes {
		return nil, offence(open, "a class of several ranges has more than %d characters: use alternatives, as in {[a-m],[p-z]}", maxClassRunes)
	}
	text := classText(not, ranges)
	return []expansion{{text, slices.Repeat([]uint16{uint16(open)}, len(text))}}, nil
}

// classRune reads one character of the class that begins at open.
func (x *expander) classRune(open int) (rune, *Offence) {
	if x.pos == len(x.pattern) {
		return 0, offence(x.pos, "the [ at byte %d is not closed: add a ]", open)
	}
	r, size := utf8.DecodeRuneInString(x.pattern[x.pos:])
	switch {
	case r == '.':
		return 0, offence(x.pos, "a class cannot hold a dot: it matches within a segment")
	case strings.ContainsRune(`*?[{}`, r):
		return 0, offence(x.pos, "a class cannot hold %q: no event type does", r)
	}
	x.pos += size
	return r, nil
}

// classText writes a class for gobwas/glob, which takes either one range or a
// set of characters, and in a set reads a leading ! and a dash in second place as
// something else.
func classText(not bool, ranges []runeRange) string {
	text := []byte{'['}
	if not {
		text = append(text, '!')
	}
	if r := ranges[0]; len(ranges) == 1 && r.lo != r.hi {
		text = utf8.AppendRune(text, r.lo)
		text = append(text, '-')
		text = utf8.AppendRune(text, r.hi)
		return string(append(text, ']'))
	}
	var set []rune
	for _, r := range ranges {
		for c := r.lo; c <= r.hi; c++ {
			// A range may span what no type holds; here it would be misread.
			if !strings.ContainsRune(`.*?[]{}\`, c) {
				set = append(set, c)
			}
		}
	}
	slices.Sort(set)
	set = slices.Compact(set)
	if i := slices.Index(set, '-'); i > 0 {
		set = slices.Insert(slices.Delete(set, i, i+1), 0, '-')
	}
	for _, c := range set {
		if c == '!' {
			text = append(text, '\\')
		}
		text = utf8.AppendRune(text, c)
	}
	return string(append(text, ']'))
}
