package eventbus

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/internal/route"
)

// Topic binds an event type to the Go type of its payloads: the compiler checks publishers and handlers.
//
//	var OrderPlaced = eventbus.NewTopic[Order]("order.placed")
//
// A topic belongs to no bus, has no state, and is safe for concurrent use. Declare topics as variables of a package:
// they are for the program's life. On one bus, a name has one Go type: Order and *Order are two. The first method that
// is called with a valid name fixes it, also if it fails for another reason. A method of a topic of the same name and
// another type returns a *TopicError and does nothing. A bus knows at most 10,000 names; a method with one more returns
// a *TopicError. Bus.Publish and Bus.Subscribe do not check topics.
//
// The name may be a pattern ("order.*"). Such a topic subscribes only.
type Topic[T any] struct {
	name string
}

// NewTopic returns a topic. It does not check the name: the methods do. Methods that publish return an *EventError for
// an invalid type. Subscribe returns a *PatternError for an invalid pattern.
func NewTopic[T any](name string) Topic[T] { return Topic[T]{name} }

// Name returns the event type, or the pattern, that was passed to NewTopic.
func (t Topic[T]) Name() string { return t.name }

// Publish is Bus.Publish with the topic's event type. Errors: those of Bus.Publish, and *TopicError.
func (t Topic[T]) Publish(ctx context.Context, bus *Bus, payload T, opts ...PublishOption) (EventID, error) {
	if err := t.bind(bus, isType); err != nil {
		return EventID{}, fmt.Errorf("Publish(%q): %w", shorten(t.name), err)
	}
	return bus.Publish(ctx, t.name, payload, opts...)
}

// PublishAndWait is Bus.PublishAndWait with the topic's event type. Errors: those of Bus.PublishAndWait, and *TopicError.
func (t Topic[T]) PublishAndWait(ctx context.Context, bus *Bus, payload T, opts ...PublishOption) (Result, error) {
	if err := t.bind(bus, isType); err != nil {
		return Result{}, fmt.Errorf("PublishAndWait(%q): %w", shorten(t.name), err)
	}
	return bus.PublishAndWait(ctx, t.name, payload, opts...)
}

// PublishTx is Bus.PublishTx with the topic's event type. Errors: those of Bus.PublishTx, and *TopicError.
func (t Topic[T]) PublishTx(ctx context.Context, bus *Bus, tx any, payload T, opts ...PublishOption) (EventID, error) {
	if err := t.bind(bus, isType); err != nil {
		return EventID{}, fmt.Errorf("PublishTx(%q): %w", shorten(t.name), err)
	}
	return bus.PublishTx(ctx, tx, t.name, payload, opts...)
}

// Emit is Emit with the topic's event type. Errors: those of Emit, and *TopicError.
func (t Topic[T]) Emit(ctx context.Context, payload T, opts ...PublishOption) (EventID, error) {
	if c := callFrom(ctx); c != nil {
		if err := t.bind(c.bus(), isType); err != nil {
			return EventID{}, fmt.Errorf("Emit(%q): %w", shorten(t.name), err)
		}
	}
	return Emit(ctx, t.name, payload, opts...)
}

// Subscribe is Bus.Subscribe with the topic's name as the pattern and a Typed handler. The handler also receives
// payloads of other publishers, if they convert to a T. FromContext has the event. Errors: those of Bus.Subscribe, and
// *TopicError.
func (t Topic[T]) Subscribe(bus *Bus, handle func(ctx context.Context, payload T) error, opts ...SubscribeOption) (*Subscription, error) {
	if err := t.bind(bus, isPattern); err != nil {
		return nil, fmt.Errorf("Subscribe(%q): %w", shorten(t.name), err)
	}
	return bus.Subscribe(t.name, Typed(handle), slices.Concat(opts, []SubscribeOption{CallerSkip(1)})...)
}

// bind notes the Go type of the name at a bus, and returns an error for another one. Bus's method reports an unusable bus and
// an invalid name, which are not noted.
func (t Topic[T]) bind(bus *Bus, valid func(name string) bool) error {
	if !bus.usable() {
		return nil
	}
	return bus.topics.bind(t.name, reflect.TypeFor[T](), valid)
}

func isType(name string) bool { return route.CheckType(name) == nil }

func isPattern(name string) bool {
	_, offence := route.Parse(name)
	return offence == nil
}

// TopicError reports why a method of a Topic did nothing. It matches ErrInvalidTopic.
type TopicError struct {
	Topic  string // the name, shortened
	Type   string // the topic's Go type
	Reason string // the problem, and a valid value
}

// Error returns the text of the error.
func (e *TopicError) Error() string {
	return fmt.Sprintf("eventbus: invalid topic %q of %s: %s", e.Topic, e.Type, e.Reason)
}

// Is reports whether target is ErrInvalidTopic.
func (e *TopicError) Is(target error) bool { return target == ErrInvalidTopic }

// maxTopics bounds the topics of a bus.
const maxTopics = 10_000

// topicTypes has the Go type of each topic's name. The zero value has none.
type topicTypes struct {
	types sync.Map // string to reflect.Type; an entry never changes
	n     atomic.Int64
}

// bind adds a valid name, or compares its type.
func (t *topicTypes) bind(name string, is reflect.Type, valid func(name string) bool) error {
	if was, known := t.types.Load(name); known {
		return sameType(name, was, is)
	}
	if !valid(name) {
		return nil
	}
	if t.n.Add(1) > maxTopics {
		t.n.Add(-1)
		return &TopicError{Topic: shorten(name), Type: is.String(), Reason: fmt.Sprintf(
			"the bus has %d topics: topics are for the program's life; for names that are made at run time use Bus.Publish and Bus.Subscribe", maxTopics)}
	}
	was, known := t.types.LoadOrStore(name, is)
	if known {
		t.n.Add(-1)
	}
	return sameType(name, was, is)
}

func sameType(name string, was any, is reflect.Type) error {
	if was == is {
		return nil
	}
	return &TopicError{Topic: shorten(name), Type: is.String(), Reason: fmt.Sprintf(
		"this bus has it with %v: use one variable for the topic, or another name", was)}
}
