package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/store/sqlite"
	"github.com/surebus/eventbus/store/sqlite/sqlitetest"
)

// start starts the service on a bus that ends with the test. The test fails for events that are unfinished or dead letters then.
// The recorder billing is around every handler, and can make it fail. The recorder paid handles order.paid.
func start(t *testing.T) (bus *eventbus.Bus, billing, paid *eventbustest.Recorder) {
	t.Helper()
	billing, paid = new(eventbustest.Recorder), new(eventbustest.Recorder)
	bus = eventbustest.New(t, eventbus.WithRetry(eventbus.NoJitter), eventbus.WithMiddleware(billing.Wrap))
	require.NoError(t, (&Billing{bus, func(context.Context, Order) error { return nil }}).Subscribe())
	_, err := bus.Subscribe("order.paid", paid.Handle)
	require.NoError(t, err)
	return bus, billing, paid
}

func place(t *testing.T, bus *eventbus.Bus, o Order) eventbus.EventID {
	t.Helper()
	id, err := bus.Publish(t.Context(), "order.placed", o)
	require.NoError(t, err)
	return id
}

func TestBilling_Pays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _, paid := start(t)
		place(t, bus, Order{"o-17", 4200})
		eventbustest.NoDeadLetters(t, bus) // waits until all events have settled
		require.Equal(t, []Order{{"o-17", 4200}}, eventbustest.Payloads[Order](paid))
	})
}

func TestBilling_TriesAgainAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, billing, paid := start(t)
		billing.Script(eventbustest.Fail(errBankBusy), eventbustest.Overrun)
		id := place(t, bus, Order{"o-17", 4200})
		eventbustest.WaitSettled(t, bus) // two minutes of virtual time
		require.Equal(t, []time.Duration{time.Minute, time.Minute}, billing.Delays(id))
		require.Len(t, paid.Deliveries(), 1)
	})
}

func TestBilling_GivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, billing, paid := start(t)
		billing.FailNext(3, errBankBusy)
		place(t, bus, Order{"o-17", 4200})
		// DeadLetter expects this letter. Without it, the test would fail for the letter.
		letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Subscription: "billing"})
		require.Equal(t, eventbus.ReasonExhausted, letter.Reason)
		require.Equal(t, 3, letter.Attempts)
		require.Empty(t, paid.Deliveries())
	})
}

func TestBilling_RefusesWhatCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _, _ := start(t)
		place(t, bus, Order{"o-18", 0})
		letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
		require.Equal(t, "order o-18 costs 0 cents", letter.Failures[0].Error)
	})
}

// The first bus ends while the retry waits, and the second one continues on the same file. eventbustest.Crash and storetest.Model
// do the same for a process that is killed.
func TestBilling_SurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := sqlitetest.Path(t)
		start := func(bank *eventbustest.Recorder) *eventbus.Bus {
			store, err := sqlite.Open(t.Context(), file)
			require.NoError(t, err)
			// Shutdown closes the store.
			bus := eventbustest.NewUnstarted(t, eventbus.WithStore(store), eventbus.WithMiddleware(bank.Wrap))
			require.NoError(t, (&Billing{bus, func(context.Context, Order) error { return nil }}).Subscribe())
			require.NoError(t, bus.Start(t.Context()))
			return bus
		}
		var first, second eventbustest.Recorder
		first.FailNext(1, errBankBusy)
		bus := start(&first)
		place(t, bus, Order{"o-17", 4200})
		first.Wait(t, 1)
		require.NoError(t, bus.Shutdown(t.Context())) // the retry stays in the file

		bus = start(&second)
		eventbustest.NoDeadLetters(t, bus)
		require.Equal(t, []Order{{"o-17", 4200}}, eventbustest.Payloads[Order](&second))
		require.Equal(t, 2, second.Deliveries()[0].Attempt)
	})
}

func TestRun(t *testing.T) {
	require.NoError(t, run(t.Context()))
}
