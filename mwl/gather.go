package mwl

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/surebus/eventbus/mwl/internal/definition"
)

// shownFailures is how many failures System.GatherCompletionUnmet lists.
const shownFailures = 100

// gathering is the action of a Gather.
type gathering struct {
	s          *stepRun
	ctx        context.Context
	dispatches []dispatch
	// call and input are what a dispatch runs.
	call  func(i int) *definition.Call
	input func(i int) any
	// concurrency is how many dispatches are active at once.
	concurrency int
	workers     sync.WaitGroup
	// needed is how many must succeed; with wait, all run whatever happens.
	needed int
	wait   bool
	// imposed is what the Gather interrupts its dispatches with.
	imposed *interruption
	stop    context.CancelCauseFunc

	mu sync.Mutex // guards the following, and the dispatches while they run
	// Dispatches below started are or were active; those below next have a
	// goroutine that runs them. working counts these goroutines.
	next, started, working int
	succeeded, failed      int
	decided                bool
}

// dispatch is one of a Gather's.
type dispatch struct {
	// run is set once the dispatch runs, and no longer than something can read it.
	run   *callRun
	state dispatchState
	// final is what the dispatch resolved to; its arm may change it.
	final outcome
}

type dispatchState uint8

const (
	dispatchSkipped   dispatchState = iota // not started
	dispatchActive                         // its Result is not accepted yet
	dispatchAccepted                       // its Result counts
	dispatchCancelled                      // interrupted by the Gather
)

// gather runs the fan-out. When it returns every dispatch has resolved.
func (s *stepRun) gather(ctx context.Context) *outcome {
	g, stop := s.enumerate(ctx)
	if stop != nil {
		return s.gathered(stop)
	}
	if stop := g.policy(ctx); stop != nil {
		if stop.unwinding == nil {
			s.results = g.collect()
		}
		return s.gathered(stop)
	}
	if torn := g.run(ctx); torn != nil {
		return torn
	}
	if torn := g.arms(ctx); torn != nil {
		return torn
	}
	s.results = g.collect()
	if i := s.f.x.measure(s.step.Pointer, s.results); i != nil {
		unwound := i.unwound()
		return &unwound
	}
	return s.gathered(g.verdict())
}

// gathered settles the Step.
func (s *stepRun) gathered(stop *outcome) *outcome {
	s.exitedAt = s.f.x.instant()
	if s.results == nil {
		s.results = []any{}
	}
	return stop
}

// enumerate makes the dispatches, none of which starts.
func (s *stepRun) enumerate(ctx context.Context) (*gathering, *outcome) {
	g := &gathering{s: s, wait: s.step.Gather.Wait}
	g.call, g.input = func(i int) *definition.Call { return s.step.Gather.Calls[i] }, func(int) any { return s.input }
	count := len(s.step.Gather.Calls)
	if over := s.step.Gather.Over; over.Written() {
		v, stop := s.f.eval(ctx, over, s)
		if stop != nil {
			return nil, stop
		}
		elements, ok := v.([]any)
		if !ok {
			return nil, stopped(invalid(over, "an array", v))
		}
		g.call, g.input = func(int) *definition.Call { return s.step.Call }, func(i int) any { return elements[i] }
		count = len(elements)
	}
	s.dispatches, s.enumerated = count, true
	if limit := s.f.x.limits.FanOut; limit > 0 && count > limit {
		return nil, stopped(newFailure(TypeError, CodeFanOutLimitExceeded,
			fmt.Sprintf("%s would make %d dispatches; the limit is %d", s.step.Pointer, count, limit),
			map[string]any{"dispatches": float64(count), "limit": float64(limit)}, nil))
	}
	s.f.hold(dispatchBytes * count)
	if i := s.f.afford(ctx); i != nil {
		unwound := i.unwound()
		return nil, &unwound
	}
	g.dispatches = make([]dispatch, count)
	g.concurrency = count
	for _, limit := range []int{s.step.Gather.Concurrency, s.f.x.limits.Concurrency} {
		if !boundless(limit) {
			g.concurrency = min(g.concurrency, limit)
		}
	}
	return g, nil
}

// policy finds out what the fan-out must achieve.
func (g *gathering) policy(ctx context.Context) *outcome {
	g.needed = len(g.dispatches)
	field := g.s.step.Gather.Successes
	if !field.Written() {
		return nil
	}
	v, stop := g.s.f.eval(ctx, field, g.s)
	if stop != nil {
		return stop
	}
	n, ok := v.(float64)
	if !ok || n != math.Trunc(n) {
		return stopped(invalid(field, "an integer", v))
	}
	g.needed = int(min(max(n, 0), math.MaxInt32))
	return nil
}

// run runs the dispatches and returns when all have resolved. Its goroutine works
// itself, so that a Gather makes progress when the execution has no goroutine left.
// What run returns is the teardown of the scope around.
func (g *gathering) run(ctx context.Context) *outcome {
	g.imposed = &interruption{x: g.s.f.x, chain: newFailure(TypeCancellation, CodeGatherDispatchCancelled,
		"the outcome of the fan-out was decided before this dispatch ended", nil, nil)}
	g.ctx, g.stop = context.WithCancelCause(ctx)
	defer g.stop(nil)
	g.decide()
	g.start()
	g.work(false)
	g.workers.Wait()

	for i := range g.dispatches {
		if o := &g.dispatches[i].final; o.unwinding != nil && o.unwinding != g.imposed {
			return g.torn()
		}
	}
	if i := g.s.f.x.interrupted(ctx); i != nil {
		unwound := i.unwound()
		return &unwound
	}
	return nil
}

// torn is the teardown that reached the Gather through its dispatches: the
// cancellation, or the first cleanup that failed on the way.
func (g *gathering) torn() *outcome {
	var torn *outcome
	for i := range g.dispatches {
		o := g.dispatches[i].final
		if o.unwinding == nil || o.unwinding == g.imposed {
			continue
		}
		if torn == nil || torn.failure == torn.unwinding.chain {
			torn = &o
		}
	}
	return torn
}

// start makes as many dispatches active as may be at once.
func (g *gathering) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.decided && !g.wait {
		return
	}
	for i := range g.concurrency {
		g.dispatches[i].state = dispatchActive
	}
	g.started, g.working = g.concurrency, 1
}

// work runs active dispatches until none is left. A hired goroutine belongs to the
// Gather alone, so that it runs Go functions itself.
func (g *gathering) work(hired bool) {
	for {
		i, more := g.take()
		if !more {
			return
		}
		d := &g.dispatches[i]
		g.attempt(d, i, hired)
	}
}

// take takes the next active dispatch, and hires a goroutine when there are others.
func (g *gathering) take() (i int, more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == g.started {
		g.working--
		return 0, false
	}
	i = g.next
	g.next++
	if g.next < g.started && g.working < g.concurrency && g.s.f.x.hire() {
		g.working++
		g.hire()
	}
	return i, true
}

func (g *gathering) hire() {
	g.workers.Go(func() {
		defer g.s.f.x.dismiss()
		g.work(true)
	})
}

// attempt runs a dispatch and settles it. If the provider ends a hired goroutine,
// the dispatch fails and another goroutine takes its place.
func (g *gathering) attempt(d *dispatch, i int, hired bool) {
	x := g.s.f.x
	c := &callRun{f: g.s.f, call: g.call(i), outer: g.s, step: g.s, input: g.input(i), index: i, hired: hired}
	o, returned := outcome{}, false
	defer func() {
		if !returned {
			o = c.abandoned(g.ctx)
		}
		g.mu.Lock()
		if c.armed() {
			d.run = c
		}
		g.settle(d, o)
		if g.started < len(g.dispatches) && (g.wait || !g.decided) && g.ctx.Err() == nil {
			g.dispatches[g.started].state = dispatchActive
			g.started++
		}
		final := d.final
		g.mu.Unlock()
		c.span.end(final)
		if !returned {
			x.budget.goroutines.Add(1)
			x.budget.live.Add(goroutineBytes)
			g.hire()
		}
	}()
	if interrupted := x.interrupted(g.ctx); interrupted != nil {
		o, returned = interrupted.unwound(), true
		return
	}
	ctx, span := c.begin(g.ctx)
	c.span = span
	o = c.target(ctx)
	returned = true
}

// settle accepts the Result of a dispatch, unless it was interrupted before, and
// counts it.
func (g *gathering) settle(d *dispatch, o outcome) {
	switch {
	case o.unwinding != nil:
		d.final = o
		return
	case d.state == dispatchCancelled: // the Result came too late
		d.final = g.imposed.unwound()
		return
	}
	d.state, d.final = dispatchAccepted, o
	if o.failure == nil {
		g.succeeded++
	} else {
		g.failed++
	}
	g.decideLocked()
}

func (g *gathering) decide() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.decideLocked()
}

// decideLocked ends the fan-out early where the policy says so.
func (g *gathering) decideLocked() {
	met, unmeetable := g.succeeded >= g.needed, len(g.dispatches)-g.failed < g.needed
	if g.decided || !met && !unmeetable {
		return
	}
	g.decided = true
	if g.wait {
		return
	}
	for i := range g.dispatches {
		if g.dispatches[i].state == dispatchActive {
			g.dispatches[i].state = dispatchCancelled
		}
	}
	g.stop(g.imposed)
}

// arms runs the arms of the dispatches that settled, in order. What it returns is
// the teardown that an arm ran into.
func (g *gathering) arms(ctx context.Context) *outcome {
	for i := range g.dispatches {
		d := &g.dispatches[i]
		if d.state != dispatchAccepted || d.run == nil || !d.run.settled {
			continue
		}
		d.final = d.run.arm(ctx)
		d.run = nil
		if d.final.unwinding != nil {
			return &d.final
		}
		if g.s.f.due() {
			if i := g.s.f.balance(ctx, g.inFlight()...); i != nil {
				unwound := i.unwound()
				return &unwound
			}
		}
	}
	return nil
}

// inFlight are the values that the Gather holds while its arms run.
func (g *gathering) inFlight() []any {
	values := []any{g.s.input}
	for i := range g.dispatches {
		d := &g.dispatches[i]
		values = append(values, d.final.reachable())
		if c := d.run; c != nil {
			values = append(values, c.input, c.payload, c.metadata)
			if c.frame != nil {
				values = append(values, c.frame.vars)
			}
		}
	}
	return values
}

// collect gives every dispatch's Result as a value.
func (g *gathering) collect() []any {
	results := make([]any, len(g.dispatches))
	for i := range g.dispatches {
		d := &g.dispatches[i]
		if d.state == dispatchSkipped {
			d.final = failed(newFailure(TypeSkipped, CodeGatherDispatchSkipped, "the dispatch was never started", nil, nil))
		}
		results[i] = d.final.object()
	}
	return results
}

// verdict is nil when the policy is met by the final Results.
func (g *gathering) verdict() *outcome {
	succeeded := 0
	failures := []any{}
	for i := range g.dispatches {
		o := g.dispatches[i].final
		if o.failure == nil {
			succeeded++
		} else if len(failures) < shownFailures {
			failures = append(failures, map[string]any{"index": float64(i), "result": o.failure.object})
		}
	}
	if succeeded >= g.needed {
		return nil
	}
	return stopped(newFailure(TypeError, CodeGatherCompletionUnmet,
		fmt.Sprintf("%d of %d dispatches succeeded; %d must", succeeded, len(g.dispatches), g.needed),
		map[string]any{"failures": failures, "failureCount": float64(len(g.dispatches) - succeeded)}, nil))
}

// successes are the values of the Results that are successes.
func successes(results []any) []any {
	values := []any{}
	for _, r := range results {
		if result, ok := r.(map[string]any); ok && result["type"] == TypeSuccess {
			values = append(values, result["value"])
		}
	}
	return values
}
