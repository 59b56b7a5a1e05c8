// Breaker shows the circuit of a subscription: while a service is down, the bus holds the deliveries instead of calling it. When
// the service is back, it gets all of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	fmt.Print("This program publishes 20 orders to a warehouse that is down, and then repairs it.\n\n")
	ctx := context.Background()
	bus, err := eventbus.New(
		eventbus.WithRetry(eventbus.MaxRetries(0)),
		eventbus.WithCircuit(eventbus.MinEvents(3), eventbus.OpenFor(100*time.Millisecond)),
		eventbus.WithSlog(slog.DiscardHandler), // the program prints what fails
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
	fmt.Printf("%-52s %-9s %5s %5s %9s\n", "", "circuit", "calls", "held", "delivered")
	state := func(when string) {
		m := bus.Metrics().Subscriptions[0]
		fmt.Printf("%-52s %-9s %5d %5d %9d\n", when, m.Circuit, calls.Load(), m.Held, delivered.Load())
	}

	state("before the first order")
	for i := range 20 {
		result, err := bus.PublishAndWait(ctx, "order.placed", i)
		var dead *eventbus.DeliveryError
		if err != nil && !errors.As(err, &dead) && !errors.Is(err, eventbus.ErrHeld) {
			log.Fatal(err)
		}
		if i == 2 || i == 19 {
			state(fmt.Sprintf("after %d orders; the last one: %s", i+1, result.Outcome))
		}
	}

	// The bus does not call the warehouse until the circuit lets one delivery probe.
	callsWhileDown := calls.Load()
	up.Store(true)
	for bus.Metrics().Held > 0 || bus.Metrics().RunningDispatches > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	state("after the repair: one probed, the others followed")

	// The orders whose calls failed are dead letters: the bus has MaxRetries(0).
	report, err := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{Subscription: warehouse.ID()})
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	state(fmt.Sprintf("after a replay of %d dead letters", report.Replayed))
	if delivered.Load() != 20 {
		log.Fatalf("%d of 20 orders were delivered", delivered.Load())
	}
	fmt.Printf("\nOK: the warehouse got %d calls while it was down, and all 20 orders in the end\n", callsWhileDown)
}
