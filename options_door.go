package eventbus

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/names"
)

// WhenOpen selects how a subscription treats deliveries while its circuit is open. It is a
// SubscribeOption.
type WhenOpen int

const (
	// HoldWhenOpen holds them until the circuit admits them, oldest first. At most 64 of them are on
	// their way or in the handler at a time. It is the default. Later events with the key of a held
	// delivery are held behind it. LineCapacity bounds the line. Shutdown dead-letters held deliveries
	// with the reason shutdown.
	HoldWhenOpen WhenOpen = iota
	// DeadLetterWhenOpen dead-letters them with the reason circuit_open.
	DeadLetterWhenOpen
	// DropWhenOpen drops them. Ledger.Dropped counts them.
	DropWhenOpen
)

// String returns "hold", "dead-letter" or "drop".
func (w WhenOpen) String() string {
	return names.Of("WhenOpen", whenOpenNames, int(w))
}

var whenOpenNames = []string{"hold", "dead-letter", "drop"}

// MarshalText returns the text that String returns.
func (w WhenOpen) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads the text that String returns.
func (w *WhenOpen) UnmarshalText(text []byte) error {
	return names.Read("WhenOpen", whenOpenNames, text, w)
}

func (w WhenOpen) applySubscription(c *subscriptionConfig) {
	if w < HoldWhenOpen || w > DropWhenOpen {
		c.err = &OptionError{Option: "WhenOpen", Value: fmt.Sprint(int(w)), Reason: "is none of the WhenOpen constants: HoldWhenOpen, DeadLetterWhenOpen, DropWhenOpen"}
	}
	c.whenOpen, c.opens = w, true
}

// WhenFull selects how a full line treats deliveries (see LineCapacity). It is a SubscribeOption.
type WhenFull int

const (
	// WaitWhenFull makes Publish wait while the line is full of throttled deliveries, and dead-letters
	// further held ones with the reason overflow. It is the default.
	WaitWhenFull WhenFull = iota
	// DropOldestWhenFull drops the oldest delivery of the line. Ledger.Dropped counts it.
	DropOldestWhenFull
	// DropNewestWhenFull drops the delivery that finds the line full. Ledger.Dropped counts it.
	DropNewestWhenFull
	// DeadLetterWhenFull dead-letters the delivery that finds the line full, with the reason overflow.
	DeadLetterWhenFull
)

// String returns "wait", "drop-oldest", "drop-newest" or "dead-letter".
func (w WhenFull) String() string {
	return names.Of("WhenFull", whenFullNames, int(w))
}

var whenFullNames = []string{"wait", "drop-oldest", "drop-newest", "dead-letter"}

// MarshalText returns the text that String returns.
func (w WhenFull) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads the text that String returns.
func (w *WhenFull) UnmarshalText(text []byte) error {
	return names.Read("WhenFull", whenFullNames, text, w)
}

func (w WhenFull) applySubscription(c *subscriptionConfig) {
	if w < WaitWhenFull || w > DeadLetterWhenFull {
		c.err = &OptionError{Option: "WhenFull", Value: fmt.Sprint(int(w)), Reason: "is none of the WhenFull constants: WaitWhenFull, DropOldestWhenFull, DropNewestWhenFull, DeadLetterWhenFull"}
	}
	c.whenFull = w
}

// MaxAbandoned limits the abandoned calls of the subscription: those that exceeded their timeouts and still run. While
// n of them run, the subscription is hung: no call begins, until an abandoned call returns or an operator calls Resume.
// Its deliveries spend no attempt. For the first second they stay throttled or held, as they were; then all are held.
// Handlers that return when their contexts end are never hung.
//
// n is at least 1, or Unlimited; by default 100, or Concurrency if that is less. Running and abandoned
// calls together are never more than the sum of Concurrency and n.
func MaxAbandoned(n int) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if n < 1 && n != Unlimited {
			c.err = &OptionError{Option: "MaxAbandoned", Value: fmt.Sprint(n), Reason: "must be at least 1, or Unlimited"}
		}
		c.abandoned = n
	})
}

// maxAbandoned returns the limit of abandoned calls.
func (c *subscriptionConfig) maxAbandoned() int32 {
	switch {
	case c.abandoned == Unlimited:
		return math.MaxInt32
	case c.abandoned == 0 && c.limit > 0:
		return int32(min(c.limit, DefaultMaxAbandoned))
	}
	return int32(min(cmp.Or(c.abandoned, DefaultMaxAbandoned), math.MaxInt32))
}

// RateSettings are the settings of RateLimit: at most Calls in Per, and Burst at once.
type RateSettings struct {
	Calls int           `json:"calls"` // calls that may begin in Per
	Per   time.Duration `json:"per"`   // the time for Calls
	Burst int           `json:"burst"` // calls that may begin at once after a pause
}

// RateLimit limits how fast calls of the subscription's handler begin: n calls in the time per, evenly spaced by the
// bus's clock. After a pause, up to burst of them begin at once. Retries count. A delivery beyond the limit is
// throttled: it waits without a goroutine, an attempt or an effect on the circuit. Publish waits while the line is
// full.
//
// n and burst are at least 1; per is at least a nanosecond for each call. By default there is no limit.
func RateLimit(n int, per time.Duration, burst int) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		value := fmt.Sprintf("%d per %v, burst %d", n, per, burst)
		switch {
		case n < 1:
			c.err = &OptionError{Option: "RateLimit", Value: value, Reason: "must allow at least 1 call; Pause stops deliveries"}
		case per < time.Duration(n):
			c.err = &OptionError{Option: "RateLimit", Value: value, Reason: "must have a time of at least 1ns for each call, like time.Second"}
		case burst < 1:
			c.err = &OptionError{Option: "RateLimit", Value: value, Reason: "must have a burst of at least 1, which is even spacing"}
		}
		c.rate = &RateSettings{n, per, burst}
	})
}

// DefaultMaxThrottle is the default of MaxThrottle.
const DefaultMaxThrottle = 15 * time.Minute

// MaxThrottle limits the delays of Throttle at the subscription: longer ones are cut. It is 15 minutes by default, and from
// 1 ms to 24 h.
func MaxThrottle(d time.Duration) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if d < time.Millisecond || d > 24*time.Hour {
			c.err = &OptionError{Option: "MaxThrottle", Value: d.String(), Reason: "must be from 1ms to 24h"}
		}
		c.throttle = d
	})
}

// Isolated gives the subscription a separate dispatch of each event, with its own retry policy, attempts, dead letter
// and order per key. The subscription and the event's other subscriptions do not wait for each other. The others share
// one dispatch, in their order. WithIsolation isolates all subscriptions. Each dispatch takes a place in the queue.
func Isolated() SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) { c.isolated = true })
}

// PerDestination divides the subscription by destination: a customer, a tenant, a host. The circuit, Concurrency,
// RateLimit, MaxAbandoned, Throttle and directives apply to each destination separately. A dead or slow destination, or
// one over its quota, does not delay the others. Subscription.Destination returns one, to pause it or to trip its
// circuit. A Pause of the subscription holds all destinations until the subscription's Resume, and its Trip and Reset
// return ErrCircuitDisabled.
//
// The function returns the name of an event's destination. The bus calls it once for each delivery, within the subscription's
// timeout, before the first call of the handler; a store keeps the answer. It must be safe for concurrent use. If it panics or
// returns "", the destination is CommonDestination. If it does not return in time, the attempt fails. The bus cuts a name of
// more than 255 bytes, or with bytes that are not text, and appends a hash. MaxDestinations bounds their number.
//
// Each destination has its own line of LineCapacity. In memory, all lines together have ten times LineCapacity; beyond
// that, the longest line counts as full. Publish does not wait for a full line, because it does not know the
// destination. Even with WaitWhenFull, a delivery for a full line becomes a dead letter with the reason overflow. With
// a store, the delivery waits there. The whole subscription is held while its destinations have ten times MaxAbandoned
// abandoned calls. While every worker is busy, all destinations together may use half of WithConcurrency, unless
// Concurrency is Unlimited.
//
// Events with a key keep their order across the destinations of the subscription: a delivery waits while an earlier
// delivery of its key is parked.
//
// Errors of Subscribe: an *OptionError for nil, and together with Once.
func PerDestination(of func(Event) string) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		if c.destination = of; of == nil {
			c.err = &OptionError{Option: "PerDestination", Value: "nil", Reason: "must be a function that returns the name of an event's destination"}
		}
	})
}

// doubts has what is valid in options, and looks like a mistake: fields of a log entry.
type doubts []zap.Field

// short notes a duration that may have been meant in another unit: 30 is 30 ns.
func (d *doubts) short(option string, value time.Duration) {
	if value > 0 && value < time.Millisecond {
		*d = append(*d, zap.String(option, fmt.Sprintf("is %v; write the unit, as in %d*time.Second", value, value)))
	}
}

// retry notes doubts about the fields that a policy sets, and that hold in the policy p.
func (d *doubts) retry(r *retryOverride, p *RetryPolicy) {
	has := func(f retryField) bool { return r.set&f != 0 }
	if has(fieldBaseDelay) {
		d.short("BaseDelay", r.BaseDelay)
	}
	if has(fieldMaxDelay) {
		d.short("MaxDelay", r.MaxDelay)
	}
	if has(fieldMaxElapsed) {
		d.short("MaxElapsed", r.MaxElapsed)
	}
	for _, delay := range r.RetryPolicy.Delays {
		d.short("Delays", delay)
	}
	if has(fieldBaseDelay|fieldMaxDelay) && p.BaseDelay > p.MaxDelay && len(p.Delays) == 0 {
		*d = append(*d, zap.String("BaseDelay", fmt.Sprintf("is %v, and MaxDelay cuts it to %v; set MaxDelay too", p.BaseDelay, p.MaxDelay)))
	}
}

// rules notes doubts about retry rules.
func (d *doubts) rules(set *ruleSet) {
	if set == nil {
		return
	}
	for i, r := range set.rules {
		in := fmt.Sprintf("rule %d ", i+1)
		d.short(in+"BaseDelay", r.BaseDelay)
		d.short(in+"MaxDelay", r.MaxDelay)
		if r.MaxDelay > 0 && r.BaseDelay > r.MaxDelay {
			*d = append(*d, zap.String(in+"BaseDelay", fmt.Sprintf("is %v, and MaxDelay cuts it to %v; raise MaxDelay", r.BaseDelay, r.MaxDelay)))
		}
	}
}

// doubtsOf returns the doubts about overrides and rules that apply over a policy.
func doubtsOf(r *retryOverride, over RetryPolicy, rules *ruleSet) (d doubts) {
	policy := r.over(over)
	d.retry(r, &policy)
	d.rules(rules)
	return d
}

// doubts returns the doubts about a subscription's options.
func (c *subscriptionConfig) doubts(bus *config) doubts {
	d := doubtsOf(&c.retry.retryOverride, bus.retry, c.retry.rules)
	if c.timeout != bus.timeout {
		d.short("Timeout", c.timeout)
	}
	if c.rate != nil {
		d.short("RateLimit", c.rate.Per)
	}
	return d
}

// doubts returns the doubts about the options of a bus.
func (c *config) doubts() (d doubts) {
	d = doubtsOf(&retryOverride{c.retry, allRetryFields}, c.retry, c.rules)
	d.short("WithTimeout", c.timeout)
	d.short("WithIdempotencyWindow", c.idempotency)
	return d
}
