package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var errBoom = errors.New("boom")

func TestR3_ARefusedSubscriptionChangesNothing(t *testing.T) {
	null := func(eventbus.Handler) eventbus.Handler { return nil }
	var noOption eventbus.SubscribeOption
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "a.*", ok, eventbus.Named("first"))
	plan := bus.Explain("a.b")
	for name, c := range map[string]struct {
		pattern string
		handler eventbus.Handler
		opts    []eventbus.SubscribeOption
		want    error
		says    string
	}{
		"empty segment":         {"a..b", ok, nil, eventbus.ErrInvalidPattern, "byte 2"},
		"leading dot":           {".a", ok, nil, eventbus.ErrInvalidPattern, "byte 0"},
		"open class":            {"a.[bc", ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"open braces":           {"a.{b,c", ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"white space":           {"a b", ok, nil, eventbus.ErrInvalidPattern, "byte 1"},
		"NUL":                   {"a.\x00", ok, nil, eventbus.ErrInvalidPattern, "byte 2"},
		"invalid UTF-8":         {"\xff", ok, nil, eventbus.ErrInvalidPattern, "byte 0"},
		"too long":              {strings.Repeat("a", 1<<20), ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"too many alternatives": {strings.Repeat("{a,b}", 20), ok, nil, eventbus.ErrInvalidPattern, "byte"},
		"nil handler":           {"a.b", nil, nil, eventbus.ErrNilHandler, "nil handler"},
		"nil typed handler":     {"a.b", eventbus.Typed[int](nil), nil, eventbus.ErrNilHandler, "nil handler"},
		"middleware makes none": {"a.b", ok, with(eventbus.Use(null)), eventbus.ErrNilHandler, "middleware"},
		"nil middleware":        {"a.b", ok, with(eventbus.Use(nil)), eventbus.ErrInvalidOption, "Use"},
		"nil option":            {"a.b", ok, with(noOption), eventbus.ErrInvalidOption, "option 1"},
		"duplicate name":        {"a.b", ok, with(eventbus.Named("first")), eventbus.ErrDuplicateName, `"first"`},
		"empty name":            {"a.b", ok, with(eventbus.Named("")), eventbus.ErrInvalidOption, "Named"},
		"long name":             {"a.b", ok, with(eventbus.Named(strings.Repeat("n", 256))), eventbus.ErrInvalidOption, "255"},
		"name with a NUL":       {"a.b", ok, with(eventbus.Named("a\x00")), eventbus.ErrInvalidOption, "control"},
		"name not UTF-8":        {"a.b", ok, with(eventbus.Named("\xff")), eventbus.ErrInvalidOption, "UTF-8"},
		"no timeout":            {"a.b", ok, with(eventbus.Timeout(0)), eventbus.ErrInvalidOption, "Timeout(0s)"},
		"negative timeout":      {"a.b", ok, with(eventbus.Timeout(-1)), eventbus.ErrInvalidOption, "Timeout(-1ns)"},
		"bad policy":            {"a.b", ok, with(eventbus.Retry(eventbus.MaxRetries(-2))), eventbus.ErrInvalidOption, "Retry.MaxRetries"},
		"bad circuit":           {"a.b", ok, with(eventbus.Circuit(eventbus.MinEvents(0))), eventbus.ErrInvalidOption, "Circuit.MinEvents"},
		"bad WhenOpen":          {"a.b", ok, with(eventbus.WhenOpen(99)), eventbus.ErrInvalidOption, "WhenOpen"},
		"good and then bad":     {"a.b", ok, with(eventbus.Named("x"), eventbus.Timeout(0)), eventbus.ErrInvalidOption, "Timeout"},
	} {
		s, err := bus.Subscribe(c.pattern, c.handler, c.opts...)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.says, name)
		require.Less(t, len(err.Error()), 700, name)
		require.Nil(t, s, name)
		require.Equal(t, plan, bus.Explain("a.b"), name)
		require.Len(t, bus.Metrics().Subscriptions, 1, name)
		if errors.Is(c.want, eventbus.ErrInvalidPattern) {
			var offence *eventbus.PatternError
			require.ErrorAs(t, err, &offence, name)
			require.NotEmpty(t, offence.Reason, name)
		}
		if errors.Is(c.want, eventbus.ErrInvalidOption) {
			var offence *eventbus.OptionError
			require.ErrorAs(t, err, &offence, name)
			require.NotEmpty(t, offence.Reason, name)
		}
	}
	// Names that the bus makes up are part of what it is.
	require.Equal(t, "a.b#2", mustSubscribe(t, bus, "a.b", ok).ID())
}

func with(opts ...eventbus.SubscribeOption) []eventbus.SubscribeOption { return opts }

func TestR3_NamesAreFreeAgainAndNeverTaken(t *testing.T) {
	bus, _ := newBus(t)
	s := mustSubscribe(t, bus, "a", ok, eventbus.Named("n"))
	require.Equal(t, "n", s.ID())
	require.Equal(t, "a", s.Pattern())
	s.Unsubscribe()
	mustSubscribe(t, bus, "a", ok, eventbus.Named("n"))

	// A user gives somebody the name that the bus would have made up.
	mustSubscribe(t, bus, "b", ok, eventbus.Named("a#4"))
	mustSubscribe(t, bus, "b", ok, eventbus.Named("a#5"))
	made := mustSubscribe(t, bus, "a", ok)
	require.NotContains(t, []string{"", "n", "a#4", "a#5"}, made.ID())
	require.NotEmpty(t, mustSubscribe(t, bus, "", ok).ID())
}

func TestR4_SubscriptionsAreVisitedInTheOrderInWhichTheyWereMade(t *testing.T) {
	bus, _ := startBus(t)
	var visited []int
	patterns := []string{"**", "order.*", "order.placed", "*.placed", "", "{order,user}.placed", "order.placed", "order.p[la]*", "*", "order.placed.**"}
	var want []int
	for i := range 50 {
		pattern := patterns[i%len(patterns)]
		mustSubscribe(t, bus, pattern, func(context.Context, eventbus.Event) error {
			visited = append(visited, i)
			return nil
		})
		want = append(want, i)
	}
	_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
	require.NoError(t, err)
	require.Equal(t, want, visited)
	shutdown(t, bus)
}

func TestR5_AnEventGoesToTheSubscriptionsThatWereThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls journal[string]
		note := func(name string) eventbus.Handler {
			return func(context.Context, eventbus.Event) error {
				calls.add(name)
				return nil
			}
		}
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			calls.add("first")
			if calls.len() == 1 { // in the middle of the dispatch
				mustSubscribe(t, bus, "x", note("late"))
			}
			return nil
		})
		mustSubscribe(t, bus, "x", note("second"))
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		require.Equal(t, []string{"first", "second"}, calls.all())
		mustPublish(t, bus, "x", nil)
		shutdown(t, bus)
		require.Equal(t, []string{"first", "second", "first", "second", "late"}, calls.all())
	})
}

// Fault 37: what waits for a retry, or for Start, has its targets already.
func TestFault37_PendingEventsDoNotGetNewSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		n, late := 0, 0
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			if n++; n == 1 {
				return errBoom
			}
			return nil
		}, eventbus.Retry(retry(1, time.Minute)))
		mustPublish(t, bus, "x", nil) // before Start
		lateHandler := func(context.Context, eventbus.Event) error { late++; return nil }
		mustSubscribe(t, bus, "x", lateHandler)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait() // waits for its retry
		mustSubscribe(t, bus, "x", lateHandler)
		shutdown(t, bus)
		require.Equal(t, 2, n)
		require.Zero(t, late)
	})
}

func TestR5_WaitingWorkOfAnEndedSubscriptionIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		calls := 0
		gone := mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls++; return nil }, eventbus.Named("gone"))
		stays := 0
		id := mustPublish(t, bus, "x", 1)
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { stays++; return nil }, eventbus.Named("stays"))
		both := mustPublish(t, bus, "x", 2)
		gone.Unsubscribe()
		gone.Unsubscribe()
		afterwards := mustPublish(t, bus, "x", 3)
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
		require.Zero(t, calls)
		require.Equal(t, 2, stays)
		all := letters(t, bus)
		require.Len(t, all, 2)
		for i, want := range []eventbus.EventID{both, id} { // newest first
			require.Equal(t, want, all[i].Event.ID)
			require.Equal(t, eventbus.ReasonUnsubscribed, all[i].Reason)
			require.Equal(t, "gone", all[i].Subscription)
			require.Zero(t, all[i].Attempts)
			require.Empty(t, all[i].Failures)
			require.NotEqual(t, afterwards, all[i].Event.ID)
		}
	})
}

func TestR5_ARetryOfAnEndedSubscriptionKeepsItsStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls, others := 0, 0
		s := mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls++; return errBoom },
			eventbus.Named("gone"), eventbus.Retry(retry(9, time.Minute)))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { others++; return nil }, eventbus.Named("after"))
		mustPublish(t, bus, "x", nil)
		time.Sleep(90 * time.Second)
		synctest.Wait()
		require.Equal(t, 2, calls)
		s.Unsubscribe()
		shutdown(t, bus)
		require.Equal(t, 2, calls)
		require.Equal(t, 1, others)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
		require.Equal(t, "gone", l.Subscription)
		require.Equal(t, 2, l.Attempts)
		require.Len(t, l.Failures, 2)
	})
}

func TestFault28_AHandlerMayUnsubscribeItselfAndOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls journal[string]
		var self, other *eventbus.Subscription
		self = mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			calls.add("self")
			self.Unsubscribe()
			other.Unsubscribe()
			return nil
		})
		other = mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls.add("other"); return nil })
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls.add("third"); return nil })
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		mustPublish(t, bus, "x", nil)
		shutdown(t, bus)
		require.Equal(t, []string{"self", "third", "third"}, calls.all())
		require.Equal(t, other.ID(), oneLetter(t, bus).Subscription)
	})
}

func TestFault16_UnsubscribingTwiceOrAfterShutdown(t *testing.T) {
	bus, _ := startBus(t)
	s := mustSubscribe(t, bus, "x", ok)
	again := mustSubscribe(t, bus, "x", ok)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(s.Unsubscribe)
	}
	wg.Wait()
	require.Len(t, bus.Explain("x").Targets, 1)
	shutdown(t, bus)
	again.Unsubscribe()
	again.Unsubscribe()
	require.Empty(t, bus.Explain("x").Targets)
	(*eventbus.Subscription)(nil).Unsubscribe()
}

// After Unsubscribe has returned, no call starts but those that a worker had
// begun already: at most one for each.
func TestR5_UnsubscribeUnderLoad(t *testing.T) {
	const workers, publishers, rounds = 4, 60, 50
	bus, _ := startBus(t, eventbus.WithConcurrency(workers), eventbus.WithQueueCapacity(256))
	var stop atomic.Bool
	var wg, subscribers sync.WaitGroup
	var published, handled atomic.Int64
	mustSubscribe(t, bus, "load.*", func(context.Context, eventbus.Event) error { handled.Add(1); return nil }, eventbus.Named("stays"))
	for i := range publishers {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := bus.Publish(context.Background(), fmt.Sprintf("load.%d", i%8), nil); err == nil {
					published.Add(1)
				}
			}
		})
	}
	tooLate := make([]int64, 4)
	for g := range 4 {
		subscribers.Go(func() {
			for round := range rounds {
				var ended atomic.Bool
				var after atomic.Int64
				s, err := bus.Subscribe("load.*", func(context.Context, eventbus.Event) error {
					if ended.Load() {
						after.Add(1)
					}
					return nil
				}, eventbus.Named(fmt.Sprintf("s-%d-%d", g, round)))
				if err != nil {
					tooLate[g] = -1
					return
				}
				for begun := handled.Load(); handled.Load() < begun+16; {
					runtime.Gosched()
				}
				s.Unsubscribe()
				ended.Store(true)
				for before := handled.Load(); handled.Load() < before+64; {
					runtime.Gosched()
				}
				tooLate[g] = max(tooLate[g], after.Load())
			}
		})
	}
	subscribers.Wait()
	stop.Store(true)
	wg.Wait()
	shutdown(t, bus)
	for _, n := range tooLate {
		require.GreaterOrEqual(t, n, int64(0))
		require.LessOrEqual(t, n, int64(workers))
	}
	require.Equal(t, published.Load(), handled.Load(), "the one that stayed got all")
	for _, l := range letters(t, bus) {
		require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
		require.NotEqual(t, "stays", l.Subscription)
	}
	require.Len(t, bus.Explain("load.1").Targets, 1)
}

func TestD1_HandlersOfADispatchRunOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var running, most atomic.Int32
		for range 5 {
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				return nil
			})
		}
		begin := time.Now()
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.EqualValues(t, 1, most.Load())
		shutdown(t, bus)
	})
}

func TestD1_DifferentDispatchesRunConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var done atomic.Int32
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			time.Sleep(10 * time.Millisecond)
			done.Add(1)
			return nil
		})
		for range 1000 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(50 * time.Millisecond)
		require.EqualValues(t, 1000, done.Load())
		shutdown(t, bus)
	})
}

func TestD1_ConcurrencyIsNeverExceeded(t *testing.T) {
	for _, n := range []int32{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(int(n)))
			var running, most atomic.Int32
			calls := 0
			var mu sync.Mutex
			mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
				now := running.Add(1)
				defer running.Add(-1)
				for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
				}
				time.Sleep(7 * time.Millisecond)
				mu.Lock()
				calls++
				c := calls
				mu.Unlock()
				switch {
				case c%11 == 0:
					runtime.Goexit() // takes its goroutine along
				case c%7 == 0:
					return errBoom
				}
				return nil
			}, eventbus.Retry(retry(eventbus.Unlimited, time.Millisecond)), eventbus.Circuit(eventbus.NoCircuit()))
			for range 100 {
				mustPublish(t, bus, "x", nil)
			}
			shutdown(t, bus)
			require.Equal(t, n, most.Load())
		})
	}
}

func TestFault40_ASlowHandlerHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error {
			time.Sleep(20 * time.Second)
			return nil
		})
		mustSubscribe(t, bus, "fast", ok)
		for range 50 {
			mustPublish(t, bus, "slow", nil)
			begin := time.Now()
			_, err := bus.PublishAndWait(t.Context(), "fast", nil)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(begin), 20*time.Millisecond)
		}
		shutdown(t, bus)
	})
}

func TestD2_TheFirstFailureEndsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var calls []string
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls = append(calls, "a"); return nil }, eventbus.Named("a"))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls = append(calls, "b"); return errBoom }, eventbus.Named("b"))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls = append(calls, "c"); return nil }, eventbus.Named("c"))
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, []string{"a", "b", "b", "b", "b"}, calls)
		l := oneLetter(t, bus)
		require.Equal(t, []string{"a"}, l.Succeeded)
		require.Equal(t, "b", l.Subscription)
		require.Equal(t, []string{"c"}, l.NotReached)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		shutdown(t, bus)
	})
}

func TestD3_RetryResumesAtTheOneThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(9, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
		var calls []string
		handler := func(name string, failures int) eventbus.Handler {
			return func(ctx context.Context, _ eventbus.Event) error {
				d, _ := eventbus.FromContext(ctx)
				calls = append(calls, fmt.Sprint(name, d.Attempt))
				if failures--; failures >= 0 {
					return errBoom
				}
				return nil
			}
		}
		for i, failures := range []int{0, 2, 0, 1, 0} {
			name := string(rune('a' + i))
			mustSubscribe(t, bus, "x", handler(name, failures), eventbus.Named(name))
		}
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Equal(t, []string{"a1", "b1", "b2", "b3", "c3", "d3", "d4", "e4"}, calls)
		require.Equal(t, 4, r.Attempts)
		require.Equal(t, eventbus.Handled, r.Outcome)
		shutdown(t, bus)
	})
}

// Attempts are the dispatch's: what fails at another subscription spends them
// too.
func TestD4_AttemptsAreCountedPerDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)))
		n := 0
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			if n++; n <= 2 {
				return errBoom
			}
			return nil
		})
		m := 0
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { m++; return errBoom }, eventbus.Named("second"))
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.Error(t, err)
		require.Equal(t, 3, r.Attempts, "MaxRetries + 1")
		require.Equal(t, 1, m)
		require.Equal(t, "second", oneLetter(t, bus).Subscription)
		shutdown(t, bus)
	})
}

func TestD6_AWaitingRetryHoldsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Hour)), eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "x", failing(errBoom))
		mustPublish(t, bus, "nobody.listens", nil)
		time.Sleep(time.Second)
		idle := runtime.NumGoroutine()
		for range 1000 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Second)
		require.Equal(t, 1000, bus.Metrics().WaitingRetries)
		// Workers that rest are not the retries', nor are goroutines that are just
		// ending.
		require.LessOrEqual(t, runtime.NumGoroutine(), idle+bus.Metrics().Workers+10)
		require.LessOrEqual(t, bus.Metrics().Workers, 4*runtime.GOMAXPROCS(0)+1)
		require.NoError(t, bus.Shutdown(context.Background()))
		require.Len(t, letters(t, bus), 1000)
	})
}

func TestD7_PublishAndWaitTellsHowItSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "fine", ok)
		n := 0
		mustSubscribe(t, bus, "flaky", func(context.Context, eventbus.Event) error {
			if n++; n < 3 {
				return errBoom
			}
			return nil
		})
		mustSubscribe(t, bus, "dies", failing(fmt.Errorf("wrapped: %w", eventbus.Permanent(errBoom))), eventbus.Named("dying"))
		mustSubscribe(t, bus, "drops", failing(errBoom), eventbus.Retry(eventbus.MaxRetries(0)),
			eventbus.Circuit(eventbus.MinEvents(1)), eventbus.DropWhenOpen)

		r, err := bus.PublishAndWait(t.Context(), "fine", nil)
		require.NoError(t, err)
		require.False(t, r.ID.IsZero())
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 1}, r)

		r, err = bus.PublishAndWait(t.Context(), "flaky", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 3}, r)

		r, err = bus.PublishAndWait(t.Context(), "nobody.listens", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Unrouted}, r)

		r, err = bus.PublishAndWait(t.Context(), "dies", nil)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.DeadLettered, Attempts: 1, Letters: []eventbus.LetterID{l.ID}}, r)
		require.ErrorIs(t, err, errBoom)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.Equal(t, r.ID, died.ID)
		require.Equal(t, "dies", died.EventType)
		require.Equal(t, []eventbus.DeadLetter{l}, died.Letters)
		require.ErrorContains(t, err, "dying")
		require.ErrorContains(t, err, "boom")

		_, err = bus.PublishAndWait(t.Context(), "drops", nil)
		require.ErrorIs(t, err, errBoom)
		r, err = bus.PublishAndWait(t.Context(), "drops", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Dropped}, r)
		shutdown(t, bus)
	})
}

func TestD7_TheWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		handled := false
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			handled = ctx.Err() == nil
			return nil
		})
		cause := errors.New("the cause")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, cause)
		defer cancel()
		r, err := bus.PublishAndWait(ctx, "x", nil)
		require.ErrorIs(t, err, cause)
		require.False(t, r.ID.IsZero())
		require.Equal(t, eventbus.Result{ID: r.ID}, r)
		require.ErrorContains(t, err, r.ID.String())
		shutdown(t, bus)
		require.True(t, handled, "the event goes on")
	})
}

// Who comes to sleep at the very instant at which the event settles is not left asleep.
func TestD7_NobodySleepsOverTheEnd(t *testing.T) {
	bus, err := eventbus.New()
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
		for range e.Payload.(int) { // as long as it takes to lie down, more or less
			runtime.Gosched()
		}
		return nil
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range unlessShort(20_000, 5_000) {
				r, err := bus.PublishAndWait(context.Background(), "x", i%4)
				if err != nil || r.Outcome != eventbus.Handled || r.Attempts != 1 {
					t.Errorf("%+v, %v", r, err)
				}
			}
		})
	}
	all.Wait()
	shutdown(t, bus)
}

// On a bus with isolation each of the event's dispatches is one to wait for.
func TestD7_TwoDispatchesAreWaitedFor(t *testing.T) {
	for _, subscriptions := range []int{1, 2, 3} {
		bus, err := eventbus.New(eventbus.WithIsolation())
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		var handled atomic.Int64
		for range subscriptions {
			mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
				runtime.Gosched()
				handled.Add(1)
				return nil
			})
		}
		for i := range unlessShort(5_000, 1_000) {
			r, err := bus.PublishAndWait(t.Context(), "x", nil)
			require.NoError(t, err)
			require.Equal(t, eventbus.Handled, r.Outcome)
			require.Equal(t, 1, r.Attempts)
			require.EqualValues(t, (i+1)*subscriptions, handled.Load())
		}
		shutdown(t, bus)
	}
}

func TestD7_PublishAndWaitBeforeStart(t *testing.T) {
	bus, _ := newBus(t)
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrNotStarted)
	require.Equal(t, eventbus.Ledger{}, bus.Metrics().Ledger)
}

// Fault 26: a handler that waits does not count against the concurrency.
func TestD7_WaitingInsideAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		depth := 0
		mustSubscribe(t, bus, "nested", func(ctx context.Context, _ eventbus.Event) error {
			if depth++; depth == 50 {
				return nil
			}
			_, err := bus.PublishAndWait(ctx, "nested", nil)
			return err
		})
		begin := time.Now()
		_, err := bus.PublishAndWait(t.Context(), "nested", nil)
		require.NoError(t, err)
		require.Equal(t, 50, depth)
		require.Less(t, time.Since(begin), time.Second)
		shutdown(t, bus)
	})
}

func TestD7_TheConcurrencyHoldsAfterWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1))
		mustSubscribe(t, bus, "inner", ok)
		mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "inner", nil)
			return err
		})
		var running, most atomic.Int32
		mustSubscribe(t, bus, "work", func(context.Context, eventbus.Event) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Millisecond)
			running.Add(-1)
			return nil
		})
		for range 20 {
			_, err := bus.PublishAndWait(t.Context(), "outer", nil)
			require.NoError(t, err)
		}
		for range 50 {
			mustPublish(t, bus, "work", nil)
		}
		shutdown(t, bus)
		require.EqualValues(t, 1, most.Load())
	})
}

// A handler that waits and is given up meanwhile gives its place back once.
func TestD7_WaitingBeyondTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithCircuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		mustSubscribe(t, bus, "outer", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "slow", nil)
			return err
		}, eventbus.Timeout(time.Second))
		for range 5 {
			_, err := bus.PublishAndWait(t.Context(), "outer", nil)
			var late *eventbus.TimeoutError
			require.ErrorAs(t, err, &late)
		}
		var running, most atomic.Int32
		mustSubscribe(t, bus, "work", func(context.Context, eventbus.Event) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Millisecond)
			running.Add(-1)
			return nil
		})
		for range 50 {
			mustPublish(t, bus, "work", nil)
		}
		shutdown(t, bus)
		require.EqualValues(t, 1, most.Load())
	})
}

func TestD8_PublishWaitsForRoomInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(2))
		var got journal[int]
		mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
			time.Sleep(time.Second)
			got.add(e.Payload.(int))
			return nil
		})
		mustPublish(t, bus, "x", 0)
		synctest.Wait() // it runs, and two have room
		begin := time.Now()
		var accepted journal[time.Duration]
		for i := 1; i <= 6; i++ {
			go func() {
				if _, err := bus.Publish(context.Background(), "x", i); err == nil {
					accepted.add(time.Since(begin))
				}
			}()
			synctest.Wait()
		}
		require.Equal(t, 2, accepted.len())
		require.Equal(t, 2, bus.Metrics().QueueDepth)
		time.Sleep(10 * time.Second)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, got.all())
		require.Equal(t, []time.Duration{0, 0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}, accepted.all())
		require.Zero(t, bus.Metrics().QueueOverflows)
		shutdown(t, bus)
	})
}

func TestD8_TheWaitForRoomEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t)
		cause := errors.New("the cause")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		begin := time.Now()
		_, err := bus.Publish(ctx, "x", nil)
		require.ErrorIs(t, err, cause)
		require.Equal(t, time.Second, time.Since(begin))
		release()
		shutdown(t, bus)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Handled, "what was refused is not there")
		require.EqualValues(t, 3, bus.Metrics().Types["x"].Events)
	})
}

// fullBus has one handler running until release is called, and a full queue of
// two.
func fullBus(t *testing.T, opts ...eventbus.Option) (bus *eventbus.Bus, release func()) {
	t.Helper()
	bus, _ = startBus(t, append([]eventbus.Option{
		eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(2), eventbus.WithTimeout(time.Hour),
	}, opts...)...)
	released := make(chan struct{})
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
		<-released
		return nil
	})
	mustPublish(t, bus, "x", nil)
	synctest.Wait()
	mustPublish(t, bus, "x", nil)
	mustPublish(t, bus, "x", nil)
	return bus, func() { close(released) }
}

func TestD8_ABusMayRefuseInstead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t, eventbus.RefuseWhenFull())
		_, err := bus.Publish(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = bus.Publish(t.Context(), "nobody.listens", nil)
		require.NoError(t, err, "needs no room")
		release()
		synctest.Wait()
		mustPublish(t, bus, "x", nil)
		shutdown(t, bus)
		require.EqualValues(t, 4, bus.Metrics().Ledger.Handled)
	})
}

func TestD8_ShutdownReleasesWhoeverWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t)
		errs := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := bus.Publish(context.Background(), "x", nil)
				errs <- err
			}()
		}
		synctest.Wait()
		require.Empty(t, errs)
		go func() { _ = bus.Shutdown(context.Background()) }()
		synctest.Wait()
		for range 3 {
			require.ErrorIs(t, <-errs, eventbus.ErrShutdown)
		}
		release()
		shutdown(t, bus)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Accepted)
	})
}

func TestD8_BeforeStartAFullQueueRefuses(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithQueueCapacity(3))
	handled := 0
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { handled++; return nil })
	for range 3 {
		mustPublish(t, bus, "x", nil)
	}
	_, err := bus.Publish(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrQueueFull)
	require.NoError(t, bus.Start(t.Context()))
	shutdown(t, bus)
	require.Equal(t, 3, handled)
}

// Fault 27: a bus cannot deadlock on itself.
func TestD8_PublishingInsideAHandlerNeverWaits(t *testing.T) {
	for _, opts := range [][]eventbus.Option{nil, {eventbus.RefuseWhenFull()}} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, append(opts, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(1))...)
			mustSubscribe(t, bus, "seed", func(ctx context.Context, _ eventbus.Event) error {
				derived, cancel := context.WithTimeout(context.WithValue(ctx, key("k"), 1), time.Minute)
				defer cancel()
				for range 100 {
					if _, err := bus.Publish(derived, "leaf", nil); err != nil {
						return err
					}
				}
				errs := make(chan error)
				go func() { // another goroutine, with the handler's context
					_, err := bus.Publish(context.WithoutCancel(ctx), "leaf", nil)
					errs <- err
				}()
				return <-errs
			}, eventbus.Retry(eventbus.MaxRetries(0)))
			leaves := 0
			mustSubscribe(t, bus, "leaf", func(context.Context, eventbus.Event) error { leaves++; return nil })
			_, err := bus.PublishAndWait(t.Context(), "seed", nil)
			require.NoError(t, err)
			shutdown(t, bus)
			require.Equal(t, 101, leaves)
			m := bus.Metrics()
			require.EqualValues(t, 100, m.QueueOverflows)
			require.Zero(t, m.QueueDepth)
		})
	}
}

// The room that overflow has taken is given back.
func TestD8_TheBoundHoldsAfterAnOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(2), eventbus.RefuseWhenFull(), eventbus.WithTimeout(time.Hour))
		release := make(chan struct{})
		mustSubscribe(t, bus, "seed", func(ctx context.Context, _ eventbus.Event) error {
			for range 5 {
				if _, err := bus.Publish(ctx, "leaf", nil); err != nil {
					return err
				}
			}
			return nil
		})
		mustSubscribe(t, bus, "leaf", func(context.Context, eventbus.Event) error { <-release; return nil })
		mustPublish(t, bus, "seed", nil)
		synctest.Wait() // one leaf runs, four wait
		require.Equal(t, 4, bus.Metrics().QueueDepth)
		for range 2 {
			_, err := bus.Publish(t.Context(), "leaf", nil)
			require.ErrorIs(t, err, eventbus.ErrQueueFull)
			release <- struct{}{}
			synctest.Wait()
		}
		_, err := bus.Publish(t.Context(), "leaf", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull, "two wait")
		release <- struct{}{}
		synctest.Wait()
		mustPublish(t, bus, "leaf", nil)
		close(release)
		shutdown(t, bus)
	})
}

// A handler's context that is used after its return is an outsider's.
func TestD8_AKeptContextIsAnOutsider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, release := fullBus(t, eventbus.RefuseWhenFull())
		other, _ := startBus(t)
		var kept context.Context
		mustSubscribe(t, other, "keep", func(ctx context.Context, _ eventbus.Event) error {
			kept = ctx
			_, err := bus.Publish(ctx, "x", nil) // a handler, but of another bus
			return err
		}, eventbus.Retry(eventbus.MaxRetries(0)))
		_, err := other.PublishAndWait(t.Context(), "keep", nil)
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = other.Publish(kept, "keep", nil)
		require.ErrorIs(t, err, context.Canceled)
		shutdown(t, other)
		_, err = other.Publish(context.WithoutCancel(kept), "keep", nil)
		require.ErrorIs(t, err, eventbus.ErrShutdown)

		var mine context.Context
		mustSubscribe(t, bus, "mine", func(ctx context.Context, _ eventbus.Event) error { mine = ctx; return nil })
		release()
		synctest.Wait()
		_, err = bus.PublishAndWait(t.Context(), "mine", nil)
		require.NoError(t, err)
		shutdown(t, bus)
		_, err = bus.Publish(context.WithoutCancel(mine), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrShutdown)
	})
}

// Fault 25.
func TestFault25_RecursionIsQueuedAndNotNested(t *testing.T) {
	bus, _ := startBus(t)
	n, deepest := 0, 0
	const events = 20_000
	mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
		if n++; n%1000 == 0 {
			deepest = max(deepest, runtime.Callers(0, make([]uintptr, 1000)))
		}
		if n == events {
			return nil
		}
		_, err := bus.Publish(ctx, "x", nil)
		return err
	})
	mustPublish(t, bus, "x", nil)
	shutdown(t, bus)
	require.Equal(t, events, n)
	require.Less(t, deepest, 50)
}

func TestD9_UnroutedEventsSettleAndAreShown(t *testing.T) {
	var seen journal[eventbus.Event]
	bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{Unrouted: seen.add}))
	mustSubscribe(t, bus, "x", ok)
	id := mustPublish(t, bus, "nobody.listens", "payload", eventbus.Metadata("k", "v"))
	require.Equal(t, 1, seen.len())
	got := seen.all()[0]
	require.Equal(t, id, got.ID)
	require.Equal(t, "payload", got.Payload)
	require.Equal(t, "v", got.Metadata.Get("k"))
	m := bus.Metrics()
	require.Equal(t, eventbus.Ledger{Accepted: 1, Unrouted: 1}, m.Ledger)
	require.EqualValues(t, 1, m.Types["nobody.listens"].Events)
	require.Empty(t, letters(t, bus))
	shutdown(t, bus)
}

func TestMiddlewareOrder(t *testing.T) {
	var calls []string
	wrap := func(name string) eventbus.Middleware {
		return func(next eventbus.Handler) eventbus.Handler {
			calls = append(calls, "make "+name)
			return func(ctx context.Context, e eventbus.Event) error {
				calls = append(calls, name)
				err := next(ctx, e)
				calls = append(calls, "/"+name)
				return err
			}
		}
	}
	bus, _ := startBus(t, eventbus.WithMiddleware(wrap("a"), wrap("b")), eventbus.WithMiddleware(wrap("c")))
	mustSubscribe(t, bus, "x", ok, eventbus.Use(wrap("d"), wrap("e")), eventbus.Use(wrap("f")))
	require.Len(t, calls, 6, "made by Subscribe, once")
	calls = nil
	for range 2 {
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
	}
	once := []string{"a", "b", "c", "d", "e", "f", "/f", "/e", "/d", "/c", "/b", "/a"}
	require.Equal(t, slices.Concat(once, once), calls)
	shutdown(t, bus)
}

// What goes wrong in a middleware goes wrong in the handler, for each attempt.
func TestMiddlewareIsProtectedAndWatched(t *testing.T) {
	for name, c := range map[string]struct {
		misbehave func()
		is        func(error) bool
	}{
		"panics":  {func() { panic(errBoom) }, func(err error) bool { return errors.Is(err, errBoom) }},
		"exits":   {runtime.Goexit, func(err error) bool { return errors.Is(err, eventbus.ErrHandlerExited) }},
		"is slow": {func() { time.Sleep(time.Hour) }, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
	} {
		for _, before := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				mw := func(next eventbus.Handler) eventbus.Handler {
					return func(ctx context.Context, e eventbus.Event) error {
						calls.Add(1)
						if before {
							c.misbehave()
						}
						err := next(ctx, e)
						c.misbehave()
						return err
					}
				}
				bus, _ := startBus(t, eventbus.WithMiddleware(mw), eventbus.WithRetry(retry(1, time.Second)))
				mustSubscribe(t, bus, "x", ok)
				r, err := bus.PublishAndWait(t.Context(), "x", nil)
				require.Error(t, err, name)
				require.True(t, c.is(err), "%s: %v", name, err)
				require.Equal(t, 2, r.Attempts)
				require.EqualValues(t, 2, calls.Load())
				shutdown(t, bus)
				time.Sleep(2 * time.Hour)
			})
		}
	}
}

// A middleware may handle an event in the handler's stead.
func TestMiddlewareMayAnswerItself(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "x", failing(errBoom), eventbus.Use(func(eventbus.Handler) eventbus.Handler { return ok }))
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err)
	shutdown(t, bus)
}
