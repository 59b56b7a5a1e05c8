package sqlite_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

// copies counts a text in the files of a store.
func copies(t testing.TB, path, text string) (n int) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm", "-lease"} {
		content, err := os.ReadFile(path + suffix)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		n += bytes.Count(content, []byte(text))
	}
	return n
}

// lettersOf makes letters with the payloads secret, kept and handled, of many sizes, in the files of a bus that runs.
func lettersOf(t testing.TB, path string, opts ...any) *process {
	t.Helper()
	p := begin(t, path, opts...)
	p.handles("mail", func(payload string) error {
		if strings.HasPrefix(payload, "handled") {
			return nil
		}
		return errPermanent
	})
	p.start()
	sizes := rand.New(rand.NewSource(1))
	for first := range 30 {
		var batch []eventbus.Publication
		for i := range 10 {
			size := sizes.Intn(400)
			if i == 0 {
				size = sizes.Intn(9000) // on overflow pages
			}
			kind := []string{"secret", "kept", "handled"}[sizes.Intn(3)]
			payload := fmt.Sprintf("%s-%d-%d %s", kind, first, i, strings.Repeat("x", size))
			batch = append(batch, eventbus.Publication{Type: "order." + kind, Payload: payload})
		}
		_, err := p.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
	}
	p.settled()
	require.Positive(t, copies(t, path, "secret-"))
	return p
}

var secrets = eventbus.LetterQuery{Type: "order.secret"}

func TestL9_PurgeLeavesNoPayload(t *testing.T) {
	purges := map[string]func(t *testing.T, q *eventbus.DLQ) error{
		"Purge": func(t *testing.T, q *eventbus.DLQ) error {
			t.Helper()
			all, err := q.List(t.Context(), eventbus.LetterQuery{Type: "order.secret", Limit: 10_000})
			for _, l := range all.Letters {
				if err == nil {
					err = q.Purge(t.Context(), l.ID)
				}
			}
			return err
		},
		"PurgeMatching": func(t *testing.T, q *eventbus.DLQ) error {
			t.Helper()
			_, err := q.PurgeMatching(t.Context(), secrets)
			return err
		},
		"PurgeUntil": func(t *testing.T, q *eventbus.DLQ) error {
			t.Helper()
			_, err := q.PurgeUntil(t.Context(), time.Now().Add(time.Hour))
			return err
		},
	}
	for name, purge := range purges {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			p := lettersOf(t, path)
			require.NoError(t, purge(t, p.DLQ()))
			require.Zero(t, copies(t, path, "secret-"), "while the file is open")
			require.Zero(t, copies(t, path, "handled-"), "handled events left no payload either")
			if name != "PurgeUntil" {
				require.Positive(t, copies(t, path, "kept-"))
			}
			p.end()
			require.Zero(t, copies(t, path, "secret-"), "after Close")
		})
	}
}

// A tool purges beside the bus: the log belongs to both.
func TestL9_PurgeBesideTheBusLeavesNoPayload(t *testing.T) {
	path := newPath(t)
	p := lettersOf(t, path)
	beside := tool(t, path)
	_, err := beside.DLQ().PurgeMatching(t.Context(), secrets)
	require.NoError(t, err)
	require.Zero(t, copies(t, path, "secret-"))
	beside.end()
	p.end()
	require.Zero(t, copies(t, path, "secret-"))
}

// A read of an earlier commit needs the log. The purge says so, publications go on meanwhile, and when the read has
// ended the store completes the erasure by itself.
func TestL9_AReaderDelaysTheErasure(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	p := lettersOf(t, path, sqlite.WithLockWait(200*time.Millisecond))
	reader, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite)
	require.NoError(t, err)
	defer reader.Close()
	require.NoError(t, sqlitex.ExecuteTransient(reader, "BEGIN", nil))
	require.NoError(t, sqlitex.ExecuteTransient(reader, "SELECT count(*) FROM eventbus_letter", nil))

	purged := make(chan error, 1)
	go func() {
		report, err := p.DLQ().PurgeMatching(context.Background(), secrets)
		if report.Purged == 0 || report.Purged != report.Matched {
			t.Errorf("purged %+v", report)
		}
		purged <- err
	}()
	var meanwhile int
	for err = nil; err == nil && len(purged) == 0; meanwhile++ {
		_, err = p.Publish(t.Context(), "order.handled", "handled meanwhile")
	}
	require.NoError(t, err)
	require.ErrorIs(t, <-purged, eventbus.ErrNotErased)
	require.Greater(t, meanwhile, 1)
	page, err := p.DLQ().List(t.Context(), secrets)
	require.NoError(t, err)
	require.Zero(t, page.Total, "the letters are purged")
	require.Positive(t, copies(t, path, "secret-"))

	// The idle store has tried once, in vain, when the read ends.
	require.Never(t, func() bool { return copies(t, path, "secret-") == 0 }, 1500*time.Millisecond, 100*time.Millisecond)
	require.NoError(t, sqlitex.ExecuteTransient(reader, "COMMIT", nil))
	p.eventually("the idle store erases", func() bool { return copies(t, path, "secret-") == 0 })
	p.end()
}

// What is replayed and then handled leaves no payload once another letter is purged.
func TestL9_AReplayThatIsHandledLeavesNoPayload(t *testing.T) {
	path := newPath(t)
	lettersOf(t, path).end()
	p := begin(t, path)
	p.handles("mail", nil)
	p.start()
	_, err := p.DLQ().ReplayMatching(t.Context(), secrets)
	require.NoError(t, err)
	p.settled()
	require.NoError(t, p.DLQ().Purge(t.Context(), p.list(eventbus.LetterQuery{})[0].ID))
	require.Zero(t, copies(t, path, "secret-"))
	require.Positive(t, copies(t, path, "kept-"))
	p.end()
}

// A crash between the commit of a purge and its erasure leaves the log, which the next process empties.
func TestL9_ACrashBeforeTheErasure(t *testing.T) {
	path := newPath(t)
	p := lettersOf(t, path)
	var ids []driver.ID
	for _, l := range p.list(secrets) {
		ids = append(ids, driver.ID(l.ID))
	}
	taken := make(chan error, 1)
	p.store.Submit(&driver.Batch{Now: time.Now().UTC(), Take: ids}, func(err error) { taken <- err })
	require.NoError(t, <-taken)
	p.crash()
	p = begin(t, path)
	p.eventually("the idle store erases", func() bool { return copies(t, path, "secret-") == 0 })
	p.end()
}
