package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

// A store keeps what it was given until the bus deletes it, across processes.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	path := filepath.Join(dir, "events.db")

	store, err := sqlite.Open(ctx, path)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := store.Acquire(ctx, driver.AcquireQuery{})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	store.Submit(&driver.Batch{
		Now:   time.Now().UTC(),
		Epoch: lease.Epoch,
		New: []*driver.Record{{
			ID: driver.ID(eventbus.NewEventID()), Type: "order.placed", Payload: []byte(`{"order":7}`),
			Published: time.Now().UTC(), Targets: []string{"billing"}, Leased: true,
		}},
	}, func(err error) { done <- err })
	fmt.Println("durable:", <-done == nil)
	if err := store.Close(ctx); err != nil {
		log.Fatal(err)
	}

	if store, err = sqlite.Open(ctx, path); err != nil { // after a restart
		log.Fatal(err)
	}
	defer store.Close(ctx)
	if _, err := store.Acquire(ctx, driver.AcquireQuery{}); err != nil {
		log.Fatal(err)
	}
	claimed, err := store.Claim(ctx, driver.ClaimQuery{Limit: 10})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range claimed.Records {
		fmt.Println(r.Type, string(r.Payload), r.Targets)
	}
	// Output:
	// durable: true
	// order.placed {"order":7} [billing]
}

// A second process waits for the lease while the first one has it, and works meanwhile.
func ExampleStore_Acquire() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	path := filepath.Join(dir, "events.db")
	active, err := sqlite.Open(ctx, path)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := active.Acquire(ctx, driver.AcquireQuery{}); err != nil {
		log.Fatal(err)
	}

	// In another process:
	standby, err := sqlite.Open(ctx, path)
	if err != nil {
		log.Fatal(err)
	}
	defer standby.Close(ctx)
	_, err = standby.Acquire(ctx, driver.AcquireQuery{})
	fmt.Println("another store has it:", errors.Is(err, sqlite.ErrLocked))
	acquired := make(chan driver.Lease, 1)
	go func() {
		lease, err := standby.Acquire(ctx, driver.AcquireQuery{Wait: true})
		if err != nil {
			log.Fatal(err)
		}
		acquired <- lease
	}()

	if err := active.Close(ctx); err != nil { // or its process ends
		log.Fatal(err)
	}
	lease := <-acquired
	fmt.Println("epoch:", lease.Epoch, "crashed:", lease.Crashed)
	// Output:
	// another store has it: true
	// epoch: 2 crashed: false
}

// A service inserts a row of its own and an event in one transaction. A bus does the same with PublishTx.
func ExampleStore_SubmitTx() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	path := filepath.Join(dir, "events.db")
	store, err := sqlite.Open(ctx, path)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close(ctx)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE booking (id INTEGER PRIMARY KEY, room TEXT)"); err != nil {
		log.Fatal(err)
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO booking (room) VALUES ('blue')"); err != nil {
		log.Fatal(err)
	}
	event := &driver.Incoming{Codec: "json", Record: &driver.Record{
		ID: driver.ID(eventbus.NewEventID()), Type: "room.booked", Payload: []byte(`"blue"`), Published: time.Now().UTC(),
	}}
	if err := store.SubmitTx(ctx, tx, []*driver.Incoming{event}); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	waiting, err := store.Incoming(ctx, driver.IncomingQuery{Limit: 10})
	if err != nil {
		log.Fatal(err)
	}
	for _, in := range waiting.Events {
		fmt.Println(in.Record.Type, string(in.Record.Payload))
	}
	// Output:
	// room.booked "blue"
}

// A tool reads dead letters beside a running bus.
func ExampleMustExist() {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, "events.db", sqlite.MustExist())
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close(ctx)
	page, err := store.Letters(ctx, driver.LetterQuery{Subscriptions: []string{"billing"}, Limit: 100})
	if err != nil {
		log.Print(err)
		return
	}
	for _, l := range page.Letters {
		fmt.Println(l.ID, l.Type, l.Reason)
	}
}

// A program without handlers lists the causes of dead letters, and replays those of one cause.
func ExampleMustExist_withoutHandlers() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	path := filepath.Join(dir, "events.db")
	store, err := sqlite.Open(ctx, path)
	if err != nil {
		log.Fatal(err)
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithConcurrency(1))
	if err != nil {
		log.Fatal(err)
	}
	away, handled := true, make(chan string, 1)
	_, err = bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, order string) error {
		if away {
			return eventbus.Permanent(errors.New("mail server is away"))
		}
		handled <- order
		return nil
	}), eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	_, _ = bus.PublishAndWait(ctx, "order.placed", "o-17")
	away = false

	// In another process:
	beside, err := sqlite.Open(ctx, path, sqlite.MustExist())
	if err != nil {
		log.Fatal(err)
	}
	tool, err := eventbus.New(eventbus.WithStore(beside), eventbus.WithoutHandlers())
	if err != nil {
		log.Fatal(err)
	}
	groups, err := tool.DLQ().Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range groups {
		fmt.Println(g.Count, "died at", g.Subscription, "of:", g.Message)
		report, err := tool.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{Fingerprint: g.Fingerprint})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("replayed:", report.Replayed)
	}
	if err := tool.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}

	fmt.Println("handled:", <-handled)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1 died at mail of: mail server is away
	// replayed: 1
	// handled: o-17
}
