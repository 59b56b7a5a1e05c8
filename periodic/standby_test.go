package periodic_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/periodic"
	"github.com/surebus/eventbus/store/sqlite"
	"github.com/surebus/eventbus/storetest"
)

// Of three processes, only the active one calls Publish.
func TestPeriodic_OnlyTheActiveProcessPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(periodic.CatchUp(periodic.Latest))
		active, second, third := w.process(t), w.process(t), w.process(t)
		for _, p := range []*process{active, second, third} {
			p.every("*/10 * * * *")
		}
		time.Sleep(4*time.Hour + time.Minute)
		require.Len(t, w.handled(), 25)
		require.Equal(t, int64(25), active.publications())
		require.Zero(t, second.publications())
		require.Zero(t, third.publications())
		active.end()
		second.end()
		time.Sleep(time.Hour)
		require.Len(t, w.handled(), 6)
		require.Zero(t, second.publications(), "it had the lease, but not for long enough to look")
		require.Equal(t, int64(7), third.publications(), "the tick that it had seen as a standby is a repetition")
		third.end()
	})
}

// A standby that takes over publishes the tick that came while no process dispatched, and repeats none.
func TestPeriodic_TheStandbyTakesOver(t *testing.T) {
	for name, c := range map[string]struct {
		before time.Duration // the end of the active process, relative to the tick
		gap    time.Duration // until the standby has the lease
		end    func(p *process)
	}{
		"killed before the tick":          {-time.Second, 0, (*process).kill},
		"killed, and a gap at the tick":   {-time.Second, time.Minute, (*process).kill},
		"killed after the tick":           {time.Second, 0, (*process).kill},
		"killed long after the tick":      {40 * time.Minute, 10 * time.Minute, (*process).kill},
		"shut down before the tick":       {-time.Second, 0, (*process).end},
		"shut down after the tick":        {time.Second, 0, (*process).end},
		"shut down, and a gap":            {-time.Second, time.Minute, (*process).end},
		"killed at the instant of a tick": {0, 0, (*process).kill},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				active := w.process(t)
				active.every("@hourly")
				var standby *process
				if c.gap == 0 {
					standby = w.process(t)
					standby.every("@hourly")
				}
				time.Sleep(time.Hour + c.before)
				synctest.Wait()
				c.end(active)
				if c.gap > 0 { // another process holds the lease for a while and has no schedule
					other := w.process(t)
					standby = w.process(t)
					standby.every("@hourly")
					time.Sleep(c.gap)
					other.end()
				}
				sleepUntil(t, "2000-01-01T01:59:59Z")
				require.Equal(t, []string{"2000-01-01T01:00:00Z"}, w.handled())
				time.Sleep(time.Hour)
				require.Equal(t, []string{"2000-01-01T02:00:00Z"}, w.handled())
				require.Zero(t, w.lost())
				standby.end()
			})
		})
	}
}

// Whatever happens to processes and clocks, no tick is handled twice.
func TestPeriodic_NoTickTwice(t *testing.T) {
	specs := []string{"*/7 * * * *", "* * * * *", "@hourly", "10 */2 * * *"}
	handled, seeds := 0, uint64(30)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			spec := specs[random.IntN(len(specs))]
			w := newWorld(periodic.In(load(t, "Europe/Berlin")), periodic.CatchUp(periodic.Policy(random.IntN(2))))
			var story []string
			var running []*process
			for range 40 {
				op := random.IntN(6)
				switch d := time.Duration(random.Int64N(int64(20 * time.Minute))); {
				case op == 0 && len(running) < 3:
					story = append(story, "start")
					p := w.process(t)
					p.every(spec)
					running = append(running, p)
				case op <= 1 && len(running) > 0:
					i := random.IntN(len(running))
					story = append(story, fmt.Sprint("end ", i))
					if random.IntN(2) == 0 {
						running[i].kill()
					} else {
						running[i].end()
					}
					running = slices.Delete(running, i, i+1)
				case op == 2:
					d = 6 * (d - 10*time.Minute)
					story = append(story, fmt.Sprint("step ", d))
					w.clock.step(d)
				default:
					story = append(story, fmt.Sprint("sleep ", d))
					time.Sleep(d)
				}
			}
			for _, p := range running {
				p.kill()
			}
			seen := map[string]bool{}
			for _, tick := range w.handled() {
				assert.False(t, seen[tick], "seed %d: %s is handled twice: %v", seed, tick, story)
				seen[tick] = true
				handled++
			}
		})
	}
	require.Greater(t, handled, 10*int(seeds))
}

// While the store fails, the latest tick waits, and is published when the bus has reopened the store. An unknown outcome is no second event.
func TestPeriodic_TheStoreFails(t *testing.T) {
	for kind, want := range map[storetest.FaultKind]int64{storetest.FailBefore: 5, storetest.FailAfter: 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			left := want
			fault := func(*driver.Batch) (f storetest.Fault) {
				if left > 0 {
					left--
					f.Kind = kind
				}
				return f
			}
			w.fault.Store(&fault)
			p := w.process(t)
			p.every("@hourly")
			time.Sleep(90 * time.Minute)
			require.Equal(t, []string{"2000-01-01T01:00:00Z"}, w.handled())
			require.Greater(t, p.publications(), want)
			require.Zero(t, w.lost())
			p.end()
		})
	}
}

// A tick that could not be published until the next one is in the log. The log has an entry a minute, with the number of ticks.
func TestPeriodic_LostTicksAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		fault := func(*driver.Batch) storetest.Fault { return storetest.Fault{Kind: storetest.FailBefore} }
		p := w.process(t)
		p.every("*/2 * * * * *")
		time.Sleep(time.Minute + time.Second)
		require.Len(t, w.handled(), 30)
		w.fault.Store(&fault)
		time.Sleep(10 * time.Minute)
		w.fault.Store(nil)
		time.Sleep(2 * time.Minute)
		ticks := len(w.handled())
		require.Greater(t, ticks, 10)
		at, entries := 0, 0
		for _, e := range w.logs.TakeAll() {
			if e.Message == "tick not published" {
				entries++
				fields := e.ContextMap()
				require.Equal(t, eventType, fields["event_type"])
				require.Contains(t, fields["schedule"], "*/2")
				require.NotEmpty(t, fields["error"])
				at += int(fields["at_least"].(int64))
				require.Equal(t, "periodic", e.LoggerName[len(e.LoggerName)-len("periodic"):])
			}
		}
		require.InDelta(t, 360-ticks, at, 2, "the entries count the ticks")
		require.LessOrEqual(t, entries, 12)
		p.end()
	})
}

// Two buses on one file, in real time.
func TestPeriodic_TwoBusesOnAFile(t *testing.T) {
	w := newWorld()
	file := filepath.Join(t.TempDir(), "events.db")
	var buses []*eventbus.Bus
	for range 2 {
		store, err := sqlite.Open(t.Context(), file)
		require.NoError(t, err)
		bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithStandby())
		require.NoError(t, err)
		_, err = bus.Subscribe("**", w.handle, eventbus.Named("reports"))
		require.NoError(t, err)
		_, err = periodic.Every(bus, "* * * * * *", eventType, nil, periodic.CatchUp(periodic.Latest))
		require.NoError(t, err)
		buses = append(buses, bus)
	}
	require.NoError(t, buses[0].Start(t.Context()))
	started := make(chan error, 1)
	go func() { started <- buses[1].Start(t.Context()) }()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.ticks)
	}
	require.Eventually(t, func() bool { return count() >= 3 }, 20*time.Second, 10*time.Millisecond)
	shutdown(t, buses[0])
	require.NoError(t, <-started)
	before := count()
	require.Eventually(t, func() bool { return count() >= before+3 }, 20*time.Second, 10*time.Millisecond)
	shutdown(t, buses[1])
	requireDistinct(t, w.ticks)
}
