package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite" of database/sql

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// Tasks of the shop.
const (
	killBeforeCommit = "before a commit"
	killAfterCommit  = "after a commit"
	placeAndHandle   = "place and handle"
	placeOnly        = "place"
)

// isShop reports whether this process is a child.
func isShop() bool { return len(os.Args) == 4 && os.Args[1] == "shop" }

// shopFailed is the exit status of a shop that was not killed.
const shopFailed = 2

// shopMain runs the shop and returns its exit status.
func shopMain(ctx context.Context) int {
	if err := runShop(ctx, os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		return shopFailed
	}
	return 0
}

// Order is the payload of every event.
type Order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// openTables opens the file for the tables of the service.
//
// _txlock=immediate begins transactions with the write lock. A transaction that reads first would fail to write if the
// store had committed meanwhile. busy_timeout waits for the lock while the store commits.
func openTables(file string) (*sql.DB, error) {
	path := url.URL{Path: file}
	return sql.Open("sqlite", "file:"+path.EscapedPath()+"?_txlock=immediate&_pragma=busy_timeout(10000)")
}

// tables of the service have names of their own: the store has tables in the file too, one of them named orders.
const tables = `
CREATE TABLE IF NOT EXISTS shop_orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS shop_charges (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, deliveries INTEGER NOT NULL);`

func runShop(ctx context.Context, task, file string) (err error) {
	store, err := sqlite.Open(ctx, file) // before the tables: it refuses the database of another program
	if err != nil {
		return err
	}
	var opts []eventbus.Option
	if task == placeOnly {
		opts = append(opts, eventbus.WithoutHandlers())
	}
	bus, err := eventbus.New(append(opts, eventbus.WithStore(store))...)
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	defer func() { err = errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx))) }() // closes the store
	db, err := openTables(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return err
	}
	s := &service{db: db, bus: bus}
	if task != placeOnly {
		if _, err := bus.Subscribe("order.placed", eventbus.Typed(s.charge), eventbus.Named("billing")); err != nil {
			return err
		}
		if err := bus.Start(ctx); err != nil {
			return err
		}
	}
	if err := s.placeAll(ctx, task); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil || task == placeOnly { // until the parent closes it
		return err
	}
	return s.settle(ctx)
}

type service struct {
	db  *sql.DB
	bus *eventbus.Bus
}

// orders is the number of orders that each process places.
const orders = 50

// errChanged makes a transaction roll back.
var errChanged = errors.New("the customer has changed her mind")

// placeAll places the orders of a process.
func (s *service) placeAll(ctx context.Context, task string) error {
	day := rand.Text()[:6]
	for i := 1; i <= orders; i++ {
		o := Order{ID: fmt.Sprintf("o-%s-%d", day, i), Cents: 4200}
		err := s.place(ctx, o, func() error {
			switch {
			case i == orders && task == killBeforeCommit:
				kill()
			case i%7 == 0:
				return errChanged
			}
			return nil
		})
		switch {
		case errors.Is(err, errChanged):
			fmt.Println("rolled-back", o.ID)
		case err != nil:
			return err
		case i == orders && task == killAfterCommit:
			kill()
		default:
			fmt.Println("committed", o.ID)
		}
	}
	return nil
}

// place inserts an order and publishes its event in one transaction.
func (s *service) place(ctx context.Context, o Order, check func() error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit, it does nothing
	if _, err := tx.ExecContext(ctx, "INSERT INTO shop_orders (id, cents) VALUES (?, ?)", o.ID, o.Cents); err != nil {
		return err
	}
	if _, err := s.bus.PublishTx(ctx, tx, "order.placed", o); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	return tx.Commit()
}

// charge is the handler. It may run more than once for an event, and charges the order once.
func (s *service) charge(ctx context.Context, o Order) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO shop_charges (id, cents, deliveries) VALUES (?, ?, 1)
		ON CONFLICT (id) DO UPDATE SET deliveries = deliveries + 1`, o.ID, o.Cents)
	return err
}

// settle waits until all events are handled, those of other processes included.
func (s *service) settle(ctx context.Context) error {
	for m := s.bus.Metrics(); m.StoreError != "" || m.Store.Incoming+m.Store.Unsettled() > 0; m = s.bus.Metrics() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if m := s.bus.Metrics(); m.DeadLetters > 0 {
		return fmt.Errorf("%d dead letters", m.DeadLetters)
	}
	return nil
}

// kill ends this process as SIGKILL does.
func kill() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}
