package contracttest

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

func TestLoggerIsThatOfTheBus(t *testing.T) {
	bus, logs := newBus(t)
	bus.Logger().Warn("flow is slow", zap.String("flow", "saga"))
	require.Equal(t, 1, logs.FilterMessage("flow is slow").FilterField(zap.String("flow", "saga")).Len())
	require.NotNil(t, (*eventbus.Bus)(nil).Logger())
	new(eventbus.Bus).Logger().Warn("nothing")
}

func TestCallerSkip(t *testing.T) {
	bus, _ := newBus(t)
	wrapped := func() *eventbus.Subscription {
		return mustSubscribe(t, bus, "x", ok, eventbus.CallerSkip(1), eventbus.CallerSkip(1)) // this function and mustSubscribe
	}
	_, file, line, _ := runtime.Caller(0)
	require.Equal(t, fmt.Sprintf("%s:%d", file, line+1), wrapped().MadeAt())
	require.Empty(t, mustSubscribe(t, bus, "x", ok, eventbus.CallerSkip(1_000)).MadeAt())
	_, err := bus.Subscribe("x", ok, eventbus.CallerSkip(-1))
	require.ErrorContains(t, err, "invalid option CallerSkip(-1): must be at least 0")
}
