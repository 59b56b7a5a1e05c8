package contracttest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// requireEmptyBooks requires what the ledger has at rest, if all that the store has had was accepted by
// this process.
func requireEmptyBooks(t *testing.T, bus *eventbus.Bus, disk *disk) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, disk.Dump().Records)
	l := bus.Metrics().Ledger
	require.True(t, l.Balanced(), "%+v", l)
	require.Zero(t, l.Stored, "%+v", l)
	require.Zero(t, l.Claimed, "%+v", l)
}

// failingDisk fails at the batches that the test chooses.
type failingDisk struct {
	*disk
	fail atomic.Int64 // fails when it is counted down to 0
	kind storetest.FaultKind
}

func newFailingDisk(kind storetest.FaultKind) *failingDisk {
	d := &failingDisk{kind: kind}
	d.disk = newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
		if d.fail.Add(-1) == 0 {
			f.Kind = d.kind
		}
		return f
	}))
	return d
}

// publishAll publishes until the store has accepted everything. An unknown outcome counts as accepted.
func publishAll(t *testing.T, bus *eventbus.Bus, n int, opts ...eventbus.PublishOption) {
	t.Helper()
	for i := range n {
		for {
			_, err := bus.Publish(t.Context(), "a", fmt.Sprint(i), opts...)
			var unknown *eventbus.IndeterminateError
			if err == nil || errors.As(err, &unknown) {
				break
			}
			require.ErrorIs(t, err, eventbus.ErrStoreFailed)
			time.Sleep(time.Second)
		}
	}
}

func bothKinds(t *testing.T, test func(t *testing.T, kind storetest.FaultKind)) {
	t.Helper()
	for name, kind := range map[string]storetest.FaultKind{"before": storetest.FailBefore, "after": storetest.FailAfter} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { test(t, kind) }) })
	}
}

// The store fails once, while events run, queue and wait for a retry.
func TestO4_AfterRestart_TheBooksAreEmpty(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind storetest.FaultKind) {
		for at := range int64(30) {
			disk := newFailingDisk(kind)
			bus, _ := disk.open(t, eventbus.WithConcurrency(3), eventbus.WithMaxUnsettled(1000))
			disk.handles(t, bus, "mail", func(payload string, attempt int) error {
				time.Sleep(time.Millisecond)
				if payload == "3" {
					return eventbus.Permanent(errBoom)
				}
				if attempt == 1 && payload == "5" {
					return errBoom
				}
				return nil
			})
			require.NoError(t, bus.Start(t.Context()))
			synctest.Wait()
			disk.fail.Store(at)
			publishAll(t, bus, 10)
			for range 3 {
				publishAll(t, bus, 1, eventbus.ID(eventbus.NewEventID()))
			}
			time.Sleep(time.Minute)
			requireEmptyBooks(t, bus, disk.disk)
			l := bus.Metrics().Ledger
			require.LessOrEqual(t, l.DeadLettered, int64(1), "%d: %+v", at, l)
			require.Equal(t, l.Accepted, l.Handled+l.DeadLettered, "%d: %+v", at, l)
			shutdown(t, bus)
		}
	})
}

// The store fails again and again.
func TestO4_AfterRestart_SeveralFailures(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind storetest.FaultKind) {
		disk := newFailingDisk(kind)
		bus, _ := disk.open(t, eventbus.WithIsolation(), eventbus.WithQueueCapacity(8))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Millisecond); return nil })
		disk.handles(t, bus, "audit", nil)
		require.NoError(t, bus.Start(t.Context()))
		for i := range int64(15) {
			disk.fail.Store(i%7 + 2)
			publishAll(t, bus, 20)
			require.Zero(t, bus.Metrics().Ledger.Claimed)
			time.Sleep(time.Minute)
			requireEmptyBooks(t, bus, disk.disk)
		}
		shutdown(t, bus)
	})
}

// What is parked, split off, scheduled and waiting comes back too, and the gauges with it.
func TestO4_AfterRestart_WhatIsParkedScheduledAndWaiting(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind storetest.FaultKind) {
		for at := range int64(12) {
			disk := newFailingDisk(kind)
			bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1000))
			paused := disk.handles(t, bus, "paused", nil)
			disk.handles(t, bus, "retries", func(payload string, attempt int) error {
				if payload == "0" && attempt == 1 {
					return errBoom
				}
				return nil
			}, eventbus.Retry(retry(3, time.Hour)))
			busy := disk.handles(t, bus, "busy", func(string, int) error { time.Sleep(time.Second); return nil }, eventbus.Concurrency(1))
			require.NoError(t, paused.Pause())
			require.NoError(t, bus.Start(t.Context()))
			publishAll(t, bus, 4)
			publishAll(t, bus, 2, eventbus.After(2*time.Hour))
			disk.fail.Store(at + 1)
			publishAll(t, bus, 4)
			time.Sleep(time.Minute)
			m := bus.Metrics()
			require.True(t, m.Ledger.Balanced(), "%d: %+v", at, m.Ledger)
			require.Zero(t, m.Ledger.Claimed)
			require.EqualValues(t, 2, m.Ledger.Stored-m.Store.Waiting+int64(m.WaitingRetries), "%d: %+v", at, m)
			require.Equal(t, metricsOf(t, bus, paused.ID()).Held, m.Held)
			require.Equal(t, m.Store.Parked, m.Ledger.Held, "%d: %+v", at, m)
			require.Zero(t, m.Throttled)
			require.Zero(t, metricsOf(t, bus, busy.ID()).Running)
			require.Empty(t, m.Orphaned)
			require.NoError(t, paused.Resume())
			time.Sleep(3 * time.Hour)
			requireEmptyBooks(t, bus, disk.disk)
			m = bus.Metrics()
			require.Zero(t, m.Held+m.Throttled+m.WaitingRetries+m.Scheduled)
			shutdown(t, bus)
		}
	})
}

// Other processes cancel events that this one has left to the store, before, during and after the restart.
func TestO4_AfterRestart_WhatOthersHaveCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFailingDisk(storetest.FailBefore)
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(100))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		var ids []eventbus.EventID
		for i := range 5 {
			ids = append(ids, mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.After(2*time.Hour)))
		}
		require.EqualValues(t, 5, bus.Metrics().Ledger.Stored)
		tool, _ := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithoutHandlers())
		require.NoError(t, cancelEvent(t.Context(), tool, ids[0]))
		disk.fail.Store(1)
		_, err := bus.Publish(t.Context(), "a", "fails")
		require.Error(t, err)
		require.NoError(t, cancelEvent(t.Context(), tool, ids[1]))
		time.Sleep(time.Minute)
		require.NoError(t, cancelEvent(t.Context(), tool, ids[2]))
		require.NoError(t, cancelEvent(t.Context(), bus, ids[3]))
		time.Sleep(time.Minute)
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced(), "%+v", l)
		require.EqualValues(t, 1, l.Stored, "%+v", l)
		time.Sleep(3 * time.Hour)
		requireEmptyBooks(t, bus, disk.disk)
		l = bus.Metrics().Ledger
		require.Equal(t, []int64{5, 4, 1}, []int64{l.Accepted, l.Cancelled, l.Handled})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = tool.Shutdown(ctx)
		shutdown(t, bus)
	})
}

// What an earlier process has left counts as claimed, once, whether it is claimed before or after the restart.
func TestO4_AfterRestart_WhatAnEarlierProcessLeft(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind storetest.FaultKind) {
		disk := newFailingDisk(kind)
		earlier, _ := disk.open(t)
		disk.handles(t, earlier, "mail", nil)
		require.NoError(t, earlier.Start(t.Context()))
		publishAll(t, earlier, 5, eventbus.After(time.Hour))
		shutdown(t, earlier)

		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Second); return nil })
		require.NoError(t, bus.Start(t.Context()))
		publishAll(t, bus, 2, eventbus.After(2*time.Hour))
		disk.fail.Store(2)
		publishAll(t, bus, 2)
		time.Sleep(4 * time.Hour)
		require.Empty(t, disk.Dump().Records)
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced(), "%+v", l)
		require.Zero(t, l.Stored, "%+v", l)
		require.EqualValues(t, 5, l.Claimed, "%+v", l)
		require.Equal(t, l.Accepted+5, l.Handled, "%+v", l)
		shutdown(t, bus)
	})
}
