package mwl

import (
	"context"
	"time"

	"github.com/surebus/eventbus/mwl/internal/definition"
)

// operation is what a stack wraps: a dispatch, or a Flow's graph.
type operation func(ctx context.Context, input any) outcome

// wrap runs an operation inside a middleware stack.
func (f *frame) wrap(ctx context.Context, stack []*definition.Entry, outer rooted, step *stepRun, input any, op operation) outcome {
	if len(stack) == 0 {
		return op(ctx, input)
	}
	e := &entryRun{f: f, entry: stack[0], inner: stack[1:], op: op, outer: outer, step: step, input: input}
	e.actor, _ = stack[0].Contract.Implementation.(actor)
	ctx, e.span = e.begin(ctx)
	o := e.run(ctx)
	e.span.end(o)
	return o
}

// entryRun is one establishment of a middleware entry.
type entryRun struct {
	f     *frame
	entry *definition.Entry
	inner []*definition.Entry
	op    operation
	outer rooted
	// step is the Step whose stack this is; nil for a Flow's.
	step  *stepRun
	actor actor
	span  *span

	// input is middleware.input, passed what goes down.
	input, passed any
	// runs counts the runs of the scope.
	runs int
	// state is the actor's, contributed what it adds to middleware.metadata.
	state       any
	contributed map[string]any
	// snapshot are the variables right after onEntry.
	snapshot map[string]any
	bound    *bound
	// inFlight is what rises while onAlways runs.
	inFlight outcome
}

// actor is what a middleware does: its contract at work.
type actor interface {
	// act is the action of a phase. What stops is the failure of the action, or a
	// teardown.
	act(ctx context.Context, p *phaseRun) (verdict, *outcome)
	// counter names the member of middleware.metadata that counts the runs; "" is none.
	counter() string
}

// verdict is what an action decides; the zero verdict passes.
type verdict struct {
	kind     decisionKind
	value    any     // decideReplace
	outcome  outcome // decideSubstitute
	rerun    RerunOptions
	due      time.Time // decideBound
	exceeded *failure  // decideBound
}

// phaseRun is one run of a phase, and the scope of its block.
type phaseRun struct {
	entry     *entryRun
	phase     definition.Phase
	block     *definition.Block
	enteredAt time.Time
	// result is what rises; nil on the way down.
	result *outcome
	// with are the action's arguments.
	with map[string]any
}

// metadata is middleware.metadata in a phase that began at that instant.
func (e *entryRun) metadata(enteredAt time.Time) map[string]any {
	m := record(enteredAt, time.Time{})
	if e.actor != nil && e.actor.counter() != "" {
		m[e.actor.counter()] = float64(e.runs)
	}
	for name, v := range e.contributed {
		m[name] = v
	}
	return m
}

func (e *entryRun) phase(phase definition.Phase, rising *outcome) *phaseRun {
	return &phaseRun{entry: e, phase: phase, block: e.entry.Blocks[phase], enteredAt: e.f.x.instant(), result: rising}
}

// run takes an operation down through the entry and its Result back up.
func (e *entryRun) run(ctx context.Context) outcome {
	x := e.f.x
	if i := x.interrupted(ctx); i != nil {
		return i.unwound()
	}
	e.f.entries = append(e.f.entries, e)
	defer func() { e.f.entries = e.f.entries[:len(e.f.entries)-1] }()
	if i := e.f.deepen(ctx); i != nil {
		return i.unwound()
	}
	admitted, o, stop := e.enter(ctx)
	if stop != nil {
		return *stop
	}
	if admitted {
		o = e.scope(ctx)
	}
	return e.always(ctx, o)
}

// enter runs onEntry. It tells whether the scope runs; if not, what the entry
// emits instead. What stops it leaves the entry unestablished.
func (e *entryRun) enter(ctx context.Context) (admitted bool, emitted outcome, stop *outcome) {
	p := e.phase(definition.OnEntry, nil)
	_, span := p.begin(ctx)
	defer func() { span.endPhase(p, stop) }()
	open, v, stop := p.act(ctx)
	if stop != nil {
		return false, outcome{}, stop
	}
	if v.kind == decideReplace {
		e.input = v.value
	}
	e.passed = e.input
	if p.block.Output.Written() {
		if e.passed, stop = e.f.eval(ctx, p.block.Output, p); stop != nil {
			return false, outcome{}, stop
		}
	}
	if stop = e.f.assign(ctx, p.block.Assign, p, e.f.vars); stop != nil {
		return false, outcome{}, stop
	}
	e.snapshot = e.f.vars
	switch {
	case v.kind == decideSubstitute:
		return false, v.outcome, nil
	case !open && e.entry.Contract.OwnsRuns:
		return false, succeeded(e.passed), nil
	case v.kind == decideBound:
		e.bound = e.f.x.bind(ctx, v.due, v.exceeded)
	}
	return true, outcome{}, nil
}

// scope runs the inner scope, as often as the ascent says, and gives what the
// entry emits, onAlways apart.
func (e *entryRun) scope(ctx context.Context) outcome {
	x := e.f.x
	inner := ctx
	if e.bound != nil {
		inner = e.bound.ctx
		defer e.bound.end()
	}
	input := e.passed
	for {
		e.runs++
		e.span.runs(e.runs)
		o := e.f.wrap(inner, e.inner, e.outer, e.step, input, e.op)
		if e.bound != nil {
			var own bool
			if o, own = e.bound.settle(o); own {
				return o
			}
		}
		if o.unwinding != nil {
			return o
		}
		if i := x.interrupted(ctx); i != nil {
			return i.unwound()
		}
		emitted, again := e.ascend(ctx, o)
		if again == nil {
			return emitted
		}
		if i := e.wait(ctx, again.Delay); i != nil {
			return i.unwound()
		}
		if i := x.rerun(ctx); i != nil {
			return i.unwound()
		}
		input = e.passed
		if again.Feed {
			input = emitted.value
		}
		if i := e.f.balance(ctx, input); i != nil {
			return i.unwound()
		}
		if e.bound != nil {
			e.bound.reopen(x)
		}
	}
}

// ascend runs onSuccess or onFailure. It gives what is emitted, or how the scope
// is to run again, and then the value that is fed.
func (e *entryRun) ascend(ctx context.Context, rising outcome) (emitted outcome, again *RerunOptions) {
	phase := definition.OnSuccess
	if rising.failure != nil {
		phase = definition.OnFailure
	}
	p := e.phase(phase, &rising)
	ctx, span := p.begin(ctx)
	emitted, again, stop := p.ascend(ctx)
	span.endPhase(p, stop)
	if stop != nil {
		return p.displace(stop), nil
	}
	return emitted, again
}

func (p *phaseRun) ascend(ctx context.Context) (emitted outcome, again *RerunOptions, stop *outcome) {
	_, v, stop := p.act(ctx)
	if stop != nil {
		return outcome{}, nil, stop
	}
	switch v.kind {
	case decideSubstitute:
		*p.result = v.outcome
	case decideReplace:
		p.result.value = v.value
	case decideRerun:
		again = &v.rerun
	case decidePass, decideBound:
	}
	emitted, stop = p.shape(ctx, again)
	if stop != nil {
		return outcome{}, nil, stop
	}
	f := p.entry.f
	base := f.vars
	if again != nil && again.RestoreVariables {
		base = p.entry.snapshot
	}
	return emitted, again, f.assign(ctx, p.block.Assign, p, base)
}

// always runs onAlways, which sees what is in flight and supersedes it only by
// failing. An interruption of the scope around that arrives meanwhile takes effect
// when the phase has ended.
func (e *entryRun) always(ctx context.Context, o outcome) outcome {
	var stop *outcome
	if !e.idle(definition.OnAlways) {
		e.inFlight = o
		p := e.phase(definition.OnAlways, &o)
		cleanup, span := p.begin(e.f.x.cleanup())
		if _, _, stop = p.act(cleanup); stop == nil {
			stop = e.f.assign(cleanup, p.block.Assign, p, e.f.vars)
		}
		span.endPhase(p, stop)
	}
	if i := e.f.x.interrupted(ctx); i != nil && o.unwinding == nil {
		o = i.unwound()
	}
	if stop == nil || stop.unwinding != nil {
		// Cleanup that was given up is the platform's doing, and no failure of it.
		return o
	}
	return outcome{failure: stop.failure.superseding(o.failure), unwinding: o.unwinding}
}

// idle reports whether a phase has nothing to do.
func (e *entryRun) idle(phase definition.Phase) bool {
	block := e.entry.Blocks[phase]
	return e.entry.Contract.Phases[phase].Kind == 0 && !block.When.Written() && !block.With.Written() && len(block.Assign) == 0 &&
		!block.Output.Written() && !block.Value.Written() && block.Envelope == nil
}

// displace is the outcome of a phase on the way up that stopped: its failure takes
// the place of what rose.
func (p *phaseRun) displace(stop *outcome) outcome {
	if stop.unwinding != nil {
		return *stop
	}
	return stop.superseding(p.result.failure)
}

// shape gives what the phase emits; with a re-run, what is fed.
func (p *phaseRun) shape(ctx context.Context, again *RerunOptions) (outcome, *outcome) {
	f, emitted := p.entry.f, *p.result
	if again != nil && !again.Feed {
		return emitted, nil
	}
	if emitted.failure != nil {
		if p.block.Envelope == nil {
			return emitted, nil
		}
		made, stop := f.construct(ctx, p.block.Envelope, p, emitted.failure, emitted.failure)
		if stop != nil {
			return emitted, stop
		}
		return failed(made), nil
	}
	if p.block.Value.Written() {
		v, stop := f.eval(ctx, p.block.Value, p)
		if stop != nil {
			return emitted, stop
		}
		emitted.value = v
	}
	return emitted, nil
}

// act runs the phase's action, if its when holds, and reports whether it did.
func (p *phaseRun) act(ctx context.Context) (open bool, v verdict, stop *outcome) {
	e := p.entry
	open, stop = e.f.holds(ctx, p.block.When, p)
	if stop != nil || !open {
		return false, verdict{}, stop
	}
	if stop = p.arguments(ctx); stop != nil {
		return false, verdict{}, stop
	}
	if e.actor == nil || e.entry.Contract.Phases[p.phase].Kind == 0 {
		return true, verdict{}, nil
	}
	v, stop = e.actor.act(ctx, p)
	return true, v, stop
}

// arguments evaluates and validates the phase's with.
func (p *phaseRun) arguments(ctx context.Context) *outcome {
	with := map[string]any{}
	if p.block.With.Written() {
		v, stop := p.entry.f.eval(ctx, p.block.With, p)
		if stop != nil {
			return stop
		}
		object, ok := v.(map[string]any)
		if !ok {
			return stopped(invalid(p.block.With, "an object", v))
		}
		with = object
	}
	p.with = with
	if len(p.block.Structural) > 0 {
		with = make(map[string]any, len(p.with)+len(p.block.Structural))
		for name, v := range p.with {
			with[name] = v
		}
		for name, structure := range p.block.Structural {
			with[name] = structure.Source
		}
	}
	return p.entry.f.x.validate(ctx, p.entry.entry.Contract.Phases[p.phase].Parameters, with)
}

// contribute sets a member of the entry's middleware.metadata.
func (e *entryRun) contribute(name string, v any) {
	if e.contributed == nil {
		e.contributed = map[string]any{}
	}
	e.contributed[name] = v
}
