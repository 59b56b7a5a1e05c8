package eventbus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// New dispatches take what has been set, and those that have been published keep what
// was: whether they have failed before or not, are queued, held or for later.
func TestP5_WhatIsSetIsForWhatIsPublishedAfterwards(t *testing.T) {
	for name, c := range map[string]struct {
		bus []eventbus.Option
		sub []eventbus.SubscribeOption
		set func(*eventbus.Bus, *eventbus.Subscription) error
		// attempts before and afterwards
		before, after int
	}{
		"a subscription's policy": {
			sub:    []eventbus.SubscribeOption{eventbus.Retry(retry(1, time.Second))},
			set:    func(_ *eventbus.Bus, s *eventbus.Subscription) error { return s.SetRetry(retry(3, time.Second)) },
			before: 2, after: 4,
		},
		"a subscription's, no longer": {
			bus:    []eventbus.Option{eventbus.WithRetry(retry(4, time.Second))},
			sub:    []eventbus.SubscribeOption{eventbus.Retry(retry(1, time.Second))},
			set:    func(_ *eventbus.Bus, s *eventbus.Subscription) error { return s.SetRetry() },
			before: 2, after: 5,
		},
		"the bus's policy": {
			bus:    []eventbus.Option{eventbus.WithRetry(retry(1, time.Second))},
			set:    func(b *eventbus.Bus, _ *eventbus.Subscription) error { return b.SetRetry(eventbus.MaxRetries(2)) },
			before: 2, after: 3,
		},
		"a subscription's rules": {
			sub: []eventbus.SubscribeOption{eventbus.RetryRules(onCodes(2, "*"))},
			set: func(_ *eventbus.Bus, s *eventbus.Subscription) error {
				return s.SetRetryRules(onCodes(1, "X"), onCodes(7, "*"))
			},
			before: 2, after: 7,
		},
		"a subscription's rules, none": {
			bus:    []eventbus.Option{eventbus.WithRetryRules(onCodes(2, "*")), eventbus.WithRetry(retry(0, 0))},
			set:    func(_ *eventbus.Bus, s *eventbus.Subscription) error { return s.SetRetryRules() },
			before: 2, after: 1,
		},
		"the bus's rules": {
			bus:    []eventbus.Option{eventbus.WithRetry(retry(0, 0))},
			set:    func(b *eventbus.Bus, _ *eventbus.Subscription) error { return b.SetRetryRules(onCodes(6, "*")) },
			before: 1, after: 6,
		},
	} {
		for _, isolated := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				opts := append([]eventbus.Option{eventbus.WithCircuit(eventbus.NoCircuit())}, c.bus...)
				if isolated {
					opts = append(opts, eventbus.WithIsolation())
				}
				bus, _ := newBus(t, opts...)
				mustSubscribe(t, bus, "held", ok)
				s := mustSubscribe(t, bus, "*", failing(errBroken), append(c.sub, eventbus.Named("s"))...)
				for _, typ := range []string{"cached", "cached", "cached"} { // it is routed from memory now
					mustPublish(t, bus, typ, "before")
				}
				mustPublish(t, bus, "later", "before", eventbus.After(time.Hour))
				mustPublish(t, bus, "fresh", "before")
				require.NoError(t, s.Pause())
				mustPublish(t, bus, "held", "before")
				require.NoError(t, c.set(bus, s))
				for _, typ := range []string{"cached", "later", "held"} {
					mustPublish(t, bus, typ, "after")
				}
				require.NoError(t, bus.Start(t.Context()))
				synctest.Wait()
				require.NoError(t, s.Resume())
				time.Sleep(2 * time.Hour)
				shutdown(t, bus)
				all := letters(t, bus)
				require.Len(t, all, 9)
				for _, l := range all {
					want := map[any]int{"before": c.before, "after": c.after}[l.Event.Payload]
					require.Equal(t, want, l.Attempts, "%s: %s, published %s, isolated %t", name, l.Event.Type, l.Event.Payload, isolated)
				}
			})
		}
	}
}

// One that has failed already goes on by the rules that it began with, also after many
// changes; its replay is a fresh dispatch.
func TestP7_ARunningDispatchKeepsItsRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := func(attempts int, delay time.Duration) eventbus.RetryRule {
			return eventbus.RetryRule{Name: delay.String(), Match: codes("*"), Attempts: attempts, BaseDelay: delay, Jitter: eventbus.NoJitter}
		}
		bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(retry(0, 0)))
		calls, handler := ruleCalls(errBroken)
		s := mustSubscribe(t, bus, "a", handler, eventbus.RetryRules(rule(3, time.Minute)))
		mustPublish(t, bus, "a", nil)
		for i := range 5 {
			time.Sleep(10 * time.Second)
			require.NoError(t, s.SetRetryRules(rule(9-i, time.Hour)))
			require.NoError(t, bus.SetRetryRules(rule(9, time.Hour)))
		}
		require.NoError(t, s.SetRetryRules(rule(2, time.Second)))
		time.Sleep(2 * time.Minute)
		require.Equal(t, bSeconds(0, 60, 120), calls.all())
		l := oneLetter(t, bus)
		require.Equal(t, "1m0s", l.Rule.Name)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		shutdown(t, bus)
		require.Equal(t, "1s", oneLetter(t, bus).Rule.Name)
		require.Equal(t, 2, oneLetter(t, bus).Attempts)
	})
}

func TestO5_ExplainShowsWhatIsSet(t *testing.T) {
	bus, _ := newBus(t)
	s := mustSubscribe(t, bus, "a", ok, eventbus.Named("s"), eventbus.Retry(eventbus.MaxRetries(7)))
	require.NoError(t, s.SetRetry(eventbus.BaseDelay(time.Minute)))
	require.NoError(t, bus.SetRetry(eventbus.MaxRetries(9)))
	require.NoError(t, s.SetRetryRules(onCodes(5, "X")))
	p := bus.Explain("a")
	require.Equal(t, map[string]string{"BaseDelay": "1m0s"}, p.Targets[0].Overrides)
	require.Equal(t, 9, p.Policy.MaxRetries)
	require.Equal(t, 30*time.Second, p.Policy.MaxDelay)
	require.Equal(t, 5, p.Targets[0].Rules[0].Attempts)
	require.Equal(t, "s", p.Targets[0].RulesOrigin)
}

func TestP4_WhatCannotBeSetChangesNothing(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithRetry(eventbus.MaxRetries(1)))
	s := mustSubscribe(t, bus, "a", ok, eventbus.Retry(eventbus.BaseDelay(time.Minute)))
	before := bus.Explain("a")
	for says, err := range map[string]error{
		"SetRetry.MaxRetries(-7)": s.SetRetry(eventbus.BaseDelay(time.Second), eventbus.MaxRetries(-7)),
		"SetRetry.MaxRetries(-8)": bus.SetRetry(eventbus.BaseDelay(time.Second), eventbus.MaxRetries(-8)),
		"SetRetry(nil)":           bus.SetRetry(nil),
	} {
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		require.ErrorContains(t, err, says)
	}
	require.Equal(t, before, bus.Explain("a"))
	s.Unsubscribe()
	require.ErrorIs(t, s.SetRetry(), eventbus.ErrNoSubscription)
	require.ErrorIs(t, s.SetRetryRules(), eventbus.ErrNoSubscription)
	var noSub *eventbus.Subscription
	var noBus *eventbus.Bus
	for _, err := range []error{noSub.SetRetry(), noSub.SetRetryRules(), noBus.SetRetry(), noBus.SetRetryRules()} {
		require.ErrorIs(t, err, eventbus.ErrUninitialized)
	}
}

// Whoever publishes while settings are changed gets the ones or the others, and whoever
// publishes afterwards the new ones.
func TestP5_SettingWhileManyPublish(t *testing.T) {
	// Few workers: each failure waits a moment for a goroutine, and a loaded machine would be given thousands.
	bus, _ := startBus(t, eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithConcurrency(8), eventbus.WithRetry(retry(0, 0)))
	type round struct{ atLeast, atMost int }
	handler := func(context.Context, eventbus.Event) error { return errBroken }
	s := mustSubscribe(t, bus, "**", handler, eventbus.Retry(eventbus.MaxRetries(0)))
	var mu sync.RWMutex // around publishing and the round that it is of
	set, setting := 0, 0
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 60 {
				mu.RLock()
				r := round{set, 0}
				mu.RUnlock()
				mustPublish(t, bus, fmt.Sprintf("a.b%d", (g+i)%7), &r)
				mu.RLock()
				r.atMost = setting
				mu.RUnlock()
			}
		})
	}
	for n := 1; n <= 10; n++ {
		mu.Lock()
		setting = n
		mu.Unlock()
		require.NoError(t, s.SetRetry(eventbus.MaxRetries(n)))
		mu.Lock()
		set = n
		mu.Unlock()
	}
	wg.Wait()
	shutdown(t, bus)
	all := letters(t, bus)
	require.Len(t, all, 240)
	for _, l := range all {
		r := l.Event.Payload.(*round)
		require.GreaterOrEqual(t, l.Attempts-1, r.atLeast)
		require.LessOrEqual(t, l.Attempts-1, r.atMost)
	}
}
