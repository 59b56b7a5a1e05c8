package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
	"github.com/surebus/eventbus/storetest"
)

// An operation that the operator has confirmed for another number of letters does nothing.
func TestBackend_StaleCount(t *testing.T) {
	path := newStore(t, "letters.jsonl")
	b, err := openStore(t.Context(), place{file: path})
	require.NoError(t, err)
	q := eventbus.LetterQuery{All: true}
	_, err = b.ReplayMatching(t.Context(), q, bulk{expect: 3})
	require.Equal(t, exitConflict, describe(err, true).code)
	_, err = b.PurgeMatching(t.Context(), q, bulk{expect: 5})
	require.Equal(t, exitConflict, describe(err, true).code)
	require.ErrorContains(t, err, "changed from 5 to 4: nothing was done")
	page, err := b.Letters(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	require.Equal(t, 4, page.Total)
	require.NoError(t, b.Close(t.Context()))
}

// Each known error has its documented code, and what to do next.
func TestDescribe(t *testing.T) {
	for _, k := range known {
		f := describe(fmt.Errorf("it: %w", k.err), true)
		require.NotEmpty(t, f.next, k.err)
		require.NotEqual(t, exitOK, f.code, k.err)
	}
	for err, want := range map[error]int{
		&sqlite.CorruptError{}:                         exitDamaged,
		&sqlite.PathError{}:                            exitFailure,
		&sqlite.LockedError{}:                          exitConflict,
		&eventbus.ImportError{}:                        exitFailure,
		&eventbus.OptionError{Option: "By"}:            exitUsage,
		errors.Join(eventbus.ErrNotFound):              exitNotFound,
		eventbus.ErrSettled:                            exitConflict,
		context.Canceled:                               exitFailure,
		&fs.PathError{Err: syscall.EACCES}:             exitFailure,
		&fs.PathError{Err: syscall.ENOENT}:             exitNotFound,
		&fs.PathError{Err: syscall.EEXIST}:             exitConflict,
		errors.New("any other"):                        exitFailure,
		&failure{exitNotFound, os.ErrClosed, "look"}:   exitNotFound,
		fmt.Errorf("x: %w", conflict("look", "stale")): exitConflict,
	} {
		f := describe(err, true)
		require.Equal(t, want, f.code, "%T", err)
		require.NotEmpty(t, f.next, "%T", err)
	}
	require.Equal(t, exitUsage, describe(errors.New("unknown flag"), false).code)
	for option, flag := range map[string]string{
		"LetterQuery.MetadataName": "--metadata-name", "By": "--by", "Because": "--because", "Rate": "--rate", "StopAfter": "--stop-after-failures", "AuditQuery.Limit": "--limit",
	} {
		require.Equal(t, flag, flagOf(option))
	}
}

// A directive whose request the bus does not answer, and that the store does not take back in time, ends with the code of what does not
// answer. The outcome is unknown.
func TestExitCodeOfASilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Unask) > 0 {
				f.Delay = time.Minute
			}
			return f
		}))
		holder := model.Open()
		_, err := holder.Acquire(t.Context(), driver.AcquireQuery{})
		require.NoError(t, err)
		store := model.Open()
		bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithoutHandlers(), eventbus.WithLogger(zap.NewNop()))
		require.NoError(t, err)
		f, _, _ := runWith(t, &storeBackend{place{file: "x.db"}, store, bus}, "", "subs", "pause", "mail")
		require.NotNil(t, f)
		require.Equal(t, exitConflict, f.code)
		require.ErrorContains(t, f, "the outcome is unknown: eventbus: store did not answer within 2s")
		require.Contains(t, f.next, "'eventbus audit'")
		require.NotErrorIs(t, f, eventbus.ErrNoAnswer, "that says that nothing was done")
		time.Sleep(time.Minute)
		require.NoError(t, holder.Close(t.Context()))
	})
}

// What a command prints for a shell is one argument there.
func TestShellQuote(t *testing.T) {
	for text, want := range map[string]string{
		"order.placed": "order.placed", "order.*": "'order.*'", "": "''", "it's": `'it'\''s'`, "a b": "'a b'", "$(rm)": "'$(rm)'", "x\n": "'x\n'", "~": "'~'", "#1": "'#1'",
	} {
		require.Equal(t, want, shellQuote(text))
	}
}

func TestAsOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now() // 2000-01-01T00:00:00Z
		for age, want := range map[time.Duration]string{
			0: "2000-01-01 00:00:00Z, just now", 90 * time.Second: "1999-12-31 23:58:30Z, 1 minute ago", 3 * time.Hour: "1999-12-31 21:00:00Z, 3 hours ago",
			72 * time.Hour: "1999-12-29 00:00:00Z, 3 days ago",
		} {
			require.Equal(t, want, asOf(now.Add(-age)))
		}
	})
}

// The progress of a bulk operation is drawn at most ten times a second, and at its end.
func TestBulkProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		draw := bulkProgress(term.NewProgress(&out), "replay")
		for i := range 1000 {
			draw(eventbus.BulkProgress{Matched: 1000, Done: i + 1, Failures: i / 999})
			time.Sleep(time.Millisecond)
		}
		lines := strings.Split(out.String(), "\r")
		require.Len(t, lines, 1+10+1)
		require.Equal(t, "replay [####################] 100% 1,000 of 1,000, 1 failure", strings.TrimRight(lines[11], " "))
		require.Equal(t, "replay [##------------------]  10% 101 of 1,000, about 899ms left", strings.TrimRight(lines[2], " "))
	})
}
