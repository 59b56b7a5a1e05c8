// Package definition holds the syntax tree of a loaded workflow definition: what
// the loader fills and the interpreter runs. A tree is immutable once loaded.
package definition

import (
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/schema"
)

// SchemaURI is the only value that a root's $schema may have.
const SchemaURI = "https://mwl.dev/v0.1/flow/schema.json"

// Root is a whole document.
type Root struct {
	// Flow is the root Flow object.
	Flow *Flow
	// Source is the document as it was given.
	Source []byte
	// Warnings are what the document may contain, but is likely a mistake.
	Warnings []Problem
}

// Flow is a Flow object: the root, a named one or an inline one.
type Flow struct {
	// Name is the key in flows; "" for the root and for an inline Flow.
	Name    string
	Pointer string
	Comment string
	// Parameters binds the arguments; schema.Empty when the Flow declares none.
	Parameters *schema.Schema
	Middleware []*Entry
	Entrypoint *Step
	Steps      map[string]*Step
}

// Action is what a Step does.
type Action uint8

// The seven actions.
const (
	ActionCall Action = iota + 1
	ActionGather
	ActionMatch
	ActionPass
	ActionSleep
	ActionReturn
	ActionRaise
)

var actionNames = [...]string{"", "Call", "Gather", "Match", "Pass", "Sleep", "Return", "Raise"}

// String is the action as definitions write it.
func (a Action) String() string { return actionNames[a] }

// ActionByName is the action that definitions write as name; false when there is
// none.
func ActionByName(name string) (Action, bool) {
	for i, n := range actionNames {
		if i > 0 && n == name {
			return Action(i), true
		}
	}
	return 0, false
}

// Step is one node of a Flow's graph. The fields that its action does not carry
// are zero.
type Step struct {
	Name    string
	Action  Action
	Pointer string
	Comment string

	// Input is carried by Call and Match.
	Input Field
	// Output is carried by Call, Gather and Pass.
	Output Field
	// Assign is carried by Call, Gather and Pass.
	Assign Assign
	// Middleware is carried by Call.
	Middleware []*Entry
	// Catch is carried by Call and Gather.
	Catch []*Clause
	// Next is the successor; nil for Match, Return and Raise.
	Next *Step

	// Call is the dispatch of a Call, or the iterate form of a Gather.
	Call *Call
	// Gather has the fields of a Gather; nil otherwise.
	Gather *Gather
	// Match has the fields of a Match; nil otherwise.
	Match *Match
	// For and Until are a Sleep's; exactly one is written.
	For, Until Field
	// Value is a Return's.
	Value Field
	// Raise is what a Raise constructs; nil for a bare one.
	Raise *Envelope
}

// Gather is what only a Gather carries.
type Gather struct {
	// Over is the collection of the iterate form, whose template is Step.Call.
	// It is not written in the scatter form.
	Over Field
	// Calls are the dispatches of the scatter form; nil in the iterate form.
	Calls []*Call
	// Successes is completion.successes; not written when there is no completion.
	Successes Field
	// Wait is completion.wait, true by default.
	Wait bool
	// Concurrency caps the active dispatches; 0 is unlimited.
	Concurrency int
}

// Match is what only a Match carries.
type Match struct {
	// Cases are tried in order. Every one has a When.
	Cases []*Clause
	// Default has no When.
	Default *Clause
}

// Clause is a case or the default of a Match, or a catch clause.
type Clause struct {
	Pointer string
	Comment string
	// When is the predicate of a case.
	When Field
	// Matcher is what a catch clause selects by; nil in a Match.
	Matcher *Matcher
	Output  Field
	Assign  Assign
	Next    *Step
}

// Call is a call object.
type Call struct {
	Pointer string
	Comment string
	// Provider is the target; nil when the target is Flow.
	Provider *CallContract
	// Flow is the target, a named one resolved; nil when the target is Provider.
	Flow  *Flow
	Input Field
	With  Field
	// OnSuccessValue and OnSuccessAssign are the success arm.
	OnSuccessValue  Field
	OnSuccessAssign Assign
	// OnFailureAssign is the failure arm.
	OnFailureAssign Assign
}

// Entry is one middleware entry of a stack.
type Entry struct {
	Pointer  string
	Comment  string
	Contract *MiddlewareContract
	// Blocks are indexed by Phase. None is nil: a block that is not written is empty.
	Blocks [PhaseCount]*Block
}

// Phase is a crossing of an entry's boundary.
type Phase uint8

// The four phases.
const (
	OnEntry Phase = iota
	OnSuccess
	OnFailure
	OnAlways
	PhaseCount
)

var phaseNames = [...]string{"onEntry", "onSuccess", "onFailure", "onAlways"}

// String is the phase as definitions write it.
func (p Phase) String() string { return phaseNames[p] }

// Block is the phase block of an entry.
type Block struct {
	Pointer string
	When    Field
	// With is what is evaluated: the members of the written with that are not
	// structural.
	With Field
	// Structural are the members of with that the contract declares structural
	// and that are written, by name.
	Structural map[string]*Structure
	Assign     Assign
	// Output is onEntry's.
	Output Field
	// Value is onSuccess's.
	Value Field
	// Envelope is onFailure's; nil when no envelope key is written.
	Envelope *Envelope
}

// Structure is a structural parameter: a definition taken as written.
type Structure struct {
	// Source is the member's JSON value, for validation against the schema.
	Source any
	// Call is set when the contract declares the member a call object.
	Call *Call
	// Stack is set when the contract declares the member a middleware array.
	Stack []*Entry
}

// Envelope has the authorable fields of a failure.
type Envelope struct {
	Pointer   string
	Type      Field
	Code      Field
	Message   Field
	Details   Field
	Retryable Field
	Previous  Field
}

// Field is a place that accepts an expression. The zero Field is not written.
type Field struct {
	// Pointer is where the field stands; "" when it is not written.
	Pointer string
	// Template computes the value; nil when the field is not written.
	Template *expr.Template
}

// Written reports whether the definition has the field.
func (f Field) Written() bool { return f.Template != nil }

// Binding is one member of an assign.
type Binding struct {
	Name  string
	Value Field
}

// Assign is an assign block, sorted by name.
type Assign []Binding
