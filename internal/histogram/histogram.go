// Package histogram estimates quantiles of durations in constant memory.
package histogram

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// Histogram counts durations in classes, four for each power of two nanoseconds, so that
// the bounds of a class differ by a quarter or less. The zero Histogram is empty and takes
// little memory until the first Observe. Its methods are safe for concurrent use.
type Histogram struct {
	classes atomic.Pointer[[classes]atomic.Uint64] // the weight in each class
	samples atomic.Int64
	max     atomic.Int64
}

const classes = 4 * 64

// Summary is a snapshot of a Histogram. A quantile is at most a quarter too large and
// never too small.
type Summary struct {
	// Samples is the number of calls of Observe, regardless of their weights.
	Samples            int64
	P50, P90, P99, Max time.Duration
}

// Observe adds a duration. weight is the number of durations that it represents: n if the
// caller observes one in n, 1 if it observes all. Durations below 4 ns count as 4 ns.
func (h *Histogram) Observe(d time.Duration, weight uint32) {
	all := h.classes.Load()
	if all == nil {
		h.classes.CompareAndSwap(nil, new([classes]atomic.Uint64))
		all = h.classes.Load()
	}
	h.samples.Add(1)
	all[classOf(d)].Add(uint64(weight))
	for {
		most := h.max.Load()
		if int64(d) <= most || h.max.CompareAndSwap(most, int64(d)) {
			return
		}
	}
}

// classOf returns the class of a duration: its highest bit, and the two below.
func classOf(d time.Duration) int {
	n := uint64(max(d, 4))
	high := bits.Len64(n) - 1
	return 4*high + int(n>>(high-2)&3)
}

// boundOf returns the upper bound of a class.
func boundOf(class int) time.Duration {
	bound := math.Ldexp(float64(4+class%4+1), class/4-2)
	if bound >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(bound)
}

// Summary returns the weighted quantiles of the observed durations. It does not block
// Observe, so it may contain a part of a concurrent Observe.
func (h *Histogram) Summary() Summary {
	all := h.classes.Load()
	if all == nil {
		return Summary{}
	}
	var weights [classes]uint64
	var total uint64
	for i := range all {
		weights[i] = all[i].Load()
		total += weights[i]
	}
	s := Summary{Samples: h.samples.Load(), Max: time.Duration(h.max.Load())}
	quantile := func(q float64) time.Duration {
		var seen uint64
		for i, n := range weights {
			seen += n
			if n > 0 && float64(seen) >= q*float64(total) {
				return min(boundOf(i), s.Max)
			}
		}
		return s.Max
	}
	s.P50, s.P90, s.P99 = quantile(0.5), quantile(0.9), quantile(0.99)
	return s
}
