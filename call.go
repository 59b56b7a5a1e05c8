package eventbus

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/contexts"
	"github.com/surebus/eventbus/internal/deadline"
)

// Delivery describes the delivery that a handler's context belongs to.
type Delivery struct {
	Event        Event  `json:"event"`        // the event that the handler receives
	Subscription string `json:"subscription"` // the subscription's name, or its pattern and number
	Attempt      int    `json:"attempt"`      // the number of this attempt, from 1
	// LastAttempt is the number of the last attempt that the retry policy allows; 0 means no limit. A retry rule,
	// MaxElapsed and an expiry can make another attempt the last one.
	LastAttempt int `json:"last_attempt,omitempty"`
	Replays     int `json:"replays,omitempty"` // how often the event was replayed from dead letters
	// Edits is the number of replays that replaced the payload.
	Edits int `json:"edits,omitempty"`
	// Formerly lists the subscription's earlier names. An earlier process may have begun the delivery under such a
	// name. Callers must not change the slice.
	Formerly []string `json:"formerly,omitempty"`
	// Fence is a fencing token: the number of the store's lease under which the bus dispatches the event. Later leases
	// have larger numbers. A system that remembers the largest number can reject calls of a process that lost the lease
	// unnoticed. Fence is 0 without a store.
	Fence int64 `json:"fence,omitempty"`
}

// FromContext returns the delivery of the handler that received ctx or a parent of ctx. It returns
// false for any other context. The result does not change after the handler has returned or was
// abandoned.
func FromContext(ctx context.Context) (Delivery, bool) {
	c := callFrom(ctx)
	if c == nil {
		return Delivery{}, false
	}
	return c.delivery(), true
}

// call is one run of one handler, and the context that the handler receives. Handlers may keep
// their contexts, so a call is small and never reused. All fields but cancellation are fixed
// when it begins.
type call struct {
	dispatch     *dispatch
	cancellation atomic.Pointer[cancellation] // nil until first used
	word         deadline.Word                // the attempt, and the state for which the worker and the watch compete
	target       int32
}

var _ context.Context = (*call)(nil)

// subscription returns the subscription whose handler the call runs.
func (c *call) subscription() *Subscription {
	if a := c.cancellation.Load(); a != nil && a.heir != nil {
		return a.heir
	}
	return c.dispatch.to.subscriptions[c.target]
}

func (c *call) bus() *Bus { return c.subscription().bus }

func (c *call) running() bool { return c.word.State() == deadline.Running }

// watched returns the state, number and timeout of a call, for the watch.
func (c *call) watched() (*deadline.Word, time.Duration) { return &c.word, c.subscription().timeout }

func (c *call) delivery() Delivery {
	var fence int64
	if s := c.dispatch.row(); s != nil {
		fence = s.fence
	}
	return Delivery{
		Fence:        fence,
		Event:        c.dispatch.event(c.bus().time),
		Subscription: c.subscription().id,
		Attempt:      int(c.word.Number()),
		LastAttempt:  c.dispatch.to.policy().maxAttempts(),
		Replays:      int(c.dispatch.replay().count),
		Edits:        int(c.dispatch.replay().edits),
		Formerly:     c.subscription().formerly,
	}
}

// result is the result of a call.
type result struct {
	err     error
	verdict *verdict // on err; nil if the call ended before err was classified
	// withdrawn is set if the handler was not called, because it must no longer start. shut is the
	// reason. After a cut it is nil: a cut shuts no door.
	withdrawn bool
	shut      *barrier
}

// invoke runs the handler and classifies its error. Classification runs user code, such as RetryIf
// and methods of the error, so the watch bounds it too. If user code ends the goroutine, a fresh
// worker concludes the call.
func (c *call) invoke(m *machine, w *worker, s *Subscription, event *Event) (r result) {
	// After the call is visible to the watch: cut sets halt.Cut before it stops the visible calls, so
	// each call is stopped or does not start. From here on the call counts as running, and
	// Unsubscribe, Detach and Pause do not wait for it.
	why := w.call.at.barred()
	if why == nil && s.heir.Load() != nil { // after barred: the heir is set before the door opens for it
		why = detached
	}
	if why != nil || m.stops(c.dispatch) || m.cancelling.Stands(c.dispatch.id, m.time.Nanos) {
		return result{withdrawn: true, shut: why}
	}
	returned := false
	defer func() {
		if !returned {
			m.handlerExited(w, c, r.err)
		}
	}()
	if r.err = c.handle(s, event); r.err != nil && c.running() {
		r.verdict = m.judgeInside(c.dispatch.to.subscriptions[c.target], c.dispatch.to, r.err)
	}
	returned = true
	return r
}

// handle calls the handler. It returns a panic as a *PanicError.
func (c *call) handle(s *Subscription, event *Event) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		if value == nil {
			// Either panic(nil) with GODEBUG=panicnil=1, which recover has stopped, or runtime.Goexit. After
			// Goexit this function does not return.
			value = new(runtime.PanicNilError)
		}
		err = &PanicError{Value: value, Stack: debug.Stack()}
	}()
	err = s.handler(c, *event)
	returned = true
	return err
}

// cancellation is the state of a call whose handler uses Done or Deadline, derives a context, or
// waits for an event.
type cancellation struct {
	heir *Subscription // the subscription whose handler the call runs, if it has taken over the target's; fixed

	mu       sync.Mutex // guards the following
	deadline time.Time  // zero until first used
	done     chan struct{}
	err      error // set when the call has ended
	onDone   map[*func()]func()
	waits    int        // PublishAndWait calls in progress
	own      emitter    // what the call has emitted
	inner    []*emitter // and what parts of it have emitted in transactions
	numbered int        // number of those with a number as the scope
}

// What context.Cause reads of a call that has ended.
var (
	endedContext    = contexts.Cancelled(context.Canceled)
	overranContext  = contexts.Cancelled(context.DeadlineExceeded)
	shutdownContext = contexts.Cancelled(ErrShutdown)
	lostContext     = contexts.Cancelled(ErrLeaseLost)
	calledOff       = contexts.Cancelled(ErrCancelled)
)

type callKey struct{}

func callFrom(ctx context.Context) *call {
	if ctx == nil {
		return nil
	}
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Deadline returns when the call exceeds its timeout.
func (c *call) Deadline() (time.Time, bool) { return c.ensureCancellation().deadlineOf(c), true }

func (a *cancellation) deadlineOf(c *call) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deadline.IsZero() {
		bus := c.bus()
		if a.err != nil {
			a.deadline = bus.time.Now().UTC
		} else {
			// The worker owns the dispatch until the call is cancelled, which needs a.mu.
			a.deadline = bus.time.At(bus.machine.watch.Deadline(c.dispatch.worker.slot, c))
		}
	}
	return a.deadline
}

// Done returns a channel that is closed when the handler returns, exceeds its timeout, or is
// stopped by Shutdown, by Cancel, or because the lease is lost.
func (c *call) Done() <-chan struct{} { return c.ensureCancellation().ended() }

func (a *cancellation) ended() <-chan struct{} {
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

// Err returns context.DeadlineExceeded after the timeout, and context.Canceled after any other end.
func (c *call) Err() error {
	if c.running() {
		return nil
	}
	a := c.cancellation.Load()
	if a == nil {
		return c.endingErr()
	}
	return a.cause()
}

// cause returns nil until Done is closed.
func (a *cancellation) cause() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Value returns the value of the context that WithContextFrom returned.
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	if key == contexts.CauseKey {
		// Not the publisher's cause: its cancellation does not reach the handlers.
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

// AfterFunc runs f on its own goroutine when the call has ended. The standard library uses it to
// derive a context without a goroutine.
func (c *call) AfterFunc(f func()) (stop func() bool) { return c.ensureCancellation().afterFunc(f) }

func (a *cancellation) afterFunc(f func()) (stop func() bool) {
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

// ending returns a context that has ended in the same way as the call.
func (c *call) ending() context.Context {
	switch c.word.State() { //nolint:exhaustive // the call has ended
	case deadline.Stopped:
		return shutdownContext
	case deadline.Revoked:
		return lostContext
	case deadline.Overran:
		return overranContext
	case deadline.Cancelled:
		return calledOff
	}
	return endedContext
}

func (c *call) endingErr() error {
	if c.word.State() == deadline.Overran {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// ensureCancellation returns the call's cancellation. It creates it at the first use.
func (c *call) ensureCancellation() *cancellation {
	if a := c.cancellation.Load(); a != nil {
		return a
	}
	if !c.cancellation.CompareAndSwap(nil, &cancellation{}) {
		return c.cancellation.Load()
	}
	if !c.running() {
		// The call may have ended before the cancellation existed.
		c.cancel()
	}
	return c.cancellation.Load()
}

// cancel ends the context of a call that has ended. The dispatch continues only after that.
func (c *call) cancel() {
	if a := c.cancellation.Load(); a != nil {
		a.end(c)
	}
}

func (a *cancellation) end(c *call) {
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
	a.dropEmittedLocked(c.word.State() == deadline.Ended)
	if a.waits > 0 {
		c.resumed()
	}
}

// lendWhileWaiting marks the handler as waiting for another event. The call does not count against any
// concurrency limit until resume is called or the call ends.
func (c *call) lendWhileWaiting() (resume func()) { return c.ensureCancellation().lendWhileWaiting(c) }

func (a *cancellation) lendWhileWaiting(c *call) (resume func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return func() {}
	}
	if a.waits++; a.waits == 1 {
		c.bus().machine.pool.Block()
		c.bus().machine.lend(c.dispatch.worker.call.at)
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.waits--; a.waits == 0 && a.err == nil {
			c.resumed()
		}
	}
}

// resumed counts the call against the concurrency limits again.
func (c *call) resumed() {
	at := c.dispatch.worker.call.at
	at.begin()
	at.pins.Add(-1)
	c.bus().machine.pool.Unblock()
}

// keyHold is the place in a key's order that a dispatch has while its handler waits for another
// event.
type keyHold struct {
	of    *call         // the handler; once it has ended, it waits for nothing
	key   string        // of the place; empty for none
	at    *Subscription // whose order; nil for the bus's order
	above *waiter       // the PublishAndWait that waits for the dispatch, if any
}

// keyHold returns the place that the call's dispatch has until the handler returns.
func (c *call) keyHold() *keyHold { return c.ensureCancellation().keyHold(c) }

func (a *cancellation) keyHold(c *call) *keyHold {
	s := &keyHold{of: c}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return s
	}
	// The dispatch does not change until the call is cancelled, which needs a.mu.
	d := c.dispatch
	s.above = d.waiter()
	switch seat := d.seat(); {
	case seat.Number != 0 && parkingRules[seat.Reason].waiterWaits:
		// An event of the key would park behind this one, and PublishAndWait would wait for it.
		s.key, s.at = d.key, c.subscription()
	case d.hasTurn:
		s.key = d.key
		if at := c.subscription(); at.gate != nil {
			s.at = at
		}
	}
	return s
}

// overran hands the dispatch of a call that exceeds its timeout to a fresh worker. It runs on the
// goroutine that looks at the deadlines: the timeline's tick, a timer's, a worker's that goes to rest, or one of its own.
func (m *machine) overran(c *call) {
	s := c.subscription()
	m.abandon(c, &TimeoutError{Subscription: s.id, Timeout: s.timeout})
}

// abandon cancels a call whose handler still runs, and hands its dispatch to a fresh worker. The
// worker concludes the attempt with err, or as stopped by Shutdown if err is nil.
func (m *machine) abandon(c *call, err error) {
	c.cancel()
	if err != nil {
		m.addAbandoned(c)
	} else { // Shutdown has cut it
		m.abandoned.Add(c, m.time.Now().UTC)
	}
	m.takeOver(c, err)
}

// addAbandoned counts a call that was ended while its handler runs, until it returns.
func (m *machine) addAbandoned(c *call) {
	var doors []*door
	var hanging []*circuit.Hanging
	for o := c.dispatch.worker.call.at; o != nil; o = o.whole {
		doors, hanging = append(doors, o), append(hanging, &o.hanging)
	}
	for i, shuts := range m.abandoned.Add(c, m.time.Now().UTC, hanging...) {
		if shuts > 0 {
			m.reportHung(doors[i], shuts)
		}
	}
}

// handlerExited runs when a handler, or a method of its error, ends its goroutine.
func (m *machine) handlerExited(w *worker, c *call, err error) {
	if !c.word.End() {
		m.endedLate(w, c, result{err: err})
		return
	}
	w.lost = true
	c.cancel()
	c.takeEmitted()
	if err == nil {
		err = ErrHandlerExited
	}
	m.takeOver(c, err)
}

// takeOver hands the dispatch of a call that ended without its worker to a fresh worker.
func (m *machine) takeOver(c *call, err error) {
	m.pool.Replace(func(w *worker) {
		d := c.dispatch
		ran := d.worker.call
		d.worker = w
		if err != nil {
			m.fail(d, &ran, result{err: err})
			return
		}
		m.exit(d, ran.at, ran.pass, noOutcome)
		d.attempt--
		m.bury(d, ReasonShutdown)
	})
}

// endedLate counts and logs the return of an abandoned handler. Its result is ignored.
func (m *machine) endedLate(w *worker, c *call, r result) {
	w.lost = true
	if m.abandoned.Remove(c) {
		m.tendAll(c.subscription().door)
	}
	c.subscription().counters.lateEnds.Add(1)
	m.report.abandonedEnded(c, func() string {
		if r.err == nil {
			return ""
		}
		return m.judge(c.subscription(), r.err, nil).text
	})
}
