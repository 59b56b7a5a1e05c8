package eventbustest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/surebus/eventbus"
)

// Recorder records deliveries: subscribed as a handler of its own with Handle, or
// around others with Wrap. It can be told what to do with the next ones. The zero
// value is ready; its methods are safe for concurrent use. Inside testing/synctest
// use it in one bubble only.
type Recorder struct {
	mu         sync.Mutex // guards the following
	deliveries []*Delivery
	ended      int
	script     []eventbus.Handler
	changed    chan struct{} // closed at the next change; nil if nobody waits
}

// Delivery is one call of a handler, as a Recorder saw it.
type Delivery struct {
	// Delivery is the event, the subscription, the attempt and the replays.
	eventbus.Delivery
	// Begun and EndedAt are when, by the clock of time.Now; EndedAt is zero while
	// the handler runs.
	Begun, EndedAt time.Time
	// Err is what the handler returned; a *eventbus.PanicError if it panicked, and
	// eventbus.ErrHandlerExited if it ended its goroutine.
	Err error
	// CtxErr is the error that the handler's context had when the handler ended:
	// not nil if it had overrun, or Shutdown had been cut short. The bus has then
	// given up the call, and Err changes nothing.
	CtxErr error
}

// Ended reports whether the handler has ended.
func (d Delivery) Ended() bool { return !d.EndedAt.IsZero() }

// String is the delivery as a line of text.
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

// textOf is what an error says, even if its method panics: fmt catches that.
func textOf(err error) string { return fmt.Sprintf("%v", err) }

// Handle is a handler that records, and does what the script says; without one it
// succeeds.
func (r *Recorder) Handle(ctx context.Context, e eventbus.Event) error {
	return r.deliver(ctx, e, func(context.Context, eventbus.Event) error { return nil })
}

// Wrap is a middleware that records what the handlers do that it wraps: give it to
// eventbus.Use or eventbus.WithMiddleware. What the script says is done instead of
// the handler.
func (r *Recorder) Wrap(h eventbus.Handler) eventbus.Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, e eventbus.Event) error { return r.deliver(ctx, e, h) }
}

// Script says what the next deliveries do, one handler for each, in the order in
// which they begin, whatever their events and subscriptions: see Fail, Panic,
// Overrun and Block. A nil lets the delivery pass as without a script. After the
// last, all pass. Called again, it appends.
func (r *Recorder) Script(next ...eventbus.Handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = append(r.script, next...)
}

// FailNext is Script with n times Fail(err).
func (r *Recorder) FailNext(n int, err error) {
	for range n {
		r.Script(Fail(err))
	}
}

// Deliveries are those so far, in the order in which they began.
func (r *Recorder) Deliveries() []Delivery {
	return r.matching(func(*Delivery) bool { return true })
}

// ByType are the deliveries of events of just this type.
func (r *Recorder) ByType(eventType string) []Delivery {
	return r.matching(func(d *Delivery) bool { return d.Event.Type == eventType })
}

// ByEvent are the deliveries of an event: its attempts, at all subscriptions that
// are recorded.
func (r *Recorder) ByEvent(id eventbus.EventID) []Delivery {
	return r.matching(func(d *Delivery) bool { return d.Event.ID == id })
}

// Delays are the times that an event waited from the end of an attempt to the
// beginning of the next, as recorded: its retries. They are exact inside
// testing/synctest, if the policy has NoJitter. With a mock clock they are not the
// bus's: they are measured with time.Now.
func (r *Recorder) Delays(id eventbus.EventID) []time.Duration {
	var delays []time.Duration
	var last *Delivery
	lastAt := make(map[string]*Delivery)
	for _, d := range r.ByEvent(id) {
		// An attempt begins where the one before has failed, unless it skips that
		// subscription. Those of other dispatches of the event may come between.
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

// Payloads are the payloads of the events that were delivered and can be taken as
// a T, just as eventbus.Typed would: each event's once, however often it was
// tried, in the order of their first deliveries.
func Payloads[T any](r *Recorder) []T {
	var payloads []T
	known := make(map[eventbus.EventID]bool)
	take := eventbus.Typed(func(_ context.Context, payload T) error {
		payloads = append(payloads, payload)
		return nil
	})
	for _, d := range r.Deliveries() {
		if !known[d.Event.ID] {
			known[d.Event.ID] = true
			_ = take(context.Background(), d.Event) // an error: it is no T
		}
	}
	return payloads
}

// Wait returns when at least n deliveries have ended, failed ones too. The bus
// learns of the end a moment later: for dead letters and metrics, WaitSettled. It
// waits as long as WaitSettled does, then the test ends and shows the deliveries.
// Call it on the test's goroutine.
func (r *Recorder) Wait(t testing.TB, n int) {
	t.Helper()
	r.wait(t, n, "have ended", func() int { return r.ended })
}

// WaitBegun is Wait for deliveries that have begun: for those that Block.
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

func (r *Recorder) matching(match func(*Delivery) bool) []Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Delivery
	for _, d := range r.deliveries {
		if match(d) {
			found = append(found, *d)
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
			// runtime.Goexit goes on. GODEBUG=panicnil=1 has a panic that recover
			// has stopped, and that must not become a success.
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

// begin records a delivery, and says what handles it.
func (r *Recorder) begin(ctx context.Context, e eventbus.Event, h eventbus.Handler) (*Delivery, eventbus.Handler) {
	d := &Delivery{}
	d.Delivery, _ = eventbus.FromContext(ctx)
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

func (r *Recorder) end(ctx context.Context, d *Delivery, err error) {
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

// ErrScripted is what Fail(nil) fails with.
var ErrScripted = errors.New("eventbustest: scripted failure")

// Fail is a handler that returns err, or ErrScripted if that is nil. Mark err with
// eventbus.Permanent or eventbus.RetryAfter to steer the bus.
func Fail(err error) eventbus.Handler {
	if err == nil {
		err = ErrScripted
	}
	return func(context.Context, eventbus.Event) error { return err }
}

// Panic is a handler that panics with a value.
func Panic(value any) eventbus.Handler {
	return func(context.Context, eventbus.Event) error { panic(value) }
}

// Overrun is a handler that works until its context ends, and so overruns its
// timeout: 30 s by default, which take no time inside testing/synctest. Then it
// returns the context's error.
func Overrun(ctx context.Context, _ eventbus.Event) error {
	<-ctx.Done()
	return ctx.Err()
}

// Block is a handler that waits until release is closed, and succeeds; if its
// context ends before, it fails with the context's error.
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

// Asserting makes a handler of one that may call t.FailNow, as testify's require
// does: the failure ends the delivery for good, with eventbus.ErrHandlerExited as
// its error. Without it, a handler that fails the test has ended its goroutine,
// which the bus takes for a failure like any other: the handler is tried again,
// and fails the test again, until its retries are exhausted. It runs h on a
// goroutine of its own.
//
// It is often simpler to record, and to assert on the deliveries afterwards. A
// handler that outlives its test must not use its t at all.
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
