package chart_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/chart"
)

func TestStackedBars(t *testing.T) {
	c := chart.StackedBars(100, 10, 4,
		chart.Series{Name: "handled", Values: []float64{99, 8, 0, 4}},
		chart.Series{Name: "failed", Values: []float64{2, 0}})
	require.InDelta(t, 100, c.Top, 0)
	require.Equal(t, []chart.Bar{
		{Series: "handled", X: "2.5", Y: "0.1", Width: "20", Height: "9.9"},
		{Series: "handled", X: "27.5", Y: "9.2", Width: "20", Height: "0.8"},
		{Series: "handled", X: "77.5", Y: "9.5", Width: "20", Height: "0.5"},
		{Series: "failed", X: "52.5", Y: "9.5", Width: "20", Height: "0.5"},
	}, c.Bars)
}

// A column never leaves the box, a small value among large ones is visible, and only the last values count.
func TestStackedBars_Bounds(t *testing.T) {
	c := chart.StackedBars(60, 20, 2,
		chart.Series{Name: "a", Values: []float64{1e9, 1e6, 1e6}},
		chart.Series{Name: "b", Values: []float64{1, 1}})
	require.InDelta(t, 2e6, c.Top, 0)
	require.Len(t, c.Bars, 4)
	for _, b := range c.Bars {
		y, err := strconv.ParseFloat(b.Y, 64)
		require.NoError(t, err)
		height, err := strconv.ParseFloat(b.Height, 64)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, y, 0.0)
		assert.LessOrEqual(t, y+height, 20.01)
		assert.GreaterOrEqual(t, height, 0.5)
	}
}

func TestCurves(t *testing.T) {
	c := chart.Curves(40, 10, 4, chart.Series{Name: "p99", Values: []float64{5, 2.5}}, chart.Series{Name: "p50"})
	require.InDelta(t, 5, c.Top, 0)
	require.Equal(t, []chart.Line{{Series: "p99", Points: "25,0 35,5"}}, c.Lines)

	c = chart.Curves(40, 10, 4, chart.Series{Name: "p99", Values: []float64{5}})
	require.Equal(t, []chart.Line{{Series: "p99", Points: "30,0 40,0"}}, c.Lines)
}

func TestCeiling(t *testing.T) {
	for _, v := range []float64{0, math.NaN(), math.Inf(1), -3, 0.2, 1} {
		assert.InDelta(t, 1, chart.Curves(1, 1, 1, chart.Series{Values: []float64{v}}).Top, 0, v)
	}
	for _, c := range []struct{ value, top float64 }{{1.5, 2}, {2, 2}, {3, 5}, {6, 10}, {11, 20}, {49, 50}, {400_000, 500_000}} {
		assert.InDelta(t, c.top, chart.Curves(1, 1, 1, chart.Series{Values: []float64{c.value}}).Top, 0, c.value)
	}
}

func TestEmpty(t *testing.T) {
	assert.Empty(t, chart.StackedBars(10, 10, 0).Bars)
	assert.Empty(t, chart.Curves(10, 10, 0).Lines)
}
