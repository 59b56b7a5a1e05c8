package contracttest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

func oneOf(eventType, payload string, opts ...eventbus.PublishOption) eventbus.Publication {
	return eventbus.Publication{Type: eventType, Payload: payload, Options: opts}
}

// Two repetitions of a known key in one batch have the id of the first event.
func TestE8_TwoRepetitionsInABatch(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		known := mustPublish(t, bus, "a", "known", idem("k"))
		ids, err := bus.PublishBatch(t.Context(), []eventbus.Publication{oneOf("a", "1", idem("k")), oneOf("a", "2", idem("k"))})
		require.NoError(t, err)
		require.Equal(t, []eventbus.EventID{known, known}, ids)
	})
}

// The first of a key in a batch repeats another event's id: the second is not lost.
func TestE8_ARepetitionInABatchTakesNoKey(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		mustPublish(t, bus, "a", "one", eventbus.ID(id))
		ids, err := bus.PublishBatch(t.Context(), []eventbus.Publication{
			oneOf("a", "one", eventbus.ID(id), idem("k")), oneOf("a", "two", idem("k")), oneOf("a", "three", idem("k")),
		})
		require.NoError(t, err)
		require.Equal(t, id, ids[0])
		require.NotEqual(t, id, ids[1])
		require.Equal(t, ids[1], ids[2])
		synctest.Wait()
		require.Equal(t, []string{"one", "two"}, got.all())
		require.Equal(t, ids[1], mustPublish(t, bus, "a", "four", idem("k")))
	})
}

// In memory another publication takes the key while a batch waits for room.
func TestE8_AKeyIsTakenWhileABatchWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		release := make(chan struct{})
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error { return hold(release) }, eventbus.Timeout(time.Hour))
		start(t, bus)
		mustPublish(t, bus, "a", "runs")
		synctest.Wait()
		mustPublish(t, bus, "a", "fills the queue")
		mustPublish(t, bus, "a", "fills the queue")
		var ids []eventbus.EventID
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			ids, err = bus.PublishBatch(context.Background(), []eventbus.Publication{oneOf("a", "1", idem("k")), oneOf("a", "2", idem("k"))})
		}()
		synctest.Wait()
		taken := mustPublish(t, bus, "a", "x", idem("k"), eventbus.After(time.Hour))
		close(release)
		<-done
		require.NoError(t, err)
		require.Equal(t, []eventbus.EventID{taken, taken}, ids)
	})
}

// Cancel frees no key that another event has taken since.
func TestE8_CancelFreesNoOthersKey(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		old := mustPublish(t, bus, "a", "old", idem("k"), eventbus.After(48*time.Hour))
		time.Sleep(25 * time.Hour)
		id := mustPublish(t, bus, "a", "new", idem("k"))
		require.NotEqual(t, old, id)
		require.NoError(t, cancelEvent(t.Context(), bus, old))
		require.Equal(t, id, mustPublish(t, bus, "a", "again", idem("k")))
		synctest.Wait()
		require.Equal(t, []string{"new"}, got.all())
	})
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		got := noting(t, bus, "*")
		tx := disk.Begin()
		inTx, err := bus.PublishTx(t.Context(), tx, "a", "in a transaction", idem("k"), eventbus.After(time.Hour))
		require.NoError(t, err)
		id := mustPublish(t, bus, "a", "new", idem("k"))
		require.NoError(t, tx.Commit())
		require.NoError(t, cancelEvent(t.Context(), bus, inTx))
		require.Equal(t, id, mustPublish(t, bus, "a", "again", idem("k")))
		start(t, bus)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"new"}, got.all())
		shutdown(t, bus)
	})
}

// An unrouted event frees its key in the commit that accepts it: a crash after it finds nothing that could free the key later.
func TestE8_AnUnroutedEventFreesItsKeyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches atomic.Int64
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Remember)+len(b.ForgetSettled) > 0 && batches.Add(1) > 1 {
				f.Kind = storetest.CrashBefore
			}
			return f
		}))
		bus, _ := disk.open(t)
		noting(t, bus, "b")
		start(t, bus)
		mustPublish(t, bus, "a", "x", untilSettled("k")...)
		synctest.Wait()
		require.Empty(t, disk.Dump().Remembered)
		require.EqualValues(t, 1, batches.Load())
		shutdown(t, bus)
	})
}

// KeepFor of PublishTx counts from when the event is taken in.
func TestE8_KeepForOfATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		got := noting(t, bus, "*")
		tx := disk.Begin()
		id, err := bus.PublishTx(t.Context(), tx, "a", "x", idem("k"), eventbus.KeepFor(72*time.Hour))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		time.Sleep(71 * time.Hour)
		start(t, bus)
		time.Sleep(time.Second)
		require.Equal(t, []string{"x"}, got.all())
		time.Sleep(71 * time.Hour)
		require.Equal(t, id, mustPublish(t, bus, "a", "again", idem("k")))
		shutdown(t, bus)
	})
}

// A replay that waits to be taken in counts for the key of its event.
func TestE8_AReplayThatWaitsToBeTakenInCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(2))
		var dies atomic.Bool
		dies.Store(true)
		dying := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if dies.Load() {
				return eventbus.Permanent(errBoom)
			}
			return nil
		}, eventbus.Named("dies"), eventbus.Isolated(), eventbus.Circuit(eventbus.NoCircuit()))
		held := mustSubscribe(t, bus, "a", ok, eventbus.Named("held"), eventbus.Isolated())
		mustSubscribe(t, bus, "fill", ok, eventbus.Named("fill"))
		start(t, bus)
		require.NoError(t, held.Pause())
		id := mustPublish(t, bus, "a", "x", untilSettled("k")...)
		synctest.Wait()
		mustPublish(t, bus, "fill", "fill", eventbus.After(1000*time.Hour)) // WithMaxUnsettled is met
		standby, _ := disk.open(t, eventbus.WithStandby())
		mustSubscribe(t, standby, "a", ok, eventbus.Named("dies"), eventbus.Isolated())
		require.NoError(t, standby.DLQ().Replay(t.Context(), oneLetter(t, standby).ID))
		time.Sleep(time.Second)
		require.Len(t, disk.Dump().Incoming, 1)
		dies.Store(false)
		require.NoError(t, dying.Pause())
		require.NoError(t, held.Resume()) // the last record of the event settles
		time.Sleep(time.Minute)
		require.Empty(t, disk.Dump().Incoming, "the replay is taken in, and held")
		require.Len(t, disk.Dump().Remembered, 1)
		require.Equal(t, id, eventbus.EventID(disk.Dump().Remembered[0].Event))
		require.NoError(t, dying.Resume())
		time.Sleep(time.Minute)
		require.Empty(t, disk.Dump().Remembered)
		shutdown(t, bus)
	})
}

// A repetition needs no room at WithMaxUnsettled.
func TestE8_ARepetitionNeedsNoRoom(t *testing.T) {
	for _, refuses := range [][]eventbus.Option{nil, {eventbus.RefuseWhenFull()}} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newDisk().open(t, append(refuses, eventbus.WithMaxUnsettled(1))...)
			noting(t, bus, "*")
			start(t, bus)
			given := eventbus.NewEventID()
			id := mustPublish(t, bus, "a", "x", idem("k"), eventbus.ID(given), eventbus.After(time.Hour))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, again := range []eventbus.PublishOption{idem("k"), eventbus.ID(given)} {
				repeated, err := bus.Publish(ctx, "a", "x", again)
				require.NoError(t, err)
				require.Equal(t, id, repeated)
			}
			ids, err := bus.PublishBatch(ctx, []eventbus.Publication{oneOf("a", "1", idem("k")), oneOf("a", "2", idem("k"))})
			require.NoError(t, err)
			require.Equal(t, []eventbus.EventID{id, id}, ids)
			shutdown(t, bus)
		})
	}
}

// A handler that waits for a repetition with the key of its own event does not wait for itself.
func TestE8_AHandlerWaitsForARepetition(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		noting(t, bus, "child")
		outcomes := new(journal[eventbus.Outcome])
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			r, err := bus.PublishAndWait(ctx, "child", "x", idem("c"), eventbus.Key("k"))
			outcomes.add(r.Outcome)
			return err
		}, eventbus.Named("parent"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "child", "x", idem("c"), eventbus.Key("k"))
		synctest.Wait()
		mustPublish(t, bus, "parent", "x", eventbus.Key("k"))
		synctest.Wait()
		require.Equal(t, []eventbus.Outcome{eventbus.Repeated}, outcomes.all())
		require.Empty(t, letters(t, bus))
	})
}

// Import refuses a letter whose event has a bad key.
func TestE8_ImportRefusesABadKey(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errBoom)), eventbus.Named("a"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x", idem("good"))
		synctest.Wait()
		var exported strings.Builder
		_, err := bus.DLQ().Export(t.Context(), &exported, eventbus.LetterQuery{})
		require.NoError(t, err)
		require.NoError(t, bus.DLQ().Purge(t.Context(), oneLetter(t, bus).ID))
		for _, key := range []string{strings.Repeat("x", 256), `a\n`} {
			var refused *eventbus.ImportError
			_, err = bus.DLQ().Import(t.Context(), strings.NewReader(strings.Replace(exported.String(), "good", key, 1)))
			require.ErrorAs(t, err, &refused)
			require.Contains(t, refused.Reason, "event.idempotency_key")
		}
		_, err = bus.DLQ().Import(t.Context(), strings.NewReader(exported.String()))
		require.NoError(t, err)
		require.Equal(t, "good", oneLetter(t, bus).Event.IdempotencyKey)
	})
}
