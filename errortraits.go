package eventbus

import (
	"context"
	"slices"

	"github.com/surebus/eventbus/internal/errchain"
)

// ErrorTraits is what a bus makes of an error: what the rules and the name lists of retry policies
// go by. An error tells it by methods, any of which it may have:
//
//	Code() string                         // "" is none
//	Name() string                         // "" is none: the type's name holds
//	ResultType() string                   // "" is none
//	Retryable() bool
//	Retryable() (retryable, said bool)    // for types that may or may not say
//
// They are looked for in the whole tree of errors that an error wraps or joins, of which at most
// 1,000 are asked, none deeper than 100. The outermost error that says something counts; for names,
// all of them do.
type ErrorTraits struct {
	// Code is dotted, as in "Payment.Declined"; "" without one.
	Code string
	// Names are those of the errors of the chain, the outermost first: what the name was registered as
	// (WithErrorName, WithErrorTypeName; the first registration that fits counts), or else its Name,
	// or else its Go type's name, without package, pointers and type arguments. What only Permanent
	// and RetryAfter add has none.
	Names []string
	// ResultType is "error" unless the error says otherwise, or is a *TimeoutError or another one that
	// matches context.DeadlineExceeded ("timeout"), or else matches context.Canceled ("cancellation").
	ResultType string
	// Retryable is what the error says of itself; nil if it says nothing.
	Retryable *bool
}

// The result types of errors that do not say another one.
const (
	resultError        = "error"
	resultTimeout      = "timeout"
	resultCancellation = "cancellation"
)

// ErrorTraits tells what the bus makes of an error, to find out why a rule or a list of names did
// or did not match. It runs the error's methods, which may block; what panics tells nothing. The
// zero ErrorTraits is that of nil.
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

// errorNames are the names that were registered.
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

// of are the names of the errors of a chain. n may be nil.
func (n *errorNames) of(err error) (names []string) {
	errchain.Each(err, func(e error) bool {
		if name := n.ofOne(e); name != "" {
			names = append(names, name)
		}
		return false
	})
	return names
}

// ofOne is the name of one error of a chain, without what it wraps.
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

// passes reports whether errors of these names are worth a retry by the lists of a policy.
func passes(names, include, exclude []string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(list, name) })
	}
	return !in(exclude) && (include == nil || in(include))
}

// WithErrorName has errors that match target, by errors.Is, go by a name in IncludeErrors and
// ExcludeErrors. Each error of a chain is asked on its own, so that one that only wraps target
// keeps its own name. Of several registrations that fit, the first holds. The name is 1 to 255
// bytes of UTF-8 without control characters.
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

// WithErrorTypeName is WithErrorName for the errors of a type, or of an interface, as errors.As
// finds them.
//
//	eventbus.WithErrorTypeName[*net.OpError]("ConnectionError")
func WithErrorTypeName[E error](name string) Option {
	return option(func(c *config) {
		c.err = c.names.add("WithErrorTypeName", name, func(err error) bool {
			return errchain.AskOne(err, func(E) bool { return true })
		})
	})
}
