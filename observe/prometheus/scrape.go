package busprometheus

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/surebus/eventbus"
)

type pair = dto.LabelPair

func newPair(name, value string) *pair { return &pair{Name: &name, Value: &value} }

// sample is a prometheus.Metric. Unlike a constant metric it shares its labels with the other samples of a subscription: a scrape
// of 1,000 has 15,000 of them.
type sample struct {
	of     *family
	labels []*pair // sorted by name
	value  float64
}

func (s *sample) Desc() *prometheus.Desc { return s.of.desc }

func (s *sample) Write(out *dto.Metric) error {
	out.Label = s.labels
	if s.of.counter {
		out.Counter = &dto.Counter{Value: &s.value}
	} else {
		out.Gauge = &dto.Gauge{Value: &s.value}
	}
	return nil
}

// histogram is a constant histogram that shares its labels and its bounds.
type histogram struct {
	of         *family
	labels     []*pair
	bounds     []float64
	cumulative []uint64 // of each bound
	count      uint64
	sum        float64
}

func (h *histogram) Desc() *prometheus.Desc { return h.of.desc }

func (h *histogram) Write(out *dto.Metric) error {
	buckets, all := make([]dto.Bucket, len(h.bounds)), make([]*dto.Bucket, len(h.bounds))
	for i := range buckets {
		buckets[i].UpperBound, buckets[i].CumulativeCount = &h.bounds[i], &h.cumulative[i]
		all[i] = &buckets[i]
	}
	out.Label, out.Histogram = h.labels, &dto.Histogram{SampleCount: &h.count, SampleSum: &h.sum, Bucket: all}
	return nil
}

// scrape collects the samples of a snapshot.
type scrape struct {
	*descs
	samples    []sample
	histograms []histogram
}

// add adds the rows of a table for the members of a label value.
func add[T any](s *scrape, t *table[T], members []*T, labels ...*pair) {
	plain := s.sorted(labels...)
	for i := range t.rows {
		r := &t.rows[i]
		value := math.NaN()
		for _, m := range members {
			switch is := r.of(m); {
			case math.IsNaN(value):
				value = is
			case math.IsNaN(is):
			case r.how&largest != 0:
				value = max(value, is)
			default:
				value += is
			}
		}
		if math.IsNaN(value) || value == 0 && r.how&present != 0 {
			continue
		}
		of := plain
		if t.extras[i] != nil {
			of = s.sorted(append(slices.Clip(labels), t.extras[i])...)
		}
		s.samples = append(s.samples, sample{t.families[i], of, value})
	}
}

// sorted returns labels and the name of the bus in the order of their names.
func (s *scrape) sorted(labels ...*pair) []*pair {
	all := append(make([]*pair, 0, len(labels)+1), s.name)
	all = append(all, labels...)
	slices.SortFunc(all, func(x, y *pair) int { return cmp.Compare(*x.Name, *y.Name) })
	return all
}

func (s *scrape) addBus(m *eventbus.Metrics) { add(s, s.bus, []*eventbus.Metrics{m}) }

func (s *scrape) addStore(m *eventbus.Metrics) { add(s, s.store, []*eventbus.Metrics{m}) }

func (s *scrape) addBuses(b buses) { add(s, s.buses, []*buses{&b}) }

func (s *scrape) addTypes(types map[string]eventbus.TypeMetrics) {
	byLabel := grouped[string, eventbus.TypeMetrics]{}
	for name, m := range types {
		if name == eventbus.OtherTypes {
			name = Other
		}
		byLabel.add(valid(name), &m)
	}
	slices.Sort(byLabel.order) // the registry sorts the series, and is faster if they are sorted
	for _, name := range byLabel.order {
		add(s, s.types, byLabel.members[name], newPair("type", name))
	}
}

func (s *scrape) addOrphaned(orphaned map[string]int64, labels *labels) {
	names := slices.SortedFunc(maps.Keys(orphaned), func(x, y string) int {
		return cmp.Or(cmp.Compare(orphaned[y], orphaned[x]), cmp.Compare(x, y))
	})
	labels.choose(names)
	byLabel := make(map[string]int64)
	for _, name := range names {
		byLabel[labels.of(name)] += orphaned[name]
	}
	for name, n := range byLabel {
		s.samples = append(s.samples, sample{s.orphaned, s.sorted(newPair("subscription", name)), float64(n)})
	}
}

func (s *scrape) addSubscriptions(all []eventbus.SubscriptionMetrics, labels *labels, buckets []time.Duration) {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Subscription
	}
	labels.choose(names)
	byLabel := grouped[string, eventbus.SubscriptionMetrics]{}
	for i := range all {
		byLabel.add(labels.of(all[i].Subscription), &all[i])
	}
	slices.Sort(byLabel.order)
	inSeconds := make([]float64, len(buckets))
	for i, bound := range buckets {
		inSeconds[i] = bound.Seconds()
	}
	for _, name := range byLabel.order {
		members, label := byLabel.members[name], newPair("subscription", name)
		add(s, s.subscriptions, members, label)
		s.addDurations(members, label, buckets, inSeconds)
		if len(members) == 1 {
			s.addInfo(members[0], label)
		}
	}
}

func (s *scrape) addInfo(m *eventbus.SubscriptionMetrics, label *pair) {
	values, of := infoOf(m), make([]*pair, 1, 2+len(infoLabels))
	of[0] = label
	pairs := make([]pair, len(values)) // each on its own would be a quarter of the allocations of a scrape
	for i := range values {
		pairs[i].Name, pairs[i].Value = &infoLabels[i], &values[i]
		of = append(of, &pairs[i])
	}
	s.samples = append(s.samples, sample{s.info, s.sorted(of...), 1})
}

// addDurations adds a histogram. A call counts with the bound of its class in Latency, which is not below its duration.
func (s *scrape) addDurations(members []*eventbus.SubscriptionMetrics, label *pair, bounds []time.Duration, inSeconds []float64) {
	h := histogram{of: s.durations, labels: s.sorted(label), bounds: inSeconds, cumulative: make([]uint64, len(bounds))}
	for _, m := range members {
		at := 0
		for below, calls := range m.Latency.Buckets() {
			for at < len(bounds) && below > bounds[at] {
				at++
			}
			if at < len(bounds) {
				h.cumulative[at] += calls
			}
			h.count += calls
			h.sum += middle * below.Seconds() * float64(calls)
		}
	}
	for i := 1; i < len(bounds); i++ {
		h.cumulative[i] += h.cumulative[i-1]
	}
	s.histograms = append(s.histograms, h)
}

// middle of a class of Latency, as a share of its upper bound: the lower bound is from 4/5 to 7/8 of it.
const middle = 0.9

func (s *scrape) addDestinations(all []eventbus.SubscriptionMetrics, subscriptions, destinations *labels) {
	type listed struct {
		subscription string
		*eventbus.DestinationMetrics
	}
	var unwell []listed
	for i := range all {
		if all[i].Destinations != nil {
			for j := range all[i].Destinations.List {
				unwell = append(unwell, listed{all[i].Subscription, &all[i].Destinations.List[j]})
			}
		}
	}
	parked := func(d listed) int { return d.Held + d.Throttled + d.Snoozed }
	slices.SortStableFunc(unwell, func(x, y listed) int { return cmp.Compare(parked(y), parked(x)) })
	names := make([]string, len(unwell))
	for i, d := range unwell {
		names[i] = d.subscription + "\x00" + d.Destination
	}
	destinations.choose(names)
	byLabel := grouped[[2]string, eventbus.DestinationMetrics]{}
	for i, d := range unwell {
		label := Other
		if destinations.last[names[i]] {
			label = valid(d.Destination)
		}
		byLabel.add([2]string{subscriptions.of(d.subscription), label}, d.DestinationMetrics)
	}
	for _, name := range byLabel.order {
		add(s, s.destinations, byLabel.members[name], newPair("subscription", name[0]), newPair("destination", name[1]))
	}
}

// grouped has what shares its label values, in the order in which it came.
type grouped[K comparable, T any] struct {
	order   []K
	members map[K][]*T
}

func (g *grouped[K, T]) add(label K, m *T) {
	if g.members == nil {
		g.members = make(map[K][]*T)
	}
	if _, known := g.members[label]; !known {
		g.order = append(g.order, label)
	}
	g.members[label] = append(g.members[label], m)
}

// limit returns a limit as a label value.
func limit(n int) string {
	if n == eventbus.Unlimited {
		return "unlimited"
	}
	return strconv.Itoa(n)
}
