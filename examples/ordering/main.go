// Ordering shows events with a key: those of one order are handled strictly one
// after another, retries included, and the orders beside each other.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.BaseDelay(50 * time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	history := make(map[string][]string)
	var all []string
	_, err = bus.Subscribe("order.*", func(ctx context.Context, e eventbus.Event) error {
		// The first order's payment fails at first: what comes after it waits.
		if d, _ := eventbus.FromContext(ctx); e.Key == "o-1" && e.Type == "order.paid" && d.Attempt == 1 {
			return errors.New("the bank does not answer")
		}
		mu.Lock()
		defer mu.Unlock()
		history[e.Key] = append(history[e.Key], e.Type)
		all = append(all, e.Key+" "+e.Type)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	want := []string{"order.placed", "order.paid", "order.shipped"}
	for _, eventType := range want {
		for _, order := range []string{"o-1", "o-2", "o-3"} {
			if _, err := bus.Publish(ctx, eventType, nil, eventbus.Key(order)); err != nil {
				log.Fatal(err)
			}
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	for _, line := range all {
		fmt.Println(line)
	}
	for order, types := range history {
		if !slices.Equal(types, want) {
			log.Fatalf("%s came in the order %s", order, types)
		}
	}
	fmt.Println("each order in its own order; o-1's retry held up nobody else")
}
