package periodic

import (
	"errors"
	"time"

	"go.uber.org/zap"
)

// losses logs ticks that were not published, at most once a minute.
type losses struct {
	ticks  int // not logged yet
	tick   time.Time
	err    error
	logged time.Time
}

var errMissed = errors.New("periodic: a later tick had come when the schedule could publish: of several ticks, only the latest is published")

var errForgotten = errors.New("periodic: the clock was set back by more than a key is remembered, so the tick may have been published; if the clock is correct, restart the process")

// add counts a tick.
func (l *losses) add(s *Schedule, tick, now time.Time, err error) {
	l.ticks++
	l.tick, l.err = tick, err
	l.report(s, now)
}

// count counts the ticks between two ticks, up to a bound.
func (l *losses) count(p *plan, first, last time.Time) {
	for range 1000 {
		if first = p.next(first); !first.Before(last) {
			return
		}
		l.ticks++
	}
}

// report logs the ticks that were counted, unless there was a report within a minute. The zero time logs them at once.
func (l *losses) report(s *Schedule, now time.Time) {
	if l.ticks == 0 || !now.IsZero() && now.Sub(l.logged).Abs() < time.Minute {
		return
	}
	s.log.Error("tick not published", zap.Time("tick", l.tick), zap.Int("at_least", l.ticks), zap.Error(l.err))
	*l = losses{logged: now}
}

// highest is the latest time that the wall clock has shown, by which the bus may have forgotten keys. For half an hour after the
// start, and after the clock has leapt ahead, it does not follow the clock: a wrong clock is often corrected soon. Otherwise
// a clock that was a week ahead for a minute would stop a schedule for a week. The delay is safe, because the bus forgets no
// key in the hour after a leap.
type highest struct {
	time time.Time // zero at first
	seen time.Time // the last look
	held time.Time // when the wall clock leapt ahead; zero if it is followed
}

const (
	leap = time.Minute + lookEvery // the least difference of two looks that is a leap
	hold = 30 * time.Minute
)

// look takes a reading of the wall clock.
func (h *highest) look(now time.Time) {
	switch moved := now.Sub(h.seen); {
	case h.seen.IsZero():
		h.held = now
	case moved.Abs() <= leap:
	case !h.held.IsZero():
		h.held = h.held.Add(moved) // time that did not pass does not count
	case moved > 0:
		h.held = now
	}
	h.seen = now
	if now.Sub(h.held) >= hold || !now.After(h.time) {
		h.held = time.Time{}
	}
	if h.held.IsZero() && now.After(h.time) {
		h.time = now
	}
}
