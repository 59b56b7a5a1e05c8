package benchmarks

import (
	"context"
	"strings"
	"testing"

	"github.com/surebus/eventbus"
)

// BenchmarkTypes is publishing until handled among 10,000 globs: types that the bus
// knows, or types of which each is new to it.
func BenchmarkTypes(b *testing.B) {
	run(b, "Types", func(b *testing.B, kase, _ string) {
		ctx := context.Background()
		const globs = 10_000
		t := newTally()
		bus, err := eventbus.New()
		check(err)
		r := newRouting(globs, strings.HasSuffix(kase, "unique"), commonShapes, func(patterns []string) func([]string) {
			for _, pattern := range patterns {
				_, err := bus.Subscribe(pattern, func(_ context.Context, e eventbus.Event) error { return t.handle(e.Payload.(*note).n) })
				check(err)
			}
			x := newNote(1)
			return func(types []string) {
				for _, typ := range types {
					_, err := bus.Publish(ctx, typ, x)
					check(err)
				}
			}
		})
		check(bus.Start(ctx))
		some := func(n int) {
			t.target.Store(t.done.Load() + int64(n))
			r.lookUp(n)
			<-t.all
		}
		some(warmUp(b.N))
		measure(b, func() { some(b.N) })
		check(bus.Shutdown(ctx))
	})
}
