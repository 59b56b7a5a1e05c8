package contracttest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

func TestC1_ASubscriptionCanHaveACircuitOnABusWithout(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("none"))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("its own"), eventbus.Circuit(eventbus.MinEvents(2)))
	require.Equal(t, eventbus.CircuitDisabled, metricsOf(t, bus, "none").Circuit)
	require.Equal(t, eventbus.CircuitClosed, metricsOf(t, bus, "its own").Circuit)
}

func circuitState(t *testing.T, bus *eventbus.Bus, s *eventbus.Subscription) eventbus.CircuitState {
	t.Helper()
	return metricsOf(t, bus, s.ID()).Circuit
}

func TestC1_WhatTripsAndWhatDoesNot(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []eventbus.CircuitOption
		// F and S are events; . is 10 s, P a permanent failure.
		events string
		open   bool
	}{
		{"four failures", nil, "FFFF", true},
		{"three are too few", nil, "FFF", false},
		{"the fourth is a success", nil, "FFFS", true},
		{"a success can come anywhere", nil, "SFFF", true},
		{"half is not more than half", nil, "FFSS", false},
		{"half of many is not either", nil, "SSSSSSFFFFFF", false},
		{"one more is", nil, "SSSSSSFFFFFFF", true},
		{"permanent failures are no outcome", nil, "PPPPPPPP", false},
		{"nor do they dilute", nil, "FFFPPPPPPPPS", true},
		{"the window slides over failures", nil, "FFF......F", false},
		{"and over successes", nil, "SSSSSS......FFFF", true},
		{"within the window they stay", nil, "FFF.....F", true},
		{"one by one", nil, "F...F...F...F...F...F...F", false},
		{"just dense enough", nil, "F.F..F..F", true},
		{"fewer events", []eventbus.CircuitOption{eventbus.MinEvents(2)}, "FF", true},
		{"a single one", []eventbus.CircuitOption{eventbus.MinEvents(1)}, "F", true},
		{"more events", []eventbus.CircuitOption{eventbus.MinEvents(10)}, "FFFFFFFFF", false},
		{"any failure at all", []eventbus.CircuitOption{eventbus.FailureRatio(0)}, "SSSF", true},
		{"no failure trips nothing", []eventbus.CircuitOption{eventbus.FailureRatio(0)}, "SSSSSSSS", false},
		{"a higher ratio", []eventbus.CircuitOption{eventbus.FailureRatio(0.75)}, "SFFF", false},
		{"and more than that", []eventbus.CircuitOption{eventbus.FailureRatio(0.75)}, "SFFFF", true},
		{"a shorter window", []eventbus.CircuitOption{eventbus.Window(10 * time.Second)}, "FFF.F", false},
		{"a longer window", []eventbus.CircuitOption{eventbus.Window(10 * time.Minute)}, "FFF...............F", true},
		{"disabled", []eventbus.CircuitOption{eventbus.NoCircuit()}, strings.Repeat("F", 50), false},
	} {
		for _, ofTheBus := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				opts, own := []eventbus.Option{oneAttempt}, []eventbus.SubscribeOption{eventbus.Circuit(c.opts...)}
				if c.name != "disabled" {
					own = append(own, eventbus.DeadLetterWhenOpen)
				}
				if ofTheBus {
					opts, own = append(opts, eventbus.WithCircuit(c.opts...)), nil
				}
				bus, _ := startBus(t, opts...)
				s := mustSubscribe(t, bus, "a", runScript, own...)
				for _, e := range c.events {
					switch e {
					case 'F':
						publishScripts(t, bus, "a", failBroken)
					case 'S':
						publishScripts(t, bus, "a", succeed)
					case 'P':
						publishScripts(t, bus, "a", handlerEndings["permanent"])
					default:
						time.Sleep(10 * time.Second)
					}
				}
				want := eventbus.CircuitClosed
				switch {
				case c.open:
					want = eventbus.CircuitOpen
				case c.name == "disabled":
					want = eventbus.CircuitDisabled
				}
				require.Equal(t, want, circuitState(t, bus, s), c.name)
				shutdown(t, bus)
			})
		}
	}
}

// refusedError says itself that a retry is pointless.
type refusedError struct{}

func (refusedError) Error() string   { return "refused" }
func (refusedError) Retryable() bool { return false }

// With CountRejections, a rejection is a failure for the circuit, and as permanent as before.
func TestC1_CountedRejectionsTrip(t *testing.T) {
	for name, handler := range map[string]eventbus.Handler{
		"Permanent":     failing(eventbus.Permanent(errBoom)),
		"not retryable": failing(refusedError{}),
	} {
		for _, ofTheBus := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var opts []eventbus.Option
				own := []eventbus.SubscribeOption{eventbus.DeadLetterWhenOpen}
				if counts := eventbus.CountRejections(); ofTheBus {
					opts = append(opts, eventbus.WithCircuit(counts))
				} else {
					own = append(own, eventbus.Circuit(counts))
				}
				bus, _ := startBus(t, opts...)
				s := mustSubscribe(t, bus, "a", handler, own...)
				for range 4 {
					require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), name)
					mustPublish(t, bus, "a", 1)
					synctest.Wait()
				}
				require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s), name)
				for _, l := range letters(t, bus) {
					require.Equal(t, eventbus.ReasonPermanent, l.Reason)
					require.Len(t, l.Failures, 1)
				}
				shutdown(t, bus)
			})
		}
	}
}

// A probe that is rejected opens the circuit again, if rejections count. Otherwise it is no outcome.
func TestC1_ARejectedProbe(t *testing.T) {
	for counts, want := range map[bool]eventbus.CircuitState{true: eventbus.CircuitOpen, false: eventbus.CircuitHalfOpen} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, oneAttempt)
			var opts []eventbus.CircuitOption
			if counts {
				opts = append(opts, eventbus.CountRejections())
			}
			s := mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errBoom)), eventbus.Circuit(opts...))
			require.NoError(t, s.Trip())
			mustPublish(t, bus, "a", 1)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			require.Len(t, letters(t, bus), 1)
			require.Equal(t, want, circuitState(t, bus, s))
			shutdown(t, bus)
		})
	}
}

// Rejections have no outcome. Timeouts and panics always count, and so does an error that the policy
// only does not list.
func TestC1_RejectionsAreNoOutcome(t *testing.T) {
	returns := func(err error) eventbus.Handler {
		return func(context.Context, eventbus.Event) error { return err }
	}
	never := eventbus.RetryIf(func(error) bool { return false })
	for name, c := range map[string]struct {
		handler eventbus.Handler
		policy  eventbus.RetryOption
		counts  bool
	}{
		"a failure":               {handler: returns(errBoom), counts: true},
		"Permanent":               {handler: returns(eventbus.Permanent(errBoom))},
		"not retryable":           {handler: returns(fmt.Errorf("wrapped: %w", refusedError{}))},
		"excluded":                {handler: returns(refusedError{}), policy: eventbus.ExcludeErrors("refusedError")},
		"RetryIf":                 {handler: returns(errBoom), policy: never},
		"not included":            {handler: returns(errBoom), policy: eventbus.IncludeErrors("other"), counts: true},
		"a timeout and RetryIf":   {handler: func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }, policy: never, counts: true},
		"an excluded panic":       {handler: func(context.Context, eventbus.Event) error { panic("no") }, policy: eventbus.ExcludeErrors("PanicError"), counts: true},
		"an exit of the handler":  {handler: func(context.Context, eventbus.Event) error { runtime.Goexit(); return nil }, policy: never, counts: true},
		"a wrapped timeout error": {handler: returns(fmt.Errorf("call: %w", context.DeadlineExceeded)), policy: never},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, oneAttempt)
				opts := []eventbus.SubscribeOption{eventbus.DeadLetterWhenOpen, eventbus.Timeout(time.Second)}
				if c.policy != nil {
					opts = append(opts, eventbus.Retry(c.policy))
				}
				s := mustSubscribe(t, bus, "a", c.handler, opts...)
				for range 10 {
					_, err := bus.PublishAndWait(t.Context(), "a", nil)
					require.Error(t, err)
				}
				want := eventbus.CircuitClosed
				if c.counts {
					want = eventbus.CircuitOpen
				}
				require.Equal(t, want, circuitState(t, bus, s))
				shutdown(t, bus)
			})
		})
	}
}

func TestC1_OnePoisonousEventTripsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(100, time.Second)))
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		publishScripts(t, bus, "a", succeed, succeed, succeed)
		mustPublish(t, bus, "a", failBroken)
		for range 90 {
			time.Sleep(time.Second)
			require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		}
		shutdown(t, bus)
		require.Equal(t, int64(3), metricsOf(t, bus, s.ID()).Successes)
		require.Equal(t, int64(101), metricsOf(t, bus, s.ID()).Failures)
		require.Zero(t, metricsOf(t, bus, s.ID()).CircuitOpens)
	})
}

// Three events that fail over and over are three events.
func TestC1_AnEventCountsOnceByItsLatestOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, time.Second)))
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		thirdTime := func() eventbus.Handler {
			return func(ctx context.Context, _ eventbus.Event) error {
				if d, _ := eventbus.FromContext(ctx); d.Attempt < 3 {
					return errBroken
				}
				return nil
			}
		}
		for range 3 {
			mustPublish(t, bus, "a", thirdTime())
		}
		time.Sleep(10 * time.Second)
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), "6 failures of 3 events that succeeded in the end")
		// 3 successes and 3 failures, then 4: only now is it more than half.
		for range 3 {
			mustPublish(t, bus, "a", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		mustPublish(t, bus, "a", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s))
		_ = cutShort(t, bus)
	})
}

func TestC1_ReplayingOnePoisonousEventTripsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		publishScripts(t, bus, "a", failBroken)
		for range 5 {
			require.NoError(t, bus.DLQ().Replay(t.Context(), letters(t, bus)[0].ID))
			synctest.Wait()
		}
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), "it is still one event")
		shutdown(t, bus)
	})
}

// The model of a circuit, from the contract's words alone: a list of outcomes, a
// few conditions, no counters.
type circuitModel struct {
	state    string
	outcomes map[int]modelOutcome // the latest of each event
	// Any event may probe from until on, and one that has not failed yet from freshFrom on.
	until, freshFrom time.Duration
	aliveUntil       time.Duration // a probe has shown that the service is alive
	era              int           // counts changes of state that begin afresh
	probing          bool
	changes          []string
}

type modelOutcome struct {
	at     time.Duration
	failed bool
}

func (m *circuitModel) become(state string, now time.Duration) {
	m.changes = append(m.changes, fmt.Sprintf("%s %s->%s", now.Truncate(modelStep/2), m.state, state))
	m.state = state
	if state != "half-open" {
		m.era++
		m.outcomes = map[int]modelOutcome{}
	}
}

// enter reports whether an event is let in, as a probe or not.
func (m *circuitModel) enter(now time.Duration, fresh bool) (in, probe bool) {
	switch {
	case m.state == "closed":
		return true, false
	case m.probing, fresh && now < m.freshFrom, !fresh && now < m.until:
		return false, false
	case m.state == "open":
		m.become("half-open", now)
	}
	m.probing = true
	return true, true
}

func (m *circuitModel) open(now time.Duration, alive bool) {
	m.become("open", now)
	m.until = now + 30*time.Second
	if m.freshFrom = m.until; alive {
		m.freshFrom = now
	}
}

// leave takes an outcome: "ok", "fail", or "permanent", which is none.
func (m *circuitModel) leave(event int, now time.Duration, outcome string, probe bool, era int) {
	if probe {
		m.probing = false
		switch outcome {
		case "ok":
			m.become("closed", now)
			m.aliveUntil = now + 30*time.Second
		case "fail":
			m.open(now, false)
		}
		return
	}
	if era != m.era || m.state != "closed" || outcome == "permanent" {
		return
	}
	m.outcomes[event] = modelOutcome{now, outcome == "fail"}
	failed, all, alive := 0, 0, now < m.aliveUntil
	for _, o := range m.outcomes {
		alive = alive || !o.failed && now-o.at < 33*time.Second // no age is near the bound
		if now-o.at < time.Minute-2*time.Second {               // no age in these tests is near the bound
			all++
			if o.failed {
				failed++
			}
		}
	}
	if all >= 4 && 2*failed > all {
		m.open(now, alive)
	}
}

const (
	// The ages of outcomes are multiples of this, give or take a second, so that
	// none is where the window may move in steps.
	modelUnit = 9 * time.Second
	// Apart, so that no two things happen at once, even if one has to wait for a
	// worker for some milliseconds.
	modelStep = 40 * time.Millisecond
)

// modelEvent has an outcome for each of its attempts. One of them takes long,
// so that it can end in another state than it began in.
type modelEvent struct {
	Pause    int // units before it is published
	Outcomes [3]string
	Slow     int // attempt, 0 for none
	Units    int // that it takes
}

// predict runs the model: what is called when, the changes of state, and the
// letters.
func predict(events []modelEvent) (calls, changes, dead []string) {
	m := &circuitModel{state: "closed", outcomes: map[int]modelOutcome{}}
	type action struct {
		at time.Duration
		do func(now time.Duration)
	}
	var agenda []action
	at := func(when time.Duration, do func(time.Duration)) {
		agenda = append(agenda, action{when, do})
	}
	now := time.Duration(0)
	for i, e := range events {
		now += time.Duration(e.Pause)*modelUnit + modelStep
		var attempt func(n int) func(time.Duration)
		attempt = func(n int) func(time.Duration) {
			return func(now time.Duration) {
				in, probe := m.enter(now, n == 1)
				if !in {
					dead = append(dead, fmt.Sprintf("%d circuit_open after %d", i, n-1))
					return
				}
				calls = append(calls, fmt.Sprintf("%s event %d attempt %d", now.Truncate(modelStep/2), i, n))
				era, outcome := m.era, e.Outcomes[n-1]
				end := func(now time.Duration) {
					m.leave(i, now, outcome, probe, era)
					switch {
					case outcome == "permanent":
						dead = append(dead, fmt.Sprintf("%d permanent after %d", i, n))
					case outcome == "fail" && n == 3:
						dead = append(dead, fmt.Sprintf("%d exhausted after %d", i, n))
					case outcome == "fail":
						at(now+modelUnit, attempt(n+1))
					}
				}
				if n == e.Slow {
					at(now+time.Duration(e.Units)*modelUnit+modelStep/2, end)
					return
				}
				end(now)
			}
		}
		at(now, attempt(1))
	}
	for len(agenda) > 0 {
		sort.SliceStable(agenda, func(i, j int) bool { return agenda[i].at < agenda[j].at })
		next := agenda[0]
		agenda = agenda[1:]
		next.do(next.at)
	}
	slices.Sort(dead)
	return calls, m.changes, dead
}

// observeModel runs the same events through a bus.
func observeModel(t *testing.T, events []modelEvent) (calls, changes, dead []string, balanced bool) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithTimeout(time.Hour), eventbus.WithRetry(retry(2, modelUnit)))
		began := time.Now()
		since := func(t time.Time) time.Duration { return t.Sub(began).Truncate(modelStep / 2) }
		var called journal[string]
		_, _ = bus.Subscribe("a", func(ctx context.Context, ev eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			i := ev.Payload.(int)
			e := events[i]
			called.add(fmt.Sprintf("%s event %d attempt %d", since(time.Now()), i, d.Attempt))
			if d.Attempt == e.Slow {
				time.Sleep(time.Duration(e.Units)*modelUnit + modelStep/2)
			}
			switch e.Outcomes[d.Attempt-1] {
			case "fail":
				return errBroken
			case "permanent":
				return eventbus.Permanent(errBroken)
			}
			return nil
		}, eventbus.DeadLetterWhenOpen)
		for i, e := range events {
			time.Sleep(time.Duration(e.Pause)*modelUnit + modelStep)
			_, _ = bus.Publish(t.Context(), "a", i)
			synctest.Wait()
		}
		_ = bus.Shutdown(context.Background())
		calls = called.all()
		for _, e := range logs.All() {
			if strings.HasPrefix(e.Message, "circuit ") {
				changes = append(changes, fmt.Sprintf("%s %s->%s", since(e.Time), e.ContextMap()["from"], e.ContextMap()["to"]))
			}
		}
		page, _ := bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 1000})
		for _, l := range page.Letters {
			dead = append(dead, fmt.Sprintf("%d %s after %d", l.Event.Payload, l.Reason, l.Attempts))
		}
		slices.Sort(dead)
		balanced = bus.Metrics().Ledger.Balanced()
	})
	return calls, changes, dead, balanced
}

func TestC1_TheCircuitIsItsModel(t *testing.T) {
	event := rapid.Custom(func(t *rapid.T) modelEvent {
		outcome := rapid.SampledFrom([]string{"ok", "fail", "fail", "fail", "permanent"})
		e := modelEvent{Pause: rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 4, 8}).Draw(t, "pause")}
		for i := range e.Outcomes {
			e.Outcomes[i] = outcome.Draw(t, "outcome")
		}
		e.Slow = rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "slow")
		e.Units = rapid.IntRange(1, 9).Draw(t, "units")
		return e
	})
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(event, 1, 24).Draw(rt, "events")
		wantCalls, wantChanges, wantDead := predict(events)
		calls, changes, dead, balanced := observeModel(t, events)
		for _, c := range []struct {
			what      string
			got, want []string
		}{{"changes of state", changes, wantChanges}, {"calls", calls, wantCalls}, {"letters", dead, wantDead}} {
			if !slices.Equal(c.got, c.want) {
				rt.Fatalf("%s:\n got %s\nwant %s", c.what, strings.Join(c.got, "\n     "), strings.Join(c.want, "\n     "))
			}
		}
		if !balanced {
			rt.Fatalf("the books do not balance")
		}
		for _, c := range changes {
			_, change, _ := strings.Cut(c, " ")
			seen[change]++
		}
	})
	if testing.Short() {
		return // too few to have seen everything
	}
	for _, change := range []string{"closed->open", "open->half-open", "half-open->closed", "half-open->open"} {
		require.Positive(t, seen[change], "the generator never makes this happen: %s", change)
	}
}

// A success can open a circuit too. A delivery that has failed there waits the whole period, counted from that success.
func TestC1_ACircuitThatASuccessOpensIsOpenForAllItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.BaseDelay(1005*time.Millisecond), eventbus.NoJitter),
			eventbus.WithCircuit(eventbus.OpenFor(10*time.Millisecond)))
		var calls journal[time.Duration]
		began := time.Now()
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			if e.Payload == nil {
				calls.add(time.Since(began))
				return errors.New("down")
			}
			time.Sleep(600 * time.Microsecond) // into a tick
			return nil
		})
		for range 3 {
			mustPublish(t, bus, "a", nil)
			synctest.Wait()
		}
		time.Sleep(time.Second) // until nothing ticks
		mustPublish(t, bus, "a", "fine")
		time.Sleep(600 * time.Microsecond)
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, bus.Metrics().Subscriptions[0].Circuit)
		time.Sleep(time.Second)
		require.Equal(t, 1000600*time.Microsecond+10*time.Millisecond, calls.all()[3], "the first retry")
		_ = cutShort(t, bus)
	})
}

func TestC1_EveryNumberOfACircuitIsValidated(t *testing.T) {
	for _, c := range []struct {
		field string
		bad   eventbus.CircuitOption
	}{
		{".FailureRatio", eventbus.FailureRatio(-0.1)},
		{".FailureRatio", eventbus.FailureRatio(1)},
		{".FailureRatio", eventbus.FailureRatio(math.NaN())},
		{".FailureRatio", eventbus.FailureRatio(math.Inf(1))},
		{".MinEvents", eventbus.MinEvents(0)},
		{".MinEvents", eventbus.MinEvents(-1)},
		{".MinEvents", eventbus.MinEvents(math.MaxInt)},
		{".Window", eventbus.Window(0)},
		{".Window", eventbus.Window(12*time.Millisecond - 1)},
		{".Window", eventbus.Window(-time.Minute)},
		{".OpenFor", eventbus.OpenFor(0)},
		{".OpenFor", eventbus.OpenFor(time.Millisecond - 1)},
		{".OpenFor", eventbus.OpenFor(-1)},
		{"", nil},
	} {
		_, err := eventbus.New(eventbus.WithCircuit(c.bad))
		requireOptionError(t, err, "WithCircuit"+c.field)
		bus, _ := newBus(t)
		_, err = bus.Subscribe("a", ok, eventbus.Circuit(c.bad))
		requireOptionError(t, err, "Circuit"+c.field)
		require.Empty(t, bus.Metrics().Subscriptions, "the bus is unchanged")
	}
	bus, _ := newBus(t)
	for _, w := range []eventbus.WhenOpen{-1, 3} {
		_, err := bus.Subscribe("a", ok, w)
		requireOptionError(t, err, "WhenOpen")
	}
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

func countReasons(t *testing.T, bus *eventbus.Bus) map[eventbus.Reason]int {
	t.Helper()
	all := map[eventbus.Reason]int{}
	for _, l := range letters(t, bus) {
		all[l.Reason]++
	}
	return all
}

func TestC2_ASingleProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		for round := range 3 {
			tripCircuit(t, bus, "a")
			time.Sleep(30 * time.Second)
			before := countReasons(t, bus)[eventbus.ReasonCircuitOpen]
			var running, ran int
			var mu sync.Mutex
			most := 0
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					_, _ = bus.Publish(t.Context(), "a", eventbus.Handler(func(context.Context, eventbus.Event) error {
						mu.Lock()
						ran++
						running++
						most = max(most, running)
						mu.Unlock()
						time.Sleep(time.Second)
						mu.Lock()
						running--
						mu.Unlock()
						return nil
					}))
				})
			}
			wg.Wait()
			synctest.Wait()
			require.Equal(t, eventbus.CircuitHalfOpen, circuitState(t, bus, s))
			time.Sleep(2 * time.Second)
			require.Equal(t, 1, ran, "round %d", round)
			require.Equal(t, 1, most)
			require.Equal(t, 99, countReasons(t, bus)[eventbus.ReasonCircuitOpen]-before)
			require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		}
		shutdown(t, bus)
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

// Every ending of a call, in every state of its circuit: a later healthy event is
// handled and leaves the circuit closed.
func TestC3_NoEndingLeavesACircuitStuck(t *testing.T) {
	after := map[string]eventbus.CircuitState{ // of a probe
		"ok": eventbus.CircuitClosed, "permanent": eventbus.CircuitHalfOpen,
		"error": eventbus.CircuitOpen, "panic": eventbus.CircuitOpen, "nil panic": eventbus.CircuitOpen, "exit": eventbus.CircuitOpen,
		"timeout": eventbus.CircuitOpen, "hang, then ok": eventbus.CircuitOpen, "hang, then error": eventbus.CircuitOpen,
	}
	for name, ending := range handlerEndings {
		for _, from := range []string{"closed", "about to open", "open", "half-open"} {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, oneAttempt, eventbus.WithTimeout(time.Second))
				s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
				switch from {
				case "about to open":
					publishScripts(t, bus, "a", failBroken, failBroken, failBroken)
				case "open":
					tripCircuit(t, bus, "a")
				case "half-open":
					tripCircuit(t, bus, "a")
					time.Sleep(30 * time.Second)
				}
				publishScripts(t, bus, "a", ending)
				time.Sleep(2 * time.Second)
				if from == "half-open" {
					require.Equal(t, after[name], circuitState(t, bus, s), "%s, %s", name, from)
				}
				time.Sleep(61 * time.Second)
				handled := false
				publishScripts(t, bus, "a", func(context.Context, eventbus.Event) error { handled = true; return nil })
				require.True(t, handled, "%s, %s", name, from)
				require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), "%s, %s", name, from)
				time.Sleep(10 * time.Minute)
				require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), "the hanging call has come back: %s, %s", name, from)
				shutdown(t, bus)
			})
		}
	}
}

func TestC3_AnEarlierSubscriptionThatFailsHoldsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		earlier := mustSubscribe(t, bus, "**", func(_ context.Context, e eventbus.Event) error {
			if e.Type == "both" {
				return errBroken
			}
			return nil
		}, eventbus.Circuit(eventbus.NoCircuit()))
		later := mustSubscribe(t, bus, "*", runScript, eventbus.DeadLetterWhenOpen)
		tripCircuit(t, bus, "a")
		time.Sleep(30 * time.Second)
		for range 10 {
			publishScripts(t, bus, "both", succeed)
			require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, later))
		}
		publishScripts(t, bus, "a", succeed)
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, later))
		require.Equal(t, int64(10), metricsOf(t, bus, earlier.ID()).Failures)
		shutdown(t, bus)
	})
}

func TestC3_UnsubscribedDuringTheProbe(t *testing.T) {
	for name, ending := range handlerEndings {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, oneAttempt, eventbus.WithTimeout(time.Minute))
			s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("s"))
			tripCircuit(t, bus, "a")
			time.Sleep(30 * time.Second)
			mustPublish(t, bus, "a", eventbus.Handler(func(ctx context.Context, e eventbus.Event) error {
				time.Sleep(time.Second)
				return ending(ctx, e)
			}))
			synctest.Wait()
			s.Unsubscribe()
			fresh := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("s"))
			publishScripts(t, bus, "a", succeed)
			time.Sleep(20 * time.Minute)
			require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, fresh), name)
			require.Equal(t, int64(1), metricsOf(t, bus, "s").Successes, name)
			shutdown(t, bus)
		})
	}
}

func TestC3_AProbeCutShortByShutdownHasNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		tripCircuit(t, bus, "a")
		time.Sleep(30 * time.Second)
		publishScripts(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			<-ctx.Done()
			return ctx.Err()
		})
		_ = cutShort(t, bus)
		synctest.Wait()
		m := metricsOf(t, bus, s.ID())
		require.Equal(t, int64(1), m.CircuitOpens)
		require.Equal(t, int64(4), m.Failures)
		require.Equal(t, 1, countReasons(t, bus)[eventbus.ReasonShutdown])
		requireBalanced(t, bus)
	})
}

func TestC3_AProbeThatIsRetriedKeepsTheCircuitOpenAndNothingStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(3, 31*time.Second)))
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		publishScripts(t, bus, "a", failing(eventbus.Permanent(errBroken)))
		for range 4 {
			mustPublish(t, bus, "a", failing(eventbus.RetryAfter(errBroken, time.Hour)))
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s))
		time.Sleep(30 * time.Second)
		n := 0
		publishScripts(t, bus, "a", func(context.Context, eventbus.Event) error {
			if n++; n < 4 {
				return errBroken
			}
			return nil
		})
		time.Sleep(3 * 31 * time.Second)
		synctest.Wait()
		require.Equal(t, 4, n, "each retry came when the circuit was half-open again")
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		require.Equal(t, int64(4), metricsOf(t, bus, s.ID()).CircuitOpens)
		_ = cutShort(t, bus)
	})
}

func TestC4_OutcomesArePerSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		before := mustSubscribe(t, bus, "a", ok)
		at := mustSubscribe(t, bus, "a", failing(errBroken), eventbus.Circuit(eventbus.MinEvents(100)))
		after := mustSubscribe(t, bus, "a", failing(errBroken))
		for range 10 {
			mustPublish(t, bus, "a", nil)
		}
		shutdown(t, bus)
		require.Equal(t, int64(10), metricsOf(t, bus, before.ID()).Successes)
		require.Zero(t, metricsOf(t, bus, before.ID()).Failures)
		require.Equal(t, int64(10), metricsOf(t, bus, at.ID()).Failures)
		require.Zero(t, metricsOf(t, bus, at.ID()).Successes)
		m := metricsOf(t, bus, after.ID())
		require.Zero(t, m.Successes+m.Failures+m.Skipped)
		require.Equal(t, eventbus.CircuitClosed, m.Circuit)
	})
}

// A success at the first subscription counts there, though the attempt failed.
func TestC4_SuccessBeforeAFailureCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt)
		first := mustSubscribe(t, bus, "*", runScript, eventbus.DeadLetterWhenOpen)
		mustSubscribe(t, bus, "b", failing(errBroken), eventbus.Circuit(eventbus.NoCircuit()))
		publishScripts(t, bus, "b", succeed, succeed, succeed)
		publishScripts(t, bus, "a", failBroken, failBroken, failBroken)
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, first), "3 of 6")
		publishScripts(t, bus, "a", failBroken)
		require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, first), "4 of 7")
		shutdown(t, bus)
	})
}

// A call that began while the circuit was closed ends after it has opened, while
// a probe runs, and after it has closed again: never is it an outcome.
func TestC4_OutcomesOfAnEarlierStateAreIgnored(t *testing.T) {
	for _, ending := range []string{"ok", "error"} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, oneAttempt, eventbus.WithTimeout(time.Hour))
			s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
			release := make([]chan struct{}, 12)
			stale := func(n int) eventbus.Handler {
				release[n] = make(chan struct{})
				return func(ctx context.Context, e eventbus.Event) error {
					select {
					case <-release[n]:
						return handlerEndings[ending](ctx, e)
					case <-ctx.Done(): // this test has failed
						return nil
					}
				}
			}
			publish := func(h eventbus.Handler) {
				mustPublish(t, bus, "a", h)
				time.Sleep(10 * time.Millisecond) // for a worker, the others being busy
			}
			for n := range release {
				publish(stale(n))
			}
			end := func(from, to int) {
				for n := from; n < to; n++ {
					close(release[n])
				}
				synctest.Wait()
			}
			for range 4 {
				publish(failBroken)
			}
			end(0, 3)
			require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s), "open: %s", ending)
			time.Sleep(29 * time.Second)
			end(3, 4)
			time.Sleep(time.Second)
			probe := make(chan struct{})
			publish(func(ctx context.Context, _ eventbus.Event) error {
				select {
				case <-probe:
				case <-ctx.Done():
				}
				return nil
			})
			end(4, 7)
			require.Equal(t, eventbus.CircuitHalfOpen, circuitState(t, bus, s), "half-open, the probe running: %s", ending)
			skipped := metricsOf(t, bus, s.ID()).Skipped
			publish(succeed)
			require.Equal(t, skipped+1, metricsOf(t, bus, s.ID()).Skipped, "the probe is still the only one")
			close(probe)
			synctest.Wait()
			require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
			end(7, 12)
			require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), "closed: %s", ending)
			// Nor do they dilute, or help to trip, what comes now.
			publishScripts(t, bus, "a", failBroken, failBroken, failBroken)
			require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), "3 failures: %s", ending)
			publishScripts(t, bus, "a", failBroken)
			require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s), "4 failures: %s", ending)
			require.Equal(t, int64(2), metricsOf(t, bus, s.ID()).CircuitOpens)
			shutdown(t, bus)
		})
	}
}

// The event failed before the outage, and again after it: its old place in the
// window is gone, and must not be taken away from another.
func TestC4_AnEventsOutcomeFromBeforeTheOutageIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, 0)))
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		for range 4 {
			mustPublish(t, bus, "a", eventbus.Handler(func(ctx context.Context, _ eventbus.Event) error {
				if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
					return eventbus.RetryAfter(errBroken, 31*time.Second)
				}
				return nil
			}))
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s))
		time.Sleep(30 * time.Second)
		publishScripts(t, bus, "a", succeed)
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		late := failing(eventbus.RetryAfter(errBroken, time.Hour))
		publishScripts(t, bus, "a", late, late)
		time.Sleep(time.Second) // the four succeed: 2 of 6 failed
		synctest.Wait()
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))
		publishScripts(t, bus, "a", late, late)
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s), "4 of 8")
		publishScripts(t, bus, "a", late)
		require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s), "5 of 9")
		_ = cutShort(t, bus)
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

// circuitRig drives a bus by one of the clocks that it can have.
type circuitRig struct {
	t       *testing.T
	bus     *eventbus.Bus
	logs    *observer.ObservedLogs
	advance func(time.Duration)
}

// do publishes and reports what became of it.
func (r *circuitRig) do(h eventbus.Handler) string {
	r.t.Helper()
	_, err := r.bus.PublishAndWait(r.t.Context(), "a", h)
	var d *eventbus.DeliveryError
	if errors.As(err, &d) {
		return string(d.Letters[0].Reason)
	}
	require.NoError(r.t, err)
	return "ok"
}

func circuitLifeCycle(r *circuitRig) {
	t := r.t
	s := mustSubscribe(t, r.bus, "a", runScript, eventbus.DeadLetterWhenOpen, eventbus.Named("s"))
	state := func() eventbus.CircuitState { return circuitState(t, r.bus, s) }
	for range 4 {
		require.Equal(t, "exhausted", r.do(failBroken))
	}
	require.Equal(t, eventbus.CircuitOpen, state())
	require.Equal(t, "circuit_open", r.do(succeed))
	r.advance(30*time.Second - time.Millisecond)
	require.Equal(t, "circuit_open", r.do(succeed))
	r.advance(time.Millisecond)
	require.Equal(t, eventbus.CircuitOpen, state(), "noticed at the next delivery")

	require.Equal(t, "exhausted", r.do(failBroken), "the probe")
	require.Equal(t, eventbus.CircuitOpen, state())
	require.Equal(t, "circuit_open", r.do(succeed), "open for another 30 s")
	r.advance(30*time.Second - time.Millisecond)
	require.Equal(t, "circuit_open", r.do(succeed))
	r.advance(time.Millisecond)

	require.Equal(t, "permanent", r.do(handlerEndings["permanent"]))
	require.Equal(t, eventbus.CircuitHalfOpen, state(), "no outcome")
	require.Equal(t, "ok", r.do(succeed))
	require.Equal(t, eventbus.CircuitClosed, state())
	for range 3 {
		require.Equal(t, "exhausted", r.do(failBroken))
		require.Equal(t, eventbus.CircuitClosed, state(), "the window is empty: not even the probe is in it")
	}
	require.Equal(t, "exhausted", r.do(failBroken))
	require.Equal(t, eventbus.CircuitOpen, state())
	r.advance(24 * time.Hour)
	require.Equal(t, "ok", r.do(succeed))
	require.Equal(t, eventbus.CircuitClosed, state())

	m := metricsOf(t, r.bus, "s")
	require.Equal(t, int64(3), m.CircuitOpens)
	require.Equal(t, int64(4), m.Skipped)
	type entry struct {
		level    zapcore.Level
		from, to string
	}
	var got []entry
	for _, e := range r.logs.All() {
		if strings.HasPrefix(e.Message, "circuit ") {
			f := e.ContextMap()
			require.Len(t, f, 3)
			require.Equal(t, "s", f["subscription_id"])
			require.Equal(t, "circuit "+f["to"].(string), e.Message)
			got = append(got, entry{e.Level, f["from"].(string), f["to"].(string)})
		}
	}
	w, i := zapcore.WarnLevel, zapcore.InfoLevel
	require.Equal(t, []entry{
		{w, "closed", "open"},
		{i, "open", "half-open"},
		{w, "half-open", "open"},
		{i, "open", "half-open"},
		{i, "half-open", "closed"},
		{w, "closed", "open"},
		{i, "open", "half-open"},
		{i, "half-open", "closed"},
	}, got)
	shutdown(t, r.bus)
}

func TestC6_LifeCycleInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, oneAttempt)
		circuitLifeCycle(&circuitRig{t, bus, logs, time.Sleep})
	})
}

func TestC6_LifeCycleByTheMockClock(t *testing.T) {
	mock := clock.NewMock()
	bus, logs := startBus(t, oneAttempt, eventbus.WithClock(mock))
	circuitLifeCycle(&circuitRig{t, bus, logs, mock.Add})
}

func TestC6_LifeCycleByTheMockClockInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		bus, logs := startBus(t, oneAttempt, eventbus.WithClock(mock))
		circuitLifeCycle(&circuitRig{t, bus, logs, mock.Add})
	})
}

// stillClock stands still as seen by the bus, however much the runtime's moves,
// and the other way round: the bubble's time never moves by itself.
type stillClock struct {
	clock.Clock
	mu  sync.Mutex
	now time.Time
}

func (c *stillClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stillClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// The circuit's library has a clock of its own, the runtime's. If only the
// injected one moves, the circuit must still.
func TestC6_OnlyTheInjectedClockMatters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &stillClock{Clock: clock.New(), now: time.Now()}
		bus, _ := startBus(t, oneAttempt, eventbus.WithClock(c))
		s := mustSubscribe(t, bus, "a", runScript, eventbus.DeadLetterWhenOpen)
		began := time.Now()
		tripCircuit(t, bus, "a")
		c.add(30 * time.Second)
		publishScripts(t, bus, "a", succeed)
		require.Zero(t, time.Since(began), "the runtime's clock has not moved")
		require.Equal(t, eventbus.CircuitClosed, circuitState(t, bus, s))

		c.add(30 * time.Second) // until the probe's success is no sign of life any more
		tripCircuit(t, bus, "a")
		time.Sleep(time.Hour)
		publishScripts(t, bus, "a", succeed)
		require.Equal(t, eventbus.CircuitOpen, circuitState(t, bus, s), "the injected clock has not moved")
		shutdown(t, bus)
	})
}

// A worker that was let through before Pause, and has not begun the call when it
// returns, does not begin it.
func TestC6_APauseIsSeenByWhoHasBeenLetThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *eventbus.Subscription
		bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{AttemptBegun: func(a eventbus.Attempt) {
			if a.ID == 1 {
				assert.NoError(t, s.Pause())
			}
		}}))
		calls := newCallLog()
		s = mustSubscribe(t, bus, "a", calls.handler("s"))
		mustPublish(t, bus, "a", "1")
		settleWorkers()
		require.Zero(t, calls.len())
		require.Equal(t, 1, bus.Metrics().Held)
		require.NoError(t, s.Resume())
		settleWorkers()
		require.Equal(t, 1, calls.len())
		shutdown(t, bus)
		require.Empty(t, letters(t, bus))
	})
}

// timerClock counts the timers that are set on a mock clock.
type timerClock struct {
	*clock.Mock
	mu  sync.Mutex
	set []time.Duration
}

func (c *timerClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	c.mu.Lock()
	c.set = append(c.set, d)
	c.mu.Unlock()
	return c.Mock.AfterFunc(d, f)
}

func (c *timerClock) all() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.set)
}

func TestC6_NoTimerWhileNothingIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timers := &timerClock{Mock: clock.NewMock()}
		bus, _ := startBus(t, eventbus.WithClock(timers), eventbus.WithTimeout(time.Hour))
		s := mustSubscribe(t, bus, "*", ok)
		wakes := func() (n int) { // all but handlers' deadlines
			for _, d := range timers.all() {
				if d != time.Hour {
					n++
				}
			}
			return n
		}
		require.NoError(t, s.Trip())
		require.NoError(t, s.HoldUntil(timers.Now().Add(time.Minute)))
		settleWorkers()
		require.Zero(t, wakes())
		_, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrHeld)
		settleWorkers() // the result comes before the timer
		require.Equal(t, 1, wakes())
		require.NoError(t, s.Resume())
		require.NoError(t, s.Reset())
		shutdown(t, bus)
	})
}

// The entries of the whole life of a circuit, and nothing else that warns.
func TestC6_StateChangesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, oneAttempt)
		mustSubscribe(t, bus, "a", runScript, eventbus.Named("s"))
		tripCircuit(t, bus, "a")
		time.Sleep(30 * time.Second)
		publishScripts(t, bus, "a", failBroken)
		time.Sleep(30 * time.Second)
		publishScripts(t, bus, "a", succeed)
		var changes []string
		for _, e := range logs.All() {
			if strings.HasPrefix(e.Message, "circuit ") {
				require.Equal(t, "s", e.ContextMap()["subscription_id"])
				changes = append(changes, fmt.Sprint(e.Level, " ", e.ContextMap()["from"], " ", e.ContextMap()["to"]))
			}
		}
		require.True(t, slices.Equal([]string{
			"warn closed open", "info open half-open", "warn half-open open", "info open half-open", "info half-open closed",
		}, changes), "%v", changes)
		require.EqualValues(t, 2, metricsOf(t, bus, "s").CircuitOpens)
		shutdown(t, bus)
	})
}

// Observers of circuits see each change, in order, and by the injected clock.
func TestC6_ObserversSeeEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes journal[eventbus.CircuitChange]
		bus, _ := startBus(t, oneAttempt, eventbus.WithObserver(eventbus.Observer{CircuitChanged: changes.add}))
		mustSubscribe(t, bus, "a", runScript, eventbus.Named("s"))
		begin := time.Now().UTC()
		tripCircuit(t, bus, "a")
		time.Sleep(30 * time.Second)
		publishScripts(t, bus, "a", failBroken)
		time.Sleep(30 * time.Second)
		publishScripts(t, bus, "a", succeed)
		closed, open, half := eventbus.CircuitClosed, eventbus.CircuitOpen, eventbus.CircuitHalfOpen
		require.Equal(t, []eventbus.CircuitChange{
			{Subscription: "s", From: closed, To: open, At: begin},
			{Subscription: "s", From: open, To: half, At: begin.Add(30 * time.Second)},
			{Subscription: "s", From: half, To: open, At: begin.Add(30 * time.Second)},
			{Subscription: "s", From: open, To: half, At: begin.Add(60 * time.Second)},
			{Subscription: "s", From: half, To: closed, At: begin.Add(60 * time.Second)},
		}, changes.all())
		shutdown(t, bus)
	})
}

func TestC6_ASubscriptionIsFoundByANameThatItHasTakenOver(t *testing.T) {
	bus, _ := newBus(t)
	s := mustSubscribe(t, bus, "a", ok, eventbus.Named("new"), eventbus.Formerly("old", "older"))
	unnamed := mustSubscribe(t, bus, "b", ok)
	for _, name := range []string{"new", "old", "older"} {
		require.Same(t, s, bus.Subscription(name))
	}
	require.Same(t, unnamed, bus.Subscription(unnamed.ID()))
	require.False(t, bus.Subscription("newer").Exists())
	s.Unsubscribe()
	require.False(t, bus.Subscription("old").Exists())
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
