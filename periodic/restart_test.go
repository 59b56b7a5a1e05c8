package periodic_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/periodic"
)

// A monthly tick is published once, whether the process was up when it came or starts on the 3rd, the 5th and the 9th. By then the
// usual window of 24 hours is over: KeepFor keeps the key.
func TestPeriodic_RestartsAfterAMonthlyTick(t *testing.T) {
	const monthly = "0 8 1 * *"
	for _, up := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(periodic.CatchUp(periodic.Latest))
			sleepUntil(t, "2000-02-20T00:00:00Z")
			p := w.process(t)
			p.every(monthly)
			require.Equal(t, []string{"2000-02-01T08:00:00Z"}, w.handled(), "no key says that a first process published it")
			if !up {
				sleepUntil(t, "2000-02-27T00:00:00Z")
				p.end()
			}
			sleepUntil(t, "2000-03-02T00:00:00Z")
			want := []string{"2000-03-01T08:00:00Z"}
			if up {
				require.Equal(t, want, w.handled())
				p.end()
				want = nil
			}
			require.Empty(t, w.handled())
			for _, day := range []string{"03", "05", "09"} {
				sleepUntil(t, "2000-03-"+day+"T12:00:00Z")
				p := w.process(t)
				p.every(monthly)
				require.Equal(t, want, w.handled(), "start on the %s", day)
				time.Sleep(time.Hour)
				require.Empty(t, w.handled())
				p.kill()
				want = nil
			}
			sleepUntil(t, "2000-04-09T00:00:00Z")
			p = w.process(t)
			p.every(monthly)
			require.Equal(t, []string{"2000-04-01T08:00:00Z"}, w.handled())
			sleepUntil(t, "2000-05-09T00:00:00Z")
			require.Equal(t, []string{"2000-05-01T08:00:00Z"}, w.handled())
			require.Zero(t, w.lost())
			p.end()
		})
	}
}

// Without CatchUp, a tick that came while no process ran is lost.
func TestPeriodic_WithoutCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(periodic.CatchUp(periodic.None))
		p := w.process(t)
		p.every("0 8 * * *")
		sleepUntil(t, "2000-01-01T09:00:00Z")
		require.Equal(t, []string{"2000-01-01T08:00:00Z"}, w.handled())
		p.end()
		sleepUntil(t, "2000-01-04T09:00:00Z")
		p = w.process(t)
		p.every("0 8 * * *")
		sleepUntil(t, "2000-01-05T07:59:59Z")
		require.Empty(t, w.handled())
		sleepUntil(t, "2000-01-05T08:00:00Z")
		require.Equal(t, []string{"2000-01-05T08:00:00Z"}, w.handled())
		p.end()
	})
}

// After a year without a process, the latest tick is published once. Nothing older is.
func TestPeriodic_DownForAYear(t *testing.T) {
	for spec, want := range map[string]string{
		"0 8 * * *": "2001-02-20T08:00:00Z", "0 8 1 * *": "2001-02-01T08:00:00Z", "@yearly": "2001-01-01T00:00:00Z", "0 0 1 1,7 *": "2001-01-01T00:00:00Z",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(periodic.CatchUp(periodic.Latest))
			sleepUntil(t, "2000-02-20T12:00:00Z")
			p := w.process(t)
			p.every(spec)
			require.Len(t, w.handled(), 1)
			p.end()
			time.Sleep(366 * 24 * time.Hour)
			for range 3 {
				p := w.process(t)
				p.every(spec)
				if want != "" {
					require.Equal(t, []string{want}, w.handled())
				}
				require.Empty(t, w.handled())
				p.end()
				want = ""
			}
		})
	}
}

// Of a tick that comes each fourth year, the key is known for 400 days. Then no start publishes it.
func TestPeriodic_TicksFurtherApartThanAKeyIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leapDay = "0 0 29 2 *"
		w := newWorld(periodic.CatchUp(periodic.Latest))
		p := w.process(t)
		p.every(leapDay)
		sleepUntil(t, "2000-03-01T00:00:00Z")
		require.Equal(t, []string{"2000-02-29T00:00:00Z"}, w.handled())
		p.end()
		for range 25 { // through 2001 and 2002, and past the 400 days
			time.Sleep(30 * 24 * time.Hour)
			p := w.process(t)
			p.every(leapDay)
			p.end()
		}
		require.Empty(t, w.handled())
		p = w.process(t)
		s := p.every(leapDay)
		require.Equal(t, "2004-02-29T00:00:00Z", s.Next().Format(time.RFC3339))
		p.end()
		sleepUntil(t, "2004-02-20T00:00:00Z")
		p = w.process(t)
		p.every(leapDay)
		require.Empty(t, w.handled())
		sleepUntil(t, "2004-03-01T00:00:00Z")
		require.Equal(t, []string{"2004-02-29T00:00:00Z"}, w.handled())
		p.end()
	})
}

// Without a store nothing remembers what an earlier process has published.
func TestPeriodic_CatchUpNeedsAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		bus := w.memory(t)
		_, err := periodic.Every(bus, "@daily", eventType, nil, periodic.CatchUp(periodic.Latest))
		var refused *eventbus.OptionError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "CatchUp", refused.Option)
		require.ErrorContains(t, err, "WithStore")
		_, err = periodic.Every(bus, "@daily", eventType, nil, periodic.CatchUp(periodic.None))
		require.NoError(t, err)
		shutdown(t, bus)
	})
}

// The window of the bus, however short, does not make a key forgotten too early, and a longer one keeps it longer.
func TestPeriodic_TheWindowOfTheBus(t *testing.T) {
	for _, window := range []time.Duration{time.Second, 1000 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(periodic.CatchUp(periodic.Latest))
			for range 12 { // every 5 days, and one of them sees a tick first
				p := w.process(t, eventbus.WithIdempotencyWindow(window))
				p.every("0 0 1 * *")
				p.end()
				time.Sleep(5 * 24 * time.Hour)
			}
			require.Equal(t, []string{"2000-01-01T00:00:00Z", "2000-02-01T00:00:00Z"}, w.handled())
		})
	}
}
