package contracttest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// standby opens a bus with WithStandby that handles every event under the given names.
func (d *disk) standby(t *testing.T, names ...string) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	bus, logs := d.open(t, eventbus.WithStandby())
	for _, name := range names {
		d.handles(t, bus, name, nil)
	}
	return bus, logs
}

// lead opens a bus as standby does, and starts it. No other bus has the lease.
func (d *disk) lead(t *testing.T, names ...string) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	bus, logs := d.standby(t, names...)
	require.NoError(t, bus.Start(t.Context()))
	synctest.Wait()
	return bus, logs
}

// requireLease requires that a bus made by open has the lease, or that it has not.
func (d *disk) requireLease(t *testing.T, bus *eventbus.Bus, want bool) {
	t.Helper()
	require.Equal(t, want, d.storeOf(bus).Lease().IsHeld())
}

func requireBlocked(t *testing.T, began <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-began:
		require.FailNow(t, "Start has returned", "%v", err)
	default:
	}
}

func TestS6_StartOfAStandbyWaitsUntilTheOtherBusShutsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := disk.standby(t, "mail")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, second.Start(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began), "ctx bounds the wait")
		disk.requireLease(t, second, false)

		waits := startLater(t, second)
		time.Sleep(time.Hour)
		requireBlocked(t, waits)
		require.ErrorIs(t, second.Start(t.Context()), eventbus.ErrAlreadyStarted)
		mustPublish(t, first, "a", "1")
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		require.NoError(t, first.Subscription("mail").Pause())
		mustPublish(t, first, "a", "2")
		mustPublish(t, first, "a", "3", eventbus.After(time.Minute))
		shutdown(t, first)
		ended := time.Now()
		require.NoError(t, <-waits)
		require.LessOrEqual(t, time.Since(ended), 500*time.Millisecond)
		require.True(t, metricsOf(t, second, "mail").Paused)
		require.NoError(t, second.Subscription("mail").Resume())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 2 1", "mail 3 1"}, disk.took())
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
		require.EqualValues(t, 2, second.Metrics().Ledger.Claimed)
	})
}

func TestS6_AStandbyTakesOverWhenTheProcessOfTheOtherBusEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithStandby())
		slow(t, first, "mail")
		second, logs := disk.standby(t, "mail")
		third, others := disk.standby(t, "mail")
		began, waits := startLater(t, second), startLater(t, third)
		for _, payload := range []string{"0", "1", "2"} {
			mustPublish(t, first, "a", payload, eventbus.Key("k"))
		}
		mustPublish(t, second, "a", "3", eventbus.Key("k"))
		synctest.Wait()
		disk.crash(first)
		ended := time.Now()
		require.NoError(t, <-began)
		require.LessOrEqual(t, time.Since(ended), 500*time.Millisecond)
		require.Equal(t, []string{"mail 0 1", "mail 1 1", "mail 2 1", "mail 3 1"}, disk.took())
		require.EqualValues(t, 4, logs.FilterMessage("last process ended without shutdown").All()[0].ContextMap()["crashed_events"])
		requireBlocked(t, waits)
		shutdown(t, second)
		require.NoError(t, <-waits)
		noCrashEntry(t, others)
		shutdown(t, third)
		require.Empty(t, disk.Dump().Records)
	})
}

func TestS6_StartWithoutWithStandbyIsErrNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := disk.open(t)
		disk.handles(t, second, "mail", nil)
		for range 2 { // it can be called again
			began := time.Now()
			require.ErrorIs(t, second.Start(t.Context()), eventbus.ErrNoLease)
			require.LessOrEqual(t, time.Since(began), time.Second)
		}
		_, err := second.PublishAndWait(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrNotStarted)
		shutdown(t, first)
		require.NoError(t, second.Start(t.Context()))
		mustPublish(t, second, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, second)
	})
}

// A tool holds the lease while it carries out a directive. That is no reason for Start to fail.
func TestS6_StartWaitsForAToolThatHoldsTheLeaseForACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		tool := disk.spy(t, &spyStore{before: func(method string) {
			if method == "Requests" {
				time.Sleep(500 * time.Millisecond)
			}
		}}, eventbus.WithoutHandlers())
		paused := make(chan error, 1)
		go func() { paused <- tool.Subscription("mail").Pause() }()
		synctest.Wait()
		bus, logs := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, <-paused)
		noCrashEntry(t, logs)
		require.True(t, metricsOf(t, bus, "mail").Paused)
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

func TestS6_PublishAndWaitOnAStandbyAcceptsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		id := eventbus.NewEventID()
		r, err := second.PublishAndWait(t.Context(), "a", "x", eventbus.ID(id))
		require.ErrorIs(t, err, eventbus.ErrNotStarted)
		require.True(t, r.ID.IsZero())
		time.Sleep(time.Second)
		require.Empty(t, disk.took())
		require.Empty(t, disk.Dump().Incoming)
		require.Empty(t, disk.Dump().Remembered)
		shutdown(t, first)
		require.NoError(t, <-waits)
		r, err = second.PublishAndWait(t.Context(), "a", "x", eventbus.ID(id))
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, r.Outcome)
		shutdown(t, second)
	})
}

// The bus with the lease does what a standby publishes, schedules, cancels and orders, within 250 ms.
func TestS6_AStandbyPublishesSchedulesCancelsAndPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		within := func(do func()) {
			t.Helper()
			began := time.Now()
			do()
			synctest.Wait() // the answer is committed before the bus acts
			require.LessOrEqual(t, time.Since(began), 250*time.Millisecond)
		}
		within(func() { mustPublish(t, second, "a", "1") })
		time.Sleep(250 * time.Millisecond)
		require.Equal(t, []string{"mail 1 1"}, disk.took())

		later := mustPublish(t, second, "a", "2", eventbus.After(time.Hour))
		never := mustPublish(t, second, "a", "3", eventbus.After(time.Hour))
		time.Sleep(250 * time.Millisecond)
		require.Len(t, disk.Dump().Records, 2)
		status, err := second.Event(t.Context(), later)
		require.NoError(t, err)
		require.Equal(t, eventbus.DispatchScheduled, status.Dispatches[0].State)
		within(func() { require.NoError(t, cancelEvent(t.Context(), second, never, eventbus.By("ann"))) })
		requireNothingLeft(t, cancelEvent(t.Context(), second, never))
		require.Equal(t, "ann", audit(t, first, eventbus.AuditQuery{})[0].By)

		within(func() { require.NoError(t, second.Subscription("mail").Pause(eventbus.By("bob"))) })
		require.True(t, metricsOf(t, first, "mail").Paused)
		require.True(t, metricsOf(t, second, "mail").Paused)
		time.Sleep(2 * time.Hour)
		require.Empty(t, disk.took())
		within(func() { require.NoError(t, second.Subscription("mail").Resume()) })
		require.Equal(t, []string{"mail 2 1"}, disk.took())
		within(func() { require.NoError(t, second.Subscription("mail").Trip()) })
		require.Equal(t, eventbus.CircuitOpen, metricsOf(t, first, "mail").Circuit)
		requireBlocked(t, waits)
		require.Zero(t, second.Metrics().Ledger.Accepted, "the bus that takes an event in counts it")
		requireBalanced(t, second)
		shutdown(t, first)
		require.NoError(t, <-waits)
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
	})
}

// The end of a subscription of a standby is no end of the events that the bus with the lease has for the name.
func TestS6_UnsubscribeOnAStandbyMakesNoLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		require.NoError(t, first.Subscription("mail").Pause())
		second, _ := disk.standby(t, "mail", "audit")
		mustPublish(t, first, "a", "1")
		mustPublish(t, second, "a", "2")
		synctest.Wait()
		second.Subscription("mail").Unsubscribe()
		time.Sleep(time.Minute)
		require.Empty(t, letters(t, first))
		require.NoError(t, first.Subscription("mail").Resume())
		require.Equal(t, []string{"mail 1 1", "mail 2 1"}, disk.took())
		require.Equal(t, map[string]int64{"audit": 1}, first.Metrics().Orphaned, "the publisher has audit, and this bus has not")
		shutdown(t, first)
		require.NoError(t, second.Start(t.Context()))
		require.Equal(t, []string{"audit 2 1"}, disk.took())
		require.Empty(t, letters(t, second))
		shutdown(t, second)
	})
}

// A bus hands the lease over to a standby that started later with all of its subscriptions and more.
func TestS6_TheLeaseIsHandedOverToMoreSubscriptions(t *testing.T) {
	for name, of := range map[string][]string{"more": {"mail", "audit"}, "equal": {"mail"}, "other": {"audit", "third"}, "fewer": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				first, _ := disk.lead(t, "mail")
				disk.handles(t, first, "late", nil) // one made after Start does not count
				time.Sleep(time.Second)
				second, _ := disk.standby(t, of...)
				waits := startLater(t, second)
				time.Sleep(time.Second)
				if name != "more" {
					requireBlocked(t, waits)
					time.Sleep(time.Hour)
					requireBlocked(t, waits)
					disk.requireLease(t, first, true)
					shutdown(t, first)
					require.NoError(t, <-waits)
					shutdown(t, second)
					return
				}
				require.NoError(t, <-waits)
				disk.requireLease(t, first, false)
				_, err := first.PublishAndWait(t.Context(), "a", "x")
				require.ErrorIs(t, err, eventbus.ErrNotStarted)
				mustPublish(t, first, "a", "1")
				require.Equal(t, []string{"mail 1 1", "audit 1 1"}, disk.took())
				time.Sleep(time.Hour)
				disk.requireLease(t, second, true)
				shutdown(t, second)
				time.Sleep(time.Second)
				disk.requireLease(t, first, true)
				require.Equal(t, []string{"late 1 1"}, disk.took(), "it was parked, because the other bus lacks late")
				requireBalanced(t, first)
				shutdown(t, first)
				require.Empty(t, disk.Dump().Records)
			})
		})
	}
}

// It does so once for each standby. Otherwise two buses could hand it back and forth.
func TestS6_TheLeaseIsHandedOverOncePerStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.lead(t, "mail")
		second, _ := disk.standby(t, "mail", "audit")
		require.NoError(t, second.Start(t.Context()))
		disk.requireLease(t, first, false)
		time.Sleep(time.Minute) // the first one waits for the lease, and leaves it to no other one any more
		disk.LoseLease(false)
		time.Sleep(time.Minute)
		disk.requireLease(t, first, true)
		disk.requireLease(t, second, false)
		time.Sleep(time.Hour)
		disk.requireLease(t, first, true)

		third, _ := disk.standby(t, "mail", "audit") // a later process has another chance
		waits := startLater(t, third)
		time.Sleep(time.Second)
		disk.LoseLease(false, disk.storeOf(second))
		shutdown(t, second)
		time.Sleep(time.Minute)
		require.NoError(t, <-waits)
		disk.requireLease(t, third, true)
		shutdown(t, first)
		shutdown(t, third)
	})
}

// The lease is handed over when the last running call has ended, and no call starts before that.
func TestS6_TheHandOverWaitsForRunningCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithStandby(), eventbus.WithConcurrency(1))
		disk.handles(t, first, "mail", func(string, int) error { time.Sleep(10 * time.Second); return nil })
		require.NoError(t, first.Start(t.Context()))
		for _, payload := range []string{"1", "2", "3"} {
			mustPublish(t, first, "a", payload)
		}
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		second, _ := disk.standby(t, "mail", "audit")
		waits := startLater(t, second)
		time.Sleep(9 * time.Second)
		requireBlocked(t, waits)
		mustPublish(t, first, "a", "4")
		require.NoError(t, <-waits)
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"mail 2 1", "mail 3 1", "mail 4 1", "audit 4 1"}, disk.took())
		requireBalanced(t, first)
		l := first.Metrics().Ledger
		require.EqualValues(t, 1, l.Handled)
		require.Equal(t, l.Accepted-1, l.HandedOver)
		shutdown(t, first)
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
	})
}

// Of two standbys with more subscriptions that start at once, one gets the lease, and everything that the other bus had.
func TestS6_TwoStandbysWithMoreSubscriptionsStartAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		spy := &spyStore{before: func(method string) {
			if method == "end of Catalogs" {
				time.Sleep(time.Second) // it has seen both when it hands over
			}
		}}
		first := disk.spy(t, spy, eventbus.WithStandby(), eventbus.WithConcurrency(1))
		var cancelled error
		mustSubscribe(t, first, "*", eventbus.Typed(func(ctx context.Context, payload string) error {
			select {
			case <-time.After(10 * time.Second):
			case <-ctx.Done():
				cancelled = context.Cause(ctx)
			}
			disk.note("%s by the first", payload)
			return nil
		}), eventbus.Named("mail"))
		require.NoError(t, first.Start(t.Context()))
		for _, payload := range []string{"1", "2", "3"} {
			mustPublish(t, first, "a", payload)
		}
		time.Sleep(time.Second)
		second, _ := disk.standby(t, "mail", "audit")
		third, _ := disk.standby(t, "mail", "audit")
		startLater(t, second)
		startLater(t, third)
		time.Sleep(time.Minute)
		require.NoError(t, cancelled, "the running call ends before the lease is handed over")
		require.ElementsMatch(t, []string{"1 by the first", "mail 2 1", "mail 3 1"}, disk.took())
		require.False(t, spy.Store.Lease().IsHeld())
		for _, bus := range []*eventbus.Bus{first, second, third} {
			shutdown(t, bus)
		}
		require.Empty(t, disk.Dump().Records)
	})
}

// The standby is gone before the last running call of the active bus has ended. The bus dispatches again, under another
// lease: it has dropped from memory what the old one had.
func TestS6_AHandOverToAStandbyThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, logs := disk.open(t, eventbus.WithStandby(), eventbus.WithConcurrency(1))
		mustSubscribe(t, first, "*", eventbus.Typed(func(_ context.Context, payload string) error {
			time.Sleep(10 * time.Second)
			disk.note("%s", payload)
			return nil
		}), eventbus.Named("mail"))
		require.NoError(t, first.Start(t.Context()))
		for _, payload := range []string{"1", "2", "3"} {
			mustPublish(t, first, "a", payload)
		}
		time.Sleep(time.Second)
		second, _ := disk.standby(t, "mail", "audit")
		waits := startLater(t, second)
		time.Sleep(5 * time.Second)
		require.Len(t, logs.FilterMessage("lease handed over to a standby with more subscriptions").All(), 1)
		shutdown(t, second)
		require.ErrorIs(t, <-waits, eventbus.ErrShutdown)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"1", "2", "3"}, disk.took())
		shutdown(t, first)
		require.Empty(t, disk.Dump().Records)
	})
}

// A bus whose lease is lost is a standby: its calls are cancelled, and it dispatches again when it has the lease.
func TestS6_ABusWhoseLeaseIsLostIsAStandby(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(map[bool]string{true: "crash", false: "free"}[crash], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				first, logs := disk.open(t, eventbus.WithStandby())
				mustSubscribe(t, first, "*", eventbus.Typed(func(ctx context.Context, payload string) error {
					disk.note("first %s", payload)
					select {
					case <-ctx.Done():
						disk.note("%v", context.Cause(ctx) == eventbus.ErrLeaseLost) //nolint:errorlint // it is the cause itself
						return ctx.Err()
					case <-time.After(10 * time.Second):
						return nil
					}
				}), eventbus.Named("mail"), eventbus.Timeout(time.Minute))
				require.NoError(t, first.Start(t.Context()))
				second, _ := disk.standby(t, "mail")
				waits := startLater(t, second)
				mustPublish(t, first, "a", "1", eventbus.Key("k"))
				mustPublish(t, first, "a", "2", eventbus.Key("k"))
				mustPublish(t, first, "a", "3", eventbus.After(time.Hour))
				require.Equal(t, []string{"first 1"}, disk.took())
				result := make(chan error, 1)
				go func() {
					r, err := first.PublishAndWait(context.Background(), "a", "4", eventbus.Key("k"))
					if r.Outcome != eventbus.Stored || r.ID.IsZero() {
						t.Errorf("%+v", r)
					}
					result <- err
				}()
				synctest.Wait()

				disk.LoseLease(crash)
				require.NoError(t, <-waits)
				time.Sleep(time.Second)
				require.ErrorIs(t, <-result, eventbus.ErrLeaseLost)
				require.Equal(t, 1, logs.FilterMessageSnippet("lease lost").Len())
				calls := disk.took()
				require.Contains(t, calls, "true")
				require.Subset(t, calls, []string{"mail 1 1", "mail 2 1", "mail 4 1"})
				require.Len(t, calls, 4)
				requireBalanced(t, first)
				require.EqualValues(t, 4, first.Metrics().Ledger.HandedOver)
				_, err := first.PublishAndWait(t.Context(), "a", "x")
				require.ErrorIs(t, err, eventbus.ErrNotStarted)

				mustPublish(t, first, "a", "5")
				time.Sleep(time.Second)
				require.Equal(t, []string{"mail 5 1"}, disk.took())
				shutdown(t, second)
				time.Sleep(time.Second)
				disk.requireLease(t, first, true)
				mustPublish(t, first, "a", "6")
				require.Equal(t, []string{"first 6"}, disk.took())
				time.Sleep(time.Hour)
				require.Equal(t, []string{"first 3"}, disk.took())
				time.Sleep(time.Minute)
				require.Empty(t, letters(t, first))
				shutdown(t, first)
				require.Empty(t, disk.Dump().Records)
				require.Empty(t, disk.Dump().Incoming)
			})
		})
	}
}

// A publication whose commit is refused because the lease is lost is left in incoming, and succeeds.
func TestS6_APublicationSucceedsWhileTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		lost := false
		var first *eventbus.Bus
		spy := &spyStore{}
		spy.submit = func(b *driver.Batch, done func(error)) bool {
			if len(b.New) > 0 && !lost {
				lost = true
				disk.LoseLease(false)
			}
			return false
		}
		first = disk.spy(t, spy, eventbus.WithStandby())
		disk.handles(t, first, "mail", nil)
		require.NoError(t, first.Start(t.Context()))
		given := eventbus.ID(eventbus.NewEventID())
		mustPublish(t, first, "a", "1", given)
		mustPublish(t, first, "a", "1", given)
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail 1 1"}, disk.took())

		lost = false
		ids, err := first.PublishBatch(t.Context(), []eventbus.Publication{{Type: "a", Payload: "2"}, {Type: "a", Payload: "3"}})
		require.NoError(t, err)
		require.Len(t, ids, 2)
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"mail 2 1", "mail 3 1"}, disk.took())

		lost = false
		r, err := first.PublishAndWait(t.Context(), "a", "4")
		if err != nil { // the bus may have the lease again before the event is left
			require.ErrorIs(t, err, eventbus.ErrLeaseLost)
			require.Equal(t, eventbus.Stored, r.Outcome)
		}
		require.False(t, r.ID.IsZero())
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail 4 1"}, disk.took())
		requireBalanced(t, first)
		shutdown(t, first)
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Incoming)
	})
}

// A publisher that waits for room at the bound is no victim of the loss of the lease: its event is left in incoming, or
// refused because the store is full.
func TestS6_APublisherThatWaitsForRoomSurvivesALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Minute); return nil })
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "first")
		ended := make(chan error, 1)
		go func() { _, err := bus.Publish(t.Context(), "a", "second"); ended <- err }()
		time.Sleep(time.Second)
		disk.LoseLease(false)
		time.Sleep(time.Second)
		err := <-ended
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		time.Sleep(time.Hour)
		require.NotEmpty(t, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// The loss of a lease that a bus holds for a request makes it no standby.
func TestS6_AToolThatLosesTheLeaseIsNoStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tool *eventbus.Bus
		var lose atomic.Bool
		disk := newDisk()
		disk.Model = storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Directives) > 0 && lose.Swap(false) {
				disk.LoseLease(true)
			}
			return f
		}))
		tool = disk.tool(t)
		lose.Store(true)
		require.NoError(t, tool.Subscription("mail").Pause(), "it is asked again")
		bus, _ := disk.open(t)
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()), "the tool does not hold the lease")
		require.True(t, metricsOf(t, bus, "mail").Paused)
		require.NoError(t, mail.Resume())
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// The fencing token of a delivery grows with each lease, and there is none in memory.
func TestS6_TheFencingTokenGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var fences []int64
		var seen sync.Mutex
		handler := func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			seen.Lock()
			defer seen.Unlock()
			fences = append(fences, d.Fence)
			return nil
		}
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "*", handler, eventbus.Named("mail"))
		mustPublish(t, bus, "a", "before Start")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "direct")
		mustPublish(t, bus, "a", "scheduled", eventbus.After(time.Minute))
		time.Sleep(time.Hour)
		disk.LoseLease(false)
		time.Sleep(time.Minute)
		mustPublish(t, bus, "a", "again")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, fences, 4)
		require.Positive(t, fences[0])
		require.Equal(t, []int64{fences[0], fences[0], fences[0]}, fences[:3])
		require.Greater(t, fences[3], fences[0])
		shutdown(t, bus)

		memory, _ := startBus(t)
		mustSubscribe(t, memory, "*", handler)
		mustPublish(t, memory, "a", nil)
		synctest.Wait()
		require.Zero(t, fences[4])
		shutdown(t, memory)
	})
}

// The catalog lists the buses that use the store, and which of them has the lease.
func TestS6_TheCatalogListsTheBuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, err := eventbus.New()
		require.NoError(t, err)
		require.Empty(t, catalog(t, memory).Buses)
		require.NoError(t, memory.Shutdown(t.Context()))

		disk := newDisk()
		bus, _ := disk.open(t)
		start(t, bus)
		time.Sleep(2 * time.Second)
		standby, _ := disk.open(t, eventbus.WithStandby())
		_ = startLater(t, standby)
		time.Sleep(time.Minute)
		tool, _ := disk.open(t, eventbus.WithoutHandlers())
		for _, asked := range []*eventbus.Bus{bus, standby, tool} {
			buses := catalog(t, asked).Buses
			require.Len(t, buses, 2)
			require.Equal(t, catalog(t, bus).Instance, buses[0].Instance)
			require.True(t, buses[0].Active)
			require.Equal(t, catalog(t, standby).Instance, buses[1].Instance)
			require.False(t, buses[1].Active)
			require.Less(t, time.Since(buses[1].Seen), 16*time.Second)
		}
		shutdown(t, tool)
	})
}

// Start loses the lease while it looks for incoming events, and fails. An event that is published then waits in the store. After the next
// Start, later events of its key do not overtake it.
func TestS6_AStartAfterAFailedOneKeepsTheOrderOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := &spyStore{}
		atIncoming := func(do func()) {
			store.before = func(method string) {
				if method == "Incoming" {
					store.before = nil
					do()
					time.Sleep(time.Second)
				}
			}
		}
		bus := disk.spy(t, store)
		disk.handles(t, bus, "mail", nil)
		atIncoming(func() { disk.LoseLease(false) })
		require.ErrorIs(t, bus.Start(t.Context()), eventbus.ErrNoLease)
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		var published sync.WaitGroup
		atIncoming(func() {
			published.Go(func() { mustPublish(t, bus, "a", "2", eventbus.Key("k")) })
		})
		require.NoError(t, bus.Start(t.Context()))
		published.Wait()
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 1 1", "mail 2 1"}, disk.took())
		shutdown(t, bus)
	})
}
