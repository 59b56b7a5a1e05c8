package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// ValueError and the others are named by their types.
type ValueError struct{ error }

type genericError[T any] struct{}

func (*genericError[T]) Error() string { return "generic" }

// disguisedError shows what it is for by As alone.
type disguisedError struct{ as *ruleError }

func (e disguisedError) Error() string { return "disguised" }

func (e disguisedError) As(target any) bool {
	if c, ok := target.(*interface{ Code() string }); ok {
		*c = e.as
		return true
	}
	return false
}

// emptyFS is a directory in which nothing is.
type emptyFS struct{}

func (emptyFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func TestP7_WhatAnErrorTells(t *testing.T) {
	bus, _ := newBus(t,
		eventbus.WithErrorName(context.DeadlineExceeded, "SlowError"),
		eventbus.WithErrorName(fs.ErrNotExist, "MissingError"),
		eventbus.WithErrorTypeName[*net.OpError]("ConnectionError"),
		eventbus.WithErrorTypeName[net.Error]("NetError"),
	)
	outer := &ruleError{code: "Outer.Code", name: "OuterError", resultType: "Outer"}
	inner := &ruleError{code: "Inner.Code", name: "InnerError", resultType: "Inner", retryable: ptr(true)}
	for name, c := range map[string]struct {
		err  error
		want eventbus.ErrorTraits
	}{
		"nil":     {nil, eventbus.ErrorTraits{}},
		"nothing": {errBroken, eventbus.ErrorTraits{Names: []string{"errorString"}, ResultType: "error"}},
		"all": {inner, eventbus.ErrorTraits{
			Code: "Inner.Code", Names: []string{"InnerError"}, ResultType: "Inner", Retryable: ptr(true),
		}},
		"the outermost counts, for each": {
			&ruleError{code: "Outer.Code", inner: inner},
			eventbus.ErrorTraits{Code: "Outer.Code", Names: []string{"ruleError", "InnerError"}, ResultType: "Inner", Retryable: ptr(true)},
		},
		"wrapped": {
			fmt.Errorf("a: %w", fmt.Errorf("b: %w", inner)),
			eventbus.ErrorTraits{Code: "Inner.Code", Names: []string{"wrapError", "wrapError", "InnerError"}, ResultType: "Inner", Retryable: ptr(true)},
		},
		"joined, the first first": {
			errors.Join(errBroken, nil, outer, inner),
			eventbus.ErrorTraits{Code: "Outer.Code", Names: []string{"joinError", "errorString", "OuterError", "InnerError"}, ResultType: "Outer", Retryable: ptr(true)},
		},
		"what steers has no name": {
			eventbus.Permanent(eventbus.RetryAfter(inner, time.Second)),
			eventbus.ErrorTraits{Code: "Inner.Code", Names: []string{"InnerError"}, ResultType: "Inner", Retryable: ptr(true)},
		},
		"not retryable": {flagError(false), eventbus.ErrorTraits{Names: []string{"flagError"}, ResultType: "error", Retryable: ptr(false)}},
		"a struct":      {ValueError{nil}, eventbus.ErrorTraits{Names: []string{"ValueError"}, ResultType: "error"}},
		"a generic one": {&genericError[net.OpError]{}, eventbus.ErrorTraits{Names: []string{"genericError"}, ResultType: "error"}},
		"by As":         {disguisedError{outer}, eventbus.ErrorTraits{Code: "Outer.Code", Names: []string{"disguisedError"}, ResultType: "error"}},
		"a timeout":     {&eventbus.TimeoutError{}, eventbus.ErrorTraits{Names: []string{"SlowError"}, ResultType: "timeout"}},
		"a deadline":    {context.DeadlineExceeded, eventbus.ErrorTraits{Names: []string{"SlowError"}, ResultType: "timeout"}},
		"a cancellation": {
			fmt.Errorf("asking: %w", context.Canceled),
			eventbus.ErrorTraits{Names: []string{"wrapError", "errorString"}, ResultType: "cancellation"},
		},
		"a panic": {&eventbus.PanicError{Value: inner}, eventbus.ErrorTraits{
			Code: "Inner.Code", Names: []string{"PanicError", "InnerError"}, ResultType: "Inner", Retryable: ptr(true),
		}},
		// Neither the wrapper nor what it wraps takes over the other's name.
		"registered": {
			fmt.Errorf("dialing: %w", &net.OpError{Err: &fs.PathError{Err: fs.ErrNotExist}}),
			eventbus.ErrorTraits{Names: []string{"wrapError", "ConnectionError", "PathError", "MissingError"}, ResultType: "error"},
		},
		"a wrapped sentinel": {
			func() error { _, err := emptyFS{}.Open("missing"); return err }(),
			eventbus.ErrorTraits{Names: []string{"PathError", "MissingError"}, ResultType: "error"},
		},
	} {
		require.Equal(t, c.want, bus.ErrorTraits(c.err), name)
	}
	var nobody *eventbus.Bus
	require.Equal(t, []string{"errorString"}, nobody.ErrorTraits(errBroken).Names)
}

type manyErrors []error

func (manyErrors) Error() string { return "many" }

func TestP7_RegisteredNames(t *testing.T) {
	for says, opt := range map[string]eventbus.Option{
		`WithErrorName(nil)`:         eventbus.WithErrorName(nil, "X"),
		`WithErrorName("")`:          eventbus.WithErrorName(errBroken, ""),
		`WithErrorName("a\nb")`:      eventbus.WithErrorName(errBroken, "a\nb"),
		`WithErrorName("\xff")`:      eventbus.WithErrorName(errBroken, "\xff"),
		`WithErrorTypeName("")`:      eventbus.WithErrorTypeName[*net.OpError](""),
		`WithErrorTypeName("xxxxxxx`: eventbus.WithErrorTypeName[*net.OpError](strings.Repeat("x", 256)),
	} {
		_, err := eventbus.New(opt)
		require.ErrorContains(t, err, says)
		var offence *eventbus.OptionError
		require.ErrorAs(t, err, &offence)
		require.NotEmpty(t, offence.Reason)
	}
	// Targets that cannot be compared are none.
	bus, _ := newBus(t, eventbus.WithErrorName(manyErrors{errBroken}, "Many"), eventbus.WithErrorName(errBroken, "First"), eventbus.WithErrorName(errBroken, "Second"))
	require.Equal(t, []string{"manyErrors"}, bus.ErrorTraits(manyErrors{errBroken}).Names)
	require.Equal(t, []string{"First"}, bus.ErrorTraits(errBroken).Names)
}

// The names of a random tree of errors are those of its nodes, the outermost first,
// and the lists decide by them.
func TestP7_NamesOfAnyTree(t *testing.T) {
	names := []string{"A", "B", "C", "D"}
	var tree func(t *rapid.T, depth int) ([]string, error)
	tree = func(t *rapid.T, depth int) ([]string, error) {
		name := rapid.SampledFrom(names).Draw(t, "name")
		e, all := &ruleError{name: name}, []string{name}
		var joined []error
		if depth > 0 {
			for range rapid.IntRange(0, 3).Draw(t, "children") {
				below, child := tree(t, depth-1)
				joined, all = append(joined, child), append(all, below...)
			}
		}
		if len(joined) == 1 {
			e.inner = joined[0]
		} else if len(joined) > 1 {
			e.inner = errors.Join(joined...)
			all = slices.Insert(all, 1, "joinError")
		}
		return all, e
	}
	bus, _ := newBus(t)
	rapid.Check(t, func(t *rapid.T) {
		want, err := tree(t, 3)
		if got := bus.ErrorTraits(err).Names; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}
