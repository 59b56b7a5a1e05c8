package eventbus

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
)

// Commits of a store may wait for a lock that another program holds, such as a transaction of a service that has its
// tables in the same file. The store goes on waiting, and the callers that wait for it get an *IndeterminateError.

// blocking tells callers that wait for a commit that it waits for a foreign lock.
type blocking struct {
	now atomic.Pointer[block] // replaced when a commit is confirmed after a block
}

type block struct {
	begun chan struct{} // closed when the commits wait for longer than Patience
	why   error         // fixed before begun is closed
	once  sync.Once
}

// signal returns the block whose begun is closed when the commits wait for longer than Patience.
func (k *blocking) signal() *block { return k.now.Load() }

func newBlock() *block { return &block{begun: make(chan struct{})} }

// begin reports whether the block has begun only now.
func (k *blocking) begin(why error) (first bool) {
	b := k.now.Load()
	b.once.Do(func() {
		b.why, first = why, true
		close(b.begun)
	})
	return first
}

// end is called when a commit is confirmed. It reports whether that ends a block.
func (k *blocking) end() bool {
	b := k.now.Load()
	select {
	case <-b.begun:
		return k.now.CompareAndSwap(b, newBlock())
	default:
		return false
	}
}

// lookWhyBlocked is called when the store has confirmed nothing for Patience.
func (s *guardedStore) lookWhyBlocked(by driver.Blocked) {
	why := by.Blocked()
	if why != nil && s.blocks.begin(why) {
		s.log.Warn("commits of the store wait for a lock of another program", zap.Error(why))
	}
}

// txLocks has the open transactions of callers for which the commits of the store wait, by who must end them: the call of
// a handler, or a context.
type txLocks struct {
	lock driver.TxLock // nil: the store waits for none

	mu   sync.Mutex // guards the following; a leaf
	open map[any][]any
}

// holderOf returns who must end a transaction: nil if that is unknown, because everything shares the context.
func holderOf(ctx context.Context) any {
	if c := callFrom(ctx); c != nil {
		return c
	}
	if ctx.Done() == nil || !reflect.ValueOf(ctx).Comparable() {
		return nil
	}
	return ctx
}

// note notes a transaction, and drops those that have ended.
func (l *txLocks) note(ctx context.Context, tx any) {
	by := holderOf(ctx)
	if l.lock == nil || by == nil {
		return
	}
	l.dropEnded()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[any][]any)
	}
	l.open[by] = append(l.open[by], tx)
}

// dropEnded drops the transactions that have ended. It asks without the lock.
func (l *txLocks) dropEnded() {
	l.mu.Lock()
	var all []any
	for by := range l.open {
		all = append(all, by)
	}
	l.mu.Unlock()
	for _, by := range all {
		l.holds(by)
	}
}

// holds reports whether a transaction of a holder is open. It forgets those that have ended.
func (l *txLocks) holds(by any) bool {
	l.mu.Lock()
	all := slices.Clone(l.open[by])
	l.mu.Unlock()
	var ended []any
	for _, tx := range all {
		if l.lock.HoldsLock(tx) {
			return true
		}
		ended = append(ended, tx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[by] = slices.DeleteFunc(l.open[by], func(tx any) bool { return slices.Contains(ended, tx) })
	if len(l.open[by]) == 0 {
		delete(l.open, by)
	}
	return false
}

var errOwnTx = errors.New("the commit would wait for the transaction that this caller has open: publish with PublishTx in it, or after it")

// wouldDeadlock reports whether a commit for a caller would wait for a transaction that this caller has to end.
func (l *txLocks) wouldDeadlock(ctx context.Context) bool {
	if l.lock == nil {
		return false
	}
	l.mu.Lock()
	none := len(l.open) == 0
	l.mu.Unlock()
	if none {
		return false
	}
	by := holderOf(ctx)
	return by != nil && l.holds(by)
}
