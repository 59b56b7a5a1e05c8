package contracttest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// crashEntry requires that the first entry of a process is about a crash, and returns its number of events.
func crashEntry(t *testing.T, logs *observer.ObservedLogs) int64 {
	t.Helper()
	all := logs.All()
	require.NotEmpty(t, all)
	require.Equal(t, "last process ended without shutdown", all[0].Message)
	require.Equal(t, zapcore.WarnLevel, all[0].Level)
	for _, e := range all[1:] {
		require.NotEqual(t, all[0].Message, e.Message, "it is logged once")
	}
	return all[0].ContextMap()["crashed_events"].(int64)
}

func noCrashEntry(t *testing.T, logs *observer.ObservedLogs) {
	t.Helper()
	require.Zero(t, logs.FilterMessage("last process ended without shutdown").Len())
}

// slow subscribes handlers that do not end before the crash.
func slow(t *testing.T, bus *eventbus.Bus, names ...string) {
	t.Helper()
	for _, name := range names {
		mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return ctx.Err() }, eventbus.Named(name))
	}
	require.NoError(t, bus.Start(t.Context()))
}

func TestS3_NoShutdown_TheFirstEntrySaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, logs := disk.open(t, eventbus.WithConcurrency(2))
		noCrashEntry(t, logs) // nothing was before
		slow(t, bus, "mail")
		paused := disk.handles(t, bus, "audit", nil)
		require.NoError(t, paused.Pause())
		for i := range 5 { // two run, and three are queued
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		disk.took()
		disk.crash(bus)

		bus, logs = disk.open(t)
		require.EqualValues(t, 5, crashEntry(t, logs), "what is scheduled counts no crash")
		shutdown(t, bus)
		bus, logs = disk.open(t)
		noCrashEntry(t, logs) // the process before has shut down, although it has not started
		shutdown(t, bus)
		disk.took()
	})
}

// A process that crashes before it has events ended without Shutdown, too.
func TestS3_NoShutdown_WithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.crash(bus)
		bus, logs := disk.open(t)
		require.Zero(t, crashEntry(t, logs))
		disk.crash(bus)
		bus, logs = disk.open(t)
		require.Zero(t, crashEntry(t, logs))
		shutdown(t, bus)
	})
}

// Each event counts once, also with a dispatch for each subscription, and only if it counts a crash for this end: the
// suspects alone if a group of them ran.
func TestS3_NoShutdown_CountsTheEventsThatCountACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		for life, want := range []int64{0, 3, 3, 1} {
			bus, logs := disk.open(t, eventbus.WithIsolation())
			if life > 0 {
				require.Equal(t, want, crashEntry(t, logs), "life %d", life)
			}
			slow(t, bus, "mail", "audit")
			if life == 0 {
				for i := range 3 {
					mustPublish(t, bus, "a", fmt.Sprint(i))
				}
			}
			if life == 2 { // the others are suspects, and the first one runs alone
				mustPublish(t, bus, "a", "new")
			}
			disk.took()
			disk.crash(bus)
			time.Sleep(time.Hour)
		}
	})
}

// The ends of a process that are none of a crash: a Shutdown that is cut, a restart in place. A bus beside the one
// with the lease says nothing.
func TestS3_NoShutdown_OtherEndsSayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			if fails.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, logs := disk.open(t)
		slow(t, bus, "mail")
		mustPublish(t, bus, "a", "x")
		disk.took()
		fails.Store(true)
		_, err := bus.Publish(t.Context(), "a", "y")
		require.Error(t, err)
		time.Sleep(time.Hour) // the call ends, and the bus restarts
		require.Equal(t, 1, logs.FilterMessage("store reopened").Len())
		mustPublish(t, bus, "a", "z")
		disk.took()
		beside, besideLogs := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithoutHandlers())
		noCrashEntry(t, besideLogs)
		shutdown(t, beside)
		noCrashEntry(t, logs)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, bus.Shutdown(ctx))

		bus, logs = disk.open(t)
		noCrashEntry(t, logs)
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
		disk.took()
	})
}
