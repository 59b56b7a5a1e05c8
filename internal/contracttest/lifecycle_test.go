package contracttest

import (
	"context"
	"fmt"
	"reflect"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

func TestS1_EventsWaitForStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		var got []any
		mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error { got = append(got, e.Payload); return nil })
		for i := range 3 {
			mustPublish(t, bus, "x", i)
		}
		time.Sleep(time.Hour)
		require.Empty(t, got)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Queued)
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, bus.Start(ctx))
		cancel() // bounds Start only
		require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrAlreadyStarted)
		synctest.Wait()
		require.Equal(t, []any{0, 1, 2}, got)
		shutdown(t, bus)
		require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrShutdown)
	})
}

// A replay that looks for a name finds who has taken it over.
func TestS3_FormerlyTakesOverTheLettersOfAName(t *testing.T) {
	bus, _ := startBus(t)
	old := mustSubscribe(t, bus, "x", failing(eventbus.Permanent(errBoom)), eventbus.Named("old"))
	older := mustSubscribe(t, bus, "y", failing(eventbus.Permanent(errBoom)), eventbus.Named("older"))
	for _, eventType := range []string{"x", "y"} {
		_, err := bus.PublishAndWait(t.Context(), eventType, nil)
		require.Error(t, err)
	}
	old.Unsubscribe()
	older.Unsubscribe()
	for _, l := range letters(t, bus) {
		require.ErrorIs(t, bus.DLQ().Replay(t.Context(), l.ID), eventbus.ErrNoSubscription)
	}
	got := make(chan string, 2)
	s := mustSubscribe(t, bus, "z", func(_ context.Context, e eventbus.Event) error { got <- e.Type; return nil },
		eventbus.Named("new"), eventbus.Formerly("old"), eventbus.Formerly("older", "oldest"))
	require.Same(t, s, bus.Subscription("old"), "by its former name")
	require.Same(t, s, bus.Subscription("new"))
	for _, l := range letters(t, bus) {
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
	}
	require.ElementsMatch(t, []string{"x", "y"}, []string{<-got, <-got})
	shutdown(t, bus)
}

// Two subscriptions of a letter that have become one get it once.
func TestS3_OneTakesOverSeveralOfALetter(t *testing.T) {
	bus, _ := startBus(t)
	a := mustSubscribe(t, bus, "x", failing(eventbus.Permanent(errBoom)), eventbus.Named("a"))
	b := mustSubscribe(t, bus, "x", ok, eventbus.Named("b"))
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.Error(t, err)
	require.Equal(t, []string{"b"}, oneLetter(t, bus).NotReached)
	a.Unsubscribe()
	b.Unsubscribe()
	got := make(chan bool, 10)
	mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { got <- true; return nil }, eventbus.Formerly("a", "b"))
	require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
	shutdown(t, bus)
	require.Len(t, got, 1)
}

func TestS4_AMockClockDrivesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // of the real time, that is, which stands still
		mock := clock.NewMock()
		origin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		mock.Set(origin)
		bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithRetry(retry(1, time.Hour)))
		var deadline time.Time
		var mu sync.Mutex
		calls := 0
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			mu.Lock()
			calls++
			deadline, _ = ctx.Deadline()
			mu.Unlock()
			<-ctx.Done()
			return nil
		}, eventbus.Timeout(time.Minute))
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		require.Equal(t, origin.Add(time.Minute), deadline)
		mock.Add(time.Minute - 1)
		synctest.Wait()
		require.Zero(t, bus.Metrics().WaitingRetries)
		mock.Add(1)
		synctest.Wait()
		require.Equal(t, 1, bus.Metrics().WaitingRetries)
		mock.Add(time.Hour - 1)
		synctest.Wait()
		require.Equal(t, 1, calls)
		mock.Add(1)
		synctest.Wait()
		require.Equal(t, 2, calls)
		mock.Add(time.Minute)
		synctest.Wait()
		l := oneLetter(t, bus)
		require.Equal(t, origin, l.Event.Time)
		require.Equal(t, origin.Add(time.Hour+2*time.Minute), l.DiedAt)
		require.Equal(t, origin.Add(time.Minute), l.Failures[0].Time)
		require.Equal(t, time.Minute, l.Failures[0].Duration)
		shutdown(t, bus)

		// No timer is left: this one runs all there are.
		at := mock.Now()
		mock.WaitForAllTimers()
		require.Equal(t, at, mock.Now())
	})
}

// Retries without a delay need no move of the clock.
func TestS4_AMockClockThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithClock(clock.NewMock()), eventbus.WithRetry(retry(3, 0)))
		mustSubscribe(t, bus, "x", failing(errBoom))
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, 4, oneLetter(t, bus).Attempts)
		shutdown(t, bus)
	})
}

func TestS4_AMockClockThatIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		origin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		mock.Set(origin)
		bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithRetry(retry(1, time.Minute)), eventbus.WithTimeout(time.Minute))
		calls := 0
		var mu sync.Mutex
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls == 1 {
				mock.Set(origin.Add(-time.Hour)) // while it runs
			}
			return errBoom
		})
		mustPublish(t, bus, "x", nil)
		time.Sleep(time.Second) // the mock sleeps too
		synctest.Wait()
		require.Equal(t, 1, calls)
		mock.Add(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, calls, "the delay begins when the failure was seen")
		require.Len(t, oneLetter(t, bus).Failures, 2)
		mustSubscribe(t, bus, "stuck", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil },
			eventbus.Retry(eventbus.MaxRetries(0)))
		mustPublish(t, bus, "stuck", nil)
		synctest.Wait()
		mock.Add(time.Minute)
		synctest.Wait()
		require.Len(t, letters(t, bus), 2, "and so does the timeout")
		shutdown(t, bus)
	})
}

type movingClock struct {
	*clock.Mock
	move atomic.Int64
}

func (c *movingClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	if by := c.move.Swap(0); by != 0 {
		c.Add(time.Duration(by))
	}
	return c.Mock.AfterFunc(d, f)
}

// The clock is moved while a timer is being set: the timeout is not late by as much.
func TestS4_AMockClockThatMovesWhileATimerIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &movingClock{Mock: clock.NewMock()}
		bus, _ := startBus(t, eventbus.WithClock(c), eventbus.WithRetry(eventbus.MaxRetries(0)))
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			<-ctx.Done()
			return ctx.Err()
		}, eventbus.Timeout(time.Second))
		c.move.Store(int64(50 * time.Millisecond))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Second)
		c.Add(955 * time.Millisecond) // 5 ms past the deadline
		time.Sleep(time.Second)
		require.Len(t, letters(t, bus), 1)
		shutdown(t, bus)
	})
}

// A handler that overruns is reported as slow exactly once, before its timeout, by
// the injected clock.
func TestS4_SlowByAMockClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow journal[eventbus.SlowHandler]
		mock := clock.NewMock()
		bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithTimeout(30*time.Second), oneAttempt,
			eventbus.WithObserver(eventbus.Observer{SlowHandler: slow.add}))
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil })
		mustPublish(t, bus, "x", nil)
		settleWorkers()
		mock.Add(10*time.Second - 1)
		settleWorkers()
		require.Zero(t, slow.len())
		mock.Add(1)
		settleWorkers()
		require.Equal(t, 1, slow.len())
		require.Equal(t, 10*time.Second, slow.all()[0].Elapsed)
		mock.Add(20 * time.Second)
		shutdown(t, bus)
		require.Equal(t, 1, slow.len())
		require.Equal(t, 1, bus.Metrics().DeadLetters)
	})
}

func TestS5_AnIdleBusHasNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, _ := startBus(t, eventbus.WithClock(mock))
		for i := range 1000 {
			mustSubscribe(t, bus, fmt.Sprintf("type.%d", i), ok)
		}
		for range 3 {
			for i := range 1000 {
				mustPublish(t, bus, fmt.Sprintf("type.%d", i), nil)
			}
			synctest.Wait()
			time.Sleep(time.Second)
			at := mock.Now()
			mock.WaitForAllTimers()
			require.Equal(t, at, mock.Now())
		}
		shutdown(t, bus)
	})
}

// The last of many workers to be done leaves, and does not rest.
func TestS5_AnIdleBusHasNoTimerAfterManyWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, _ := startBus(t, eventbus.WithClock(mock))
		release := make(chan struct{})
		mustSubscribe(t, bus, "x", func(context.Context, eventbus.Event) error { return hold(release) })
		for range 200 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Second)
		running := bus.Metrics().RunningDispatches
		close(release)
		time.Sleep(time.Second)
		at := mock.Now()
		mock.WaitForAllTimers()
		idle := mock.Now().Sub(at)
		shutdown(t, bus)
		require.Equal(t, 200, running)
		require.Zero(t, idle, "a timer was outstanding")
	})
}

// On the real clock a timer cannot be seen, but what it wakes can: in a bubble,
// where a day is nothing unless somebody wakes in it.
func TestS5_AnIdleBusWakesNobody(t *testing.T) {
	const name = "/sched/goroutines-created:goroutines"
	created := func() uint64 {
		sample := []metrics.Sample{{Name: name}}
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindUint64 {
			t.Skip("this Go does not count goroutines")
		}
		return sample[0].Value.Uint64()
	}
	created()
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		for i := range 1000 {
			mustSubscribe(t, bus, fmt.Sprintf("type.%d", i), ok)
		}
		for range 3 {
			for i := range 1000 {
				mustPublish(t, bus, fmt.Sprintf("type.%d", i), nil)
			}
			time.Sleep(time.Minute)
			before := created()
			time.Sleep(10 * time.Second) // ten thousand ticks
			require.Less(t, created()-before, uint64(1000))
		}
		shutdown(t, bus)
	})
}

// arguments are plausible ones, so that it is the bus that is at fault.
func arguments(of reflect.Type) []reflect.Value {
	var in []reflect.Value
	for i := range of.NumIn() {
		if of.IsVariadic() && i == of.NumIn()-1 {
			break
		}
		switch want := of.In(i); want {
		case reflect.TypeFor[context.Context]():
			in = append(in, reflect.ValueOf(context.Background()))
		case reflect.TypeFor[eventbus.Handler]():
			in = append(in, reflect.ValueOf(eventbus.Handler(ok)))
		case reflect.TypeFor[eventbus.LetterQuery]():
			in = append(in, reflect.ValueOf(eventbus.LetterQuery{All: true}))
		case reflect.TypeFor[string]():
			in = append(in, reflect.ValueOf("x"))
		default:
			in = append(in, reflect.Zero(want))
		}
	}
	return in
}

// Fault 17: found by reflection, so that methods that are added are tested too.
func TestFault17_AZeroBusAndANilBus(t *testing.T) {
	var nilBus *eventbus.Bus
	for name, receiver := range map[string]any{
		"zero Bus": &eventbus.Bus{}, "nil Bus": nilBus,
		"DLQ of a zero Bus": (&eventbus.Bus{}).DLQ(), "DLQ of a nil Bus": nilBus.DLQ(), "zero DLQ": &eventbus.DLQ{},
	} {
		v := reflect.ValueOf(receiver)
		require.NotZero(t, v.NumMethod())
		for i := range v.NumMethod() {
			method, called := v.Method(i), fmt.Sprintf("%s: %s", name, v.Type().Method(i).Name)
			var out []reflect.Value
			require.NotPanics(t, func() { out = method.Call(arguments(method.Type())) }, called)
			failed := false
			for _, o := range out {
				switch x := o.Interface().(type) {
				case error:
					require.ErrorIs(t, x, eventbus.ErrUninitialized, called)
					failed = true
				case eventbus.Plan:
					require.ErrorIs(t, x.Err, eventbus.ErrUninitialized, called)
				case *eventbus.DLQ:
					require.NotNil(t, x, called)
				case *zap.Logger:
					require.NotNil(t, x, called) // it is silent
				case *eventbus.Subscription:
					require.False(t, x.Exists(), called)
					require.ErrorIs(t, x.Pause(), eventbus.ErrUninitialized, called)
				case func():
					require.NotPanics(t, x, called)
				default:
					require.True(t, o.IsZero(), "%s: %v", called, x)
				}
			}
			if n := method.Type().NumOut(); n > 0 && method.Type().Out(n-1) == reflect.TypeFor[error]() {
				require.True(t, failed, called)
			}
		}
	}
}

// Fault 38.
func TestFault38_ShutdownWithMuchToDo(t *testing.T) {
	for _, patient := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Hour)), eventbus.WithCircuit(eventbus.NoCircuit()))
			mustSubscribe(t, bus, "running", func(ctx context.Context, _ eventbus.Event) error {
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
				}
				return nil
			})
			mustSubscribe(t, bus, "failing", failing(errBoom))
			for range 2000 {
				mustPublish(t, bus, "failing", nil)
			}
			time.Sleep(time.Second)
			for range 1000 {
				mustPublish(t, bus, "running", nil)
			}
			time.Sleep(time.Second)
			if patient {
				shutdown(t, bus)
				require.EqualValues(t, 1000, bus.Metrics().Ledger.Handled)
				require.Len(t, letters(t, bus), 2000)
				return
			}
			var cut *eventbus.ShutdownError
			require.ErrorAs(t, bus.Shutdown(ended()), &cut)
			require.Len(t, cut.Unfinished, 3000)
			require.Less(t, len(cut.Error()), 10_000)
			requireBalanced(t, bus)
			synctest.Wait()
			require.Empty(t, bus.Abandoned())
		})
	}
}

// Fault 15.
func TestFault15_AfterShutdown(t *testing.T) {
	bus, _ := startBus(t)
	s := mustSubscribe(t, bus, "x", failing(eventbus.Permanent(errBoom)))
	mustPublish(t, bus, "x", nil)
	shutdown(t, bus)
	_, err := bus.Publish(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrShutdown)
	_, err = bus.PublishAndWait(t.Context(), "x", nil)
	require.ErrorIs(t, err, eventbus.ErrShutdown)
	_, err = bus.Subscribe("x", ok)
	require.ErrorIs(t, err, eventbus.ErrShutdown)
	require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrShutdown)
	require.ErrorIs(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID), eventbus.ErrShutdown)
	require.Len(t, bus.Explain("x").Targets, 1)
	s.Unsubscribe()
	require.NoError(t, bus.Shutdown(t.Context()))
	oneLetter(t, bus)
	requireBalanced(t, bus)
}
