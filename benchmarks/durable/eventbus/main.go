// The program eventbus measures this bus with its store in an SQLite file.
package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
	"github.com/surebus/eventbus/store/sqlite"
)

func main() {
	durable.Main(plan.Durable, map[string]durable.Open{plan.Us: open})
}

// open creates the bus with all its defaults. A case that only accepts pauses the subscription: the
// events stay in the store.
func open(o durable.Options) (*durable.System, error) {
	if o.Synchronous != "FULL" {
		return nil, fmt.Errorf("synchronous=%s: the program measures only FULL", o.Synchronous)
	}
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(o.Dir, "events.db"))
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
	subscription, err := bus.Subscribe("order.*", eventbus.Typed(handle), eventbus.Named("billing"))
	if err != nil {
		return nil, err
	}
	if o.Handle == nil {
		if err := subscription.Pause(); err != nil {
			return nil, err
		}
	}
	if err := bus.Start(ctx); err != nil {
		return nil, err
	}
	return &durable.System{
		Accept: func(e durable.Event) error {
			_, err := bus.Publish(ctx, durable.EventType, e)
			return err
		},
		// The ledger counts an event as handled after its completion is durable.
		Settled: func() (bool, error) {
			l := bus.Metrics().Ledger
			if l.DeadLettered+l.Dropped+l.Unrouted > 0 {
				return false, errors.New("an event was not handled")
			}
			return l.Handled == l.Accepted, nil
		},
		// The store reads the setting back when it opens the file, and refuses another one.
		Synchronous: o.Synchronous,
		Close:       func() error { return bus.Shutdown(ctx) },
	}, nil
}
