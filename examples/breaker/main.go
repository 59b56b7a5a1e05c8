// Breaker shows a subscription's circuit: a service that does not answer is left
// alone, what it misses is held, and when it is back it gets all of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	ctx := context.Background()
	bus, err := eventbus.New(
		eventbus.WithRetry(eventbus.MaxRetries(0)),
		eventbus.WithCircuit(eventbus.MinEvents(3), eventbus.OpenFor(100*time.Millisecond)),
	)
	if err != nil {
		log.Fatal(err)
	}
	var up atomic.Bool
	var calls, delivered atomic.Int32
	warehouse, err := bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		calls.Add(1)
		if !up.Load() {
			return errors.New("the warehouse does not answer")
		}
		delivered.Add(1)
		return nil
	}, eventbus.Named("warehouse"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	state := func(when string) {
		m := bus.Metrics().Subscriptions[0]
		fmt.Printf("%-36s circuit %-9s called %2d, held %2d, delivered %2d\n", when, m.Circuit, calls.Load(), m.Held, delivered.Load())
	}

	state("at first")
	for i := range 20 {
		result, err := bus.PublishAndWait(ctx, "order.placed", i)
		var dead *eventbus.DeliveryError
		if err != nil && !errors.As(err, &dead) && !errors.Is(err, eventbus.ErrHeld) {
			log.Fatal(err)
		}
		if i == 2 || i == 19 {
			state(fmt.Sprintf("after %d events (the last was %s)", i+1, result.Outcome))
		}
	}

	// Nobody calls it again until the circuit lets the oldest one through, to probe.
	up.Store(true)
	for bus.Metrics().Held > 0 || bus.Metrics().RunningDispatches > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	state("when it was back")

	// The first three had been given up before the circuit opened.
	report, err := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{Subscription: warehouse.ID()})
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	state(fmt.Sprintf("after the replay of %d letters", report.Replayed))
}
