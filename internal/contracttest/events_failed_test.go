package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// An id is remembered for its window, also after the event's dead letter was purged.
func TestE6_APurgeForgetsNoID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		mustPublish(t, bus, "a", "x", eventbus.ID(id))
		synctest.Wait()
		require.NoError(t, bus.DLQ().Purge(t.Context(), oneLetter(t, bus).ID))
		time.Sleep(23 * time.Hour)
		mustPublish(t, bus, "a", "x", eventbus.ID(id))
		_, err := bus.Publish(t.Context(), "a", "y", eventbus.ID(id))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		time.Sleep(2 * time.Hour)
		mustPublish(t, bus, "a", "y", eventbus.ID(id))
		require.Equal(t, []string{"mail y 1"}, disk.took())
		shutdown(t, bus)
	})
}

// Without isolation, an event that dies does not reach the subscriptions after the failing one, and the letter names
// them. With isolation it does.
func TestF4_PermanentEndsACoupledEvent(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var opts []eventbus.Option
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			bus, _ := startBus(t, opts...)
			reached := false
			mustSubscribe(t, bus, "*", failing(eventbus.Permanent(errBoom)), eventbus.Named("first"))
			mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { reached = true; return nil }, eventbus.Named("second"))
			mustPublish(t, bus, "x", nil)
			synctest.Wait()
			l := oneLetter(t, bus)
			require.Equal(t, eventbus.ReasonPermanent, l.Reason)
			require.Equal(t, isolated, reached)
			if !isolated {
				require.Equal(t, []string{"second"}, l.NotReached)
			}
			shutdown(t, bus)
		})
	}
}
