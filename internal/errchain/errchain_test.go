package errchain_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/errchain"
)

// loop unwraps to itself, or to lists that contain it.
type loop struct{ joins int }

func (*loop) Error() string { return "loop" }

func (l *loop) Unwrap() []error {
	all := make([]error, l.joins)
	for i := range all {
		all[i] = l
	}
	return all
}

type self struct{}

func (self) Error() string   { return "self" }
func (s self) Unwrap() error { return s }

type panics struct{}

func (panics) Error() string { return "panics" }
func (panics) Unwrap() error { panic("Unwrap") }
func (panics) Is(error) bool { panic("Is") }
func (panics) As(any) bool   { panic("As") }

type coded int

func (c coded) Error() string { return fmt.Sprint(int(c)) }

func TestWalksOfErrorsThatContainThemselvesEnd(t *testing.T) {
	for _, err := range []error{self{}, &loop{joins: 1}, &loop{joins: 2}, &loop{joins: 100}, errors.Join(&loop{joins: 3}, self{})} {
		visited := 0
		require.False(t, errchain.Each(err, func(error) bool { visited++; return false }))
		require.LessOrEqual(t, visited, errchain.MaxNodes)
		require.False(t, errchain.Is(err, io.EOF))
		_, ok := errchain.As[coded](err)
		require.False(t, ok)
		require.False(t, errchain.AsType(err, reflect.TypeFor[coded]()))
	}
}

func TestDepthAndWidthAreBounded(t *testing.T) {
	deep := io.EOF
	for range 10_000 {
		deep = fmt.Errorf("%w", deep)
	}
	require.False(t, errchain.Is(deep, io.EOF))
	wide := make([]error, 100_000)
	for i := range wide {
		wide[i] = coded(i)
	}
	visited := 0
	errchain.Each(errors.Join(wide...), func(error) bool { visited++; return false })
	require.Equal(t, errchain.MaxNodes, visited)
}

func TestAMethodThatPanicsEndsItsBranch(t *testing.T) {
	err := errors.Join(panics{}, io.EOF)
	require.True(t, errchain.Is(err, io.EOF))
	require.True(t, errchain.Is(err, panics{}))
	_, ok := errchain.As[*fs.PathError](err)
	require.False(t, ok)
	require.False(t, errchain.AsType(err, reflect.TypeFor[*fs.PathError]()))
}

// Within the bounds the results are those of the package errors.
func TestResultsAreThoseOfErrors(t *testing.T) {
	targets := []error{io.EOF, coded(1), coded(2), &fs.PathError{Op: "x", Err: io.EOF}, nil}
	tree := rapid.Custom(func(t *rapid.T) error {
		var grow func(depth int) error
		grow = func(depth int) error {
			switch kind := rapid.IntRange(0, 6).Draw(t, "kind"); {
			case depth == 0 || kind < 3:
				return rapid.SampledFrom(targets[:4]).Draw(t, "leaf")
			case kind < 5:
				return fmt.Errorf("wrapped: %w", grow(depth-1))
			case kind == 5:
				return errors.Join(grow(depth-1), grow(depth-1))
			default:
				return &fs.PathError{Op: "op", Err: grow(depth - 1)}
			}
		}
		return grow(rapid.IntRange(0, 6).Draw(t, "depth"))
	})
	rapid.Check(t, func(t *rapid.T) {
		err := tree.Draw(t, "err")
		for _, target := range targets {
			if errchain.Is(err, target) != errors.Is(err, target) {
				t.Fatalf("Is(%v, %v)", err, target)
			}
		}
		var want coded
		got, ok := errchain.As[coded](err)
		if is := errors.As(err, &want); ok != is || got != want {
			t.Fatalf("As(%v): %v %v, want %v %v", err, got, ok, want, is)
		}
		var path *fs.PathError
		if errchain.AsType(err, reflect.TypeFor[*fs.PathError]()) != errors.As(err, &path) {
			t.Fatalf("AsType(%v)", err)
		}
	})
}

type answers string

func (a answers) Error() string { return string(a) }
func (a answers) Code() string  { return string(a) }

type codePanics struct{}

func (codePanics) Error() string { return "" }
func (codePanics) Code() string  { panic("no code") }

func TestAskStopsAtTheFirstAnswer(t *testing.T) {
	var asked []string
	ask := func(e interface{ Code() string }) bool {
		asked = append(asked, e.Code())
		return e.Code() == "b"
	}
	require.True(t, errchain.Ask(errors.Join(io.EOF, codePanics{}, answers("a"), fmt.Errorf("%w", answers("b")), answers("c")), ask))
	require.Equal(t, []string{"a", "b"}, asked)
	require.False(t, errchain.AskOne(fmt.Errorf("%w", answers("b")), ask), "only the error itself")
	require.False(t, errchain.AskOne(codePanics{}, ask))
}

type generic[T any] struct{ error }

func TestTypeName(t *testing.T) {
	for want, err := range map[string]error{
		"PathError": &fs.PathError{},
		"answers":   answers(""),
		"generic":   &generic[int]{},
	} {
		require.Equal(t, want, errchain.TypeName(err))
	}
}

type ours struct{ error }

func TestClassIsTheTypeInsideOfPlainWrappers(t *testing.T) {
	unwrap := func(err error) error {
		if o, ok := err.(ours); ok { //nolint:errorlint // this error is meant
			return o.error
		}
		return nil
	}
	path := &fs.PathError{Err: io.EOF}
	for _, err := range []error{
		path,
		fmt.Errorf("x: %w", path),
		fmt.Errorf("x: %w, %w", path, io.EOF),
		errors.Join(path, io.EOF),
		ours{path},
		ours{fmt.Errorf("x: %w", ours{path})},
	} {
		require.Equal(t, "*fs.PathError", errchain.Class(err, unwrap))
	}
	require.Equal(t, "*fmt.wrapError", errchain.Class(fmt.Errorf("%w", error(nil)), unwrap))
	require.Equal(t, "errchain_test.ours", errchain.Class(ours{}, unwrap))
	require.Equal(t, "*errchain_test.loop", errchain.Class(&loop{1}, unwrap), "its methods are not called")
}
