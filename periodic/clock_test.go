package periodic_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/periodic"
)

const day = 24 * time.Hour

// both runs a test with a bus in memory and with a store.
func both(t *testing.T, test func(t *testing.T, w *world, every func(spec string))) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			bus := w.memory(t)
			test(t, w, func(spec string) {
				_, err := periodic.Every(bus, spec, eventType, nil, w.opts...)
				require.NoError(t, err)
			})
			shutdown(t, bus)
		})
	})
	t.Run("store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			p := w.process(t)
			test(t, w, func(spec string) { p.every(spec) })
			p.end()
		})
	})
}

// A clock that is set back by a day repeats no tick, and then goes on.
func TestPeriodic_TheClockIsSetBackByADay(t *testing.T) {
	for spec, perDay := range map[string]int{"@hourly": 24, "0 8 * * *": 1, "*/10 * * * *": 144} {
		both(t, func(t *testing.T, w *world, every func(string)) {
			every(spec)
			time.Sleep(5*day + 90*time.Minute)
			before := w.handled()
			w.clock.step(-day)
			time.Sleep(day - time.Minute)
			require.Empty(t, w.handled(), "%s: ticks that were published", spec)
			time.Sleep(day + time.Minute)
			after := w.handled()
			require.Len(t, after, perDay, spec)
			require.NotContains(t, before, after[0])
			require.Zero(t, w.lost())
		})
	}
}

// A small step back, as of NTP, repeats nothing either.
func TestPeriodic_TheClockIsSetBackALittle(t *testing.T) {
	both(t, func(t *testing.T, w *world, every func(string)) {
		every("* * * * * *")
		for range 100 {
			time.Sleep(10*time.Second + time.Millisecond)
			w.clock.step(-7 * time.Millisecond)
		}
		ticks := w.handled()
		require.Len(t, ticks, 999)
		requireDistinct(t, ticks)
		require.Zero(t, w.lost())
	})
}

func requireDistinct(t *testing.T, ticks []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, tick := range ticks {
		require.False(t, seen[tick], "%s twice", tick)
		seen[tick] = true
	}
}

// A clock that is set ahead publishes the latest tick that has come, within half a minute. Set back soon, all ticks come in their turn.
func TestPeriodic_TheClockIsAheadForAMoment(t *testing.T) {
	both(t, func(t *testing.T, w *world, every func(string)) {
		every("@hourly")
		time.Sleep(3*time.Hour + 10*time.Minute)
		require.Len(t, w.handled(), 3)
		w.clock.step(7 * day)
		time.Sleep(30 * time.Second)
		require.Equal(t, []string{"2000-01-08T03:00:00Z"}, w.handled())
		require.Equal(t, 1, w.lost(), "the ticks of a week that did not come")
		time.Sleep(5 * time.Minute)
		w.clock.step(-7 * day)
		sleepUntil(t, "2000-01-01T06:30:00Z")
		require.Equal(t, []string{"2000-01-01T04:00:00Z", "2000-01-01T05:00:00Z", "2000-01-01T06:00:00Z"}, w.handled())
		sleepUntil(t, "2000-01-08T05:30:00Z")
		ticks := w.handled()
		require.Len(t, ticks, 7*24-2, "but the one that was published already, and the one before it is %s", ticks[len(ticks)-3])
		require.NotContains(t, ticks, "2000-01-08T03:00:00Z")
		require.Zero(t, w.lost())
	})
}

// A clock that was set back by more than keys are remembered publishes no tick that may be known, and says so.
func TestPeriodic_TheClockIsSetBackByAWeek(t *testing.T) {
	both(t, func(t *testing.T, w *world, every func(string)) {
		every("@hourly")
		time.Sleep(10*day + 30*time.Minute)
		require.Len(t, w.handled(), 240)
		w.clock.step(-7 * day)
		time.Sleep(7*day - time.Hour)
		require.Empty(t, w.handled())
		require.GreaterOrEqual(t, w.lost(), 6*24-2, "each hour of six days")
		time.Sleep(day)
		require.Len(t, w.handled(), 23)
		require.Zero(t, w.lost())
	})
}

// After a suspend, which timers do not notice, the latest tick is published within half a minute.
func TestPeriodic_ASuspend(t *testing.T) {
	both(t, func(t *testing.T, w *world, every func(string)) {
		every("0 8 * * *")
		time.Sleep(7 * time.Hour)
		w.clock.step(2 * time.Hour)
		time.Sleep(30 * time.Second)
		require.Equal(t, []string{"2000-01-01T08:00:00Z"}, w.handled())
		require.Zero(t, w.lost())
	})
}

// Summer time skips an hour and repeats one. Chosen hours tick once on each day, every hour goes on.
func TestPeriodic_SummerTime(t *testing.T) {
	for _, c := range []struct {
		zone, spec, from string
		ticks            []string
	}{
		{"Europe/Berlin", "30 2 * * *", "2026-03-28T00:00:00Z", []string{"2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"Europe/Berlin", "30 2 * * *", "2026-10-24T00:00:00Z", []string{"2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"Europe/Berlin", "0 8 * * *", "2026-03-28T00:00:00Z", []string{"2026-03-28T08:00:00+01:00", "2026-03-29T08:00:00+02:00", "2026-03-30T08:00:00+02:00"}},
		{"Europe/Berlin", "0,30 1-3 29 * *", "2026-03-28T00:00:00Z", []string{"2026-03-29T01:00:00+01:00", "2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"}},
		{"Europe/Berlin", "@hourly", "2026-03-29T00:30:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		{"Europe/Berlin", "30 * * * *", "2026-10-25T00:00:00Z", []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"}},
		{"America/New_York", "0 2 * * *", "2026-03-08T00:00:00Z", []string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"}},
		{"America/Sao_Paulo", "@daily", "2018-11-03T12:00:00Z", []string{"2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"}}, // no midnight
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", []string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		{"Pacific/Apia", "0 12 * * *", "2011-12-29T00:00:00Z", []string{"2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"}}, // no 30th
		{"UTC", "0 0 31 * *", "2026-03-31T00:00:00Z", []string{"2026-05-31T00:00:00Z", "2026-07-31T00:00:00Z"}},
		{"UTC", "0 9 * * mon-fri", "2026-05-08T08:00:00Z", []string{"2026-05-08T09:00:00Z", "2026-05-11T09:00:00Z"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			now := newSteps()
			now.step(time.Until(parse(t, c.from)))
			bus, err := eventbus.New()
			require.NoError(t, err)
			s, err := periodic.Every(bus, c.spec, eventType, nil, periodic.In(load(t, c.zone)), periodic.WithClock(now))
			require.NoError(t, err)
			var ticks []string
			for range c.ticks {
				next := s.Next()
				ticks = append(ticks, next.Format(time.RFC3339))
				now.step(next.Sub(now.Now()))
			}
			require.Equal(t, c.ticks, ticks, "%s in %s", c.spec, c.zone)
			shutdown(t, bus)
		})
	}
}

// After a small step back, the process knows without the store that it has published the tick.
func TestPeriodic_TheLastTickIsKnownInTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		p := w.process(t)
		p.every("* * * * * *")
		for range 100 {
			time.Sleep(10*time.Second + time.Millisecond)
			w.clock.step(-1200 * time.Millisecond)
		}
		require.Equal(t, int64(len(w.handled())), p.publications())
		p.end()
	})
}

// The key of a tick is known until the second next tick: a process whose clock was set back to before the next one repeats none.
func TestPeriodic_TheClockIsSetBackBetweenTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(periodic.CatchUp(periodic.Latest))
		p := w.process(t)
		p.every("0 0 1 * *")
		sleepUntil(t, "2000-02-25T00:00:00Z")
		require.Len(t, w.handled(), 2)
		p.end()
		w.clock.step(-30 * day)
		p = w.process(t)
		p.every("0 0 1 * *") // the latest tick is that of 1 January again
		time.Sleep(30 * day)
		require.Empty(t, w.handled())
		p.end()
	})
}
