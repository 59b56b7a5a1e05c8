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
	// needed is how many must succeed; with wait, all run whatever happens.
	needed int
	wait   bool
	// imposed is what the Gather interrupts its dispatches with.
	imposed *interruption
	stop    context.CancelCauseFunc

	mu sync.Mutex // guards the following
	// next is the first dispatch that has not started.
	next              int
	succeeded, failed int
	decided           bool
}

// dispatch is one of a Gather's.
type dispatch struct {
	callRun
	state dispatchState
	// final is what the dispatch resolved to; its arm may change it.
	final outcome
}

type dispatchState uint8

const (
	dispatchSkipped   dispatchState = iota // not started
	dispatchActive                         // started, its Result not accepted
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
	count, template := len(s.step.Gather.Calls), func(i int) (*definition.Call, any) { return s.step.Gather.Calls[i], s.input }
	if over := s.step.Gather.Over; over.Written() {
		v, stop := s.f.eval(ctx, over, s)
		if stop != nil {
			return nil, stop
		}
		elements, ok := v.([]any)
		if !ok {
			return nil, stopped(invalid(over, "an array", v))
		}
		count, template = len(elements), func(i int) (*definition.Call, any) { return s.step.Call, elements[i] }
	}
	s.dispatches, s.enumerated = count, true
	if limit := s.f.x.limits.FanOut; limit > 0 && count > limit {
		return nil, stopped(newFailure(TypeError, CodeFanOutLimitExceeded,
			fmt.Sprintf("%s would make %d dispatches; the limit is %d", s.step.Pointer, count, limit),
			map[string]any{"dispatches": float64(count), "limit": float64(limit)}, nil))
	}
	g.dispatches = make([]dispatch, count)
	for i := range g.dispatches {
		call, input := template(i)
		g.dispatches[i].callRun = callRun{f: s.f, call: call, outer: s, step: s, input: input, index: i}
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

// run runs the dispatches, each on a goroutine of its own while there are several,
// and returns when all have resolved. What it returns is the teardown of the scope
// around.
func (g *gathering) run(ctx context.Context) *outcome {
	g.imposed = &interruption{x: g.s.f.x, chain: newFailure(TypeCancellation, CodeGatherDispatchCancelled,
		"the outcome of the fan-out was decided before this dispatch ended", nil, nil)}
	g.ctx, g.stop = context.WithCancelCause(ctx)
	defer g.stop(nil)
	g.decide()

	active := len(g.dispatches)
	if limit := g.s.step.Gather.Concurrency; limit > 0 {
		active = min(active, limit)
	}
	first := g.start(active)
	var workers sync.WaitGroup
	for i := range first {
		if i == first-1 && first == 1 {
			g.work(0)
			break
		}
		workers.Go(func() { g.work(i) })
	}
	workers.Wait()

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

// start starts up to n dispatches at once and returns how many.
func (g *gathering) start(n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.decided && !g.wait {
		return 0
	}
	for i := range n {
		g.dispatches[i].state = dispatchActive
	}
	g.next = n
	return n
}

// work runs a dispatch, and then those that are still to start.
func (g *gathering) work(i int) {
	for {
		d := &g.dispatches[i]
		o := g.attempt(d)
		g.mu.Lock()
		g.settle(d, o)
		more := g.next < len(g.dispatches) && (g.wait || !g.decided) && g.ctx.Err() == nil
		if more {
			i = g.next
			g.next++
			g.dispatches[i].state = dispatchActive
		}
		g.mu.Unlock()
		d.span.end(d.final)
		if !more {
			return
		}
	}
}

func (g *gathering) attempt(d *dispatch) outcome {
	if i := d.f.x.interrupted(g.ctx); i != nil {
		return i.unwound()
	}
	ctx, span := d.begin(g.ctx)
	d.span = span
	return d.target(ctx)
}

// settle accepts the Result of a dispatch, unless it was interrupted before, and
// counts it.
func (g *gathering) settle(d *dispatch, o outcome) {
	switch {
	case d.state == dispatchCancelled:
		// The Result came too late, or is the cancellation with what its cleanup
		// added.
		if o.unwinding != nil {
			d.final = o
		} else {
			d.final = g.imposed.unwound()
		}
		if d.final.unwinding == g.imposed {
			d.final.unwinding = nil
		}
		return
	case o.unwinding != nil:
		d.final = o
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
		if d.state != dispatchAccepted || !d.settled {
			continue
		}
		d.final = d.arm(ctx)
		if d.final.unwinding != nil {
			return &d.final
		}
	}
	return nil
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
