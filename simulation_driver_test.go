package eventbus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
)

// simulation is one schedule. The driver is the only goroutine that decides
// anything; handlers wait at their gates for its orders.
type simulation struct {
	rng    *rand.Rand
	seed   uint64
	origin time.Time
	bus    *eventbus.Bus
	model  *simModel
	trace  bytes.Buffer

	steps     int
	sure      int           // see simResult
	looked    [4]int        // lengths of the trace at the last looks
	last      time.Duration // when the driver has looked last
	books     eventbus.Ledger
	compared  int // letters that the model had made or removed then
	letters   map[string]eventbus.LetterID
	ids       []eventbus.EventID // of the events; zero for those that somebody waits for
	calls     []*simCall         // at their gates, or in an order
	waits     []*simWait
	failing   float64 // which part of the handlers fails
	keyed     float64 // which part of the events has a key
	names     int     // of subscriptions
	ended     chan error
	violation string
	free      chan struct{} // closed: the gates are open

	mu      sync.Mutex
	arrived []*simCall
}

// simCall is a call of a handler, which waits at its gate for orders.
type simCall struct {
	ctx      context.Context
	name     string
	event    eventbus.Event
	start    time.Time
	deadline time.Time
	gate     chan simOrder
	sub      *simSub
	dispatch *simDispatch // nil once it has been given up
	wait     *simWait     // for an event that it has published
}

// simOrder is what a handler does next. It returns when it says that it is done.
type simOrder func() (done bool, err error)

// simWait is a PublishAndWait.
type simWait struct {
	event     int
	model     *simWaiter
	call      *simCall // whose handler it is
	cancel    context.CancelFunc
	cancelled bool
	done      atomic.Bool
	result    eventbus.Result
	err       error
}

func (s *simulation) now() time.Duration { return time.Since(s.origin) }

func (s *simulation) logf(format string, args ...any) {
	fmt.Fprintf(&s.trace, "%14s  ", s.last)
	fmt.Fprintf(&s.trace, format, args...)
	s.trace.WriteByte('\n')
}

// chance is true with a probability.
func (s *simulation) chance(p float64) bool { return s.rng.Float64() < p }

func simPick[T any](s *simulation, of ...T) T { return of[s.rng.IntN(len(of))] }

// odd is up to d, and no round number: nothing falls together by chance.
func (s *simulation) odd(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d))) | 1
}

// random is what the bus draws at an instant: the same whoever draws first.
func (s *simulation) random(at time.Duration) float64 {
	x := uint64(at) ^ s.seed<<40
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}

// handler is the handler of a subscription.
func (s *simulation) handler(sub *simSub) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		c := &simCall{ctx: ctx, event: e, start: time.Now(), gate: make(chan simOrder), sub: sub}
		c.deadline, _ = ctx.Deadline() // asked early, it is exact
		c.name = simCallName(e.Payload.(int), d.Subscription, d.Attempt, d.Replays)
		s.mu.Lock()
		s.arrived = append(s.arrived, c)
		s.mu.Unlock()
		for {
			select {
			case order := <-c.gate:
				if done, err := order(); done {
					return err
				}
			case <-s.free:
				return nil
			}
		}
	}
}

// run is the whole schedule.
func (s *simulation) run() {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case simViolation:
			s.violation = string(r)
			if s.bus != nil {
				metrics := s.bus.Metrics()
				s.logf("the bus: %+v %+v", metrics.Ledger, metrics.Subscriptions)
			}
			for _, sub := range s.model.subs {
				s.logf("the model: %s, circuit %+v, holding %s", sub.name, sub.circuit, sub.simHolding.String())
			}
		default:
			s.violation = fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	s.setUp()
	steps := 30 + s.rng.IntN(120)
	start := 0
	if s.chance(0.2) {
		start = s.rng.IntN(12)
	}
	end := simPick(s, "settled", "settled", "under way", "cut", "cut")
	if end == "cut" && s.chance(0.03) {
		start, steps = -1, 10
	}
	for s.steps = 0; s.steps < steps && !s.model.ending; s.steps++ {
		if s.steps == start {
			s.logf("start")
			simCheck(s.bus.Start(context.Background()) == nil, "Start failed")
			s.model.started = true
			s.settle()
		}
		s.act()
	}
	if !s.model.started && start >= 0 {
		simCheck(s.bus.Start(context.Background()) == nil, "Start failed")
		s.model.started = true
		s.settle()
	}
	s.finish(end)
}

func (s *simulation) setUp() {
	m := &simModel{
		policy: eventbus.RetryPolicy{
			MaxRetries: s.rng.IntN(4), BaseDelay: simPick(s, 0, 100*time.Millisecond, time.Second) + s.odd(time.Millisecond),
			MaxDelay: simPick(s, time.Second, 30*time.Second), BackoffMultiplier: simPick(s, 1, 2, 3.5),
			MaxElapsed: simPick(s, 0, 0, 20*time.Second), Jitter: eventbus.ProportionalJitter,
		},
		concurrency: simPick(s, eventbus.DefaultConcurrency, eventbus.DefaultConcurrency, 1, 1, 3),
		capacity:    simPick(s, eventbus.DefaultQueueCapacity, eventbus.DefaultQueueCapacity, 3, 6),
		isolation:   s.chance(0.25), keys: simKeys{},
		random: s.random, types: map[string]*eventbus.TypeMetrics{}, unfinished: map[string]bool{}, idle: -1,
	}
	s.model, s.failing, s.keyed = m, simPick(s, 0.1, 0.4, 0.6, 0.9), simPick(s, 0, 0, 0.3, 0.8)
	m.policy.Jitter = simPick(s, eventbus.ProportionalJitter, eventbus.NoJitter)
	options := []eventbus.Option{
		eventbus.WithRetry(m.policy), eventbus.WithConcurrency(m.concurrency), eventbus.WithQueueCapacity(m.capacity),
	}
	if m.capacity < eventbus.DefaultQueueCapacity {
		options = append(options, eventbus.RefuseWhenFull())
	}
	if m.isolation {
		options = append(options, eventbus.WithIsolation())
	}
	bus, err := eventbus.New(options...)
	simCheck(err == nil, "New: %v", err)
	eventbus.SetRandom(bus, func() float64 { return s.random(s.now()) })
	s.bus = bus
	s.logf("bus %+v, concurrency %d, capacity %d, isolation %v", m.policy, m.concurrency, m.capacity, m.isolation)
	for range 1 + s.rng.IntN(4) {
		s.subscribe()
	}
}

// subscribe makes a subscription, sometimes under the name of one that is no more.
func (s *simulation) subscribe() {
	s.names++
	sub := &simSub{
		name: fmt.Sprintf("s%d", s.names), pattern: simPick(s, "*", "a.*", "b.x", "*.x", "{a.y,c}"),
		timeout: simPick(s, time.Second, 10*time.Second, 30*time.Second) + s.odd(time.Millisecond),
	}
	if s.names > 1 && s.chance(0.3) {
		old := fmt.Sprintf("s%d", 1+s.rng.IntN(s.names-1))
		if !slices.ContainsFunc(s.model.subs, func(x *simSub) bool { return x.name == old }) {
			sub.name = old
		}
	}
	options := []eventbus.SubscribeOption{eventbus.Named(sub.name), eventbus.Timeout(sub.timeout)}
	var retry []eventbus.RetryOption
	override := func(field string, o eventbus.RetryOption) {
		sub.set += field
		retry = append(retry, o)
	}
	for _, field := range []string{"R", "B", "M", "X", "E", "J"} {
		if s.chance(0.8) {
			continue
		}
		switch p := &sub.retry; field {
		case "R":
			p.MaxRetries = simPick(s, 0, 1, 2, 2, 3, 5, eventbus.Unlimited)
			override(field, eventbus.MaxRetries(p.MaxRetries))
		case "B":
			p.BaseDelay = simPick(s, 0, 20*time.Millisecond+s.odd(time.Second), s.odd(10*time.Second))
			override(field, eventbus.BaseDelay(p.BaseDelay))
		case "M":
			p.MaxDelay = simPick(s, s.odd(10*time.Second), s.odd(time.Minute))
			override(field, eventbus.MaxDelay(p.MaxDelay))
		case "X":
			p.BackoffMultiplier = simPick(s, 1, 1.5, 3)
			override(field, eventbus.BackoffMultiplier(p.BackoffMultiplier))
		case "E":
			p.MaxElapsed = simPick(s, 0, s.odd(time.Minute))
			override(field, eventbus.MaxElapsed(p.MaxElapsed))
		case "J":
			p.Jitter = simPick(s, eventbus.ProportionalJitter, eventbus.FullJitter, eventbus.EqualJitter, eventbus.NoJitter)
			override(field, p.Jitter)
		}
	}
	options = append(options, eventbus.Retry(retry...))
	c := &sub.circuit
	window := simPick(s, 12*time.Second, time.Minute, time.Minute)
	c.ratio, c.minEvents, c.step = simPick(s, 0, 0.3, 0.5, 0.5), simPick(s, 1, 2, 3, 4), window/12
	c.openFor = simPick(s, 5*time.Second, 30*time.Second) + s.odd(time.Millisecond)
	circuit := []eventbus.CircuitOption{
		eventbus.FailureRatio(c.ratio), eventbus.MinEvents(c.minEvents), eventbus.Window(window), eventbus.OpenFor(c.openFor),
	}
	if c.disabled = s.chance(0.1); c.disabled {
		circuit = append(circuit, eventbus.NoCircuit())
	}
	sub.whenOpen = simPick(s, eventbus.HoldWhenOpen, eventbus.HoldWhenOpen, eventbus.DeadLetterWhenOpen, eventbus.DropWhenOpen)
	sub.holds, sub.behind = simPick(s, 1, 3, eventbus.DefaultHoldCapacity, eventbus.DefaultHoldCapacity), map[string][]*simDispatch{}
	options = append(options, eventbus.Circuit(circuit...), sub.whenOpen, eventbus.HoldCapacity(sub.holds))
	made, err := s.bus.Subscribe(sub.pattern, s.handler(sub), options...)
	s.logf("subscribe %s %q timeout %s, overrides %q %+v, circuit %+v, %v", sub.name, sub.pattern, sub.timeout, sub.set, sub.retry, c, err)
	if s.model.ending {
		simCheck(errors.Is(err, eventbus.ErrShutdown), "Subscribe: %v", err)
		return
	}
	simCheck(err == nil, "Subscribe: %v", err)
	sub.made = made
	s.model.subscribe(sub)
}

// act does one thing.
func (s *simulation) act() {
	s.sleep(s.odd(3 * time.Microsecond))
	var gated, late []*simCall
	for _, c := range s.calls {
		switch {
		case c.wait != nil:
		case c.dispatch != nil:
			gated = append(gated, c)
		default:
			late = append(late, c)
		}
	}
	call := func() *simCall { return gated[s.rng.IntN(len(gated))] }
	n := s.rng.IntN(1000)
	does := func(weight int) bool {
		n -= weight
		return n < 0
	}
	switch m := s.model; {
	case does(220):
		s.publish()
	case does(30) && m.capacity == eventbus.DefaultQueueCapacity:
		s.publishBatch()
	case does(30) && len(m.subs) > 0:
		s.operate(m.subs[s.rng.IntN(len(m.subs))], simPick(s, "trip", "reset", "pause", "hold", "resume", "resume"))
	case does(15) && len(m.scheduled) > 0:
		s.cancelScheduled()
	case does(160):
		s.advance()
	case does(30):
		s.publishAndWait(nil)
	case does(40) && len(m.letters) > 0:
		s.replay(m.letters[s.rng.IntN(len(m.letters))])
	case does(15):
		s.replayMatching()
	case does(10) && len(m.letters) > 0:
		s.purge(m.letters[s.rng.IntN(len(m.letters))])
	case does(5):
		s.purgeMatching()
	case does(15) && len(m.subs) < 6:
		s.subscribe()
	case does(12) && len(m.subs) > 0:
		s.unsubscribe(m.subs[s.rng.IntN(len(m.subs))], nil)
	case does(10) && len(s.waits) > 0:
		w := s.waits[s.rng.IntN(len(s.waits))]
		if w.cancel != nil {
			s.logf("cancel the wait for e%d", w.event)
			w.cancelled = true
			w.cancel()
		}
	case does(60) && len(late) > 0:
		s.release(late[s.rng.IntN(len(late))], s.chance(s.failing))
	case len(gated) == 0:
		s.advance()
	case does(40):
		s.publishInside(call())
	case does(30):
		s.publishAndWait(call())
	case does(10) && !call().sub.removed:
		if c := call(); !c.sub.removed {
			s.unsubscribe(c.sub, c)
		}
	case does(2):
		s.shutdownInside(call())
	default:
		s.release(call(), s.chance(s.failing))
	}
	s.settle()
}

// sleep lets time pass, and stops to look whenever something happens.
func (s *simulation) sleep(d time.Duration) {
	for target := s.last + d; s.last < target; {
		next := min(target, s.model.nextInstant())
		if c := s.tied(target); c != nil {
			s.conclude(c, simPick(s, "error", "permanent")) // or they could be tied for ever
			s.look()
			next = min(s.last+s.odd(time.Microsecond), s.model.nextInstant())
		}
		if s.model.started && len(s.model.queue) > 0 {
			if s.model.active() < s.model.concurrency {
				next = min(next, s.last+100*time.Microsecond)
			}
			if before := s.model.nextInstant() - 2; next >= before && before > s.last {
				next = before // what has been taken until then was taken before it
			}
		}
		// A nanosecond later, so that what happens then has happened.
		time.Sleep(next + 1 - s.now())
		s.look()
	}
}

// tied is a call that would overrun at the same instant as another, or some of the
// lanes' ticks apart, so that their retries would come due at a tick: which of two
// failures opens a circuit, and what is let in before, is nobody's decision then.
func (s *simulation) tied(target time.Duration) *simCall {
	const tick = 500 * time.Microsecond
	seen := map[time.Duration]*simCall{}
	for _, d := range s.model.waiting {
		if d.due <= target+10*tick {
			seen[d.due%tick] = nil
		}
	}
	for _, c := range s.calls {
		if c.dispatch == nil || c.dispatch.deadline > target+10*tick {
			continue
		}
		other, tied := seen[c.dispatch.deadline%tick]
		switch {
		case tied && c.wait == nil:
			return c
		case tied && other != nil && other.wait == nil:
			return other
		}
		seen[c.dispatch.deadline%tick] = c
	}
	return nil
}

// settle lets the workers take what they can.
func (s *simulation) settle() {
	s.look()
	for s.model.started && len(s.model.queue) > 0 && s.model.active() < s.model.concurrency {
		s.sleep(100 * time.Microsecond)
	}
}

// advance lets some time pass.
func (s *simulation) advance() {
	d := s.odd(2 * time.Millisecond)
	switch s.rng.IntN(6) {
	case 0:
		d = s.odd(2 * time.Second)
	case 1:
		d = 5*time.Second + s.odd(2*time.Millisecond)
	case 2:
		d = 30*time.Second + s.odd(2*time.Millisecond)
	case 3:
		if s.chance(0.3) {
			d = time.Minute
		}
	case 4:
		if next := s.model.nextInstant(); next < math.MaxInt64 {
			d = next - s.last + 1
		}
	}
	if len(s.model.queue) > 0 && !s.chance(0.05) {
		d = min(d, s.odd(2*time.Second)) // the lanes tick all the while
	}
	s.logf("advance %s", d)
	s.sleep(d)
}
