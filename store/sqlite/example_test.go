package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/surebus/eventbus"
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
	done := make(chan error)
	store.Submit(&eventbus.Batch{
		Now: time.Now().UTC(),
		New: []*eventbus.Record{{
			ID: eventbus.NewEventID(), Type: "order.placed", Payload: []byte(`{"order":7}`),
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
	claimed, err := store.Claim(ctx, eventbus.ClaimQuery{Limit: 10})
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

// A tool reads dead letters beside a running bus.
func ExampleBeside() {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, "events.db", sqlite.Beside())
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close(ctx)
	page, err := store.Letters(ctx, eventbus.LetterQuery{Subscription: "billing", Limit: 100})
	if err != nil {
		log.Print(err)
		return
	}
	for _, l := range page.Letters {
		fmt.Println(l.ID, l.Event.Type, l.Reason)
	}
}
