package eventbus

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Outcome is how a dispatch stands.
type Outcome int

const (
	// Waiting for its next attempt. A Result is never Waiting.
	Waiting Outcome = iota
	// Handled by all of its subscriptions that were not skipped.
	Handled
	// Unrouted: no subscription matched.
	Unrouted
	// DeadLettered: it ended in a dead letter.
	DeadLettered
	// Dropped: its only subscription was skipped, and drops what it is skipped
	// for.
	Dropped
	// Held: its only subscription was skipped, and handles it later.
	Held
	// Cancelled by Cancel before it was due.
	Cancelled
	// Repeated: the id was given before, and nothing was dispatched.
	Repeated
)

var outcomeNames = []string{"waiting", "handled", "unrouted", "dead-lettered", "dropped", "held", "cancelled", "repeated"}

// String names it: "waiting", "handled", "unrouted", "dead-lettered", "dropped",
// "held", "cancelled", "repeated".
func (o Outcome) String() string { return nameOf("Outcome", outcomeNames, int(o)) }

// Result is how an event has settled.
type Result struct {
	ID EventID
	// Outcome is that of the dispatch. On a bus with isolation it is the worst
	// that one of the event's dispatches has come to, and Attempts the most that
	// one of them has had.
	Outcome  Outcome
	Attempts int
	// Letters are the dead letters that it ended in: of the dispatch itself, and
	// of the subscriptions that it skipped.
	Letters []LetterID
	// Held are the subscriptions that were skipped and will handle it later.
	// They are not waited for.
	Held []string
}

// PublishAndWait publishes an event and waits until it has settled, its delay and
// retries included, but not for what is held. The error is a *DeliveryError if
// anything died.
//
// The context bounds the wait too: if it ends first, the result has only the id,
// the error is the context's, and the event goes on. A handler that waits does
// not count against WithConcurrency. One that would wait for itself, because its
// own event, or one that it is waited for by, is in the place of the key, gets
// ErrWouldDeadlock.
//
// Errors: those of Publish, ErrNotStarted, ErrWouldDeadlock, ErrCancelled,
// *DeliveryError.
func (b *Bus) PublishAndWait(ctx context.Context, eventType string, payload any, opts ...PublishOption) (r Result, err error) {
	if err := b.ready(ctx); err != nil {
		return r, fmt.Errorf("PublishAndWait: %w", err)
	}
	refuse := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("PublishAndWait(%q): %w", shorten(eventType), err)
	}
	if !b.started.Load() && !b.ending.Load() {
		return refuse(ErrNotStarted)
	}
	w := freeWaiters.Get().(*waiter)
	from := callFrom(ctx)
	inside := b.running(from)
	if inside {
		w.stands.Store(from.stands())
	}
	r.ID, err = b.accept(ctx, from, eventType, payload, opts, w)
	if err != nil {
		return refuse(err)
	}
	if inside && !w.isOver() { // not before: what is refused is not waited for
		defer from.waits()()
	}
	// Most events are handled in one turn of the worker that is at hand, in less time
	// than it takes to be woken. To let others have more turns costs more than that.
	if !w.isOver() {
		runtime.Gosched()
	}
	if !w.isOver() && !w.sleep(ctx) {
		w.stands.Store(nil) // nobody waits behind it any more, and the chain above is let go
		return r, fmt.Errorf("PublishAndWait(%q): event %s was accepted and goes on: %w",
			shorten(eventType), r.ID, contextError(ctx))
	}
	r.Outcome, r.Attempts = Outcome(w.outcome), int(w.attempts)
	if w.isFree() {
		*w = waiter{}
		freeWaiters.Put(w)
		return r, nil
	}
	var letters []DeadLetter
	if w.tally != nil {
		letters, r.Held = w.tally.letters, w.tally.held
	}
	for i := range letters {
		r.Letters = append(r.Letters, letters[i].ID)
	}
	switch {
	case len(letters) > 0:
		return r, &DeliveryError{ID: r.ID, EventType: eventType, Letters: letters}
	case r.Outcome == Cancelled:
		return r, fmt.Errorf("PublishAndWait(%q): event %s: %w", shorten(eventType), r.ID, ErrCancelled)
	}
	return r, nil
}

// waiter is somebody who waits for an event to settle.
type waiter struct {
	extras extras                   // of the event, if it has no others
	stands atomic.Pointer[standing] // nil if it is no handler, or no longer waits
	woken  chan struct{}            // closed when it is over, if it was asleep before
	state  atomic.Uint32            // waitAwake and so on
	lent   atomic.Bool              // somebody who stands knows it

	// What follows is the dispatch's, if the event has one only, and does not change
	// any more when it is over.
	attempts int32
	outcome  int32  // an Outcome
	tally    *tally // nil if there is one dispatch, and nothing has gone wrong
}

// freeWaiters are those that only the pool knows.
var freeWaiters = sync.Pool{New: func() any { return &waiter{} }}

// isFree reports whether only the caller, who has waited, knows a waiter that is over. Of an
// event that was handled at once, without extras besides the waiter's, nothing is kept, and
// who tells of its end is done with the waiter when he has said so, if nobody slept.
func (w *waiter) isFree() bool {
	return w.extras.waiter == w && w.outcome == int32(Handled) && w.attempts == 1 &&
		w.tally == nil && w.woken == nil && !w.lent.Load()
}

// States of a waiter.
const (
	waitAwake  = iota
	waitAsleep // who ends it wakes it
	waitOver
)

// tally is what most waiters do not need.
type tally struct {
	mu      sync.Mutex // guards the following, and the waiter's outcome and attempts
	pending int32      // dispatches that have not settled
	letters []DeadLetter
	held    []string
}

// standing is what stays as it is while a handler waits for an event.
type standing struct {
	place keyPlace // that is not free, if the handler's event has one
	above *waiter  // who waits for that event, if anybody
}

// expect says how many dispatches there are to wait for.
func (w *waiter) expect(dispatches int) {
	if dispatches > 1 {
		w.tally = &tally{pending: int32(dispatches)}
	}
}

// noting is the tally, to note something in. To make one needs no lock: several
// dispatches have it from the beginning.
func (w *waiter) noting() *tally {
	if w.tally == nil {
		w.tally = &tally{pending: 1}
	}
	return w.tally
}

// sleep waits until it is over. It reports false if the context has ended before.
func (w *waiter) sleep(ctx context.Context) bool {
	w.woken = make(chan struct{})
	if !w.state.CompareAndSwap(waitAwake, waitAsleep) {
		return true
	}
	select {
	case <-w.woken:
		return true
	case <-ctx.Done():
		return w.isOver()
	}
}

func (w *waiter) isOver() bool { return w.state.Load() == waitOver }

// finish lets who waits go on.
func (w *waiter) finish() {
	if w.state.Swap(waitOver) == waitAsleep {
		close(w.woken)
	}
}

// died notes a dead letter.
func (w *waiter) died(l *DeadLetter) {
	t := w.noting()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.letters = append(t.letters, l.clone())
}

// holds notes that a subscription will handle the event later.
func (w *waiter) holds(s *Subscription) {
	t := w.noting()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = append(t.held, s.id)
}

// severity orders outcomes: of several dispatches, the worst is the event's.
var severity = [...]int8{Waiting: 0, Repeated: 1, Unrouted: 2, Dropped: 3, Handled: 4, Held: 5, Cancelled: 6, DeadLettered: 7}

// ended notes how one of the event's dispatches has ended. It reports whether it
// was the last one, after which it is to be finished.
func (w *waiter) ended(o Outcome, attempts int) (all bool) {
	t := w.tally
	if t == nil {
		w.outcome, w.attempts = int32(o), int32(attempts)
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if severity[o] > severity[w.outcome] {
		w.outcome = int32(o)
	}
	w.attempts = max(w.attempts, int32(attempts))
	t.pending--
	return t.pending == 0
}

// end notes the outcome of an event that has no dispatch any more.
func (w *waiter) end(o Outcome) {
	w.outcome = int32(o)
	w.finish()
}

// keyPlace is the place of a key that a dispatch has taken: at one subscription
// on a bus with isolation, at all of them otherwise. The zero value is none.
type keyPlace struct {
	key string
	at  *Subscription
}

// wouldDeadlock reports whether an event would come behind a dispatch that ends
// only after the event has.
func (w *waiter) wouldDeadlock(o *opening) bool {
	if o.key == "" || len(o.to.subscriptions) == 0 {
		return false
	}
	for w != nil {
		stands := w.stands.Load()
		if stands == nil {
			return false
		}
		w = stands.above
		if p := stands.place; p.key == o.key && (p.at == nil || slices.Contains(o.to.subscriptions, p.at)) {
			return true
		}
	}
	return false
}
