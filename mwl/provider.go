package mwl

import (
	"context"
	"encoding/json"
)

// CallProvider is a catalog entry for a Go function that definitions can call.
type CallProvider struct {
	// URI is what definitions name, mwl:provider.call/<namespace>/<name…>, by
	// convention with a version as its last segment. The namespaces mwl and
	// example are reserved.
	URI string
	// CodePrefix is the provider's segment in failure codes,
	// Provider.Call.<CodePrefix>.<Code>: a capital letter, then letters and digits.
	CodePrefix string
	// Description is for people.
	Description string
	// Parameters is the JSON Schema (2020-12) of the arguments, with type object at
	// the top. Arguments that it does not declare are refused unless it sets
	// additionalProperties. Nil takes no arguments. It has at most 5000 values.
	Parameters json.RawMessage
	// Metadata is the JSON Schema of the metadata that the provider returns beside its Result. Nil reports nothing.
	Metadata json.RawMessage
	// Failures are the codes that the provider emits. Provider.Call.<CodePrefix>.Error,
	// for errors that are no [*Failure] and for panics, is always one of them.
	Failures FailureCatalog
	// Call does the work. It must return soon after ctx is done: the execution waits for it. It has a goroutine of its
	// own, so that runtime.Goexit is survived. Several dispatches may call it at once. Its arguments and results are
	// copied. An error that is or wraps a *Failure is the Result as it stands; any other, a panic and runtime.Goexit
	// included, becomes Provider.Call.<CodePrefix>.Error.
	Call func(ctx context.Context, request CallRequest) (CallResponse, error)
}

// FailureCatalog declares the codes that a provider can emit. A failure with
// another code is a defect of the provider: it arrives as the previous of a
// Provider.<Kind>.<CodePrefix>.Error.
type FailureCatalog struct {
	// Closed are single codes, Provider.<Kind>.<CodePrefix>.<Code>, of letters, digits
	// and dots.
	Closed []string
	// Open are regions of codes that are not known in advance, such as
	// Provider.Call.Function.Errors.*; "*" is the whole code space.
	Open []string
}

// CallRequest has the arguments of a dispatch for its provider.
type CallRequest struct {
	// With are the arguments, valid by the provider's Parameters; never nil.
	With map[string]any
	// Input is the payload.
	Input any
	// ExecutionID and StepID together identify the Step's pass, the same for every
	// attempt of a retry: the parts of an idempotency key. In the cleanup of a Flow's
	// own Finally there is no Step, and StepID is "".
	ExecutionID, StepID string
	// Index is the position of a Gather's dispatch, -1 for a Call.
	Index int
}

// CallResponse is the result of a provider.
type CallResponse struct {
	// Value is the value of the success. It is ignored with an error.
	Value any
	// Metadata is available to the call's arms as provider.metadata, also with an error.
	Metadata map[string]any
}
