package admin

import (
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus"
)

// Minute has the counters of the bus for one minute.
type Minute struct {
	// Start is the beginning of the minute. The last minute of a history is in progress.
	Start time.Time `json:"start"`
	// Accepted, Handled, DeadLettered, Dropped and Retries count these transitions, as eventbus.Ledger and
	// eventbus.Metrics do. Failures counts the failed calls of all subscriptions.
	Accepted     int64 `json:"accepted"`
	Handled      int64 `json:"handled"`
	DeadLettered int64 `json:"dead_lettered"`
	Dropped      int64 `json:"dropped"`
	Retries      int64 `json:"retries"`
	Failures     int64 `json:"failures"`
	// P50 and P99 are the largest quantiles of any subscription with charts, for the calls in this minute.
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
}

// historyMinutes is the length of a history.
const historyMinutes = 60

// history samples the metrics once a minute while the bus lives.
type history struct {
	mu      sync.Mutex // guards the following; a leaf
	minutes []Minute   // complete ones, oldest first
	last    totals     // at the end of the last of them
	since   time.Time  // when last was taken

	rings map[string]*ring // by subscription
}

// totals are the counters of a sample.
type totals struct{ accepted, handled, deadLettered, dropped, retries, failures int64 }

func totalsOf(m *eventbus.Metrics) totals {
	t := totals{
		accepted: m.Ledger.Accepted, handled: m.Ledger.Handled, deadLettered: m.Ledger.DeadLettered, dropped: m.Ledger.Dropped, retries: m.Retries,
	}
	for _, s := range m.Subscriptions {
		t.failures += s.Failures
	}
	return t
}

// start takes the first sample, and one at the end of each minute until the bus stops. A timer does it, so that no
// goroutine waits.
func (h *history) start(bus *eventbus.Bus) {
	m := bus.Metrics()
	h.last, h.since, h.rings = totalsOf(&m), time.Now().UTC(), make(map[string]*ring)
	for i := range m.Subscriptions[:min(len(m.Subscriptions), maxRings)] {
		h.rings[m.Subscriptions[i].Subscription] = &ring{last: countersOf(&m.Subscriptions[i]), before: m.Subscriptions[i].Latency}
	}
	var tick func()
	tick = func() {
		select {
		case <-bus.Stopping():
			return
		default:
		}
		m := bus.Metrics()
		h.sample(&m, time.Now().UTC())
		time.AfterFunc(untilNextMinute(time.Now()), tick)
	}
	time.AfterFunc(untilNextMinute(h.since), tick)
}

func untilNextMinute(now time.Time) time.Duration {
	return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
}

// sample completes a minute.
func (h *history) sample(m *eventbus.Metrics, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.minutes = append(h.minutes, h.currentLocked(m))
	h.sampleRingsLocked(m, now)
	h.minutes = slices.Delete(h.minutes, 0, max(0, len(h.minutes)-(historyMinutes-1)))
	h.last, h.since = totalsOf(m), now
}

// currentLocked returns the minute in progress.
func (h *history) currentLocked(m *eventbus.Metrics) Minute {
	t := totalsOf(m)
	current := Minute{
		Start:    h.since.Truncate(time.Minute),
		Accepted: t.accepted - h.last.accepted, Handled: t.handled - h.last.handled, DeadLettered: t.deadLettered - h.last.deadLettered,
		Dropped: t.dropped - h.last.dropped, Retries: t.retries - h.last.retries,
		Failures: max(0, t.failures-h.last.failures), // an unsubscribed one takes its failures along
	}
	for i := range m.Subscriptions {
		if r := h.rings[m.Subscriptions[i].Subscription]; r != nil {
			p := r.since(&m.Subscriptions[i])
			current.P50, current.P99 = max(current.P50, p.p50), max(current.P99, p.p99)
		}
	}
	return current
}

// list returns the last hour, oldest first, with the minute in progress.
func (h *history) list(m *eventbus.Metrics) []Minute {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(slices.Clone(h.minutes), h.currentLocked(m))
}
