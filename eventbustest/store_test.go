package eventbustest_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/storetest"
)

// stored returns the option for a store over a model.
func stored(t testing.TB, model *storetest.Model) eventbus.Option {
	t.Helper()
	store := model.Open()
	return eventbus.WithStore(store)
}

var mail = eventbus.Named("mail")

func TestStore_RetriesSettleInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, stored(t, model), seconds)
		subscribe(t, bus, rec.Handle, mail, eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
		rec.FailNext(3, errBank)
		id := publish(t, bus, "order.placed", Order{"o-17", 4200})

		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []time.Duration{time.Hour, time.Hour, time.Hour}, rec.Delays(id))
		require.Equal(t, []Order{{"o-17", 4200}}, eventbustest.Payloads[Order](&rec))
		require.IsType(t, json.RawMessage(nil), rec.Deliveries()[0].Event.Payload)
		require.Empty(t, model.Dump().Records)
	})
}

func TestStore_WaitSettledWaitsForEventsThatOnlyTheStoreHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, stored(t, storetest.NewModel()), eventbus.WithQueueCapacity(2))
		subscribe(t, bus, func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return nil }, mail,
			eventbus.Use(rec.Wrap), eventbus.Concurrency(1))
		const events = 100
		for range events {
			publish(t, bus, "order.placed", nil)
		}
		eventbustest.WaitSettled(t, bus)
		require.Len(t, rec.Deliveries(), events)
	})
}

func TestStore_WaitSettledLeavesWhatTheStoreKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		first := eventbustest.New(t, stored(t, model))
		subscribe(t, first, ok, mail)
		subscribe(t, first, ok, eventbus.Named("gone"))
		_, err := first.Publish(t.Context(), "order.reminder", nil, eventbus.After(time.Hour))
		require.NoError(t, err)
		require.NoError(t, first.Subscription("gone").Pause())
		publish(t, first, "order.placed", nil)
		begun := time.Now()
		eventbustest.WaitSettled(t, first, eventbustest.HeldIsSettled())
		require.NoError(t, first.Shutdown(t.Context()))

		again := eventbustest.New(t, stored(t, model))
		eventbustest.AllowDeadLetters(t, again, eventbus.LetterQuery{Reason: eventbus.ReasonShutdown})
		subscribe(t, again, ok, mail)
		eventbustest.WaitSettled(t, again)
		require.Less(t, time.Since(begun), time.Minute)
		require.EqualValues(t, 1, again.Metrics().Store.Scheduled)
		require.EqualValues(t, 1, again.Metrics().Store.Parked, "gone does not exist")
	})
}

func TestStore_UnfinishedEventsFailTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t, stored(t, storetest.NewModel()))
			subscribe(t, bus, ok, mail)
			_, err := bus.Publish(context.Background(), "order.reminder", nil, eventbus.After(time.Hour))
			require.NoError(t, err)
		}, "1 event unfinished in the store", "1 scheduled")

		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.NewUnstarted(t, stored(t, storetest.NewModel()))
			subscribe(t, bus, ok, mail)
			publish(t, bus, "order.placed", nil)
		}, "1 event unfinished in the store", "1 incoming", "start the bus")

		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.NewUnstarted(t, stored(t, storetest.NewModel()))
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonShutdown})
			subscribe(t, bus, ok, mail)
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettled(t, bus)
		}, "the store has 0 ready and 0 waiting", "1 incoming", "is the bus started?")
	})
}

func TestStore_BlockedHandlerFailsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pretendRealTime()
		begun := time.Now()
		failures, _ := failuresOf(t, func(t testing.TB) {
			bus := eventbustest.New(t, stored(t, storetest.NewModel()))
			subscribe(t, bus, eventbustest.Block(nil), mail, eventbus.Timeout(time.Hour))
			publish(t, bus, "order.placed", nil)
		})
		require.Len(t, failures, 1)
		require.Contains(t, failures[0], "1 event unfinished in the store: 1 ready")
		require.Less(t, time.Since(begun), 13*time.Second)
	})
}

func TestStore_DeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t, stored(t, storetest.NewModel()))
			subscribe(t, bus, eventbustest.Fail(eventbus.Permanent(errBank)), mail)
			publish(t, bus, "order.placed", Order{"o-17", 4200})
		}, "1 dead letter that it did not expect", "the bank is busy", `payload json.RawMessage {"ID":"o-17","Cents":4200}`)

		passes(t, func(t testing.TB) {
			bus := eventbustest.New(t, stored(t, storetest.NewModel()))
			subscribe(t, bus, eventbustest.Fail(eventbus.Permanent(errBank)), mail)
			publish(t, bus, "order.placed", Order{"o-17", 4200})
			letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
			require.Equal(t, Order{"o-17", 4200}, eventbustest.Payload[Order](t, letter.Event))
		})

		// The store of a bus that the test has shut down is closed.
		passes(t, func(t testing.TB) {
			model := storetest.NewModel()
			bus := eventbustest.New(t, stored(t, model))
			subscribe(t, bus, eventbustest.Fail(eventbus.Permanent(errBank)), mail)
			publish(t, bus, "order.placed", nil)
			eventbustest.WaitSettled(t, bus)
			require.NoError(t, bus.Shutdown(context.Background()))
			require.Equal(t, 1, bus.Metrics().DeadLetters)

			again := eventbustest.New(t, stored(t, model))
			eventbustest.DeadLetter(t, again, eventbus.LetterQuery{})
		})
	})
}

func TestPayload_OfAnotherType(t *testing.T) {
	oneFailure(t, func(t testing.TB) {
		eventbustest.Payload[int](t, eventbus.Event{Type: "order.placed", Payload: json.RawMessage(`"x"`)})
	}, "order.placed", "int")
	require.Equal(t, 7, eventbustest.Payload[int](t, eventbus.Event{Payload: 7}))
}

func TestStore_AMockClock(t *testing.T) {
	mock := clock.NewMock()
	var rec eventbustest.Recorder
	bus := eventbustest.New(t, stored(t, storetest.NewModel()), eventbus.WithClock(mock))
	subscribe(t, bus, rec.Handle, mail)
	rec.FailNext(3, errBank)
	publish(t, bus, "order.placed", nil)
	eventbustest.AdvanceUntilSettled(t, bus, mock)
	require.Len(t, rec.Deliveries(), 4)
}

func TestCrash_TheNextBusContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes(t, func(t testing.TB) {
			model := storetest.NewModel()
			var rec eventbustest.Recorder
			start := func(h eventbus.Handler) *eventbus.Bus {
				bus := eventbustest.NewUnstarted(t, stored(t, model), seconds)
				subscribe(t, bus, h, mail, eventbus.Use(rec.Wrap))
				require.NoError(t, bus.Start(context.Background()))
				return bus
			}
			first := start(eventbustest.Overrun)
			rec.FailNext(1, errBank)
			id := publish(t, first, "order.placed", nil)
			rec.WaitBegun(t, 2) // the retry is interrupted
			eventbustest.Crash(t, first, model.Crash)

			again := start(ok)
			eventbustest.NoDeadLetters(t, again)
			deliveries := rec.ByEvent(id)
			require.Len(t, deliveries, 3)
			require.Equal(t, 2, deliveries[2].Attempt, "the interrupted attempt does not count")
		})
	})
}

func TestCrash_OfABusInMemory(t *testing.T) {
	oneFailure(t, func(t testing.TB) {
		eventbustest.Crash(t, eventbustest.New(t), func() {})
	}, "the bus has no store")
}

// A failed store that the test does not end.
func TestStore_AFailedStoreFailsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures, _ := failuresOf(t, func(t testing.TB) {
			model := storetest.NewModel()
			bus := eventbustest.New(t, stored(t, model))
			subscribe(t, bus, ok, mail)
			publish(t, bus, "order.placed", nil)
			model.Crash()
		})
		require.NotEmpty(t, failures)
	})
}

type gobCodec struct{}

func (gobCodec) Marshal(payload any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(payload)
	return b.Bytes(), err
}

func (gobCodec) Unmarshal(data []byte, pointer any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(pointer)
}

func TestStore_PayloadsOfACodec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, stored(t, storetest.NewModel()), eventbus.WithCodec(gobCodec{}))
		subscribe(t, bus, rec.Handle, mail)
		publish(t, bus, "order.placed", Order{"o-17", 4200})
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []Order{{"o-17", 4200}}, eventbustest.Payloads[Order](&rec))
	})
}

// Throttled deliveries for which the line has no room wait in the store.
func TestStore_WaitSettledWaitsForThrottledDeliveriesInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int64
		bus := eventbustest.New(t, stored(t, storetest.NewModel()))
		subscribe(t, bus, func(context.Context, eventbus.Event) error {
			time.Sleep(time.Millisecond)
			handled.Add(1)
			return nil
		}, mail, eventbus.Concurrency(1))
		const events = 10_500
		batch := make([]eventbus.Publication, events)
		for i := range batch {
			batch[i].Type = "order.placed"
		}
		_, err := bus.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.EqualValues(t, events, handled.Load())
	})
}
