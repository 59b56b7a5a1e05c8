package contracttest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// Fault 12, for the options of New. Those of subscriptions are in
// TestR3_ARefusedSubscriptionChangesNothing.
func TestFault12_BadBusOptions(t *testing.T) {
	var noOption eventbus.Option
	var noRetry eventbus.RetryOption
	var noCircuit eventbus.CircuitOption
	policy := func(change func(*eventbus.RetryPolicy)) eventbus.Option {
		p := eventbus.DefaultRetryPolicy()
		change(&p)
		return eventbus.WithRetry(p)
	}
	for says, opts := range map[string][]eventbus.Option{
		"New(nil)":                           {eventbus.RefuseWhenFull(), noOption},
		"WithLogger(nil)":                    {eventbus.WithLogger(nil)},
		"WithClock(nil)":                     {eventbus.WithClock(nil)},
		"WithMetadataFrom(nil)":              {eventbus.WithMetadataFrom(nil)},
		"WithMiddleware(nil)":                {eventbus.WithMiddleware(nil)},
		"WithTimeout(0s)":                    {eventbus.WithTimeout(0)},
		"WithTimeout(-1ns)":                  {eventbus.WithTimeout(-1)},
		"WithTimeout(-2562047h47m16.8547758": {eventbus.WithTimeout(math.MinInt64)},
		"WithConcurrency(0)":                 {eventbus.WithConcurrency(0)},
		"WithConcurrency(-9":                 {eventbus.WithConcurrency(math.MinInt)},
		"WithQueueCapacity(0)":               {eventbus.WithQueueCapacity(0)},
		"WithQueueCapacity(-1)":              {eventbus.WithQueueCapacity(-1)},
		"WithDeadLetterCapacity(0)":          {eventbus.WithDeadLetterCapacity(0)},
		"WithDeadLetterCapacity(-1)":         {eventbus.WithDeadLetterCapacity(-1)},
		"WithRetry(nil)":                     {eventbus.WithRetry(noRetry)},
		"WithRetry.MaxRetries(-2)":           {eventbus.WithRetry(eventbus.MaxRetries(-2))},
		"WithRetry.MaxRetries(2147483648)":   {eventbus.WithRetry(eventbus.MaxRetries(1 << 31))},
		"WithRetry.BaseDelay(-1ns)":          {eventbus.WithRetry(eventbus.BaseDelay(-1))},
		"WithRetry.MaxDelay(-1ns)":           {eventbus.WithRetry(eventbus.MaxDelay(-1))},
		"WithRetry.MaxElapsed(-1ns)":         {eventbus.WithRetry(eventbus.MaxElapsed(-1))},
		"WithRetry.BackoffMultiplier(0.999)": {eventbus.WithRetry(eventbus.BackoffMultiplier(0.999))},
		"WithRetry.BackoffMultiplier(-1)":    {eventbus.WithRetry(eventbus.BackoffMultiplier(-1))},
		"WithRetry.BackoffMultiplier(NaN)":   {eventbus.WithRetry(eventbus.BackoffMultiplier(math.NaN()))},
		"WithRetry.BackoffMultiplier(+Inf)":  {eventbus.WithRetry(eventbus.BackoffMultiplier(math.Inf(1)))},
		"WithRetry.BackoffMultiplier(-Inf)":  {eventbus.WithRetry(eventbus.BackoffMultiplier(math.Inf(-1)))},
		"WithRetry.BackoffMultiplier(0)":     {eventbus.WithRetry(eventbus.RetryPolicy{MaxRetries: 3})},
		"WithRetry.BaseDelay(-1s)":           {policy(func(p *eventbus.RetryPolicy) { p.BaseDelay = -time.Second })},
		"WithRetry.Jitter(99)":               {policy(func(p *eventbus.RetryPolicy) { p.Jitter = 99 })},
		"WithRetry.Jitter(-1)":               {eventbus.WithRetry(eventbus.Jitter(-1))},
		"WithCircuit(nil)":                   {eventbus.WithCircuit(noCircuit)},
		"WithCircuit.FailureRatio(1)":        {eventbus.WithCircuit(eventbus.FailureRatio(1))},
		"WithCircuit.FailureRatio(-0.1)":     {eventbus.WithCircuit(eventbus.FailureRatio(-0.1))},
		"WithCircuit.FailureRatio(NaN)":      {eventbus.WithCircuit(eventbus.FailureRatio(math.NaN()))},
		"WithCircuit.FailureRatio(+Inf)":     {eventbus.WithCircuit(eventbus.FailureRatio(math.Inf(1)))},
		"WithCircuit.MinEvents(0)":           {eventbus.WithCircuit(eventbus.MinEvents(0))},
		"WithCircuit.Window(0s)":             {eventbus.WithCircuit(eventbus.Window(0))},
		"WithCircuit.OpenFor(-1s)":           {eventbus.WithCircuit(eventbus.OpenFor(-time.Second))},
	} {
		bus, err := eventbus.New(opts...)
		require.Nil(t, bus, says)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption, says)
		require.ErrorContains(t, err, says)
		var offence *eventbus.OptionError
		require.ErrorAs(t, err, &offence)
		require.NotEmpty(t, offence.Reason, says)
	}
}

// Fault 12: what is large is not bad.
func TestFault12_HugeOptionsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t,
			eventbus.WithTimeout(math.MaxInt64), eventbus.WithConcurrency(math.MaxInt), eventbus.WithQueueCapacity(math.MaxInt),
			eventbus.WithDeadLetterCapacity(math.MaxInt),
			eventbus.WithRetry(eventbus.MaxRetries(math.MaxInt32-1), eventbus.BaseDelay(0), eventbus.MaxDelay(math.MaxInt64),
				eventbus.BackoffMultiplier(math.MaxFloat64), eventbus.MaxElapsed(math.MaxInt64)),
			eventbus.WithCircuit(eventbus.MinEvents(math.MaxInt32), eventbus.Window(math.MaxInt64), eventbus.OpenFor(math.MaxInt64)))
		n := 0
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			deadline, _ := ctx.Deadline()
			if n++; n < 5 {
				return errBoom
			}
			if time.Until(deadline) < time.Hour {
				return eventbus.Permanent(fmt.Errorf("deadline %s", deadline))
			}
			return nil
		})
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Equal(t, 5, r.Attempts)
		shutdown(t, bus)
	})
}

func TestFault12_ARetryInTheFarthestFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "x", failing(eventbus.RetryAfter(errBoom, math.MaxInt64)))
		mustPublish(t, bus, "x", nil)
		time.Sleep(10 * 365 * 24 * time.Hour)
		require.Equal(t, 1, bus.Metrics().WaitingRetries)
		require.Error(t, bus.Shutdown(ended()))
		require.Equal(t, 1, oneLetter(t, bus).Attempts)
	})
}

// An event storm while everything is down: every event is held or dead, none is
// lost, and when the services are back what was held is handled.
func TestStorm_AllHandlersFail(t *testing.T) {
	n := searching(100_000, 20_000)
	if *long {
		n = 1_000_000
	}
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Millisecond)),
		eventbus.WithCircuit(eventbus.OpenFor(20*time.Millisecond)))
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	var handled atomic.Int64
	var up atomic.Bool
	var subscriptions []*eventbus.Subscription
	for range 3 {
		subscriptions = append(subscriptions, mustSubscribe(t, bus, "storm.*", func(context.Context, eventbus.Event) error {
			if !up.Load() {
				return errors.New("down")
			}
			handled.Add(1)
			return nil
		}))
	}
	for i := range n {
		mustPublish(t, bus, "storm.event", i)
	}
	for {
		if l := bus.Metrics().Ledger; l.Queued+l.Running == 0 {
			break
		}
		runtime.Gosched()
	}
	held := bus.Metrics().Held
	require.LessOrEqual(t, held, 3*eventbus.DefaultLineCapacity)
	require.Positive(t, held)
	up.Store(true)
	held = bus.Metrics().Held // a probe may have failed since
	for _, s := range subscriptions {
		require.NoError(t, s.Reset())
	}
	for bus.Metrics().Held > 0 {
		runtime.Gosched()
	}
	require.NoError(t, bus.Shutdown(context.Background()))
	m := bus.Metrics()
	require.True(t, m.Ledger.Balanced(), "%+v", m.Ledger)
	require.Equal(t, int64(n), m.Ledger.Accepted)
	require.GreaterOrEqual(t, handled.Load(), int64(held))
	require.Equal(t, m.Ledger.DeadLettered, int64(m.DeadLetters)+m.LettersEvicted)
}

func TestStorm_ManySubscriptions(t *testing.T) {
	n := searching(30_000, 5_000)
	if *long {
		n = 100_000
	}
	bus, _ := startBus(t)
	var called atomic.Int64
	count := func(context.Context, eventbus.Event) error { called.Add(1); return nil }
	all := make([]*eventbus.Subscription, n)
	for i := range all {
		all[i] = mustSubscribe(t, bus, fmt.Sprintf("tenant.%d.*", i), count)
	}
	everybody := mustSubscribe(t, bus, "**", count)
	for i := range n {
		mustPublish(t, bus, fmt.Sprintf("tenant.%d.order", i), nil)
	}
	for _, s := range all {
		s.Unsubscribe()
	}
	everybody.Unsubscribe()
	shutdown(t, bus)
	m := bus.Metrics()
	require.Empty(t, m.Subscriptions)
	require.Equal(t, int64(2*n), called.Load()+m.Ledger.DeadLettered, "%+v", m.Ledger)
}

// Everybody gets one event: a fan-out far beyond any queue.
func TestStorm_OneEventForManySubscriptions(t *testing.T) {
	n := searching(50_000, 5_000)
	for name, opts := range map[string][]eventbus.Option{"sequential": nil, "isolated": {eventbus.WithIsolation(), eventbus.WithQueueCapacity(10)}} {
		t.Run(name, func(t *testing.T) {
			bus, _ := startBus(t, opts...)
			var called atomic.Int64
			for range n {
				mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error { called.Add(1); return nil })
			}
			r, err := bus.PublishAndWait(t.Context(), "a", nil, eventbus.Key("k"))
			require.NoError(t, err)
			require.Equal(t, eventbus.Handled, r.Outcome)
			require.Equal(t, int64(n), called.Load())
			shutdown(t, bus)
		})
	}
}

func TestStorm_TheLongestType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		longest := strings.Repeat("a.", 126) + "abc" // 127 segments
		require.Len(t, longest, 255)
		called := 0
		for _, pattern := range []string{"**", strings.Repeat("*.", 126) + "*", strings.Repeat("a.", 60) + "**", "**.ab?", longest} {
			mustSubscribe(t, bus, pattern, func(context.Context, eventbus.Event) error { called++; return nil })
		}
		mustPublish(t, bus, longest, nil)
		_, err := bus.Publish(t.Context(), longest+"d", nil)
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		shutdown(t, bus)
		require.Equal(t, 5, called)
	})
}

func TestStorm_ManyPublishers(t *testing.T) {
	publishers := searching(10_000, 1_000)
	bus, _ := startBus(t, eventbus.WithQueueCapacity(100))
	var sum atomic.Int64
	mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
		sum.Add(int64(e.Payload.(int)))
		return nil
	})
	var wg sync.WaitGroup
	for i := range publishers {
		wg.Go(func() {
			for range 10 {
				if _, err := bus.Publish(t.Context(), "a", i, eventbus.Key(fmt.Sprint(i%7))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	shutdown(t, bus)
	require.Equal(t, int64(10*publishers*(publishers-1)/2), sum.Load())
}

// A handler that publishes to itself for ever holds up nobody, and Shutdown ends
// it.
func TestStorm_AHandlerPublishesToItselfForEver(t *testing.T) {
	bus, _ := startBus(t)
	var rounds, others atomic.Int64
	mustSubscribe(t, bus, "loop", func(ctx context.Context, e eventbus.Event) error {
		rounds.Add(1)
		_, err := bus.Publish(ctx, "loop", nil, eventbus.Key(e.Key))
		if errors.Is(err, eventbus.ErrShutdown) {
			return nil
		}
		return err
	})
	mustSubscribe(t, bus, "other", func(context.Context, eventbus.Event) error { others.Add(1); return nil })
	mustPublish(t, bus, "loop", nil)
	mustPublish(t, bus, "loop", nil, eventbus.Key("k"))
	for range 1000 {
		_, err := bus.PublishAndWait(t.Context(), "other", nil)
		require.NoError(t, err)
	}
	require.Equal(t, int64(1000), others.Load())
	require.Positive(t, rounds.Load())
	ctx, cancel := context.WithCancel(t.Context())
	var canceller sync.WaitGroup
	canceller.Go(func() {
		for end := rounds.Load() + 1000; rounds.Load() < end; {
			runtime.Gosched()
		}
		cancel()
	})
	err := bus.Shutdown(ctx)
	canceller.Wait()
	var cut *eventbus.ShutdownError
	require.ErrorAs(t, err, &cut)
	require.ErrorIs(t, err, context.Canceled)
	requireBalanced(t, bus)
}

// Subscribe and Unsubscribe, Pause and Resume, from many goroutines under load.
func TestStorm_SubscribeAndUnsubscribeUnderLoad(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithDeadLetterCapacity(1_000_000))
	rounds := searching(60, 20)
	var published, called atomic.Int64
	mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { called.Add(1); return nil })
	stop := make(chan struct{})
	var publishers, changers sync.WaitGroup
	for p := range 4 {
		publishers.Go(func() {
			for i := range searching(3_000, 500) { // each event may become 64 letters
				select {
				case <-stop:
					return
				default:
				}
				if _, err := bus.Publish(t.Context(), "a", nil, eventbus.Key([]string{"", "k", fmt.Sprint(p)}[i%3])); err != nil {
					t.Error(err)
				}
				published.Add(1)
			}
		})
	}
	for g := range 64 {
		changers.Go(func() {
			for i := range rounds {
				s, err := bus.Subscribe([]string{"a", "*", "b", "{a,b}"}[i%4], ok, eventbus.Named(fmt.Sprint(g)))
				if err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 {
					if err := errors.Join(s.Pause(), s.Resume(), s.Pause()); err != nil {
						t.Error(err)
					}
				}
				s.Unsubscribe()
			}
		})
	}
	changers.Wait()
	close(stop)
	publishers.Wait()
	shutdown(t, bus)
	require.Equal(t, published.Load(), called.Load())
	for _, l := range letters(t, bus) {
		require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
	}
}

var (
	long   = flag.Bool("long", false, "run the tests that take minutes")
	search = flag.Bool("search", false, "search as long as CI does")
)

// Ten million events, and what is left of them.
func TestLong_MemoryIsFlatOverManyEvents(t *testing.T) {
	if !*long {
		t.Skip("SKIP: only with -long")
	}
	bus, _ := startBus(t, eventbus.WithDeadLetterCapacity(100), eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithLogger(zap.NewNop()))
	mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
		if e.Payload.(int)%1000 == 0 {
			return errors.New("down")
		}
		return nil
	})
	const round = 1_000_000
	run := func() {
		for i := range round {
			switch i % 4 {
			case 0:
				mustPublish(t, bus, "a", i, eventbus.Key(fmt.Sprint(i)))
			case 1:
				mustPublish(t, bus, fmt.Sprint("type.", i), i)
			case 2:
				mustPublish(t, bus, "b", i, eventbus.ID(eventbus.NewEventID()))
			default:
				mustPublish(t, bus, "c", i)
			}
		}
		for l := bus.Metrics().Ledger; l.Queued+l.Running+l.Waiting > 0; l = bus.Metrics().Ledger {
			runtime.Gosched()
		}
	}
	for range 3 { // until the ids and the types that are remembered are as many as there may be
		run()
	}
	before := heldBytes()
	for range 7 {
		run()
	}
	after := heldBytes()
	require.Less(t, after-before, int64(4<<20), "%d bytes before, %d after", before, after)
	shutdown(t, bus)
}

func TestLong_MemoryIsFlatOverManyBuses(t *testing.T) {
	if !*long {
		t.Skip("SKIP: only with -long")
	}
	run := func(n int) {
		for range n {
			bus, err := eventbus.New()
			require.NoError(t, err)
			mustSubscribe(t, bus, "*", failing(errors.New("down")), eventbus.Retry(eventbus.BaseDelay(0)))
			require.NoError(t, bus.Start(t.Context()))
			for i := range 10 {
				mustPublish(t, bus, "a", nil, eventbus.Key("k"))
				mustPublish(t, bus, "a", i, eventbus.After(time.Hour))
			}
			err = bus.Shutdown(context.Background())
			require.True(t, leftHeld(err), "%v", err)
		}
	}
	run(1000)
	before, goroutines := heldBytes(), runtime.NumGoroutine()
	run(9000)
	after := heldBytes()
	require.Less(t, after-before, int64(4<<20), "%d bytes before, %d after", before, after)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+2)
}
