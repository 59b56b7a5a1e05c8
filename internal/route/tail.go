package route

import "strings"

// tail is the rest of a simple pattern (see segment), made for being compared.
type tail struct {
	text     string
	segments []tailSegment
	many     bool // there is a ** behind them
}

// tailSegment is a literal or a *. All that are short are compared in the same way: which
// of them comes next is hard to foretell.
type tailSegment struct {
	packed, mask uint64 // see cutSegment; the mask of a * is 0
	long         string // a literal that is not short
}

func newTail(text string) *tail {
	t := &tail{text: text}
	for segment := range strings.SplitSeq(text, ".") {
		switch {
		case segment == "**":
			t.many = true
		case segment == "*":
			t.segments = append(t.segments, tailSegment{})
		case len(segment) > shortText:
			t.segments = append(t.segments, tailSegment{mask: ^uint64(0), long: segment})
		default:
			t.segments = append(t.segments, tailSegment{packed: short(segment), mask: ^uint64(0)})
		}
	}
	return t
}

// match reports whether what typ is from at on matches. at is where a segment begins, or
// beyond the end if there is none, as there must be for no tail.
func (t *tail) match(typ string, at int) bool {
	if t == nil {
		return at > len(typ)
	}
	for i := range t.segments {
		if at > len(typ) {
			return false
		}
		text, packed, next := cutSegment(typ, at)
		s := &t.segments[i]
		if (packed^s.packed)&s.mask != 0 || s.long != "" && s.long != text {
			return false
		}
		at = next
	}
	return t.many || at > len(typ)
}

// tails has one copy of each of the tails that were used lately. Many nodes have the
// same; if each had its own, each walk would have to wait for another one.
type tails map[string]*tail

// maxTails is more than are used often.
const maxTails = 256

// shared returns nil if text is empty.
func (t tails) shared(text string) *tail {
	if text == "" {
		return nil
	}
	if shared, ok := t[text]; ok {
		return shared
	}
	if len(t) == maxTails {
		clear(t)
	}
	made := newTail(strings.Clone(text)) // and not all of its pattern
	t[made.text] = made
	return made
}
