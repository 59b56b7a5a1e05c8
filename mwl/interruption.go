package mwl

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// interruption is why a scope is torn down. It is the cause of the context that it
// cancels.
type interruption struct {
	x *execution
	// chain is the cancellation in flight as it was imposed. Whoever owns the
	// interruption knows it again by identity.
	chain *failure
}

// Error makes an interruption the cause of a context.
func (i *interruption) Error() string { return i.chain.code }

// unwound is the outcome of a scope that the interruption stopped.
func (i *interruption) unwound() outcome {
	return outcome{failure: i.chain, unwinding: i}
}

// interrupted returns what interrupts the scope of the context; nil when nothing
// does.
func (x *execution) interrupted(ctx context.Context) *interruption {
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if i, ok := cause.(*interruption); ok && i.x == x { //nolint:errorlint // a cause of another execution, however wrapped, is external here
		return i
	}
	return x.cancelled(cause, "")
}

// cancelled is the one cancellation of the whole execution, by its context or by a
// limit: the first reason stays. The reason is a text or somebody's error; limit is ""
// for the context.
func (x *execution) cancelled(reason any, limit string) *interruption {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.external == nil {
		var details map[string]any
		if limit != "" {
			details = map[string]any{"limit": limit}
		}
		x.exceeded = limit
		x.external = &interruption{x: x, chain: newFailure(TypeCancellation, CodeCancelled, fmt.Sprint(reason), details, nil)}
	}
	return x.external
}

// cancel cancels the execution from inside, because it exceeds a limit.
func (x *execution) cancel(limit, reason string) *interruption {
	i := x.cancelled(reason, limit)
	x.stop(i)
	return i
}

// wait waits until the duration is over or the scope is interrupted.
func (x *execution) wait(ctx context.Context, d time.Duration) *interruption {
	if d > 0 && ctx.Err() == nil {
		timer := x.clock.Timer(d)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return x.interrupted(ctx)
}

// cleaning is the context of cleanup: no interruption reaches it. Once the
// execution is cancelled from outside, it has a deadline.
type cleaning struct {
	mu       sync.Mutex
	ctx      context.Context
	cancel   context.CancelCauseFunc
	unwatch  func() bool
	timer    *clock.Timer
	finished bool
	// abandoned is why cleanup was given up; "" when it was not.
	abandoned string
}

func (x *execution) cleanup() context.Context {
	c := &x.cleaning
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil {
		c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(x.ctx))
		if x.limits.Cleanup > 0 {
			c.unwatch = context.AfterFunc(x.ctx, x.limitCleanup)
		}
	}
	return c.ctx
}

func (x *execution) limitCleanup() {
	c := &x.cleaning
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished {
		return
	}
	c.timer = x.clock.AfterFunc(x.limits.Cleanup, func() {
		x.abandonCleanup("the cleanup after the cancellation took longer than " + temporal.FormatDuration(x.limits.Cleanup))
	})
}

// abandonCleanup interrupts the cleanup that runs and all that would follow. The first
// reason stays.
func (x *execution) abandonCleanup(reason string) {
	x.cleanup()
	x.cleaning.mu.Lock()
	defer x.cleaning.mu.Unlock()
	if x.cleaning.abandoned == "" {
		x.cleaning.abandoned = reason
	}
	x.cleaning.cancel(&interruption{x: x, chain: newFailure(TypeCancellation, CodeCancelled, reason, nil, nil)})
}

// finish ends the time of cleanup, and tells why it was given up, if it was.
func (c *cleaning) finish() (abandoned string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = true
	if c.ctx == nil {
		return ""
	}
	if c.unwatch != nil {
		c.unwatch()
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.cancel(nil)
	return c.abandoned
}

// bound races a scope. It fires, or the scope's Result is accepted, whichever is
// first.
type bound struct {
	imposed *interruption
	due     time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timer   *clock.Timer

	mu              sync.Mutex
	accepted, fired bool
}

// bind starts a bound of the scope that ends when due, with the explanation.
func (x *execution) bind(ctx context.Context, due time.Time, explanation *failure) *bound {
	b := &bound{due: due, imposed: &interruption{x: x, chain: newFailure(TypeCancellation, CodeCancelled,
		"interrupted by "+explanation.code, nil, explanation)}}
	b.ctx, b.cancel = context.WithCancelCause(ctx)
	if left := due.Sub(x.clock.Now()); left > 0 {
		b.timer = x.clock.AfterFunc(left, b.fire)
	} else {
		b.fire()
	}
	return b
}

func (b *bound) fire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.accepted && !b.fired {
		b.fired = true
		b.cancel(b.imposed)
	}
}

// accept commits the Result that has risen; false when the bound was first.
func (b *bound) accept() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accepted = !b.fired
	return b.accepted
}

// reopen lets the bound fire again, for another run of the scope.
func (b *bound) reopen(x *execution) {
	b.mu.Lock()
	b.accepted = false
	b.mu.Unlock()
	if !x.clock.Now().Before(b.due) {
		b.fire()
	}
}

func (b *bound) end() {
	if b.timer != nil {
		b.timer.Stop()
	}
	b.cancel(nil)
}

// settle is the conversion seam: what the bound's own teardown becomes once it has
// reached the bound's position, and whether it was one.
func (b *bound) settle(o outcome) (outcome, bool) {
	switch {
	case o.unwinding == b.imposed:
		if o.failure == b.imposed.chain {
			return failed(b.imposed.chain.previous), true
		}
		return failed(o.failure), true
	case o.unwinding == nil && !b.accept():
		return failed(b.imposed.chain.previous), true
	default:
		return o, false
	}
}
