// Retry shows how an event with several subscriptions is retried: under one policy, merged from those of its subscriptions, and
// from the subscription that failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	fmt.Println("This program publishes an event with three subscriptions, of which the second one fails three times.")
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.BaseDelay(20*time.Millisecond), eventbus.NoJitter),
		eventbus.WithSlog(slog.DiscardHandler)) // the program prints the failures itself
	if err != nil {
		log.Fatal(err)
	}

	// An event visits its subscriptions in the order of these calls.
	subscribe := func(name, pattern string, handle eventbus.Handler, opts ...eventbus.SubscribeOption) {
		if _, err := bus.Subscribe(pattern, handle, append(opts, eventbus.Named(name))...); err != nil {
			log.Fatal(err)
		}
	}
	stockRuns := 0
	subscribe("stock", "order.placed", func(ctx context.Context, _ eventbus.Event) error {
		stockRuns++
		d, _ := eventbus.FromContext(ctx)
		fmt.Printf("  attempt %d, stock: reserved\n", d.Attempt)
		return nil
	})
	subscribe("billing", "order.*", func(ctx context.Context, _ eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		if d.Attempt < 4 {
			fmt.Printf("  attempt %d, billing: the bank does not answer\n", d.Attempt)
			return errors.New("the bank does not answer")
		}
		fmt.Printf("  attempt %d, billing: charged\n", d.Attempt)
		return nil
	}, eventbus.Retry(eventbus.MaxRetries(5)))
	subscribe("mail", "{order,parcel}.*", func(ctx context.Context, _ eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		fmt.Printf("  attempt %d, mail: sent\n", d.Attempt)
		return nil
	}, eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(10*time.Millisecond)))

	// MaxRetries is the larger one of 5 and 1, and BaseDelay the smaller one. The bus has the other values.
	fmt.Printf("\n== The merged policy, as bus.Explain prints it\n%s", bus.Explain("order.placed"))

	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("\n== order.placed: each attempt starts at the subscription that failed")
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("\n== refund.asked: a permanent error has no retry")
	subscribe("refunds", "refund.asked", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("the amount is negative"))
	})
	_, err = bus.PublishAndWait(ctx, "refund.asked", -5)
	var died *eventbus.DeliveryError
	if !errors.As(err, &died) {
		log.Fatalf("want a dead letter, got %v", err)
	}
	letter := died.Letters[0]
	fmt.Printf("  a dead letter of %s after attempt %d: %s\n", letter.Subscription, letter.Attempts, letter.Failures[0].Error)

	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("\nOK: order.placed was %s after %d attempts, of which stock saw %d\n", result.Outcome, result.Attempts, stockRuns)
}
