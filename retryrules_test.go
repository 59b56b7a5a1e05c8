package eventbus_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func codes(patterns ...string) eventbus.ErrorMatch { return eventbus.ErrorMatch{Codes: patterns} }

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

func coded(code string) error { return &ruleError{code: code} }

// onCodes is a rule without delay.
func onCodes(attempts int, patterns ...string) eventbus.RetryRule {
	return eventbus.RetryRule{Match: codes(patterns...), Attempts: attempts}
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

func TestP7_DelayOfARule(t *testing.T) {
	r := eventbus.RetryRule{BaseDelay: time.Second, BackoffMultiplier: 2, MaxDelay: 5 * time.Second}
	for attempt, seconds := range []int{0, 0, 1, 2, 4, 5, 5} {
		require.Equal(t, time.Duration(seconds)*time.Second, r.Delay(attempt))
	}
	require.Equal(t, time.Second, eventbus.RetryRule{BaseDelay: time.Second}.Delay(1_000_000), "a multiplier of 1, and no cap")
	require.Equal(t, time.Duration(math.MaxInt64), eventbus.RetryRule{BaseDelay: 1, BackoffMultiplier: 2}.Delay(1_000_000))
	require.Zero(t, eventbus.RetryRule{}.Delay(7))
}
