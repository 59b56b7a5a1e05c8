package eventbus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A delivery counts as running before it asks the door. If the running call ends before the door
// refuses the delivery, the call finds the limit reached and releases nothing.
func TestD11_ARefusedDeliveryReleasesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, err := New()
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		end := make(chan struct{})
		var handled []any
		s, err := bus.Subscribe("x", func(_ context.Context, e Event) error {
			<-end
			handled = append(handled, e.Payload)
			return nil
		}, Concurrency(1), LineCapacity(1), DropNewestWhenFull)
		require.NoError(t, err)
		for _, payload := range []any{"running", "throttled"} {
			_, err = bus.Publish(t.Context(), "x", payload)
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond) // until the pool has another worker
		}
		require.Equal(t, 1, bus.Metrics().Throttled)

		s.door.running.Add(1) // as enter does first
		close(end)
		synctest.Wait()
		require.Equal(t, []any{"running"}, handled)
		s.door.running.Add(-1) // the refused delivery is dropped

		d := &dispatch{to: bus.registry.routes.Find("x", 0)}
		_, why := s.door.enter(bus, d)
		require.Same(t, behindLine, why)
		synctest.Wait()
		require.Equal(t, []any{"running", "throttled"}, handled)
		require.NoError(t, bus.Shutdown(t.Context()))
	})
}

// A delivery may reach the store while a claim that cannot see it yet is in progress. Then the door
// asks again: it must not let later deliveries in meanwhile.
func TestD5_AClaimMissesADeliveryThatIsNotCommitted(t *testing.T) {
	o := &door{capacity: 10}
	o.recover()
	o.roomToClaim(10)
	require.False(t, o.claimEnded(false))
	require.False(t, o.spill.onDisk)

	d := &dispatch{to: &targets{subscriptions: []*Subscription{{}}}}
	o.mu.Lock()
	o.spillLocked(d, held)
	o.mu.Unlock()
	o.roomToClaim(10)
	o.spilled() // the store has it now
	require.True(t, o.claimEnded(false), "it does not ask again")
	require.True(t, o.spill.onDisk)
	o.roomToClaim(10)
	require.False(t, o.claimEnded(false))
	require.False(t, o.spill.onDisk)
}
