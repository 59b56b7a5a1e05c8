package eventbus_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// queue is a bus with one worker and events that wait for it. Their handlers ask nothing
// of their contexts but what a test has them ask, so that there is one step from each
// event to the next, from the second one on. Payloads are numbers, from 0 on.
type queue struct {
	bus    *eventbus.Bus
	handle map[int]eventbus.Handler // by payload; without one it succeeds
	ran    journal[int]
}

func newQueue(t *testing.T, opts ...eventbus.Option) *queue {
	t.Helper()
	q := &queue{handle: make(map[int]eventbus.Handler)}
	q.bus, _ = newBus(t, append([]eventbus.Option{eventbus.WithConcurrency(1), eventbus.WithLogger(zap.NewNop())}, opts...)...)
	return q
}

// subscribe adds a subscription that does with each event what is to be done.
func (q *queue) subscribe(t *testing.T, pattern string, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	return mustSubscribe(t, q.bus, pattern, func(ctx context.Context, e eventbus.Event) error {
		q.ran.add(e.Payload.(int))
		if h := q.handle[e.Payload.(int)]; h != nil {
			return h(ctx, e)
		}
		return nil
	}, opts...)
}

// run publishes n events of a type, and has them run.
func (q *queue) run(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		mustPublish(t, q.bus, "order.placed", i)
	}
	require.NoError(t, q.bus.Start(t.Context()))
	synctest.Wait()
}

func count(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// What an event is, and what its context says, is its own, whatever the events before and
// after it are.
func TestE4_EachOfManyEventsHasItsOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		const n = 500
		q := newQueue(t)
		var want []eventbus.Event
		var before context.Context
		seen := 0
		for _, pattern := range []string{"*.placed", "order.*", "{stock,order}.*"} {
			mustSubscribe(t, q.bus, pattern, func(ctx context.Context, e eventbus.Event) error {
				i := e.Payload.(int)
				require.NoError(t, ctx.Err())
				require.Equal(t, want[i].ID, e.ID)
				require.Equal(t, want[i].Type, e.Type)
				require.Equal(t, want[i].Key, e.Key)
				require.WithinDuration(t, want[i].Time, e.Time, time.Millisecond)
				note, _ := e.Metadata.Lookup("note")
				require.Equal(t, i%5 == 2, note == fmt.Sprint(i))
				if i%7 == 3 {
					require.Equal(t, i, ctx.Value(key{}))
				} else {
					require.Nil(t, ctx.Value(key{}))
				}
				if i%6 == 0 { // most are asked nothing while they run
					d, running := eventbus.FromContext(ctx)
					require.True(t, running)
					require.Equal(t, e, d.Event)
					require.Equal(t, pattern, d.Subscription)
					require.Equal(t, 1, d.Attempt)
				}
				if before != nil {
					require.ErrorIs(t, before.Err(), context.Canceled)
					<-before.Done()
				}
				before = nil
				if i%4 != 1 {
					before = ctx
				}
				seen++
				return nil
			}, eventbus.Named(pattern))
		}
		handlers := 0
		for i := range n {
			ctx := t.Context()
			var opts []eventbus.PublishOption
			e := eventbus.Event{Type: []string{"order.placed", "stock.placed", "order.shipped", "bill.placed"}[i/11%4]}
			handlers += []int{3, 2, 2, 1}[i/11%4]
			if i%5 == 2 {
				opts = append(opts, eventbus.Metadata("note", fmt.Sprint(i)))
			}
			if i%7 == 3 {
				ctx = context.WithValue(ctx, key{}, i)
			}
			if i%13 == 6 {
				e.Key = fmt.Sprint(i % 2)
				opts = append(opts, eventbus.Key(e.Key))
			}
			if i%17 == 9 {
				opts = append(opts, eventbus.ID(eventbus.NewEventID()))
			}
			if i%3 == 2 {
				time.Sleep(5 * time.Millisecond)
			}
			e.Time = time.Now()
			var err error
			e.ID, err = q.bus.Publish(ctx, e.Type, i, opts...)
			require.NoError(t, err)
			want = append(want, e)
		}
		require.NoError(t, q.bus.Start(t.Context()))
		synctest.Wait()
		require.Equal(t, handlers, seen)
		shutdown(t, q.bus)
	})
}

// Whoever looks from inside a handler finds the books as they are: the events before
// are counted, and its own runs.
func TestO4_TheBooksBalanceInEveryHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		q := newQueue(t)
		q.subscribe(t, "order.*", eventbus.Named("s"))
		for i := range n {
			q.handle[i] = func(context.Context, eventbus.Event) error {
				require.Equal(t, eventbus.Ledger{Accepted: n, Handled: int64(i), Queued: int64(n - 1 - i), Running: 1}, q.bus.Metrics().Ledger)
				require.EqualValues(t, i, metricsOf(t, q.bus, "s").Successes)
				return nil
			}
		}
		q.run(t, n)
		require.Equal(t, count(n), q.ran.all())
		shutdown(t, q.bus)
	})
}

func TestF1_AnOverrunIsThatOfTheEventThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		q := newQueue(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithTimeout(10*time.Second))
		q.subscribe(t, "order.*", eventbus.Named("s"))
		release := make(chan struct{})
		q.handle[5] = func(ctx context.Context, _ eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
				<-release
			}
			return nil
		}
		q.run(t, n)
		require.Equal(t, count(6), q.ran.all())
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Equal(t, append(count(n), 5), q.ran.all())
		m := metricsOf(t, q.bus, "s")
		require.EqualValues(t, n, m.Successes)
		require.EqualValues(t, 1, m.Timeouts)
		close(release)
		synctest.Wait()
		require.Empty(t, q.bus.Abandoned())
		require.Equal(t, append(count(n), 5), q.ran.all(), "who comes back late takes nothing")
		shutdown(t, q.bus)
	})
}

func TestF3_HowOneEventEndsIsNoMatterOfTheNext(t *testing.T) {
	for name, end := range map[string]func() error{
		"a failure": func() error { return errBoom },
		"a panic":   func() error { panic("oops") },
		"an exit":   func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 10
				q := newQueue(t, eventbus.WithRetry(retry(1, time.Second)))
				q.subscribe(t, "order.*", eventbus.Named("s"))
				for _, i := range []int{3, 4, 8} {
					attempts := 0
					q.handle[i] = func(context.Context, eventbus.Event) error {
						if attempts++; attempts == 1 {
							return end()
						}
						return nil
					}
				}
				q.run(t, n)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, append(count(n), 3, 4, 8), q.ran.all())
				m := metricsOf(t, q.bus, "s")
				require.EqualValues(t, n, m.Successes)
				require.EqualValues(t, 3, m.Failures)
				require.EqualValues(t, n, q.bus.Metrics().Ledger.Handled)
				shutdown(t, q.bus)
			})
		})
	}
}

// Retries come back to the queue among new events, and go on as themselves.
func TestD3_RetriesAmongNewEventsResumeWhereTheyFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 61
		failures := func(i int) int { return 3 * i % 4 }
		for range 4 { // some runs are timed, and have no step to the next one
			q := newQueue(t, eventbus.WithRetry(retry(3, 5*time.Millisecond)), eventbus.WithCircuit(eventbus.NoCircuit()))
			first, second := 0, make(map[int]int)
			mustSubscribe(t, q.bus, "order.*", func(_ context.Context, e eventbus.Event) error {
				time.Sleep(500 * time.Microsecond) // so that others come due meanwhile
				first++
				return nil
			})
			mustSubscribe(t, q.bus, "order.*", func(ctx context.Context, e eventbus.Event) error {
				i := e.Payload.(int)
				second[i]++
				if second[i] <= failures(i) { // or it asks nothing
					d, _ := eventbus.FromContext(ctx)
					require.Equal(t, second[i], d.Attempt)
					return errBoom
				}
				return nil
			})
			q.run(t, n)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, n, first)
			for i := range n {
				require.Equal(t, 1+failures(i), second[i])
			}
			require.EqualValues(t, n, q.bus.Metrics().Ledger.Handled)
			shutdown(t, q.bus)
		}
	})
}

// A handler decides what becomes of the event after its own.
func TestC6_AnEventMayStopTheNextOne(t *testing.T) {
	const n = 8
	for name, c := range map[string]struct {
		stop func(*eventbus.Subscription) error
		then func(t *testing.T, q *queue, s *eventbus.Subscription)
	}{
		"by a pause": {
			stop: func(s *eventbus.Subscription) error { return s.Pause() },
			then: func(t *testing.T, q *queue, s *eventbus.Subscription) {
				require.Equal(t, count(4), q.ran.all())
				require.NoError(t, s.Resume())
				synctest.Wait()
				require.Equal(t, count(n), q.ran.all())
			},
		},
		"by tripping its circuit": {
			stop: func(s *eventbus.Subscription) error { return s.Trip() },
			then: func(t *testing.T, q *queue, s *eventbus.Subscription) {
				require.Equal(t, count(4), q.ran.all())
				require.NoError(t, s.Reset())
				synctest.Wait()
				require.Equal(t, count(n), q.ran.all())
			},
		},
		"by unsubscribing": {
			stop: func(s *eventbus.Subscription) error { s.Unsubscribe(); return nil },
			then: func(t *testing.T, q *queue, s *eventbus.Subscription) {
				require.Equal(t, count(4), q.ran.all())
				require.Len(t, letters(t, q.bus), n-4)
				for _, l := range letters(t, q.bus) {
					require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for range 4 { // some runs are timed, and have no step to the next one
					q := newQueue(t)
					q.subscribe(t, "order.*")
					s := q.subscribe(t, "bill.*")
					q.handle[3] = func(context.Context, eventbus.Event) error { return c.stop(s) }
					for i := range n {
						mustPublish(t, q.bus, []string{"order.placed", "bill.sent"}[i/4], i)
					}
					require.NoError(t, q.bus.Start(t.Context()))
					synctest.Wait()
					c.then(t, q, s)
					shutdown(t, q.bus)
				}
			})
		})
	}
}

func TestF1_AShortTimeoutIsExactAlsoAfterOtherEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 4 { // some runs are timed, and have no step to the next one
			q := newQueue(t, eventbus.WithRetry(retry(0, 0)))
			q.subscribe(t, "order.*")
			var took time.Duration
			mustSubscribe(t, q.bus, "short", func(ctx context.Context, _ eventbus.Event) error {
				began := time.Now()
				<-ctx.Done()
				took = time.Since(began)
				return nil
			}, eventbus.Timeout(1500*time.Microsecond))
			for i := range 4 {
				mustPublish(t, q.bus, "order.placed", i)
			}
			q.handle[3] = func(context.Context, eventbus.Event) error {
				time.Sleep(300 * time.Microsecond) // between two ticks
				return nil
			}
			mustPublish(t, q.bus, "short", nil)
			require.NoError(t, q.bus.Start(t.Context()))
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, 1500*time.Microsecond, took)
			shutdown(t, q.bus)
		}
	})
}

func TestS2_ACutMeetsTheEventThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		q := newQueue(t)
		q.subscribe(t, "order.*")
		q.handle[4] = func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }
		q.run(t, n)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, q.bus.Shutdown(ctx))
		synctest.Wait()
		require.Equal(t, count(5), q.ran.all())
		require.Len(t, letters(t, q.bus), n-4)
		require.EqualValues(t, 4, q.bus.Metrics().Ledger.Handled)
		requireBalanced(t, q.bus)
	})
}

// Who waits for one of many events is told when it has been handled, and not before.
func TestD7_OneOfManyEventsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		q := newQueue(t)
		q.subscribe(t, "order.*")
		release := make(chan struct{})
		q.handle[0] = func(context.Context, eventbus.Event) error { <-release; return nil }
		require.NoError(t, q.bus.Start(t.Context()))
		mustPublish(t, q.bus, "order.placed", 0)
		synctest.Wait()
		told := make(chan int, n)
		for i := 1; i < n; i++ {
			if i%3 != 0 {
				mustPublish(t, q.bus, "order.placed", i)
				continue
			}
			go func() {
				r, err := q.bus.PublishAndWait(t.Context(), "order.placed", i)
				assert.NoError(t, err)
				assert.Equal(t, eventbus.Handled, r.Outcome)
				assert.Equal(t, 1, r.Attempts)
				assert.Contains(t, q.ran.all(), i)
				told <- i
			}()
			synctest.Wait()
		}
		close(release)
		synctest.Wait()
		require.Equal(t, count(n), q.ran.all())
		require.Len(t, told, (n-1)/3)
		shutdown(t, q.bus)
	})
}

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

func TestP1_EachOfManyEventsIsJudgedByItsOwnPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, eventbus.WithRetry(retry(1, time.Second)))
		never := eventbus.RetryIf(func(error) bool { return false })
		q.subscribe(t, "picky", eventbus.Retry(never))
		q.subscribe(t, "order")
		for i := range 12 {
			mustPublish(t, q.bus, []string{"order", "picky"}[i/3%2], i)
		}
		q.handle[3], q.handle[9] = failing(errBoom), failing(errBoom)
		require.NoError(t, q.bus.Start(t.Context()))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, count(12), q.ran.all())
		require.Len(t, letters(t, q.bus), 2)
		shutdown(t, q.bus)
	})
}

// An event that has been handled is let go of, also if the handler of the next one never
// returns, or ends its goroutine and has its context kept.
func TestE4_AHandledEventIsLetGo(t *testing.T) {
	for name, end := range map[string]func(release chan struct{}){
		"the next one hangs": func(release chan struct{}) { <-release },
		"the next one exits": func(chan struct{}) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			bus, _ := newBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(0, 0)), eventbus.WithLogger(zap.NewNop()))
			in, release := make(chan struct{}), make(chan struct{})
			var kept context.Context
			mustSubscribe(t, bus, "**", func(ctx context.Context, e eventbus.Event) error {
				if e.Type == "last" {
					kept = ctx
					close(in)
					end(release)
				}
				return nil
			})
			var payloads []weak.Pointer[[4096]byte]
			for range 8 { // some runs are timed, and have no step to the next one
				payload := new([4096]byte)
				payloads = append(payloads, weak.Make(payload))
				mustPublish(t, bus, "order.placed", payload)
			}
			mustPublish(t, bus, "last", nil)
			require.NoError(t, bus.Start(t.Context()))
			<-in
			require.Eventually(t, func() bool {
				runtime.GC()
				for _, p := range payloads {
					if p.Value() != nil {
						return false
					}
				}
				return true
			}, 10*time.Second, time.Millisecond)
			runtime.KeepAlive(kept)
			close(release)
			shutdown(t, bus)
		})
	}
}

// Two chains of handlers that publish with their contexts, of which one ends its
// goroutine each time: what a worker has run last in its other place is not kept by the
// contexts of the chains.
func TestE4_ChainsOfHandlersKeepLittle(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithConcurrency(1), eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithLogger(zap.NewNop()),
		eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithDeadLetterCapacity(1))
	const rounds, startsLate = 1500, 50
	type link struct {
		n       int
		payload *[4096]byte
	}
	type key struct{}
	var payloads []weak.Pointer[[4096]byte]
	next := func(n int) *link {
		payload := new([4096]byte)
		payloads = append(payloads, weak.Make(payload))
		return &link{n, payload}
	}
	publish := func(ctx context.Context, e eventbus.Event) {
		l := e.Payload.(*link)
		ctx = context.WithValue(ctx, key{}, l.n)
		if e.Type == "b" && l.n < startsLate { // so that the chains start afresh at different times
			ctx = t.Context()
		}
		if l.n < rounds {
			_, err := bus.Publish(ctx, e.Type, next(l.n+1))
			require.NoError(t, err)
		}
	}
	kept := make(chan int, 1)
	mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
		publish(ctx, e)
		return nil
	})
	mustSubscribe(t, bus, "b", func(ctx context.Context, e eventbus.Event) error {
		publish(ctx, e)
		if e.Payload.(*link).n < rounds {
			runtime.Goexit()
		}
		runtime.GC()
		runtime.GC()
		n := 0
		for _, p := range payloads {
			if p.Value() != nil {
				n++
			}
		}
		kept <- n
		return nil
	})
	mustPublish(t, bus, "a", next(0))
	mustPublish(t, bus, "b", next(0))
	require.NoError(t, bus.Start(t.Context()))
	require.Less(t, <-kept, rounds/2)
	shutdown(t, bus)
}
