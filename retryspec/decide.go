package retryspec

import (
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// Attempts are counted from 0 here, as the format does: the first run is attempt
// 0, the first retry attempt 1. On the bus they are 1 and 2.

// Bounds are the least and the most that the delay before an attempt can be. They
// are the same without jitter, and 0 before attempt 0. What does not fit into a
// Duration, 292 years, is the longest one.
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

// grown is the delay in seconds before an attempt, with the exponential
// strategies.
func (w Wait) grown(attempt int) float64 {
	if w.InitialDelay == 0 {
		return 0 // whatever the power is, infinite too
	}
	return min(w.InitialDelay*math.Pow(w.Multiplier, float64(attempt-1)), w.MaxDelay)
}

// Delay is a delay before an attempt. random is what draws it where there is
// jitter: at least 0 and less than 1, as rand.Float64 returns.
func (d Document) Delay(attempt int, random float64) time.Duration {
	least, most := d.Bounds(attempt)
	return clamp(float64(least) + float64(most-least)*random)
}

// Retries reports whether errors of this name are retried. The limits of Stop have
// no part in it.
func (d Document) Retries(errorName string) bool {
	return !slices.Contains(d.Retry.ExcludeErrors, errorName) && slices.Contains(d.Retry.IncludeErrors, errorName)
}

// Stopped reports whether nothing follows the attempt that has just failed, with so
// much time since the task was made. The error has no part in it.
func (d Document) Stopped(attempt int, elapsed time.Duration) bool {
	s := d.Stop
	return s.MaxAttempts != NoLimit && int64(attempt) >= s.MaxAttempts-1 ||
		s.MaxDelay != NoLimit && elapsed.Seconds() >= s.MaxDelay
}

// duration is a number of seconds, rounded, or the longest Duration.
func duration(seconds float64) time.Duration {
	return clamp(math.Round(seconds * float64(time.Second)))
}

func clamp(nanos float64) time.Duration {
	if nanos >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(nanos)
}

// RuleBounds are the least and the most that a rule's delay before an attempt can be,
// where all attempts before have failed by the rule. Attempts are counted as on the
// bus, the first run being 1.
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
		// Each is at most three times the one before.
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
