package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"path/filepath"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// An observer sees every turn of an event: here, one that fails once and is then
// handled, and one that nobody takes.
func ExampleObserver() {
	ctx := context.Background()
	bus, err := eventbus.New(
		eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond), eventbus.NoJitter),
		eventbus.WithObserver(eventbus.Observer{
			Unrouted: func(e eventbus.Event) { fmt.Println("nobody takes", e.Type) },
			AttemptBegun: func(a eventbus.Attempt) {
				fmt.Printf("%s: attempt %d begins\n", a.Event.Type, a.Number)
			},
			AttemptEnded: func(e eventbus.EndedAttempt) {
				fmt.Printf("%s: attempt %d has ended: %s\n", e.Event.Type, e.Number, e.Outcome)
			},
			RetryScheduled: func(r eventbus.ScheduledRetry) {
				fmt.Printf("%s: %s failed (%s), again in %s\n", r.Event.Type, r.Failure.Subscription, r.Failure.Error, r.Delay)
			},
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error {
		if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
			return errors.New("mail server is away")
		}
		return nil
	}, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, eventType := range []string{"order.lost", "order.placed"} {
		if _, err := bus.PublishAndWait(ctx, eventType, nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// nobody takes order.lost
	// order.placed: attempt 1 begins
	// order.placed: attempt 1 has ended: waiting
	// order.placed: mail failed (mail server is away), again in 1ms
	// order.placed: attempt 2 begins
	// order.placed: attempt 2 has ended: handled
}

// A handler that has used up a third of its timeout is told of while it runs, with
// where its subscription was made.
func ExampleSlowHandler() {
	ctx := context.Background()
	told := make(chan struct{})
	bus, err := eventbus.New(eventbus.WithObserver(eventbus.Observer{
		SlowHandler: func(s eventbus.SlowHandler) {
			file, _, _ := strings.Cut(filepath.Base(s.MadeAt), ":") // and the line
			fmt.Printf("%s, made in %s, is slow with %s\n", s.Subscription, file, s.Event.Type)
			close(told)
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		<-told // slow as it may be
		return nil
	}, eventbus.Named("mail"), eventbus.Timeout(300*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", nil); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: mail, made in example_observer_test.go, is slow with order.placed
}

type tenantKey struct{}

// A web framework may give the context of a request to the next one. So copy what handlers need while
// Publish runs: values for handlers in memory, text for stores and dead letters.
func ExampleWithContextFrom() {
	bus, err := eventbus.New(
		eventbus.WithContextFrom(func(ctx context.Context) context.Context {
			return context.WithValue(context.Background(), tenantKey{}, ctx.Value(tenantKey{}))
		}),
		eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string {
			return map[string]string{"tenant": fmt.Sprint(ctx.Value(tenantKey{}))}
		}),
		eventbus.WithInheritedMetadata("tenant"), // events that handlers publish have it too
	)
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		fmt.Println(ctx.Value(tenantKey{}), e.Metadata.Get("tenant"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(context.WithValue(ctx, tenantKey{}, "acme"), "order.placed", nil); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: acme acme
}
