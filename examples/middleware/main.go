// Middleware shows functions around handlers: one around every handler of the bus, and one around the handler of a subscription.
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

// timed prints how long each call of a handler took, and its error.
func timed(next eventbus.Handler) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		began := time.Now()
		err := next(ctx, e)
		d, _ := eventbus.FromContext(ctx)
		fmt.Printf("  timed: %-8s attempt %d took %v, error: %v\n", d.Subscription, d.Attempt, time.Since(began).Round(time.Microsecond), err)
		return err
	}
}

// onlyFor calls the handler for events of one tenant. For the others it returns nil, so the delivery succeeds.
func onlyFor(tenant string) eventbus.Middleware {
	return func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			if e.Metadata.Get("tenant") != tenant {
				fmt.Println("  onlyFor: no mail for the tenant", e.Metadata.Get("tenant"))
				return nil
			}
			return next(ctx, e)
		}
	}
}

func main() {
	fmt.Println("This program has a middleware around both of its subscriptions (timed), and one around mail (onlyFor).")
	ctx := context.Background()
	bus, err := eventbus.New(
		eventbus.WithMiddleware(timed), // around the handlers of all subscriptions
		eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond)),
		eventbus.WithSlog(slog.DiscardHandler), // timed prints the failure
	)
	if err != nil {
		log.Fatal(err)
	}
	failed, mails := false, 0
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		if !failed {
			failed = true
			return errors.New("the bank is busy")
		}
		return nil
	}, eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error {
		mails++
		fmt.Println("  mail: sent for", e.Payload)
		return nil
	}, eventbus.Named("mail"), eventbus.Use(onlyFor("acme"))) // inside timed
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, tenant := range []string{"acme", "globex"} {
		fmt.Printf("\n== order.placed of %s\n", tenant)
		if _, err := bus.PublishAndWait(ctx, "order.placed", "an order of "+tenant, eventbus.Metadata("tenant", tenant)); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	if mails != 1 {
		log.Fatalf("%d mails, want 1", mails)
	}
	fmt.Println("\nOK: timed saw every call, retries included, and only acme got a mail")
}
