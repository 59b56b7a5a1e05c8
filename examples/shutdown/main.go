// Shutdown shows the end of a process: what runs is waited for, as long as there
// is time, and what is left is named.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	// A service waits here for its orchestrator's signal.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	began := make(chan struct{}, 2)
	handle := func(name string, takes time.Duration) {
		_, err := bus.Subscribe(name, func(ctx context.Context, _ eventbus.Event) error {
			began <- struct{}{}
			select {
			case <-time.After(takes):
				fmt.Println(name, "is done")
				return nil
			case <-ctx.Done(): // a handler that heeds its context ends in time
				fmt.Println(name, "is cut short:", context.Cause(ctx))
				return ctx.Err()
			}
		}, eventbus.Named(name))
		if err != nil {
			log.Fatal(err)
		}
	}
	handle("quick", 20*time.Millisecond)
	handle("slow", time.Hour)
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, eventType := range []string{"quick", "slow"} {
		if _, err := bus.Publish(ctx, eventType, "work"); err != nil {
			log.Fatal(err)
		}
		<-began
	}
	if _, err := bus.Publish(ctx, "quick", "tomorrow's work", eventbus.After(24*time.Hour)); err != nil {
		log.Fatal(err)
	}

	stop() // as the signal would

	// Not a child of the context that has just ended.
	grace, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err = bus.Shutdown(grace)
	var cut *eventbus.ShutdownError
	if !errors.As(err, &cut) {
		log.Fatalf("Shutdown: %v", err)
	}
	fmt.Println(len(cut.Unfinished), "unfinished:")
	for _, l := range cut.Unfinished {
		fmt.Println("  ", l.Event.Type, l.Event.Payload, "for", l.Subscription)
	}
	_, err = bus.Publish(context.Background(), "quick", nil)
	fmt.Println(err)
}
