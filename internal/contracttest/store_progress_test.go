package contracttest

import (
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// A rule's budget is not renewed by a restart.
func TestP7_BudgetsSurviveACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		rules := eventbus.RetryRules(eventbus.RetryRule{Match: codes("BUSY"), Attempts: 3, BaseDelay: time.Second})
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(coded("BUSY")), rules)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", always(coded("BUSY")), rules)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 2", "mail x 3"}, disk.took())
		l := oneLetter(t, again)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.NotNil(t, l.Rule)
		shutdown(t, again)
	})
}

// A restart keeps the order of visit, and takes the policies that are in force then.
func TestR4_TheOrderOfVisitSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "b", "c", "a")
		mustPublish(t, bus, "x", "x")
		disk.crash(bus)

		again, _ := disk.open(t)
		for _, name := range []string{"a", "b", "c", "d"} {
			disk.handles(t, again, name, nil)
		}
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"b x 1", "c x 1", "a x 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestP5_ARestartTakesThePoliciesInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t, eventbus.WithRetry(retry(4, time.Second)))
		disk.handles(t, again, "mail", always(errBoom), eventbus.Retry(eventbus.MaxRetries(3)))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 2", "mail x 3", "mail x 4"}, disk.took())
		shutdown(t, again)
	})
}

// The bus keeps what it accepts in memory, and claims nothing of it.
func TestS3_WhatMemoryHasIsNotClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var claims atomic.Int64
		bus := disk.spy(t, &spyStore{before: func(method string) {
			if method == "Claim" {
				claims.Add(1)
			}
		}})
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		before := claims.Load()
		require.Positive(t, before, "Start claims what an earlier process has left")
		for range 10 {
			mustPublish(t, bus, "a", "x")
		}
		require.Len(t, disk.took(), 10)
		require.Equal(t, before, claims.Load())
		shutdown(t, bus)
	})
}

func TestD3_AttemptsAndFailuresSurviveACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "stock", nil)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"stock x 1", "mail x 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "stock", nil)
		disk.handles(t, again, "mail", always(errBroken))
		require.NoError(t, again.Start(t.Context()))
		require.Empty(t, disk.took(), "the retry keeps its due time")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail x 2"}, disk.took())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 3"}, disk.took())
		l := oneLetter(t, again)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, []string{"stock"}, l.Succeeded)
		require.Equal(t, 3, l.Attempts)
		require.Len(t, l.Failures, 3)
		require.Equal(t, "boom", l.Failures[0].Error)
		require.Equal(t, "broken", l.Failures[2].Error)
		require.Equal(t, "*errors.errorString", l.Failures[0].Class)
		require.JSONEq(t, `"x"`, string(l.Event.Payload.(json.RawMessage)))
		shutdown(t, again)
	})
}

// In a long attempt, each success is recorded when the handler has returned.
func TestD3_ALongAttemptRecordsItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		takes := func(d time.Duration) func(string, int) error {
			return func(string, int) error { time.Sleep(d); return nil }
		}
		disk.handles(t, bus, "quick", takes(50*time.Millisecond))
		disk.handles(t, bus, "slow", takes(50*time.Millisecond))
		disk.handles(t, bus, "hangs", takes(time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(99 * time.Millisecond)
		require.Nil(t, disk.Dump().Records[0].Progress)
		time.Sleep(time.Millisecond)
		require.Equal(t, []string{"quick x 1", "slow x 1", "hangs x 1"}, disk.took())
		require.Equal(t, 2, progressOf(t, disk.Dump().Records[0]).Next)
		disk.crash(bus)
		disk.took()

		again, _ := disk.open(t)
		for _, name := range []string{"quick", "slow", "hangs"} {
			disk.handles(t, again, name, nil)
		}
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"hangs x 1"}, disk.took())
		shutdown(t, again)
		time.Sleep(time.Hour) // the first process's handler has returned
	})
}

// After the clock was set back between two processes, a retry of a key begins its delay anew: the
// events of its key do not wait for as long as the clock is behind.
func TestP2_ARetryOfAKeyDoesNotWaitForAClockThatWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		began := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
		mock := clock.NewMock()
		mock.Set(began)
		bus, _ := disk.open(t, eventbus.WithClock(mock))
		disk.handles(t, bus, "mail", func(string, int) error { return eventbus.RetryAfter(errBoom, time.Minute) })
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		mustPublish(t, bus, "a", "scheduled", eventbus.After(time.Hour))
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		disk.crash(bus)

		mock = clock.NewMock()
		mock.Set(began.Add(-24 * time.Hour))
		bus, _ = disk.open(t, eventbus.WithClock(mock))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.Empty(t, disk.took())
		mock.Add(59 * time.Second)
		require.Empty(t, disk.took())
		mock.Add(time.Second)
		require.Equal(t, []string{"mail 0 2", "mail 1 1"}, disk.took())
		mock.Add(23 * time.Hour)
		require.Empty(t, disk.took(), "a scheduled event keeps its instant")
		mock.Add(2 * time.Hour)
		require.Equal(t, []string{"mail scheduled 1"}, disk.took())
		shutdown(t, bus)
	})
}

// crashingAtSettlement returns a disk with an event whose first target has handled it, and whose second one's delivery was
// split off. The process crashed before the event had settled. As long as it is told, the next one does, too.
func crashingAtSettlement(t *testing.T, publishFirst ...string) (_ *disk, crashes *atomic.Bool) {
	t.Helper()
	crashes = new(atomic.Bool)
	crashes.Store(true)
	disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
		if crashes.Load() && len(b.Delete) > 0 {
			f.Kind = storetest.CrashBefore
		}
		return f
	}))
	bus, mail := disk.startsTwo(t)
	require.NoError(t, mail.Pause())
	for _, payload := range append(publishFirst, "x") {
		mustPublish(t, bus, "a", payload)
	}
	time.Sleep(time.Second) // the pool adds a worker
	disk.crash(bus)
	disk.took()
	return disk, crashes
}

// startsTwo starts a process with two subscriptions. The first one handles "slow" for an hour.
func (d *disk) startsTwo(t *testing.T, opts ...eventbus.Option) (bus *eventbus.Bus, second *eventbus.Subscription) {
	t.Helper()
	bus, _ = d.open(t, opts...)
	d.handles(t, bus, "stock", func(payload string, _ int) error {
		if payload == "slow" {
			time.Sleep(time.Hour)
		}
		return nil
	})
	second = d.handles(t, bus, "mail", nil)
	require.NoError(t, bus.Start(t.Context()))
	return bus, second
}

func TestS3_AnEventWithNothingLeftOnlySettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, crashes := crashingAtSettlement(t)
		for range 6 {
			bus, _ := disk.startsTwo(t)
			require.Empty(t, disk.took())
			disk.crash(bus)
		}

		crashes.Store(false)
		bus, mail := disk.startsTwo(t)
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		require.NoError(t, mail.Resume())
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
	})
}

func TestL6_AnEventWithNothingLeftIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, crashes := crashingAtSettlement(t, "slow")
		crashes.Store(false)
		bus, _ := disk.startsTwo(t, eventbus.WithConcurrency(1))
		require.Equal(t, []string{"stock slow 1"}, disk.took())
		page, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{State: eventbus.DispatchQueued})
		require.NoError(t, err)
		require.Len(t, page.Dispatches, 1)
		require.Empty(t, page.Dispatches[0].Subscription)
		require.Equal(t, []string{}, page.Dispatches[0].Targets)
		time.Sleep(2 * time.Hour) // the handlers of both processes end
		shutdown(t, bus)
	})
}

// A target that an earlier process has tried, and that is isolated now, waits for its retry alone.
func TestD10_AnIsolatedRetryDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		fails := eventbus.Retry(retry(5, 10*time.Hour))
		first, _ := disk.open(t)
		disk.handles(t, first, "stock", func(string, int) error { return errBoom }, fails)
		disk.handles(t, first, "mail", nil)
		start(t, first)
		mustPublish(t, first, "a", "x", eventbus.Key("k"))
		require.Equal(t, []string{"stock x 1"}, disk.took())
		shutdown(t, first)

		bus, _ := disk.open(t)
		disk.handles(t, bus, "stock", nil, fails, eventbus.Isolated())
		disk.handles(t, bus, "mail", nil)
		start(t, bus)
		require.Equal(t, []string{"mail x 2"}, disk.took())
		time.Sleep(11 * time.Hour)
		require.Equal(t, []string{"stock x 2"}, disk.took())
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
	})
}
