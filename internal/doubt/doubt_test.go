package doubt_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surebus/eventbus/internal/doubt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two publications, a success, the first record of a part, and another publication.
func TestO4_TheFirstOnesWereApplied(t *testing.T) {
	for _, c := range []struct {
		more, records             int64
		accepted, handled, undone int64
	}{
		{-1, -1, 0, 0, 1}, // all were lost, and so was the part
		{0, 0, 1, 0, 1},
		{1, 1, 2, 0, 1},
		{2, 2, 3, 1, 0},
		{5, 2, 3, 1, 0}, // another process has inserted some meanwhile
		{-4, -1, 0, 0, 1},
	} {
		var accepted, copies, handled, undone atomic.Int64
		open := doubt.Change{Applied: doubt.Opened(&accepted, 1, &copies, 0)}
		success := doubt.Change{Applied: doubt.Ended(&handled, 1)}
		part := doubt.Change{Lost: doubt.Ended(&undone, -1)}
		var all doubt.Changes
		for _, change := range []doubt.Change{open, open, success, part, open} {
			all.Add(change)
		}
		require.Equal(t, c.records, all.Resolve(c.more), "%+v", c)
		require.Equal(t, []int64{c.accepted, c.handled, -c.undone}, []int64{accepted.Load(), handled.Load(), undone.Load()}, "%+v", c)
		require.Zero(t, all.Resolve(5), "they are resolved")
	}
}
