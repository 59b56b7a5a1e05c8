package main

import (
	"context"
	"errors"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/store/postgres"
)

// openBus creates the bus with all its defaults.
func openBus(ctx context.Context, dsn string, o durable.Options) (*durable.System, error) {
	store, err := postgres.Open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	bus, err := eventbus.New(eventbus.WithStore(store))
	if err != nil {
		return nil, errors.Join(err, store.Close(ctx))
	}
	handle := func(context.Context, durable.Event) error {
		o.Handle()
		return nil
	}
	if _, err := bus.Subscribe("order.*", eventbus.Typed(handle), eventbus.Named("billing")); err != nil {
		return nil, err
	}
	if err := bus.Start(ctx); err != nil {
		return nil, err
	}
	return &durable.System{
		Accept: func(e durable.Event) error {
			_, err := bus.Publish(ctx, durable.EventType, e)
			return err
		},
		Settled: func() (bool, error) {
			l := bus.Metrics().Ledger
			if l.DeadLettered+l.Dropped+l.Unrouted > 0 {
				return false, errors.New("an event was not handled")
			}
			return l.Handled == l.Accepted, nil
		},
		Close: func() error { return bus.Shutdown(ctx) },
	}, nil
}
