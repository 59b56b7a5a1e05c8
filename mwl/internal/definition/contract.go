package definition

import "github.com/surebus/eventbus/mwl/internal/schema"

// Catalog resolves the provider URIs of a definition.
type Catalog interface {
	CallProvider(uri string) (*CallContract, bool)
	Middleware(uri string) (*MiddlewareContract, bool)
}

// FailureCatalog are the codes that a provider can emit.
type FailureCatalog struct {
	// Closed are codes; Open are patterns such as "Provider.Call.X.Errors.*".
	Closed, Open []string
}

// CallContract is the catalog's entry for a call provider.
type CallContract struct {
	URI        string
	CodePrefix string
	// Parameters is schema.Empty when the provider takes no arguments.
	Parameters *schema.Schema
	// Metadata is schema.Empty when the provider exposes none.
	Metadata *schema.Schema
	Failures FailureCatalog
	// Implementation is the interpreter's.
	Implementation any
}

// Level is where a middleware may be attached.
type Level uint8

// The two levels, a set of bits.
const (
	StepLevel Level = 1 << iota
	FlowLevel
)

// ActionKind is what the action of a phase may do.
type ActionKind uint8

// The three kinds; zero is no action.
const (
	SideEffect ActionKind = iota + 1
	Control
	Transform
)

// StructureKind is what a structural parameter holds.
type StructureKind uint8

// The structures that a parameter can be.
const (
	CallStructure StructureKind = iota + 1
	MiddlewareStructure
	// OtherStructure is any JSON value: the middleware itself reads it.
	OtherStructure
)

// MiddlewareContract is the catalog's entry for a middleware.
type MiddlewareContract struct {
	URI        string
	CodePrefix string
	Levels     Level
	Phases     [PhaseCount]PhaseContract
	// Metadata is schema.Empty when the middleware contributes none.
	Metadata *schema.Schema
	Failures FailureCatalog
	// OwnsRuns: with onEntry gated off the scope does not run at all, as for Loop.
	OwnsRuns bool
	// NeedsContinuation: an entry must write onSuccess.when, as for Loop.
	NeedsContinuation bool
	// Reruns: the middleware re-runs its scope; nested ones earn a warning.
	Reruns bool
	// Implementation is the interpreter's.
	Implementation any
}

// PhaseContract is what a middleware declares for one phase.
type PhaseContract struct {
	// Kind is zero when the middleware has no action at the phase.
	Kind ActionKind
	// Parameters is schema.Empty when the phase accepts no with.
	Parameters *schema.Schema
	// Structural are the members of with that are definitions, by name.
	Structural map[string]StructureKind
}

// Problem is one finding about a definition.
type Problem struct {
	// Pointer is the JSON pointer of the offending value.
	Pointer string
	// Line and Column are where it begins in the source, both from 1.
	Line, Column int
	// Source is the text of the line, or the part around the column if it is long.
	Source string
	// Message says what is wrong, and Remedy what to do about it.
	Message, Remedy string
}

// The codes that the engine emits under System.
const (
	CodeCancelled                 = "System.Cancelled"
	CodeGatherDispatchCancelled   = "System.GatherDispatchCancelled"
	CodeGatherDispatchSkipped     = "System.GatherDispatchSkipped"
	CodeGatherCompletionUnmet     = "System.GatherCompletionUnmet"
	CodeExpressionEvaluationError = "System.ExpressionEvaluationError"
	CodeParameterValidationFailed = "System.ParameterValidationFailed"
	CodeUnrepresentableValue      = "System.UnrepresentableValue"
	CodeEmptyRaise                = "System.EmptyRaise"
	CodeFailureChainTruncated     = "System.FailureChainTruncated"
)
