package eventbus

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/deadline"
)

// Delivery is what a handler can ask of its context.
type Delivery struct {
	Event        Event
	Subscription string // its name, or what stands for one
	Attempt      int    // 1 for the first
	Replays      int    // how often the event has been replayed from a dead letter
}

// FromContext tells what is being delivered to the handler that ctx, or the
// context that it was derived from, was given to. It reports false for another
// context, and for one that a handler has kept after it returned, unless it was
// asked before.
func FromContext(ctx context.Context) (Delivery, bool) {
	c := callFrom(ctx)
	if c == nil {
		return Delivery{}, false
	}
	d, at := c.delivery()
	return d, at != nil
}

// delivery is what FromContext tells, and the subscription of that, nil if the call has
// ended and was not asked before.
func (c *call) delivery() (Delivery, *Subscription) {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.delivery == nil {
		if c.state() == deadline.Ended {
			return Delivery{}, nil
		}
		// The dispatch stays what it is while the lock is held: whoever ends
		// the call takes it in cancel, before anything else. The worker of a
		// call that has been given up does not take another one.
		a.rememberLocked(c)
	}
	return *a.delivery, a.at
}

// remember keeps what FromContext tells beyond the end of a call that has not
// been cancelled yet.
func (a *cancellation) remember(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.delivery == nil {
		a.rememberLocked(c)
	}
}

func (a *cancellation) rememberLocked(c *call) {
	a.at = c.subscription()
	a.delivery = &Delivery{
		Event:        c.dispatch.event(c.bus().time),
		Subscription: a.at.id,
		Attempt:      int(c.dispatch.attempt),
		Replays:      c.dispatch.replays(),
	}
}

// call is one run of a handler, and the context that the handler is given. It is
// made for one run and never reused: handlers keep their contexts. So it is small.
type call struct {
	*visit
	number uint64 // tells it from the others of its worker; the first is 1 or more
}

// visit is what calls have in common: those of an event in one attempt, and those
// of the events after it in the same worker, if these were published without values
// and nothing has been asked of it yet (see ask).
type visit struct {
	worker   *worker
	dispatch *dispatch                    // while they run; the worker's next one is in the same place
	values   context.Context              // given to Publish
	asked    atomic.Pointer[cancellation] // of the calls, each with the one before
	// Of the call that runs, or was given up, which its worker's last one is then: when it
	// began, exactly or up to a tick before.
	started int64
	// How it came in, and where its subscription is in those of the dispatch; and the same of
	// the next one, which is written while it can still be given up: those with an even number
	// in the first, the others in the second.
	passes    [2]uint64
	positions [2]int32
}

var _ context.Context = (*call)(nil)

func (c *call) bus() *Bus { return c.worker.bus }

func (c *call) running() bool { return c.worker.slot.Runs(c.number) }

func (c *call) state() deadline.State { return c.worker.slot.State(c.number) }

// pass is how the call came through its circuit's gate, for its worker, and for whoever
// has ended it or given it up.
func (c *call) pass() uint64 { return c.passes[c.number%2] }

// position is where its subscription is in those of the dispatch, for the same.
func (c *call) position() int32 { return c.positions[c.number%2] }

// subscription is whose handler it runs, for whoever has ended it or given it up, until
// its dispatch goes on, and under its cancellation's lock until that is cancelled.
func (c *call) subscription() *Subscription { return c.dispatch.to.subscriptions[c.position()] }

// takeBack is the dispatch of a call, at its subscription, for whoever has ended it or
// given it up.
func (c *call) takeBack() *dispatch {
	c.dispatch.next = c.position()
	return c.dispatch
}

// cancellation is what a call needs once its handler has asked for Done, derived
// a context, or waited for an event.
type cancellation struct {
	number    uint64 // of the call; a pointer would keep the calls beside it, and so on
	before    *cancellation
	endedLate bool // guarded by abandonedCalls.mu

	mu       sync.Mutex    // guards the following
	delivery *Delivery     // once it was asked for
	at       *Subscription // of that
	deadline time.Time     // likewise
	done     chan struct{}
	err      error
	onDone   map[*func()]func()
	waits    int // of PublishAndWait
	released bool
}

// The standard library reads a cause only from its own contexts, so these stand
// for ours.
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

// causeKey is the key that context.Cause asks a context's Value for, which only
// the standard library knows.
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

// Deadline is when the handler has overrun its timeout.
func (c *call) Deadline() (time.Time, bool) {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deadline.IsZero() {
		bus := c.bus()
		a.deadline = bus.time.At(bus.watch.Deadline(c.worker.slot, c.number))
	}
	return a.deadline, true
}

// Done is closed when the handler has returned, overrun, or been cut short.
func (c *call) Done() <-chan struct{} {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done == nil {
		a.done = make(chan struct{})
		if a.err != nil {
			if a.done != nil {
				close(a.done)
			}
		}
	}
	return a.done
}

// Err is context.DeadlineExceeded after the deadline, context.Canceled after
// another end.
func (c *call) Err() error {
	if c.running() {
		return nil
	}
	a := c.cancellation()
	if a == nil {
		return c.endingErr()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err // nil until Done is closed
}

// Value asks the context given to Publish.
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
	if c.values == nil {
		return nil
	}
	return c.values.Value(key)
}

// AfterFunc runs f on a goroutine of its own when the context is done. With it
// the standard library needs no goroutine for a context derived from this one.
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

// ending is a context that has ended as the call has.
func (c *call) ending() context.Context {
	switch c.state() {
	case deadline.Overran:
		return overranContext
	case deadline.Stopped:
		return shutdownContext
	default:
		return endedContext
	}
}

// endingErr is the error of a call that has ended.
func (c *call) endingErr() error {
	if c.state() == deadline.Overran {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// cancellation is the call's, nil if it has not been asked for.
func (c *call) cancellation() *cancellation {
	a := c.asked.Load()
	for a != nil && a.number != c.number {
		a = a.before
	}
	return a
}

func (c *call) ask() *cancellation {
	mine := &cancellation{number: c.number}
	for {
		first := c.asked.Load()
		if a := c.cancellation(); a != nil {
			return a
		}
		if mine.before = first; c.asked.CompareAndSwap(first, mine) {
			break
		}
	}
	if !c.running() {
		// Whoever ended it may have looked before there was anything to cancel.
		c.cancel()
	}
	return mine
}

// cancel tells those who asked that the call is over, however it ended.
func (c *call) cancel() {
	if c.asked.Load() == nil {
		return
	}
	a := c.cancellation()
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
		c.bus().lanes.Unblock()
	}
	a.released = true
}

// stands is what stays as it is until the handler returns: nothing, if it has.
func (c *call) stands() *standing {
	s := &standing{}
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	// Not released may also be one that somebody else has asked for just after the end.
	if a.released || c.state() == deadline.Ended {
		return s
	}
	// As in FromContext, the dispatch stays what it is while the lock is held.
	d := c.dispatch
	if s.above = d.waiter(); s.above != nil {
		s.above.lent.Store(true)
	}
	if d.hasPlace() {
		s.place.key = d.key
		if at := c.subscription(); at.gate != nil {
			s.place.at = at
		}
	}
	return s
}

// waits says that the handler waits for another event to be handled, and so does
// not count against the concurrency until resume is called, or the call is over.
func (c *call) waits() (resume func()) {
	a := c.ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.released {
		return func() {}
	}
	lanes := c.bus().lanes
	if a.waits++; a.waits == 1 {
		lanes.Block()
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.waits--; a.waits == 0 && !a.released {
			lanes.Unblock()
		}
	}
}

// AbandonedHandler is a handler that has been given up, at its timeout or by
// Shutdown, and has not come back.
type AbandonedHandler struct {
	Subscription string
	EventID      EventID
	EventType    string
	Since        time.Time
}

// abandonedCalls are the calls that have been given up and go on.
type abandonedCalls struct {
	mu    sync.Mutex // guards the following, and cancellation.endedLate
	calls map[*call]time.Time
}

func (a *abandonedCalls) add(c *call, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !c.ask().endedLate { // it may have ended before it was noted
		a.calls[c] = since
	}
}

func (a *abandonedCalls) remove(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.ask().endedLate = true
	delete(a.calls, c)
}

func (a *abandonedCalls) list() []AbandonedHandler {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []AbandonedHandler
	for c, since := range a.calls {
		d, _ := FromContext(c)
		all = append(all, AbandonedHandler{
			Subscription: d.Subscription,
			EventID:      d.Event.ID,
			EventType:    d.Event.Type,
			Since:        since,
		})
	}
	return all
}
