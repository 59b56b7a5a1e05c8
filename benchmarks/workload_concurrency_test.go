package benchmarks

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/benchmarks/plan"
)

// BenchmarkHanging measures throughput and latency of events beside a subscription whose handler
// hangs in every call.
func BenchmarkHanging(b *testing.B) {
	run(b, "Hanging", func(b *testing.B, kase, _ string) {
		const stuckEvents = 1000
		h := newHanging(b.N)
		if kase == "beside" {
			h.hang(stuckEvents)
		}
		b.ResetTimer()
		late := h.drive(b.N)
		b.StopTimer()
		h.close()
		slices.Sort(late)
		b.ReportMetric(float64(late[len(late)/2]), "p50-ns")
		b.ReportMetric(float64(late[len(late)*99/100]), "p99-ns")
	})
}

// hanging is a bus with two subscriptions. The handler of stuck.* hangs until end is closed, and
// the handler of ok.* records the latency of its events.
type hanging struct {
	bus     *eventbus.Bus
	handled *tally
	began   time.Time
	// sent and late are times of every hangingSample-th event: its publication after began, and
	// its latency.
	sent, late []time.Duration
	entered    atomic.Int64 // calls of the hanging handler
	end        chan struct{}
}

const (
	// hangingWorkers is the concurrency of the bus: less than the number of hanging events.
	hangingWorkers = 64
	// hangingSample keeps the cost of reading the clock small.
	hangingSample = 16
)

func newHanging(events int) *hanging {
	h := &hanging{
		handled: newTally(),
		began:   time.Now(),
		sent:    make([]time.Duration, events/hangingSample+1),
		late:    make([]time.Duration, events/hangingSample+1),
		end:     make(chan struct{}),
	}
	bus, err := eventbus.New(eventbus.WithConcurrency(hangingWorkers))
	check(err)
	_, err = bus.Subscribe("stuck.*", func(context.Context, eventbus.Event) error {
		h.entered.Add(1)
		<-h.end
		return nil
	}, eventbus.Timeout(time.Hour))
	check(err)
	_, err = bus.Subscribe("ok.*", func(_ context.Context, e eventbus.Event) error {
		n := e.Payload.(*note).n
		if i := n / hangingSample; n%hangingSample == 0 {
			h.late[i] = time.Since(h.began) - h.sent[i]
		}
		return h.handled.handle(n)
	})
	check(err)
	check(bus.Start(context.Background()))
	h.bus = bus
	return h
}

// hang publishes n events to the hanging subscription and returns when no more of its calls start.
func (h *hanging) hang(n int) {
	for range n {
		_, err := h.bus.Publish(context.Background(), "stuck.event", nil)
		check(err)
	}
	for before := int64(0); before == 0 || h.entered.Load() > before; time.Sleep(20 * time.Millisecond) {
		before = h.entered.Load()
	}
}

// drive publishes n events from several goroutines, waits until they are handled, and returns
// the latencies.
func (h *hanging) drive(n int) []time.Duration {
	ctx := context.Background()
	// Without a limit, the hanging handlers hold all workers and no other event is handled.
	starved := time.AfterFunc(time.Minute, func() { panic("the hanging subscription holds all workers") })
	defer starved.Stop()
	h.handled.target.Store(int64(n))
	var next atomic.Int64
	var publishers sync.WaitGroup
	for range plan.HangingPublishers {
		publishers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if i%hangingSample == 0 {
					h.sent[i/hangingSample] = time.Since(h.began)
				}
				_, err := h.bus.Publish(ctx, "ok.event", &note{n: uint64(i)})
				check(err)
			}
		})
	}
	publishers.Wait()
	<-h.handled.all
	return h.late[:(n+hangingSample-1)/hangingSample]
}

func (h *hanging) close() {
	close(h.end)
	check(h.bus.Shutdown(context.Background()))
	if l := h.bus.Metrics().Ledger; !l.Balanced() || l.DeadLettered+l.Dropped+l.Unrouted > 0 {
		panic("not every event was handled")
	}
}

// BenchmarkLimit measures the cost of a concurrency limit that is not reached, in interleaved
// pairs of a bus with the limit and a bus without one. An operation is a pair.
func BenchmarkLimit(b *testing.B) {
	run(b, "Limit", func(b *testing.B, kase, _ string) {
		const events = 50_000
		var opts []eventbus.SubscribeOption
		if kase == "explicit" {
			opts = append(opts, eventbus.Concurrency(1000))
		}
		withLimit, closeLimited := timedBus(opts...)
		without, closeUnlimited := timedBus(eventbus.Concurrency(eventbus.Unlimited))
		withLimit(events)
		without(events)
		ratios := make([]float64, 0, b.N)
		b.ResetTimer()
		for pair := range b.N {
			// The order alternates, so that the second place favours neither bus.
			var with, unlimited time.Duration
			if pair%2 == 0 {
				with, unlimited = withLimit(events), without(events)
			} else {
				unlimited, with = without(events), withLimit(events)
			}
			ratios = append(ratios, float64(with)/float64(unlimited))
		}
		b.StopTimer()
		closeLimited()
		closeUnlimited()
		slices.Sort(ratios)
		b.ReportMetric((ratios[(len(ratios)-1)/2]+ratios[len(ratios)/2])/2, plan.Limited)
	})
}

// timedBus returns a function that publishes n events, waits until they are handled and returns
// the time that this takes. A second subscription matches nothing: the default limit applies only
// to a bus with two or more subscriptions.
func timedBus(opts ...eventbus.SubscribeOption) (drive func(n int) time.Duration, end func()) {
	ctx := context.Background()
	t := newTally()
	bus, err := eventbus.New()
	check(err)
	for _, pattern := range []string{"order.*", "invoice.*"} {
		_, err := bus.Subscribe(pattern, func(_ context.Context, e eventbus.Event) error { return t.handle(e.Payload.(*note).n) }, opts...)
		check(err)
	}
	check(bus.Start(ctx))
	x := newNote(1)
	drive = func(n int) time.Duration {
		t.target.Store(t.done.Load() + int64(n))
		begin := time.Now()
		for range n {
			_, err := bus.Publish(ctx, "order.placed", x)
			check(err)
		}
		<-t.all
		return time.Since(begin)
	}
	return drive, func() { check(bus.Shutdown(ctx)) }
}

// The other events are handled although the subscription hangs, and it cannot take all workers.
func TestHanging_OtherEventsAreHandled(t *testing.T) {
	const events = 10_000
	h := newHanging(events)
	h.hang(100)
	require.Positive(t, h.entered.Load())
	require.Len(t, h.drive(events), events/hangingSample)
	require.Less(t, h.entered.Load(), int64(hangingWorkers))
	h.close()
}
