package storetest_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// outcome is that of an Acquire in progress.
type outcome struct {
	lease driver.Lease
	err   error
}

// acquire begins to wait for the lease.
func acquire(ctx context.Context, store driver.Store) <-chan outcome {
	ended := make(chan outcome, 1)
	go func() {
		lease, err := store.Acquire(ctx, driver.AcquireQuery{Wait: true})
		ended <- outcome{lease, err}
	}()
	return ended
}

// Stores get the lease in the order in which they began to wait, without a delay.
func TestStore_ModelHandsOverInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		first := open(t, model)
		stores := []driver.Store{first}
		var waits []<-chan outcome
		for range 4 {
			store := model.Open()
			stores = append(stores, store)
			waits = append(waits, acquire(t.Context(), store))
			synctest.Wait()
		}
		began := time.Now()
		for i, end := range []func(){
			func() { require.NoError(t, first.Release(t.Context(), driver.AllSlots())) },
			func() { require.NoError(t, stores[1].Close(t.Context())) },
			func() { model.Crash() },
			func() { model.LoseLease(true) },
		} {
			require.Empty(t, waits[i])
			end()
			synctest.Wait()
			got := <-waits[i]
			require.NoError(t, got.err)
			require.EqualValues(t, i+2, got.lease.Epoch)
			require.Equal(t, driver.AllSlots(), got.lease.Slots)
			require.Equal(t, i >= 2, got.lease.Crashed)
			require.Equal(t, []driver.Lease{got.lease}, model.Dump().Leases)
			require.Equal(t, got.lease.Epoch, model.Dump().Lease)
		}
		require.Zero(t, time.Since(began))
		require.Zero(t, stores[3].Lease())
		for _, store := range []driver.Store{first, stores[3], stores[4]} {
			require.NoError(t, store.Close(t.Context()))
		}
		require.Empty(t, model.Dump().Leases)
	})
}

// A store that loses its lease learns it by its watchers. Its records are free, and count a crash only if it was one.
func TestStore_ModelLoseLease(t *testing.T) {
	for _, crash := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			model := storetest.NewModel()
			store, other := open(t, model), model.Open()
			lost := batch(store, true)
			store.Submit(batch(store, true), func(error) {})
			synctest.Wait()
			var told, toldOther driver.Change
			store.Watch(func(c driver.Change) { told |= c })
			other.Watch(func(c driver.Change) { toldOther |= c })
			model.LoseLease(crash)
			require.Equal(t, driver.ChangedLease, told)
			require.Zero(t, toldOther)
			require.Zero(t, store.Lease())
			require.Equal(t, crash, model.Dump().Records[0].Lease != 0)
			var err error
			store.Submit(lost, func(e error) { err = e })
			synctest.Wait()
			require.Equal(t, &driver.RefusedError{Err: driver.ErrLeaseLost}, err)
			_, err = store.Claim(t.Context(), driver.ClaimQuery{Limit: 1})
			require.ErrorIs(t, err, driver.ErrNoLease)
			require.NoError(t, store.Reopen(t.Context()))
			require.Zero(t, store.Lease())

			lease, err := other.Acquire(t.Context(), driver.AcquireQuery{})
			require.NoError(t, err)
			require.Equal(t, crash, lease.Crashed)
			claimed, err := other.Claim(t.Context(), driver.ClaimQuery{Limit: 9})
			require.NoError(t, err)
			require.Len(t, claimed.Records, 1)
			require.Equal(t, crash, claimed.Records[0].Crashes == 1)
			require.NoError(t, store.Close(t.Context()))
			require.NoError(t, other.Close(t.Context()))
		})
	}
}

// The function of WithFaults takes the lease away at a batch.
func TestStore_ModelLosesLeaseAtABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var model *storetest.Model
		model = storetest.NewModel(storetest.WithFaults(func(n int, _ *driver.Batch) storetest.Fault {
			if n == 2 {
				model.LoseLease(false)
			}
			return storetest.Fault{}
		}))
		store := open(t, model)
		var outcomes []error
		for _, b := range []*driver.Batch{batch(store, true), batch(store, true), batch(store, false)} {
			store.Submit(b, func(err error) { outcomes = append(outcomes, err) })
		}
		require.NoError(t, store.Close(t.Context()))
		require.NoError(t, outcomes[0])
		require.ErrorIs(t, outcomes[1], driver.ErrLeaseLost)
		require.ErrorIs(t, outcomes[2], driver.ErrLeaseLost)
		require.Len(t, model.Dump().Records, 1)
	})
}

// Kill ends one store, with a lease or without. A killed store that waited gets no lease.
func TestStore_ModelKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		store, waits, tool := open(t, model), model.Open(), model.Open()
		ended := acquire(t.Context(), waits)
		synctest.Wait()
		model.Kill(waits)
		require.ErrorIs(t, (<-ended).err, driver.ErrFailed)
		model.Kill(tool)
		model.Kill(tool)
		_, err := tool.Stats(t.Context())
		require.ErrorIs(t, err, driver.ErrFailed)
		require.Len(t, model.Dump().Leases, 1)
		store.Submit(batch(store, true), func(error) {})
		synctest.Wait()
		model.Kill(store)
		require.Empty(t, model.Dump().Leases)
		next := model.Open()
		lease, err := next.Acquire(t.Context(), driver.AcquireQuery{})
		require.NoError(t, err)
		require.True(t, lease.Crashed)
		require.EqualValues(t, 1, lease.CrashedEvents)
		require.NoError(t, next.Close(t.Context()))
		model.Kill(next) // has no effect
		require.Panics(t, func() { model.Kill(storetest.NewModel().Open()) })
		lease, err = open(t, model).Acquire(t.Context(), driver.AcquireQuery{})
		require.NoError(t, err)
		require.False(t, lease.Crashed)
	})
}

// An Acquire whose context ends before the earlier batches have been applied acquires nothing. The next one reports the
// crash that it had counted.
func TestStore_ModelAcquireCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel(faultAt(2, storetest.Fault{Delay: time.Hour}))
		store := open(t, model)
		store.Submit(batch(store, true), func(error) {})
		synctest.Wait()
		model.Crash()
		store = model.Open()
		store.Submit(&driver.Batch{Leave: []*driver.Incoming{{Record: &driver.Record{}}}}, func(error) {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		lease, err := store.Acquire(ctx, driver.AcquireQuery{Wait: true})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, lease)
		require.Zero(t, store.Lease())
		require.Empty(t, model.Dump().Leases)
		began := time.Now()
		lease, err = store.Acquire(t.Context(), driver.AcquireQuery{})
		require.NoError(t, err)
		require.Equal(t, 59*time.Minute, time.Since(began), "Acquire returned before an earlier batch was applied")
		require.True(t, lease.Crashed)
		require.EqualValues(t, 1, lease.CrashedEvents)
		require.Len(t, model.Dump().Incoming, 1)
		require.NoError(t, store.Close(t.Context()))
	})
}

// A wish that is not granted is cleared in the batch.
func TestStore_ModelLeaseDenied(t *testing.T) {
	model := storetest.NewModel(storetest.WithLeaseDenied(func(r *driver.Record) bool { return r.Key == "k" }))
	store := open(t, model)
	b := batch(store, true)
	b.New = append(b.New, &driver.Record{Key: "k", Leased: true})
	store.Submit(b, func(error) {})
	require.NoError(t, store.Close(t.Context()))
	require.Equal(t, []bool{true, false}, []bool{b.New[0].Leased, b.New[1].Leased})
}

// Slots are given in the order of their numbers.
func TestStore_ModelSlots(t *testing.T) {
	model := storetest.NewModel(storetest.WithSlots(256))
	one, two := model.Open(), model.Open()
	lease, err := one.Acquire(t.Context(), driver.AcquireQuery{Want: 3})
	require.NoError(t, err)
	require.Equal(t, driver.SlotsOf(0, 1, 2), lease.Slots)
	lease, err = two.Acquire(t.Context(), driver.AcquireQuery{})
	require.NoError(t, err)
	require.Equal(t, driver.AllSlots().Without(driver.SlotsOf(0, 1, 2)), lease.Slots)
	require.Len(t, model.Dump().Leases, 2)
	var watched sync.WaitGroup
	watched.Add(1)
	two.Watch(func(driver.Change) { watched.Done() })
	model.LoseLease(true, two)
	watched.Wait()
	require.Len(t, model.Dump().Leases, 1)
	for _, store := range []driver.Store{one, two} {
		require.NoError(t, store.Close(t.Context()))
	}
	for _, n := range []int{-1, 0, 257} {
		require.Panics(t, func() { storetest.WithSlots(n) })
	}
}

// Dump has the incoming events, the requests with their answers, and the catalogs.
func TestStore_ModelDump(t *testing.T) {
	model := storetest.NewModel()
	store := open(t, model)
	epoch := store.Lease().Epoch
	in := &driver.Incoming{Record: &driver.Record{ID: driver.ID{1}}, Given: true, Codec: "json"}
	asked := []*driver.Request{{Body: []byte("1")}, {Body: []byte("2")}}
	submit := func(b *driver.Batch) {
		t.Helper()
		ended := make(chan error)
		store.Submit(b, func(err error) { ended <- err })
		require.NoError(t, <-ended)
	}
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	submit(&driver.Batch{Now: at, Leave: []*driver.Incoming{in}, Ask: asked, Catalog: &driver.Catalog{Instance: "one", Body: []byte{1}}})
	submit(&driver.Batch{Now: at, Epoch: epoch, Answer: []driver.Answer{{Request: asked[0].ID, Body: []byte("3")}}})
	d := model.Dump()
	require.Equal(t, []driver.Incoming{*in}, d.Incoming)
	require.Equal(t, []storetest.DumpRequest{{Request: *asked[0], Answered: true, Answer: []byte("3")}, {Request: *asked[1]}}, d.Requests)
	require.Equal(t, []driver.Catalog{{Instance: "one", Number: 1, Seen: at, Body: []byte{1}}}, d.Catalogs)

	// AgedAt removes the answer once it is AnswerAge old.
	submit(&driver.Batch{Now: at.Add(9 * driver.AnswerAge), AgedAt: at.Add(driver.AnswerAge - 1)})
	require.Len(t, model.Dump().Requests, 2)
	submit(&driver.Batch{Now: at.Add(driver.AnswerAge)})
	require.Equal(t, []storetest.DumpRequest{{Request: *asked[1]}}, model.Dump().Requests)
	require.NoError(t, store.Close(t.Context()))
}

// The ids of a transaction are assigned at once, so that a smaller one may become visible later.
func TestStore_ModelTx(t *testing.T) {
	model, other := storetest.NewModel(), storetest.NewModel()
	store := model.Open().(interface {
		driver.Store
		driver.TxStore
	})
	event := func() []*driver.Incoming { return []*driver.Incoming{{Record: &driver.Record{}}} }
	tx := model.Begin()
	require.NoError(t, store.SubmitTx(t.Context(), tx, event()))
	left := &driver.Batch{Leave: event()}
	ended := make(chan error)
	store.Submit(left, func(err error) { ended <- err })
	require.NoError(t, <-ended)
	require.NoError(t, tx.Commit())
	require.EqualValues(t, 2, left.Leave[0].ID)
	require.Len(t, model.Dump().Incoming, 2)
	require.EqualValues(t, 1, model.Dump().Incoming[0].ID)

	require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
	require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone)
	err := store.SubmitTx(t.Context(), tx, event())
	require.ErrorIs(t, err, driver.ErrNoTransaction)
	require.ErrorIs(t, err, sql.ErrTxDone)
	require.ErrorIs(t, store.SubmitTx(t.Context(), other.Begin(), event()), driver.ErrNoTransaction)
	require.ErrorContains(t, store.SubmitTx(t.Context(), &sql.Tx{}, event()), "*storetest.Tx, not a *sql.Tx")
	require.NoError(t, store.Close(t.Context()))
}
