package retryspec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

// documents are valid ones, with numbers of all sizes.
func documents() *rapid.Generator[retryspec.Document] {
	seconds := rapid.OneOf(
		rapid.SampledFrom([]float64{0, 1e-9, 0.1, 1, 300, 9.3e9, 1e300, math.MaxFloat64, math.SmallestNonzeroFloat64}),
		rapid.Float64Range(0, 1000), rapid.Float64Min(0),
	)
	limit := func(g *rapid.Generator[float64]) *rapid.Generator[float64] {
		return rapid.OneOf(rapid.Just[float64](retryspec.NoLimit), g)
	}
	names := rapid.SliceOfN(rapid.StringN(0, 8, -1), 0, 4)
	return rapid.Custom(func(t *rapid.T) retryspec.Document {
		return retryspec.Document{
			Stop: retryspec.Stop{
				MaxAttempts: rapid.OneOf(rapid.Just[int64](retryspec.NoLimit), rapid.Int64Range(1, 20), rapid.Int64Min(1)).Draw(t, "max_attempts"),
				MaxDelay:    limit(seconds).Draw(t, "stop.max_delay"),
			},
			Wait: retryspec.Wait{
				Strategy:     rapid.SampledFrom([]retryspec.Strategy{retryspec.Fixed, retryspec.Exponential, retryspec.ExponentialJitter}).Draw(t, "strategy"),
				Delay:        seconds.Draw(t, "delay"),
				InitialDelay: seconds.Draw(t, "initial_delay"),
				Multiplier:   rapid.OneOf(rapid.SampledFrom([]float64{1, 2, math.MaxFloat64}), rapid.Float64Range(1, 10), rapid.Float64Min(1)).Draw(t, "multiplier"),
				MaxDelay:     seconds.Draw(t, "max_delay"),
			},
			Retry: retryspec.Retry{IncludeErrors: names.Draw(t, "include"), ExcludeErrors: names.Draw(t, "exclude")},
		}
	})
}

// valid draws rules that parse.
func validRules(t *rapid.T) retryspec.Rules {
	for {
		rules, err := retryspec.ParseRules([]byte(newGenerator(rapid.Uint64().Draw(t, "seed")).rules()))
		if err == nil {
			return rules
		}
	}
}

func TestParse_OfWhatWasPrintedIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := documents().Draw(t, "document")
		text, err := json.Marshal(d)
		require.NoError(t, err)
		again, err := retryspec.Parse(text)
		require.NoError(t, err, string(text))
		requireSame(t, d, again)

		rules := validRules(t)
		text, err = json.Marshal(rules)
		require.NoError(t, err)
		same, err := retryspec.ParseRules(text)
		require.NoError(t, err, string(text))
		require.Equal(t, rules, same)
	})
}

// requireSame compares documents; an empty list may be nil in one.
func requireSame(t require.TestingT, want, got retryspec.Document) {
	for _, d := range []*retryspec.Document{&want, &got} {
		d.Retry.IncludeErrors = append([]string{}, d.Retry.IncludeErrors...)
		d.Retry.ExcludeErrors = append([]string{}, d.Retry.ExcludeErrors...)
	}
	require.Equal(t, want, got)
}

func TestParse_DoesNotDependOnOrderOrSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(newGenerator(rapid.Uint64().Draw(t, "seed")).policy())
		d, err := retryspec.Parse(text)
		if err != nil {
			t.Skip()
		}
		var loose any
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&loose))
		sorted, err := json.MarshalIndent(loose, "", "\t")
		require.NoError(t, err)
		again, err := retryspec.Parse(sorted)
		require.NoError(t, err)
		require.Equal(t, d, again)
	})
}

func TestDelays_NeverLeaveTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := documents().Draw(t, "document")
		attempt := rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, 1_000_000)).Draw(t, "attempt")
		random := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, 1 - 1.0/(1<<53)}), rapid.Float64Range(0, 1-1.0/(1<<53))).Draw(t, "random")

		least, most := d.Bounds(attempt)
		delay := d.Delay(attempt, random)
		if delay < least || delay > most || least < 0 {
			t.Fatalf("%s is out of [%s, %s]", delay, least, most)
		}
		if want := largest(d.Wait, attempt); math.Abs(float64(most)-want) > 2+want*1e-9 {
			t.Fatalf("at most %s, want %g ns", most, want)
		}
		if jitter := d.Wait.Strategy == retryspec.ExponentialJitter; jitter && least != 0 || !jitter && least != most {
			t.Fatalf("%s to %s with %s", least, most, d.Wait.Strategy)
		}
	})
}

// largest is the largest delay in nanoseconds, by another way: the logarithm. math.Log2 has it for the
// smallest numbers too, math.Log on amd64 has not.
func largest(w retryspec.Wait, attempt int) float64 {
	seconds := w.Delay
	if w.Strategy != retryspec.Fixed {
		seconds = w.MaxDelay
		log := math.Log2(w.InitialDelay) + float64(attempt-1)*math.Log2(w.Multiplier)
		if log < math.Log2(w.MaxDelay) {
			seconds = w.InitialDelay
			for range attempt - 1 {
				if seconds *= w.Multiplier; w.Multiplier == 1 {
					break
				}
			}
		}
	}
	if attempt == 0 {
		return 0
	}
	return min(min(seconds, math.MaxFloat64/1e9)*1e9, math.MaxInt64)
}

// On the bus, the delays are the same.
func TestPolicy_HasTheDelaysOfTheDocument(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := documents().Draw(t, "document")
		p := d.Policy()
		attempt := rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, 1_000_000)).Draw(t, "attempt")
		_, most := d.Bounds(attempt)
		got := p.Delay(attempt + 1) // the first run is 1 there
		// The bus counts whole nanoseconds, of which an initial delay may have few.
		if rounding := 1 / (1 + d.Wait.InitialDelay*1e9); d.Wait.Strategy == retryspec.Fixed || rounding < 1e-6 {
			require.InDelta(t, float64(most), float64(got), 2+1e-6*float64(most))
		}
		require.LessOrEqual(t, got, max(p.MaxDelay, 0))

		last := p.MaxRetries // is the number of the last attempt, counted from 0
		switch {
		case p.MaxElapsed == 1:
		case p.MaxRetries == eventbus.Unlimited:
			require.False(t, d.Stopped(attempt, 0))
		default:
			require.True(t, d.Stopped(last, 0) || d.Stop.MaxAttempts > math.MaxInt32)
			require.False(t, last > 0 && d.Stopped(last-1, 0))
		}
		bus, err := eventbus.New(eventbus.WithRetry(p))
		require.NoError(t, err)
		_, err = bus.Subscribe("*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Retry(p))
		require.NoError(t, err)
	})
}

func TestRules_GoIntoTheBus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := validRules(t)
		_, err := eventbus.New(eventbus.WithRetryRules(rules...))
		require.NoError(t, err)
		rule := rapid.SampledFrom(rules).Draw(t, "rule")
		attempt := rapid.IntRange(0, 1_000_000).Draw(t, "attempt")
		least, most := retryspec.RuleBounds(rule, attempt)
		require.True(t, 0 <= least && least <= most, "%s to %s", least, most)
		if rule.MaxDelay != 0 {
			require.LessOrEqual(t, most, rule.MaxDelay)
		}
		if d := rule.Delay(attempt); rule.Jitter != eventbus.DecorrelatedJitter {
			require.Equal(t, d, most)
		}
	})
}

// A dispatch's policy does not depend on which of its subscriptions was made first.
func TestPolicy_MergesInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(documents(), 2, 4).Draw(t, "documents")
		merged := func(order []retryspec.Document) eventbus.RetryPolicy {
			bus, err := eventbus.New()
			require.NoError(t, err)
			for i, d := range order {
				_, err := bus.Subscribe("*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named(fmt.Sprint(i)), eventbus.Retry(d.Policy()))
				require.NoError(t, err)
			}
			plan := bus.Explain("a")
			require.NoError(t, plan.Err)
			require.NotContains(t, plan.Origins, eventbus.BusDefault)
			for field, origin := range plan.Origins {
				require.NotEqual(t, eventbus.BusDefault, origin, "%s: a document sets every field", field)
			}
			return plan.Policy
		}
		require.Equal(t, merged(all), merged(rapid.Permutation(all).Draw(t, "order")))
	})
}
