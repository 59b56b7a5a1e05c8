// Package capped has a concurrent map that stops growing at a number of keys.
package capped

import (
	"iter"
	"strings"
	"sync"
	"sync/atomic"
)

// Map has a value V for each of its first keys. All later keys share one more value. Its methods
// are safe for concurrent use.
type Map[V any] struct {
	most   int64
	known  sync.Map // string to *V
	number atomic.Int64
	others V
}

// New returns a map for at most a number of keys.
func New[V any](most int) *Map[V] { return &Map[V]{most: int64(most)} }

// Of returns the value of a key. It adds a missing key with a zero value.
func (m *Map[V]) Of(key string) *V {
	if v, ok := m.known.Load(key); ok {
		return v.(*V)
	}
	// Reserve the number before using it: concurrent calls must not exceed the limit.
	if m.number.Load() >= m.most {
		return &m.others
	}
	if m.number.Add(1) > m.most {
		m.number.Add(-1)
		return &m.others
	}
	// Cloned: the key may be a substring of a large string, and would keep it in memory.
	v, loaded := m.known.LoadOrStore(strings.Clone(key), new(V))
	if loaded {
		m.number.Add(-1)
	}
	return v.(*V)
}

// Others returns the value that all keys beyond the limit share.
func (m *Map[V]) Others() *V { return &m.others }

// All returns the keys with values of their own, in no order.
func (m *Map[V]) All() iter.Seq2[string, *V] {
	return func(yield func(string, *V) bool) {
		m.known.Range(func(key, v any) bool { return yield(key.(string), v.(*V)) })
	}
}
