package mwl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// frame is one run of a Flow. All of it happens on one goroutine; while dispatches
// of a Gather are under way they read it, and write only held, which is atomic.
type frame struct {
	x     *execution
	flow  *definition.Flow
	input any
	// vars is never altered: an assign puts another map in its place, so that
	// whoever keeps one has the state of that time.
	vars map[string]any
	// failure is the failure being handled.
	failure             *failure
	enteredAt, exitedAt time.Time
	// result is set once the frame has completed.
	result outcome

	// outer is the frame whose call runs this one; nil for the root frame.
	outer *frame
	// depth is how many Flows and middleware entries enclose the frame, itself
	// included; entries are its own established middleware entries.
	depth   int
	entries []*entryRun
	// held is the memory that the frame is charged with, counted what it was at the
	// last recount.
	held    atomic.Int64
	counted int64
}

// run runs a Flow in a new frame, which has completed when run returns.
func (x *execution) run(ctx context.Context, flow *definition.Flow, input any, arguments map[string]any, at time.Time, outer *frame) (*frame, outcome) {
	ctx, span := x.beginFlow(ctx, flow, input, arguments)
	f := &frame{x: x, flow: flow, input: input, enteredAt: at, outer: outer, depth: 1}
	if outer == nil {
		f.holdValue(input)
		f.holdValue(arguments)
	} else {
		f.depth += outer.level()
	}
	f.result = f.complete(ctx, arguments)
	if outer == nil {
		f.result = x.deliverable(f.result)
	}
	f.exitedAt = x.instant()
	span.end(f.result)
	return f, f.result
}

// complete binds the arguments and runs the Flow.
func (f *frame) complete(ctx context.Context, arguments map[string]any) outcome {
	f.vars = map[string]any{}
	if i := f.deepen(ctx); i != nil {
		return i.unwound()
	}
	if stop := f.x.validate(ctx, f.flow.Parameters, arguments); stop != nil {
		return *stop
	}
	f.vars = f.flow.Parameters.Bind(arguments)
	return f.wrap(ctx, f.flow.Middleware, f, nil, f.input, f.graph)
}

// graph runs the Steps from the entrypoint to the one that completes the frame.
func (f *frame) graph(ctx context.Context, input any) outcome {
	f.failure = nil
	step := f.flow.Entrypoint
	for {
		if i := f.x.proceed(ctx); i != nil {
			return i.unwound()
		}
		if i := f.balance(ctx, input); i != nil {
			return i.unwound()
		}
		s := &stepRun{f: f, step: step, input: input, number: f.x.steps.Add(1), enteredAt: f.x.instant()}
		inside, span := s.begin(ctx)
		next, output, end := s.run(inside)
		span.endStep(f, next, output, end)
		if end != nil {
			return *end
		}
		step, input = next, output
	}
}

// eval computes a field that is written.
func (f *frame) eval(ctx context.Context, field definition.Field, scope expr.Scope) (any, *outcome) {
	if literal, ok := field.Template.Literal(); ok {
		return literal, nil
	}
	if field.Template.Counted() {
		f.x.budget.evaluating <- struct{}{}
		defer func() { <-f.x.budget.evaluating }()
	}
	v, used, err := field.Template.Eval(ctx, scope, f.x.valueLimit())
	if errors.Is(err, expr.ErrTooLarge) {
		unwound := f.x.tooLarge(field.Pointer).unwound()
		return nil, &unwound
	}
	if i := f.evaluated(ctx, used); i != nil {
		unwound := i.unwound()
		return nil, &unwound
	}
	if err != nil {
		return nil, f.faulted(ctx, field, err)
	}
	return v, nil
}

// measure cancels the execution when a value is too large. Parts that are shared
// count each time, because whoever walks the value meets them each time: a value
// that doubles at every Step takes no memory to speak of, and for ever to copy.
func (x *execution) measure(pointer string, v any) *interruption {
	switch v.(type) {
	case []any, map[string]any:
	default:
		return nil
	}
	limit := x.valueLimit()
	if _, ok := value.Measure(v, limit.Bytes, limit.Depth); ok {
		return nil
	}
	return x.tooLarge(pointer)
}

// valueLimit bounds one value.
func (x *execution) valueLimit() expr.Limit {
	limit := expr.Limit{Bytes: x.limits.ValueBytes, Depth: valueDepth}
	if boundless(limit.Bytes) {
		limit.Bytes = math.MaxInt
	}
	return limit
}

func (x *execution) tooLarge(pointer string) *interruption {
	return x.cancel("ValueBytes", fmt.Sprintf("the value of %s takes more than %d bytes (Limits.ValueBytes), or is nested deeper than %d; raise the limit, or make a smaller value",
		pointer, x.limits.ValueBytes, valueDepth))
}

// valueDepth is how deep a value may be nested.
const valueDepth = value.MaxDepth

func (f *frame) faulted(ctx context.Context, field definition.Field, err error) *outcome {
	if fault, ok := errors.AsType[*expr.Fault](err); ok {
		return stopped(newError(fault.Code, fault.Error()))
	}
	if i := f.x.interrupted(ctx); i != nil {
		unwound := i.unwound()
		return &unwound
	}
	return stopped(newError(CodeExpressionEvaluationError, field.Pointer+": "+err.Error()))
}

// holds computes a predicate; one that is not written holds.
func (f *frame) holds(ctx context.Context, when definition.Field, scope expr.Scope) (bool, *outcome) {
	if !when.Written() {
		return true, nil
	}
	if when.Template.Counted() {
		f.x.budget.evaluating <- struct{}{}
		defer func() { <-f.x.budget.evaluating }()
	}
	holds, used, err := when.Template.Bool(ctx, scope)
	if i := f.evaluated(ctx, used); i != nil {
		unwound := i.unwound()
		return false, &unwound
	}
	if err != nil {
		return false, f.faulted(ctx, when, err)
	}
	return holds, nil
}

// assign computes an assign block against the variables as they are, and binds its
// names in a copy of base.
func (f *frame) assign(ctx context.Context, block definition.Assign, scope expr.Scope, base map[string]any) *outcome {
	if len(block) == 0 {
		f.vars = base
		return nil
	}
	vars := make(map[string]any, len(base)+len(block))
	maps.Copy(vars, base)
	for _, binding := range block {
		v, stop := f.eval(ctx, binding.Value, scope)
		if stop != nil {
			return stop
		}
		vars[binding.Name] = v
	}
	f.vars = vars
	return nil
}

// construct makes a failure of the written fields. Those that are not written are
// taken from base, if there is one; the previous failure is superseded unless the
// field is written.
func (f *frame) construct(ctx context.Context, envelope *definition.Envelope, scope expr.Scope, base, superseded *failure) (*failure, *outcome) {
	object := map[string]any{"type": TypeError}
	if base != nil {
		maps.Copy(object, base.object)
		delete(object, "previous")
	}
	for _, member := range []struct {
		name  string
		field definition.Field
		want  string
		is    func(any) bool
	}{
		{"type", envelope.Type, "a failure type", isFailureType},
		{"code", envelope.Code, "a string", isString},
		{"message", envelope.Message, "a string", isString},
		{"details", envelope.Details, "", nil},
		{"retryable", envelope.Retryable, "a boolean or null", isBooleanOrNull},
		{"previous", envelope.Previous, "a failure or null", isFailureOrNull},
	} {
		if !member.field.Written() {
			continue
		}
		v, stop := f.eval(ctx, member.field, scope)
		if stop != nil {
			return nil, stop
		}
		if member.is != nil && !member.is(v) {
			return nil, stopped(invalid(member.field, member.want, v))
		}
		object[member.name] = v
	}
	made := readFailure(object)
	if envelope.Previous.Written() {
		return made, nil
	}
	return made.linked(superseded), nil
}

func isString(v any) bool {
	_, ok := v.(string)
	return ok
}

func isFailureType(v any) bool {
	typ, ok := v.(string)
	return ok && typ != TypeSuccess
}

func isBooleanOrNull(v any) bool {
	_, ok := v.(bool)
	return ok || v == nil
}

func isFailureOrNull(v any) bool {
	if v == nil {
		return true
	}
	object, ok := v.(map[string]any)
	return ok && isFailureType(object["type"]) && isString(object["code"])
}
