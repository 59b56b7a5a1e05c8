package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// Tasks of the shop.
const (
	openShop  = "open"  // publish and handle events until the process is killed
	closeShop = "close" // handle the remaining events, and end
)

func shopArgs(task, file string) []string { return []string{"shop", task, file} }

// isShop reports whether this process is the child.
func isShop() bool { return len(os.Args) == 4 && os.Args[1] == "shop" }

// shopMain runs the shop and returns its exit status.
func shopMain(ctx context.Context) int {
	if err := runShopHere(ctx, os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		return 1
	}
	return 0
}

// Order is the payload of every event.
type Order struct {
	Number int `json:"number"`
	Cents  int `json:"cents"`
}

func (o Order) String() string { return fmt.Sprintf("o-%d", o.Number) }

func runShopHere(ctx context.Context, task, file string) (err error) {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithRetry(eventbus.BaseDelay(200*time.Millisecond)),
		eventbus.WithSlog(slog.DiscardHandler)) // handlers fail on purpose
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	defer func() { err = errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx))) }() // closes the store
	// Subscribe before Start: a stored delivery whose subscription does not exist is parked.
	if err := subscribe(bus); err != nil {
		return err
	}
	if err := bus.Start(ctx); err != nil {
		return err
	}
	if task == openShop {
		return sell(ctx, bus)
	}
	return settle(ctx, bus)
}

// subscribe makes the subscriptions. On a durable bus each has a name, by which its deliveries are
// found after a restart.
func subscribe(bus *eventbus.Bus) error {
	_, err1 := bus.Subscribe("order.placed", handler("stock", reserve), eventbus.Named("stock"))
	_, err2 := bus.Subscribe("order.paid", handler("billing", charge), eventbus.Named("billing"))
	_, err3 := bus.Subscribe("order.*", handler("mail", send), eventbus.Named("mail"))
	return errors.Join(err1, err2, err3)
}

// handler reports each success. Typed decodes the payload that the store has.
func handler(name string, handle func(attempt int, o Order) error) eventbus.Handler {
	return eventbus.Typed(func(ctx context.Context, o Order) error {
		d, _ := eventbus.FromContext(ctx)
		if err := handle(d.Attempt, o); err != nil {
			return err
		}
		report("handled", d.Event.ID, name)
		return nil
	})
}

// reserve fails once for every seventh order. Later events of the order wait for the retry, because
// they have the same key.
func reserve(attempt int, o Order) error {
	if o.Number%7 == 0 && attempt == 1 {
		return errors.New("the warehouse does not answer")
	}
	return nil
}

// charge fails permanently for every twentieth order, whose event becomes a dead letter.
func charge(_ int, o Order) error {
	if o.Cents <= 0 {
		return eventbus.Permanent(fmt.Errorf("order %v costs %d cents", o, o.Cents))
	}
	return nil
}

func send(int, Order) error {
	time.Sleep(5 * time.Millisecond)
	return nil
}

// sell publishes the events of orders until ctx ends.
func sell(ctx context.Context, bus *eventbus.Bus) error {
	const publishers = 16
	var number atomic.Int64
	errs := make([]error, publishers)
	var wg sync.WaitGroup
	for i := range publishers {
		wg.Go(func() {
			for errs[i] == nil && ctx.Err() == nil {
				errs[i] = publishOrder(ctx, bus, int(number.Add(1)))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func publishOrder(ctx context.Context, bus *eventbus.Bus, number int) error {
	o := Order{Number: number, Cents: number % 20 * 100}
	for _, eventType := range []string{"order.placed", "order.paid"} {
		id, err := bus.Publish(ctx, eventType, o, eventbus.Key(o.String()))
		if err != nil {
			return err
		}
		report("acknowledged", id, eventType, o.String()) // the store has it
	}
	if number%10 != 0 {
		return nil
	}
	id, err := bus.Publish(ctx, "order.reminder", o, eventbus.After(time.Second))
	if err == nil {
		report("acknowledged", id, "order.reminder")
	}
	return err
}

// settle waits until the store has no unsettled event, and reports the dead letters.
func settle(ctx context.Context, bus *eventbus.Bus) error {
	for m := bus.Metrics(); m.Store.Unsettled() > 0; m = bus.Metrics() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if l := bus.Metrics().Ledger; !l.Balanced() {
		return fmt.Errorf("the ledger does not balance: %+v", l)
	}
	q := eventbus.LetterQuery{Limit: 1000}
	for more := true; more; more = !q.Before.IsZero() {
		page, err := bus.DLQ().List(ctx, q)
		if err != nil {
			return err
		}
		for _, l := range page.Letters {
			report("dead", l.Event.ID, letterTargets(l)...)
		}
		q.Before = page.Next
	}
	fmt.Printf("shop: claimed from the store: %d\n", bus.Metrics().Ledger.Claimed)
	return nil
}

// report writes a line in one call, so that a kill does not cut it.
func report(what string, id eventbus.EventID, words ...string) {
	fmt.Printf("%s %s %s\n", what, id, strings.Join(words, " "))
}
