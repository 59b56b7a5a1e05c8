package eventbus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/names"
)

// Outcome is the state of a dispatch, or of an event.
type Outcome int

const (
	// Waiting: it waits for its next attempt. A Result is never Waiting.
	Waiting Outcome = iota
	// Handled: all subscriptions that were not skipped handled it.
	Handled
	// Unrouted: no subscription matched.
	Unrouted
	// DeadLettered: it ended in a dead letter.
	DeadLettered
	// Dropped: its only subscription was skipped and drops deliveries.
	Dropped
	// Held: its only subscription was skipped and handles it later.
	Held
	// Cancelled: Cancel ended it.
	Cancelled
	// Repeated: the bus knew the event's id or idempotency key, and dispatched nothing.
	Repeated
	// Stored: Shutdown, a failure of the store, or the loss of its lease has left it in the store. It is dispatched by
	// the next Start, when the bus has reopened the store, or by the process that has the lease.
	Stored
)

var outcomeNames = []string{"waiting", "handled", "unrouted", "dead-lettered", "dropped", "held", "cancelled", "repeated", "stored"}

// String returns "waiting", "handled", "unrouted", "dead-lettered", "dropped", "held", "cancelled",
// "repeated" or "stored".
func (o Outcome) String() string { return names.Of("Outcome", outcomeNames, int(o)) }

// MarshalText returns the text that String returns.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads the text that String returns.
func (o *Outcome) UnmarshalText(text []byte) error {
	return names.Read("Outcome", outcomeNames, text, o)
}

// Result describes how an event has settled.
type Result struct {
	ID EventID `json:"event_id"` // the event's id
	// Outcome is the outcome of the dispatch, and Attempts its number of attempts. If the event has several dispatches,
	// Outcome is the first of their outcomes in the order dead-lettered, cancelled, held, handled, dropped. Attempts is
	// then their largest number.
	Outcome  Outcome `json:"outcome"`
	Attempts int     `json:"attempts"`
	// Letters lists the dead letters of the event, including those of deliveries that were split off.
	Letters []LetterID `json:"letters,omitempty"`
	// Held names the subscriptions whose deliveries are held. PublishAndWait does not wait for these.
	Held []string `json:"held,omitempty"`
}

// PublishAndWait publishes an event and waits until it has settled. It waits for the event's delay, its retries and its
// throttled deliveries, but not for held ones, which Result.Held names. A nil error means that every target handled the
// event or dropped it by its options, or that the outcome is Unrouted or Repeated. Metrics counts the event's settled
// and held dispatches before PublishAndWait returns.
//
// The context bounds the wait too. If it ends first, the result has only the id, the error is the
// context's, and the event proceeds. A handler that waits does not count against any concurrency
// limit. PublishAndWait returns ErrWouldDeadlock if the event would queue, in its key's order, behind
// the handler's own event, or behind one whose handler waits for that. Two handlers that wait for
// each other's keys are not detected: both waits end at the handlers' timeouts.
//
// If the result has the id, the event was accepted: do not publish it again.
//
// Errors, besides those of Publish:
//
//   - ErrNotStarted: the bus is not started, or is a standby; the event is not accepted
//   - ErrWouldDeadlock: the wait would not end
//   - *DeliveryError: a delivery was dead-lettered
//   - ErrHeld: a delivery is held, and none was dead-lettered
//   - ErrCancelled: Cancel ended the event or a delivery
//
// Errors with a store:
//
//   - ErrShutdown: Shutdown leaves the event in the store
//   - ErrLeaseLost: the bus has become a standby
func (b *Bus) PublishAndWait(ctx context.Context, eventType string, payload any, opts ...PublishOption) (Result, error) {
	if err := b.ready(ctx); err != nil {
		return Result{}, fmt.Errorf("PublishAndWait: %w", err)
	}
	if b.config.hooks != nil {
		var hooked Result
		_, err := b.config.around(ctx, "PublishAndWait", eventType, payload, opts, func(opts []PublishOption) (_ EventID, err error) {
			hooked, err = b.publishAndWait(ctx, eventType, payload, opts)
			return hooked.ID, err
		})
		return hooked, err
	}
	return b.publishAndWait(ctx, eventType, payload, opts)
}

func (b *Bus) publishAndWait(ctx context.Context, eventType string, payload any, opts []PublishOption) (r Result, err error) {
	refuse := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("PublishAndWait(%q): %w", shorten(eventType), err)
	}
	if !b.journal.dispatches() && !b.lifecycle.ending.Load() {
		return refuse(ErrNotStarted)
	}
	ended := ctx.Done() // before anything is accepted: the context may panic
	from := callFrom(ctx)
	inside := b.intake.running(from)
	d, err := b.intake.prepare(ctx, from, inside, eventType, payload, opts)
	if err != nil {
		return refuse(err)
	}
	w := &waiter{pending: 1, settled: make(chan struct{})}
	if inside {
		w.hold.Store(from.keyHold())
	}
	if d.origin != nil {
		w.origin = *d.origin
	}
	w.origin.waiter, d.origin = w, &w.origin
	if err := b.intake.refuseDeadlock(ctx, w, d); err != nil {
		return refuse(err)
	}
	defer b.journal.awaits(d.id, w)()
	fresh, err := b.journal.accept(ctx, inside, d, nil)
	if err != nil {
		return refuse(err)
	}
	if r.ID = d.id; fresh == 0 {
		r.Outcome = Repeated
		return r, nil
	}
	select {
	case <-w.settled: // a handler that does not have to wait counts against the concurrency
		return w.result(r, eventType)
	default:
	}
	if inside {
		defer from.lendWhileWaiting()()
	}
	select {
	case <-w.settled:
	case <-b.gaveUp:
		w.giveUp(ErrShutdown)
	case <-ended:
		select {
		case <-w.settled:
		default:
			w.hold.Store(nil) // otherwise a chain of waiters keeps all their events in memory
			b.machine.leaveUnawaited()
			return r, fmt.Errorf("PublishAndWait(%q): event %s was accepted and goes on: %w",
				shorten(eventType), r.ID, contextError(ctx))
		}
	}
	return w.result(r, eventType)
}

// refuseDeadlock returns an error for an event that would wait for the caller's own, unless it is a repetition.
func (in *intake) refuseDeadlock(ctx context.Context, w *waiter, d *dispatch) error {
	if !w.wouldDeadlock(d) {
		return nil
	}
	if known, err := in.journal.isRepeated(ctx, d); known || err != nil {
		return err
	}
	return fmt.Errorf("%w: the event that is being handled, or one that waits for it, has the place of the key %q; publish without waiting, or with another key", ErrWouldDeadlock, d.key)
}

// waiter is a PublishAndWait call in progress. It contains the origin of its dispatch, which saves an
// allocation.
type waiter struct {
	origin  origin
	hold    atomic.Pointer[keyHold] // place of the handler that waits; nil for other callers
	settled chan struct{}           // closed by answer, once nothing is pending

	// Guarded by feeder.mu.
	gone bool // the call has returned

	mu       sync.Mutex // guards the following
	pending  int32      // dispatches to wait for
	copies   int32      // of the event, that pending has beyond the first
	attempts int32
	why      error // of the outcome Stored: ErrShutdown, ErrStoreFailed or ErrLeaseLost
	outcome  Outcome
	letters  []DeadLetter
	heldAt   []string
}

// result is valid once the waiter has settled.
func (w *waiter) result(r Result, eventType string) (Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Outcome, r.Attempts, r.Held = w.outcome, int(w.attempts), w.heldAt
	for i := range w.letters {
		r.Letters = append(r.Letters, w.letters[i].ID)
	}
	switch {
	case len(w.letters) > 0:
		return r, &DeliveryError{ID: r.ID, EventType: eventType, Letters: w.letters}
	case r.Outcome == Stored && errors.Is(w.why, ErrShutdown):
		return r, fmt.Errorf("PublishAndWait(%q): event %s goes on at the next start: %w", shorten(eventType), r.ID, ErrShutdown)
	case r.Outcome == Stored && errors.Is(w.why, ErrLeaseLost):
		return r, fmt.Errorf("PublishAndWait(%q): event %s was accepted, and goes on in the process that has the lease of the store: %w",
			shorten(eventType), r.ID, ErrLeaseLost)
	case r.Outcome == Stored:
		return r, fmt.Errorf("PublishAndWait(%q): event %s was accepted, and goes on when the bus has reopened the store: %w",
			shorten(eventType), r.ID, ErrStoreFailed)
	case r.Outcome == Cancelled:
		return r, fmt.Errorf("PublishAndWait(%q): event %s: %w", shorten(eventType), r.ID, ErrCancelled)
	case len(r.Held) > 0:
		return r, fmt.Errorf("PublishAndWait(%q): event %s was accepted, and goes on later at %q: %w", shorten(eventType), r.ID, r.Held, ErrHeld)
	}
	return r, nil
}

// expectCopies sets the number of copies of the event. A batch with them may be refused, and made again.
func (w *waiter) expectCopies(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending += int32(n) - 1 - w.copies
	w.copies = int32(n) - 1
}

// expect adds dispatches of the event that were split off.
func (w *waiter) expect(more int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending += int32(more)
}

// severity orders outcomes. The worst outcome of the event's dispatches becomes the event's.
var severity = [...]int8{Waiting: 0, Repeated: 1, Unrouted: 2, Dropped: 3, Handled: 4, Held: 5, Cancelled: 6, Stored: 7, DeadLettered: 8}

// ended records the end of one of the event's dispatches, with its letter or nil. The outcome of a
// part that was split off is not the event's, unless it was cancelled. If it was the last, the caller must call answer.
func (w *waiter) ended(o Outcome, part bool, attempts int, letter *DeadLetter) (last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if letter != nil {
		w.letters = append(w.letters, letter.clone())
	}
	return w.endedLocked(o, part, attempts)
}

// answer lets PublishAndWait return.
func (w *waiter) answer() { close(w.settled) }

// held records that a delivery is held, and ends the wait for it.
func (w *waiter) held(s *Subscription, part bool, attempts int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heldAt = append(w.heldAt, s.id)
	if w.endedLocked(Held, part, attempts) {
		w.answer()
	}
}

// divided records that a dispatch became others, and deliveries that are held at missing subscriptions. The wait for
// those ends. There may be no waiter.
func (w *waiter) divided(others int, missing []string, part bool, attempts int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heldAt = append(w.heldAt, missing...)
	w.pending += int32(others)
	if others > 0 {
		w.pending--
	} else if w.endedLocked(Held, part, attempts) {
		w.answer()
	}
}

// giveUp ends the wait for an event that only the store has, and that nothing dispatches any more.
func (w *waiter) giveUp(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending > 0 {
		w.pending, w.why = 1, why
		if w.endedLocked(Stored, false, 0) { // others that still run may end, or be split
			w.answer()
		}
	}
}

func (w *waiter) endedLocked(o Outcome, part bool, attempts int) (last bool) {
	if (!part || o == Cancelled) && severity[o] > severity[w.outcome] { // what becomes of the other parts, letters and heldAt tell
		w.outcome = o
	}
	if !part {
		w.attempts = max(w.attempts, int32(attempts))
	}
	w.pending--
	if w.pending != 0 {
		return false
	}
	w.pending = math.MinInt32 / 2 // it has its answer
	return true
}

// wouldDeadlock reports whether an event would queue behind a dispatch that ends only after the
// event.
func (w *waiter) wouldDeadlock(d *dispatch) bool {
	if d.key == "" || len(d.to.subscriptions) == 0 {
		return false
	}
	for w != nil {
		stands := w.hold.Load()
		if stands == nil || !stands.of.running() {
			return false
		}
		if stands.key == d.key && d.to.takePlace(stands.at) {
			return true
		}
		w = stands.above
	}
	return false
}

// unawait ends the wait of the delivery's waiter, because the delivery is held.
func (d *dispatch) unawait(s *Subscription) {
	waiter := d.waiter()
	if waiter == nil {
		return
	}
	part := d.ensureStory().part
	d.story.unawaited = true
	waiter.held(s, part, int(d.attempt))
}
