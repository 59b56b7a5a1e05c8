package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

func TestS2_APublicationDuringShutdownDoesNotOvertakeARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.New) == 1 && string(b.New[0].Payload) == `"1"` {
				f.Delay = time.Second
			}
			return f
		}))
		bus, _ := disk.open(t, eventbus.WithRetry(retry(2, time.Hour)))
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		go func() { _, _ = bus.Publish(t.Context(), "a", "1", eventbus.Key("k")) }()
		synctest.Wait()
		shutdown(t, bus)
		require.Empty(t, disk.took())
		require.Len(t, disk.Dump().Records, 2)
	})
}

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
	require.NoError(t, bus.Shutdown(ctx), "all is safe, and the cancelled handler returns")
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

func TestS2_ShutdownLeavesRetriesToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		began := time.Now()
		shutdown(t, bus)
		require.Less(t, time.Since(began), time.Second)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Stored)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 0 2", "mail 1 1"}, disk.took())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail later 1"}, disk.took())
		for _, r := range disk.Dump().Records {
			require.Zero(t, r.Crashes)
		}
		shutdown(t, again)
	})
}

func TestD5_AShutdownKeepsTheOrderOfAKeyWithARetryInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", func(payload string, attempt int) error {
			if payload == "0" && attempt == 1 {
				return errBoom
			}
			return nil
		})
		mustSubscribe(t, bus, "slow.job", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			_, err := bus.Publish(ctx, "a", "1", eventbus.Key("k"))
			return err
		}, eventbus.Named("slow"))
		require.NoError(t, bus.Start(t.Context()))
		_, err := bus.Publish(t.Context(), "slow.job", "x")
		require.NoError(t, err)
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		time.Sleep(10 * time.Millisecond) // the pool adds a worker
		require.ElementsMatch(t, []string{"mail x 1", "mail 0 1"}, disk.took())
		shutdown(t, bus) // leaves the retry to the store, and waits for the slow handler
		require.Empty(t, disk.took())

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 0 2", "mail 1 1"}, disk.took())
		shutdown(t, again)
	})
}

// An event that a running call waits for may run during Shutdown, but not before a retry of its key that stays in the
// store: then the wait ends.
func TestS2_APublicationThatACallAwaitsDoesNotOvertakeARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(retry(2, time.Hour)))
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			if payload == "call" {
				return nil
			}
			return errBoom
		})
		waited := make(chan error, 1)
		mustSubscribe(t, bus, "call", func(ctx context.Context, _ eventbus.Event) error {
			<-bus.Stopping()
			time.Sleep(time.Second) // the retry has been left
			_, err := bus.PublishAndWait(ctx, "a", "1", eventbus.Key("k"))
			waited <- err
			return nil
		}, eventbus.Named("caller"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		synctest.Wait()
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		mustPublish(t, bus, "call", "call")
		synctest.Wait()
		disk.took()
		shutdown(t, bus)
		require.ErrorIs(t, <-waited, eventbus.ErrShutdown)
		require.NotContains(t, disk.took(), "mail 1 1")
	})
}
