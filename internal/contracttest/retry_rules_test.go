package contracttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// A timeout, a panic and an exit have names and types as any error has.
func TestP7_HowAHandlerEndsIsMatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithTimeout(time.Second), eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetryRules(
			eventbus.RetryRule{Match: eventbus.ErrorMatch{Types: []string{"timeout"}}, Attempts: 2},
			eventbus.RetryRule{Match: eventbus.ErrorMatch{As: []any{new(*eventbus.PanicError)}}, Attempts: 3},
			eventbus.RetryRule{Match: eventbus.ErrorMatch{Is: []error{eventbus.ErrHandlerExited}}, Attempts: 4},
		))
		mustSubscribe(t, bus, "*", runScript)
		for i, ending := range []string{"timeout", "panic", "exit"} {
			_, err := bus.PublishAndWait(t.Context(), ending, handlerEndings[ending])
			var died *eventbus.DeliveryError
			require.ErrorAs(t, err, &died, ending)
			require.Equal(t, i+2, died.Letters[0].Attempts, ending)
			require.Equal(t, &eventbus.RuleRef{Position: i}, died.Letters[0].Rule, ending)
		}
		shutdown(t, bus)
	})
}

// One that has failed already goes on by the rules that it began with, also after many
// changes; its replay is a fresh dispatch.
func TestP7_ARunningDispatchKeepsItsRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := func(attempts int, delay time.Duration) eventbus.RetryRule {
			return eventbus.RetryRule{Name: delay.String(), Match: codes("*"), Attempts: attempts, BaseDelay: delay, Jitter: eventbus.NoJitter}
		}
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(retry(0, 0)))
		calls, handler := ruleCalls(errBroken)
		s := mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(rule(3, time.Minute)))
		mustPublish(t, bus, "a", nil)
		for i := range 5 {
			time.Sleep(10 * time.Second)
			require.NoError(t, s.SetRetryRules(rule(9-i, time.Hour)))
			require.NoError(t, bus.SetRetryRules(rule(9, time.Hour)))
		}
		require.NoError(t, s.SetRetryRules(rule(2, time.Second)))
		time.Sleep(2 * time.Minute)
		require.Equal(t, inSeconds(0, 60, 120), calls.all())
		l := oneLetter(t, bus)
		require.Equal(t, "1m0s", l.Rule.Name)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		shutdown(t, bus)
		require.Equal(t, "1s", oneLetter(t, bus).Rule.Name)
		require.Equal(t, 2, oneLetter(t, bus).Attempts)
	})
}

func TestP7_BadRulesAreRefused(t *testing.T) {
	rule := func(change func(*eventbus.RetryRule)) []eventbus.RetryRule {
		r := onCodes(3, "X")
		change(&r)
		return []eventbus.RetryRule{onCodes(1, "Y"), r}
	}
	match := func(m eventbus.ErrorMatch) []eventbus.RetryRule {
		return rule(func(r *eventbus.RetryRule) { r.Match = m })
	}
	for member, rules := range map[string][]eventbus.RetryRule{
		`[1].Match(nothing)`:              match(eventbus.ErrorMatch{}),
		`[1].Match.Codes(empty)`:          match(eventbus.ErrorMatch{Codes: []string{}}),
		`[1].Match.Codes[0]("")`:          match(codes("")),
		`[1].Match.Codes[1]("A.*.B")`:     match(codes("A", "A.*.B")),
		`[1].Match.Codes[0]("A*")`:        match(codes("A*")),
		`[1].Match.Codes[0]("A..B")`:      match(codes("A..B")),
		`[1].Match.Codes[0]("A.")`:        match(codes("A.")),
		`[1].Match.Codes[0](".*")`:        match(codes(".*")),
		`[1].Match.Codes[0]("*.*")`:       match(codes("*.*")),
		`[1].Match.Types(empty)`:          match(eventbus.ErrorMatch{Types: []string{}}),
		`[1].Match.Types[1](success)`:     match(eventbus.ErrorMatch{Types: []string{"error", "success"}}),
		`[1].Match.Types[0]("")`:          match(eventbus.ErrorMatch{Types: []string{""}}),
		`[1].Match.Is(empty)`:             match(eventbus.ErrorMatch{Is: []error{}}),
		`[1].Match.Is[0](nil)`:            match(eventbus.ErrorMatch{Is: []error{nil}}),
		`[1].Match.As(empty)`:             match(eventbus.ErrorMatch{As: []any{}}),
		`[1].Match.As[0](<nil>)`:          match(eventbus.ErrorMatch{As: []any{nil}}),
		`[1].Match.As[0](**int)`:          match(eventbus.ErrorMatch{As: []any{new(*int)}}),
		`[1].Match.As[1](fs.PathError)`:   match(eventbus.ErrorMatch{As: []any{new(error), fs.PathError{}}}),
		`[1].Match.As[0](**fs.PathError)`: match(eventbus.ErrorMatch{As: []any{(**fs.PathError)(nil)}}),
		`[1].Attempts(0)`:                 rule(func(r *eventbus.RetryRule) { r.Attempts = 0 }),
		`[1].Attempts(-2)`:                rule(func(r *eventbus.RetryRule) { r.Attempts = -2 }),
		`[1].Attempts(2147483648)`:        rule(func(r *eventbus.RetryRule) { r.Attempts = 1 << 31 }),
		`[1].BaseDelay(-1ns)`:             rule(func(r *eventbus.RetryRule) { r.BaseDelay = -1 }),
		`[1].MaxDelay(-1ns)`:              rule(func(r *eventbus.RetryRule) { r.MaxDelay = -1 }),
		`[1].BackoffMultiplier(0.5)`:      rule(func(r *eventbus.RetryRule) { r.BackoffMultiplier = 0.5 }),
		`[1].BackoffMultiplier(NaN)`:      rule(func(r *eventbus.RetryRule) { r.BackoffMultiplier = math.NaN() }),
		`[1].BackoffMultiplier(+Inf)`:     rule(func(r *eventbus.RetryRule) { r.BackoffMultiplier = math.Inf(1) }),
		`[1].Jitter(9)`:                   rule(func(r *eventbus.RetryRule) { r.Jitter = 9 }),
		`[1].Name("a\nb")`:                rule(func(r *eventbus.RetryRule) { r.Name = "a\nb" }),
	} {
		refused := func(option string, err error) {
			require.ErrorContains(t, err, option+member)
			var offence *eventbus.OptionError
			require.ErrorAs(t, err, &offence)
			require.NotEmpty(t, offence.Reason, member)
		}
		_, err := eventbus.New(eventbus.WithRetryRules(rules...))
		refused("WithRetryRules", err)
		bus, _ := newBus(t)
		_, err = bus.Subscribe("a", ok, eventbus.RetryRules(rules...))
		refused("RetryRules", err)
		require.Empty(t, bus.Explain("a").Targets, "the bus is as it was")
		refused("SetRetryRules", bus.SetRetryRules(rules...))
		refused("SetRetryRules", mustSubscribe(t, bus, "a", ok).SetRetryRules(rules...))
		require.Empty(t, bus.Explain("a").Targets[0].Rules)
	}
	_, err := eventbus.New(eventbus.WithRandom(nil))
	require.ErrorContains(t, err, "WithRandom(nil)")
}

func ptr[T any](v T) *T { return &v }

func TestP7_RulesAreCopied(t *testing.T) {
	rules := []eventbus.RetryRule{{Match: eventbus.ErrorMatch{Codes: []string{"X"}, Retryable: ptr(true), Types: []string{"error"}}, Attempts: 3}}
	bus, _ := newBus(t, eventbus.WithRetryRules(rules...))
	mustSubscribe(t, bus, "a", ok)
	spoil := func(r []eventbus.RetryRule) {
		r[0].Match.Codes[0], *r[0].Match.Retryable, r[0].Match.Types[0], r[0].Attempts = "Y", false, "y", 9
	}
	spoil(rules)
	spoil(bus.Explain("a").Targets[0].Rules)
	require.Equal(t, "code X, type error, retryable true: 3 attempts without delay", bus.Explain("a").Targets[0].Rules[0].String())
}

func TestP7_ExplainShowsTheRules(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithRetryRules(onCodes(2, "*")))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("billing"), eventbus.RetryRules(
		eventbus.RetryRule{
			Name: "bank", Match: codes("Bank.*", "Card.Busy"), Attempts: 5,
			BaseDelay: time.Second, BackoffMultiplier: 1.5, MaxDelay: time.Minute, Jitter: eventbus.FullJitter,
		},
		eventbus.RetryRule{
			Match:    eventbus.ErrorMatch{Is: []error{fs.ErrExist, context.Canceled}, As: []any{new(*fs.PathError), new(error)}},
			Attempts: eventbus.Unlimited, BaseDelay: time.Second,
		},
		onCodes(1, "*"),
	), eventbus.Retry(eventbus.IncludeErrors("A", "B"), eventbus.ExcludeErrors()))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("mail"))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("audit"), eventbus.RetryRules())
	p := bus.Explain("a")
	require.Equal(t, []string{"billing", eventbus.BusDefault, ""}, []string{p.Targets[0].RulesOrigin, p.Targets[1].RulesOrigin, p.Targets[2].RulesOrigin})
	require.Len(t, p.Targets[0].Rules, 3)
	require.Empty(t, p.Targets[2].Rules)
	for _, line := range []string{
		"     rule 0  \"bank\": code Bank.* or Card.Busy: 5 attempts after 1s × 1.5, at most 1m0s, jitter full  (billing)\n",
		"     rule 1  is \"file already exists\" or \"context canceled\", as *fs.PathError or error: unlimited attempts after 1s, jitter proportional  (billing)\n",
		"     rule 2  code *: 1 attempt  (billing)\n",
		"     rule 0  code *: 2 attempts without delay  (bus default)\n",
		", IncludeErrors A, B, ExcludeErrors no error\n",
	} {
		require.Contains(t, p.String(), line)
	}
	require.NotContains(t, p.String(), "IncludeErrors = ")
	require.Equal(t, "nothing", eventbus.ErrorMatch{}.String())
	require.Equal(t, "is nil", eventbus.ErrorMatch{Is: []error{nil}}.String())
}

// hostileError misbehaves in every method.
type hostileError struct{ do func() }

func (e hostileError) Error() string      { return "hostile" }
func (e hostileError) Code() string       { e.do(); return "X" }
func (e hostileError) Name() string       { e.do(); return "X" }
func (e hostileError) ResultType() string { e.do(); return "X" }
func (e hostileError) Retryable() bool    { e.do(); return true }
func (e hostileError) Is(error) bool      { e.do(); return true }
func (e hostileError) As(any) bool        { e.do(); return true }
func (e hostileError) Unwrap() error      { e.do(); return nil }

// A misbehaving method of an error ends neither the dispatch nor the worker.
func TestP7_HostileErrorsDoNoHarm(t *testing.T) {
	for name, do := range map[string]func(){"panic": func() { panic("in an error") }, "exit": runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(retry(2, 0)),
				eventbus.WithErrorName(fs.ErrExist, "ExistError"), eventbus.WithErrorTypeName[*fs.PathError]("PathError"))
			match := map[string]eventbus.ErrorMatch{
				"code": codes("X"), "type": {Types: []string{"X"}}, "retryable": {Retryable: ptr(true)},
				"is": {Is: []error{fs.ErrExist}}, "as": {As: []any{new(*fs.PathError)}},
			}
			for typ, m := range match {
				mustSubscribe(t, bus, typ, failing(hostileError{do}), eventbus.RetryRules(eventbus.RetryRule{Match: m, Attempts: 7}))
				mustPublish(t, bus, typ, nil)
			}
			mustSubscribe(t, bus, "names", failing(hostileError{do}), eventbus.Retry(eventbus.IncludeErrors("hostileError")))
			mustPublish(t, bus, "names", nil)
			shutdown(t, bus)
			all := letters(t, bus)
			require.Len(t, all, 6)
			for _, l := range all {
				require.Equal(t, 3, l.Attempts, "%s, %s: no rule matches what breaks off", name, l.Event.Type)
				require.Nil(t, l.Rule)
			}
		})
	}
}

// The source of random numbers is user code, too.
func TestP7_AHostileSourceOfRandomNumbersDoesNoHarm(t *testing.T) {
	for name, c := range map[string]struct {
		random func() float64
		delay  time.Duration
	}{
		"panics":       {func() float64 { panic("random") }, 0},
		"exits":        {func() float64 { runtime.Goexit(); return 0 }, 0},
		"too large":    {func() float64 { return math.Inf(1) }, time.Second - 1},
		"one":          {func() float64 { return 1 }, time.Second - 1},
		"negative":     {func() float64 { return -7 }, 0},
		"not a number": {math.NaN, 0},
		"in between":   {func() float64 { return 0.25 }, time.Second / 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithRandom(c.random), eventbus.WithRetry(retry(1, time.Second), eventbus.FullJitter))
			calls, handler := ruleCalls(errBroken)
			mustSubscribe(t, bus, "a", handler)
			mustPublish(t, bus, "a", nil)
			shutdown(t, bus)
			require.Equal(t, []time.Duration{0, c.delay}, calls.all(), name)
		})
	}
}

// ruleEntries are attempt, max_attempts, delay in seconds and rule of the warn entries.
func ruleEntries(logs *observer.ObservedLogs) []string {
	var all []string
	for _, e := range logs.FilterMessage("handler failed").All() {
		m := e.ContextMap()
		s := fmt.Sprintf("%v of %v, %gs", m["attempt"], m["max_attempts"], float64(m["delay_ms"].(int64))/1000)
		if rule, ok := m["rule"]; ok {
			s += fmt.Sprintf(", rule %v", rule)
		}
		if name, ok := m["rule_name"]; ok {
			s += fmt.Sprintf(" %v", name)
		}
		all = append(all, s)
	}
	return all
}

func TestP7_TheFirstRuleThatMatchesDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithRetry(retry(1, 100*time.Second)), eventbus.WithCircuit(eventbus.NoCircuit()))
		calls, handler := ruleCalls(coded("Bank.Busy"), coded("Bank.Busy"), coded("Bank.Down"), coded("Bank.Down"), coded("Bank.Down"))
		mustSubscribe(t, bus, "a", handler, eventbus.Named("billing"), eventbus.RetryRules(
			eventbus.RetryRule{Name: "busy", Match: codes("Bank.Busy"), Attempts: 5, BaseDelay: time.Second, BackoffMultiplier: 3, Jitter: eventbus.NoJitter},
			eventbus.RetryRule{Match: codes("Bank.*"), Attempts: 3, BaseDelay: 10 * time.Second, Jitter: eventbus.NoJitter},
			eventbus.RetryRule{Match: codes("*"), Attempts: 1},
		))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 1, 4, 14, 24), calls.all())
		require.Equal(t, []string{
			"1 of 5, 1s, rule 0 busy", "2 of 5, 3s, rule 0 busy", "3 of 3, 10s, rule 1", "4 of 3, 10s, rule 1", "5 of 3, 0s, rule 1",
		}, ruleEntries(logs))
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, 5, l.Attempts)
		require.Equal(t, &eventbus.RuleRef{Position: 1, Subscription: "billing"}, l.Rule)
		require.Equal(t, &eventbus.RuleRef{Position: 0, Name: "busy", Subscription: "billing"}, l.Failures[1].Rule)
		died := logs.FilterMessage("event dead-lettered").All()[0].ContextMap()
		require.EqualValues(t, 3, died["max_attempts"])
		require.EqualValues(t, 1, died["rule"])
	})
}

// Failures that rules decide and those that the policy does spend budgets of their own,
// in whatever order they come, and each schedule goes on where it was.
func TestP7_BudgetsAndSchedulesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()),
			eventbus.WithRetry(eventbus.MaxRetries(3), eventbus.BaseDelay(time.Second), eventbus.NoJitter))
		busy, other := coded("Busy"), errBroken
		calls, handler := ruleCalls(busy, other, busy, other, busy, other, busy, other)
		mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(eventbus.RetryRule{
			Match: codes("Busy"), Attempts: 5, BaseDelay: 100 * time.Second, BackoffMultiplier: 2, Jitter: eventbus.NoJitter,
		}))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 100, 101, 301, 303, 703, 707, 1507), calls.all())
		require.Equal(t, []string{
			"1 of 5, 100s, rule 0", "2 of 4, 1s", "3 of 5, 200s, rule 0", "4 of 4, 2s",
			"5 of 5, 400s, rule 0", "6 of 4, 4s", "7 of 5, 800s, rule 0", "8 of 4, 0s",
		}, ruleEntries(logs))
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Nil(t, l.Rule, "the policy was exhausted")
		require.Equal(t, 8, l.Attempts)
	})
}

func TestP7_AttemptsCountTheFirstRun(t *testing.T) {
	for _, attempts := range []int{1, 2, 7} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
			calls, handler := ruleCalls(coded("X"))
			mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(onCodes(attempts, "*")))
			mustPublish(t, bus, "a", nil)
			shutdown(t, bus)
			require.Equal(t, make([]time.Duration, attempts), calls.all(), "at once, and no more")
			require.Equal(t, attempts, oneLetter(t, bus).Attempts)
		})
	}
}

func TestP7_UnlimitedAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(eventbus.MaxRetries(0)))
		script := make([]error, 301) // the last one is success
		for i := range 300 {
			script[i] = coded("X")
		}
		calls, handler := ruleCalls(script...)
		mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(onCodes(eventbus.Unlimited, "X")))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		require.Len(t, calls.all(), 301)
		require.Empty(t, letters(t, bus))
		require.Equal(t, "300 of 0, 0s, rule 0", ruleEntries(logs)[299])
	})
}

func TestP7_PermanentComesBeforeTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t)
		mustSubscribe(t, bus, "a", failing(fmt.Errorf("charging: %w", eventbus.Permanent(coded("X")))), eventbus.RetryRules(onCodes(9, "*")))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonPermanent, l.Reason)
		require.Nil(t, l.Rule)
		require.Nil(t, l.Failures[0].Rule)
		require.Equal(t, []string{"1 of 4, 0s"}, ruleEntries(logs))
	})
}

func TestP7_MaxElapsedBoundsRulesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.MaxElapsed(10*time.Second)))
		calls, handler := ruleCalls(coded("X"))
		mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(eventbus.RetryRule{
			Match: codes("X"), Attempts: 9, BaseDelay: 5 * time.Second, Jitter: eventbus.NoJitter,
		}))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 5), calls.all(), "10 s is at the bound")
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonExpired, l.Reason)
		require.Nil(t, l.Rule, "it was not exhausted")
		require.Equal(t, &eventbus.RuleRef{Subscription: l.Subscription}, l.Failures[1].Rule)
	})
}

// RetryAfter is exact and beyond the cap, and the gap after it is the schedule's at its
// own position.
func TestP7_RetryAfterIsForItsGapAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		calls, handler := ruleCalls(coded("X"), eventbus.RetryAfter(coded("X"), 77*time.Second), coded("X"))
		mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(eventbus.RetryRule{
			Match: codes("X"), Attempts: 4, BaseDelay: time.Second, BackoffMultiplier: 2, MaxDelay: 3 * time.Second, Jitter: eventbus.NoJitter,
		}))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 1, 78, 81), calls.all())
	})
}

// RetryIf and the names are asked about what no rule has decided.
func TestP7_RetryIfIsNotAskedAboutWhatARuleDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var asked journal[error]
		calls, handler := ruleCalls(coded("X"), coded("X"), errBroken)
		mustSubscribe(t, bus, "a", handler,
			eventbus.Retry(eventbus.IncludeErrors("errorString"), eventbus.RetryIf(func(err error) bool { asked.add(err); return false })),
			eventbus.RetryRules(onCodes(9, "X")))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		require.Len(t, calls.all(), 3)
		require.Equal(t, []error{errBroken}, asked.all())
		require.Equal(t, eventbus.ReasonPermanent, oneLetter(t, bus).Reason)
	})
}

// The failing subscription's rules hold; one that has none goes by the bus's, unless it
// has said so.
func TestP7_WhoseRulesHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(retry(5, 0)), eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetryRules(
			eventbus.RetryRule{Name: "house", Match: codes("*"), Attempts: 2}))
		mustSubscribe(t, bus, "{own,both}", failing(coded("X")), eventbus.Named("own"), eventbus.RetryRules(onCodes(3, "Y"), onCodes(4, "X")))
		mustSubscribe(t, bus, "bus", failing(coded("X")), eventbus.Named("bus"))
		mustSubscribe(t, bus, "none", failing(coded("X")), eventbus.Named("none"), eventbus.RetryRules())
		mustSubscribe(t, bus, "both", ok, eventbus.Named("other"), eventbus.RetryRules(onCodes(1, "*")))
		for _, typ := range []string{"own", "bus", "none", "both"} {
			mustPublish(t, bus, typ, nil)
		}
		shutdown(t, bus)
		got := map[string]string{}
		for _, l := range letters(t, bus) {
			got[l.Event.Type] = fmt.Sprint(l.Attempts)
			if l.Rule != nil {
				got[l.Event.Type] += " " + l.Rule.String()
			}
		}
		require.Equal(t, map[string]string{
			"own": "4 rule 1 of own", "both": "4 rule 1 of own", "bus": `2 rule 0 of the bus, "house"`, "none": "6",
		}, got)
	})
}

// Per rule and per dispatch: those of the bus are spent by all its subscriptions.
func TestP7_TheBusesRulesAreSharedWithinADispatch(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			opts := []eventbus.Option{eventbus.WithRetryRules(onCodes(3, "X"))}
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			bus, _ := startBus(t, opts...)
			_, first := ruleCalls(coded("X"), nil)
			second, handler := ruleCalls(coded("X"))
			mustSubscribe(t, bus, "a", first)
			mustSubscribe(t, bus, "a", handler)
			mustPublish(t, bus, "a", nil)
			mustPublish(t, bus, "b", nil) // has no part in it
			shutdown(t, bus)
			require.Len(t, second.all(), map[bool]int{false: 2, true: 3}[isolated])
		})
	}
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// Rules are merged with nothing, and have no part in the merge of policies.
func TestP7_MergingIsUntouched(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def, overrides := anyPolicy().Draw(t, "default"), anyOverrides().Draw(t, "overrides")
		want, _ := mergeByTable(def, overrides)
		bus, err := eventbus.New(eventbus.WithRetry(def), eventbus.WithRetryRules(onCodes(rapid.IntRange(1, 99).Draw(t, "attempts"), "*")))
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range rapid.Permutation(indices(len(overrides))).Draw(t, "order") {
			opts := []eventbus.SubscribeOption{eventbus.Retry(overrides[i].options()...)}
			if rapid.Bool().Draw(t, "rules") {
				opts = append(opts, eventbus.RetryRules(eventbus.RetryRule{
					Match: codes("*"), Attempts: rapid.IntRange(1, 99).Draw(t, "attempts"), BaseDelay: anyDuration().Draw(t, "delay"), BackoffMultiplier: 9,
				}))
			}
			if _, err := bus.Subscribe("a", ok, opts...); err != nil {
				t.Fatal(err)
			}
		}
		if got := bus.Explain("a").Policy; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// A replay is a fresh dispatch, with fresh budgets.
func TestP7_AReplayBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		calls, handler := ruleCalls(coded("X"))
		mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(onCodes(3, "X")))
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		shutdown(t, bus)
		require.Len(t, calls.all(), 6)
		l := oneLetter(t, bus)
		require.Equal(t, 3, l.Attempts)
		require.Len(t, l.Failures, 6)
		for _, f := range l.Failures {
			require.NotNil(t, f.Rule)
		}
	})
}

// What was skipped goes on with what it had spent, and where it was in its delays.
func TestP7_ASplitKeepsWhatItHasSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, logs := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		_, first := ruleCalls(errBroken, nil)
		calls, handler := ruleCalls(coded("X"))
		rules := eventbus.RetryRules(eventbus.RetryRule{Match: codes("X"), Attempts: 4, BaseDelay: time.Second, BackoffMultiplier: 2, Jitter: eventbus.NoJitter})
		mustSubscribe(t, bus, "a", first, eventbus.Named("first"), rules, eventbus.Retry(retry(1, 0)))
		s := mustSubscribe(t, bus, "a", handler, eventbus.Named("second"), rules, eventbus.Retry(retry(1, 0)))
		last, third := ruleCalls(coded("X"), nil)
		mustSubscribe(t, bus, "a", third, eventbus.Named("third"), rules)
		mustPublish(t, bus, "a", nil)
		time.Sleep(2 * time.Second) // it has failed twice at the second, and is due at 3 s
		require.NoError(t, s.Pause())
		time.Sleep(10 * time.Second)
		require.Equal(t, 1, bus.Metrics().Held)
		require.NoError(t, s.Resume())
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 1, 12, 16), calls.all())
		require.Equal(t, inSeconds(3, 4), last.all(), "its rule had not been spent")
		l := oneLetter(t, bus)
		require.Equal(t, &eventbus.RuleRef{Subscription: "second"}, l.Rule)
		require.Contains(t, ruleEntries(logs), "4 of 4, 4s, rule 0")
	})
}

// A dispatch that is held whole, too.
func TestP7_AHeldDispatchKeepsWhatItHasSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		calls, handler := ruleCalls(coded("X"), coded("X"), coded("Y"))
		s := mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(
			eventbus.RetryRule{Match: codes("X"), Attempts: 3, BaseDelay: time.Second, Jitter: eventbus.NoJitter},
			eventbus.RetryRule{Match: codes("Y"), Attempts: 2, BaseDelay: time.Second, Jitter: eventbus.NoJitter}))
		mustPublish(t, bus, "a", nil)
		for range 3 {
			time.Sleep(500 * time.Millisecond)
			require.NoError(t, s.Pause())
			time.Sleep(time.Minute)
			require.NoError(t, s.Resume())
			synctest.Wait()
		}
		shutdown(t, bus)
		require.Len(t, calls.all(), 4)
		require.Equal(t, 1, oneLetter(t, bus).Rule.Position)
	})
}

// An oracle of a few lines: each rule and the policy count what they decide.
func TestP7_TheBusFollowsTheRulesWhateverTheyAre(t *testing.T) {
	kinds := []string{"A.B", "A.C", "D", ""}
	patterns := []string{"A.B", "A.*", "D", "*", "E"}
	rapid.Check(t, func(rt *rapid.T) {
		ms := func(label string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(rt, label)) * time.Millisecond
		}
		p := retry(rapid.IntRange(0, 4).Draw(rt, "MaxRetries"), 0)
		p.BaseDelay, p.MaxDelay, p.BackoffMultiplier = ms("base", 3000), ms("max", 9000), 2
		p.MaxElapsed = ms("elapsed", 60_000)
		rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) eventbus.RetryRule {
			return eventbus.RetryRule{
				Match:             codes(rapid.SampledFrom(patterns).Draw(t, "pattern")),
				Attempts:          rapid.SampledFrom([]int{1, 2, 3, 5, eventbus.Unlimited}).Draw(t, "attempts"),
				BaseDelay:         time.Duration(rapid.IntRange(0, 3000).Draw(t, "base")) * time.Millisecond,
				MaxDelay:          time.Duration(rapid.IntRange(0, 9000).Draw(t, "max")) * time.Millisecond,
				BackoffMultiplier: rapid.SampledFrom([]float64{0, 1, 1.5, 3}).Draw(t, "multiplier"),
				Jitter:            eventbus.NoJitter,
			}
		}), 0, 4).Draw(rt, "rules")
		script := rapid.SliceOfN(rapid.SampledFrom(kinds), 0, 30).Draw(rt, "failures")

		var want []time.Duration
		outcome, exhausted := "handled", -1
		counts := map[int]int{}
		at := time.Duration(0)
		for _, code := range script {
			want = append(want, at)
			decides := -1
			for i, r := range rules {
				pattern := r.Match.Codes[0]
				if pattern == "*" || pattern == code && code != "" || pattern == "A.*" && strings.HasPrefix(code, "A.") {
					decides = i
					break
				}
			}
			counts[decides]++
			n, base, most, multiplier, factor := counts[decides], p.BaseDelay, p.MaxDelay, p.BackoffMultiplier, 1.0
			budget := p.MaxRetries + 1
			if decides >= 0 {
				r := rules[decides]
				budget, base, most, multiplier = r.Attempts, r.BaseDelay, r.MaxDelay, max(r.BackoffMultiplier, 1)
				if most == 0 {
					most = math.MaxInt64
				}
			}
			if budget >= 0 && n >= budget {
				outcome, exhausted = "exhausted", decides
				break
			}
			for range n - 1 {
				factor *= multiplier
			}
			// Of the same operations as the code's, or they could differ by a nanosecond.
			delay := most
			if d := float64(base) * math.Pow(multiplier, float64(n-1)); d < float64(most) {
				delay = time.Duration(d)
			}
			if math.Abs(float64(delay)-min(float64(base)*factor, float64(most))) > 1e3 {
				rt.Fatalf("%s after %d failures", delay, n)
			}
			at += delay
			if p.MaxElapsed > 0 && at >= p.MaxElapsed {
				outcome = "expired"
				break
			}
		}
		if outcome == "handled" {
			want = append(want, at)
		}

		var got []time.Duration
		var result string
		position := -1
		synctest.Test(t, func(t *testing.T) {
			bus, err := eventbus.New(eventbus.WithRetry(p), eventbus.WithCircuit(eventbus.NoCircuit()))
			if err != nil {
				result = err.Error()
				return
			}
			began := time.Now()
			_, err = bus.Subscribe("a", func(context.Context, eventbus.Event) error {
				got = append(got, time.Since(began))
				if n := len(got) - 1; n < len(script) {
					return coded(script[n])
				}
				return nil
			}, eventbus.RetryRules(rules...))
			if err != nil {
				result = err.Error()
				return
			}
			_ = bus.Start(t.Context())
			r, err := bus.PublishAndWait(t.Context(), "a", nil)
			result = r.Outcome.String()
			var d *eventbus.DeliveryError
			if errors.As(err, &d) {
				result = string(d.Letters[0].Reason)
				if ref := d.Letters[0].Rule; ref != nil {
					position = ref.Position
				}
			}
			_ = bus.Shutdown(t.Context())
		})
		if result != outcome || position != exhausted || fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Fatalf("%s by %d after %v, want %s by %d after %v", result, position, got, outcome, exhausted, want)
		}
	})
}

// Every delay of every jitter is within its bounds, by the numbers that the source
// gives.
func TestP7_JitterOfARule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		numbers := rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, 0.999999}), rapid.Float64Range(0, 0.999999)), 9, 9).Draw(rt, "random")
		rule := eventbus.RetryRule{
			Match:             codes("*"),
			Attempts:          10,
			BaseDelay:         time.Duration(rapid.IntRange(1, 5_000_000).Draw(rt, "base µs")) * time.Microsecond,
			MaxDelay:          time.Duration(rapid.IntRange(0, 60_000_000).Draw(rt, "max µs")) * time.Microsecond,
			BackoffMultiplier: rapid.Float64Range(1, 4).Draw(rt, "multiplier"),
			Jitter:            rapid.SampledFrom(jitters).Draw(rt, "jitter"),
		}
		var at []time.Duration
		synctest.Test(t, func(t *testing.T) {
			n := 0
			// The policy's own delays have no part in it.
			bus, err := eventbus.New(eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(retry(0, time.Hour)),
				eventbus.WithRandom(func() float64 { n++; return numbers[min(n, 9)-1] }))
			if err != nil {
				return
			}
			began := time.Now()
			_, _ = bus.Subscribe("a", func(context.Context, eventbus.Event) error {
				at = append(at, time.Since(began))
				return errBroken
			}, eventbus.RetryRules(rule))
			_ = bus.Start(t.Context())
			_, _ = bus.PublishAndWait(t.Context(), "a", nil)
			_ = bus.Shutdown(t.Context())
		})
		if len(at) != 10 {
			rt.Fatalf("%d attempts", len(at))
		}
		limit := float64(rule.MaxDelay)
		if limit == 0 {
			limit = math.MaxInt64
		}
		previous := min(float64(rule.BaseDelay), limit)
		for i, r := range numbers {
			got := float64(at[i+1] - at[i])
			d := min(float64(rule.BaseDelay)*math.Pow(rule.BackoffMultiplier, float64(i)), limit)
			want := map[eventbus.Jitter]float64{
				eventbus.ProportionalJitter: d * (0.9 + 0.2*r),
				eventbus.NoJitter:           d,
				eventbus.FullJitter:         d * r,
				eventbus.EqualJitter:        d/2 + d/2*(1-r),
				eventbus.DecorrelatedJitter: min(limit, previous+(3*previous-previous)*r),
			}
			if rule.Jitter == eventbus.DecorrelatedJitter {
				base := min(float64(rule.BaseDelay), limit)
				want[rule.Jitter] = min(limit, base+(3*max(previous, base)-base)*r)
				if got < base-4 || got > min(limit, 3*previous)+4 {
					rt.Fatalf("gap %d is %g, out of [%g, min(%g, 3 × %g)]", i, got, base, limit, previous)
				}
			}
			if math.Abs(got-want[rule.Jitter]) > 4+want[rule.Jitter]*1e-9 {
				rt.Fatalf("%s: gap %d is %g, want %g", rule.Jitter, i, got, want[rule.Jitter])
			}
			previous = got
		}
	})
}

// The place in decorrelated delays is the rule's own too.
func TestP7_DecorrelatedDelaysOfTwoRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRandom(func() float64 { return 1 }), eventbus.WithCircuit(eventbus.NoCircuit()))
		decorrelated := func(code string, base time.Duration) eventbus.RetryRule {
			return eventbus.RetryRule{Match: codes(code), Attempts: 9, BaseDelay: base, Jitter: eventbus.DecorrelatedJitter}
		}
		calls, handler := ruleCalls(coded("X"), coded("Y"), coded("X"), coded("Y"), nil)
		mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(decorrelated("X", time.Second), decorrelated("Y", 100*time.Second)))
		mustPublish(t, bus, "a", nil)
		shutdown(t, bus)
		for i, want := range inSeconds(0, 3, 303, 312, 1212) {
			require.InDelta(t, float64(want), float64(calls.all()[i]), 10)
		}
	})
}

func TestP7_ObserversAndMetricsSeeRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen journal[string]
		note := func(what string, rule *eventbus.RuleRef) {
			text := "policy"
			if rule != nil {
				text = rule.String()
			}
			seen.add(what + " by " + text)
		}
		bus, _ := startBus(t, eventbus.WithRetry(retry(1, time.Second)), eventbus.WithObserver(eventbus.Observer{
			AttemptEnded: func(a eventbus.EndedAttempt) {
				if a.Failure != nil {
					note("failed", a.Failure.Rule)
				}
			},
			RetryScheduled: func(r eventbus.ScheduledRetry) { note(fmt.Sprint("again in ", r.Delay), r.Failure.Rule) },
			DeadLettered:   func(l eventbus.DeadLetter) { note(string(l.Reason), l.Rule) },
		}))
		_, handler := ruleCalls(errBroken, coded("X"))
		mustSubscribe(t, bus, "a", handler, eventbus.Named("s"), eventbus.RetryRules(onCodes(2, "X")))
		_, err := bus.PublishAndWait(t.Context(), "a", nil)
		require.ErrorContains(t, err, "exhausted by rule 0 of s at s (letter ")
		shutdown(t, bus)
		require.Equal(t, []string{
			"failed by policy", "again in 1s by policy",
			"failed by rule 0 of s", "again in 0s by rule 0 of s",
			"failed by rule 0 of s", "exhausted by rule 0 of s",
		}, seen.all())
		m := bus.Metrics().Types["a"]
		require.EqualValues(t, 2, m.Retries)
		require.EqualValues(t, 1, m.DeadLettered)
	})
}
