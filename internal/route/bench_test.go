package route_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/route"
)

type sub struct{ name string }

// result is what the tests and benchmarks build: no more than the table itself
// needs to hand over.
type result struct{ subs []*sub }

func newTable() *route.Table[*sub, *result] {
	return route.NewTable(func(_ string, subs []*sub) *result { return &result{subs} })
}

func mustParse(tb testing.TB, pattern string) *route.Pattern {
	tb.Helper()
	p, off := route.Parse(pattern)
	require.Nil(tb, off, "Parse(%q): %v", pattern, off)
	return p
}

// globs10k are 10,000 patterns as a large monolith has them: per service, per
// event, some with partial segments, a few that match everything of a kind.
func globs10k() []string {
	var patterns []string
	for i := range 10_000 {
		switch i % 5 {
		case 0:
			patterns = append(patterns, fmt.Sprintf("svc%d.*", i))
		case 1:
			patterns = append(patterns, fmt.Sprintf("svc%d.order.*", i))
		case 2:
			patterns = append(patterns, fmt.Sprintf("svc%d.*.shipped", i))
		case 3:
			patterns = append(patterns, fmt.Sprintf("svc%d.ord*.placed", i))
		case 4:
			patterns = append(patterns, fmt.Sprintf("svc%d.**.failed", i))
		}
	}
	return patterns
}

// typeFor is a type that one of globs10k matches.
func typeFor(i int) string {
	switch i %= 10_000; i % 5 {
	case 0:
		return fmt.Sprintf("svc%d.started", i)
	case 1:
		return fmt.Sprintf("svc%d.order.placed", i)
	case 2:
		return fmt.Sprintf("svc%d.order.shipped", i)
	case 3:
		return fmt.Sprintf("svc%d.order.placed", i)
	default:
		return fmt.Sprintf("svc%d.order.charge.failed", i)
	}
}

const chunk = 4_000

// against times work and yardstick in turns, chunk operations at a time, so that
// both meet the same weather, and reports the ratio.
func against(b *testing.B, unit string, work, yardstick func(i int), prepare func()) {
	var worked, measured time.Duration
	operations := 0
	b.ReportAllocs()
	b.ResetTimer()
	for operations < b.N {
		b.StopTimer()
		if prepare != nil {
			prepare()
		}
		b.StartTimer()
		begin := time.Now()
		for i := range chunk {
			work(i)
		}
		worked += time.Since(begin)
		b.StopTimer()
		begin = time.Now()
		for i := range chunk {
			yardstick(i)
		}
		measured += time.Since(begin)
		operations += chunk
		b.StartTimer()
	}
	b.StopTimer()
	b.ReportMetric(float64(worked.Nanoseconds())/float64(operations), "ns/lookup")
	b.ReportMetric(float64(measured.Nanoseconds())/float64(operations), "ns/map")
	b.ReportMetric(float64(worked)/float64(measured), unit)
}

// known is the yardstick: 1,000 types in a map behind an atomic pointer.
func known() (types []string, m *atomic.Pointer[map[string]*result]) {
	byType := make(map[string]*result)
	for i := range 1_000 {
		typ := typeFor(i * 7)
		types = append(types, typ)
		byType[typ] = &result{}
	}
	m = new(atomic.Pointer[map[string]*result])
	m.Store(&byType)
	return types, m
}

var (
	sink *result
	warm int
)

func BenchmarkR6_RepeatedTypes(b *testing.B) {
	table := newTable()
	for _, p := range globs10k() {
		table.Add(mustParse(b, p), &sub{p})
	}
	types, m := known()
	for range 3 {
		for _, typ := range types {
			table.Lookup(typ)
		}
	}
	missed := 0
	against(b, "x-map", func(i int) {
		r, ok := table.Cached(types[i%1_000])
		if !ok {
			missed++
			r = table.Lookup(types[i%1_000])
		}
		sink = r
	}, func(i int) {
		sink = (*m.Load())[types[i%1_000]]
	}, nil)
	b.ReportMetric(float64(missed)/float64(b.N), "misses/op")
}

func BenchmarkR6_UniqueTypes(b *testing.B) {
	build := &result{} // a trivial build: the routing itself is measured
	table := route.NewTable(func(string, []*sub) *result { return build })
	for _, p := range globs10k() {
		table.Add(mustParse(b, p), &sub{p})
	}
	types, m := known()
	// All 10,000 patterns are in memory; spread walks visit 2,000 of them in turn,
	// so what they touch is never in the processor's nearest cache.
	for _, kind := range []struct {
		name, format     string
		services, offset int
	}{
		{"two_segments_one_match", "svc%d.u%d", 50, 0},
		{"two_segments_one_match_spread", "svc%d.u%d", 2_000, 0},
		{"three_segments_one_match", "svc%d.u%d.shipped", 50, 2},
		{"three_segments_one_match_spread", "svc%d.u%d.shipped", 2_000, 2},
		{"three_segments_no_match", "order.%d.u%d", 2_000, 0},
	} {
		b.Run(kind.name, func(b *testing.B) {
			// More types than the table remembers, made beforehand: each is new to
			// it when it comes round again, and nothing is allocated between.
			var all []string
			for n := range 50 * chunk {
				all = append(all, fmt.Sprintf(kind.format, n%kind.services*5+kind.offset, n))
			}
			n := 0
			var unique []string
			against(b, "x-map", func(i int) {
				sink = table.Lookup(unique[i])
			}, func(i int) {
				sink = (*m.Load())[types[i%1_000]]
			}, func() {
				n = (n + chunk) % len(all)
				unique = all[n : n+chunk]
				for _, typ := range unique {
					warm += int(typ[len(typ)-1]) // a published type was written a moment ago
				}
			})
		})
	}
}

func BenchmarkR6_Subscribe100k(b *testing.B) {
	for name, pattern := range shapes100k {
		b.Run(name, func(b *testing.B) {
			patterns := make([]*route.Pattern, 100_000)
			for i := range patterns {
				patterns[i] = mustParse(b, pattern(i))
			}
			subs := make([]sub, len(patterns))
			removes := make([]func(), len(patterns))
			var added, removed time.Duration
			for b.Loop() {
				table := newTable()
				begin := time.Now()
				for i, p := range patterns {
					removes[i] = table.Add(p, &subs[i])
				}
				added += time.Since(begin)
				begin = time.Now()
				for _, remove := range removes {
					remove()
				}
				removed += time.Since(begin)
			}
			b.ReportMetric(added.Seconds()/float64(b.N), "s/100k-adds")
			b.ReportMetric(removed.Seconds()/float64(b.N), "s/100k-removes")
		})
	}
}

func BenchmarkR6_ChurnBeside100k(b *testing.B) {
	for name, pattern := range shapes100k {
		b.Run(name, func(b *testing.B) {
			table := newTable()
			for i := range 100_000 {
				table.Add(mustParse(b, pattern(i)), &sub{})
			}
			n := 0
			for b.Loop() {
				n++
				remove := table.Add(mustParse(b, pattern(n)), &sub{})
				sink = table.Lookup("churn.x" + strconv.Itoa(n))
				remove()
			}
		})
	}
}

// shapes100k are ways of subscribing 100,000 times.
var shapes100k = map[string]func(i int) string{
	"same":     func(int) string { return "order.*" },
	"literals": func(i int) string { return fmt.Sprintf("type%d.done", i) },
	"services": func(i int) string { return fmt.Sprintf("svc%d.*", i) },
	"partials": func(i int) string { return fmt.Sprintf("a.*x%d*.b", i) },
	"mix": func(i int) string {
		return fmt.Sprintf([]string{"order.*%.0d", "type%d", "svc%d.*", "a.pre%d*", "{a,b%d}.**.{x,y}", "*.s[0-9]%d"}[i%6], i)
	},
}
