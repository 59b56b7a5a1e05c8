package eventbus

import (
	"fmt"
)

// retrySettings has the retry overrides and rules of a subscription, or those of the bus. It is
// immutable.
type retrySettings struct {
	retryOverride
	rules *ruleSet // nil: those of the bus
}

// ownRetry has the settings of one subscription of a dispatch.
type ownRetry struct {
	of       *Subscription
	settings *retrySettings
	policy   *RetryPolicy // merged, with the subscription's unmerged fields; nil if it sets none
}

// retryInForce is the settings that apply to a dispatch: those in force when its targets were made.
// SetRetry replaces settings and never changes them, so the dispatch keeps its policy while it
// waits, is parked or is scheduled.
type retryInForce struct {
	bus *retrySettings
	own []*retrySettings // by target, nil for none; nil if no target has any
}

// of returns the own settings of a target, by its index.
func (in *retryInForce) of(i int) *retrySettings {
	if in.own == nil || in.own[i] == nil {
		return &noRetry
	}
	return in.own[i]
}

// only returns the settings for a dispatch that has one of the targets.
func (in *retryInForce) only(i int) retryInForce {
	if in.own == nil {
		return *in
	}
	return retryInForce{bus: in.bus, own: in.own[i : i+1 : i+1]}
}

// SetRetry replaces the subscription's overrides of the retry policy. Without options it removes
// them. SetRetry may be called at any time. It applies to events published, and letters replayed,
// after it has returned. Earlier dispatches keep their policy.
//
// Errors, after which nothing has changed: *OptionError; ErrNoSubscription after Unsubscribe.
func (s *Subscription) SetRetry(opts ...RetryOption) error {
	if err := s.controllable("SetRetry"); err != nil {
		return err
	}
	r, err := newRetryOverride("SetRetry", opts)
	if err != nil {
		return err
	}
	s.bus.registry.changeRetry(s, func(settings *retrySettings) { settings.retryOverride = r })
	return nil
}

// SetRetryRules replaces the rules of the subscription, see RetryRules. Without arguments the
// subscription has no rules, not those of the bus. It applies to the same dispatches as SetRetry,
// and has the same errors.
func (s *Subscription) SetRetryRules(rules ...RetryRule) error {
	if err := s.controllable("SetRetryRules"); err != nil {
		return err
	}
	set, err := newRuleSet("SetRetryRules", rules)
	if err != nil {
		return err
	}
	s.bus.registry.changeRetry(s, func(settings *retrySettings) { settings.rules = set })
	return nil
}

// SetRetry replaces the retry policy of the bus by DefaultRetryPolicy with the options. It applies
// to the same dispatches as Subscription.SetRetry. The error is an *OptionError.
func (b *Bus) SetRetry(opts ...RetryOption) error {
	if !b.usable() {
		return fmt.Errorf("SetRetry: %w", ErrUninitialized)
	}
	r, err := newRetryOverride("SetRetry", opts)
	if err != nil {
		return err
	}
	b.registry.changeRetry(nil, func(settings *retrySettings) { settings.RetryPolicy = r.over(DefaultRetryPolicy()) })
	return nil
}

// SetRetryRules replaces the rules of the bus, see WithRetryRules. It applies to the same
// dispatches as Subscription.SetRetry. The error is an *OptionError.
func (b *Bus) SetRetryRules(rules ...RetryRule) error {
	if !b.usable() {
		return fmt.Errorf("SetRetryRules: %w", ErrUninitialized)
	}
	set, err := newRuleSet("SetRetryRules", rules)
	if err != nil {
		return err
	}
	b.registry.changeRetry(nil, func(settings *retrySettings) { settings.rules = set })
	return nil
}
