package histogram_test

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/histogram"
)

func TestEmpty(t *testing.T) {
	var h histogram.Histogram
	require.Zero(t, h.Summary())
}

func TestExtremes(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 3, 4, 5, math.MaxInt64 - 1, math.MaxInt64} {
		var h histogram.Histogram
		h.Observe(d, 1)
		require.Equal(t, histogram.Summary{Samples: 1, P50: d, P90: d, P99: d, Max: d}, h.Summary())
	}
	var h histogram.Histogram
	h.Observe(-time.Second, 1) // a clock that was set back
	require.Zero(t, h.Summary().Max)
	require.Zero(t, h.Summary().P99)
}

// One in 64 of the fast durations is observed, and all of the slow ones.
func TestWeights(t *testing.T) {
	var h histogram.Histogram
	for range 100 {
		h.Observe(time.Microsecond, 64)
		h.Observe(time.Second, 1)
	}
	s := h.Summary()
	require.EqualValues(t, 200, s.Samples)
	require.Less(t, s.P50, 2*time.Microsecond)
	require.Less(t, s.P90, 2*time.Microsecond)
	require.Equal(t, time.Second, s.P99)
	require.Equal(t, time.Second, s.Max)
}

// The weights do not overflow in the lifetime of a process.
func TestLargeWeights(t *testing.T) {
	var h histogram.Histogram
	for range 10 {
		h.Observe(time.Microsecond, math.MaxUint32)
	}
	h.Observe(time.Second, 1)
	require.Less(t, h.Summary().P99, 2*time.Microsecond)
}

// A quantile is that of a list with each duration as often as its weight says: not below
// it, and not above it by more than a quarter.
func TestAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h histogram.Histogram
		var list []time.Duration
		n := rapid.IntRange(1, 60).Draw(t, "n")
		for range n {
			bits := rapid.IntRange(3, 62).Draw(t, "bits")
			d := time.Duration(rapid.Int64Range(4, 1<<bits).Draw(t, "d"))
			weight := rapid.SampledFrom([]uint32{1, 2, 64}).Draw(t, "weight")
			h.Observe(d, weight)
			for range weight {
				list = append(list, d)
			}
		}
		slices.Sort(list)
		s := h.Summary()
		if s.Samples != int64(n) || s.Max != list[len(list)-1] {
			t.Fatalf("%+v of %d durations up to %v", s, n, list[len(list)-1])
		}
		for q, got := range map[float64]time.Duration{0.5: s.P50, 0.9: s.P90, 0.99: s.P99} {
			rank := int(math.Ceil(q*float64(len(list)))) - 1
			want := list[rank]
			if got < want || float64(got) > 1.25*float64(want)+1 {
				t.Fatalf("the quantile %g is %d, want %d", q, got, want)
			}
		}
	})
}

func TestConcurrently(t *testing.T) {
	var h histogram.Histogram
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1_000 {
				h.Observe(time.Duration(g*1_000+i), 2)
				if i%100 == 0 {
					h.Summary()
				}
			}
		})
	}
	wg.Wait()
	s := h.Summary()
	require.EqualValues(t, 8_000, s.Samples)
	require.EqualValues(t, 7_999, s.Max)
	require.InDelta(t, 4_000, float64(s.P50), 1_000)
}
