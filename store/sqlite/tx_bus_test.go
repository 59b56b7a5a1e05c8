package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// database opens a file as a service does, which has the table booking in it.
func database(t testing.TB, path, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?"+params)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

const immediate = "_txlock=immediate&_pragma=busy_timeout(10000)"

func booking(t testing.TB, path string) *sql.DB {
	t.Helper()
	db := database(t, path, immediate)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS booking (what TEXT PRIMARY KEY)")
	require.NoError(t, err)
	return db
}

func txOf(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	require.NoError(t, err)
	return tx
}

func (p *process) publishTx(tx *sql.Tx, payload string, opts ...eventbus.PublishOption) (eventbus.EventID, error) {
	return p.PublishTx(context.Background(), tx, "order.placed", payload, opts...)
}

func TestT1_PublishTxInBadTransactions(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	db := booking(t, path)
	otherPath := newPath(t)
	other := begin(t, otherPath)

	finished, rolledBack := txOf(t, db), (*sql.Tx)(nil)
	require.NoError(t, finished.Commit())
	rolledBack = txOf(t, db)
	require.NoError(t, rolledBack.Rollback())
	for _, tx := range []*sql.Tx{finished, rolledBack} {
		_, err := p.publishTx(tx, "x")
		require.ErrorIs(t, err, sql.ErrTxDone)
	}
	foreign := txOf(t, booking(t, otherPath))
	_, err := p.publishTx(foreign, "x")
	require.ErrorIs(t, err, eventbus.ErrNoTransaction)
	require.ErrorContains(t, err, path)
	_, err = other.publishTx(foreign, "of the other file")
	require.NoError(t, err, "it goes on")
	require.NoError(t, foreign.Rollback())
	for _, params := range []string{"mode=ro", "_pragma=query_only(1)"} {
		readOnly := txOf(t, database(t, path, params))
		_, err = p.publishTx(readOnly, "x")
		require.ErrorContains(t, err, "for reading only", params)
		require.NoError(t, readOnly.Rollback())
	}
	p.publish("y")
	p.waitCalls("mail y")
	require.Equal(t, map[string]int{"mail y": 1}, p.settled().called())
	other.end()
	p.end()
}

// A store that has its file alone has no standby, and no service has a transaction on the file.
func TestS6_AnExclusiveStoreHasNoStandbyAndTakesNoTransaction(t *testing.T) {
	s, err := sqlite.Open(t.Context(), newPath(t), sqlite.WithExclusive())
	if runtime.GOOS == "windows" {
		require.Error(t, err)
		return
	}
	require.NoError(t, err)
	_, err = eventbus.New(eventbus.WithStore(s), eventbus.WithStandby())
	var wrong *eventbus.OptionError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "WithStandby", wrong.Option)
	require.ErrorContains(t, err, "open it without")
	bus, err := eventbus.New(eventbus.WithStore(s))
	require.NoError(t, err)
	_, err = bus.PublishTx(t.Context(), new(sql.Tx), "a", "x")
	require.ErrorIs(t, err, eventbus.ErrNoTransaction)
	require.ErrorContains(t, err, "open it so that others can open them too")
	require.NoError(t, bus.Start(t.Context()))
	require.NoError(t, bus.Shutdown(t.Context()))
}

// An error of a statement does not end a transaction of SQLite: what was published in it stays in it.
func TestT1_PublishTxAfterAnErrorOfTheTransaction(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	db := booking(t, path)
	for _, commits := range []bool{false, true} {
		tx := txOf(t, db)
		_, err := tx.ExecContext(t.Context(), "INSERT INTO booking VALUES ('room')")
		require.NoError(t, err)
		_, err = p.publishTx(tx, fmt.Sprint("before ", commits))
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO booking VALUES ('room')")
		require.ErrorContains(t, err, "UNIQUE")
		_, err = tx.ExecContext(t.Context(), "no SQL")
		require.Error(t, err)
		_, err = p.publishTx(tx, fmt.Sprint("after ", commits))
		require.NoError(t, err)
		if commits {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
	}
	p.waitCalls("mail before true", "mail after true")
	require.Len(t, p.settled().called(), 2)
	p.end()
}

func TestT3_PublishTxWithAUsedID(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	db := booking(t, path)
	id := eventbus.NewEventID()
	p.publish("x", eventbus.ID(id))
	p.waitCalls("mail x")
	tx := txOf(t, db)
	got, err := p.publishTx(tx, "x", eventbus.ID(id))
	require.NoError(t, err)
	require.Equal(t, id, got)
	_, err = p.publishTx(tx, "another", eventbus.ID(id))
	require.ErrorIs(t, err, eventbus.ErrDuplicateID)
	_, err = p.publishTx(tx, "y")
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	p.waitCalls("mail y")
	require.Equal(t, map[string]int{"mail x": 1, "mail y": 1}, p.settled().called())

	// Two transactions with one id: the later one is a repetition, or becomes a letter.
	id = eventbus.NewEventID()
	for _, payload := range []string{"first", "first", "second"} {
		tx := txOf(t, db)
		_, err := p.publishTx(tx, payload, eventbus.ID(id))
		if payload == "second" && err != nil { // it has been taken in
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
			require.NoError(t, tx.Rollback())
			continue
		}
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	}
	p.waitCalls("mail first")
	called := p.settled().called()
	require.Equal(t, 1, called["mail first"])
	require.Zero(t, called["mail second"])
	for _, l := range p.list(eventbus.LetterQuery{}) {
		require.Equal(t, eventbus.ReasonDuplicate, l.Reason)
	}
	p.end()
}

func TestT1_PublishTxOfAMebibyte(t *testing.T) {
	path := newPath(t)
	p := begin(t, path, eventbus.WithPayloadLimit(2<<20))
	large := strings.Repeat("x", 1<<20)
	p.handles("mail", nil)
	p.start()
	db := booking(t, path)
	tx := txOf(t, db)
	for range 3 {
		_, err := p.publishTx(tx, large)
		require.NoError(t, err)
	}
	_, err := p.publishTx(tx, large+large)
	require.Error(t, err)
	require.NoError(t, tx.Commit())
	p.eventually("three calls", func() bool { return p.called()["mail "+large] == 3 })
	p.settled().end()
}

// A handler publishes in a transaction that it begins. A Publish meanwhile would wait for the transaction.
func TestT5_PublishTxInAHandler(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	db := booking(t, path)
	p.handles("mail", nil)
	_, err := p.Subscribe("start", func(ctx context.Context, _ eventbus.Event) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := p.PublishTx(ctx, tx, "order.placed", "from a handler"); err != nil {
			return err
		}
		_, err = p.Publish(ctx, "order.placed", "too early")
		p.note(fmt.Sprint("would deadlock: ", errors.Is(err, eventbus.ErrWouldDeadlock)))
		if err := tx.Commit(); err != nil {
			return err
		}
		_, err = p.Publish(ctx, "order.placed", "after it")
		return err
	}, eventbus.Named("start"))
	require.NoError(t, err)
	p.start()
	_, err = p.Publish(t.Context(), "start", "go")
	require.NoError(t, err)
	p.waitCalls("mail from a handler", "mail after it")
	called := p.settled().called()
	require.Equal(t, 1, called["would deadlock: true"])
	require.Zero(t, called["mail too early"])
	require.Equal(t, 1, called["mail from a handler"])
	p.end()
}

// A transaction that stays open longer than WithLockWait costs no event and does not make the store fail.
func TestT5_ATransactionThatStaysOpen(t *testing.T) {
	path := newPath(t)
	p := begin(t, path, sqlite.WithLockWait(200*time.Millisecond))
	p.handles("mail", nil)
	p.start()
	p.publish("before")
	db := booking(t, path)
	tx := txOf(t, db)
	_, err := tx.ExecContext(t.Context(), "INSERT INTO booking VALUES ('room')")
	require.NoError(t, err)
	_, err = p.publishTx(tx, "in it")
	require.NoError(t, err)
	var publishers sync.WaitGroup
	var mu sync.Mutex
	errs := make(map[string]error)
	for i := range 8 {
		publishers.Go(func() {
			payload := fmt.Sprint("meanwhile ", i)
			_, err := p.Publish(context.Background(), "order.placed", payload)
			mu.Lock()
			defer mu.Unlock()
			errs[payload] = err
		})
	}
	publishers.Wait()
	require.NoError(t, tx.Commit())
	calls := []string{"mail before", "mail in it"}
	for payload, err := range errs {
		var unknown *eventbus.IndeterminateError
		if err == nil {
			continue
		}
		require.ErrorAs(t, err, &unknown, payload)
		require.ErrorIs(t, err, sqlite.ErrBusy, payload)
		require.ErrorContains(t, err, "transaction", payload)
		require.ErrorContains(t, err, path, payload)
		require.False(t, unknown.ID.IsZero())
		calls = append(calls, "mail "+payload)
	}
	require.Greater(t, len(calls), 2, "publications ended while the lock was held")
	p.waitCalls(calls...) // what was submitted is committed after it
	p.publish("after")
	p.waitCalls("mail after")
	for call, n := range p.settled().called() {
		require.Equal(t, 1, n, call)
	}
	for _, message := range []string{"store failed", "store failed: the bus restarts"} {
		require.Zero(t, p.logs.FilterMessage(message).Len(), message)
	}
	p.end()
}

// Of two standbys, one takes over, and the other one when that one ends.
func TestS6_TwoStandbysAndOneLease(t *testing.T) {
	path := newPath(t)
	all := []*process{begin(t, path, eventbus.WithStandby()), begin(t, path, eventbus.WithStandby()), begin(t, path, eventbus.WithStandby())}
	type start struct {
		p   *process
		err error
	}
	started := make(chan start, len(all))
	for i, p := range all {
		p.handles("mail", nil)
		go func() { started <- start{p, p.Start(context.Background())} }()
		if i == 0 {
			require.NoError(t, (<-started).err)
		}
	}
	active, left := all[0], all[1:]
	for round := range 3 {
		want := fmt.Sprint("round ", round)
		for i, p := range left {
			p.publish(fmt.Sprint(want, " standby ", i))
		}
		active.publish(want)
		calls := []string{"mail " + want}
		for i := range left {
			calls = append(calls, fmt.Sprint("mail ", want, " standby ", i))
		}
		active.waitCalls(calls...)
		require.Empty(t, started, "one has the lease")
		active.settled().end()
		for _, p := range left {
			require.Empty(t, p.called())
		}
		if len(left) == 0 {
			break
		}
		next := <-started
		require.NoError(t, next.err)
		active = next.p
		var rest []*process
		for _, p := range left {
			if p != active {
				rest = append(rest, p)
			}
		}
		left = rest
	}
}

// The lease file of the active bus is replaced while a standby waits. Whichever of the two has the lease then, what was
// acknowledged is handled.
func TestS6_TheLeaseFileIsReplaced(t *testing.T) {
	skipOnWindows(t)
	path := newPath(t)
	active, standby := begin(t, path, eventbus.WithStandby()), begin(t, path, eventbus.WithStandby())
	active.handles("mail", nil)
	standby.handles("mail", nil)
	active.start()
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- standby.Start(stop) }()
	var calls []string
	publish := func(p *process, payload string) {
		_, err := p.Publish(context.Background(), "order.placed", payload)
		if err == nil {
			calls = append(calls, "mail "+payload)
		}
	}
	handled := func(call string) bool { return active.called()[call]+standby.called()[call] > 0 }
	for round := range 3 {
		text, err := os.ReadFile(path + "-lease")
		require.NoError(t, err)
		require.NoError(t, os.Remove(path+"-lease"))
		require.NoError(t, os.WriteFile(path+"-lease", text, 0o600))
		for i := range 20 {
			publish(active, fmt.Sprint("a ", round, i))
			publish(standby, fmt.Sprint("s ", round, i))
			time.Sleep(10 * time.Millisecond)
		}
	}
	require.NotEmpty(t, calls)
	active.eventually("what was acknowledged is handled", func() bool {
		for _, call := range calls {
			if !handled(call) {
				return false
			}
		}
		return true
	})
	cancel()
	require.NoError(t, <-ended)
	require.Empty(t, active.list(eventbus.LetterQuery{}))
}

// The process of the active bus ends while a transaction is open. The standby waits for both, and the store does not fail.
func TestT5_AStandbyTakesOverAfterATransaction(t *testing.T) {
	path := newPath(t)
	lockWait := sqlite.WithLockWait(200 * time.Millisecond)
	active, standby := begin(t, path, lockWait, eventbus.WithStandby()), begin(t, path, lockWait, eventbus.WithStandby())
	active.handles("mail", nil)
	standby.handles("mail", nil)
	active.start()
	active.publish("before")
	active.waitCalls("mail before")
	active.settled()
	started := make(chan error, 1)
	go func() { started <- standby.Start(context.Background()) }()
	db := booking(t, path)
	time.Sleep(500 * time.Millisecond) // it has recorded its catalog
	tx := txOf(t, db)
	_, err := tx.ExecContext(t.Context(), "INSERT INTO booking VALUES ('room')")
	require.NoError(t, err)
	active.crash()
	time.Sleep(time.Second) // the standby meets the lock
	_, err = standby.Publish(context.Background(), "order.placed", "meanwhile")
	var unknown *eventbus.IndeterminateError
	require.ErrorAs(t, err, &unknown)
	require.ErrorIs(t, err, sqlite.ErrBusy)
	require.Empty(t, started)
	require.NoError(t, tx.Commit())
	require.NoError(t, <-started)
	standby.publish("after")
	standby.waitCalls("mail meanwhile", "mail after")
	for call, n := range standby.settled().called() {
		require.Equal(t, 1, n, call)
	}
	for _, message := range []string{"store failed", "store failed: the bus restarts", "store does not reopen"} {
		require.Zero(t, standby.logs.FilterMessage(message).Len(), message)
	}
	standby.end()
}
