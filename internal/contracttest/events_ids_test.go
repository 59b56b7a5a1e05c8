package contracttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A single event is no batch.
func TestE6_ADuplicateOutsideABatchIsNoBatchError(t *testing.T) {
	bus, _ := startBus(t)
	id := eventbus.NewEventID()
	mustPublish(t, bus, "x", nil, eventbus.ID(id))
	_, err := bus.Publish(t.Context(), "y", nil, eventbus.ID(id))
	var batch *eventbus.BatchError
	require.ErrorIs(t, err, eventbus.ErrDuplicateID)
	require.NotErrorAs(t, err, &batch)
	shutdown(t, bus)
}

func TestE6_AGivenIDIsTheEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var got journal[eventbus.EventID]
		mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error { got.add(e.ID); return nil })
		id := eventbus.NewEventID()
		require.Equal(t, id, mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()), eventbus.ID(id)))
		other := eventbus.EventID{1}
		require.Equal(t, other, mustPublish(t, bus, "x", nil, eventbus.ID(other)))
		shutdown(t, bus)
		require.ElementsMatch(t, []eventbus.EventID{id, other}, got.all())
	})
}

func TestE6_NewEventIDsAreUniqueAndOrdered(t *testing.T) {
	var all []eventbus.EventID
	for range 10_000 {
		all = append(all, eventbus.NewEventID())
	}
	require.True(t, slices.IsSortedFunc(all, compareIDs))
	require.Len(t, slices.Compact(all), 10_000)
}

func TestE6_AZeroIDIsRefused(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "*", ok)
	_, err := bus.Publish(t.Context(), "x", nil, eventbus.ID(eventbus.EventID{}))
	var bad *eventbus.EventError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "id", bad.Field)
	require.Zero(t, bus.Metrics().Ledger.Accepted)
	shutdown(t, bus)
}

// A known id is answered as the first time, and dispatches nothing; for something
// else it is refused.
func TestE6_AKnownID(t *testing.T) {
	for name, c := range map[string]struct {
		subscribed bool
		opts       []eventbus.PublishOption
		bus        []eventbus.Option
	}{
		"routed":     {subscribed: true},
		"key":        {subscribed: true, opts: []eventbus.PublishOption{eventbus.Key("k")}},
		"unrouted":   {},
		"scheduled":  {subscribed: true, opts: []eventbus.PublishOption{eventbus.After(time.Minute)}},
		"isolated":   {subscribed: true, bus: []eventbus.Option{eventbus.WithIsolation()}},
		"dispatched": {subscribed: true, opts: []eventbus.PublishOption{eventbus.Metadata("m", "v")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var unrouted atomic.Int64
				bus, _ := startBus(t, append(c.bus, eventbus.WithObserver(eventbus.Observer{Unrouted: func(eventbus.Event) { unrouted.Add(1) }}))...)
				var called atomic.Int64
				if c.subscribed {
					for range 2 {
						mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { called.Add(1); return nil })
					}
				}
				id := eventbus.NewEventID()
				publish := func(eventType string, payload any, opts ...eventbus.PublishOption) error {
					got, err := bus.Publish(t.Context(), eventType, payload, append(append([]eventbus.PublishOption{eventbus.ID(id)}, c.opts...), opts...)...)
					if err == nil {
						require.Equal(t, id, got)
					}
					return err
				}
				require.NoError(t, publish("x", 1))
				settleWorkers()
				before := bus.Metrics()
				require.NoError(t, publish("x", 1))
				require.NoError(t, publish("x", 2), "in memory the payload is no part of the content")
				err := publish("y", 1)
				require.ErrorIs(t, err, eventbus.ErrDuplicateID)
				require.ErrorContains(t, err, id.String())
				require.ErrorIs(t, publish("x", 1, eventbus.Key("other")), eventbus.ErrDuplicateID)
				require.NoError(t, publish("x", 1), "a refusal changes nothing")
				r, err := bus.PublishAndWait(t.Context(), "x", 1, append(c.opts, eventbus.ID(id))...)
				require.NoError(t, err)
				require.Equal(t, eventbus.Result{ID: id, Outcome: eventbus.Repeated}, r)
				settleWorkers()
				require.Equal(t, before.Ledger, bus.Metrics().Ledger)
				require.Equal(t, before.Types["x"].Events, bus.Metrics().Types["x"].Events)
				require.Zero(t, bus.Metrics().Types["y"].Events)
				time.Sleep(time.Hour)
				if c.subscribed {
					require.EqualValues(t, 2, called.Load())
				} else {
					require.EqualValues(t, 1, unrouted.Load())
				}
				require.NoError(t, publish("x", 1), "known for ever, or so")
				shutdown(t, bus)
				require.EqualValues(t, 1, bus.Metrics().Ledger.Accepted)
			})
		})
	}
}

// What was not accepted has not taken its id.
func TestE6_ARefusedEventsIDIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithQueueCapacity(1), eventbus.WithConcurrency(1))
		var got journal[any]
		mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
			got.add(e.Payload)
			time.Sleep(time.Second)
			return nil
		})
		mustPublish(t, bus, "x", 1)
		settleWorkers()
		mustPublish(t, bus, "x", 2)
		id := eventbus.NewEventID()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := bus.Publish(ctx, "x", "refused", eventbus.ID(id))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = bus.Publish(t.Context(), "x", "refused", eventbus.ID(id), nil)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		_, err = bus.PublishBatch(t.Context(), []eventbus.Publication{
			{Type: "x", Payload: "refused", Options: []eventbus.PublishOption{eventbus.ID(id)}}, {Type: "bad type"},
		})
		require.Error(t, err)
		time.Sleep(time.Minute)
		mustPublish(t, bus, "y", "accepted", eventbus.ID(id))
		shutdown(t, bus)
		require.Equal(t, []any{1, 2, "accepted"}, got.all())
	})
}

// A repetition takes no place, so it needs none, and a duplicate is refused at once.
func TestE6_AKnownIDNeedsNoRoom(t *testing.T) {
	for _, opts := range [][]eventbus.Option{nil, {eventbus.RefuseWhenFull()}} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, append(opts, eventbus.WithQueueCapacity(1), eventbus.WithConcurrency(1))...)
			mustSubscribe(t, bus, "*", sleepFor(time.Second))
			id := eventbus.NewEventID()
			mustPublish(t, bus, "x", 1, eventbus.ID(id))
			settleWorkers()
			mustPublish(t, bus, "x", 2)
			began := time.Now()
			require.Equal(t, id, mustPublish(t, bus, "x", 1, eventbus.ID(id)))
			_, err := bus.Publish(t.Context(), "y", 1, eventbus.ID(id))
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
			require.Zero(t, time.Since(began))
			shutdown(t, bus)
		})
	}
}

// Many publish one id at once, some of them with contexts that end, while the
// queue is full: it is dispatched once if anybody was told that it is accepted, and
// not at all otherwise.
func TestE6_ConcurrentPublishersOfOneID(t *testing.T) {
	rounds := searching(300, 60)
	for round := range rounds {
		bus, _ := startBus(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		release := make(chan struct{})
		var called atomic.Int64
		mustSubscribe(t, bus, "block", func(context.Context, eventbus.Event) error { <-release; return nil })
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { called.Add(1); return nil })
		mustPublish(t, bus, "block", nil)
		for bus.Metrics().QueueDepth > 0 {
			runtime.Gosched()
		}
		mustPublish(t, bus, "block", nil)
		mustPublish(t, bus, "block", nil)
		id := eventbus.NewEventID()
		var told, duplicates atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				use := ctx
				if i < round%3 {
					use = t.Context()
				}
				eventType := "x"
				if round%5 == 0 && i%2 == 0 {
					eventType = "block"
				}
				var err error
				if i%4 == 1 {
					_, err = bus.PublishBatch(use, []eventbus.Publication{{Type: eventType, Options: []eventbus.PublishOption{eventbus.ID(id)}}})
				} else {
					_, err = bus.Publish(use, eventType, nil, eventbus.ID(id))
				}
				switch {
				case err == nil && eventType == "x":
					told.Add(1)
				case errors.Is(err, eventbus.ErrDuplicateID):
					duplicates.Add(1)
				case err != nil && !errors.Is(err, context.Canceled):
					panic(err)
				}
			})
		}
		wg.Go(func() { close(release) })
		wg.Go(cancel)
		wg.Wait()
		shutdown(t, bus)
		if told.Load() > 0 {
			require.EqualValues(t, 1, called.Load())
		} else {
			require.Zero(t, called.Load())
		}
	}
}

func TestE6_TheOldestOfManyIsForgotten(t *testing.T) {
	ofManyEvents(t)
	const most = 100_000
	bus, _ := startBus(t)
	id := func(n int) eventbus.PublishOption {
		return eventbus.ID(eventbus.EventID{1, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	known := func(n int) bool {
		_, err := bus.Publish(t.Context(), "another.type", nil, id(n))
		return errors.Is(err, eventbus.ErrDuplicateID)
	}
	publish := func(from, to int) {
		for n := from; n < to; n++ {
			mustPublish(t, bus, "x", nil, id(n))
		}
	}
	publish(0, most)
	mustPublish(t, bus, "x", nil, id(0))
	require.True(t, known(0), "the 100,000th is known")
	publish(most, most+1)
	require.True(t, known(1))
	require.True(t, known(most))
	require.False(t, known(0)) // which has published it
	require.False(t, known(1), "and made 1 the 100,001st")
	before := heldBytes()
	publish(2*most, 5*most)
	require.Less(t, heldBytes()-before, int64(16<<20), "no more than so many are remembered")
	require.True(t, known(4*most))
	require.True(t, known(5*most-1))
	require.False(t, known(4*most-1))
	shutdown(t, bus)
	require.Equal(t, fmt.Sprint(most+1+2+1+3*most), fmt.Sprint(bus.Metrics().Ledger.Accepted))
}

// Who puts off a reminder by cancelling it and publishing it again, under its id,
// is not answered as if it were there.
func TestE6_ACancelledIDCanBeGivenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var at []time.Duration
		began := time.Now()
		mustSubscribe(t, bus, "reminder", func(context.Context, eventbus.Event) error {
			at = append(at, time.Since(began))
			return nil
		})
		id := eventbus.NewEventID()
		for _, after := range []time.Duration{time.Hour, 2 * time.Hour} {
			mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(after))
			mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(after)) // known
			require.Equal(t, 1, bus.Metrics().Scheduled)
			require.NoError(t, cancelEvent(t.Context(), bus, id))
		}
		mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(3*time.Hour))
		time.Sleep(4 * time.Hour)
		synctest.Wait()
		require.Equal(t, []time.Duration{3 * time.Hour}, at)
		shutdown(t, bus)
	})
}

// An id that was forgotten and given again is not forgotten with its first entry.
func TestE6_AnIDGivenAgainIsKnownForItsTime(t *testing.T) {
	bus, _ := newBus(t) // not started: what nothing matches needs no worker
	id := eventbus.NewEventID()
	mustSubscribe(t, bus, "reminder", ok)
	mustPublish(t, bus, "reminder", nil, eventbus.ID(id), eventbus.After(time.Hour))
	require.NoError(t, cancelEvent(t.Context(), bus, id))
	mustPublish(t, bus, "a", nil, eventbus.ID(id))
	for range 99_999 {
		mustPublish(t, bus, "a", nil, eventbus.ID(eventbus.NewEventID()))
	}
	_, err := bus.Publish(t.Context(), "b", nil, eventbus.ID(id))
	require.ErrorIs(t, err, eventbus.ErrDuplicateID)
	mustPublish(t, bus, "a", nil, eventbus.ID(eventbus.NewEventID()))
	mustPublish(t, bus, "b", nil, eventbus.ID(id))
}

// An event with a known id is not dispatched, so its key does not matter.
func TestE6_AKnownIDUnderTheHandlersOwnKeyIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		id := eventbus.NewEventID()
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			r, err := bus.PublishAndWait(ctx, "x", nil, eventbus.Key("k"), eventbus.ID(id))
			if err == nil && r.Outcome != eventbus.Repeated {
				t.Errorf("outcome %v", r.Outcome)
			}
			return err
		})
		_, err := bus.PublishAndWait(t.Context(), "x", nil, eventbus.Key("k"), eventbus.ID(id))
		require.NoError(t, err)
		shutdown(t, bus)
	})
}
