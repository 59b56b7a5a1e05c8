package sqlite

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

// crashedEvents ends a store as SIGKILL does, and returns what the next one knows of it. The next one is closed.
func crashedEvents(t *testing.T, s *Store) int64 {
	t.Helper()
	crash(t, s)
	s = openAt(t, s.path)
	lease := s.Lease()
	require.True(t, lease.Crashed)
	require.NoError(t, s.Reopen(context.Background()))
	require.False(t, s.Lease().Crashed, "it ended by Reopen")
	require.NoError(t, s.Release(context.Background(), driver.AllSlots()))
	require.False(t, acquire(t, s).Crashed, "it ended by Release")
	closeStore(t, s)
	s = openAt(t, s.path)
	require.False(t, s.Lease().Crashed, "it ended by Close")
	closeStore(t, s)
	return lease.CrashedEvents
}

// many returns free records.
func many(n int) []*driver.Record {
	records := make([]*driver.Record, n)
	for i := range records {
		records[i] = free(ready(""))
	}
	return records
}

// The records of a crashed lease are found at both ends of a large table, and Open does not read all of it.
func TestS3_NoShutdown_InALargeFile(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes many thousand events, on one goroutine")
	}
	for name, c := range map[string]struct {
		before, between, after int
		want                   int64
	}{
		"alone":               {0, 0, 0, 4},
		"newest":              {crashLook + 100, 0, 10, 4},
		"oldest":              {10, 0, crashLook + 100, 4},
		"both ends":           {10, 2 * crashLook, 10, 4},
		"among the others":    {crashLook, 0, crashLook, 4},
		"too far from an end": {crashLook + 100, 0, crashLook + 100, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, testPath(t))
			a, b := ready(""), ready("")
			same := with(ready(""), func(r *driver.Record) { r.ID = b.ID })
			wait := with(ready(""), func(r *driver.Record) { r.State, r.Due = driver.Waiting, t0.Add(time.Hour) })
			accept(t, s, many(c.before)...)
			accept(t, s, a, b, same, wait)
			accept(t, s, many(c.between)...)
			accept(t, s, ready(""), ready(""))
			accept(t, s, many(c.after)...)
			require.Equal(t, c.want, crashedEvents(t, s))
		})
	}
}

// Suspects count alone, and a record that has as many crashes as it can count counts no more.
func TestS3_NoShutdown_CountsAsClaimDoes(t *testing.T) {
	s := openAt(t, testPath(t))
	accept(t, s, ready(""), ready(""))
	for _, want := range []int64{2, 2, 0} {
		require.Equal(t, want, crashedEvents(t, s))
		s = openAt(t, s.path)
		require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 2)
	}
	marked := with(ready(""), func(r *driver.Record) { r.Suspect = true })
	accept(t, s, ready(""), marked)
	require.EqualValues(t, 1, crashedEvents(t, s))
}
