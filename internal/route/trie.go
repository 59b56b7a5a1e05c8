package route

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
)

// node is a node of the trie of segments: all patterns that begin with the same segments
// share it. It is immutable. A change copies the nodes on the path and shares all others. A
// walk is bound by memory latency, so a node is small, and is stored beside its hash in a
// hamt. The zero value is an empty node.
type node[S any] struct {
	// tail is the rest of the pattern after this node. It is set only if the node has a single
	// pattern below it, which is simple (see segment). The nodes on the path to its end are
	// then omitted.
	tail *tail
	only *Place[S] // if there is one subscription and nothing else
	more *more[S]  // if there is anything else
}

// Place is the place of a subscription in a [Table]. A pattern with alternatives has it at
// several nodes.
type Place[S any] struct {
	subs [1]S
	seq  uint64 // in the order of Add
	// removedAt is the first version of the table without the subscription, or 0. With it, a
	// long list drops a subscription without a copy, while readers of older versions still see
	// it.
	removedAt atomic.Uint64
}

// more has the subscriptions and the branch of a node.
type more[S any] struct {
	// subs has the subscriptions whose pattern ends here, or below after tail, in the order in
	// which they were added. Later versions append to the same array.
	subs    []S
	places  []*Place[S] // of each of subs, likewise
	removed int         // number of removed subs

	branch *branch[S] // nil without following nodes
}

// branch has the nodes that follow a node.
type branch[S any] struct {
	literals byText[node[S]]
	one      node[S]  // *
	rare     *rare[S] // nil if it has none
}

type rare[S any] struct {
	many     *node[S] // **
	nested   bool     // a ** is above that one
	prefixed *affixes[S]
	suffixed *affixes[S]
}

// change is the change that an edit applies to the nodes at which a pattern ends.
type change[S any] struct {
	apply func(*more[S])
	tails tails
}

func (n *node[S]) empty() bool { return n.only == nil && n.more == nil }

// edit returns the node with the subscriptions at the end of path changed. nested is set
// below a **.
func (n node[S]) edit(path variant, nested bool, change *change[S]) node[S] {
	tail := ""
	// Below another **, a ** at the end of a tail could match from many segments.
	if len(path) > 0 && !(nested && path[len(path)-1].kind == anyMany) {
		tail = path[0].tail
	}
	if n.empty() {
		n.tail = change.tails.shared(tail)
	} else if n.tail != nil && n.tail.text != tail {
		n = n.unfold(change.tails)
	}
	m := n.open()
	if n.tail != nil || len(path) == 0 {
		change.apply(&m)
	} else {
		m.branch = m.branch.edit(path, nested, change)
	}
	switch {
	case len(m.subs) == 0 && m.branch == nil:
		return node[S]{}
	case len(m.subs) == 1 && m.branch == nil:
		return node[S]{tail: n.tail, only: m.places[0]}
	}
	return node[S]{tail: n.tail, more: &m}
}

// open returns a copy of the node's content.
func (n *node[S]) open() more[S] {
	switch {
	case n.more != nil:
		return *n.more
	case n.only != nil:
		return more[S]{subs: n.only.subs[:], places: []*Place[S]{n.only}}
	}
	return more[S]{}
}

// unfold returns an equivalent node that has a node below instead of the tail.
func (n node[S]) unfold(tails tails) node[S] {
	tail := n.tail.text
	text, packed, next := cutSegment(tail, 0)
	n.tail = tails.shared(tail[min(next, len(tail)):])
	var b branch[S]
	switch text {
	case "**":
		b.rare = &rare[S]{many: &n}
	case "*":
		b.one = n
	default:
		b.literals = b.literals.with(hashSegment(text, packed), text, n)
	}
	return node[S]{more: &more[S]{branch: &b}}
}

func (b *branch[S]) edit(path variant, nested bool, change *change[S]) *branch[S] {
	var c branch[S]
	if b != nil {
		c = *b
	}
	switch s, rest := &path[0], path[1:]; s.kind {
	case literal:
		var child node[S]
		hash := hashOf(s.text)
		if old := c.literals.get(hash, s.text); old != nil {
			child = *old
		}
		if child = child.edit(rest, nested, change); child.empty() {
			c.literals = c.literals.without(hash, s.text)
		} else {
			c.literals = c.literals.with(hash, s.text, child)
		}
	case anyOne:
		c.one = c.one.edit(rest, nested, change)
	default:
		c.rare = c.rare.edit(s, rest, nested, change)
	}
	if c.literals.empty() && c.one.empty() && c.rare == nil {
		return nil
	}
	return &c
}

func (r *rare[S]) edit(s *segment, rest variant, nested bool, change *change[S]) *rare[S] {
	var c rare[S]
	if r != nil {
		c = *r
	}
	if s.kind == anyMany {
		var many node[S]
		if c.many != nil {
			many = *c.many
		}
		c.many, c.nested = nil, nested
		if many = many.edit(rest, true, change); !many.empty() {
			c.many = &many
		}
	} else if prefix := s.text[:strings.IndexAny(s.text, "*?[")]; prefix != "" {
		prefix = prefix[:min(len(prefix), maxAffix)]
		c.prefixed = c.prefixed.edit(prefix, s, rest, nested, change)
	} else {
		suffix := s.text[strings.LastIndexAny(s.text, "*?]")+1:]
		suffix = suffix[max(len(suffix)-maxAffix, 0):]
		c.suffixed = c.suffixed.edit(suffix, s, rest, nested, change)
	}
	if c.many == nil && c.prefixed == nil && c.suffixed == nil {
		return nil
	}
	return &c
}

func (m *more[S]) add(p *Place[S]) {
	m.subs, m.places = append(m.subs, p.subs[0]), append(m.places, p)
}

// drop counts a removed subscription. It copies a list only after a thirty-second of it was
// removed. So a removal from a long list is cheap, and removed subscriptions do not stay in
// memory for long.
func (m *more[S]) drop() {
	m.removed++
	if m.removed*32 < len(m.subs) {
		return
	}
	left := len(m.subs) - m.removed
	kept := more[S]{subs: make([]S, 0, left), places: make([]*Place[S], 0, left), branch: m.branch}
	for _, p := range m.places {
		if p.removedAt.Load() == 0 {
			kept.add(p)
		}
	}
	*m = kept
}

// affixes indexes the segments that gobwas/glob matches by their literal prefix (or
// suffix). A text looks up each of its own prefixes, and is compared only with the segments
// found. Segments with a wildcard at both ends have an empty affix and are always compared.
type affixes[S any] struct {
	// lengths has bit n set if an affix of n bytes may exist. A bit stays after the last affix
	// of its length is removed, which costs a useless lookup.
	lengths uint64
	groups  byText[byText[edge[S]]]
}

// maxAffix is the maximum length of an affix. Longer ones are cut.
const maxAffix = 63

// edge leads to the node below a segment that gobwas/glob matches.
type edge[S any] struct {
	segment *segment
	next    node[S]
}

func (a *affixes[S]) edit(affix string, s *segment, rest variant, nested bool, change *change[S]) *affixes[S] {
	var c affixes[S]
	if a != nil {
		c = *a
	}
	var group byText[edge[S]]
	ofAffix, ofText := hashOf(affix), hashOf(s.text)
	if old := c.groups.get(ofAffix, affix); old != nil {
		group = *old
	}
	e := edge[S]{segment: s}
	if old := group.get(ofText, s.text); old != nil {
		e = *old
	}
	if e.next = e.next.edit(rest, nested, change); e.next.empty() {
		group = group.without(ofText, s.text)
	} else {
		group = group.with(ofText, s.text, e)
	}
	if group.empty() {
		c.groups = c.groups.without(ofAffix, affix)
	} else {
		c.groups = c.groups.with(ofAffix, affix, group)
	}
	if c.groups.empty() {
		return nil
	}
	c.lengths |= 1 << len(affix)
	return &c
}

// match appends to ends the nodes with a pattern that typ matches, each node once, in no
// order.
func (n *node[S]) match(typ string, ends []*node[S]) []*node[S] {
	// While only literals can follow, there is one path.
	for at := 0; n != nil; {
		if n.tail != nil {
			if n.tail.match(typ, at) {
				ends = append(ends, n)
			}
			break
		}
		b := n.branch()
		if b != nil && (!b.one.empty() || b.rare != nil) {
			return n.matchAll(typ, at, ends)
		}
		if at > len(typ) {
			if n.ends() {
				ends = append(ends, n)
			}
			break
		}
		if b == nil {
			break
		}
		text, packed, next := cutSegment(typ, at)
		n, at = b.literals.get(hashSegment(text, packed), text), next
	}
	return ends
}

// ends reports whether the patterns of any subscriptions end here or after the tail.
func (n *node[S]) ends() bool {
	return n.only != nil || n.more != nil && len(n.more.subs) > 0
}

// branch returns what follows the node, or nil.
func (n *node[S]) branch() *branch[S] {
	if n.more == nil {
		return nil
	}
	return n.more.branch
}

// matchAll is match from the segment at at on. It processes one segment at a time, with all
// the nodes that the segments so far lead to. The number of nodes bounds its cost for all
// patterns.
func (n *node[S]) matchAll(typ string, at int, ends []*node[S]) []*node[S] {
	// many has the nodes of **, which match all further segments, so they stay. here has all
	// others. Short lists are on the stack.
	var space [3][8]*node[S]
	here, many, spare := append(space[0][:0], n), space[1][:0], space[2][:0]
	for {
		many = enterMany(many, here)
		for _, nodes := range [2][]*node[S]{here, many} {
			for _, n := range nodes {
				if n.ends() && n.tail.match(typ, at) {
					ends = append(ends, n)
				}
			}
		}
		if at > len(typ) || len(here)+len(many) == 0 {
			return ends
		}
		text, packed, behind := cutSegment(typ, at)
		hash := hashSegment(text, packed)
		next := spare[:0]
		for _, nodes := range [2][]*node[S]{here, many} {
			for _, n := range nodes {
				if b := n.branch(); b != nil {
					next = b.follow(next, hash, text)
				}
			}
		}
		here, spare, at = next, here, behind
	}
}

// enterMany appends to many the ** that may follow nodes, the ones just reached. A ** can
// be reached more than once only below another **.
func enterMany[S any](many, nodes []*node[S]) []*node[S] {
	for _, n := range nodes {
		b := n.branch()
		if b == nil || b.rare == nil {
			continue
		}
		if r := b.rare; r.many != nil && !(r.nested && slices.Contains(many, r.many)) {
			many = append(many, r.many)
		}
	}
	return many
}

// follow appends to next the nodes behind the segments that match text.
func (b *branch[S]) follow(next []*node[S], hash uint64, text string) []*node[S] {
	if child := b.literals.get(hash, text); child != nil {
		next = append(next, child)
	}
	if !b.one.empty() {
		next = append(next, &b.one)
	}
	if b.rare != nil {
		next = b.rare.prefixed.follow(next, text, false)
		next = b.rare.suffixed.follow(next, text, true)
	}
	return next
}

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
		if group := a.groups.get(hashOf(affix), affix); group != nil {
			next = followAll(group, next, text)
		}
	}
	return next
}

func followAll[S any](edges *byText[edge[S]], next []*node[S], text string) []*node[S] {
	for e := range edges.all {
		if e.segment.glob.Match(text) {
			next = append(next, &e.next)
		}
	}
	return next
}

// subscriptions returns the subscriptions of the nodes in a version, each once and in
// order. The result must not be changed.
func subscriptions[S any](ends []*node[S], version uint64) []S {
	// Usually there is one node, and its slice is returned without a copy. A copy is needed if
	// some were removed, or if later versions can append: the caller would keep their
	// subscriptions in memory.
	if len(ends) == 1 {
		if n := ends[0]; n.only != nil {
			return n.only.subs[:]
		} else if m := n.more; m.removed == 0 && len(m.subs) == cap(m.subs) {
			return m.subs
		}
	}
	var space [8]*Place[S]
	all, sorted := space[:0], true
	for _, n := range ends {
		if n.more != nil {
			all = slices.Grow(all, len(n.more.places))
		}
		m := n.open()
		for _, p := range m.places {
			if m.removed > 0 {
				if at := p.removedAt.Load(); at != 0 && at <= version {
					continue
				}
			}
			sorted = sorted && (len(all) == 0 || all[len(all)-1].seq < p.seq)
			all = append(all, p)
		}
	}
	if !sorted {
		slices.SortFunc(all, func(a, b *Place[S]) int { return cmp.Compare(a.seq, b.seq) })
		all = slices.Compact(all)
	}
	if len(all) == 0 {
		return nil
	}
	subs := make([]S, len(all))
	for i, p := range all {
		subs[i] = p.subs[0]
	}
	return subs
}
