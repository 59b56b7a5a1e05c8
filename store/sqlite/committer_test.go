package sqlite

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// committed returns the number of commits so far.
func committed(t *testing.T, s *Store) (n int64) {
	t.Helper()
	inside(t, s, func(c *committer) error {
		n = c.meta.commits
		return nil
	})
	return n
}

// deferred submits the deletion of a record in a deferrable batch. at is when it was committed.
func deferred(t *testing.T, s *Store, r *driver.Record) (at <-chan time.Time) {
	t.Helper()
	done := make(chan time.Time, 1)
	s.Submit(&driver.Batch{Now: t0, Epoch: s.Lease().Epoch, Delete: []driver.Ref{r.Ref}, Deferrable: true}, func(err error) {
		if err != nil {
			t.Error(err)
		}
		done <- time.Now()
	})
	return done
}

func TestD7_ADeferrableBatchSharesTheNextCommit(t *testing.T) {
	path := testPath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, path)
		defer closeStore(t, s)
		first, second := ready(""), ready("")
		accept(t, s, first)
		before := committed(t, s)

		began := time.Now()
		settled := deferred(t, s, first)
		synctest.Wait() // the committer defers it
		accept(t, s, second)
		require.Equal(t, began, <-settled, "the next batch ends the deferral")
		require.Equal(t, before+1, committed(t, s))

		settled = deferred(t, s, second)
		require.Equal(t, began.Add(storekit.Deferral), <-settled, "alone, it waits for the deferral only")
	})
}

func TestD7_ManyDeferrableBatchesDoNotWait(t *testing.T) {
	path := testPath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, path)
		defer closeStore(t, s)
		records := make([]*driver.Record, storekit.MaxDeferred)
		for i := range records {
			records[i] = ready("")
		}
		accept(t, s, records...)
		began := time.Now()
		var last <-chan time.Time
		for _, r := range records {
			last = deferred(t, s, r)
		}
		require.Equal(t, began, <-last)
	})
}

// Close, and reads that follow a batch in the queue, do not wait for the deferral.
func TestD7_CloseEndsTheDeferral(t *testing.T) {
	path := testPath(t)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, path)
		r := ready("")
		accept(t, s, r)
		began := time.Now()
		settled := deferred(t, s, r)
		synctest.Wait()
		require.NoError(t, s.Close(context.Background()))
		require.Equal(t, began, <-settled)
	})
}
