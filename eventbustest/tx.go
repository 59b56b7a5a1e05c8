package eventbustest

import "testing"

// Tx is a transaction of a caller: a *storetest.Tx, or a *sql.Tx.
type Tx interface {
	// Commit ends the transaction and keeps its changes.
	Commit() error
	// Rollback ends the transaction and discards its changes.
	Rollback() error
}

// AdoptTx checks at the end of the test that a transaction has ended, and returns it. One that is open fails the test, and
// is rolled back: in a program it would keep its locks. It reports the mistake of a service that returns early, for
// instance after an error of [eventbus.Bus.PublishTx].
//
// In a test without a database, storetest.Model begins the transactions. Their events reach the bus when they are
// committed:
//
//	tx := eventbustest.AdoptTx(t, model.Begin())
//	orders.Place(ctx, tx, Order{ID: "o-17", Cents: 4200}) // calls bus.PublishTx(ctx, tx, …)
//	require.NoError(t, tx.Commit())                       // or tx.Rollback()
//	eventbustest.WaitSettled(t, bus)
//
// A service whose tables matter in the test runs with store/sqlite/sqlitetest and a *sql.Tx.
func AdoptTx[T Tx](t testing.TB, tx T) T {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		if tx.Rollback() == nil { // otherwise it has ended before
			t.Errorf("eventbustest: the test ends with an open transaction; commit it or roll it back, also after an error")
		}
	})
	return tx
}
