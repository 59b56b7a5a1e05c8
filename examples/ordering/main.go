// Ordering shows events with a key: the bus handles those of one order strictly one after another, retries included. The orders
// run beside each other.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	fmt.Print("This program publishes three events for each of three orders, with the order as the key. The payment of o-1 fails once.\n\n")
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.BaseDelay(50*time.Millisecond)),
		eventbus.WithSlog(slog.DiscardHandler)) // the program prints the failure itself
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex // guards the following
	history := make(map[string][]string)
	_, err = bus.Subscribe("order.*", func(ctx context.Context, e eventbus.Event) error {
		mu.Lock()
		defer mu.Unlock()
		// order.shipped of o-1 waits for the retry of order.paid.
		if d, _ := eventbus.FromContext(ctx); e.Key == "o-1" && e.Type == "order.paid" && d.Attempt == 1 {
			fmt.Println(e.Key, e.Type, "failed: the bank does not answer")
			return errors.New("the bank does not answer")
		}
		history[e.Key] = append(history[e.Key], e.Type)
		fmt.Println(e.Key, e.Type)
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
	fmt.Println("\nBy order:")
	for _, order := range []string{"o-1", "o-2", "o-3"} {
		fmt.Println(" ", order, strings.Join(history[order], ", "))
		if !slices.Equal(history[order], want) {
			log.Fatalf("%s has another order than it was published in", order)
		}
	}
	fmt.Println("\nOK: each order's events ran in the order of publication. The retry of o-1 delayed only o-1.")
}
