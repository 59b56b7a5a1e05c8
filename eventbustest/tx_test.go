package eventbustest_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/storetest"
)

func TestAdoptTx_CommitAndRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, stored(t, model))
		subscribe(t, bus, rec.Handle, mail)

		tx, undone := eventbustest.AdoptTx(t, model.Begin()), eventbustest.AdoptTx(t, model.Begin())
		_, err := bus.PublishTx(t.Context(), tx, "order.placed", Order{"o-17", 4200})
		require.NoError(t, err)
		_, err = bus.PublishTx(t.Context(), undone, "order.placed", Order{"o-18", 4200})
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.Empty(t, rec.Deliveries())

		require.NoError(t, undone.Rollback())
		require.NoError(t, tx.Commit())
		require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []Order{{"o-17", 4200}}, eventbustest.Payloads[Order](&rec))

		_, err = bus.PublishTx(t.Context(), tx, "order.placed", nil)
		require.ErrorIs(t, err, eventbus.ErrNoTransaction)
	})
}

func TestAdoptTx_ReportsAnOpenTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		var tx *storetest.Tx
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t, stored(t, model))
			tx = eventbustest.AdoptTx(t, model.Begin())
			_, err := bus.PublishTx(context.Background(), tx, "order.placed", nil)
			require.NoError(t, err)
		}, "open transaction")
		require.ErrorIs(t, tx.Commit(), sql.ErrTxDone, "it was rolled back")
		require.Empty(t, model.Dump().Incoming)
	})
}

// In a test of a service that publishes in its own transactions.
func ExampleAdoptTx() {
	t := new(testing.T) // that of the test function

	model := storetest.NewModel() // stands for the database
	bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
	var rec eventbustest.Recorder
	if _, err := bus.Subscribe("order.placed", rec.Handle, eventbus.Named("billing")); err != nil {
		t.Fatal(err)
	}

	tx := eventbustest.AdoptTx(t, model.Begin())
	if _, err := bus.PublishTx(t.Context(), tx, "order.placed", Order{"o-17", 4200}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil { // or tx.Rollback(), after which nothing is delivered
		t.Fatal(err)
	}
	eventbustest.WaitSettled(t, bus)
	fmt.Println(eventbustest.Payloads[Order](&rec))
}
