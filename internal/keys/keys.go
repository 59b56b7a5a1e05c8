// Package keys lets the items of a key through one at a time, in the order in
// which they come.
package keys

import (
	"hash/maphash"
	"sync"
)

// Gate is the gate of many keys. Its methods are safe for concurrent use, and
// none blocks. A key that nobody is through with takes no memory.
//
// Keys are told apart by 64 bits of a hash with a secret seed: that two that are in
// use at the same time have the same is as good as impossible, and would only make
// one of them wait for the other.
type Gate[T any] struct {
	seed   maphash.Seed
	shards []shard[T]
}

type shard[T any] struct {
	mu sync.Mutex // guards the following
	// lines has the keys that an item is through with, and what is behind it:
	// nil if nothing is.
	lines map[uint64]*line[T]
	most  int      // keys that there have been in this map
	spare *node[T] // to be used again
	kept  int      // of those

	_ [24]byte // shards are written by different cores
}

// line is what waits, from the first to the last.
type line[T any] struct{ first, last *node[T] }

type node[T any] struct {
	item T
	next *node[T]
}

// maxSpares is how many empty nodes a shard keeps.
const maxSpares = 64

// New makes a gate for as many goroutines at a time as there are shards.
func New[T any](shards int) *Gate[T] {
	return &Gate[T]{seed: maphash.MakeSeed(), shards: make([]shard[T], shards)}
}

// shard returns what is known of a key, and the hash that stands for it there.
func (g *Gate[T]) shard(key string) (*shard[T], uint64) {
	hash := maphash.String(g.seed, key)
	return &g.shards[hash%uint64(len(g.shards))], hash
}

// Enter reports whether an item may go through at once. If not, it is kept until
// Leave returns it.
func (g *Gate[T]) Enter(key string, item T) bool {
	s, hash := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l, taken := s.lines[hash]
	if !taken {
		if s.lines == nil {
			s.lines = make(map[uint64]*line[T])
		}
		s.lines[hash] = nil
		s.most = max(s.most, len(s.lines))
		return true
	}
	n := s.nodeLocked()
	n.item = item
	if l == nil {
		s.lines[hash] = &line[T]{n, n}
		return false
	}
	if l.first == nil {
		l.first = n
	} else {
		l.last.next = n
	}
	l.last = n
	return false
}

// Leave says that the item of a key that went through is done with. The next one
// of the key, if there is one, goes through by that, and is returned.
func (g *Gate[T]) Leave(key string) (next T, ok bool) {
	s, hash := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[hash]
	if l == nil || l.first == nil {
		delete(s.lines, hash)
		s.shrinkLocked()
		return next, false
	}
	n := l.first
	next, l.first = n.item, n.next
	s.keepLocked(n)
	return next, true
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

// shrinkLocked gives back the memory of keys that are gone, which a map does not
// do by itself.
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

// Len is how many keys an item is through with.
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
