package eventbus_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// review2Letters makes n letters, whose handler fails with err.
func review2Letters(t *testing.T, n int, err error, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, _ := startBus(t, opts...)
	mustSubscribe(t, bus, "order.*", failing(eventbus.Permanent(err)), eventbus.Named("mail"))
	for i := range n {
		mustPublish(t, bus, "order.placed", i)
	}
	synctest.Wait()
	require.Len(t, letters(t, bus), n)
	return bus
}

// A letter that has left and is imported again is there, whatever its hole is.
func TestL2_ALetterThatComesBackIsFound(t *testing.T) {
	for _, n := range []int{3, 10, 40, 100} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			bus := review2Letters(t, n, errors.New("gone"))
			var out bytes.Buffer
			_, err := bus.DLQ().Export(ctx, &out, eventbus.LetterQuery{})
			require.NoError(t, err)
			all := letters(t, bus)
			for i := 1; i < n-1; i += 2 {
				require.NoError(t, bus.DLQ().Purge(ctx, all[i].ID))
			}
			_, err = bus.DLQ().Import(ctx, bytes.NewReader(out.Bytes()))
			require.NoError(t, err)
			require.Len(t, letters(t, bus), n)
			for _, l := range all {
				_, err := bus.DLQ().Get(ctx, l.ID)
				require.NoError(t, err, "of %d", n)
			}
			report, err := bus.DLQ().Import(ctx, bytes.NewReader(out.Bytes()))
			require.NoError(t, err)
			require.Equal(t, eventbus.ImportReport{Skipped: n}, report)
			purged, err := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{All: true})
			require.NoError(t, err)
			require.Equal(t, eventbus.PurgeReport{Matched: n, Purged: n}, purged)
			shutdown(t, bus)
		})
	}
}

// Observers are given the failure that the letter has.
func TestO2_ObserversAreToldTheClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended journal[eventbus.EndedAttempt]
		var retried journal[eventbus.ScheduledRetry]
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(1)), eventbus.WithObserver(eventbus.Observer{
			AttemptEnded: ended.add, RetryScheduled: retried.add,
		}))
		mustSubscribe(t, bus, "a", failing(&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, "*fs.PathError", l.Failures[0].Class)
		require.Equal(t, l.Failures[0], retried.all()[0].Failure)
		require.Equal(t, l.Failures[0], *ended.all()[0].Failure)
		require.Equal(t, l.Failures[1], *ended.all()[1].Failure)
		shutdown(t, bus)
	})
}

// A group has one fingerprint in any process, also if its text is no UTF-8.
func TestL2_FingerprintsSurviveAnExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		bus := review2Letters(t, 1, errors.New("bad byte \xff in \xc3"))
		var out bytes.Buffer
		_, err := bus.DLQ().Export(ctx, &out, eventbus.LetterQuery{})
		require.NoError(t, err)
		other, _ := newBus(t)
		_, err = other.DLQ().Import(ctx, &out)
		require.NoError(t, err)
		require.Equal(t, oneLetter(t, bus).Fingerprint, oneLetter(t, other).Fingerprint)
		shutdown(t, bus)
	})
}
