// Retry shows how an event that goes to several subscriptions is retried: under
// one policy, merged of what they ask for, and from the one that failed on.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.BaseDelay(20*time.Millisecond), eventbus.NoJitter))
	if err != nil {
		log.Fatal(err)
	}

	// Subscriptions are visited in the order in which they are made.
	subscribe := func(name, pattern string, handle eventbus.Handler, opts ...eventbus.SubscribeOption) {
		if _, err := bus.Subscribe(pattern, handle, append(opts, eventbus.Named(name))...); err != nil {
			log.Fatal(err)
		}
	}
	subscribe("stock", "order.placed", func(ctx context.Context, _ eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		fmt.Println("attempt", d.Attempt, "stock: reserved")
		return nil
	})
	subscribe("billing", "order.*", func(ctx context.Context, _ eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		if d.Attempt < 4 {
			fmt.Println("attempt", d.Attempt, "billing: the bank does not answer")
			return errors.New("the bank does not answer")
		}
		fmt.Println("attempt", d.Attempt, "billing: charged")
		return nil
	}, eventbus.Retry(eventbus.MaxRetries(5)))
	subscribe("mail", "**", func(ctx context.Context, _ eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		fmt.Println("attempt", d.Attempt, "mail: sent")
		return nil
	}, eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(10*time.Millisecond)))

	// MaxRetries is the larger of 5 and 1, BaseDelay the smaller; what nobody asks
	// for is the bus's.
	fmt.Println(bus.Explain("order.placed"))

	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Outcome, "after", result.Attempts, "attempts; stock was run once")

	// Some errors no retry can mend.
	subscribe("refunds", "refund.asked", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("the amount is negative"))
	})
	_, err = bus.PublishAndWait(ctx, "refund.asked", -5)
	fmt.Println(err)

	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}
