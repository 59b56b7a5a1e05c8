package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// detached reports whether Detach has returned, and no other subscription takes the name yet.
func (s *pacedSub) detached() bool { return s.left > s.turn && !s.removed }

// changeHands detaches subscriptions, and has detached ones taken over.
func (s *pacedSim) changeHands() {
	for _, sub := range s.subs {
		switch {
		case sub.removed:
		case !sub.detached() && chance(s.hands, 12):
			s.detach(sub)
		case sub.detached() && !sub.stays && chance(s.hands, 40):
			s.takeOver(sub)
		}
	}
}

// takeOverMost takes over most of the detached subscriptions. The others stay detached until Shutdown.
func (s *pacedSim) takeOverMost() {
	for _, sub := range s.subs {
		if sub.detached() && !sub.stays {
			s.takeOver(sub)
		}
	}
}

func (s *pacedSim) detach(sub *pacedSub) {
	err := sub.Detach()
	time.Sleep(time.Nanosecond) // calls that have begun arrive
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("detach s%d: %v", sub.number, err)
	if err != nil || !sub.Detached() || !sub.Exists() {
		s.failf("Detach: %v, detached %v, exists %v", err, sub.Detached(), sub.Exists())
	}
	sub.left, sub.stays = sub.turn+1, chance(s.hands, 20)
	if sub.stays {
		s.tally.leftDetached.Add(1)
	}
}

// takeOver makes a subscription with the name of a detached one, maybe with other limits.
func (s *pacedSim) takeOver(sub *pacedSub) {
	rng := s.hands
	if chance(rng, 20) {
		s.takeOverWrongly(sub)
	}
	var more []eventbus.SubscribeOption
	if chance(rng, 20) {
		more = append(more, eventbus.LineCapacity(1+rng.IntN(8)))
	}
	s.mu.Lock()
	if chance(rng, 50) {
		sub.setLimits(newPaceLimits(rng, s.most))
	}
	sub.turn++ // calls may begin before Subscribe has returned
	s.logf("take over s%d, the turn of %d, %v", sub.number, sub.turn, &sub.limits)
	s.mu.Unlock()
	made, err := s.make(sub, sub.turn, more...)
	s.mu.Lock()
	before := sub.Subscription
	if sub.Subscription = made; err != nil {
		s.failf("s%d is not taken over: %v", sub.number, err)
	}
	s.mu.Unlock()
	s.tally.takenOver.Add(1)
	if err = before.Detach(); !errors.Is(err, eventbus.ErrNoSubscription) || before.Exists() {
		s.fails("s%d was taken over: Detach of the earlier one: %v, exists %v", sub.number, err, before.Exists())
	}
	before.Unsubscribe() // ends nothing
}

// takeOverWrongly checks that a subscription whose options disagree takes nothing over.
func (s *pacedSim) takeOverWrongly(sub *pacedSub) {
	s.mu.Lock()
	other := *sub
	s.mu.Unlock()
	if other.divided = !sub.divided; chance(s.hands, 50) && !sub.isolated {
		other.divided = sub.divided
		other.options = append(slices.Clip(sub.options), eventbus.Isolated())
	}
	_, err := s.make(&other, sub.left)
	var option *eventbus.OptionError
	if !errors.As(err, &option) || !sub.Detached() {
		s.fails("s%d is taken over with other options: %v, detached %v", sub.number, err, sub.Detached())
	}
}

// setLimits gives all doors other limits. What runs counts for them. A rate that differs begins anew.
func (s *pacedSub) setLimits(limits paceLimits) {
	if a, b := s.limits.rate, limits.rate; a == nil || b == nil || *a != *b {
		for _, o := range s.doors {
			o.begun = nil
		}
	}
	s.limits = limits
}

// shutDetached notes that detached subscriptions stay shut.
func (m *pacedModel) shutDetached() {
	for _, sub := range m.subs {
		if sub.detached() {
			m.bad[sub.doorName("")] = true
		}
	}
}

// checkParked checks that a detached subscription parks its deliveries for that reason.
func (m *pacedModel) checkParked(d *eventbus.DispatchInfo) {
	if m.subs[subOf(d.Subscription)].detached() && d.Parked != eventbus.ParkDetached {
		m.failf("e%d is parked at %s, which is detached, as %s", m.numberOf(d.Event), d.Subscription, d.Parked)
	}
}

// waitBesideDetached checks that PublishAndWait does not wait for a detached subscription, and names it.
func (s *pacedSim) waitBesideDetached() {
	isDetached := func(sub *pacedSub) bool { return sub.detached() }
	if !slices.ContainsFunc(s.subs, isDetached) {
		return
	}
	began := time.Now()
	r := s.publishAndWait(s.publishes(pick(s.hands, "", "last"), false), time.Hour)
	if time.Since(began) >= time.Hour {
		s.fails("PublishAndWait waits for a detached subscription: %+v", r)
	}
	for _, sub := range s.subs {
		if !r.ID.IsZero() && sub.detached() && !sub.lossy && len(r.Letters) == 0 && !slices.Contains(r.Held, sub.ID()) {
			s.fails("%s is detached, and the result of PublishAndWait is %+v", sub.ID(), r)
		}
	}
}

// shutdown shuts the bus down at rest, and checks that exactly what detached subscriptions hold becomes letters.
func (s *pacedSim) shutdown() {
	s.mu.Lock()
	should, _ := s.excuse(s.outstanding())
	lossy := slices.ContainsFunc(s.subs, func(sub *pacedSub) bool { return sub.lossy })
	s.mu.Unlock()
	err := s.bus.Shutdown(context.Background())
	var left *eventbus.ShutdownError
	var is []string
	if errors.As(err, &left) {
		for i := range left.Unfinished {
			l := &left.Unfinished[i]
			for _, name := range append([]string{l.Subscription}, l.NotReached...) {
				is = append(is, fmt.Sprintf("e%d/%s", l.Event.Payload, name))
			}
			if l.Reason != eventbus.ReasonShutdown {
				s.fails("Shutdown leaves a letter with the reason %s", l.Reason)
			}
		}
	}
	slices.Sort(is)
	if (err == nil) != (left == nil) || left != nil && left.Cause != nil || !lossy && !slices.Equal(is, should) {
		s.fails("Shutdown: %v, its letters are %s, and should be %s", err, strings.Join(is, " "), strings.Join(should, " "))
	}
}
