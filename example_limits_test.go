package eventbus_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
)

// A concurrency limit protects a slow service. Deliveries beyond it wait in the subscription's line,
// without goroutines, and Shutdown waits for them.
func ExampleConcurrency() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	var running atomic.Int32
	render := func(context.Context, eventbus.Event) error {
		if n := running.Add(1); n > 2 {
			fmt.Println(n, "calls at once")
		}
		defer running.Add(-1)
		time.Sleep(time.Millisecond)
		return nil
	}
	if _, err = bus.Subscribe("report.requested", render, eventbus.Concurrency(2)); err != nil {
		log.Fatal(err)
	}
	if err = bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for range 20 {
		if _, err = bus.Publish(ctx, "report.requested", "monthly"); err != nil {
			log.Fatal(err)
		}
	}
	if err = bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("handled:", bus.Metrics().Ledger.Handled)
	// Output: handled: 20
}

// A lossy subscription drops deliveries instead of making publishers wait for room in its line.
// Metrics count the dropped deliveries.
func ExampleWhenFull() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	began, slow := make(chan struct{}), make(chan struct{})
	show := func(_ context.Context, e eventbus.Event) error {
		if e.Payload == 1.07 {
			close(began)
			<-slow
		}
		fmt.Println("EUR/USD", e.Payload)
		return nil
	}
	_, err = bus.Subscribe("price", show, eventbus.Concurrency(1), eventbus.LineCapacity(1), eventbus.DropNewestWhenFull)
	if err != nil {
		log.Fatal(err)
	}
	if err = bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	publish := func(price float64, opts ...eventbus.PublishOption) {
		if _, err := bus.Publish(ctx, "price", price, opts...); err != nil {
			log.Fatal(err)
		}
	}
	publish(1.07)
	<-began
	order := eventbus.Key("EUR/USD") // the next prices reach the line one after the other
	publish(1.08, order)             // waits in the line
	publish(1.09, order)             // finds it full
	result, err := bus.PublishAndWait(ctx, "price", 1.10, order)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Outcome)
	close(slow)
	if err = bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("dropped:", bus.Metrics().Ledger.Dropped)
	// Output:
	// dropped
	// EUR/USD 1.07
	// EUR/USD 1.08
	// dropped: 2
}

// While as many calls hang as MaxAbandoned allows, deliveries wait and spend no attempt. They go on when a
// call returns, or after Resume.
func ExampleMaxAbandoned() {
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	service := make(chan struct{}) // does not answer
	s, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		<-service
		return nil
	}, eventbus.Named("crm"), eventbus.Timeout(time.Millisecond), eventbus.MaxAbandoned(1), eventbus.Concurrency(1))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := bus.Publish(ctx, "order.placed", nil); err != nil {
			log.Fatal(err)
		}
	}
	for !bus.Metrics().Subscriptions[0].Hung {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("abandoned:", bus.Metrics().Subscriptions[0].Abandoned)
	close(service) // it answers again
	for bus.Metrics().Ledger.Handled < 3 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("hung:", bus.Metrics().Subscriptions[0].Hung, "dead letters:", bus.Metrics().DeadLetters, s.ID())
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// abandoned: 1
	// hung: false dead letters: 0 crm
}
