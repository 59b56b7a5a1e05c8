// The program goqite measures maragu.dev/goqite with the driver of its documentation, mattn/go-sqlite3.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver
	"maragu.dev/goqite"

	"github.com/surebus/eventbus/benchmarks/durable"
	"github.com/surebus/eventbus/benchmarks/plan"
)

// schema is goqite's schema_sqlite.sql. The module does not embed it.
//
//go:embed schema.sql
var schema string

func main() {
	durable.Main(plan.Durable, map[string]durable.Open{"goqite": open, "goqite-normal": open})
}

func open(o durable.Options) (*durable.System, error) {
	// The connection string of goqite's documentation. Without _sync the driver sets NORMAL.
	source := "file:" + filepath.Join(o.Dir, "goqite.db") + "?_journal=WAL&_timeout=5000&_fk=true"
	if o.Synchronous == "FULL" {
		source += "&_sync=FULL"
	}
	db, synchronous, err := durable.OpenSQL("sqlite3", source)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := db.ExecContext(ctx, schema); err != nil {
		cancel()
		return nil, err
	}
	// The timeout keeps a queue that grows during the measurement from redelivering.
	q := goqite.New(goqite.NewOpts{DB: db, Name: "events", Timeout: time.Minute})
	var workers sync.WaitGroup
	if o.Handle != nil {
		for range runtime.GOMAXPROCS(0) {
			workers.Go(func() { work(ctx, q, o.Handle) })
		}
	}
	return &durable.System{
		Accept: func(e durable.Event) error {
			body, err := e.JSON()
			if err != nil {
				return err
			}
			return q.Send(ctx, goqite.Message{Body: body})
		},
		Settled:     func() (bool, error) { return durable.Empty(db, "goqite", "true") },
		Synchronous: synchronous,
		Close: func() error {
			cancel()
			workers.Wait()
			return db.Close()
		},
	}, nil
}

// work is the loop of a worker. It is faster than goqite's job runner, which starts two goroutines for
// each message and sleeps while all of its jobs run.
func work(ctx context.Context, q *goqite.Queue, handle func()) {
	for {
		m, err := q.ReceiveAndWait(ctx, time.Millisecond)
		if err != nil {
			if ctx.Err() == nil {
				panic(err)
			}
			return
		}
		var e durable.Event // handlers of the other libraries get it decoded, too
		if err := json.Unmarshal(m.Body, &e); err != nil {
			panic(err)
		}
		handle()
		if err := q.Delete(context.WithoutCancel(ctx), m.ID); err != nil {
			panic(err)
		}
	}
}
