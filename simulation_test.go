package eventbus_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
)

var (
	simSchedules = flag.Int("schedules", 0, "schedules of TestSimulation (20,000, or 1,000 with -short)")
	simSeed      = flag.Int64("seed", -1, "the one schedule of TestSimulation to replay, and to print")
)

// TestSimulation runs the real bus in virtual time, with a gate in every handler.
// At each step everything is at rest, and a seeded driver picks what happens next:
// who goes on, fails, panics, exits or is given up, what is published, replayed,
// unsubscribed; a model of plain code is told the same, and must agree on all that
// can be seen. A seed makes the same schedule every time.
func TestSimulation(t *testing.T) {
	if *simSeed >= 0 {
		r := simulate(t, uint64(*simSeed))
		t.Logf("trace of seed %d:\n%s", *simSeed, r.trace)
		if r.violation != "" {
			t.Errorf("seed %d: %s", *simSeed, r.violation)
		}
		return
	}
	schedules := *simSchedules
	if schedules == 0 {
		if schedules = 20_000; testing.Short() {
			schedules = 1_000
		}
	}
	const compared = 50 // one schedule in so many is run twice
	var next, steps, virtual, violations atomic.Int64
	t.Run("schedules", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for seed := next.Add(1) - 1; seed < int64(schedules) && violations.Load() < 3; seed = next.Add(1) - 1 {
					r := simulate(t, uint64(seed))
					steps.Add(int64(r.steps))
					virtual.Add(int64(r.virtual))
					if r.violation == "" && seed%compared == 0 {
						if again := simulate(t, uint64(seed)); !bytes.Equal(r.trace, again.trace) {
							r.violation = "the same seed has made another trace" + firstDifference(r.trace, again.trace)
						}
					}
					if r.violation != "" {
						violations.Add(1)
						t.Errorf("seed %d: %s\nthe last steps:\n%s\nto replay it: go test -count=1 -v -run '^TestSimulation$' . -args -seed=%d",
							seed, r.violation, lastLines(r.trace, 40), seed)
					}
				}
			})
		}
	})
	t.Logf("%d schedules, %d steps, %s of virtual time, %d violations",
		min(next.Load(), int64(schedules)), steps.Load(), time.Duration(virtual.Load()).Round(time.Second), violations.Load())
}

func lastLines(text []byte, n int) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], nil)
}

func firstDifference(x, y []byte) string {
	a, b := bytes.Split(x, []byte("\n")), bytes.Split(y, []byte("\n"))
	for i := range a {
		if i >= len(b) || !bytes.Equal(a[i], b[i]) {
			return fmt.Sprintf(" from line %d on:\n%s\nthe other:\n%s", i,
				bytes.Join(a[max(0, i-10):min(len(a), i+4)], []byte("\n")), bytes.Join(b[max(0, min(i, len(b))-2):min(len(b), i+4)], []byte("\n")))
		}
	}
	return ""
}

type simResult struct {
	steps     int
	virtual   time.Duration
	trace     []byte
	violation string
}

// simulate runs one schedule.
func simulate(t *testing.T, seed uint64) (r simResult) {
	var s *simulation
	defer func() {
		p := recover() // synctest's: goroutines are left, and can never end
		if s != nil {
			r = simResult{s.steps, s.last, s.trace.Bytes(), s.violation}
		}
		if p != nil && r.violation == "" {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			r.violation = fmt.Sprintf("at the end: %v", p)
			for _, stack := range strings.Split(string(stacks), "\n\n") {
				if strings.Contains(stack, "durable") {
					r.violation += "\n" + stack
				}
			}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		s = &simulation{
			rng: rand.New(rand.NewPCG(seed, 20)), seed: seed, origin: time.Now(), free: make(chan struct{}), letters: map[string]eventbus.LetterID{},
		}
		defer s.end()
		s.run()
	})
	return r
}

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
	last      time.Duration // when the driver has looked last
	books     eventbus.Ledger
	compared  int // letters that the model had made or removed then
	letters   map[string]eventbus.LetterID
	ids       []eventbus.EventID // of the events; zero for those that somebody waits for
	calls     []*simCall // at their gates, or in an order
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
			MaxElapsed: simPick(s, 0, 0, 20*time.Second), Jitter: simPick(s, eventbus.ProportionalJitter, eventbus.NoJitter),
		},
		concurrency: simPick(s, eventbus.DefaultConcurrency, eventbus.DefaultConcurrency, 1, 2, 3),
		capacity:    simPick(s, eventbus.DefaultQueueCapacity, eventbus.DefaultQueueCapacity, 3, 6),
		isolation:   s.chance(0.25), keys: simKeys{},
		random: s.random, types: map[string]*eventbus.TypeMetrics{}, expected: map[string]*simDispatch{},
	}
	s.model, s.failing, s.keyed = m, simPick(s, 0.1, 0.4, 0.6, 0.9), simPick(s, 0, 0, 0.3, 0.8)
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
			if s.model.concurrency < eventbus.DefaultConcurrency {
				// At once is in a race for the worker with what its failure lets go.
				p.BaseDelay += time.Millisecond + s.odd(time.Millisecond)
			}
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
			p.Jitter = simPick(s, eventbus.NoJitter, eventbus.ProportionalJitter, eventbus.FullJitter, eventbus.EqualJitter)
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
	sub.holds, sub.behind = simPick(s, eventbus.DefaultHoldCapacity, eventbus.DefaultHoldCapacity, 1, 3), map[string][]*simDispatch{}
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
	s.sleep(s.odd(2 * time.Microsecond))
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
	case does(30) && s.calm() && m.capacity == eventbus.DefaultQueueCapacity:
		s.publishBatch()
	case does(30) && len(m.subs) > 0:
		s.operate(m.subs[s.rng.IntN(len(m.subs))])
	case does(15) && len(m.scheduled) > 0:
		s.cancelScheduled()
	case does(160):
		s.advance()
	case does(30):
		s.publishAndWait(nil)
	case does(40) && len(m.letters) > 0:
		s.replay(m.letters[s.rng.IntN(len(m.letters))])
	case does(15) && s.calm():
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
	case does(30) && m.concurrency == eventbus.DefaultConcurrency:
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

// calm reports whether it is all the same which of two deliveries comes first.
func (s *simulation) calm() bool {
	return !slices.ContainsFunc(s.model.subs, func(x *simSub) bool { return x.circuit.shut || x.circuit.paused || len(x.behind) > 0 })
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
// lanes' ticks apart, so that their retries would come due at a tick: what comes
// first then is nobody's decision.
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

// look compares everything that can be seen with the model. Everything is at rest.
func (s *simulation) look() {
	synctest.Wait()
	m, before := s.model, s.last
	s.last = s.now()
	m.advance(s.last)
	for _, c := range s.calls {
		if c.dispatch != nil && !slices.Contains(m.running, c.dispatch) {
			s.logf("gave up %s", c.name)
			c.dispatch = nil
		}
	}
	metrics := s.bus.Metrics()
	s.mu.Lock()
	arrived := s.arrived
	s.arrived = nil
	s.mu.Unlock()
	slices.SortFunc(arrived, func(x, y *simCall) int { return strings.Compare(x.name, y.name) })
	began := make(map[string]bool, len(arrived))
	for _, c := range arrived {
		s.logf("began %s", c.name)
		simCheck(!began[c.name], "two calls %s", c.name)
		began[c.name] = true
	}
	calls := m.look(metrics.QueueDepth, began, before, s.last)
	for _, c := range arrived {
		s.receive(c, calls[c.name])
	}
	if m.ending && !m.drained && m.started && m.unsettled() == 0 {
		m.leaveBehind(before, s.last)
		metrics = s.bus.Metrics()
	}
	s.lookAtWaits()
	s.compare(&metrics)
}

// receive checks what a call was given.
func (s *simulation) receive(c *simCall, d *simDispatch) {
	c.dispatch = d
	d.deadline = c.deadline.Sub(s.origin)
	timeout := c.deadline.Sub(c.start)
	simCheck(timeout >= c.sub.timeout && timeout <= c.sub.timeout+2*time.Millisecond, "%s may take %s", c.name, timeout)
	e, at := d.event, c.event.Time.Sub(s.origin)
	if e.time == 0 {
		e.time = at
		simCheck(at <= e.published && at >= e.published-2*time.Millisecond, "event %d is of %s, published at %s", e.number, at, e.published)
	}
	simCheck(e.time == at && c.event.Type == e.eventType && c.event.Key == e.key && d.sub() == c.sub, "%s was given %+v", c.name, c.event)
	s.calls = append(s.calls, c)
}

// lookAtWaits checks who has come back from PublishAndWait.
func (s *simulation) lookAtWaits() {
	s.waits = slices.DeleteFunc(s.waits, func(w *simWait) bool {
		broken := w.cancelled || w.call != nil && w.call.dispatch == nil
		simCheck(w.done.Load() == (w.model.settled || broken), "PublishAndWait of event %d has returned: %v, with %+v, %v; the event has settled: %v",
			w.event, w.done.Load(), w.result, w.err, w.model.settled)
		if !w.done.Load() {
			return false
		}
		if w.call != nil {
			if w.call.wait = nil; w.call.dispatch != nil {
				w.call.dispatch.blocked = false
			}
		}
		if broken {
			return true
		}
		s.logf("e%d has settled for who waits: %v", w.event, w.result.Outcome)
		var died *eventbus.DeliveryError
		letters := 0
		if errors.As(w.err, &died) {
			letters = len(died.Letters)
		}
		simCheck(w.result.Outcome == w.model.outcome && w.result.Attempts == w.model.attempts && len(w.result.Letters) == w.model.letters &&
			letters == w.model.letters && len(w.result.Held) == w.model.held &&
			(w.err == nil) == (letters == 0 && w.model.outcome != eventbus.Cancelled),
			"PublishAndWait of event %d returned %+v, %v, and should %+v", w.event, w.result, w.err, w.model)
		return true
	})
}

// compare compares the books, the counters, the circuits and the letters.
func (s *simulation) compare(metrics *eventbus.Metrics) {
	m := s.model
	books := m.books()
	simCheck(metrics.Ledger == books, "the ledger is\n%+v and should be\n%+v", metrics.Ledger, books)
	simCheck(books.Balanced(), "the model's books do not balance: %+v", books)
	if books != s.books {
		s.books = books
		s.logf("%+v", books)
	}
	simCheck(metrics.AbandonedHandlers == m.abandoned, "%d abandoned, and should be %d", metrics.AbandonedHandlers, m.abandoned)
	simCheck(len(metrics.Subscriptions) == len(m.subs), "%d subscriptions, and should be %d", len(metrics.Subscriptions), len(m.subs))
	for i, sub := range m.subs {
		is, should := metrics.Subscriptions[i], sub.counts
		should.Subscription, should.Pattern = sub.name, sub.pattern
		should.Circuit, should.CircuitOpens, should.Latency = sub.circuit.state(), sub.circuit.opens, is.Latency
		should.Held = sub.held()
		sub.circuit.endPause(s.last)
		if should.Paused = sub.circuit.paused; should.Paused && sub.circuit.pausedUntil < math.MaxInt64 {
			should.PausedUntil = s.origin.Add(sub.circuit.pausedUntil).UTC()
			is.PausedUntil = is.PausedUntil.Round(0)
			should.PausedUntil = should.PausedUntil.Round(0)
		}
		simCheck(is == should, "subscription\n%+v should be\n%+v", is, should)
	}
	for eventType, should := range m.types {
		simCheck(metrics.Types[eventType] == *should, "type %s is\n%+v and should be\n%+v", eventType, metrics.Types[eventType], *should)
	}
	simCheck(metrics.DeadLetters == len(m.letters), "%d letters, and should be %d", metrics.DeadLetters, len(m.letters))
	if m.changes != s.compared {
		s.compareLetters()
	}
}

func (s *simulation) compareLetters() {
	m := s.model
	page, err := s.bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	simCheck(err == nil, "List: %v", err)
	simCheck(len(page.Letters) == len(m.letters) && page.Total == len(m.letters), "%d letters of %d, and should be %d", len(page.Letters), page.Total, len(m.letters))
	should := make(map[string]*simLetter, len(m.letters))
	for _, l := range m.letters {
		should[l.key()] = l
	}
	clear(s.letters)
	var younger time.Time
	for i := range page.Letters {
		l := &page.Letters[i]
		key := fmt.Sprintf("e%d/%s", l.Event.Payload, l.Subscription)
		s.letters[key] = l.ID
		x := should[key]
		simCheck(x != nil, "letter %s should not be", key)
		is := simLetter{
			event: x.event, reason: l.Reason, sub: l.Subscription, succeeded: l.Succeeded, notReached: l.NotReached,
			attempts: l.Attempts, replays: l.Replays,
		}
		for _, f := range l.Failures {
			is.failures = append(is.failures, simFailure{f.Attempt, f.Replays, f.Subscription})
		}
		simCheck(is.story() == x.story(), "the letter is\n%s and should be\n%s", is.story(), x.story())
		died := l.DiedAt.Sub(s.origin)
		simCheck(died >= x.earliest && died <= x.latest, "letter %s died at %s, and should between %s and %s", key, died, x.earliest, x.latest)
		simCheck(younger.IsZero() || !l.DiedAt.After(younger), "letter %s is younger than the one before", key)
		younger = l.DiedAt
	}
	s.compared = m.changes
}
