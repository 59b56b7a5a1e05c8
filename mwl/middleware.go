package mwl

import (
	"context"
	"encoding/json"
	"time"
)

// Middleware is a catalog entry for middleware written in Go, under the same
// contract as the language's own.
type Middleware struct {
	// URI is what definitions name, mwl:provider.middleware/<namespace>/<name…>.
	// The namespaces mwl and example are reserved.
	URI string
	// CodePrefix is the middleware's segment in failure codes:
	// Provider.Middleware.<CodePrefix>.<Code>.
	CodePrefix string
	// Description is for people.
	Description string
	// Attach is where entries may stand; zero is both levels.
	Attach Level
	// Metadata is the JSON Schema of the members that the middleware contributes to
	// middleware.metadata. Nil contributes none; enteredAt and exitedAt are taken.
	Metadata json.RawMessage
	// Failures are the codes that the middleware emits.
	// Provider.Middleware.<CodePrefix>.Error is always one of them.
	Failures FailureCatalog
	// OnEntry, OnSuccess, OnFailure and OnAlways are the actions; nil where the
	// middleware has none. At least one is needed.
	OnEntry, OnSuccess, OnFailure, OnAlways *PhaseAction
}

// Level is a set of bits: the places to which a middleware may be attached.
type Level uint8

// The two levels.
const (
	// AttachStep is the stack of a Call Step.
	AttachStep Level = 1 << iota
	// AttachFlow is the stack of a Flow.
	AttachFlow
)

// ActionKind is the kind of an action of middleware, which determines its valid Decisions.
type ActionKind uint8

// The three kinds of actions.
const (
	// SideEffect changes neither value nor flow: the Decision must be zero.
	SideEffect ActionKind = iota + 1
	// Control returns the zero Decision, [Substitute], [Rerun] or [Bound].
	Control
	// Transform returns the zero Decision, or another value with [Replace].
	Transform
)

// PhaseAction is the action of a middleware at one phase.
type PhaseAction struct {
	// Kind is the kind of the action.
	Kind ActionKind
	// Parameters is the JSON Schema of the phase's with, closed like a
	// [CallProvider]'s. Nil accepts no with.
	Parameters json.RawMessage
	// Structural are the members of with that are definitions instead of values, by name; Parameters declares them,
	// too. Run receives each unevaluated, with its expressions. The whole member cannot be an expression. Nil is none.
	Structural []string
	// Run does the work when the phase's when is true. It must return soon after ctx
	// is done; at OnAlways, that is not when the execution is cancelled. An error
	// fails the phase: a [*Failure] as it stands, any other and a panic as
	// Provider.Middleware.<CodePrefix>.Error. At OnFailure the rising failure is then
	// its previous.
	Run func(ctx context.Context, run *PhaseRun) (Decision, error)
}

// PhaseRun is one run of a phase. It is valid until the action returns, State
// apart.
type PhaseRun struct {
	// With are the phase's arguments, valid by its Parameters; never nil.
	With map[string]any
	// Input is the input of the entry.
	Input any
	// Result is the Result that rises at the position of the entry. It is nil at OnEntry.
	Result *Result
	// EnteredAt is when the phase began.
	EnteredAt time.Time
	// ExecutionID identifies the execution.
	ExecutionID string
	// State belongs to the entry: later phases find the value that an earlier phase set. It is nil at first, and when a
	// re-run enters the entry again.
	State any

	contribute func(name string, value any)
}

// Contribute sets a member of the entry's middleware.metadata, which the entry's
// own phase blocks read. The value must be valid by the middleware's Metadata.
func (r *PhaseRun) Contribute(name string, value any) { r.contribute(name, value) }

// Decision is the result of an action. The zero Decision changes nothing.
type Decision struct {
	kind     decisionKind
	result   Result
	value    any
	rerun    RerunOptions
	duration time.Duration
}

type decisionKind uint8

const (
	decidePass decisionKind = iota
	decideSubstitute
	decideReplace
	decideRerun
	decideBound
)

// Substitute replaces a Result. At OnEntry the scope does not run: the Result leaves from the entry's position, past
// OnAlways only. At OnSuccess and OnFailure it replaces the rising Result, and the same block shapes it. It must be of
// the same kind: a phase never turns a failure into a success or back.
func Substitute(result Result) Decision {
	return Decision{kind: decideSubstitute, result: result}
}

// Replace replaces a value before the block shapes it: at OnEntry the input of the scope, at OnSuccess the rising
// value.
func Replace(value any) Decision {
	return Decision{kind: decideReplace, value: value}
}

// RerunOptions are the options of [Rerun].
type RerunOptions struct {
	// Delay is the wait before the run; zero or less means none.
	Delay time.Duration
	// Feed makes the block's value the input of the next run, as Loop does; only at OnSuccess. Otherwise the input is
	// that of the first run.
	Feed bool
	// RestoreVariables resets the variables to their values after OnEntry, as Retry does, before the block's assign.
	RestoreVariables bool
}

// Rerun runs the scope again instead of emitting the rising Result, at OnSuccess or OnFailure.
func Rerun(options RerunOptions) Decision {
	return Decision{kind: decideRerun, rerun: options}
}

// Bound limits the time of the scope at OnEntry, as Timeout does. If the duration elapses before the Result, the scope
// is interrupted and the failure emitted. A duration of zero or less has elapsed already.
func Bound(duration time.Duration, failure *Failure) Decision {
	return Decision{kind: decideBound, duration: duration, result: Result{Failure: failure}}
}
