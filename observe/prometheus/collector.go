package busprometheus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surebus/eventbus"
)

// Source has the methods of a *eventbus.Bus that a Collector calls.
type Source interface {
	// Metrics returns the snapshot that a scrape exports.
	Metrics() eventbus.Metrics
	// Catalog returns the buses of the store. It may block until its context ends.
	Catalog(context.Context) (eventbus.Catalog, error)
}

// Other is the label value that types, subscriptions and destinations without a series of their own share.
const Other = "other"

// Option is an option of New.
type Option func(*Collector) error

// WithMaxSubscriptions sets the number of subscriptions with series of their own: 1,000 by default. The others share Other. It
// also bounds the missing subscriptions of eventbus_orphaned_deliveries. n is at least 1.
func WithMaxSubscriptions(n int) Option {
	return func(c *Collector) error {
		c.subscriptionLabels.limit, c.orphanLabels.limit = n, n
		return checkLimit("WithMaxSubscriptions", n)
	}
}

// WithMaxDestinations sets the number of destinations with series of their own, over all subscriptions: 100 by default.
// Only destinations in eventbus.DestinationsMetrics.List have series. Further destinations of a subscription share
// Other. n is at least 1.
func WithMaxDestinations(n int) Option {
	return func(c *Collector) error {
		c.destinationLabels.limit = n
		return checkLimit("WithMaxDestinations", n)
	}
}

func checkLimit(option string, n int) error {
	if n < 1 {
		return refused(option, fmt.Sprint(n), "must be at least 1")
	}
	return nil
}

// WithBuckets sets the upper bounds of the histograms' buckets, without the infinite one. By default there are 16, from 10 µs to 30 s.
// The bounds are positive and ascending. Each costs a series per subscription.
func WithBuckets(bounds ...time.Duration) Option {
	return func(c *Collector) error {
		for i, bound := range bounds {
			if bound <= 0 || i > 0 && bound <= bounds[i-1] {
				return refused("WithBuckets", fmt.Sprint(bounds), "must be positive and ascending")
			}
		}
		if len(bounds) == 0 {
			return refused("WithBuckets", "", "needs a bound; leave the option out for the default")
		}
		c.buckets = slices.Clone(bounds)
		return nil
	}
}

var defaultBuckets = []time.Duration{
	10 * time.Microsecond, 100 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

func refused(option, value, reason string) error {
	return &eventbus.OptionError{Option: option, Value: value, Reason: reason}
}

// Collector exports the metrics of a bus. Its methods are safe for concurrent use.
type Collector struct {
	bus     Source
	buckets []time.Duration
	descs
	catalog catalog

	mu                                                  sync.Mutex // guards the following
	subscriptionLabels, destinationLabels, orphanLabels labels
	samples                                             int // of the last scrape: the next one has about as many
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a collector of a bus. name is the value of the label bus, which distinguishes several buses in one
// registry. It has 1 to 200 bytes of UTF-8. The collector also works before Start and after Shutdown.
//
// Errors: *eventbus.OptionError.
func New(bus Source, name string, opts ...Option) (*Collector, error) {
	switch {
	case bus == nil:
		return nil, refused("New", "nil", "must be a bus")
	case name == "" || len(name) > 200 || !utf8.ValidString(name):
		return nil, refused("New", fmt.Sprintf("%q", name[:min(len(name), 200)]), "the name must have 1 to 200 bytes of UTF-8")
	}
	c := &Collector{
		bus: bus, buckets: defaultBuckets, descs: newDescs(name),
		subscriptionLabels: labels{limit: 1000}, destinationLabels: labels{limit: 100}, orphanLabels: labels{limit: 1000},
	}
	for _, o := range opts {
		if o == nil {
			return nil, refused("New", "nil", "has an option that is nil")
		}
		if err := o(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.all {
		out <- d.desc
	}
}

// Collect implements prometheus.Collector. It blocks for up to 1 s for a store that does not answer, and up to 1 s more
// for its catalog.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	m := c.bus.Metrics()
	s := &scrape{descs: &c.descs, samples: make([]sample, 0, c.expected())}
	s.addBus(&m)
	if m.Store != nil {
		s.addStore(&m)
		s.addBuses(c.catalog.read(c.bus, m.Ledger.Closed))
	}
	s.addTypes(m.Types)
	c.label(s, &m)
	for i := range s.samples {
		out <- &s.samples[i]
	}
	for i := range s.histograms {
		out <- &s.histograms[i]
	}
}

// label adds the families of subscriptions and destinations, whose labels the collector keeps from scrape to scrape.
func (c *Collector) label(s *scrape, m *eventbus.Metrics) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.addOrphaned(m.Orphaned, &c.orphanLabels)
	s.addSubscriptions(m.Subscriptions, &c.subscriptionLabels, c.buckets)
	s.addDestinations(m.Subscriptions, &c.subscriptionLabels, &c.destinationLabels)
	c.samples = len(s.samples)
}

// expected returns the number of samples for which to make room: growing would copy them several times.
func (c *Collector) expected() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.samples + c.samples/8
}

// labels chooses which names have series of their own. A name keeps its choice while it is there.
type labels struct {
	limit int
	last  map[string]bool // whether the name has series of its own
}

// choose takes the names of a snapshot, those first that are to have series first. A slice may name one several times.
func (l *labels) choose(names []string) {
	chosen, own := make(map[string]bool, len(names)), 0
	for _, name := range names {
		if is, known := l.last[name]; known {
			if _, again := chosen[name]; is && !again {
				own++
			}
			chosen[name] = is
		}
	}
	for _, name := range names {
		if _, known := chosen[name]; !known {
			chosen[name] = own < l.limit
			if own < l.limit {
				own++
			}
		}
	}
	l.last = chosen
}

// of returns the label value of a name.
func (l *labels) of(name string) string {
	if l.last[name] {
		return valid(name)
	}
	return Other
}

// valid returns a name as a label value.
func valid(name string) string { return strings.ToValidUTF8(name, string(utf8.RuneError)) }

// catalogFor is how long the buses of a store that were read are current.
const catalogFor = 10 * time.Second

// catalogPatience is how long a scrape waits for them.
const catalogPatience = time.Second

// catalog remembers the buses of the store.
type catalog struct {
	mu      sync.Mutex // guards the following
	known   buses
	readAt  time.Time
	hasRead bool
	reading chan struct{} // closed when the read in progress ends; nil: there is none
}

// buses are those of the store, as far as they are known.
type buses struct {
	leads           bool // the bus itself has the lease
	active, standby int
	failed          bool // the counts are those of an earlier scrape
}

// standbyFor is how long after its last sign a standby counts: it gives one every 15 s.
const standbyFor = time.Minute

func (c *catalog) read(bus Source, closed bool) buses {
	c.mu.Lock()
	defer c.mu.Unlock()
	if closed {
		c.known.leads = false
		return c.known
	}
	if c.hasRead && !c.known.failed && time.Since(c.readAt) < catalogFor {
		return c.known
	}
	if c.reading == nil {
		c.reading = make(chan struct{})
		go c.ask(bus, c.reading)
	}
	c.await(c.reading)
	return c.known
}

// await waits for a read, without the lock: a store that hangs may never answer.
func (c *catalog) await(read chan struct{}) {
	c.mu.Unlock()
	late := time.NewTimer(catalogPatience)
	defer late.Stop()
	select {
	case <-read:
	case <-late.C:
	}
	c.mu.Lock()
	if c.reading == read {
		c.known.failed = true
	}
}

// ask reads the buses of the store.
func (c *catalog) ask(bus Source, read chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), catalogPatience)
	defer cancel()
	now, err := bus.Catalog(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(read)
	c.reading = nil
	if err != nil {
		c.known.failed = true
		return
	}
	is := buses{leads: now.Active}
	for _, b := range now.Buses {
		switch {
		case b.Active:
			is.active++
		case now.At.Sub(b.Seen) < standbyFor:
			is.standby++
		}
	}
	c.known, c.readAt, c.hasRead = is, time.Now(), true
}

// timestamp returns a time as Prometheus has it, and 0 for none.
func timestamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.Unix()) + float64(t.Nanosecond())/1e9
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
