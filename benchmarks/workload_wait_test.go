package benchmarks

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkWait is publishing and waiting until all subscribers have handled the
// event, each time.
func BenchmarkWait(b *testing.B) {
	run(b, "Wait", func(b *testing.B, kase, rival string) {
		const topic = "order.placed"
		subscribers := number(b, kase)
		t := newTally()
		s := systems[rival](b, setup{subscriptions: same(subscribers, topic, t.handle), wait: true})
		publish := s.publisher(topic)
		x := newNote(1)
		warm := min(b.N, 1000)
		for range warm {
			publish(x)
		}
		measure(b, func() {
			for range b.N {
				publish(x)
			}
		})
		require.EqualValues(b, (warm+b.N)*subscribers, t.done.Load(), "it did not wait")
		s.close()
	})
}
