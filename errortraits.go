package eventbus

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/surebus/eventbus/internal/errchain"
)

// ErrorTraits are the properties of an error that rules and name lists of retry policies use. An
// error declares them with any of these methods:
//
//	Code() string                         // "" for none
//	Name() string                         // "" for the type's name
//	ResultType() string                   // "" for none
//	Retryable() bool
//	Retryable() (retryable, said bool)    // said is false for no value
//	Details() json.RawMessage             // empty for none; for the dead letter, not for rules
//
// The bus searches the tree of wrapped and joined errors: at most 1,000 of them, to a depth of 100.
// The outermost error that declares a property counts. For names, all errors count.
type ErrorTraits struct {
	// Code is the declared code, such as "Payment.Declined", or "".
	Code string
	// Names lists the names of the errors of the tree, outermost first. An error's name is the first
	// one registered for it with WithErrorName or WithErrorTypeName. Without one, it is its Name, or
	// its Go type without package, pointers and type arguments. The wrappers of Permanent and
	// RetryAfter have no name.
	Names []string
	// ResultType is the declared result type. Without one, it is "timeout" for a *TimeoutError and
	// errors that match context.DeadlineExceeded, "cancellation" for errors that match
	// context.Canceled, and "error" for all others.
	ResultType string
	// Retryable is the declared value, or nil.
	Retryable *bool
	// Details is the declared JSON value, as Failure.Details has it, or nil.
	Details json.RawMessage
}

// ErrorTraits returns the traits of an error. Use it to find out why a rule or a list of names did
// not match. It calls the error's methods, which may block. A method that panics declares nothing.
// For nil it returns the zero ErrorTraits.
func (b *Bus) ErrorTraits(err error) ErrorTraits {
	if err == nil {
		return ErrorTraits{}
	}
	var names *errorNames
	if b.usable() {
		names = &b.config.names
	}
	return ErrorTraits{
		Code:       errchain.Code(err),
		Names:      names.of(err),
		ResultType: errchain.ResultType(err),
		Retryable:  errchain.Retryable(err),
		Details:    errchain.Details(err),
	}
}

// errorNames are the registered names.
type errorNames struct{ errchain.Names }

func (n *errorNames) add(option, name string, fits func(error) bool) error {
	if err := checkName(option, name); err != nil {
		return err
	}
	n.Add(name, fits)
	return nil
}

// of returns the names of the errors of a tree. n may be nil.
func (n *errorNames) of(err error) []string {
	if n == nil {
		n = &errorNames{}
	}
	return n.Of(err, func(err error) bool {
		switch err.(type) { //nolint:errorlint // this error only
		case *permanentError, *throttleError, *retryAfterError:
			return true
		}
		return false
	})
}

// WithErrorName registers a name for errors that match target by errors.Is. IncludeErrors and
// ExcludeErrors use it. Each error of a tree is compared alone: an error that only wraps target
// keeps its own name. The first registration that matches applies. The name has 1 to 255 bytes of
// UTF-8 without control characters.
//
//	eventbus.WithErrorName(context.DeadlineExceeded, "TimeoutError")
func WithErrorName(target error, name string) Option {
	return option(func(c *config) {
		if isNil(target) {
			c.err = &OptionError{Option: "WithErrorName", Value: "nil", Reason: "the target must be an error, to be matched by errors.Is"}
			return
		}
		c.err = c.names.add("WithErrorName", name, func(err error) bool { return errchain.IsOne(err, target) })
	})
}

// WithErrorTypeName registers a name as WithErrorName does, for errors that match a type or an
// interface by errors.As.
//
//	eventbus.WithErrorTypeName[*net.OpError]("ConnectionError")
func WithErrorTypeName[E error](name string) Option {
	return option(func(c *config) {
		c.err = c.names.add("WithErrorTypeName", name, func(err error) bool {
			return errchain.AskOne(err, func(E) bool { return true })
		})
	})
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks an error as one that must not be retried: the dispatch is dead-lettered at once,
// with the reason permanent. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter sets the delay before the next attempt, for this failure only, without jitter or cap.
// The attempt counts as usual. A negative delay is 0. RetryAfter(nil, d) is nil.
func RetryAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(delay, 0)}
}

type throttleError struct {
	err   error
	delay time.Duration
}

func (e *throttleError) Error() string { return e.err.Error() }
func (e *throttleError) Unwrap() error { return e.err }

// Throttle reports that the service behind a handler rejects all calls for a while, like a status 429 or 503 with
// Retry-After. It is not a failure: the handler's delivery and all later ones of the subscription are throttled until
// the delay is over, at most MaxThrottle. No attempt is spent, and the circuit counts nothing. Then one delivery runs
// alone, and each call that ends without another Throttle doubles the number that may run. Throttle does not affect
// running calls; the latest end of several delays counts. The delay is lost at a restart.
//
// The delay is at least 1 ms: with a shorter one, Throttle returns err, which is a failure. Throttle(nil, d) is nil. If an error tree
// has several, the order is Permanent, Throttle, Snooze, RetryAfter.
func Throttle(err error, delay time.Duration) error {
	if err == nil || delay < time.Millisecond {
		return err
	}
	return &throttleError{err, delay}
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return "snoozed for " + e.delay.String() }

// maxSnooze bounds the delay of Snooze.
const maxSnooze = 30 * 24 * time.Hour

// Snooze postpones a delivery, for example until a record exists. It is not a failure: the bus calls the handler again
// after the delay, without spending an attempt, and the circuit counts nothing. The event's other subscriptions
// proceed. Later events of its key wait behind it at the subscription. The time counts for MaxElapsed. A snooze that
// would end at or after MaxElapsed becomes a dead letter at once, with the reason expired. At or after the event's
// expiry (ExpiresAt), the reason is too_late. While a delivery is snoozed, it has a place in the line (LineCapacity);
// Shutdown does not wait for it.
//
// The delay is from 1 ms to 30 days. Snooze of another delay returns an error that fails the attempt.
func Snooze(delay time.Duration) error {
	if delay < time.Millisecond || delay > maxSnooze {
		return fmt.Errorf("eventbus: Snooze(%v): must be from 1ms to %v", delay, maxSnooze)
	}
	return &snoozeError{delay}
}
