package sqlite_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// Another process works on the dead letters while the bus runs.
func TestL6_LettersFromAnotherProcess(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 6)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()

	other := begin(t, path, sqlite.Beside())
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

// Another process publishes, schedules, cancels and gives orders, for the subscriptions that it
// names.
func TestL6_PublicationsOfAnotherProcess(t *testing.T) {
	path := newPath(t)
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	other := begin(t, path, sqlite.Beside())
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

// No bus runs: the next one handles what was replayed and published meanwhile.
func TestL6_WhileNoBusRuns(t *testing.T) {
	path := newPath(t)
	withLetters(t, path, 3)
	other := begin(t, path, sqlite.Beside())
	other.handles("mail", nil)
	require.ErrorIs(t, other.Start(t.Context()), eventbus.ErrNoLease)
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
