package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// ordered notes what has become of the deliveries of random events to several subscriptions.
type ordered struct {
	mu      sync.Mutex
	w       *rand.Rand
	sick    bool
	running map[string]context.Context // by subscription and key
	handled map[string][]int           // in their order
	ids     []eventbus.EventID
	acted   map[eventbus.EventID]bool // Cancel or GiveUp may have done something
	broken  []string
	repeats bool // the store fails: deliveries are repeated, and actions may not know what they have done
}

func newOrdered(seed int) *ordered {
	return &ordered{
		w: rand.New(rand.NewPCG(uint64(seed), 11)), sick: true, running: make(map[string]context.Context), handled: make(map[string][]int),
		acted: make(map[eventbus.EventID]bool),
	}
}

func (o *ordered) random(n int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.IntN(n)
}

// begin notes that a call begins.
func (o *ordered) begin(ctx context.Context, at, key string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if key == "" {
		return
	}
	if r := o.running[at]; r != nil && r.Err() == nil && !o.repeats {
		o.broken = append(o.broken, "two run at "+at)
	}
	if slices.ContainsFunc(o.handled[at], func(m int) bool { return m > n || m == n && !o.repeats }) {
		o.broken = append(o.broken, fmt.Sprintf("%s: %d after %v", at, n, o.handled[at]))
	}
	o.running[at] = ctx
}

// end notes that a call ends, and returns whether it is sick.
func (o *ordered) end(ctx context.Context, at string, n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running[at] == ctx {
		delete(o.running, at)
	}
	if err == nil {
		o.handled[at] = append(o.handled[at], n)
	}
}

func (o *ordered) handler(name string) eventbus.Handler {
	return eventbus.Typed(func(ctx context.Context, n int) (err error) {
		d, _ := eventbus.FromContext(ctx)
		at := name + " " + d.Event.Key
		o.begin(ctx, at, d.Event.Key, n)
		defer func() { o.end(ctx, at, n, err) }()
		o.mu.Lock()
		sick := o.sick
		o.mu.Unlock()
		if !sick {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(o.random(2000)) * time.Millisecond):
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch o.random(10) {
		case 0, 1, 2:
			return errBoom
		case 3:
			return eventbus.Snooze(time.Duration(1+o.random(60)) * time.Second)
		case 4:
			return eventbus.Throttle(errBoom, time.Duration(1+o.random(5))*time.Second)
		}
		return nil
	})
}

// act does something at random to a random event.
func (o *ordered) act(t *testing.T, bus *eventbus.Bus, names []string) {
	t.Helper()
	o.mu.Lock()
	id := o.ids[len(o.ids)-1-o.w.IntN(min(40, len(o.ids)))]
	o.mu.Unlock()
	opts := []eventbus.ActionOption{eventbus.By("ann")}
	if o.random(2) == 0 {
		opts = append(opts, eventbus.OfSubscription(names[o.random(len(names))]))
	}
	ctx := context.WithoutCancel(t.Context())
	ends := func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.acted[id] = true
	}
	var err error
	switch o.random(4) {
	case 0:
		ends()
		_, err = bus.Cancel(ctx, id, opts...)
	case 1:
		ends()
		_, err = bus.GiveUp(ctx, id, opts...)
	default:
		if o.random(2) == 0 {
			opts = append(opts, eventbus.Probe())
		}
		_, err = bus.RetryNow(ctx, id, opts...)
	}
	if err != nil && !nothingLeft(err) && !errors.Is(err, eventbus.ErrNothingDone) && !o.repeats {
		t.Error(err)
	}
}

func (o *ordered) subscribe(t *testing.T, bus *eventbus.Bus) (all []*eventbus.Subscription) {
	t.Helper()
	long := eventbus.Timeout(time.Hour)
	all = append(all,
		mustSubscribe(t, bus, "*", o.handler("a"), eventbus.Named("a"), long, eventbus.Concurrency(2)),
		mustSubscribe(t, bus, "*", o.handler("b"), eventbus.Named("b"), long, eventbus.PerDestination(func(e eventbus.Event) string {
			return fmt.Sprint(int(e.ID[15]) % 3)
		})),
		mustSubscribe(t, bus, "*", o.handler("c"), eventbus.Named("c"), long, eventbus.RateLimit(2, time.Second, 2), eventbus.Circuit(eventbus.NoCircuit())))
	return all
}

func (o *ordered) storm(t *testing.T, bus *eventbus.Bus, all []*eventbus.Subscription, events int) {
	t.Helper()
	var acting sync.WaitGroup
	for range events {
		var opts []eventbus.PublishOption
		if o.random(4) > 0 {
			opts = append(opts, eventbus.Key(fmt.Sprint("k", o.random(3), all == nil)))
		}
		if o.random(10) == 0 {
			opts = []eventbus.PublishOption{eventbus.After(time.Duration(o.random(60)) * time.Second)}
		}
		id := eventbus.NewEventID()
		o.mu.Lock()
		n := len(o.ids)
		o.ids = append(o.ids, id)
		o.mu.Unlock()
		_, err := bus.Publish(t.Context(), "x", n, append(opts, eventbus.ID(id))...)
		if err != nil {
			require.True(t, o.repeats, "%v", err)
			o.mu.Lock()
			o.acted[id] = true // perhaps it was not accepted
			o.mu.Unlock()
			time.Sleep(time.Second)
			continue
		}
		time.Sleep(time.Duration(o.random(1500)) * time.Millisecond)
		for range o.random(4) {
			acting.Go(func() { o.act(t, bus, []string{"a", "b", "c"}) })
		}
		if o.repeats {
			continue
		}
		s := all[o.random(len(all))]
		switch o.random(20) {
		case 0:
			require.NoError(t, s.Pause())
		case 1, 2, 3:
			require.NoError(t, s.Resume())
		case 4:
			require.NoError(t, all[0].Trip())
		case 5:
			require.NoError(t, all[1].Destination(fmt.Sprint(o.random(3))).Trip())
		}
	}
	acting.Wait()
}

// calm looks at what is left.
func (o *ordered) calm(t *testing.T, bus *eventbus.Bus, all []*eventbus.Subscription) {
	t.Helper()
	o.mu.Lock()
	o.sick = false
	o.mu.Unlock()
	for _, s := range all {
		require.True(t, s.Resume() == nil || o.repeats)
	}
	time.Sleep(30 * time.Minute)
	require.NoError(t, bus.Drain(t.Context()))
	l := bus.Metrics().Ledger
	require.Zero(t, l.Queued+l.Running+l.Waiting+l.Held+l.Throttled+l.Snoozed+l.Scheduled+l.Stored, "%+v", l)
	require.Empty(t, o.broken)
	o.lookAtAll(t, bus)
	m := bus.Metrics()
	require.Zero(t, m.AbandonedHandlers)
	shutdown(t, bus)
}

// lookAtAll requires that nothing happened twice, and that what no operator has ended was handled.
func (o *ordered) lookAtAll(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	seen := make(map[string]bool)
	done := func(n int, at string) {
		what := fmt.Sprint(n, " ", at)
		require.False(t, seen[what] && !o.repeats, "twice: %s", what)
		seen[what] = true
	}
	for at, all := range o.handled {
		for _, n := range all {
			done(n, at[:1])
		}
	}
	for _, l := range letters(t, bus) {
		n, ok := l.Event.Payload.(int)
		if !ok {
			require.NoError(t, json.Unmarshal(l.Event.Payload.(json.RawMessage), &n))
		}
		require.True(t, o.acted[l.Event.ID], "%+v", l)
		for _, name := range append(l.NotReached, l.Subscription) {
			done(n, name)
		}
	}
	for n, id := range o.ids {
		for _, name := range []string{"a", "b", "c"} {
			require.True(t, o.acted[id] || seen[fmt.Sprint(n, " ", name)], "%d is lost at %s", n, name)
		}
	}
}

// Actions at random, several at once, beside failures, snoozes and directives: nothing is lost, nothing stays, and keys keep their order.
func TestV1_RandomActions(t *testing.T) {
	for round := range searching(100, 4) {
		opts := []eventbus.Option{eventbus.WithConcurrency(4), eventbus.WithRetry(retry(eventbus.Unlimited, 5*time.Second))}
		if round%2 == 1 {
			opts = append(opts, eventbus.WithIsolation())
		}
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			inMemoryAndStore(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
				o := newOrdered(round)
				bus := open(opts...)
				all := o.subscribe(t, bus)
				require.NoError(t, bus.Start(t.Context()))
				o.storm(t, bus, all, 150)
				o.calm(t, bus, all)
			})
		})
	}
}

// The same with a store that fails now and then.
func TestV1_RandomActionsAndFailures(t *testing.T) {
	for round := range searching(100, 4) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrdered(round)
				o.repeats = true
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					o.mu.Lock()
					defer o.mu.Unlock()
					if !o.sick || len(o.ids) == 0 {
						return f
					}
					f.Delay = time.Duration(o.w.IntN(20)) * time.Millisecond
					if rare := o.w.IntN(300); rare < 2 || rare < 20 && len(b.Audit) > 0 {
						f.Kind = []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter}[rare%2]
					}
					return f
				}))
				bus, _ := disk.open(t, eventbus.WithConcurrency(4), eventbus.WithRetry(retry(eventbus.Unlimited, 5*time.Second)))
				all := o.subscribe(t, bus)
				require.NoError(t, bus.Start(t.Context()))
				o.storm(t, bus, all, 150)
				o.calm(t, bus, all)
				require.Empty(t, disk.Dump().Records)
			})
		})
	}
}

// The same while the lease moves between two buses. Actions come from either.
func TestV1_RandomActionsAndLeases(t *testing.T) {
	for round := range searching(100, 4) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrdered(round)
				o.repeats = true
				disk := newDisk()
				opts := []eventbus.Option{eventbus.WithStandby(), eventbus.WithConcurrency(4), eventbus.WithRetry(retry(eventbus.Unlimited, 5*time.Second))}
				one, _ := disk.open(t, opts...)
				all := o.subscribe(t, one)
				two, _ := disk.open(t, opts...)
				o.subscribe(t, two)
				require.NoError(t, one.Start(t.Context()))
				started := make(chan error, 1)
				go func() { started <- two.Start(context.WithoutCancel(t.Context())) }()
				done := make(chan struct{})
				var moving sync.WaitGroup
				moving.Go(func() {
					for {
						select {
						case <-done:
							return
						case <-time.After(time.Duration(5+o.random(20)) * time.Second):
							disk.LoseLease(o.random(2) == 0)
						}
					}
				})
				moving.Go(func() { o.storm(t, two, nil, 75) })
				o.storm(t, one, all, 75)
				close(done)
				moving.Wait()
				o.mu.Lock()
				o.sick = false
				o.mu.Unlock()
				time.Sleep(30 * time.Minute)
				require.Empty(t, disk.Dump().Records)
				o.lookAtAll(t, one)
				shutdown(t, one)
				require.NoError(t, <-started)
				shutdown(t, two)
			})
		})
	}
}
