package simulation

import (
	"context"
	"fmt"
	"time"

	"github.com/surebus/eventbus"
)

// paceDoor is what the contract promises of the calls of a subscription, or of one of its destinations: bounds, and no
// exact instants. The caller holds the lock of its schedule.
//
// What a handler returns is noted before the bus has it. So a fact counts for calls that begin at a later instant of virtual
// time: time passes only when the bus has dealt with everything.
type paceDoor struct {
	limits   *paceLimits
	calls    map[*paceCall]bool // those that run
	begun    []time.Time        // calls, with a rate
	noted    time.Time          // when a handler returned a Throttle last
	until    time.Time          // no call begins before
	most     int                // calls at once after that; 0 for any number
	throttle int                // Throttles so far
}

// paceLimits are the options of a subscription that bound the calls of each of its doors.
type paceLimits struct {
	concurrency int                    // 0 for none
	rate        *eventbus.RateSettings // nil for none
	maxThrottle time.Duration
}

// paceCall is a call of a handler at a door.
type paceCall struct {
	deadline time.Time
	ctx      context.Context
	waits    bool // it has called PublishAndWait: it may exceed limits
}

// paceTolerance is how much earlier than its context says a call may be abandoned: the bus knows when it began to a tick.
const paceTolerance = 2 * time.Millisecond

func newPaceDoor(limits *paceLimits) *paceDoor {
	return &paceDoor{limits: limits, calls: map[*paceCall]bool{}}
}

func (l *paceLimits) options() (options []eventbus.SubscribeOption) {
	if l.concurrency > 0 {
		options = append(options, eventbus.Concurrency(l.concurrency))
	}
	if r := l.rate; r != nil {
		options = append(options, eventbus.RateLimit(r.Calls, r.Per, r.Burst))
	}
	if l.maxThrottle > 0 {
		options = append(options, eventbus.MaxThrottle(l.maxThrottle))
	}
	return options
}

func (l *paceLimits) String() string {
	rate := ""
	if l.rate != nil {
		rate = fmt.Sprintf("%+v", *l.rate)
	}
	return fmt.Sprintf("concurrency %d, rate %s, MaxThrottle %v", l.concurrency, rate, l.maxThrottle)
}

// begins notes a call. It returns what is wrong with it, or "".
func (o *paceDoor) begins(c *paceCall) (wrong string) {
	now := time.Now()
	running := 0
	for other := range o.calls {
		switch {
		case !now.Before(other.deadline.Add(-paceTolerance)), wasCancelled(other.ctx): // abandoned
			o.ends(other, 0)
		case !other.waits:
			running++
		}
	}
	switch n := o.limits.concurrency; {
	case n > 0 && running >= n:
		wrong = fmt.Sprintf("a call begins beside %d, and the limit is %d", running, n)
	case o.most > 0 && now.After(o.noted) && now.Before(o.until):
		wrong = fmt.Sprintf("a call begins, and a Throttle shuts the door until %v, for %v", o.until, o.until.Sub(now))
	case o.most > 0 && now.After(o.noted) && running >= o.most:
		wrong = fmt.Sprintf("a call begins beside %d, and after a Throttle %d may run", running, o.most)
	}
	o.calls[c] = true
	if r := o.limits.rate; r != nil {
		o.begun = append(o.begun, now)
		for i, first := range o.begun {
			span := now.Sub(first)
			if n, most := len(o.begun)-i, r.Burst+int(span*time.Duration(r.Calls)/r.Per); n > most {
				wrong = fmt.Sprintf("%d calls begin in %v, and the rate allows %d", n, span, most)
			}
		}
	}
	return wrong
}

// ends notes the end of a call, with a Throttle if delay is not 0.
func (o *paceDoor) ends(c *paceCall, delay time.Duration) {
	if !o.calls[c] {
		return
	}
	delete(o.calls, c)
	now := time.Now()
	if !now.Before(c.deadline) {
		delay = 0
	}
	switch {
	case delay > 0:
		if o.limits.maxThrottle > 0 {
			delay = min(delay, o.limits.maxThrottle)
		}
		if until := now.Add(delay); o.most == 0 || until.After(o.until) {
			o.until = until
		}
		o.noted, o.most = now, 1
		o.throttle++
	case o.most > 0 && !now.Before(o.until):
		if o.most *= 2; o.most >= 64 || o.limits.concurrency > 0 && o.most >= o.limits.concurrency {
			o.most = 0
		}
	}
}

// resumes ends a Throttle. Call it before and after Resume.
func (o *paceDoor) resumes() { o.most = 0 }
