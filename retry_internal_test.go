package eventbus

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The largest value that rand.Float64 returns.
const almostOne = 1 - 1.0/(1<<53)

func TestP3_JitterKeepsItsBoundsForEveryPolicyAndAttempt(t *testing.T) {
	duration := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "nanos") >> rapid.IntRange(0, 62).Draw(t, "shift"))
	})
	rapid.Check(t, func(t *rapid.T) {
		p := RetryPolicy{
			BaseDelay:         duration.Draw(t, "BaseDelay"),
			MaxDelay:          duration.Draw(t, "MaxDelay"),
			BackoffMultiplier: rapid.Float64Range(1, 10).Draw(t, "BackoffMultiplier"),
		}
		attempt := rapid.OneOf(rapid.IntRange(2, 70), rapid.IntRange(2, 1_000_000)).Draw(t, "attempt")
		previous := min(duration.Draw(t, "previous"), p.MaxDelay)
		random := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, almostOne}), rapid.Float64Range(0, almostOne)).Draw(t, "random")

		d := float64(p.Delay(attempt))
		base := float64(min(p.BaseDelay, p.MaxDelay))
		slack := 1 + d*1e-12
		for j, bounds := range map[Jitter][2]float64{
			ProportionalJitter: {0.9 * d, min(1.1*d, math.MaxInt64)},
			NoJitter:           {d, d},
			FullJitter:         {0, d},
			EqualJitter:        {d / 2, d},
			DecorrelatedJitter: {base, min(3*max(float64(previous), base), float64(p.MaxDelay))},
		} {
			p.Jitter = j
			got := p.spread(attempt, previous, random)
			if got < 0 || float64(got) < bounds[0]-slack || float64(got) > bounds[1]+slack {
				t.Fatalf("%s of %s: %s is out of [%g, %g]", j, time.Duration(d), got, bounds[0], bounds[1])
			}
		}
	})
}

func TestP3_JitterReachesItsEnds(t *testing.T) {
	p := DefaultRetryPolicy()
	for _, c := range []struct {
		jitter    Jitter
		low, high time.Duration
	}{
		{ProportionalJitter, 900 * time.Millisecond, 1100 * time.Millisecond},
		{NoJitter, time.Second, time.Second},
		{FullJitter, 0, time.Second},
		{EqualJitter, 500 * time.Millisecond, time.Second},
		{DecorrelatedJitter, time.Second, 3 * time.Second},
	} {
		p.Jitter = c.jitter
		a, b := p.spread(2, 0, 0), p.spread(2, 0, almostOne)
		require.InDelta(t, float64(c.low), float64(min(a, b)), 2, c.jitter)
		require.InDelta(t, float64(c.high), float64(max(a, b)), 2, c.jitter)
	}
}

func TestP3_ProportionalJitterIsAppliedAfterTheCap(t *testing.T) {
	p := DefaultRetryPolicy()
	require.InDelta(t, float64(33*time.Second), float64(p.spread(100, 0, almostOne)), 1e3)
	require.InDelta(t, float64(27*time.Second), float64(p.spread(100, 0, 0)), 1e3)
}

func TestP6_NothingOverflowsHoweverLargeTheNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		extreme := rapid.SampledFrom([]time.Duration{0, 1, time.Second, math.MaxInt64 - 1, math.MaxInt64})
		p := RetryPolicy{
			MaxRetries:        Unlimited,
			BaseDelay:         extreme.Draw(t, "BaseDelay"),
			MaxDelay:          extreme.Draw(t, "MaxDelay"),
			BackoffMultiplier: rapid.SampledFrom([]float64{1, 2, math.MaxFloat64}).Draw(t, "BackoffMultiplier"),
			MaxElapsed:        extreme.Draw(t, "MaxElapsed"),
			Jitter:            NoJitter,
		}
		err := errors.New("broken")
		elapsed := extreme.Draw(t, "elapsed")
		if rapid.Bool().Draw(t, "clock set back") {
			elapsed = -elapsed
		}
		delay := p.Delay(2)
		if rapid.Bool().Draw(t, "RetryAfter") {
			delay = extreme.Draw(t, "after")
			err = RetryAfter(err, delay)
		}
		f := failedAttempt{number: 1, elapsed: elapsed, bound: p.MaxElapsed, verdict: &verdict{}}
		f.judge(err, nil)
		d := p.decide(&f, 0.5)
		// In floats, which are not exact here but never wrap around.
		sum, bound := float64(elapsed)+float64(delay), float64(p.MaxElapsed)
		switch {
		case p.MaxElapsed != 0 && sum > bound*1.01+2 && d.retry:
			t.Fatalf("retried %g after publication, bound %g", sum, bound)
		case (p.MaxElapsed == 0 || sum < bound*0.99-2) && (!d.retry || d.delay != delay):
			t.Fatalf("%+v, want a retry after %s", d, delay)
		case !d.retry && d.reason != ReasonExpired:
			t.Fatalf("%+v", d)
		}
	})
}

// Budgets are 32 bits wide inside.
func TestD4_TheLastAttemptOfTheLargestBudgetIsReached(t *testing.T) {
	p := DefaultRetryPolicy()
	p.MaxRetries = maxMaxRetries
	f := failedAttempt{number: math.MaxInt32 - 1, verdict: &verdict{}}
	f.judge(errors.New("broken"), nil)
	require.True(t, p.decide(&f, 0).retry)
	f.number++
	require.Equal(t, decision{reason: ReasonExhausted}, p.decide(&f, 0))
}

// A dispatch that does not fail pays nothing for rules.
func TestP7_SuccessCostsNothing(t *testing.T) {
	require.LessOrEqual(t, publishAllocs(t, WithRetryRules(RetryRule{Match: ErrorMatch{Codes: []string{"*"}}, Attempts: 3})), publishAllocs(t)+0.01)
}

// publishAllocs is what an event costs from Publish until it is handled.
func publishAllocs(t *testing.T, opts ...Option) float64 {
	t.Helper()
	b, err := New(opts...)
	require.NoError(t, err)
	_, err = b.Subscribe("a", func(context.Context, Event) error { return nil })
	require.NoError(t, err)
	for range 10_000 {
		if _, err := b.Publish(t.Context(), "a", nil); err != nil {
			t.Fatal(err)
		}
	}
	w := b.machine.workers().Open()
	defer b.machine.workers().Close(w)
	return testing.AllocsPerRun(5000, func() {
		if d, ok := b.machine.pool.TryTake(); ok {
			b.machine.run(w, d)
		}
	})
}
