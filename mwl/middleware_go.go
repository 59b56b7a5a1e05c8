package mwl

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/temporal"
	"github.com/surebus/eventbus/mwl/internal/value"
)

// goMiddleware runs Go functions as a middleware.
type goMiddleware struct {
	contract  *definition.MiddlewareContract
	actions   [definition.PhaseCount]*PhaseAction
	errorCode string
}

func (*goMiddleware) counter() string { return "" }

func (m *goMiddleware) act(ctx context.Context, p *phaseRun) (verdict, *outcome) {
	e := p.entry
	var (
		decision Decision
		v        verdict
		given    *failure
		exported *Failure
		refusal  *failure
	)
	contributed := maps.Clone(e.contributed)
	run := &PhaseRun{EnteredAt: p.enteredAt, ExecutionID: e.f.x.id, State: e.state}
	err := isolated(func() error {
		run.With, _ = value.Copy(p.with).(map[string]any)
		for name, structure := range p.block.Structural {
			run.With[name] = value.Copy(structure.Source)
		}
		run.Input = value.Copy(e.input)
		if p.result != nil {
			run.Result = &Result{}
			if given = p.result.failure; given != nil {
				exported = given.export()
				run.Result.Failure = exported
			} else {
				run.Result.Value = value.Copy(p.result.value)
			}
		}
		var refused error
		run.contribute = func(name string, member any) {
			if isUniversal(name) {
				refused = fmt.Errorf("its metadata has %s, which every record has: use another name", name)
				return
			}
			member, err := value.Of(member)
			if err != nil {
				refused = fmt.Errorf("its metadata %s has no JSON form: %w", name, err)
				return
			}
			if contributed == nil {
				contributed = map[string]any{}
			}
			contributed[name] = member
		}
		var err error
		if decision, err = m.actions[p.phase].Run(ctx, run); err != nil {
			refusal = failureOf(err, m.errorCode, m.contract.Failures, given, exported)
			return nil
		}
		if refused != nil {
			return refused
		}
		if violation := m.contract.Metadata.Validate(contributed); violation != nil {
			return fmt.Errorf("its metadata is not what it declares: %s", violation.Message())
		}
		v, err = m.verdict(p, decision, given, exported)
		return err
	})
	if i := e.f.x.interrupted(ctx); i != nil {
		unwound := i.unwound()
		return verdict{}, &unwound
	}
	if err != nil {
		refusal = failureOf(err, m.errorCode, m.contract.Failures, given, exported)
	}
	if refusal != nil {
		return verdict{}, stopped(refusal)
	}
	e.state, e.contributed = run.State, contributed
	return v, nil
}

// allowed are the decisions of each kind of action, at each phase.
var allowed = map[ActionKind][definition.PhaseCount][]decisionKind{
	SideEffect: {},
	Control: {
		definition.OnEntry:   {decideSubstitute, decideBound},
		definition.OnSuccess: {decideSubstitute, decideRerun},
		definition.OnFailure: {decideSubstitute, decideRerun},
	},
	Transform: {
		definition.OnEntry:   {decideReplace},
		definition.OnSuccess: {decideReplace},
	},
}

// verdict is the decision as the engine's own. One that the kind of the action or
// the phase does not allow is an error.
func (m *goMiddleware) verdict(p *phaseRun, d Decision, given *failure, exported *Failure) (verdict, error) {
	kind := m.actions[p.phase].Kind
	if d.kind != decidePass && !slices.Contains(allowed[kind][p.phase], d.kind) {
		return verdict{}, fmt.Errorf("a %s action cannot decide %s at %s", kind, d.kind, p.phase)
	}
	v := verdict{kind: d.kind, rerun: d.rerun}
	switch d.kind {
	case decidePass:
	case decideSubstitute:
		return m.substitute(p, v, d.result, given, exported)
	case decideReplace:
		replaced, err := value.Of(d.value)
		if err != nil {
			return verdict{}, fmt.Errorf("the value of its Replace has no JSON form: %w", err)
		}
		v.value = replaced
	case decideRerun:
		if d.rerun.Feed && p.phase != definition.OnSuccess {
			return verdict{}, fmt.Errorf("a Rerun cannot feed a value at %s", p.phase)
		}
	case decideBound:
		if d.result.Failure == nil {
			return verdict{}, fmt.Errorf("its Bound has no failure")
		}
		v.due = temporal.Add(p.enteredAt, d.duration)
		v.exceeded = failureOf(d.result.Failure, m.errorCode, m.contract.Failures, given, exported)
	}
	return v, nil
}

func (m *goMiddleware) substitute(p *phaseRun, v verdict, r Result, given *failure, exported *Failure) (verdict, error) {
	if p.phase != definition.OnEntry && (r.Failure != nil) != (given != nil) {
		return verdict{}, fmt.Errorf("its Substitute would turn a failure into a success or back at %s", p.phase)
	}
	if r.Failure == nil {
		substitute, err := value.Of(r.Value)
		if err != nil {
			return verdict{}, fmt.Errorf("the value of its Substitute has no JSON form: %w", err)
		}
		v.outcome = succeeded(substitute)
	} else {
		v.outcome = failed(failureOf(r.Failure, m.errorCode, m.contract.Failures, given, exported).superseding(given))
	}
	return v, nil
}

// String returns the name of the kind.
func (k ActionKind) String() string {
	switch k {
	case SideEffect:
		return "side-effect"
	case Control:
		return "control"
	case Transform:
		return "transform"
	default:
		return "unknown"
	}
}

func (k decisionKind) String() string {
	return [...]string{"nothing", "Substitute", "Replace", "Rerun", "Bound"}[k]
}
