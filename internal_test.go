package eventbus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/race"
	"github.com/surebus/eventbus/storetest"
)

// A delivery counts as running before it asks the door. If the running call ends before the door
// refuses the delivery, the call finds the limit reached and releases nothing.
func TestD11_ARefusedDeliveryReleasesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, err := New()
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		end := make(chan struct{})
		var handled []any
		s, err := bus.Subscribe("x", func(_ context.Context, e Event) error {
			<-end
			handled = append(handled, e.Payload)
			return nil
		}, Concurrency(1), LineCapacity(1), DropNewestWhenFull)
		require.NoError(t, err)
		for _, payload := range []any{"running", "throttled"} {
			_, err = bus.Publish(t.Context(), "x", payload)
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond) // until the pool has another worker
		}
		require.Equal(t, 1, bus.Metrics().Throttled)

		s.door.running.Add(1) // as enter does first
		close(end)
		synctest.Wait()
		require.Equal(t, []any{"running"}, handled)
		s.door.running.Add(-1) // the refused delivery is dropped

		d := &dispatch{to: bus.registry.routes.Find("x", 0)}
		_, why := s.door.enter(bus, d)
		require.Same(t, behindLine, why)
		synctest.Wait()
		require.Equal(t, []any{"running", "throttled"}, handled)
		require.NoError(t, bus.Shutdown(t.Context()))
	})
}

// Of calls that begin after a Throttle, one that was admitted and did not begin lets no more begin.
func TestF8_ACallThatDidNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, err := New()
		require.NoError(t, err)
		s, err := bus.Subscribe("x", func(context.Context, Event) error { return nil })
		require.NoError(t, err)
		s.door.slow(bus.time.Nanos())
		for range 3 {
			d := &dispatch{to: bus.registry.routes.Find("x", 0)}
			pass, why := s.door.enter(bus, d)
			require.Nil(t, why)
			s.door.exit(bus, d, pass, notCalled)
		}
		_, why := s.door.enter(bus, &dispatch{to: bus.registry.routes.Find("x", 0)})
		require.Nil(t, why)
		_, why = s.door.enter(bus, &dispatch{to: bus.registry.routes.Find("x", 0)})
		require.Same(t, slowed, why)
		s.door.end()
		require.NoError(t, bus.Shutdown(t.Context()))
	})
}

// crew is a bus with a store and a subscription whose lines have room for 4. An event's type is its destination.
type crew struct {
	*testing.T
	bus *Bus
	sub *Subscription

	mu   sync.Mutex // guards the following
	took []string   // handled events: type and payload
}

func (c *crew) handled() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.took)
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	bus, err := New(WithStore(storetest.NewModel().Open()))
	require.NoError(t, err)
	c := &crew{T: t, bus: bus}
	c.sub, err = bus.Subscribe("*", func(_ context.Context, e Event) error {
		c.mu.Lock()
		c.took = append(c.took, fmt.Sprintf("%s%s", e.Type, e.Payload))
		c.mu.Unlock()
		if e.Type == "a" {
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}, Named("crew"), PerDestination(func(e Event) string { return e.Type }), Concurrency(1))
	require.NoError(t, err)
	small := *c.sub.door.terms()
	small.capacity = 4 // as DefaultLineCapacity: LineCapacity would turn off that a line goes on in the store
	c.sub.door.sets(small)
	require.NoError(t, bus.Start(t.Context()))
	return c
}

// publish publishes events to a destination, and lets each come to its door.
func (c *crew) publish(to string, first, n int, opts ...PublishOption) {
	c.Helper()
	for i := range n {
		_, err := c.bus.Publish(c.Context(), to, first+i, opts...)
		require.NoError(c, err)
		time.Sleep(time.Millisecond)
	}
}

func (c *crew) pause(to string)  { require.NoError(c, c.sub.Destination(to).Pause()) }
func (c *crew) resume(to string) { require.NoError(c, c.sub.Destination(to).Resume()) }

// waitBehindADeadOne makes deliveries wait at "a" behind one of their key that waits for "dead".
func (c *crew) waitBehindADeadOne(to string, n int) {
	c.pause("dead")
	c.pause("a")
	c.publish("a", 0, 1, Key("k"))
	c.publish("dead", 0, 1, Key("k"))
	c.resume("a")
	time.Sleep(time.Second)
	c.publish(to, 1000, n, Key("k"))
	c.pause("a")
}

func TestD13_LinesThatGoOnInTheStore(t *testing.T) {
	for name, test := range map[string]func(*crew){
		"a key goes on that waits nowhere": func(c *crew) {
			c.pause("a")
			c.publish("a", 0, 1, Key("k"))
			c.publish("a", 1, 12)
			c.resume("a")
			time.Sleep(150 * time.Millisecond)
			c.pause("a")
			c.publish("well", 1, 1, Key("k"))
			require.Equal(c, []string{"a0", "a1", "well1"}, c.handled())
		},
		"a key goes on whose first was elsewhere": func(c *crew) {
			c.waitBehindADeadOne("well", 1)
			c.publish("a", 1, 5)
			c.publish("well", 2000, 1, Key("k"))
			c.resume("dead")
			time.Sleep(time.Minute)
			require.Equal(c, []string{"a0", "dead0", "well1000", "well2000"}, c.handled(), "none of the key waits for a")
		},
		"the lines of all were full": func(c *crew) {
			c.waitBehindADeadOne("dead", 5)
			c.resume("a")
			others := []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11"}
			for _, to := range others {
				c.pause(to)
				c.publish(to, 0, 4)
			}
			c.publish("a", 1, 3) // the second finds the limit reached
			time.Sleep(time.Hour)
			for _, to := range others {
				c.resume(to)
			}
			time.Sleep(time.Minute)
			require.Subset(c, c.handled(), []string{"a1", "a2", "a3"}, "there is room again")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrew(t)
				test(c)
				require.NoError(t, c.bus.Shutdown(context.Background()))
			})
		})
	}
}

// While the first of a key moves from the subscription's own door to its destination, a later one must not pass those that only
// the store has for the own door.
func TestD13_NoneOvertakesWhileTheFirstMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t)
		first := &dispatch{key: "k", to: c.bus.registry.routes.Find("a", 0)}
		later := &dispatch{key: "k", to: first.to}
		o := c.sub.door
		o.mu.Lock()
		o.spill.onDisk = true
		o.line.Sit(first)
		o.line.Lend(first)
		require.True(t, o.goesToStoreLocked(later))
		o.line.Return(first)
		o.spill.onDisk = false
		o.mu.Unlock()
		require.NoError(t, c.bus.Shutdown(context.Background()))
	})
}

// What happens while a subscription takes a detached one over counts where it goes on.
func TestD14_CallsThatEndWhileTheyAreTakenOver(t *testing.T) {
	bus, err := New()
	require.NoError(t, err)
	var sub *Subscription
	subscribe := func() {
		sub, err = bus.Subscribe("ship", func(context.Context, Event) error { return nil },
			Named("ships"), PerDestination(func(e Event) string { return e.Key[:1] }), Concurrency(1))
		require.NoError(t, err)
	}
	subscribe()
	require.NoError(t, bus.Start(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var publishers sync.WaitGroup
	for i := range 2 {
		publishers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, _ = bus.Publish(ctx, "ship", n, Key(fmt.Sprint((i+n)%5, "k", n%40)))
				time.Sleep(10 * time.Microsecond)
			}
		})
	}
	takeOvers := 5000
	if race.Enabled {
		takeOvers = 30
	}
	for range takeOvers {
		require.NoError(t, sub.Detach())
		subscribe()
		runtime.Gosched()
	}
	cancel()
	publishers.Wait()
	require.NoError(t, bus.Shutdown(t.Context()))
	require.Zero(t, sub.destinations.seats.Load())
	for to := range 5 {
		for i := range 40 {
			require.Nil(t, sub.destinations.homes.Of(fmt.Sprint(to, "k", i)))
		}
	}
}

// A delivery may reach the store while a claim that cannot see it yet is in progress. Then the door
// asks again: it must not let later deliveries in meanwhile.
func TestD5_AClaimMissesADeliveryThatIsNotCommitted(t *testing.T) {
	o := &door{}
	o.sets(terms{capacity: 10, of: &Subscription{}})
	o.recover()
	o.roomToClaim(10)
	require.False(t, o.claimEnded(false))
	require.False(t, o.spill.onDisk)

	d := &dispatch{to: &targets{subscriptions: []*Subscription{{}}}}
	o.mu.Lock()
	o.spillLocked(d, held)
	o.mu.Unlock()
	o.roomToClaim(10)
	o.spillCommitted() // the store has it now
	require.True(t, o.claimEnded(false), "it does not ask again")
	require.True(t, o.spill.onDisk)
	o.roomToClaim(10)
	require.False(t, o.claimEnded(false))
	require.False(t, o.spill.onDisk)
}

// The largest value that rand.Float64 returns.
const almostOne = 1 - 1.0/(1<<53)

func TestP3_JitterKeepsItsBoundsForEveryPolicyAndAttempt(t *testing.T) {
	duration := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "nanos") >> rapid.IntRange(0, 62).Draw(t, "shift"))
	})
	rapid.Check(t, func(t *rapid.T) {
		p := RetryPolicy{
			BaseDelay:         duration.Draw(t, "BaseDelay"),
			MaxDelay:          duration.Draw(t, "MaxDelay"),
			BackoffMultiplier: rapid.Float64Range(1, 10).Draw(t, "BackoffMultiplier"),
		}
		attempt := rapid.OneOf(rapid.IntRange(2, 70), rapid.IntRange(2, 1_000_000)).Draw(t, "attempt")
		previous := min(duration.Draw(t, "previous"), p.MaxDelay)
		random := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, almostOne}), rapid.Float64Range(0, almostOne)).Draw(t, "random")

		d := float64(p.Delay(attempt))
		base := float64(min(p.BaseDelay, p.MaxDelay))
		slack := 1 + d*1e-12
		for j, bounds := range map[Jitter][2]float64{
			ProportionalJitter: {0.9 * d, min(1.1*d, math.MaxInt64)},
			NoJitter:           {d, d},
			FullJitter:         {0, d},
			EqualJitter:        {d / 2, d},
			DecorrelatedJitter: {base, min(3*max(float64(previous), base), float64(p.MaxDelay))},
		} {
			p.Jitter = j
			got := p.spread(attempt, previous, random)
			if got < 0 || float64(got) < bounds[0]-slack || float64(got) > bounds[1]+slack {
				t.Fatalf("%s of %s: %s is out of [%g, %g]", j, time.Duration(d), got, bounds[0], bounds[1])
			}
		}
	})
}

func TestP3_JitterReachesItsEnds(t *testing.T) {
	p := DefaultRetryPolicy()
	for _, c := range []struct {
		jitter    Jitter
		low, high time.Duration
	}{
		{ProportionalJitter, 900 * time.Millisecond, 1100 * time.Millisecond},
		{NoJitter, time.Second, time.Second},
		{FullJitter, 0, time.Second},
		{EqualJitter, 500 * time.Millisecond, time.Second},
		{DecorrelatedJitter, time.Second, 3 * time.Second},
	} {
		p.Jitter = c.jitter
		a, b := p.spread(2, 0, 0), p.spread(2, 0, almostOne)
		require.InDelta(t, float64(c.low), float64(min(a, b)), 2, c.jitter)
		require.InDelta(t, float64(c.high), float64(max(a, b)), 2, c.jitter)
	}
}

func TestP3_ProportionalJitterIsAppliedAfterTheCap(t *testing.T) {
	p := DefaultRetryPolicy()
	require.InDelta(t, float64(33*time.Second), float64(p.spread(100, 0, almostOne)), 1e3)
	require.InDelta(t, float64(27*time.Second), float64(p.spread(100, 0, 0)), 1e3)
}

func TestP6_NothingOverflowsHoweverLargeTheNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		extreme := rapid.SampledFrom([]time.Duration{0, 1, time.Second, math.MaxInt64 - 1, math.MaxInt64})
		p := RetryPolicy{
			MaxRetries:        Unlimited,
			BaseDelay:         extreme.Draw(t, "BaseDelay"),
			MaxDelay:          extreme.Draw(t, "MaxDelay"),
			BackoffMultiplier: rapid.SampledFrom([]float64{1, 2, math.MaxFloat64}).Draw(t, "BackoffMultiplier"),
			MaxElapsed:        extreme.Draw(t, "MaxElapsed"),
			Jitter:            NoJitter,
		}
		err := errors.New("broken")
		elapsed := extreme.Draw(t, "elapsed")
		if rapid.Bool().Draw(t, "clock set back") {
			elapsed = -elapsed
		}
		delay := p.Delay(2)
		if rapid.Bool().Draw(t, "RetryAfter") {
			delay = extreme.Draw(t, "after")
			err = RetryAfter(err, delay)
		}
		f := failedAttempt{number: 1, elapsed: elapsed, bound: p.MaxElapsed, verdict: &verdict{}}
		f.judge(err, nil)
		d := p.decide(&f, 0.5)
		// In floats, which are not exact here but never wrap around.
		sum, bound := float64(elapsed)+float64(delay), float64(p.MaxElapsed)
		switch {
		case p.MaxElapsed != 0 && sum > bound*1.01+2 && d.retry:
			t.Fatalf("retried %g after publication, bound %g", sum, bound)
		case (p.MaxElapsed == 0 || sum < bound*0.99-2) && (!d.retry || d.delay != delay):
			t.Fatalf("%+v, want a retry after %s", d, delay)
		case !d.retry && d.reason != ReasonExpired:
			t.Fatalf("%+v", d)
		}
	})
}

// Budgets are 32 bits wide inside.
func TestD4_TheLastAttemptOfTheLargestBudgetIsReached(t *testing.T) {
	p := DefaultRetryPolicy()
	p.MaxRetries = maxMaxRetries
	f := failedAttempt{number: math.MaxInt32 - 1, verdict: &verdict{}}
	f.judge(errors.New("broken"), nil)
	require.True(t, p.decide(&f, 0).retry)
	f.number++
	require.Equal(t, decision{reason: ReasonExhausted}, p.decide(&f, 0))
}

// A dispatch that does not fail pays nothing for rules.
func TestP7_SuccessCostsNothing(t *testing.T) {
	require.LessOrEqual(t, publishAllocs(t, WithRetryRules(RetryRule{Match: ErrorMatch{Codes: []string{"*"}}, Attempts: 3})), publishAllocs(t)+0.01)
}

// publishAllocs is what an event costs from Publish until it is handled.
func publishAllocs(t *testing.T, opts ...Option) float64 {
	t.Helper()
	b, err := New(opts...)
	require.NoError(t, err)
	_, err = b.Subscribe("a", func(context.Context, Event) error { return nil })
	require.NoError(t, err)
	for range 10_000 {
		if _, err := b.Publish(t.Context(), "a", nil); err != nil {
			t.Fatal(err)
		}
	}
	w := b.machine.workers().Open()
	defer b.machine.workers().Close(w)
	return testing.AllocsPerRun(5000, func() {
		if d, ok := b.machine.pool.TryTake(); ok {
			b.machine.run(w, d)
		}
	})
}

// The JSON in records is read by later versions: every field of an earlier one is read, and written as it was.
func TestC4_TheJSONOfRecordsIsStable(t *testing.T) {
	const failure = `{"attempt":1,"replays":1,"subscription":"mail","time":"2026-03-04T12:30:15.123456789Z","duration":1500000000,` +
		`"error":"boom","class":"*net.OpError","details":{"code":7},"rule":{"position":1,"name":"busy","subscription":"mail"}}`
	r := &driver.Record{
		Targets:  []string{"mail", "audit"},
		Metadata: []byte(`{"trace":"t-1"}`),
		Replay: []byte(`{"began":"2026-03-04T12:30:15.123456789Z","count":1,"succeeded":["audit"],"history":[` + failure + `],` +
			`"history_omitted":1,"edited":true,"original":"eyJvcmRlciI6N30="}`),
		Progress: []byte(`{"next":1,"skipped":[1],"attempts":1,"failures":[` + failure + `],"first_failures":1,"omitted":1,` +
			`"omitted_here":1,"previous_delay":1500000000,"parked_for":1500000000,` +
			`"budgets":[{"subscription":"mail","rule":1,"failures":1,"previous_delay":1500000000}],"part":true,"snoozes":2,"destination":"a","asleep_for":1500000000}`),
	}
	decoded, err := decodeRecord(r)
	require.NoError(t, err)
	var w batch
	require.Equal(t, string(r.Metadata), string(w.encode(decoded.metadata)))
	require.Equal(t, string(r.Replay), string(w.encode(decoded.replay)))
	require.Equal(t, string(r.Progress), string(w.encode(decoded.progress)))
	for text, into := range map[string]any{string(r.Replay): new(recordReplay), string(r.Progress): new(recordProgress)} {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(into))
	}
	for _, damaged := range []driver.Record{
		{Metadata: []byte(`{"a":1}`)},
		{Replay: []byte(`{`)},
		{Progress: []byte(`[]`)},
		{Progress: []byte(`{"next":3}`), Targets: r.Targets},
		{Progress: []byte(`{"next":2}`), Targets: []string{"the only one"}},
		{Progress: []byte(`{"next":-1}`)},
	} {
		_, err := decodeRecord(&damaged)
		require.ErrorContains(t, err, "cannot be decoded")
		require.ErrorAs(t, err, new(*DecodeError))
	}
	_, err = decodeRecord(&driver.Record{Progress: []byte(`{"next":2,"skipped":[1]}`), Targets: r.Targets}) // it only settles
	require.NoError(t, err)
}

// What cannot be encoded makes the store refuse the batch, in order.
func TestC4_WhatCannotBeEncodedIsRefused(t *testing.T) {
	var w batch
	w.encode(func() {})
	require.Error(t, w.err)
	w = batch{}
	r := &driver.Record{Progress: []byte("x")}
	require.Equal(t, &record{Record: r}, w.decode(r))
	require.Error(t, w.err)
}
