package histogram_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/histogram"
)

// The quantiles since a snapshot are those of a histogram that has only what came after it.
func TestSince(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		durations := rapid.SliceOf(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "duration"))
		}))
		before, after := durations.Draw(t, "before"), durations.Draw(t, "after")
		var all, later histogram.Histogram
		for _, d := range before {
			all.Observe(d, 1)
		}
		_, earlier := all.Snapshot()
		for _, d := range after {
			all.Observe(d, 1)
			later.Observe(d, 1)
		}
		s, now := all.Snapshot()
		p50, p90, p99, ok := now.Since(earlier, s.Max)
		require.True(t, ok)
		want := later.Summary()
		for i, p := range []time.Duration{p50, p90, p99} {
			// The upper bound of a class is cut at the largest duration, which may be one of before.
			exact := []time.Duration{want.P50, want.P90, want.P99}[i]
			require.GreaterOrEqual(t, p, exact)
			require.LessOrEqual(t, p, max(exact+exact/4+1, 5))
		}
		if len(before) > 0 && len(slices.Compact(slices.Sorted(slices.Values(before)))) > 0 {
			_, _, _, ok = (*histogram.Weights)(nil).Since(earlier, 0)
			require.False(t, ok, "it is another histogram")
		}
	})
}
