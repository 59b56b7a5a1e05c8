// Typed shows handlers that take the payload's type, and what becomes of a payload
// that is of another one.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/surebus/eventbus"
)

type orderPlaced struct {
	ID    string
	Cents int
}

func main() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, o orderPlaced) error {
		d, _ := eventbus.FromContext(ctx) // what else there is to know
		fmt.Printf("%s for %d cents, published %s\n", o.ID, o.Cents, d.Event.Type)
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
		&orderPlaced{"o-18", 100}, // a pointer serves, too
		"o-19",
	} {
		_, err := bus.PublishAndWait(ctx, "order.placed", payload)
		var mismatch *eventbus.PayloadTypeError
		switch {
		case errors.As(err, &mismatch):
			fmt.Println("dead-lettered at once:", mismatch)
		case err != nil:
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}
