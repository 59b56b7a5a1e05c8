// Package blocked knows that the commits of a store wait for a lock that another program, or a transaction of a caller,
// holds. The store goes on waiting, and the callers that wait for it get an error.
package blocked

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Signal tells the callers that wait for a commit that it waits for a lock of another program. NewSignal makes one.
type Signal struct {
	now atomic.Pointer[Block] // replaced when a commit is confirmed after a block
}

// Block is one time without confirmed commits, or the next one.
type Block struct {
	Begun chan struct{} // closed when the commits wait for too long
	Why   error         // fixed before Begun is closed
	once  sync.Once
}

// NewSignal returns a Signal without a block.
func NewSignal() *Signal {
	s := new(Signal)
	s.now.Store(newBlock())
	return s
}

func newBlock() *Block { return &Block{Begun: make(chan struct{})} }

// Block returns the present block, or the next one.
func (s *Signal) Block() *Block { return s.now.Load() }

// Begin begins a block. It reports whether there was none.
func (s *Signal) Begin(why error) (first bool) {
	b := s.now.Load()
	b.once.Do(func() {
		b.Why, first = why, true
		close(b.Begun)
	})
	return first
}

// End is called when a commit is confirmed. It reports whether that ends a block.
func (s *Signal) End() bool {
	b := s.now.Load()
	select {
	case <-b.Begun:
		return s.now.CompareAndSwap(b, newBlock())
	default:
		return false
	}
}

// TxLocks has the open transactions of callers for which the commits of a store wait, by who must end them. The zero value
// notes none. Its methods are safe for concurrent use.
type TxLocks struct {
	HoldsLock func(tx any) bool // whether commits wait for a transaction; nil: for none. Fixed.

	mu   sync.Mutex // guards the following; a leaf
	open map[any][]any
}

// Note notes a transaction that a holder must end, and drops those that have ended.
func (l *TxLocks) Note(holder, tx any) {
	if l.HoldsLock == nil {
		return
	}
	l.dropEnded()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[any][]any)
	}
	l.open[holder] = append(l.open[holder], tx)
}

// None reports whether no transaction is noted.
func (l *TxLocks) None() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open) == 0
}

// dropEnded drops the transactions that have ended. It asks without the lock.
func (l *TxLocks) dropEnded() {
	l.mu.Lock()
	var all []any
	for holder := range l.open {
		all = append(all, holder)
	}
	l.mu.Unlock()
	for _, holder := range all {
		l.Has(holder)
	}
}

// Has reports whether a transaction of a holder is open. It drops those that have ended.
func (l *TxLocks) Has(holder any) bool {
	l.mu.Lock()
	all := slices.Clone(l.open[holder])
	l.mu.Unlock()
	if len(all) == 0 {
		return false
	}
	var ended []any
	for _, tx := range all {
		if l.HoldsLock(tx) {
			return true
		}
		ended = append(ended, tx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[holder] = slices.DeleteFunc(l.open[holder], func(tx any) bool { return slices.Contains(ended, tx) })
	if len(l.open[holder]) == 0 {
		delete(l.open, holder)
	}
	return false
}
