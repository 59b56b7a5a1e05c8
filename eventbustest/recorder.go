package eventbustest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/surebus/eventbus"
)

// Recorder records deliveries, as a handler with Handle or as a middleware with Wrap. A script
// sets the results of the next deliveries. The zero value is ready to use. Methods are safe for
// concurrent use. Use a Recorder in only one testing/synctest bubble.
type Recorder struct {
	mu         sync.Mutex // guards the following
	deliveries []*recorded
	ended      int
	script     []eventbus.Handler
	changed    chan struct{} // closed at the next change; nil without waiters
}

// recorded is a delivery with the context of its call, which decodes the payload.
type recorded struct {
	Delivery
	ctx context.Context
}

// Delivery is one recorded call of a handler. On a bus with a store, Event.Payload is encoded:
// Payloads and Payload decode it.
type Delivery struct {
	// Delivery has the event, the subscription, the attempt and the replays.
	eventbus.Delivery
	// Begun and EndedAt are the times of the call, from time.Now. EndedAt is zero while the
	// handler runs.
	Begun, EndedAt time.Time
	// Err is the error that the handler returned, a *eventbus.PanicError if it panicked, or
	// eventbus.ErrHandlerExited if it called runtime.Goexit.
	Err error
	// CtxErr is the error of the handler's context at the end of the call. It is not nil after
	// the handler's timeout, or after the end of Shutdown's context. The bus has then abandoned
	// the call and ignores Err.
	CtxErr error
}

// Ended reports whether the handler has returned.
func (d Delivery) Ended() bool { return !d.EndedAt.IsZero() }

// String describes the delivery in one line.
func (d Delivery) String() string {
	s := fmt.Sprintf("%s %s to %s, attempt %d, %s: ", d.Event.Type, d.Event.ID, d.Subscription, d.Attempt, d.Begun.Format(clockLayout))
	switch {
	case !d.Ended():
		s += "running"
	case d.Err != nil:
		s += indent(textOf(d.Err))
	default:
		s += "handled"
	}
	if d.CtxErr != nil {
		s += fmt.Sprintf(" (too late: %v)", d.CtxErr)
	}
	return s
}

// textOf returns the text of an error. fmt recovers panics of its Error method.
func textOf(err error) string { return fmt.Sprintf("%v", err) }

// Handle is a handler that records the delivery and runs the script. Without a script it succeeds.
func (r *Recorder) Handle(ctx context.Context, e eventbus.Event) error {
	return r.deliver(ctx, e, func(context.Context, eventbus.Event) error { return nil })
}

// Wrap is a middleware that records the calls of a handler. Pass it to eventbus.Use or
// eventbus.WithMiddleware. A script replaces the handler.
func (r *Recorder) Wrap(h eventbus.Handler) eventbus.Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, e eventbus.Event) error { return r.deliver(ctx, e, h) }
}

// Script appends handlers for the next deliveries, one for each, in the order in which the
// deliveries begin, for all events and subscriptions. See Fail, Panic, Overrun and Block. A nil
// handler leaves its delivery unchanged. After the last one, deliveries are unchanged.
func (r *Recorder) Script(next ...eventbus.Handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = append(r.script, next...)
}

// FailNext makes the next n deliveries fail with err.
func (r *Recorder) FailNext(n int, err error) {
	for range n {
		r.Script(Fail(err))
	}
}

// Deliveries returns the recorded deliveries in the order in which they began.
func (r *Recorder) Deliveries() []Delivery {
	return r.matching(func(*recorded) bool { return true })
}

// Len returns the number of deliveries, including running ones.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.deliveries)
}

// ByType returns the deliveries of events of exactly this type.
func (r *Recorder) ByType(eventType string) []Delivery {
	return r.matching(func(d *recorded) bool { return d.Event.Type == eventType })
}

// ByEvent returns the deliveries of an event at all recorded subscriptions.
func (r *Recorder) ByEvent(id eventbus.EventID) []Delivery {
	return r.matching(func(d *recorded) bool { return d.Event.ID == id })
}

// Delays returns the delays of an event's retries: the times from the end of an attempt to the
// beginning of the next one. They are exact inside testing/synctest with a policy of NoJitter.
// They are measured with time.Now, not with a mock clock.
func (r *Recorder) Delays(id eventbus.EventID) []time.Duration {
	var delays []time.Duration
	var last *Delivery
	lastAt := make(map[string]*Delivery)
	for _, d := range r.ByEvent(id) {
		// An attempt begins at the subscription that failed, unless a circuit skips it. Attempts
		// of other dispatches of the event may come between.
		before := lastAt[d.Subscription]
		if before == nil {
			before = last
		}
		if before != nil && d.Attempt > before.Attempt && before.Ended() {
			delays = append(delays, d.Begun.Sub(before.EndedAt))
		}
		last, lastAt[d.Subscription] = &d, &d
	}
	return delays
}

// Payloads returns the payloads of the delivered events that eventbus.Typed converts to T. Each
// event counts once, in the order of the first deliveries. Payloads of a bus with a store are
// decoded by its codec.
func Payloads[T any](r *Recorder) []T {
	var payloads []T
	known := make(map[eventbus.EventID]bool)
	take := eventbus.Typed(func(_ context.Context, payload T) error {
		payloads = append(payloads, payload)
		return nil
	})
	r.mu.Lock()
	deliveries := slices.Clone(r.deliveries)
	r.mu.Unlock()
	for _, d := range deliveries {
		if !known[d.Event.ID] {
			known[d.Event.ID] = true
			_ = take(d.ctx, d.Event) // an error means that the payload is not a T
		}
	}
	return payloads
}

// Payload returns an event's payload as eventbus.Typed converts it: it decodes a json.RawMessage,
// which deliveries and dead letters of a bus with a store have. It ends the test if the payload is
// not a T.
func Payload[T any](t testing.TB, e eventbus.Event) T {
	t.Helper()
	var payload T
	take := eventbus.Typed(func(_ context.Context, p T) error {
		payload = p
		return nil
	})
	if err := take(context.Background(), e); err != nil {
		t.Fatalf("eventbustest.Payload: %v", err)
	}
	return payload
}

// Wait returns when at least n deliveries have ended, including failed ones. The bus processes the result after that:
// before checks of dead letters and metrics, use WaitSettled. It waits up to 10 seconds, or a day of virtual time, as
// WaitSettled does. Then Wait ends the test and shows the deliveries. Call it on the test's goroutine.
func (r *Recorder) Wait(t testing.TB, n int) {
	t.Helper()
	r.wait(t, n, "have ended", func() int { return r.ended })
}

// WaitBegun returns when at least n deliveries have begun. Use it with Block.
func (r *Recorder) WaitBegun(t testing.TB, n int) {
	t.Helper()
	r.wait(t, n, "have begun", func() int { return len(r.deliveries) })
}

func (r *Recorder) wait(t testing.TB, n int, what string, numberLocked func() int) {
	t.Helper()
	limit := patience(t)
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		r.mu.Lock()
		number := numberLocked()
		if number < n && r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if number >= n {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			var b strings.Builder
			for _, d := range r.Deliveries() {
				fmt.Fprintf(&b, "  %s\n", d)
			}
			t.Fatalf("eventbustest: want %s that %s, got %d after %s:\n%s", countOf(n), what, number, limit, b.String())
		}
	}
}

func countOf(n int) string {
	if n == 1 {
		return "1 delivery"
	}
	return fmt.Sprintf("%d deliveries", n)
}

func (r *Recorder) matching(match func(*recorded) bool) []Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Delivery
	for _, d := range r.deliveries {
		if match(d) {
			found = append(found, d.Delivery)
		}
	}
	return found
}

func (r *Recorder) deliver(ctx context.Context, e eventbus.Event, h eventbus.Handler) (err error) {
	d, h := r.begin(ctx, e, h)
	returned := false
	defer func() {
		if returned {
			r.end(ctx, d, err)
			return
		}
		p := recover()
		if p == nil {
			// runtime.Goexit continues after this. With GODEBUG=panicnil=1, recover has stopped
			// panic(nil), which must not become a success.
			err = eventbus.ErrHandlerExited
			r.end(ctx, d, err)
			return
		}
		r.end(ctx, d, &eventbus.PanicError{Value: p, Stack: debug.Stack()})
		panic(p)
	}()
	err = h(ctx, e)
	returned = true
	return err
}

// begin records a delivery and returns the handler for it.
func (r *Recorder) begin(ctx context.Context, e eventbus.Event, h eventbus.Handler) (*recorded, eventbus.Handler) {
	d := &recorded{ctx: ctx}
	d.Delivery.Delivery, _ = eventbus.FromContext(ctx)
	d.Event = e
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.script) > 0 {
		if next := r.script[0]; next != nil {
			h = next
		}
		r.script = r.script[1:]
	}
	d.Begun = time.Now()
	r.deliveries = append(r.deliveries, d)
	r.changedLocked()
	return d, h
}

func (r *Recorder) end(ctx context.Context, d *recorded, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.EndedAt, d.Err, d.CtxErr = time.Now(), err, ctx.Err()
	r.ended++
	r.changedLocked()
}

func (r *Recorder) changedLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// ErrScripted is the error of Fail(nil).
var ErrScripted = errors.New("eventbustest: scripted failure")

// Fail returns a handler that fails with err, or with ErrScripted if err is nil. err may be
// wrapped with eventbus.Permanent or eventbus.RetryAfter.
func Fail(err error) eventbus.Handler {
	if err == nil {
		err = ErrScripted
	}
	return func(context.Context, eventbus.Event) error { return err }
}

// Panic returns a handler that panics with a value.
func Panic(value any) eventbus.Handler {
	return func(context.Context, eventbus.Event) error { panic(value) }
}

// Overrun is a handler that waits for the end of its context and so exceeds its timeout, 30 s by
// default. Then it returns the context's error.
func Overrun(ctx context.Context, _ eventbus.Event) error {
	<-ctx.Done()
	return ctx.Err()
}

// Block returns a handler that succeeds when release is closed. If its context ends earlier, it
// returns the context's error.
func Block(release <-chan struct{}) eventbus.Handler {
	return func(ctx context.Context, _ eventbus.Event) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Asserting wraps a handler that may call t.FailNow, as testify's require does. Such a call is a
// permanent failure with eventbus.ErrHandlerExited. Without Asserting, the bus retries the
// handler, which fails the test again, until the retries are exhausted. Asserting runs h on a
// separate goroutine.
//
// Recording deliveries and asserting on them afterwards is often simpler. A handler that outlives
// its test must not use the test's t.
func Asserting(h eventbus.Handler) eventbus.Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, e eventbus.Event) error {
		ended := make(chan error, 1)
		go func() {
			err := eventbus.Permanent(fmt.Errorf("%w, as t.FailNow does", eventbus.ErrHandlerExited))
			defer func() {
				if p := recover(); p != nil {
					err = &eventbus.PanicError{Value: p, Stack: debug.Stack()}
				}
				ended <- err
			}()
			err = h(ctx, e)
		}()
		return <-ended
	}
}
