package circuit_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/internal/circuit"
)

// In no span of time begin more calls than the rate and the burst allow, and a call that has waited as it was told may begin.
func TestD11_RateIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1000).Draw(t, "n")
		per := time.Duration(rapid.Int64Range(int64(n), int64(time.Hour)).Draw(t, "per"))
		burst := rapid.IntRange(1, 50).Draw(t, "burst")
		r := circuit.NewRate(n, per, burst)
		now := rapid.Int64Range(0, int64(time.Hour)).Draw(t, "now")
		var begun []int64
		for range rapid.IntRange(1, 200).Draw(t, "calls") {
			now += rapid.Int64Range(0, int64(per)/int64(n)*3).Draw(t, "pause")
			most, again := r.Ready(now, 0)
			if most == 0 {
				require.Greater(t, again, now)
				require.False(t, r.TryTake(now))
				now = again
				most, _ = r.Ready(now, 0)
				require.Positive(t, most, "at the time that it has said")
			}
			require.LessOrEqual(t, most, burst)
			if beside, _ := r.Ready(now, most); beside > 0 {
				t.Fatalf("%d beside %d", beside, most)
			}
			require.True(t, r.TryTake(now))
			begun = append(begun, now)
		}
		for i := range begun {
			for j := i; j < len(begun); j++ {
				span := float64(begun[j] - begun[i])
				require.LessOrEqual(t, float64(j-i+1), math.Floor(span*float64(n)/float64(per)+1e-9)+float64(burst))
			}
		}
	})
}

func TestD11_RatesAtTheirBounds(t *testing.T) {
	for _, r := range []*circuit.Rate{
		circuit.NewRate(1, math.MaxInt64, 1),
		circuit.NewRate(1, math.MaxInt64, math.MaxInt),
		circuit.NewRate(math.MaxInt, math.MaxInt64, math.MaxInt),
		circuit.NewRate(1, 1, 1),
	} {
		require.True(t, r.TryTake(math.MaxInt64/4))
		most, again := r.Ready(math.MaxInt64/4, math.MaxInt)
		require.Zero(t, most)
		require.Positive(t, again)
	}
}
