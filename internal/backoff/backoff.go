// Package backoff computes the delays before retries.
package backoff

import (
	"math"
	"time"
)

// Delay returns min(base × multiplier^(attempt−2), most), and 0 before attempt 1.
func Delay(attempt int, base, most time.Duration, multiplier float64) time.Duration {
	if attempt <= 1 || base == 0 {
		return 0
	}
	d := float64(base) * math.Pow(multiplier, float64(attempt-2))
	// Compare as floats: d may be infinite, or too large for a Duration.
	if !(d < float64(most)) { // true for NaN too
		return most
	}
	return time.Duration(max(d, 0))
}

// In the following, random is in [0, 1).

// Proportional returns d ± 10 %.
func Proportional(d time.Duration, random float64) time.Duration {
	return clamp(float64(d)*(0.9+0.2*random), math.MaxInt64)
}

// Full returns a delay in [0, d].
func Full(d time.Duration, random float64) time.Duration { return time.Duration(float64(d) * random) }

// Equal returns a delay in [d/2, d].
func Equal(d time.Duration, random float64) time.Duration {
	return d - time.Duration(float64(d)/2*random)
}

// Decorrelated returns min(most, uniform in [base, 3 × previous]). previous is the last result, or 0.
func Decorrelated(base, most, previous time.Duration, random float64) time.Duration {
	least := float64(min(base, most))
	upper := 3 * max(float64(previous), least)
	return clamp(least+(upper-least)*random, most)
}

// clamp returns the smaller of d and most.
func clamp(d float64, most time.Duration) time.Duration {
	if d >= float64(most) {
		return most
	}
	return time.Duration(d)
}
