package periodic

import (
	"context"
	"errors"
	"time"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

const (
	// lookEvery is the longest wait without a look at the wall clock.
	lookEvery = 30 * time.Second
	// patience bounds one publication. An unknown outcome does no harm: the next attempt has the same idempotency key.
	patience = 10 * time.Second

	leastKeep = eventbus.DefaultIdempotencyWindow
	mostKeep  = 400 * 24 * time.Hour // of eventbus.KeepFor
)

// keep is how long the bus remembers the key of a tick: until the second next tick, and from 24 hours to 400 days.
//
// With it, the key alone tells whether a tick was published, and a schedule needs no state of its own. A tick is published when
// the clock shows the tick or later, so its key is known at least until tick+keep. A schedule publishes a tick only while the
// clock shows less than tick+keep. If another process has published the tick, the key is still known, and the publication is
// a repetition.
//
//   - A schedule publishes the latest tick only, so at least one period of keep is left. The clocks of two processes may differ
//     by a period.
//   - After a year without a process, the latest tick is new, or its key is still known: no later tick has come. If ticks are more
//     than 200 days apart, keep is less than two periods. A process that starts more than 400 days after such a tick does not
//     publish it.
//   - If the clock is set back by less than keep, the keys of the ticks that come again are known. If it is set back by
//     more, keys may be forgotten: see highest.
//   - If the clock is set ahead and back, the ticks in between were not published. Their keys are free, and they are published.
func (s *Schedule) keep(tick time.Time) time.Duration {
	next := s.plan.next(tick)
	if next.IsZero() {
		return mostKeep
	}
	second := s.plan.next(next)
	if second.IsZero() {
		return mostKeep
	}
	return min(max(second.Sub(tick), leastKeep), mostKeep)
}

// options are the options of the publication of a tick. Those of the schedule come last, so that they cannot be replaced.
func (s *Schedule) options(tick time.Time) []eventbus.PublishOption {
	key := s.name + "@" + tick.UTC().Format(time.RFC3339)
	opts := append([]eventbus.PublishOption(nil), s.opts...)
	return append(opts, eventbus.IdempotencyKey(key), eventbus.KeepFor(s.keep(tick)), eventbus.Metadata(TickMetadata, tick.Format(time.RFC3339)))
}

// begin starts the schedule.
func (s *Schedule) begin(now time.Time) {
	s.log = s.bus.Logger().Named("periodic").With(zap.String("schedule", s.name), zap.String("event_type", s.eventType))
	s.look = lookEvery
	if _, mock := s.clock.(*clock.Mock); mock {
		s.look = mostKeep // its timers are its wall clock
	}
	s.decideUntil(now)
	if s.catchUp == Latest {
		if tick := s.plan.latest(now.Add(-mostKeep), now); !tick.IsZero() {
			s.decideUntil(tick.Add(-1))
		}
	}
	s.until, s.stop = context.WithCancel(context.Background())
	go s.run()
}

// run publishes ticks until Stop or Shutdown.
func (s *Schedule) run() {
	defer close(s.ended)
	defer names.free(s)
	defer s.stop()
	for s.until.Err() == nil {
		timer := s.clock.Timer(max(s.step(), time.Millisecond))
		select {
		case <-timer.C:
		case <-s.until.Done():
		case <-s.bus.Stopping():
			s.stop()
		}
		timer.Stop()
	}
	if failed := s.trial; failed.attempts > 0 {
		s.losses.add(s, failed.tick, s.now(), failed.err)
	}
	s.losses.report(s, time.Time{})
}

// step publishes the tick that is due, if there is one, and returns how long to wait for the next step.
func (s *Schedule) step() time.Duration {
	now := s.now()
	s.highest.look(now)
	if now.Before(s.done) {
		s.decideUntil(now) // the clock was set back: keys decide which ticks are new
	}
	var tick time.Time
	if !s.due.IsZero() && !now.Before(s.due) {
		tick = s.plan.latest(s.done, now)
	}
	s.supersede(tick)
	s.losses.report(s, now)
	switch {
	case tick.IsZero():
	case tick.Equal(s.last):
		s.decideUntil(tick)
	case !s.dispatches():
		s.decideUntil(tick.Add(-1)) // of the ticks that another process publishes, the latest is enough to look at
		return s.wait(s.standby.look(tick, now))
	default:
		if again := s.publish(tick, now); again > 0 {
			return s.wait(again)
		}
	}
	return s.wait(s.look)
}

// wait returns a wait of at most d that ends at the next tick.
func (s *Schedule) wait(d time.Duration) time.Duration {
	now, next := s.now(), s.due
	if !now.Before(next) {
		next = s.plan.next(now)
	}
	if !next.IsZero() {
		d = min(d, next.Sub(now))
	}
	return d
}

// decideUntil notes that ticks until a time are decided.
func (s *Schedule) decideUntil(t time.Time) {
	if !t.Equal(s.done) {
		s.done, s.due = t, s.plan.next(t)
	}
}

// dispatches reports whether the bus has been started and, with a store, has its lease. PublishAndWait says so before it
// looks at the event, and never accepts an empty type. It reads no store.
func (s *Schedule) dispatches() bool {
	_, err := s.bus.PublishAndWait(s.until, "", nil)
	return !errors.Is(err, eventbus.ErrNotStarted)
}

// standby is a tick that waits until the bus dispatches.
type standby struct {
	tick  time.Time
	since time.Time
}

// look returns when to look again: the longer it has waited, the later.
func (b *standby) look(tick, now time.Time) time.Duration {
	if !tick.Equal(b.tick) || now.Before(b.since) {
		*b = standby{tick, now}
	}
	return min(max(now.Sub(b.since)/8, 100*time.Millisecond), lookEvery)
}

// trial is a tick whose publication has failed.
type trial struct {
	tick     time.Time
	attempts int
	err      error
}

// publish publishes a tick. It returns after how long to try again, or 0 if the tick is decided.
func (s *Schedule) publish(tick, now time.Time) (again time.Duration) {
	if max(now.Sub(tick), s.highest.time.Sub(tick)) >= s.keep(tick) {
		s.decide(tick)
		s.losses.add(s, tick, now, errForgotten)
		return 0
	}
	if missed := s.due; missed.Before(tick) {
		s.losses.count(s.plan, missed, tick)
		s.losses.add(s, missed, now, errMissed)
	}
	err := s.attempt(tick)
	switch {
	case err == nil:
		s.decide(tick)
		return 0
	case errors.Is(err, eventbus.ErrShutdown), s.until.Err() != nil:
		return lookEvery // run ends
	case errors.Is(err, eventbus.ErrInvalidEvent), errors.Is(err, eventbus.ErrInvalidOption), errors.Is(err, eventbus.ErrDuplicateID):
		s.decide(tick)
		s.losses.add(s, tick, now, err)
		return 0
	}
	s.decideUntil(tick.Add(-1))
	s.trial.tick, s.trial.err = tick, err
	if s.trial.attempts++; s.trial.attempts == 1 && now.Sub(s.losses.logged).Abs() >= time.Minute {
		s.log.Warn("tick not published: retrying until the next one", zap.Time("tick", tick), zap.Error(err))
	}
	return min(time.Second<<min(s.trial.attempts-1, 5), lookEvery)
}

func (s *Schedule) attempt(tick time.Time) error {
	ctx := context.Background() // Stop waits: the end of the context would not stop a commit
	if !s.stored {
		ctx = s.until // nothing but a full queue holds the publication up
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.bus.Publish(ctx, s.eventType, s.payload, s.options(tick)...)
	return err
}

// decide notes that a tick is published, or never will be.
func (s *Schedule) decide(tick time.Time) {
	s.decideUntil(tick)
	s.last, s.trial = tick, trial{}
}

// supersede gives up a tick whose publication has failed, if another one is due.
func (s *Schedule) supersede(tick time.Time) {
	failed := s.trial
	if failed.attempts == 0 || tick.Equal(failed.tick) {
		return
	}
	s.trial = trial{}
	if tick.After(failed.tick) { // otherwise the clock was set back
		s.decideUntil(failed.tick)
		s.losses.add(s, failed.tick, s.now(), failed.err)
	}
}
