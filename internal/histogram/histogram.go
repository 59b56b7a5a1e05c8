// Package histogram estimates quantiles of durations in constant memory.
package histogram

import (
	"iter"
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
	s, _ := h.Snapshot()
	return s
}

// Weights are what a Histogram counted up to a moment. They are immutable.
type Weights struct {
	first int      // class of all[0]
	all   []uint64 // from the first class with a weight to the last one
}

// Snapshot is Summary, and returns the weights of the quantiles, which are nil without any.
func (h *Histogram) Snapshot() (Summary, *Weights) {
	all := h.classes.Load()
	if all == nil {
		return Summary{}, nil
	}
	var weights [classes]uint64
	first, end := classes, 0
	for i := range all {
		if weights[i] = all[i].Load(); weights[i] > 0 {
			first, end = min(first, i), i+1
		}
	}
	s := Summary{Samples: h.samples.Load(), Max: time.Duration(h.max.Load())}
	if end == 0 {
		return s, nil
	}
	w := &Weights{first, append([]uint64(nil), weights[first:end]...)}
	s.P50, s.P90, s.P99 = w.quantiles(s.Max)
	return s, w
}

// All yields the classes with a weight, the shortest durations first: their upper bounds and their weights. A nil w has none.
func (w *Weights) All() iter.Seq2[time.Duration, uint64] {
	return func(yield func(time.Duration, uint64) bool) {
		if w == nil {
			return
		}
		for i, n := range w.all {
			if n > 0 && !yield(boundOf(w.first+i), n) {
				return
			}
		}
	}
}

// Since returns the quantiles of what was counted after earlier, none of them above most. It returns false if earlier is of
// another Histogram. A nil w has counted nothing.
func (w *Weights) Since(earlier *Weights, most time.Duration) (p50, p90, p99 time.Duration, ok bool) {
	if earlier == nil {
		earlier = &Weights{}
	}
	if w == nil {
		return 0, 0, 0, len(earlier.all) == 0
	}
	later := Weights{w.first, append([]uint64(nil), w.all...)}
	for i, n := range earlier.all {
		at := earlier.first + i - later.first
		switch {
		case n == 0:
		case at < 0 || at >= len(later.all) || later.all[at] < n:
			return 0, 0, 0, false
		default:
			later.all[at] -= n
		}
	}
	p50, p90, p99 = later.quantiles(most)
	return p50, p90, p99, true
}

func (w *Weights) quantiles(most time.Duration) (p50, p90, p99 time.Duration) {
	var total uint64
	for _, n := range w.all {
		total += n
	}
	if total == 0 {
		return 0, 0, 0
	}
	quantile := func(q float64) time.Duration {
		var seen uint64
		for i, n := range w.all {
			seen += n
			if n > 0 && float64(seen) >= q*float64(total) {
				return min(boundOf(w.first+i), most)
			}
		}
		return most
	}
	return quantile(0.5), quantile(0.9), quantile(0.99)
}
