package mwl

import (
	"context"
	"fmt"
	"strconv"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// HandlerOption is an option of [Definition.Handler] and [Definition.Subscribe].
type HandlerOption func(*flowHandler) error

// MapInput computes the input of an execution from its event. Without it, the input
// is the event's payload. Use it for payloads that the bus's codec cannot decode
// without their Go type, and for numbers that the input refuses. An error of the
// function fails the attempt.
func MapInput(input func(ctx context.Context, e eventbus.Event) (any, error)) HandlerOption {
	return func(h *flowHandler) error {
		if input == nil {
			return nilFunction("MapInput")
		}
		h.input = input
		return nil
	}
}

// MapArguments computes the root Flow's arguments from the event. They are validated like the arguments of
// [WithArguments]. Without it there are none. An error of the function fails the attempt.
func MapArguments(arguments func(e eventbus.Event) (map[string]any, error)) HandlerOption {
	return func(h *flowHandler) error {
		if arguments == nil {
			return nilFunction("MapArguments")
		}
		h.arguments = arguments
		return nil
	}
}

// OnResult calls a function with the value of each successful execution, before the
// handler returns. An error of the function fails the attempt: the next attempt runs
// the definition again.
func OnResult(take func(ctx context.Context, e eventbus.Event, value any) error) HandlerOption {
	return func(h *flowHandler) error {
		if take == nil {
			return nilFunction("OnResult")
		}
		h.onResult = take
		return nil
	}
}

// RetryDefinitionErrors makes the bus retry deterministic failures, as listed at [ExecutionError.Retryable]. Use it if
// they depend on the answers of a provider.
func RetryDefinitionErrors() HandlerOption {
	return func(h *flowHandler) error {
		h.retryDefinitionErrors = true
		return nil
	}
}

// WithExecuteOptions passes options to each execution. The members of a [WithPlatform]
// are beside event, which is the handler's. The handler sets the execution's id and,
// with [MapArguments], the arguments: options that set these are refused.
func WithExecuteOptions(options ...ExecuteOption) HandlerOption {
	return func(h *flowHandler) error {
		var r request
		for i, option := range options {
			if option == nil {
				return &OptionError{"WithExecuteOptions", fmt.Sprintf("option %d is nil; leave it out", i+1)}
			}
			option(&r)
		}
		_, event := r.platform["event"]
		switch {
		case r.id != "":
			return &OptionError{"WithExecuteOptions", "WithExecutionID has no effect on a handler: the id is that of the delivery; leave it out"}
		case r.arguments != nil:
			return &OptionError{"WithExecuteOptions", "WithArguments has no effect on a handler; use MapArguments"}
		case event:
			return &OptionError{"WithExecuteOptions", "WithPlatform has the member event, which is the handler's; rename it"}
		}
		h.execute = append(h.execute, options...)
		return nil
	}
}

func nilFunction(option string) error {
	return &OptionError{option, "the function is nil; pass one, or leave the option out"}
}

// flowHandler runs a definition for each event.
type flowHandler struct {
	definition            *Definition
	input                 func(ctx context.Context, e eventbus.Event) (any, error)
	arguments             func(e eventbus.Event) (map[string]any, error)
	onResult              func(ctx context.Context, e eventbus.Event, value any) error
	retryDefinitionErrors bool
	execute               []ExecuteOption
}

// Handler returns a handler that runs the definition once for each delivery.
//
// The input is the event's payload, decoded if the bus has a store: any Go value with a JSON form. A number with digits
// that a float64 does not keep, such as 9007199254740993 or 1e400, is rejected, in memory and with a store. The
// execution then fails with [CodeParameterValidationFailed]. Use a string for such a number. Expressions read the
// delivery as execution.platform.event: id, type, time, subscription, attempt (1 for the first), replays, metadata (an
// object of strings), and key, which is absent if the event has none. execution.id is <event
// id>/<subscription>/<attempt>; after a replay, /replay-<number> follows.
//
// The handler's context is the execution's. At the subscription's timeout and when Shutdown's context ends, the
// execution is cancelled, and Finally runs for as long as [Limits] allow. At that time the bus has abandoned the
// handler: it ignores the Result, and a retry may begin while the cleanup runs.
//
// The handler returns nil if the execution succeeds, and an [*ExecutionError] if it
// fails. The error of Handler is an [*OptionError].
func (d *Definition) Handler(options ...HandlerOption) (eventbus.Handler, error) {
	h := &flowHandler{definition: d, input: payloadOf}
	for i, option := range options {
		if option == nil {
			return nil, &OptionError{"Handler", fmt.Sprintf("option %d is nil; leave it out", i+1)}
		}
		if err := option(h); err != nil {
			return nil, err
		}
	}
	return h.handle, nil
}

// payloadOf is the payload of an event. The codec of the event's bus decodes it.
func payloadOf(ctx context.Context, e eventbus.Event) (payload any, err error) {
	if _, encoded := e.Payload.(eventbus.EncodedPayload); !encoded {
		return e.Payload, nil
	}
	err = eventbus.Typed(func(_ context.Context, decoded any) error {
		payload = decoded
		return nil
	})(ctx, e)
	return payload, err
}

func (h *flowHandler) handle(ctx context.Context, e eventbus.Event) error {
	input, err := h.input(ctx, e)
	if err != nil {
		return fmt.Errorf("mwl: input of the execution: %w", err)
	}
	delivery, _ := eventbus.FromContext(ctx) // zero if no bus calls the handler
	delivery.Event = e
	var arguments map[string]any
	if h.arguments != nil {
		if arguments, err = h.arguments(e); err != nil {
			return fmt.Errorf("mwl: arguments of the execution: %w", err)
		}
	}
	own := func(r *request) {
		r.id, r.arguments = executionID(&delivery), arguments
		r.delivery, r.withoutValue = &delivery, h.onResult == nil
	}
	result := h.definition.Execute(&publishingContext{Context: ctx}, input, append(h.execute[:len(h.execute):len(h.execute)], own)...)
	if result.Failure != nil {
		return &ExecutionError{
			Failure:       result.Failure,
			deterministic: !h.retryDefinitionErrors && isDeterministic(result.Failure, result.exceeded),
		}
	}
	if h.onResult == nil {
		return nil
	}
	return h.onResult(ctx, e, result.Value)
}

// executionID is the id of the execution for a delivery.
func executionID(d *eventbus.Delivery) string {
	id := d.Event.ID.String() + "/" + d.Subscription + "/" + strconv.Itoa(d.Attempt)
	if d.Replays > 0 {
		id += "/replay-" + strconv.Itoa(d.Replays)
	}
	return id
}

// addEvent adds the delivery to execution.platform, which nothing has read.
func (x *execution) addEvent() {
	if x.delivery == nil {
		return
	}
	e := &x.delivery.Event
	metadata := make(map[string]any, e.Metadata.Len())
	for name, v := range e.Metadata.All() {
		metadata[name] = v
	}
	event := map[string]any{
		"id":           e.ID.String(),
		"type":         e.Type,
		"time":         temporal.FormatInstant(e.Time),
		"subscription": x.delivery.Subscription,
		"attempt":      float64(x.delivery.Attempt),
		"replays":      float64(x.delivery.Replays),
		"metadata":     metadata,
	}
	if e.Key != "" {
		event["key"] = e.Key
	}
	x.platform["event"] = event
}
