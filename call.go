package eventbus

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/deadline"
)

// Delivery is what a handler can ask its context.
type Delivery struct {
	Event        Event
	Subscription string // its name, or its pattern and number
	Attempt      int    // 1 for the first
	Replays      int    // how often the event has been replayed from a dead letter
}

// FromContext returns what is being delivered to the handler that received ctx, or the context from
// which ctx is derived. It returns false for any other context. The answer stays the same after the
// handler has returned or was abandoned.
func FromContext(ctx context.Context) (Delivery, bool) {
	c := callFrom(ctx)
	if c == nil {
		return Delivery{}, false
	}
	return c.delivery(), true
}

// call is one run of one handler, and the context that the handler receives. Handlers may keep
// their contexts, so a call is small and never reused. All but asked is fixed when it begins.
type call struct {
	dispatch *dispatch
	asked    atomic.Pointer[cancellation] // nil until the handler asks for it
	number   uint32                       // of the dispatch's calls
	target   int32
	attempt  int32
}

var _ context.Context = (*call)(nil)

func (c *call) subscription() *Subscription { return c.dispatch.to.subscriptions[c.target] }

func (c *call) bus() *Bus { return c.subscription().bus }

func (c *call) state() deadline.State { return c.dispatch.word.State(c.number) }

func (c *call) running() bool { return c.state() == deadline.Running }

// watched is what the watch needs of a call.
func (c *call) watched() (*deadline.Word, uint32, time.Duration) {
	return &c.dispatch.word, c.number, c.subscription().timeout
}

func (c *call) delivery() Delivery {
	return Delivery{
		Event:        c.dispatch.event(c.bus().time),
		Subscription: c.subscription().id,
		Attempt:      int(c.attempt),
		Replays:      int(c.dispatch.replay().count),
	}
}

// result is what has become of a call.
type result struct {
	err     error
	verdict *verdict // on err; nil if the call ended before it was asked
	// withdrawn says that the handler was not called: it must not start any more. shut is why, unless
	// Shutdown's context has ended.
	withdrawn bool
	shut      shut
}

// invoke runs the handler and asks its error every question that the decision needs: their answers
// are user code, so the watch guards them too. If the handler, or a method of its error, ends the
// goroutine, a fresh worker concludes the call.
func (c *call) invoke(w *worker, s *Subscription, event *Event) (r result) {
	// Read after the watch shows the call: Unsubscribe, Pause and the end of Shutdown first set what
	// is read here, and then look for running calls.
	if why := s.door.barred(); why != admitted || s.bus.cutting.begun() {
		return result{withdrawn: true, shut: why}
	}
	returned := false
	defer func() {
		if !returned {
			s.bus.exited(w, c, r.err)
		}
	}()
	if r.err = c.handle(s, event); r.err != nil && c.running() {
		r.verdict = s.bus.judgeInside(s, c.dispatch.to, r.err)
	}
	returned = true
	return r
}

// handle turns a panic into an error.
func (c *call) handle(s *Subscription, event *Event) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		if value == nil {
			// Either panic(nil) with GODEBUG=panicnil=1, which recover has stopped, or runtime.Goexit, after
			// which this function does not return.
			value = new(runtime.PanicNilError)
		}
		err = &PanicError{Value: value, Stack: debug.Stack()}
	}()
	err = s.handler(c, *event)
	returned = true
	return err
}

// cancellation is what a call needs once its handler has asked for Done or the deadline, has
// derived a context, or waits for an event.
type cancellation struct {
	mu       sync.Mutex // guards the following
	deadline time.Time  // zero until it was asked for
	done     chan struct{}
	err      error // set when the call has ended
	onDone   map[*func()]func()
	waits    int // PublishAndWait calls in progress
}

// The standard library reads a cause only from its own contexts, so these answer for calls.
var (
	endedContext    = cancelled(context.Canceled)
	overranContext  = cancelled(context.DeadlineExceeded)
	shutdownContext = cancelled(ErrShutdown)
)

func cancelled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

// causeKey is the key that context.Cause passes to a context's Value. Only the standard library
// knows it.
var causeKey = func() any {
	var c keyCatcher
	_ = context.Cause(&c)
	return c.key
}()

type keyCatcher struct {
	context.Context
	key any
}

func (*keyCatcher) Err() error { return context.Canceled }

func (c *keyCatcher) Value(key any) any {
	c.key = key
	return nil
}

type callKey struct{}

func callFrom(ctx context.Context) *call {
	if ctx == nil {
		return nil
	}
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Deadline is when the call exceeds its timeout.
func (c *call) Deadline() (time.Time, bool) {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deadline.IsZero() {
		bus := c.bus()
		if a.err != nil {
			a.deadline = bus.time.Now().UTC
		} else {
			// The dispatch is this worker's until the call has been cancelled, which needs a.mu.
			a.deadline = bus.time.At(bus.watch.Deadline(c.dispatch.worker.slot, c))
		}
	}
	return a.deadline, true
}

// Done is closed when the handler has returned, exceeded its timeout, or been stopped by Shutdown.
func (c *call) Done() <-chan struct{} {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done == nil {
		a.done = make(chan struct{})
		if a.err != nil {
			close(a.done)
		}
	}
	return a.done
}

// Err is context.DeadlineExceeded after the deadline, and context.Canceled after any other end.
func (c *call) Err() error {
	if c.running() {
		return nil
	}
	a := c.asked.Load()
	if a == nil {
		return c.endingErr()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err // nil until Done is closed
}

// Value asks the context that was given to Publish.
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	if key == causeKey {
		// Not the publisher's: its cancellation does not reach the handlers.
		if c.running() {
			return nil
		}
		return c.ending().Value(key)
	}
	if c.dispatch.values == nil {
		return nil
	}
	return c.dispatch.values.Value(key)
}

// AfterFunc runs f on a goroutine of its own when the call has ended. With it the standard library
// needs no goroutine for a derived context.
func (c *call) AfterFunc(f func()) (stop func() bool) {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		go f()
		return func() bool { return false }
	}
	if a.onDone == nil {
		a.onDone = make(map[*func()]func())
	}
	key := &f
	a.onDone[key] = f
	return func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		_, pending := a.onDone[key]
		delete(a.onDone, key)
		return pending
	}
}

// ending is a context that has ended as the call has. The word says how until the dispatch's next
// call begins, and the cancellation from then on.
func (c *call) ending() context.Context {
	if c.state() == deadline.Stopped { // Shutdown's: no other call follows
		return shutdownContext
	}
	if c.Err() == context.DeadlineExceeded { //nolint:errorlint // a call's own error
		return overranContext
	}
	return endedContext
}

func (c *call) endingErr() error {
	if c.state() == deadline.Overran {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// ask is the call's cancellation, made at the first question.
func (c *call) ask() *cancellation {
	if a := c.asked.Load(); a != nil {
		return a
	}
	if !c.asked.CompareAndSwap(nil, &cancellation{}) {
		return c.asked.Load()
	}
	if !c.running() {
		// The call may have ended before there was anything to cancel.
		c.cancel()
	}
	return c.asked.Load()
}

// cancel ends the context of a call that has ended. Its dispatch goes on only after that.
func (c *call) cancel() {
	a := c.asked.Load()
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return
	}
	a.err = c.endingErr()
	if a.done != nil {
		close(a.done)
	}
	for _, f := range a.onDone {
		go f()
	}
	a.onDone = nil
	if a.waits > 0 {
		c.resumed()
	}
}

// waits says that the handler waits for another event: it does not count against any concurrency
// limit until resume is called or the call ends.
func (c *call) waits() (resume func()) {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return func() {}
	}
	if a.waits++; a.waits == 1 {
		c.bus().pool.Block()
		c.bus().lend(c.subscription())
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.waits--; a.waits == 0 && a.err == nil {
			c.resumed()
		}
	}
}

// resumed makes the call count again.
func (c *call) resumed() {
	c.subscription().door.running.Add(1)
	c.bus().pool.Unblock()
}

// standing is what a dispatch holds while its handler waits for another event.
type standing struct {
	key   string        // whose place it holds; empty for none
	at    *Subscription // at which; nil for the bus's order
	above *waiter       // the PublishAndWait that waits for the dispatch, if any
}

// stands is what the call's dispatch holds until the handler returns.
func (c *call) stands() *standing {
	s := &standing{}
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return s
	}
	// Until the call has been cancelled, which needs a.mu, nothing else changes the dispatch.
	d := c.dispatch
	s.above = d.waiter()
	if d.placed {
		s.key = d.key
		if at := c.subscription(); at.gate != nil {
			s.at = at
		}
	}
	return s
}

// AbandonedHandler is a handler that exceeded its timeout, or was stopped by Shutdown, and has not
// returned.
type AbandonedHandler struct {
	Subscription string
	EventID      EventID
	EventType    string
	Since        time.Time
}

// abandonedCalls are the calls that were abandoned and still run.
type abandonedCalls struct {
	mu    sync.Mutex // guards the following
	calls map[*call]time.Time
	late  map[*call]bool // calls that have ended before they were added
}

func (a *abandonedCalls) add(c *call, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.late[c] {
		delete(a.late, c)
		return
	}
	a.calls[c] = since
}

func (a *abandonedCalls) remove(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, added := a.calls[c]; !added {
		a.late[c] = true
		return
	}
	delete(a.calls, c)
}

func (a *abandonedCalls) list() []AbandonedHandler {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []AbandonedHandler
	for c, since := range a.calls {
		all = append(all, AbandonedHandler{
			Subscription: c.subscription().id,
			EventID:      c.dispatch.id,
			EventType:    c.dispatch.to.eventType,
			Since:        since,
		})
	}
	return all
}

// overran is called by the watch, on its goroutine, when a call exceeds its timeout.
func (b *Bus) overran(c *call) {
	s := c.subscription()
	b.abandon(c, &TimeoutError{Subscription: s.id, Timeout: s.timeout})
}

// abandon leaves a call to itself, and its dispatch to a fresh worker, which concludes the attempt
// with err, or with its end by Shutdown if that is nil.
func (b *Bus) abandon(c *call, err error) {
	c.ask() // even if the handler has not: the context's end must not change when d goes on
	c.cancel()
	b.abandoned.add(c, b.time.Now().UTC)
	b.takeOver(c, err)
}

// exited is called when a handler, or a method of its error, ends its goroutine.
func (b *Bus) exited(w *worker, c *call, err error) {
	if !c.dispatch.word.End(c.number) {
		b.endedLate(w, c, result{err: err})
		return
	}
	w.lost = true
	c.cancel()
	if err == nil {
		err = ErrHandlerExited
	}
	b.takeOver(c, err)
}

// takeOver lets a fresh worker conclude a call that has ended without its own.
func (b *Bus) takeOver(c *call, err error) {
	b.pool.Replace(func(w *worker) {
		d, s := c.dispatch, c.subscription()
		ran := d.worker.call
		d.worker = w
		if err != nil {
			b.fail(d, s, &ran, result{err: err})
			return
		}
		b.leave(d, s, ran.pass, noOutcome)
		d.attempt--
		b.bury(d, ReasonShutdown)
	})
}

// endedLate notes that an abandoned handler has returned. Its result is counted only.
func (b *Bus) endedLate(w *worker, c *call, r result) {
	w.lost = true
	b.abandoned.remove(c)
	c.subscription().counters.lateEnds.Add(1)
	b.logLateEnd(c, r.err)
}
