package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

// Another process works on the dead letters while the bus runs.
func TestL6_LettersFromAnotherProcess(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 6)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()

	other := begin(t, path)
	other.handles("mail", nil)
	require.ErrorIs(t, other.Start(t.Context()), eventbus.ErrNoLease)
	all := other.list(eventbus.LetterQuery{})
	require.Len(t, all, 6)
	l, err := other.DLQ().Get(t.Context(), all[0].ID)
	require.NoError(t, err)
	require.Equal(t, all[0], l)
	groups, err := other.DLQ().Groups(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	var lines bytes.Buffer
	exported, err := other.DLQ().Export(t.Context(), &lines, eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Equal(t, 6, exported.Exported)
	require.NoError(t, other.DLQ().Purge(t.Context(), all[0].ID))
	imported, err := other.DLQ().Import(t.Context(), &lines)
	require.NoError(t, err)
	require.Equal(t, 1, imported.Imported)
	require.NoError(t, other.DLQ().Purge(t.Context(), all[0].ID))

	began := time.Now()
	require.NoError(t, other.DLQ().Replay(t.Context(), all[1].ID))
	p.waitCalls("mail 4")
	require.Less(t, time.Since(began), 5*time.Second, "the bus looks for it soon")
	require.NoError(t, other.DLQ().ReplayEdited(t.Context(), all[2].ID, "edited"))
	report, err := other.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Subscription: "mail"})
	require.NoError(t, err)
	require.Equal(t, 3, report.Replayed)
	p.waitCalls("mail edited", "mail 0", "mail 1", "mail 2")
	require.Empty(t, p.settled().list(eventbus.LetterQuery{}))
	other.end()
	require.Empty(t, other.called())
	require.Len(t, p.called(), 5)
	p.end()
}

// A bus at full speed frees the write lock for moments only. Another process gets it all the same: SQLite's own wait
// lets it wait for seconds.
func TestL6_BesideABusAtFullSpeed(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	withLetters(t, path, 30)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	_, err := p.Subscribe("busy", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("busy"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var publishers sync.WaitGroup
	for range 8 {
		publishers.Go(func() {
			for ctx.Err() == nil {
				if _, err := p.Publish(ctx, "busy", "x"); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	other := begin(t, path, sqlite.WithLockWait(time.Minute))
	var waited int64 // events of the bus meanwhile: a time would measure the machine
	for _, l := range other.list(eventbus.LetterQuery{}) {
		before := p.Metrics().Ledger.Handled
		require.Eventually(t, func() bool { return p.Metrics().Ledger.Handled > before+200 }, time.Minute, time.Millisecond)
		before = p.Metrics().Ledger.Handled
		require.NoError(t, other.DLQ().Purge(t.Context(), l.ID))
		waited = max(waited, p.Metrics().Ledger.Handled-before)
	}
	require.Less(t, waited, int64(10_000))
	other.end()
	stop()
	publishers.Wait()
	p.settled().end()
}

// Another process publishes, schedules, cancels and gives orders, for the subscriptions that it
// names.
func TestL6_PublicationsOfAnotherProcess(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	other := begin(t, path)
	mail := other.handles("mail", nil)
	other.publish("0", eventbus.Key("k"))
	other.publish("1", eventbus.Key("k"))
	other.publish("soon", eventbus.After(500*time.Millisecond))
	p.waitCalls("mail 0", "mail 1", "mail soon")
	require.NoError(t, mail.Pause(eventbus.By("ann")))
	p.eventually("the bus obeys", func() bool {
		for _, s := range p.Metrics().Subscriptions {
			if s.Subscription == "mail" {
				return s.Paused
			}
		}
		return false
	})
	p.publish("held")
	require.NoError(t, mail.Resume())
	p.waitCalls("mail held")
	p.settled()
	other.end()
	p.end()
}

// A program without a bus cancels scheduled events, whether a bus runs or not.
func TestL6_CancelFromAnotherProcess(t *testing.T) {
	path := newPath(t)
	p := begin(t, path, sqlite.WithHistory(time.Hour))
	p.handles("mail", nil)
	p.start()
	q := tool(t, path, sqlite.WithHistory(time.Hour))
	cancelled := p.publish("cancelled", eventbus.After(time.Hour))
	left := p.publish("left", eventbus.After(time.Hour))
	p.publish("soon", eventbus.After(300*time.Millisecond))
	_, err := q.Cancel(t.Context(), cancelled, eventbus.By("ann"))
	require.NoError(t, err)
	for _, bus := range []*eventbus.Bus{q.Bus, p.Bus} {
		_, err = bus.Cancel(t.Context(), cancelled)
		require.True(t, errors.Is(err, eventbus.ErrSettled) || errors.Is(err, eventbus.ErrUnknownEvent), "%v", err)
	}
	history, err := p.store.History(t.Context(), driver.ID(cancelled))
	require.NoError(t, err)
	require.Len(t, history, 1)
	require.Equal(t, sqlite.OutcomeSettled, history[0].Outcome)
	page, err := q.Audit(t.Context(), eventbus.AuditQuery{Event: cancelled})
	require.NoError(t, err)
	require.Len(t, page.Entries, 1)
	p.waitCalls("mail soon")
	catalog, err := q.Catalog(t.Context())
	require.NoError(t, err)
	require.Equal(t, "mail", catalog.Subscriptions[0].Subscription)
	p.end()
	_, err = q.Cancel(t.Context(), left)
	require.NoError(t, err)
	q.end()

	next := begin(t, path)
	require.Zero(t, next.Metrics().Store.Unsettled())
	next.end()
}

// No bus runs: the next one handles what was replayed and published meanwhile.
func TestL6_WhileNoBusRuns(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 3)
	other := begin(t, path)
	other.handles("mail", nil)
	all := other.list(eventbus.LetterQuery{})
	require.NoError(t, other.DLQ().Replay(t.Context(), all[0].ID))
	require.NoError(t, other.DLQ().Purge(t.Context(), all[1].ID))
	other.publish("new")
	require.NoError(t, other.Shutdown(context.Background()), "what it published is no unfinished work")
	require.Empty(t, other.called())

	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	p.waitCalls("mail 2", "mail new")
	require.Len(t, p.settled().called(), 2)
	require.Len(t, p.list(eventbus.LetterQuery{}), 1)
	p.end()
}

// A program without handlers works on the dead letters, whether the bus runs or not. Its bus knows no subscriptions.
func TestL6_AToolWithoutHandlers_OverAFile(t *testing.T) {
	path := newPath(t)
	_, err := sqlite.Open(t.Context(), path, sqlite.MustExist())
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, path)
	withLetters(t, path, 6)

	bus := tool(t, path)
	q := bus.DLQ()
	page, err := q.List(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Len(t, page.Letters, 6)
	require.NoError(t, q.Purge(t.Context(), page.Letters[0].ID))
	require.NoError(t, q.Replay(t.Context(), page.Letters[1].ID))
	require.ErrorIs(t, q.Replay(t.Context(), page.Letters[1].ID), eventbus.ErrNotFound)
	status, err := bus.Event(t.Context(), page.Letters[1].Event.ID)
	require.NoError(t, err)
	require.Len(t, status.Dispatches, 1)
	require.Equal(t, []string{"mail"}, status.Dispatches[0].Targets)
	require.True(t, status.Dispatches[0].InStore)
	require.Equal(t, 1, status.Dispatches[0].Replays)
	require.NoError(t, bus.Shutdown(t.Context()))
	require.NoError(t, bus.Shutdown(t.Context()))
	_, err = q.List(t.Context(), eventbus.LetterQuery{})
	require.ErrorIs(t, err, eventbus.ErrStoreClosed)

	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	p.waitCalls("mail 4")
	bus = tool(t, path)
	q = bus.DLQ()
	require.NoError(t, q.ReplayEdited(t.Context(), page.Letters[2].ID, "edited"))
	require.NoError(t, q.ReplayEdited(t.Context(), page.Letters[3].ID, eventbus.EncodedPayload(`"raw"`)))
	p.waitCalls("mail edited", "mail raw")
	report, err := q.ReplayMatching(t.Context(), eventbus.LetterQuery{Subscription: "mail"})
	require.NoError(t, err)
	require.Equal(t, 2, report.Replayed)
	p.waitCalls("mail 0", "mail 1")
	require.NoError(t, bus.Subscription("mail").Pause(eventbus.By("ann")))
	p.eventually("the bus obeys", func() bool { return p.Metrics().Subscriptions[0].Paused })
	require.NoError(t, bus.Subscription("mail").Resume())
	p.eventually("the bus obeys", func() bool { return !p.Metrics().Subscriptions[0].Paused })
	bus.end()
	require.Empty(t, p.settled().list(eventbus.LetterQuery{}))
	p.end()
}
