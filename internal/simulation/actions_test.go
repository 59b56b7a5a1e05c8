package simulation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
)

var (
	errSimulated = errors.New("simulated")
	errPointless = errors.New("pointless") // for RetryIf
)

// simPublication is what is published.
type simPublication struct {
	eventType, key string
	delay          time.Duration
	expires        time.Duration // since the bus was made; 0: never
	once           simOnce
}

// simMatches is the patterns that are used, written out.
var simMatches = map[string]string{
	"*": "a.x a.y b.x c nobody", "a.*": "a.x a.y", "b.x": "b.x", "*.x": "a.x b.x", "{a.y,c}": "a.y c",
}

// targets are the subscriptions of an event.
func (s *simulation) targets(eventType string) (subs []*simSub) {
	for _, sub := range s.model.subs {
		if slices.Contains(strings.Fields(simMatches[sub.pattern]), eventType) {
			subs = append(subs, sub)
		}
	}
	return subs
}

// simPolicy is a retry policy, or what is set of one: R retries, B minus the base
// delay, M most delay, X multiplier, E elapsed. The largest of each is merged.
type simPolicy map[string]float64

// merge is P5.
func (s *simulation) merge(subs []*simSub) simPolicy {
	p := simPolicy{}
	for _, sub := range subs {
		for field, value := range sub.retry {
			if other, set := p[field]; !set || value > other {
				p[field] = value
			}
		}
	}
	for field, value := range s.policy {
		if _, set := p[field]; !set {
			p[field] = value
		}
	}
	return p
}

// refuses is why a publication is refused: inside by a running handler, for w to
// wait for.
func (s *simulation) refuses(p simPublication, inside bool, w *simWait) error {
	m, to := s.model, s.targets(p.eventType)
	need := min(len(places(to)), s.capacity)
	switch {
	case m.cut || m.ending && !inside:
		return eventbus.ErrShutdown
	case p.key != "" && need > 0 && s.deadlocks(w, p.key, to):
		return eventbus.ErrWouldDeadlock
	case !inside && p.delay == 0 && need > 0 && int(m.in("queued"))+need > s.capacity:
		return eventbus.ErrQueueFull
	}
	return nil
}

// deadlocks reports whether a key at these subscriptions is free only when somebody
// no longer waits.
func (s *simulation) deadlocks(w *simWait, key string, to []*simSub) bool {
	for ; w != nil && !w.gaveUp && w.of != nil; w = w.of.wait {
		if w.of.place && w.of.event.key == key && slices.ContainsFunc(to, func(sub *simSub) bool { return sub.order() == w.of.rest[0].order() }) {
			return true
		}
	}
	return false
}

func (s *simulation) publication() (p simPublication, options []eventbus.PublishOption) {
	p.eventType = simPick(s, "a.x", "a.y", "b.x", "c")
	if s.chance(0.05) {
		p.eventType = "nobody" // but for "*"
	}
	if s.chance(s.keyed) {
		p.key = simPick(s, "k", "l")
		options = append(options, eventbus.Key(p.key))
	}
	if s.chance(0.08) {
		p.delay = s.odd(10 * time.Second)
		options = append(options, eventbus.After(p.delay))
	}
	return p, append(options, s.expiry(&p)...)
}

// publish publishes from outside.
func (s *simulation) publish() {
	p, options := s.publication()
	options = append(options, s.once(&p)...)
	id, err := s.bus.Publish(context.Background(), p.eventType, len(s.events), options...)
	s.published(p, id, err, nil, nil)
}

// publishBatch publishes several at once.
func (s *simulation) publishBatch() {
	var batch []eventbus.Publication
	var all []simPublication
	for i := range 2 + s.rng.IntN(3) {
		p, options := s.publication()
		all = append(all, p)
		batch = append(batch, eventbus.Publication{Type: p.eventType, Payload: len(s.events) + i, Options: options})
	}
	ids, err := s.bus.PublishBatch(context.Background(), batch)
	should := error(nil)
	if s.model.ending {
		should = eventbus.ErrShutdown
	}
	s.logf("a batch of %d: %v", len(batch), should)
	simCheck(errors.Is(err, should), "PublishBatch: %v, and should be %v", err, should)
	for i := range ids {
		s.published(all[i], ids[i], err, nil, nil)
	}
}

// published tells the model of a publication, and checks whether it was refused
// rightly.
func (s *simulation) published(p simPublication, id eventbus.EventID, err error, inside *simCall, w *simWait) bool {
	if s.repeats(p, id, err, inside) {
		return false
	}
	should := s.refuses(p, inside != nil && inside.dispatch != nil, w)
	s.logf("publish e%d %+v, by %s: %v", len(s.events), p, inside.by(), should)
	simCheck(errors.Is(err, should), "Publish(%+v) by %s: %v, and should be %v", p, inside.by(), err, should)
	if should != nil {
		return false
	}
	e := s.newEvent(p)
	e.id, e.published = id, s.last
	to := s.targets(p.eventType)
	for _, sub := range to {
		e.to = append(e.to, sub.name)
	}
	s.owed += len(to)
	if w != nil {
		w.pending = max(1, len(places(to)))
	}
	s.model.remember(e)
	s.model.publish(e, to, w)
	return true
}

// newEvent gives an event the next number.
func (s *simulation) newEvent(p simPublication) *simEvent {
	e := &simEvent{
		simPublication: p, number: len(s.events),
		handled: map[string]bool{}, raced: map[string]bool{}, gone: map[string]bool{}, perhaps: map[string]bool{},
	}
	s.events = append(s.events, e)
	return e
}

func (c *simCall) by() string {
	if c == nil {
		return "the driver"
	}
	return c.name
}

// order has a handler do something and come back to its gate.
func (s *simulation) order(c *simCall, do func()) {
	c.gate <- func() (bool, error) {
		do()
		return false, nil
	}
	synctest.Wait()
}

func (s *simulation) publishInside(c *simCall) {
	p, options := s.publication()
	options = append(options, s.once(&p)...)
	var id eventbus.EventID
	var err error
	number := len(s.events)
	s.order(c, func() { id, err = s.bus.Publish(c.ctx, p.eventType, number, options...) })
	s.published(p, id, err, c, nil)
}

// publishAndWait does so from outside, or in a handler.
func (s *simulation) publishAndWait(c *simCall) {
	if !s.started {
		return
	}
	p, options := s.publication()
	w, id := &simWait{event: len(s.events), call: c}, eventbus.NewEventID()
	options = append(options, eventbus.ID(id)) // so that operators know it
	var ctx context.Context
	do := func() {
		w.result, w.err = s.bus.PublishAndWait(ctx, p.eventType, w.event, options...)
		w.done.Store(true)
	}
	if c == nil {
		ctx, w.cancel = context.WithCancel(context.Background())
		go do()
		synctest.Wait()
	} else {
		ctx, w.of = c.ctx, c.dispatch
		s.order(c, do)
	}
	var err error
	if s.refuses(p, c != nil, w) != nil {
		err = w.err
	}
	if !s.published(p, id, err, c, w) {
		simCheck(w.done.Load(), "PublishAndWait waits for what was refused")
		return
	}
	if c != nil {
		c.wait = w
	}
	s.waits = append(s.waits, w)
}

// nothingLeft reports whether an action has found that the event has settled, as far as it is known.
func nothingLeft(err error) bool {
	return errors.Is(err, eventbus.ErrSettled) || errors.Is(err, eventbus.ErrUnknownEvent)
}

// operate does something to a subscription.
func (s *simulation) operate(sub *simSub, what string) {
	c := &sub.circuit
	s.logf("%s %s", what, sub.name)
	var err, should error
	if c.state == eventbus.CircuitDisabled && (what == "trip" || what == "reset") {
		should = eventbus.ErrCircuitDisabled
	}
	switch what {
	case "trip":
		if err = sub.made.Trip(); should == nil {
			c.turn(eventbus.CircuitOpen, s.last)
			c.newest, c.failed = false, 0
		}
	case "reset":
		if err = sub.made.Reset(); should == nil {
			c.turn(eventbus.CircuitClosed, s.last)
			c.newest, c.failed = false, 0
		}
	case "pause":
		err = sub.made.Pause()
		sub.pausedUntil = math.MaxInt64
	case "hold":
		d := s.odd(20 * time.Second)
		err = sub.made.HoldUntil(time.Now().Add(d))
		sub.pausedUntil = s.last + d
	case "resume":
		err = sub.made.Resume()
		sub.pausedUntil, sub.hanging = 0, 0
		sub.era++
	}
	simCheck(errors.Is(err, should), "%s: %v, and should be %v", what, err, should)
}

// release ends a call, with one of the failures or a success.
func (s *simulation) release(c *simCall, fails bool) {
	if fails {
		s.conclude(c, simPick(s, "error", "error", "pointless", "permanent", "after", "panic", "nil panic", "exit"))
		return
	}
	// The bus may take a success for one of a millisecond before, while its clock
	// ticks. That must not make a difference.
	if s.last%time.Second < 2*time.Millisecond || len(c.sub.circuit.outcomes) > 0 {
		s.sleep(3 * time.Millisecond)
		if !slices.Contains(s.calls, c) {
			return
		}
	}
	s.conclude(c, "success")
}

// conclude ends a call in one of the ways of release.
func (s *simulation) conclude(c *simCall, how string) {
	after := s.odd(3 * time.Second)
	s.logf("release %s: %s", c.name, how)
	s.calls = slices.DeleteFunc(s.calls, func(x *simCall) bool { return x == c })
	err, cause := c.ctx.Err(), context.Cause(c.ctx)
	switch m := s.model; {
	case c.dispatch == nil:
		cut := c.cancelled && errors.Is(err, context.Canceled) && errors.Is(cause, eventbus.ErrCancelled) || m.cut && errors.Is(err, context.Canceled) && errors.Is(cause, eventbus.ErrShutdown)
		simCheck(cut || errors.Is(err, context.DeadlineExceeded), "the context of %s, which was given up, has ended with %v, %v", c.name, err, cause)
		m.abandoned--
		if c.era == c.sub.era {
			c.sub.hanging--
		}
		c.sub.counts.LateEnds++
	case how == "success":
		simCheck(err == nil, "the context of %s has ended with %v", c.name, err)
		c.sub.counts.Successes++
		s.paid++
		c.dispatch.event.handled[c.sub.name] = true
		m.succeed(c.dispatch, func() { s.emitted(c) })
	default:
		simCheck(err == nil, "the context of %s has ended with %v", c.name, err)
		c.sub.counts.Failures++
		if how == "panic" || how == "nil panic" || how == "exit" {
			c.sub.counts.Panics++
		}
		delay := m.delay(c.dispatch)
		if how == "after" {
			delay = after
		}
		m.fail(c.dispatch, how, delay)
	}
	c.gate <- c.ends(how, after)
}

// ends is the order to return in one of the ways of release.
func (c *simCall) ends(how string, after time.Duration) simOrder {
	return func() (bool, error) {
		switch how {
		case "error":
			return true, fmt.Errorf("%s: %w", c.name, errSimulated)
		case "pointless":
			return true, errPointless
		case "permanent":
			return true, eventbus.Permanent(errSimulated)
		case "after":
			return true, eventbus.RetryAfter(errSimulated, after)
		case "panic":
			panic(errSimulated)
		case "nil panic":
			panic(nil) //nolint:govet // it is what is tried
		case "exit":
			runtime.Goexit()
		}
		return true, nil
	}
}

func (s *simulation) unsubscribe(sub *simSub, inside *simCall) {
	s.logf("unsubscribe %s, by %s", sub.name, inside.by())
	if inside != nil {
		s.order(inside, sub.made.Unsubscribe)
	} else {
		sub.made.Unsubscribe()
	}
	for _, d := range s.model.unsubscribe(sub) {
		d.state = "queued" // workers find it removed
	}
}

// reopen has the model replay a letter, or is why that is refused.
func (s *simulation) reopen(l *simDispatch) error {
	if s.model.ending {
		return eventbus.ErrShutdown
	}
	var to []*simSub
	for _, old := range l.rest {
		i := slices.IndexFunc(s.model.subs, func(x *simSub) bool { return x.name == old.name })
		if i < 0 {
			return eventbus.ErrNoSubscription
		}
		to = append(to, s.model.subs[i])
	}
	slices.SortFunc(to, func(x, y *simSub) int { return x.number - y.number })
	s.remove(l)
	s.model.ledger.Replays++
	l.event.cancels = 0
	d := &simDispatch{
		event: l.event, order: l.order, replayed: s.model.now, rest: to, replays: l.replays + 1, failures: l.failures, handled: l.handled, before: len(l.handled), later: l.later,
	}
	if s.model.now >= l.later {
		s.model.enqueue(d)
		return nil
	}
	d.state, d.due, d.idle = "scheduled", l.later, l.later-s.model.now // it was given up before
	s.model.open = append(s.model.open, d)
	return nil
}

func (s *simulation) replay(l *simDispatch) {
	id, should := s.letters[l.pair()], s.reopen(l)
	err := s.bus.DLQ().Replay(context.Background(), id)
	s.logf("replay %s: %v", l.pair(), should)
	simCheck(errors.Is(err, should), "Replay: %v, and should be %v", err, should)
	if should == nil {
		err = s.bus.DLQ().Replay(context.Background(), id)
		simCheck(errors.Is(err, eventbus.ErrNotFound), "Replay a second time: %v", err)
	}
}

// query is a query, and the letters that match it, oldest first.
func (s *simulation) query() (q eventbus.LetterQuery, matching []*simDispatch) {
	switch s.rng.IntN(4) {
	case 0:
		q.All = true
	case 1:
		q.Reason = simPick(s, eventbus.ReasonExhausted, eventbus.ReasonPermanent, eventbus.ReasonCircuitOpen, eventbus.ReasonOverflow, eventbus.ReasonExpired, eventbus.ReasonTooLate)
	case 2:
		q.Subscription = fmt.Sprintf("s%d", 1+s.rng.IntN(s.names))
	case 3:
		q.Type = simPick(s, "a.*", "b.x")
	}
	for _, l := range s.model.letters {
		if (q.Reason == "" || q.Reason == l.reason) && (q.Subscription == "" || q.Subscription == l.rest[0].name) &&
			(q.Type == "" || q.Type == l.event.eventType || q.Type == "a.*" && l.event.eventType[0] == 'a') {
			matching = append(matching, l)
		}
	}
	return q, matching
}

// inKeyOrder returns the letters with those of each key, in their places, in the order of
// publication (L4).
func inKeyOrder(letters []*simDispatch) []*simDispatch {
	ordered := slices.Clone(letters)
	for _, key := range []string{"k", "l"} {
		ofKey := slices.DeleteFunc(slices.Clone(letters), func(l *simDispatch) bool { return l.event.key != key })
		slices.SortStableFunc(ofKey, func(x, y *simDispatch) int { return x.order - y.order })
		for i, l := range letters {
			if l.event.key == key {
				ordered[i], ofKey = ofKey[0], ofKey[1:]
			}
		}
	}
	return ordered
}

func (s *simulation) replayMatching() {
	q, matching := s.query()
	var should eventbus.ReplayReport
	ending := s.model.ending && len(matching) > 0
	for _, l := range inKeyOrder(matching) {
		switch err := s.reopen(l); {
		case err == nil:
			should.Replayed++
		case errors.Is(err, eventbus.ErrNoSubscription):
			should.Stayed = append(should.Stayed, eventbus.StayedLetter{ID: s.letters[l.pair()], Err: err})
		}
	}
	report, err := s.bus.DLQ().ReplayMatching(context.Background(), q)
	s.logf("replay %+v: %d, %d stay", q, should.Replayed, len(should.Stayed))
	simCheck(errors.Is(err, eventbus.ErrShutdown) == ending && (err == nil) == !ending, "ReplayMatching: %v", err)
	simCheck(report.Replayed == should.Replayed && len(report.Stayed) == len(should.Stayed) && report.Gone == 0,
		"ReplayMatching: %+v, and should be %+v", report, should)
}

func (s *simulation) purge(l *simDispatch) {
	s.logf("purge %s", l.pair())
	err := s.bus.DLQ().Purge(context.Background(), s.letters[l.pair()])
	simCheck(err == nil, "Purge: %v", err)
	s.remove(l)
	s.settleFor(l)
	s.purged++
}

// settleFor notes that what is left of a dispatch will not be delivered.
func (s *simulation) settleFor(d *simDispatch) {
	s.paid += len(d.rest)
	for _, sub := range d.rest {
		d.event.gone[sub.name] = true
	}
}

func (s *simulation) remove(l *simDispatch) {
	s.model.letters = slices.DeleteFunc(s.model.letters, func(x *simDispatch) bool { return x == l })
	s.removed++
}

func (s *simulation) purgeMatching() {
	q, matching := s.query()
	report, err := s.bus.DLQ().PurgeMatching(context.Background(), q)
	s.logf("purge %+v: %d", q, len(matching))
	simCheck(err == nil && report.Purged == len(matching), "PurgeMatching: %+v, %v, and should be %d", report, err, len(matching))
	for _, l := range matching {
		s.remove(l)
		s.settleFor(l)
		s.purged++
	}
}

func (s *simulation) shutdownInside(c *simCall) {
	s.logf("shutdown, by %s", c.name)
	var err error
	s.order(c, func() { err = s.bus.Shutdown(c.ctx) })
	simCheck(err == nil, "Shutdown in a handler: %v", err)
	s.model.ending = true
}

// finish ends the bus: settled, under way, or cut.
func (s *simulation) finish(how string) {
	m := s.model
	if how == "settled" && !m.ending {
		s.quiesce()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.logf("shutdown, %s", how)
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.bus.Shutdown(ctx) }()
	synctest.Wait()
	m.ending = true
	if s.started {
		s.settle()
		for n := s.rng.IntN(10); n > 0 && how != "settled" && s.unsettled() > 0; n-- {
			s.act()
		}
	}
	s.hasty = true
	// A handler that waits is given up by a cut, and there is a worker too many. Which
	// one leaves, and returns what it would go on with, is not told beforehand either.
	if s.started && slices.ContainsFunc(s.calls, func(c *simCall) bool { return c.dispatch != nil && c.wait != nil }) {
		s.settle()
	}
	if !s.started && len(m.open) > 0 || s.unsettled() > 0 && how == "cut" {
		s.logf("cut")
		m.cut = true
		m.end()
		s.atDrain = m.abandoned
		// Were a letter recorded later, the next of its key would find the workers busy.
		s.noted(func() { s.over = true })
		cancel()
		s.settle()
	} else {
		s.quiesce()
		synctest.Wait()
	}
	s.checkShutdown()
	for len(s.calls) > 0 {
		s.release(s.calls[0], s.chance(0.5))
		s.look()
	}
	s.look()
	s.compareLetters()
	for _, l := range m.letters {
		s.paid += len(l.rest)
	}
	simCheck(s.owed == s.paid+int(m.ended[eventbus.Dropped]), "of %d deliveries %d are accounted for", s.owed, s.paid+int(m.ended[eventbus.Dropped]))
}

// checkShutdown looks at the error of Shutdown.
func (s *simulation) checkShutdown() {
	var err error
	select {
	case err = <-s.ended:
	case <-time.After(10 * time.Millisecond):
		simCheck(false, "Shutdown has not returned")
	}
	s.look()
	unfinished := map[string]bool{}
	for _, l := range s.model.letters {
		if l.reason == eventbus.ReasonShutdown {
			unfinished[l.pair()] = true
		}
	}
	if len(unfinished) == 0 && s.atDrain == 0 {
		simCheck(err == nil, "Shutdown: %v", err)
		return
	}
	var short *eventbus.ShutdownError
	simCheck(errors.As(err, &short) && len(short.Unfinished) == len(unfinished), "Shutdown: %v, and should have unfinished %v", err, unfinished)
	for i := range short.Unfinished {
		l := &short.Unfinished[i]
		key := simPair(l.Event.Payload.(int), l.Subscription)
		simCheck(unfinished[key], "Shutdown: %s is not unfinished", key)
	}
	simCheck(len(short.Abandoned) == s.atDrain, "Shutdown: %d abandoned, and should be %d", len(short.Abandoned), s.atDrain)
}

// quiesce ends all faults: everything must settle.
func (s *simulation) quiesce() {
	m := s.model
	s.logf("quiesce")
	s.hasty = true
	for _, sub := range m.subs {
		if (m.now < sub.pausedUntil || sub.hung()) && !m.ending {
			s.operate(sub, "resume")
		}
	}
	s.settle()
	for n := 0; s.unsettled() > 0 || !m.ending && len(m.open) > 0; n++ {
		simCheck(n < 10_000, "it does not settle: %+v", m.books())
		if i := slices.IndexFunc(s.calls, func(c *simCall) bool { return c.wait == nil && c.dispatch != nil }); i >= 0 {
			s.release(s.calls[i], false)
			s.settle()
			s.sleep(s.odd(3 * time.Microsecond))
			continue
		}
		if len(s.runs) > 0 { // one was taken in the last sleep
			s.settle()
			continue
		}
		next := s.nextInstant()
		if i := slices.IndexFunc(m.subs, (*simSub).hung); next == math.MaxInt64 && i >= 0 && !m.ending {
			s.operate(m.subs[i], "resume")
			s.settle()
			continue
		}
		simCheck(next < math.MaxInt64 || s.spare(), "nothing goes on by itself, and not all has settled: %+v", m.books())
		s.sleep(min(max(next-s.last, 100*time.Microsecond), time.Hour))
		s.settle()
	}
	s.hasty = false
}

// end ends what a violation has left.
func (s *simulation) end() {
	close(s.free)
	s.noted(func() { s.over = true })
	s.recordAll()
	if s.bus == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.bus.Shutdown(ctx)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		// Its goroutines cannot be ended, and would tick for ever.
		s.violation += "\nand Shutdown does not return"
		panic(simReport(s.seed, simResult{trace: s.trace.Bytes(), violation: s.violation}))
	}
}
