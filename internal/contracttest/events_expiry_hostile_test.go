package contracttest

import (
	"context"
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

// timersCounted counts the timers that are set.
type timersCounted struct {
	clock.Clock
	timers *atomic.Int64
}

func (c timersCounted) AfterFunc(d time.Duration, f func()) *clock.Timer {
	c.timers.Add(1)
	return c.Clock.AfterFunc(d, f)
}

// A target with Once that has ended drops its own delivery only.
func TestE9_AnEndedTargetDropsAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "slow", "slow", takesAnHour, eventbus.Timeout(2*time.Hour))
		a := notingCalls(t, bus, &got, "a", "x", nil, eventbus.Once())
		notingCalls(t, bus, &got, "b", "x", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "slow", "x")
		synctest.Wait()
		mustPublish(t, bus, "x", "1", eventbus.ExpiresIn(time.Minute))
		a.Unsubscribe()
		time.Sleep(time.Minute + notices)
		synctest.Wait()
		all := letters(t, bus)
		time.Sleep(time.Hour)
		require.Len(t, all, 1, "b did not handle the event, and has no letter")
		require.Equal(t, "b", all[0].Subscription)
		shutdown(t, bus)
	}, eventbus.WithConcurrency(1))
}

// A target that is retired and drops drops its own delivery only.
func TestE9_ARetiredTargetDropsAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "slow", "slow", takesAnHour, eventbus.Timeout(2*time.Hour))
		a := notingCalls(t, bus, &got, "a", "x", nil)
		notingCalls(t, bus, &got, "b", "x", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "slow", "x")
		synctest.Wait()
		mustPublish(t, bus, "x", "1", eventbus.ExpiresIn(time.Minute))
		require.NoError(t, a.Detach())
		go func() { _, _ = bus.Retire(t.Context(), "a", eventbus.DropRetired()) }()
		time.Sleep(time.Minute + notices)
		synctest.Wait()
		all := letters(t, bus)
		l := bus.Metrics().Ledger
		time.Sleep(time.Hour)
		require.Len(t, all, 1, "%+v", l)
		shutdown(t, bus)
	}, eventbus.WithConcurrency(1))
}

// A target that has ended makes a letter of its own. That of the others can be replayed.
func TestE9_AnEndedTargetHidesNoOther(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "slow", "slow", takesAnHour, eventbus.Timeout(2*time.Hour))
		a := notingCalls(t, bus, &got, "a", "x", nil)
		notingCalls(t, bus, &got, "b", "x", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "slow", "x")
		synctest.Wait()
		mustPublish(t, bus, "x", "1", eventbus.ExpiresIn(time.Minute))
		a.Unsubscribe()
		time.Sleep(time.Minute + notices)
		synctest.Wait()
		ended := list(t, bus, eventbus.LetterQuery{Subscription: "a"}).Letters
		require.Len(t, ended, 1)
		require.Equal(t, eventbus.ReasonUnsubscribed, ended[0].Reason)
		require.Empty(t, ended[0].NotReached)
		late := list(t, bus, eventbus.LetterQuery{Subscription: "b"}).Letters
		require.Len(t, late, 1)
		require.Equal(t, eventbus.ReasonTooLate, late[0].Reason)
		require.NoError(t, bus.DLQ().Replay(t.Context(), late[0].ID))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Contains(t, got.all(), "b 1", "b's delivery cannot be replayed")
		shutdown(t, bus)
	}, eventbus.WithConcurrency(1))
}

// A delivery that was under way when the process crashed is not dropped: its handler may have been called.
func TestE9_ACallThatCrashedIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var got journal[string]
		open := func() *eventbus.Bus {
			bus, _ := disk.open(t)
			notingCalls(t, bus, &got, "s", "a", takesAnHour, eventbus.Timeout(2*time.Hour), eventbus.DropExpired())
			require.NoError(t, bus.Start(t.Context()))
			synctest.Wait()
			return bus
		}
		bus := open()
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(time.Minute))
		synctest.Wait()
		require.Equal(t, []string{"s x"}, got.all())
		disk.crash(bus)
		time.Sleep(10 * time.Minute)
		bus = open()
		time.Sleep(notices)
		synctest.Wait()
		n := len(letters(t, bus))
		disk.crash(bus)
		time.Sleep(2 * time.Hour)
		require.Equal(t, 1, n, "its handler was called: it is not dropped")
	})
}

// The event expires while the function for the destination runs.
func TestE9_AnExpiryWhileTheDestinationIsAsked(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", nil, eventbus.PerDestination(func(eventbus.Event) string { time.Sleep(5 * time.Second); return "x" }))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x", eventbus.ExpiresIn(time.Second))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Empty(t, got.all(), "no call begins after the expiry")
		shutdown(t, bus)
	})
}

// After a Shutdown that has given up on the store, no timer is set again.
func TestE9_NoTimerAfterAShutdownThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		release := make(chan struct{})
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			if hangs.Load() {
				<-release
			}
			return f
		}))
		timers := new(atomic.Int64)
		bus, _ := disk.open(t, eventbus.WithClock(timersCounted{clock.New(), timers}))
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "first")
		synctest.Wait()
		mustSubscribe(t, bus, "b", func(context.Context, eventbus.Event) error { hangs.Store(true); return nil }, eventbus.Named("b"))
		mustPublish(t, bus, "b", "x", eventbus.ExpiresIn(24*time.Hour))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.Error(t, bus.Shutdown(ctx))
		time.Sleep(time.Minute)
		before := timers.Load()
		time.Sleep(10 * time.Hour)
		after := timers.Load()
		close(release)
		time.Sleep(time.Hour)
		require.LessOrEqual(t, after-before, int64(5), "it wakes for ever")
	})
}

// A publication with an id may be repeated after the expiry.
func TestE9_ARepetitionAfterTheExpiry(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var got journal[string]
		notingCalls(t, bus, &got, "s", "a", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		mustPublish(t, bus, "a", "1", eventbus.ID(id), eventbus.ExpiresIn(time.Minute))
		time.Sleep(time.Second)
		mustPublish(t, bus, "a", "1", eventbus.ID(id), eventbus.ExpiresIn(time.Minute))
		mustPublish(t, bus, "a", "1", eventbus.ID(id))
		at := time.Now().Add(time.Second)
		id = eventbus.NewEventID()
		mustPublish(t, bus, "a", "2", eventbus.ID(id), eventbus.ExpiresAt(at))
		time.Sleep(2 * time.Second)
		_, err := bus.Publish(t.Context(), "a", "2", eventbus.ID(id), eventbus.ExpiresAt(at))
		require.NoError(t, err)
		shutdown(t, bus)
	})
}
