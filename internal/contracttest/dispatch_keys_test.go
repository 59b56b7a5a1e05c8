package contracttest

import (
	"context"
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

func TestD5_ALaterEventOfAKeyStaysBehindWhatIsHeldAlsoAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, eventbus.WithConcurrency(2))
		s := q.subscribe(t, "order.*")
		first, others := make(chan struct{}), make(chan struct{})
		q.handle[0] = func(context.Context, eventbus.Event) error { <-first; return nil }
		q.handle[1] = func(context.Context, eventbus.Event) error { <-others; return nil }
		require.NoError(t, q.bus.Start(t.Context()))
		require.NoError(t, s.Trip())
		mustPublish(t, q.bus, "order.placed", 0, eventbus.Key("k"))
		synctest.Wait()
		require.NoError(t, s.Reset())
		synctest.Wait()
		for i := 1; i < 8; i++ {
			var opts []eventbus.PublishOption
			if i == 5 {
				opts = append(opts, eventbus.Key("k"))
			}
			mustPublish(t, q.bus, "order.placed", i, opts...)
		}
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 1}, q.ran.all())
		close(others)
		time.Sleep(time.Second)
		require.Equal(t, []int{0, 1, 2, 3, 4, 6, 7}, q.ran.all())
		close(first)
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 6, 7, 5}, q.ran.all())
		shutdown(t, q.bus)
	})
}

// A dispatch that is held whole gives up its key's place: events of the key for other
// subscriptions go on.
func TestD5_WhatIsHeldWholeHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		s := mustSubscribe(t, bus, "a", calls.handler("s"))
		mustSubscribe(t, bus, "b", calls.handler("other"))
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		mustPublish(t, bus, "b", "2", eventbus.Key("k"))
		settleWorkers()
		require.Equal(t, 1, calls.len())
		require.Equal(t, 1, bus.Metrics().Held)
		require.NoError(t, s.Resume())
		settleWorkers()
		require.Equal(t, 2, calls.len())
		shutdown(t, bus)
	})
}

func TestD5_EventsOfAKeyComeOneAfterAnotherInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		for i := range 3 {
			for _, key := range []string{"a", "b", ""} {
				mustPublish(t, bus, "x", scripted(fmt.Sprint(key, i), sleepFor(time.Second)), eventbus.Key(key))
			}
		}
		settleWorkers()
		require.ElementsMatch(t, []string{"+0s s:a0", "+0s s:b0", "+0s s:0", "+0s s:1", "+0s s:2"}, calls.all())
		time.Sleep(time.Second)
		settleWorkers()
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
			return eventbus.Permanent(errBoom)
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
	fail := failing(errBoom)
	cases := map[string]struct {
		steps []eventbus.Handler
		next  string // when the next of the key begins
	}{
		"handled":       {[]eventbus.Handler{sleepFor(time.Second)}, "+1s"},
		"retries":       {[]eventbus.Handler{fail, fail}, "+20s"},
		"exhausted":     {[]eventbus.Handler{fail, fail, fail}, "+20s"},
		"permanent":     {[]eventbus.Handler{failing(eventbus.Permanent(errBoom))}, "+0s"},
		"retry after":   {[]eventbus.Handler{failing(eventbus.RetryAfter(errBoom, 7*time.Second))}, "+7s"},
		"panic":         {[]eventbus.Handler{func(context.Context, eventbus.Event) error { panic("p") }}, "+10s"},
		"goexit":        {[]eventbus.Handler{func(context.Context, eventbus.Event) error { runtime.Goexit(); return nil }}, "+10s"},
		"timeout":       {[]eventbus.Handler{func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }}, "+15s"},
		"abandoned":     {[]eventbus.Handler{sleepFor(time.Minute)}, "+15s"},
		"abandoned end": {[]eventbus.Handler{fail, fail, sleepFor(time.Minute)}, "+25s"},
	}
	for name, c := range cases {
		for _, wait := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, waited for: %t", name, wait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bus, _ := startBus(t, eventbus.WithRetry(retry(2, 10*time.Second)), eventbus.WithTimeout(5*time.Second), eventbus.WithCircuit(eventbus.NoCircuit()))
					calls := newCallLog()
					mustSubscribe(t, bus, "first", func(ctx context.Context, e eventbus.Event) error { return e.Payload.(*stepScript).run(ctx, e) })
					mustSubscribe(t, bus, "next", calls.handler("s"))
					mustSubscribe(t, bus, "other", calls.handler("other"))
					publish := func(name string, script *stepScript, opts ...eventbus.PublishOption) {
						if !wait {
							mustPublish(t, bus, name, script, opts...)
							return
						}
						go bus.PublishAndWait(t.Context(), name, script, opts...) //nolint:errcheck // some die
						settleWorkers()
					}
					publish("first", scripted("1", c.steps...), eventbus.Key("k"))
					publish("next", scripted("2", sleepFor(time.Second)), eventbus.Key("k"))
					publish("next", scripted("3"), eventbus.Key("k"))
					publish("other", scripted("4"), eventbus.Key("l"))
					publish("other", scripted("5"))
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
		calls := newCallLog()
		mustSubscribe(t, bus, "x", calls.handler("x"))
		mustSubscribe(t, bus, "y", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.Publish(ctx, "x", "inside", eventbus.Key("k"))
			return err
		})
		mustPublish(t, bus, "x", scripted("1", failing(errBoom)), eventbus.Key("k"))
		settleWorkers()
		mustPublish(t, bus, "x", 2, eventbus.Key("k"))
		mustPublish(t, bus, "x", 3, eventbus.Key("k"))
		settleWorkers()
		m := bus.Metrics()
		require.Equal(t, 2, m.QueueDepth)
		require.EqualValues(t, 2, m.Ledger.Queued)
		require.EqualValues(t, 1, m.Ledger.Waiting)
		requireBalanced(t, bus)

		mustPublish(t, bus, "y", nil) // the last place; its handler needs no other
		settleWorkers()
		require.Equal(t, 3, bus.Metrics().QueueDepth)
		inside := make(chan error, 1)
		go func() {
			_, err := bus.Publish(t.Context(), "x", 4)
			inside <- err
		}()
		settleWorkers()
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
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", scripted("1", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second) // 2 has taken the only place
			for i := range 3 {
				if _, err := bus.Publish(ctx, "x", fmt.Sprint("inside", i), eventbus.Key("k")); err != nil {
					return err
				}
			}
			return nil
		}), eventbus.Key("k"))
		settleWorkers()
		mustPublish(t, bus, "x", "2", eventbus.Key("k"))
		time.Sleep(time.Minute)
		shutdown(t, bus)
		require.Equal(t, []string{"+0s s:1", "+1s s:2", "+1s s:inside0", "+1s s:inside1", "+1s s:inside2"}, calls.all())
		require.EqualValues(t, 3, bus.Metrics().QueueOverflows)
	})
}

func TestD5_KeysLeaveNoMemory(t *testing.T) {
	ofManyEvents(t)
	const at = 100_000 // at the same time
	through := searching(300_000, 50_000)
	for _, opts := range [][]eventbus.Option{nil, {eventbus.WithIsolation()}} {
		bus, _ := newBus(t, append(opts, eventbus.WithQueueCapacity(at))...)
		var handled atomic.Int64
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { handled.Add(1); return nil })
		before := heldBytes()
		publish := func(n int) {
			for i := range n {
				mustPublish(t, bus, "x", nil, eventbus.Key(fmt.Sprint("key-", i)))
			}
		}
		publish(at)
		require.Greater(t, heldBytes()-before, int64(at*100))
		require.NoError(t, bus.Start(t.Context()))
		publish(through)
		for handled.Load() < int64(at+through) {
			runtime.Gosched()
		}
		shutdown(t, bus)
		// The runtime keeps some hundred bytes for each goroutine that there was,
		// and there may have been as many as the concurrency allows.
		require.Less(t, heldBytes()-before, int64(12<<20))
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
					return errBoom
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
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", scripted("dies", failing(eventbus.Permanent(errBoom)), sleepFor(time.Second)), eventbus.Key("k"))
		settleWorkers()
		mustPublish(t, bus, "x", scripted("1", sleepFor(time.Second)), eventbus.Key("k"))
		mustPublish(t, bus, "x", "2", eventbus.Key("k"))
		settleWorkers()
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
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", scripted("later", sleepFor(time.Second)), eventbus.Key("k"), eventbus.After(5*time.Second))
		mustPublish(t, bus, "x", "1", eventbus.Key("k"))
		time.Sleep(4500 * time.Millisecond)
		mustPublish(t, bus, "x", scripted("2", sleepFor(time.Second)), eventbus.Key("k"))
		mustPublish(t, bus, "x", scripted("3", sleepFor(time.Second)), eventbus.Key("k"))
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
		calls := newCallLog()
		a := mustSubscribe(t, bus, "*", calls.handler("a"), eventbus.Named("a"))
		mustSubscribe(t, bus, "*", calls.handler("b"))
		require.NoError(t, a.Pause())
		for i := range 3 {
			mustPublish(t, bus, "x", scripted(fmt.Sprint(i), sleepFor(time.Second)), eventbus.Key("k"))
		}
		mustPublish(t, bus, "x", "free")
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"+0s b:0", "+0s b:free", "+1s b:1", "+2s b:2"}, calls.all())
		require.Equal(t, 4, metricsOf(t, bus, "a").Held)
		require.NoError(t, a.Resume())
		mustPublish(t, bus, "x", scripted("3"), eventbus.Key("k")) // at a, behind the others
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
		calls := newCallLog()
		a := mustSubscribe(t, bus, "*", calls.handler("a"), eventbus.Named("a"))
		mustSubscribe(t, bus, "*", calls.handler("b"))
		require.NoError(t, a.Pause())
		mustPublish(t, bus, "x", scripted("1", ok, sleepFor(time.Second), failing(errBoom), sleepFor(time.Second)), eventbus.Key("k"))
		settleWorkers()
		require.NoError(t, a.Resume())
		settleWorkers()
		mustPublish(t, bus, "x", "2", eventbus.Key("k")) // while 1 runs
		settleWorkers()
		require.Equal(t, []string{"+0s b:1", "+0s a:1", "+0s b:2"}, calls.all())
		require.Equal(t, 1, metricsOf(t, bus, "a").Held)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"+1s a:2"}, calls.all()[3:])

		// Again, with a retry.
		require.NoError(t, a.Pause())
		mustPublish(t, bus, "x", scripted("3", ok, failing(errBoom)), eventbus.Key("k"))
		settleWorkers()
		require.NoError(t, a.Resume())
		time.Sleep(time.Second) // 3 waits for its retry
		mustPublish(t, bus, "x", "4", eventbus.Key("k"))
		mustPublish(t, bus, "x", "5", eventbus.Key("other"))
		mustPublish(t, bus, "x", "6", eventbus.Key("k"))
		settleWorkers()
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

func TestD5_ALaterEventOfAKeyStaysBehindWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 4 { // some runs are timed, and have no step to the next one
			s := newSequence(t, nil)
			var got journal[string]
			release := make(chan struct{})
			s.handle[3] = func(_ context.Context, e eventbus.Event) error {
				who, _ := e.Metadata.Lookup("who")
				got.add(who)
				if who == "first" {
					<-release
				}
				return nil
			}
			require.NoError(t, s.subscriptions[3].Trip())
			s.publish(t, eventbus.Key("k"), eventbus.Metadata("who", "first"))
			require.NoError(t, s.subscriptions[3].Reset())
			synctest.Wait()
			require.Equal(t, []string{"first"}, got.all())
			s.publish(t, eventbus.Key("k"), eventbus.Metadata("who", "second"))
			time.Sleep(time.Second) // for another worker
			require.Equal(t, []string{"first"}, got.all())
			require.Len(t, s.ran.all(), 9, "the others have had both")
			s.publish(t, eventbus.Metadata("who", "another"))
			time.Sleep(time.Second)
			require.Equal(t, []string{"first", "another"}, got.all(), "it has no key")
			close(release)
			synctest.Wait()
			require.Equal(t, []string{"first", "another", "second"}, got.all())
			shutdown(t, s.bus)
		}
	})
}
