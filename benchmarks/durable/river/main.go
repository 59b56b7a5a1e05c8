// The program river measures github.com/riverqueue/river with its SQLite driver and
// modernc.org/sqlite, as River's own tests do.
package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite" // the driver

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
)

func main() {
	durable.Main(plan.Durable, map[string]durable.Open{"river": open})
}

// args is an event as the arguments of a job.
type args struct{ durable.Event }

// Kind returns the kind of the job.
func (args) Kind() string { return "event" }

func open(o durable.Options) (*durable.System, error) {
	ctx := context.Background()
	source := "file:" + filepath.Join(o.Dir, "river.db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous(" + o.Synchronous + ")&_txlock=immediate"
	db, synchronous, err := durable.OpenSQL("sqlite", source)
	if err != nil {
		return nil, err
	}
	driver := riversqlite.New(db)
	quiet := slog.New(slog.DiscardHandler)
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
	config := &river.Config{Workers: workers, Logger: quiet}
	if o.Handle != nil {
		// A fetch takes as many jobs as there are free workers. The shorter intervals are faster than
		// the defaults of 100 ms and 1 s.
		config.FetchCooldown, config.FetchPollInterval = 5*time.Millisecond, 10*time.Millisecond
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}}
	}
	client, err := river.NewClient(driver, config)
	if err != nil {
		return nil, err
	}
	if o.Handle != nil {
		if err := client.Start(ctx); err != nil {
			return nil, err
		}
	}
	return &durable.System{
		Accept: func(e durable.Event) error {
			_, err := client.Insert(ctx, args{e}, nil)
			return err
		},
		Settled:     func() (bool, error) { return durable.Empty(db, "river_job", "state <> 'completed'") },
		Synchronous: synchronous,
		Close: func() error {
			if o.Handle != nil {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				if err := client.StopAndCancel(ctx); err != nil {
					return err
				}
			}
			return db.Close()
		},
	}, nil
}
