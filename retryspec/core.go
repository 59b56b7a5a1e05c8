package retryspec

import (
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// Policy returns the document as a retry policy for eventbus.Retry and eventbus.WithRetry.
// Every field is set, so no default of the bus applies. For a document that Validate
// rejects, it returns the zero RetryPolicy, which these options reject.
//
// MaxAttempts includes the first run, and MaxRetries does not. Stop.MaxDelay becomes
// MaxElapsed, which counts from when the event can first run. The bus makes no retry that
// would begin at or after that bound: the event ends as expired. With a bound below a
// nanosecond, which is no retry, the policy has no jitter and no delay of 0. The bus counts
// up to 2^31−1 attempts. If IncludeErrors has AllErrors, the policy includes every error.
//
// The bus merges the policies of all subscriptions of an event. The jitter and the error
// lists of the failing subscription apply.
func (d Document) Policy() eventbus.RetryPolicy {
	if d.Validate() != nil {
		return eventbus.RetryPolicy{}
	}
	p := eventbus.RetryPolicy{
		MaxRetries:        eventbus.Unlimited,
		BaseDelay:         duration(d.Wait.InitialDelay),
		MaxDelay:          duration(d.Wait.MaxDelay),
		BackoffMultiplier: d.Wait.Multiplier,
		Jitter:            eventbus.FullJitter,
		IncludeErrors:     append([]string{}, d.Retry.IncludeErrors...),
		ExcludeErrors:     append([]string{}, d.Retry.ExcludeErrors...),
	}
	switch d.Wait.Strategy {
	case Fixed:
		p.BaseDelay = duration(d.Wait.Delay)
		p.MaxDelay = p.BaseDelay
		p.BackoffMultiplier = 1
		p.Jitter = eventbus.NoJitter
	case Exponential:
		p.Jitter = eventbus.NoJitter
	case ExponentialJitter:
	}
	if d.Stop.MaxAttempts != NoLimit {
		p.MaxRetries = int(min(d.Stop.MaxAttempts, math.MaxInt32)) - 1
	}
	if d.Stop.MaxDelay != NoLimit {
		p.MaxElapsed = max(duration(d.Stop.MaxDelay), 1)
		if d.Stop.MaxDelay < time.Nanosecond.Seconds() {
			// The bus has no bound of 0. A delay of 0 would begin before one of a nanosecond.
			p.BaseDelay, p.MaxDelay, p.Jitter = max(p.BaseDelay, 1), max(p.MaxDelay, 1), eventbus.NoJitter
		}
	}
	if slices.Contains(d.Retry.IncludeErrors, AllErrors) {
		p.IncludeErrors = nil
	}
	return p
}
