// Typed shows handlers that take the type of the payload: which payloads they accept, and what becomes of the others.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"

	"github.com/surebus/eventbus"
)

type orderPlaced struct {
	ID    string
	Cents int
}

func main() {
	fmt.Println("This program publishes three payloads for a handler of the type orderPlaced.")
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithSlog(slog.DiscardHandler)) // the program prints the failure itself
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, o orderPlaced) error {
		d, _ := eventbus.FromContext(ctx) // the event, the attempt and the subscription
		fmt.Printf("  %s got %s for %d cents, of the event %s\n", d.Subscription, o.ID, o.Cents, d.Event.Type)
		return nil
	}), eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, payload := range []any{
		orderPlaced{"o-17", 4200},
		&orderPlaced{"o-18", 100}, // Typed accepts a pointer, too
		"o-19",
	} {
		fmt.Printf("\n%T:\n", payload)
		_, err := bus.PublishAndWait(ctx, "order.placed", payload)
		var mismatch *eventbus.PayloadTypeError
		switch {
		case errors.As(err, &mismatch):
			fmt.Println("  a dead letter, without a retry:", mismatch)
		case err != nil:
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("\nOK: the handler got the value and the pointer. A topic (eventbus.NewTopic) lets the compiler find the string.")
}
