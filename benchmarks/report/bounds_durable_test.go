package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/benchmarks/plan"
)

func TestBounds_EachOfDurableCanBeMissed(t *testing.T) {
	requireMissed(t, durableBounds(), []worseResult{
		{"accepted, 512", "one INSERT", plan.Accept(512, "insert"), plan.Time, 19.9},
		{"accepted, 64", "one INSERT", plan.Accept(64, "insert"), plan.Time, 9.9},
		{"accepted, 1 ", "one INSERT", plan.Accept(1, "insert"), plan.Time, 0.49},
		{"settled, 512", "one INSERT", plan.Accept(512, "insert"), plan.Time, 14.9},
		{"accepted, 512", "grouped", plan.Accept(512, "grouped"), plan.Time, 0.29},
		{"settled, 512", "grouped", plan.Settled(512, plan.Us), plan.Time, 801},
		{"accepted, 64", "backlite", plan.Accept(64, "backlite"), plan.Time, 7.9},
		{"accepted, 64", "goqite", plan.Accept(64, "goqite"), plan.Time, 9.9},
		{"accepted, 64", "River", plan.Accept(64, "river"), plan.Time, 19.9},
		{"settled, 64", "backlite", plan.Settled(64, "backlite"), plan.Time, 14.9},
		{"settled, 64", "goqite", plan.Settled(64, "goqite"), plan.Time, 24.9},
		{"settled, 64", "River", plan.Settled(64, "river"), plan.Time, 29.9},
		{"accepted, 1 ", "backlite", plan.Accept(1, "backlite"), plan.Time, 0.69},
		{"beside workers, 1 ", "backlite", plan.Started(1, "backlite"), plan.Time, 0.89},
		{"settled, 1 ", "backlite", plan.Settled(1, "backlite"), plan.Time, 0.99},
	})
}

// A bound whose rival is skipped is neither kept nor missed, and passes -check.
func TestConclude_ABoundThatIsSkippedPassesWithItsReason(t *testing.T) {
	r := everything(3)
	for _, run := range []plan.Run{plan.Accept(64, "goqite"), plan.Settled(64, "goqite")} {
		delete(r.values, run)
		r.skipped[run] = "no C compiler"
	}
	verdicts := judge(r)
	require.NoError(t, conclude(io.Discard, verdicts, true, true))
	skipped := 0
	for _, v := range verdicts {
		if v.skipped == "" {
			require.True(t, v.kept, v.against)
			continue
		}
		skipped++
		require.Equal(t, "faster than goqite", v.against)
		require.Equal(t, "skipped: no C compiler", v.says())
	}
	require.Equal(t, 2, skipped)
}
