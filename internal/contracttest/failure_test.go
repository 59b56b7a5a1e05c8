package contracttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

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

// once is a bus that tries everything once.
func once(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, _ := startBus(t, append([]eventbus.Option{
		eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithCircuit(eventbus.NoCircuit()),
	}, opts...)...)
	return bus
}

func TestF1_TheAttemptFailsExactlyAtTheTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{time.Nanosecond, time.Millisecond, 1500 * time.Microsecond, time.Second, 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			bus := once(t)
			var deadline time.Time
			var err error
			var cause error
			mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
				deadline, _ = ctx.Deadline()
				<-ctx.Done()
				err, cause = ctx.Err(), context.Cause(ctx)
				return nil
			}, eventbus.Timeout(timeout), eventbus.Named("slow"))
			begin := time.Now()
			_, failure := bus.PublishAndWait(t.Context(), "x", nil)
			require.Equal(t, timeout, time.Since(begin))
			synctest.Wait()
			require.Equal(t, begin.Add(timeout).UTC(), deadline)
			require.Equal(t, context.DeadlineExceeded, err)
			require.Equal(t, context.DeadlineExceeded, cause)
			require.ErrorIs(t, failure, context.DeadlineExceeded)
			var late *eventbus.TimeoutError
			require.ErrorAs(t, failure, &late)
			require.Equal(t, &eventbus.TimeoutError{Subscription: "slow", Timeout: timeout}, late)
			f := oneLetter(t, bus).Failures[0]
			require.Equal(t, timeout, f.Duration)
			require.Equal(t, begin.Add(timeout).UTC(), f.Time)
			shutdown(t, bus)
		})
	}
}

// While there is much work, readings of the clock are shared, and a deadline may
// come a little late, but never early.
func TestF1_UnderLoadItIsLateByLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := once(t)
		mustSubscribe(t, bus, "quick", ok)
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			<-ctx.Done()
			return nil
		}, eventbus.Timeout(time.Second))
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(300 * time.Microsecond):
					_, _ = bus.Publish(context.Background(), "quick", nil)
				}
			}
		}()
		for range 20 {
			time.Sleep(777 * time.Microsecond)
			begin := time.Now()
			_, err := bus.PublishAndWait(t.Context(), "x", nil)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			took := time.Since(begin)
			require.GreaterOrEqual(t, took, time.Second)
			require.LessOrEqual(t, took, time.Second+5*time.Millisecond)
		}
		close(stop)
		shutdown(t, bus)
	})
}

func TestF1_AbandonedSinceIsUTC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := once(t, eventbus.WithTimeout(time.Second))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			time.Sleep(2 * time.Second)
			return nil
		})
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.Error(t, err)
		abandoned := bus.Abandoned()
		shutdown(t, bus)
		time.Sleep(2 * time.Second)
		require.Len(t, abandoned, 1)
		since := abandoned[0].Since
		require.Equal(t, since.Round(0).UTC(), since, "in UTC, without a monotonic reading: %#v", since)
	})
}

func TestF1_AHandlerWithinItsDeadlineIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := once(t, eventbus.WithTimeout(time.Second))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			time.Sleep(time.Second - 1)
			return nil
		})
		for range 10 {
			_, err := bus.PublishAndWait(t.Context(), "x", nil)
			require.NoError(t, err)
		}
		shutdown(t, bus)
	})
}

// Each subscription has its own deadline, from its own beginning.
func TestF1_DeadlinesArePerCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := once(t)
		var left []time.Duration
		for _, timeout := range []time.Duration{time.Minute, time.Second, time.Hour} {
			mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
				deadline, ok := ctx.Deadline()
				if !ok {
					return errBoom
				}
				left = append(left, time.Until(deadline))
				time.Sleep(timeout / 2)
				return nil
			}, eventbus.Timeout(timeout))
		}
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Len(t, left, 3)
		for i, want := range []time.Duration{time.Minute, time.Second, time.Hour} {
			require.InDelta(t, want, left[i], float64(2*time.Millisecond))
		}
		shutdown(t, bus)
	})
}

// Faults 21 to 24: a handler that ignores its deadline goes on in the
// background, and what it returns changes nothing.
func TestF1_ALateResultIsCountedAndIgnored(t *testing.T) {
	for name, c := range map[string]struct {
		end func() error
	}{
		"success": {func() error { return nil }},
		"error":   {func() error { return errBoom }},
		"panic":   {func() error { panic("late") }},
		"exit":    {func() error { runtime.Goexit(); return nil }},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Minute)), eventbus.WithConcurrency(1))
			var attempts atomic.Int32
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
				if attempts.Add(1) == 1 {
					time.Sleep(time.Hour)
					return c.end()
				}
				return nil
			}, eventbus.Timeout(time.Second), eventbus.Named("slow"))
			after := 0
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { after++; return nil })
			begin := time.Now()
			r, err := bus.PublishAndWait(t.Context(), "x", nil)
			require.NoError(t, err, name)
			require.Equal(t, 2, r.Attempts)
			require.InDelta(t, time.Minute+time.Second, time.Since(begin), float64(5*time.Millisecond)) // F1

			abandoned := bus.Abandoned()
			require.Len(t, abandoned, 1)
			require.WithinDuration(t, begin.Add(time.Second), abandoned[0].Since, 5*time.Millisecond)
			require.Equal(t, eventbus.AbandonedHandler{
				Subscription: "slow", EventID: r.ID, EventType: "x", Since: abandoned[0].Since,
			}, abandoned[0])
			require.Equal(t, 1, bus.Metrics().AbandonedHandlers)
			require.Zero(t, metricsOf(t, bus, "slow").LateEnds)

			time.Sleep(2 * time.Hour)
			require.Empty(t, bus.Abandoned())
			require.Zero(t, bus.Metrics().AbandonedHandlers)
			m := metricsOf(t, bus, "slow")
			require.EqualValues(t, 1, m.LateEnds)
			require.EqualValues(t, 1, m.Timeouts)
			require.EqualValues(t, 1, m.Failures)
			require.EqualValues(t, 1, m.Successes)
			require.Zero(t, m.Panics)
			require.Equal(t, 1, after)
			_, err = bus.PublishAndWait(t.Context(), "x", nil)
			require.NoError(t, err, "the place is free")
			shutdown(t, bus)
		})
	}
}

func TestF1_AnOverrunIsThatOfTheHandlerThatRuns(t *testing.T) {
	for slow := range 5 {
		synctest.Test(t, func(t *testing.T) {
			s := newSequence(t, nil, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithTimeout(10*time.Second))
			release := make(chan struct{})
			var attempts atomic.Int32
			s.handle[slow] = func(context.Context, eventbus.Event) error {
				if attempts.Add(1) == 1 {
					<-release
				}
				return nil
			}
			s.publish(t)
			time.Sleep(12 * time.Second)
			synctest.Wait()
			abandoned := s.bus.Abandoned()
			require.Len(t, abandoned, 1)
			require.Equal(t, fmt.Sprint(slow), abandoned[0].Subscription)
			want := []int{0, 1, 2, 3, 4}
			want = append(want[:slow:slow], append([]int{slow}, want[slow:]...)...)
			require.Equal(t, want, s.ran.all(), "the retry resumes there")
			for i := range s.handle {
				m := metricsOf(t, s.bus, fmt.Sprint(i))
				require.EqualValues(t, 1, m.Successes, i)
				if i == slow {
					require.EqualValues(t, 1, m.Timeouts)
				} else {
					require.Zero(t, m.Failures)
				}
			}
			close(release)
			synctest.Wait()
			require.Empty(t, s.bus.Abandoned())
			require.EqualValues(t, 1, metricsOf(t, s.bus, fmt.Sprint(slow)).LateEnds)
			shutdown(t, s.bus)
			requireBalanced(t, s.bus)
		})
	}
}

// Under the race detector: the dispatch of an abandoned handler is somebody else's, here
// one that is refused a place among the held while the handler returns.
func TestF1_AnAbandonedHandlerReadsNothingOfItsDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sub *eventbus.Subscription
		bus, _ := startBus(t, eventbus.WithTimeout(20*time.Millisecond), eventbus.WithRetry(retry(5, 10*time.Millisecond)),
			eventbus.WithObserver(eventbus.Observer{
				AttemptBegun: func(a eventbus.Attempt) {
					if a.Number == 2 {
						_ = sub.Pause()
					}
				},
				AttemptEnded: func(e eventbus.EndedAttempt) {
					if e.Outcome == eventbus.Held {
						sub.Unsubscribe()
					}
				},
			}))
		sub = mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			time.Sleep(200 * time.Millisecond) // it is abandoned
			return nil
		})
		require.NoError(t, sub.Trip())
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		require.NoError(t, sub.Reset()) // what has been held has a dispatch of its own
		time.Sleep(time.Second)
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, bus).Reason)
		shutdown(t, bus)
	})
}

func TestF1_AShortTimeoutIsExactAlsoAfterOtherHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 4 { // some runs are timed, and have no step to the next one
			s := newSequence(t, map[int]eventbus.SubscribeOption{3: eventbus.Timeout(1500 * time.Microsecond)}, eventbus.WithRetry(retry(0, 0)))
			var took time.Duration
			s.handle[2] = func(context.Context, eventbus.Event) error {
				time.Sleep(300 * time.Microsecond) // between two ticks
				return nil
			}
			s.handle[3] = func(ctx context.Context, _ eventbus.Event) error {
				began := time.Now()
				<-ctx.Done()
				took = time.Since(began)
				return nil
			}
			s.publish(t)
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, 1500*time.Microsecond, took)
			require.Equal(t, "3", oneLetter(t, s.bus).Subscription)
			shutdown(t, s.bus)
		}
	})
}

// countingClock counts the timers that are made.
type countingClock struct {
	clock.Clock
	timers atomic.Int64
}

func (c *countingClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	c.timers.Add(1)
	return c.Clock.AfterFunc(d, f)
}

func (c *countingClock) Timer(d time.Duration) *clock.Timer {
	c.timers.Add(1)
	return c.Clock.Timer(d)
}

func (c *countingClock) Ticker(d time.Duration) *clock.Ticker {
	c.timers.Add(1)
	return c.Clock.Ticker(d)
}

func (c *countingClock) After(d time.Duration) <-chan time.Time {
	c.timers.Add(1)
	return c.Clock.After(d)
}

func TestF2_ACallCostsNoGoroutineAndNoTimer(t *testing.T) {
	for name, handler := range map[string]eventbus.Handler{
		"plain": ok,
		"derives contexts": func(ctx context.Context, _ eventbus.Event) error {
			a, cancelA := context.WithCancel(ctx)
			defer cancelA()
			b, cancelB := context.WithCancelCause(context.WithValue(a, key("k"), 1))
			defer cancelB(nil)
			c, cancelC := context.WithTimeout(b, 24*time.Hour) // beyond the handler's own
			defer cancelC()
			stop := context.AfterFunc(ctx, func() {})
			defer stop()
			return c.Err()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			counting := &countingClock{Clock: clock.New()}
			bus := once(t, eventbus.WithClock(counting), eventbus.WithConcurrency(100))
			before := make(chan int, 1)
			release := make(chan struct{})
			mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
				return errors.Join(handler(ctx, e), hold(release))
			})
			for range 100 {
				mustPublish(t, bus, "x", nil)
			}
			before <- runtime.NumGoroutine()
			time.Sleep(time.Second)
			running := bus.Metrics().RunningDispatches
			require.Equal(t, 100, running)
			require.LessOrEqual(t, runtime.NumGoroutine(), <-before+running, name)
			close(release)
			synctest.Wait()
			for range 200 {
				_, err := bus.PublishAndWait(t.Context(), "x", nil)
				require.NoError(t, err)
			}
			require.LessOrEqual(t, counting.timers.Load(), int64(5), name)
			shutdown(t, bus)
		})
	}
}

// With derived contexts kept open, still no goroutine waits for the parent.
func TestF2_DerivedContextsCostNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := once(t)
		var before, during int
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			before = runtime.NumGoroutine()
			var cancels []context.CancelFunc
			for range 100 {
				derived, cancel := context.WithCancel(ctx)
				further, cancelFurther := context.WithCancel(context.WithValue(derived, key("k"), 1))
				_ = further
				cancels = append(cancels, cancel, cancelFurther)
			}
			during = runtime.NumGoroutine()
			for _, cancel := range cancels {
				cancel()
			}
			return nil
		})
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.LessOrEqual(t, during, before) // another goroutine may have ended
		shutdown(t, bus)
	})
}

func TestF2_DerivedContextsEndAsTheirParentDoes(t *testing.T) {
	type end struct{ err, cause error }
	for name, c := range map[string]struct {
		stay time.Duration
		cut  bool
		want end
	}{
		"returned": {time.Millisecond, false, end{context.Canceled, context.Canceled}},
		"overran":  {time.Hour, false, end{context.DeadlineExceeded, context.DeadlineExceeded}},
		"cut":      {time.Hour, true, end{context.Canceled, eventbus.ErrShutdown}},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus := once(t, eventbus.WithTimeout(time.Second))
			var got []end
			var afterFuncs atomic.Int32
			var kept []context.Context
			var stopped bool
			mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
				derived, cancel := context.WithCancel(ctx)
				_ = cancel // nobody does, so it is the parent's end that they see
				value := context.WithValue(derived, key("k"), 1)
				late, cancelLate := context.WithTimeoutCause(value, 24*time.Hour, errBoom)
				_ = cancelLate
				kept = []context.Context{ctx, derived, value, late}
				context.AfterFunc(ctx, func() { afterFuncs.Add(1) })
				context.AfterFunc(late, func() { afterFuncs.Add(1) })
				stopped = context.AfterFunc(ctx, func() { afterFuncs.Add(100) })()
				time.Sleep(c.stay)
				return nil
			})
			mustPublish(t, bus, "x", nil)
			synctest.Wait()
			for _, ctx := range kept {
				require.NoError(t, ctx.Err())
			}
			ctx, cancel := context.WithCancel(context.Background())
			if c.cut {
				cancel()
				require.Error(t, bus.Shutdown(ctx))
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			for _, ctx := range kept {
				select {
				case <-ctx.Done():
				default:
					require.Fail(t, "not done")
				}
				got = append(got, end{ctx.Err(), context.Cause(ctx)})
			}
			require.Equal(t, slices.Repeat([]end{c.want}, 4), got, name)
			require.EqualValues(t, 2, afterFuncs.Load(), name)
			require.True(t, stopped)
			// What is derived later is done at once.
			child, cancelChild := context.WithCancel(kept[0])
			defer cancelChild()
			require.Equal(t, c.want, end{child.Err(), context.Cause(child)})
			context.AfterFunc(kept[0], func() { afterFuncs.Add(1) })
			synctest.Wait()
			require.EqualValues(t, 3, afterFuncs.Load())
			cancel()
			time.Sleep(2 * time.Hour)
		})
	}
}

// Fault 24: a context that was never asked for anything while its handler ran.
func TestF2_AKeptContextStaysUsable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := once(t, eventbus.WithContextFrom(itself))
		var kept []context.Context
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			if e.Payload == "asked" {
				eventbus.FromContext(ctx)
			}
			kept = append(kept, ctx)
			return nil
		}, eventbus.Named("s"))
		ctx := context.WithValue(t.Context(), key("k"), "v")
		var ids []eventbus.EventID
		for i := range 100 {
			payload := "asked"
			if i%2 == 1 {
				payload = "not"
			}
			r, err := bus.PublishAndWait(ctx, "x", payload)
			require.NoError(t, err)
			ids = append(ids, r.ID)
		}
		for i, ctx := range kept {
			require.Equal(t, context.Canceled, ctx.Err())
			require.Equal(t, context.Canceled, context.Cause(ctx))
			require.Equal(t, "v", ctx.Value(key("k")))
			<-ctx.Done()
			_, has := ctx.Deadline()
			require.True(t, has)
			if d, ok := eventbus.FromContext(ctx); i%2 == 0 {
				require.True(t, ok)
				require.Equal(t, ids[i], d.Event.ID)
				require.Equal(t, "asked", d.Event.Payload)
				require.Equal(t, "s", d.Subscription)
			} else if ok {
				require.Equal(t, ids[i], d.Event.ID, "another event's")
				require.Equal(t, "not", d.Event.Payload)
			}
		}
		shutdown(t, bus)
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

type badError struct{ text *string }

func (e *badError) Error() string { return *e.text } // panics if e, or e.text, is nil
type badIs struct{}

func (badIs) Error() string          { return "bad" }
func (badIs) Is(error) bool          { panic("Is") }
func (badIs) As(any) bool            { panic("As") }
func (badIs) Unwrap() error          { panic("Unwrap") }
func (badIs) Timeout() bool          { panic("Timeout") }
func (badIs) Format(fmt.State, rune) { panic("Format") }

type incomparable []error

func (incomparable) Error() string { return "incomparable" }

// Faults 18 to 20.
func TestF3_EveryFailureIsOne(t *testing.T) {
	var none *badError
	for name, c := range map[string]struct {
		handler func() error
		text    string
		panics  bool
	}{
		"error":              {func() error { return errBoom }, "boom", false},
		"wrapped":            {func() error { return fmt.Errorf("wrapped: %w", errBoom) }, "wrapped: boom", false},
		"joined":             {func() error { return errors.Join(errBoom, errors.New("too")) }, "boom\ntoo", false},
		"empty text":         {func() error { return errors.New("") }, "", false},
		"nil pointer":        {func() error { return none }, "*contracttest.badError, whose Error method panicked", false},
		"Error panics":       {func() error { return &badError{} }, "*contracttest.badError, whose Error method panicked", false},
		"Is and As panic":    {func() error { return badIs{} }, "bad", false},
		"incomparable":       {func() error { return incomparable{errBoom} }, "incomparable", false},
		"context's":          {func() error { return context.Canceled }, "context canceled", false},
		"panic":              {func() error { panic("oh") }, "eventbus: handler panicked: oh", true},
		"panic of an error":  {func() error { panic(errBoom) }, "eventbus: handler panicked: boom", true},
		"panic of nil":       {func() error { panic(nil) }, "eventbus: handler panicked: panic called with nil argument", true}, //nolint:govet // on purpose
		"panic of bad error": {func() error { panic(&badError{}) }, "eventbus: handler panicked: ", true},
		"runtime error":      {func() error { var m map[string]int; m["x"]++; return nil }, "assignment to entry in nil map", true}, //nolint:govet,staticcheck // on purpose
		"panic in defer": {func() error {
			defer func() { panic("second") }()
			panic("first")
		}, "second", true},
		"re-panic": {func() error {
			defer func() { panic(fmt.Sprint("again ", recover())) }()
			panic("first")
		}, "again first", true},
		"exit": {func() error { runtime.Goexit(); return nil }, eventbus.ErrHandlerExited.Error(), true},
		"exit while panicking": {func() error {
			defer runtime.Goexit()
			panic("first")
		}, eventbus.ErrHandlerExited.Error(), true},
		"panic while exiting": {func() error {
			defer func() { panic("on the way out") }()
			runtime.Goexit()
			return nil
		}, "", true},
		"FailNow": {func() error { new(testing.T).FailNow(); return nil }, eventbus.ErrHandlerExited.Error(), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithConcurrency(1))
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { return c.handler() }, eventbus.Named("s"))
			mustSubscribe(t, bus, "fine", ok)
			r, err := bus.PublishAndWait(t.Context(), "x", nil)
			var died *eventbus.DeliveryError
			require.ErrorAs(t, err, &died, name)
			require.Equal(t, 2, r.Attempts, name)
			l := oneLetter(t, bus)
			require.Equal(t, eventbus.ReasonExhausted, l.Reason)
			require.Len(t, l.Failures, 2, name)
			for _, f := range l.Failures {
				require.Contains(t, f.Error, c.text, name)
				require.Error(t, f.Err)
			}
			require.NotEmpty(t, err.Error())
			m := metricsOf(t, bus, "s")
			require.EqualValues(t, 2, m.Failures, name)
			if c.panics {
				require.EqualValues(t, 2, m.Panics, name)
			} else {
				require.Zero(t, m.Panics, name)
			}
			require.Len(t, logs.FilterField(zap.String("subscription_id", "s")).FilterMessage("handler failed").All(), 2)
			_, err = bus.PublishAndWait(t.Context(), "fine", nil)
			require.NoError(t, err, "%s: the bus lives", name)
			shutdown(t, bus)
		})
	}
}

//go:noinline
func panicHereOrThere() error { panic(errBoom) }

func TestF3_TheStackOfAPanicIsKept(t *testing.T) {
	bus := once(t)
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { return panicHereOrThere() })
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	var p *eventbus.PanicError
	require.ErrorAs(t, err, &p)
	require.Equal(t, errBoom, p.Value)
	require.ErrorIs(t, err, errBoom)
	require.Contains(t, string(p.Stack), "panicHereOrThere")
	require.Contains(t, string(p.Stack), "failure_test.go")
	shutdown(t, bus)
}

func TestF3_ANilPanicIsAFailureUnderEveryGODEBUG(t *testing.T) {
	for _, setting := range []string{"panicnil=0", "panicnil=1"} {
		t.Setenv("GODEBUG", strings.Trim(os.Getenv("GODEBUG")+","+setting, ","))
		bus := once(t)
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { panic(nil) }) //nolint:govet // on purpose
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		var p *eventbus.PanicError
		require.ErrorAs(t, err, &p, setting)
		require.IsType(t, new(runtime.PanicNilError), p.Value)
		shutdown(t, bus)
	}
}

type exitingError struct{}

func (exitingError) Error() string { runtime.Goexit(); return "" }

// What ends its goroutine is not only handlers: an assertion in a function that
// the bus calls on its own goroutine does too. No event may be lost by it.
func TestF3_AnExitInOtherFunctionsLosesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		opt eventbus.Option
		err error
	}{
		"RetryIf": {eventbus.WithRetry(eventbus.BaseDelay(0), eventbus.RetryIf(func(error) bool { runtime.Goexit(); return true })), errBoom},
		"Error":   {eventbus.WithRetry(eventbus.MaxRetries(0)), exitingError{}},
		"LetterEvicted": {
			eventbus.WithObserver(eventbus.Observer{LetterEvicted: func(eventbus.DeadLetter) { runtime.Goexit() }}),
			eventbus.Permanent(errBoom),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, err := eventbus.New(eventbus.WithDeadLetterCapacity(1), c.opt)
				require.NoError(t, err)
				mustSubscribe(t, bus, "x", failing(c.err))
				require.NoError(t, bus.Start(t.Context()))
				for range 2 {
					mustPublish(t, bus, "x", nil)
				}
				// A bus that has lost an event waits for it until the context ends.
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				require.NoError(t, bus.Shutdown(ctx))
				requireBalanced(t, bus)
				require.EqualValues(t, 2, bus.Metrics().Ledger.DeadLettered)
			})
		})
	}
}

func TestF3_APanicOrAnExitIsThatOfTheHandlerThatRuns(t *testing.T) {
	for name, end := range map[string]func(){"a panic": func() { panic("oops") }, "an exit": runtime.Goexit} {
		for at := range 5 {
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSequence(t, nil, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithLogger(zap.NewNop()))
					attempts := 0
					s.handle[at] = func(context.Context, eventbus.Event) error {
						if attempts++; attempts == 1 {
							end()
						}
						return nil
					}
					s.publish(t)
					time.Sleep(2 * time.Second)
					want := []int{0, 1, 2, 3, 4}
					require.Equal(t, append(want[:at:at], append([]int{at}, want[at:]...)...), s.ran.all())
					require.EqualValues(t, 1, metricsOf(t, s.bus, fmt.Sprint(at)).Panics)
					shutdown(t, s.bus)
					requireBalanced(t, s.bus)
				})
			})
		}
	}
}

// A panic with a permanent error is as permanent as the error.
// spokesman is an error that wraps nothing, and says itself what it is.
type spokesman struct{ of error }

func (spokesman) Error() string          { return "spokesman" }
func (e spokesman) Is(target error) bool { return errors.Is(e.of, target) }
func (e spokesman) As(target any) bool   { return errors.As(e.of, target) }

func TestF4_PermanentIsNeverRetried(t *testing.T) {
	for name, err := range map[string]error{
		"plain":             eventbus.Permanent(errBoom),
		"wrapped":           fmt.Errorf("w: %w", eventbus.Permanent(errBoom)),
		"joined":            errors.Join(errors.New("first"), eventbus.Permanent(errBoom)),
		"with a RetryAfter": eventbus.RetryAfter(eventbus.Permanent(errBoom), time.Second),
		"twice":             eventbus.Permanent(eventbus.Permanent(errBoom)),
		"by its own word":   spokesman{eventbus.Permanent(errBoom)},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t)
			calls := 0
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { calls++; return err })
			begin := time.Now()
			r, got := bus.PublishAndWait(t.Context(), "x", nil)
			require.ErrorIs(t, got, errBoom, name)
			require.Zero(t, time.Since(begin))
			require.Equal(t, 1, r.Attempts)
			require.Equal(t, 1, calls)
			require.Equal(t, eventbus.ReasonPermanent, oneLetter(t, bus).Reason)
			shutdown(t, bus)
		})
	}
	require.NoError(t, eventbus.Permanent(nil))
	require.Equal(t, "boom", eventbus.Permanent(errBoom).Error())
}

func TestF4_ErrorThatEndsItsGoroutineHasAText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(1)))
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { return exitingError{} })
		r, _ := bus.PublishAndWait(t.Context(), "x", nil)
		require.Equal(t, 2, r.Attempts)
		for _, f := range oneLetter(t, bus).Failures {
			require.Equal(t, "contracttest.exitingError, whose methods broke off", f.Error)
		}
		shutdown(t, bus)
	})
}

// An error may end its goroutine when it is asked for its text, and hang when it is asked again.
func TestF4_AnErrorThatHangsWhenAskedAgainHasAText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		for name, fail := range map[string]func(error) error{
			"returned": func(err error) error { return err },
			"panics":   func(err error) error { panic(err) },
		} {
			bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
				return fail(&moodyError{release: release})
			}, eventbus.Timeout(time.Second))
			r, _ := bus.PublishAndWait(t.Context(), "x", nil)
			require.Equal(t, eventbus.DeadLettered, r.Outcome, name)
			require.Contains(t, oneLetter(t, bus).Failures[0].Error, "whose methods did not return", name)
			shutdown(t, bus)
		}
	})
}

// moodyError ends the goroutine that asks it first, and hangs later.
type moodyError struct {
	asked   atomic.Bool
	release chan struct{}
}

func (e *moodyError) Error() string {
	if !e.asked.Swap(true) {
		runtime.Goexit()
	}
	<-e.release
	return ""
}

func TestF4_PanicWithAPermanentError(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { panic(eventbus.Permanent(errBoom)) })
	r, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.ErrorIs(t, err, errBoom)
	require.Equal(t, 1, r.Attempts)
	shutdown(t, bus)
}

func TestF5_AHandlerCanAskItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)))
		var got []eventbus.Delivery
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			derived, cancel := context.WithTimeout(context.WithValue(ctx, key("k"), 1), time.Second)
			defer cancel()
			d, ok := eventbus.FromContext(derived)
			if !ok || d.Event.ID != e.ID {
				return eventbus.Permanent(errors.New("not there"))
			}
			got = append(got, d)
			return errBoom
		}, eventbus.Named("s"))
		id := mustPublish(t, bus, "x", 17, eventbus.Metadata("k", "v"))
		shutdown(t, bus)
		require.Len(t, got, 3)
		for i, d := range got {
			require.Equal(t, i+1, d.Attempt)
			require.Equal(t, "s", d.Subscription)
			require.Equal(t, id, d.Event.ID)
			require.Equal(t, "x", d.Event.Type)
			require.Equal(t, 17, d.Event.Payload)
			require.Equal(t, "v", d.Event.Metadata.Get("k"))
			require.Zero(t, d.Replays)
		}
		_, ok := eventbus.FromContext(t.Context())
		require.False(t, ok)
	})
}

func TestF5_FromContextIsSafeForConcurrentUse(t *testing.T) {
	bus := once(t)
	var wrong atomic.Int32
	var outer sync.WaitGroup
	mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
		for range 2 {
			outer.Add(1)
			go func() { // may outlive the handler
				defer outer.Done()
				for range 20 {
					if d, ok := eventbus.FromContext(ctx); ok && (d.Event.ID != e.ID || d.Event.Payload != e.Payload) {
						wrong.Add(1)
					}
					_ = ctx.Err()
					_ = ctx.Value(key("k"))
					_, _ = ctx.Deadline()
				}
			}()
		}
		return nil
	})
	for i := range 500 {
		mustPublish(t, bus, "x", i)
	}
	shutdown(t, bus)
	outer.Wait()
	require.Zero(t, wrong.Load())
}

func TestF5_TheErrorsOfAllAttemptsAreKeptInOrder(t *testing.T) {
	for _, failures := range []int{1, 99, 100, 101, 250} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(eventbus.Unlimited, time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
			n := 0
			mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
				n++
				time.Sleep(time.Duration(n) * time.Millisecond)
				err := fmt.Errorf("failure %d", n)
				if n == failures {
					return eventbus.Permanent(err)
				}
				return err
			}, eventbus.Named("s"))
			begin := time.Now().UTC()
			r, err := bus.PublishAndWait(t.Context(), "x", nil)
			require.Error(t, err)
			require.Equal(t, failures, r.Attempts)
			l := oneLetter(t, bus)
			require.Equal(t, failures, l.Attempts)
			var want []int
			for i := 1; i <= failures; i++ {
				if i <= 10 || i > failures-90 {
					want = append(want, i)
				}
			}
			require.Len(t, l.Failures, len(want))
			require.Equal(t, failures-len(want), l.FailuresOmitted)
			for i, f := range l.Failures {
				attempt := want[i]
				require.Equal(t, attempt, f.Attempt)
				require.Equal(t, fmt.Sprint("failure ", attempt), f.Error)
				require.EqualError(t, f.Err, f.Error)
				require.Equal(t, "s", f.Subscription)
				// A success on a shared reading of the clock may begin a tick late.
				require.InDelta(t, time.Duration(attempt)*time.Millisecond, f.Duration, float64(time.Millisecond))
				at := begin.Add(time.Duration(attempt-1) * time.Second).Add(time.Duration(attempt*(attempt+1)/2) * time.Millisecond)
				require.Equal(t, at, f.Time, "attempt %d", attempt)
			}
			require.True(t, slices.IsSortedFunc(l.Failures, func(a, b eventbus.Failure) int { return a.Time.Compare(b.Time) }))
			shutdown(t, bus)
		})
	}
}

func TestF5_ADurationIsNeverNegative(t *testing.T) {
	mock := clock.NewMock()
	bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithRetry(eventbus.MaxRetries(0)))
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
		mock.Set(mock.Now().Add(-time.Hour))
		return errBoom
	})
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.Error(t, err)
	require.GreaterOrEqual(t, oneLetter(t, bus).Failures[0].Duration, time.Duration(0))
	shutdown(t, bus)
}

// A handler that has just overrun can still ask what it is delivering, and its
// late end names it.
func TestF5_AHandlerThatHasOverrunKnowsItsEvent(t *testing.T) {
	bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithTimeout(3*time.Millisecond),
		eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithConcurrency(64))
	var unknown atomic.Int64
	mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
		for ctx.Err() == nil {
			runtime.Gosched()
		}
		if _, ok := eventbus.FromContext(ctx); !ok {
			unknown.Add(1)
		}
		return nil
	})
	mustSubscribe(t, bus, "b", func(ctx context.Context, _ eventbus.Event) error {
		for ctx.Err() == nil {
			runtime.Gosched()
		}
		return nil
	})
	for range 100 {
		mustPublish(t, bus, "a", nil)
		mustPublish(t, bus, "b", nil)
	}
	shutdown(t, bus)
	require.Zero(t, unknown.Load())
	for _, e := range logs.FilterMessage("abandoned handler ended").All() {
		require.NotEmpty(t, e.ContextMap()["event_type"])
		require.NotEmpty(t, e.ContextMap()["subscription_id"])
	}
}

// A failure lasts since its own handler began.
func TestF5_TheDurationOfAFailureIsItsHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 4 { // some runs are timed, and have no step to the next one
			s := newSequence(t, nil, eventbus.WithRetry(retry(0, 0)))
			mustSubscribe(t, s.bus, "tick", ok)
			for i := range 3 {
				s.handle[i] = func(context.Context, eventbus.Event) error {
					for range 50 { // there is work, so that the clock is read at every tick, and only then
						time.Sleep(time.Millisecond)
						mustPublish(t, s.bus, "tick", nil)
					}
					return nil
				}
			}
			s.handle[3] = func(context.Context, eventbus.Event) error { time.Sleep(5 * time.Millisecond); return errBoom }
			s.publish(t)
			time.Sleep(time.Second)
			l := oneLetter(t, s.bus)
			require.Equal(t, "3", l.Subscription)
			require.InDelta(t, 5*time.Millisecond, l.Failures[0].Duration, float64(time.Millisecond))
			shutdown(t, s.bus)
		}
	})
}

func TestErrorsSayWhatTheyMatch(t *testing.T) {
	require.ErrorIs(t, &eventbus.EventError{}, eventbus.ErrInvalidEvent)
	require.ErrorIs(t, &eventbus.PatternError{}, eventbus.ErrInvalidPattern)
	require.ErrorIs(t, &eventbus.OptionError{}, eventbus.ErrInvalidOption)
	require.ErrorIs(t, &eventbus.TimeoutError{}, context.DeadlineExceeded)
	require.NotErrorIs(t, &eventbus.EventError{}, eventbus.ErrInvalidPattern)
	require.NoError(t, errors.Unwrap(&eventbus.PanicError{Value: "text"}))
	require.Equal(t, errBoom, errors.Unwrap(&eventbus.PanicError{Value: errBoom}))
	require.NoError(t, eventbus.RetryAfter(nil, time.Second))
}

// Its place is taken by another goroutine, so others are not held up.
func TestFault21_StuckHandlersCostNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := once(t, eventbus.WithConcurrency(2), eventbus.WithTimeout(time.Second))
		mustSubscribe(t, bus, "stuck", func(context.Context, eventbus.Event) error {
			time.Sleep(24 * time.Hour)
			return nil
		}, eventbus.Concurrency(eventbus.Unlimited))
		mustSubscribe(t, bus, "fine", ok)
		for range 20 {
			mustPublish(t, bus, "stuck", nil)
		}
		begin := time.Now()
		_, err := bus.PublishAndWait(t.Context(), "fine", nil)
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(begin), 11*time.Second)
		time.Sleep(2 * time.Second)
		require.Len(t, bus.Abandoned(), 20)
		shutdown(t, bus)
		require.Len(t, bus.Abandoned(), 20)
		time.Sleep(48 * time.Hour)
		require.Empty(t, bus.Abandoned())
	})
}

// Fault 31.
func TestFault31_LongErrorTextsAreCut(t *testing.T) {
	novel := strings.Repeat("ä", 5<<20)
	for name, h := range map[string]eventbus.Handler{
		"error": failing(errors.New(novel)),
		"panic": func(context.Context, eventbus.Event) error { panic(novel) },
	} {
		bus := once(t)
		mustSubscribe(t, bus, "x", h)
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.Error(t, err)
		require.Less(t, len(err.Error()), 10<<10, name)
		text := oneLetter(t, bus).Failures[0].Error
		require.Less(t, len(text), 9<<10, name)
		require.Greater(t, len(text), 8<<10-200, name)
		require.True(t, utf8.ValidString(text))
		require.Contains(t, text, "bytes more)")
		shutdown(t, bus)
	}
}

// A delivery that is split off after 100 failures of its event keeps the first ones that remain.
// Later failures replace those in the middle: there is one gap.
func TestF5_ASplitDeliveryKeepsItsFirstFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(eventbus.MaxRetries(eventbus.Unlimited),
			eventbus.BaseDelay(time.Second), eventbus.BackoffMultiplier(1), eventbus.NoJitter))
		var first, second int
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			if first++; first <= 7 {
				return errBoom
			}
			return nil
		})
		var s *eventbus.Subscription
		s = mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error {
			switch second++; second {
			case 200:
				_ = s.Pause()
			case 400:
				return eventbus.Permanent(errBoom)
			}
			return errBoom
		})
		mustPublish(t, bus, "x", nil)
		time.Sleep(300 * time.Second)
		require.NoError(t, s.Resume())
		time.Sleep(300 * time.Second)
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Len(t, page.Letters, 1)
		letter := page.Letters[0]
		require.Len(t, letter.Failures, 93)
		require.Equal(t, 400-93, letter.FailuresOmitted)
		for i, f := range letter.Failures {
			want := 8 + i // the first three attempts that reached it
			if i >= 3 {
				want = 407 - 92 + i
			}
			require.Equal(t, want, f.Attempt, "failure %d", i)
		}
		shutdown(t, bus)
	})
}
