package mwl

import (
	"cmp"
	"encoding/json"
	"strings"
)

// Result is the outcome of an execution: a value, or a failure.
type Result struct {
	// Value is the value of a successful execution: nil, bool, float64, string, []any or map[string]any. The caller may
	// change it.
	Value any
	// Failure is nil when the execution succeeded.
	Failure *Failure

	// exceeded is the limit that cancelled the execution; "" for none.
	exceeded string
}

// Err returns nil if the execution succeeded, and an [*ExecutionError] if it failed. A handler of a bus can return it.
// The bus then reads the failure's code, type and retryable, and does not retry a failure that the definition declares
// final. errors.As finds the [*Failure].
func (r Result) Err() error {
	if r.Failure == nil {
		return nil
	}
	return &ExecutionError{Failure: r.Failure, deterministic: isDeterministic(r.Failure, r.exceeded)}
}

// MarshalJSON returns the Result as the language defines it: an object with type "success" and a value, or the
// failure's envelope.
func (r Result) MarshalJSON() ([]byte, error) {
	if r.Failure != nil {
		return r.Failure.MarshalJSON()
	}
	return json.Marshal(struct {
		Type  string `json:"type"`
		Value any    `json:"value"`
	}{TypeSuccess, r.Value})
}

// The types of Results that the language defines. Every type but TypeSuccess is a
// failure's; a definition may use types of its own, by convention in PascalCase.
const (
	TypeSuccess      = "success"
	TypeError        = "error"
	TypeCancellation = "cancellation"
	TypeTimeout      = "timeout"
	TypeSkipped      = "skipped"
)

// Failure is the language's failure envelope, and a Go error. A provider returns one as its error; any other error
// becomes one.
type Failure struct {
	// Type is one of the failure types; "" means [TypeError].
	Type string
	// Code identifies the failure, a dotted name such as Provider.Call.Http.Throttled.
	Code string
	// Message is a text for readers; "" means none.
	Message string
	// Details is any JSON value; nil is none.
	Details any
	// Retryable is advice for retries; nil means no advice.
	Retryable *bool
	// Previous is the failure that this one superseded; nil when there is none.
	Previous *Failure

	// What the fields above cannot tell apart from absence.
	emptyMessage, nullDetails bool
}

// Error returns the code and the message.
func (f *Failure) Error() string {
	if f.Message == "" {
		return f.Code
	}
	return f.Code + ": " + f.Message
}

// Unwrap returns Previous, so that errors.As finds earlier failures of the chain.
func (f *Failure) Unwrap() error {
	if f.Previous == nil {
		return nil
	}
	return f.Previous
}

// MarshalJSON returns the envelope, without the members that the failure does not have.
func (f *Failure) MarshalJSON() ([]byte, error) {
	e, err := f.envelope()
	if err != nil {
		return nil, err
	}
	return json.Marshal(e)
}

// envelope is the JSON form of a failure and its chain. It is no json.Marshaler: what
// that writes for a link would be checked and copied again for each link above.
type envelope struct {
	Type      string          `json:"type"`
	Code      string          `json:"code"`
	Message   *string         `json:"message,omitempty"`
	Details   json.RawMessage `json:"details,omitempty"`
	Retryable *bool           `json:"retryable,omitempty"`
	Previous  *envelope       `json:"previous,omitempty"`
}

// envelope returns the failure's envelope. With an error, which is the first of
// encoding details, the envelope has a text in their place.
func (f *Failure) envelope() (e *envelope, err error) {
	e = &envelope{Type: f.kind(), Code: f.Code, Retryable: f.Retryable}
	if f.Message != "" || f.emptyMessage {
		e.Message = &f.Message
	}
	if f.Details != nil || f.nullDetails {
		if e.Details, err = json.Marshal(f.Details); err != nil {
			e.Details = omitted("they have no JSON form")
		}
	}
	if f.Previous != nil {
		previous, below := f.Previous.envelope()
		e.Previous, err = previous, cmp.Or(err, below)
	}
	return e, err
}

func (f *Failure) kind() string {
	if f.Type == "" {
		return TypeError
	}
	return f.Type
}

// The failure codes that the engine and the language's own middleware emit.
const (
	// CodeCancelled: the execution, or a scope of it, was cancelled.
	CodeCancelled = "System.Cancelled"
	// CodeGatherDispatchCancelled: a Gather cancelled the dispatch.
	CodeGatherDispatchCancelled = "System.GatherDispatchCancelled"
	// CodeGatherDispatchSkipped: a Gather never started the dispatch.
	CodeGatherDispatchSkipped = "System.GatherDispatchSkipped"
	// CodeGatherCompletionUnmet: too few dispatches of a Gather succeeded.
	CodeGatherCompletionUnmet = "System.GatherCompletionUnmet"
	// CodeExpressionEvaluationError: an expression could not be evaluated.
	CodeExpressionEvaluationError = "System.ExpressionEvaluationError"
	// CodeParameterValidationFailed: a value does not satisfy its schema or type.
	CodeParameterValidationFailed = "System.ParameterValidationFailed"
	// CodeUnrepresentableValue: an expression's value has no JSON form.
	CodeUnrepresentableValue = "System.UnrepresentableValue"
	// CodeEmptyRaise: a bare Raise had no failure to raise again.
	CodeEmptyRaise = "System.EmptyRaise"
	// CodeFailureChainTruncated: it replaces the rest of a chain that was too long.
	CodeFailureChainTruncated = "System.FailureChainTruncated"
	// CodeRetryExhausted: a Retry policy has no attempt left.
	CodeRetryExhausted = "Provider.Middleware.Retry.Exhausted"
	// CodeTimeoutExceeded: a Timeout's bound elapsed.
	CodeTimeoutExceeded = "Provider.Middleware.Timeout.Exceeded"
	// CodeFanOutLimitExceeded: a Gather would have made more dispatches than
	// [Limits] allow.
	CodeFanOutLimitExceeded = "Mwl.FanOutLimitExceeded"
)

// Problem is one finding about a definition.
type Problem struct {
	// Pointer is the JSON pointer (RFC 6901) of the offending value.
	Pointer string
	// Line and Column are where the value begins in the source, both from 1.
	Line, Column int
	// Source is the text of the line, or the part around the column if it is long.
	Source string
	// Message is the problem, and Remedy what to do.
	Message, Remedy string
}

// String returns the problem on one line: its position, the problem, and the remedy.
func (p Problem) String() string {
	var b strings.Builder
	writeProblem(&b, p)
	return b.String()
}
