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
