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
func (b *Bus) PublishAndWait(ctx context.Context, eventType string, payload any, opts ...PublishOption) (Result, error) {
	if err := b.ready(ctx); err != nil {
		return Result{}, fmt.Errorf("PublishAndWait: %w", err)
	}
	refuse := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("PublishAndWait(%q): %w", shorten(eventType), err)
	}
	if !b.started.Load() && !b.ending.Load() {
		return refuse(ErrNotStarted)
	}
	w := &waiter{}
	from := callFrom(ctx)
	inside := b.running(from)
	if inside {
		w.stands.Store(from.stands())
	}
	id, err := b.accept(ctx, from, eventType, payload, opts, w)
	if err != nil {
		return refuse(err)
	}
	if inside && !w.over.Load() { // not before: what is refused is not waited for
		defer from.waits()()
	}
	if !w.wait(ctx) {
		w.stands.Store(nil) // nobody waits behind it any more, and the chain above is let go
		return Result{ID: id}, fmt.Errorf("PublishAndWait(%q): event %s was accepted and goes on: %w",
			shorten(eventType), id, contextError(ctx))
	}
	r := Result{ID: id, Outcome: w.outcome, Attempts: int(w.attempts)}
	var letters []DeadLetter
	if w.trouble != nil {
		letters, r.Held = w.trouble.letters, w.trouble.held
	}
	for i := range letters {
		r.Letters = append(r.Letters, letters[i].ID)
	}
	switch {
	case len(letters) > 0:
		return r, &DeliveryError{ID: id, EventType: eventType, Letters: letters}
	case w.outcome == Cancelled:
		return r, fmt.Errorf("PublishAndWait(%q): event %s: %w", shorten(eventType), id, ErrCancelled)
	}
	return r, nil
}

// waiter is somebody who waits for an event to settle.
type waiter struct {
	extras extras                   // of the event, if it has no others
	stands atomic.Pointer[standing] // nil if it is no handler, or no longer waits
	over   atomic.Bool              // what follows does not change any more

	mu       sync.Mutex    // guards the following
	asleep   chan struct{} // closed when it is over; nil if nobody sleeps
	pending  int32         // dispatches that have not settled
	attempts int32
	outcome  Outcome
	trouble  *trouble // nil if there was none
}

// standing is what stays as it is while a handler waits for an event.
type standing struct {
	place keyPlace // that is not free, if the handler's event has one
	above *waiter  // who waits for that event, if anybody
}

// trouble is what most events do not have.
type trouble struct {
	letters []DeadLetter
	held    []string
}

func (w *waiter) troubleLocked() *trouble {
	if w.trouble == nil {
		w.trouble = &trouble{}
	}
	return w.trouble
}

// wait waits until it is over. It reports false if the context has ended before.
func (w *waiter) wait(ctx context.Context) bool {
	// Most events are handled in one turn of the worker that is at hand, in less time
	// than it takes to be woken. To let others have more turns costs more than that.
	if !w.over.Load() {
		runtime.Gosched()
	}
	if w.over.Load() {
		return true
	}
	w.mu.Lock()
	if w.over.Load() {
		w.mu.Unlock()
		return true
	}
	w.asleep = make(chan struct{})
	w.mu.Unlock()
	select {
	case <-w.asleep:
		return true
	case <-ctx.Done():
		return w.over.Load()
	}
}

// finish lets who waits go on.
func (w *waiter) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over.Store(true)
	if w.asleep != nil {
		close(w.asleep)
	}
}

// died notes a dead letter.
func (w *waiter) died(l *DeadLetter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.troubleLocked()
	t.letters = append(t.letters, l.clone())
}

// holds notes that a subscription will handle the event later.
func (w *waiter) holds(s *Subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.troubleLocked()
	t.held = append(t.held, s.id)
}

// severity orders outcomes: of several dispatches, the worst is the event's.
var severity = []Outcome{Waiting, Repeated, Unrouted, Dropped, Handled, Held, Cancelled, DeadLettered}

// ended notes how one of the event's dispatches has ended. It reports whether it
// was the last one, after which it is to be finished.
func (w *waiter) ended(o Outcome, attempts int) (all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Index(severity, o) > slices.Index(severity, w.outcome) {
		w.outcome = o
	}
	w.attempts = max(w.attempts, int32(attempts))
	w.pending--
	return w.pending <= 0
}

// end notes the outcome of an event that has no dispatch any more.
func (w *waiter) end(o Outcome) {
	w.mu.Lock()
	w.outcome, w.pending = o, 0
	w.mu.Unlock()
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
