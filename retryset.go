package eventbus

import (
	"fmt"
	"sync/atomic"
)

// retrySettings are what a subscription has of its own for its failures.
type retrySettings struct {
	retryOverride
	rules *ruleSet // nil: the bus's
}

// ownRetry is what one subscription has.
type ownRetry struct {
	of       *Subscription
	settings *retrySettings
	policy   *RetryPolicy // the merged one, with what it has of what is not merged; nil if that is nothing
}

// era is the time between two changes of retry settings. A dispatch goes by those of
// the era in which it was opened. Eras know the later ones, never the earlier, so that
// one is forgotten with its last dispatch.
type era struct{ end atomic.Pointer[eraEnd] }

// eraEnd is the change that ends an era.
type eraEnd struct {
	of   *Subscription // nil: the bus
	was  *retrySettings
	next *era
}

// retryBox has the settings of a subscription, or the bus's for nil.
func (b *Bus) retryBox(s *Subscription) *atomic.Pointer[retrySettings] {
	if s == nil {
		return &b.retry
	}
	return &s.retry
}

// settingsIn are the settings of a subscription, or of the bus for nil, in an era.
func (b *Bus) settingsIn(e *era, s *Subscription) *retrySettings {
	// Read before the eras: a change that comes in between is found there.
	settings := b.retryBox(s).Load()
	for e != nil {
		end := e.end.Load()
		if end == nil {
			break
		}
		if end.of == s {
			return end.was
		}
		e = end.next
	}
	return settings
}

// changeRetry begins an era with other settings of a subscription, or of the bus for
// nil.
func (b *Bus) changeRetry(s *Subscription, change func(*retrySettings)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	box, next := b.retryBox(s), &era{}
	was := box.Load()
	settings := *was
	change(&settings)
	b.era.Load().end.Store(&eraEnd{of: s, was: was, next: next})
	box.Store(&settings)
	b.era.Store(next)
	b.routes.Renew() // its targets are of the era that has ended
}

// SetRetry replaces the subscription's overrides of the retry policy by those of the
// options, none without any. It may be called at any time. Events that are published
// after it has returned are retried by it; those that were before, replays of letters
// aside, go on as they began.
//
// Errors, which change nothing: *OptionError; ErrNoSubscription after Unsubscribe.
func (s *Subscription) SetRetry(opts ...RetryOption) error {
	if err := s.controllable("SetRetry"); err != nil {
		return err
	}
	r, err := newRetryOverride("SetRetry", opts)
	if err != nil {
		return err
	}
	s.bus.changeRetry(s, func(settings *retrySettings) { settings.retryOverride = r })
	return nil
}

// SetRetryRules replaces the subscription's rules, as RetryRules gives them; without
// a rule it has none. It is otherwise as SetRetry.
func (s *Subscription) SetRetryRules(rules ...RetryRule) error {
	if err := s.controllable("SetRetryRules"); err != nil {
		return err
	}
	set, err := newRuleSet("SetRetryRules", rules)
	if err != nil {
		return err
	}
	s.bus.changeRetry(s, func(settings *retrySettings) { settings.rules = set })
	return nil
}

// SetRetry replaces the bus's retry policy by DefaultRetryPolicy with the options. It
// is otherwise as Subscription.SetRetry.
func (b *Bus) SetRetry(opts ...RetryOption) error {
	if !b.usable() {
		return fmt.Errorf("SetRetry: %w", ErrUninitialized)
	}
	r, err := newRetryOverride("SetRetry", opts)
	if err != nil {
		return err
	}
	b.changeRetry(nil, func(settings *retrySettings) { settings.RetryPolicy = r.over(DefaultRetryPolicy()) })
	return nil
}

// SetRetryRules replaces the rules of the bus, as WithRetryRules gives them. It is
// otherwise as Subscription.SetRetry.
func (b *Bus) SetRetryRules(rules ...RetryRule) error {
	if !b.usable() {
		return fmt.Errorf("SetRetryRules: %w", ErrUninitialized)
	}
	set, err := newRuleSet("SetRetryRules", rules)
	if err != nil {
		return err
	}
	b.changeRetry(nil, func(settings *retrySettings) { settings.rules = set })
	return nil
}
