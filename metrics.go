package eventbus

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/histogram"
)

// Metrics is a snapshot of what the bus counts.
type Metrics struct {
	// Types has the event types; those beyond the first 1,000 share OtherTypes.
	Types map[string]TypeMetrics
	// Subscriptions has the subscriptions that are, in the order in which they
	// were made.
	Subscriptions []SubscriptionMetrics

	// Retries is how many retries have been scheduled.
	Retries int64
	// QueueDepth is how many events wait for a worker, and QueueOverflows how
	// many have been let in beyond the capacity, published by handlers.
	QueueDepth     int
	QueueOverflows int64
	// WaitingRetries is how many dispatches wait for their next attempt.
	WaitingRetries int
	// Scheduled is how many events have been published for later, and Held how
	// many deliveries wait for subscriptions that are skipped.
	Scheduled int
	Held      int
	// RunningDispatches is how many dispatches are on a worker: for an instant one
	// more than its handler runs for, as it takes the next one before it counts
	// that as handled. AbandonedHandlers is how many handlers have overrun their
	// timeouts and go on.
	RunningDispatches int
	AbandonedHandlers int
	// Workers is how many goroutines there are to run handlers.
	Workers int
	// DeadLetters is how many letters there are, and LettersEvicted how many
	// have fallen out of the full queue.
	DeadLetters    int
	LettersEvicted int64

	Ledger Ledger
}

// OtherTypes is the name under which Metrics has the event types that are too
// many to be told apart. It is no event type.
const OtherTypes = "*"

// maxTypes is how many event types are counted apart.
const maxTypes = 1000

// TypeMetrics are the counters of an event type, since the bus was made.
type TypeMetrics struct {
	Events  int64 // published
	Retries int64 // retries scheduled
	Retried int64 // dispatches with a retry
	// SucceededAfterRetry is how many of the retried dispatches were handled in
	// the end.
	SucceededAfterRetry int64
	DeadLettered        int64
}

// SuccessAfterRetryRate is which part of the retried dispatches has been handled
// in the end, from 0 to 1; 0 if none was retried.
func (m TypeMetrics) SuccessAfterRetryRate() float64 { return rate(m.SucceededAfterRetry, m.Retried) }

// DeadLetterRate is dead letters by events; 0 if there was no event. Replays that
// die, and events that die at several subscriptions, can take it beyond 1.
func (m TypeMetrics) DeadLetterRate() float64 { return rate(m.DeadLettered, m.Events) }

func rate(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// SubscriptionMetrics are the counters of a subscription, since it was made.
type SubscriptionMetrics struct {
	Subscription string // its name, or what stands for one
	Pattern      string
	Successes    int64
	Failures     int64 // of these:
	Timeouts     int64
	Panics       int64 // runtime.Goexit too
	LateEnds     int64 // abandoned handlers that came back
	Skipped      int64 // deliveries: for an open circuit, paused, behind a held one of their key, or unsubscribed
	Slow         int64 // calls that still ran after a third of their timeouts
	Circuit      CircuitState
	CircuitOpens int64 // how often it has opened
	Held         int   // deliveries that wait for the circuit, or for Resume
	// Paused says that Pause or HoldUntil is in force, and PausedUntil until
	// when: the zero time is until Resume.
	Paused      bool
	PausedUntil time.Time
	Latency     Latency
}

// Latency is how long handlers ran. The bus times every failure, and one success in 64
// while it is busy. The quantiles weigh a timed success by the number of successes that it
// stands for. A quantile is at most a quarter too large.
type Latency struct {
	// Samples is the number of calls that were timed: the failures, and the sampled
	// successes, each counted once.
	Samples            int64
	P50, P90, P99, Max time.Duration
}

// Ledger counts dispatches. What has come in is what has gone out and what is
// still there. Each number is counted where it happens, and none is derived from
// the others.
type Ledger struct {
	// What has come in.
	Accepted int64 // by Publish and PublishAndWait
	Copies   int64 // beyond the first, of events on a bus with isolation
	Splits   int64 // split off for a subscription that was skipped
	Replays  int64
	// Recovered were left by an earlier process. There are none without a durable
	// store.
	Recovered int64

	// What has gone out.
	Handled      int64
	Unrouted     int64
	DeadLettered int64
	Dropped      int64
	Cancelled    int64

	// What is there.
	Scheduled int64 // published for later
	Queued    int64 // for a worker, or behind their keys
	Running   int64
	Waiting   int64 // for their next attempt
	Held      int64 // by a subscription that was skipped
}

// Balanced reports whether the books balance. At rest they always do; under load
// they may be off by what is on its way while they are read.
func (l Ledger) Balanced() bool {
	return l.Accepted+l.Copies+l.Splits+l.Replays+l.Recovered ==
		l.Handled+l.Unrouted+l.DeadLettered+l.Dropped+l.Cancelled+
			l.Scheduled+l.Queued+l.Running+l.Waiting+l.Held
}

// ledger has the terms that are not counted by the queues themselves.
type ledger struct {
	direct    atomic.Int64 // accepted without being queued
	copies    atomic.Int64
	splits    atomic.Int64
	replays   atomic.Int64
	recovered atomic.Int64

	// Written by workers, apart from what publishers write and all read.
	_            [64]byte
	handled      atomic.Int64
	unrouted     atomic.Int64
	deadLettered atomic.Int64
	dropped      atomic.Int64
	cancelled    atomic.Int64
	held         atomic.Int64
	_            [64]byte
}

// Metrics takes a snapshot. It does not block dispatching; a zero Metrics is
// returned by a bus that New did not make.
func (b *Bus) Metrics() Metrics {
	if !b.usable() {
		return Metrics{}
	}
	lanes, waiting := b.lanes.Stats(), b.delay.Len()
	m := Metrics{
		Types:             make(map[string]TypeMetrics),
		QueueDepth:        lanes.Queued,
		QueueOverflows:    lanes.Over,
		WaitingRetries:    waiting,
		RunningDispatches: lanes.Running,
		AbandonedHandlers: len(b.abandoned.list()),
		Workers:           lanes.Workers,
		Ledger: Ledger{
			Accepted:     lanes.Admitted + b.ledger.direct.Load(),
			Copies:       b.ledger.copies.Load(),
			Splits:       b.ledger.splits.Load(),
			Replays:      b.ledger.replays.Load(),
			Recovered:    b.ledger.recovered.Load(),
			Handled:      b.ledger.handled.Load(),
			Unrouted:     b.ledger.unrouted.Load(),
			DeadLettered: b.ledger.deadLettered.Load(),
			Dropped:      b.ledger.dropped.Load(),
			Cancelled:    b.ledger.cancelled.Load(),
			Scheduled:    int64(b.scheduled.len()),
			Queued:       int64(lanes.Queued),
			Running:      int64(lanes.Running),
			Waiting:      int64(waiting),
			Held:         b.ledger.held.Load(),
		},
	}
	m.Scheduled, m.Held = int(m.Ledger.Scheduled), int(m.Ledger.Held)
	m.DeadLetters, m.LettersEvicted = b.store.count()
	b.types.each(func(name string, c *typeCounters) {
		t := c.snapshot()
		m.Types[name] = t
		m.Retries += t.Retries
	})
	for _, s := range b.list() {
		m.Subscriptions = append(m.Subscriptions, s.metrics())
	}
	return m
}

func (s *Subscription) metrics() SubscriptionMetrics {
	state, opens := s.circuit.state()
	c := &s.counters
	paused, until := s.paused()
	return SubscriptionMetrics{
		Subscription: s.id,
		Pattern:      s.Pattern(),
		Successes:    int64(s.circuit.successes.Load()),
		Failures:     c.failures.Load(),
		Timeouts:     c.timeouts.Load(),
		Panics:       c.panics.Load(),
		LateEnds:     c.lateEnds.Load(),
		Slow:         c.slow.Load(),
		Skipped:      c.skipped.Load(),
		Circuit:      state,
		CircuitOpens: int64(opens),
		Held:         s.holding.len(),
		Paused:       paused,
		PausedUntil:  until,
		Latency:      Latency(c.latency.Summary()),
	}
}

// typeCounters are those of an event type.
type typeCounters struct {
	events atomic.Int64
	_      [56]byte // publishers write the events, workers the others

	retried atomic.Int64 // dispatches, at their first retries
	again   atomic.Int64 // further retries of these

	succeededAfterRetry, deadLettered atomic.Int64
}

func (c *typeCounters) snapshot() TypeMetrics {
	retried := c.retried.Load()
	return TypeMetrics{
		Events:              c.events.Load(),
		Retries:             retried + c.again.Load(),
		Retried:             retried,
		SucceededAfterRetry: c.succeededAfterRetry.Load(),
		DeadLettered:        c.deadLettered.Load(),
	}
}

// typeTable has the counters of each type, up to maxTypes of them.
type typeTable struct {
	known  sync.Map // string to *typeCounters
	number atomic.Int64
	others typeCounters
}

func (t *typeTable) of(eventType string) *typeCounters {
	if c, ok := t.known.Load(eventType); ok {
		return c.(*typeCounters)
	}
	// Taken before it is used, so that many at once do not exceed it.
	if t.number.Load() >= maxTypes {
		return &t.others
	}
	if t.number.Add(1) > maxTypes {
		t.number.Add(-1)
		return &t.others
	}
	// Cloned: the type may be a piece of something large.
	c, loaded := t.known.LoadOrStore(strings.Clone(eventType), &typeCounters{})
	if loaded {
		t.number.Add(-1)
	}
	return c.(*typeCounters)
}

func (t *typeTable) each(f func(string, *typeCounters)) {
	t.known.Range(func(name, c any) bool {
		f(name.(string), c.(*typeCounters))
		return true
	})
	if t.others.events.Load() > 0 {
		f(OtherTypes, &t.others)
	}
}

// subscriptionCounters are those of a subscription; the circuit counts the
// successes.
type subscriptionCounters struct {
	failures, timeouts, panics, lateEnds, slow, skipped atomic.Int64

	latency histogram.Histogram
}

func (c *subscriptionCounters) failed(err error, took time.Duration) {
	c.failures.Add(1)
	c.latency.Observe(took, 1)
	// The bus's own errors, not those that a handler wraps and passes on.
	switch err.(type) { //nolint:errorlint // see above
	case *TimeoutError:
		c.timeouts.Add(1)
	case *PanicError:
		c.panics.Add(1)
	default:
		if err == ErrHandlerExited { //nolint:errorlint // see above
			c.panics.Add(1)
		}
	}
}

// latencySample is how many successes one timed success stands for.
const latencySample = 64
