package contracttest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

func TestP4_AnOverrideOfOneSubscriptionLeavesTheRestToTheBus(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithRetry(eventbus.BaseDelay(3*time.Second), eventbus.MaxElapsed(time.Hour)),
		eventbus.WithRetry(eventbus.BackoffMultiplier(7), eventbus.EqualJitter))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("a"),
		eventbus.Retry(eventbus.MaxRetries(5)), eventbus.Retry(eventbus.BaseDelay(500*time.Millisecond), eventbus.MaxRetries(6)))

	plan := bus.Explain("a")
	require.Equal(t, eventbus.RetryPolicy{
		MaxRetries: 6, BaseDelay: 500 * time.Millisecond, MaxDelay: 30 * time.Second, BackoffMultiplier: 7,
		MaxElapsed: time.Hour, Jitter: eventbus.EqualJitter,
	}, plan.Policy)
	require.Equal(t, map[string]string{
		"MaxRetries": "a", "BaseDelay": "a",
		"MaxDelay": eventbus.BusDefault, "BackoffMultiplier": eventbus.BusDefault, "MaxElapsed": eventbus.BusDefault,
	}, plan.Origins)
	require.Equal(t, map[string]string{"MaxRetries": "6", "BaseDelay": "500ms"}, plan.Targets[0].Overrides)
}

func TestP4_EveryFieldIsValidated(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	policy := func(change func(*eventbus.RetryPolicy)) eventbus.RetryPolicy {
		p := eventbus.DefaultRetryPolicy()
		change(&p)
		return p
	}
	for _, c := range []struct {
		field string
		bad   eventbus.RetryOption
	}{
		{".MaxRetries", eventbus.MaxRetries(-2)},
		{".MaxRetries", eventbus.MaxRetries(math.MinInt)},
		{".MaxRetries", eventbus.MaxRetries(math.MaxInt32)},
		{".MaxRetries", eventbus.MaxRetries(1 << 31)},
		{".MaxRetries", eventbus.MaxRetries(math.MaxInt)},
		{".BaseDelay", eventbus.BaseDelay(-1)},
		{".MaxDelay", eventbus.MaxDelay(-1)},
		{".MaxDelay", eventbus.MaxDelay(math.MinInt64)},
		{".BackoffMultiplier", eventbus.BackoffMultiplier(0.9999)},
		{".BackoffMultiplier", eventbus.BackoffMultiplier(0)},
		{".BackoffMultiplier", eventbus.BackoffMultiplier(-2)},
		{".BackoffMultiplier", eventbus.BackoffMultiplier(nan)},
		{".BackoffMultiplier", eventbus.BackoffMultiplier(inf)},
		{".BackoffMultiplier", eventbus.BackoffMultiplier(-inf)},
		{".MaxElapsed", eventbus.MaxElapsed(-1)},
		{".Jitter", eventbus.Jitter(-1)},
		{".Jitter", eventbus.Jitter(5)},
		{"", nil},
		{".BackoffMultiplier", eventbus.RetryPolicy{MaxRetries: 5}},
		{".MaxRetries", policy(func(p *eventbus.RetryPolicy) { p.MaxRetries = -2 })},
		{".BaseDelay", policy(func(p *eventbus.RetryPolicy) { p.BaseDelay = -1 })},
		{".MaxDelay", policy(func(p *eventbus.RetryPolicy) { p.MaxDelay = -1 })},
		{".MaxElapsed", policy(func(p *eventbus.RetryPolicy) { p.MaxElapsed = -1 })},
		{".Jitter", policy(func(p *eventbus.RetryPolicy) { p.Jitter = 77 })},
	} {
		_, err := eventbus.New(eventbus.WithRetry(eventbus.MaxRetries(1), c.bad))
		requireOptionError(t, err, "WithRetry"+c.field)

		bus, _ := newBus(t)
		_, err = bus.Subscribe("a", ok, eventbus.Named("a"), eventbus.Retry(c.bad))
		requireOptionError(t, err, "Retry"+c.field)
		require.Empty(t, bus.Metrics().Subscriptions, "the bus is unchanged")
	}
}

func TestP4_ValuesAtTheBoundsAreTaken(t *testing.T) {
	for _, o := range []eventbus.RetryOption{
		eventbus.MaxRetries(eventbus.Unlimited), eventbus.MaxRetries(0), eventbus.MaxRetries(math.MaxInt32 - 1),
		eventbus.BaseDelay(0), eventbus.BaseDelay(math.MaxInt64), eventbus.MaxDelay(0), eventbus.MaxDelay(math.MaxInt64),
		eventbus.BackoffMultiplier(1), eventbus.BackoffMultiplier(math.MaxFloat64),
		eventbus.MaxElapsed(0), eventbus.MaxElapsed(math.MaxInt64), eventbus.RetryIf(nil), eventbus.DecorrelatedJitter,
	} {
		bus, _ := newBus(t, eventbus.WithRetry(o))
		mustSubscribe(t, bus, "a", ok, eventbus.Retry(o))
	}
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

func explain(t *rapid.T, def eventbus.RetryPolicy, overrides []retryOverride) eventbus.Plan {
	bus, err := eventbus.New(eventbus.WithRetry(def))
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range overrides {
		_, err := bus.Subscribe("a", ok, eventbus.Named(fmt.Sprint(i)), eventbus.Retry(o.options()...))
		if err != nil {
			t.Fatal(err)
		}
	}
	plan := bus.Explain("a")
	if plan.Err != nil {
		t.Fatal(plan.Err)
	}
	return plan
}

func TestP5_MergeAgreesWithTheTableAndExplainSaysWhy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def := anyPolicy().Draw(t, "default")
		overrides := anyOverrides().Draw(t, "overrides")
		want, origins := mergeByTable(def, overrides)
		plan := explain(t, def, overrides)
		if fmt.Sprint(plan.Policy) != fmt.Sprint(want) {
			t.Fatalf("got %+v, want %+v", plan.Policy, want)
		}
		if len(plan.Origins) != len(origins) {
			t.Fatalf("origins %v", plan.Origins)
		}
		for field, i := range origins {
			name := eventbus.BusDefault
			if i >= 0 {
				name = fmt.Sprint(i)
			}
			if plan.Origins[field] != name {
				t.Fatalf("%s comes from %q, want %q", field, plan.Origins[field], name)
			}
		}
	})
}

func TestP5_MergeIsOrderIndependent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def := anyPolicy().Draw(t, "default")
		overrides := anyOverrides().Draw(t, "overrides")
		shuffled := rapid.Permutation(overrides).Draw(t, "shuffled")
		a, b := explain(t, def, overrides).Policy, explain(t, def, shuffled).Policy
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("%+v, but the other way round %+v", a, b)
		}
	})
}

func TestP5_TheMostPermissiveOfEachField(t *testing.T) {
	type options = []eventbus.RetryOption
	def := eventbus.DefaultRetryPolicy()
	merged := func(change func(*eventbus.RetryPolicy)) eventbus.RetryPolicy {
		p := def
		change(&p)
		return p
	}
	for _, c := range []struct {
		name      string
		overrides []options
		want      eventbus.RetryPolicy
	}{
		{"no override at all", []options{nil, nil}, def},
		{
			"a default never overrides what is lower on purpose",
			[]options{{eventbus.MaxRetries(1), eventbus.MaxDelay(time.Second), eventbus.BackoffMultiplier(1)}, nil},
			merged(func(p *eventbus.RetryPolicy) { p.MaxRetries, p.MaxDelay, p.BackoffMultiplier = 1, time.Second, 1 }),
		},
		{
			"nor what is slower",
			[]options{{eventbus.BaseDelay(time.Minute)}, nil},
			merged(func(p *eventbus.RetryPolicy) { p.BaseDelay = time.Minute }),
		},
		{
			"nor what gives up earlier",
			[]options{{eventbus.MaxElapsed(time.Minute)}, nil},
			merged(func(p *eventbus.RetryPolicy) { p.MaxElapsed = time.Minute }),
		},
		{
			"no retries and five",
			[]options{{eventbus.MaxRetries(0)}, {eventbus.MaxRetries(5)}},
			merged(func(p *eventbus.RetryPolicy) { p.MaxRetries = 5 }),
		},
		{
			"unlimited wins",
			[]options{{eventbus.MaxRetries(math.MaxInt32 - 1)}, {eventbus.MaxRetries(eventbus.Unlimited)}, {eventbus.MaxRetries(5)}},
			merged(func(p *eventbus.RetryPolicy) { p.MaxRetries = eventbus.Unlimited }),
		},
		{
			"unbounded wins",
			[]options{{eventbus.MaxElapsed(math.MaxInt64)}, {eventbus.MaxElapsed(0)}, {eventbus.MaxElapsed(1)}},
			merged(func(p *eventbus.RetryPolicy) { p.MaxElapsed = 0 }),
		},
		{
			"each field from another",
			[]options{{eventbus.MaxRetries(9), eventbus.BaseDelay(5)}, {eventbus.BaseDelay(4), eventbus.MaxDelay(8)}, {eventbus.MaxDelay(7), eventbus.BackoffMultiplier(3)}, {eventbus.BackoffMultiplier(1)}},
			merged(func(p *eventbus.RetryPolicy) {
				p.MaxRetries, p.BaseDelay, p.MaxDelay, p.BackoffMultiplier = 9, 4, 8, 3
			}),
		},
		{"jitter is nobody else's", []options{{eventbus.FullJitter}, nil}, def},
		{
			"a whole policy sets every field",
			[]options{{eventbus.RetryPolicy{BackoffMultiplier: 1}}, nil},
			merged(func(p *eventbus.RetryPolicy) { *p = eventbus.RetryPolicy{BackoffMultiplier: 1} }),
		},
	} {
		for range 2 {
			bus, _ := newBus(t)
			for _, o := range c.overrides {
				mustSubscribe(t, bus, "a", ok, eventbus.Retry(o...))
			}
			require.Equal(t, c.want, bus.Explain("a").Policy, c.name)
			slices.Reverse(c.overrides)
		}
	}
}

func TestP5_MergedPolicyOfADispatchAndOfNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithRetry(eventbus.NoJitter))
		var impatient callTimes
		mustSubscribe(t, bus, "order.*", impatient.failing(errBroken), eventbus.Named("impatient"),
			eventbus.Retry(eventbus.MaxRetries(0), eventbus.BaseDelay(10*time.Second)))
		mustSubscribe(t, bus, "order.placed", ok, eventbus.Named("patient"),
			eventbus.Retry(eventbus.MaxRetries(2), eventbus.BaseDelay(3*time.Second)))

		mustPublish(t, bus, "order.placed", nil)
		shutdown(t, bus)
		require.Equal(t, inSeconds(0, 3, 9), impatient.all())
		require.Equal(t, []string{"patient"}, oneLetter(t, bus).NotReached)
	})
}

func TestP5_ThePolicyIsFixedWhenTheDispatchIsOpened(t *testing.T) {
	for _, when := range []string{"before the first attempt", "while it waits"} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newBus(t, eventbus.WithRetry(retry(1, time.Second)))
			var calls callTimes
			mustSubscribe(t, bus, "a", calls.failing(errBroken), eventbus.Named("a"))
			generous := mustSubscribe(t, bus, "a", ok, eventbus.Named("generous"), eventbus.Retry(eventbus.MaxRetries(3)))
			change := func() {
				generous.Unsubscribe()
				mustSubscribe(t, bus, "a", ok, eventbus.Named("endless"), eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited)))
			}
			mustPublish(t, bus, "a", nil)
			if when == "before the first attempt" {
				change()
			}
			require.NoError(t, bus.Start(t.Context()))
			synctest.Wait()
			if when == "while it waits" {
				change()
			}
			shutdown(t, bus)
			require.Equal(t, inSeconds(0, 1, 2, 3), calls.all(), when)
			require.Equal(t, []string{"generous"}, oneLetter(t, bus).NotReached)
		})
	}
}

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

// A dispatch keeps the settings that it began with, and none of the others: many changes
// leave nothing behind, also while dispatches from before wait, are held or scheduled.
func TestP5_ManyChangesLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := searching(100_000, 20_000)
		bus, _ := startBus(t, silent(withoutCircuit, eventbus.WithRetry(retry(1, time.Hour)))...)
		calls := newCallLog()
		s := mustSubscribe(t, bus, "order.*", func(_ context.Context, e eventbus.Event) error {
			calls.note("%s", e.Payload)
			return errBroken
		}, eventbus.Retry(eventbus.MaxRetries(1)))
		paused := mustSubscribe(t, bus, "held", failing(errBroken), eventbus.Retry(eventbus.MaxRetries(1)))
		mustPublish(t, bus, "order.failed", "waiting")
		mustPublish(t, bus, "order.placed", "scheduled", eventbus.After(30*time.Minute))
		require.NoError(t, paused.Pause())
		mustPublish(t, bus, "held", "held")
		settleWorkers()
		before := heldBytes()
		for range changes / 4 {
			require.NoError(t, s.SetRetry(eventbus.MaxRetries(9)))
			require.NoError(t, paused.SetRetry(eventbus.MaxRetries(9)))
			require.NoError(t, bus.SetRetry(retry(9, time.Second)))
			require.NoError(t, s.SetRetryRules())
		}
		require.Less(t, heldBytes()-before, int64(changes), "less than a byte a change")
		require.NoError(t, paused.Resume())
		time.Sleep(3 * time.Hour)
		require.Equal(t, []string{"+0s waiting", "+30m0s scheduled", "+1h0m0s waiting", "+1h30m0s scheduled"}, calls.all())
		for _, l := range letters(t, bus) {
			require.Equal(t, 2, l.Attempts)
		}
		shutdown(t, bus)
	})
}
