package sqlite

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// incomingAt returns the incoming events of a store.
func incomingAt(t *testing.T, s *Store, q driver.IncomingQuery) []*driver.Incoming {
	t.Helper()
	q.Limit = 1000
	page, err := s.Incoming(t.Context(), q)
	require.NoError(t, err)
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	if q.Event.IsZero() && q.After == 0 && q.Slots.IsEmpty() {
		require.EqualValues(t, len(page.Events), stats.Incoming)
	}
	return page.Events
}

func TestT1_AnEventIsThereIfTheTransactionCommits(t *testing.T) {
	path := testPath(t)
	s := openOnly(t, path) // no store has the lease
	db := openDB(t, path)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE booking (id INTEGER PRIMARY KEY, what TEXT)")
	require.NoError(t, err)
	events := []*driver.Incoming{waiting(), waiting()}
	events[0].Given, events[0].Codec = true, "gob"
	events[0].Record.Key, events[0].Record.Slot, events[0].Record.Targets = "k", 7, nil
	events[1].Record.State, events[1].Record.Due = driver.Scheduled, t0.Add(time.Hour)
	events[1].Record.Scheduled = t0.Add(time.Hour)
	for _, commits := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO booking (what) VALUES ('room')")
		require.NoError(t, err)
		require.NoError(t, s.SubmitTx(t.Context(), tx, events))
		require.Empty(t, incomingAt(t, s, driver.IncomingQuery{}), "it has not committed")
		if !commits {
			require.NoError(t, tx.Rollback())
			require.Empty(t, incomingAt(t, s, driver.IncomingQuery{}))
			continue
		}
		require.NoError(t, tx.Commit())
	}
	got := incomingAt(t, s, driver.IncomingQuery{})
	require.Len(t, got, 2)
	for i, in := range got {
		require.EqualValues(t, i+1, in.ID)
		require.Zero(t, events[i].ID, "SubmitTx assigns no id")
		events[i].ID = in.ID
	}
	require.Equal(t, events, got)
	require.Equal(t, events[:1], incomingAt(t, s, driver.IncomingQuery{Slots: driver.SlotsOf(7)}))
	require.Equal(t, events[1:], incomingAt(t, s, driver.IncomingQuery{After: 1}))
	require.Equal(t, events[1:], incomingAt(t, s, driver.IncomingQuery{Event: events[1].Record.ID}))
	require.Empty(t, incomingAt(t, s, driver.IncomingQuery{Event: newID()}))
	require.Empty(t, problems(verifyAt(t, path)))

	acquire(t, s)
	require.NoError(t, submit(s, &driver.Batch{Withdraw: []driver.ID{events[1].Record.ID}}))
	takeIn(t, s)
	require.Empty(t, incomingAt(t, s, driver.IncomingQuery{}))
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 1)
	leave(t, s)
	require.EqualValues(t, 3, incomingAt(t, s, driver.IncomingQuery{})[0].ID, "an id is never used again")
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM booking").Scan(&n))
	require.Equal(t, 1, n)
	require.Empty(t, problems(verifyAt(t, path)))
}

func TestT1_AnotherTransactionIsRefused(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	events := []*driver.Incoming{waiting()}
	inMemory, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	defer inMemory.Close()
	inMemoryTx, err := inMemory.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	other := openAt(t, testPath(t))
	otherTx := beginTx(t, other.path)
	attached, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	defer attached.Close()
	attached.SetMaxOpenConns(1)
	_, err = attached.ExecContext(t.Context(), "ATTACH ? AS events", path)
	require.NoError(t, err)
	attachedTx, err := attached.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	copied := copyFiles(t, path)
	for name, tx := range map[string]any{
		"nil": nil, "no transaction": 7, "nil pointer": (*sql.Tx)(nil), "database": inMemory,
		"in memory": inMemoryTx, "another store": otherTx, "copy": beginTx(t, copied), "attached": attachedTx,
	} {
		err := s.SubmitTx(t.Context(), tx, events)
		require.ErrorIs(t, err, driver.ErrNoTransaction, name)
		require.ErrorContains(t, err, "*sql.Tx", name)
		require.ErrorContains(t, err, path, name)
		if tx, ok := tx.(*sql.Tx); ok && tx != nil {
			_, err := tx.ExecContext(t.Context(), "SELECT 1")
			require.NoError(t, err, "it goes on")
			require.NoError(t, tx.Rollback())
		}
	}
	require.Empty(t, incomingAt(t, other, driver.IncomingQuery{}))
	require.Empty(t, incomingAt(t, s, driver.IncomingQuery{}))
}

func TestT1_ErrorsOfTheTransaction(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	events := []*driver.Incoming{waiting()}
	tx := beginTx(t, path)
	require.NoError(t, tx.Commit())
	require.ErrorIs(t, s.SubmitTx(t.Context(), tx, events), sql.ErrTxDone)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tx = beginTx(t, path)
	require.ErrorIs(t, s.SubmitTx(ctx, tx, events), context.Canceled)
	late := waiting()
	late.Record.Due = t0.AddDate(9000, 0, 0)
	require.ErrorIs(t, s.SubmitTx(t.Context(), tx, []*driver.Incoming{late}), driver.ErrTime)
	require.NoError(t, tx.Rollback())

	reading, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	require.NoError(t, err)
	defer reading.Close()
	queryOnly, err := sql.Open("sqlite", "file:"+path+"?_pragma=query_only(1)")
	require.NoError(t, err)
	defer queryOnly.Close()
	for name, db := range map[string]*sql.DB{"mode=ro": reading, "query_only": queryOnly} {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err, name)
		err = s.SubmitTx(t.Context(), tx, events)
		require.ErrorContains(t, err, "for reading only", name)
		require.NoError(t, tx.Rollback(), name)
	}

	// A transaction that has read before another one committed cannot write.
	deferred, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer deferred.Close()
	tx, err = deferred.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var n int
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM eventbus_incoming").Scan(&n))
	accept(t, s, ready(""))
	require.ErrorContains(t, s.SubmitTx(t.Context(), tx, events), "BEGIN IMMEDIATE")
	require.NoError(t, tx.Rollback())

	tx = beginTx(t, path)
	inside(t, s, func(c *committer) error { _ = c.queue.Fail(os.ErrInvalid); return nil })
	require.ErrorIs(t, s.SubmitTx(t.Context(), tx, events), driver.ErrFailed)
	closeStore(t, openOnly(t, testPath(t)))
	require.NoError(t, tx.Rollback())
	_ = s.Close(t.Context())
	require.ErrorIs(t, s.SubmitTx(t.Context(), tx, events), driver.ErrClosed)
}

// Other names of the file are the same file.
func TestT1_ALinkedPath(t *testing.T) {
	skipWindows(t)
	path := testPath(t)
	s := openAt(t, path)
	link := filepath.Join(t.TempDir(), "link.db")
	require.NoError(t, os.Symlink(path, link))
	tx := beginTx(t, link)
	require.NoError(t, s.SubmitTx(t.Context(), tx, []*driver.Incoming{waiting()}))
	require.NoError(t, tx.Commit())
	require.Len(t, incomingAt(t, s, driver.IncomingQuery{}), 1)
}

// The store with the lease learns soon of what others leave. It is not called for its own commits.
func TestT2_TheLeaseLearnsSoonOfIncomingEvents(t *testing.T) {
	path := testPath(t)
	s, standby := openAt(t, path), openOnly(t, path)
	changes := watched(t, s)
	var delays []time.Duration
	for i := range 40 {
		accept(t, s, ready(""))
		var began time.Time
		if i%2 == 0 {
			tx := beginTx(t, path)
			require.NoError(t, s.SubmitTx(t.Context(), tx, []*driver.Incoming{waiting()}))
			require.NoError(t, tx.Commit())
			began = time.Now()
		} else {
			leave(t, standby)
			began = time.Now()
		}
		require.Equal(t, driver.ChangedIncoming, next(t, changes))
		delays = append(delays, time.Since(began))
		takeIn(t, s)
		require.EqualValues(t, i+1, incomingSeen(t, s))
	}
	slices.Sort(delays)
	require.Less(t, delays[len(delays)/2], 20*time.Millisecond, "the median of %v", delays)
	for len(changes) > 0 { // a look may fall between a commit of its own and the note of it
		require.Equal(t, driver.ChangedIncoming, <-changes)
	}
}

// incomingSeen returns how many incoming events there have been.
func incomingSeen(t *testing.T, s *Store) (n int64) {
	t.Helper()
	inside(t, s, func(c *committer) (err error) {
		n, err = insertedIncoming(c.w.conn)
		return err
	})
	return n
}

// A standby learns of each kind of change of others, and of no other one.
func TestS6_AStandbyLearnsWhatHasChanged(t *testing.T) {
	path := testPath(t)
	s, standby := openAt(t, path), openOnly(t, path)
	changes := watched(t, standby)
	ask := &driver.Request{Body: []byte(`{}`)}
	later := waiting()
	later.Record.State, later.Record.Due = driver.Scheduled, t0
	for _, step := range []struct {
		batch *driver.Batch
		want  driver.Change
	}{
		{&driver.Batch{Leave: []*driver.Incoming{later}}, driver.ChangedIncoming},
		{&driver.Batch{Withdraw: []driver.ID{later.Record.ID}}, driver.ChangedIncoming},
		{&driver.Batch{Ask: []*driver.Request{ask}}, driver.ChangedRequests},
		{&driver.Batch{Answer: []driver.Answer{{Request: 1, Body: []byte(`{}`)}}}, driver.ChangedAnswers},
		{&driver.Batch{Directives: []driver.Directive{{Subscription: "mail", Body: []byte(`{}`)}}}, driver.ChangedDirectives},
		{&driver.Batch{Catalog: catalogOf([]byte(`{}`))}, driver.ChangedCatalogs},
	} {
		accept(t, s, ready("")) // of which a standby learns nothing
		require.NoError(t, submit(s, step.batch))
		require.Equal(t, step.want, next(t, changes))
	}
	body, answered, err := standby.Answer(t.Context(), 1)
	require.NoError(t, err)
	require.True(t, answered)
	require.Equal(t, `{}`, string(body))
	require.NoError(t, standby.Reopen(t.Context()))
	leave(t, s)
	require.Equal(t, driver.ChangedIncoming, next(t, changes), "the calls go on")
}

// What a store has left on its own is no change for it.
func TestWatch_OwnCommits(t *testing.T) {
	path := testPath(t)
	s, other := openOnly(t, path), openOnly(t, path)
	changes := watched(t, s)
	leave(t, s)
	require.NoError(t, submit(other, &driver.Batch{Catalog: catalogOf([]byte(`{}`))}))
	got := next(t, changes)
	for got&driver.ChangedCatalogs == 0 {
		got = next(t, changes)
	}
	leave(t, s)
	require.NoError(t, submit(other, &driver.Batch{Catalog: catalogOf([]byte(`{}`))}))
	require.NotZero(t, next(t, changes))
}

// Answers are removed an hour later, with their requests. Open requests stay.
func TestRequests_AnswersEnd(t *testing.T) {
	s := openAt(t, testPath(t))
	a, b := &driver.Request{Body: []byte(`{"n":1}`)}, &driver.Request{Body: []byte(`{"n":2}`)}
	require.NoError(t, submit(s, &driver.Batch{Ask: []*driver.Request{a, b}}))
	require.NoError(t, submit(s, &driver.Batch{Answer: []driver.Answer{{Request: a.ID, Body: []byte(`{"ok":true}`)}}}))
	later := func(d time.Duration) {
		require.NoError(t, submit(s, &driver.Batch{Now: t0.Add(d), Leave: []*driver.Incoming{waiting()}}))
	}
	later(driver.AnswerAge - time.Second)
	_, answered, err := s.Answer(t.Context(), a.ID)
	require.NoError(t, err)
	require.True(t, answered)
	later(driver.AnswerAge + time.Second)
	_, _, err = s.Answer(t.Context(), a.ID)
	require.ErrorIs(t, err, driver.ErrNotFound)
	_, answered, err = s.Answer(t.Context(), b.ID)
	require.NoError(t, err)
	require.False(t, answered)
	requests, err := s.Requests(t.Context(), driver.RequestQuery{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, []driver.Request{*b}, requests)
	requests, err = s.Requests(t.Context(), driver.RequestQuery{After: b.ID, Limit: 10})
	require.NoError(t, err)
	require.Empty(t, requests)
}

// A request that has an answer was carried out, so it cannot be withdrawn or answered again. One that has none is withdrawn
// once.
func TestRequests_AnAnsweredOneIsNotWithdrawn(t *testing.T) {
	path := testPath(t)
	s, tool := openAt(t, path), openOnly(t, path)
	answered, open := &driver.Request{Body: []byte(`{"n":1}`)}, &driver.Request{Body: []byte(`{"n":2}`)}
	require.NoError(t, submit(tool, &driver.Batch{Ask: []*driver.Request{answered, open}}))
	answer := driver.Answer{Request: answered.ID, Body: []byte(`{"ok":true}`)}
	require.NoError(t, submit(s, &driver.Batch{Answer: []driver.Answer{answer}}))
	require.NoError(t, submit(tool, &driver.Batch{Unask: []driver.RequestID{open.ID}}))
	for name, b := range map[string]*driver.Batch{
		"answered, withdrawn":  {Unask: []driver.RequestID{answered.ID}},
		"answered, again":      {Answer: []driver.Answer{answer}},
		"withdrawn, again":     {Unask: []driver.RequestID{open.ID}},
		"withdrawn, answered":  {Answer: []driver.Answer{{Request: open.ID, Body: []byte(`{}`)}}},
		"withdrawn with other": {Unask: []driver.RequestID{answered.ID}, Leave: []*driver.Incoming{waiting()}},
	} {
		require.ErrorIs(t, submit(s, b), driver.ErrNotFound, name)
	}
	body, ok, err := tool.Answer(t.Context(), answered.ID)
	require.NoError(t, err)
	require.True(t, ok)
	require.JSONEq(t, `{"ok":true}`, string(body))
	_, _, err = tool.Answer(t.Context(), open.ID)
	require.ErrorIs(t, err, driver.ErrNotFound)
	require.Empty(t, incomingAt(t, s, driver.IncomingQuery{}))
}

// Of two batches that accept the same incoming event, the second one changes nothing.
func TestT2_AnIncomingEventIsAcceptedOnce(t *testing.T) {
	s := openAt(t, testPath(t))
	first, second := leave(t, s), leave(t, s)
	accepts := func(in ...*driver.Incoming) error {
		b := &driver.Batch{}
		for _, one := range in {
			r := *one.Record
			b.Accept, b.New = append(b.Accept, one.ID), append(b.New, &r)
		}
		return submit(s, b)
	}
	require.NoError(t, accepts(first))
	err := accepts(second, first)
	var refusal *driver.RefusedError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, first.ID, refusal.Incoming)
	require.ErrorIs(t, err, driver.ErrNotFound)
	require.Len(t, incomingAt(t, s, driver.IncomingQuery{}), 1)
	require.NoError(t, accepts(second))
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Unsettled())
	require.Empty(t, problems(verifyAt(t, s.path)))
}

// A batch cannot remove an incoming event or a request twice.
func TestIncoming_RefusesAlone(t *testing.T) {
	s := openAt(t, testPath(t))
	now, later := waiting(), waiting()
	later.Record.State, later.Record.Due = driver.Scheduled, t0
	ask := &driver.Request{Body: []byte(`{}`)}
	require.NoError(t, submit(s, &driver.Batch{Leave: []*driver.Incoming{now, later}, Ask: []*driver.Request{ask}}))
	answer := driver.Answer{Request: ask.ID, Body: []byte(`{}`)}
	for name, c := range map[string]struct {
		batch *driver.Batch
		want  driver.RefusedError
	}{
		"unknown":              {&driver.Batch{Accept: []driver.IncomingID{now.ID, 77}}, driver.RefusedError{Incoming: 77, Err: driver.ErrNotFound}},
		"twice":                {&driver.Batch{Accept: []driver.IncomingID{now.ID, now.ID}}, driver.RefusedError{Incoming: now.ID, Err: driver.ErrNotFound}},
		"withdrawn":            {&driver.Batch{Withdraw: []driver.ID{later.Record.ID}, Accept: []driver.IncomingID{later.ID}}, driver.RefusedError{Incoming: later.ID, Err: driver.ErrNotFound}},
		"withdrawn twice":      {&driver.Batch{Withdraw: []driver.ID{later.Record.ID, later.Record.ID}}, driver.RefusedError{Event: later.Record.ID, Err: driver.ErrNotFound}},
		"answered twice":       {&driver.Batch{Answer: []driver.Answer{answer, answer}}, driver.RefusedError{Request: ask.ID, Err: driver.ErrNotFound}},
		"unasked and answered": {&driver.Batch{Unask: []driver.RequestID{ask.ID}, Answer: []driver.Answer{answer}}, driver.RefusedError{Request: ask.ID, Err: driver.ErrNotFound}},
	} {
		err := submit(s, c.batch)
		var refused *driver.RefusedError
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, c.want, *refused, name)
	}
	require.Len(t, incomingAt(t, s, driver.IncomingQuery{}), 2)
	require.NoError(t, submit(s, &driver.Batch{Withdraw: []driver.ID{later.Record.ID}, Accept: []driver.IncomingID{now.ID}, Answer: []driver.Answer{answer}}))
	require.Empty(t, incomingAt(t, s, driver.IncomingQuery{}))
}

// A flipped byte in what waits is noticed.
func TestIncoming_IsChecked(t *testing.T) {
	s := openOnly(t, testPath(t))
	leave(t, s)
	require.NoError(t, submit(s, &driver.Batch{Ask: []*driver.Request{{Body: []byte(`{}`)}}}))
	inside(t, s, func(c *committer) error {
		_, err := c.w.exec("UPDATE eventbus_incoming SET codec = 'gob'")
		if err == nil {
			_, err = c.w.exec("UPDATE eventbus_request SET body = x'7b20'")
		}
		return err
	})
	_, ofIncoming := s.Incoming(t.Context(), driver.IncomingQuery{Limit: 1})
	_, ofRequests := s.Requests(t.Context(), driver.RequestQuery{Limit: 1})
	_, _, ofAnswer := s.Answer(t.Context(), 1)
	for _, err := range []error{ofIncoming, ofRequests, ofAnswer} {
		require.True(t, isCorrupt(err), "%v", err)
	}
}
