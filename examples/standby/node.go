package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// Versions of the program.
const (
	oldVersion = "1"
	newVersion = "2"
)

// subscriptionsOf has the subscriptions of each version.
var subscriptionsOf = map[string][]string{
	oldVersion: {"billing"},
	newVersion: {"billing", "mail"},
}

// isNode reports whether this process is a child.
func isNode() bool { return len(os.Args) == 4 && os.Args[1] == "node" }

// nodeMain runs a node and returns its exit status.
func nodeMain(ctx context.Context) int {
	if err := runNode(ctx, os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	return 0
}

// runNode publishes and, while it has the lease of the store, handles events.
func runNode(ctx context.Context, version, file string) (err error) {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby())
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	defer func() { err = errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx))) }() // hands the lease over
	for _, name := range subscriptionsOf[version] {
		if _, err := bus.Subscribe("order.*", handler(name), eventbus.Named(name)); err != nil {
			return err
		}
	}

	// Start returns when the bus has the lease. A standby publishes meanwhile.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	started := make(chan error, 1)
	go func() { started <- bus.Start(ctx) }()
	defer func() {
		stop() // a standby stops to wait
		if e := <-started; e != nil && ctx.Err() == nil {
			err = errors.Join(err, e)
		}
	}()

	publishing, cancel := context.WithCancel(ctx)
	defer cancel()
	published := make(chan error, 1)
	go func() { published <- publishUntil(publishing, bus) }()

	order := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		lines.Scan()
		order <- lines.Text()
	}()
	select {
	case err := <-published: // it has failed
		return err
	case text := <-order:
		cancel()
		if err := <-published; err != nil || text != "settle" {
			return err
		}
		return settle(ctx, bus)
	}
}

// handler reports each success.
func handler(name string) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		time.Sleep(time.Millisecond)
		fmt.Printf("handled %s %s\n", e.ID, name)
		return ctx.Err() // after a lost lease, another process has the event
	}
}

// publishUntil publishes until ctx ends.
func publishUntil(ctx context.Context, bus *eventbus.Bus) error {
	for n := 0; ctx.Err() == nil; n++ {
		// Without the context: its end would leave unknown whether the event was accepted.
		id, err := bus.Publish(context.WithoutCancel(ctx), "order.placed", n)
		if err != nil {
			return err
		}
		fmt.Printf("accepted %s\n", id)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// settle waits until all events are handled, those of other processes included.
func settle(ctx context.Context, bus *eventbus.Bus) error {
	for m := bus.Metrics(); m.StoreError != "" || m.Store.Incoming+m.Store.Unsettled() > 0; m = bus.Metrics() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if m := bus.Metrics(); m.DeadLetters > 0 {
		return fmt.Errorf("%d dead letters", m.DeadLetters)
	}
	return nil
}
