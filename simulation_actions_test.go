package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing/synctest"
	"time"

	"github.com/surebus/eventbus"
)

var errSimulated = errors.New("simulated")

// publish publishes from outside.
func (s *simulation) publish(eventType string) {
	_, err := s.bus.Publish(context.Background(), eventType, len(s.model.events))
	s.published(eventType, err, nil, nil)
}

// published tells the model of a publication, and checks whether it was refused
// rightly.
func (s *simulation) published(eventType string, err error, inside *simCall, w *simWaiter) bool {
	should := s.model.refuses(eventType, inside != nil && inside.dispatch != nil)
	s.logf("publish e%d %s, by %s: %v", len(s.model.events), eventType, inside.by(), should)
	simCheck(errors.Is(err, should), "Publish(%s) by %s: %v, and should be %v", eventType, inside.by(), err, should)
	if should == nil {
		s.model.publish(eventType, s.last, w)
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
	eventType := s.eventType()
	var err error
	number := len(s.model.events)
	s.order(c, func() { _, err = s.bus.Publish(c.ctx, eventType, number) })
	s.published(eventType, err, c, nil)
}

// publishAndWait does so from outside, or in a handler.
func (s *simulation) publishAndWait(c *simCall) {
	if !s.model.started {
		return
	}
	eventType := s.eventType()
	w := &simWait{event: len(s.model.events), model: &simWaiter{}, call: c}
	var ctx context.Context
	do := func() {
		w.result, w.err = s.bus.PublishAndWait(ctx, eventType, w.event)
		w.done.Store(true)
	}
	if c != nil {
		ctx = c.ctx
		s.order(c, do)
	} else {
		ctx, w.cancel = context.WithCancel(context.Background())
		go do()
		synctest.Wait()
	}
	var err error
	if s.model.refuses(eventType, c != nil) != nil {
		err = w.err
	}
	if !s.published(eventType, err, c, w.model) {
		simCheck(w.done.Load(), "PublishAndWait waits for what was refused")
		return
	}
	if c != nil {
		c.wait, c.dispatch.blocked = w, true
	}
	s.waits = append(s.waits, w)
}

// release ends a call, with one of the failures or a success.
func (s *simulation) release(c *simCall, fails bool) {
	if fails {
		s.conclude(c, simPick(s, "error", "error", "error", "permanent", "after", "panic", "nil panic", "exit"))
		return
	}
	if s.last%time.Second < 2*time.Millisecond {
		// The bus may take a success for one of a millisecond before.
		s.sleep(2 * time.Millisecond)
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
		s.order(inside, sub.leave)
	} else {
		sub.leave()
	}
	s.model.unsubscribe(sub)
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
	n, err := s.bus.DLQ().PurgeMatching(context.Background(), q)
	s.logf("purge %+v: %d", q, len(matching))
	simCheck(err == nil && n == len(matching), "PurgeMatching: %d, %v, and should be %d", n, err, len(matching))
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
	removed := slices.ContainsFunc(m.queue, func(d *simDispatch) bool {
		return slices.ContainsFunc(d.subs, func(x *simSub) bool { return x.removed || x.circuit.shut })
	})
	cut := m.unsettled() > 0 && !m.started || how == "cut" && m.unsettled() > 0 && !removed
	if cut {
		s.logf("cut")
		unfinished := m.cutShort(s.last)
		cancel()
		s.look()
		for _, c := range slices.Clone(s.calls) {
			simCheck(c.wait == nil, "%s waits after the cut", c.name)
		}
		s.checkCut(unfinished)
	} else {
		s.quiesce()
		synctest.Wait()
		select {
		case err := <-s.ended:
			simCheck(err == nil, "Shutdown: %v", err)
		default:
			simFail("Shutdown has not returned, and everything has settled")
		}
	}
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

// checkCut looks at the error of a Shutdown that was cut short.
func (s *simulation) checkCut(unfinished map[string]bool) {
	var err error
	select {
	case err = <-s.ended:
	default:
		simFail("Shutdown was cut short, and has not returned")
	}
	var short *eventbus.ShutdownError
	simCheck(errors.As(err, &short) && len(short.Unfinished) == len(unfinished), "Shutdown: %v, and should have %d unfinished", err, len(unfinished))
	for i := range short.Unfinished {
		l := &short.Unfinished[i]
		key := fmt.Sprintf("e%d/%s", l.Event.Payload, l.Subscription)
		simCheck(unfinished[key], "Shutdown: %s is not unfinished", key)
	}
	simCheck(len(short.Abandoned) == len(s.calls), "Shutdown: %d abandoned, and should be %d", len(short.Abandoned), len(s.calls))
}

// quiesce ends all faults: everything must settle.
func (s *simulation) quiesce() {
	s.logf("quiesce")
	for n := 0; s.model.unsettled() > 0; n++ {
		simCheck(n < 10_000, "it does not settle")
		if i := slices.IndexFunc(s.calls, func(c *simCall) bool { return c.wait == nil && c.dispatch != nil }); i >= 0 {
			s.release(s.calls[i], false)
			s.sleep(s.odd(2 * time.Microsecond))
			s.settle()
			continue
		}
		s.sleep(max(s.model.nextInstant()-s.last, 100*time.Microsecond))
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
	_ = s.bus.Shutdown(ctx)
}
