package route_test

import (
	"fmt"
	"strconv"
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

var sink *result

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
					removes[i] = subscribe(table, p, &subs[i])
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
				remove := subscribe(table, mustParse(b, pattern(n)), &sub{})
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
