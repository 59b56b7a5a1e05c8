package contracttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func batchOf(n int, opts ...eventbus.PublishOption) []eventbus.Publication {
	batch := make([]eventbus.Publication, n)
	for i := range batch {
		batch[i] = eventbus.Publication{Type: "x", Payload: i, Options: opts}
	}
	return batch
}

func TestE7_ABatchIsAcceptedInItsOrder(t *testing.T) {
	for _, key := range []string{"", "k"} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(1000))
			var got journal[int]
			var ids journal[eventbus.EventID]
			mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
				got.add(e.Payload.(int))
				ids.add(e.ID)
				return nil
			})
			given, err := bus.PublishBatch(t.Context(), batchOf(1000, eventbus.Key(key)))
			require.NoError(t, err)
			shutdown(t, bus)
			for i, n := range got.all() {
				require.Equal(t, i, n)
			}
			require.Equal(t, given, ids.all())
			require.EqualValues(t, 1000, bus.Metrics().Ledger.Accepted)
		})
	}
}

// A batch takes its keys' places in its order, among other publishers' events.
func TestE7_ABatchIsInOrderByKey(t *testing.T) {
	const publishers, batches, size, keys = 4, 50, 12, 3
	bus, _ := startBus(t, eventbus.WithQueueCapacity(size))
	var mu sync.Mutex
	last := make(map[string]int)
	wrong := 0
	mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
		mu.Lock()
		defer mu.Unlock()
		p := e.Payload.([2]int)
		of := fmt.Sprint(p[0], e.Key)
		if p[1] <= last[of] {
			wrong++
		}
		last[of] = p[1]
		return nil
	})
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			n := 0
			for range batches {
				var batch []eventbus.Publication
				for range size {
					n++
					batch = append(batch, eventbus.Publication{Type: "x", Payload: [2]int{p, n}, Options: []eventbus.PublishOption{eventbus.Key(fmt.Sprint(n % keys))}})
				}
				if _, err := bus.PublishBatch(context.Background(), batch); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
	shutdown(t, bus)
	require.Zero(t, wrong)
	require.Len(t, last, publishers*keys)
	require.EqualValues(t, publishers*batches*size, bus.Metrics().Ledger.Handled)
}

// With anything bad in it, nothing is accepted, and the error names the entry.
func TestE7_OneBadEntryRefusesAll(t *testing.T) {
	known := eventbus.NewEventID()
	twice := eventbus.NewEventID()
	for name, c := range map[string]struct {
		entry eventbus.Publication
		index int
		is    error
	}{
		"type":         {eventbus.Publication{Type: "a b"}, 2, eventbus.ErrInvalidEvent},
		"no type":      {eventbus.Publication{}, 2, eventbus.ErrInvalidEvent},
		"key":          {eventbus.Publication{Type: "x", Options: []eventbus.PublishOption{eventbus.Key("\n")}}, 2, eventbus.ErrInvalidEvent},
		"nil option":   {eventbus.Publication{Type: "x", Options: []eventbus.PublishOption{nil}}, 2, eventbus.ErrInvalidOption},
		"zero id":      {eventbus.Publication{Type: "x", Options: []eventbus.PublishOption{eventbus.ID(eventbus.EventID{})}}, 2, eventbus.ErrInvalidEvent},
		"zero time":    {eventbus.Publication{Type: "x", Options: []eventbus.PublishOption{eventbus.At(time.Time{})}}, 2, eventbus.ErrInvalidEvent},
		"known id":     {eventbus.Publication{Type: "y", Options: []eventbus.PublishOption{eventbus.ID(known)}}, 2, eventbus.ErrDuplicateID},
		"unrouted id":  {eventbus.Publication{Type: "nobody", Options: []eventbus.PublishOption{eventbus.ID(known)}}, 2, eventbus.ErrDuplicateID},
		"scheduled id": {eventbus.Publication{Type: "y", Options: []eventbus.PublishOption{eventbus.ID(known), eventbus.After(time.Hour)}}, 2, eventbus.ErrDuplicateID},
		"id within":    {eventbus.Publication{Type: "y", Options: []eventbus.PublishOption{eventbus.ID(twice)}}, 2, eventbus.ErrDuplicateID},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				var called atomic.Int64
				mustSubscribe(t, bus, "{x,y}", func(context.Context, eventbus.Event) error { called.Add(1); return nil })
				mustPublish(t, bus, "x", nil, eventbus.ID(known))
				fresh := eventbus.NewEventID()
				batch := []eventbus.Publication{
					{Type: "x", Options: []eventbus.PublishOption{eventbus.ID(twice), eventbus.Key("k")}},
					{Type: "nobody", Options: []eventbus.PublishOption{eventbus.ID(fresh)}},
					c.entry,
					{Type: "x", Options: []eventbus.PublishOption{eventbus.After(time.Minute)}},
				}
				ids, err := bus.PublishBatch(t.Context(), batch)
				require.Nil(t, ids)
				var bad *eventbus.BatchError
				require.ErrorAs(t, err, &bad)
				require.Equal(t, c.index, bad.Index)
				require.Equal(t, c.entry.Type, bad.EventType)
				require.ErrorIs(t, err, c.is)
				time.Sleep(time.Hour)
				require.EqualValues(t, 1, called.Load())
				require.EqualValues(t, 1, bus.Metrics().Ledger.Accepted)
				// Nor is anything remembered.
				_, err = bus.PublishBatch(t.Context(), []eventbus.Publication{
					{Type: "y", Options: []eventbus.PublishOption{eventbus.ID(twice)}},
					{Type: "y", Options: []eventbus.PublishOption{eventbus.ID(fresh), eventbus.Key("k")}},
				})
				require.NoError(t, err)
				shutdown(t, bus)
				require.EqualValues(t, 3, called.Load())
			})
		})
	}
}

func TestE7_Repetitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var got journal[any]
		mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error { got.add(e.Payload); return nil })
		a, b := eventbus.NewEventID(), eventbus.NewEventID()
		id := func(id eventbus.EventID) []eventbus.PublishOption { return []eventbus.PublishOption{eventbus.ID(id)} }
		batch := []eventbus.Publication{
			{Type: "x", Payload: 1, Options: id(a)}, {Type: "x", Payload: 2}, {Type: "x", Payload: 3, Options: id(a)}, {Type: "x", Payload: 4, Options: id(b)},
		}
		ids, err := bus.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
		require.Equal(t, []eventbus.EventID{a, ids[1], a, b}, ids)
		again, err := bus.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
		require.Equal(t, []eventbus.EventID{a, again[1], a, b}, again)
		shutdown(t, bus)
		require.ElementsMatch(t, []any{1, 2, 4, 2}, got.all())
		require.EqualValues(t, 4, bus.Metrics().Ledger.Accepted)
	})
}

func TestE7_SizesOfBatches(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithQueueCapacity(10))
	mustSubscribe(t, bus, "*", ok)
	_, err := bus.PublishBatch(t.Context(), batchOf(11))
	require.ErrorIs(t, err, eventbus.ErrBatchTooLarge)
	require.ErrorContains(t, err, "11")
	require.ErrorContains(t, err, "10")
	for _, none := range [][]eventbus.Publication{nil, {}} {
		ids, err := bus.PublishBatch(t.Context(), none)
		require.NoError(t, err)
		require.Empty(t, ids)
	}
	ids, err := bus.PublishBatch(t.Context(), batchOf(10))
	require.NoError(t, err)
	require.Len(t, ids, 10)
	shutdown(t, bus)
	require.EqualValues(t, 10, bus.Metrics().Ledger.Accepted)
	_, err = bus.PublishBatch(t.Context(), batchOf(1))
	require.ErrorIs(t, err, eventbus.ErrShutdown)
}

func TestE7_ABatchWithoutABusOrAContext(t *testing.T) {
	_, err := (&eventbus.Bus{}).PublishBatch(t.Context(), nil)
	require.ErrorIs(t, err, eventbus.ErrUninitialized)
	bus, _ := startBus(t)
	_, err = bus.PublishBatch(nil, nil) //nolint:staticcheck // that is the point
	require.ErrorIs(t, err, eventbus.ErrNilContext)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = bus.PublishBatch(ctx, batchOf(1))
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, bus.Metrics().Ledger.Accepted)
}

// A batch waits for room for all of it, and nothing of it is seen before.
func TestE7_ABatchWaitsForRoomForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(1))
		calls := newCallLog()
		mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			calls.note("%v", e.Payload)
			return sleepFor(time.Second)(ctx, e)
		})
		mustPublish(t, bus, "x", "running")
		settleWorkers()
		_, err := bus.PublishBatch(t.Context(), batchOf(2))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = bus.PublishBatch(ctx, batchOf(3))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Accepted)
		began := time.Now()
		_, err = bus.PublishBatch(t.Context(), batchOf(3))
		require.NoError(t, err)
		require.Equal(t, 500*time.Millisecond, time.Since(began).Round(100*time.Millisecond))
		require.EqualValues(t, 6, bus.Metrics().Ledger.Accepted)
		shutdown(t, bus)
		require.Equal(t, []string{"+0s running", "+1s 0", "+2s 1", "+3s 0", "+4s 1", "+5s 2"}, calls.all())
		require.Zero(t, bus.Metrics().QueueOverflows)
	})
}

func TestE7_AFullQueueRefusesAll(t *testing.T) {
	for _, started := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newBus(t, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(1), eventbus.RefuseWhenFull())
			var called atomic.Int64
			release := make(chan struct{})
			mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { called.Add(1); <-release; return nil })
			accepted := int64(0)
			if started {
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "y", nil) // occupies the only worker, and no place in the queue
				settleWorkers()
				require.EqualValues(t, 1, called.Load())
				accepted++
			}
			_, err := bus.PublishBatch(t.Context(), batchOf(3, eventbus.Key("k")))
			require.NoError(t, err)
			accepted += 3
			id := eventbus.NewEventID()
			_, err = bus.PublishBatch(t.Context(), append(batchOf(1), batchOf(1, eventbus.ID(id))...))
			require.ErrorIs(t, err, eventbus.ErrQueueFull)
			require.Equal(t, accepted, bus.Metrics().Ledger.Accepted)
			require.Equal(t, 3, bus.Metrics().QueueDepth)
			mustPublish(t, bus, "y", nil, eventbus.ID(id)) // the last place, and the id is free
			accepted++
			_, err = bus.PublishBatch(t.Context(), batchOf(1))
			require.ErrorIs(t, err, eventbus.ErrQueueFull)
			if !started {
				require.NoError(t, bus.Start(t.Context()))
			}
			close(release)
			shutdown(t, bus)
			require.Equal(t, accepted, called.Load())
			require.Equal(t, accepted, bus.Metrics().Ledger.Handled)
		})
	}
}

func TestE7_ABatchInsideAHandlerNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range [][]eventbus.Option{nil, {eventbus.RefuseWhenFull()}} {
			bus, _ := startBus(t, append(opts, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(1))...)
			var got journal[any]
			mustSubscribe(t, bus, "go", func(ctx context.Context, _ eventbus.Event) error {
				for range 3 {
					if _, err := bus.PublishBatch(ctx, batchOf(3, eventbus.Key("k"))); err != nil {
						return err
					}
				}
				if _, err := bus.PublishBatch(ctx, batchOf(5)); !errors.Is(err, eventbus.ErrBatchTooLarge) {
					return fmt.Errorf("too large: %w", err)
				}
				return nil
			})
			mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error { got.add(e.Payload); return nil })
			_, err := bus.PublishAndWait(t.Context(), "go", nil)
			require.NoError(t, err)
			shutdown(t, bus)
			require.Equal(t, []any{0, 1, 2, 0, 1, 2, 0, 1, 2}, got.all())
			require.EqualValues(t, 5, bus.Metrics().QueueOverflows, "9 events, and room for 4")
		}
	})
}

func TestE7_ABatchOfAllKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var unrouted atomic.Int64
		bus, _ := startBus(t, eventbus.WithIsolation(), eventbus.WithObserver(eventbus.Observer{Unrouted: func(eventbus.Event) { unrouted.Add(1) }}))
		calls := newCallLog()
		mustSubscribe(t, bus, "{x,y}", calls.handler("a"))
		mustSubscribe(t, bus, "x", calls.handler("b"))
		ids, err := bus.PublishBatch(t.Context(), []eventbus.Publication{
			{Type: "x", Payload: 1}, {Type: "nobody"}, {Type: "x", Payload: 2, Options: []eventbus.PublishOption{eventbus.After(time.Minute)}}, {Type: "y", Payload: 3},
		})
		require.NoError(t, err)
		require.Len(t, ids, 4)
		settleWorkers()
		requireBalanced(t, bus)
		l := bus.Metrics().Ledger
		require.EqualValues(t, 4, l.Accepted)
		require.EqualValues(t, 1, l.Scheduled)
		require.EqualValues(t, 1, l.Copies)
		require.EqualValues(t, 1, unrouted.Load())
		time.Sleep(time.Hour)
		require.ElementsMatch(t, []string{"+0s a:1", "+0s b:1", "+0s a:3", "+1m0s a:2", "+1m0s b:2"}, calls.all())
		require.EqualValues(t, 2, bus.Metrics().Ledger.Copies)
		shutdown(t, bus)
	})
}
