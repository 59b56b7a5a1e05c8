package benchmarks

import (
	"strings"
	"testing"

	"github.com/surebus/eventbus/benchmarks/plan"
)

// BenchmarkPublish is publishing until handled, by one publisher that does not
// wait for each event.
func BenchmarkPublish(b *testing.B) {
	run(b, "Publish", func(b *testing.B, kase, rival string) {
		kase, few := strings.CutSuffix(kase, plan.Few)
		publishUntilHandled(b, rival, 1, number(b, kase), few)
	})
}

// BenchmarkPublishers is the same with several publishers.
func BenchmarkPublishers(b *testing.B) {
	run(b, "Publishers", func(b *testing.B, kase, rival string) {
		publishUntilHandled(b, rival, number(b, kase), 1, false)
	})
}

func publishUntilHandled(b *testing.B, rival string, publishers, subscribers int, few bool) {
	const topic = "order.placed"
	t := newTally()
	s := systems[rival](b, setup{subscriptions: same(subscribers, topic, t.handle)})
	publish := s.publisher(topic)
	atATime := inFlight
	if few && s.few > 0 {
		atATime = s.few
	}
	t.driveFew(warmUp(b.N), publishers, subscribers, atATime, s, publish)
	measure(b, func() { t.driveFew(b.N, publishers, subscribers, atATime, s, publish) })
	s.close()
}
