package contracttest

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A letter of a bus without isolation may be for several subscriptions. Replayed on
// a bus with isolation, it is a dispatch for each.
func TestD10_AnImportedLetterIsReplayedInIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := func(context.Context, eventbus.Event) error { return errBroken }
		var export bytes.Buffer
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "a", failing, eventbus.Named("first"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("second"))
		mustPublish(t, bus, "a", 1)
		settleWorkers()
		_, err := bus.DLQ().Export(t.Context(), &export, eventbus.LetterQuery{})
		require.NoError(t, err)
		shutdown(t, bus)

		bus, _ = startBus(t, eventbus.WithIsolation(), eventbus.WithRetry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "a", failing, eventbus.Named("first"))
		calls := newCallLog()
		mustSubscribe(t, bus, "a", calls.handler("second"), eventbus.Named("second"))
		_, err = bus.DLQ().Import(t.Context(), &export)
		require.NoError(t, err)
		require.NoError(t, bus.DLQ().Replay(t.Context(), letters(t, bus)[0].ID))
		settleWorkers()
		require.Equal(t, 1, calls.len(), "it does not wait for the first")
		again := oneLetter(t, bus)
		require.Equal(t, "first", again.Subscription)
		require.Empty(t, again.NotReached)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Copies)
		shutdown(t, bus)
	})
}

func TestD10_NoneWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation(), eventbus.WithRetry(retry(1, time.Minute)))
		calls := newCallLog()
		mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error { return sleepFor(10*time.Second)(ctx, e) })
		mustSubscribe(t, bus, "*", failing(errBoom))
		mustSubscribe(t, bus, "*", calls.handler("c"))
		mustPublish(t, bus, "x", 1)
		settleWorkers()
		require.Equal(t, []string{"+0s c:1"}, calls.all())
		l := bus.Metrics().Ledger
		require.EqualValues(t, 1, l.Accepted)
		require.EqualValues(t, 2, l.Copies)
		require.EqualValues(t, 1, l.Waiting)
		require.EqualValues(t, 1, l.Running)
		requireBalanced(t, bus)
		require.EqualValues(t, 1, bus.Metrics().Types["x"].Events)
		shutdown(t, bus)
	})
}

// Each has its own policy, not a merged one, its own attempts, and its own letter.
func TestD10_EachIsADispatchOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation(), eventbus.WithRetry(retry(1, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("none"), eventbus.Retry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("default"))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("ok"))
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("slow"), eventbus.Retry(eventbus.MaxRetries(3), eventbus.BaseDelay(10*time.Second), eventbus.MaxDelay(time.Minute)))
		began := time.Now()
		r, err := bus.PublishAndWait(t.Context(), "x", 1)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.Len(t, died.Letters, 3, "all letters")
		require.Len(t, r.Letters, 3)
		require.Equal(t, eventbus.DeadLettered, r.Outcome)
		require.Equal(t, 4, r.Attempts)
		require.Equal(t, 30*time.Second, time.Since(began).Round(time.Second), "waits for the last one")
		for i, want := range []struct {
			name     string
			attempts int
			after    time.Duration
		}{{"none", 1, 0}, {"default", 2, time.Second}, {"slow", 4, 30 * time.Second}} {
			l := died.Letters[i]
			require.Equal(t, want.name, l.Subscription)
			require.Equal(t, want.attempts, l.Attempts)
			require.Len(t, l.Failures, want.attempts)
			require.Empty(t, l.Succeeded)
			require.Empty(t, l.NotReached)
			require.Equal(t, want.after, l.DiedAt.Sub(began).Round(time.Second))
		}
		shutdown(t, bus)
		l := bus.Metrics().Ledger
		require.EqualValues(t, 1, l.Handled)
		require.EqualValues(t, 3, l.DeadLettered)
		require.EqualValues(t, 3, l.Copies)
	})
}

// Each has its own order for each key.
func TestD10_AnOrderForEachSubscriptionAndKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation(), eventbus.WithRetry(retry(1, time.Minute)))
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("a"))
		mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error { calls.note("b:%s", payloadName(e)); return nil })
		mustPublish(t, bus, "x", scripted("1", failing(errBoom)), eventbus.Key("k"))
		mustPublish(t, bus, "x", 2, eventbus.Key("k"))
		mustPublish(t, bus, "x", 3, eventbus.Key("l"))
		time.Sleep(time.Hour)
		all := calls.all()
		require.ElementsMatch(t, []string{"+0s a:1", "+0s a:3", "+0s b:1", "+0s b:2", "+0s b:3"}, all[:5])
		require.Equal(t, []string{"+1m0s a:1", "+1m0s a:2"}, all[5:])
		shutdown(t, bus)
	})
}

func TestD10_TheReplayOfALetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation())
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("ok"))
		var fail atomic.Bool
		fail.Store(true)
		mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			if fail.Load() {
				return eventbus.Permanent(errBoom)
			}
			return calls.handler("dies")(ctx, e)
		}, eventbus.Named("dies"))
		mustPublish(t, bus, "x", 1)
		settleWorkers()
		fail.Store(false)
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		settleWorkers()
		require.Equal(t, []string{"+0s ok:1", "+0s dies:1"}, calls.all())
		shutdown(t, bus)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Copies)
	})
}

func TestD10_AnUnsubscribedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t, eventbus.WithIsolation())
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("a"))
		gone := mustSubscribe(t, bus, "*", calls.handler("gone"), eventbus.Named("gone"))
		for i := range 3 {
			mustPublish(t, bus, "x", i, eventbus.Key("k"))
		}
		gone.Unsubscribe()
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
		require.Equal(t, []string{"+0s a:0", "+0s a:1", "+0s a:2"}, calls.all())
		require.Len(t, letters(t, bus), 3)
		for _, l := range letters(t, bus) {
			require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
			require.Equal(t, "gone", l.Subscription)
		}
	})
}

// Who waits is told of all: of what is handled, held, dropped, and of what died.
func TestD10_TheWorstOutcomeIsTheEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation())
		mustSubscribe(t, bus, "*", ok)
		held := mustSubscribe(t, bus, "{held,all}", ok, eventbus.Named("held"))
		drops := mustSubscribe(t, bus, "{drops,all}", ok, eventbus.DropWhenOpen)
		mustSubscribe(t, bus, "all", failing(eventbus.Permanent(errBoom)))
		require.NoError(t, held.Pause())
		require.NoError(t, drops.Trip())
		r, err := bus.PublishAndWait(t.Context(), "drops", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, r.Outcome)
		r, err = bus.PublishAndWait(t.Context(), "held", nil)
		require.ErrorIs(t, err, eventbus.ErrHeld)
		require.Equal(t, eventbus.Held, r.Outcome)
		require.Equal(t, []string{"held"}, r.Held)
		r, err = bus.PublishAndWait(t.Context(), "all", nil)
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, eventbus.DeadLettered, r.Outcome)
		require.Equal(t, []string{"held"}, r.Held)
		require.NoError(t, held.Resume())
		shutdown(t, bus)
	})
}

// Each dispatch takes a place, and an event that makes more of them than there are
// places is accepted when nothing else waits.
func TestD10_AFanOutLargerThanTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const subscriptions = 10
		bus, _ := startBus(t, eventbus.WithIsolation(), eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(2))
		var called atomic.Int64
		for i := range subscriptions {
			mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
				called.Add(1)
				time.Sleep(time.Second)
				if n := e.Payload.(int); n > 0 && i == 0 {
					_, err := bus.Publish(ctx, "x", n-1, eventbus.Key(fmt.Sprint(n%2)))
					return err
				}
				return nil
			})
		}
		for range 5 {
			mustPublish(t, bus, "x", 3, eventbus.Key("k"))
		}
		batch := make([]eventbus.Publication, 4)
		for i := range batch {
			batch[i] = eventbus.Publication{Type: "x", Payload: 0}
		}
		_, err := bus.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
		_, err = bus.PublishAndWait(t.Context(), "x", 0)
		require.NoError(t, err)
		shutdown(t, bus)
		require.EqualValues(t, subscriptions*(5*4+4+1), called.Load())
	})
}

func TestD10_CopiesTakePlaces(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithIsolation(), eventbus.WithQueueCapacity(5), eventbus.RefuseWhenFull())
	for range 2 {
		mustSubscribe(t, bus, "*", ok)
	}
	mustPublish(t, bus, "x", nil)
	mustPublish(t, bus, "x", nil)
	require.Equal(t, 4, bus.Metrics().QueueDepth)
	_, err := bus.Publish(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrQueueFull, "there is room for one copy, and none is accepted")
	require.EqualValues(t, 2, bus.Metrics().Ledger.Accepted)
	requireBalanced(t, bus)
	require.NoError(t, bus.Start(t.Context()))
	shutdown(t, bus)
}

func TestD10_CutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation())
		for i := range 3 {
			mustSubscribe(t, bus, "*", sleepFor(time.Hour), eventbus.Named(fmt.Sprint(i)))
		}
		got := make(chan error, 1)
		go func() {
			_, err := bus.PublishAndWait(t.Context(), "x", nil)
			got <- err
		}()
		settleWorkers()
		left := cutShort(t, bus)
		require.Len(t, left.Unfinished, 3)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, <-got, &died)
		require.Len(t, died.Letters, 3)
		requireBalanced(t, bus)
	})
}

// An isolated subscription neither waits nor is waited for. The others stay coupled: a failure of one ends the attempt.
func TestD10_OneIsIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, oneAttempt)
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("first"), eventbus.Named("first"))
		mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			time.Sleep(time.Second)
			return errBroken
		}, eventbus.Named("alone"), eventbus.Isolated())
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("second"))
		mustSubscribe(t, bus, "*", calls.handler("third"), eventbus.Named("third"))
		mustPublish(t, bus, "x", 1)
		settleWorkers()
		l := bus.Metrics().Ledger
		require.Equal(t, [2]int64{1, 1}, [2]int64{l.Accepted, l.Copies})
		require.Equal(t, []string{"+0s first:1"}, calls.all())
		together := oneLetter(t, bus)
		require.Equal(t, "second", together.Subscription)
		require.Equal(t, []string{"first"}, together.Succeeded)
		require.Equal(t, []string{"third"}, together.NotReached)
		shutdown(t, bus)
		alone := letters(t, bus)[0]
		require.Equal(t, "alone", alone.Subscription)
		require.Empty(t, alone.Succeeded)
		require.Empty(t, alone.NotReached)
		entries := logs.FilterMessage("event dead-lettered").All()
		require.Len(t, entries, 2)
		require.Equal(t, []any{"first"}, entries[0].ContextMap()["succeeded"])
		require.Equal(t, []any{"third"}, entries[0].ContextMap()["not_reached"])
		require.NotContains(t, entries[1].ContextMap(), "not_reached")
	})
}

// The policy of an isolated subscription is its own, and takes no part in that of the others.
func TestD10_ThePolicyOfAnIsolatedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
		var calls [3]callTimes
		mustSubscribe(t, bus, "*", calls[0].failing(errBoom), eventbus.Named("a"), eventbus.Retry(eventbus.MaxRetries(2)))
		mustSubscribe(t, bus, "*", calls[1].failing(errBoom), eventbus.Named("b"), eventbus.Retry(eventbus.MaxRetries(5)), eventbus.Isolated())
		mustSubscribe(t, bus, "*", ok, eventbus.Named("c"))
		p := bus.Explain("x")
		require.Equal(t, 2, p.Policy.MaxRetries)
		require.Equal(t, "a", p.Origins["MaxRetries"])
		require.False(t, p.Isolated)
		require.Equal(t, []bool{false, true, false}, []bool{p.Targets[0].Isolated, p.Targets[1].Isolated, p.Targets[2].Isolated})
		require.Contains(t, p.String(), "isolated, MaxRetries 5")
		catalog, err := bus.Catalog(t.Context())
		require.NoError(t, err)
		stored := catalog.Explain("x")
		require.Equal(t, p.Policy.MaxRetries, stored.Policy.MaxRetries)
		require.True(t, stored.Targets[1].Isolated)
		mustPublish(t, bus, "x", 1)
		shutdown(t, bus)
		require.Equal(t, [2]int{3, 6}, [2]int{calls[0].len(), calls[1].len()})
	})
}

// An isolated subscription has its own order of a key, and the coupled ones share one.
func TestD10_TheKeysOfAnIsolatedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		slow := func(ctx context.Context, e eventbus.Event) error { return sleepFor(time.Second)(ctx, e) }
		mustSubscribe(t, bus, "*", slow)
		mustSubscribe(t, bus, "*", calls.handler("coupled"))
		mustSubscribe(t, bus, "*", calls.handler("alone"), eventbus.Isolated())
		mustPublish(t, bus, "x", 1, eventbus.Key("k"))
		mustPublish(t, bus, "x", 2, eventbus.Key("k"))
		shutdown(t, bus)
		require.Equal(t, []string{"+0s alone:1", "+0s alone:2", "+1s coupled:1", "+2s coupled:2"}, calls.all())
	})
}

// In a store each dispatch has a record, and a record of a process in which the subscription was not isolated is divided.
func TestD10_AStoreOfAnIsolatedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		subscribe := func(opts ...eventbus.SubscribeOption) *eventbus.Bus {
			bus, _ := disk.open(t)
			disk.handles(t, bus, "a", nil)
			disk.handles(t, bus, "b", always(errBoom), append(opts, eventbus.Retry(eventbus.MaxRetries(0)))...)
			disk.handles(t, bus, "c", nil)
			return bus
		}
		bus := subscribe()
		mustPublish(t, bus, "x", "1")
		disk.crash(bus)

		bus = subscribe(eventbus.Isolated())
		require.NoError(t, bus.Start(t.Context()))
		require.ElementsMatch(t, []string{"a 1 1", "b 1 1", "c 1 1"}, disk.took())
		mustPublish(t, bus, "x", "2")
		require.ElementsMatch(t, []string{"a 2 1", "b 2 1", "c 2 1"}, disk.took())
		require.Equal(t, []string{"b", "b"}, []string{letters(t, bus)[0].Subscription, letters(t, bus)[1].Subscription})
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
	})
}
