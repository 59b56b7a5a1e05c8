package contracttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// linesOf returns the lines of letters from first on, each with a payload of a size.
func linesOf(first, count, size int) []byte {
	var lines strings.Builder
	for i := range count {
		line := strings.Replace(letterLine, "-8aaa-aaaaaaaaaaaa", fmt.Sprintf("-8aaa-%012x", first+i), 1)
		line = strings.Replace(line, "-8bbb-bbbbbbbbbbbb", fmt.Sprintf("-8bbb-%012x", first+i), 1)
		line = strings.Replace(line, `{"number":1}`, `"`+strings.Repeat("x", size)+`"`, 1)
		lines.WriteString(line + "\n")
	}
	return []byte(lines.String())
}

// parts records the batches of a store that add or remove letters, and the publications between them. Each takes a
// millisecond.
type parts struct {
	fault func(part int, b *driver.Batch) storetest.Fault // of the parts, from 1

	mu      sync.Mutex // guards the following
	applied []part
	tried   int
}

type part struct{ letters, bytes, publications int }

func (p *parts) options() []storetest.Option {
	isPart := func(b *driver.Batch) bool { return len(b.Bury)+len(b.Take) > 0 }
	return []storetest.Option{
		storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if !isPart(b) {
				return storetest.Fault{}
			}
			p.mu.Lock()
			p.tried++
			tried := p.tried
			p.mu.Unlock()
			if p.fault != nil {
				if f := p.fault(tried, b); f.Kind != storetest.NoFault {
					return f
				}
			}
			return storetest.Fault{Delay: time.Millisecond}
		}),
		storetest.WithApplied(func(_ int, b *driver.Batch) {
			p.mu.Lock()
			defer p.mu.Unlock()
			switch n := len(p.applied); {
			case isPart(b):
				size := 0
				for _, l := range b.Bury {
					size += len(l.Payload) - 1
				}
				p.applied = append(p.applied, part{letters: len(b.Bury) + len(b.Take), bytes: size})
			case n > 0 && len(b.New) > 0:
				p.applied[n-1].publications++
			}
		}),
	}
}

// took returns the parts so far, and clears them.
func (p *parts) took() []part {
	p.mu.Lock()
	defer p.mu.Unlock()
	applied := p.applied
	p.applied, p.tried = nil, 0
	return applied
}

func lettersIn(all []part) (sizes []int) {
	for _, p := range all {
		sizes = append(sizes, p.letters)
	}
	return sizes
}

// publishing publishes without a pause until stop is called.
func publishing(t *testing.T, bus *eventbus.Bus) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var publisher sync.WaitGroup
	publisher.Go(func() {
		for ctx.Err() == nil {
			if _, err := bus.Publish(context.WithoutCancel(ctx), "a", "live"); err != nil {
				t.Errorf("publish beside the operation: %v", err)
				return
			}
			time.Sleep(time.Microsecond)
		}
	})
	return func() { cancel(); publisher.Wait() }
}

// requireBetween checks that publications were committed after each part but the last.
func requireBetween(t *testing.T, all []part) {
	t.Helper()
	for i, p := range all[:len(all)-1] {
		require.Positive(t, p.publications, "after part %d of %d", i+1, len(all))
	}
}

func TestL4_ImportCommitsInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parts parts
		disk := newDisk(parts.options()...)
		bus, _ := disk.open(t)
		disk.handles(t, bus, "s", nil)
		require.NoError(t, bus.Start(t.Context()))
		stop := publishing(t, bus)
		report := importLetters(t, bus, linesOf(0, 1700, 10))
		stop()
		require.Equal(t, eventbus.ImportReport{Imported: 1700}, report)
		all := parts.took()
		require.Equal(t, []int{500, 500, 500, 200}, lettersIn(all))
		requireBetween(t, all)
		shutdown(t, bus)
	})
}

// Letters of several MiB would make a part of 500 one commit of gigabytes.
func TestL4_ImportPartsHaveAtMostFourMiB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parts parts
		disk := newDisk(parts.options()...)
		bus, _ := disk.open(t)
		importLetters(t, bus, append(linesOf(0, 5, 1<<20), linesOf(5, 1, 5<<20)...))
		all := parts.took()
		require.Equal(t, []int{3, 2, 1}, lettersIn(all))
		for _, p := range all {
			require.True(t, p.bytes <= 4<<20 || p.letters == 1, p)
		}
		_, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, []int{3, 2, 1}, lettersIn(parts.took()), "a purge overwrites as much")
		shutdown(t, bus)
	})
}

// A crash and a failure of the store leave whole parts. The same import continues behind them, and what was replayed
// or purged meanwhile does not come back. After a complete import it does.
func TestL4_ImportContinuesBehindItsLastPart(t *testing.T) {
	ofManyEvents(t)
	for kind, committed := range map[storetest.FaultKind]int{
		storetest.FailBefore: 1000, storetest.FailAfter: 1500, storetest.CrashBefore: 1000, storetest.CrashAfter: 1500,
	} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var parts parts
				parts.fault = func(n int, _ *driver.Batch) (f storetest.Fault) {
					if n == 3 {
						f.Kind = kind
					}
					return f
				}
				disk := newDisk(parts.options()...)
				bus, _ := disk.open(t)
				input := linesOf(0, 1700, 10)
				report, err := bus.DLQ().Import(t.Context(), bytes.NewReader(input))
				require.Error(t, err)
				require.Equal(t, eventbus.ImportReport{Imported: 1000}, report)
				require.ErrorContains(t, err, "after 1000 letters")
				parts.fault = nil
				disk.crash(bus)
				require.Len(t, disk.Dump().Letters, committed)

				bus, _ = disk.open(t)
				disk.handles(t, bus, "s", nil)
				require.NoError(t, bus.Start(t.Context()))
				all := list(t, bus, eventbus.LetterQuery{Limit: 10_000}).Letters
				require.NoError(t, bus.DLQ().Purge(t.Context(), all[0].ID))
				_ = parts.took()
				other := importLetters(t, bus, linesOf(5000, 1, 10))
				require.Equal(t, eventbus.ImportReport{Imported: 1}, other, "another input has its own position")
				_ = parts.took()
				report = importLetters(t, bus, input)
				require.Equal(t, eventbus.ImportReport{Imported: 1700 - committed, Skipped: committed, Resumed: committed}, report)
				require.Len(t, parts.took(), (1700-committed+499)/500)
				require.Len(t, disk.Dump().Letters, 1700)

				require.Equal(t, eventbus.ImportReport{Imported: 1, Skipped: 1699}, importLetters(t, bus, input), "it was complete")
				shutdown(t, bus)
			})
		})
	}
}

// The context ends an import between two parts, and the next import continues.
func TestL4_ImportStopsWithItsContext(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		ctx, cancel := context.WithCancel(t.Context())
		var seen []eventbus.BulkProgress
		input := linesOf(0, 1700, 10)
		report, err := bus.DLQ().Import(ctx, bytes.NewReader(input), eventbus.OnProgress(func(p eventbus.BulkProgress) {
			if seen = append(seen, p); len(seen) == 2 {
				cancel()
			}
		}))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, eventbus.ImportReport{Imported: 1000}, report)
		require.Equal(t, []eventbus.BulkProgress{{Matched: 1700, Done: 500}, {Matched: 1700, Done: 1000}}, seen)
		report = importLetters(t, bus, input)
		require.Equal(t, 700, report.Imported)
		require.Equal(t, 1000, report.Skipped)
		outcomes := audit(t, bus, eventbus.AuditQuery{Action: eventbus.AuditImport})
		require.Len(t, outcomes, 4, "two imports, each with its beginning and its outcome")
		require.Equal(t, 700, outcomes[0].Outcome.Done)
		require.Equal(t, 1000, outcomes[2].Outcome.Done)
		require.Contains(t, outcomes[2].Outcome.Error, "canceled")
		shutdown(t, bus)
	})
}

// A position is kept for 7 days, whatever the idempotency window is. After that, the import is a new one.
func TestL4_ImportForgetsItsPositionAfterAWeek(t *testing.T) {
	for days, again := range map[int]int{6: 0, 8: 1} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, eventbus.WithIdempotencyWindow(time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			input := linesOf(0, 600, 10)
			_, err := bus.DLQ().Import(ctx, bytes.NewReader(input), eventbus.OnProgress(func(eventbus.BulkProgress) { cancel() }))
			require.ErrorIs(t, err, context.Canceled)
			oldest := list(t, bus, eventbus.LetterQuery{Limit: 10_000}).Letters[499].ID
			require.NoError(t, bus.DLQ().Purge(t.Context(), oldest))
			time.Sleep(time.Duration(days) * 24 * time.Hour)
			require.Equal(t, 100+again, importLetters(t, bus, input).Imported)
			shutdown(t, bus)
		})
	}
}

// Two imports of the same letters at once add each letter once.
func TestL4_ImportTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parts parts
		disk := newDisk(parts.options()...)
		bus, _ := disk.open(t)
		input := linesOf(0, 1700, 10)
		var imports sync.WaitGroup
		for range 2 {
			imports.Go(func() {
				if _, err := bus.DLQ().Import(t.Context(), bytes.NewReader(input)); err != nil {
					t.Error(err)
				}
			})
		}
		imports.Wait()
		require.Len(t, disk.Dump().Letters, 1700)
		require.Equal(t, eventbus.ImportReport{Skipped: 1700}, importLetters(t, bus, input))
		shutdown(t, bus)
	})
}

func TestL4_PurgeCommitsInParts(t *testing.T) {
	purges := map[string]func(*eventbus.DLQ) error{
		"PurgeMatching": func(q *eventbus.DLQ) error {
			report, err := q.PurgeMatching(context.Background(), eventbus.LetterQuery{All: true})
			if report.Purged != 1700 {
				err = fmt.Errorf("%+v: %w", report, errors.Join(err, errDead))
			}
			return err
		},
		"PurgeUntil": func(q *eventbus.DLQ) error {
			purged, err := q.PurgeUntil(context.Background(), time.Now().AddDate(100, 0, 0))
			if purged != 1700 {
				err = fmt.Errorf("%d were purged: %w", purged, errors.Join(err, errDead))
			}
			return err
		},
	}
	for name, purge := range purges {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var parts parts
				disk := newDisk(parts.options()...)
				bus, _ := disk.open(t)
				disk.handles(t, bus, "s", nil)
				require.NoError(t, bus.Start(t.Context()))
				importLetters(t, bus, linesOf(0, 1700, 10))
				_ = parts.took()
				stop := publishing(t, bus)
				require.NoError(t, purge(bus.DLQ()))
				stop()
				all := parts.took()
				require.Equal(t, []int{500, 500, 500, 200}, lettersIn(all))
				requireBetween(t, all)
				require.Empty(t, disk.Dump().Letters)
				shutdown(t, bus)
			})
		})
	}
}

// A batch is refused for one letter that is gone. A purge does not try once for each.
func TestL4_PurgeOfLettersThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parts parts
		disk := newDisk(parts.options()...)
		bus, _ := disk.open(t)
		importLetters(t, bus, linesOf(0, 1000, 10))
		all := list(t, bus, eventbus.LetterQuery{Limit: 10_000}).Letters
		report, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true}, eventbus.OnProgress(func(p eventbus.BulkProgress) {
			if p.Done != 500 {
				return
			}
			for _, l := range all[100:300] { // of the second part: they are newest first
				require.NoError(t, bus.DLQ().Purge(context.Background(), l.ID))
			}
			_ = parts.took()
		}))
		require.NoError(t, err)
		require.Equal(t, eventbus.PurgeReport{Matched: 1000, Purged: 800, Gone: 200}, report)
		parts.mu.Lock()
		require.Equal(t, 2, parts.tried, "refused once, then without those that are gone")
		parts.mu.Unlock()
		shutdown(t, bus)
	})
}

// The zero time is before every letter.
func TestL5_PurgeUntilTheZeroTime(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		importLetters(t, bus, linesOf(0, 3, 10))
		purged, err := bus.DLQ().PurgeUntil(t.Context(), time.Time{})
		require.NoError(t, err)
		require.Zero(t, purged)
		require.Len(t, letters(t, bus), 3)
		shutdown(t, bus)
	})
}

// erasingStore is a store that erases.
type erasingStore struct {
	driver.Store
	calls int
	err   error
}

func (s *erasingStore) Erase(context.Context) error {
	s.calls++
	return s.err
}

// A purge erases once, at its end, and only if it has deleted a letter.
func TestL9_APurgeErasesOnceAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		inner := disk.Open()
		store := &erasingStore{Store: inner}
		bus, _ := newBus(t, eventbus.WithStore(store))
		disk.handles(t, bus, "s", nil)
		require.NoError(t, bus.Start(t.Context()))
		q := bus.DLQ()
		importLetters(t, bus, linesOf(0, 1203, 10))
		all := list(t, bus, eventbus.LetterQuery{Limit: 10_000}).Letters
		require.NoError(t, q.Replay(t.Context(), all[0].ID))
		require.Zero(t, store.calls, "a replay erases nothing")
		require.NoError(t, q.Purge(t.Context(), all[1].ID))
		require.Equal(t, 1, store.calls)
		require.ErrorIs(t, q.Purge(t.Context(), all[1].ID), eventbus.ErrNotFound)
		require.Equal(t, 1, store.calls)
		_, err := q.PurgeMatching(t.Context(), eventbus.LetterQuery{Event: all[2].Event.ID}, eventbus.DryRun())
		require.NoError(t, err)
		require.Equal(t, 1, store.calls)

		store.err = fmt.Errorf("a reader: %w", eventbus.ErrNotErased)
		require.ErrorIs(t, q.Purge(t.Context(), all[2].ID), eventbus.ErrNotErased)
		report, err := q.PurgeMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, eventbus.ErrNotErased)
		require.Equal(t, eventbus.PurgeReport{Matched: 1200, Purged: 1200}, report)
		require.Equal(t, 3, store.calls)
		require.Empty(t, disk.Dump().Letters)
		entries := audit(t, bus, eventbus.AuditQuery{Action: eventbus.AuditPurge})
		require.Len(t, entries, 2, "the purge without an erasure too")
		shutdown(t, bus)
	})
}
