package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/surebus/eventbus"
)

// answer is the function of PerDestination.
func (s *pacedSim) answer(sub *pacedSub, by int, e eventbus.Event) string {
	name, rng := s.asks(sub, by, e.Payload.(int))
	switch name {
	case "panic":
		panic(name)
	case "slow":
		time.Sleep(ms(rng, 100))
	case "hangs":
		time.Sleep(pacedTimeout + time.Second)
	}
	return name
}

// handler is the handler of a subscription. What it does depends on the seed, the event, the subscription and the number of its calls.
func (s *pacedSim) handler(sub *pacedSub, by int) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		d := s.begins(ctx, sub, by, e.Payload.(int))
		rng := rand.New(rand.NewPCG(s.seed, uint64(d.event.n)<<32+uint64(sub.number)<<16+uint64(d.calls)))
		s.mu.Lock()
		calm, refuses := s.calm, s.refuses[sub.doorName(d.destination)]
		s.mu.Unlock()
		if chance(rng, 60) && !refuses { // otherwise such calls run at rest
			time.Sleep(ms(rng, 200))
		}
		if chance(rng, 4) && !calm {
			s.publish(ctx, s.publishes(pick(rng, "", "inner"), false))
		}
		if calm {
			if refuses {
				s.ends(ctx, d, "throttle", longThrottle)
				return eventbus.Throttle(errPaced, longThrottle)
			}
			s.ends(ctx, d, "", 0)
			return nil
		}
		return s.returns(ctx, rng, d)
	}
}

// returns ends a call in one of the ways.
func (s *pacedSim) returns(ctx context.Context, rng *rand.Rand, d *pacedDelivery) error {
	delay := time.Millisecond + ms(rng, pick(rng, 10, 300, 2000))
	switch n := rng.IntN(100); {
	case n < 10:
		s.tally.snoozes.Add(1)
		s.ends(ctx, d, "snooze", delay)
		return eventbus.Snooze(delay)
	case n < 18:
		s.tally.throttles.Add(1)
		s.ends(ctx, d, "throttle", delay)
		if chance(rng, 20) { // it comes before Snooze
			return errors.Join(eventbus.Snooze(2*delay), eventbus.Throttle(errPaced, delay))
		}
		return eventbus.Throttle(errPaced, delay)
	case n >= 18+d.sub.failing:
		s.ends(ctx, d, "", 0)
		return nil
	}
	return s.fail(ctx, rng, d, delay)
}

// fail ends a call with one of the failures.
func (s *pacedSim) fail(ctx context.Context, rng *rand.Rand, d *pacedDelivery, delay time.Duration) error {
	switch rng.IntN(12) {
	case 0:
		s.ends(ctx, d, "permanent", 0)
		return eventbus.Permanent(errPaced)
	case 1:
		s.ends(ctx, d, "panic", 0)
		panic(errPaced)
	case 2:
		s.mu.Lock()
		d.failed() // the bus deals with it before the handler
		s.mu.Unlock()
		<-ctx.Done()
		s.ends(ctx, d, "timeout", 0)
		return ctx.Err()
	case 3:
		s.ends(ctx, d, "after", 0)
		return eventbus.RetryAfter(errPaced, delay)
	case 4: // a delay that is no Throttle
		s.ends(ctx, d, "throttle in vain", 0)
		return eventbus.Throttle(errPaced, time.Microsecond)
	}
	s.ends(ctx, d, "error", 0)
	return errPaced
}

func (s *pacedSim) publish(ctx context.Context, e *pacedEvent, options ...eventbus.PublishOption) {
	if e.key != "" {
		options = append(options, eventbus.Key(e.key))
	}
	id, err := s.bus.Publish(ctx, "x", e.n, options...)
	s.published(e, id, err == nil, err)
}

// publisher publishes in each way. Some of its keys are its own, so their order is that of its calls.
func (s *pacedSim) publisher(number int) {
	rng := rand.New(rand.NewPCG(s.seed, 100+uint64(number)))
	for range 8 + rng.IntN(8) {
		key := pick(rng, "", fmt.Sprint("k", number), fmt.Sprint("k", number), "shared")
		ordered := key != "shared"
		switch rng.IntN(8) {
		case 0:
			e := s.publishes(key, ordered)
			s.publishAndWait(e, ms(rng, 3000)+1)
		case 1:
			ctx, cancel := context.WithTimeout(context.Background(), ms(rng, 200)+1)
			s.publish(ctx, s.publishes(key, ordered))
			cancel()
		case 2:
			s.publish(context.Background(), s.publishes("later", false), eventbus.After(ms(rng, 1000)+1))
		default:
			s.publish(context.Background(), s.publishes(key, ordered))
		}
		if chance(rng, 70) {
			time.Sleep(ms(rng, 150))
		}
	}
}

func (s *pacedSim) publishAndWait(e *pacedEvent, limit time.Duration) eventbus.Result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var options []eventbus.PublishOption
	if e.key != "" {
		options = append(options, eventbus.Key(e.key))
	}
	r, err := s.bus.PublishAndWait(ctx, "x", e.n, options...)
	s.published(e, r.ID, !r.ID.IsZero(), err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || r.Outcome != eventbus.Handled {
		return r
	}
	for _, sub := range e.to {
		if d := sub.deliveries[e.n]; !d.handled && d.must && !sub.lossy {
			s.failf("PublishAndWait says that e%d is handled, and %v is not", e.n, d)
		}
	}
	return r
}

// operate is what an operator does.
func (s *pacedSim) operate() {
	rng := s.rng
	remove := -1
	if chance(rng, 15) {
		remove = rng.IntN(10)
	}
	for i := range 10 {
		time.Sleep(ms(rng, 250))
		sub := pick(rng, s.subs...)
		if i == remove {
			s.unsubscribe(sub)
		}
		s.changeHands()
		name := ""
		if sub.divided && chance(rng, 80) {
			name = pick(rng, "d0", "d1", "d2", "d3", "slow", eventbus.CommonDestination)
		}
		if chance(rng, 20) {
			s.replay(rng)
			continue
		}
		s.order(sub, name, pick(rng, "pause", "hold", "resume", "resume", "trip", "reset"))
	}
}

// order gives an order to a subscription, or to one of its destinations.
func (s *pacedSim) order(sub *pacedSub, name, what string) {
	var at interface { // *eventbus.Subscription or *eventbus.Destination
		Pause(opts ...eventbus.DirectiveOption) error
		HoldUntil(t time.Time, opts ...eventbus.DirectiveOption) error
		Resume(opts ...eventbus.DirectiveOption) error
		Trip(opts ...eventbus.DirectiveOption) error
		Reset(opts ...eventbus.DirectiveOption) error
	} = sub.Subscription
	if name != "" {
		at = sub.Destination(name)
	}
	var err error
	until := forEver
	switch what {
	case "pause":
		err = at.Pause()
	case "hold":
		until = time.Now().Add(ms(s.rng, 1500) + 1)
		err = at.HoldUntil(until)
	case "resume":
		s.resumes(sub, name)
		err = at.Resume()
		s.resumes(sub, name)
	case "trip":
		err = at.Trip()
	case "reset":
		err = at.Reset()
	}
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("%s s%d %s: %v", what, sub.number, name, err)
	if err == nil && (what == "pause" || what == "hold") {
		sub.pauses[name] = until
	}
	var option *eventbus.OptionError
	if err != nil && !errors.Is(err, eventbus.ErrNoSubscription) && !errors.Is(err, eventbus.ErrCircuitDisabled) && !(errors.As(err, &option) && name != "" && !sub.divided) {
		s.failf("%s s%d %s: %v", what, sub.number, name, err)
	}
}

// resumes ends a pause and a Throttle in the model.
func (s *pacedSim) resumes(sub *pacedSub, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(sub.pauses, name)
	if o := sub.doors[name]; o != nil {
		o.resumes()
	}
}

func (s *pacedSim) unsubscribe(sub *pacedSub) {
	s.mu.Lock()
	retire := sub.detached() && chance(s.hands, 50)
	s.logf("unsubscribe s%d, retire=%v", sub.number, retire)
	sub.removed = true
	s.mu.Unlock()
	if !retire {
		sub.Unsubscribe()
	} else if _, err := s.bus.Retire(context.Background(), sub.ID()); err != nil {
		s.fails("Retire: %v", err)
	}
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	sub.gone = true
	s.mu.Unlock()
}

// replay replays a letter.
func (s *pacedSim) replay(rng *rand.Rand) {
	page, err := s.bus.DLQ().List(context.Background(), eventbus.LetterQuery{})
	if err != nil || len(page.Letters) == 0 {
		return
	}
	l := pick(rng, page.Letters...)
	s.replays(&l, 1)
	err = s.bus.DLQ().Replay(context.Background(), l.ID)
	s.logs("replay e%d of %s: %v", l.Event.Payload, l.Subscription, err)
	if err != nil {
		s.replays(&l, -1)
	}
}
