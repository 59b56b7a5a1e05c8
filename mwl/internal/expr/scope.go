package expr

import (
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// Root is a set of binding roots: the names under which an expression reaches the state of the running workflow.
type Root uint16

// The binding roots.
const (
	Vars Root = 1 << iota
	Execution
	Frame
	Step
	Call
	Flow
	Provider
	Match
	Middleware
	Failure
)

// Everywhere holds the roots that every expression of a frame sees.
const Everywhere = Vars | Execution | Frame | Failure

var rootNames = [...]string{"vars", "execution", "frame", "step", "call", "flow", "provider", "match", "middleware", "failure"}

// rootOf returns the root of a name, or 0.
func rootOf(name string) Root {
	switch name {
	case "vars":
		return Vars
	case "execution":
		return Execution
	case "frame":
		return Frame
	case "step":
		return Step
	case "call":
		return Call
	case "flow":
		return Flow
	case "provider":
		return Provider
	case "match":
		return Match
	case "middleware":
		return Middleware
	case "failure":
		return Failure
	}
	return 0
}

// String lists the names of the roots in the set.
func (r Root) String() string {
	var names []string
	for i, name := range rootNames {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Scope is what one evaluation reads. It is asked on the goroutine that evaluates, and only for what the expression names.
type Scope interface {
	// Root returns what a root holds now: a value, or [Fields]. It is asked for one root at a time, one that was named to the compiler.
	// nil is null.
	Root(r Root) any
	// Now is the clock pin, the instant at which the construct was entered.
	Now() time.Time
	// Clock reads the clock, for wallTime().
	Clock() time.Time
}

// Fields is an object whose members are made when they are read. A member is a value or Fields again.
type Fields interface {
	// Field returns a member, and false for one that is not there now.
	Field(name string) (v any, ok bool)
	// FieldNames lists the members that are there now. It is asked only when the object is used as a whole.
	FieldNames() []string
}

// The names to which now() and wallTime() expand. No author can write them.
const (
	nowName  = "@now"
	wallName = "@wallTime"
)

// activation is a Scope as CEL sees it, restricted to the roots that the site has.
type activation struct {
	scope Scope
	roots Root
}

var activations = sync.Pool{New: func() any { return new(activation) }}

func (a *activation) ResolveName(name string) (any, bool) {
	if r := rootOf(name); r != 0 {
		if a.roots&r == 0 {
			return nil, false
		}
		v := a.scope.Root(r)
		if f, ok := v.(Fields); ok {
			return &object{f}, true
		}
		return v, true
	}
	switch name {
	case nowName:
		return types.Timestamp{Time: a.scope.Now().UTC()}, true
	case wallName:
		return types.Timestamp{Time: a.scope.Clock().UTC()}, true
	}
	return nil, false
}

func (a *activation) Parent() cel.Activation { return nil }
