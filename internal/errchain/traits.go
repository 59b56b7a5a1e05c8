package errchain

import (
	"context"
	"encoding/json"
	"reflect"

	"github.com/surebus/eventbus/internal/texts"
)

// Result types of errors that declare none.
const (
	resultError        = "error"
	resultTimeout      = "timeout"
	resultCancellation = "cancellation"
)

// Code returns the code that an error declares, or "".
func Code(err error) (code string) {
	Ask(err, func(e interface{ Code() string }) bool {
		code = e.Code()
		return code != ""
	})
	return code
}

// ResultType returns the result type that an error declares, or the one that follows from it.
func ResultType(err error) (resultType string) {
	if Ask(err, func(e interface{ ResultType() string }) bool {
		resultType = e.ResultType()
		return resultType != ""
	}) {
		return resultType
	}
	switch {
	case Is(err, context.DeadlineExceeded):
		return resultTimeout
	case Is(err, context.Canceled):
		return resultCancellation
	}
	return resultError
}

// Retryable returns whether an error declares that it may be retried, or nil.
func Retryable(err error) *bool {
	var retryable, said bool
	Each(err, func(e error) bool {
		said = AskOne(e, func(e interface{ Retryable() bool }) bool {
			retryable = e.Retryable()
			return true
		}) || AskOne(e, func(e interface{ Retryable() (bool, bool) }) (said bool) {
			retryable, said = e.Retryable()
			return said
		})
		return said
	})
	if !said {
		return nil
	}
	return &retryable
}

// Details returns the JSON value that an error declares, or nil.
func Details(err error) (details json.RawMessage) {
	Ask(err, func(e interface{ Details() json.RawMessage }) bool {
		details = texts.Details(e.Details())
		return details != nil
	})
	return details
}

// TargetProblem returns why a target of errors.As is invalid, or "".
func TargetProblem(target any) string {
	const want = "must be a pointer to a type that is an error, or to an interface, as in new(*net.OpError)"
	t := reflect.TypeOf(target)
	if t == nil || t.Kind() != reflect.Pointer || reflect.ValueOf(target).IsNil() {
		return want
	}
	if e := t.Elem(); e.Kind() != reflect.Interface && !e.Implements(reflect.TypeFor[error]()) {
		return want
	}
	return ""
}
