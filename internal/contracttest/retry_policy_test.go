package contracttest

import (
	"context"
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

func TestP2_DelayTable(t *testing.T) {
	p := eventbus.DefaultRetryPolicy()
	for attempt, seconds := range map[int]int{
		math.MinInt: 0, -1: 0, 0: 0, 1: 0,
		2: 1, 3: 2, 4: 4, 5: 8, 6: 16, 7: 30, 8: 30, 64: 30, 65: 30, 66: 30, 1_000_000: 30, math.MaxInt: 30,
	} {
		require.Equal(t, time.Duration(seconds)*time.Second, p.Delay(attempt), "attempt %d", attempt)
	}
}

func TestP2_TheEdgesOfAPolicy(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  eventbus.RetryPolicy
		attempt int
		want    time.Duration
	}{
		{"no delay at all", eventbus.RetryPolicy{BaseDelay: 0, MaxDelay: time.Hour, BackoffMultiplier: math.MaxFloat64}, 1_000_000, 0},
		{"base beyond the cap", eventbus.RetryPolicy{BaseDelay: time.Hour, MaxDelay: time.Second, BackoffMultiplier: 2}, 2, time.Second},
		{"cap of zero", eventbus.RetryPolicy{BaseDelay: time.Hour, MaxDelay: 0, BackoffMultiplier: 2}, 2, 0},
		{"constant", eventbus.RetryPolicy{BaseDelay: 7, MaxDelay: time.Hour, BackoffMultiplier: 1}, 1_000_000, 7},
		{"all that fits", eventbus.RetryPolicy{BaseDelay: math.MaxInt64, MaxDelay: math.MaxInt64, BackoffMultiplier: 1}, 2, math.MaxInt64},
		{"just beyond what fits", eventbus.RetryPolicy{BaseDelay: 1, MaxDelay: math.MaxInt64, BackoffMultiplier: 2}, 65, math.MaxInt64},
		{"just within", eventbus.RetryPolicy{BaseDelay: 1, MaxDelay: math.MaxInt64, BackoffMultiplier: 2}, 64, 1 << 62},
		{"infinity", eventbus.RetryPolicy{BaseDelay: 1, MaxDelay: math.MaxInt64, BackoffMultiplier: math.MaxFloat64}, 1_000_000, math.MaxInt64},
	} {
		require.Equal(t, c.want, c.policy.Delay(c.attempt), c.name)
	}
}

func anyAttempt() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 1_000_000))
}

// The formula with as many digits as it takes, so that neither overflow nor
// rounding is the same as in the code.
func TestP2_DelayAgreesWithTheFormulaForEveryPolicyAndAttempt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPolicy().Draw(t, "policy")
		attempt := anyAttempt().Draw(t, "attempt")
		got := p.Delay(attempt)
		if attempt == 1 {
			if got != 0 {
				t.Fatalf("before the first attempt: %s", got)
			}
			return
		}
		const precision = 200
		want := new(big.Float).SetPrec(precision).SetInt64(int64(p.BaseDelay))
		factor := new(big.Float).SetPrec(precision).SetFloat64(p.BackoffMultiplier)
		for n := attempt - 2; n > 0 && want.Sign() > 0; n >>= 1 {
			if n&1 == 1 {
				want.Mul(want, factor)
			}
			factor.Mul(factor, factor)
		}
		limit := new(big.Float).SetInt64(int64(p.MaxDelay))
		if want.Cmp(limit) > 0 {
			want = limit
		}
		exact, _ := want.Float64()
		if got < 0 || got > p.MaxDelay {
			t.Fatalf("%s is out of [0, %s]", got, p.MaxDelay)
		}
		if slack := 1 + exact*1e-9; math.Abs(float64(got)-exact) > slack {
			t.Fatalf("got %d ns, want %.1f", got, exact)
		}
		if next := p.Delay(attempt + 1); next < got {
			t.Fatalf("attempt %d waits %s, the next one only %s", attempt, got, next)
		}
	})
}

func TestP3_JitterNames(t *testing.T) {
	var names []string
	for _, j := range jitters {
		names = append(names, j.String())
	}
	require.Equal(t, []string{"proportional", "none", "full", "equal", "decorrelated"}, names)
	require.Equal(t, "Jitter(5)", eventbus.Jitter(5).String())
	require.Equal(t, "Jitter(-1)", eventbus.Jitter(-1).String())
}

func TestP8_PermanentAndRetryAfterOfNilAreNil(t *testing.T) {
	require.NoError(t, eventbus.Permanent(nil))
	require.NoError(t, eventbus.RetryAfter(nil, time.Second))
	cause := errors.New("cause")
	require.ErrorIs(t, eventbus.Permanent(cause), cause)
	require.ErrorIs(t, eventbus.RetryAfter(cause, time.Second), cause)
	require.EqualError(t, eventbus.RetryAfter(eventbus.Permanent(cause), time.Second), "cause")
	require.NotErrorIs(t, eventbus.Permanent(cause), context.Canceled)
}
