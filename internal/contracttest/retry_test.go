package contracttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

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

func TestP1_DefaultPolicy(t *testing.T) {
	want := eventbus.RetryPolicy{MaxRetries: 3, BaseDelay: time.Second, MaxDelay: 30 * time.Second, BackoffMultiplier: 2}
	require.Equal(t, want, eventbus.DefaultRetryPolicy())
	require.Equal(t, eventbus.ProportionalJitter, want.Jitter)

	bus, _ := newBus(t)
	mustSubscribe(t, bus, "a", ok)
	require.Equal(t, want, bus.Explain("a").Policy)
}

func TestP2_TheBusWaitsAsTheTableSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(8), eventbus.NoJitter))
		var calls callTimes
		mustSubscribe(t, bus, "a", calls.failing(errBroken))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)

		require.Equal(t, inSeconds(0, 1, 3, 7, 15, 31, 61, 91, 121), calls.all())
		require.Equal(t, []int64{1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000, 0}, loggedDelays(logs))
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, 9, l.Attempts)
		for i, f := range l.Failures {
			require.Equal(t, calls.all()[i], f.Time.Sub(calls.since), "failure %d", i)
		}
	})
}

func TestP2_DefaultsAndMockClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, _ := startBus(t, eventbus.WithClock(mock), eventbus.WithRetry(eventbus.NoJitter))
		started := mock.Now()
		var calls journal[time.Duration]
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			calls.add(mock.Since(started))
			return errBroken
		})
		mustPublish(t, bus, "a", nil)
		settleWorkers()
		for n, delay := range inSeconds(1, 2, 4) {
			require.Equal(t, n+1, calls.len())
			require.Equal(t, 1, bus.Metrics().WaitingRetries)
			mock.Add(delay - 1)
			settleWorkers()
			require.Equal(t, n+1, calls.len())
			mock.Add(1)
			settleWorkers()
		}
		require.Equal(t, inSeconds(0, 1, 3, 7), calls.all())
		shutdown(t, bus)
		require.Equal(t, 4, oneLetter(t, bus).Attempts)
	})
}

func TestP2_ImmediateRetriesAndFastForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(eventbus.Unlimited), eventbus.BaseDelay(0)))
		n := 0
		began := time.Now()
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if n++; n <= 1000 {
				return errBroken
			}
			return nil
		})
		r, err := bus.PublishAndWait(t.Context(), "a", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, r.Outcome)
		require.Equal(t, 1001, r.Attempts)
		require.Zero(t, time.Since(began))
		shutdown(t, bus)
	})
}

// One event, a random policy: every start, every logged delay and the end are
// what the policy's own formula says.
func TestP2_TheBusFollowsThePolicyWhateverItIs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := eventbus.RetryPolicy{
			MaxRetries:        rapid.IntRange(0, 12).Draw(rt, "MaxRetries"),
			BaseDelay:         time.Duration(rapid.IntRange(0, 5000).Draw(rt, "base ms")) * time.Millisecond,
			MaxDelay:          time.Duration(rapid.IntRange(0, 60_000).Draw(rt, "max ms")) * time.Millisecond,
			BackoffMultiplier: rapid.Float64Range(1, 3).Draw(rt, "multiplier"),
			MaxElapsed:        time.Duration(rapid.IntRange(0, 120).Draw(rt, "elapsed s")) * time.Second,
			Jitter:            eventbus.NoJitter,
		}
		succeedsAt := rapid.IntRange(1, 16).Draw(rt, "succeeds at attempt")

		var want []time.Duration
		outcome := "handled"
		for at, attempt := time.Duration(0), 1; ; attempt++ {
			want = append(want, at)
			if attempt == succeedsAt {
				break
			}
			if attempt > p.MaxRetries {
				outcome = "exhausted"
				break
			}
			at += p.Delay(attempt + 1)
			if p.MaxElapsed > 0 && at >= p.MaxElapsed {
				outcome = "expired"
				break
			}
		}

		var got []time.Duration
		var result string
		synctest.Test(t, func(t *testing.T) {
			bus, err := eventbus.New(eventbus.WithRetry(p))
			if err != nil {
				result = err.Error()
				return
			}
			began := time.Now()
			_, _ = bus.Subscribe("a", func(ctx context.Context, _ eventbus.Event) error {
				got = append(got, time.Since(began))
				if d, _ := eventbus.FromContext(ctx); d.Attempt == succeedsAt {
					return nil
				}
				return errBroken
			})
			_ = bus.Start(t.Context())
			r, err := bus.PublishAndWait(t.Context(), "a", nil)
			result = r.Outcome.String()
			var d *eventbus.DeliveryError
			if errors.As(err, &d) {
				result = string(d.Letters[0].Reason)
			}
			_ = bus.Shutdown(t.Context())
		})
		if result != outcome || !slices.Equal(got, want) {
			rt.Fatalf("%s after %v, want %s after %v", result, got, outcome, want)
		}
	})
}

// What comes out of the bus, rather than of a formula: bounds, and that the
// values fill them evenly.
func TestP3_JitterOfTheBus(t *testing.T) {
	const events = 400
	for _, c := range []struct {
		jitter    eventbus.Jitter
		low, high float64 // of d
	}{
		{eventbus.ProportionalJitter, 0.9, 1.1},
		{eventbus.NoJitter, 1, 1},
		{eventbus.FullJitter, 0, 1},
		{eventbus.EqualJitter, 0.5, 1},
		{eventbus.DecorrelatedJitter, 1, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := 10 * time.Second
			bus, logs := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()),
				eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(d), eventbus.MaxDelay(time.Hour)))
			mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Retry(c.jitter))
			for range events {
				mustPublish(t, bus, "a", nil)
			}
			shutdown(t, bus)

			var logged, observed []float64
			for _, ms := range loggedDelays(logs) {
				if ms > 0 {
					logged = append(logged, float64(ms)/1e3/d.Seconds())
				}
			}
			for _, l := range letters(t, bus) {
				require.Len(t, l.Failures, 2)
				observed = append(observed, l.Failures[1].Time.Sub(l.Failures[0].Time).Seconds()/d.Seconds())
			}
			for _, all := range [][]float64{logged, observed} {
				require.Greater(t, len(all), events-10, "a full jitter of 0 is rare")
				slices.Sort(all)
				const slack = 1e-3 // of a rounded millisecond, or a tick
				width := c.high - c.low
				require.GreaterOrEqual(t, all[0], c.low-slack, c.jitter)
				require.LessOrEqual(t, all[len(all)-1], c.high+slack, c.jitter)
				// A correct bus fails one of these less than once in 10^8 runs.
				require.InDelta(t, c.low, all[0], width*0.06+slack, c.jitter)
				require.InDelta(t, c.high, all[len(all)-1], width*0.06+slack, c.jitter)
				require.InDelta(t, (c.low+c.high)/2, all[len(all)/2], width*0.16+slack, c.jitter)
			}
		})
	}
}

func TestP3_WithoutJitterNobodyIsAskedForRandomNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)),
			eventbus.WithRandom(func() float64 { asked++; return 0 }))
		mustSubscribe(t, bus, "a", failing(errBroken))
		mustSubscribe(t, bus, "b", failing(errBroken), eventbus.Retry(eventbus.FullJitter))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, letters(t, bus), 1)
		require.Zero(t, asked)
		mustPublish(t, bus, "b", nil)
		shutdown(t, bus)
		require.Positive(t, asked)
	})
}

// Every delay is drawn from the one before, not from the attempt's number.
func TestP3_DecorrelatedJitterGrowsFromThePreviousDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(200), eventbus.BaseDelay(time.Second),
			eventbus.MaxDelay(time.Minute), eventbus.BackoffMultiplier(math.MaxFloat64), eventbus.DecorrelatedJitter))
		mustSubscribe(t, bus, "a", failing(errBroken))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		previous, fell := int64(1000), 0
		delays := loggedDelays(logs)
		require.Len(t, delays, 201)
		for _, ms := range delays[:200] {
			require.GreaterOrEqual(t, ms, int64(1000))
			require.LessOrEqual(t, ms, min(3*previous, 60_000)+3)
			if ms < previous {
				fell++
			}
			previous = ms
		}
		require.Positive(t, fell, "it is no plain backoff")
	})
}

func TestP3_TheFailingSubscriptionsJitterHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(40), eventbus.BaseDelay(time.Second), eventbus.MaxDelay(time.Second)))
		fails := 20
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if fails--; fails >= 0 {
				return errBroken
			}
			return nil
		}, eventbus.Named("exact"), eventbus.Retry(eventbus.NoJitter))
		mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Named("full"), eventbus.Retry(eventbus.FullJitter))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		below := 0
		for _, e := range logs.FilterMessage("handler failed").All() {
			ms := e.ContextMap()["delay_ms"].(int64)
			if e.ContextMap()["subscription_id"] == "exact" {
				require.Equal(t, int64(1000), ms)
			} else if ms < 900 {
				below++
			}
		}
		require.Greater(t, below, 5)
	})
}

// A split that begins anew begins its delays anew.
func TestP3_ASplitDoesNotGoOnFromTheDelaysOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()),
			eventbus.WithRandom(func() float64 { return math.Nextafter(1, 0) }),
			eventbus.WithRetry(eventbus.BaseDelay(time.Second), eventbus.MaxDelay(time.Hour), eventbus.DecorrelatedJitter))
		_, first := ruleCalls(errBroken, errBroken, errBroken, nil)
		mustSubscribe(t, bus, "a", first)
		var began journal[time.Time]
		s := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if began.add(time.Now()); began.len() == 1 {
				return errBroken
			}
			return nil
		})
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Minute) // the first subscription has had delays of 3, 9 and 27 s
		require.NoError(t, s.Resume())
		shutdown(t, bus)
		calls := began.all()
		require.Len(t, calls, 2)
		require.InDelta(t, 3*time.Second, calls[1].Sub(calls[0]), float64(time.Millisecond))
	})
}

// named is an error of a name, around others.
func named(name string, inner ...error) error {
	return &ruleError{name: name, inner: errors.Join(inner...)}
}

func TestP6_NamesDecideWhatIsWorthARetry(t *testing.T) {
	include, exclude := eventbus.IncludeErrors, eventbus.ExcludeErrors
	deep := fmt.Errorf("a: %w", errors.Join(errBroken, named("Outer", named("Inner"))))
	for name, c := range map[string]struct {
		err     error
		opts    []eventbus.RetryOption
		retried bool
	}{
		"no list":                        {named("X"), nil, true},
		"nil is no list":                 {named("X"), []eventbus.RetryOption{include("X"), retry(1, 0)}, true},
		"included":                       {named("X"), []eventbus.RetryOption{include("Y", "X")}, true},
		"not included":                   {named("X"), []eventbus.RetryOption{include("Y")}, false},
		"exactly":                        {named("X"), []eventbus.RetryOption{include("x", "XY", "")}, false},
		"an empty list includes nothing": {named("X"), []eventbus.RetryOption{include()}, false},
		"excluded":                       {named("X"), []eventbus.RetryOption{exclude("X")}, false},
		"not excluded":                   {named("X"), []eventbus.RetryOption{exclude("Y")}, true},
		"an empty list excludes nothing": {named("X"), []eventbus.RetryOption{exclude()}, true},
		"exclusion comes first":          {named("X"), []eventbus.RetryOption{include("X"), exclude("X")}, false},
		"the whole chain":                {deep, []eventbus.RetryOption{include("Inner")}, true},
		"the outer one":                  {deep, []eventbus.RetryOption{include("Outer")}, true},
		"what is joined":                 {deep, []eventbus.RetryOption{include("errorString")}, true},
		"an inner one that is excluded":  {deep, []eventbus.RetryOption{include("Outer"), exclude("Inner")}, false},
		"an outer one that is excluded":  {deep, []eventbus.RetryOption{include("Inner"), exclude("Outer")}, false},
		"registered":                     {fmt.Errorf("a: %w", fs.ErrExist), []eventbus.RetryOption{include("ExistError")}, true},
		"RetryIf must agree":             {named("X"), []eventbus.RetryOption{include("X"), eventbus.RetryIf(func(error) bool { return false })}, false},
		"RetryIf is not enough":          {named("X"), []eventbus.RetryOption{include("Y"), eventbus.RetryIf(func(error) bool { return true })}, false},
	} {
		for where, opts := range map[string]func() ([]eventbus.Option, []eventbus.SubscribeOption){
			"subscription": func() ([]eventbus.Option, []eventbus.SubscribeOption) {
				return nil, []eventbus.SubscribeOption{eventbus.Retry(c.opts...)}
			},
			"bus": func() ([]eventbus.Option, []eventbus.SubscribeOption) {
				return []eventbus.Option{eventbus.WithRetry(c.opts...)}, nil
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				ofBus, ofSub := opts()
				bus, _ := startBus(t, append([]eventbus.Option{
					eventbus.WithRetry(retry(1, 0)), eventbus.WithErrorName(fs.ErrExist, "ExistError"),
				}, ofBus...)...)
				mustSubscribe(t, bus, "a", ok, eventbus.Retry(include(), exclude("X", "Outer")))
				mustSubscribe(t, bus, "a", failing(c.err), ofSub...)
				mustPublish(t, bus, "a", nil)
				shutdown(t, bus)
				l := oneLetter(t, bus)
				want := map[bool]eventbus.Reason{true: eventbus.ReasonExhausted, false: eventbus.ReasonPermanent}[c.retried]
				require.Equal(t, want, l.Reason, "%s, of the %s", name, where)
				require.Equal(t, map[bool]int{true: 2, false: 1}[c.retried], l.Attempts, "%s, of the %s", name, where)
			})
		}
	}
}

func TestP6_ARetryIfThatPanicsIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, time.Second)))
		mustSubscribe(t, bus, "a", failing(errDead), eventbus.Retry(eventbus.RetryIf(func(error) bool { panic("oh") })))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Minute)
		require.Equal(t, 2, oneLetter(t, bus).Attempts)
		require.Equal(t, 2, logs.FilterMessage("RetryIf panicked").Len())
		shutdown(t, bus)
	})
}

func TestP6_MaxElapsedAtItsBoundary(t *testing.T) {
	for _, c := range []struct {
		name   string
		bound  time.Duration
		starts []time.Duration
	}{
		{"at the bound", 3 * time.Second, inSeconds(0, 1, 2)},
		{"just before it", 3*time.Second + 1, inSeconds(0, 1, 2, 3)},
		{"before the first retry", 1, inSeconds(0)},
		{"none", 0, inSeconds(0, 1, 2, 3, 4, 5)},
		{"beyond the budget", math.MaxInt64, inSeconds(0, 1, 2, 3, 4, 5)},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(retry(5, time.Second)))
			var calls callTimes
			mustSubscribe(t, bus, "a", calls.failing(errBroken), eventbus.Retry(eventbus.MaxElapsed(c.bound)))
			mustPublish(t, bus, "a", nil)
			shutdown(t, bus)
			require.Equal(t, c.starts, calls.all(), c.name)
			l := oneLetter(t, bus)
			require.Len(t, l.Failures, len(c.starts))
			want := eventbus.ReasonExhausted
			if len(c.starts) < 6 {
				want = eventbus.ReasonExpired
			}
			require.Equal(t, want, l.Reason, c.name)
			require.Zero(t, loggedDelays(logs)[len(c.starts)-1])
		})
	}
}

func TestP6_MaxElapsedNeverStopsAFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t, eventbus.WithRetry(retry(5, 0)))
		var calls callTimes
		mustSubscribe(t, bus, "a", calls.failing(errBroken), eventbus.Retry(eventbus.MaxElapsed(time.Minute)))
		mustPublish(t, bus, "a", nil)
		time.Sleep(time.Hour)
		require.NoError(t, bus.Start(t.Context()))
		shutdown(t, bus)
		require.Equal(t, inSeconds(3600), calls.all())
		require.Equal(t, eventbus.ReasonExpired, oneLetter(t, bus).Reason)
	})
}

// Time in the handler and RetryAfter count as well.
func TestP6_MaxElapsedCountsFromPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(9, time.Second), eventbus.MaxElapsed(10*time.Second)))
		n := 0
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if n++; n == 1 {
				time.Sleep(5 * time.Second)
				return eventbus.RetryAfter(errBroken, 4*time.Second) // due at 9 s
			}
			return eventbus.RetryAfter(errBroken, time.Second) // at 10 s
		})
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, 2, l.Attempts)
		require.Equal(t, eventbus.ReasonExpired, l.Reason)
	})
}

func TestP6_MaxElapsedEndsWhatIsUnlimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(eventbus.Unlimited), eventbus.MaxElapsed(24*time.Hour)))
		mustSubscribe(t, bus, "a", failing(errBroken))
		began := time.Now()
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExpired, l.Reason)
		require.Less(t, l.DiedAt.Sub(began), 24*time.Hour)
		require.Greater(t, l.DiedAt.Sub(began), 24*time.Hour-34*time.Second)
		require.Len(t, l.Failures, 100)
		require.Equal(t, l.Attempts, 100+l.FailuresOmitted)
	})
}

func TestP6_RetryIfIsAskedOfTheFailingSubscriptionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := func(error) bool { return false }
		var asked journal[error]
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second), eventbus.RetryIf(never)))
		other := errors.New("other")
		var calls callTimes
		mustSubscribe(t, bus, "a", ok, eventbus.Retry(eventbus.RetryIf(never)))
		mustSubscribe(t, bus, "a", calls.failing(fmt.Errorf("wrapped: %w", errBroken)), eventbus.Named("picky"), eventbus.Retry(eventbus.RetryIf(func(err error) bool {
			asked.add(err)
			return errors.Is(err, errBroken)
		})))
		mustSubscribe(t, bus, "b", failing(other), eventbus.Named("default"))
		mustSubscribe(t, bus, "c", failing(other), eventbus.Named("everything"), eventbus.Retry(eventbus.RetryIf(nil)))
		for _, typ := range []string{"a", "b", "c"} {
			mustPublish(t, bus, typ, nil)
		}
		shutdown(t, bus)
		reasons := map[string]eventbus.Reason{}
		attempts := map[string]int{}
		for _, l := range letters(t, bus) {
			reasons[l.Subscription], attempts[l.Subscription] = l.Reason, l.Attempts
		}
		require.Equal(t, map[string]eventbus.Reason{
			"picky": eventbus.ReasonExhausted, "default": eventbus.ReasonPermanent, "everything": eventbus.ReasonExhausted,
		}, reasons)
		require.Equal(t, map[string]int{"picky": 3, "default": 1, "everything": 3}, attempts)
		require.Equal(t, inSeconds(0, 1, 2), calls.all())
		for _, err := range asked.all() {
			require.ErrorIs(t, err, errBroken)
		}
	})
}

func TestP6_RetryIfSeesPanicsTimeoutsAndExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(5, 0)), eventbus.WithTimeout(time.Second))
		var asked journal[error]
		mustSubscribe(t, bus, "*", runScript, eventbus.Retry(eventbus.RetryIf(func(err error) bool {
			asked.add(err)
			return false
		})))
		for _, ending := range []string{"panic", "exit", "timeout"} {
			_, err := bus.PublishAndWait(t.Context(), ending, handlerEndings[ending])
			require.Error(t, err, ending)
		}
		shutdown(t, bus)
		all := asked.all()
		require.Len(t, all, 3)
		var p *eventbus.PanicError
		require.ErrorAs(t, all[0], &p)
		require.ErrorIs(t, all[1], eventbus.ErrHandlerExited)
		require.ErrorIs(t, all[2], context.DeadlineExceeded)
		for _, l := range letters(t, bus) {
			require.Equal(t, eventbus.ReasonPermanent, l.Reason)
		}
	})
}

func TestP6_APanickingRetryIfDoesNoHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(2, time.Second)))
		mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Retry(eventbus.RetryIf(func(error) bool { panic("in RetryIf") })))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason, "without an opinion every error is worth a retry")
		require.Equal(t, 3, l.Attempts)
	})
}

// panicValue is something to panic with, whose methods do no better.
type panicValue struct{ do func() }

func (v panicValue) String() string               { v.do(); return "" }
func (v panicValue) MarshalJSON() ([]byte, error) { v.do(); return nil, nil }

// jsonOnlyValue has no String method: a logger would encode it.
type jsonOnlyValue struct{ Do func() }

func (v jsonOnlyValue) MarshalJSON() ([]byte, error) { v.Do(); return nil, nil }

// What the user's code panics with has methods, and a logger calls them.
func TestP6_WhateverTheUsersCodePanicsWithIsLogged(t *testing.T) {
	for name, value := range map[string]any{
		"String panics":     panicValue{func() { panic("again") }},
		"String exits":      panicValue{runtime.Goexit},
		"MarshalJSON panic": jsonOnlyValue{func() { panic("again") }},
		"MarshalJSON exits": jsonOnlyValue{runtime.Goexit},
		"empty":             "",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var entries journal[string]
				core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zapcore.DebugLevel)
				logger := zap.New(zapcore.RegisterHooks(core, func(e zapcore.Entry) error { entries.add(e.Message); return nil }))
				bus, _ := startBus(t, eventbus.WithLogger(logger),
					eventbus.WithObserver(eventbus.Observer{Accepted: func(eventbus.Event) { panic(value) }}),
					eventbus.WithRandom(func() float64 { panic(value) }))
				mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Retry(
					eventbus.MaxRetries(1), eventbus.RetryIf(func(error) bool { panic(value) })))
				mustPublish(t, bus, "a", nil)
				shutdown(t, bus)
				require.Equal(t, 2, oneLetter(t, bus).Attempts)
				logged := entries.all()
				require.Contains(t, logged, "observer panicked")
				require.Contains(t, logged, "WithRandom panicked")
				if name != "String exits" {
					require.Contains(t, logged, "RetryIf panicked")
				}
			})
		})
	}
}

// What decides on a failure is given up as a handler is, also when it is asked about
// that handler's timeout.
func TestP6_ARetryIfThatHangsHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		bus, logs := startBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(eventbus.MaxRetries(1)),
			eventbus.WithRandom(func() float64 { <-release; return 0 }))
		mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Timeout(time.Second),
			eventbus.Retry(eventbus.RetryIf(func(error) bool { <-release; return false })))
		mustSubscribe(t, bus, "b", ok)
		mustPublish(t, bus, "a", nil, eventbus.Key("k"))
		mustPublish(t, bus, "b", nil, eventbus.Key("k"))
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, 2, l.Attempts)
		require.Contains(t, l.Failures[0].Error, "1s")
		require.EqualValues(t, 1, bus.Metrics().Ledger.Handled)
		require.Equal(t, 2, logs.FilterMessage("RetryIf did not return").Len())
	})
}

// The next gap is that of the schedule at its own position: 4 s after the third
// attempt, not the 1 s or 2 s that RetryAfter stood in for.
func TestP8_RetryAfterIsExactAndForOneGapAlone(t *testing.T) {
	after := eventbus.RetryAfter(errBroken, 90*time.Second+7)
	for name, err := range map[string]error{
		"plain":   after,
		"wrapped": fmt.Errorf("calling billing: %w", after),
		"joined":  errors.Join(errors.New("other"), after),
		"deep":    fmt.Errorf("a: %w", errors.Join(fmt.Errorf("b: %w", after))),
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(eventbus.MaxRetries(4), eventbus.MaxDelay(time.Minute)))
			var calls journal[time.Time]
			mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
				calls.add(time.Now())
				if n := calls.len(); n == 2 {
					return err
				}
				return errBroken
			})
			mustPublish(t, bus, "a", nil)
			shutdown(t, bus)

			at := calls.all()
			require.Len(t, at, 5, name)
			require.Equal(t, 90*time.Second+7, at[2].Sub(at[1]), name)
			require.InDelta(t, 1, at[1].Sub(at[0]).Seconds(), 0.1001, name)
			require.InDelta(t, 4, at[3].Sub(at[2]).Seconds(), 0.4001, name)
			require.InDelta(t, 8, at[4].Sub(at[3]).Seconds(), 0.8001, name)
			require.Equal(t, int64(90_001), loggedDelays(logs)[1], "in the log it is rounded up")
		})
	}
}

// A gap that RetryAfter filled is not the delay that decorrelated jitter grows
// from.
func TestP8_RetryAfterLeavesDecorrelatedJitterAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(
			eventbus.MaxRetries(2), eventbus.BaseDelay(time.Second), eventbus.MaxDelay(24*time.Hour), eventbus.DecorrelatedJitter))
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
				return eventbus.RetryAfter(errBroken, 10*time.Hour)
			}
			return errBroken
		})
		for range 50 {
			mustPublish(t, bus, "a", nil)
		}
		shutdown(t, bus)
		for _, e := range logs.FilterMessage("handler failed").All() {
			if e.ContextMap()["attempt"] == int64(2) {
				require.LessOrEqual(t, e.ContextMap()["delay_ms"], int64(9001))
			}
		}
	})
}

func TestP8_RetryAfterOfNothingIsAtOnceAndSpendsTheBudget(t *testing.T) {
	for _, after := range []time.Duration{0, -1, math.MinInt64} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t, eventbus.WithRetry(retry(3, time.Hour)))
			var calls callTimes
			mustSubscribe(t, bus, "a", calls.failing(eventbus.RetryAfter(errBroken, after)))
			mustPublish(t, bus, "a", nil)
			shutdown(t, bus)
			require.Equal(t, inSeconds(0, 0, 0, 0), calls.all())
			require.Equal(t, []int64{0, 0, 0, 0}, loggedDelays(logs))
			require.Equal(t, eventbus.ReasonExhausted, oneLetter(t, bus).Reason)
		})
	}
}

// The largest delay waits, for ever as it were, and is logged as what it is.
func TestP8_TheLargestRetryAfterDoesNotWrapAround(t *testing.T) {
	for _, after := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Millisecond, 290 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t)
			var calls callTimes
			mustSubscribe(t, bus, "a", calls.failing(eventbus.RetryAfter(errBroken, after)))
			mustPublish(t, bus, "a", nil)
			time.Sleep(1000 * time.Hour)
			require.Equal(t, inSeconds(0), calls.all())
			require.Equal(t, 1, bus.Metrics().WaitingRetries)
			require.InDelta(t, float64(after.Milliseconds()), float64(loggedDelays(logs)[0]), 1)
			_ = cutShort(t, bus)
			require.Equal(t, eventbus.ReasonShutdown, oneLetter(t, bus).Reason)
		})
	}
}

func TestP8_PermanentTakesPrecedenceOverRetryAfter(t *testing.T) {
	for name, err := range map[string]error{
		"permanent outside": eventbus.Permanent(eventbus.RetryAfter(errBroken, time.Second)),
		"permanent inside":  eventbus.RetryAfter(fmt.Errorf("x: %w", eventbus.Permanent(errBroken)), time.Second),
		"joined":            errors.Join(eventbus.RetryAfter(errBroken, time.Second), eventbus.Permanent(errBroken)),
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, logs := startBus(t)
			asked := false
			mustSubscribe(t, bus, "a", failing(err), eventbus.Retry(eventbus.RetryIf(func(error) bool { asked = true; return true })))
			mustPublish(t, bus, "a", nil)
			shutdown(t, bus)
			require.Equal(t, eventbus.ReasonPermanent, oneLetter(t, bus).Reason, name)
			require.Equal(t, []int64{0}, loggedDelays(logs), name)
			require.False(t, asked, name)
		})
	}
}
