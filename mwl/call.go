package mwl

import (
	"context"
	"time"

	"github.com/surebus/eventbus/mwl/internal/definition"
)

// callRun is one execution of a call object, and the scope of its fields.
type callRun struct {
	f     *frame
	call  *definition.Call
	outer rooted
	// step identifies the Step's pass to providers.
	step *stepRun
	// input is what arrives at the call, payload what the target gets.
	input, payload any
	// index is the dispatch's place in its Gather, -1 elsewhere.
	index int
	// hired: the goroutine is a Gather's own, and a provider may end it.
	hired bool
	span  *span

	enteredAt, dispatchedAt, exitedAt time.Time

	// settled: the target has run, and this is its Result.
	settled bool
	result  outcome
	// frame is the completed frame of a Flow target, metadata what a provider
	// reports.
	frame    *frame
	metadata map[string]any
}

// dispatch runs a call and the arm that its Result selects.
func (f *frame) dispatch(ctx context.Context, call *definition.Call, outer rooted, step *stepRun, input any) outcome {
	c := &callRun{f: f, call: call, outer: outer, step: step, input: input, index: -1}
	ctx, c.span = c.begin(ctx)
	o := c.target(ctx)
	if o.unwinding == nil && c.settled {
		o = c.arm(ctx)
	}
	c.span.end(o)
	return o
}

// target evaluates the call's fields and runs its target. A fault of a field is
// the call's Result, and then nothing settles.
func (c *callRun) target(ctx context.Context) outcome {
	if i := c.f.x.proceed(ctx); i != nil {
		return i.unwound()
	}
	c.enteredAt = c.f.x.instant()
	c.payload = c.input
	if c.call.Input.Written() {
		payload, stop := c.f.eval(ctx, c.call.Input, c)
		if stop != nil {
			return *stop
		}
		c.payload = payload
	}
	var with map[string]any
	if c.call.With.Written() {
		v, stop := c.f.eval(ctx, c.call.With, c)
		if stop != nil {
			return *stop
		}
		object, ok := v.(map[string]any)
		if !ok {
			return failed(invalid(c.call.With, "an object", v))
		}
		with = object
	}
	c.span.pass(c.payload, with)
	var o outcome
	if c.call.Flow != nil {
		c.dispatchedAt = c.f.x.instant()
		c.frame, o = c.f.x.run(ctx, c.call.Flow, c.payload, with, c.dispatchedAt, c.f)
		c.f.absorb(c.frame, c.armed())
	} else {
		if stop := c.f.x.validate(ctx, c.call.Provider.Parameters, with); stop != nil {
			return *stop
		}
		c.dispatchedAt = c.f.x.instant()
		o = c.provider(ctx, with)
	}
	if o.unwinding != nil {
		return o
	}
	c.exitedAt = c.f.x.instant()
	c.settled, c.result = true, o
	return o
}

// armed reports whether the call has an arm, which reads what the target left.
func (c *callRun) armed() bool {
	return c.call.OnSuccessValue.Written() || len(c.call.OnSuccessAssign) > 0 || len(c.call.OnFailureAssign) > 0
}

// abandoned is the outcome of a provider that ended its goroutine.
func (c *callRun) abandoned(ctx context.Context) outcome {
	if i := c.f.x.interrupted(ctx); i != nil {
		return i.unwound()
	}
	o := outcome{failure: newError(c.call.Provider.Implementation.(*goProvider).errorCode, errGoexit.Error())}
	c.exitedAt, c.metadata = c.f.x.instant(), map[string]any{}
	c.settled, c.result = true, o
	return o
}

// provider runs a provider target. If the interruption comes before its Result,
// that is dropped.
func (c *callRun) provider(ctx context.Context, with map[string]any) outcome {
	var o outcome
	switch implementation := c.call.Provider.Implementation.(type) {
	case mockProvider:
		o, c.metadata = implementation.call(ctx, c.f.x, with, c.payload)
	case *goProvider:
		o, c.metadata = implementation.call(ctx, c, with)
		c.f.holdValue(o.reachable())
		c.f.holdValue(c.metadata)
	}
	if i := c.f.x.interrupted(ctx); i != nil {
		return i.unwound()
	}
	return o
}

// arm runs the arm that the settled Result selects, and gives the call's Result.
func (c *callRun) arm(ctx context.Context) outcome {
	f := c.f
	if c.result.failure != nil {
		if stop := f.assign(ctx, c.call.OnFailureAssign, c, f.vars); stop != nil {
			return c.faulted(stop, c.result.failure)
		}
		return c.result
	}
	o := c.result
	if c.call.OnSuccessValue.Written() {
		v, stop := f.eval(ctx, c.call.OnSuccessValue, c)
		if stop != nil {
			return *stop
		}
		o.value = v
	}
	if stop := f.assign(ctx, c.call.OnSuccessAssign, c, f.vars); stop != nil {
		return *stop
	}
	return o
}

func (c *callRun) faulted(stop *outcome, superseded *failure) outcome {
	if stop.unwinding != nil {
		return *stop
	}
	return stop.superseding(superseded)
}
