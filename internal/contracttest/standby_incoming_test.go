package contracttest

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// An event goes to the subscriptions of the bus that takes it in, and to those of its publisher. One that only the publisher
// has parks, and is handled when a bus that has it gets the lease.
func TestT2_AnEventGoesToTheSubscriptionsOfBothBuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithStandby())
		disk.handles(t, first, "mail", nil)
		disk.handles(t, first, "audit", nil)
		require.NoError(t, first.Start(t.Context()))
		second, _ := disk.standby(t, "third", "mail") // not a superset: it gets the lease only later
		waits := startLater(t, second)
		id := mustPublish(t, second, "a", "1", eventbus.Key("k"))
		mustPublish(t, second, "a", "2", eventbus.Key("k"))
		time.Sleep(250 * time.Millisecond)
		require.Equal(t, []string{"mail 1 1", "audit 1 1", "mail 2 1", "audit 2 1"}, disk.took())
		status, err := second.Event(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, status.Dispatches, 1)
		require.Equal(t, eventbus.DispatchParked, status.Dispatches[0].State)
		require.Equal(t, "third", status.Dispatches[0].Subscription)
		require.Equal(t, map[string]int64{"third": 2}, first.Metrics().Orphaned)
		requireBalanced(t, first)
		shutdown(t, first)
		require.NoError(t, <-waits)
		mustPublish(t, second, "a", "3", eventbus.Key("k"))
		require.Equal(t, []string{"third 1 1", "third 2 1", "third 3 1", "mail 3 1"}, disk.took())
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
	})
}

// The hand-over to a later version of the program, whose subscription the earlier one lacked, runs what was parked.
func TestT2_AParkedDeliveryIsHandledAfterTheHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := disk.standby(t, "mail", "audit")
		mustPublish(t, second, "a", "1")
		time.Sleep(250 * time.Millisecond)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		require.NoError(t, second.Start(t.Context()))
		require.Equal(t, []string{"audit 1 1"}, disk.took())
		shutdown(t, first)
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
	})
}

// A name and its former names are one target.
func TestT2_ANameAndItsFormerNamesAreOneTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t)
		disk.handles(t, first, "new", nil, eventbus.Formerly("old"))
		require.NoError(t, first.Start(t.Context()))
		earlier, _ := disk.open(t)
		disk.handles(t, earlier, "old", nil)
		mustPublish(t, earlier, "a", "1")
		tool := disk.tool(t)
		mustPublish(t, tool, "a", "2") // it has no subscriptions
		time.Sleep(250 * time.Millisecond)
		require.Equal(t, []string{"new 1 1", "new 2 1"}, disk.took())
		require.Empty(t, disk.Dump().Records)
		shutdown(t, tool)
		shutdown(t, earlier)
		shutdown(t, first)
	})
}

// An event that has no target anywhere is unrouted when it is taken in.
func TestT2_AnEventWithoutTargetsIsUnrouted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		tool := disk.tool(t)
		id := mustPublish(t, tool, "a", "x")
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "b", ok, eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		require.EqualValues(t, 1, bus.Metrics().Ledger.Unrouted)
		require.Empty(t, disk.Dump().Incoming)
		status, err := tool.Event(t.Context(), id)
		require.NoError(t, err)
		require.True(t, status.IsSettled())
		requireBalanced(t, bus)
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// What a process has left before Start comes before what it publishes afterwards, with a key in the order of its calls.
func TestT2_EventsLeftBeforeStartComeFirst(t *testing.T) {
	for _, capacity := range []int{2, 1000} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t, eventbus.WithQueueCapacity(capacity))
				disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Millisecond); return nil })
				var want []string
				publish := func(i int) {
					want = append(want, fmt.Sprintf("mail %02d 1", i))
					mustPublish(t, bus, "a", fmt.Sprintf("%02d", i), eventbus.Key("k"))
				}
				for i := range 30 {
					publish(i)
				}
				require.Zero(t, bus.Metrics().Ledger.Accepted)
				began := startLater(t, bus)
				for i := range 30 { // some before Start returns
					publish(30 + i)
				}
				require.NoError(t, <-began)
				for i := range 30 {
					publish(60 + i)
				}
				time.Sleep(time.Minute)
				require.Equal(t, want, disk.took())
				require.EqualValues(t, 90, bus.Metrics().Ledger.Accepted)
				shutdown(t, bus)
				require.Empty(t, disk.Dump().Records)
				require.Empty(t, disk.Dump().Incoming)
			})
		})
	}
}

// The order holds also while the process publishes from several goroutines when it gets the lease.
func TestT2_TheOrderOfAKeyHoldsWhileABusGetsTheLease(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			first, _ := disk.lead(t, "mail")
			second, _ := disk.open(t, eventbus.WithStandby(), eventbus.WithQueueCapacity(8))
			disk.handles(t, second, "mail", nil)
			waits := startLater(t, second)
			done := make(chan struct{})
			for k := range 4 {
				go func() {
					for i := range 50 {
						if _, err := second.Publish(t.Context(), "a", fmt.Sprintf("%d/%02d", k, i), eventbus.Key(fmt.Sprint(k))); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Duration((i*7+seed+k)%3) * time.Millisecond)
					}
					done <- struct{}{}
				}()
			}
			time.Sleep(time.Duration(10+seed) * time.Millisecond)
			shutdown(t, first)
			require.NoError(t, <-waits)
			for range 4 {
				<-done
			}
			time.Sleep(time.Minute)
			last := map[string]string{}
			calls := disk.took()
			for _, call := range calls {
				k := call[:len("mail 0")]
				require.Less(t, last[k], call, "%v", calls)
				last[k] = call
			}
			require.Len(t, calls, 200)
			shutdown(t, second)
			require.Empty(t, disk.Dump().Records)
			require.Empty(t, disk.Dump().Incoming)
		})
	}
}

// A repetition of an id is dispatched once, whichever process left the first one, and whether it is taken in already.
func TestT2_ARepetitionOfWhatAStandbyHasLeftIsDispatchedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		second, _ := disk.standby(t, "mail")
		third, _ := disk.standby(t, "mail")
		id := eventbus.NewEventID()
		mustPublish(t, second, "a", "1", eventbus.ID(id))
		mustPublish(t, second, "a", "1", eventbus.ID(id))
		mustPublish(t, third, "a", "1", eventbus.ID(id))
		_, err := third.Publish(t.Context(), "a", "2", eventbus.ID(id))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		require.Len(t, disk.Dump().Incoming, 1)
		made := mustPublish(t, second, "a", "made") // an id of the bus
		mustPublish(t, third, "a", "made", eventbus.ID(made))

		first, _ := disk.lead(t, "mail")
		require.Equal(t, []string{"mail 1 1", "mail made 1"}, disk.took())
		for _, bus := range []*eventbus.Bus{first, second, third} {
			mustPublish(t, bus, "a", "1", eventbus.ID(id))
			mustPublish(t, bus, "a", "made", eventbus.ID(made))
			_, err := bus.Publish(t.Context(), "a", "2", eventbus.ID(id))
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		}
		time.Sleep(time.Minute)
		require.Empty(t, disk.took())
		require.EqualValues(t, 2, first.Metrics().Ledger.Accepted)
		for _, bus := range []*eventbus.Bus{second, third, first} {
			requireBalanced(t, bus)
			shutdown(t, bus)
		}
	})
}

// A tool and a standby replay a letter. The bus with the lease takes the replay in.
func TestT2_AReplayIsTakenIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t)
		fails := true
		disk.handles(t, first, "mail", func(payload string, _ int) error {
			if fails {
				return eventbus.Permanent(errBoom)
			}
			return nil
		})
		disk.handles(t, first, "audit", nil)
		require.NoError(t, first.Start(t.Context()))
		for _, payload := range []string{"1", "2", "3"} {
			mustPublish(t, first, "a", payload)
		}
		disk.took()
		fails = false
		all := letters(t, first) // newest first
		standby, _ := disk.standby(t, "mail", "audit", "third")
		tool := disk.tool(t)
		require.NoError(t, tool.DLQ().Replay(t.Context(), all[2].ID))
		require.ErrorIs(t, standby.DLQ().Replay(t.Context(), all[2].ID), eventbus.ErrNotFound)
		require.NoError(t, standby.DLQ().Replay(t.Context(), all[1].ID))
		time.Sleep(250 * time.Millisecond)
		require.Equal(t, []string{"mail 1 1", "audit 1 1", "mail 2 1", "audit 2 1"}, disk.took())
		l := first.Metrics().Ledger
		require.EqualValues(t, 2, l.Replays)
		requireBalanced(t, first)
		requireBalanced(t, tool)
		shutdown(t, first)

		require.NoError(t, tool.DLQ().Replay(t.Context(), all[0].ID)) // nobody has the lease
		info := onlyDispatch(t, tool, all[0].Event.ID)
		require.Equal(t, eventbus.DispatchIncoming, info.State)
		require.Equal(t, 1, info.Replays)
		require.NoError(t, standby.Start(t.Context()))
		require.Equal(t, []string{"mail 3 1", "audit 3 1"}, disk.took(), "a replay has the targets of its letter, and not third")
		require.Empty(t, letters(t, standby))
		shutdown(t, tool)
		shutdown(t, standby)
		require.Empty(t, disk.Dump().Records)
	})
}

// The gauge of the store counts what waits to be taken in. Event finds it, and Cancel removes it, also while no bus runs.
func TestT4_WhatWaitsIsFoundAndCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		tool := disk.tool(t)
		given := eventbus.ID(eventbus.NewEventID())
		id := mustPublish(t, bus, "a", "1", given, eventbus.After(time.Hour))
		now := mustPublish(t, tool, "a", "2")
		require.EqualValues(t, 2, bus.Metrics().Store.Incoming)
		for _, from := range []*eventbus.Bus{bus, tool} {
			info := onlyDispatch(t, from, id)
			require.Equal(t, eventbus.DispatchIncoming, info.State)
			require.Equal(t, []string{"mail"}, info.Targets)
			require.True(t, info.InStore)
			info = onlyDispatch(t, from, now)
			require.Equal(t, eventbus.DispatchIncoming, info.State)
			require.Empty(t, info.Targets)
		}
		require.NoError(t, cancelEvent(t.Context(), bus, now))
		require.NoError(t, cancelEvent(t.Context(), tool, id, eventbus.By("ann")))
		requireNothingLeft(t, cancelEvent(t.Context(), bus, id))
		require.Equal(t, "ann", must(bus.Event(t.Context(), id)).Settled[0].EndedBy)
		require.Equal(t, "ann", audit(t, bus, eventbus.AuditQuery{})[0].By)
		require.Equal(t, id, mustPublish(t, bus, "a", "again", given, eventbus.After(time.Minute)), "the id can be given again")

		require.NoError(t, bus.Start(t.Context()))
		require.Zero(t, bus.Metrics().Store.Incoming)
		time.Sleep(2 * time.Hour)
		require.Equal(t, []string{"mail again 1"}, disk.took())
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// When a bus cancels while the other one takes the event in, the event is cancelled or handled.
func TestT4_CancelWhileTheEventIsTakenIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		tool := disk.tool(t)
		cancelled := 0
		for i := range 100 {
			id := mustPublish(t, tool, "a", fmt.Sprint(i), eventbus.After(time.Hour))
			if i%2 == 0 {
				synctest.Wait() // it is taken in
			}
			require.NoError(t, cancelEvent(t.Context(), tool, id), "%d", i)
			cancelled++
		}
		mustPublish(t, tool, "a", "last")
		time.Sleep(2 * time.Hour)
		require.Equal(t, []string{"mail last 1"}, disk.took())
		requireBalanced(t, first)
		require.Empty(t, disk.Dump().Incoming)
		require.Empty(t, disk.Dump().Records)
		shutdown(t, tool)
		shutdown(t, first)
	})
}

// Of a Cancel and the bus that takes an event in, one gets it, also if it is not scheduled.
func TestT4_CancelOrTakeIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		disk := newDisk(storetest.WithFaults(func(n int, _ *driver.Batch) storetest.Fault {
			return storetest.Fault{Delay: time.Duration(n%7) * time.Millisecond}
		}))
		first, _ := disk.lead(t, "mail")
		tool := disk.tool(t)
		cancelled := 0
		for i := range n {
			id := mustPublish(t, tool, "a", fmt.Sprint(i))
			time.Sleep(time.Duration(i%5) * time.Millisecond)
			if err := cancelEvent(t.Context(), tool, id); err == nil {
				cancelled++
			} else {
				requireNothingLeft(t, err)
			}
		}
		time.Sleep(time.Hour)
		handled := len(disk.took())
		require.Equal(t, n, handled+cancelled, "%d were handled, %d cancelled", handled, cancelled)
		require.Positive(t, cancelled)
		require.Empty(t, letters(t, tool))
		require.Empty(t, disk.Dump().Incoming)
		require.Empty(t, disk.Dump().Records)
		requireBalanced(t, first)
		shutdown(t, tool)
		shutdown(t, first)
	})
}

// At the bound, a standby refuses, and the bus with the lease takes nothing in. There is room again as events settle.
func TestT4_MaxUnsettledOnAStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithMaxUnsettled(most))
		release := make(chan struct{}, 100)
		disk.handles(t, first, "mail", func(string, int) error { <-release; return nil }, eventbus.Timeout(time.Hour))
		require.NoError(t, first.Start(t.Context()))
		second, _ := disk.open(t, eventbus.WithStandby(), eventbus.WithMaxUnsettled(most)) // it would wait, if it had the lease
		disk.handles(t, second, "mail", nil)
		unbounded := disk.tool(t)
		for i := range most {
			mustPublish(t, second, "a", fmt.Sprint(i))
			settleWorkers()
		}
		_, err := second.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		_, err = second.PublishBatch(t.Context(), []eventbus.Publication{{Type: "a", Payload: "x"}})
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		require.Len(t, disk.took(), most)
		mustPublish(t, unbounded, "a", "3")
		time.Sleep(time.Minute)
		require.Len(t, disk.Dump().Incoming, 1, "the bus with the lease takes in no more than it may have")
		require.Empty(t, disk.took())

		release <- struct{}{}
		settleWorkers()
		require.Equal(t, []string{"mail 3 1"}, disk.took())
		require.Empty(t, disk.Dump().Incoming)
		_, err = second.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		release <- struct{}{}
		settleWorkers()
		mustPublish(t, second, "a", "4")
		settleWorkers()
		require.Equal(t, []string{"mail 4 1"}, disk.took())
		close(release)
		synctest.Wait()
		requireBalanced(t, first)
		shutdown(t, second)
		shutdown(t, unbounded)
		shutdown(t, first)
	})
}

// A publisher without a matching subscription, too, is refused at the bound: the other bus may have some.
func TestT4_MaxUnsettledCountsEventsWithoutTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(2))
		mustPublish(t, bus, "a", "1")
		mustPublish(t, bus, "a", "2")
		_, err := bus.Publish(t.Context(), "a", "3")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		shutdown(t, bus)
	})
}

// Drain waits for what no bus has taken in, and not for what is scheduled.
func TestT4_DrainWaitsForWhatIsTakenInLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(4))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Second); return nil }, eventbus.Concurrency(1))
		mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		require.NoError(t, bus.Drain(t.Context()))
		for i := range 20 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		drained := make(chan error, 1)
		go func() { drained <- bus.Drain(t.Context()) }()
		time.Sleep(time.Minute)
		requireBlocked(t, drained)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, <-drained)
		require.Len(t, disk.took(), 20)
		require.EqualValues(t, 20, bus.Metrics().Ledger.Handled)
		shutdown(t, bus)
	})
}

// What a process has published for later is taken in as scheduled, and is due on time, whoever has the lease then.
func TestT2_AScheduledEventOfAStandbyIsDueOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		second, _ := disk.standby(t, "mail")
		mustPublish(t, second, "a", "1", eventbus.After(time.Minute), eventbus.Key("k"))
		mustPublish(t, second, "a", "2", eventbus.After(time.Hour), eventbus.Key("k"))
		time.Sleep(2 * time.Minute)
		first, _ := disk.lead(t, "mail")
		require.Equal(t, []string{"mail 1 1"}, disk.took(), "it was due before a bus could take it in")
		require.Equal(t, driver.Scheduled, disk.Dump().Records[0].State)
		waits := startLater(t, second)
		disk.crash(first)
		require.NoError(t, <-waits)
		time.Sleep(57 * time.Minute)
		require.Empty(t, disk.took())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 2 1"}, disk.took())
		shutdown(t, second)
	})
}

// A handler that publishes exceeds the bound, also while other events wait for room to be taken in: it would wait for itself.
func TestT4_AHandlerExceedsTheBoundWhileEventsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		tool := disk.tool(t)
		for i := range 3 {
			mustPublish(t, tool, "a", fmt.Sprint(i), eventbus.Key("k"))
		}
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1))
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			r, err := bus.PublishAndWait(ctx, "b", "inner")
			disk.note("%v", r.Outcome)
			return err
		}, eventbus.Named("outer"), eventbus.Timeout(time.Minute))
		mustSubscribe(t, bus, "b", ok, eventbus.Named("inner"))
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Second)
		require.Equal(t, []string{"handled", "handled", "handled"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// It overtakes none of its key that the process has left before.
func TestT4_AHandlerThatExceedsTheBoundKeepsTheOrderOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1))
		disk.handles(t, bus, "mail", nil)
		mustSubscribe(t, bus, "start", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "a", "last", eventbus.Key("k"))
			return err
		}, eventbus.Named("outer"), eventbus.Timeout(time.Minute))
		batch := []eventbus.Publication{{Type: "start", Payload: "start"}}
		for i := range 5 {
			batch = append(batch, eventbus.Publication{Type: "a", Payload: fmt.Sprint(i), Options: []eventbus.PublishOption{eventbus.Key("k")}})
		}
		_, err := bus.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail start 1", "mail 0 1", "mail 1 1", "mail 2 1", "mail 3 1", "mail 4 1", "mail last 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}
