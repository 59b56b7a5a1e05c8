package conformance

import (
	"context"
	"errors"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/surebus/eventbus/mwl"
)

// Outcome is how one scenario ended.
type Outcome struct {
	Scenario string // the name of the scenario
	// Err is how the Result differs from the expected one, or nil.
	Err error
}

// Run executes the scenarios of the case, one after another. Hours of Sleep take no time: the clock is virtual, and
// advances to the next timer when an execution is idle. Run returns an error for a case that is malformed, has no
// scenario or does not load. When ctx is done, the running scenario is cancelled, and Run returns the error of ctx.
//
// The clock stands still while a goroutine of the process computes. A scenario whose Timeout
// is to end a computation therefore does not time out: let it wait instead.
//
// The definition is loaded with [mwl.DeferArgumentErrors], as the language's text says.
// The options come after that.
func (c *Case) Run(ctx context.Context, options ...mwl.LoadOption) ([]Outcome, error) {
	switch {
	case c == nil:
		return nil, errors.New("the case is nil; take one that Read returned")
	case c.Malformed != nil:
		return nil, c.Malformed
	case len(c.Scenarios) == 0:
		return nil, errors.New("the case has no scenario; add one")
	}
	if ctx == nil {
		ctx = context.Background()
	}
	var outcomes []Outcome
	for _, s := range c.Scenarios {
		virtual := newClock()
		def, err := mwl.Load(c.Definition, append([]mwl.LoadOption{mwl.DeferArgumentErrors(), mwl.WithClock(virtual)}, options...)...)
		if err != nil {
			virtual.stop()
			return nil, err
		}
		var arguments []mwl.ExecuteOption
		if s.Arguments != nil {
			arguments = append(arguments, mwl.WithArguments(s.Arguments))
		}
		result := def.Execute(ctx, s.Input, arguments...)
		virtual.stop()
		if err := ctx.Err(); err != nil {
			return outcomes, err
		}
		outcomes = append(outcomes, Outcome{s.Name, s.Check(result)})
	}
	return outcomes, nil
}

// idleClock is a clock that advances to its next timer when the process is idle: no
// goroutine computes, and no code has used the clock for a while. It suits executions
// that only compute and wait.
type idleClock struct {
	*clock.Mock
	uses atomic.Int64
	quit chan struct{}
	done sync.WaitGroup

	mu  sync.Mutex
	due []time.Time // of all timers ahead; those that were stopped stay, and do no harm
}

func newClock() *idleClock {
	c := &idleClock{Mock: clock.NewMock(), quit: make(chan struct{})}
	c.Set(time.Now())
	c.done.Go(c.advance)
	return c
}

func (c *idleClock) stop() {
	close(c.quit)
	c.done.Wait()
}

// Now returns the virtual time.
func (c *idleClock) Now() time.Time {
	c.uses.Add(1)
	return c.Mock.Now()
}

// Timer returns a timer in virtual time.
func (c *idleClock) Timer(d time.Duration) *clock.Timer {
	t := c.Mock.Timer(d)
	c.note(d)
	return t
}

// AfterFunc calls f in virtual time.
func (c *idleClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	t := c.Mock.AfterFunc(d, f)
	c.note(d)
	return t
}

func (c *idleClock) note(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = append(c.due, c.Mock.Now().Add(d))
	c.uses.Add(1)
}

// idleLooks is how many milliseconds in a row the process is idle before the clock
// advances.
const idleLooks = 4

func (c *idleClock) advance() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	states := []metrics.Sample{{Name: "/sched/goroutines/running:goroutines"}, {Name: "/sched/goroutines/runnable:goroutines"}}
	for last, looks := int64(-1), 0; ; {
		select {
		case <-c.quit:
			return
		case <-tick.C:
		}
		// An execution that computes for long does not use the clock. On a busy machine
		// it may also not get to run.
		if uses := c.uses.Load(); uses != last || computing(states) {
			last, looks = uses, 0
			continue
		}
		if looks++; looks < idleLooks {
			continue
		}
		looks = 0
		if next, ok := c.next(); ok {
			c.Set(next)
		}
	}
}

// computing reports whether goroutines other than the caller compute, or could.
func computing(states []metrics.Sample) bool {
	metrics.Read(states)
	return states[0].Value.Uint64() > 1 || states[1].Value.Uint64() > 0
}

// next returns the earliest instant at which a timer may fire, and forgets those that
// are past.
func (c *idleClock) next() (next time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Mock.Now()
	c.due = slices.DeleteFunc(c.due, func(due time.Time) bool { return !due.After(now) })
	for _, due := range c.due {
		if !ok || due.Before(next) {
			next, ok = due, true
		}
	}
	return next, ok
}
