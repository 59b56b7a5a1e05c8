package eventbus

import (
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/timeline"
)

// Subscription returns the subscription with a name: from Named, from Formerly, or a pattern and
// number ("order.*#3"). It returns nil if there is none.
func (b *Bus) Subscription(name string) *Subscription {
	if !b.usable() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, _ := b.subscriptions.Find(name)
	return s
}

// Trip opens the subscription's circuit for OpenFor, as failures would. After that, one delivery at
// a time probes. The circuit ignores the outcomes of handlers that run now.
//
// Errors: ErrNoSubscription after Unsubscribe, ErrCircuitDisabled.
func (s *Subscription) Trip() error {
	if err := s.controllable("Trip"); err != nil {
		return err
	}
	if s.door.circuit.config.disabled {
		return fmt.Errorf("Trip(%s): %w", s.id, ErrCircuitDisabled)
	}
	s.bus.circuitChanged(s, s.door.circuit.trip(s.bus.time.Nanos()))
	s.bus.tend(s)
	return nil
}

// Reset closes the subscription's circuit and clears its window. Held deliveries resume.
//
// Errors: ErrNoSubscription after Unsubscribe, ErrCircuitDisabled.
func (s *Subscription) Reset() error {
	if err := s.controllable("Reset"); err != nil {
		return err
	}
	if s.door.circuit.config.disabled {
		return fmt.Errorf("Reset(%s): %w", s.id, ErrCircuitDisabled)
	}
	s.bus.circuitChanged(s, s.door.circuit.reset(s.bus.time.Nanos()))
	s.bus.tend(s)
	return nil
}

// Pause holds the subscription's deliveries until Resume, regardless of its circuit and its
// WhenOpen. After Pause has returned, no call of the handler begins. Pause does not wait for
// running calls; their retries are held too. A full line treats later deliveries by WhenFull: by
// default they are dead-lettered with the reason overflow. Shutdown does not wait for held
// deliveries.
//
// The error is ErrNoSubscription after Unsubscribe.
func (s *Subscription) Pause() error {
	if err := s.controllable("Pause"); err != nil {
		return err
	}
	s.pause(math.MaxInt64, zap.Skip())
	return nil
}

// HoldUntil pauses the subscription until an instant or Resume. A later Pause or HoldUntil replaces
// it.
//
// Errors: ErrNoSubscription after Unsubscribe, an *OptionError for an instant that is not in the
// future.
func (s *Subscription) HoldUntil(t time.Time) error {
	if err := s.controllable("HoldUntil"); err != nil {
		return err
	}
	now := s.bus.time.Now()
	d := t.Sub(now.UTC)
	if d <= 0 {
		return &OptionError{Option: "HoldUntil", Value: t.String(), Reason: "is not in the future; Resume ends a pause"}
	}
	s.pause(timeline.Later(now.Nanos, d), zap.Time("until", t))
	return nil
}

func (s *Subscription) pause(until int64, field zap.Field) {
	s.door.pause(until)
	s.bus.log.Info("subscription paused", zap.String("subscription_id", s.id), field)
	s.bus.tend(s) // the time to wake the door has changed
}

// Resume ends Pause and HoldUntil. Held deliveries resume, oldest first, as the circuit admits
// them. On a subscription that is not paused, Resume does nothing.
//
// The error is ErrNoSubscription after Unsubscribe.
func (s *Subscription) Resume() error {
	if err := s.controllable("Resume"); err != nil {
		return err
	}
	if _, paused := s.door.paused(s.bus.time.Nanos()); paused {
		s.door.resume()
		s.bus.log.Info("subscription resumed", zap.String("subscription_id", s.id))
	}
	s.bus.tend(s)
	return nil
}

func (s *Subscription) controllable(what string) error {
	switch {
	case s == nil || s.bus == nil:
		return fmt.Errorf("%s: %w", what, ErrUninitialized)
	case s.left.Load():
		return fmt.Errorf("%s: %w: %q was unsubscribed", what, ErrNoSubscription, s.id)
	}
	return nil
}

// paused reports whether the subscription is paused, and until when for HoldUntil.
func (s *Subscription) paused() (paused bool, until time.Time) {
	line := s.bus.time
	nanos, paused := s.door.paused(line.Nanos())
	if paused && nanos != math.MaxInt64 {
		until = line.At(nanos)
	}
	return paused, until
}

// pause shuts the door until an instant.
func (o *door) pause(until int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pausedUntil = until
	o.circuit.gate.Or(gatePaused)
}

// resume ends a pause.
func (o *door) resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.circuit.gate.And(^uint64(gatePaused))
}

func (o *door) endPauseLocked(now int64) {
	if o.circuit.gate.Load()&gatePaused != 0 && now >= o.pausedUntil {
		o.circuit.gate.And(^uint64(gatePaused))
	}
}

// paused reports whether the door is paused, and until when.
func (o *door) paused(now int64) (until int64, paused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endPauseLocked(now)
	return o.pausedUntil, o.circuit.gate.Load()&gatePaused != 0
}
