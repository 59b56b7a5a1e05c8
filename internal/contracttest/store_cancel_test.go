package contracttest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// A tool cancels a scheduled event, whether the bus runs or not. The id can be given again.
func TestL6_AToolCancelsAScheduledEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		tool := disk.tool(t)
		ann := eventbus.By("ann")
		cancelled := func(bus *eventbus.Bus, id eventbus.EventID) {
			t.Helper()
			require.NoError(t, cancelEvent(t.Context(), tool, id, ann))
			requireNothingLeft(t, cancelEvent(t.Context(), tool, id, ann))
			requireNothingLeft(t, cancelEvent(t.Context(), bus, id))
			require.Equal(t, []string{"mail cancelled 0 ended by ann"}, endsOf(t, tool, id))
			entries := audit(t, tool, eventbus.AuditQuery{})
			require.Equal(t, id, entries[0].Event)
			require.Equal(t, "ann", entries[0].By)
		}
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		cancelled(bus, mustPublish(t, bus, "a", "not started", eventbus.After(time.Hour)))
		require.NoError(t, bus.Start(t.Context()))
		given := eventbus.ID(eventbus.NewEventID())
		id := mustPublish(t, bus, "a", "given", given, eventbus.After(time.Hour))
		cancelled(bus, id)
		mustPublish(t, bus, "a", "again", given, eventbus.After(time.Minute))
		byTool := mustPublish(t, bus, "a", "left", eventbus.After(2*time.Hour))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail again 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)

		require.NoError(t, cancelEvent(t.Context(), tool, byTool))
		require.Len(t, audit(t, tool, eventbus.AuditQuery{}), 2, "without an operator there is no entry")
		bus, _ = disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		now := mustPublish(t, bus, "a", "now")
		requireNothingLeft(t, cancelEvent(t.Context(), tool, now))
		requireNothingLeft(t, cancelEvent(t.Context(), tool, eventbus.NewEventID()))
		require.ErrorIs(t, cancelEvent(t.Context(), tool, now, eventbus.By("\n")), eventbus.ErrInvalidOption)
		time.Sleep(24 * time.Hour)
		require.Equal(t, []string{"mail now 1"}, disk.took())
		require.Len(t, audit(t, tool, eventbus.AuditQuery{}), 2, "what changes nothing has no entry")
		shutdown(t, bus)
		shutdown(t, tool)
		require.Empty(t, disk.Dump().Records)
	})
}

// When a tool cancels at the instant at which the event is due, exactly one of them wins.
func TestL6_AToolCancelsWhenTheEventIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		disk := newDisk(storetest.WithFaults(func(n int, _ *driver.Batch) storetest.Fault {
			return storetest.Fault{Delay: time.Duration(n%3) * time.Millisecond}
		}))
		bus, _ := disk.open(t)
		tool := disk.tool(t)
		var called, cancelled [n]atomic.Int64
		mustSubscribe(t, bus, "*", eventbus.Typed(func(_ context.Context, i int) error { called[i].Add(1); return nil }), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		began := time.Now()
		due := func(i int) time.Time { return began.Add(time.Hour + time.Duration(i)*time.Millisecond) }
		var ids [n]eventbus.EventID
		for i := range n {
			ids[i] = mustPublish(t, bus, "x", i, eventbus.At(due(i)))
		}
		var wg sync.WaitGroup
		for _, canceller := range []*eventbus.Bus{tool, bus} {
			for i := range n {
				wg.Go(func() {
					time.Sleep(time.Until(due(i)) + time.Duration(i%5-2)*time.Millisecond)
					switch _, err := cancelForSure(canceller, ids[i]); {
					case err == nil:
						cancelled[i].Add(1)
					case !nothingLeft(err):
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		time.Sleep(time.Hour)
		var sum int64
		for i := range n {
			require.LessOrEqual(t, cancelled[i].Load(), int64(1), "%d", i)
			require.Positive(t, called[i].Load()+cancelled[i].Load(), "%d", i) // a call that has begun may be cancelled
			sum += cancelled[i].Load()
		}
		require.Equal(t, n-sum, bus.Metrics().Ledger.Handled)
		require.NotZero(t, sum)
		require.NotEqual(t, int64(n), sum)
		requireBalanced(t, bus)
		shutdown(t, bus)
		shutdown(t, tool)
		require.Empty(t, disk.Dump().Records)
	})
}

// PublishAndWait learns that a tool has cancelled its event, and of no other end.
func TestL6_AWaitEndsWhenAToolCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		tool := disk.tool(t)
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(10 * time.Second); return nil })
		require.NoError(t, bus.Start(t.Context()))
		wait := func(payload string, after time.Duration) (eventbus.EventID, <-chan error) {
			id, ended := eventbus.NewEventID(), make(chan error, 1)
			go func() {
				_, err := bus.PublishAndWait(context.Background(), "a", payload, eventbus.ID(id), eventbus.After(after))
				ended <- err
			}()
			synctest.Wait()
			return id, ended
		}
		cancelled, first := wait("cancelled", time.Hour)
		_, second := wait("handled", time.Hour)
		_, third := wait("soon", 10*time.Second)
		time.Sleep(12 * time.Second) // soon runs
		require.NoError(t, cancelEvent(t.Context(), tool, cancelled))
		began := time.Now()
		require.ErrorIs(t, <-first, eventbus.ErrCancelled)
		require.LessOrEqual(t, time.Since(began), 250*time.Millisecond)
		require.NoError(t, <-third)
		require.NoError(t, <-second)
		require.Equal(t, []string{"mail soon 1", "mail handled 1"}, disk.took())
		shutdown(t, bus)
		shutdown(t, tool)
	})
}

// What other processes insert and cancel counts for WithMaxUnsettled.
func TestL6_OtherProcessesCountForTheQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 5
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(most), eventbus.RefuseWhenFull())
		tool := disk.tool(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		for range 3 {
			var ids []eventbus.EventID
			for i := range most {
				ids = append(ids, mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.After(time.Hour)))
			}
			_, err := bus.Publish(t.Context(), "a", "x")
			require.ErrorIs(t, err, eventbus.ErrQueueFull)
			for _, id := range ids {
				require.NoError(t, cancelEvent(t.Context(), tool, id))
			}
			time.Sleep(time.Second)
		}

		// Those of others do not make room when they settle.
		other, err := eventbus.New(eventbus.WithStore(disk.Open()))
		require.NoError(t, err)
		disk.handles(t, other, "mail", nil)
		for range 3 * most {
			mustPublish(t, other, "a", "by another")
		}
		time.Sleep(time.Second)
		require.Len(t, disk.took(), 3*most)
		for i := range most {
			mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.After(time.Hour))
		}
		_, err = bus.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		shutdown(t, other)
		shutdown(t, tool)
		shutdown(t, bus)
	})
}
