package eventbus

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// guarded runs user code outside a call, such as observers, RetryIf and the methods of errors, on
// its own goroutine. The code may panic or end that goroutine. The caller's goroutine, which owns a
// dispatch, continues. After stop or late is closed, guarded waits for at most guardedGrace. It
// returns the text of a panic, "" for none, and whether the code has returned.
func guarded(stop, late <-chan struct{}, f func()) (panicked string, done bool) {
	ended := make(chan string, 1)
	go func() {
		text := ""
		defer func() { ended <- text }()
		defer func() {
			if r := recover(); r != nil {
				if text = panicText(r); text == "" {
					text = `""` // the panic has no text
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

// guardedGrace is how long guarded waits, by the real clock, for user code that is late, or after
// Shutdown's context has ended.
const guardedGrace = 100 * time.Millisecond

// randomly returns a random number in [0, 1) for the jitter of a retry.
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
	case !done || !(*given >= 0): // or NaN
		return 0
	case *given >= 1:
		return math.Nextafter(1, 0)
	}
	return *given
}

// judgeInside classifies a handler's error inside its call, so that the watch bounds the time.
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

// judge classifies an error after the call has ended, on its own goroutine. It waits up to the
// handler's timeout.
func (b *Bus) judge(s *Subscription, err error, by *judgement) *verdict {
	asked := new(verdict) // not v: code that hangs may write it later
	panicked, done := b.guardedFor(s, func() { asked.judge(err, by) })
	v := asked
	if !done {
		v = &verdict{text: fmt.Sprintf("%T, whose methods did not return", err), rule: -1, worthIt: true}
		if by == nil {
			return v
		}
		v.text = textOf(err, "") // the bus made it
		b.log.Error("RetryIf did not return", zap.String("subscription_id", s.id))
	}
	if panicked != "" {
		b.logRetryIfPanic(s, panicked)
	}
	return v
}

// guardedFor runs user code that decides on a subscription's failure. It waits up to the handler's
// timeout, and less if Shutdown's context ends.
func (b *Bus) guardedFor(s *Subscription, f func()) (panicked string, done bool) {
	late := make(chan struct{})
	timer := b.time.AfterFunc(s.timeout, func() { close(late) })
	defer timer.Stop()
	return guarded(b.halts.cut, late, f)
}

func (b *Bus) logRetryIfPanic(s *Subscription, panicked string) {
	b.log.Error("RetryIf panicked", zap.String("subscription_id", s.id), zap.String("panic", panicked))
}
