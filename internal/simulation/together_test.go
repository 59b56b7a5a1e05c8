package simulation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/testhooks"
)

var errRefusedRecord = errors.New("the simulation refuses to record this")

// simLoose is what the driver knows of a bus once calls are made at the same moment.
type simLoose struct {
	exact   int // the length of the trace before that
	flying  atomic.Int64
	ending  bool // Shutdown has been called
	closed  bool // Shutdown had returned before this burst
	ends    []*simEnd
	removed map[*simSub]bool
	paused  map[*simSub]bool
	listed  []eventbus.DeadLetter // the letters when everything was at rest last
	retired map[string]bool       // names of subscriptions that were removed
	drops   map[string]bool       // names of subscriptions that may drop deliveries

	// Guarded by simulation.mu.
	spoiled   []string // what calls did wrong
	purged    map[eventbus.LetterID]bool
	cancelled int64 // deliveries that were reported so
	givenUp   int64
}

// simEnd is a call of Shutdown from outside.
type simEnd struct {
	cancel context.CancelFunc
	done   atomic.Bool
	err    error
}

// simBurst is calls at the same moment.
type simBurst struct {
	*simulation
	names    []string
	calls    []func()
	used     map[any]bool // what only one of the calls may be about
	removing map[*simSub]bool
	pauses   map[*simSub]bool // true: by Pause; false: they may not be paused afterwards
	first    int              // its first event
	records  bool             // one of the calls runs records, in their order
	cuts     bool             // one of the calls ends Shutdown's context
}

// together ends a schedule with bursts of calls. Goroutines make the calls of a burst at
// the same moment, the last burst has Shutdown among them, and the scheduler decides
// which call comes first. So there is no exact model. What must hold at rest, whatever
// came first:
//
//   - Every delivery of an accepted event is at the end handled, or in one letter, or
//     cancelled, purged or dropped by request; and it is in one of these places only.
//   - The ledger balances, counts the accepted events, and has nothing left in memory
//     after Shutdown.
//   - Letters with the reason shutdown are those that the error of Shutdown lists. Letters
//     with the reason unsubscribed name a subscription that was removed.
//   - No call begins once Unsubscribe or Shutdown has returned, nor for a paused
//     subscription. No two calls of a subscription run with the same key. Calls do not
//     exceed the limit of a subscription.
//   - Every call returns.
//
// A subscription that comes or goes in the burst of a publication may get the event or
// not.
func (s *simulation) together(random *rand.Rand) {
	s.logf("from here on, calls are made at the same moment")
	l := &simLoose{
		exact: s.trace.Len(), removed: map[*simSub]bool{}, paused: map[*simSub]bool{},
		purged: map[eventbus.LetterID]bool{}, retired: map[string]bool{}, drops: map[string]bool{}, cancelled: s.model.ended[eventbus.Cancelled], givenUp: s.operated,
	}
	for n := range s.names { // each may be the name of one that was removed
		l.retired[fmt.Sprintf("s%d", n+1)], l.drops[fmt.Sprintf("s%d", n+1)] = true, true
	}
	for _, sub := range s.model.subs {
		l.paused[sub] = sub.pausedUntil == math.MaxInt64
	}
	for _, e := range s.events { // another Cancel may report those again
		if l.cancelled -= int64(e.met); e.met > 0 {
			e.meets, e.cancelled = true, s.origin.Add(e.cancels-simStands)
		}
	}
	s.rng = random
	s.noted(func() { s.loose = l })
	s.yields.Store(s.chance(0.5))
	s.rest(false)
	b := s.newBurst()
	for range simPick(s, 0, 3, 6) { // unlike those before, they have limits
		b.subscribe()
	}
	b.release()
	s.rest(false)
	for range s.rng.IntN(6) {
		s.burst(2 + s.rng.IntN(9))
	}
	if s.chance(0.7) {
		s.fill()
	}
	if s.chance(0.6) {
		s.drain()
		s.lastBurst(simPick(s, 0, 0, 1, 3))
	} else {
		s.lastBurst(s.rng.IntN(8))
	}
	s.settleAccounts()
}

// burst makes some calls at the same moment.
func (s *simulation) burst(n int) {
	b := s.newBurst()
	for range n {
		b.any()
	}
	b.release()
	s.rest(s.chance(0.3))
	time.Sleep(simPick(s, s.odd(time.Millisecond), s.odd(time.Second), s.odd(time.Minute)))
	s.rest(false)
}

// fill pauses subscriptions and publishes events for them.
func (s *simulation) fill() {
	b := s.newBurst()
	for range simPick(s, 0, 0, 12) {
		b.subscribe()
	}
	b.release()
	b = s.newBurst()
	for _, sub := range s.model.subs {
		if s.chance(0.7) {
			b.control(sub, "pause")
		}
	}
	b.release()
	s.rest(true)
	for range 1 + s.rng.IntN(4) {
		b = s.newBurst()
		for range s.rng.IntN(40) {
			b.publish(nil)
		}
		b.release()
		s.rest(true)
	}
}

// drain has everything settle that does, so that Shutdown finds only held deliveries and
// scheduled events.
func (s *simulation) drain() {
	for n := 0; n < 20; n++ {
		s.rest(true)
		l := s.bus.Metrics().Ledger
		if l.Queued+l.Running+l.Waiting+l.Throttled+int64(len(s.records)) == 0 {
			return
		}
		b := s.newBurst()
		for _, c := range s.calls {
			b.conclude(c, "success")
		}
		b.record(len(s.records), false)
		b.release()
		if l.Waiting > 0 {
			time.Sleep(simPick(s, s.odd(time.Second), s.odd(time.Minute)))
		}
	}
}

// lastBurst calls Shutdown among n others, and goes on until every call has returned.
func (s *simulation) lastBurst(n int) {
	l := s.loose
	b := s.newBurst()
	for range n {
		b.any()
	}
	if s.chance(0.7) {
		b.removeAll()
	}
	cutAt := -1
	switch {
	case s.chance(0.2):
		b.cuts = true
	case s.chance(0.4):
		cutAt = s.rng.IntN(6)
	}
	l.ending = true
	b.shutdown()
	if s.chance(0.2) {
		b.shutdown()
	}
	if b.cuts {
		b.add("cut", func() { l.ends[0].cancel() })
	}
	s.rng.Shuffle(len(b.calls), func(i, j int) {
		b.calls[i], b.calls[j] = b.calls[j], b.calls[i]
		b.names[i], b.names[j] = b.names[j], b.names[i]
	})
	b.release()
	s.rest(false)
	for n := 0; l.flying.Load() > 0; n++ {
		simCheck(n < 2_000, "%d calls do not return: %+v", l.flying.Load(), s.bus.Metrics().Ledger)
		b := s.newBurst()
		for range s.rng.IntN(4) {
			b.any()
		}
		if n >= 4 {
			for _, c := range s.calls {
				b.conclude(c, "success")
			}
			b.record(len(s.records), false)
		}
		if n == cutAt {
			b.cuts = true
			b.add("cut", func() { l.ends[0].cancel() })
		}
		b.release()
		s.rest(n >= 4)
		time.Sleep(simPick(s, s.odd(time.Millisecond), s.odd(time.Second), s.odd(time.Minute)))
		s.rest(n >= 4)
	}
}

func (s *simulation) newBurst() *simBurst {
	return &simBurst{
		simulation: s, used: map[any]bool{}, removing: map[*simSub]bool{}, pauses: map[*simSub]bool{}, first: len(s.events),
	}
}

// add adds a call.
func (b *simBurst) add(name string, call func()) {
	b.names, b.calls = append(b.names, name), append(b.calls, call)
}

// once reports whether the burst has no call about this yet.
func (b *simBurst) once(about any) bool {
	if b.used[about] {
		return false
	}
	b.used[about] = true
	return true
}

// any adds a call, or none if there is nothing for it.
func (b *simBurst) any() {
	s := b.simulation
	n := s.rng.IntN(1000)
	does := func(weight int) bool {
		n -= weight
		return n < 0
	}
	call := func() *simCall { return s.calls[s.rng.IntN(len(s.calls))] }
	sub := func() *simSub { return s.model.subs[s.rng.IntN(len(s.model.subs))] }
	switch {
	case !s.started && !s.loose.ending && does(100):
		s.started = true
		b.add("start", func() {
			if err := s.bus.Start(context.Background()); err != nil && !errors.Is(err, eventbus.ErrShutdown) {
				s.spoil("Start: %v", err)
			}
		})
	case does(150):
		b.publish(nil)
	case does(40):
		b.publishBatch()
	case does(60) && s.started:
		b.publishAndWait(nil)
	case does(60):
		b.replayMatching()
	case does(60) && len(s.model.subs) < 7:
		b.subscribe()
	case does(60) && len(s.waits) > 0:
		if w := s.waits[s.rng.IntN(len(s.waits))]; w.cancel != nil {
			b.add("cancel a wait", func() { w.cancel() })
		}
	case does(120):
		b.verb()
	case does(60):
		b.record(1+s.rng.IntN(4), s.chance(0.2))
	case does(80) && len(s.loose.listed) > 0:
		b.letter(&s.loose.listed[s.rng.IntN(len(s.loose.listed))])
	case does(100) && len(s.runs) > 0:
		b.goOn(s.runs[s.rng.IntN(len(s.runs))])
	case does(80) && len(s.model.subs) > 0:
		if s.chance(0.3) {
			b.retire(sub())
		} else {
			b.unsubscribe(sub())
		}
	case does(120) && len(s.model.subs) > 0:
		b.control(sub(), simPick(s, "trip", "reset", "pause", "hold", "resume", "resume"))
	case len(s.calls) == 0:
	case does(40):
		b.publish(call())
	case does(30):
		b.publishAndWait(call())
	case s.chance(s.failing):
		b.conclude(call(), simPick(s, "error", "pointless", "permanent", "after", "panic", "exit"))
	default:
		b.conclude(call(), "success")
	}
}

// spoil notes what a call did wrong.
func (s *simulation) spoil(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loose.spoiled = append(s.loose.spoiled, fmt.Sprintf(format, args...))
}

// noted calls f under the lock.
func (s *simulation) noted(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// release makes all calls of the burst.
func (b *simBurst) release() {
	s := b.simulation
	s.last = s.now()
	s.logf("at the same moment: %s", strings.Join(b.names, ", "))
	start := make(chan struct{})
	for i, call := range b.calls {
		yields := s.rng.IntN(6)
		s.loose.flying.Add(1)
		go func() {
			defer s.loose.flying.Add(-1)
			defer func() {
				if r := recover(); r != nil {
					s.spoil("%s: panic: %v\n%s", b.names[i], r, debug.Stack())
				}
			}()
			<-start
			for range yields {
				runtime.Gosched()
			}
			call()
		}()
	}
	synctest.Wait()
	for _, e := range s.events[b.first:] { // subscriptions that the burst removes may get them or not
		e.to = slices.DeleteFunc(e.to, func(name string) bool {
			for sub := range b.removing {
				if sub.name == name {
					return true
				}
			}
			return false
		})
	}
	for sub := range b.pauses {
		s.loose.paused[sub] = false
	}
	close(start)
	time.Sleep(time.Microsecond) // for observers
	s.meet(false)
	for sub, paused := range b.pauses {
		s.loose.paused[sub] = paused
	}
	s.loose.closed = slices.ContainsFunc(s.loose.ends, func(end *simEnd) bool { return end.done.Load() })
	for sub := range b.removing {
		s.loose.removed[sub], s.loose.retired[sub.name] = true, true
		s.model.subs = slices.DeleteFunc(s.model.subs, func(x *simSub) bool { return x == sub })
	}
}

// order has a handler do something if it is at its gate.
func (b *simBurst) order(c *simCall, order simOrder) {
	select {
	case c.gate <- order:
	default:
	}
}

// publication draws an event.
func (b *simBurst) publication() (*simEvent, []eventbus.PublishOption) {
	p, options := b.simulation.publication()
	e := b.newEvent(p)
	for _, sub := range b.targets(p.eventType) {
		e.to = append(e.to, sub.name)
	}
	return e, options
}

// refusal reports whether an error is one with which an event is not accepted.
func (s *simulation) refusal(err error) bool {
	return errors.Is(err, eventbus.ErrShutdown) || errors.Is(err, eventbus.ErrQueueFull) || errors.Is(err, eventbus.ErrBatchTooLarge) || errors.Is(err, errRefusedRecord)
}

func (b *simBurst) publish(c *simCall) {
	s := b.simulation
	e, options := b.publication()
	publish := func(ctx context.Context) {
		id, err := s.bus.Publish(ctx, e.eventType, e.number, options...)
		s.noted(func() {
			e.id = id
			if err == nil != s.accepted[e.number] {
				s.loose.spoiled = append(s.loose.spoiled, fmt.Sprintf("Publish of e%d: %v, and observers say %v", e.number, err, s.accepted[e.number]))
			}
		})
		if err != nil && !s.refusal(err) && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
			s.spoil("Publish of e%d: %v", e.number, err)
		}
	}
	b.add(fmt.Sprintf("publish e%d by %s", e.number, c.by()), func() {
		if c == nil {
			publish(context.Background())
			return
		}
		b.order(c, func() (bool, error) {
			publish(c.ctx)
			return false, nil
		})
	})
}

func (b *simBurst) publishBatch() {
	s := b.simulation
	var batch []eventbus.Publication
	first := len(s.events)
	for range 2 + s.rng.IntN(3) {
		e, options := b.publication()
		batch = append(batch, eventbus.Publication{Type: e.eventType, Payload: e.number, Options: options})
	}
	b.add(fmt.Sprintf("publish e%d and %d more", first, len(batch)-1), func() {
		ids, err := s.bus.PublishBatch(context.Background(), batch)
		if err != nil && !s.refusal(err) {
			s.spoil("PublishBatch: %v", err)
		}
		s.noted(func() {
			for i := range batch {
				if err == nil {
					s.events[first+i].id = ids[i]
				}
				if err == nil != s.accepted[first+i] {
					s.loose.spoiled = append(s.loose.spoiled, fmt.Sprintf("PublishBatch of e%d: %v, and observers say otherwise", first+i, err))
				}
			}
		})
	})
}

func (b *simBurst) publishAndWait(c *simCall) {
	s := b.simulation
	e, options := b.publication()
	e.id = eventbus.NewEventID()
	options = append(options, eventbus.ID(e.id)) // so that operators know it
	w := &simWait{event: e.number, call: c}
	publish := func(ctx context.Context) {
		w.result, w.err = s.bus.PublishAndWait(ctx, e.eventType, e.number, options...)
		w.done.Store(true)
	}
	if c == nil {
		var ctx context.Context
		ctx, w.cancel = context.WithCancel(context.Background())
		s.waits = append(s.waits, w)
		b.add(fmt.Sprintf("publish e%d and wait", e.number), func() { publish(ctx) })
		return
	}
	b.add(fmt.Sprintf("publish e%d and wait, by %s", e.number, c.name), func() {
		b.order(c, func() (bool, error) {
			c.waited.Store(true)
			publish(c.ctx)
			return false, nil
		})
	})
}

// conclude has a handler return.
func (b *simBurst) conclude(c *simCall, how string) {
	if !b.once(c) {
		return
	}
	s := b.simulation
	ends := c.ends(how, s.odd(3*time.Second))
	b.add(fmt.Sprintf("release %s: %s", c.name, how), func() {
		b.order(c, func() (bool, error) {
			c.over.Store(true)
			e, name := s.events[c.event.Payload.(int)], c.sub.name
			s.noted(func() {
				switch {
				case how != "success" || c.ctx.Err() != nil:
				case b.cuts || time.Until(c.deadline) < 5*time.Millisecond:
					e.perhaps[name] = true
				default:
					e.handled[name] = true
				}
			})
			return ends()
		})
	})
}

func (b *simBurst) goOn(r *simRun) {
	if !b.once(r) {
		return
	}
	b.runs = slices.DeleteFunc(b.runs, func(x *simRun) bool { return x == r })
	b.add("go on with "+r.name, func() { close(r.gate) })
}

func (b *simBurst) subscribe() {
	s := b.simulation
	sub, options := s.newSubscription()
	if !b.once(sub.name) {
		return
	}
	name := "subscribe " + sub.name
	switch s.rng.IntN(3) {
	case 0:
		options = append(options, eventbus.Concurrency(eventbus.Unlimited))
	case 1: // by default, its share limits the calls while the bus is full
	default:
		sub.limit = min(1+s.rng.IntN(3), s.concurrency)
		options = append(options, eventbus.Concurrency(sub.limit))
		name += fmt.Sprintf(", limit %d", sub.limit)
	}
	b.add(name, func() {
		made, err := s.bus.Subscribe(sub.pattern, s.handler(sub), options...)
		switch {
		case err == nil:
			s.noted(func() {
				sub.made = made
				s.loose.drops[sub.name] = s.loose.drops[sub.name] || sub.whenOpen == eventbus.DropWhenOpen || sub.dropsLate
				s.model.subs = append(slices.Clip(s.model.subs), sub)
			})
		case !errors.Is(err, eventbus.ErrShutdown):
			s.spoil("Subscribe: %v", err)
		}
	})
}

func (b *simBurst) unsubscribe(sub *simSub) {
	b.removing[sub] = true // twice at the same moment, too
	b.add("unsubscribe "+sub.name, sub.made.Unsubscribe)
}

// removeAll removes most of the subscriptions, one after the other.
func (b *simBurst) removeAll() {
	var all []*eventbus.Subscription
	for _, sub := range b.model.subs {
		if b.chance(0.8) {
			b.removing[sub] = true
			all = append(all, sub.made)
		}
	}
	b.add(fmt.Sprintf("unsubscribe %d", len(all)), func() {
		for _, sub := range all {
			sub.Unsubscribe()
		}
	})
}

func (b *simBurst) control(sub *simSub, what string) {
	if !b.once(sub) {
		return
	}
	s := b.simulation
	var call func(...eventbus.DirectiveOption) error
	switch what {
	case "trip":
		call = sub.made.Trip
	case "reset":
		call = sub.made.Reset
	case "pause":
		call = sub.made.Pause
		b.pauses[sub] = true
	case "hold":
		b.pauses[sub] = false
		until := time.Now().Add(s.odd(20 * time.Second))
		call = func(...eventbus.DirectiveOption) error { return sub.made.HoldUntil(until) }
	case "resume":
		call = sub.made.Resume
		b.pauses[sub] = false
	}
	b.add(what+" "+sub.name, func() {
		if err := call(); err != nil && !errors.Is(err, eventbus.ErrCircuitDisabled) && !errors.Is(err, eventbus.ErrNoSubscription) {
			s.spoil("%s: %v", what, err)
		}
	})
}

// letter replays or purges a letter. Several calls may be about the same one.
func (b *simBurst) letter(l *eventbus.DeadLetter) {
	s := b.simulation
	name := simPair(l.Event.Payload.(int), l.Subscription)
	lost := func(err error) bool {
		return errors.Is(err, eventbus.ErrNotFound) || errors.Is(err, errRefusedRecord)
	}
	if s.chance(0.7) {
		b.add("replay "+name, func() {
			err := s.bus.DLQ().Replay(context.Background(), l.ID)
			if err != nil && !lost(err) && !errors.Is(err, eventbus.ErrShutdown) && !errors.Is(err, eventbus.ErrNoSubscription) {
				s.spoil("Replay: %v", err)
			}
		})
		return
	}
	b.add("purge "+name, func() {
		switch err := s.bus.DLQ().Purge(context.Background(), l.ID); {
		case err == nil:
			s.noted(func() {
				s.loose.purged[l.ID] = true
				for _, name := range append(l.NotReached, l.Subscription) {
					s.events[l.Event.Payload.(int)].gone[name] = true
				}
			})
		case !lost(err):
			s.spoil("Purge: %v", err)
		}
	})
}

func (b *simBurst) replayMatching() {
	s := b.simulation
	q, _ := s.query()
	b.add(fmt.Sprintf("replay %+v", q), func() {
		_, err := s.bus.DLQ().ReplayMatching(context.Background(), q)
		if err != nil && !errors.Is(err, eventbus.ErrShutdown) && !errors.Is(err, errRefusedRecord) {
			s.spoil("ReplayMatching: %v", err)
		}
	})
}

func (b *simBurst) shutdown() {
	s, end := b.simulation, &simEnd{}
	var ctx context.Context
	ctx, end.cancel = context.WithCancel(context.Background())
	s.loose.ends = append(s.loose.ends, end)
	b.add("shutdown", func() {
		end.err = s.bus.Shutdown(ctx)
		end.done.Store(true)
	})
}

// record has the oldest changes recorded, or refused. A store does so in their order.
func (b *simBurst) record(n int, refuse bool) {
	if b.records || len(b.simulation.records) == 0 {
		return
	}
	b.records = true
	s := b.simulation
	n = min(n, len(s.records))
	some := s.records[:n:n]
	s.records = s.records[n:]
	var err error
	if refuse {
		err = errRefusedRecord
	}
	b.add(fmt.Sprintf("record %d: %v", n, err), func() {
		for _, then := range some {
			then(err)
		}
	})
}

// hookRecords has the driver decide when changes are recorded. Of three schedules one has no hook, one records at once, and one later, on another
// goroutine. Among calls at the same moment, it is a call (see record).
func (s *simulation) hookRecords() {
	if s.seed%3 == 0 {
		return
	}
	s.recordsLater = s.seed%3 == 1
	testhooks.SetRecord(s.bus, func(then func(error)) {
		s.mu.Lock()
		switch {
		case s.over || s.loose == nil && !s.recordsLater:
			s.mu.Unlock()
			then(nil)
			return
		case s.loose == nil && len(s.records) == 0:
			go s.recordAll()
		}
		s.records = append(s.records, then)
		s.mu.Unlock()
	})
}

// recordAll records until nothing is left.
func (s *simulation) recordAll() {
	for {
		s.mu.Lock()
		if len(s.records) == 0 {
			s.mu.Unlock()
			return
		}
		then := s.records[0]
		s.mu.Unlock()
		then(nil)
		s.noted(func() { s.records = s.records[1:] })
	}
}

// rest waits until everything is at rest, and checks what must hold then. It lets workers
// run what they have taken if open is true.
func (s *simulation) rest(open bool) {
	for quiet := 0; quiet < 8; quiet++ { // workers look for more in every millisecond
		time.Sleep(500 * time.Microsecond)
		if s.meet(open) {
			quiet = -1
		}
	}
	s.last = s.now()
	l := s.loose
	simCheck(len(l.spoiled) == 0, "%s", strings.Join(l.spoiled, "\n"))
	metrics := s.bus.Metrics()
	outstanding := 0
	s.noted(func() { outstanding = len(s.records) })
	if outstanding == 0 { // an open that is not recorded has room in the queue, and is not accepted
		s.auditBooks(metrics)
	}
	s.logf("at rest: %+v", metrics.Ledger)
	page, err := s.bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	simCheck(err == nil && len(page.Letters) == page.Total, "List: %d of %d letters, %v", len(page.Letters), page.Total, err)
	l.listed = page.Letters
}

// auditBooks checks the counters of a bus at rest.
func (s *simulation) auditBooks(metrics eventbus.Metrics) {
	simCheck(metrics.Ledger.Balanced(), "the books do not balance: %+v", metrics.Ledger)
	s.noted(func() {
		simCheck(metrics.Ledger.Accepted == int64(len(s.accepted)), "%d events are accepted, and observers know of %d", metrics.Ledger.Accepted, len(s.accepted))
		s.compareTypes(metrics)
	})
	held := 0
	for _, sub := range s.model.subs {
		held += len(testhooks.Parked(sub.made))
	}
	simCheck(metrics.Ledger.Held+metrics.Ledger.Throttled+metrics.Ledger.Snoozed == int64(held), "%d are parked at subscriptions: %+v", held, metrics.Ledger)
}

// meet notes what waits at gates now, and reports whether anything has come.
func (s *simulation) meet(open bool) (came bool) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	came = len(s.next)+len(s.arrived)+len(s.taken) > 0
	for _, gate := range s.next {
		close(gate)
	}
	s.runs = append(s.runs, s.taken...)
	if open && len(s.runs) > 0 {
		came = true
		for _, r := range s.runs {
			close(r.gate)
		}
		s.runs = nil
	}
	s.calls = slices.DeleteFunc(s.calls, func(c *simCall) bool { return c.over.Load() })
	for _, c := range s.arrived {
		s.logf("began %s", c.name)
		simCheck(!s.loose.removed[c.sub], "%s began after Unsubscribe", c.name)
		simCheck(!s.loose.paused[c.sub], "%s began after Pause", c.name)
		simCheck(!s.loose.closed, "%s began after Shutdown", c.name)
		e := s.events[c.event.Payload.(int)]
		simCheck(!e.handled[c.sub.name], "%s was handled before", c.name)
		simCheck(!c.isCancelled(e), "%s began after Cancel", c.name)
		running := 0
		for _, other := range s.calls {
			// A call that has returned from PublishAndWait may exceed the limit.
			if other.sub == c.sub && other.ctx.Err() == nil && !other.waited.Load() {
				running++
			}
			simCheck(c.event.Key == "" || c.sub != other.sub || c.event.Key != other.event.Key || other.ctx.Err() != nil,
				"%s began beside %s, which has the same key", c.name, other.name)
		}
		simCheck(c.sub.limit == 0 || running < c.sub.limit, "%s began beside %d others, and the limit is %d", c.name, running, c.sub.limit)
		s.calls = append(s.calls, c)
	}
	s.next, s.taken, s.arrived = nil, nil, nil
	s.told, s.retries = nil, nil
	return came
}

// settleAccounts checks what Shutdown has left.
func (s *simulation) settleAccounts() {
	l := s.loose
	for n := 0; len(s.calls) > 0; n++ { // those that were abandoned
		simCheck(n < 100, "%d handlers do not return", len(s.calls))
		b := s.newBurst()
		for _, c := range s.calls {
			b.conclude(c, "success")
		}
		b.release()
		s.rest(true)
	}
	for _, w := range s.waits {
		simCheck(w.done.Load(), "PublishAndWait of e%d has not returned", w.event)
	}
	simCheck(len(s.records) == 0, "%d changes are not recorded, and Shutdown has returned", len(s.records))
	first := l.ends[0].err
	for _, end := range l.ends {
		simCheck(errors.Is(end.err, first) && errors.Is(first, end.err), "Shutdown returned %v, and %v", first, end.err)
	}
	ledger := s.bus.Metrics().Ledger
	left := ledger.Queued + ledger.Running + ledger.Waiting + ledger.Held + ledger.Scheduled + ledger.Throttled + ledger.Snoozed + ledger.Recording
	simCheck(ledger.Balanced() && left == 0, "something is left in memory: %+v", ledger)
	simCheck(s.operated == l.givenUp, "%d were given up, and %d have died for that", l.givenUp, s.operated)
	gone := ledger.Replays + int64(len(l.purged)) + s.purged
	simCheck(ledger.DeadLettered == int64(len(l.listed))+gone, "%d letters, %d are replayed or purged, and %d have died", len(l.listed), gone, ledger.DeadLettered)

	unfinished, dead := map[eventbus.LetterID]bool{}, map[string]int{}
	var short *eventbus.ShutdownError
	if errors.As(first, &short) {
		for i := range short.Unfinished {
			if id := short.Unfinished[i].ID; !l.purged[id] {
				unfinished[id] = true
			}
		}
	} else {
		simCheck(first == nil, "Shutdown: %v", first)
	}
	for i := range l.listed {
		letter := &l.listed[i]
		e := letter.Event.Payload.(int)
		for _, name := range append([]string{letter.Subscription}, letter.NotReached...) {
			dead[simPair(e, name)]++
		}
		simCheck((letter.Reason == eventbus.ReasonShutdown) == unfinished[letter.ID],
			"the letter of %s says %s, and the error of Shutdown: %v", simPair(e, letter.Subscription), letter.Reason, unfinished[letter.ID])
		delete(unfinished, letter.ID)
		simCheck(letter.Reason != eventbus.ReasonUnsubscribed || l.retired[letter.Subscription],
			"%s died as unsubscribed, and its subscription exists", simPair(e, letter.Subscription))
	}
	simCheck(len(unfinished) == 0, "the error of Shutdown lists %d letters that do not exist", len(unfinished))

	dropped, onTheirWay := int64(0), false
	for _, e := range s.events {
		if !s.accepted[e.number] {
			continue
		}
		for _, name := range e.to {
			pair := simPair(e.number, name)
			places := dead[pair]
			// What a call that was cancelled has returned at the same moment is ignored.
			for _, in := range []bool{e.handled[name] && !(e.raced[name] && e.gone[name]), e.gone[name]} {
				if in {
					places++
				}
			}
			switch {
			case places == 0 && e.perhaps[name]:
			case places == 0 && e.meets:
				onTheirWay = true
			case places == 0 && l.drops[name]:
				dropped++
			default:
				simCheck(places == 1, "%s is handled: %v, cancelled or purged: %v, in %d letters", pair, e.handled[name], e.gone[name], dead[pair])
			}
		}
	}
	extra := ledger.Cancelled - l.cancelled
	simCheck(extra == 0 || extra > 0 && slices.ContainsFunc(s.events, func(e *simEvent) bool { return e.meets }),
		"%d were cancelled, and %d are counted", l.cancelled, ledger.Cancelled)
	simCheck(ledger.Cancelled > 0 || !onTheirWay, "deliveries of cancelled events are lost")
	simCheck(dropped <= ledger.Dropped, "%d deliveries are lost, and %d were dropped", dropped, ledger.Dropped)
}
