// Middleware shows functions around handlers: what is measured, checked or logged
// for every subscription is written once.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/surebus/eventbus"
)

// timed says how every call of every handler went.
func timed(next eventbus.Handler) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		began := time.Now()
		err := next(ctx, e)
		d, _ := eventbus.FromContext(ctx)
		quick := time.Since(began) < time.Second
		fmt.Printf("%-8s %s attempt %d: quick: %t, error: %v\n", d.Subscription, e.Type, d.Attempt, quick, err)
		return err
	}
}

// onlyFor lets through what belongs to a tenant; the others are handled by nobody
// being called.
func onlyFor(tenant string) eventbus.Middleware {
	return func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			if e.Metadata.Get("tenant") != tenant {
				return nil
			}
			return next(ctx, e)
		}
	}
}

func main() {
	ctx := context.Background()
	bus, err := eventbus.New(
		eventbus.WithMiddleware(timed), // around every subscription's
		eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond)),
	)
	if err != nil {
		log.Fatal(err)
	}
	failed := false
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		if !failed {
			failed = true
			return errors.New("try again")
		}
		return nil
	}, eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error {
		fmt.Println("a mail to acme about", e.Payload)
		return nil
	}, eventbus.Named("mail"), eventbus.Use(onlyFor("acme")))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, tenant := range []string{"acme", "other"} {
		if _, err := bus.PublishAndWait(ctx, "order.placed", "o-17", eventbus.Metadata("tenant", tenant)); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}
