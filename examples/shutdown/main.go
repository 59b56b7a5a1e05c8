// Shutdown shows the end of a process whose bus is in memory: Shutdown waits for the running handlers as long as its context
// allows, then cancels them, and returns what is unfinished.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/surebus/eventbus"
)

func main() {
	fmt.Print("This program shuts a bus down within 200 ms, while one handler takes 20 ms and another one an hour.\n\n")
	// A service waits for the end of this context: its orchestrator sends SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	bus, err := eventbus.New(eventbus.WithSlog(slog.DiscardHandler)) // the program prints what is unfinished
	if err != nil {
		log.Fatal(err)
	}
	began := make(chan struct{}, 2)
	handle := func(name string, takes time.Duration) {
		_, err := bus.Subscribe(name, func(ctx context.Context, _ eventbus.Event) error {
			began <- struct{}{}
			select {
			case <-time.After(takes):
				fmt.Println(name+":", "finished")
				return nil
			case <-ctx.Done(): // a handler that heeds its context returns in time
				fmt.Println(name+":", "cancelled:", context.Cause(ctx))
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
		if _, err := bus.Publish(ctx, eventType, "today's work"); err != nil {
			log.Fatal(err)
		}
		<-began
	}
	if _, err := bus.Publish(ctx, "quick", "tomorrow's work", eventbus.After(24*time.Hour)); err != nil {
		log.Fatal(err)
	}

	stop() // as after a signal: ctx has ended, so Shutdown needs a context of its own
	fmt.Println("Shutdown begins.")
	grace, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err = bus.Shutdown(grace)
	var cut *eventbus.ShutdownError
	if !errors.As(err, &cut) {
		log.Fatalf("Shutdown: %v", err)
	}
	fmt.Println("Shutdown returns an error that lists the unfinished events, which are dead letters:")
	for _, l := range cut.Unfinished {
		fmt.Printf("  %s at %s\n", l.Event.Payload, l.Subscription)
	}
	if _, err = bus.Publish(context.Background(), "quick", nil); !errors.Is(err, eventbus.ErrShutdown) {
		log.Fatalf("Publish after Shutdown: %v", err)
	}
	fmt.Println("Publish returns", err)
	if len(cut.Unfinished) != 2 {
		log.Fatalf("%d unfinished events, want 2", len(cut.Unfinished))
	}
	fmt.Println("\nOK: one handler finished, one was cancelled, and no event is missing. With a store, both events would stay there.")
}
