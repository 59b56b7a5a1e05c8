package contracttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// After a failure of the store, nothing runs twice at the same time.
func TestS3_ARestartInPlaceWaitsForRunningCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, _ *driver.Batch) (f storetest.Fault) {
			if n == 3 { // 1 is that of the catalog
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

// A store that fails at any batch, before or after it has applied it, costs no acknowledged event,
// and the bus goes on by itself.
func TestS3_AStoreFailureRestartsTheBusInPlace(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter} {
		for batch := range 24 {
			t.Run(fmt.Sprint(kind, " ", batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { failAt(t, kind, batch) })
			})
		}
	}
}

func failAt(t *testing.T, kind storetest.FaultKind, batch int) {
	t.Helper()
	disk := newDisk(storetest.WithFaults(func(n int, _ *driver.Batch) storetest.Fault {
		if n == batch {
			return storetest.Fault{Kind: kind}
		}
		return storetest.Fault{}
	}))
	bus, logs := disk.open(t, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(2))
	fails := func(payload string, attempt int) error {
		time.Sleep(10 * time.Millisecond)
		if payload[1]%3 == 0 && attempt == 1 {
			return errBoom
		}
		return nil
	}
	disk.handles(t, bus, "mail", fails)
	disk.handles(t, bus, "stock", fails, eventbus.Concurrency(1))
	require.NoError(t, bus.Start(t.Context()))
	var accepted []string
	for i := range 8 {
		payload := fmt.Sprint([]string{"k", "l"}[i%2], i)
		for {
			_, err := bus.Publish(t.Context(), "a", payload, eventbus.Key(payload[:1]))
			var unknown *eventbus.IndeterminateError
			if err == nil {
				accepted = append(accepted, payload)
			} else if !errors.As(err, &unknown) {
				require.ErrorIs(t, err, eventbus.ErrStoreFailed)
				time.Sleep(time.Second)
				continue
			}
			break
		}
	}
	time.Sleep(time.Minute)
	requireEmptyBooks(t, bus, disk)
	calls := disk.took()
	defer func() {
		if t.Failed() {
			t.Logf("%+v\n%v", bus.Metrics().Ledger, logs.All())
			for _, r := range disk.Dump().Records {
				t.Logf("%+v", r)
			}
		}
	}()
	for _, payload := range accepted {
		for _, name := range []string{"mail", "stock"} {
			found := 0
			for _, call := range calls {
				if strings.HasPrefix(call, name+" "+payload+" ") {
					found++
				}
			}
			require.Positive(t, found, "%s %s: %v", name, payload, calls)
		}
	}
	for _, name := range []string{"mail k", "mail l", "stock k", "stock l"} {
		last := ""
		for _, call := range calls {
			if strings.HasPrefix(call, name) {
				payload := strings.Fields(call)[1]
				require.LessOrEqual(t, last, payload, "%v", calls)
				last = payload
			}
		}
	}
	require.Empty(t, disk.Dump().Records)
	requireBalanced(t, bus)
	if logs.FilterMessage("store failed: the bus restarts").Len() > 0 {
		require.Equal(t, 1, logs.FilterMessage("store reopened").Len())
	}
	shutdown(t, bus)
}
