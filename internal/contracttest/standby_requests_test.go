package contracttest

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// A request without an answer is taken back: nothing carries it out later.
func TestS6_ARequestWithoutAnAnswerIsNotCarriedOutLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, hangs := newDisk(), newHang()
		first := disk.spy(t, &spyStore{before: hangs.in("Requests")})
		disk.handles(t, first, "mail", nil)
		require.NoError(t, first.Start(t.Context()))
		id := mustPublish(t, first, "a", "x", eventbus.After(time.Hour))
		synctest.Wait()
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		hangs.on.Store(true)
		began := time.Now()
		require.ErrorIs(t, second.Subscription("mail").Pause(), eventbus.ErrNoAnswer)
		require.ErrorIs(t, cancelEvent(t.Context(), second, id), eventbus.ErrNoAnswer)
		require.Equal(t, 20*time.Second, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, cancelEvent(ctx, second, id), context.DeadlineExceeded)
		require.Empty(t, disk.Dump().Requests)

		close(hangs.release)
		time.Sleep(time.Minute)
		require.False(t, metricsOf(t, first, "mail").Paused)
		require.NoError(t, second.Subscription("mail").Pause(), "it answers again")
		synctest.Wait()
		require.True(t, metricsOf(t, first, "mail").Paused)
		require.NoError(t, second.Subscription("mail").Resume())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.Len(t, audit(t, first, eventbus.AuditQuery{}), 2)
		shutdown(t, first)
		require.NoError(t, <-waits)
		shutdown(t, second)
	})
}

// The bus that gets the lease answers what the one before has not answered.
func TestS6_ARequestIsAnsweredByTheNextBusWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, hangs := newDisk(), newHang()
		first := disk.spy(t, &spyStore{before: hangs.in("Requests")})
		disk.handles(t, first, "mail", nil)
		require.NoError(t, first.Start(t.Context()))
		id := mustPublish(t, first, "a", "x", eventbus.After(time.Hour))
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		hangs.on.Store(true)
		tool := disk.tool(t)
		asked := make(chan error, 2)
		go func() { asked <- tool.Subscription("mail").Pause() }()
		go func() { asked <- cancelEvent(context.Background(), second, id) }()
		time.Sleep(time.Second)
		disk.Crash()
		require.NoError(t, <-waits)
		began := time.Now()
		require.NoError(t, <-asked)
		require.NoError(t, <-asked)
		synctest.Wait()
		require.LessOrEqual(t, time.Since(began), 250*time.Millisecond)
		require.True(t, metricsOf(t, second, "mail").Paused)
		require.Empty(t, disk.Dump().Records)
		close(hangs.release)
		_ = first.Shutdown(ended())
		shutdown(t, tool)
		shutdown(t, second)
	})
}

// Where no process has the lease, the caller holds it for the call, and nothing is dispatched meanwhile.
func TestS6_WithoutALeaseTheCallerHoldsItForTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		id := mustPublish(t, first, "a", "1", eventbus.After(time.Minute))
		later := mustPublish(t, first, "a", "2", eventbus.After(time.Minute))
		shutdown(t, first)
		second, _ := disk.open(t)
		disk.handles(t, second, "mail", nil)
		mustPublish(t, second, "a", "3")
		time.Sleep(time.Hour)
		for _, bus := range []*eventbus.Bus{second, disk.tool(t)} {
			require.NoError(t, bus.Subscription("mail").Pause())
			disk.requireLease(t, second, false)
			require.NoError(t, cancelEvent(t.Context(), bus, id))
			requireNothingLeft(t, cancelEvent(t.Context(), bus, id))
			disk.requireLease(t, second, false)
			id = later
			require.Empty(t, disk.took())
			requireBalanced(t, bus)
			if bus != second {
				shutdown(t, bus)
			}
		}
		require.NoError(t, second.Start(t.Context()))
		require.Empty(t, disk.took())
		require.NoError(t, second.Subscription("mail").Resume())
		require.Equal(t, []string{"mail 3 1"}, disk.took())
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
	})
}

// Many buses ask at once, and the lease changes hands meanwhile. Each request is carried out once or not at all.
func TestS6_RequestsWhileTheLeaseChangesHands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		const n = 50
		var ids [n]eventbus.EventID
		for i := range ids {
			ids[i] = mustPublish(t, first, "a", "x", eventbus.After(time.Hour))
		}
		synctest.Wait()
		var cancelled [n]chan int
		tools := []*eventbus.Bus{disk.tool(t), disk.tool(t), first, second}
		for i := range ids {
			cancelled[i] = make(chan int, len(tools))
			for _, bus := range tools {
				go func() {
					time.Sleep(time.Duration(i) * time.Millisecond)
					if cancelEvent(context.Background(), bus, ids[i]) == nil {
						cancelled[i] <- 1
						return
					}
					cancelled[i] <- 0
				}()
			}
		}
		for range 5 {
			time.Sleep(9 * time.Millisecond)
			disk.LoseLease(false)
		}
		for i := range ids {
			sum := 0
			for range tools {
				sum += <-cancelled[i]
			}
			require.Equal(t, 1, sum, "%d", i)
		}
		require.Empty(t, disk.Dump().Records)
		require.NoError(t, <-waits)
		for _, bus := range tools {
			requireBalanced(t, bus)
			shutdown(t, bus)
		}
	})
}

// The request is taken back after the bus with the lease has claimed the event. The event is free again, and can be
// cancelled or is dispatched.
func TestS6_ARequestThatIsTakenBackLeavesTheEventScheduled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var slow atomic.Bool
		spy := &spyStore{claim: func(_ context.Context, q driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
			claimed, err := next()
			if q.Kind == driver.ClaimRefs && slow.Load() {
				time.Sleep(5 * time.Second)
			}
			return claimed, err
		}}
		first := disk.spy(t, spy)
		disk.handles(t, first, "mail", nil)
		require.NoError(t, first.Start(t.Context()))
		mustPublish(t, first, "a", "handled", eventbus.After(time.Minute))
		cancelled := mustPublish(t, first, "a", "cancelled", eventbus.After(time.Hour))
		waited := make(chan error, 1)
		go func() {
			_, err := first.PublishAndWait(context.Background(), "a", "waited", eventbus.After(2*time.Hour))
			waited <- err
		}()
		synctest.Wait()
		var all []eventbus.EventID
		for _, r := range disk.Dump().Records {
			all = append(all, eventbus.EventID(r.ID))
		}
		require.Len(t, all, 3)
		tool := disk.tool(t)
		slow.Store(true)
		for _, id := range all {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.ErrorIs(t, cancelEvent(ctx, tool, id), context.DeadlineExceeded)
			cancel()
			time.Sleep(10 * time.Second)
		}
		slow.Store(false)
		require.NoError(t, cancelEvent(t.Context(), tool, cancelled))
		requireBalanced(t, first)
		time.Sleep(3 * time.Hour)
		require.Equal(t, []string{"mail handled 1", "mail waited 1"}, disk.took())
		require.NoError(t, <-waited)
		require.EqualValues(t, 1, first.Metrics().Ledger.Cancelled)
		requireBalanced(t, first)
		shutdown(t, tool)
		shutdown(t, first)
		require.Empty(t, disk.Dump().Records)
	})
}

// A request whose caller gets an error of the store is taken back: no bus carries it out later.
func TestL6_ARequestThatFailsIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		start(t, bus)
		shutdown(t, bus)
		store := &spyStore{Store: disk.Open()}
		tool, err := eventbus.New(eventbus.WithStore(store), eventbus.WithoutHandlers())
		require.NoError(t, err)
		store.before = func(method string) {
			if method == "Stats" {
				panic("no")
			}
		}
		require.ErrorContains(t, tool.Subscription("mail").Pause(), "panicked in Stats")
		store.before = nil
		require.Empty(t, disk.Dump().Requests)
		shutdown(t, tool)
		bus, _ = disk.open(t)
		disk.handles(t, bus, "mail", nil)
		start(t, bus)
		require.False(t, metricsOf(t, bus, "mail").Paused)
		shutdown(t, bus)
	})
}
