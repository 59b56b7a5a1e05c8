package schema

// Skeleton of the package until the branch wip-mwlcel is merged: delete this file then.

type (
	Schema    struct{}
	Violation struct{}
)

var Empty *Schema

func Compile(doc any) (*Schema, error)                             { return nil, nil }
func (s *Schema) Validate(map[string]any) *Violation               { return nil }
func (s *Schema) Defaults() map[string]any                         { return nil }
func (s *Schema) Bind(map[string]any) (map[string]any, *Violation) { return nil, nil }
func (v *Violation) Message() string                               { return "" }
func (v *Violation) Details() map[string]any                       { return nil }

type Error struct{ Pointer, Text string }

func (e *Error) Error() string { return e.Text }
