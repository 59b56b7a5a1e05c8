package busprometheus_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	busprometheus "github.com/surebus/eventbus/observe/prometheus"
)

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	bus := &source{}
	for _, refused := range []struct {
		bus  busprometheus.Source
		name string
		opt  busprometheus.Option
		in   string
	}{
		{nil, "shop", busprometheus.WithMaxSubscriptions(1), "must be a bus"},
		{bus, "", busprometheus.WithMaxSubscriptions(1), "1 to 200 bytes"},
		{bus, strings.Repeat("x", 201), busprometheus.WithMaxSubscriptions(1), "1 to 200 bytes"},
		{bus, "\xff", busprometheus.WithMaxSubscriptions(1), "UTF-8"},
		{bus, "shop", nil, "option that is nil"},
		{bus, "shop", busprometheus.WithMaxSubscriptions(0), "WithMaxSubscriptions(0): must be at least 1"},
		{bus, "shop", busprometheus.WithMaxDestinations(-1), "WithMaxDestinations(-1): must be at least 1"},
		{bus, "shop", busprometheus.WithBuckets(), "needs a bound"},
		{bus, "shop", busprometheus.WithBuckets(time.Second, time.Second), "ascending"},
		{bus, "shop", busprometheus.WithBuckets(0), "positive"},
	} {
		_, err := busprometheus.New(refused.bus, refused.name, refused.opt)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		require.ErrorContains(t, err, refused.in)
	}
}

// notExported are the fields of Metrics without a series, and why.
var notExported = map[string]string{
	"WaitingRetries": "Ledger.Waiting", "Scheduled": "Ledger.Scheduled", "Held": "Ledger.Held", "Throttled": "Ledger.Throttled",
	"Snoozed": "Ledger.Snoozed", "RunningDispatches": "Ledger.Running",

	"Subscriptions[].Latency.P50": "the histogram", "Subscriptions[].Latency.P90": "the histogram", "Subscriptions[].Latency.P99": "the histogram",

	"Subscriptions[].LastError":              "free text",
	"Subscriptions[].Directive.By":           "free text",
	"Subscriptions[].Directive.Why":          "free text",
	"Subscriptions[].Directive.Subscription": "a label", "Subscriptions[].Directive.Destination": "a label",

	"Subscriptions[].Destinations.List[].Directive.By":           "free text",
	"Subscriptions[].Destinations.List[].Directive.Why":          "free text",
	"Subscriptions[].Destinations.List[].Directive.Subscription": "a label", "Subscriptions[].Destinations.List[].Directive.Destination": "a label",
}

// A change of a field changes a scrape. A new field of Metrics needs a row in rows.go, or a line above.
func TestCollector_ExportsEveryField(t *testing.T) {
	before := scrape(t, registryOf(t, collectorOf(t, &source{metrics: *filled()})))
	var paths []string
	leaves(reflect.ValueOf(filled()).Elem(), "", func(path string, _ func()) { paths = append(paths, path) })
	require.Greater(t, len(paths), 90)
	for _, path := range paths {
		m := filled()
		leaves(reflect.ValueOf(m).Elem(), "", func(p string, set func()) {
			if p == path {
				set()
			}
		})
		after := scrape(t, registryOf(t, collectorOf(t, &source{metrics: *m})))
		if why, left := notExported[path]; left {
			require.Equal(t, before, after, "%s is exported, beside %s", path, why)
		} else {
			require.NotEqual(t, before, after, "%s is not exported", path)
		}
	}
	for path := range notExported {
		require.Contains(t, paths, path)
	}
}

func TestCollector_OneSnapshotPerScrape(t *testing.T) {
	bus := &source{metrics: *filled()}
	registry := registryOf(t, collectorOf(t, bus))
	require.Zero(t, bus.reads.Load(), "a registration reads nothing")
	for n := range 5 {
		scrape(t, registry)
		require.EqualValues(t, n+1, bus.reads.Load())
	}
	require.EqualValues(t, 1, bus.catalogs.Load(), "a catalog is read every 10 s")

	memory := &source{}
	scrape(t, registryOf(t, collectorOf(t, memory)))
	require.Zero(t, memory.catalogs.Load(), "a bus in memory has no other buses")
}

func TestCollector_SeveralInOneRegistry(t *testing.T) {
	bus := newBus(t)
	first, second := collectorOf(t, bus), collectorOf(t, bus, busprometheus.WithBuckets(time.Second))
	registry := registryOf(t, first)
	var already prometheus.AlreadyRegisteredError
	require.ErrorAs(t, registry.Register(second), &already)
	require.Same(t, first, already.ExistingCollector)

	other, err := busprometheus.New(newBus(t), "stock")
	require.NoError(t, err)
	require.NoError(t, registry.Register(other))
	values := samples(t, registry)
	require.Contains(t, values, `eventbus_workers{bus="shop"}`)
	require.Contains(t, values, `eventbus_workers{bus="stock"}`)

	require.True(t, registry.Unregister(first))
	require.NotContains(t, samples(t, registry), `eventbus_workers{bus="shop"}`)
}

func TestCollector_NamesAreValidLabels(t *testing.T) {
	bus := &source{metrics: eventbus.Metrics{
		Types: map[string]eventbus.TypeMetrics{"a\nb": {Events: 1}, `quo"te\`: {Events: 2}, "bad\xff": {Events: 3}, "bad\xfe": {Events: 4}, "other": {Events: 5}, eventbus.OtherTypes: {Events: 6}},
		Subscriptions: []eventbus.SubscriptionMetrics{
			{Subscription: "s\xff", Pattern: "p\xff", Successes: 1}, {Subscription: "s\xfe", Successes: 2}, {Subscription: "line\nbreak", Successes: 3},
		},
	}}
	values := samples(t, registryOf(t, collectorOf(t, bus)))
	for series, value := range map[string]string{
		`eventbus_type_events_total{bus="shop",type="a\nb"}`:                           "1",
		`eventbus_type_events_total{bus="shop",type="quo\"te\\"}`:                      "2",
		`eventbus_type_events_total{bus="shop",type="bad�"}`:                           "7",
		`eventbus_type_events_total{bus="shop",type="other"}`:                          "11",
		`eventbus_subscription_successes_total{bus="shop",subscription="s�"}`:          "3",
		`eventbus_subscription_successes_total{bus="shop",subscription="line\nbreak"}`: "3",
	} {
		require.Equal(t, value, values[series], series)
	}
}

func TestCollector_TheNumberOfSeriesIsBounded(t *testing.T) {
	const names = 10_000
	m := eventbus.Metrics{Orphaned: make(map[string]int64), Store: &driver.Stats{}}
	list := make([]eventbus.DestinationMetrics, names)
	for i := range names {
		name := strconv.Itoa(i)
		list[i] = eventbus.DestinationMetrics{Destination: name, Held: i + 1, Paused: true}
		m.Subscriptions = append(m.Subscriptions, eventbus.SubscriptionMetrics{Subscription: name, Successes: 1, LastFailed: time.Unix(int64(i+1), 0)})
		m.Orphaned[name] = 1
	}
	m.Subscriptions[0].Destinations = &eventbus.DestinationsMetrics{List: list}
	values := samples(t, registryOf(t, collectorOf(t, &source{metrics: m})))
	require.Equal(t, 1001, count(values, "eventbus_subscription_successes_total"))
	require.Equal(t, 1001, count(values, "eventbus_orphaned_deliveries"))
	require.Equal(t, 101, count(values, "eventbus_destination_paused"))
	require.Equal(t, "9000", values[`eventbus_subscription_successes_total{bus="shop",subscription="other"}`])
	require.Equal(t, "9000", values[`eventbus_orphaned_deliveries{bus="shop",subscription="other"}`])
	require.Equal(t, "9900", values[`eventbus_destination_paused{bus="shop",destination="other",subscription="0"}`])
	require.Equal(t, "10000", values[`eventbus_subscription_last_failure_timestamp_seconds{bus="shop",subscription="other"}`], "the latest")
	require.Contains(t, values, `eventbus_destination_paused{bus="shop",destination="9999",subscription="0"}`, "those with the most parked deliveries first")

	bus := newBus(t)
	for i := range names {
		_, err := bus.Publish(t.Context(), fmt.Sprint("type.", i), nil)
		require.NoError(t, err)
	}
	values = samples(t, registryOf(t, collectorOf(t, bus)))
	require.Equal(t, 1001, count(values, "eventbus_type_events_total"))
	require.Equal(t, "9000", values[`eventbus_type_events_total{bus="shop",type="other"}`])
}

// A subscription that ends does not move another one out of the shared series, whose counters would fall.
func TestCollector_ANameKeepsItsSeries(t *testing.T) {
	bus := &source{}
	has := func(names ...string) []string {
		bus.metrics.Subscriptions = nil
		for _, name := range names {
			bus.metrics.Subscriptions = append(bus.metrics.Subscriptions, eventbus.SubscriptionMetrics{Subscription: name, Successes: 1})
		}
		return names
	}
	registry := registryOf(t, collectorOf(t, bus, busprometheus.WithMaxSubscriptions(2)))
	own := func() (names []string) {
		for series := range samples(t, registry) {
			if name, found := strings.CutPrefix(series, `eventbus_subscription_successes_total{bus="shop",subscription="`); found {
				names = append(names, strings.TrimSuffix(name, `"}`))
			}
		}
		slices.Sort(names)
		return names
	}
	has("a", "b", "c")
	require.Equal(t, []string{"a", "b", "other"}, own())
	has("b", "c")
	require.Equal(t, []string{"b", "other"}, own())
	has("b", "c", "d")
	require.Equal(t, []string{"b", "d", "other"}, own())
	has("c")
	require.Equal(t, []string{"other"}, own())
	has()
	require.Empty(t, own())
	has("c")
	require.Equal(t, []string{"c"}, own())
}

func TestCollector_AnswersBeforeStartAndAfterShutdown(t *testing.T) {
	bus, err := eventbus.New()
	require.NoError(t, err)
	registry := registryOf(t, collectorOf(t, bus))
	require.Equal(t, "0", samples(t, registry)[`eventbus_closed{bus="shop"}`])
	require.NoError(t, bus.Start(t.Context()))
	_, err = bus.PublishAndWait(t.Context(), "a", nil)
	require.NoError(t, err)
	require.NoError(t, bus.Shutdown(t.Context()))
	values := samples(t, registry)
	require.Equal(t, "1", values[`eventbus_closed{bus="shop"}`])
	require.Equal(t, "1", values[`eventbus_ledger_balanced{bus="shop"}`])
	require.Equal(t, "1", values[`eventbus_dispatches_settled_total{bus="shop",outcome="unrouted"}`])

	_ = samples(t, registryOf(t, collectorOf(t, (*eventbus.Bus)(nil)))) // a bus that New did not make has zero metrics
}

func TestCollector_LatencyIsAHistogram(t *testing.T) {
	bus := newBus(t)
	_, err := bus.Subscribe("a", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("refused")) // the bus times every failure
	}, eventbus.Named("mail"), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, err)
	registry := registryOf(t, collectorOf(t, bus, busprometheus.WithBuckets(time.Nanosecond, time.Hour)))
	const name = "eventbus_subscription_call_duration_seconds"
	require.Equal(t, "0", samples(t, registry)[name+`_count{bus="shop",subscription="mail"}`])
	for range 3 {
		_, err = bus.PublishAndWait(t.Context(), "a", nil)
		require.Error(t, err)
	}
	values := samples(t, registry)
	require.Equal(t, "3", values[name+`_count{bus="shop",subscription="mail"}`])
	require.Equal(t, "0", values[name+`_bucket{bus="shop",subscription="mail",le="1e-09"}`])
	require.Equal(t, "3", values[name+`_bucket{bus="shop",subscription="mail",le="3600"}`])
	require.Equal(t, "3", values[name+`_bucket{bus="shop",subscription="mail",le="+Inf"}`])
	sum, err := strconv.ParseFloat(values[name+`_sum{bus="shop",subscription="mail"}`], 64)
	require.NoError(t, err)
	longest := bus.Metrics().Subscriptions[0].Latency.Max.Seconds()
	require.Positive(t, sum)
	require.LessOrEqual(t, sum, 3*1.13*longest)
}

func TestCollector_LeaseAndStandbys(t *testing.T) {
	now := time.Unix(1e9, 0)
	bus := &source{metrics: eventbus.Metrics{Store: &driver.Stats{}}, catalog: eventbus.Catalog{At: now, Active: true, Buses: []eventbus.CatalogBus{
		{Instance: "a", Active: true}, {Instance: "b", Seen: now.Add(-20 * time.Second)}, {Instance: "killed", Seen: now.Add(-time.Hour)},
	}}}
	registry := registryOf(t, collectorOf(t, bus))
	values := samples(t, registry)
	require.Equal(t, "1", values[`eventbus_store_leads{bus="shop"}`])
	require.Equal(t, "1", values[`eventbus_store_buses{bus="shop",role="active"}`])
	require.Equal(t, "1", values[`eventbus_store_buses{bus="shop",role="standby"}`])
	require.Equal(t, "0", values[`eventbus_store_buses_stale{bus="shop"}`])

	bus.metrics.Ledger.Closed = true
	require.Equal(t, "0", samples(t, registry)[`eventbus_store_leads{bus="shop"}`])

	failing := &source{metrics: eventbus.Metrics{Store: &driver.Stats{}}, err: errors.New("no answer")}
	require.Equal(t, "1", samples(t, registryOf(t, collectorOf(t, failing)))[`eventbus_store_buses_stale{bus="shop"}`])
}

// Scrapes do not queue up behind a store that hangs, and leave one goroutine there.
func TestCollector_AStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &source{metrics: eventbus.Metrics{Store: &driver.Stats{}}, catalog: eventbus.Catalog{Active: true}, hangs: make(chan struct{})}
		registry := registryOf(t, collectorOf(t, bus))
		began := time.Now()
		var scrapes sync.WaitGroup
		for range 20 {
			scrapes.Go(func() {
				if stale := samples(t, registry)[`eventbus_store_buses_stale{bus="shop"}`]; stale != "1" {
					t.Errorf("stale: %q", stale)
				}
			})
		}
		scrapes.Wait()
		require.Equal(t, time.Second, time.Since(began))
		require.EqualValues(t, 1, bus.catalogs.Load())

		close(bus.hangs)
		synctest.Wait()
		values := samples(t, registry)
		require.Equal(t, "0", values[`eventbus_store_buses_stale{bus="shop"}`])
		require.Equal(t, "1", values[`eventbus_store_leads{bus="shop"}`])
		require.EqualValues(t, 1, bus.catalogs.Load())
	})
}

func TestCollector_ConcurrentScrapes(t *testing.T) {
	bus := newBus(t)
	_, err := bus.Subscribe("**", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	require.NoError(t, err)
	registry := registryOf(t, collectorOf(t, bus))
	var scrapes sync.WaitGroup
	for range 4 {
		scrapes.Go(func() {
			for range 10 {
				if _, err := registry.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 100 {
		_, err := bus.Publish(t.Context(), fmt.Sprint("type.", i), nil)
		require.NoError(t, err)
	}
	scrapes.Wait()
	require.NotEmpty(t, slices.Collect(maps.Keys(samples(t, registry))))
}
