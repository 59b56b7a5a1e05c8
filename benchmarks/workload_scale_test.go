package benchmarks

import (
	"context"
	"fmt"
	"testing"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/benchmarks/plan"
)

// BenchmarkNonMatching is publishing until handled beside subscriptions that do not
// match.
func BenchmarkNonMatching(b *testing.B) {
	run(b, "NonMatching", func(b *testing.B, kase, rival string) {
		const topic = "order.placed"
		type made struct {
			system
			*tally
		}
		m := keep(b.Name(), func() made {
			t := newTally()
			subscriptions := same(1, topic, t.handle)
			for i := range number(b, kase) {
				subscriptions = append(subscriptions, subscription{fmt.Sprintf("service%d.started", i), t.handle})
			}
			return made{systems[rival](b, setup{subscriptions: subscriptions}), t}
		})
		publish := m.publisher(topic)
		m.drive(warmUp(b.N), 1, 1, m.system, publish)
		measure(b, func() { m.drive(b.N, 1, 1, m.system, publish) })
	})
}

// BenchmarkBacklog is publishing a number of events while the only worker is busy
// with another one, and letting it handle them then.
func BenchmarkBacklog(b *testing.B) {
	run(b, "Backlog", func(b *testing.B, kase, rival string) {
		queued := number(b, kase)
		t := newTally()
		release := make(chan struct{})
		busy := func() { <-release }
		var publish, block func()
		var end func()
		x := newNote(1)
		if rival == plan.Us {
			publish, block, end = backlogOfEventbus(queued, x, t, busy)
		} else {
			publish, block, end = backlogOfChannel(queued, x, t, busy)
		}
		fill := func(n int) {
			t.target.Store(t.done.Load() + int64(n))
			block()
			for range n {
				publish()
			}
			release <- struct{}{}
			<-t.all
		}
		fill(min(queued, b.N))
		measure(b, func() {
			for done := 0; done < b.N; done += queued {
				fill(min(queued, b.N-done))
			}
		})
		end()
	})
}

func backlogOfEventbus(queued int, x *note, t *tally, busy func()) (publish, block, end func()) {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(queued+1))
	check(err)
	_, err = bus.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error { return t.handle(e.Payload.(*note).n) })
	check(err)
	_, err = bus.Subscribe("block.*", func(context.Context, eventbus.Event) error {
		busy()
		return nil
	})
	check(err)
	check(bus.Start(ctx))
	to := func(topic string) func() {
		return func() {
			_, err := bus.Publish(ctx, topic, x)
			check(err)
		}
	}
	return to("order.placed"), to("block.worker"), func() { check(bus.Shutdown(ctx)) }
}

func backlogOfChannel(queued int, x *note, t *tally, busy func()) (publish, block, end func()) {
	events := make(chan eventbus.Event, queued+1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range events {
			if e.Payload == nil {
				busy()
				continue
			}
			check(t.handle(e.Payload.(*note).n))
		}
	}()
	return func() { events <- eventbus.Event{Type: "order.placed", Payload: x} },
		func() { events <- eventbus.Event{Type: "block.worker"} },
		func() {
			close(events)
			<-ended
		}
}
