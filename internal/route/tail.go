package route

import "strings"

// tail is the rest of a simple pattern (see segment), in a form that is fast to compare.
type tail struct {
	text     string
	segments []tailSegment
	many     bool // a ** follows
}

// tailSegment is a literal or a *. All short ones are compared without a branch, because a
// branch would be hard to predict.
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

// match reports whether typ matches from at on. at is the beginning of a segment, or beyond
// the end. For a nil tail it must be beyond the end.
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

// tails has one copy of each recently used tail. Many nodes have the same tail. With
// separate copies, each walk would have more cache misses.
type tails map[string]*tail

// maxTails is above the number of frequently used tails.
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
