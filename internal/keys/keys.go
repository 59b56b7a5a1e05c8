// Package keys lets the items of a key through one at a time, in the order in
// which they come.
package keys

import (
	"hash/maphash"
	"sync"
)

// Gate is the gate of many keys. Its methods are safe for concurrent use, and
// none blocks. A key that nobody is through with takes no memory.
type Gate[T any] struct {
	seed   maphash.Seed
	shards []shard[T]
}

type shard[T any] struct {
	mu sync.Mutex // guards the following
	// lines has the keys that an item is through with, and what is behind it:
	// nil if nothing is.
	lines map[string]*line[T]
	most  int // keys that there have been in this map

	_ [40]byte // shards are written by different cores
}

type line[T any] struct {
	items []T // from first on
	first int
}

// New makes a gate for as many goroutines at a time as there are shards.
func New[T any](shards int) *Gate[T] {
	return &Gate[T]{seed: maphash.MakeSeed(), shards: make([]shard[T], shards)}
}

func (g *Gate[T]) shard(key string) *shard[T] {
	if len(g.shards) == 1 {
		return &g.shards[0]
	}
	return &g.shards[maphash.String(g.seed, key)%uint64(len(g.shards))]
}

// Enter reports whether an item may go through at once. If not, it is kept until
// Leave returns it.
func (g *Gate[T]) Enter(key string, item T) bool {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l, taken := s.lines[key]
	if !taken {
		if s.lines == nil {
			s.lines = make(map[string]*line[T])
		}
		s.lines[key] = nil
		s.most = max(s.most, len(s.lines))
		return true
	}
	if l == nil {
		l = &line[T]{}
		s.lines[key] = l
	}
	l.items = append(l.items, item)
	return false
}

// Leave says that the item of a key that went through is done with. The next one
// of the key, if there is one, goes through by that, and is returned.
func (g *Gate[T]) Leave(key string) (next T, ok bool) {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[key]
	if l == nil {
		delete(s.lines, key)
		s.shrinkLocked()
		return next, false
	}
	var none T
	next = l.items[l.first]
	l.items[l.first] = none
	l.first++
	if l.first == len(l.items) {
		s.lines[key] = nil
	} else if l.first > len(l.items)/2 && l.first > 32 {
		l.items, l.first = append([]T(nil), l.items[l.first:]...), 0
	}
	return next, true
}

// shrinkLocked gives back the memory of keys that are gone, which a map does not
// do by itself.
func (s *shard[T]) shrinkLocked() {
	const small = 64
	if s.most <= small || len(s.lines) > s.most/4 {
		return
	}
	lines := make(map[string]*line[T], len(s.lines))
	for key, l := range s.lines {
		lines[key] = l
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
