package eventbustest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
)

type basket struct{ Items []string }

func TestBoth_RunsInMemoryAndWithAStore(t *testing.T) {
	var stores []bool
	eventbustest.Both(t, func(t *testing.T, newBus func(testing.TB, ...eventbus.Option) *eventbus.Bus) {
		synctest.Test(t, func(t *testing.T) {
			var rec eventbustest.Recorder
			bus := newBus(t, seconds)
			subscribe(t, bus, rec.Handle, mail)
			rec.FailNext(1, errBank)
			require.Zero(t, rec.Len())
			id := publish(t, bus, "order.placed", &basket{[]string{"tea"}})
			eventbustest.WaitSettled(t, bus)
			require.Equal(t, 2, rec.Len())
			require.Len(t, rec.ByEvent(id), 2)
			require.Equal(t, []basket{{[]string{"tea"}}}, eventbustest.Payloads[basket](&rec))
			stores = append(stores, bus.Metrics().Store != nil)
		})
	})
	require.Equal(t, []bool{false, true}, stores)
}

// Both cannot be called with a fake test: its parts are seen one by one, as Both passes them on.
func TestBoth_FindsAChangedPayload(t *testing.T) {
	t.Run("both", func(t *testing.T) {
		eventbustest.Both(t, func(t *testing.T, newBus func(testing.TB, ...eventbus.Option) *eventbus.Bus) {
			change := func(t testing.TB, handler eventbus.Handler) *eventbus.Bus {
				bus := newBus(t)
				subscribe(t, bus, handler, mail)
				for range 2 {
					publish(t, bus, "order.placed", &basket{[]string{"tea"}})
				}
				eventbustest.WaitSettled(t, bus)
				return bus
			}
			changes := eventbus.Typed(func(_ context.Context, b *basket) error {
				b.Items[0] = "coffee"
				return nil
			})
			stored := false
			failures, finished := failuresOf(t, func(t testing.TB) { stored = change(t, changes).Metrics().Store != nil })
			require.True(t, finished)
			if stored {
				require.Empty(t, failures, "each handler has its own")
			} else {
				require.Len(t, failures, 1, "once")
				require.Contains(t, failures[0], "the payload of order.placed (")
				require.Contains(t, failures[0], "a *eventbustest_test.basket, has changed while the handler of mail ran")
			}
			passes(t, func(t testing.TB) {
				change(t, eventbus.Typed(func(_ context.Context, b basket) error {
					b.Items = append(b.Items, "coffee")
					return nil
				}))
			})
		})
	})
}

func TestWaitSettled_HeldIsNotSettled(t *testing.T) {
	eventbustest.Both(t, func(t *testing.T, newBus func(testing.TB, ...eventbus.Option) *eventbus.Bus) {
		synctest.Test(t, func(t *testing.T) {
			var rec eventbustest.Recorder
			bus := newBus(t)
			subscribe(t, bus, rec.Handle, mail)
			require.NoError(t, bus.Subscription("mail").Pause())
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettled(t, bus, eventbustest.HeldIsSettled())
			require.Zero(t, rec.Len())
			failures, finished := failuresOf(t, func(t testing.TB) { eventbustest.WaitSettledWithin(t, bus, time.Minute) })
			require.False(t, finished)
			require.Len(t, failures, 1)
			require.Contains(t, failures[0], "1 held")
			require.Contains(t, failures[0], "mail is shut (paused); if the test means that, use HeldIsSettled()")

			time.AfterFunc(time.Hour, func() { _ = bus.Subscription("mail").Resume() })
			eventbustest.WaitSettled(t, bus)
			require.Equal(t, 1, rec.Len())
		})
	})
}

func TestWaitSettled_SnoozedIsNotSettled(t *testing.T) {
	eventbustest.Both(t, func(t *testing.T, newBus func(testing.TB, ...eventbus.Option) *eventbus.Bus) {
		synctest.Test(t, func(t *testing.T) {
			var rec eventbustest.Recorder
			bus := newBus(t)
			subscribe(t, bus, rec.Handle, mail)
			rec.FailNext(1, eventbus.Snooze(time.Hour))
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettled(t, bus)
			require.Equal(t, 2, rec.Len())
		})
	})
}
