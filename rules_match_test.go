package eventbus_test

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

	"github.com/surebus/eventbus"
)

func TestP7_EveryMemberMustMatch(t *testing.T) {
	busy := &ruleError{code: "Bank.Busy", resultType: "Declined", retryable: ptr(true)}
	all := eventbus.ErrorMatch{
		Codes: []string{"X", "Bank.*"}, Types: []string{"error", "Declined"}, Retryable: ptr(true),
		Is: []error{fs.ErrExist, busy}, As: []any{new(*fs.PathError), new(*ruleError)},
	}
	require.True(t, all.Matches(busy))
	require.True(t, all.Matches(fmt.Errorf("charging: %w", errors.Join(errBroken, busy))))
	for name, change := range map[string]func(*eventbus.ErrorMatch){
		"codes":     func(m *eventbus.ErrorMatch) { m.Codes = []string{"X", "Bank", "Bank.Busy.*"} },
		"types":     func(m *eventbus.ErrorMatch) { m.Types = []string{"error", "declined"} },
		"retryable": func(m *eventbus.ErrorMatch) { m.Retryable = ptr(false) },
		"is":        func(m *eventbus.ErrorMatch) { m.Is = []error{fs.ErrExist} },
		"as":        func(m *eventbus.ErrorMatch) { m.As = []any{new(*fs.PathError)} },
	} {
		m := all
		change(&m)
		require.False(t, m.Matches(busy), name)
	}
	require.False(t, all.Matches(nil))
	require.False(t, eventbus.ErrorMatch{}.Matches(busy), "says nothing")
	require.False(t, codes("*").Matches(nil))
	require.True(t, eventbus.ErrorMatch{As: []any{new(interface{ Code() string })}}.Matches(busy), "an interface")
	require.False(t, eventbus.ErrorMatch{As: []any{nil, 5, new(int)}, Is: []error{nil}}.Matches(busy), "no targets at all")
}

func TestP7_WhoSaysNothingMatchesNeither(t *testing.T) {
	for _, err := range []error{errBroken, &ruleError{}, flagError(true), flagError(false), &ruleError{inner: flagError(true)}} {
		said := (&eventbus.Bus{}).ErrorTraits(err).Retryable
		for _, asked := range []bool{true, false} {
			want := said != nil && *said == asked
			require.Equal(t, want, eventbus.ErrorMatch{Retryable: &asked}.Matches(err), "%#v, %t", err, asked)
		}
	}
	require.False(t, eventbus.ErrorMatch{Retryable: ptr(false)}.Matches(errBroken))
	require.False(t, eventbus.ErrorMatch{Retryable: ptr(true)}.Matches(errBroken))
}

func TestP7_CodePatterns(t *testing.T) {
	for pattern, want := range map[string]map[string]bool{
		"*":         {"": true, "A": true, "A.B": true},
		"A":         {"": false, "A": true, "A.B": false, "a": false},
		"A.B":       {"": false, "A": false, "A.B": true, "A.B.C": false, "A.BC": false},
		"A.*":       {"": false, "A": false, "A.": false, "A.B": true, "A.B.C": true, "AB.C": false, "B.A.C": false},
		"A.B.*":     {"A.B": false, "A.B.C": true, "A.BC": false},
		"Ä.\x00x.*": {"Ä.\x00x.y": true},
	} {
		for code, matches := range want {
			require.Equal(t, matches, codes(pattern).Matches(coded(code)), "%s, %q", pattern, code)
		}
		_, err := eventbus.New(eventbus.WithRetryRules(onCodes(1, pattern)))
		require.NoError(t, err, pattern)
	}
	require.True(t, codes("*").Matches(errBroken))
	require.False(t, codes("A").Matches(errBroken))
	require.True(t, codes("B", "A").Matches(coded("A")), "any of them")
}

func FuzzErrorMatch_Codes(f *testing.F) {
	for _, seed := range []string{"*", "A.*", "A.B", "", "A..B", "A.*.B", "*.A", ".*", "A*"} {
		f.Add(seed, "A.B")
		f.Add(seed, "A")
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, pattern, code string) {
		_, err := eventbus.New(eventbus.WithRetryRules(onCodes(1, pattern)))
		prefix, open := strings.CutSuffix(pattern, ".*")
		valid := pattern == "*" || pattern != ""
		for _, segment := range strings.Split(prefix, ".") {
			valid = valid && (pattern == "*" || segment != "" && !strings.Contains(segment, "*"))
		}
		if valid != (err == nil) {
			t.Fatalf("%q: %v", pattern, err)
		}
		if err != nil {
			var offence *eventbus.OptionError
			require.ErrorAs(t, err, &offence)
			require.Equal(t, "WithRetryRules[0].Match.Codes[0]", offence.Option)
			return
		}
		for _, code := range []string{code, pattern, prefix, prefix + "." + code, prefix + code} {
			want := pattern == "*"
			if of, in := strings.Split(prefix, "."), strings.Split(code, "."); code != "" && pattern != "*" {
				want = len(in) >= len(of) && fmt.Sprintf("%q", in[:len(of)]) == fmt.Sprintf("%q", of) &&
					(open && len(code) > len(prefix)+1 || !open && len(in) == len(of))
			}
			if got := codes(pattern).Matches(coded(code)); got != want {
				t.Fatalf("%q matches %q: %t", pattern, code, got)
			}
		}
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

func TestP7_RulesAreCopied(t *testing.T) {
	rules := []eventbus.RetryRule{{Match: eventbus.ErrorMatch{Codes: []string{"X"}, Retryable: ptr(true), Types: []string{"error"}}, Attempts: 3}}
	bus, _ := newBus(t, eventbus.WithRetryRules(rules...))
	mustSubscribe(t, bus, "a", ok)
	spoil := func(r []eventbus.RetryRule) {
		r[0].Match.Codes[0], *r[0].Match.Retryable, r[0].Match.Types[0], r[0].Attempts = "Y", false, "y", 9
	}
	spoil(rules)
	spoil(bus.Explain("a").Targets[0].Rules)
	require.Equal(t, "code X, type error, retryable true: 3 attempts at once", bus.Explain("a").Targets[0].Rules[0].String())
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
		"     rule 0  code *: 2 attempts at once  (bus default)\n",
		", IncludeErrors A, B, ExcludeErrors no error\n",
	} {
		require.Contains(t, p.String(), line)
	}
	require.NotContains(t, p.String(), "IncludeErrors = ")
	require.Equal(t, "nothing", eventbus.ErrorMatch{}.String())
	require.Equal(t, "is nil", eventbus.ErrorMatch{Is: []error{nil}}.String())
}

func TestP7_DelayOfARule(t *testing.T) {
	r := eventbus.RetryRule{BaseDelay: time.Second, BackoffMultiplier: 2, MaxDelay: 5 * time.Second}
	for attempt, seconds := range []int{0, 0, 1, 2, 4, 5, 5} {
		require.Equal(t, time.Duration(seconds)*time.Second, r.Delay(attempt))
	}
	require.Equal(t, time.Second, eventbus.RetryRule{BaseDelay: time.Second}.Delay(1_000_000), "a multiplier of 1, and no cap")
	require.Equal(t, time.Duration(math.MaxInt64), eventbus.RetryRule{BaseDelay: 1, BackoffMultiplier: 2}.Delay(1_000_000))
	require.Zero(t, eventbus.RetryRule{}.Delay(7))
}

type hostileError struct{ do func() }

func (e hostileError) Error() string      { return "hostile" }
func (e hostileError) Code() string       { e.do(); return "X" }
func (e hostileError) Name() string       { e.do(); return "X" }
func (e hostileError) ResultType() string { e.do(); return "X" }
func (e hostileError) Retryable() bool    { e.do(); return true }
func (e hostileError) Is(error) bool      { e.do(); return true }
func (e hostileError) As(any) bool        { e.do(); return true }
func (e hostileError) Unwrap() error      { e.do(); return nil }

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
