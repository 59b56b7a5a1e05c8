package docs_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver of the transaction

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/store/sqlite"
)

func TestDocs_Readme(t *testing.T) {
	docpagetest.Page(t, "../README.md",
		docpagetest.Program("../examples/first"),
		docpagetest.InBubble(readmeRetry),
		docpagetest.InBubble(readmeOrder),
		docpagetest.InBubble(readmeDestinations),
		docpagetest.Code(readmeStore),
		docpagetest.Code(readmeTransaction),
		docpagetest.InBubble(readmeRepair),
	)
}

// Order is an order of the README.
type Order struct {
	ID    string
	Cents int
}

func readmeRetry(t *testing.T) error {
	bus := eventbustest.New(t)
	charge, rec := failing(errBusy, errBusy, errBusy, errBusy, errBusy)
	_, err := bus.Subscribe("order.*", charge, eventbus.Named("billing"),
		eventbus.Timeout(5*time.Second),
		eventbus.Retry(eventbus.MaxRetries(5), eventbus.BaseDelay(500*time.Millisecond), eventbus.FullJitter))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.Len(t, rec.Deliveries(), 6)
	return err
}

func readmeOrder(t *testing.T) error {
	ctx, bus, order := t.Context(), eventbustest.New(t), Order{ID: "o-17"}
	handler, rec := failing(errBusy)
	_, err := bus.Subscribe("order.*", handler)
	require.NoError(t, err)
	for _, step := range []string{"order.placed", "order.paid"} {
		if _, err := bus.Publish(ctx, step, order, eventbus.Key(order.ID)); err != nil {
			return err
		}
	}
	eventbustest.WaitSettled(t, bus)
	var types []string
	for _, d := range rec.Deliveries() {
		types = append(types, d.Event.Type)
	}
	require.Equal(t, []string{"order.placed", "order.placed", "order.paid"}, types)
	return err
}

func readmeDestinations(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	var called []string
	callWebhook := func(_ context.Context, e eventbus.Event) error {
		customer := e.Metadata.Get("customer")
		if customer == "sick" {
			return eventbus.Throttle(errBusy, time.Hour)
		}
		called = append(called, customer)
		return nil
	}
	_, err := bus.Subscribe("invoice.*", callWebhook, eventbus.Named("webhooks"), eventbus.Isolated(),
		eventbus.Concurrency(4),
		eventbus.PerDestination(func(e eventbus.Event) string { return e.Metadata.Get("customer") }))
	require.NoError(t, err)
	_, err = bus.Publish(ctx, "invoice.due", nil, eventbus.Metadata("customer", "sick"))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(ctx, "invoice.due", nil, eventbus.Metadata("customer", "well"))
	require.Equal(t, []string{"well"}, called)
	require.NoError(t, err)
	require.Equal(t, 1, bus.Metrics().Subscriptions[0].Throttled)
	report, err := bus.CancelMatching(ctx, eventbus.DispatchQuery{All: true})
	require.Equal(t, 1, report.Done)
	return err
}

func readmeStore(t *testing.T) error {
	ctx, handled := context.WithoutCancel(t.Context()), make(chan string, 1)
	t.Chdir(t.TempDir())
	live := func(handler eventbus.Handler, then func(bus *eventbus.Bus)) error {
		store, err := sqlite.Open(ctx, "events.db") // module store/sqlite, without cgo
		if err != nil {
			return err
		}
		bus, err := eventbus.New(eventbus.WithStore(store)) // Shutdown closes the store
		if err != nil {
			return err
		}
		_, err = bus.Subscribe("order.*", handler, eventbus.Named("mail"), eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited), eventbus.BaseDelay(time.Millisecond)))
		require.NoError(t, err)
		require.NoError(t, bus.Start(ctx))
		then(bus)
		return bus.Shutdown(ctx)
	}
	err := live(func(context.Context, eventbus.Event) error { return errBusy }, func(bus *eventbus.Bus) {
		_, err := bus.Publish(ctx, "order.placed", "o-17")
		require.NoError(t, err)
	})
	require.NoError(t, err)
	return live(eventbus.Typed(func(_ context.Context, order string) error {
		handled <- order
		return nil
	}), func(*eventbus.Bus) { require.Equal(t, "o-17", <-handled) })
}

func readmeTransaction(t *testing.T) error {
	ctx, path := context.WithoutCancel(t.Context()), filepath.Join(t.TempDir(), "events.db")
	store, err := sqlite.Open(ctx, path)
	require.NoError(t, err)
	bus, err := eventbus.New(eventbus.WithStore(store))
	adopt(t, bus, err)
	handled := make(chan Order, 1)
	_, err = bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, o Order) error {
		handled <- o
		return nil
	}), eventbus.Named("mail"))
	require.NoError(t, err)
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = db.ExecContext(ctx, "CREATE TABLE shop_orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL)")
	require.NoError(t, err)
	place := func(order Order) error {
		tx, err := db.BeginTx(ctx, nil) // db: your *sql.DB on the file of the store
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "INSERT INTO shop_orders (id, cents) VALUES (?, ?)", order.ID, order.Cents); err != nil {
			return err
		}
		if _, err := bus.PublishTx(ctx, tx, "order.placed", order); err != nil {
			return err
		}
		return tx.Commit()
	}
	require.NoError(t, place(Order{"o-17", 4200}))
	require.Equal(t, Order{"o-17", 4200}, <-handled)
	require.Error(t, place(Order{"o-17", 1}), "the id is there")
	eventbustest.WaitSettled(t, bus)
	require.Empty(t, handled)
	return nil
}

func readmeRepair(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	handler, rec := failing(eventbus.Permanent(errBusy), eventbus.Permanent(errBusy))
	_, err := bus.Subscribe("order.*", handler)
	require.NoError(t, err)
	for range 2 {
		_, err = bus.Publish(ctx, "order.placed", nil)
		require.NoError(t, err)
	}
	eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{}, 2)
	groups, err := bus.DLQ().Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		return err
	}
	report, err := bus.DLQ().ReplayMatching(ctx,
		eventbus.LetterQuery{Fingerprint: groups[0].Fingerprint}, eventbus.Rate(100))
	require.Equal(t, 2, report.Replayed)
	eventbustest.WaitSettled(t, bus)
	require.Len(t, rec.Deliveries(), 4)
	return err
}
