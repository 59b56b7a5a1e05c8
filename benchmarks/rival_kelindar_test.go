package benchmarks

import (
	"context"
	"testing"

	"github.com/kelindar/event"
)

// kelindarEvent has a number for a type, as the dispatcher wants it.
type kelindarEvent struct {
	typ uint32
	*note
}

func (e kelindarEvent) Type() uint32 { return e.typ }

func openKelindar(_ testing.TB, s setup) system {
	dispatcher := event.NewDispatcher()
	types := make(map[string]uint32)
	var cancels []context.CancelFunc
	for _, sub := range s.subscriptions {
		typ, known := types[sub.topic]
		if !known {
			typ = uint32(len(types) + 1)
			types[sub.topic] = typ
		}
		cancels = append(cancels, event.SubscribeTo(dispatcher, typ, func(e kelindarEvent) { check(sub.handle(e.n)) }))
	}
	return system{
		publisher: func(topic string) func(*note) {
			typ := types[topic]
			return func(x *note) { event.Publish(dispatcher, kelindarEvent{typ, x}) }
		},
		close: func() {
			for _, cancel := range cancels {
				cancel()
			}
			check(dispatcher.Close())
		},
	}
}
