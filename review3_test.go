package eventbus_test

import (
	"context"
	"io"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

// panicValue is something to panic with, whose methods do no better.
type panicValue struct{ do func() }

func (v panicValue) String() string { v.do(); return "" }

func (v panicValue) MarshalJSON() ([]byte, error) { v.do(); return nil, nil }

// jsonOnlyValue has no String method: a logger would encode it.
type jsonOnlyValue struct{ Do func() }

func (v jsonOnlyValue) MarshalJSON() ([]byte, error) { v.Do(); return nil, nil }

// What the user's code panics with has methods, and a logger calls them.
func TestP6_WhateverTheUsersCodePanicsWithIsLogged(t *testing.T) {
	for name, value := range map[string]any{
		"String panics":     panicValue{func() { panic("again") }},
		"String exits":      panicValue{runtime.Goexit},
		"MarshalJSON panic": jsonOnlyValue{func() { panic("again") }},
		"MarshalJSON exits": jsonOnlyValue{runtime.Goexit},
		"empty":             "",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var entries journal[string]
				core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zapcore.DebugLevel)
				logger := zap.New(zapcore.RegisterHooks(core, func(e zapcore.Entry) error { entries.add(e.Message); return nil }))
				bus, _ := startBus(t, eventbus.WithLogger(logger),
					eventbus.WithObserver(eventbus.Observer{Accepted: func(eventbus.Event) { panic(value) }}),
					eventbus.WithRandom(func() float64 { panic(value) }))
				mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Retry(
					eventbus.MaxRetries(1), eventbus.RetryIf(func(error) bool { panic(value) })))
				mustPublish(t, bus, "a", nil)
				shutdown(t, bus)
				require.Equal(t, 2, oneLetter(t, bus).Attempts)
				logged := entries.all()
				require.Contains(t, logged, "observer panicked")
				require.Contains(t, logged, "WithRandom panicked")
				if name != "String exits" {
					require.Contains(t, logged, "RetryIf panicked")
				}
			})
		})
	}
}

// A split that begins anew begins its delays anew.
func TestP3_ASplitDoesNotGoOnFromTheDelaysOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()),
			eventbus.WithRandom(func() float64 { return math.Nextafter(1, 0) }),
			eventbus.WithRetry(eventbus.BaseDelay(time.Second), eventbus.MaxDelay(time.Hour), eventbus.DecorrelatedJitter))
		_, first := ruleCalls(errBroken, errBroken, errBroken, nil)
		mustSubscribe(t, bus, "a", first)
		var began journal[time.Time]
		s := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if began.add(time.Now()); began.len() == 1 {
				return errBroken
			}
			return nil
		})
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Minute) // the first subscription has had delays of 3, 9 and 27 s
		require.NoError(t, s.Resume())
		shutdown(t, bus)
		calls := began.all()
		require.Len(t, calls, 2)
		require.InDelta(t, 3*time.Second, calls[1].Sub(calls[0]), float64(time.Millisecond))
	})
}

// What decides on a failure is given up as a handler is, also when it is asked about
// that handler's timeout.
func TestP6_ARetryIfThatHangsHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		bus, logs := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(eventbus.MaxRetries(1)),
			eventbus.WithRandom(func() float64 { <-release; return 0 }))
		mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Timeout(time.Second),
			eventbus.Retry(eventbus.RetryIf(func(error) bool { <-release; return false })))
		mustSubscribe(t, bus, "b", ok)
		mustPublish(t, bus, "a", nil, eventbus.Key("k"))
		mustPublish(t, bus, "b", nil, eventbus.Key("k"))
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, 2, l.Attempts)
		require.Contains(t, l.Failures[0].Error, "1s")
		require.EqualValues(t, 1, bus.Metrics().Ledger.Handled)
		require.Equal(t, 2, logs.FilterMessage("RetryIf did not return").Len())
	})
}
