package mwl

import (
	"context"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// The language's own middlewares.

// timeoutMiddleware bounds its scope.
type timeoutMiddleware struct{}

func (timeoutMiddleware) counter() string { return "" }

func (timeoutMiddleware) act(_ context.Context, p *phaseRun) (verdict, *outcome) {
	text, _ := p.with["duration"].(string)
	duration, err := temporal.ParseDuration(text)
	if err != nil {
		return verdict{}, stopped(invalid(p.block.With, "an object with a duration", p.with))
	}
	due := temporal.Add(p.enteredAt, duration)
	p.entry.contribute("deadline", temporal.FormatInstant(due))
	return verdict{kind: decideBound, due: due, exceeded: newFailure(TypeTimeout, CodeTimeoutExceeded,
		"the bound of "+temporal.FormatDuration(duration)+" elapsed", nil, nil)}, nil
}

// loopMiddleware runs its scope again while onSuccess.when holds.
type loopMiddleware struct{}

func (loopMiddleware) counter() string { return "iteration" }

func (loopMiddleware) act(_ context.Context, p *phaseRun) (verdict, *outcome) {
	if p.phase == definition.OnEntry {
		return verdict{}, nil
	}
	return verdict{kind: decideRerun, rerun: RerunOptions{Feed: true}}, nil
}

// finallyMiddleware dispatches its cleanup call.
type finallyMiddleware struct{}

func (finallyMiddleware) counter() string { return "" }

func (finallyMiddleware) act(ctx context.Context, p *phaseRun) (verdict, *outcome) {
	f := p.entry.f
	var stack []*definition.Entry
	if structure := p.block.Structural["middleware"]; structure != nil {
		stack = structure.Stack
	}
	call := p.block.Structural["call"].Call
	o := f.wrap(ctx, stack, p, p.entry.step, p.entry.input, func(ctx context.Context, input any) outcome {
		return f.dispatch(ctx, call, p, p.entry.step, input)
	})
	if o.failure != nil {
		return verdict{}, &o
	}
	return verdict{}, nil
}
