package eventbus

import (
	"encoding/json"

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
		case *permanentError, *retryAfterError:
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
