package eventbus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/route"
)

// interleave runs two workloads in turns and reports the cost of an operation of work as a
// multiple of the yardstick's. A machine that slows down slows both. Each workload gets the
// number of operations to do.
func interleave(b *testing.B, chunk int, work, yardstick func(n int)) {
	b.Helper()
	b.ReportAllocs()
	work(chunk)
	yardstick(chunk)
	var worked, measured time.Duration
	b.ResetTimer()
	for done := 0; done < b.N; done += chunk {
		n := min(chunk, b.N-done)
		b.StopTimer()
		begin := time.Now()
		yardstick(n)
		measured += time.Since(begin)
		b.StartTimer()
		begin = time.Now()
		work(n)
		worked += time.Since(begin)
	}
	b.StopTimer()
	b.ReportMetric(float64(worked)/float64(measured), "x-yardstick")
}

// BenchmarkPublishHandled measures publishing until handled with one subscription and all
// protections, against a channel of capacity 1,024 with one receiver.
func BenchmarkPublishHandled(b *testing.B) { publishHandled(b) }

// BenchmarkPublishLimited measures the same with a rate limit that is not reached.
func BenchmarkPublishLimited(b *testing.B) {
	publishHandled(b, eventbus.RateLimit(1_000_000_000, time.Second, 1_000_000_000))
}

// BenchmarkPublishToDestinations measures the same with 100 destinations.
func BenchmarkPublishToDestinations(b *testing.B) {
	var names [100]string
	for i := range names {
		names[i] = fmt.Sprint("customer-", i)
	}
	var n atomic.Uint32
	publishHandled(b, eventbus.PerDestination(func(eventbus.Event) string { return names[n.Add(1)%100] }))
}

func publishHandled(b *testing.B, opts ...eventbus.SubscribeOption) {
	b.Helper()
	ctx := context.Background()
	bus, err := eventbus.New()
	require.NoError(b, err)
	var handled atomic.Int64
	var target int64
	done := make(chan struct{})
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		if handled.Add(1) == target {
			done <- struct{}{}
		}
		return nil
	}, opts...)
	require.NoError(b, err)
	require.NoError(b, bus.Start(ctx))
	payload := any("payload")

	events := make(chan eventbus.Event, 1024)
	received := make(chan struct{})
	var receive int64
	var got atomic.Int64
	go func() {
		for range events {
			if got.Add(1) == receive {
				received <- struct{}{}
			}
		}
	}()
	event := eventbus.Event{Type: "order.placed", Payload: payload}

	interleave(b, 200_000, func(n int) {
		target = handled.Load() + int64(n)
		for range n {
			if _, err := bus.Publish(ctx, "order.placed", payload); err != nil {
				b.Fatal(err)
			}
		}
		<-done
	}, func(n int) {
		receive = got.Load() + int64(n)
		for range n {
			events <- event
		}
		<-received
	})
	close(events)
	require.NoError(b, bus.Shutdown(ctx))
	require.True(b, bus.Metrics().Ledger.Balanced()) // exact only at rest
}

// BenchmarkPublishAndWait measures publishing one event and waiting for its outcome.
func BenchmarkPublishAndWait(b *testing.B) {
	ctx := context.Background()
	bus, err := eventbus.New()
	require.NoError(b, err)
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil })
	require.NoError(b, err)
	require.NoError(b, bus.Start(ctx))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bus.PublishAndWait(ctx, "order.placed", nil); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, bus.Shutdown(ctx))
}

// BenchmarkWaitingRetries reports the memory and the goroutines of 100,000 dispatches that wait
// for a retry, without their payloads and errors.
func BenchmarkWaitingRetries(b *testing.B) {
	const waiting = 100_000
	ctx := context.Background()
	failed := errors.New("failed")
	for b.Loop() {
		bus, err := eventbus.New(eventbus.WithQueueCapacity(waiting))
		require.NoError(b, err)
		_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return failed },
			eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(b, err)
		require.NoError(b, bus.Start(ctx))
		goroutines, before := runtime.NumGoroutine(), heap()
		for range waiting {
			_, err := bus.Publish(ctx, "order.placed", nil)
			require.NoError(b, err)
		}
		for bus.Metrics().WaitingRetries < waiting || bus.Metrics().RunningDispatches > 0 {
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(float64(heap()-before)/waiting, "B/retry")
		// Idle workers do not count: they do not depend on the number of waiting retries.
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines-bus.Metrics().Workers), "goroutines")
		cut, cancel := context.WithCancel(ctx)
		cancel()
		_ = bus.Shutdown(cut)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkSlowBesideFast runs 1,000 handlers that sleep 10 ms each, all at once, and reports
// the latency of another subscription meanwhile.
func BenchmarkSlowBesideFast(b *testing.B) {
	ctx := context.Background()
	bus, err := eventbus.New()
	require.NoError(b, err)
	const slow = 1000
	var left atomic.Int64
	allDone := make(chan time.Time, 1)
	_, err = bus.Subscribe("slow", func(context.Context, eventbus.Event) error {
		time.Sleep(10 * time.Millisecond)
		if left.Add(-1) == 0 {
			allDone <- time.Now()
		}
		return nil
	})
	require.NoError(b, err)
	latencies := make(chan time.Duration, 1000)
	_, err = bus.Subscribe("fast", func(_ context.Context, e eventbus.Event) error {
		latencies <- time.Since(e.Payload.(time.Time))
		return nil
	})
	require.NoError(b, err)
	require.NoError(b, bus.Start(ctx))
	var worst time.Duration
	var all []time.Duration
	for b.Loop() {
		left.Store(slow)
		begin := time.Now()
		for range slow {
			_, err := bus.Publish(ctx, "slow", nil)
			require.NoError(b, err)
		}
		for end := (time.Time{}); end.IsZero(); {
			_, err := bus.Publish(ctx, "fast", time.Now())
			require.NoError(b, err)
			all = append(all, <-latencies)
			select {
			case end = <-allDone:
				worst = max(worst, end.Sub(begin))
			case <-time.After(100 * time.Microsecond):
			}
		}
	}
	slices.Sort(all)
	b.ReportMetric(float64(worst)/1e6, "ms-slow-worst")
	b.ReportMetric(float64(all[len(all)*99/100])/1e6, "ms-fast-p99")
	require.NoError(b, bus.Shutdown(ctx))
}

// globs10k returns 10,000 patterns of a large monolith: per service and per event, some with
// partial segments, some with inner wildcards.
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

// typeFor returns a type that pattern i of globs10k matches.
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

type routed struct{ subscriptions []int }

var sink *routed

// routing returns a table with 10,000 globs, 10,000 types that match them, and the yardstick:
// these types in a map behind an atomic pointer.
func routing(b *testing.B) (*route.Table[int, *routed], []string, *atomic.Pointer[map[string]*routed]) {
	b.Helper()
	table := route.NewTable(func(_ string, s []int) *routed { return &routed{s} })
	byType := make(map[string]*routed)
	var types []string
	for i, glob := range globs10k() {
		pattern, offence := route.Parse(glob)
		require.Nil(b, offence)
		table.Add(pattern, i)
		types = append(types, typeFor(i))
		byType[typeFor(i)] = &routed{}
	}
	yardstick := new(atomic.Pointer[map[string]*routed])
	yardstick.Store(&byType)
	return table, types, yardstick
}

// BenchmarkRoutingRepeatedTypes measures routing of 1,000 types again and again.
func BenchmarkRoutingRepeatedTypes(b *testing.B) {
	table, types, yardstick := routing(b)
	types = types[:1000]
	for range 3 { // the cache stores a type at its second lookup
		for _, t := range types {
			table.Lookup(t)
		}
	}
	interleave(b, 10_000, func(n int) {
		for i := range n {
			sink, _, _ = table.Cached(types[i%len(types)])
		}
	}, func(n int) {
		for i := range n {
			sink = (*yardstick.Load())[types[i%len(types)]]
		}
	})
}

// BenchmarkRoutingUniqueTypes measures routing of types that come once and match one glob each.
func BenchmarkRoutingUniqueTypes(b *testing.B) {
	for _, kind := range []struct {
		name, format string
		offset       int
	}{
		{"two-segments", "svc%d.u%d", 0},
		{"three-segments", "svc%d.u%d.shipped", 2},
	} {
		b.Run(kind.name, func(b *testing.B) {
			table, types, yardstick := routing(b)
			// More types than the cache holds: each is new again in the next round.
			const chunk = 4000
			var unique []string
			for i := range 50 * chunk {
				unique = append(unique, fmt.Sprintf(kind.format, i%2000*5+kind.offset, i))
			}
			next := 0
			interleave(b, chunk, func(n int) {
				for range n {
					sink = table.Lookup(unique[next%len(unique)])
					next++
				}
			}, func(n int) {
				for i := range n {
					sink = (*yardstick.Load())[types[(next+i)*5%len(types)]]
				}
			})
		})
	}
}

// BenchmarkIdleBus reports the timers and the goroutines of an idle bus with 1,000
// subscriptions. The mock clock advances to the bus's timers if there are any.
func BenchmarkIdleBus(b *testing.B) {
	ctx := context.Background()
	for b.Loop() {
		mock := clock.NewMock()
		before := runtime.NumGoroutine()
		bus, err := eventbus.New(eventbus.WithClock(mock))
		require.NoError(b, err)
		for i := range 1000 {
			_, err := bus.Subscribe(fmt.Sprintf("service%d.*", i), func(context.Context, eventbus.Event) error { return nil })
			require.NoError(b, err)
		}
		require.NoError(b, bus.Start(ctx))
		for i := range 1000 {
			_, err := bus.Publish(ctx, fmt.Sprintf("service%d.started", i), nil)
			require.NoError(b, err)
		}
		for l := bus.Metrics().Ledger; l.Handled < 1000; l = bus.Metrics().Ledger {
			runtime.Gosched()
		}
		time.Sleep(10 * time.Millisecond)
		at := mock.Now()
		mock.WaitForAllTimers()
		b.ReportMetric(float64(mock.Now().Sub(at)), "ns-to-a-timer")
		b.ReportMetric(float64(runtime.NumGoroutine()-before), "goroutines-resting")
		require.NoError(b, bus.Shutdown(ctx))
	}
}

// benchBus starts a bus with a number of subscriptions to order.*. The returned function
// publishes n events with publish and waits until all subscriptions have handled them.
func benchBus(b *testing.B, subscriptions int, opts ...eventbus.Option) func(n int, publish func(i int, bus *eventbus.Bus) error) {
	b.Helper()
	ctx := context.Background()
	bus, err := eventbus.New(opts...)
	require.NoError(b, err)
	var handled, target atomic.Int64
	done := make(chan struct{})
	for range subscriptions {
		_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
			if handled.Add(1) == target.Load() {
				done <- struct{}{}
			}
			return nil
		})
		require.NoError(b, err)
	}
	require.NoError(b, bus.Start(ctx))
	b.Cleanup(func() {
		require.NoError(b, bus.Shutdown(ctx))
		require.True(b, bus.Metrics().Ledger.Balanced())
	})
	return func(n int, publish func(i int, bus *eventbus.Bus) error) {
		target.Store(handled.Load() + int64(n*subscriptions))
		for i := range n {
			if err := publish(i, bus); err != nil {
				b.Fatal(err)
			}
		}
		<-done
	}
}

// BenchmarkKey measures publishing until handled with a key, against without one.
func BenchmarkKey(b *testing.B) {
	ctx := context.Background()
	orders := make([]string, 1<<16)
	for i := range orders {
		orders[i] = fmt.Sprint("o-", i)
	}
	for _, keys := range []int{1, 100, len(orders)} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			keyed, plain := benchBus(b, 1), benchBus(b, 1)
			interleave(b, 100_000, func(n int) {
				keyed(n, func(i int, bus *eventbus.Bus) error {
					_, err := bus.Publish(ctx, "order.placed", nil, eventbus.Key(orders[i%keys]))
					return err
				})
			}, func(n int) {
				plain(n, func(_ int, bus *eventbus.Bus) error {
					_, err := bus.Publish(ctx, "order.placed", nil)
					return err
				})
			})
		})
	}
}

// BenchmarkIsolated measures an event for 10 subscriptions on a bus with isolation, against a
// bus without it.
func BenchmarkIsolated(b *testing.B) {
	ctx := context.Background()
	publish := func(_ int, bus *eventbus.Bus) error {
		_, err := bus.Publish(ctx, "order.placed", nil)
		return err
	}
	isolated, sequential := benchBus(b, 10, eventbus.WithIsolation()), benchBus(b, 10)
	interleave(b, 20_000, func(n int) { isolated(n, publish) }, func(n int) { sequential(n, publish) })
}

// BenchmarkHeld measures a delivery that is held and then handled, against one that is not held.
func BenchmarkHeld(b *testing.B) {
	ctx := context.Background()
	const most = 10_000
	publish := func(_ int, bus *eventbus.Bus) error {
		_, err := bus.Publish(ctx, "order.placed", nil)
		return err
	}
	var held *eventbus.Bus
	hold, plain := benchBus(b, 1), benchBus(b, 1)
	interleave(b, most, func(n int) {
		hold(n, func(i int, bus *eventbus.Bus) error {
			if held = bus; i == 0 {
				if err := bus.Subscription("order.*#1").Pause(); err != nil {
					return err
				}
			}
			if err := publish(i, bus); err != nil || i < n-1 {
				return err
			}
			for bus.Metrics().Held < n {
				runtime.Gosched()
			}
			return bus.Subscription("order.*#1").Resume()
		})
	}, func(n int) { plain(n, publish) })
	require.Zero(b, held.Metrics().Held)
}

// lettersBus returns a bus that is not started, with 100,000 dead letters, or as many as the
// environment variable EVENTBUS_LETTERS says. A few of them, rare in number, have another
// subscription and another reason.
func lettersBus(b *testing.B) (bus *eventbus.Bus, rare int) {
	b.Helper()
	n := 100_000
	if s := os.Getenv("EVENTBUS_LETTERS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(b, err)
	}
	bus, err := eventbus.New(eventbus.WithDeadLetterCapacity(n))
	require.NoError(b, err)
	var lines bytes.Buffer
	for i := range n {
		subscription, reason := "common", "exhausted"
		if i%10_000 == 0 {
			subscription, reason = "rare", "expired"
			rare++
		}
		fmt.Fprintf(&lines, `{"id":"00000000-0000-7000-8000-%012x","event":{"id":"00000000-0000-7000-8000-000000000001","type":"order.placed",`+
			`"time":"2024-07-28T12:00:00Z"},"reason":%q,"subscription":%q,"failures":[{"error":"code %d"}],"died_at":"2024-07-28T12:00:00Z"}`+"\n",
			i+1, reason, subscription, i)
	}
	report, err := bus.DLQ().Import(b.Context(), &lines)
	require.NoError(b, err)
	require.Equal(b, n, report.Imported)
	runtime.GC()
	return bus, rare
}

// BenchmarkLettersList measures a page of 100 letters, for queries that match many letters or few.
func BenchmarkLettersList(b *testing.B) {
	bus, rare := lettersBus(b)
	for name, q := range map[string]eventbus.LetterQuery{
		"all":                 {},
		"subscription":        {Subscription: "common"},
		"rare-subscription":   {Subscription: "rare"},
		"rare-reason":         {Reason: eventbus.ReasonExpired},
		"reason-and-time":     {Reason: eventbus.ReasonExpired, Until: time.Now(), ExactTotal: true},
		"no-such":             {Subscription: "common", Reason: eventbus.ReasonExpired},
		"no-such-event":       {Event: eventbus.NewEventID(), Until: time.Now()},
		"type-without-a-home": {Type: "user.*"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				page, err := bus.DLQ().List(b.Context(), q)
				if err != nil || q.Reason != "" && q.Subscription == "" && page.Total != rare {
					b.Fatal(page.Total, err)
				}
			}
		})
	}
}

// BenchmarkLettersGroups measures grouping of all letters.
func BenchmarkLettersGroups(b *testing.B) {
	bus, _ := lettersBus(b)
	for b.Loop() {
		groups, err := bus.DLQ().Groups(b.Context(), eventbus.LetterQuery{})
		if err != nil || len(groups) != 2 {
			b.Fatal(groups, err)
		}
	}
}

// BenchmarkLettersPurge measures a purge of all letters.
func BenchmarkLettersPurge(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		bus, _ := lettersBus(b)
		b.StartTimer()
		if _, err := bus.DLQ().PurgeMatching(b.Context(), eventbus.LetterQuery{All: true}); err != nil {
			b.Fatal(err)
		}
	}
}
