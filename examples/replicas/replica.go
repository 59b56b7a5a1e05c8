//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
)

// replicaVariable is set in the environment of a replica: the server of the service.
const replicaVariable = "REPLICA_OF"

// settle is what the last replica reads: it goes on until nothing is left.
const settle = "settle"

var errSettle = errors.New("the parent said settle")

// order is the payload of an event.
type order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// replicaMain is a replica. It places orders until its standard input ends, and bills those of all when it has the lease.
func replicaMain(ctx context.Context, dsn string) int {
	if err := serve(ctx, dsn); err != nil {
		fmt.Fprintf(os.Stderr, "replica %d: %v\n", os.Getpid(), err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, dsn string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		told, _ := io.ReadAll(os.Stdin) // until the parent closes it, or has died
		if string(told) == settle {
			stop(errSettle)
		}
		stop(nil)
	}()
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.OpenPool(ctx, pool)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby(),
		eventbus.WithRetry(eventbus.MaxRetries(100), eventbus.BaseDelay(20*time.Millisecond), eventbus.MaxDelay(time.Second))) // through an outage
	if err != nil {
		return err
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(bill), eventbus.Named("billing"), eventbus.InTx(), eventbus.Concurrency(4),
		eventbus.Circuit(eventbus.OpenFor(time.Second)))
	if err != nil {
		return err
	}
	var shop sync.WaitGroup
	shop.Go(func() { placeOrders(ctx, bus, pool) })
	if bus.Start(ctx) == nil {
		fmt.Println("leads")
	}
	<-ctx.Done()
	shop.Wait()
	ending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if errors.Is(context.Cause(ctx), errSettle) {
		for m := bus.Metrics(); m.Store.Unsettled()+m.Store.Incoming > 0 && ending.Err() == nil; m = bus.Metrics() {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return bus.Shutdown(ending)
}

// bill bills an order, in the transaction of the handler.
func bill(ctx context.Context, o order) error {
	_, err := postgres.Tx(ctx).Exec(ctx, "INSERT INTO bill (order_id, cents) VALUES ($1, $2)", o.ID, o.Cents)
	return err
}

// placeOrders places an order every few milliseconds. One that fails was rolled back, or its outcome is unknown: if it was
// committed, so was its event.
func placeOrders(ctx context.Context, bus *eventbus.Bus, pool *pgxpool.Pool) {
	for ctx.Err() == nil {
		_ = placeOrder(bus, pool)
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
}

func placeOrder(bus *eventbus.Bus, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	o := order{ID: eventbus.NewEventID().String(), Cents: rand.IntN(10_000)}
	if _, err := tx.Exec(ctx, "INSERT INTO shop_order (id, cents) VALUES ($1, $2)", o.ID, o.Cents); err != nil {
		return err
	}
	if _, err := bus.PublishTx(ctx, tx, "order.placed", o); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
