package mwl

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/temporal"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// budget is what one execution has used of its [Limits]. All its frames share it.
type budget struct {
	// runs counts Steps, dispatches and re-runs.
	runs, reruns, cost, goroutines atomic.Int64
	// live is the memory that the frames are charged with, in bytes.
	live atomic.Int64
	// evaluating holds one token. An expression whose work may exceed its data takes
	// it, because one evaluation may take several MiB before its size is known: one
	// that loops, or calls a function whose work is not constant. So does a validation
	// of more than a few parts, because the report of what is violated may take 1 MiB.
	evaluating chan struct{}
}

// The fixed charges of memory, in bytes.
const (
	frameBytes     = 2 << 10 // a frame or a middleware entry, with its part of the stack
	goroutineBytes = 8 << 10
	dispatchBytes  = 512 // a dispatch of a Gather, with the object of its Result
	failureBytes   = 512 // one link of a chain of failures
)

// bytesPerCost is how many bytes of a value are measured for one unit of cost.
const bytesPerCost = 64

// boundless reports whether there is no limit.
func boundless[N int | int64](limit N) bool { return limit <= 0 }

// exceed cancels the execution because it exceeded a limit. Cleanup goes on, until
// it has used up what it has beyond the limit. The outcome is a teardown, which no
// catch clause, onSuccess or onFailure sees.
func (x *execution) exceed(ctx context.Context, limit, reason string, cleanupToo bool) *interruption {
	reason = "the execution " + reason + " (Limits." + limit + "); raise the limit, or let the definition do less"
	i := x.cancel(limit, reason)
	if x.interrupted(ctx) != nil {
		return i
	}
	if cleanupToo {
		x.abandonCleanup(reason + ". Its cleanup exceeded its own part of the limit")
	}
	return x.interrupted(ctx)
}

// count counts n of what is limited. Cleanup has as much again.
func (x *execution) count(ctx context.Context, used *atomic.Int64, n, limit int, name, what string) *interruption {
	total := used.Add(int64(n))
	if boundless(limit) || total <= int64(limit) {
		return nil
	}
	return x.exceed(ctx, name, fmt.Sprintf("took more than %d %s", limit, what), total > 2*int64(limit))
}

// proceed counts a Step, a dispatch or a re-run, and reports what interrupts the
// scope.
func (x *execution) proceed(ctx context.Context) *interruption {
	if i := x.interrupted(ctx); i != nil {
		return i
	}
	return x.count(ctx, &x.budget.runs, 1, x.limits.StepRuns, "StepRuns", "Steps, dispatches and re-runs")
}

// rerun counts a re-run of a middleware's scope.
func (x *execution) rerun(ctx context.Context) *interruption {
	if i := x.proceed(ctx); i != nil {
		return i
	}
	return x.count(ctx, &x.budget.reruns, 1, x.limits.Reruns, "Reruns", "re-runs of Loop, Retry and other middleware")
}

// hire takes a goroutine; false when all are taken.
func (x *execution) hire() bool {
	limit := x.limits.Goroutines
	if n := x.budget.goroutines.Add(1); !boundless(limit) && n > int64(limit) {
		x.budget.goroutines.Add(-1)
		return false
	}
	x.budget.live.Add(goroutineBytes)
	return true
}

func (x *execution) dismiss() {
	x.budget.goroutines.Add(-1)
	x.budget.live.Add(-goroutineBytes)
}

// evaluated counts an evaluation whose value the frame now holds.
func (f *frame) evaluated(ctx context.Context, used expr.Usage) *interruption {
	cost := min(used.Cost+uint64(used.Bytes)/bytesPerCost+1, math.MaxInt32)
	if i := f.x.count(ctx, &f.x.budget.cost, int(cost), f.x.limits.Cost, "Cost", costUnits); i != nil { //nolint:gosec // at most MaxInt32
		return i
	}
	f.hold(used.Bytes)
	return f.afford(ctx)
}

const costUnits = "units of cost in its expressions and arguments"

// manyParts is the cost of a validation that takes the token.
const manyParts = 1000

// validate counts the cost of arguments, and then validates them: nothing interrupts
// a validation.
func (x *execution) validate(ctx context.Context, s *schema.Schema, arguments map[string]any) *outcome {
	limit := x.limits.Cost
	if boundless(limit) {
		limit = math.MaxInt32
	}
	cost := s.Cost(arguments, limit)
	if i := x.count(ctx, &x.budget.cost, cost, x.limits.Cost, "Cost", costUnits); i != nil {
		unwound := i.unwound()
		return &unwound
	}
	if cost > manyParts {
		x.budget.evaluating <- struct{}{}
		defer func() { <-x.budget.evaluating }()
	}
	if v := s.Validate(arguments); v != nil {
		if i := x.count(ctx, &x.budget.cost, v.Searched(), x.limits.Cost, "Cost", costUnits); i != nil {
			unwound := i.unwound()
			return &unwound
		}
		return stopped(newFailure(TypeError, CodeParameterValidationFailed, v.Message(), v.Details(), nil))
	}
	return nil
}

// hold charges the frame with memory.
func (f *frame) hold(bytes int) {
	f.held.Add(int64(bytes))
	f.x.budget.live.Add(int64(bytes))
}

// holdValue charges the frame with a value that nothing else is charged with.
func (f *frame) holdValue(v any) {
	bytes, _ := value.Measure(v, math.MaxInt, valueDepth)
	f.hold(bytes)
}

// holdFailure charges the frame with the links of a failure.
func (f *frame) holdFailure(o *failure) { f.hold(failureBytes * (o.links + 1)) }

// afford cancels the execution when its frames hold too much. Cleanup has a quarter
// more.
func (f *frame) afford(ctx context.Context) *interruption {
	live, limit := f.x.budget.live.Load(), int64(f.x.limits.LiveBytes)
	if boundless(limit) || live <= limit {
		return nil
	}
	return f.x.exceed(ctx, "LiveBytes", fmt.Sprintf("held values of more than %d bytes", limit), live > limit+limit/4)
}

// recountBytes is the least charge at which a frame is worth a recount.
const recountBytes = 64 << 10

// due reports whether the frame's charge has doubled since the last recount.
func (f *frame) due() bool { return f.held.Load() > max(recountBytes, 2*f.counted) }

// balance replaces what the frame was charged with by what it still holds: its
// variables, its failure, what its middleware entries keep, and the values in flight
// that its goroutine passes. A value that occurs several times counts once. It
// recounts only when that is due.
func (f *frame) balance(ctx context.Context, inFlight ...any) *interruption {
	if f.due() {
		var c value.Counter
		if f.outer != nil {
			c.Skip(f.input) // its caller holds it
		}
		c.Add(f.input)
		c.Add(f.vars)
		c.Add(inFlight)
		if f.failure != nil {
			c.Add(f.failure.object)
		}
		for _, e := range f.entries {
			c.Add(e.input)
			c.Add(e.passed)
			c.Add(e.snapshot)
			c.Add(e.contributed)
			c.Add(e.inFlight.reachable())
			if e.step != nil {
				c.Add(e.step.input)
			}
		}
		f.counted = int64(c.Bytes + frameBytes*(1+len(f.entries)))
		f.x.budget.live.Add(f.counted - f.held.Swap(f.counted))
	}
	return f.afford(ctx)
}

// reachable is the part of an outcome that takes memory.
func (o outcome) reachable() any {
	if o.failure != nil {
		return o.failure.object
	}
	return o.value
}

// absorb moves the charge of a completed frame to the frame that ran it: all of it
// when something can still read the completed frame, otherwise its Result.
func (f *frame) absorb(inner *frame, all bool) {
	charge := inner.held.Swap(0)
	left := charge
	if !all {
		if bytes, ok := value.Measure(inner.result.reachable(), int(charge), valueDepth); ok {
			left = int64(bytes)
		}
	}
	f.held.Add(left)
	f.x.budget.live.Add(left - charge)
}

// deepen counts a Flow or a middleware entry inside those that run.
func (f *frame) deepen(ctx context.Context) *interruption {
	f.hold(frameBytes)
	if limit := f.x.limits.RunDepth; !boundless(limit) && f.level() > limit {
		return f.x.exceed(ctx, "RunDepth", fmt.Sprintf("nested more than %d Flows and middleware entries", limit), f.level() > 2*limit)
	}
	return f.afford(ctx)
}

// level is how many Flows and middleware entries enclose what runs in the frame.
func (f *frame) level() int { return f.depth + len(f.entries) }

// executionTime is the limit that an execution may keep the next time.
const executionTime = "ExecutionTime"

// limitTime cancels the execution after [Limits.ExecutionTime]. The function that it
// returns ends that.
func (x *execution) limitTime() (end func()) {
	limit := x.limits.ExecutionTime
	if limit <= 0 {
		return func() {}
	}
	timer := x.clock.AfterFunc(limit, func() {
		_ = x.exceed(x.ctx, executionTime, "took longer than "+temporal.FormatDuration(limit), false)
	})
	return func() { timer.Stop() }
}

// deliverable cancels the execution when its Result is too large to return.
func (x *execution) deliverable(o outcome) outcome {
	limit := x.limits.ResultBytes
	if boundless(limit) {
		return o
	}
	if _, ok := value.Measure(o.reachable(), limit, valueDepth+chainLinks); ok {
		return o
	}
	return x.exceed(x.ctx, "ResultBytes", fmt.Sprintf("has a Result of more than %d bytes", limit), false).unwound()
}

// exceededLimit is the limit that cancelled the execution; "" for none.
func (x *execution) exceededLimit() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.exceeded
}
