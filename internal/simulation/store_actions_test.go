package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

const storeTimeout = 20 * time.Second

var errStoreSim = errors.New("simulated")

// subscribe makes a subscription, maybe under a new name. It takes over a detached one.
func (p *storeProcess) subscribe(sub *storeSub) {
	s := p.sim
	if s.n > 1 && chance(p.rng, 15) {
		sub.names++
	}
	options := []eventbus.SubscribeOption{eventbus.Named(sub.name(sub.names))}
	for i := range sub.names {
		options = append(options, eventbus.Formerly(sub.name(i)))
	}
	one := chance(p.rng, 30)
	if options = append(options, p.pacedOptions(sub)...); one && sub.pace == nil {
		options = append(options, eventbus.Concurrency(1))
	}
	if sub.drops {
		options = append(options, eventbus.DropExpired())
	}
	line := 0
	if chance(p.rng, 10) {
		line = 1 + p.rng.IntN(4)
		options = append(options, eventbus.LineCapacity(line))
	}
	gone := false // guarded by storeModel.mu
	made, err := p.bus.Subscribe(sub.pattern, p.handler(sub, &gone), options...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("subscribed %s: %v", sub.name(sub.names), err)
	if err != nil {
		return
	}
	sub.sub, sub.present, sub.gone, sub.line = made, true, &gone, line
	if sub.detached { // it has matched all the time
		sub.detached = false
		s.tally.takenOver.Add(1)
		return
	}
	sub.since++
}

func (p *storeProcess) unsubscribe(sub *storeSub) {
	s := p.sim
	s.mu.Lock()
	s.logf("unsubscribe s%d", sub.index)
	sub.present, sub.detached = false, false
	sub.since++
	made, gone := sub.sub, sub.gone
	s.mu.Unlock()
	made.Unsubscribe()
	s.loosen(sub.index)
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	*gone = true
	s.mu.Unlock()
}

// pause pauses a subscription, maybe until an instant. After that no call begins, whatever name the subscription has in
// the next process, until it is resumed or the wall clock has shown the instant.
func (p *storeProcess) pause(sub *storeSub) error {
	s := p.sim
	s.mu.Lock()
	before := sub.resumes
	until := s.pauseEnds(p.rng)
	sub.paused = sub.paused && until.IsZero() && !s.hasEnded(sub) // HoldUntil replaces a pause, maybe although it fails
	sub.shown = time.Time{}
	s.mu.Unlock()
	err := func() error {
		if until.IsZero() {
			return sub.sub.Pause()
		}
		return sub.sub.HoldUntil(until)
	}()
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && sub.resumes == before && sub.ordering == 0 {
		sub.paused, sub.until = true, until
	}
	return err
}

func (p *storeProcess) resume(sub *storeSub) error {
	defer p.sim.mayResume(sub)()
	return sub.sub.Resume()
}

// orderBeside gives an order beside the process with the lease. Of two that are given at once, either counts. One that
// fails may be carried out later.
func (p *storeProcess) orderBeside(sub *storeSub, order func(*eventbus.Subscription, ...eventbus.DirectiveOption) error) error {
	returned := p.sim.mayResume(sub)
	err := order(p.targets[sub.index])
	if err == nil {
		returned()
	}
	return err
}

// mayResume notes an order that may end a pause, until it has returned.
func (m *storeModel) mayResume(sub *storeSub) (returned func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sub.paused = false
	sub.resumes++
	sub.ordering++
	m.resumesWhole(sub)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		sub.paused = false
		sub.resumes++
		sub.ordering--
		m.resumesWhole(sub)
	}
}

// handler returns a handler. What it does depends only on the seed, the event, the subscription,
// the attempt and the replays.
func (p *storeProcess) handler(sub *storeSub, gone *bool) eventbus.Handler {
	m := p.sim.storeModel
	return func(ctx context.Context, _ eventbus.Event) (err error) {
		in, _ := eventbus.FromContext(ctx)
		c := m.begins(ctx, p, sub, gone)
		if c == nil {
			return errStoreSim
		}
		e := c.delivery.event
		rng := rand.New(rand.NewPCG(p.sim.seed, uint64(e.n)<<32+uint64(sub.index)<<24+uint64(in.Attempt)<<8+uint64(in.Replays)))
		if chance(rng, 40) {
			time.Sleep(ms(rng, 100))
		}
		if chance(rng, 4) && e.n < 150 {
			_ = p.publish(ctx, p.sim.newEvent("b.x", pick(rng, "", "inner"), 0, false))
		}
		p.emits(ctx, c, rand.New(rand.NewPCG(p.sim.seed+7, uint64(e.n)<<32+uint64(sub.index)<<24+uint64(in.Attempt)<<8+uint64(in.Replays))))
		if err := p.postpones(ctx, sub, c, in.Replays); err != nil {
			return err
		}
		if !chance(rng, sub.bad) || p.quiet && in.Attempt > 1 {
			c.ends(m, ctx.Err() == nil)
			return nil
		}
		text := fmt.Sprintf("failure %d/%d/%d/%d", e.n, sub.index, in.Attempt, in.Replays)
		switch kind := rng.IntN(20); {
		case kind < 12:
			err = errors.New(text)
		case kind < 14:
			err = eventbus.Permanent(errors.New(text))
		case kind < 16:
			err = eventbus.RetryAfter(errors.New(text), ms(rng, 500))
		case kind == 16:
			unfail := c.fails(m, in.Attempt, "", c.began.Add(storeTimeout))
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), eventbus.ErrShutdown) || wasCancelled(ctx) {
				unfail()
			}
			c.ends(m, false)
			return ctx.Err()
		case kind == 17:
			c.fails(m, in.Attempt, text, time.Time{})
			c.ends(m, false)
			panic(text)
		case kind == 18:
			c.fails(m, in.Attempt, "", time.Time{})
			c.ends(m, false)
			runtime.Goexit()
		default:
			err = errors.Join(errStoreSim, errors.New(text))
		}
		c.fails(m, in.Attempt, text, time.Time{})
		c.ends(m, false)
		return err
	}
}

// receivers returns the subscriptions that receive events of a type, with the number of changes to
// each.
func (p *storeProcess) receivers(eventType string) map[int]int {
	s := p.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[int]int{}
	for _, sub := range s.subs {
		if p.beside && slices.Contains(storePatterns[sub.pattern], eventType) {
			all[sub.index] = 0
		}
		if !p.beside && sub.present && slices.Contains(storePatterns[sub.pattern], eventType) {
			all[sub.index] = sub.since
		}
	}
	return all
}

// still returns those of the subscriptions that have not changed.
func (p *storeProcess) still(before map[int]int, eventType string) (subs []int) {
	for sub, since := range p.receivers(eventType) {
		if before[sub] == since {
			subs = append(subs, sub)
		}
	}
	return subs
}

// options returns the options of a publication. The model may learn the event's id meanwhile.
func (m *storeModel) options(e *storeEvent) []eventbus.PublishOption {
	m.mu.Lock()
	defer m.mu.Unlock()
	options := []eventbus.PublishOption{eventbus.Metadata("n", fmt.Sprint(e.n))}
	if e.key != "" {
		options = append(options, eventbus.Key(e.key))
	}
	switch {
	case !e.at.IsZero():
		options = append(options, eventbus.At(e.at))
	case e.after > 0:
		options = append(options, eventbus.After(e.after))
	}
	if !e.expires.IsZero() && m.wall.now().Add(e.after).Before(e.expires) { // otherwise this repetition does not expire
		options = append(options, eventbus.ExpiresAt(e.expires))
	}
	switch {
	case e.once != "":
		options = append(options, eventbus.IdempotencyKey(e.once))
	case e.given || e.learned:
		options = append(options, eventbus.ID(e.id))
	}
	return options
}

// storePayload is the payload of an event.
type storePayload struct{ N int }

func (p *storeProcess) publish(ctx context.Context, e *storeEvent) error {
	s := p.sim
	before := p.receivers(e.eventType)
	s.publishes("publish", e)
	id, err := p.bus.Publish(ctx, e.eventType, storePayload{e.n}, s.options(e)...)
	s.published(p, err == nil, err, p.still(before, e.eventType), e)
	if e.once != "" && err == nil {
		s.returns(e, id)
		s.tally.keyed.Add(1)
	}
	return err
}

// returns checks that all publications of a key return one id.
func (m *storeModel) returns(e *storeEvent, id eventbus.EventID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case e.returned.IsZero():
		e.returned = id
	case e.returned != id && e.freed: // by Cancel
		e.returned = id
	case e.returned != id:
		m.failf(e, "the key %q returned the id %s, and now %s", e.once, e.returned, id)
	}
}

func (p *storeProcess) publishAndWait(e *storeEvent, limit time.Duration) error {
	s := p.sim
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	before := p.receivers(e.eventType)
	s.publishes("publish and wait", e)
	r, err := p.bus.PublishAndWait(ctx, e.eventType, storePayload{e.n}, s.options(e)...)
	s.published(p, !r.ID.IsZero(), err, p.still(before, e.eventType), e)
	if !r.ID.IsZero() && ctx.Err() == nil {
		s.checkResult(e, r, err)
	}
	return err
}

func (p *storeProcess) publishBatch(ctx context.Context, events []*storeEvent) {
	s := p.sim
	var batch []eventbus.Publication
	for _, e := range events {
		e.batch = events
		batch = append(batch, eventbus.Publication{Type: e.eventType, Payload: storePayload{e.n}, Options: p.sim.options(e)})
	}
	before := p.receivers(events[0].eventType)
	s.publishes("publish batch", events...)
	_, err := p.bus.PublishBatch(ctx, batch)
	s.published(p, err == nil, err, p.still(before, events[0].eventType), events...)
}

func (p *storeProcess) startPublishers() {
	for i := range uint64(3) {
		p.publishers.Go(func() { p.publishEvents(rand.New(rand.NewPCG(p.sim.seed, 1000*uint64(p.sim.n)+i))) })
	}
}

// publishEvents publishes in each way.
func (p *storeProcess) publishEvents(rng *rand.Rand) {
	s := p.sim
	for range 2 + rng.IntN(12) {
		if !p.bursts {
			time.Sleep(ms(rng, 60))
		}
		if p.dead.Load() || s.failed() {
			return
		}
		var after time.Duration
		if chance(rng, 10) {
			after = ms(rng, 2000)
		}
		eventType, key := pick(rng, "a.x", "a.x", "a.y", "b.x", "none"), pick(rng, "", "", "k0", "k0", "k1")
		switch rng.IntN(10) {
		case 0:
			e := s.newEvent(eventType, key, after, chance(rng, 20))
			p.repeat(rng, e, p.publishAndWait(e, ms(rng, 3000)+1))
		case 1: // with a context that ends
			ctx, cancel := context.WithTimeout(p.ctx, ms(rng, 20))
			e := s.newEvent(eventType, key, after, chance(rng, 20))
			err := p.publish(ctx, e)
			cancel()
			p.repeat(rng, e, err)
		case 2:
			var events []*storeEvent
			for range 1 + rng.IntN(3) {
				events = append(events, s.newEvent(eventType, pick(rng, "", key, "k1"), after, false))
			}
			p.publishBatch(p.ctx, events)
		case 3, 4: // an id again, maybe of another process
			s.mu.Lock()
			var known []*storeEvent
			for _, e := range s.events {
				if e.given {
					known = append(known, e)
				}
			}
			s.mu.Unlock()
			if len(known) > 0 && chance(rng, 60) {
				p.publishAgain(rng, pick(rng, known...))
				continue
			}
			p.publishAgain(rng, s.newEvent(eventType, key, after, true))
		default:
			p.publishAgain(rng, s.newEvent(eventType, key, after, false))
		}
	}
}

// operate is what an operator does.
func (p *storeProcess) operate(late []*storeSub) {
	s := p.sim
	rng, hands := p.rng, rand.New(rand.NewPCG(s.seed, 700+uint64(s.n)))
	steps := 8
	for i := range steps {
		time.Sleep(ms(rng, 200))
		if p.dead.Load() || s.failed() {
			return
		}
		if len(late) > 0 && (chance(rng, 40) || i == steps-1) {
			p.subscribe(late[0])
			late = late[1:]
		}
		p.changeHands(hands)
		sub := pick(rng, s.subs...)
		if sub.sub == nil {
			continue
		}
		switch rng.IntN(16) {
		case 0, 1:
			s.logs("pause s%d: %v", sub.index, p.pause(sub))
		case 2:
			s.logs("trip s%d: %v", sub.index, sub.sub.Trip())
		case 3, 4:
			s.logs("reset s%d: %v", sub.index, sub.sub.Reset())
		case 5, 6:
			s.logs("resume s%d: %v", sub.index, p.resume(sub))
		case 7, 8, 9:
			p.letters(rng)
		case 10, 11:
			p.act(rng)
			p.act(rng)
		case 12:
			switch {
			case !sub.present:
			case chance(rng, 40):
				p.retire(rng, sub)
			default:
				p.unsubscribe(sub)
			}
			if !sub.present && chance(rng, 60) {
				p.subscribe(sub)
			}
		case 13:
			if !sub.present {
				p.subscribe(sub)
			}
		}
	}
	if chance(rng, 70) {
		for _, sub := range s.subs {
			if sub.present {
				_, _ = p.resume(sub), sub.sub.Reset()
			}
		}
	}
}

// letters replays and purges letters.
func (p *storeProcess) letters(rng *rand.Rand) {
	s, dlq := p.sim, p.bus.DLQ()
	page, err := dlq.List(p.ctx, eventbus.LetterQuery{})
	if err != nil || len(page.Letters) == 0 {
		return
	}
	l := pick(rng, page.Letters...)
	switch rng.IntN(6) {
	case 0:
		err = dlq.Purge(p.ctx, l.ID)
		s.taken("purge", l.ID, err)
	case 1:
		_, err = dlq.PurgeMatching(p.ctx, eventbus.LetterQuery{Reason: l.Reason, Subscription: l.Subscription})
		s.logs("purge matching: %v", err)
	case 2:
		report, err := dlq.ReplayMatching(p.ctx, eventbus.LetterQuery{All: true})
		s.logs("replay matching: %+v %v", report, err)
	case 3:
		s.mu.Lock()
		e := s.letters[l.ID]
		s.mu.Unlock()
		if e != nil {
			err = dlq.ReplayEdited(p.ctx, l.ID, map[string]int{"N": e.event.n, "edited": rng.IntN(10)})
			s.taken("replay edited", l.ID, err)
		}
	default:
		err = dlq.Replay(p.ctx, l.ID)
		s.taken("replay", l.ID, err)
	}
}

// taken checks that a letter was taken, or not.
func (m *storeModel) taken(how string, id eventbus.LetterID, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logf("%s %s: %v", how, id, err)
	if err == nil && m.letters[id] != nil {
		m.failf(m.letters[id].event, "%s returned nil, and the letter stays", how)
	}
}

func (p *storeProcess) isCrashing() bool {
	select {
	case <-p.crashing:
		return true
	default:
		return false
	}
}
