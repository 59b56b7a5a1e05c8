package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
)

var errSimulated = errors.New("simulated")

// simPublication is what is published.
type simPublication struct {
	eventType, key string
	delay          time.Duration
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
	return p, options
}

// publish publishes from outside.
func (s *simulation) publish() {
	p, options := s.publication()
	id, err := s.bus.Publish(context.Background(), p.eventType, len(s.model.events), options...)
	s.published(p, id, err, nil, nil)
}

// publishBatch publishes several at once.
func (s *simulation) publishBatch() {
	var batch []eventbus.Publication
	var all []simPublication
	for i := range 2 + s.rng.IntN(3) {
		p, options := s.publication()
		all = append(all, p)
		batch = append(batch, eventbus.Publication{Type: p.eventType, Payload: len(s.model.events) + i, Options: options})
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
func (s *simulation) published(p simPublication, id eventbus.EventID, err error, inside *simCall, w *simWaiter) bool {
	m := s.model
	should := m.refuses(p, inside != nil && inside.dispatch != nil, w)
	s.logf("publish e%d %+v, by %s: %v", len(m.events), p, inside.by(), should)
	simCheck(errors.Is(err, should), "Publish(%+v) by %s: %v, and should be %v", p, inside.by(), err, should)
	if should == nil {
		m.publish(p, s.last, w)
		s.ids = append(s.ids, id)
	}
	return should == nil
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
	var id eventbus.EventID
	var err error
	number := len(s.model.events)
	s.order(c, func() { id, err = s.bus.Publish(c.ctx, p.eventType, number, options...) })
	s.published(p, id, err, c, nil)
}

// publishAndWait does so from outside, or in a handler.
func (s *simulation) publishAndWait(c *simCall) {
	if !s.model.started {
		return
	}
	p, options := s.publication()
	w := &simWait{event: len(s.model.events), model: &simWaiter{}, call: c}
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
		ctx = c.ctx
		w.model.place, w.model.above = c.dispatch.keyPlace(s.model.isolation), c.dispatch.waiter
		s.order(c, do)
	}
	var err error
	if s.model.refuses(p, c != nil, w.model) != nil {
		err = w.err
	}
	if !s.published(p, eventbus.EventID{}, err, c, w.model) {
		simCheck(w.done.Load(), "PublishAndWait waits for what was refused")
		s.model.refused = c != nil
		return
	}
	if c != nil {
		c.wait, c.dispatch.blocked = w, true
	}
	s.waits = append(s.waits, w)
}

// cancelScheduled takes back an event for later.
func (s *simulation) cancelScheduled() {
	e := s.model.scheduled[s.rng.IntN(len(s.model.scheduled))]
	id := s.ids[e.event.number]
	if id.IsZero() {
		return
	}
	s.logf("cancel e%d", e.event.number)
	simCheck(s.bus.Cancel(context.Background(), id) == nil, "Cancel of event %d", e.event.number)
	simCheck(errors.Is(s.bus.Cancel(context.Background(), id), eventbus.ErrNotScheduled), "Cancel of event %d, again", e.event.number)
	s.model.cancel(e)
}

// operate does something to a subscription.
func (s *simulation) operate(sub *simSub, what string) {
	c := &sub.circuit
	s.logf("%s %s", what, sub.name)
	var err, should error
	if c.disabled && (what == "trip" || what == "reset") {
		should = eventbus.ErrCircuitDisabled
	}
	switch what {
	case "trip":
		if err = sub.made.Trip(); should == nil {
			c.open(s.last)
		}
	case "reset":
		if err = sub.made.Reset(); should == nil {
			c.close()
		}
	case "pause":
		err = sub.made.Pause()
		c.paused, c.pausedUntil = true, math.MaxInt64
	case "hold":
		d := s.odd(20 * time.Second)
		err = sub.made.HoldUntil(time.Now().Add(d))
		c.paused, c.pausedUntil = true, s.last+d
	case "resume":
		err = sub.made.Resume()
		c.paused = false
	}
	simCheck(errors.Is(err, should), "%s: %v, and should be %v", what, err, should)
	s.model.tend(sub, s.last)
}

// release ends a call, with one of the failures or a success.
func (s *simulation) release(c *simCall, fails bool) {
	if fails {
		s.conclude(c, simPick(s, "error", "error", "error", "permanent", "after", "panic", "nil panic", "exit"))
		return
	}
	// The bus may take a success for one of a millisecond before, while its clock
	// ticks. That must not make a difference.
	if s.last%time.Second < 2*time.Millisecond || slices.ContainsFunc(c.sub.circuit.outcomes, func(o simOutcome) bool { return o.failed }) {
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
	case c.dispatch == nil && m.cut:
		simCheck(errors.Is(err, context.Canceled) && errors.Is(cause, eventbus.ErrShutdown) || errors.Is(err, context.DeadlineExceeded),
			"the context of %s, which was given up, has ended with %v, %v", c.name, err, cause)
		m.abandoned--
		c.sub.counts.LateEnds++
	case c.dispatch == nil:
		simCheck(errors.Is(err, context.DeadlineExceeded), "the context of %s, which has overrun, has ended with %v", c.name, err)
		m.abandoned--
		c.sub.counts.LateEnds++
	default:
		simCheck(err == nil, "the context of %s has ended with %v", c.name, err)
		if how == "success" {
			m.succeed(c.dispatch, s.last)
		} else {
			m.fail(c.dispatch, how, after, s.last)
		}
	}
	c.gate <- func() (bool, error) {
		switch how {
		case "error":
			return true, fmt.Errorf("%s: %w", c.name, errSimulated)
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
	s.model.unsubscribe(sub, s.last)
}

func (s *simulation) replay(l *simLetter) {
	id, should := s.letters[l.key()], s.model.replay(l, s.last)
	err := s.bus.DLQ().Replay(context.Background(), id)
	s.logf("replay %s: %v", l.key(), should)
	simCheck(errors.Is(err, should), "Replay: %v, and should be %v", err, should)
	if should == nil {
		err = s.bus.DLQ().Replay(context.Background(), id)
		simCheck(errors.Is(err, eventbus.ErrNotFound), "Replay a second time: %v", err)
	}
}

// query is a query, and the letters that match it, oldest first.
func (s *simulation) query() (q eventbus.LetterQuery, matching []*simLetter) {
	switch s.rng.IntN(4) {
	case 0:
		q.All = true
	case 1:
		q.Reason = simPick(s, eventbus.ReasonExhausted, eventbus.ReasonPermanent, eventbus.ReasonCircuitOpen, eventbus.ReasonExpired)
	case 2:
		q.Subscription = fmt.Sprintf("s%d", 1+s.rng.IntN(s.names))
	case 3:
		q.Type = simPick(s, "a.*", "b.x")
	}
	for _, l := range s.model.letters {
		if (q.Reason == "" || q.Reason == l.reason) && (q.Subscription == "" || q.Subscription == l.sub) &&
			(q.Type == "" || q.Type == l.event.eventType || q.Type == "a.*" && l.event.eventType[0] == 'a') {
			matching = append(matching, l)
		}
	}
	return q, matching
}

func (s *simulation) replayMatching() {
	q, matching := s.query()
	var should eventbus.ReplayReport
	ending := s.model.ending && len(matching) > 0
	for _, l := range matching {
		switch err := s.model.replay(l, s.last); {
		case err == nil:
			should.Replayed++
		case errors.Is(err, eventbus.ErrNoSubscription):
			should.Stayed = append(should.Stayed, eventbus.StayedLetter{ID: s.letters[l.key()], Err: err})
		}
	}
	report, err := s.bus.DLQ().ReplayMatching(context.Background(), q)
	s.logf("replay %+v: %d, %d stay", q, should.Replayed, len(should.Stayed))
	simCheck(errors.Is(err, eventbus.ErrShutdown) == ending && (err == nil) == !ending, "ReplayMatching: %v", err)
	simCheck(report.Replayed == should.Replayed && len(report.Stayed) == len(should.Stayed) && report.Gone == 0,
		"ReplayMatching: %+v, and should be %+v", report, should)
}

func (s *simulation) purge(l *simLetter) {
	s.logf("purge %s", l.key())
	err := s.bus.DLQ().Purge(context.Background(), s.letters[l.key()])
	simCheck(err == nil, "Purge: %v", err)
	s.model.remove(l, "purged")
}

func (s *simulation) purgeMatching() {
	q, matching := s.query()
	report, err := s.bus.DLQ().PurgeMatching(context.Background(), q)
	s.logf("purge %+v: %d", q, len(matching))
	simCheck(err == nil && report.Purged == len(matching), "PurgeMatching: %+v, %v, and should be %d", report, err, len(matching))
	for _, l := range matching {
		s.model.remove(l, "purged")
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
	if m.started {
		s.settle()
		for n := s.rng.IntN(10); n > 0 && how != "settled" && m.unsettled() > 0; n-- {
			s.act()
		}
	}
	// What a cut takes out of the queue, and what a worker takes and passes over
	// first, is not told beforehand.
	sure := !slices.ContainsFunc(m.queue, func(d *simDispatch) bool {
		return slices.ContainsFunc(d.subs, func(x *simSub) bool {
			return x.removed || x.circuit.shut || x.circuit.paused || len(x.behind) > 0
		})
	}) && m.parked == 0
	cut := !m.started && m.unsettled()+len(m.scheduled) > 0 || m.unsettled() > 0 && how == "cut" && sure
	if cut {
		s.logf("cut")
		m.cutShort(s.last)
		cancel()
		s.look()
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
	for _, e := range m.events {
		for sub, state := range e.pairs {
			simCheck(state != "pending" && state != "running", "event %d is %s at %s at the end", e.number, state, sub)
		}
	}
}

// checkShutdown looks at the error of Shutdown.
func (s *simulation) checkShutdown() {
	var err error
	select {
	case err = <-s.ended:
	case <-time.After(10 * time.Millisecond):
		simFail("Shutdown has not returned")
	}
	s.look()
	unfinished := s.model.unfinished
	if len(unfinished) == 0 {
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
	simCheck(len(short.Abandoned) == s.model.atDrain, "Shutdown: %d abandoned, and should be %d", len(short.Abandoned), s.model.atDrain)
}

// quiesce ends all faults: everything must settle.
func (s *simulation) quiesce() {
	m := s.model
	s.logf("quiesce")
	for _, sub := range m.subs {
		if sub.circuit.paused && !m.ending {
			simCheck(sub.made.Resume() == nil, "Resume")
			sub.circuit.paused = false
			m.tend(sub, s.last)
			s.settle()
		}
	}
	for n := 0; m.unsettled() > 0 || !m.ending && m.held()+len(m.scheduled) > 0; n++ {
		simCheck(n < 10_000, "it does not settle: %+v", m.books())
		if i := slices.IndexFunc(s.calls, func(c *simCall) bool { return c.wait == nil && c.dispatch != nil }); i >= 0 {
			s.release(s.calls[i], false)
			s.sleep(s.odd(3 * time.Microsecond))
			s.settle()
			continue
		}
		next := m.nextInstant()
		simCheck(next < math.MaxInt64 || len(m.queue) > 0, "nothing goes on by itself, and not all has settled: %+v", m.books())
		s.sleep(min(max(next-s.last, 100*time.Microsecond), time.Hour))
		s.settle()
	}
}

// end ends what a violation has left.
func (s *simulation) end() {
	close(s.free)
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
