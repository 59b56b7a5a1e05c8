package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/surebus/eventbus"
)

// Code identifies a kind of error of the API. Codes are stable.
type Code string

// The codes.
const (
	CodeBadRequest           Code = "bad_request"            // 400
	CodeUnauthenticated      Code = "unauthenticated"        // 401
	CodeForbidden            Code = "forbidden"              // 403
	CodeReadOnly             Code = "read_only"              // 403
	CodeNotFound             Code = "not_found"              // 404
	CodeMethodNotAllowed     Code = "method_not_allowed"     // 405
	CodeConflict             Code = "conflict"               // 409
	CodeStaleCount           Code = "stale_count"            // 409
	CodeNoSubscription       Code = "no_subscription"        // 409
	CodeSettled              Code = "settled"                // 409: the event, or its delivery, has settled
	CodeNothingDone          Code = "nothing_done"           // 409: no delivery could be acted upon
	CodeTooLarge             Code = "too_large"              // 413
	CodeUnsupportedMediaType Code = "unsupported_media_type" // 415
	CodeUnprocessable        Code = "unprocessable"          // 422
	CodeRateLimited          Code = "rate_limited"           // 429
	CodeInternal             Code = "internal"               // 500
	CodeShutDown             Code = "shut_down"              // 503
	CodeStoreFailed          Code = "store_failed"           // 503
)

// statuses maps codes to HTTP statuses.
var statuses = map[Code]int{
	CodeBadRequest: http.StatusBadRequest, CodeUnauthenticated: http.StatusUnauthorized,
	CodeForbidden: http.StatusForbidden, CodeReadOnly: http.StatusForbidden,
	CodeNotFound: http.StatusNotFound, CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	CodeConflict: http.StatusConflict, CodeStaleCount: http.StatusConflict, CodeNoSubscription: http.StatusConflict,
	CodeSettled: http.StatusConflict, CodeNothingDone: http.StatusConflict,
	CodeTooLarge: http.StatusRequestEntityTooLarge, CodeUnsupportedMediaType: http.StatusUnsupportedMediaType,
	CodeUnprocessable: http.StatusUnprocessableEntity, CodeRateLimited: http.StatusTooManyRequests,
	CodeInternal: http.StatusInternalServerError,
	CodeShutDown: http.StatusServiceUnavailable, CodeStoreFailed: http.StatusServiceUnavailable,
}

// Error is the error of a request. The body of an answer with a status of 400 or more is an ErrorAnswer.
type Error struct {
	Code    Code   `json:"code"`    // the kind of error
	Message string `json:"message"` // what went wrong
	Remedy  string `json:"remedy"`  // what to do next
	// RequestID is the id of the request, as in the log, the audit and the header X-Request-Id.
	RequestID string `json:"request_id"`
	// Report lists the deliveries that an action on an event found, if the code is nothing_done. Otherwise it is nil.
	Report *eventbus.ActionReport `json:"report,omitempty"`

	err    error             // the cause, for the log; nil if the message has it all
	header map[string]string // of the answer
}

// ErrorAnswer is the body of an answer that is an error.
type ErrorAnswer struct {
	Error *Error `json:"error"` // the error of the request
}

// Error returns code, message and remedy.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message + "; " + e.Remedy }

// Unwrap returns the cause, which is nil for most errors.
func (e *Error) Unwrap() error { return e.err }

// Status returns the HTTP status of the code.
func (e *Error) Status() int {
	if status, ok := statuses[e.Code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

func badRequest(message, remedy string) *Error {
	return &Error{Code: CodeBadRequest, Message: message, Remedy: remedy}
}

func forbidden(message, remedy string) *Error {
	return &Error{Code: CodeForbidden, Message: message, Remedy: remedy}
}

func readOnly(message, remedy string) *Error {
	return &Error{Code: CodeReadOnly, Message: message, Remedy: remedy}
}

func conflict(message, remedy string) *Error {
	return &Error{Code: CodeConflict, Message: message, Remedy: remedy}
}

func notFound(message, remedy string) *Error {
	return &Error{Code: CodeNotFound, Message: message, Remedy: remedy}
}

func internal(message string, err error) *Error {
	return &Error{Code: CodeInternal, Message: message, Remedy: "search the log of the process for the request id", err: err}
}

// errorOf returns the answer to an error. Only errors whose texts have nothing but the operator's own input and names
// of subscriptions are shown. All others, such as those of a store with its paths and SQL, are in the log only.
func errorOf(err error) *Error {
	var (
		own       *Error
		challenge *ChallengeError
		limited   *RateLimitError
		option    *eventbus.OptionError
		pattern   *eventbus.PatternError
		event     *eventbus.EventError
		payload   *eventbus.PayloadError
		imported  *eventbus.ImportError
		tooLarge  *http.MaxBytesError
		inUse     *eventbus.NameInUseError
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &limited):
		return &Error{
			Code: CodeRateLimited, Message: "too many failed logins", Remedy: "wait for the seconds in Retry-After",
			header: map[string]string{"Retry-After": strconv.Itoa(limited.seconds())},
		}
	case errors.Is(err, ErrUnauthenticated):
		e := &Error{Code: CodeUnauthenticated, Message: "no valid credentials", Remedy: "send the credentials of an operator"}
		if errors.As(err, &challenge) {
			e.header = map[string]string{"WWW-Authenticate": challenge.Challenge}
		}
		return e
	case errors.Is(err, ErrForbidden):
		return forbidden("you may not perform this action", "ask for the permission")

	case errors.As(err, &option):
		return badRequest(option.Error(), "correct the value")
	case errors.As(err, &pattern):
		return badRequest(pattern.Error(), "correct the pattern")
	case errors.As(err, &event):
		return badRequest(event.Error(), "correct the value")
	case errors.As(err, &imported):
		return &Error{Code: CodeUnprocessable, Message: imported.Error(), Remedy: "import the unchanged output of an export; nothing was imported"}
	case errors.As(err, &payload):
		return &Error{Code: CodeUnprocessable, Message: "the payload is too large or cannot be encoded", Remedy: "send a smaller JSON payload", err: err}
	case errors.As(err, &tooLarge):
		return &Error{Code: CodeTooLarge, Message: "the body is larger than " + strconv.FormatInt(tooLarge.Limit, 10) + " bytes", Remedy: "send less"}

	case errors.Is(err, eventbus.ErrNotErased):
		return conflict("the letters are purged, and their payloads are not erased from the files of the store yet",
			"end long reads of the file, such as a backup: the store erases them at its next checkpoint")
	case errors.Is(err, eventbus.ErrNotFound):
		return notFound("there is no such dead letter: it is unknown, was purged, or was replayed", "look for its event, and in the audit")
	case errors.Is(err, eventbus.ErrInvalidLetter):
		return badRequest("the id is not the id of a dead letter", "copy it from a list")
	case errors.Is(err, eventbus.ErrUnknownEvent):
		return notFound("the event is unknown: it has settled and was forgotten, or was never accepted", "check the id; without a store, try again: it may be on its way")
	case errors.Is(err, eventbus.ErrNoSubscription):
		return &Error{
			Code: CodeNoSubscription, Message: "the subscription does not exist on this bus; nothing was done",
			Remedy: "copy the name from the list of subscriptions, or deploy the handler", err: err,
		}
	case errors.Is(err, eventbus.ErrNoCatalog), errors.Is(err, eventbus.ErrNoHandlers):
		return notFound("the store has no catalog of subscriptions yet", "start the bus that runs the handlers once")
	case errors.Is(err, eventbus.ErrSettled):
		return &Error{Code: CodeSettled, Message: "nothing of the event is left: it has settled", Remedy: "look at the event"}
	case errors.As(err, &inUse):
		return conflict(fmt.Sprintf("a live bus has the subscription %q again: instance %s", cut(inUse.Subscription, 80), inUse.Instance),
			"look whether its deployment is right; to retire the name, end that process or deploy it without the subscription. A killed standby counts as live for up to an hour")
	case errors.Is(err, eventbus.ErrNoAnswer):
		return conflict("the process with the lease of the store does not answer; nothing was done", "look whether that process is stopped or hangs")
	case errors.Is(err, eventbus.ErrCircuitDisabled):
		return conflict("the subscription has no circuit", "pause it instead")
	case errors.Is(err, eventbus.ErrShutdown):
		return &Error{Code: CodeShutDown, Message: "the bus is shut down", Remedy: "try again when the process has restarted"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &Error{Code: CodeStoreFailed, Message: "the request ended before the answer was complete", Remedy: "ask for less, or try again", err: err}
	}
	// All other errors of the bus are those of its store.
	return &Error{
		Code: CodeStoreFailed, Message: "the store does not work, or a row of it is damaged",
		Remedy: "try again, because the bus reopens a store that has failed; search the log of the process for the request id", err: err,
	}
}
