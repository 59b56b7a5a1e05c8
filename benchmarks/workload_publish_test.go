package benchmarks

import (
	"testing"
)

// BenchmarkPublish is publishing until handled, by one publisher that does not
// wait for each event.
func BenchmarkPublish(b *testing.B) {
	run(b, "Publish", func(b *testing.B, kase, rival string) {
		publishUntilHandled(b, rival, 1, number(b, kase))
	})
}

// BenchmarkPublishers is the same with several publishers.
func BenchmarkPublishers(b *testing.B) {
	run(b, "Publishers", func(b *testing.B, kase, rival string) {
		publishUntilHandled(b, rival, number(b, kase), 1)
	})
}

func publishUntilHandled(b *testing.B, rival string, publishers, subscribers int) {
	const topic = "order.placed"
	t := newTally()
	s := systems[rival](b, setup{subscriptions: same(subscribers, topic, t.handle)})
	publish := s.publisher(topic)
	t.drive(warmUp(b.N), publishers, subscribers, s, publish)
	b.ReportAllocs()
	b.ResetTimer()
	t.drive(b.N, publishers, subscribers, s, publish)
	b.StopTimer()
	s.close()
}
