package storetest

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var onceTests = []conformanceTest{
	{name: "Once", needs: needsOnce, run: testOnce},
	{name: "Names", needs: needsOnce, run: testOnceNames},
	{name: "Failed", needs: needsOnce, run: testOnceFailed},
	{name: "WaitsForAnother", needs: needsOnce, run: testOnceWaitsForAnother},
	{name: "WaitEndsWithItsContext", needs: needsOnce, run: testOnceWaitEndsWithItsContext},
	{name: "BlocksNoCommit", needs: needsOnce, run: testOnceBlocksNoCommit},
	{name: "Kept", needs: needsOnce, run: testOnceKept},
	{name: "OfAClosedStore", needs: needsOnce, run: testOnceOfAClosedStore},
	{name: "OfAFailedStore", needs: needsOnce | needsFail, run: testOnceOfAFailedStore},
	{name: "AfterACrash", needs: needsOnce | needsCrash, run: testOnceAfterACrash},
}

// handled returns a mark of a new event.
func handled() driver.Mark {
	return driver.Mark{Event: newID(), Names: []string{"billing"}, Published: noon, Until: noon.Add(24 * time.Hour)}
}

// onceStore returns the store as a driver.OnceStore.
func onceStore(t *testing.T, s driver.Store) driver.OnceStore {
	t.Helper()
	of, ok := s.(driver.OnceStore)
	require.True(t, ok, "Backend.TxFrom is set, and %T is no driver.OnceStore", s)
	return of
}

// requireRuns requires that a mark is not there, or that it is, with an event as what happens once.
func (r *rig) requireRuns(t *testing.T, s driver.Store, m driver.Mark, want bool, what string) {
	t.Helper()
	before := stats(t, s).Incoming
	ran, err := onceStore(t, s).RunOnce(t.Context(), m, func(ctx context.Context, _ any) error {
		return txStore(t, s).SubmitTx(ctx, r.TxFrom(ctx), []*driver.Incoming{incoming()})
	})
	require.NoError(t, err, what)
	require.Equal(t, want, ran, what)
	happened := stats(t, s).Incoming - before
	require.Equal(t, want, happened == 1, "%s: %d events", what, happened)
}

// What happens in the transaction of a mark happens once, whatever store runs it. No store needs the lease.
func testOnce(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	m := handled()
	r.requireRuns(t, s, m, true, "a mark")
	r.requireRuns(t, s, m, false, "the mark again")
	r.requireRuns(t, other, m, false, "the mark at another store")
	edited, event, name, later := m, m, m, m
	edited.Edit, event.Event, name.Names, later.Published = "1 ü\x00", newID(), []string{"billing\x00ü"}, m.Published.Add(1)
	for _, m := range []driver.Mark{edited, event, name, later} {
		r.requireRuns(t, other, m, true, "another mark")
		r.requireRuns(t, s, m, false, "another mark again")
	}
	r.requireRuns(t, r.reopen(t, s), m, false, "the mark after Close")
}

// A subscription that was renamed has handled what it handled under its earlier names, and the reverse.
func testOnceNames(t *testing.T, r *rig) {
	s := r.open(t)
	m := handled()
	m.Names = []string{"b", "a", "b"}
	r.requireRuns(t, s, m, true, "a mark of two names")
	for _, names := range [][]string{{"a"}, {"b"}, {"c", "b"}, {"a", "d", "b"}} {
		m.Names = names
		r.requireRuns(t, s, m, false, "a mark that shares a name")
	}
	m.Names = []string{"d", "c"}
	r.requireRuns(t, s, m, true, "a mark that shares no name")
}

// Nothing has happened if f fails, panics or ends its goroutine, or if its context has ended.
func testOnceFailed(t *testing.T, r *rig) {
	s := r.open(t)
	m := handled()
	failed, once, tx := errors.New("failed"), onceStore(t, s), txStore(t, s)
	for what, end := range map[string]func(cancel func()) error{
		"error":   func(func()) error { return failed },
		"panic":   func(func()) error { panic(failed) },
		"Goexit":  func(func()) error { runtime.Goexit(); return nil },
		"context": func(cancel func()) error { cancel(); return nil },
	} {
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			err := errors.New("Goexit")
			defer func() {
				if v := recover(); v != nil {
					err = v.(error)
				}
				ended <- err
			}()
			_, err = once.RunOnce(ctx, m, func(inTx context.Context, _ any) error {
				if err := tx.SubmitTx(inTx, r.TxFrom(inTx), []*driver.Incoming{incoming()}); err != nil {
					panic(err)
				}
				return end(cancel)
			})
		}()
		err := await(t, ended)
		require.Error(t, err, what)
		if what == "error" {
			require.Same(t, failed, err, "the error of f")
		}
		require.Zero(t, stats(t, s).Incoming, what)
	}
	r.requireRuns(t, s, m, true, "the mark after failures")
}

// While one transaction marks something, another one waits, and runs if that fails.
func testOnceWaitsForAnother(t *testing.T, r *rig) {
	for _, fails := range []bool{false, true} {
		s, other := r.open(t), r.beside(t)
		once, beside := onceStore(t, s), onceStore(t, other)
		m := handled()
		marked, goOn := make(chan struct{}), make(chan error)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := once.RunOnce(context.Background(), m, func(context.Context, any) error {
				close(marked)
				return <-goOn
			})
			first <- err
		}()
		<-marked
		go func() {
			ran, err := beside.RunOnce(context.Background(), m, func(context.Context, any) error { return nil })
			if err == nil && ran != fails {
				err = errors.New("the second one ran beside the first one, or did not run after its failure")
			}
			second <- err
		}()
		select {
		case err := <-second:
			require.Fail(t, "RunOnce did not wait for the transaction that has the mark", err)
		case <-time.After(50 * time.Millisecond):
		}
		if fails {
			goOn <- errors.New("failed")
			require.Error(t, await(t, first))
		} else {
			goOn <- nil
			require.NoError(t, await(t, first))
		}
		require.NoError(t, await(t, second))
		require.NoError(t, s.Close(t.Context()))
	}
}

func testOnceWaitEndsWithItsContext(t *testing.T, r *rig) {
	s := r.open(t)
	m := handled()
	ran, err := onceStore(t, s).RunOnce(t.Context(), m, func(context.Context, any) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		within(t, "RunOnce whose context has ended", func() {
			_, err := onceStore(t, s).RunOnce(ctx, m, func(context.Context, any) error { return nil })
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		return nil
	})
	require.NoError(t, err)
	require.True(t, ran)
}

// An open transaction blocks no commit and no lease of a store.
func testOnceBlocksNoCommit(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	m := handled()
	held := ready(leased)
	held.ID = m.Event
	ran, err := onceStore(t, other).RunOnce(t.Context(), m, func(context.Context, any) error {
		within(t, "a batch beside an open transaction", func() {
			apply(t, s, &driver.Batch{Now: noon.Add(48 * time.Hour), New: []*driver.Record{held}, Leave: []*driver.Incoming{incoming()}})
			apply(t, s, &driver.Batch{Now: noon.Add(50 * time.Hour), Delete: []driver.Ref{held.Ref}})
		})
		require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
		acquire(t, s)
		return nil
	})
	require.NoError(t, err)
	require.True(t, ran)
}

// A mark is kept until its time is over, and while there is a record or a letter of its event. Later it is forgotten.
func testOnceKept(t *testing.T, r *rig) {
	s := r.open(t)
	dead, waiting, left, settled, unended := handled(), handled(), handled(), handled(), handled()
	unended.Until = noon.Add(1000 * time.Hour)
	record, of := ready(leased), letter()
	record.ID, of.Event = waiting.Event, dead.Event
	in := incoming(func(n *driver.Record) { n.ID = left.Event })
	apply(t, s, &driver.Batch{Now: noon, New: []*driver.Record{record}, Bury: []*driver.Letter{of}, Leave: []*driver.Incoming{in}})
	for _, m := range []driver.Mark{dead, waiting, left, settled, unended} {
		r.requireRuns(t, s, m, true, "a mark")
	}
	at := noon
	pass := func() {
		for range 5 { // a store looks when it commits
			at = at.Add(10 * time.Hour)
			apply(t, s, &driver.Batch{Now: at, New: []*driver.Record{ready()}})
		}
	}
	apply(t, s, &driver.Batch{Now: noon.Add(100 * time.Hour), AgedAt: settled.Until.Add(-1), New: []*driver.Record{ready()}})
	r.requireRuns(t, s, settled, false, "a mark whose time is not over by AgedAt")
	pass()
	for _, m := range []driver.Mark{dead, waiting, left, unended} {
		r.requireRuns(t, s, m, false, "a mark with a record, a letter, an incoming event, or time left")
	}
	r.requireRuns(t, s, settled, true, "a mark of an event that is gone")
	apply(t, s, &driver.Batch{Now: at, Delete: []driver.Ref{record.Ref}, Take: []driver.ID{of.ID}})
	pass()
	for _, m := range []driver.Mark{dead, waiting} {
		r.requireRuns(t, s, m, true, "a mark whose record or letter is gone")
	}
	r.requireRuns(t, s, unended, false, "a mark with time left")
}

func testOnceOfAClosedStore(t *testing.T, r *rig) {
	s := r.open(t)
	require.NoError(t, s.Close(t.Context()))
	_, err := onceStore(t, s).RunOnce(t.Context(), handled(), func(context.Context, any) error { return errors.New("f was called") })
	require.ErrorIs(t, err, driver.ErrClosed)
}

func testOnceOfAFailedStore(t *testing.T, r *rig) {
	s := r.open(t)
	r.Fail(t, s)
	require.Error(t, submit(t, s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}))
	m := handled()
	_, err := onceStore(t, s).RunOnce(t.Context(), m, func(context.Context, any) error { return errors.New("f was called") })
	require.ErrorIs(t, err, driver.ErrFailed)
	require.NoError(t, s.Reopen(t.Context()))
	r.requireRuns(t, s, m, true, "a mark after Reopen")
}

func testOnceAfterACrash(t *testing.T, r *rig) {
	s := r.open(t)
	m := handled()
	r.requireRuns(t, s, m, true, "a mark")
	r.requireRuns(t, r.crash(t, s), m, false, "the mark after a crash")
}
