package eventbus

import (
	"fmt"
	"math"
	"math/rand/v2"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/apart"
	"github.com/surebus/eventbus/internal/errchain"
	"github.com/surebus/eventbus/internal/halt"
)

// randomly returns a random number in [0, 1) for the jitter of a retry.
func (b *machine) randomly(p *RetryPolicy, s *Subscription) float64 {
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
func (b *machine) judgeInside(s *Subscription, to *targets, err error) (v *verdict) {
	v = new(verdict)
	if b.halts.Has(halt.Unload) && errchain.Is(err, ErrShutdown) {
		v.cutShort = true
		return v
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			b.logRetryIfPanic(s, panicText(panicked))
		}
	}()
	by := to.policy().at(s, &b.config.names)
	v.judge(err, &by)
	return v
}

// judge classifies an error after the call has ended, on its own goroutine. It waits up to the
// handler's timeout.
func (b *machine) judge(s *Subscription, err error, by *judgement) *verdict {
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
func (b *machine) guardedFor(s *Subscription, f func()) (panicked string, done bool) {
	late := make(chan struct{})
	timer := b.time.AfterFunc(s.timeout, func() { close(late) })
	defer timer.Stop()
	return apart.Run(b.halts.IsCut(), late, panicText, f)
}

func (b *machine) logRetryIfPanic(s *Subscription, panicked string) {
	b.log.Error("RetryIf panicked", zap.String("subscription_id", s.id), zap.String("panic", panicked))
}
