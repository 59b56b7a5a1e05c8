package admin

import (
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// SubscriptionFigures counts the recent calls and failures of a subscription.
type SubscriptionFigures struct {
	Subscription string `json:"subscription"` // the subscription's name
	// Calls and Failures count the last hour, or the time since New if that is less. FailureRate is Failures divided by
	// Calls, or 0.
	Calls       int64   `json:"calls"`
	Failures    int64   `json:"failures"`
	FailureRate float64 `json:"failure_rate"`
	// RecentCalls, RecentFailures and RecentSlow count the last 5 minutes. A slow call exceeds a third of its timeout.
	RecentCalls    int64 `json:"recent_calls"`
	RecentFailures int64 `json:"recent_failures"`
	RecentSlow     int64 `json:"recent_slow"`
	// Letters is the number of its dead letters.
	Letters int `json:"letters"`

	minutes []point // of the last hour
}

// Point counts the calls of a subscription in a minute, or in a quarter of an hour.
type Point struct {
	Start    time.Time `json:"start"`    // the beginning of the interval
	Calls    int64     `json:"calls"`    // calls of the handler that ended in it
	Failures int64     `json:"failures"` // of these, the calls that failed
	// Backlog is the number of parked deliveries at the end of the interval.
	Backlog int64 `json:"backlog"`
	// P50 and P99 are quantiles of the durations of the calls. They are 0 without calls.
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
}

// point is a Point as a ring has it.
type point struct {
	calls, failures, slow, backlog uint32
	p50, p99                       time.Duration
}

// with returns the point of a time that ends with that of next. Its latencies are those of next.
func (p point) with(next point) point {
	next.calls += p.calls
	next.failures += p.failures
	next.slow += p.slow
	return next
}

// counters are what a ring has read last.
type counters struct {
	calls, failures, slow int64
	latency               eventbus.Latency
}

func countersOf(m *eventbus.SubscriptionMetrics) counters {
	return counters{m.Successes + m.Failures, m.Failures, m.Slow, m.Latency}
}

// Bounds of the rings. A ring takes about 6 KB.
const (
	maxRings     = 1000 // subscriptions with charts
	dayPoints    = 96   // of a quarter of an hour each
	quarterStep  = 15 * time.Minute
	recentPoints = int(recentSpan / time.Minute)
)

// ring has the last hour and the last day of a subscription. It is not safe for concurrent use.
type ring struct {
	last    counters
	hour    []point          // complete minutes, oldest first
	day     []point          // complete quarters, oldest first
	quarter point            // the one in progress, without the minute in progress
	before  eventbus.Latency // at the beginning of the quarter
}

// since returns what happened since the last sample. Counters begin again with a subscription that takes the name over.
func (r *ring) since(m *eventbus.SubscriptionMetrics) point {
	now := countersOf(m)
	delta := func(now, last int64) uint32 {
		if now < last {
			last = 0
		}
		return uint32(min(now-last, 1<<32-1)) //nolint:gosec // it fits
	}
	latency := m.Latency.Since(r.last.latency)
	return point{
		calls: delta(now.calls, r.last.calls), failures: delta(now.failures, r.last.failures), slow: delta(now.slow, r.last.slow),
		backlog: uint32(m.Parked()), //nolint:gosec // deliveries in memory
		p50:     latency.P50, p99: latency.P99,
	}
}

// sample completes a minute, and a quarter if it is the last minute of one.
func (r *ring) sample(m *eventbus.SubscriptionMetrics, endsQuarter bool) {
	p := r.since(m)
	r.last = countersOf(m)
	r.hour = kept(append(r.hour, p), historyMinutes-1)
	r.quarter = r.quarterWith(p, m)
	if endsQuarter {
		r.day = kept(append(r.day, r.quarter), dayPoints-1)
		r.quarter, r.before = point{}, m.Latency
	}
}

// quarterWith returns the quarter in progress with the minute in progress.
func (r *ring) quarterWith(minute point, m *eventbus.SubscriptionMetrics) point {
	q := r.quarter.with(minute)
	latency := m.Latency.Since(r.before)
	q.p50, q.p99 = latency.P50, latency.P99
	return q
}

// kept returns the newest points.
func kept(points []point, most int) []point {
	return slices.Delete(points, 0, max(0, len(points)-most))
}

// inProgressLocked returns the minute in progress, for metrics of a time. If another minute has begun since, nothing has
// happened in it: counters that are less than the last ones would look like those of a new subscription.
func (h *history) inProgressLocked(r *ring, m *eventbus.SubscriptionMetrics, at time.Time) point {
	p := r.since(m)
	if at.Before(h.since) {
		p.calls, p.failures, p.slow = 0, 0, 0
	}
	return p
}

// figures returns the figures of the subscriptions of m, which is of a time, in their order. letters counts their dead letters.
func (h *history) figures(m *eventbus.Metrics, at time.Time, letters map[string]int) []SubscriptionFigures {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]SubscriptionFigures, len(m.Subscriptions))
	for i := range m.Subscriptions {
		sub, f := &m.Subscriptions[i], &all[i]
		f.Subscription, f.Letters = sub.Subscription, letters[sub.Subscription]
		r := h.rings[sub.Subscription]
		if r == nil {
			r = new(ring) // it is new, or one too many: since it was made
		}
		f.minutes = append(slices.Clone(r.hour), h.inProgressLocked(r, sub, at))
		for i, p := range f.minutes {
			f.Calls += int64(p.calls)
			f.Failures += int64(p.failures)
			if i >= len(f.minutes)-recentPoints {
				f.RecentCalls += int64(p.calls)
				f.RecentFailures += int64(p.failures)
				f.RecentSlow += int64(p.slow)
			}
		}
		f.FailureRate = share(f.Failures, f.Calls)
	}
	return all
}

// share returns a part of a whole, and 0 of nothing.
func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// series returns the points of a subscription: 60 minutes, or 96 quarters if day is set. The last one is in progress. It
// returns nil for a subscription without a ring.
func (h *history) series(m *eventbus.SubscriptionMetrics, at time.Time, day bool) []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.rings[m.Subscription]
	if r == nil {
		return nil
	}
	current := h.inProgressLocked(r, m, at)
	points, step := append(slices.Clone(r.hour), current), time.Minute
	if day {
		points, step = append(slices.Clone(r.day), r.quarterWith(current, m)), quarterStep
	}
	last := h.since.Truncate(step)
	all := make([]Point, len(points))
	for i, p := range points {
		all[i] = Point{
			Start: last.Add(-time.Duration(len(points)-1-i) * step), Calls: int64(p.calls), Failures: int64(p.failures),
			Backlog: int64(p.backlog), P50: p.p50, P99: p.p99,
		}
	}
	return all
}

// sampleRingsLocked completes the minute of each subscription. It forgets those that are gone.
func (h *history) sampleRingsLocked(m *eventbus.Metrics, now time.Time) {
	rings := make(map[string]*ring, len(h.rings))
	for i := range m.Subscriptions {
		sub := &m.Subscriptions[i]
		r := h.rings[sub.Subscription]
		if len(rings) >= maxRings {
			break
		}
		if r == nil {
			r = new(ring)
		}
		r.sample(sub, now.Truncate(quarterStep).After(h.since.Truncate(quarterStep)))
		rings[sub.Subscription] = r
	}
	h.rings = rings
}
