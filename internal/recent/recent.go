// Package recent keeps the latest items of several kinds.
package recent

import (
	"cmp"
	"slices"
	"sync"
)

// Log keeps the latest items of each kind and numbers all of them from 1. New returns one. It is safe for concurrent
// use.
type Log[T any] struct {
	most int

	mu    sync.Mutex      // guards the following; a leaf
	kinds [][]numbered[T] // each at most 2*most long
	last  int64
}

type numbered[T any] struct {
	number int64
	item   T
}

// New returns a log that keeps most items of each kind.
func New[T any](kinds, most int) *Log[T] {
	return &Log[T]{most: most, kinds: make([][]numbered[T], kinds)}
}

// Add adds an item of a kind, which counts from 0.
func (l *Log[T]) Add(kind int, item T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	of := append(l.kinds[kind], numbered[T]{l.last, item})
	if len(of) >= 2*l.most {
		of = slices.Clone(l.newest(of))
	}
	l.kinds[kind] = of
}

func (l *Log[T]) newest(of []numbered[T]) []numbered[T] { return of[max(len(of)-l.most, 0):] }

// All calls f for each item, newest first, until it returns false. It holds no lock meanwhile.
func (l *Log[T]) All(f func(number int64, item T) bool) {
	l.mu.Lock()
	var all []numbered[T]
	for _, of := range l.kinds {
		all = append(all, l.newest(of)...)
	}
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b numbered[T]) int { return cmp.Compare(b.number, a.number) })
	for _, n := range all {
		if !f(n.number, n.item) {
			return
		}
	}
}
