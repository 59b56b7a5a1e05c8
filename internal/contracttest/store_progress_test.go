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

// A rule's budget is not renewed by a restart.
func TestP7_BudgetsSurviveACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		rules := eventbus.RetryRules(eventbus.RetryRule{Match: codes("BUSY"), Attempts: 3, BaseDelay: time.Second})
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(coded("BUSY")), rules)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", always(coded("BUSY")), rules)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 2", "mail x 3"}, disk.took())
		l := oneLetter(t, again)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.NotNil(t, l.Rule)
		shutdown(t, again)
	})
}

// A restart keeps the order of visit, and takes the policies that are in force then.
func TestR4_TheOrderOfVisitSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		for _, name := range []string{"b", "c", "a"} {
			disk.handles(t, bus, name, nil)
		}
		mustPublish(t, bus, "x", "x")
		disk.crash(bus)

		again, _ := disk.open(t)
		for _, name := range []string{"a", "b", "c", "d"} {
			disk.handles(t, again, name, nil)
		}
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"b x 1", "c x 1", "a x 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestP5_ARestartTakesThePoliciesInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t, eventbus.WithRetry(retry(4, time.Second)))
		disk.handles(t, again, "mail", always(errBoom), eventbus.Retry(eventbus.MaxRetries(3)))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 2", "mail x 3", "mail x 4"}, disk.took())
		shutdown(t, again)
	})
}

// After a failure of the store, nothing runs twice at the same time.
func TestS3_ARestartInPlaceWaitsForRunningCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, _ *eventbus.Batch) (f storetest.Fault) {
			if n == 2 {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, _ := disk.open(t)
		running := 0 // guarded by disk.mu
		add := func(n int) {
			disk.mu.Lock()
			defer disk.mu.Unlock()
			if running += n; running > 1 {
				t.Error("two calls for one event")
			}
		}
		mustSubscribe(t, bus, "*", eventbus.Typed(func(_ context.Context, payload string) error {
			add(1)
			time.Sleep(10 * time.Second)
			disk.note("%s", payload)
			add(-1)
			return nil
		}), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		synctest.Wait()
		_, err := bus.Publish(t.Context(), "a", "y")
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, err, &unknown)
		_, err = bus.Publish(t.Context(), "a", "z")
		require.ErrorIs(t, err, eventbus.ErrStoreFailed)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"x", "x"}, disk.took(), "the first call was not recorded")
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}
