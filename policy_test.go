package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
)

func TestP1_DefaultPolicy(t *testing.T) {
	want := eventbus.RetryPolicy{MaxRetries: 3, BaseDelay: time.Second, MaxDelay: 30 * time.Second, BackoffMultiplier: 2}
	require.Equal(t, want, eventbus.DefaultRetryPolicy())
	require.Equal(t, eventbus.ProportionalJitter, want.Jitter)

	bus, _ := newBus(t)
	mustSubscribe(t, bus, "a", ok)
	require.Equal(t, want, bus.Explain("a").Policy)
}

func TestP2_DelayTable(t *testing.T) {
	p := eventbus.DefaultRetryPolicy()
	for attempt, seconds := range map[int]int{
		math.MinInt: 0, -1: 0, 0: 0, 1: 0,
		2: 1, 3: 2, 4: 4, 5: 8, 6: 16, 7: 30, 8: 30, 64: 30, 65: 30, 66: 30, 1_000_000: 30, math.MaxInt: 30,
	} {
		require.Equal(t, time.Duration(seconds)*time.Second, p.Delay(attempt), "attempt %d", attempt)
	}
}

func TestP2_TheEdgesOfAPolicy(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  eventbus.RetryPolicy
		attempt int
		want    time.Duration
	}{
		{"no delay at all", eventbus.RetryPolicy{BaseDelay: 0, MaxDelay: time.Hour, BackoffMultiplier: math.MaxFloat64}, 1_000_000, 0},
		{"base beyond the cap", eventbus.RetryPolicy{BaseDelay: time.Hour, MaxDelay: time.Second, BackoffMultiplier: 2}, 2, time.Second},
		{"cap of zero", eventbus.RetryPolicy{BaseDelay: time.Hour, MaxDelay: 0, BackoffMultiplier: 2}, 2, 0},
		{"constant", eventbus.RetryPolicy{BaseDelay: 7, MaxDelay: time.Hour, BackoffMultiplier: 1}, 1_000_000, 7},
		{"all that fits", eventbus.RetryPolicy{BaseDelay: math.MaxInt64, MaxDelay: math.MaxInt64, BackoffMultiplier: 1}, 2, math.MaxInt64},
		{"just beyond what fits", eventbus.RetryPolicy{BaseDelay: 1, MaxDelay: math.MaxInt64, BackoffMultiplier: 2}, 65, math.MaxInt64},
		{"just within", eventbus.RetryPolicy{BaseDelay: 1, MaxDelay: math.MaxInt64, BackoffMultiplier: 2}, 64, 1 << 62},
		{"infinity", eventbus.RetryPolicy{BaseDelay: 1, MaxDelay: math.MaxInt64, BackoffMultiplier: math.MaxFloat64}, 1_000_000, math.MaxInt64},
	} {
		require.Equal(t, c.want, c.policy.Delay(c.attempt), c.name)
	}
}

// bDuration is a duration of any size, and often of one that matters.
func bDuration() *rapid.Generator[time.Duration] {
	return rapid.OneOf(
		rapid.SampledFrom([]time.Duration{0, 1, time.Millisecond, time.Second, 30 * time.Second, math.MaxInt64 - 1, math.MaxInt64}),
		rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "nanos") >> rapid.IntRange(0, 62).Draw(t, "shift"))
		}),
	)
}

func bMultiplier() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.SampledFrom([]float64{1, 1.0000000000000002, 1.5, 2, 10, 1e300, math.MaxFloat64}),
		rapid.Float64Range(1, 4),
		rapid.Float64Range(1, 1.0001),
	)
}

func bPolicy() *rapid.Generator[eventbus.RetryPolicy] {
	return rapid.Custom(func(t *rapid.T) eventbus.RetryPolicy {
		return eventbus.RetryPolicy{
			MaxRetries:        rapid.SampledFrom([]int{0, 1, 3, eventbus.Unlimited, math.MaxInt32 - 1}).Draw(t, "MaxRetries"),
			BaseDelay:         bDuration().Draw(t, "BaseDelay"),
			MaxDelay:          bDuration().Draw(t, "MaxDelay"),
			BackoffMultiplier: bMultiplier().Draw(t, "BackoffMultiplier"),
			MaxElapsed:        bDuration().Draw(t, "MaxElapsed"),
			Jitter:            rapid.SampledFrom(bJitters).Draw(t, "Jitter"),
		}
	})
}

var bJitters = []eventbus.Jitter{
	eventbus.ProportionalJitter, eventbus.NoJitter, eventbus.FullJitter, eventbus.EqualJitter, eventbus.DecorrelatedJitter,
}

func bAttempt() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 1_000_000))
}

// The formula with as many digits as it takes, so that neither overflow nor
// rounding is the same as in the code.
func TestP2_DelayAgreesWithTheFormulaForEveryPolicyAndAttempt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := bPolicy().Draw(t, "policy")
		attempt := bAttempt().Draw(t, "attempt")
		got := p.Delay(attempt)
		if attempt == 1 {
			if got != 0 {
				t.Fatalf("before the first attempt: %s", got)
			}
			return
		}
		const precision = 200
		want := new(big.Float).SetPrec(precision).SetInt64(int64(p.BaseDelay))
		factor := new(big.Float).SetPrec(precision).SetFloat64(p.BackoffMultiplier)
		for n := attempt - 2; n > 0 && want.Sign() > 0; n >>= 1 {
			if n&1 == 1 {
				want.Mul(want, factor)
			}
			factor.Mul(factor, factor)
		}
		limit := new(big.Float).SetInt64(int64(p.MaxDelay))
		if want.Cmp(limit) > 0 {
			want = limit
		}
		exact, _ := want.Float64()
		if got < 0 || got > p.MaxDelay {
			t.Fatalf("%s is out of [0, %s]", got, p.MaxDelay)
		}
		if slack := 1 + exact*1e-9; math.Abs(float64(got)-exact) > slack {
			t.Fatalf("got %d ns, want %.1f", got, exact)
		}
		if next := p.Delay(attempt + 1); next < got {
			t.Fatalf("attempt %d waits %s, the next one only %s", attempt, got, next)
		}
	})
}

func TestP3_JitterNames(t *testing.T) {
	var names []string
	for _, j := range bJitters {
		names = append(names, j.String())
	}
	require.Equal(t, []string{"proportional", "none", "full", "equal", "decorrelated"}, names)
	require.Equal(t, "Jitter(5)", eventbus.Jitter(5).String())
	require.Equal(t, "Jitter(-1)", eventbus.Jitter(-1).String())
}

// bOverride is what a subscription of the merge tests sets: nil is not set.
type bOverride struct {
	MaxRetries                      *int
	BaseDelay, MaxDelay, MaxElapsed *time.Duration
	BackoffMultiplier               *float64
}

func (o bOverride) options() []eventbus.RetryOption {
	var opts []eventbus.RetryOption
	if o.MaxRetries != nil {
		opts = append(opts, eventbus.MaxRetries(*o.MaxRetries))
	}
	if o.BaseDelay != nil {
		opts = append(opts, eventbus.BaseDelay(*o.BaseDelay))
	}
	if o.MaxDelay != nil {
		opts = append(opts, eventbus.MaxDelay(*o.MaxDelay))
	}
	if o.MaxElapsed != nil {
		opts = append(opts, eventbus.MaxElapsed(*o.MaxElapsed))
	}
	if o.BackoffMultiplier != nil {
		opts = append(opts, eventbus.BackoffMultiplier(*o.BackoffMultiplier))
	}
	return opts
}

func (o bOverride) String() string {
	s := ""
	for name, v := range map[string]any{
		"MaxRetries": o.MaxRetries, "BaseDelay": o.BaseDelay, "MaxDelay": o.MaxDelay,
		"MaxElapsed": o.MaxElapsed, "BackoffMultiplier": o.BackoffMultiplier,
	} {
		switch v := v.(type) {
		case *int:
			if v != nil {
				s += fmt.Sprintf(" %s=%d", name, *v)
			}
		case *time.Duration:
			if v != nil {
				s += fmt.Sprintf(" %s=%s", name, *v)
			}
		case *float64:
			if v != nil {
				s += fmt.Sprintf(" %s=%g", name, *v)
			}
		}
	}
	return "{" + s + " }"
}

func bOverrides() *rapid.Generator[[]bOverride] {
	// Few values, so that ties happen.
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) bOverride {
		duration := func(label string) *time.Duration {
			return rapid.Ptr(rapid.SampledFrom([]time.Duration{0, 1, 2, time.Second, time.Hour}), true).Draw(t, label)
		}
		return bOverride{
			MaxRetries:        rapid.Ptr(rapid.SampledFrom([]int{eventbus.Unlimited, 0, 1, 5}), true).Draw(t, "MaxRetries"),
			BaseDelay:         duration("BaseDelay"),
			MaxDelay:          duration("MaxDelay"),
			MaxElapsed:        duration("MaxElapsed"),
			BackoffMultiplier: rapid.Ptr(rapid.SampledFrom([]float64{1, 1.5, 3}), true).Draw(t, "BackoffMultiplier"),
		}
	}), 1, 6)
}

// bMerge is the merge as the table of the contract says it, one field after the
// other: collect what is set, and take the best.
func bMerge(def eventbus.RetryPolicy, overrides []bOverride) (eventbus.RetryPolicy, map[string]int) {
	origins := map[string]int{}
	p := def
	p.MaxRetries = bBest(def.MaxRetries, overrides, origins, "MaxRetries", func(o bOverride) *int { return o.MaxRetries },
		func(a, b int) bool { return b != eventbus.Unlimited && (a == eventbus.Unlimited || a > b) })
	p.BaseDelay = bBest(def.BaseDelay, overrides, origins, "BaseDelay", func(o bOverride) *time.Duration { return o.BaseDelay },
		func(a, b time.Duration) bool { return a < b })
	p.MaxDelay = bBest(def.MaxDelay, overrides, origins, "MaxDelay", func(o bOverride) *time.Duration { return o.MaxDelay },
		func(a, b time.Duration) bool { return a > b })
	p.BackoffMultiplier = bBest(def.BackoffMultiplier, overrides, origins, "BackoffMultiplier", func(o bOverride) *float64 { return o.BackoffMultiplier },
		func(a, b float64) bool { return a > b })
	p.MaxElapsed = bBest(def.MaxElapsed, overrides, origins, "MaxElapsed", func(o bOverride) *time.Duration { return o.MaxElapsed },
		func(a, b time.Duration) bool { return b != 0 && (a == 0 || a > b) })
	return p, origins
}

func bBest[V any](def V, overrides []bOverride, origins map[string]int, name string, get func(bOverride) *V, better func(a, b V) bool) V {
	origins[name] = -1
	best := def
	for i, o := range overrides {
		if v := get(o); v != nil && (origins[name] < 0 || better(*v, best)) {
			best, origins[name] = *v, i
		}
	}
	return best
}

func bExplain(t *rapid.T, def eventbus.RetryPolicy, overrides []bOverride) eventbus.Plan {
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
		def := bPolicy().Draw(t, "default")
		overrides := bOverrides().Draw(t, "overrides")
		want, origins := bMerge(def, overrides)
		plan := bExplain(t, def, overrides)
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
		def := bPolicy().Draw(t, "default")
		overrides := bOverrides().Draw(t, "overrides")
		shuffled := rapid.Permutation(overrides).Draw(t, "shuffled")
		a, b := bExplain(t, def, overrides).Policy, bExplain(t, def, shuffled).Policy
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
		bRequireOptionError(t, err, "WithRetry"+c.field)

		bus, _ := newBus(t)
		_, err = bus.Subscribe("a", ok, eventbus.Named("a"), eventbus.Retry(c.bad))
		bRequireOptionError(t, err, "Retry"+c.field)
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

func TestC1_EveryNumberOfACircuitIsValidated(t *testing.T) {
	for _, c := range []struct {
		field string
		bad   eventbus.CircuitOption
	}{
		{".FailureRatio", eventbus.FailureRatio(-0.1)},
		{".FailureRatio", eventbus.FailureRatio(1)},
		{".FailureRatio", eventbus.FailureRatio(math.NaN())},
		{".FailureRatio", eventbus.FailureRatio(math.Inf(1))},
		{".MinEvents", eventbus.MinEvents(0)},
		{".MinEvents", eventbus.MinEvents(-1)},
		{".MinEvents", eventbus.MinEvents(math.MaxInt)},
		{".Window", eventbus.Window(0)},
		{".Window", eventbus.Window(12*time.Millisecond - 1)},
		{".Window", eventbus.Window(-time.Minute)},
		{".OpenFor", eventbus.OpenFor(0)},
		{".OpenFor", eventbus.OpenFor(time.Millisecond - 1)},
		{".OpenFor", eventbus.OpenFor(-1)},
		{"", nil},
	} {
		_, err := eventbus.New(eventbus.WithCircuit(c.bad))
		bRequireOptionError(t, err, "WithCircuit"+c.field)
		bus, _ := newBus(t)
		_, err = bus.Subscribe("a", ok, eventbus.Circuit(c.bad))
		bRequireOptionError(t, err, "Circuit"+c.field)
		require.Empty(t, bus.Metrics().Subscriptions, "the bus is unchanged")
	}
	bus, _ := newBus(t)
	for _, w := range []eventbus.WhenOpen{-1, 3} {
		_, err := bus.Subscribe("a", ok, w)
		bRequireOptionError(t, err, "WhenOpen")
	}
}

func bRequireOptionError(t *testing.T, err error, option string) {
	t.Helper()
	require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	var o *eventbus.OptionError
	require.ErrorAs(t, err, &o)
	require.Equal(t, option, o.Option)
	require.NotEmpty(t, o.Reason)
	require.Contains(t, err.Error(), option)
}

func TestP8_PermanentAndRetryAfterOfNilAreNil(t *testing.T) {
	require.NoError(t, eventbus.Permanent(nil))
	require.NoError(t, eventbus.RetryAfter(nil, time.Second))
	cause := errors.New("cause")
	require.ErrorIs(t, eventbus.Permanent(cause), cause)
	require.ErrorIs(t, eventbus.RetryAfter(cause, time.Second), cause)
	require.EqualError(t, eventbus.RetryAfter(eventbus.Permanent(cause), time.Second), "cause")
	require.NotErrorIs(t, eventbus.Permanent(cause), context.Canceled)
}
