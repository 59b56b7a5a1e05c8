package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// What Shutdown has to cut short is left to the next start: it is no dead letter.
func TestS2_ACutLeavesEventsToTheStore(t *testing.T) {
	for name, concurrency := range map[string]int{"queued": 1, "throttled": 4} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { cutOnAStore(t, concurrency) }) })
	}
}

func cutOnAStore(t *testing.T, concurrency int) {
	t.Helper()
	disk := newDisk()
	bus, _ := disk.open(t, eventbus.WithConcurrency(concurrency))
	mustSubscribe(t, bus, "*", eventbus.Typed(func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}), eventbus.Named("hangs"), eventbus.Concurrency(1))
	disk.handles(t, bus, "mail", nil)
	require.NoError(t, bus.Start(t.Context()))
	for _, payload := range []string{"0", "1", "2"} {
		mustPublish(t, bus, "a", payload)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := bus.Shutdown(ctx)
	var left *eventbus.ShutdownError
	require.ErrorAs(t, err, &left)
	require.ErrorIs(t, left.Cause, context.DeadlineExceeded)
	require.Empty(t, left.Unfinished)
	requireBalanced(t, bus)
	require.EqualValues(t, 3, bus.Metrics().Ledger.Stored)
	calls := disk.took()

	again, _ := disk.open(t)
	disk.handles(t, again, "hangs", nil)
	disk.handles(t, again, "mail", nil)
	require.NoError(t, again.Start(t.Context()))
	require.ElementsMatch(t, []string{"hangs 0 1", "mail 0 1", "hangs 1 1", "mail 1 1", "hangs 2 1", "mail 2 1"},
		append(calls, disk.took()...), "the cut spends no attempt")
	require.Empty(t, letters(t, again))
	shutdown(t, again)
}

// Start recovers within its context, and can be repeated.
func TestS1_StartRecoversWithinItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithClaimFaults(func(int, eventbus.ClaimQuery) storetest.Fault {
			return storetest.Fault{Delay: time.Minute}
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "x")
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, again.Start(ctx), context.DeadlineExceeded)
		require.Empty(t, disk.took())
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, again)
	})
}
