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

// Level says where a middleware may be attached, a set of bits.
type Level uint8

// The two levels.
const (
	// AttachStep is the stack of a Call Step.
	AttachStep Level = 1 << iota
	// AttachFlow is the stack of a Flow.
	AttachFlow
)

// ActionKind says what an action may do to what passes by.
type ActionKind uint8

// The three kinds of actions.
const (
	// SideEffect leaves what is in flight alone: the Decision must be zero.
	SideEffect ActionKind = iota + 1
	// Control passes, or decides with [Substitute], [Rerun] or [Bound].
	Control
	// Transform passes, or gives another value with [Replace].
	Transform
)

// PhaseAction is what a middleware does at one phase.
type PhaseAction struct {
	// Kind is what the action may do.
	Kind ActionKind
	// Parameters is the JSON Schema of the phase's with, closed like a
	// [CallProvider]'s. Nil accepts no with.
	Parameters json.RawMessage
	// Structural are the members of with that are definitions instead of values, by
	// name; Parameters declares them, too. Run gets each as it is written, its
	// expressions included, and none is evaluated at the phase. The whole member cannot
	// be an expression. Nil is none.
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
	// Input is what the entry received.
	Input any
	// Result is what rises at the entry's position; nil at OnEntry.
	Result *Result
	// EnteredAt is when the phase began.
	EnteredAt time.Time
	// ExecutionID identifies the execution.
	ExecutionID string
	// State is the entry's own: what one phase leaves here, the later ones find.
	// It is nil at first, also when a re-run establishes the entry afresh.
	State any

	contribute func(name string, value any)
}

// Contribute sets a member of the entry's middleware.metadata, which the entry's
// own phase blocks read. The value must be valid by the middleware's Metadata.
func (r *PhaseRun) Contribute(name string, value any) { r.contribute(name, value) }

// Decision is what an action wants to happen. The zero Decision lets things pass.
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

// Substitute puts a Result in place of another. At OnEntry the scope does not
// run: the Result leaves from the entry's position, past OnAlways only. At
// OnSuccess and OnFailure it takes the place of what rises, is shaped by the same
// block, and must be of the same kind: a phase never turns a failure into a
// success or back.
func Substitute(result Result) Decision {
	return Decision{kind: decideSubstitute, result: result}
}

// Replace puts another value in place of the one in flight, before the block's
// shaping: at OnEntry what the scope gets, at OnSuccess what rises.
func Replace(value any) Decision {
	return Decision{kind: decideReplace, value: value}
}

// RerunOptions say how [Rerun] runs the scope again.
type RerunOptions struct {
	// Delay is waited first; zero or less is no wait.
	Delay time.Duration
	// Feed gives the next run the product of the block's value, as Loop does; only
	// at OnSuccess. Otherwise it gets the input of the first.
	Feed bool
	// RestoreVariables puts the variables back to what they were after OnEntry, as
	// Retry does; the block's assign is applied to that.
	RestoreVariables bool
}

// Rerun runs the scope again instead of emitting what rises; at OnSuccess or
// OnFailure.
func Rerun(options RerunOptions) Decision {
	return Decision{kind: decideRerun, rerun: options}
}

// Bound races the scope at OnEntry: when the duration elapses before its Result is
// accepted, the scope is interrupted and the failure emitted, as Timeout does. A
// duration of zero or less has elapsed already.
func Bound(duration time.Duration, failure *Failure) Decision {
	return Decision{kind: decideBound, duration: duration, result: Result{Failure: failure}}
}
