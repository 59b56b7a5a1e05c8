package contracttest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

const notStarted = "bus is not started: events wait for Start"

func TestS1_AForgottenStartIsOneWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := newBus(t)
		mustSubscribe(t, bus, "a", ok)
		time.Sleep(time.Hour)
		require.Empty(t, logs.All(), "nothing waits")
		mustPublish(t, bus, "a", nil)
		time.Sleep(3 * time.Second)
		mustPublish(t, bus, "a", nil)
		time.Sleep(2*time.Second - 1)
		synctest.Wait()
		require.Empty(t, logs.FilterMessage(notStarted).All())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Hour)
		all := logs.FilterMessage(notStarted).All()
		require.Len(t, all, 1)
		require.Equal(t, zapcore.WarnLevel, all[0].Level)
		require.Contains(t, all[0].ContextMap()["remedy"], "call Start")
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
	})
}

func TestS1_NoWarningAfterStartOrShutdown(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *eventbus.Bus){
		"Start": func(t *testing.T, bus *eventbus.Bus) {
			t.Helper()
			require.NoError(t, bus.Start(t.Context()))
			mustPublish(t, bus, "a", nil)
		},
		"Shutdown": func(t *testing.T, bus *eventbus.Bus) {
			t.Helper()
			require.Error(t, bus.Shutdown(t.Context()))
		},
	} {
		for _, before := range []int{0, 1} {
			synctest.Test(t, func(t *testing.T) {
				bus, logs := newBus(t)
				mustSubscribe(t, bus, "a", ok)
				for range before {
					mustPublish(t, bus, "a", nil)
				}
				time.Sleep(5*time.Second - 1)
				if before == 0 && name == "Shutdown" {
					require.NoError(t, bus.Shutdown(t.Context()))
				} else {
					end(t, bus)
				}
				time.Sleep(time.Hour)
				require.Empty(t, logs.FilterMessage(notStarted).All())
			})
		}
	}
}

func TestS1_TheTimeOfTheWarningIsOnTheBussClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, logs := newBus(t, eventbus.WithClock(mock))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Hour)
		mock.Add(5*time.Second - 1)
		require.Zero(t, logs.FilterMessage(notStarted).Len())
		mock.Add(1)
		synctest.Wait() // a mock runs f on its own goroutine
		require.Equal(t, 1, logs.FilterMessage(notStarted).Len())
	})
}

// Start of a standby waits for the lease, and a tool has no Start.
func TestS1_NoWarningWhereStartWaitsOrThereIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		active, _ := disk.open(t)
		disk.handles(t, active, "mail", nil)
		require.NoError(t, active.Start(t.Context()))
		standby, logs := disk.open(t, eventbus.WithStandby())
		disk.handles(t, standby, "mail", nil)
		started := make(chan error, 1)
		go func() { started <- standby.Start(t.Context()) }()
		synctest.Wait()
		mustPublish(t, standby, "a", "x")
		tool, toolLogs := disk.open(t, eventbus.WithoutHandlers())
		mustPublish(t, tool, "a", "y")
		time.Sleep(time.Minute)
		require.Empty(t, logs.FilterMessage(notStarted).All())
		require.Empty(t, toolLogs.FilterMessage(notStarted).All())
		shutdown(t, active)
		require.NoError(t, <-started)
		require.NoError(t, tool.Shutdown(t.Context()))
		require.NoError(t, standby.Shutdown(t.Context()))
	})
}
