package busprometheus_test

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	busprometheus "github.com/surebus/eventbus/observe/prometheus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a bus whose metrics the test sets.
type source struct {
	metrics  eventbus.Metrics
	catalog  eventbus.Catalog
	err      error         // of Catalog
	hangs    chan struct{} // Catalog waits until it is closed, whatever its context says; nil: it does not
	reads    atomic.Int64
	catalogs atomic.Int64
}

func (s *source) Metrics() eventbus.Metrics {
	s.reads.Add(1)
	return s.metrics
}

func (s *source) Catalog(context.Context) (eventbus.Catalog, error) {
	s.catalogs.Add(1)
	if s.hangs != nil {
		<-s.hangs
	}
	return s.catalog, s.err
}

func collectorOf(t testing.TB, bus busprometheus.Source, opts ...busprometheus.Option) *busprometheus.Collector {
	t.Helper()
	c, err := busprometheus.New(bus, "shop", opts...)
	require.NoError(t, err)
	return c
}

func registryOf(t testing.TB, collectors ...prometheus.Collector) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		require.NoError(t, registry.Register(c))
	}
	return registry
}

// scrape returns what a scrape has, as text.
func scrape(t testing.TB, from prometheus.Gatherer) string {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	var text bytes.Buffer
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	return text.String()
}

// samples returns the values of a scrape by series: eventbus_workers{bus="shop"}.
func samples(t testing.TB, from prometheus.Gatherer) map[string]string {
	t.Helper()
	values := make(map[string]string)
	for line := range strings.Lines(scrape(t, from)) {
		if at := strings.LastIndex(line, " "); line[0] != '#' {
			values[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	return values
}

// count returns the number of series of a metric.
func count(values map[string]string, metric string) (n int) {
	for series := range values {
		if strings.HasPrefix(series, metric+"{") {
			n++
		}
	}
	return n
}

func newBus(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(append(opts, eventbus.WithLogger(zap.NewNop()))...)
	require.NoError(t, err)
	require.NoError(t, bus.Start(context.Background()))
	t.Cleanup(func() { require.NoError(t, bus.Shutdown(context.Background())) })
	return bus
}

// filled returns metrics with one entry in each list and map, and zero otherwise.
func filled() *eventbus.Metrics {
	directive := func() *eventbus.Directive { return &eventbus.Directive{At: time.Unix(5, 0)} }
	return &eventbus.Metrics{
		Types:    map[string]eventbus.TypeMetrics{"order.placed": {}},
		Orphaned: map[string]int64{"gone": 0},
		Store:    &driver.Stats{},
		Subscriptions: []eventbus.SubscriptionMetrics{{
			Subscription: "mail", Directive: directive(),
			Options: eventbus.SubscriptionOptions{RateLimit: &eventbus.RateSettings{Calls: 2, Per: time.Second, Burst: 3}},
			Destinations: &eventbus.DestinationsMetrics{
				List: []eventbus.DestinationMetrics{{Destination: "acme", Directive: directive()}},
			},
		}},
	}
}

// leaves visits the fields of v, which can be set. set gives the field another value than filled does.
func leaves(v reflect.Value, path string, visit func(path string, set func())) {
	switch v.Interface().(type) {
	case time.Time:
		visit(path, func() { v.Set(reflect.ValueOf(time.Unix(1e9, 0))) })
		return
	case eventbus.ParkReason:
		visit(path, func() { v.Set(reflect.ValueOf(eventbus.ParkPaused)) })
		return
	case eventbus.CircuitState, eventbus.WhenOpen, eventbus.WhenFull:
		visit(path, func() { v.SetInt(1) })
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				leaves(v.Field(i), strings.TrimPrefix(path+"."+f.Name, "."), visit)
			}
		}
	case reflect.Pointer:
		if v.IsNil() {
			panic(path + " is nil: filled must set it")
		}
		leaves(v.Elem(), path, visit)
	case reflect.Slice:
		leaves(v.Index(0), path+"[]", visit)
	case reflect.Map:
		for _, key := range v.MapKeys() {
			in := reflect.New(v.Type().Elem()).Elem()
			in.Set(v.MapIndex(key))
			leaves(in, path+"[]", func(path string, set func()) {
				visit(path, func() {
					set()
					v.SetMapIndex(key, in)
				})
			})
		}
	case reflect.Bool:
		visit(path, func() { v.SetBool(true) })
	case reflect.String:
		visit(path, func() { v.SetString("another") })
	case reflect.Int, reflect.Int64:
		visit(path, func() { v.SetInt(7) })
	default:
		panic(path + " has a type that the test does not know: " + v.Type().String())
	}
}
