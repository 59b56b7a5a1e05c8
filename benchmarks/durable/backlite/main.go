// The program backlite measures github.com/mikestefanello/backlite with the driver of its
// documentation, mattn/go-sqlite3.
package main

import (
	"context"
	"path/filepath"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver
	"github.com/mikestefanello/backlite"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
)

func main() {
	durable.Main(plan.Durable, map[string]durable.Open{"backlite": open, "backlite-normal": open})
}

// task is an event as a task of backlite.
type task struct{ durable.Event }

// Config returns the configuration of the queue. Without retention a completed task is deleted.
func (task) Config() backlite.QueueConfig {
	return backlite.QueueConfig{Name: "events", MaxAttempts: 3, Backoff: time.Second}
}

// workers is the number of workers, and of the tasks that backlite claims in one transaction. When all
// workers are busy, backlite sleeps 100 ms. More workers make that rare.
const workers = 1000

func open(o durable.Options) (*durable.System, error) {
	// The connection string of backlite's documentation. Without _sync the driver sets NORMAL.
	source := "file:" + filepath.Join(o.Dir, "backlite.db") + "?_journal=WAL&_timeout=5000"
	if o.Synchronous == "FULL" {
		source += "&_sync=FULL"
	}
	db, synchronous, err := durable.OpenSQL("sqlite3", source)
	if err != nil {
		return nil, err
	}
	client, err := backlite.NewClient(backlite.ClientConfig{DB: db, NumWorkers: workers, ReleaseAfter: time.Minute})
	if err != nil {
		return nil, err
	}
	if err := client.Install(); err != nil {
		return nil, err
	}
	client.Register(backlite.NewQueue(func(context.Context, task) error {
		o.Handle()
		return nil
	}))
	if o.Handle != nil {
		client.Start(context.Background())
	}
	return &durable.System{
		Accept: func(e durable.Event) error {
			_, err := client.Add(task{e}).Save()
			return err
		},
		Settled:     func() (bool, error) { return durable.Empty(db, "backlite_tasks", "true") },
		Synchronous: synchronous,
		Close: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if o.Handle != nil && !client.Stop(ctx) {
				return nil // at times its workers do not stop; all is measured, and the program ends
			}
			return db.Close()
		},
	}, nil
}
