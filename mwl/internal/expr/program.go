package expr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// Program is one compiled expression.
type Program struct {
	source       string
	roots        Root
	program      cel.Program
	broken       error
	counted      bool
	unresolved   []Name
	details      []Name
	messageLimit int
	costLimit    uint64
}

// Source is the expression without its delimiters.
func (p *Program) Source() string { return p.source }

// Names lists the names that resolve to nothing at the expression's site, and the reads below a failure's details that it does not guard: worth a warning.
func (p *Program) Names() []Name { return slices.Concat(p.unresolved, p.details) }

// Eval evaluates the expression and returns a value, which may share its parts with what the scope gave. The error is a *[Fault], or wraps [ErrInterrupted] when ctx ended
// first; ctx is looked at only within loops of the expression.
func (p *Program) Eval(ctx context.Context, s Scope) (any, error) {
	v, _, err := p.evaluate(ctx, s)
	return v, err
}

func (p *Program) evaluate(ctx context.Context, s Scope) (out any, cost uint64, err error) {
	v, cost, err := p.eval(ctx, s)
	if err != nil {
		return nil, cost, err
	}
	if out, err = result(v); err != nil {
		return nil, cost, p.fault(Unrepresentable, err)
	}
	return out, cost, nil
}

// Bool evaluates a predicate. A result that is no boolean is an evaluation error: nothing is taken for true or false.
func (p *Program) Bool(ctx context.Context, s Scope) (bool, error) {
	b, _, err := p.predicate(ctx, s)
	return b, err
}

func (p *Program) predicate(ctx context.Context, s Scope) (holds bool, cost uint64, err error) {
	v, cost, err := p.eval(ctx, s)
	if err != nil {
		return false, cost, err
	}
	b, ok := v.Value().(bool)
	if !ok {
		return false, cost, p.fault(EvaluationError, fmt.Errorf("a predicate must give true or false, and this gave a value of the type %s: compare it with something", v.Type().TypeName()))
	}
	return b, cost, nil
}

// eval returns the cost of the evaluation too, also with an error: at least 1.
func (p *Program) eval(ctx context.Context, s Scope) (ref.Val, uint64, error) {
	if p.broken != nil {
		return nil, 1, p.fault(EvaluationError, p.broken)
	}
	a := activations.Get().(*activation)
	a.scope, a.roots = s, p.roots
	var v ref.Val
	var err error
	cost := uint64(1)
	if p.counted {
		var details *cel.EvalDetails
		v, details, err = p.program.ContextEval(ctx, a)
		if actual := details.ActualCost(); actual != nil {
			cost += *actual
		}
	} else {
		v, _, err = p.program.Eval(a)
	}
	a.scope = nil
	activations.Put(a)
	if err == nil {
		return v, cost, nil
	}
	if errors.Is(err, interpreter.InterruptError{}) && ctx.Err() != nil {
		return nil, cost, fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))
	}
	return nil, cost, p.fault(EvaluationError, p.explain(err))
}

// explain adds to CEL's words what its author needs to know here.
func (p *Program) explain(err error) error {
	text := err.Error()
	for _, n := range p.unresolved {
		if n.Function && strings.HasPrefix(text, "no such overload: "+n.Name) || !n.Function && strings.HasPrefix(text, "no such attribute(s): "+n.Name) {
			return errors.New(n.Message)
		}
	}
	var cancelled interpreter.EvalCancelledError
	switch {
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return fmt.Errorf("it does more work than the %d units of cost that one evaluation may: do less in one expression", p.costLimit)
	case strings.HasPrefix(text, "no such key: "):
		return fmt.Errorf("%w; guard a member that may be absent with has()", err)
	case strings.HasPrefix(text, "no such overload"):
		return fmt.Errorf("%w for the types of the operands; numbers of the data are doubles, literals without a point are ints, and the two do not mix: write 1.0, or convert with double() or int()", err)
	}
	return err
}

func (p *Program) fault(code string, err error) *Fault {
	return &Fault{Code: code, Text: clip(err.Error(), p.messageLimit), Source: p.source, limit: p.messageLimit}
}
