package expr

import (
	"context"
	"time"
)

// Skeleton of the package until the branch wip-mwlcel is merged: delete this file then.

type Root uint16

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

const Everywhere = Vars | Execution | Frame | Failure

type Limits struct {
	Length, Depth int
	Cost          uint64
	Message       int
}

type (
	Compiler struct{}
	Template struct{}
	Name     struct {
		Name     string
		Function bool
		Offset   int
		Message  string
	}
	Warning struct {
		Pointer string
		Name    Name
	}
	SyntaxError struct {
		Offset, Line, Column int
		Text                 string
	}
	Problem struct {
		Pointer string
		Err     *SyntaxError
		Source  string
	}
)

func (*SyntaxError) Error() string { return "" }

func NewCompiler(Limits) (*Compiler, error)                        { return nil, nil }
func (c *Compiler) Template(any, Root) (*Template, []Problem)      { return nil, nil }
func (t *Template) Names() []Warning                               { return nil }
func (t *Template) Literal() (any, bool)                           { return nil, false }
func (t *Template) Whole() bool                                    { return false }
func (t *Template) Eval(ctx context.Context, s Scope) (any, error) { return nil, nil }

type Scope interface {
	Root(r Root) any
	Now() time.Time
	Clock() time.Time
}

type Fields interface {
	Field(name string) (v any, ok bool)
	FieldNames() []string
}
