package mwl

import (
	"context"
	"time"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// stepRun is one pass of a Step, and the scope of its fields.
type stepRun struct {
	f                   *frame
	step                *definition.Step
	input               any
	number              int64
	enteredAt, exitedAt time.Time

	// shaped is what a Match tests.
	shaped any
	// result is what a Call Step resolved to; nil before.
	result *outcome
	// results are what the dispatches of a Gather resolved to; nil before.
	results []any
	// dispatches are how many a Gather makes, once they are enumerated.
	dispatches int
	enumerated bool
}

// run runs the Step. It leads to the next Step with an output, or ends the frame's
// graph.
func (s *stepRun) run(ctx context.Context) (next *definition.Step, output any, end *outcome) {
	switch s.step.Action {
	case definition.ActionCall:
		if stop := s.call(ctx); stop != nil {
			return s.fail(ctx, stop)
		}
		return s.tail(ctx, s.result.value)
	case definition.ActionGather:
		if stop := s.gather(ctx); stop != nil {
			return s.fail(ctx, stop)
		}
		if s.step.Output.Written() {
			return s.tail(ctx, nil)
		}
		return s.tail(ctx, successes(s.results))
	case definition.ActionMatch:
		return s.match(ctx)
	case definition.ActionPass:
		s.exitedAt = s.enteredAt
		return s.tail(ctx, s.input)
	case definition.ActionSleep:
		if stop := s.sleep(ctx); stop != nil {
			return s.fail(ctx, stop)
		}
		s.f.failure = nil
		return s.step.Next, s.input, nil
	case definition.ActionReturn:
		s.exitedAt = s.enteredAt
		v, stop := s.shape(ctx, s.step.Value, s.input)
		if stop != nil {
			return s.fail(ctx, stop)
		}
		s.f.failure = nil
		return nil, nil, &outcome{value: v}
	default:
		return nil, nil, s.raise(ctx)
	}
}

// shape computes a field; one that is not written passes the value through.
func (s *stepRun) shape(ctx context.Context, field definition.Field, through any) (any, *outcome) {
	if !field.Written() {
		return through, nil
	}
	return s.f.eval(ctx, field, s)
}

// tail shapes and captures what a Step that succeeded came to.
func (s *stepRun) tail(ctx context.Context, through any) (*definition.Step, any, *outcome) {
	output, stop := s.shape(ctx, s.step.Output, through)
	if stop == nil {
		stop = s.f.assign(ctx, s.step.Assign, s, s.f.vars)
	}
	if stop != nil {
		return s.fail(ctx, stop)
	}
	s.f.failure = nil
	return s.step.Next, output, nil
}

// fail takes the failure exit: a catch clause that matches, or the end of the
// frame. A teardown takes neither.
func (s *stepRun) fail(ctx context.Context, stop *outcome) (*definition.Step, any, *outcome) {
	if stop.unwinding != nil {
		return nil, nil, stop
	}
	if s.exitedAt.IsZero() {
		s.exitedAt = s.f.x.instant()
	}
	f := s.f
	f.failure = stop.failure.superseding(f.failure)
	f.holdFailure(f.failure)
	if s.step.Action == definition.ActionCall && s.result == nil {
		s.result = &outcome{failure: f.failure} // a fault before the call
	}
	for _, clause := range s.step.Catch {
		if !clause.Matcher.Match(f.failure.typ, f.failure.code, f.failure.retryable) {
			continue
		}
		output, fault := s.shape(ctx, clause.Output, s.input)
		if fault == nil {
			fault = f.assign(ctx, clause.Assign, s, f.vars)
		}
		if fault != nil {
			return nil, nil, s.end(fault)
		}
		return clause.Next, output, nil
	}
	return nil, nil, &outcome{failure: f.failure}
}

// end fails the frame from within a handler.
func (s *stepRun) end(stop *outcome) *outcome {
	if stop.unwinding != nil {
		return stop
	}
	s.f.failure = stop.failure.superseding(s.f.failure)
	return &outcome{failure: s.f.failure}
}

// call runs a Call: its stack, and the dispatch inside.
func (s *stepRun) call(ctx context.Context) *outcome {
	input, stop := s.shape(ctx, s.step.Input, s.input)
	if stop != nil {
		return stop
	}
	o := s.f.wrap(ctx, s.step.Middleware, s, s, input, func(ctx context.Context, input any) outcome {
		return s.f.dispatch(ctx, s.step.Call, s, s, input)
	})
	if o.unwinding != nil {
		return &o
	}
	s.exitedAt = s.f.x.instant()
	if o.failure != nil {
		o.failure = o.failure.superseding(s.f.failure)
		s.result = &o
		return &o
	}
	s.result = &o
	return nil
}

func (s *stepRun) match(ctx context.Context) (*definition.Step, any, *outcome) {
	var stop *outcome
	if s.shaped, stop = s.shape(ctx, s.step.Input, s.input); stop != nil {
		return s.fail(ctx, stop)
	}
	selected := s.step.Match.Default
	for _, clause := range s.step.Match.Cases {
		holds, stop := s.f.holds(ctx, clause.When, s)
		if stop != nil {
			return s.fail(ctx, stop)
		}
		if holds {
			selected = clause
			break
		}
	}
	s.exitedAt = s.f.x.instant()
	output, stop := s.shape(ctx, selected.Output, s.shaped)
	if stop == nil {
		stop = s.f.assign(ctx, selected.Assign, s, s.f.vars)
	}
	if stop != nil {
		return s.fail(ctx, stop)
	}
	s.f.failure = nil
	return selected.Next, output, nil
}

func (s *stepRun) sleep(ctx context.Context) *outcome {
	var until time.Time
	field, want, parse := s.step.For, "an ISO 8601 duration such as PT30S", func(text string) (err error) {
		d, err := temporal.ParseDuration(text)
		until = temporal.Add(s.enteredAt, d)
		return err
	}
	if s.step.Until.Written() {
		field, want, parse = s.step.Until, "an RFC 3339 timestamp such as 2024-01-15T09:30:00Z", func(text string) (err error) {
			until, err = temporal.ParseInstant(text)
			return err
		}
	}
	v, stop := s.f.eval(ctx, field, s)
	if stop != nil {
		return stop
	}
	text, ok := v.(string)
	if !ok || parse(text) != nil {
		return stopped(invalid(field, want, v))
	}
	if i := s.f.x.wait(ctx, until.Sub(s.f.x.instant())); i != nil {
		unwound := i.unwound()
		return &unwound
	}
	return nil
}

func (s *stepRun) raise(ctx context.Context) *outcome {
	s.exitedAt = s.enteredAt
	f := s.f
	if s.step.Raise == nil {
		if f.failure == nil {
			f.failure = newError(CodeEmptyRaise, "there is no failure to raise again at "+s.step.Pointer)
		}
		return &outcome{failure: f.failure}
	}
	raised, stop := f.construct(ctx, s.step.Raise, s, nil, f.failure)
	if stop != nil {
		return s.end(stop)
	}
	f.failure = raised
	return &outcome{failure: raised}
}
