package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

// ruleError is an error that tells what it is told to.
type ruleError struct {
	code, name, resultType string
	retryable              *bool
	inner                  error
}

func (e *ruleError) Error() string      { return "code " + e.code }
func (e *ruleError) Code() string       { return e.code }
func (e *ruleError) Name() string       { return e.name }
func (e *ruleError) ResultType() string { return e.resultType }
func (e *ruleError) Unwrap() error      { return e.inner }
func (e *ruleError) Retryable() (bool, bool) {
	return e.retryable != nil && *e.retryable, e.retryable != nil
}

func coded(code string) error { return &ruleError{code: code} }

func ptr[T any](v T) *T { return &v }

func codes(patterns ...string) eventbus.ErrorMatch { return eventbus.ErrorMatch{Codes: patterns} }

// onCodes is a rule without delay.
func onCodes(attempts int, patterns ...string) eventbus.RetryRule {
	return eventbus.RetryRule{Match: codes(patterns...), Attempts: attempts}
}

// ruleCalls is a handler that fails with each of the errors in turn, with the last one
// again and again, and notes when it is called. nil is success.
func ruleCalls(script ...error) (*bCalls, eventbus.Handler) {
	calls := &bCalls{since: time.Now()}
	return calls, func(context.Context, eventbus.Event) error {
		n := calls.len()
		calls.add(time.Since(calls.since))
		return script[min(n, len(script)-1)]
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
		require.Equal(t, bSeconds(0, 1, 4, 14, 24), calls.all())
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
		require.Equal(t, bSeconds(0, 100, 101, 301, 303, 703, 707, 1507), calls.all())
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
		require.Equal(t, bSeconds(0, 5), calls.all(), "10 s is at the bound")
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
		require.Equal(t, bSeconds(0, 1, 78, 81), calls.all())
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

// Rules are merged with nothing, and have no part in the merge of policies.
func TestP7_MergingIsUntouched(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def, overrides := bPolicy().Draw(t, "default"), bOverrides().Draw(t, "overrides")
		want, _ := bMerge(def, overrides)
		bus, err := eventbus.New(eventbus.WithRetry(def), eventbus.WithRetryRules(onCodes(rapid.IntRange(1, 99).Draw(t, "attempts"), "*")))
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range rapid.Permutation(indices(len(overrides))).Draw(t, "order") {
			opts := []eventbus.SubscribeOption{eventbus.Retry(overrides[i].options()...)}
			if rapid.Bool().Draw(t, "rules") {
				opts = append(opts, eventbus.RetryRules(eventbus.RetryRule{
					Match: codes("*"), Attempts: rapid.IntRange(1, 99).Draw(t, "attempts"), BaseDelay: bDuration().Draw(t, "delay"), BackoffMultiplier: 9,
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

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
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
		require.Equal(t, bSeconds(0, 1, 12, 16), calls.all())
		require.Equal(t, bSeconds(3, 4), last.all(), "its rule had not been spent")
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
			Jitter:            rapid.SampledFrom(bJitters).Draw(rt, "jitter"),
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
		for i, want := range bSeconds(0, 3, 303, 312, 1212) {
			require.InDelta(t, float64(want), float64(calls.all()[i]), 10)
		}
	})
}

// A matcher that goes by segments agrees, for patterns that are taken and codes that
// are made of them.
// What is given can be changed afterwards, and so can what is returned.
// A letter's rule is in its JSON, and comes back.
func TestP7_LettersWithRulesAreExportedAndImported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		_, handler := ruleCalls(errBroken, coded("X"))
		mustSubscribe(t, bus, "a", handler, eventbus.Named("s"), eventbus.Retry(retry(1, 0)),
			eventbus.RetryRules(onCodes(1, "Y"), eventbus.RetryRule{Name: "bank", Match: codes("X"), Attempts: 2}))
		mustPublish(t, bus, "a", "payload")
		shutdown(t, bus)
		lines := dlqExport(t, bus)
		require.Equal(t, 3, strings.Count(string(lines), `"rule":{"position":1,"name":"bank","subscription":"s"}`), "%s", lines)
		other, _ := newBus(t)
		require.Equal(t, 1, dlqImport(t, other, lines).Imported)
		want, got := oneLetter(t, bus), oneLetter(t, other)
		require.Equal(t, want.Rule, got.Rule)
		require.Nil(t, got.Failures[0].Rule)
		require.Equal(t, want.Failures[1].Rule, got.Failures[1].Rule)
		for _, bad := range []string{`"position":-1`, `"position":2147483648`} {
			_, err := other.DLQ().Import(t.Context(), strings.NewReader(strings.Replace(string(lines), `"position":1`, bad, 1)))
			require.ErrorContains(t, err, "position of a rule")
		}

		// Nor does a change of one copy reach another.
		got.Rule.Position, got.Failures[1].Rule.Name = 77, "spoiled"
		require.Equal(t, want.Rule, oneLetter(t, other).Rule)
		require.Equal(t, want.Failures[1].Rule, oneLetter(t, other).Failures[1].Rule)
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

// hostileError does harm in whatever it is asked.
// What an error's methods do ends neither the dispatch nor the worker.
// A source of random numbers is the user's code, too.
