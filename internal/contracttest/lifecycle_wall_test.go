package contracttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/wallclock"
)

// latest is how late an instant is at most after the wall clock was set.
const latest = 30 * time.Second

func TestS4_WallAnInstantIsNotLateByASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		bus, _ := startBus(t, eventbus.WithClock(c))
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", "at", eventbus.At(c.Now().Add(time.Hour)))
		mustPublish(t, bus, "x", "after", eventbus.After(time.Hour))
		time.Sleep(10*time.Minute + 10*time.Second)
		c.Advance(2 * time.Hour)
		require.Zero(t, calls.len())
		time.Sleep(latest)
		synctest.Wait()
		require.Len(t, calls.all(), 1)
		time.Sleep(49*time.Minute + 19*time.Second)
		require.Equal(t, 1, calls.len(), "a delay is monotonic")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, "+1h0m0s s:after", calls.all()[1])
		require.Contains(t, calls.all()[0], "s:at")
		shutdown(t, bus)
	})
}

// Without a step, an instant comes when the wall clock shows it, not at the next look.
func TestS4_WallAnInstantIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		durable, _ := disk.open(t, eventbus.WithClock(c))
		disk.handles(t, durable, "mail", nil)
		require.NoError(t, durable.Start(t.Context()))
		bus, _ := startBus(t, eventbus.WithClock(c))
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		at := c.Now().Add(61*time.Minute + time.Second)
		mustPublish(t, bus, "x", 1, eventbus.At(at))
		mustPublish(t, durable, "x", "1", eventbus.At(at))
		time.Sleep(61*time.Minute + time.Second - 1)
		require.Empty(t, disk.took())
		require.Zero(t, calls.len())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		require.Equal(t, 1, calls.len())
		shutdown(t, bus)
		shutdown(t, durable)
	})
}

// Entries that are not due on their own clock hide none that are due on the other.
func TestS4_WallOneEventHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		bus, _ := startBus(t, eventbus.WithClock(c))
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		mustPublish(t, bus, "x", "delay", eventbus.After(90*time.Minute))
		mustPublish(t, bus, "x", "later", eventbus.At(c.Now().Add(5*time.Hour)))
		mustPublish(t, bus, "x", "instant", eventbus.At(c.Now().Add(2*time.Hour)))
		c.Advance(3 * time.Hour)
		time.Sleep(latest)
		synctest.Wait()
		require.Equal(t, []string{"+30s s:instant"}, calls.all())
		c.Advance(-12 * time.Hour)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Equal(t, []string{"+30s s:instant", "+1h30m0s s:delay"}, calls.all())
		mustPublish(t, bus, "x", "soon", eventbus.At(c.Now().Add(time.Minute)))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 3, calls.len(), "an instant that was published earlier waits for the wall clock")
		require.Len(t, shutdownLeft(t, bus), 1)
	})
}

func TestS4_WallSetBackAnInstantIsNotEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		durable, _ := disk.open(t, eventbus.WithClock(c))
		disk.handles(t, durable, "mail", nil)
		require.NoError(t, durable.Start(t.Context()))
		bus, _ := startBus(t, eventbus.WithClock(c))
		calls := newCallLog()
		mustSubscribe(t, bus, "*", calls.handler("s"))
		at := c.Now().Add(time.Hour)
		mustPublish(t, bus, "x", 1, eventbus.At(at))
		mustPublish(t, durable, "x", "1", eventbus.At(at))
		time.Sleep(time.Minute)
		c.Advance(-2 * time.Hour)
		time.Sleep(3*time.Hour - time.Minute - 1)
		require.Zero(t, calls.len())
		require.Empty(t, disk.took())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		require.Equal(t, []string{"+3h0m0s s:1"}, calls.all())
		shutdown(t, bus)
		shutdown(t, durable)
	})
}

func TestS4_WallAnInstantOfAStoreIsNotLateByASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithClock(c))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", "first", eventbus.At(c.Now().Add(time.Hour)))
		mustPublish(t, bus, "x", "second", eventbus.At(c.Now().Add(5*time.Hour)))
		time.Sleep(10*time.Minute + 10*time.Second)
		c.Advance(2 * time.Hour)
		require.Empty(t, disk.took())
		time.Sleep(latest)
		require.Equal(t, []string{"mail first 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t, eventbus.WithClock(c))
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(10*time.Minute + 10*time.Second)
		require.Empty(t, disk.took())
		c.Advance(3 * time.Hour)
		time.Sleep(latest)
		require.Equal(t, []string{"mail second 1"}, disk.took())
		shutdown(t, again)
	})
}

// What is reported and stored is the instant as given, also when the clocks have moved apart.
func TestS4_WallAnInstantIsKeptAsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		zone := time.FixedZone("z", 3600)
		for _, durable := range []bool{false, true} {
			for _, given := range []time.Time{c.Now().Add(time.Hour + 123456789), time.Date(2999, 12, 31, 23, 59, 59, 987654321, zone)} {
				disk := newDisk()
				bus, _ := newBus(t, eventbus.WithClock(c), oneAttempt)
				if durable {
					bus, _ = disk.open(t, eventbus.WithClock(c), oneAttempt)
				}
				s := mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("s"))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "x", nil, eventbus.At(given))
				require.NoError(t, s.HoldUntil(given))
				c.Advance(17 * time.Nanosecond)
				time.Sleep(time.Second)
				c.Advance(time.Minute + 1)
				page, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{})
				require.NoError(t, err)
				require.Equal(t, given.UTC(), page.Dispatches[0].Due)
				require.Equal(t, given.UTC(), metricsOf(t, bus, "s").PausedUntil)
				if durable {
					require.Equal(t, given.UTC(), disk.Dump().Records[0].Due)
					require.Equal(t, given.UTC(), disk.orders(t)[0].Until)
				}
				if given.Year() == 2999 && durable {
					shutdown(t, bus)
					continue
				}
				if given.Year() == 2999 {
					for _, l := range shutdownLeft(t, bus) {
						require.Equal(t, given.UTC(), l.Due)
					}
					continue
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				l := oneLetter(t, bus)
				require.Equal(t, given.UTC(), l.Due)
				shutdown(t, bus)
			}
		}
	})
}

func TestS4_WallHoldUntil(t *testing.T) {
	for name, durable := range map[string]bool{"memory": false, "store": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := wallclock.New()
				disk := newDisk()
				open := func() (*eventbus.Bus, *eventbus.Subscription) {
					bus, _ := newBus(t, eventbus.WithClock(c))
					if durable {
						bus, _ = disk.open(t, eventbus.WithClock(c))
					}
					s := disk.handles(t, bus, "mail", nil)
					require.NoError(t, bus.Start(t.Context()))
					return bus, s
				}
				bus, s := open()
				require.NoError(t, s.HoldUntil(c.Now().Add(time.Hour)))
				if durable {
					disk.crash(bus)
					bus, s = open()
				}
				mustPublish(t, bus, "x", "ahead")
				time.Sleep(10*time.Minute + 10*time.Second)
				require.Empty(t, disk.took())
				c.Advance(2 * time.Hour)
				time.Sleep(latest)
				require.Equal(t, []string{"mail ahead 1"}, disk.took())
				require.False(t, metricsOf(t, bus, "mail").Paused)

				require.NoError(t, s.HoldUntil(c.Now().Add(time.Hour)))
				mustPublish(t, bus, "x", "back")
				time.Sleep(10*time.Minute + 10*time.Second)
				c.Advance(-2 * time.Hour)
				time.Sleep(3*time.Hour - 10*time.Minute - 10*time.Second - 1)
				require.Empty(t, disk.took())
				require.True(t, metricsOf(t, bus, "mail").Paused)
				time.Sleep(time.Nanosecond)
				require.Equal(t, []string{"mail back 1"}, disk.took())
				shutdown(t, bus)
			})
		})
	}
}

// Another process replaces a pause by a HoldUntil that ends before this one obeys it.
func TestS4_WallAHoldUntilThatHasPassedEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithClock(c))
		s := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Pause())
		mustPublish(t, bus, "x", "held")
		require.Empty(t, disk.took())
		other := disk.Open()
		done := make(chan error, 1)
		body := fmt.Sprintf(`{"action": "hold_until", "subscription": "mail", "until": %q}`, c.Now().UTC().Add(-1).Format(time.RFC3339Nano))
		other.Submit(&driver.Batch{Now: c.Now().UTC(), Ask: []*driver.Request{{Body: []byte(body)}}}, func(err error) { done <- err })
		require.NoError(t, <-done)
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail held 1"}, disk.took())
		require.NoError(t, other.Close(t.Context()))
		shutdown(t, bus)
	})
}

// A replay of an event that is not due waits for the wall clock.
func TestS4_WallAReplayBeforeTheInstant(t *testing.T) {
	for name, durable := range map[string]bool{"memory": false, "store": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := wallclock.New()
				disk := newDisk()
				bus, _ := newBus(t, eventbus.WithClock(c))
				if durable {
					bus, _ = disk.open(t, eventbus.WithClock(c))
				}
				disk.handles(t, bus, "mail", nil)
				require.NoError(t, bus.Start(t.Context()))
				earlier, _ := startBus(t, eventbus.WithClock(c))
				disk.handles(t, earlier, "mail", nil)
				mustPublish(t, earlier, "x", "again", eventbus.At(c.Now().Add(time.Hour)))
				require.Len(t, shutdownLeft(t, earlier), 1)
				var letters bytes.Buffer
				_, err := earlier.DLQ().Export(t.Context(), &letters, eventbus.LetterQuery{})
				require.NoError(t, err)
				importLetters(t, bus, letters.Bytes())
				require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
				time.Sleep(10*time.Minute + 10*time.Second)
				require.Empty(t, disk.took())
				c.Advance(2 * time.Hour)
				time.Sleep(latest)
				require.Equal(t, []string{"mail again 1"}, disk.took())
				shutdown(t, bus)
			})
		})
	}
}

// A store keeps no time after the year 9999, and a delay may end there.
func TestE1_ADelayBeyondTheLastYearIsInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewMock()
		c.Set(time.Date(9999, 6, 1, 0, 0, 0, 0, time.UTC))
		bus, _ := newDisk().open(t, eventbus.WithClock(c))
		_, err := bus.Publish(t.Context(), "x", 1, eventbus.After(365*24*time.Hour))
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		var invalid *eventbus.EventError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "time", invalid.Field)
		shutdown(t, bus)
	})
}

// A handler may have had the event of a replay: Cancel of the replay does not free its id.
func TestE6_CancelOfAReplayKeepsTheID(t *testing.T) {
	for name, durable := range map[string]bool{"memory": false, "store": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := wallclock.New()
				c.Advance(2 * time.Hour)
				disk := newDisk()
				bus, _ := newBus(t, eventbus.WithClock(c))
				if durable {
					bus, _ = disk.open(t, eventbus.WithClock(c))
				}
				disk.handles(t, bus, "mail", func(string, int) error { return eventbus.Permanent(errors.New("no")) })
				require.NoError(t, bus.Start(t.Context()))
				id := eventbus.NewEventID()
				publish := func() {
					mustPublish(t, bus, "x", "once", eventbus.ID(id), eventbus.At(c.Now().Add(time.Minute)))
				}
				publish()
				time.Sleep(2 * time.Minute)
				require.Len(t, disk.took(), 1)
				c.Advance(-time.Hour)
				require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
				require.NoError(t, cancelEvent(t.Context(), bus, id))
				publish()
				time.Sleep(2 * time.Minute)
				require.Empty(t, disk.took(), "it is known")
				shutdown(t, bus)
			})
		})
	}
}

// The rest of OpenFor is a delay: it is not longer after the clock was set back.
func TestS4_WallSetBackATripIsNotLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithClock(c))
		require.NoError(t, disk.handles(t, bus, "mail", nil).Trip())
		disk.crash(bus)
		c.Advance(-24 * time.Hour)
		again, _ := disk.open(t, eventbus.WithClock(c))
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		mustPublish(t, again, "x", "held")
		time.Sleep(29 * time.Second)
		require.Empty(t, disk.took())
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail held 1"}, disk.took())
		shutdown(t, again)
	})
}

// Ids are remembered for an hour more after the clock was set ahead, and so for good if it is set right
// within that.
func TestS4_WallSetAheadNothingIsForgottenForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithClock(c))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		is := func(handled ...string) {
			t.Helper()
			require.Equal(t, id, mustPublish(t, bus, "x", "1", eventbus.ID(id)))
			require.Equal(t, handled, disk.took())
		}
		is("mail 1 1")
		time.Sleep(time.Hour)
		c.Advance(48 * time.Hour)
		is()
		time.Sleep(59 * time.Minute)
		is()
		c.Advance(-48 * time.Hour)
		time.Sleep(2 * time.Hour)
		is()
		c.Advance(48 * time.Hour)
		is()
		time.Sleep(30 * time.Minute)
		c.Advance(48 * time.Hour) // the hour begins again
		is()
		time.Sleep(time.Hour - 1)
		is()
		time.Sleep(time.Nanosecond)
		is("mail 1 1")
		time.Sleep(time.Hour)
		c.Advance(30 * time.Second) // less than a minute
		time.Sleep(22*time.Hour + 59*time.Minute + 29*time.Second)
		is()
		time.Sleep(time.Second)
		is("mail 1 1")
		shutdown(t, bus)
	})
}

// The bus looks at the wall clock only while something waits for it.
func TestS4_WallNoLookWithoutAnInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := wallclock.New()
		disk := newDisk()
		durable, _ := disk.open(t, eventbus.WithClock(c))
		disk.handles(t, durable, "mail", nil)
		bus, _ := newBus(t, eventbus.WithClock(c))
		s := mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("s"))
		for _, b := range []*eventbus.Bus{bus, durable} {
			require.NoError(t, b.Start(t.Context()))
			mustPublish(t, b, "x", "now")
			mustPublish(t, b, "x", "later", eventbus.At(c.Now().Add(10*time.Minute)))
			require.NoError(t, cancelEvent(t.Context(), b, mustPublish(t, b, "x", "never", eventbus.At(c.Now().Add(time.Hour)))))
		}
		require.NoError(t, s.HoldUntil(c.Now().Add(24*time.Hour)))
		time.Sleep(2 * time.Hour)
		require.NoError(t, s.Resume())
		time.Sleep(latest) // a look may have been planned
		synctest.Wait()
		before := c.Reads()
		time.Sleep(24 * time.Hour)
		require.Equal(t, before, c.Reads())
		shutdown(t, bus)
		shutdown(t, durable)
	})
}
