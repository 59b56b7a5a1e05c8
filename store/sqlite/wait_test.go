package sqlite

import (
	"context"
	"math"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus/driver"
)

// openCall is a call of Open in progress.
type openCall struct {
	t     *testing.T
	ended chan error
	store *Store
	after time.Duration
}

func beginOpen(ctx context.Context, t *testing.T, path string, opts ...Option) *openCall {
	t.Helper()
	c := &openCall{t: t, ended: make(chan error, 1)}
	began := time.Now()
	go func() {
		s, err := Open(ctx, path, opts...)
		c.store, c.after = s, time.Since(began)
		c.ended <- err
	}()
	return c
}

// waits requires that the call has not ended.
func (c *openCall) waits() {
	c.t.Helper()
	synctest.Wait()
	require.Empty(c.t, c.ended)
}

// locked requires that the call ends because another store has the lease.
func (c *openCall) locked() (*LockedError, error) {
	c.t.Helper()
	err := <-c.ended
	require.ErrorIs(c.t, err, ErrLocked)
	var held *LockedError
	require.ErrorAs(c.t, err, &held)
	require.Equal(c.t, os.Getpid(), held.PID)
	require.NotEmpty(c.t, held.Host)
	require.False(c.t, held.Since.IsZero())
	return held, err
}

func TestWaitForLease_OpensWhenTheOtherStoreCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		core, logs := observer.New(zapcore.InfoLevel)
		next := beginOpen(t.Context(), t, path, WaitForLease(time.Minute), WithLogger(zap.New(core)))
		time.Sleep(20 * time.Second)
		next.waits()
		r := free(ready(""))
		accept(t, old, r) // the old store works on meanwhile
		closeStore(t, old)
		require.NoError(t, <-next.ended)
		require.LessOrEqual(t, next.after, 20*time.Second+leaseLook)
		require.Equal(t, []driver.Ref{r.Ref}, refsOf(claim(t, next.store, driver.ClaimQuery{}).Records))
		require.Equal(t, 1, logs.FilterMessage("waiting for the lease").Len())
		closeStore(t, next.store)
	})
}

func TestWaitForLease_OpensAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		accept(t, old, ready(""))
		next := beginOpen(t.Context(), t, path, WaitForLease(time.Minute))
		time.Sleep(time.Second)
		next.waits()
		crash(t, old)
		require.NoError(t, <-next.ended)
		records := claim(t, next.store, driver.ClaimQuery{}).Records
		require.Len(t, records, 1)
		require.Equal(t, 1, records[0].Crashes)
		closeStore(t, next.store)
	})
}

func TestWaitForLease_EndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		call := beginOpen(ctx, t, path, WaitForLease(30*time.Second))
		held, err := call.locked()
		require.Equal(t, 30*time.Second, held.Waited)
		require.Equal(t, 30*time.Second, call.after)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "its context has not ended")
		require.ErrorContains(t, err, "waited 30s for it")
		accept(t, old, free(ready("")))
		closeStore(t, old)

		old = openAt(t, path)
		_, err = Open(t.Context(), path)
		require.ErrorAs(t, err, &held)
		require.Zero(t, held.Waited, "without the option, Open fails at once")
		closeStore(t, old)
		s, err := Open(t.Context(), path, WaitForLease(math.MaxInt64))
		require.NoError(t, err)
		closeStore(t, s)
	})
}

func TestWaitForLease_EndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		call := beginOpen(ctx, t, path, WaitForLease(time.Minute))
		held, err := call.locked()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, held.Waited)
		require.Equal(t, 5*time.Second, call.after)

		ctx, cancel = context.WithCancel(t.Context())
		call = beginOpen(ctx, t, path, WaitForLease(math.MaxInt64))
		time.Sleep(time.Second)
		call.waits()
		cancel()
		held, err = call.locked()
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, held.Waited)
		closeStore(t, old)
	})
}

func TestWaitForLease_OneOfSeveralOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testPath(t)
		old := openAt(t, path)
		calls := make([]*openCall, 3)
		for i := range calls {
			calls[i] = beginOpen(t.Context(), t, path, WaitForLease(time.Duration(10*(i+1))*time.Second))
		}
		time.Sleep(15 * time.Second)
		_, _ = calls[0].locked()
		closeStore(t, old)
		time.Sleep(time.Second)
		for left := calls[1:]; len(left) > 0; {
			ended := func(c *openCall) bool { return len(c.ended) > 0 }
			i := slices.IndexFunc(left, ended)
			require.GreaterOrEqual(t, i, 0, "none has the lease")
			require.NoError(t, <-left[i].ended)
			opened := left[i]
			left = slices.Delete(left, i, i+1)
			require.False(t, slices.ContainsFunc(left, ended), "one at a time")
			closeStore(t, opened.store)
			time.Sleep(time.Second)
		}
	})
}

func TestWaitForLease_IsRefusedWithWhatItContradicts(t *testing.T) {
	path := testPath(t)
	openAt(t, path)
	for name, open := range map[string]func() error{
		"zero":     func() error { _, err := Open(t.Context(), path, WaitForLease(0)); return err },
		"negative": func() error { _, err := Open(t.Context(), path, WaitForLease(-time.Second)); return err },
		"beside":   func() error { _, err := Open(t.Context(), path, WaitForLease(time.Second), Beside()); return err },
		"before":   func() error { _, err := Open(t.Context(), path, Beside(), WaitForLease(time.Second)); return err },
	} {
		var wrong *OptionError
		require.ErrorAs(t, open(), &wrong, name)
		require.Equal(t, "WaitForLease", wrong.Option, name)
		require.NotErrorIs(t, wrong, ErrLocked, name)
	}
}
