package eventbus_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// sequence is a bus with five subscriptions to the same events. Their handlers ask
// nothing of their contexts but what a test has them ask, so that there is one step
// from each to the next, from the second one on.
type sequence struct {
	bus           *eventbus.Bus
	subscriptions [5]*eventbus.Subscription
	handle        [5]eventbus.Handler // nil succeeds
	ran           journal[int]
}

func newSequence(t *testing.T, own map[int]eventbus.SubscribeOption, opts ...eventbus.Option) *sequence {
	s := &sequence{}
	s.bus, _ = startBus(t, opts...)
	for i := range s.handle {
		more := []eventbus.SubscribeOption{eventbus.Named(fmt.Sprint(i))}
		if o := own[i]; o != nil {
			more = append(more, o)
		}
		s.subscriptions[i] = mustSubscribe(t, s.bus, "order.*", func(ctx context.Context, e eventbus.Event) error {
			s.ran.add(i)
			if h := s.handle[i]; h != nil {
				return h(ctx, e)
			}
			return nil
		}, more...)
	}
	return s
}

func (s *sequence) publish(t *testing.T, opts ...eventbus.PublishOption) {
	t.Helper()
	mustPublish(t, s.bus, "order.placed", nil, opts...)
	synctest.Wait()
}

func TestE4_AContextHasEndedWhenTheNextHandlerBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil)
		for i := 1; i < len(s.handle); i++ {
			var before context.Context
			called := 0
			s.handle = [5]eventbus.Handler{}
			s.handle[i-1] = func(ctx context.Context, _ eventbus.Event) error { before = ctx; return nil }
			s.handle[i] = func(ctx context.Context, _ eventbus.Event) error {
				called++
				require.NoError(t, ctx.Err())
				require.NotSame(t, before, ctx)
				require.ErrorIs(t, before.Err(), context.Canceled)
				require.ErrorIs(t, context.Cause(before), context.Canceled)
				<-before.Done()
				_, running := eventbus.FromContext(before)
				require.False(t, running)
				d, running := eventbus.FromContext(ctx)
				require.True(t, running)
				require.Equal(t, fmt.Sprint(i), d.Subscription)
				require.NoError(t, ctx.Err())
				return nil
			}
			s.publish(t)
			require.Equal(t, 1, called)
		}
		// One that was asked while its handler ran ends then too.
		var done <-chan struct{}
		s.handle = [5]eventbus.Handler{
			2: func(ctx context.Context, _ eventbus.Event) error { done = ctx.Done(); return nil },
			3: func(context.Context, eventbus.Event) error { <-done; return nil },
		}
		s.publish(t)
		require.Len(t, s.ran.all(), 5*5)
		shutdown(t, s.bus)
	})
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

func TestS2_ACutMeetsTheHandlerThatRuns(t *testing.T) {
	for stuck := range 5 {
		synctest.Test(t, func(t *testing.T) {
			s := newSequence(t, nil)
			s.handle[stuck] = func(ctx context.Context, _ eventbus.Event) error {
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), eventbus.ErrShutdown)
				return nil
			}
			s.publish(t)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, s.bus.Shutdown(ctx))
			synctest.Wait()
			l := oneLetter(t, s.bus)
			require.Equal(t, eventbus.ReasonShutdown, l.Reason)
			require.Equal(t, fmt.Sprint(stuck), l.Subscription)
			require.Len(t, l.Succeeded, stuck)
			require.Len(t, l.NotReached, 4-stuck)
			require.Len(t, s.ran.all(), stuck+1)
			requireBalanced(t, s.bus)
		})
	}
}

func TestC6_APauseHoldsTheNextHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil)
		s.handle[2] = func(context.Context, eventbus.Event) error { return s.subscriptions[3].Pause() }
		s.publish(t)
		require.Equal(t, []int{0, 1, 2, 4}, s.ran.all())
		require.NoError(t, s.subscriptions[3].Resume())
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 4, 3}, s.ran.all())
		shutdown(t, s.bus)
	})
}

func TestR5_AnUnsubscribeStopsTheNextHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil)
		s.handle[2] = func(context.Context, eventbus.Event) error { s.subscriptions[3].Unsubscribe(); return nil }
		s.publish(t)
		require.Equal(t, []int{0, 1, 2, 4}, s.ran.all())
		require.Equal(t, eventbus.ReasonUnsubscribed, oneLetter(t, s.bus).Reason)
		shutdown(t, s.bus)
	})
}

func TestC2_AProbeBetweenOtherHandlersClosesItsCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil, eventbus.WithCircuit(eventbus.OpenFor(time.Second)))
		require.NoError(t, s.subscriptions[2].Trip())
		s.publish(t)
		require.Equal(t, []int{0, 1, 3, 4}, s.ran.all())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []int{0, 1, 3, 4, 2}, s.ran.all())
		require.Equal(t, eventbus.CircuitClosed, metricsOf(t, s.bus, "2").Circuit)
		const probes = 4 // some runs are timed, and have no step to the next one
		for i := range probes {
			require.NoError(t, s.subscriptions[2].Trip())
			time.Sleep(2 * time.Second)
			s.publish(t)
			require.Equal(t, []int{0, 1, 2, 3, 4}, s.ran.all()[5*(i+1):], "the event is the probe itself")
			require.Equal(t, eventbus.CircuitClosed, metricsOf(t, s.bus, "2").Circuit)
		}
		for i := range s.handle {
			require.EqualValues(t, 1+probes, metricsOf(t, s.bus, fmt.Sprint(i)).Successes, i)
		}
		shutdown(t, s.bus)
	})
}

// A success counts in the window also when there is one step to the next handler.
func TestC1_SuccessesBetweenOtherHandlersAreInTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil, eventbus.WithRetry(retry(0, 0)),
			eventbus.WithCircuit(eventbus.FailureRatio(0.5), eventbus.MinEvents(1), eventbus.Window(12*time.Second)))
		for range 10 {
			s.publish(t)
		}
		s.handle[3] = failing(errBoom)
		for range 10 {
			s.publish(t)
		}
		require.Equal(t, eventbus.CircuitClosed, metricsOf(t, s.bus, "3").Circuit, "10 of 20")
		s.publish(t)
		require.Equal(t, eventbus.CircuitOpen, metricsOf(t, s.bus, "3").Circuit, "11 of 21")
		shutdown(t, s.bus)
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

// What runs at the end of a circuit's step is not lost: successes are recorded there.
func TestC1_TheWindowMovesOnBetweenOtherHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil, eventbus.WithRetry(retry(0, 0)),
			eventbus.WithCircuit(eventbus.FailureRatio(0.5), eventbus.MinEvents(4), eventbus.Window(12*time.Second)))
		for range 8 { // successes that the window forgets
			s.publish(t)
			time.Sleep(time.Second)
		}
		time.Sleep(13 * time.Second)
		s.publish(t)
		s.handle[3] = failing(errBoom)
		for range 3 {
			s.publish(t)
		}
		require.Equal(t, eventbus.CircuitOpen, metricsOf(t, s.bus, "3").Circuit, "3 of 4")
		shutdown(t, s.bus)
	})
}
