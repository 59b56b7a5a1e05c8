package storetest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// The time of a delay is virtual in a bubble, and a Model made outside of it has no channel that
// the bubble would share.
func TestStore_ModelInBubble(t *testing.T) {
	model := storetest.NewModel(storetest.WithFaults(func(int, *driver.Batch) storetest.Fault {
		return storetest.Fault{Delay: time.Hour}
	}))
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			store := open(t, model)
			other := model.Open()
			_, err := other.Acquire(t.Context(), driver.AcquireQuery{})
			require.ErrorIs(t, err, driver.ErrNoLease)
			require.NoError(t, other.Close(t.Context()))
			began, acked := time.Now(), false
			store.Submit(batch(store, true), func(err error) { acked = err == nil })
			require.NoError(t, store.Close(context.Background()))
			require.True(t, acked)
			require.Equal(t, time.Hour, time.Since(began))
		})
	}
	require.Len(t, model.Dump().Records, 2)
}

// faultAt returns the fault of one batch.
func faultAt(at int, fault storetest.Fault) storetest.Option {
	return storetest.WithFaults(func(n int, _ *driver.Batch) storetest.Fault {
		if n == at {
			return fault
		}
		return storetest.Fault{}
	})
}

func open(t *testing.T, model *storetest.Model) driver.Store {
	t.Helper()
	store := model.Open()
	_, err := store.Acquire(t.Context(), driver.AcquireQuery{})
	require.NoError(t, err)
	return store
}

func batch(store driver.Store, leased bool) *driver.Batch {
	return &driver.Batch{Epoch: store.Lease().Epoch, New: []*driver.Record{{Leased: leased}}}
}

// A crash during a commit: the outstanding batches fail, later calls fail at once, and the next Open
// counts the crash.
func TestStore_ModelCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel(faultAt(2, storetest.Fault{Delay: time.Hour}))
		store := open(t, model)
		beside := model.Open()
		var outcomes []error
		done := func(err error) { outcomes = append(outcomes, err) }
		store.Submit(batch(store, true), done)
		synctest.Wait()
		store.Submit(batch(store, true), done)
		store.Submit(batch(store, true), done)
		closed := make(chan error)
		go func() { closed <- store.Close(context.Background()) }()
		synctest.Wait()
		crashed := time.Now()
		model.Crash()
		model.Crash()
		require.ErrorIs(t, <-closed, driver.ErrFailed)
		require.Zero(t, time.Since(crashed), "the delay continued after the crash")
		synctest.Wait()
		require.Len(t, outcomes, 3)
		require.NoError(t, outcomes[0])
		store.Submit(batch(store, true), done)
		synctest.Wait()
		require.Len(t, outcomes, 4)
		for _, err := range outcomes[1:] {
			require.ErrorIs(t, err, driver.ErrFailed)
		}
		_, err := store.Claim(t.Context(), driver.ClaimQuery{Limit: 1})
		require.ErrorIs(t, err, driver.ErrFailed)
		_, err = store.Stats(t.Context())
		require.ErrorIs(t, err, driver.ErrFailed)
		require.ErrorIs(t, store.Reopen(t.Context()), driver.ErrFailed)

		counts, err := beside.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, counts.Ready)
		require.NoError(t, beside.Close(t.Context()))
		store = open(t, model)
		claimed, err := store.Claim(t.Context(), driver.ClaimQuery{Limit: 10})
		require.NoError(t, err)
		require.Len(t, claimed.Records, 1)
		require.Equal(t, 1, claimed.Records[0].Crashes)
		require.NoError(t, store.Close(t.Context()))
	})
}

// After a failure, every call fails until Reopen, and Close still releases the lease without a
// crash.
func TestStore_ModelFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel(faultAt(2, storetest.Fault{Kind: storetest.FailBefore}))
		store := open(t, model)
		var outcomes []error
		for range 3 {
			store.Submit(batch(store, true), func(err error) { outcomes = append(outcomes, err) })
			synctest.Wait()
		}
		require.NoError(t, outcomes[0])
		require.ErrorIs(t, outcomes[1], storetest.ErrInjected)
		require.NotErrorIs(t, outcomes[1], driver.ErrFailed)
		require.ErrorIs(t, outcomes[2], driver.ErrFailed)
		_, err := store.Letters(t.Context(), driver.LetterQuery{Limit: 1})
		require.ErrorIs(t, err, driver.ErrFailed)
		require.NoError(t, store.Close(t.Context()))

		store = open(t, model)
		claimed, err := store.Claim(t.Context(), driver.ClaimQuery{Limit: 10})
		require.NoError(t, err)
		require.Len(t, claimed.Records, 1)
		require.Zero(t, claimed.Records[0].Crashes)
		require.NoError(t, store.Close(t.Context()))
	})
}

func TestStore_ModelClaimFaults(t *testing.T) {
	for _, test := range []struct {
		kind    storetest.FaultKind
		leased  bool
		crashes int
	}{
		{storetest.FailBefore, false, 0},
		{storetest.FailAfter, true, 0},
		{storetest.CrashBefore, false, 0},
		{storetest.CrashAfter, true, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			model := storetest.NewModel(storetest.WithClaimFaults(func(n int, _ driver.ClaimQuery) storetest.Fault {
				if n == 1 {
					return storetest.Fault{Kind: test.kind, Delay: time.Minute}
				}
				return storetest.Fault{}
			}))
			store := open(t, model)
			store.Submit(batch(store, false), func(error) {})
			synctest.Wait()
			_, err := store.Claim(t.Context(), driver.ClaimQuery{Limit: 1})
			require.Error(t, err)
			require.Equal(t, test.leased, model.Dump().Records[0].Lease != 0)
			if test.kind == storetest.CrashBefore || test.kind == storetest.CrashAfter {
				require.ErrorIs(t, err, driver.ErrFailed)
				store = open(t, model)
			} else {
				require.ErrorIs(t, err, storetest.ErrInjected)
				require.NoError(t, store.Reopen(t.Context()))
			}
			claimed, err := store.Claim(t.Context(), driver.ClaimQuery{Limit: 1})
			require.NoError(t, err)
			require.Equal(t, test.crashes, claimed.Records[0].Crashes)
			require.NoError(t, store.Close(t.Context()))
		})
	}
}

// The functions of a query get copies: what they keep or change is not the Model's.
func TestStore_ModelComparesCopies(t *testing.T) {
	store := open(t, storetest.NewModel())
	store.Submit(&driver.Batch{
		Bury:  []*driver.Letter{{ID: driver.ID{1}, Details: []byte("{}"), Failures: []byte("[]")}},
		Audit: []driver.AuditEntry{{Body: []byte("{}")}},
	}, func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	letters := driver.LetterQuery{Limit: 1, Parts: func(details, failures []byte) (bool, error) {
		details[0], failures[0] = 'x', 'x'
		return true, nil
	}}
	audit := driver.AuditQuery{Limit: 1, Match: func(e *driver.AuditEntry) (bool, error) {
		e.Body[0], e.Number = 'x', 7
		return true, nil
	}}
	require.NoError(t, store.Reopen(t.Context()))
	for range 2 {
		page, err := store.Letters(t.Context(), letters)
		require.NoError(t, err)
		require.Equal(t, "{}[]", string(page.Letters[0].Details)+string(page.Letters[0].Failures))
		entries, err := store.Audit(t.Context(), audit)
		require.NoError(t, err)
		require.Equal(t, []driver.AuditEntry{{Number: 1, Body: []byte("{}")}}, entries.Entries)
	}
	require.NoError(t, store.Close(t.Context()))
}

// The lease ends when the last batch is done, even if Close does not wait for it.
func TestStore_ModelCloseOfEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel(faultAt(1, storetest.Fault{Delay: time.Hour}))
		store := open(t, model)
		var outcomes []error
		store.Submit(batch(store, true), func(err error) { outcomes = append(outcomes, err) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, store.Close(ctx), context.DeadlineExceeded)
		other := model.Open()
		_, err := other.Acquire(t.Context(), driver.AcquireQuery{})
		require.ErrorIs(t, err, driver.ErrNoLease)
		require.NoError(t, other.Close(t.Context()))
		require.NoError(t, store.Close(t.Context()))
		require.Equal(t, []error{nil}, outcomes)
		require.NoError(t, open(t, model).Close(t.Context()))
		require.Zero(t, model.Dump().Lease)
	})
}

// With WithAuditKept, a Model removes old entries, and the outcomes that are older than the rest. Denied entries count for neither.
func TestStore_ModelPrunesTheAudit(t *testing.T) {
	model := storetest.NewModel(storetest.WithAuditKept(2))
	store := open(t, model)
	add := func(denied bool, event byte) {
		store.Submit(&driver.Batch{
			Audit:    []driver.AuditEntry{{Denied: denied, Body: []byte("{}")}},
			Outcomes: []driver.Outcome{{Event: driver.ID{event}, Body: []byte("{}")}},
		}, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	for i, denied := range []bool{false, true, false, true, true, false, false} {
		add(denied, byte(i+1))
	}
	require.NoError(t, store.Close(t.Context()))
	var numbers []int64
	for _, e := range model.Dump().Audit {
		numbers = append(numbers, e.Number)
	}
	require.Equal(t, []int64{2, 4, 5, 6, 7}, numbers)
	var events []byte
	for _, o := range model.Dump().Outcomes {
		events = append(events, o.Event[0])
	}
	require.Equal(t, []byte{6, 7}, events)
	require.PanicsWithValue(t, "storetest: WithAuditKept(0): want at least 1", func() { storetest.WithAuditKept(0) })
}
