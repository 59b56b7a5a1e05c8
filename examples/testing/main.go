// Command testing is a service that charges for orders; main_test.go, beside it, is
// how it is tested, and what to read.
//
//	go run ./examples/testing
//	go test ./examples/testing
package main

import (
	"context"
	"errors"
	"fmt"
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

// Billing charges for the orders that are placed, and says so with order.paid.
type Billing struct {
	bus  *eventbus.Bus
	bank func(ctx context.Context, o Order) error
}

// Subscribe begins to bill, with a minute between the attempts.
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
	bus, err := eventbus.New()
	if err != nil {
		return err
	}
	// This bank is busy just once, and says for how long.
	busy := true
	bank := func(_ context.Context, o Order) error {
		if busy {
			busy = false
			fmt.Println(o.ID, "is tried again:", errBankBusy)
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
	return errors.Join(err, bus.Shutdown(ctx))
}
