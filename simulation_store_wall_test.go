package eventbus_test

import (
	"math/rand/v2"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/wallclock"
)

// storeWall is the wall clock of a store schedule, if it is set in that schedule. All processes share
// it. An instant of the model is of this clock; everything else is of package time.
type storeWall struct {
	clock *wallclock.Clock // nil: nobody sets it

	// storeModel.mu guards the following.
	most time.Duration // by which it has been ahead at most
}

func (w *storeWall) options() []eventbus.Option {
	if w.clock == nil {
		return nil
	}
	return []eventbus.Option{eventbus.WithClock(w.clock)}
}

// now is what the wall clock shows.
func (w *storeWall) now() time.Time { return time.Now().Add(w.ahead()) }

func (w *storeWall) ahead() time.Duration {
	if w.clock == nil {
		return 0
	}
	return w.clock.Ahead()
}

// monotonic is the earliest end of a delay that is recorded as an instant of the wall clock: it may
// have been set while the record was on its way.
func (w *storeWall) monotonic(at time.Time) time.Time { return at.Add(-w.most) }

// hasCome reports whether the wall clock has shown an instant since an event was published.
func (m *storeModel) hasCome(e *storeEvent, at time.Time) bool {
	return !m.wall.now().Before(at) || !e.shown.Before(at)
}

// pauseEnds is an instant at which the wall clock ends a pause, or the zero time.
func (m *storeModel) pauseEnds(rng *rand.Rand) time.Time {
	if m.wall.clock == nil || chance(rng, 50) {
		return time.Time{}
	}
	return m.wall.now().Add(ms(rng, 3000))
}

// hasEnded reports whether the wall clock has ended a pause.
func (m *storeModel) hasEnded(sub *storeSub) bool {
	return !sub.until.IsZero() && (!m.wall.now().Before(sub.until) || !sub.shown.Before(sub.until))
}

// hasComeOnce reports whether the time of an event had come before the wall clock was set back. A replay
// then waits for it again, and Cancel cancels the replay alone.
func (e *storeEvent) hasComeOnce() bool {
	at := e.at
	if at.IsZero() {
		at = e.published.Add(e.after)
	}
	return !e.shown.Before(at)
}

// step sets the wall clock, ahead or back.
func (s *storeSim) step(by time.Duration) {
	m := s.storeModel
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.wall.now()
	for _, sub := range s.subs {
		if now.After(sub.shown) {
			sub.shown = now
		}
	}
	for _, e := range m.events {
		if now.After(e.shown) {
			e.shown = now
		}
	}
	m.wall.clock.Advance(by)
	m.wall.most = max(m.wall.most, m.wall.ahead())
	m.logf("the wall clock goes %v ahead, and is %v ahead", by, m.wall.ahead())
}

// setClock sets the wall clock now and then.
func (p *storeProcess) setClock(rng *rand.Rand) {
	s := p.sim
	for range rng.IntN(4) {
		time.Sleep(ms(rng, 2000))
		if p.dead.Load() || s.failed() {
			return
		}
		by := pick(rng, ms(rng, 3000), time.Minute+time.Second, 2*time.Hour)
		if chance(rng, 50) {
			by = -by
		}
		s.step(by)
		s.tally.clockSteps.Add(1)
	}
}

// restClock sets the wall clock ahead, so that every instant has come, and checks that nothing waits
// for one any more when the bus has had its time to look.
func (s *storeSim) restClock() {
	if s.wall.clock == nil {
		return
	}
	s.step(max(0, s.wall.most-s.wall.ahead()) + time.Minute)
	const latest = 30*time.Second + 2*storeTimeout // a look, and the commits of that moment
	time.Sleep(latest)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.state == eventbus.RecordScheduled && !s.wall.now().Add(-latest).Before(r.scheduled) {
			s.failf(r.event, "it still waits for %v, and the wall clock shows %v", r.scheduled, s.wall.now())
		}
	}
}
