package eventbus

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// guarded runs code of the user's that is neither a handler nor called by the user: methods of
// errors, RetryIf, observers. It may panic, and even end its goroutine, without ending ours, which
// has a dispatch in its hands. It returns what the code panicked with, as text and "" for nothing,
// and whether it has ended: once stop or late is closed it is not waited for any longer than
// guardedGrace.
func guarded(stop, late <-chan struct{}, f func()) (panicked string, done bool) {
	ended := make(chan string, 1)
	go func() {
		text := ""
		defer func() { ended <- text }()
		defer func() {
			if r := recover(); r != nil {
				if text = panicText(r); text == "" {
					text = `""` // a panic all the same
				}
			}
		}()
		f()
	}()
	select {
	case panicked = <-ended:
		return panicked, true
	case <-stop:
	case <-late:
	}
	select {
	case panicked = <-ended:
		return panicked, true
	case <-time.After(guardedGrace):
		return "", false
	}
}

// guardedGrace is what the user's code is given when a Shutdown has been cut short, or it is late.
// It is the runtime's time.
const guardedGrace = 100 * time.Millisecond

// randomly is a number for the jitter of a subscription's retry, in [0, 1).
func (b *Bus) randomly(p *RetryPolicy, s *Subscription) float64 {
	switch {
	case p.Jitter == NoJitter:
		return 0
	case b.config.random == nil:
		return rand.Float64()
	}
	given := new(float64)
	panicked, done := b.guardedFor(s, func() { *given = b.config.random() })
	if panicked != "" {
		b.log.Error("WithRandom panicked", zap.String("panic", panicked))
	}
	switch {
	case !done || !(*given >= 0): // nor if it is not a number
		return 0
	case *given >= 1:
		return math.Nextafter(1, 0)
	}
	return *given
}

// judgeInside asks the questions to a handler's error as a part of the call: the watch guards them.
func (b *Bus) judgeInside(s *Subscription, to *targets, err error) (v *verdict) {
	v = new(verdict)
	defer func() {
		if panicked := recover(); panicked != nil {
			b.logRetryIfPanic(s, panicText(panicked))
		}
	}()
	by := b.policy(to).at(s, &b.config.names)
	v.judge(err, &by)
	return v
}

// judge asks them when the call is over: in a goroutine of their own, for no longer than the
// handler may take.
func (b *Bus) judge(s *Subscription, err error, by *judgement) *verdict {
	asked := new(verdict) // not v: it may be used at any time, if the code hangs
	panicked, done := b.guardedFor(s, func() { asked.judge(err, by) })
	v := asked
	if !done {
		v = &verdict{text: fmt.Sprintf("%T, whose methods did not return", err), rule: -1, worthIt: true}
		if by == nil {
			return v
		}
		v.text = textOf(err, "") // it is the bus's own
		b.log.Error("RetryIf did not return", zap.String("subscription_id", s.id))
	}
	if panicked != "" {
		b.logRetryIfPanic(s, panicked)
	}
	return v
}

// guardedFor runs code of the user's that decides on a subscription's failure, for no longer than
// its handler may take. A cut does not wait for it.
func (b *Bus) guardedFor(s *Subscription, f func()) (panicked string, done bool) {
	late := make(chan struct{})
	timer := b.time.AfterFunc(s.timeout, func() { close(late) })
	defer timer.Stop()
	return guarded(b.cutting.done, late, f)
}

func (b *Bus) logRetryIfPanic(s *Subscription, panicked string) {
	b.log.Error("RetryIf panicked", zap.String("subscription_id", s.id), zap.String("panic", panicked))
}
