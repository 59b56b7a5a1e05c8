package eventbus

import (
	"context"
	"slices"

	"github.com/surebus/eventbus/internal/errchain"
)

// ErrorTraits are the properties of an error by which rules and name lists of retry policies
// decide. An error declares them with any of these methods:
//
//	Code() string                         // "" is none
//	Name() string                         // "" is none: the type's name holds
//	ResultType() string                   // "" is none
//	Retryable() bool
//	Retryable() (retryable, said bool)    // for types that may or may not say
//
// The bus asks the whole tree of wrapped and joined errors, at most 1,000 of them and none deeper
// than 100. The outermost error that declares a property counts. For names, all count.
type ErrorTraits struct {
	// Code is dotted, as in "Payment.Declined"; "" without one.
	Code string
	// Names are the names of the errors of the tree, the outermost first. An error's name is the
	// one that was registered for it (WithErrorName, WithErrorTypeName; the first registration that
	// fits), or else its Name, or else its Go type without package, pointers and type arguments.
	// The wrappers of Permanent and RetryAfter have none.
	Names []string
	// ResultType is what the error declares. Otherwise it is "timeout" for a *TimeoutError and
	// errors that match context.DeadlineExceeded, "cancellation" for errors that match
	// context.Canceled, and "error" for all others.
	ResultType string
	// Retryable is what the error declares; nil if it declares nothing.
	Retryable *bool
}

// The result types of errors that declare none.
const (
	resultError        = "error"
	resultTimeout      = "timeout"
	resultCancellation = "cancellation"
)

// ErrorTraits returns the traits of an error, for example to find out why a rule or a list of names
// did not match. It runs the error's methods, which may block. A method that panics declares
// nothing. For nil it returns the zero ErrorTraits.
func (b *Bus) ErrorTraits(err error) ErrorTraits {
	if err == nil {
		return ErrorTraits{}
	}
	var names *errorNames
	if b.usable() {
		names = &b.config.names
	}
	return ErrorTraits{
		Code:       codeOf(err),
		Names:      names.of(err),
		ResultType: resultTypeOf(err),
		Retryable:  retryableOf(err),
	}
}

func codeOf(err error) (code string) {
	errchain.Ask(err, func(e interface{ Code() string }) bool {
		code = e.Code()
		return code != ""
	})
	return code
}

func resultTypeOf(err error) (resultType string) {
	if errchain.Ask(err, func(e interface{ ResultType() string }) bool {
		resultType = e.ResultType()
		return resultType != ""
	}) {
		return resultType
	}
	switch {
	case errchain.Is(err, context.DeadlineExceeded):
		return resultTimeout
	case errchain.Is(err, context.Canceled):
		return resultCancellation
	}
	return resultError
}

func retryableOf(err error) *bool {
	var retryable, said bool
	errchain.Each(err, func(e error) bool {
		said = errchain.AskOne(e, func(e interface{ Retryable() bool }) bool {
			retryable = e.Retryable()
			return true
		}) || errchain.AskOne(e, func(e interface{ Retryable() (bool, bool) }) (said bool) {
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

// errorNames are the registered names.
type errorNames struct{ registered []errorName }

type errorName struct {
	name string
	fits func(error) bool // asked of one error of a chain
}

func (n *errorNames) add(option, name string, fits func(error) bool) error {
	if err := checkName(option, name); err != nil {
		return err
	}
	n.registered = append(n.registered, errorName{name, fits})
	return nil
}

// of returns the names of the errors of a tree. n may be nil.
func (n *errorNames) of(err error) (names []string) {
	errchain.Each(err, func(e error) bool {
		if name := n.ofOne(e); name != "" {
			names = append(names, name)
		}
		return false
	})
	return names
}

// ofOne returns the name of one error, without those that it wraps.
func (n *errorNames) ofOne(err error) (name string) {
	switch err.(type) { //nolint:errorlint // one step of the chain
	case *permanentError, *retryAfterError:
		return ""
	}
	if n != nil {
		for _, r := range n.registered {
			if r.fits(err) {
				return r.name
			}
		}
	}
	type namer interface{ Name() string }
	if _, ok := err.(namer); ok { // AskOne alone would also ask its As method
		errchain.AskOne(err, func(e namer) bool { name = e.Name(); return true })
	}
	if name != "" {
		return name
	}
	return errchain.TypeName(err)
}

// passes reports whether the lists of a policy retry errors with these names.
func passes(names, include, exclude []string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(list, name) })
	}
	return !in(exclude) && (include == nil || in(include))
}

// WithErrorName registers a name, for IncludeErrors and ExcludeErrors, of the errors that match
// target by errors.Is. Each error of a tree is asked alone: an error that only wraps target keeps
// its own name. The first registration that fits counts. The name is 1 to 255 bytes of UTF-8
// without control characters.
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

// WithErrorTypeName is WithErrorName for errors of a type, or of an interface, as errors.As matches
// them.
//
//	eventbus.WithErrorTypeName[*net.OpError]("ConnectionError")
func WithErrorTypeName[E error](name string) Option {
	return option(func(c *config) {
		c.err = c.names.add("WithErrorTypeName", name, func(err error) bool {
			return errchain.AskOne(err, func(E) bool { return true })
		})
	})
}
