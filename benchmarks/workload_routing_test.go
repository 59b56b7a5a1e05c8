package benchmarks

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/surebus/eventbus/benchmarks/plan"
	"github.com/surebus/eventbus/internal/route"
)

// matchers make, of patterns, the function that finds those that match each of some types.
var matchers = map[string]func(patterns []string) func(types []string){
	plan.Us:              eventbusMatcher,
	"eventbus-all-globs": eventbusMatcher,
	"sublist-cache":      sublistMatcher(true),
	"sublist":            sublistMatcher(false),
	"globloop":           globLoop,
}

var routed []int

// eventbusMatcher is what Publish does to find the subscriptions of a type. The answer
// is their list, as it is for the loop: what Publish puts beside it is not routing.
func eventbusMatcher(patterns []string) func(types []string) {
	table := route.NewTable(func(_ string, s []int) []int { return s })
	for i, p := range patterns {
		pattern, offence := route.Parse(p)
		if offence != nil {
			panic(offence)
		}
		table.Add(pattern, i)
	}
	return func(types []string) {
		for _, typ := range types {
			result, hash, known := table.Cached(typ)
			if !known {
				if offence := route.CheckType(typ); offence != nil {
					panic(offence)
				}
				result = table.Find(typ, hash)
			}
			routed = result
		}
	}
}

// shape is a kind of pattern, and types that it matches: one that is always the
// same, and ones of which each is new. The first number is the service's.
type shape struct{ pattern, typ, unique string }

var (
	// commonShapes are what all rivals can do, allShapes what this bus can do too.
	commonShapes = []shape{
		{"svc%d.*", "svc%d.started", "svc%d.u%d"},
		{"svc%d.order.*", "svc%d.order.placed", "svc%d.order.u%d"},
		{"svc%d.*.shipped", "svc%d.order.shipped", "svc%d.u%d.shipped"},
		{"svc%d.**", "svc%d.order.charge.failed", "svc%d.u%d.failed"},
	}
	allShapes = append(commonShapes[:3:3], []shape{
		{"svc%d.ord*.placed", "svc%d.order.placed", "svc%d.ord%d.placed"},
		{"svc%d.**.failed", "svc%d.order.charge.failed", "svc%d.u%d.charge.failed"},
	}...)
)

// uniqueTypes is how many types are made: far more than any rival remembers, so that
// each is new to it when it comes round again.
const uniqueTypes = 200_000

// remembered is more types than any rival does.
const remembered = 20_000

// routing is a matcher with its types.
type routing struct {
	match func(types []string)
	some  func(n int) []string // the next types, from 1 to n of them
	// before is what the process held when the matcher had remembered all it can, but
	// met few of the types.
	before int64
}

func (r *routing) lookUp(n int) {
	for n > 0 {
		types := r.some(n)
		r.match(types)
		n -= len(types)
	}
}

// again has the same types come again and again.
func again(types []string) func(n int) []string {
	next := 0
	return func(n int) []string {
		some := types[next:min(next+n, len(types))]
		next = (next + len(some)) % len(types)
		return some
	}
}

// manyTypes does so with types of which each is made from its number. Their texts lie one
// behind the other: a list of them would take the cache that a rival's index could have.
func manyTypes(count int, typ func(k int) string) func(n int) []string {
	var texts strings.Builder
	ends := make([]uint32, count)
	for k := range ends {
		texts.WriteString(typ(k))
		ends[k] = uint32(texts.Len())
	}
	all, next, begin := texts.String(), 0, uint32(0)
	var space [256]string
	return func(n int) []string {
		some := space[:min(n, len(space), len(ends)-next)]
		for i, end := range ends[next : next+len(some)] {
			some[i], begin = all[begin:end], end
		}
		if next += len(some); next == len(ends) {
			next, begin = 0, 0
		}
		return some
	}
}

func newRouting(globs int, unique bool, shapes []shape, matcher func(patterns []string) func(types []string)) *routing {
	patterns := make([]string, globs)
	for i := range patterns {
		patterns[i] = fmt.Sprintf(shapes[i%len(shapes)].pattern, i)
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(globs)
	if unique {
		return &routing{match: matcher(patterns), some: manyTypes(uniqueTypes, func(k int) string {
			i := order[k%globs]
			return fmt.Sprintf(shapes[i%len(shapes)].unique, i, k)
		})}
	}
	var types []string
	for _, i := range order[:1000] {
		types = append(types, fmt.Sprintf(shapes[i%len(shapes)].typ, i))
	}
	return &routing{match: matcher(patterns), some: again(types)}
}

// BenchmarkRouting is finding the subscriptions of a type.
func BenchmarkRouting(b *testing.B) {
	run(b, "Routing", func(b *testing.B, kase, rival string) {
		var globs int
		var kind string
		if _, err := fmt.Sscanf(strings.ReplaceAll(kase, ",", " "), "globs=%d types=%s", &globs, &kind); err != nil {
			b.Fatal(err)
		}
		shapes := commonShapes
		if rival == "eventbus-all-globs" {
			shapes = allShapes
		}
		r := keep(b.Name(), func() *routing {
			r := newRouting(globs, kind == "unique", shapes, matchers[rival])
			begin := time.Now()
			for met := 0; met < remembered && time.Since(begin) < 50*time.Millisecond; met += 100 {
				r.lookUp(100)
			}
			r.before = held()
			return r
		})
		r.lookUp(min(b.N, remembered))
		measure(b, func() { r.lookUp(b.N) })
		b.ReportMetric(float64(max(held()-r.before, 0)), plan.Growth)
	})
}
