package storetest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// The time of a delay is virtual in a bubble, and a Model made outside of it has no channel that
// the bubble would share.
func TestStore_ModelInBubble(t *testing.T) {
	model := storetest.NewModel(storetest.WithFaults(func(int, *eventbus.Batch) storetest.Fault {
		return storetest.Fault{Delay: time.Hour}
	}))
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			store, err := model.Open()
			require.NoError(t, err)
			_, err = model.Open()
			require.ErrorIs(t, err, eventbus.ErrNoLease)
			began, acked := time.Now(), false
			store.Submit(&eventbus.Batch{New: []*eventbus.Record{{Leased: true}}}, func(err error) { acked = err == nil })
			require.NoError(t, store.Close(context.Background()))
			require.True(t, acked)
			require.Equal(t, time.Hour, time.Since(began))
		})
	}
	require.Len(t, model.Dump().Records, 2)
}

// faultAt returns the fault of one batch.
func faultAt(at int, fault storetest.Fault) storetest.Option {
	return storetest.WithFaults(func(n int, _ *eventbus.Batch) storetest.Fault {
		if n == at {
			return fault
		}
		return storetest.Fault{}
	})
}

func open(t *testing.T, model *storetest.Model) eventbus.Store {
	t.Helper()
	store, err := model.Open()
	require.NoError(t, err)
	return store
}

func batch(leased bool) *eventbus.Batch {
	return &eventbus.Batch{New: []*eventbus.Record{{ID: eventbus.NewEventID(), Leased: leased}}}
}

// A crash during a commit: the outstanding batches fail, later calls fail at once, and the next Open
// counts the crash.
func TestStore_ModelCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel(faultAt(2, storetest.Fault{Delay: time.Hour}))
		store := open(t, model)
		beside := model.Beside()
		var outcomes []error
		done := func(err error) { outcomes = append(outcomes, err) }
		store.Submit(batch(true), done)
		synctest.Wait()
		store.Submit(batch(true), done)
		store.Submit(batch(true), done)
		closed := make(chan error)
		go func() { closed <- store.Close(context.Background()) }()
		synctest.Wait()
		crashed := time.Now()
		model.Crash()
		model.Crash()
		require.ErrorIs(t, <-closed, eventbus.ErrStoreFailed)
		require.Zero(t, time.Since(crashed), "the delay continued after the crash")
		synctest.Wait()
		require.Len(t, outcomes, 3)
		require.NoError(t, outcomes[0])
		store.Submit(batch(true), done)
		synctest.Wait()
		require.Len(t, outcomes, 4)
		for _, err := range outcomes[1:] {
			require.ErrorIs(t, err, eventbus.ErrStoreFailed)
		}
		_, err := store.Claim(t.Context(), eventbus.ClaimQuery{Limit: 1})
		require.ErrorIs(t, err, eventbus.ErrStoreFailed)
		_, err = store.Stats(t.Context())
		require.ErrorIs(t, err, eventbus.ErrStoreFailed)
		require.ErrorIs(t, store.Reopen(t.Context()), eventbus.ErrStoreFailed)

		counts, err := beside.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, counts.Ready)
		require.NoError(t, beside.Close(t.Context()))
		store = open(t, model)
		claimed, err := store.Claim(t.Context(), eventbus.ClaimQuery{Limit: 10})
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
			store.Submit(batch(true), func(err error) { outcomes = append(outcomes, err) })
			synctest.Wait()
		}
		require.NoError(t, outcomes[0])
		require.ErrorIs(t, outcomes[1], storetest.ErrInjected)
		require.NotErrorIs(t, outcomes[1], eventbus.ErrStoreFailed)
		require.ErrorIs(t, outcomes[2], eventbus.ErrStoreFailed)
		_, err := store.Letters(t.Context(), eventbus.LetterQuery{Limit: 1})
		require.ErrorIs(t, err, eventbus.ErrStoreFailed)
		require.NoError(t, store.Close(t.Context()))

		store = open(t, model)
		claimed, err := store.Claim(t.Context(), eventbus.ClaimQuery{Limit: 10})
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
			model := storetest.NewModel(storetest.WithClaimFaults(func(n int, _ eventbus.ClaimQuery) storetest.Fault {
				if n == 1 {
					return storetest.Fault{Kind: test.kind, Delay: time.Minute}
				}
				return storetest.Fault{}
			}))
			store := open(t, model)
			store.Submit(batch(false), func(error) {})
			synctest.Wait()
			_, err := store.Claim(t.Context(), eventbus.ClaimQuery{Limit: 1})
			require.Error(t, err)
			require.Equal(t, test.leased, model.Dump().Records[0].Lease != 0)
			if test.kind == storetest.CrashBefore || test.kind == storetest.CrashAfter {
				require.ErrorIs(t, err, eventbus.ErrStoreFailed)
				store = open(t, model)
			} else {
				require.ErrorIs(t, err, storetest.ErrInjected)
				require.NoError(t, store.Reopen(t.Context()))
			}
			claimed, err := store.Claim(t.Context(), eventbus.ClaimQuery{Limit: 1})
			require.NoError(t, err)
			require.Equal(t, test.crashes, claimed.Records[0].Crashes)
			require.NoError(t, store.Close(t.Context()))
		})
	}
}

// A payload that a disk could not keep is a bug of the bus.
func TestStore_ModelForeignPayload(t *testing.T) {
	store := open(t, storetest.NewModel())
	require.PanicsWithValue(t, "storetest: letter 00000000-0000-0000-0000-000000000000 has a payload of type string, not a json.RawMessage or an EncodedPayload", func() {
		store.Submit(&eventbus.Batch{Bury: []*eventbus.DeadLetter{{Event: eventbus.Event{Payload: "text"}}}}, func(error) {})
	})
	require.NoError(t, store.Close(t.Context()))
}

// The lease ends when the last batch is done, even if Close does not wait for it.
func TestStore_ModelCloseOfEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel(faultAt(1, storetest.Fault{Delay: time.Hour}))
		store := open(t, model)
		var outcomes []error
		store.Submit(batch(true), func(err error) { outcomes = append(outcomes, err) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, store.Close(ctx), context.DeadlineExceeded)
		_, err := model.Open()
		require.ErrorIs(t, err, eventbus.ErrNoLease)
		require.NoError(t, store.Close(t.Context()))
		require.Equal(t, []error{nil}, outcomes)
		require.NoError(t, open(t, model).Close(t.Context()))
		require.Zero(t, model.Dump().Lease)
	})
}
