package contracttest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// What is published for later as the bus shuts down is refused, or a letter of the
// shutdown's error.
func TestS2_PublishedForLaterAtTheMomentOfShutdown(t *testing.T) {
	rounds := searching(2000, 500)
	for range rounds {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", ok)
		var accepted atomic.Int64
		var wg sync.WaitGroup
		go1 := make(chan struct{})
		for range 3 {
			wg.Go(func() {
				<-go1
				for range 5 {
					if _, err := bus.Publish(context.Background(), "x", nil, eventbus.After(time.Hour)); err == nil {
						accepted.Add(1)
					}
				}
			})
		}
		var err error
		wg.Go(func() { <-go1; err = bus.Shutdown(context.Background()) })
		close(go1)
		wg.Wait()
		var left *eventbus.ShutdownError
		if accepted.Load() > 0 {
			require.ErrorAs(t, err, &left)
			require.Len(t, left.Unfinished, int(accepted.Load()))
		} else {
			require.NoError(t, err)
		}
		requireBalanced(t, bus)
	}
}

func TestD7_WaitingForAnEventForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range [][]eventbus.Option{nil, {eventbus.WithIsolation()}} {
			bus, _ := startBus(t, opts...)
			for range 2 {
				mustSubscribe(t, bus, "*", ok)
			}
			began := time.Now()
			r, err := bus.PublishAndWait(t.Context(), "x", nil, eventbus.After(time.Minute))
			require.NoError(t, err)
			require.Equal(t, eventbus.Handled, r.Outcome)
			require.Equal(t, time.Minute, time.Since(began).Round(time.Second))

			id := eventbus.NewEventID()
			go func() {
				time.Sleep(time.Second)
				if err := cancelEvent(t.Context(), bus, id); err != nil {
					panic(err)
				}
			}()
			r, err = bus.PublishAndWait(t.Context(), "x", nil, eventbus.After(time.Minute), eventbus.ID(id))
			require.ErrorIs(t, err, eventbus.ErrCancelled)
			require.Equal(t, eventbus.Result{ID: id, Outcome: eventbus.Cancelled}, r)

			// Who has given up waiting has not cancelled it.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			r, err = bus.PublishAndWait(ctx, "x", nil, eventbus.After(time.Minute))
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, cancelEvent(t.Context(), bus, r.ID))

			// A shutdown leaves it.
			got := make(chan error, 1)
			go func() {
				_, err := bus.PublishAndWait(t.Context(), "x", nil, eventbus.After(time.Minute))
				got <- err
			}()
			settleWorkers()
			require.Len(t, shutdownLeft(t, bus), 1+len(opts), "one for each dispatch that it would have been")
			var died *eventbus.DeliveryError
			require.ErrorAs(t, <-got, &died)
			require.Len(t, died.Letters, 1+len(opts))
			require.Equal(t, eventbus.ReasonShutdown, died.Letters[0].Reason)
		}
	})
}

func TestSchedule_DueExactlyAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		began := time.Now()
		var got journal[time.Duration]
		mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
			require.True(t, e.Time.Equal(began), "of publication")
			got.add(time.Since(began))
			return nil
		})
		zone := time.FixedZone("z", 3600)
		mustPublish(t, bus, "x", nil, eventbus.After(3*time.Second))
		mustPublish(t, bus, "x", nil, eventbus.At(began.Add(1500*time.Millisecond).In(zone)))
		mustPublish(t, bus, "x", nil, eventbus.After(time.Hour), eventbus.At(began.Add(2*time.Second)))
		mustPublish(t, bus, "x", nil, eventbus.At(began.Add(time.Hour)), eventbus.After(time.Second))
		m := bus.Metrics()
		require.Equal(t, 4, m.Scheduled)
		require.EqualValues(t, 4, m.Ledger.Scheduled)
		require.EqualValues(t, 4, m.Ledger.Accepted)
		requireBalanced(t, bus)
		time.Sleep(time.Minute)
		require.Equal(t, []time.Duration{time.Second, 1500 * time.Millisecond, 2 * time.Second, 3 * time.Second}, got.all())
		require.Zero(t, bus.Metrics().Scheduled)
		shutdown(t, bus)
	})
}

func TestSchedule_WhatIsDueNowIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		mustSubscribe(t, bus, "*", ok)
		for _, when := range []eventbus.PublishOption{
			eventbus.After(0), eventbus.After(-1), eventbus.After(-time.Minute), eventbus.At(time.Now()),
			eventbus.At(time.Now().Add(-time.Hour)), eventbus.At(time.Unix(0, 0)), eventbus.At(time.Date(-290000, 1, 1, 0, 0, 0, 0, time.UTC)),
		} {
			id := mustPublish(t, bus, "x", nil, when)
			status, err := bus.Event(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, eventbus.DispatchQueued, status.Dispatches[0].State)
		}
		require.Zero(t, bus.Metrics().Scheduled)
		require.Equal(t, 7, bus.Metrics().QueueDepth)
		for _, never := range []time.Time{{}, time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(292277, 1, 1, 0, 0, 0, 0, time.UTC)} {
			_, err := bus.Publish(t.Context(), "x", nil, eventbus.At(never))
			var bad *eventbus.EventError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, "time", bad.Field)
		}
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
	})
}

func TestSchedule_TheFarthestFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var called atomic.Int64
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { called.Add(1); return nil })
		time.Sleep(time.Second) // the end of time is less far away than that
		a := mustPublish(t, bus, "x", nil, eventbus.After(1<<63-1))
		b := mustPublish(t, bus, "x", nil, eventbus.At(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)))
		time.Sleep(10_000 * time.Hour)
		require.Zero(t, called.Load())
		require.NoError(t, cancelEvent(t.Context(), bus, a))
		require.NoError(t, cancelEvent(t.Context(), bus, b))
		shutdown(t, bus)
	})
}

// It goes to the subscriptions that there were when it was published.
func TestSchedule_TheSubscriptionsAreThoseOfPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		gone := mustSubscribe(t, bus, "*", calls.handler("gone"), eventbus.Named("gone"))
		mustSubscribe(t, bus, "*", calls.handler("stays"))
		mustPublish(t, bus, "x", 1, eventbus.After(time.Second))
		mustSubscribe(t, bus, "*", calls.handler("new"))
		gone.Unsubscribe()
		time.Sleep(time.Minute)
		require.Equal(t, []string{"+1s stays:1"}, calls.all())
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, bus).Reason)
		// One that nothing matches is unrouted at once.
		bus2, _ := startBus(t)
		mustPublish(t, bus2, "x", 1, eventbus.After(time.Second))
		require.EqualValues(t, 1, bus2.Metrics().Ledger.Unrouted)
		shutdown(t, bus)
		shutdown(t, bus2)
	})
}

func TestSchedule_BeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", 1, eventbus.After(time.Second))
		mustPublish(t, bus, "x", 2, eventbus.After(time.Minute))
		time.Sleep(10 * time.Second)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"+10s s:1", "+1m0s s:2"}, calls.all())
		mustPublish(t, bus, "x", 3, eventbus.After(time.Minute))
		require.Len(t, shutdownLeft(t, bus), 1)
	})
}

func TestSchedule_ShutdownBeforeStart(t *testing.T) {
	bus, _ := newBus(t)
	mustSubscribe(t, bus, "*", ok)
	id := mustPublish(t, bus, "x", 1, eventbus.After(time.Hour))
	var left *eventbus.ShutdownError
	require.ErrorAs(t, bus.Shutdown(t.Context()), &left)
	require.ErrorIs(t, left, eventbus.ErrNotStarted)
	require.Len(t, left.Unfinished, 1)
	require.Equal(t, id, left.Unfinished[0].Event.ID)
	requireBalanced(t, bus)
}

// A queue that is full does not keep an event from being due, nor one that is not
// due from being accepted.
func TestSchedule_AFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t, eventbus.WithQueueCapacity(1))
		mustSubscribe(t, bus, "*", ok)
		mustPublish(t, bus, "x", nil)
		mustPublish(t, bus, "x", nil, eventbus.After(time.Second))
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, bus.Metrics().QueueDepth)
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Handled)
	})
}

// A scheduled event becomes runnable when it is due.
func TestP6_MaxElapsedOfAScheduledEventCountsFromWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(50, 20*time.Second), eventbus.MaxElapsed(time.Minute)))
		mustSubscribe(t, bus, "*", failing(errBoom))
		mustPublish(t, bus, "x", nil, eventbus.After(time.Hour))
		time.Sleep(2 * time.Hour)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExpired, l.Reason)
		require.Equal(t, 3, l.Attempts, "at 0, 20 and 40 seconds")
		require.Equal(t, 40*time.Second, l.DiedAt.Sub(l.Event.Time)-time.Hour)
		shutdown(t, bus)
	})
}

func TestSchedule_AMockClock(t *testing.T) {
	mock := clock.NewMock()
	bus, _ := startBus(t, eventbus.WithClock(mock))
	got := make(chan any, 2)
	mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error { got <- e.Payload; return nil })
	mustPublish(t, bus, "x", 1, eventbus.At(mock.Now().Add(time.Hour)))
	mock.Add(time.Hour - 1)
	require.Equal(t, 1, bus.Metrics().Scheduled)
	mock.Add(1)
	require.Equal(t, 1, <-got)
	shutdown(t, bus)
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		id := mustPublish(t, bus, "x", "cancelled", eventbus.After(time.Minute), eventbus.Key("k"))
		mustPublish(t, bus, "x", "other", eventbus.After(time.Minute), eventbus.Key("k"))
		time.Sleep(30 * time.Second)
		require.NoError(t, cancelEvent(t.Context(), bus, id))
		requireNothingLeft(t, cancelEvent(t.Context(), bus, id))
		l := bus.Metrics().Ledger
		require.EqualValues(t, 1, l.Scheduled)
		require.EqualValues(t, 1, l.Cancelled)
		requireBalanced(t, bus)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"+1m0s s:other"}, calls.all())
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

func TestCancel_WhatIsNotScheduled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.ErrorIs(t, cancelEvent(t.Context(), &eventbus.Bus{}, eventbus.EventID{}), eventbus.ErrUninitialized)
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", ok)
		atOnce := mustPublish(t, bus, "x", nil)
		require.NoError(t, bus.Drain(t.Context()))
		require.ErrorIs(t, cancelEvent(nil, bus, eventbus.EventID{}), eventbus.ErrNilContext) //nolint:staticcheck // that is the point
		for name, id := range map[string]eventbus.EventID{
			"zero": {}, "unknown": eventbus.NewEventID(), "at once": atOnce,
			"unrouted": mustPublish(t, bus, "y", nil, eventbus.After(time.Hour)),
		} {
			err := cancelEvent(t.Context(), bus, id)
			require.True(t, nothingLeft(err), "%s: %v", name, err)
			require.ErrorContains(t, err, id.String())
		}
		due := mustPublish(t, bus, "x", nil, eventbus.After(time.Second))
		time.Sleep(time.Second)
		settleWorkers()
		requireNothingLeft(t, cancelEvent(t.Context(), bus, due))
		later := mustPublish(t, bus, "x", nil, eventbus.After(time.Hour))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, cancelEvent(ended, bus, later), context.Canceled)
		require.Equal(t, 1, bus.Metrics().Scheduled)
		require.Len(t, shutdownLeft(t, bus), 1)
		requireNothingLeft(t, cancelEvent(t.Context(), bus, later))
	})
}

// When Cancel runs at the instant at which the event is due, exactly one of them wins.
func TestCancel_WhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		bus, _ := startBus(t)
		var called, cancelled [n]atomic.Int64
		mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error { called[e.Payload.(int)].Add(1); return nil })
		var ids [n]eventbus.EventID
		due := func(i int) time.Duration { return time.Second + time.Duration(i)*5*time.Microsecond }
		began := time.Now()
		for i := range n {
			ids[i] = mustPublish(t, bus, "x", i, eventbus.At(began.Add(due(i))))
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for i := range n {
					time.Sleep(due(i) - time.Since(began)) // wakes at the same instant as the schedule
					switch _, err := cancelForSure(bus, ids[i]); {
					case err == nil:
						cancelled[i].Add(1)
					case !nothingLeft(err):
						panic(err)
					}
				}
			})
		}
		wg.Wait()
		shutdown(t, bus)
		total := int64(0)
		for i := range n {
			require.LessOrEqual(t, cancelled[i].Load(), int64(1), "%d", i)
			require.Positive(t, called[i].Load()+cancelled[i].Load(), "%d", i) // a call that has begun may be cancelled
			total += cancelled[i].Load()
		}
		require.Equal(t, n-total, bus.Metrics().Ledger.Handled)
		require.Equal(t, total, bus.Metrics().Ledger.Cancelled)
	})
}

func TestCancel_LeavesNoMemory(t *testing.T) {
	ofManyEvents(t)
	const n = 200_000
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "*", ok)
	before := heldBytes()
	var ids []eventbus.EventID
	for range n {
		ids = append(ids, mustPublish(t, bus, "x", new([64]byte), eventbus.After(time.Hour), eventbus.Key("k")))
	}
	stays := mustPublish(t, bus, "x", nil, eventbus.After(time.Hour))
	require.Greater(t, heldBytes()-before, int64(n*100))
	for _, id := range ids {
		require.NoError(t, cancelEvent(t.Context(), bus, id))
	}
	require.Less(t, heldBytes()-before-int64(16*cap(ids)), int64(3<<20), "the last 10,000 are remembered")
	runtime.KeepAlive(ids)
	require.Equal(t, 1, bus.Metrics().Scheduled)
	left := shutdownLeft(t, bus)
	require.Len(t, left, 1)
	require.Equal(t, stays, left[0].Event.ID)
}

func TestSchedule_WhatWasDueLeavesNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100_000
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", ok)
		before := heldBytes()
		for range n {
			mustPublish(t, bus, "x", nil, eventbus.After(time.Second))
		}
		require.Greater(t, heldBytes()-before, int64(n*100))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, n, bus.Metrics().Ledger.Handled)
		require.Less(t, heldBytes()-before, int64(2<<20))
		shutdown(t, bus)
	})
}
