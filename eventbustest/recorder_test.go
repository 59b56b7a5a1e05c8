package eventbustest_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
)

func TestRecorder_RecordsDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, seconds, eventbus.WithRetry(eventbus.MaxRetries(9)), eventbus.WithMiddleware(rec.Wrap))
		exit := func(context.Context, eventbus.Event) error { runtime.Goexit(); return nil }
		rec.Script(eventbustest.Fail(errBank), eventbustest.Panic("oh"), exit, eventbustest.Overrun)
		subscribe(t, bus, ok, eventbus.Named("billing"))
		subscribe(t, bus, ok, eventbus.Named("mail"))
		begun := time.Now()
		id := publish(t, bus, "order.placed", "o-17")
		eventbustest.WaitSettled(t, bus)

		all := rec.Deliveries()
		require.Len(t, all, 6)
		for i, d := range all {
			assert.Equal(t, id, d.Event.ID)
			assert.Equal(t, min(i+1, 5), d.Attempt)
			assert.True(t, d.Ended())
		}
		assert.Equal(t, errBank, all[0].Err)
		var panicked *eventbus.PanicError
		require.ErrorAs(t, all[1].Err, &panicked)
		assert.Equal(t, "oh", panicked.Value)
		assert.Contains(t, string(panicked.Stack), ".Panic.")
		assert.Equal(t, eventbus.ErrHandlerExited, all[2].Err)
		assert.Equal(t, context.DeadlineExceeded, all[3].CtxErr)
		assert.InDelta(t, 30*time.Second, all[3].EndedAt.Sub(all[3].Begun), float64(5*time.Millisecond))
		assert.NoError(t, all[4].Err)
		assert.NoError(t, all[4].CtxErr)
		assert.Equal(t, []string{"billing", "mail"}, []string{all[4].Subscription, all[5].Subscription})
		assert.Equal(t, begun, all[0].Begun)
		assert.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}, rec.Delays(id))

		// What the recorder wraps is what the bus has seen.
		m := bus.Metrics().Subscriptions[0]
		assert.Equal(t, []int64{4, 2, 1, 1}, []int64{m.Failures, m.Panics, m.Timeouts, m.Successes})
	})
}

func TestRecorder_Queries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type order struct{ ID string }
		var rec eventbustest.Recorder
		bus := eventbustest.New(t)
		subscribe(t, bus, rec.Handle)
		rec.FailNext(1, errBank)
		first := publish(t, bus, "order.placed", order{"o-1"})
		eventbustest.WaitSettled(t, bus)
		publish(t, bus, "order.paid", &order{"o-2"})
		eventbustest.WaitSettled(t, bus)
		publish(t, bus, "order.lost", "o-3")
		eventbustest.WaitSettled(t, bus)

		require.Len(t, rec.Deliveries(), 4)
		require.Len(t, rec.ByType("order.placed"), 2)
		require.Empty(t, rec.ByType("order.*"))
		require.Len(t, rec.ByEvent(first), 2)
		require.Equal(t, []order{{"o-1"}, {"o-2"}}, eventbustest.Payloads[order](&rec))
		require.Equal(t, []string{"o-3"}, eventbustest.Payloads[string](&rec))
	})
}

func TestRecorder_ScriptComesBeforeTheHandler(t *testing.T) {
	var rec eventbustest.Recorder
	require.Nil(t, rec.Wrap(nil))
	h := rec.Wrap(eventbustest.Fail(errBank))
	rec.Script(ok, nil)
	rec.Script(eventbustest.Fail(nil))
	e := eventbus.Event{Type: "order.placed"}
	require.NoError(t, h(t.Context(), e))
	require.Equal(t, errBank, h(t.Context(), e), "nil is the handler's turn")
	require.Equal(t, eventbustest.ErrScripted, h(t.Context(), e))
	require.Equal(t, errBank, h(t.Context(), e))
	require.Equal(t, "order.placed", rec.Deliveries()[0].Event.Type, "without a bus too")
}

func TestRecorder_Wait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		release := make(chan struct{})
		bus := eventbustest.New(t)
		subscribe(t, bus, rec.Handle)
		rec.Script(eventbustest.Block(release))
		begun := time.Now()
		publish(t, bus, "order.placed", nil)
		rec.WaitBegun(t, 1)
		require.False(t, rec.Deliveries()[0].Ended())
		time.AfterFunc(time.Second, func() { close(release) })
		rec.Wait(t, 1)
		require.True(t, rec.Deliveries()[0].Ended())
		require.Equal(t, time.Second, time.Since(begun), "just when it ended")
		require.NoError(t, rec.Deliveries()[0].Err)
	})
}

func TestRecorder_WaitTellsWhatCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		test := func(wait func(testing.TB, *eventbustest.Recorder)) func(testing.TB) {
			return func(t testing.TB) {
				var rec eventbustest.Recorder
				bus := eventbustest.New(t)
				eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
				subscribe(t, bus, rec.Handle, eventbus.Named("billing"), eventbus.Timeout(100*time.Hour))
				rec.Script(eventbustest.Fail(eventbus.Permanent(errBank)), ok, eventbustest.Overrun)
				for range 3 {
					publish(t, bus, "order.placed", nil)
					synctest.Wait()
				}
				wait(t, &rec)
			}
		}
		failures, _ := failuresOf(t, test(func(t testing.TB, rec *eventbustest.Recorder) { rec.Wait(t, 3) }))
		for _, part := range []string{
			"want 3 deliveries that have ended, got 2 after 24h0m0s", "order.placed", "to billing, attempt 1, 00:00:00.000",
			": the bank is busy", ": handled", ": running",
		} {
			require.Contains(t, failures[0], part)
		}
		failures, _ = failuresOf(t, test(func(t testing.TB, rec *eventbustest.Recorder) { rec.WaitBegun(t, 4) }))
		require.Contains(t, failures[0], "want 4 deliveries that have begun, got 3")
	})
}

func TestBlock_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, context.Canceled, eventbustest.Block(nil)(ctx, eventbus.Event{}))
}

// FailNow in a handler ends the delivery at once; without Asserting the bus would
// try again, and again.
func TestAsserting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			wrap     eventbus.Middleware
			reason   eventbus.Reason
			attempts int
		}{
			{eventbustest.Asserting, eventbus.ReasonPermanent, 1},
			{func(h eventbus.Handler) eventbus.Handler { return h }, eventbus.ReasonExhausted, 4},
		} {
			failures, _ := failuresOf(t, func(ft testing.TB) {
				bus := eventbustest.New(ft)
				subscribe(ft, bus, func(context.Context, eventbus.Event) error {
					ft.Fatalf("want o-17")
					return nil
				}, eventbus.Use(test.wrap))
				publish(ft, bus, "order.placed", "o-18")
				letter := eventbustest.DeadLetter(ft, bus, eventbus.LetterQuery{Reason: test.reason})
				assert.Equal(t, test.attempts, letter.Attempts)
				assert.ErrorIs(t, letter.Failures[0].Err, eventbus.ErrHandlerExited)
			})
			require.Len(t, failures, test.attempts)
			require.Equal(t, "want o-17", failures[0])
		}
	})
}

func TestAsserting_LeavesOtherResultsAlone(t *testing.T) {
	require.Nil(t, eventbustest.Asserting(nil))
	call := func(h eventbus.Handler) error { return eventbustest.Asserting(h)(t.Context(), eventbus.Event{}) }
	require.NoError(t, call(ok))
	require.Equal(t, errBank, call(eventbustest.Fail(errBank)))
	var panicked *eventbus.PanicError
	require.ErrorAs(t, call(eventbustest.Panic("oh")), &panicked)
	require.Equal(t, "oh", panicked.Value)
}

// With isolation the attempts of an event's subscriptions come between each other.
func TestD10_DelaysOfEachSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, eventbus.WithIsolation(), eventbus.WithMiddleware(rec.Wrap),
			eventbus.WithRetry(eventbus.NoJitter, eventbus.MaxRetries(1)))
		for _, delay := range []time.Duration{time.Second, 5 * time.Second} {
			_, err := bus.Subscribe("a", func(context.Context, eventbus.Event) error { return nil },
				eventbus.Retry(eventbus.BaseDelay(delay)))
			require.NoError(t, err)
		}
		rec.FailNext(2, nil)
		id, err := bus.Publish(t.Context(), "a", nil)
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []time.Duration{time.Second, 5 * time.Second}, rec.Delays(id))
	})
}
