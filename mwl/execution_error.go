package mwl

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// ExecutionError is the error of an execution that failed: [Result.Err], and the error of the handler of
// [Definition.Handler]. It declares the traits by which the bus's rules, policies and circuits judge errors; errors.As
// finds the [*Failure] and earlier failures. It is immutable.
type ExecutionError struct {
	// Failure is the execution's Result; never nil.
	Failure *Failure

	deterministic bool
}

// Error returns the failure's code and message.
func (e *ExecutionError) Error() string { return e.Failure.Error() }

// Unwrap returns Failure.
func (e *ExecutionError) Unwrap() error { return e.Failure }

// Code returns the failure's code, for [eventbus.ErrorMatch] and circuits.
func (e *ExecutionError) Code() string { return e.Failure.Code }

// Name returns the name for IncludeErrors and ExcludeErrors of a policy: the failure's code, or its type if that is
// timeout or cancellation.
func (e *ExecutionError) Name() string {
	switch kind := e.Failure.kind(); kind {
	case TypeTimeout, TypeCancellation:
		return kind
	}
	return e.Failure.Code
}

// ResultType returns the failure's type, such as error, timeout or cancellation.
func (e *ExecutionError) ResultType() string { return e.Failure.kind() }

// Retryable returns the failure's retryable, if it has one. The bus does not retry an error with false, unless a rule
// matches it.
//
// It is false for a deterministic failure, whatever the envelope has, because the same event would fail again. These
// are System.ParameterValidationFailed, System.ExpressionEvaluationError, System.UnrepresentableValue,
// System.EmptyRaise, Mwl.FanOutLimitExceeded, and all failures of an execution that exceeded a limit other than
// ExecutionTime. With [RetryDefinitionErrors], the envelope decides.
func (e *ExecutionError) Retryable() (retryable, said bool) {
	switch {
	case e.deterministic:
		return false, true
	case e.Failure.Retryable == nil:
		return false, false
	default:
		return *e.Failure.Retryable, true
	}
}

// Details returns the failure envelope as JSON, which the bus keeps in the dead letter as Failure.Details. An envelope
// of more than 8 KiB loses details, then links of its chain of previous failures, then the ends of its texts.
func (e *ExecutionError) Details() json.RawMessage {
	full, _ := e.Failure.envelope() // which says what did not encode
	for _, bounds := range []envelopeBounds{
		{details: maxEnvelope, before: maxEnvelope, text: maxEnvelope, links: math.MaxInt},
		{details: maxEnvelope / 2, before: 64, text: maxEnvelope, links: chainLinks},
		{details: maxEnvelope / 4, before: 64, text: 1 << 10, links: 4},
		{details: 256, before: 64, text: 256, links: 2},
		{details: 64, text: 128, links: 1},
	} {
		if encoded, err := json.Marshal(bounds.shorten(full, 0)); err == nil && len(encoded) <= maxEnvelope {
			return encoded
		}
	}
	return nil // the last bounds always fit
}

// maxEnvelope is the most that a dead letter keeps of an envelope, in bytes.
const maxEnvelope = 8 << 10

// envelopeBounds bound the parts of an envelope, in bytes. No bound of details is less
// than the text that stands for them.
type envelopeBounds struct {
	details int // of the failure
	before  int // details of each failure before it
	text    int
	links   int
}

// shorten returns a copy of an envelope, which is the link-th of its chain, within the
// bounds.
func (b envelopeBounds) shorten(e *envelope, link int) *envelope {
	short := *e
	short.Type, short.Code = cut(e.Type, b.text), cut(e.Code, b.text)
	if e.Message != nil {
		message := cut(*e.Message, b.text)
		short.Message = &message
	}
	details := b.details
	if link > 0 {
		details = b.before
	}
	if len(e.Details) > details {
		short.Details = omitted(strconv.Itoa(len(e.Details)) + " bytes")
	}
	switch {
	case e.Previous == nil:
	case link+1 >= b.links:
		message := "the failures before this one were dropped"
		short.Previous = &envelope{Type: TypeError, Code: CodeFailureChainTruncated, Message: &message}
	default:
		short.Previous = b.shorten(e.Previous, link+1)
	}
	return &short
}

// omitted stands for details that an envelope does not have.
func omitted(reason string) json.RawMessage {
	text, _ := json.Marshal("details omitted: " + reason) // a string always encodes
	return text
}

// cut shortens a text to a number of bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// deterministicCodes are those of failures that the same event would have again.
var deterministicCodes = []string{
	CodeParameterValidationFailed, CodeExpressionEvaluationError, CodeUnrepresentableValue, CodeEmptyRaise, CodeFanOutLimitExceeded,
}

// isDeterministic reports whether an execution that failed would fail in the next
// attempt, too. exceeded is the limit that cancelled it; the failure may not show that,
// because a cleanup that fails puts its own in the place.
func isDeterministic(f *Failure, exceeded string) bool {
	if exceeded != "" {
		return exceeded != executionTime // a slow provider may be faster the next time
	}
	return slices.Contains(deterministicCodes, f.Code)
}
