package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/periodic"
	"github.com/surebus/eventbus/store/sqlite"
)

// isChild reports whether this process is a child.
func isChild() bool { return len(os.Args) == 3 && os.Args[1] == "child" }

// childMain runs a child and returns its exit status.
func childMain(ctx context.Context) int {
	if err := serve(ctx, os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

// serve publishes and handles ticks while it has the lease of the store, until its standard input ends.
func serve(ctx context.Context, file string) (err error) {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby())
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	defer func() { err = errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx))) }()
	if _, err := bus.Subscribe("report.*", report, eventbus.Named("reports")); err != nil {
		return err
	}

	// Every process calls Every. The one with the lease publishes.
	_, err = periodic.Every(bus, spec, "report.due", nil, periodic.CatchUp(periodic.Latest))
	if err != nil {
		return err
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it, or has died
		stop()
	}()
	if err := bus.Start(ctx); err != nil { // waits for the lease
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	fmt.Println("active")
	<-ctx.Done()
	return nil
}

// report handles an event.
func report(_ context.Context, e eventbus.Event) error {
	tick, _ := periodic.Tick(e)
	fmt.Printf("handled %s %s %d\n", tick.Format(time.RFC3339), e.ID, time.Since(tick).Milliseconds())
	return nil
}
