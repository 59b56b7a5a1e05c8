package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var errCore = errors.New("boom")

// coreCalls notes when calls begin and end, as "+1s name:payload" and, for what
// ends, "+2s name:payload done".
type coreCalls struct {
	journal[string]
	began time.Time
}

func newCoreCalls() *coreCalls { return &coreCalls{began: time.Now()} }

func (c *coreCalls) note(format string, args ...any) {
	// Work may wait for another worker for some ticks of the lanes.
	c.add(fmt.Sprintf("+%s ", time.Since(c.began).Round(100*time.Millisecond)) + fmt.Sprintf(format, args...))
}

// handler notes its calls, and then does what the payload says, if it is a
// handler.
func (c *coreCalls) handler(name string) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		c.note("%s:%v", name, coreName(e))
		if s, ok := e.Payload.(*coreScript); ok {
			return s.run(ctx, e)
		}
		return nil
	}
}

// coreScript is a payload that does something else at each of its calls, and
// nothing after the last one.
type coreScript struct {
	name  string
	mu    sync.Mutex
	steps []eventbus.Handler
}

func coreScripted(name string, steps ...eventbus.Handler) *coreScript {
	return &coreScript{name: name, steps: steps}
}

func (s *coreScript) run(ctx context.Context, e eventbus.Event) error {
	s.mu.Lock()
	step := eventbus.Handler(ok)
	if len(s.steps) > 0 {
		step, s.steps = s.steps[0], s.steps[1:]
	}
	s.mu.Unlock()
	return step(ctx, e)
}

func coreName(e eventbus.Event) string {
	if s, ok := e.Payload.(*coreScript); ok {
		return s.name
	}
	return fmt.Sprint(e.Payload)
}

// coreSleep is a handler that takes its time, whatever its deadline, but ends with
// the bus.
func coreSleep(d time.Duration) eventbus.Handler {
	return func(ctx context.Context, _ eventbus.Event) error {
		end := time.Now().Add(d)
		select {
		case <-time.After(d):
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), eventbus.ErrShutdown) {
				time.Sleep(time.Until(end))
			}
		}
		return nil
	}
}

// coreSettle lets the bus do what it can do now. Workers are made at ticks.
func coreSettle() {
	time.Sleep(3 * time.Millisecond)
	synctest.Wait()
}

// coreShutdownLeft ends a bus that has something held or scheduled, and returns
// what it left.
func coreShutdownLeft(t *testing.T, bus *eventbus.Bus) []eventbus.DeadLetter {
	t.Helper()
	err := bus.Shutdown(context.Background())
	var left *eventbus.ShutdownError
	require.ErrorAs(t, err, &left)
	require.NoError(t, left.Cause)
	requireBalanced(t, bus)
	return left.Unfinished
}

func TestD5_EventsOfAKeyComeOneAfterAnotherInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCoreCalls()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		for i := range 3 {
			for _, key := range []string{"a", "b", ""} {
				mustPublish(t, bus, "x", coreScripted(fmt.Sprint(key, i), coreSleep(time.Second)), eventbus.Key(key))
			}
		}
		coreSettle()
		require.ElementsMatch(t, []string{"+0s s:a0", "+0s s:b0", "+0s s:0", "+0s s:1", "+0s s:2"}, calls.all())
		time.Sleep(time.Second)
		coreSettle()
		require.ElementsMatch(t, []string{"+1s s:a1", "+1s s:b1"}, calls.all()[5:])
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"+2s s:a2", "+2s s:b2"}, calls.all()[7:])
		shutdown(t, bus)
	})
}

func TestD5_TheKeyReachesHandlersAndLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var got journal[string]
		mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			got.add(e.Key)
			d, _ := eventbus.FromContext(ctx)
			got.add(d.Event.Key)
			return eventbus.Permanent(errCore)
		})
		mustPublish(t, bus, "x", nil, eventbus.Key("not this"), eventbus.Key("k"))
		shutdown(t, bus)
		require.Equal(t, []string{"k", "k"}, got.all())
		require.Equal(t, "k", oneLetter(t, bus).Event.Key)
	})
}

func TestD5_BadKeysAreRefused(t *testing.T) {
	bus, _ := newBus(t)
	mustSubscribe(t, bus, "*", ok)
	for _, key := range []string{strings.Repeat("k", 256), "\xff", "a\nb", "a\x00"} {
		_, err := bus.Publish(t.Context(), "x", nil, eventbus.Key(key))
		var bad *eventbus.EventError
		require.ErrorAs(t, err, &bad, "%q", key)
		require.Equal(t, "key", bad.Field)
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
	}
	mustPublish(t, bus, "x", nil, eventbus.Key(strings.Repeat("k", 255)))
	require.EqualValues(t, 1, bus.Metrics().Ledger.Accepted)
}

// However an event of a key ends, and whatever happens on the way there, the next
// one of its key begins then and not before.
func TestD5_TheNextOfAKeyWaitsForTheEnd(t *testing.T) {
	fail := failing(errCore)
	cases := map[string]struct {
		steps []eventbus.Handler
		next  string // when the next of the key begins
	}{
		"handled":       {[]eventbus.Handler{coreSleep(time.Second)}, "+1s"},
		"retries":       {[]eventbus.Handler{fail, fail}, "+20s"},
		"exhausted":     {[]eventbus.Handler{fail, fail, fail}, "+20s"},
		"permanent":     {[]eventbus.Handler{failing(eventbus.Permanent(errCore))}, "+0s"},
		"retry after":   {[]eventbus.Handler{failing(eventbus.RetryAfter(errCore, 7*time.Second))}, "+7s"},
		"panic":         {[]eventbus.Handler{func(context.Context, eventbus.Event) error { panic("p") }}, "+10s"},
		"goexit":        {[]eventbus.Handler{func(context.Context, eventbus.Event) error { runtime.Goexit(); return nil }}, "+10s"},
		"timeout":       {[]eventbus.Handler{func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }}, "+15s"},
		"abandoned":     {[]eventbus.Handler{coreSleep(time.Minute)}, "+15s"},
		"abandoned end": {[]eventbus.Handler{fail, fail, coreSleep(time.Minute)}, "+25s"},
	}
	for name, c := range cases {
		for _, wait := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, waited for: %t", name, wait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bus, _ := startBus(t, eventbus.WithRetry(retry(2, 10*time.Second)), eventbus.WithTimeout(5*time.Second), eventbus.WithCircuit(eventbus.NoCircuit()))
					calls := newCoreCalls()
					mustSubscribe(t, bus, "first", func(ctx context.Context, e eventbus.Event) error { return e.Payload.(*coreScript).run(ctx, e) })
					mustSubscribe(t, bus, "next", calls.handler("s"))
					mustSubscribe(t, bus, "other", calls.handler("other"))
					publish := func(name string, script *coreScript, opts ...eventbus.PublishOption) {
						if !wait {
							mustPublish(t, bus, name, script, opts...)
							return
						}
						go bus.PublishAndWait(t.Context(), name, script, opts...) //nolint:errcheck // some die
						coreSettle()
					}
					publish("first", coreScripted("1", c.steps...), eventbus.Key("k"))
					publish("next", coreScripted("2", coreSleep(time.Second)), eventbus.Key("k"))
					publish("next", coreScripted("3"), eventbus.Key("k"))
					publish("other", coreScripted("4"), eventbus.Key("l"))
					publish("other", coreScripted("5"))
					time.Sleep(5 * time.Minute)
					shutdown(t, bus)
					began, _ := time.ParseDuration(c.next[1:])
					all := calls.all()
					require.ElementsMatch(t, []string{"+0s other:4", "+0s other:5", c.next + " s:2", fmt.Sprintf("+%s s:3", began+time.Second)}, all)
				})
			})
		}
	}
}

// Behind a retry that waits, events of its key are queued, and take its places.
func TestD5_EventsBehindTheirKeyTakePlacesInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithQueueCapacity(3), eventbus.WithRetry(retry(1, time.Minute)))
		calls := newCoreCalls()
		mustSubscribe(t, bus, "x", calls.handler("x"))
		mustSubscribe(t, bus, "y", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.Publish(ctx, "x", "inside", eventbus.Key("k"))
			return err
		})
		mustPublish(t, bus, "x", coreScripted("1", failing(errCore)), eventbus.Key("k"))
		coreSettle()
		mustPublish(t, bus, "x", 2, eventbus.Key("k"))
		mustPublish(t, bus, "x", 3, eventbus.Key("k"))
		coreSettle()
		m := bus.Metrics()
		require.Equal(t, 2, m.QueueDepth)
		require.EqualValues(t, 2, m.Ledger.Queued)
		require.EqualValues(t, 1, m.Ledger.Waiting)
		requireBalanced(t, bus)

		mustPublish(t, bus, "y", nil) // the last place; its handler needs no other
		coreSettle()
		require.Equal(t, 3, bus.Metrics().QueueDepth)
		inside := make(chan error, 1)
		go func() {
			_, err := bus.Publish(t.Context(), "x", 4)
			inside <- err
		}()
		coreSettle()
		require.Empty(t, inside, "no place, though every worker is idle")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := bus.Publish(short, "x", 5, eventbus.Key("k"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(2 * time.Minute)
		require.NoError(t, <-inside)
		shutdown(t, bus)
		all := calls.all()
		require.Equal(t, []string{"+0s x:1", "+1m0s x:1", "+1m0s x:2"}, all[:3])
		require.ElementsMatch(t, []string{"+1m0s x:3", "+1m0s x:inside", "+1m0s x:4"}, all[3:])
	})
}

func TestD5_AHandlersPublishExceedsAQueueFullOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithQueueCapacity(1))
		calls := newCoreCalls()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", coreScripted("1", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second) // 2 has taken the only place
			for i := range 3 {
				if _, err := bus.Publish(ctx, "x", fmt.Sprint("inside", i), eventbus.Key("k")); err != nil {
					return err
				}
			}
			return nil
		}), eventbus.Key("k"))
		coreSettle()
		mustPublish(t, bus, "x", "2", eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)
		require.Equal(t, []string{"+0s s:1", "+1s s:2", "+1s s:inside0", "+1s s:inside1", "+1s s:inside2"}, calls.all())
		require.EqualValues(t, 3, bus.Metrics().QueueOverflows)
	})
}

func TestD5_KeysLeaveNoMemory(t *testing.T) {
	const at = 100_000 // at the same time
	through := 1_000_000
	if testing.Short() {
		through = 0
	}
	for _, opts := range [][]eventbus.Option{nil, {eventbus.WithIsolation()}} {
		bus, _ := newBus(t, append(opts, eventbus.WithQueueCapacity(at))...)
		var handled atomic.Int64
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { handled.Add(1); return nil })
		before := heap()
		publish := func(n int) {
			for i := range n {
				mustPublish(t, bus, "x", nil, eventbus.Key(fmt.Sprint("key-", i)))
			}
		}
		publish(at)
		require.Greater(t, heap()-before, int64(at*100))
		require.NoError(t, bus.Start(t.Context()))
		publish(through)
		for handled.Load() < int64(at+through) {
			runtime.Gosched()
		}
		shutdown(t, bus)
		// The runtime keeps some hundred bytes for each goroutine that there was,
		// and there may have been as many as the concurrency allows.
		require.Less(t, heap()-before, int64(12<<20))
		runtime.KeepAlive(bus)
	}
}

func TestD5_TheOrderOfEachPublisherIsKept(t *testing.T) {
	const publishers, keys, each = 8, 5, 400
	for _, opts := range [][]eventbus.Option{nil, {eventbus.WithIsolation()}, {eventbus.WithQueueCapacity(16)}} {
		bus, _ := startBus(t, append(opts, eventbus.WithRetry(retry(3, 0)), eventbus.WithCircuit(eventbus.NoCircuit()))...)
		type place struct{ publisher, key int }
		type numbered struct {
			place
			n int
		}
		var mu sync.Mutex
		next := map[string]map[place]int{"a": {}, "b": {}}
		running := make(map[string]int) // by subscription, or all, and key
		wrong := 0
		for _, name := range []string{"a", "b"} {
			mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
				p := e.Payload.(numbered)
				mu.Lock()
				running[name+e.Key]++
				if running[name+e.Key] > 1 {
					wrong++
				}
				mu.Unlock()
				runtime.Gosched()
				mu.Lock()
				defer mu.Unlock()
				running[name+e.Key]--
				if d, _ := eventbus.FromContext(ctx); p.n%7 == 0 && d.Attempt == 1 {
					return errCore
				}
				if next[name][p.place] != p.n {
					wrong++
				}
				next[name][p.place] = p.n + 1
				return nil
			})
		}
		var wg sync.WaitGroup
		for p := range publishers {
			wg.Go(func() {
				for n := range each {
					for k := range keys {
						_, err := bus.Publish(context.Background(), "x", numbered{place{p, k}, n}, eventbus.Key(fmt.Sprint(k)))
						if err != nil {
							panic(err)
						}
					}
				}
			})
		}
		wg.Wait()
		shutdown(t, bus)
		require.Zero(t, wrong)
		for _, of := range next {
			require.Len(t, of, publishers*keys)
			for _, n := range of {
				require.Equal(t, each, n)
			}
		}
	}
}

func TestD5_AReplayTakesItsKeysPlaceNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCoreCalls()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", coreScripted("dies", failing(eventbus.Permanent(errCore)), coreSleep(time.Second)), eventbus.Key("k"))
		coreSettle()
		mustPublish(t, bus, "x", coreScripted("1", coreSleep(time.Second)), eventbus.Key("k"))
		mustPublish(t, bus, "x", "2", eventbus.Key("k"))
		coreSettle()
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		mustPublish(t, bus, "x", "3", eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)
		require.Equal(t, []string{"+0s s:dies", "+0s s:1", "+1s s:2", "+1s s:dies", "+2s s:3"}, calls.all())
	})
}

func TestD5_ADelayedEventTakesItsPlaceWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCoreCalls()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", coreScripted("later", coreSleep(time.Second)), eventbus.Key("k"), eventbus.After(5*time.Second))
		mustPublish(t, bus, "x", "1", eventbus.Key("k"))
		time.Sleep(4500 * time.Millisecond)
		mustPublish(t, bus, "x", coreScripted("2", coreSleep(time.Second)), eventbus.Key("k"))
		mustPublish(t, bus, "x", coreScripted("3", coreSleep(time.Second)), eventbus.Key("k"))
		time.Sleep(600 * time.Millisecond)
		mustPublish(t, bus, "x", "4", eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)
		require.Equal(t, []string{"+0s s:1", "+4.5s s:2", "+5.5s s:3", "+6.5s s:later", "+7.5s s:4"}, calls.all())
	})
}

// What is held keeps its key's place at its own subscription, and nowhere else.
func TestD5_AHeldDeliveryHoldsItsKeyAtItsSubscriptionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCoreCalls()
		a := mustSubscribe(t, bus, "*", calls.handler("a"), eventbus.Named("a"))
		mustSubscribe(t, bus, "*", calls.handler("b"))
		require.NoError(t, a.Pause())
		for i := range 3 {
			mustPublish(t, bus, "x", coreScripted(fmt.Sprint(i), coreSleep(time.Second)), eventbus.Key("k"))
		}
		mustPublish(t, bus, "x", "free")
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"+0s b:0", "+0s b:free", "+1s b:1", "+2s b:2"}, calls.all())
		require.Equal(t, 4, metricsOf(t, bus, "a").Held)
		require.NoError(t, a.Resume())
		mustPublish(t, bus, "x", coreScripted("3"), eventbus.Key("k")) // at a, behind the others
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"+1m0s a:0", "+1m0s a:free", "+1m0s b:3", "+1m0s a:1", "+1m0s a:2", "+1m0s a:3"}, calls.all()[4:])
		shutdown(t, bus)
	})
}

// Once let go, a held delivery has its key's place at its subscription until it
// has settled: while it runs, while it waits for a retry, and while the circuit
// has long been closed.
func TestD5_AHeldDeliveryThatIsLetGoIsStillBeforeLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, 10*time.Second)))
		calls := newCoreCalls()
		a := mustSubscribe(t, bus, "*", calls.handler("a"), eventbus.Named("a"))
		mustSubscribe(t, bus, "*", calls.handler("b"))
		require.NoError(t, a.Pause())
		mustPublish(t, bus, "x", coreScripted("1", ok, coreSleep(time.Second), failing(errCore), coreSleep(time.Second)), eventbus.Key("k"))
		coreSettle()
		require.NoError(t, a.Resume())
		coreSettle()
		mustPublish(t, bus, "x", "2", eventbus.Key("k")) // while 1 runs
		coreSettle()
		require.Equal(t, []string{"+0s b:1", "+0s a:1", "+0s b:2"}, calls.all())
		require.Equal(t, 1, metricsOf(t, bus, "a").Held)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"+1s a:2"}, calls.all()[3:])

		// Again, with a retry.
		require.NoError(t, a.Pause())
		mustPublish(t, bus, "x", coreScripted("3", ok, failing(errCore)), eventbus.Key("k"))
		coreSettle()
		require.NoError(t, a.Resume())
		time.Sleep(time.Second) // 3 waits for its retry
		mustPublish(t, bus, "x", "4", eventbus.Key("k"))
		mustPublish(t, bus, "x", "5", eventbus.Key("other"))
		mustPublish(t, bus, "x", "6", eventbus.Key("k"))
		coreSettle()
		require.Equal(t, eventbus.CircuitClosed, metricsOf(t, bus, "a").Circuit)
		require.Equal(t, 2, metricsOf(t, bus, "a").Held)
		time.Sleep(time.Minute)
		var at []string
		for _, c := range calls.all()[4:] {
			if strings.Contains(c, " a:") {
				at = append(at, c)
			}
		}
		require.Equal(t, []string{"+1m0s a:3", "+1m1s a:5", "+1m10s a:3", "+1m10s a:4", "+1m10s a:6"}, at)
		require.Zero(t, metricsOf(t, bus, "a").Held)
		shutdown(t, bus)
	})
}

func TestD5_PublishingOnesOwnKeyInsideAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range [][]eventbus.Option{nil, {eventbus.WithIsolation()}} {
			bus, _ := startBus(t, append(opts, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(1))...)
			var got journal[any]
			mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
				got.add(e.Payload)
				if n := e.Payload.(int); n < 100 {
					_, err := bus.Publish(ctx, "x", n+1, eventbus.Key("k"))
					return err
				}
				return nil
			})
			mustPublish(t, bus, "x", 0, eventbus.Key("k"))
			time.Sleep(time.Minute)
			require.Equal(t, 101, got.len())
			shutdown(t, bus)
		}
	})
}

func TestD7_WaitingForOnesOwnKeyWouldDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		var errs journal[error]
		waits := func(eventType string, opts ...eventbus.PublishOption) eventbus.Handler {
			return func(ctx context.Context, _ eventbus.Event) error {
				ctx, cancel := context.WithCancel(ctx) // derived
				defer cancel()
				_, err := bus.PublishAndWait(ctx, eventType, nil, opts...)
				errs.add(err)
				return nil
			}
		}
		mustSubscribe(t, bus, "end", ok)
		mustSubscribe(t, bus, "own", waits("end", eventbus.Key("k")))
		mustSubscribe(t, bus, "later", waits("end", eventbus.Key("k"), eventbus.After(time.Second)))
		mustSubscribe(t, bus, "other", waits("end", eventbus.Key("l")))
		mustSubscribe(t, bus, "none", waits("end"))
		mustSubscribe(t, bus, "unrouted", waits("nobody", eventbus.Key("k")))
		mustSubscribe(t, bus, "chain", waits("middle"))
		mustSubscribe(t, bus, "middle", waits("middle2", eventbus.Key("m")))
		mustSubscribe(t, bus, "middle2", waits("own"))
		mustSubscribe(t, bus, "nokey", waits("end", eventbus.Key("k")))
		for _, c := range []struct {
			eventType, key string
			refused, of    int // waits
		}{
			{"own", "k", 1, 1},
			{"later", "k", 1, 1},
			{"other", "k", 0, 1},
			{"none", "k", 0, 1},
			{"unrouted", "k", 0, 1},
			{"chain", "k", 1, 4},
			{"chain", "other", 0, 4},
			{"nokey", "", 0, 1},
		} {
			before := errs.len()
			mustPublish(t, bus, c.eventType, nil, eventbus.Key(c.key))
			time.Sleep(time.Minute)
			all := errs.all()[before:]
			require.Len(t, all, c.of, c)
			for i, err := range all {
				if i < c.refused {
					require.ErrorIs(t, err, eventbus.ErrWouldDeadlock, c)
					require.ErrorContains(t, err, `"k"`)
				} else {
					require.NoError(t, err, c)
				}
			}
		}
		require.Zero(t, bus.Metrics().Subscriptions[0].Timeouts)
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// On a bus with isolation a key has a place for each subscription: it is a deadlock
// only where the event that waits is.
func TestD7_WaitingForOnesOwnKeyInIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithIsolation())
		var errs journal[error]
		waits := func(eventType string) eventbus.Handler {
			return func(ctx context.Context, e eventbus.Event) error {
				if e.Payload != nil {
					return nil
				}
				_, err := bus.PublishAndWait(ctx, eventType, "inner", eventbus.Key("k"))
				errs.add(err)
				return nil
			}
		}
		mustSubscribe(t, bus, "{a,both}", waits("b"))
		mustSubscribe(t, bus, "{b,both}", waits("both"))
		mustPublish(t, bus, "a", nil, eventbus.Key("k")) // waits for b, where it has no place
		time.Sleep(time.Second)
		mustPublish(t, bus, "b", nil, eventbus.Key("k")) // waits for both, of which b is one
		time.Sleep(time.Minute)
		require.Equal(t, 2, errs.len())
		require.NoError(t, errs.all()[0])
		require.ErrorIs(t, errs.all()[1], eventbus.ErrWouldDeadlock)
		shutdown(t, bus)
	})
}

// A held delivery has no place but at its subscription, where later ones are held
// behind it: to wait for one of them is no deadlock.
func TestD7_AHeldDeliveryMayWaitForItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var results journal[eventbus.Result]
		s := mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			if e.Payload != nil {
				return nil
			}
			r, err := bus.PublishAndWait(ctx, "x", "inner", eventbus.Key("k"))
			results.add(r)
			return err
		}, eventbus.Named("s"))
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "x", nil, eventbus.Key("k"))
		coreSettle()
		require.NoError(t, s.Resume())
		time.Sleep(time.Minute)
		require.Equal(t, 1, results.len())
		require.Equal(t, eventbus.Held, results.all()[0].Outcome)
		require.Equal(t, []string{"s"}, results.all()[0].Held)
		shutdown(t, bus)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Handled)
	})
}

// A long line behind a key, cut: every one is a letter.
func TestS2_ALineBehindAKeyIsCut(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		for _, first := range []string{"runs", "waits for a retry"} {
			synctest.Test(t, func(t *testing.T) {
				const n = 3000
				var opts []eventbus.Option
				if isolated {
					opts = append(opts, eventbus.WithIsolation())
				}
				bus, _ := startBus(t, append(opts, eventbus.WithRetry(retry(1, time.Hour)))...)
				mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
					if first == "runs" {
						<-ctx.Done()
					}
					return errCore
				})
				for i := range n {
					mustPublish(t, bus, "x", i, eventbus.Key("k"))
				}
				coreSettle()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var left *eventbus.ShutdownError
				require.ErrorAs(t, bus.Shutdown(ctx), &left)
				require.Len(t, left.Unfinished, n)
				requireBalanced(t, bus)
				seen := make(map[any]bool)
				for _, l := range letters(t, bus) {
					require.Equal(t, eventbus.ReasonShutdown, l.Reason)
					seen[l.Event.Payload] = true
				}
				require.Len(t, seen, n)
				coreSettle()
			})
		}
	}
}

func TestS2_AGracefulShutdownWaitsForALineBehindAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCoreCalls()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		for i := range 100 {
			mustPublish(t, bus, "x", coreScripted(fmt.Sprint(i), coreSleep(time.Second)), eventbus.Key("k"))
		}
		shutdown(t, bus)
		require.Equal(t, 100, calls.len())
		require.Equal(t, "+1m39s s:99", calls.all()[99])
	})
}

// What has come behind a busy key has its turn before all of the key has been run,
// also where there is one worker only.
func TestD5_ABusyKeyHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(eventbus.NoJitter))
		var ran atomic.Int64
		mustSubscribe(t, bus, "busy", func(context.Context, eventbus.Event) error {
			if ran.Add(1) == 1 {
				return errBoom // all others wait behind it
			}
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		begun := make(chan time.Time, 1)
		mustSubscribe(t, bus, "other", func(context.Context, eventbus.Event) error {
			begun <- time.Now()
			return nil
		})
		for range 1000 {
			mustPublish(t, bus, "busy", nil, eventbus.Key("k"))
		}
		for ran.Load() < 2 {
			time.Sleep(time.Millisecond)
		}
		published := time.Now()
		mustPublish(t, bus, "other", nil)
		require.Less(t, (<-begun).Sub(published), time.Second)
		shutdown(t, bus)
	})
}
