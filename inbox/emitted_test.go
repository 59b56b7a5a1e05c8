package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/inbox"
	"github.com/surebus/eventbus/storetest"
)

const parts = "SELECT count(*) FROM eventbus_inbox_emitted"

// emits is a handler that inserts the payload, emits an event of the type bill.sent with it, and then does what end does.
func emits(ids *sync.Map, end func(ctx context.Context, attempt int) error) eventbus.Handler {
	return insert(func(ctx context.Context, attempt int) error {
		d, _ := eventbus.FromContext(ctx)
		id, err := eventbus.Emit(ctx, "bill.sent", "of "+d.Event.ID.String(), eventbus.Key("k"))
		if err != nil {
			return err
		}
		ids.Store(id, d.Event.ID)
		return end(ctx, attempt)
	})
}

// children subscribes a handler that counts the events of the type bill.sent by their ids.
func children(t *testing.T, bus *eventbus.Bus) *sync.Map {
	t.Helper()
	counts := new(sync.Map)
	_, err := bus.Subscribe("bill.sent", func(_ context.Context, e eventbus.Event) error {
		n, _ := counts.LoadOrStore(e.ID, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		return nil
	}, eventbus.Named("bills"))
	require.NoError(t, err)
	return counts
}

// requireOnce requires that the ids are those of the children, of which each was handled once.
func requireOnce(t *testing.T, want int, ids, counts *sync.Map) {
	t.Helper()
	n := 0
	counts.Range(func(id, times any) bool {
		n++
		_, known := ids.Load(id)
		require.True(t, known, "%v was not emitted", id)
		require.EqualValues(t, 1, times.(*atomic.Int64).Load())
		return true
	})
	require.Equal(t, want, n)
}

// failsOnce is a middleware that fails each event once, after the commit.
func failsOnce() eventbus.SubscribeOption {
	var failed sync.Map
	return eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			err := next(ctx, e)
			if _, again := failed.LoadOrStore(e.ID, true); err == nil && !again {
				return errors.New("failed after the commit")
			}
			return err
		}
	})
}

// An attempt that skips the handler publishes what the handler has emitted, once, in memory and with a store.
func TestEmit_ASkippedHandler(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		for name, opts := range map[string][]eventbus.Option{"memory": nil, "store": {eventbus.WithStore(storetest.NewModel().Open())}} {
			t.Run(name, func(t *testing.T) {
				before, ids := number(t, db, effects), new(sync.Map)
				bus := newBus(t, opts...)
				subscribe(t, bus, "billing", emits(ids, succeeds), failsOnce(), eventbus.Use(newInbox(t, bus, db).Once))
				counts := children(t, bus)
				start(t, bus)
				for n := range 20 {
					publish(t, bus, n)
				}
				drain(t, bus)
				require.Equal(t, before+20, number(t, db, effects))
				requireOnce(t, 20, ids, counts)
				require.EqualValues(t, 40, bus.Metrics().Ledger.Handled)
			})
		}
	})
}

// A process dies between the commit and the success. The next one knows the subscription by another name.
func TestEmit_ACrashAfterTheCommit(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		disk, ids := storetest.NewModel(), new(sync.Map)
		store := disk.Open()
		bus, err := eventbus.New(eventbus.WithStore(store))
		require.NoError(t, err)
		committed, over := make(chan struct{}), make(chan struct{})
		dies := eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
			return func(ctx context.Context, e eventbus.Event) error {
				err := next(ctx, e)
				close(committed)
				<-over
				return err
			}
		})
		subscribe(t, bus, "mail", emits(ids, succeeds), dies, eventbus.Use(newInbox(t, bus, db).Once))
		start(t, bus)
		publish(t, bus, 7)
		<-committed
		disk.Kill(store)
		close(over)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = bus.Shutdown(ended)

		later := newBus(t, eventbus.WithStore(disk.Open()))
		subscribe(t, later, "post", insert(func(context.Context, int) error { return errors.New("it was called") }), eventbus.Formerly("mail"), eventbus.Use(newInbox(t, later, db).Once))
		counts := children(t, later)
		start(t, later)
		drain(t, later)
		require.Equal(t, 1, number(t, db, effects))
		requireOnce(t, 1, ids, counts)
		require.EqualValues(t, 2, later.Metrics().Ledger.Handled)
	})
}

// Events that were committed under one of the names are found under each of them.
func TestEmit_NamesThatComeAndGo(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		id, ids := eventbus.NewEventID(), new(sync.Map)
		for n, names := range [][]string{{"a", "b"}, {"b"}, {"c", "a"}} { // the current one first
			bus := newBus(t)
			opts := []eventbus.SubscribeOption{eventbus.Use(newInbox(t, bus, db).Once)}
			if len(names) > 1 {
				opts = append(opts, eventbus.Formerly(names[1:]...))
			}
			subscribe(t, bus, names[0], emits(ids, succeeds), opts...)
			counts := children(t, bus)
			start(t, bus)
			publish(t, bus, 7, eventbus.ID(id))
			drain(t, bus)
			require.Equal(t, 1, number(t, db, effects), "process %d", n+1)
			requireOnce(t, 1, ids, counts) // a bus in memory does not know the child of the one before
		}
	})
}

// A transaction that rolls back has emitted nothing.
func TestEmit_ARollback(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		for name, fail := range map[string]func(context.Context) error{
			"error":    func(context.Context) error { return errors.New("failed") },
			"panic":    func(context.Context) error { panic("failed") },
			"deadline": func(ctx context.Context) error { <-ctx.Done(); return nil },
		} {
			t.Run(name, func(t *testing.T) {
				bus, ids := newBus(t), new(sync.Map)
				in := newInbox(t, bus, db)
				before := number(t, db, parts)
				subscribe(t, bus, "billing", emits(ids, func(ctx context.Context, attempt int) error {
					if attempt < 3 {
						return fail(ctx)
					}
					return nil
				}), eventbus.Use(in.Once), eventbus.Timeout(500*time.Millisecond))
				counts := children(t, bus)
				start(t, bus)
				publish(t, bus, 7)
				drain(t, bus)
				requireOnce(t, 1, ids, counts)
				require.Equal(t, before+1, number(t, db, parts))
			})
		}
		bus, ids := newBus(t, eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Millisecond))), new(sync.Map)
		before := number(t, db, parts)
		subscribe(t, bus, "billing", emits(ids, func(context.Context, int) error { return errors.New("failed") }), eventbus.Use(newInbox(t, bus, db).Once))
		counts := children(t, bus)
		start(t, bus)
		publish(t, bus, 7)
		drain(t, bus)
		requireOnce(t, 0, ids, counts)
		require.Equal(t, before, number(t, db, parts))
	})
}

// Payloads of many parts, of texts of which a part may end within a character.
func TestEmit_LargePayloads(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		bus := newBus(t, eventbus.WithStore(storetest.NewModel().Open()))
		large := func(n int) string { return fmt.Sprint(n) + strings.Repeat("ü\x00\\\"", 30_000) }
		subscribe(t, bus, "billing", insert(func(ctx context.Context, _ int) error {
			for n := range 5 {
				if _, err := eventbus.Emit(ctx, "bill.sent", large(n), eventbus.Metadata("für", "ü")); err != nil {
					return err
				}
			}
			return nil
		}), failsOnce(), eventbus.Use(newInbox(t, bus, db).Once), eventbus.Timeout(30*time.Second))
		var got sync.Map
		_, err := bus.Subscribe("bill.sent", eventbus.Typed(func(ctx context.Context, text string) error {
			d, _ := eventbus.FromContext(ctx)
			got.Store(text, d.Event.Metadata.Get("für"))
			return nil
		}), eventbus.Named("bills"))
		require.NoError(t, err)
		start(t, bus)
		publish(t, bus, 7)
		drain(t, bus)
		for n := range 5 {
			value, found := got.Load(large(n))
			require.True(t, found)
			require.Equal(t, "ü", value)
		}
		require.Greater(t, number(t, db, parts), 50)
		require.LessOrEqual(t, number(t, db, "SELECT max(length(data)) FROM eventbus_inbox_emitted"), 16<<10)
		require.EqualValues(t, 6, bus.Metrics().Ledger.Handled)
	})
}

// Without the second table the inbox works, and refuses Emit.
func TestEmit_WithoutTheTable(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		_, err := db.ExecContext(t.Context(), "CREATE TABLE eventbus_inbox_emitted (of_another_program INTEGER)")
		require.NoError(t, err)
		core, logs := observer.New(zap.WarnLevel)
		bus := newBus(t)
		in := newInbox(t, bus, db, inbox.WithLogger(zap.New(core)), inbox.WithRetention(time.Second))
		refused := make(chan error, 10)
		subscribe(t, bus, "billing", insert(func(ctx context.Context, _ int) error {
			_, err := eventbus.Emit(ctx, "bill.sent", "x")
			refused <- err
			return nil
		}), failsOnce(), eventbus.Use(in.Once))
		start(t, bus)
		publish(t, bus, 7)
		publish(t, bus, 8)
		drain(t, bus)
		require.Equal(t, 2, number(t, db, effects))
		require.EqualValues(t, 2, bus.Metrics().Ledger.Handled)
		require.Len(t, refused, 2)
		require.ErrorIs(t, <-refused, eventbus.ErrNoTransaction)
		require.Len(t, logs.FilterMessage("inbox cannot keep emitted events").All(), 1)
		_, err = db.ExecContext(t.Context(), "UPDATE eventbus_inbox SET marked = marked - 10")
		require.NoError(t, err)
		events, err := in.Prune(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, events)
	})
}

// Prune removes the emitted events with the mark.
func TestEmit_Prune(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		bus, ids := newBus(t), new(sync.Map)
		in := newInbox(t, bus, db, inbox.WithRetention(time.Hour))
		subscribe(t, bus, "billing", emits(ids, succeeds), eventbus.Use(in.Once))
		start(t, bus)
		for n := range 10 {
			publish(t, bus, n)
		}
		drain(t, bus)
		require.Equal(t, 10, number(t, db, parts))
		_, err := db.ExecContext(t.Context(), "UPDATE eventbus_inbox SET marked = marked - 3601")
		require.NoError(t, err)
		id := publish(t, bus, 10)
		drain(t, bus)
		events, err := in.Prune(t.Context())
		require.NoError(t, err)
		require.Equal(t, 10, events)
		require.Equal(t, 1, number(t, db, parts))
		require.Equal(t, 1, number(t, db, "SELECT count(*) FROM eventbus_inbox_emitted WHERE event = '"+id.String()+"'"))
	})
}

// Parts that are missing or damaged fail the attempt. What they were is not guessed.
func TestEmit_DamagedParts(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		var fails atomic.Bool
		fails.Store(true)
		bus, ids := newBus(t, eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Millisecond))), new(sync.Map)
		subscribe(t, bus, "billing", emits(ids, succeeds), afterwards(&fails), eventbus.Use(newInbox(t, bus, db).Once))
		counts := children(t, bus)
		start(t, bus)
		publish(t, bus, 7)
		drain(t, bus)
		fails.Store(false)
		for _, damage := range []struct{ do, undo, want string }{
			{"part = 1", "part = 0", "part 0"},
			{"data = '?' || data", "data = substr(data, 2)", "part 0"},
			{"data = 'AAAA' || data", "data = substr(data, 5)", "collected events"},
		} {
			_, err := db.ExecContext(t.Context(), "UPDATE eventbus_inbox_emitted SET "+damage.do)
			require.NoError(t, err)
			require.NoError(t, bus.DLQ().Replay(t.Context(), onlyLetter(t, bus).ID))
			drain(t, bus)
			failures := onlyLetter(t, bus).Failures
			require.Contains(t, failures[len(failures)-1].Error, damage.want)
			_, err = db.ExecContext(t.Context(), "UPDATE eventbus_inbox_emitted SET "+damage.undo)
			require.NoError(t, err)
		}
		require.NoError(t, bus.DLQ().Replay(t.Context(), onlyLetter(t, bus).ID))
		drain(t, bus)
		requireOnce(t, 1, ids, counts)
		require.Equal(t, 1, number(t, db, effects))
	})
}
