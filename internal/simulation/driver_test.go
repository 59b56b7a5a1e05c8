package simulation

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
	"github.com/surebus/eventbus/internal/testhooks"
)

// simulation is one schedule. The driver is the only goroutine that decides
// anything: handlers wait at their gates for its orders, and so do workers before
// each run, so that one of them goes on at a time.
type simulation struct {
	rng    *rand.Rand
	seed   uint64
	origin time.Time
	bus    *eventbus.Bus
	model  *simModel
	trace  bytes.Buffer

	policy                simPolicy
	jitter                eventbus.Jitter
	concurrency, capacity int
	started               bool
	isolation             bool       // every subscription is isolated
	mixed                 *rand.Rand // decides which are, or nil
	onces                 *rand.Rand // decides which publications have an idempotency key
	emits                 *rand.Rand // decides what handlers emit
	expiries              *rand.Rand // decides which publications expire, or nil
	repetitions           int        // of keys

	steps     int
	last      time.Duration // when the driver has looked last
	books     eventbus.Ledger
	atDrain   int   // abandoned when nothing was left that Shutdown waits for
	compared  int   // letters that had been made or removed then
	removed   int   // letters
	purged    int64 // of these
	owed      int   // deliveries: subscriptions of events that were accepted
	paid      int   // of these, those handled, cancelled or purged
	types     map[string]*eventbus.TypeMetrics
	letters   map[string]eventbus.LetterID
	events    []*simEvent
	calls     []*simCall // at their gates, or in an order
	runs      []*simRun  // at their gates
	waits     []*simWait
	failing   float64 // which part of the handlers fails
	keyed     float64 // which part of the events has a key
	hasty     bool    // no run is left at its gate
	names     int     // of subscriptions
	ended     chan error
	violation string
	accepted  map[int]bool  // events of which observers were told
	operated  int64         // letters that GiveUp has made
	yields    atomic.Bool   // observers let everything else go first
	loose     *simLoose     // once calls are made at the same moment; also guarded by mu
	free      chan struct{} // closed: the gates are open

	recordsLater bool // another goroutine records changes

	// ready has the queued dispatches that a free worker may take, and since when.
	ready map[*simDispatch]time.Duration

	mu      sync.Mutex
	arrived []*simCall
	taken   []*simRun
	next    []chan struct{} // gates of workers that have told somebody who waits
	retries []eventbus.ScheduledRetry
	records []func(error) // of changes that are not recorded yet, in their order
	over    bool          // changes are recorded at once
	told    []string      // by observers, in the trace
}

// simCall is a call of a handler, which waits at its gate for orders.
type simCall struct {
	ctx       context.Context
	name      string
	event     eventbus.Event
	start     time.Time
	deadline  time.Time
	gate      chan simOrder
	sub       *simSub
	dispatch  *simDispatch // nil once it has been given up
	era       int          // of the subscription, when it was
	wait      *simWait     // for an event that it has published
	emits     []*simEvent
	replays   int
	cancelled bool        // by Cancel
	over      atomic.Bool // the handler has returned, in a call at the same moment as others
	waited    atomic.Bool // the handler has called PublishAndWait, likewise
}

// simOrder is what a handler does next. It returns when it says that it is done.
type simOrder func() (done bool, err error)

// simRun is what a worker has taken, and waits at its gate to run.
type simRun struct {
	name     string
	gate     chan struct{}
	dispatch *simDispatch
}

// simSub is a subscription.
type simSub struct {
	name, pattern string
	number        int
	isolated      bool
	timeout       time.Duration
	retry         simPolicy
	jitter        eventbus.Jitter
	retryIf       bool
	whenOpen      eventbus.WhenOpen
	holds         int
	dropsLate     bool
	limit         int // of its concurrency; 0: none that can be checked
	circuit       simCircuit
	pausedUntil   time.Duration
	most          int // abandoned calls, of this era
	hanging, era  int
	removed       bool
	dropsRetired  bool // it was removed by Retire, with DropRetired
	skipped       int64
	made          *eventbus.Subscription
	counts        eventbus.SubscriptionMetrics // of how calls have ended
}

// simEvent is an event that was accepted.
type simEvent struct {
	simPublication
	number     int
	id         eventbus.EventID
	published  time.Duration   // when Publish returned
	time       time.Duration   // its own time, once a handler has seen it
	handled    map[string]bool // by which subscriptions
	to         []string        // the subscriptions that it was certainly published for
	settled    bool            // no dispatch of it was left, once
	dispatches int             // when it was queued
	meets      bool            // Cancel has also ended, or may yet end, what was on its way: its report does not have that
	cancelled  time.Time       // when Cancel had confirmed that all of it has ended, at the same moment as others
	raced      map[string]bool // subscriptions whose call was cancelled then
	cancels    time.Duration   // until when Cancel also ends what is on its way
	met        int             // dispatches that were, since the last Cancel
	gone       map[string]bool // those for which it was cancelled or purged
	perhaps    map[string]bool // those whose call may have been cut short, or have been too late
}

type simViolation string

func simCheck(holds bool, format string, args ...any) {
	if !holds {
		panic(simViolation(fmt.Sprintf(format, args...)))
	}
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
		c.replays = d.Replays
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
			if s.loose != nil { // the model has not followed
				return
			}
			for _, sub := range s.model.subs {
				s.logf("the model: %s, circuit %+v", sub.name, sub.circuit)
			}
			for _, d := range s.model.open {
				s.logf("the model: %s is %s until %s, place %v, held %v, coming %v", d.name(), d.state, d.due, d.place, d.seated, d.coming)
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
	together, other := -1, rand.New(rand.NewPCG(s.seed, 21)) // so that the other schedules stay as they are
	if other.Float64() < *simTogether {
		together = other.IntN(steps)
	}
	for s.steps = 0; s.steps < steps && !s.model.ending; s.steps++ {
		if s.steps == start {
			s.start()
		}
		if s.steps == together {
			s.together(other)
			return
		}
		s.act()
	}
	if !s.started && start >= 0 {
		s.start()
	}
	s.finish(end)
}

func (s *simulation) start() {
	s.logf("start")
	simCheck(s.bus.Start(context.Background()) == nil, "Start failed")
	s.started = true
	s.settle()
}

func (s *simulation) setUp() {
	policy := eventbus.RetryPolicy{
		MaxRetries: s.rng.IntN(4), BaseDelay: simPick(s, 0, 100*time.Millisecond, time.Second) + s.odd(time.Millisecond),
		MaxDelay: simPick(s, time.Second, 30*time.Second), BackoffMultiplier: simPick(s, 1, 2, 3.5),
		MaxElapsed: simPick(s, 0, 0, 20*time.Second), Jitter: simPick(s, eventbus.ProportionalJitter, eventbus.NoJitter),
	}
	s.jitter, s.policy = policy.Jitter, simPolicy{
		"R": float64(policy.MaxRetries), "B": -float64(policy.BaseDelay), "M": float64(policy.MaxDelay),
		"X": policy.BackoffMultiplier, "E": simBound(policy.MaxElapsed, 0),
	}
	m := &simModel{
		random: s.random, merge: s.merge, cancels: s.settleFor, ended: map[eventbus.Outcome]int64{},
	}
	s.isolation = s.chance(0.25)
	s.onces, s.emits = rand.New(rand.NewPCG(s.seed, 23)), rand.New(rand.NewPCG(s.seed, 25))
	if mixed := rand.New(rand.NewPCG(s.seed, 22)); !s.isolation && mixed.IntN(3) == 0 { // so that the others stay as they are
		s.mixed = mixed
	}
	s.model, s.failing, s.keyed = m, simPick(s, 0.1, 0.4, 0.6, 0.9), simPick(s, 0, 0, 0.3, 0.8)
	s.concurrency = simPick(s, eventbus.DefaultConcurrency, eventbus.DefaultConcurrency, 1, 1, 3)
	s.capacity = simPick(s, eventbus.DefaultQueueCapacity, eventbus.DefaultQueueCapacity, 3, 6)
	options := []eventbus.Option{
		eventbus.WithRetry(policy), eventbus.WithConcurrency(s.concurrency), eventbus.WithQueueCapacity(s.capacity),
		eventbus.WithObserver(s.observer()), eventbus.WithRandom(func() float64 { return s.random(s.now()) }),
		eventbus.WithIdempotencyWindow(simWindow),
	}
	if s.capacity < eventbus.DefaultQueueCapacity {
		options = append(options, eventbus.RefuseWhenFull())
	}
	if s.isolation {
		options = append(options, eventbus.WithIsolation())
	}
	bus, err := eventbus.New(options...)
	simCheck(err == nil, "New: %v", err)
	testhooks.SetGates(bus, s.gateRun, s.gateNext)
	s.bus = bus
	s.hookRecords()
	if expiries := rand.New(rand.NewPCG(s.seed, 24)); !s.recordsLater && expiries.IntN(3) == 0 { // the model settles at once
		s.expiries = expiries
	}
	s.logf("bus %+v, concurrency %d, capacity %d, isolation %v, mixed %v", policy, s.concurrency, s.capacity, s.isolation, s.mixed != nil)
	for range 1 + s.rng.IntN(4) {
		s.subscribe()
	}
}

// simBound is a bound, or infinity if it is what says that there is none.
func simBound[N int | time.Duration](n, none N) float64 {
	if n == none {
		return math.Inf(1)
	}
	return float64(n)
}

// gateRun is where workers wait before they run what they have taken.
func (s *simulation) gateRun(payload any, subscription string, attempt int) {
	r := &simRun{name: fmt.Sprintf("%s#%d", simPair(payload.(int), subscription), attempt), gate: make(chan struct{})}
	s.mu.Lock()
	s.taken = append(s.taken, r)
	s.mu.Unlock()
	s.waitAt(r.gate)
}

// gateNext is where they wait when they have told somebody who waits.
func (s *simulation) gateNext() {
	gate := make(chan struct{})
	s.mu.Lock()
	s.next = append(s.next, gate)
	s.mu.Unlock()
	s.waitAt(gate)
}

func (s *simulation) waitAt(gate chan struct{}) {
	select {
	case <-gate:
	case <-s.free:
	}
}

// observer notes what it is told. Among calls at the same moment, it sometimes lets
// everything else go first; not before a call, which begins when its handler runs.
func (s *simulation) observer() eventbus.Observer {
	tell := func(note func(*eventbus.TypeMetrics), e eventbus.Event, format string, args ...any) {
		if s.yields.Load() && note != nil && rand.IntN(3) == 0 {
			time.Sleep(time.Nanosecond)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, fmt.Sprintf("%v ", e.Payload)+fmt.Sprintf(format, args...))
		if note != nil {
			note(s.typeOf(e.Type))
		}
	}
	return eventbus.Observer{
		Accepted: func(e eventbus.Event) {
			tell(func(m *eventbus.TypeMetrics) {
				m.Events++
				s.accepted[e.Payload.(int)] = true
			}, e, "is accepted")
		},
		Unrouted:     func(e eventbus.Event) { tell(nil, e, "is unrouted") },
		AttemptBegun: func(a eventbus.Attempt) { tell(nil, a.Event, "attempt %d begins", a.Number) },
		AttemptEnded: func(a eventbus.EndedAttempt) {
			tell(func(m *eventbus.TypeMetrics) {
				if a.Outcome == eventbus.Handled && a.Number > 1 {
					m.SucceededAfterRetry++ // or the one that has failed was skipped
				}
			}, a.Event, "attempt %d has ended: %s %s", a.Number, a.Outcome, a.Reason)
		},
		RetryScheduled: func(r eventbus.ScheduledRetry) {
			tell(func(m *eventbus.TypeMetrics) {
				s.retries = append(s.retries, r)
				m.Retries++
				if r.Failure.Attempt == 1 {
					m.Retried++
				}
			}, r.Event, "is tried again at %s", r.Due.Sub(s.origin))
		},
		DeadLettered: func(l eventbus.DeadLetter) {
			tell(func(m *eventbus.TypeMetrics) {
				if m.DeadLettered++; l.Reason == eventbus.ReasonOperator {
					s.operated++
				}
			}, l.Event, "has died at %s: %s", l.Subscription, l.Reason)
		},
		Replayed: func(l eventbus.DeadLetter) { tell(nil, l.Event, "is replayed for %s", l.Subscription) },
		CircuitChanged: func(c eventbus.CircuitChange) {
			tell(nil, eventbus.Event{}, "%s: %s to %s", c.Subscription, c.From, c.To)
		},
	}
}

// typeOf is what has been told of an event type.
func (s *simulation) typeOf(eventType string) *eventbus.TypeMetrics {
	if s.types[eventType] == nil {
		s.types[eventType] = &eventbus.TypeMetrics{}
	}
	return s.types[eventType]
}

// newSubscription draws a subscription and its options, sometimes with the name of one
// that no longer exists.
func (s *simulation) newSubscription() (*simSub, []eventbus.SubscribeOption) {
	s.names++
	sub := &simSub{
		name: fmt.Sprintf("s%d", s.names), number: s.names, pattern: simPick(s, "*", "a.*", "b.x", "*.x", "{a.y,c}"),
		timeout: simPick(s, time.Second, 10*time.Second, 30*time.Second) + s.odd(time.Millisecond), retry: simPolicy{}, jitter: s.jitter,
	}
	if s.names > 1 && s.chance(0.3) {
		old := fmt.Sprintf("s%d", 1+s.rng.IntN(s.names-1))
		if !slices.ContainsFunc(s.model.subs, func(x *simSub) bool { return x.name == old }) {
			sub.name = old
		}
	}
	options := []eventbus.SubscribeOption{eventbus.Named(sub.name), eventbus.Timeout(sub.timeout)}
	if sub.isolated = s.isolation; s.mixed != nil && s.mixed.IntN(2) == 0 {
		sub.isolated = true
		options = append(options, eventbus.Isolated())
	}
	var retry []eventbus.RetryOption
	override := func(field string, value float64, o eventbus.RetryOption) {
		sub.retry[field] = value
		retry = append(retry, o)
	}
	for _, field := range []string{"R", "B", "M", "X", "E", "J", "I"} {
		if s.chance(0.8) {
			continue
		}
		switch field {
		case "R":
			n := simPick(s, 0, 1, 2, 2, 3, 5, eventbus.Unlimited)
			override(field, simBound(n, eventbus.Unlimited), eventbus.MaxRetries(n))
		case "B":
			// Not 0: whether a worker still looks for more when what has failed comes
			// back in the same instant is nobody's to decide.
			d := simPick(s, time.Microsecond, 20*time.Millisecond+s.odd(time.Second), s.odd(10*time.Second))
			override(field, -float64(d), eventbus.BaseDelay(d))
		case "M":
			d := simPick(s, s.odd(10*time.Second), s.odd(time.Minute))
			override(field, float64(d), eventbus.MaxDelay(d))
		case "X":
			x := simPick(s, 1, 1.5, 3)
			override(field, x, eventbus.BackoffMultiplier(x))
		case "E":
			d := simPick(s, 0, s.odd(time.Minute))
			override(field, simBound(d, 0), eventbus.MaxElapsed(d))
		case "J":
			j := simPick(s, eventbus.ProportionalJitter, eventbus.FullJitter, eventbus.EqualJitter, eventbus.NoJitter)
			sub.jitter = j
			retry = append(retry, j)
		case "I":
			sub.retryIf = true
			retry = append(retry, eventbus.RetryIf(func(err error) bool { return !errors.Is(err, errPointless) }))
		}
	}
	options = append(options, eventbus.Retry(retry...))
	c := &sub.circuit
	window := simPick(s, 12*time.Second, time.Minute, time.Minute)
	c.ratio, c.minEvents, c.step = simPick(s, 0, 0.3, 0.5, 0.5), simPick(s, 1, 2, 3, 4), window/12
	c.openFor = simPick(s, 5*time.Second, 30*time.Second) + s.odd(time.Millisecond)
	c.outcomes = map[*simEvent]simOutcome{}
	circuit := []eventbus.CircuitOption{
		eventbus.FailureRatio(c.ratio), eventbus.MinEvents(c.minEvents), eventbus.Window(window), eventbus.OpenFor(c.openFor),
	}
	if s.chance(0.1) {
		c.state = eventbus.CircuitDisabled
		circuit = []eventbus.CircuitOption{eventbus.NoCircuit()}
	}
	sub.whenOpen = simPick(s, eventbus.HoldWhenOpen, eventbus.HoldWhenOpen, eventbus.DeadLetterWhenOpen, eventbus.DropWhenOpen)
	sub.holds = simPick(s, 1, 3, 60, 60) // no more than the bus lets go at a time
	options = append(options, eventbus.Circuit(circuit...), eventbus.LineCapacity(sub.holds))
	if c.state != eventbus.CircuitDisabled {
		options = append(options, sub.whenOpen)
	}
	sub.most = eventbus.DefaultMaxAbandoned
	if hung := rand.New(rand.NewPCG(s.seed, 200+uint64(s.names))); hung.IntN(3) == 0 { // so that the others stay as they are
		sub.most = 1 + hung.IntN(3)
		options = append(options, eventbus.MaxAbandoned(sub.most))
	}
	if drops := rand.New(rand.NewPCG(s.seed, 300+uint64(s.names))); s.expiries != nil && drops.IntN(3) == 0 {
		sub.dropsLate = true
		options = append(options, eventbus.DropExpired())
	}
	return sub, options
}

// subscribe makes a subscription.
func (s *simulation) subscribe() {
	sub, options := s.newSubscription()
	c := &sub.circuit
	options = append(options, eventbus.Concurrency(eventbus.Unlimited)) // the model has no limits
	made, err := s.bus.Subscribe(sub.pattern, s.handler(sub), options...)
	s.logf("subscribe %s %q isolated %v, timeout %s, overrides %v, circuit %+v, %v", sub.name, sub.pattern, sub.isolated, sub.timeout, sub.retry, c, err)
	if s.model.ending {
		simCheck(errors.Is(err, eventbus.ErrShutdown), "Subscribe: %v", err)
		return
	}
	simCheck(err == nil, "Subscribe: %v", err)
	sub.made = made
	s.model.subs = append(s.model.subs, sub)
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
	case does(30) && s.capacity == eventbus.DefaultQueueCapacity:
		s.publishBatch()
	case does(30) && len(m.subs) > 0:
		s.operate(m.subs[s.rng.IntN(len(m.subs))], simPick(s, "trip", "reset", "pause", "hold", "resume", "resume"))
	case does(45) && len(m.open) > 0 && !m.cut:
		s.verb()
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
	case does(6) && len(m.subs) > 0 && !m.ending:
		s.retire(m.subs[s.rng.IntN(len(m.subs))])
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
		if s.emits.IntN(2) == 0 {
			s.emitInside(call())
		} else {
			s.publishInside(call())
		}
	case does(30):
		s.publishAndWait(call())
	case does(10):
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

// nextInstant is when something may happen by itself.
func (s *simulation) nextInstant() time.Duration {
	m := s.model
	next := time.Duration(math.MaxInt64)
	for _, at := range []time.Duration{m.sweepAt - 1, m.sweepAt} { // before it: workers may have taken something
		if at > m.now {
			next = min(next, at)
		}
	}
	for _, d := range m.open {
		if d.due > m.now {
			next = min(next, d.due)
		}
	}
	for _, d := range m.open {
		if d.state != "held" {
			continue
		}
		for _, at := range []time.Duration{d.rest[0].pausedUntil, d.rest[0].circuit.until, d.rest[0].circuit.freshFrom} {
			if at > m.now {
				next = min(next, at)
			}
		}
	}
	return next
}

// unsettled is how many there are that Shutdown waits for.
func (s *simulation) unsettled() int64 { return s.model.in("queued", "taken", "running", "waiting") }

// sleep lets time pass, and stops to look whenever something happens.
func (s *simulation) sleep(d time.Duration) {
	for target := s.last + d; s.last < target; s.look() {
		next := min(target, s.nextInstant())
		if s.spare() {
			next = min(next, s.last+500*time.Microsecond)
		}
		time.Sleep(next - s.now())
	}
}

// active is how many runs count against the concurrency.
func (s *simulation) active() int {
	n := int(s.model.in("taken", "running"))
	for _, c := range s.calls {
		if c.dispatch != nil && c.wait != nil {
			n--
		}
	}
	return n
}

// spare reports whether a worker is free and a queued dispatch may run.
func (s *simulation) spare() bool {
	return s.room() && slices.ContainsFunc(s.model.open, s.model.runnable)
}

// room reports whether the concurrency allows one more run.
func (s *simulation) room() bool { return s.started && s.active() < s.concurrency }

// settle lets the workers take what they can, and go on, one at a time.
func (s *simulation) settle() {
	s.look()
	for {
		switch {
		case s.spare():
			s.sleep(500 * time.Microsecond)
		case len(s.runs) > 0 && (s.hasty || !s.chance(0.1)):
			s.goOn(s.runs[s.rng.IntN(len(s.runs))])
			s.sleep(s.odd(time.Microsecond)) // no two calls have the same deadline
		default:
			return
		}
	}
}

// goOn opens the gate of a worker.
func (s *simulation) goOn(r *simRun) {
	s.logf("go on with %s", r.name)
	s.runs = slices.DeleteFunc(s.runs, func(x *simRun) bool { return x == r })
	s.model.run(r.dispatch)
	close(r.gate)
	s.look()
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
		if next := s.nextInstant(); next < math.MaxInt64 {
			d = next - s.last + 1
		}
	}
	if s.model.in("queued") > 0 && !s.chance(0.02) {
		d = min(d, s.odd(10*time.Millisecond)) // the pool looks for slow workers at each tick
	}
	s.logf("advance %s", d)
	s.sleep(d)
}
