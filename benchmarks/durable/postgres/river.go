package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/surebus/eventbus/benchmarks/durable"
)

// riverConns is the number of connections of River's pool. More were not faster on two processors.
const riverConns = 16

// args is an event as the arguments of a job.
type args struct{ durable.Event }

// Kind returns the kind of the job.
func (args) Kind() string { return "event" }

// openRiver creates a client whose workers do nothing. Each publisher inserts its jobs one by one.
func openRiver(ctx context.Context, dsn string, o durable.Options) (*durable.System, error) {
	db, err := pool(ctx, dsn, riverConns)
	if err != nil {
		return nil, err
	}
	driver, quiet := riverpgxv5.New(db), slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[args]) error {
		o.Handle()
		return nil
	}))
	client, err := river.NewClient(driver, &river.Config{
		Workers: workers, Logger: quiet,
		FetchCooldown: river.FetchCooldownMin, FetchPollInterval: 100 * time.Millisecond, // a notification comes earlier
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}},
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return &durable.System{
		Accept: func(e durable.Event) error {
			_, err := client.Insert(ctx, args{e}, nil)
			return err
		},
		Settled: func() (settled bool, err error) {
			time.Sleep(time.Millisecond) // between two looks
			const look = "SELECT NOT EXISTS (SELECT 1 FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))"
			err = db.QueryRow(ctx, look).Scan(&settled)
			return settled, err
		},
		Close: func() error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			err := client.StopAndCancel(ctx)
			db.Close()
			return err
		},
	}, nil
}
