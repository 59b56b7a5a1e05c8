// Command testing is a service that charges for orders. Read how it is tested: main_test.go.
//
//	go run ./examples/testing
//	go test ./examples/testing
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/surebus/eventbus"
)

// Order is the payload of order.placed and order.paid.
type Order struct {
	ID    string
	Cents int
}

var errBankBusy = errors.New("the bank is busy")

// Billing charges for each order.placed, and publishes order.paid.
type Billing struct {
	bus  *eventbus.Bus
	bank func(ctx context.Context, o Order) error
}

// Subscribe subscribes to order.placed, with a minute between the attempts.
func (b *Billing) Subscribe() error {
	_, err := b.bus.Subscribe("order.placed", eventbus.Typed(b.charge), eventbus.Named("billing"),
		eventbus.Timeout(5*time.Second),
		eventbus.Retry(eventbus.MaxRetries(2), eventbus.BaseDelay(time.Minute), eventbus.BackoffMultiplier(1), eventbus.MaxDelay(time.Minute)))
	return err
}

func (b *Billing) charge(ctx context.Context, o Order) error {
	if o.Cents <= 0 {
		return eventbus.Permanent(fmt.Errorf("order %s costs %d cents", o.ID, o.Cents))
	}
	if err := b.bank(ctx, o); err != nil {
		return err
	}
	_, err := b.bus.Publish(ctx, "order.paid", o)
	return err
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	fmt.Print("This service charges for an order. Its tests are what to read: go test -v ./examples/testing\n\n")
	bus, err := eventbus.New(eventbus.WithSlog(slog.DiscardHandler)) // the program prints the failure itself
	if err != nil {
		return err
	}
	// This bank is busy once. RetryAfter sets the delay of the retry.
	busy := true
	bank := func(_ context.Context, o Order) error {
		if busy {
			busy = false
			fmt.Println(o.ID, "is retried:", errBankBusy)
			return eventbus.RetryAfter(errBankBusy, 50*time.Millisecond)
		}
		return nil
	}
	if err := (&Billing{bus, bank}).Subscribe(); err != nil {
		return err
	}
	paid := func(_ context.Context, o Order) error { fmt.Println(o.ID, "is paid"); return nil }
	if _, err := bus.Subscribe("order.paid", eventbus.Typed(paid)); err != nil {
		return err
	}
	if err := bus.Start(ctx); err != nil {
		return err
	}
	_, err = bus.Publish(ctx, "order.placed", Order{"o-17", 4200})
	if err := errors.Join(err, bus.Shutdown(ctx)); err != nil {
		return err
	}
	fmt.Println("\nOK: the order was paid at the second attempt")
	return nil
}
