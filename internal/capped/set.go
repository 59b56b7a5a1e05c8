package capped

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Set is a set of strings that is full at a number of keys. NewSet makes one. Its methods are safe for concurrent use.
type Set struct {
	most int
	full atomic.Bool

	mu   sync.Mutex // guards the following; a leaf
	keys map[string]bool
}

// NewSet returns a set of at most a number of keys.
func NewSet(most int) *Set { return &Set{most: most} }

// IsNew adds a key to a set that is not full. It reports whether it has added the key: false if the set is full or has it.
func (s *Set) IsNew(key string) bool {
	if s.full.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[key] || len(s.keys) >= s.most {
		return false
	}
	if s.keys == nil {
		s.keys = make(map[string]bool)
	}
	// Cloned: the key may be a substring of a large string, and would keep it in memory.
	s.keys[strings.Clone(key)] = true
	s.full.Store(len(s.keys) >= s.most)
	return true
}
