package contracttest

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// fillAndMend is fill, whose subscription then handles what it gets, or calls then.
func fillAndMend(t *testing.T, bus *eventbus.Bus, n int, then eventbus.Handler) {
	t.Helper()
	var mended atomic.Bool
	mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
		if !mended.Load() {
			return eventbus.Permanent(errDead)
		}
		return then(ctx, e)
	}, eventbus.Named("s"))
	for i := range n {
		mustPublish(t, bus, "a", i)
	}
	synctest.Wait()
	mended.Store(true)
}

func TestL4_RateSpreadsAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		var at journal[time.Duration]
		began := time.Now()
		fillAndMend(t, bus, 10, func(context.Context, eventbus.Event) error {
			at.add(time.Since(began))
			return nil
		})
		report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.Rate(2))
		require.NoError(t, err)
		require.Equal(t, eventbus.ReplayReport{Matched: 10, Replayed: 10}, report)
		synctest.Wait()
		var want []time.Duration
		for i := range 10 {
			want = append(want, time.Duration(i)*500*time.Millisecond)
		}
		require.Equal(t, want, at.all())
		shutdown(t, bus)
	})
}

func TestL4_RateSpreadsAPurgeAndCatchesUpLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		fill(t, bus, 200)
		began := time.Now()
		var at []time.Duration
		report, err := bus.DLQ().PurgeMatching(t.Context(), allLetters, eventbus.Rate(1000), eventbus.OnProgress(func(p eventbus.BulkProgress) {
			at = append(at, time.Since(began))
			require.Equal(t, eventbus.BulkProgress{Matched: 200, Done: len(at)}, p)
			if len(at) == 100 {
				time.Sleep(time.Second)
			}
		}))
		require.NoError(t, err)
		require.Equal(t, eventbus.PurgeReport{Matched: 200, Purged: 200}, report)
		require.Equal(t, 99*time.Millisecond, at[99])
		late := 0
		for _, d := range at[100:] {
			if d == 1099*time.Millisecond {
				late++
			}
		}
		require.Equal(t, 11, late, "what was due in 10 ms, and the next one")
		require.Equal(t, 1099*time.Millisecond+89*time.Millisecond, at[199])
		shutdown(t, bus)
	})
}

// The bus's clock paces, not the machine's.
func TestL4_RateIsByTheBusesClock(t *testing.T) {
	mock := clock.NewMock()
	bus, _ := startBus(t, eventbus.WithClock(mock), withoutCircuit)
	mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)))
	for range 3 {
		_, err := bus.PublishAndWait(t.Context(), "a", nil)
		require.ErrorIs(t, err, errDead)
	}
	steps := make(chan int)
	done := make(chan error)
	go func() {
		_, err := bus.DLQ().PurgeMatching(t.Context(), allLetters, eventbus.Rate(1.0/3600), eventbus.OnProgress(func(p eventbus.BulkProgress) { steps <- p.Done }))
		done <- err
	}()
	require.Equal(t, 1, <-steps)
	for want := 2; want <= 3; want++ {
		moved := false
		for got := 0; got != want; {
			select {
			case got = <-steps:
				require.True(t, moved)
				require.Equal(t, want, got)
			default:
				mock.Add(time.Minute)
				moved = true
				runtime.Gosched()
			}
		}
	}
	require.NoError(t, <-done)
	require.GreaterOrEqual(t, mock.Now().Sub(time.Unix(0, 0)), 2*time.Hour)
	shutdown(t, bus)
}

func TestL4_DryRunOnlyCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		fill(t, bus, 5)
		began := time.Now()
		opts := []eventbus.BulkOption{eventbus.DryRun(), eventbus.Rate(1)}
		replay, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Subscription: "s"}, opts...)
		require.NoError(t, err)
		require.Equal(t, eventbus.ReplayReport{Matched: 5}, replay)
		purge, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Subscription: "s"}, opts...)
		require.NoError(t, err)
		require.Equal(t, eventbus.PurgeReport{Matched: 5}, purge)
		require.Equal(t, began, time.Now())
		require.Len(t, letters(t, bus), 5)
		require.Zero(t, bus.Metrics().Ledger.Replays)
		shutdown(t, bus)
	})
}

// Every failed attempt counts, retries of one event too, and the operation does not
// wait for its next turn to stop.
func TestL4_StopAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit, eventbus.WithRetry(retry(2, time.Second)))
		fillAndMend(t, bus, 20, func(_ context.Context, e eventbus.Event) error {
			if e.Payload.(int) < 3 {
				return nil
			}
			return errDead
		})
		began := time.Now()
		var progress []eventbus.BulkProgress
		report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.Rate(0.1), eventbus.StopAfter(5),
			eventbus.OnProgress(func(p eventbus.BulkProgress) { progress = append(progress, p) }))
		require.NoError(t, err)
		// Letter 3 fails after 30, 31 and 32 s, letter 4 after 40 and 41 s.
		require.Equal(t, eventbus.ReplayReport{Matched: 20, Replayed: 5, Failures: 5, Stopped: true}, report)
		require.Equal(t, 41*time.Second, time.Since(began))
		require.Len(t, progress, 5)
		require.Equal(t, eventbus.BulkProgress{Matched: 20, Done: 4}, eventbus.BulkProgress{Matched: progress[3].Matched, Done: progress[3].Done})
		time.Sleep(time.Minute)
		require.Len(t, letters(t, bus), 17, "15 untried, and two that died again")
		shutdown(t, bus)
	})
}

func TestL4_StopAfterCountsLettersThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		s := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
		for range 5 {
			mustPublish(t, bus, "a", nil)
		}
		synctest.Wait()
		s.Unsubscribe()
		report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.StopAfter(2))
		require.NoError(t, err)
		require.Len(t, report.Stayed, 2)
		require.Equal(t, 2, report.Failures)
		require.True(t, report.Stopped)

		report, err = bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.StopAfter(5))
		require.NoError(t, err)
		require.Len(t, report.Stayed, 5)
		require.False(t, report.Stopped, "there was nothing left to try")
		shutdown(t, bus)
	})
}

// A replay that a shut door skips dies without an attempt, and is a failure.
func TestL4_ADeathWithoutAnAttemptIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit, eventbus.WithConcurrency(1))
		s := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)))
		for range 4 {
			mustPublish(t, bus, "a", nil)
		}
		synctest.Wait()
		release := blockWorker(t, bus)
		report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.StopAfter(2), eventbus.OnProgress(func(p eventbus.BulkProgress) {
			if p.Done == 2 {
				s.Unsubscribe()
				release()
				synctest.Wait()
			}
		}))
		require.NoError(t, err)
		require.Equal(t, eventbus.ReplayReport{Matched: 4, Replayed: 2, Failures: 2, Stopped: true}, report)
		shutdown(t, bus)
	})
}

func TestL4_BadBulkOptions(t *testing.T) {
	bus, _ := startBus(t)
	for _, c := range []struct {
		name string
		opt  eventbus.BulkOption
	}{
		{"Rate", eventbus.Rate(0)},
		{"Rate", eventbus.Rate(-1)},
		{"Rate", eventbus.Rate(math.NaN())},
		{"Rate", eventbus.Rate(math.Inf(1))},
		{"StopAfter", eventbus.StopAfter(0)},
		{"StopAfter", eventbus.StopAfter(-1)},
		{"OnProgress", eventbus.OnProgress(nil)},
	} {
		_, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, c.opt)
		requireOptionError(t, err, c.name)
		_, err = bus.DLQ().PurgeMatching(t.Context(), allLetters, c.opt)
		requireOptionError(t, err, c.name)
	}
	_, err := bus.DLQ().PurgeMatching(t.Context(), allLetters, eventbus.StopAfter(1))
	requireOptionError(t, err, "StopAfter")
	_, err = bus.DLQ().ReplayMatching(t.Context(), allLetters, nil)
	requireOptionError(t, err, "ReplayMatching")
	_, err = bus.DLQ().PurgeMatching(t.Context(), allLetters, eventbus.Rate(1), nil)
	requireOptionError(t, err, "PurgeMatching")
	_, err = bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.Rate(math.SmallestNonzeroFloat64), eventbus.Rate(math.MaxFloat64))
	require.NoError(t, err, "the last one counts")
	shutdown(t, bus)
}

func TestL4_CancellationEndsAPacedOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		fill(t, bus, 10)
		began := time.Now()
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2500*time.Millisecond, cause)
		defer cancel()
		purge, err := bus.DLQ().PurgeMatching(ctx, allLetters, eventbus.Rate(1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, cause)
		require.Equal(t, eventbus.PurgeReport{Matched: 10, Purged: 3}, purge)
		require.Equal(t, 2500*time.Millisecond, time.Since(began))

		ctx, stop := context.WithCancel(t.Context())
		replay, err := bus.DLQ().ReplayMatching(ctx, allLetters, eventbus.OnProgress(func(p eventbus.BulkProgress) {
			if p.Done == 2 {
				stop()
			}
		}))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 2, replay.Replayed)
		require.Equal(t, 7, replay.Matched)
		shutdown(t, bus)
	})
}

// While it waits for its turn, Shutdown ends it, also if that has to wait for
// handlers itself.
func TestL4_ShutdownEndsAPacedReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		fill(t, bus, 10)
		release := make(chan struct{})
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error { <-release; return nil })
		mustPublish(t, bus, "slow", nil)
		var wg sync.WaitGroup
		var ended time.Time
		began := time.Now()
		wg.Go(func() {
			report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters, eventbus.Rate(1.0/3600))
			ended = time.Now()
			require.ErrorIs(t, err, eventbus.ErrShutdown)
			require.Equal(t, 1, report.Replayed)
			require.Equal(t, 10, report.Matched)
		})
		time.Sleep(time.Minute)
		wg.Go(func() { shutdown(t, bus) })
		synctest.Wait()
		require.Equal(t, time.Minute, ended.Sub(began))
		close(release)
		wg.Wait()
		require.Len(t, letters(t, bus), 10)
		report, err := bus.DLQ().PurgeMatching(t.Context(), allLetters, eventbus.Rate(1))
		require.NoError(t, err, "an operator may still tidy up")
		require.Equal(t, 10, report.Purged)
	})
}

// What OnProgress does is not in our way: it may use the queue, and panic.
func TestL4_OnProgressMayDoAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, withoutCircuit)
		fill(t, bus, 10)
		purge, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Subscription: "s"}, eventbus.Rate(1000), eventbus.OnProgress(func(p eventbus.BulkProgress) {
			if p.Done == 1 {
				page := list(t, bus, eventbus.LetterQuery{Limit: 2})
				for _, l := range page.Letters {
					require.NoError(t, bus.DLQ().Purge(t.Context(), l.ID))
				}
				mustPublish(t, bus, "a", "new")
				synctest.Wait()
			}
		}))
		require.NoError(t, err)
		require.Equal(t, eventbus.PurgeReport{Matched: 10, Purged: 8, Gone: 2}, purge)
		require.Equal(t, "new", oneLetter(t, bus).Event.Payload, "the set is as it was when it began")
		fillAgain := func() {
			for i := range 9 {
				mustPublish(t, bus, "a", i)
			}
			synctest.Wait()
		}
		fillAgain()
		for _, opts := range [][]eventbus.BulkOption{{}, {eventbus.Rate(10)}} {
			require.PanicsWithValue(t, "mine", func() {
				_, _ = bus.DLQ().ReplayMatching(t.Context(), allLetters, append(opts, eventbus.OnProgress(func(p eventbus.BulkProgress) {
					if p.Done == 3 {
						panic("mine")
					}
				}))...)
			})
			synctest.Wait()
			require.Len(t, letters(t, bus), 10, "three have been replayed, and died again")
		}
		require.EqualValues(t, 6, bus.Metrics().Ledger.Replays)
		shutdown(t, bus)
	})
}

// Bulk replay of many, with failures in the middle, beside everything else that
// empties and fills the queue: nothing is lost, and the reports add up.
func TestL4_BulkReplayRacesPurges(t *testing.T) {
	bus, _ := startBus(t, withoutCircuit, eventbus.WithDeadLetterCapacity(100_000), eventbus.WithQueueCapacity(100_000))
	var mended atomic.Bool
	mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
		if !mended.Load() || e.Payload.(int)%10 == 5 {
			return eventbus.Permanent(errDead)
		}
		return nil
	}, eventbus.Named("s"))
	const n = 20_000
	for i := range n {
		mustPublish(t, bus, "a", i)
	}
	for bus.Metrics().DeadLetters < n {
		runtime.Gosched()
	}
	mended.Store(true)
	var replayed, purged, gone, untold atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			report, err := bus.DLQ().ReplayMatching(t.Context(), allLetters)
			if err != nil || report.Replayed+report.Gone+len(report.Stayed) != report.Matched {
				untold.Add(1)
			}
			replayed.Add(int64(report.Replayed))
			gone.Add(int64(report.Gone))
		})
	}
	wg.Go(func() {
		report, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Error: "dead"})
		if err != nil || report.Purged+report.Gone != report.Matched {
			untold.Add(1)
		}
		purged.Add(int64(report.Purged))
	})
	wg.Go(func() {
		for range 100 {
			page, _ := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Limit: 3})
			for _, l := range page.Letters {
				if bus.DLQ().Replay(t.Context(), l.ID) == nil {
					replayed.Add(1)
				}
			}
		}
	})
	wg.Wait()
	shutdown(t, bus)
	require.Zero(t, untold.Load())
	l := bus.Metrics().Ledger
	require.Equal(t, replayed.Load(), l.Replays)
	require.Equal(t, l.DeadLettered-replayed.Load()-purged.Load(), int64(bus.Metrics().DeadLetters))
	require.EqualValues(t, n, l.Handled+purged.Load()+int64(bus.Metrics().DeadLetters), "each event is in one place")
}

func TestL4_ReplayMatchingTakesTheSetAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		var ran journal[any]
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			ran.add(e.Payload)
			return eventbus.Permanent(errDead)
		}, eventbus.Named("s"))
		for i := range 50 {
			mustPublish(t, bus, "a", i)
		}
		synctest.Wait()
		report, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Subscription: "s"})
		require.NoError(t, err)
		require.Equal(t, 50, report.Matched)
		require.Equal(t, 50, report.Replayed, "those that die again are new letters")
		synctest.Wait()
		require.Equal(t, 100, ran.len())
		require.True(t, slices.IsSortedFunc(ran.all()[50:], func(x, y any) int { return x.(int) - y.(int) }), "oldest first")
		require.Len(t, letters(t, bus), 50)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		report, err = bus.DLQ().ReplayMatching(ended, eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, report.Replayed)
		shutdown(t, bus)
	})
}

// countdownContext ends when it has been asked a few times whether it has.
type countdownContext struct {
	context.Context
	cancel context.CancelFunc
	left   int
}

func (c *countdownContext) Err() error {
	if c.left--; c.left < 0 {
		c.cancel()
	}
	return c.Context.Err()
}

// A bulk replay looks at its context before each letter.
func TestL4_ReplayMatchingStopsWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		fill(t, bus, 10)
		ctx, cancel := context.WithCancel(t.Context())
		report, err := bus.DLQ().ReplayMatching(&countdownContext{ctx, cancel, 5}, eventbus.LetterQuery{All: true})
		require.ErrorIs(t, err, context.Canceled)
		require.NotZero(t, report.Replayed, "it has ended before the first")
		require.Less(t, report.Replayed, 6)
		synctest.Wait()
		replayed := 0
		for _, l := range letters(t, bus) {
			replayed += l.Replays
		}
		require.Equal(t, report.Replayed, replayed)
		require.Len(t, letters(t, bus), 10)
		shutdown(t, bus)
	})
}

// Purging, replaying, evicting and dying go on at once; the numbers add up.
func TestL4_PurgeAndReplayRaceWithDying(t *testing.T) {
	bus, _ := startBus(t, silent(oneAttempt, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithDeadLetterCapacity(64))...)
	mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
		if e.Payload.(int)%3 == 0 {
			return nil
		}
		return eventbus.Permanent(errBroken)
	})
	ctx := context.Background()
	var purged, replayed atomic.Int64
	var publishers, others sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				report, _ := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{Error: "broken"})
				replayed.Add(int64(report.Replayed))
				gone, _ := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{Type: "a"})
				purged.Add(int64(gone.Purged))
				page, _ := bus.DLQ().List(ctx, eventbus.LetterQuery{Limit: 5})
				for _, l := range page.Letters {
					if bus.DLQ().Purge(ctx, l.ID) == nil {
						purged.Add(1)
					}
				}
			}
		})
	}
	for range 2 {
		publishers.Go(func() {
			for i := range 1000 {
				_, _ = bus.Publish(ctx, "a", i)
			}
		})
	}
	publishers.Wait()
	close(stop)
	others.Wait()
	shutdown(t, bus)
	m := bus.Metrics()
	require.Equal(t, replayed.Load(), m.Ledger.Replays)
	require.Equal(t, m.Ledger.DeadLettered, purged.Load()+replayed.Load()+m.LettersEvicted+int64(m.DeadLetters))
	require.Len(t, letters(t, bus), m.DeadLetters)
}

// Shutdown and Unsubscribe find the older events of a key held, and the newer ones queued.
// They make letters of both at the same time, so the letters' ids are not in the order of
// publication.
func TestL4_AReplayIsInTheOrderOfPublicationOfEachKey(t *testing.T) {
	const events = 40
	keyOf := func(i int) string {
		switch {
		case i%10 == 9:
			return ""
		case i%2 == 0:
			return "even"
		}
		return "odd"
	}
	for _, end := range []string{"unsubscribe", "unsubscribe and import", "shutdown and import"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old, _ := startBus(t, silent(eventbus.WithConcurrency(1))...)
				release := make(chan struct{})
				mustSubscribe(t, old, "blocks", func(ctx context.Context, _ eventbus.Event) error {
					select {
					case <-release:
					case <-ctx.Done():
					}
					return nil
				}, eventbus.Named("blocks"))
				s := mustSubscribe(t, old, "order.*", ok, eventbus.Named("mail"))
				publish := func(from, to int) {
					for i := from; i < to; i++ {
						opts := []eventbus.PublishOption{eventbus.Metadata("number", strconv.Itoa(i))}
						if key := keyOf(i); key != "" {
							opts = append(opts, eventbus.Key(key))
						}
						mustPublish(t, old, "order.placed", i, opts...)
					}
					settleWorkers()
				}
				require.NoError(t, s.Pause())
				publish(0, events/2)
				mustPublish(t, old, "blocks", nil)
				settleWorkers()
				publish(events/2, events)
				require.EqualValues(t, events/2, old.Metrics().Ledger.Held)

				into, ran := old, journal[string]{}
				mail := func(bus *eventbus.Bus) {
					mustSubscribe(t, bus, "order.*", func(_ context.Context, e eventbus.Event) error {
						ran.add(e.Key + " " + e.Metadata.Get("number"))
						return nil
					}, eventbus.Named("mail"))
				}
				if strings.HasPrefix(end, "shutdown") {
					_ = cutShort(t, old)
				} else {
					s.Unsubscribe()
					close(release)
					synctest.Wait()
				}
				if strings.HasSuffix(end, "import") {
					into, _ = startBus(t, silent()...)
					mustSubscribe(t, into, "blocks", ok, eventbus.Named("blocks"))
					importLetters(t, into, exportLetters(t, old))
				}
				mail(into)
				report, err := into.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
				require.NoError(t, err)
				require.GreaterOrEqual(t, report.Replayed, events)
				synctest.Wait()
				want, got := map[string][]string{}, map[string][]string{}
				for i := range events {
					want[keyOf(i)] = append(want[keyOf(i)], keyOf(i)+" "+strconv.Itoa(i))
				}
				for _, r := range ran.all() {
					key, _, _ := strings.Cut(r, " ")
					got[key] = append(got[key], r)
				}
				require.ElementsMatch(t, want[""], got[""])
				delete(want, "")
				delete(got, "")
				require.Equal(t, want, got)
				shutdown(t, into)
			})
		})
	}
}

// A time that is zero in another location than UTC is not set either.
func TestL4_AZeroTimeInAnyLocationIsNoCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { return eventbus.Permanent(errBoom) })
		for range 3 {
			mustPublish(t, bus, "x", nil)
		}
		synctest.Wait()
		zero := time.Time{}.In(time.FixedZone("x", 3600))
		for _, query := range []eventbus.LetterQuery{{Since: zero}, {Until: zero}} {
			_, err := bus.DLQ().PurgeMatching(t.Context(), query)
			requireOptionError(t, err, "LetterQuery.All")
			_, err = bus.DLQ().ReplayMatching(t.Context(), query, eventbus.DryRun())
			requireOptionError(t, err, "LetterQuery.All")
		}
		require.Equal(t, 3, bus.Metrics().DeadLetters)
		shutdown(t, bus)
	})
}

// An operation at a rate ends with its context, also if the context has no error.
func TestL4_ARateEndsWithAContextThatContradictsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { return eventbus.Permanent(errBoom) })
		for range 5 {
			mustPublish(t, bus, "x", nil)
		}
		synctest.Wait()
		_, err := bus.DLQ().PurgeMatching(endedWithoutError(), eventbus.LetterQuery{All: true}, eventbus.Rate(1))
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, bus.Metrics().Ledger.DeadLettered-int64(bus.Metrics().DeadLetters), int64(2))
		shutdown(t, bus)
	})
}
