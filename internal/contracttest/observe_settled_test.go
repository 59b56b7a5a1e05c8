package contracttest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// endsOf returns how the deliveries of an event have ended, in short.
func endsOf(t *testing.T, bus *eventbus.Bus, id eventbus.EventID) (all []string) {
	t.Helper()
	status, err := bus.Event(t.Context(), id)
	require.NoError(t, err)
	for _, d := range status.Settled {
		require.Equal(t, time.UTC, d.At.Location())
		text := fmt.Sprintf("%s %v %d", d.Subscription, d.Outcome, d.Attempts)
		if d.Replays > 0 {
			text += fmt.Sprintf(" replay %d by %s", d.Replays, d.ReplayedBy)
		}
		for _, did := range [][2]string{{"retried", d.RetriedBy}, {"ended", d.EndedBy}, {"purged", d.PurgedBy}} {
			if did[1] != "" {
				text += fmt.Sprintf(" %s by %s", did[0], did[1])
			}
		}
		all = append(all, text)
	}
	return all
}

// letterOf returns the dead letter of an event.
func letterOf(t *testing.T, bus *eventbus.Bus, id eventbus.EventID) eventbus.DeadLetter {
	t.Helper()
	status, err := bus.Event(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, status.Letters.Letters, 1)
	return status.Letters.Letters[0]
}

func TestV5_AHandledEventIsKnown(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprint("isolated ", isolated), func(t *testing.T) {
			var opts []eventbus.Option
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				var calls atomic.Int64
				mustSubscribe(t, bus, "order", ok, eventbus.Named("mail"))
				mustSubscribe(t, bus, "order", func(context.Context, eventbus.Event) error {
					if calls.Add(1) == 1 {
						return errBoom
					}
					return nil
				}, eventbus.Named("billing"), eventbus.Retry(retry(3, time.Second)))
				require.NoError(t, bus.Start(t.Context()))
				began := time.Now()
				id := mustPublish(t, bus, "order", nil)
				unrouted := mustPublish(t, bus, "other", nil)
				time.Sleep(time.Minute)
				mail := 2
				if isolated {
					mail = 1
				}
				require.ElementsMatch(t, []string{fmt.Sprintf("mail handled %d", mail), "billing handled 2"}, endsOf(t, bus, id))
				require.Equal(t, []string{" unrouted 0"}, endsOf(t, bus, unrouted))
				status, err := bus.Event(t.Context(), id)
				require.NoError(t, err)
				require.True(t, status.IsSettled())
				require.Equal(t, time.Second, status.Settled[1].At.Sub(began).Round(100*time.Millisecond))
				_, err = bus.Cancel(t.Context(), id)
				require.ErrorIs(t, err, eventbus.ErrSettled)
			}, opts...)
		})
	}
}

// After a replay, Event says who has replayed it, and what came of it.
func TestV5_AReplayedEventIsKnown(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var heals atomic.Bool
		mustSubscribe(t, bus, "*", ok, eventbus.Named("mail"))
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			if heals.Load() {
				return nil
			}
			return eventbus.Permanent(errBoom)
		}, eventbus.Named("billing"))
		require.NoError(t, bus.Start(t.Context()))
		one, other := mustPublish(t, bus, "x", nil), mustPublish(t, bus, "x", nil)
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail handled 1", "billing dead-lettered 1"}, endsOf(t, bus, one))
		require.NoError(t, bus.DLQ().Replay(t.Context(), letterOf(t, bus, one).ID, eventbus.By("ann")))
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail handled 1", "billing dead-lettered 1", "billing dead-lettered 1 replay 1 by ann"}, endsOf(t, bus, one))
		heals.Store(true)
		_, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true}, eventbus.By("bob"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, "billing handled 1 replay 2 by bob", endsOf(t, bus, one)[3])
		require.Equal(t, "billing handled 1 replay 1 by bob", endsOf(t, bus, other)[2])
	})
}

// A delivery that has settled is a sentence.
func TestV5_ASettledDeliveryIsASentence(t *testing.T) {
	at := time.Date(2026, 11, 25, 13, 3, 4, 5_000_000, time.FixedZone("CET", 3600))
	for want, d := range map[string]eventbus.SettledDelivery{
		"handled by billing at 2026-11-25 12:03:04Z, attempt 1, replayed by alice": {Subscription: "billing", Outcome: eventbus.Handled, Attempts: 1, Replays: 1, ReplayedBy: "alice"},
		"dead-lettered at crm at 2026-11-25 12:03:04Z, attempt 3, replayed":        {Subscription: "crm", Outcome: eventbus.DeadLettered, Attempts: 3, Replays: 2},
		"cancelled at crm at 2026-11-25 12:03:04Z":                                 {Subscription: "crm", Outcome: eventbus.Cancelled},
		"unrouted at 2026-11-25 12:03:04Z":                                         {Outcome: eventbus.Unrouted},
	} {
		d.At = at
		require.Equal(t, want, d.String())
	}
}

// What an operator has ended, a subscription has dropped, or was split off is known, too.
func TestV5_OtherEndsAreKnown(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "a", ok, eventbus.Named("first"))
		require.NoError(t, mustSubscribe(t, bus, "a", ok, eventbus.Named("paused")).Pause())
		mustSubscribe(t, bus, "a", ok, eventbus.Named("last"))
		dropping := mustSubscribe(t, bus, "b", ok, eventbus.Named("drops"), eventbus.DropWhenOpen)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, dropping.Trip())
		id, dropped := mustPublish(t, bus, "a", nil), mustPublish(t, bus, "b", nil)
		time.Sleep(time.Second)
		require.Equal(t, []string{"drops dropped 0"}, endsOf(t, bus, dropped))
		require.Equal(t, []string{"first handled 1", "last handled 1"}, endsOf(t, bus, id))
		status, err := bus.Event(t.Context(), id)
		require.NoError(t, err)
		require.False(t, status.IsSettled(), "one delivery is held")
		_, err = bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []string{"first handled 1", "last handled 1", "paused cancelled 0"}, endsOf(t, bus, id))
	})
}

// The last 10,000 events are known, however many came before.
func TestV5_TheLastTenThousand(t *testing.T) {
	ofManyEvents(t)
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "*", ok, eventbus.Named("s"))
		var ids []eventbus.EventID
		for range 25_000 {
			ids = append(ids, mustPublish(t, bus, "x", nil))
		}
		require.NoError(t, bus.Drain(t.Context()))
		for i, id := range ids[15_000:] {
			if i%100 == 0 {
				require.Equal(t, []string{"s handled 1"}, endsOf(t, bus, id))
			}
		}
		_, err := bus.Event(t.Context(), ids[0])
		require.ErrorIs(t, err, eventbus.ErrUnknownEvent)
		shutdown(t, bus)
	})
}
