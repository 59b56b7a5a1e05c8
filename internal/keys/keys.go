// Package keys admits the items of a key one at a time, in their order of arrival.
package keys

import (
	"hash/maphash"
	"sync"
)

// Gate admits items by key. Its methods are safe for concurrent use and do not block. A key
// without an admitted item takes no memory.
//
// A key is identified by a 64-bit hash with a random seed. A collision of two keys in use
// is practically impossible, and would only make one wait for the other.
type Gate[T comparable] struct {
	seed   maphash.Seed
	shards []shard[T]
}

type shard[T comparable] struct {
	mu sync.Mutex // guards the following
	// lines has the waiting items of each key with an admitted item: nil if none waits.
	lines map[uint64]*line[T]
	most  int      // largest number of keys in this map
	spare *node[T] // free list
	kept  int      // number of spare nodes
	// held has the nodes of Hold and Keep: true if it is the turn of that item. It is nil without any.
	held map[*node[T]]bool

	_ [16]byte // shards are written by different cores
}

// line is the list of the waiting items of a key.
type line[T any] struct{ first, last *node[T] }

type node[T any] struct {
	item T
	next *node[T]
}

// maxSpares is the number of spare nodes that a shard keeps.
const maxSpares = 64

// New returns a gate. At most one goroutine per shard uses it at a time.
func New[T comparable](shards int) *Gate[T] {
	return &Gate[T]{seed: maphash.MakeSeed(), shards: make([]shard[T], shards)}
}

// shard returns the shard of a key, and the key's hash.
func (g *Gate[T]) shard(key string) (*shard[T], uint64) {
	hash := maphash.String(g.seed, key)
	return &g.shards[hash%uint64(len(g.shards))], hash
}

// Enter reports whether it admits an item now. If not, the gate keeps the item until Leave or End
// returns it.
func (g *Gate[T]) Enter(key string, item T) bool {
	s, hash := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.beginsLocked(hash) {
		s.waitLocked(hash, item)
		return false
	}
	return true
}

// beginsLocked takes a key that has no admitted item. It reports whether it has.
func (s *shard[T]) beginsLocked(hash uint64) bool {
	if _, taken := s.lines[hash]; taken {
		return false
	}
	if s.lines == nil {
		s.lines = make(map[uint64]*line[T])
	}
	s.lines[hash] = nil
	s.most = max(s.most, len(s.lines))
	return true
}

// waitLocked puts an item at the end of the line of a key.
func (s *shard[T]) waitLocked(hash uint64, item T) *node[T] {
	n := s.nodeLocked()
	n.item = item
	l := s.lines[hash]
	switch {
	case l == nil:
		s.lines[hash] = &line[T]{n, n}
		return n
	case l.first == nil:
		l.first = n
	default:
		l.last.next = n
	}
	l.last = n
	return n
}

// Leave ends the admission of a key's item. It admits and returns the next item of the key,
// if one waits. If Hold or Keep has that one, End admits the next.
func (g *Gate[T]) Leave(key string) (next T, ok bool) {
	s, hash := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaveLocked(hash)
}

func (s *shard[T]) leaveLocked(hash uint64) (next T, ok bool) {
	l := s.lines[hash]
	if l == nil || l.first == nil {
		delete(s.lines, hash)
		s.shrinkLocked()
		return next, false
	}
	n := l.first
	if s.holds(n) {
		s.held[n] = true
		return next, false
	}
	next, l.first = n.item, n.next
	s.keepLocked(n)
	return next, true
}

func (s *shard[T]) holds(n *node[T]) bool {
	_, is := s.held[n]
	return is
}

func (s *shard[T]) nodeLocked() *node[T] {
	n := s.spare
	if n == nil {
		return &node[T]{}
	}
	s.spare, n.next = n.next, nil
	s.kept--
	return n
}

func (s *shard[T]) keepLocked(n *node[T]) {
	if s.kept < maxSpares {
		*n = node[T]{next: s.spare}
		s.spare = n
		s.kept++
	}
}

// shrinkLocked frees the memory of removed keys, which a map keeps.
func (s *shard[T]) shrinkLocked() {
	const small = 64
	if s.most <= small || len(s.lines) > s.most/4 {
		return
	}
	lines := make(map[uint64]*line[T], len(s.lines))
	for hash, l := range s.lines {
		lines[hash] = l
	}
	s.lines, s.most = lines, len(lines)
}

// Each calls f with each waiting item that is not held, under the lock of a shard. f must be quick and must not use
// the gate. An item that enters or leaves meanwhile may be left out.
func (g *Gate[T]) Each(f func(T)) {
	for i := range g.shards {
		g.shards[i].each(f)
	}
}

func (s *shard[T]) each(f func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if l == nil {
			continue
		}
		for n := l.first; n != nil; n = n.next {
			if !s.holds(n) {
				f(n.item)
			}
		}
	}
}

// Take removes the waiting items that are not held and for which takes returns true, and returns them. takes is called under the lock of a shard: it must
// be quick and must not use the gate.
func (g *Gate[T]) Take(takes func(T) bool) (taken []T) {
	for i := range g.shards {
		taken = append(taken, g.shards[i].take(takes)...)
	}
	return taken
}

func (s *shard[T]) take(takes func(T) bool) (taken []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if l == nil {
			continue
		}
		var last *node[T]
		for n := l.first; n != nil; {
			next := n.next
			switch {
			case s.holds(n) || !takes(n.item):
				last = n
			case last == nil:
				l.first = next
			default:
				last.next = next
			}
			if last != n {
				taken = append(taken, n.item)
				s.keepLocked(n)
			}
			n = next
		}
		l.last = last
	}
	return taken
}

// Len returns the number of keys with an admitted item.
func (g *Gate[T]) Len() int {
	n := 0
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		n += len(s.lines)
		s.mu.Unlock()
	}
	return n
}
