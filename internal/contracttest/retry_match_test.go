package contracttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

func TestP7_EveryMemberMustMatch(t *testing.T) {
	busy := &ruleError{code: "Bank.Busy", resultType: "Declined", retryable: ptr(true)}
	all := eventbus.ErrorMatch{
		Codes: []string{"X", "Bank.*"}, Types: []string{"error", "Declined"}, Retryable: ptr(true),
		Is: []error{fs.ErrExist, busy}, As: []any{new(*fs.PathError), new(*ruleError)},
	}
	require.True(t, all.Matches(busy))
	require.True(t, all.Matches(fmt.Errorf("charging: %w", errors.Join(errBroken, busy))))
	for name, change := range map[string]func(*eventbus.ErrorMatch){
		"codes":     func(m *eventbus.ErrorMatch) { m.Codes = []string{"X", "Bank", "Bank.Busy.*"} },
		"types":     func(m *eventbus.ErrorMatch) { m.Types = []string{"error", "declined"} },
		"retryable": func(m *eventbus.ErrorMatch) { m.Retryable = ptr(false) },
		"is":        func(m *eventbus.ErrorMatch) { m.Is = []error{fs.ErrExist} },
		"as":        func(m *eventbus.ErrorMatch) { m.As = []any{new(*fs.PathError)} },
	} {
		m := all
		change(&m)
		require.False(t, m.Matches(busy), name)
	}
	require.False(t, all.Matches(nil))
	require.False(t, eventbus.ErrorMatch{}.Matches(busy), "says nothing")
	require.False(t, codes("*").Matches(nil))
	require.True(t, eventbus.ErrorMatch{As: []any{new(interface{ Code() string })}}.Matches(busy), "an interface")
	require.False(t, eventbus.ErrorMatch{As: []any{nil, 5, new(int)}, Is: []error{nil}}.Matches(busy), "no targets at all")
}

func TestP7_WhoSaysNothingMatchesNeither(t *testing.T) {
	for _, err := range []error{errBroken, &ruleError{}, flagError(true), flagError(false), &ruleError{inner: flagError(true)}} {
		said := (&eventbus.Bus{}).ErrorTraits(err).Retryable
		for _, asked := range []bool{true, false} {
			want := said != nil && *said == asked
			require.Equal(t, want, eventbus.ErrorMatch{Retryable: &asked}.Matches(err), "%#v, %t", err, asked)
		}
	}
	require.False(t, eventbus.ErrorMatch{Retryable: ptr(false)}.Matches(errBroken))
	require.False(t, eventbus.ErrorMatch{Retryable: ptr(true)}.Matches(errBroken))
}

func TestP7_CodePatterns(t *testing.T) {
	for pattern, want := range map[string]map[string]bool{
		"*":         {"": true, "A": true, "A.B": true},
		"A":         {"": false, "A": true, "A.B": false, "a": false},
		"A.B":       {"": false, "A": false, "A.B": true, "A.B.C": false, "A.BC": false},
		"A.*":       {"": false, "A": false, "A.": false, "A.B": true, "A.B.C": true, "AB.C": false, "B.A.C": false},
		"A.B.*":     {"A.B": false, "A.B.C": true, "A.BC": false},
		"Ä.\x00x.*": {"Ä.\x00x.y": true},
	} {
		for code, matches := range want {
			require.Equal(t, matches, codes(pattern).Matches(coded(code)), "%s, %q", pattern, code)
		}
		_, err := eventbus.New(eventbus.WithRetryRules(onCodes(1, pattern)))
		require.NoError(t, err, pattern)
	}
	require.True(t, codes("*").Matches(errBroken))
	require.False(t, codes("A").Matches(errBroken))
	require.True(t, codes("B", "A").Matches(coded("A")), "any of them")
}

func FuzzErrorMatch_Codes(f *testing.F) {
	for _, seed := range []string{"*", "A.*", "A.B", "", "A..B", "A.*.B", "*.A", ".*", "A*"} {
		f.Add(seed, "A.B")
		f.Add(seed, "A")
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, pattern, code string) {
		_, err := eventbus.New(eventbus.WithRetryRules(onCodes(1, pattern)))
		prefix, open := strings.CutSuffix(pattern, ".*")
		valid := pattern == "*" || pattern != ""
		for _, segment := range strings.Split(prefix, ".") {
			valid = valid && (pattern == "*" || segment != "" && !strings.Contains(segment, "*"))
		}
		if valid != (err == nil) {
			t.Fatalf("%q: %v", pattern, err)
		}
		if err != nil {
			var offence *eventbus.OptionError
			require.ErrorAs(t, err, &offence)
			require.Equal(t, "WithRetryRules[0].Match.Codes[0]", offence.Option)
			return
		}
		for _, code := range []string{code, pattern, prefix, prefix + "." + code, prefix + code} {
			want := pattern == "*"
			if of, in := strings.Split(prefix, "."), strings.Split(code, "."); code != "" && pattern != "*" {
				want = len(in) >= len(of) && fmt.Sprintf("%q", in[:len(of)]) == fmt.Sprintf("%q", of) &&
					(open && len(code) > len(prefix)+1 || !open && len(in) == len(of))
			}
			if got := codes(pattern).Matches(coded(code)); got != want {
				t.Fatalf("%q matches %q: %t", pattern, code, got)
			}
		}
	})
}

func TestP7_DelayOfARule(t *testing.T) {
	r := eventbus.RetryRule{BaseDelay: time.Second, BackoffMultiplier: 2, MaxDelay: 5 * time.Second}
	for attempt, seconds := range []int{0, 0, 1, 2, 4, 5, 5} {
		require.Equal(t, time.Duration(seconds)*time.Second, r.Delay(attempt))
	}
	require.Equal(t, time.Second, eventbus.RetryRule{BaseDelay: time.Second}.Delay(1_000_000), "a multiplier of 1, and no cap")
	require.Equal(t, time.Duration(math.MaxInt64), eventbus.RetryRule{BaseDelay: 1, BackoffMultiplier: 2}.Delay(1_000_000))
	require.Zero(t, eventbus.RetryRule{}.Delay(7))
}

type flagError bool

func (e flagError) Error() string   { return "flag" }
func (e flagError) Retryable() bool { return bool(e) }

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
