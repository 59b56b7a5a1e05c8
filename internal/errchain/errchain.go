// Package errchain walks error trees that it does not trust.
//
// The methods of an error are user code: Unwrap may return the error itself, or a list that
// contains it, and any method may panic. Every walk visits at most MaxNodes errors, to a
// depth of MaxDepth. A panic ends the branch in which it occurs. Otherwise the results are
// those of package errors: the same pre-order, and the same use of the methods Is and As.
package errchain

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
)

const (
	// MaxNodes is the maximum number of errors that a walk visits.
	MaxNodes = 1000
	// MaxDepth is the maximum depth of a walk.
	MaxDepth = 100
)

// Each calls visit with the errors of a tree until visit returns true, and reports whether
// it did.
func Each(err error, visit func(error) bool) bool {
	w := walk{visit: visit, left: MaxNodes}
	return w.down(err, MaxDepth)
}

type walk struct {
	visit func(error) bool
	left  int
}

func (w *walk) down(err error, depth int) bool {
	for ; err != nil && depth > 0 && w.left > 0; depth-- {
		w.left--
		if w.visit(err) {
			return true
		}
		joined, inner := step(err)
		for _, e := range joined {
			if w.left == 0 {
				return false
			}
			if w.down(e, depth-1) {
				return true
			}
		}
		err = inner
	}
	return false
}

// step returns the errors that an error wraps.
func step(err error) (joined []error, inner error) {
	defer func() {
		if recover() != nil {
			joined, inner = nil, nil
		}
	}()
	switch e := err.(type) { //nolint:errorlint // one step of the chain
	case interface{ Unwrap() error }:
		inner = e.Unwrap()
	case interface{ Unwrap() []error }:
		joined = e.Unwrap()
	}
	return joined, inner
}

// Wraps reports whether an error may have others in its tree, or represent another one
// (As).
func Wraps(err error) bool {
	switch err.(type) { //nolint:errorlint // the methods of this error only
	case interface{ Unwrap() error }, interface{ Unwrap() []error }, interface{ As(target any) bool }:
		return true
	}
	return false
}

// Is reports whether an error of the tree matches target, as errors.Is does.
func Is(err, target error) bool {
	if err == nil || target == nil {
		return err == target //nolint:errorlint // nil matches nil
	}
	canCompare := reflect.TypeOf(target).Comparable()
	return Each(err, func(e error) bool { return isOne(e, target, canCompare) })
}

func isOne(err, target error, canCompare bool) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	if canCompare && err == target { //nolint:errorlint // one step of the chain
		return true
	}
	e, ok := err.(interface{ Is(error) bool })
	return ok && e.Is(target)
}

// As returns the first error of the tree that is an E or represents one, as errors.As does.
func As[E any](err error) (found E, ok bool) {
	ok = Each(err, func(e error) bool {
		one, is := asOne[E](e)
		if is {
			found = one
		}
		return is
	})
	return found, ok
}

func asOne[E any](err error) (found E, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	if found, ok = err.(E); ok {
		return found, true
	}
	e, has := err.(interface{ As(any) bool })
	return found, has && e.As(&found)
}

// AsType reports whether As finds an error for a target of this type.
func AsType(err error, target reflect.Type) bool {
	return Each(err, func(e error) bool { return asOneType(e, target) })
}

func asOneType(err error, target reflect.Type) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	if reflect.TypeOf(err).AssignableTo(target) {
		return true
	}
	e, has := err.(interface{ As(any) bool })
	return has && e.As(reflect.New(target).Interface())
}

// Ask calls ask with the errors of a tree that are an A or represent one, until ask returns
// true, and reports whether it did.
func Ask[A any](err error, ask func(A) bool) bool {
	return Each(err, func(e error) bool { return AskOne(e, ask) })
}

// AskOne is Ask for one error, without the errors that it wraps.
func AskOne[A any](err error, ask func(A) bool) (answered bool) {
	defer func() {
		if recover() != nil {
			answered = false
		}
	}()
	found, ok := asOne[A](err)
	return ok && ask(found)
}

// IsOne is Is for one error, without the errors that it wraps. Neither argument may be nil.
func IsOne(err, target error) bool { return isOne(err, target, reflect.TypeOf(target).Comparable()) }

// TypeName returns the name of an error's type without package, pointers and type arguments.
func TypeName(err error) string {
	t := reflect.TypeOf(err)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(t.Name(), "[")
	return name
}

// wrappers are the types of the standard library that only wrap errors.
var wrappers = []reflect.Type{
	reflect.TypeOf(fmt.Errorf("%w", fs.ErrExist)),
	reflect.TypeOf(fmt.Errorf("%w %w", fs.ErrExist, fs.ErrExist)),
	reflect.TypeOf(errors.Join(fs.ErrExist)),
}

// Class returns the type of an error, or of the first error in the wrappers of fmt.Errorf and
// errors.Join. unwrap returns the error in a wrapper of the caller's, and nil for other errors. No
// method of another type is called.
func Class(err error, unwrap func(error) error) string {
	for range MaxDepth {
		inner := unwrap(err)
		if inner == nil && slices.Contains(wrappers, reflect.TypeOf(err)) {
			var joined []error
			if joined, inner = step(err); len(joined) > 0 {
				inner = joined[0]
			}
		}
		if inner == nil {
			break
		}
		err = inner
	}
	return reflect.TypeOf(err).String()
}
