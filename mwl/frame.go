package mwl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// frame is one run of a Flow. All of it happens on one goroutine; while dispatches
// of a Gather are under way they read it, and nobody writes.
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
}

// run runs a Flow in a new frame, which has completed when run returns.
func (x *execution) run(ctx context.Context, flow *definition.Flow, input any, arguments map[string]any, at time.Time) (*frame, outcome) {
	ctx, span := x.beginFlow(ctx, flow, input, arguments)
	f := &frame{x: x, flow: flow, input: input, enteredAt: at}
	vars, violation := flow.Parameters.Bind(arguments)
	if violation != nil {
		f.vars = map[string]any{}
		f.result = failed(violated(violation))
	} else {
		f.vars = vars
		f.result = f.wrap(ctx, flow.Middleware, f, nil, input, f.graph)
	}
	f.exitedAt = x.instant()
	span.end(f.result)
	return f, f.result
}

// violated is the failure of arguments that do not satisfy their schema.
func violated(v *schema.Violation) *failure {
	return newFailure(TypeError, CodeParameterValidationFailed, v.Message(), v.Details(), nil)
}

// graph runs the Steps from the entrypoint to the one that completes the frame.
func (f *frame) graph(ctx context.Context, input any) outcome {
	f.failure = nil
	step := f.flow.Entrypoint
	for {
		if i := f.x.proceed(ctx); i != nil {
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
	v, err := field.Template.Eval(ctx, scope)
	if err != nil {
		return nil, f.faulted(ctx, field, err)
	}
	if i := f.x.measure(field.Pointer, v); i != nil {
		unwound := i.unwound()
		return nil, &unwound
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
	limit := x.limits.ValueBytes
	if limit < 0 {
		limit = math.MaxInt
	}
	if _, ok := value.Measure(v, limit, valueDepth); ok {
		return nil
	}
	return x.cancel(fmt.Sprintf("the value of %s takes more than %d bytes, or is nested deeper than %d", pointer, limit, valueDepth))
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
	holds, err := when.Template.Bool(ctx, scope)
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
