// First is the smallest program with a bus: a handler fails once, and the bus retries it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/surebus/eventbus"
)

func main() {
	type Order struct{ ID string }
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", eventbus.Typed(func(ctx context.Context, o Order) error {
		d, _ := eventbus.FromContext(ctx)
		fmt.Printf("attempt %d: mail for %s (%s)\n", d.Attempt, o.ID, d.Event.Type)
		if d.Attempt == 1 {
			return errors.New("the mail server is busy") // the bus retries after about 1 s
		}
		return nil
	}), eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", Order{ID: "o-17"}); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil { // waits for the retry
		log.Fatal(err)
	}
	fmt.Println("OK: every accepted event is handled")
}
