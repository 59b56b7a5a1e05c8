package route

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
)

// entry is a subscription in the index. One of a pattern with alternatives is at
// several nodes.
type entry[S any] struct {
	seq   uint64 // position in the order of Add
	value S
	// removedAt is the version of the table from which on the entry is gone, or
	// 0. It lets a long list drop an entry without being copied, while readers
	// of older versions still see it.
	removedAt *atomic.Uint64
}

// node is a place in the trie of segments: the end of all patterns that begin
// with the same segments. It is immutable; a change copies the nodes on the way
// to it and shares all others. A nil node is an empty one. A walk spends its time
// waiting for memory, so a node is one cache line, with the rare parts elsewhere.
type node[S any] struct {
	// What may follow.
	literals *hamt[*node[S]]
	one      *node[S] // *
	rare     *rare[S] // nil if it has none

	// entries are the subscriptions whose pattern ends here, in order of seq.
	// Later versions append to the same array; removed counts those in it that
	// are gone.
	entries []entry[S]
	removed int
}

type rare[S any] struct {
	many     *node[S] // **
	nested   bool     // a ** is above that one
	prefixed *affixes[S]
	suffixed *affixes[S]
}

// edit returns the node with the entries at the end of path changed by leaf; nil
// if nothing is left of it. nested tells that a ** is above.
func (n *node[S]) edit(path variant, nested bool, leaf func(*node[S])) *node[S] {
	var c node[S]
	if n != nil {
		c = *n
	}
	if len(path) == 0 {
		leaf(&c)
	} else {
		switch s, rest := &path[0], path[1:]; s.kind {
		case literal:
			child, _ := c.literals.get(s.hash, s.text)
			c.literals = put(c.literals, s.hash, s.text, child.edit(rest, nested, leaf))
		case anyOne:
			c.one = c.one.edit(rest, nested, leaf)
		default:
			c.rare = c.rare.edit(s, rest, nested, leaf)
		}
	}
	if c.literals == nil && c.one == nil && c.rare == nil && len(c.entries) == 0 {
		return nil
	}
	return &c
}

func (r *rare[S]) edit(s *segment, rest variant, nested bool, leaf func(*node[S])) *rare[S] {
	var c rare[S]
	if r != nil {
		c = *r
	}
	if s.kind == anyMany {
		c.many, c.nested = c.many.edit(rest, true, leaf), nested
	} else if prefix := s.text[:strings.IndexAny(s.text, "*?[")]; prefix != "" {
		prefix = prefix[:min(len(prefix), maxAffix)]
		c.prefixed = c.prefixed.edit(prefix, s, rest, nested, leaf)
	} else {
		suffix := s.text[strings.LastIndexAny(s.text, "*?]")+1:]
		suffix = suffix[max(len(suffix)-maxAffix, 0):]
		c.suffixed = c.suffixed.edit(suffix, s, rest, nested, leaf)
	}
	if c.many == nil && c.prefixed == nil && c.suffixed == nil {
		return nil
	}
	return &c
}

// put sets key to value in m, or removes it if value is nil.
func put[V any](m *hamt[*V], hash uint64, key string, value *V) *hamt[*V] {
	if value == nil {
		return m.without(hash, key)
	}
	return m.with(hash, key, value)
}

// drop takes note that one of the entries has been removed. A list is copied
// only when a thirty-second of it is gone, so a removal costs little however
// long the list is, and what is removed does not linger.
func (n *node[S]) drop() {
	n.removed++
	if n.removed*32 < len(n.entries) {
		return
	}
	kept := make([]entry[S], 0, len(n.entries)-n.removed)
	for _, e := range n.entries {
		if e.removedAt.Load() == 0 {
			kept = append(kept, e)
		}
	}
	n.entries, n.removed = kept, 0
}

// affixes indexes segments that gobwas/glob matches by the literal text that they
// begin (or end) with, so that a segment is compared only with those that agree
// with it there: it looks for each of its own beginnings. Segments with a
// wildcard at both ends have an empty affix and are all compared.
type affixes[S any] struct {
	// lengths has bit n set if an affix of n bytes may exist. Bits stay when the
	// last affix of a length goes, which costs a vain look.
	lengths uint64
	groups  *hamt[*hamt[*edge[S]]]
}

// maxAffix is the length to which affixes are cut.
const maxAffix = 63

// edge leads to the node below a segment that gobwas/glob matches.
type edge[S any] struct {
	segment *segment
	next    *node[S]
}

func (a *affixes[S]) edit(affix string, s *segment, rest variant, nested bool, leaf func(*node[S])) *affixes[S] {
	var c affixes[S]
	if a != nil {
		c = *a
	}
	affixHash, hash := maphash.String(seed, affix), maphash.String(seed, s.text)
	group, _ := c.groups.get(affixHash, affix)
	e := edge[S]{segment: s}
	if old, ok := group.get(hash, s.text); ok {
		e = *old
	}
	if e.next = e.next.edit(rest, nested, leaf); e.next != nil {
		group = group.with(hash, s.text, &e)
	} else {
		group = group.without(hash, s.text)
	}
	if c.groups = put(c.groups, affixHash, affix, group); c.groups == nil {
		return nil
	}
	c.lengths |= 1 << len(affix)
	return &c
}

// match appends to buf the entries of the version whose patterns match typ, each
// once and in order. It takes one segment of typ at a time, with all the nodes
// that the segments so far lead to, so its cost is bounded by their number,
// whatever the patterns are.
func (n *node[S]) match(typ string, version uint64, buf []entry[S]) []entry[S] {
	if n == nil {
		return buf
	}
	// many holds the nodes of **, of which any further segment is a part: once
	// there, always there. All others are in here. What fits is on the stack.
	var space [3][8]*node[S]
	here, many, spare := append(space[0][:0], n), space[1][:0], space[2][:0]
	many = enterMany(many, here)
	for i := 0; i <= len(typ) && len(here)+len(many) > 0; {
		var text string
		text, i = cutSegment(typ, i)
		hash := maphash.String(seed, text)
		next := spare[:0]
		for _, nodes := range [2][]*node[S]{here, many} {
			for _, n := range nodes {
				if child, ok := n.literals.get(hash, text); ok {
					next = append(next, child)
				}
				if n.one != nil {
					next = append(next, n.one)
				}
				if n.rare != nil {
					next = n.rare.prefixed.follow(next, text, false)
					next = n.rare.suffixed.follow(next, text, true)
				}
			}
		}
		many = enterMany(many, next)
		here, spare = next, here
	}
	sorted := true
	for _, nodes := range [2][]*node[S]{here, many} {
		for _, n := range nodes {
			for i := range n.entries {
				e := &n.entries[i]
				if n.removed > 0 {
					if at := e.removedAt.Load(); at != 0 && at <= version {
						continue
					}
				}
				sorted = sorted && (len(buf) == 0 || buf[len(buf)-1].seq < e.seq)
				buf = append(buf, *e)
			}
		}
	}
	if sorted {
		return buf
	}
	slices.SortFunc(buf, func(a, b entry[S]) int { return cmp.Compare(a.seq, b.seq) })
	return slices.CompactFunc(buf, func(a, b entry[S]) bool { return a.seq == b.seq })
}

// enterMany appends to many the ** that may follow nodes, which have just been
// reached. Only below another ** can one be reached more than once.
func enterMany[S any](many, nodes []*node[S]) []*node[S] {
	for _, n := range nodes {
		if r := n.rare; r != nil && r.many != nil && !(r.nested && slices.Contains(many, r.many)) {
			many = append(many, r.many)
		}
	}
	return many
}

// follow appends to next the nodes behind the segments that match text.
func (a *affixes[S]) follow(next []*node[S], text string, suffix bool) []*node[S] {
	if a == nil {
		return next
	}
	for lengths := a.lengths; lengths != 0; lengths &= lengths - 1 {
		n := bits.TrailingZeros64(lengths)
		if n > len(text) {
			break
		}
		affix := text[:n]
		if suffix {
			affix = text[len(text)-n:]
		}
		if group, ok := a.groups.get(maphash.String(seed, affix), affix); ok {
			next = followAll(group, next, text)
		}
	}
	return next
}

func followAll[S any](group *hamt[*edge[S]], next []*node[S], text string) []*node[S] {
	for i := range group.slots {
		if s := &group.slots[i]; s.below != nil {
			next = followAll(s.below, next, text)
		} else if s.value.segment.glob.Match(text) {
			next = append(next, s.value.next)
		}
	}
	return next
}
