package retryspec

import (
	"math"
	"time"

	"github.com/surebus/eventbus"
)

// Policy is the document as a retry policy of the bus, for eventbus.Retry and
// eventbus.WithRetry. Every field is set, so that no default fills in. For a
// document that Validate refuses it is the zero RetryPolicy, which they refuse.
//
// MaxAttempts counts the first run, and MaxRetries does not. MaxDelay of Stop is
// MaxElapsed, from publication; the bus looks ahead, and makes no retry that could
// begin only then. A bound of 0 is no retry at all, and so is less than a
// nanosecond. More attempts than the bus counts, 2^31−1, are so many.
//
// An event that goes to several subscriptions has their policies merged, as it would
// with others; which errors are retried, and with which jitter, the failing
// subscription's says.
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
			p.MaxRetries = 0
		}
	}
	return p
}
