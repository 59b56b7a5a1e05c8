package mwl

import "context"

// ExecuteOption is an option of [Definition.Execute].
type ExecuteOption func(*request)

type request struct {
	arguments, platform map[string]any
	id                  string
}

// WithArguments supplies the root Flow's parameters.
func WithArguments(arguments map[string]any) ExecuteOption {
	return func(r *request) { r.arguments = arguments }
}

// WithExecutionID sets execution.id; "" and the default is a random one.
func WithExecutionID(id string) ExecuteOption {
	return func(r *request) { r.id = id }
}

// WithPlatform sets the members of execution.platform.
func WithPlatform(members map[string]any) ExecuteOption {
	return func(r *request) { r.platform = members }
}

// Execute runs the definition and returns its one Result.
func (d *Definition) Execute(ctx context.Context, input any, options ...ExecuteOption) Result {
	panic("skeleton")
}
