package retryspec

import (
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// This file counts attempts from 0, as the format does: the first run is attempt 0, the
// first retry attempt 1. On the bus they are 1 and 2.

// Bounds returns the minimum and the maximum delay before an attempt. They are equal
// without jitter, and 0 before attempt 0. A delay that exceeds a Duration (292 years) is
// the longest Duration.
func (d Document) Bounds(attempt int) (least, most time.Duration) {
	if attempt <= 0 {
		return 0, 0
	}
	w := d.Wait
	if w.Strategy == Fixed {
		most = duration(w.Delay)
		return most, most
	}
	most = duration(w.grown(attempt))
	if w.Strategy == ExponentialJitter {
		return 0, most
	}
	return most, most
}

// grown returns the delay in seconds before an attempt, for the exponential strategies.
func (w Wait) grown(attempt int) float64 {
	if w.InitialDelay == 0 {
		return 0 // even if the power is infinite
	}
	retries := float64(attempt - 1)
	grown := w.InitialDelay * math.Pow(w.Multiplier, retries)
	if math.IsInf(grown, 1) { // the power alone may exceed a float64, although a tiny delay times it does not
		half := math.Floor(retries / 2)
		grown = w.InitialDelay * math.Pow(w.Multiplier, half) * math.Pow(w.Multiplier, retries-half)
	}
	return min(grown, w.MaxDelay)
}

// Delay returns the delay before an attempt. random is the random number for jitter, in [0,
// 1), as rand.Float64 returns it.
func (d Document) Delay(attempt int, random float64) time.Duration {
	least, most := d.Bounds(attempt)
	return clamp(float64(least) + float64(most-least)*random)
}

// Retries reports whether errors of this name are retried. It ignores the limits of Stop.
func (d Document) Retries(errorName string) bool {
	return !slices.Contains(d.Retry.ExcludeErrors, errorName) &&
		(slices.Contains(d.Retry.IncludeErrors, errorName) || slices.Contains(d.Retry.IncludeErrors, AllErrors))
}

// Stopped reports whether an attempt that just failed was the last one, at a time since the
// task was created. It ignores the error.
func (d Document) Stopped(attempt int, elapsed time.Duration) bool {
	s := d.Stop
	return s.MaxAttempts != NoLimit && int64(attempt) >= s.MaxAttempts-1 ||
		s.MaxDelay != NoLimit && elapsed.Seconds() >= s.MaxDelay
}

// duration returns a number of seconds as a rounded Duration, or the longest Duration.
func duration(seconds float64) time.Duration {
	return clamp(math.Round(seconds * float64(time.Second)))
}

func clamp(nanos float64) time.Duration {
	if nanos >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(nanos)
}

// RuleBounds returns the minimum and the maximum delay of a rule before an attempt, if the
// rule decided on all earlier failures. Attempts are counted as on the bus: the first run
// is 1.
func RuleBounds(rule eventbus.RetryRule, attempt int) (least, most time.Duration) {
	d := rule.Delay(attempt)
	if attempt <= 1 {
		return 0, 0
	}
	switch rule.Jitter {
	case eventbus.NoJitter:
		return d, d
	case eventbus.FullJitter:
		return 0, d
	case eventbus.EqualJitter:
		return d - d/2, d
	case eventbus.DecorrelatedJitter:
		// Each is at most three times the previous one.
		limit := clamp(math.Inf(1))
		if rule.MaxDelay > 0 {
			limit = rule.MaxDelay
		}
		least = min(rule.BaseDelay, limit)
		if least == 0 {
			return 0, 0
		}
		return least, min(clamp(float64(least)*math.Pow(3, float64(attempt-1))), limit)
	default: // proportional
		return clamp(0.9 * float64(d)), clamp(1.1 * float64(d))
	}
}
