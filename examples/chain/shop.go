package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net/url"
	"os"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite" of database/sql

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// Types of events, each emitted by the handler of the one before.
const (
	typePlaced  = "order.placed"
	typeInvoice = "invoice.created"
	typeMail    = "mail.sent"
	typeApology = "apology" // in the ledger: not an event, but a call to the customer whose mail came back
)

// steps are the subscriptions of the shop.
var steps = []struct{ name, eventType, emits string }{
	{"billing", typePlaced, typeInvoice},
	{"mail", typeInvoice, typeMail},
	{"archive", typeMail, ""},
}

// Order is the payload of every event.
type Order struct {
	ID string `json:"id"`
}

// isShop reports whether this process is a child.
func isShop() bool { return len(os.Args) == 3 && os.Args[1] == "shop" }

// shopFailed is the exit status of a shop that was not killed.
const shopFailed = 2

// shopMain runs the shop and returns its exit status.
func shopMain(ctx context.Context) int {
	if err := runShop(ctx, os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		return shopFailed
	}
	return 0
}

// runShop handles events until its input ends and all events are handled.
func runShop(ctx context.Context, file string) (err error) {
	store, err := sqlite.Open(ctx, file) // before the ledger: it refuses the database of another program
	if err != nil {
		return err
	}
	quiet := slog.DiscardHandler // handlers fail on purpose
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby(), eventbus.WithSlog(quiet), eventbus.WithConcurrency(16),
		eventbus.WithRetry(eventbus.BaseDelay(20*time.Millisecond)), eventbus.WithCircuit(eventbus.NoCircuit()))
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	defer func() { err = errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx))) }() // closes the store
	ledger, err := openLedger(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	if err := subscribe(bus, ledger); err != nil {
		return err
	}
	if err := bus.Start(ctx); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until the parent closes it
		return err
	}
	return settle(ctx, bus)
}

func subscribe(bus *eventbus.Bus, ledger *sql.DB) error {
	for _, s := range steps {
		handler := eventbus.Typed(func(ctx context.Context, o Order) error {
			d, _ := eventbus.FromContext(ctx)
			if s.name == "mail" && bounces(o) {
				fmt.Println("handled", d.Event.ID)
				return eventbus.Permanent(errors.New("the address does not exist")) // it becomes a dead letter
			}
			if err := note(ctx, ledger, d.Event.ID, d.Event.Type, o); err != nil {
				return err
			}
			if s.emits != "" {
				if _, err := eventbus.Emit(ctx, s.emits, o); err != nil {
					return err
				}
			}
			if d.Attempt == 1 && failsFirst(s.name, o) {
				return errors.New("the service is busy") // what this attempt has emitted does not exist
			}
			fmt.Println("handled", d.Event.ID)
			return nil
		})
		if _, err := bus.Subscribe(s.eventType, handler, eventbus.Named(s.name)); err != nil {
			return err
		}
	}
	// The last step of the story of an order whose mail came back: the customer is told in another way.
	_, err := bus.OnDeadLetter(typeInvoice, func(ctx context.Context, letter eventbus.DeadLetter) error {
		d, _ := eventbus.FromContext(ctx)
		var o Order
		if err := json.Unmarshal(letter.Event.Payload.(json.RawMessage), &o); err != nil {
			return eventbus.Permanent(err)
		}
		if err := note(ctx, ledger, d.Event.ID, typeApology, o); err != nil {
			return err
		}
		fmt.Println("handled", d.Event.ID)
		return nil
	}, eventbus.Named("apologies"))
	return err
}

// bounces reports whether the mail of an order comes back: of every twentieth.
func bounces(o Order) bool { return crc32.ChecksumIEEE([]byte("address"+o.ID))%20 == 0 }

// failsFirst reports whether a step fails once for an order: for every tenth.
func failsFirst(step string, o Order) bool {
	return crc32.ChecksumIEEE([]byte(step+o.ID))%10 == 0
}

// note notes a run of a handler. It has a row for each event, not for each run.
func note(ctx context.Context, ledger *sql.DB, event eventbus.EventID, eventType string, o Order) error {
	_, err := ledger.ExecContext(ctx, `INSERT INTO shop_ledger (event, type, order_id, runs) VALUES (?, ?, ?, 1)
		ON CONFLICT (event) DO UPDATE SET runs = runs + 1`, event.String(), eventType, o.ID)
	return err
}

// openLedger opens the file for the ledger, and creates that if it is missing. Its name is not one of the store's tables.
func openLedger(ctx context.Context, file string) (*sql.DB, error) {
	path := url.URL{Path: file}
	db, err := sql.Open("sqlite", "file:"+path.EscapedPath()+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(normal)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // its transactions lock the file anyway
	const table = "CREATE TABLE IF NOT EXISTS shop_ledger (event TEXT PRIMARY KEY, type TEXT NOT NULL, order_id TEXT NOT NULL, runs INTEGER NOT NULL)"
	if _, err := db.ExecContext(ctx, table); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// settle waits until all events are handled, those that wait to be taken in included.
func settle(ctx context.Context, bus *eventbus.Bus) error {
	for m := bus.Metrics(); m.StoreError != "" || m.Store.Incoming+m.Store.Unsettled() > 0; m = bus.Metrics() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
