package eventbus

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/surebus/eventbus/internal/errchain"
)

// ErrorTraits is what a bus makes of an error: what the rules and the name lists of
// retry policies go by. An error tells it by methods, any of which it may have:
//
//	Code() string                         // "" is none
//	Name() string                         // "" is none: the type's name holds
//	ResultType() string                   // "" is none
//	Retryable() bool
//	Retryable() (retryable, said bool)    // for types that may or may not say
//
// They are looked for in the whole tree of errors that an error wraps or joins, of which at
// most 1,000 are asked, none deeper than 100. The outermost error that says something
// counts; for names, all of them do.
type ErrorTraits struct {
	// Code is dotted, as in "Payment.Declined"; "" without one.
	Code string
	// Names are those of the errors of the chain, the outermost first: what the name
	// was registered as (WithErrorName, WithErrorTypeName; the first registration that
	// fits counts), or else its Name, or else its Go type's name, without package,
	// pointers and type arguments. What only Permanent and RetryAfter add has none.
	Names []string
	// ResultType is "error" unless the error says otherwise, or is a *TimeoutError or
	// another one that matches context.DeadlineExceeded ("timeout"), or else matches
	// context.Canceled ("cancellation").
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

// ErrorTraits tells what the bus makes of an error, to find out why a rule or a list
// of names did or did not match. It runs the error's methods, which may block; what
// panics tells nothing. The zero ErrorTraits is that of nil.
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
	tells(err, func(e interface{ Code() string }) bool {
		code = e.Code()
		return code != ""
	})
	return code
}

func resultTypeOf(err error) (resultType string) {
	if tells(err, func(e interface{ ResultType() string }) bool {
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
		said = tellsItself(e, func(e interface{ Retryable() bool }) bool {
			retryable = e.Retryable()
			return true
		}) || tellsItself(e, func(e interface{ Retryable() (bool, bool) }) (said bool) {
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

// tells calls f with the errors of a chain that have the methods I, until it returns
// true. It reports whether it has.
func tells[I any](err error, f func(I) bool) bool {
	return errchain.Each(err, func(e error) bool { return tellsItself(e, f) })
}

// tellsItself is tells for one error of a chain: it has the methods, or its As method
// finds something that has.
func tellsItself[I any](err error, f func(I) bool) (told bool) {
	defer func() {
		if recover() != nil {
			told = false
		}
	}()
	if i, ok := err.(I); ok {
		return f(i)
	}
	var i I
	as, ok := err.(interface{ As(any) bool })
	return ok && as.As(&i) && f(i)
}

// errorNames are the names that were registered.
type errorNames struct{ registered []errorName }

type errorName struct {
	name string
	fits func(error) bool // asked of one error of a chain
}

func (n *errorNames) add(option, name string, fits func(error) bool) error {
	if reason := checkErrorName(name); reason != "" {
		return &OptionError{Option: option, Value: fmt.Sprintf("%q", shorten(name)), Reason: reason}
	}
	n.registered = append(n.registered, errorName{name, fits})
	return nil
}

func checkErrorName(name string) string {
	switch {
	case name == "":
		return "a name must not be empty"
	case len(name) > 255:
		return "a name must be at most 255 bytes long"
	case !utf8.ValidString(name):
		return "a name must be valid UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "a name must not have control characters"
	}
	return ""
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
			if fitsOne(r, err) {
				return r.name
			}
		}
	}
	defer func() {
		if recover() != nil {
			name = typeName(err)
		}
	}()
	if e, ok := err.(interface{ Name() string }); ok {
		name = e.Name()
	}
	if name == "" {
		name = typeName(err)
	}
	return name
}

func fitsOne(n errorName, err error) (fits bool) {
	defer func() {
		if recover() != nil {
			fits = false
		}
	}()
	return n.fits(err)
}

// typeName is the name of an error's type, without package, pointers and type
// arguments.
func typeName(err error) string {
	t := reflect.TypeOf(err)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(t.Name(), "[")
	return name
}

// passes reports whether errors of these names are worth a retry by the lists of a
// policy.
func passes(names, include, exclude []string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(list, name) })
	}
	return !in(exclude) && (include == nil || in(include))
}

// WithErrorName has errors that match target, by errors.Is, go by a name in
// IncludeErrors and ExcludeErrors. Each error of a chain is asked on its own, so that
// one that only wraps target keeps its own name. Of several registrations that fit,
// the first holds. The name is 1 to 255 bytes of UTF-8 without control characters.
//
//	eventbus.WithErrorName(context.DeadlineExceeded, "TimeoutError")
func WithErrorName(target error, name string) Option {
	return option(func(c *config) {
		if isNil(target) {
			c.err = &OptionError{Option: "WithErrorName", Value: "nil", Reason: "the target must be an error, to be matched by errors.Is"}
			return
		}
		canCompare := reflect.TypeOf(target).Comparable()
		c.err = c.names.add("WithErrorName", name, func(err error) bool {
			if canCompare && err == target { //nolint:errorlint // one step of the chain
				return true
			}
			is, ok := err.(interface{ Is(error) bool })
			return ok && is.Is(target)
		})
	})
}

// WithErrorTypeName is WithErrorName for the errors of a type, or of an interface, as
// errors.As finds them.
//
//	eventbus.WithErrorTypeName[*net.OpError]("ConnectionError")
func WithErrorTypeName[E error](name string) Option {
	return option(func(c *config) {
		c.err = c.names.add("WithErrorTypeName", name, func(err error) bool {
			return tellsItself(err, func(E) bool { return true })
		})
	})
}
