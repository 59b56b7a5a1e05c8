package eventbustest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
)

func TestWaitSettled_WaitsForRetriesInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, seconds)
		subscribe(t, bus, rec.Handle, eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
		rec.FailNext(3, errBank)
		id := publish(t, bus, "order.placed", nil)

		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []time.Duration{time.Hour, time.Hour, time.Hour}, rec.Delays(id))
		require.Less(t, time.Since(begun), 3*time.Hour+3*time.Minute, "late by a sixtieth at most")
	})
}

func TestWaitSettled_RealTime(t *testing.T) {
	var rec eventbustest.Recorder
	bus := eventbustest.New(t)
	subscribe(t, bus, rec.Handle, eventbus.Retry(eventbus.BaseDelay(time.Millisecond)))
	rec.FailNext(3, errBank)
	publish(t, bus, "order.placed", nil)
	eventbustest.WaitSettled(t, bus)
	require.Len(t, rec.Deliveries(), 4)
}

func TestWaitSettled_TellsWhatIsUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.NewUnstarted(t)
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonShutdown})
			subscribe(t, bus, ok)
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettled(t, bus)
		}, "not settled after 24h0m0s", "1 queued, 0 running, 0 waiting", "is the bus started?")

		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			var rec eventbustest.Recorder
			subscribe(t, bus, rec.Handle, eventbus.Named("billing"))
			rec.FailNext(3, errBank)
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettledWithin(t, bus, 2*time.Second)
		}, "not settled after 2s", "0 queued, 0 running, 1 waiting", "billing failed 2 times", "AdvanceUntilSettled", "Accepted:1")

		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			release := make(chan struct{})
			t.Cleanup(func() { close(release) })
			subscribe(t, bus, eventbustest.Block(release), eventbus.Timeout(time.Hour))
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettledWithin(t, bus, time.Second)
		}, "0 queued, 1 running, 0 waiting", "a handler has not returned")

		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			release := make(chan struct{})
			t.Cleanup(func() { close(release) })
			subscribe(t, bus, eventbustest.Block(release), eventbus.Timeout(time.Hour), eventbus.Concurrency(1))
			publish(t, bus, "order.placed", nil)
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettledWithin(t, bus, time.Second)
		}, "1 running, 0 waiting for a retry, 1 throttled", "at the concurrency limit")
	})
}

// Outside a bubble, a wait ends a second before the test binary is killed, so that the failure
// names the unsettled events.
func TestWaitSettled_EndsBeforeTheBinaryIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pretendRealTime()
		var waited time.Duration
		oneFailure(t, func(t testing.TB) {
			release := make(chan struct{})
			bus := eventbustest.New(t)
			t.Cleanup(func() { close(release) })
			subscribe(t, bus, eventbustest.Block(release))
			publish(t, bus, "order.placed", nil)
			begun := time.Now()
			defer func() { waited = time.Since(begun) }() // a failed wait ends the goroutine
			eventbustest.WaitSettledWithin(deadlineT{t.(*fakeT), begun.Add(4 * time.Second)}, bus, time.Hour)
		}, "1 running")
		require.Equal(t, 3*time.Second, waited)
	})
}

func TestAdvanceUntilSettled(t *testing.T) {
	mock := clock.NewMock()
	var rec eventbustest.Recorder
	bus := eventbustest.New(t, seconds, eventbus.WithClock(mock))
	subscribe(t, bus, rec.Handle)
	rec.FailNext(3, errBank)
	begun := mock.Now()
	publish(t, bus, "order.placed", nil)

	eventbustest.AdvanceUntilSettled(t, bus, mock)
	require.Len(t, rec.Deliveries(), 4)
	require.WithinRange(t, mock.Now(), begun.Add(7*time.Second), begun.Add(9*time.Second))
	eventbustest.AdvanceUntilSettled(t, bus, mock) // nothing to do
	eventbustest.NoDeadLetters(t, bus)
}

// A clock that does not drive the bus is noticed after a day of it.
func TestAdvanceUntilSettled_TheWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			var rec eventbustest.Recorder
			subscribe(t, bus, rec.Handle)
			rec.FailNext(1, errBank)
			publish(t, bus, "order.placed", nil)
			eventbustest.AdvanceUntilSettled(t, bus, new(countingClock))
		}, "not settled after", "1 waiting")
		oneFailure(t, func(t testing.TB) {
			eventbustest.AdvanceUntilSettled(t, eventbustest.New(t), nil)
		}, "the clock is nil")
	})
}

// Time is not advanced under a handler that works: it would overrun.
func TestAdvanceUntilSettled_WaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventbustest.New(t)
		var advanced countingClock
		subscribe(t, bus, func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return nil })
		publish(t, bus, "order.placed", nil)
		eventbustest.AdvanceUntilSettled(t, bus, &advanced)
		require.Zero(t, advanced)
	})
}

type countingClock time.Duration

func (c *countingClock) Add(d time.Duration) { *c += countingClock(d) }
