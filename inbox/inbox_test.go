package inbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/inbox"
	"github.com/surebus/eventbus/storetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, err := range []error{cleanUp(), goleak.Find()} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

var cleanUp = func() error { return nil }

// databases are those with which each test runs.
var databases = map[string]func(t *testing.T) *sql.DB{
	"sqlite": func(t *testing.T) *sql.DB {
		return open(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "service.db")+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)")
	},
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), "CREATE TABLE effect (n BIGINT)")
	require.NoError(t, err)
	return db
}

func each(t *testing.T, test func(t *testing.T, db *sql.DB)) {
	t.Helper()
	for name, db := range databases {
		t.Run(name, func(t *testing.T) { test(t, db(t)) })
	}
}

func newBus(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	usual := []eventbus.Option{
		eventbus.WithRetry(eventbus.MaxRetries(20), eventbus.BaseDelay(time.Millisecond), eventbus.MaxDelay(10*time.Millisecond)),
		eventbus.WithCircuit(eventbus.NoCircuit()),
	}
	bus, err := eventbus.New(append(usual, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, bus.Shutdown(ctx))
	})
	return bus
}

func newInbox(t *testing.T, bus *eventbus.Bus, db *sql.DB, opts ...inbox.Option) *inbox.Inbox {
	t.Helper()
	in, err := inbox.New(t.Context(), bus, db, opts...)
	require.NoError(t, err)
	return in
}

// insert is a handler that inserts the payload, and then does what end does.
func insert(end func(ctx context.Context, attempt int) error) eventbus.Handler {
	return eventbus.Typed(func(ctx context.Context, n int) error {
		if _, err := inbox.Tx(ctx).ExecContext(ctx, fmt.Sprintf("INSERT INTO effect (n) VALUES (%d)", n)); err != nil {
			return err
		}
		d, _ := eventbus.FromContext(ctx)
		return end(ctx, d.Attempt)
	})
}

func succeeds(context.Context, int) error { return nil }

func subscribe(t *testing.T, bus *eventbus.Bus, name string, h eventbus.Handler, opts ...eventbus.SubscribeOption) {
	t.Helper()
	_, err := bus.Subscribe("order.*", h, append([]eventbus.SubscribeOption{eventbus.Named(name)}, opts...)...)
	require.NoError(t, err)
}

func start(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	require.NoError(t, bus.Start(t.Context()))
}

func publish(t *testing.T, bus *eventbus.Bus, n int, opts ...eventbus.PublishOption) eventbus.EventID {
	t.Helper()
	id, err := bus.Publish(t.Context(), "order.placed", n, opts...)
	require.NoError(t, err)
	return id
}

func drain(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, bus.Drain(ctx))
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

const (
	effects = "SELECT count(*) FROM effect"
	marked  = "SELECT count(*) FROM eventbus_inbox"
)

// A failed attempt, whatever its failure, has no effect.
func TestOnce_AFailedAttemptHasNoEffect(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		for name, fail := range map[string]func(context.Context) error{
			"error":    func(context.Context) error { return errors.New("failed") },
			"panic":    func(context.Context) error { panic("failed") },
			"deadline": func(ctx context.Context) error { <-ctx.Done(); return nil },
		} {
			t.Run(name, func(t *testing.T) {
				before := number(t, db, effects)
				bus := newBus(t)
				in := newInbox(t, bus, db)
				subscribe(t, bus, "billing", insert(func(ctx context.Context, attempt int) error {
					if attempt < 3 {
						return fail(ctx)
					}
					return nil
				}), eventbus.Use(in.Once), eventbus.Timeout(500*time.Millisecond), eventbus.Retry(eventbus.MaxRetries(20))) // a loaded server may be late
				start(t, bus)
				publish(t, bus, 7)
				drain(t, bus)
				require.Equal(t, before+1, number(t, db, effects))
				require.EqualValues(t, 1, bus.Metrics().Ledger.Handled)
			})
		}
	})
}

// afterwards is a middleware that fails after the commit, as a process does that dies.
func afterwards(fails *atomic.Bool) eventbus.SubscribeOption {
	return eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			if err := next(ctx, e); err != nil || !fails.Load() {
				return err
			}
			return eventbus.Permanent(errors.New("failed after the commit"))
		}
	})
}

func onlyLetter(t *testing.T, bus *eventbus.Bus) eventbus.DeadLetter {
	t.Helper()
	page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Len(t, page.Letters, 1)
	return page.Letters[0]
}

// The handler does not run again after its commit, whatever became of the attempt and its process, unless an operator has
// edited the event.
func TestOnce_AHandledEventIsNotHandledAgain(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		disk := storetest.NewModel()
		bus := newBus(t, eventbus.WithStore(disk.Open()))
		var fails atomic.Bool
		fails.Store(true)
		subscribe(t, bus, "billing", insert(succeeds), afterwards(&fails), eventbus.Use(newInbox(t, bus, db).Once))
		start(t, bus)
		publish(t, bus, 7)
		drain(t, bus)
		require.NoError(t, bus.Shutdown(t.Context()))

		later := newBus(t, eventbus.WithStore(disk.Open()))
		subscribe(t, later, "bills", insert(succeeds), eventbus.Formerly("billing"), afterwards(&fails), eventbus.Use(newInbox(t, later, db).Once))
		start(t, later)
		require.NoError(t, later.DLQ().Replay(t.Context(), onlyLetter(t, later).ID))
		drain(t, later)
		require.Equal(t, 1, number(t, db, effects))
		for n := range 2 {
			require.NoError(t, later.DLQ().ReplayEdited(t.Context(), onlyLetter(t, later).ID, json.RawMessage("8")))
			drain(t, later)
			require.Equal(t, n+2, number(t, db, effects))
		}
		fails.Store(false)
		require.NoError(t, later.DLQ().Replay(t.Context(), onlyLetter(t, later).ID))
		drain(t, later)
		require.Equal(t, 3, number(t, db, effects))
		require.EqualValues(t, 1, later.Metrics().Ledger.Handled)
	})
}

// Two processes have the same event, because one was paused while its handler ran.
func TestOnce_TwoProcessesHaveTheEvent(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		id := eventbus.NewEventID()
		running, goOn := make(chan struct{}), make(chan struct{})
		paused, other := newBus(t), newBus(t)
		subscribe(t, paused, "billing", insert(func(context.Context, int) error {
			close(running)
			<-goOn
			return nil
		}), eventbus.Use(newInbox(t, paused, db).Once))
		subscribe(t, other, "billing", insert(succeeds), eventbus.Use(newInbox(t, other, db).Once))
		for _, bus := range []*eventbus.Bus{paused, other} {
			start(t, bus)
			publish(t, bus, 7, eventbus.ID(id))
			if bus == paused {
				<-running
			}
		}
		close(goOn)
		drain(t, paused)
		drain(t, other)
		require.Equal(t, 1, number(t, db, effects))
		require.EqualValues(t, 1, other.Metrics().Ledger.Handled)
		require.Equal(t, 1, number(t, db, marked))
	})
}

// A middleware that is there twice does not wait for itself.
func TestOnce_Twice(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		bus := newBus(t)
		in := newInbox(t, bus, db)
		subscribe(t, bus, "billing", insert(succeeds), eventbus.Use(in.Once, in.Once))
		start(t, bus)
		publish(t, bus, 1)
		drain(t, bus)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Handled)
		require.Equal(t, 1, number(t, db, effects))
	})
}

// Each subscription has marks of its own.
func TestOnce_SubscriptionsAreApart(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		bus := newBus(t)
		in := newInbox(t, bus, db)
		for _, name := range []string{"billing", "mail", "ü ' \" ; --"} {
			subscribe(t, bus, name, insert(succeeds), eventbus.Use(in.Once))
		}
		subscribe(t, bus, strings.Repeat("n", 255), insert(succeeds), eventbus.Use(in.Once))
		start(t, bus)
		for n := range 10 {
			publish(t, bus, n)
		}
		drain(t, bus)
		require.Equal(t, 40, number(t, db, effects))
		require.Equal(t, 40, number(t, db, marked))
	})
}

// A mark is removed when it is old and the bus knows the event no more.
func TestPrune_KeepsWhatTheBusKnows(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		bus := newBus(t, eventbus.WithStore(storetest.NewModel().Open()))
		in := newInbox(t, bus, db, inbox.WithRetention(time.Hour))
		subscribe(t, bus, "billing", insert(succeeds), eventbus.Use(in.Once))
		subscribe(t, bus, "mail", eventbus.Typed(func(_ context.Context, n int) error {
			if n < 120 {
				return eventbus.Permanent(errors.New("bad address"))
			}
			return nil
		}))
		start(t, bus)
		for n := range 240 {
			publish(t, bus, n)
		}
		drain(t, bus)
		require.Equal(t, 240, number(t, db, marked))
		events, err := in.Prune(t.Context())
		require.NoError(t, err)
		require.Zero(t, events, "none is old")
		_, err = db.ExecContext(t.Context(), "UPDATE eventbus_inbox SET marked = marked - 3601")
		require.NoError(t, err)
		removed := 0
		for range 3 {
			events, err := in.Prune(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, events, 100)
			removed += events
		}
		require.Equal(t, 120, removed)
		require.Equal(t, 120, number(t, db, marked), "those with letters")
		_, err = bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "UPDATE eventbus_inbox SET marked = marked - 3601")
		require.NoError(t, err)
		for range 2 {
			_, err = in.Prune(t.Context())
			require.NoError(t, err)
		}
		require.Zero(t, number(t, db, marked))
	})
}

// The database fails, and the attempts with it.
func TestOnce_TheDatabaseFails(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		bus := newBus(t, eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Millisecond)))
		in := newInbox(t, bus, db)
		subscribe(t, bus, "billing", insert(succeeds), eventbus.Use(in.Once))
		start(t, bus)
		_, err := db.ExecContext(t.Context(), "DROP TABLE eventbus_inbox")
		require.NoError(t, err)
		publish(t, bus, 7)
		drain(t, bus)
		letter := onlyLetter(t, bus)
		require.Contains(t, letter.Failures[0].Error, "inbox: look for a mark")
		require.Zero(t, number(t, db, effects))
		_, err = in.Prune(t.Context())
		require.ErrorContains(t, err, "inbox: Prune")
		newInbox(t, bus, db)
		require.NoError(t, bus.DLQ().Replay(t.Context(), letter.ID))
		drain(t, bus)
		require.Equal(t, 1, number(t, db, effects))
	})
}

func TestOnce_OutsideOfABus(t *testing.T) {
	bus := newBus(t)
	called := false
	h := newInbox(t, bus, databases["sqlite"](t)).Once(func(context.Context, eventbus.Event) error { called = true; return nil })
	require.ErrorContains(t, h(t.Context(), eventbus.Event{}), "a bus must call it")
	require.False(t, called)
	require.Nil(t, inbox.Tx(t.Context()))
}

func TestNew_BadInput(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		bus := newBus(t)
		for name, err := range map[string]error{
			"bus":           errorOf(inbox.New(t.Context(), nil, db)),
			"db":            errorOf(inbox.New(t.Context(), bus, nil)),
			"nil":           errorOf(inbox.New(t.Context(), bus, db, nil)),
			"WithLogger":    errorOf(inbox.New(t.Context(), bus, db, inbox.WithLogger(nil))),
			"WithRetention": errorOf(inbox.New(t.Context(), bus, db, inbox.WithRetention(0))),
		} {
			var option *eventbus.OptionError
			require.ErrorAs(t, err, &option, name)
			require.Equal(t, name, option.Option)
		}
		for _, table := range []string{"", ".", "a.", ".a", "a.b.c", "a b", "a;b", `a"`, "1a", "ü"} {
			require.ErrorContains(t, errorOf(inbox.New(t.Context(), bus, db, inbox.WithTable(table))), "WithTable", table)
		}
		var table *inbox.TableError
		require.ErrorAs(t, errorOf(inbox.New(t.Context(), bus, db, inbox.WithTable("effect"))), &table)
		require.Equal(t, "effect", table.Table)
		require.ErrorAs(t, errorOf(inbox.New(t.Context(), bus, db, inbox.WithTable("nowhere.inbox"))), &table)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, errorOf(inbox.New(ctx, bus, db)), context.Canceled)
		require.Zero(t, number(t, db, effects))
		newInbox(t, bus, db, inbox.WithTable("marks"))
		newInbox(t, bus, db, inbox.WithTable("marks"))
		require.Zero(t, number(t, db, "SELECT count(*) FROM marks"))
	})
}

func errorOf(_ *inbox.Inbox, err error) error { return err }
