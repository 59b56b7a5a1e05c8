package contracttest

import (
	"context"
	"errors"
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

func TestD7_AnIndeterminateEventWithoutTargetsSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) storetest.Fault {
			return storetest.Fault{Delay: time.Second}
		}))
		bus, _ := disk.open(t)
		require.NoError(t, bus.Start(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := bus.Publish(ctx, "a", "x", eventbus.ID(eventbus.NewEventID()))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		shutdown(t, bus)
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced(), "%+v", l)
		require.EqualValues(t, 1, l.Unrouted)
	})
}

func TestD7_CancelReportsAFailureOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, _ *driver.Batch) (f storetest.Fault) {
			if n == 3 { // 1 is that of the catalog
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "a", "x", eventbus.After(time.Hour))
		require.Error(t, cancelEvent(t.Context(), bus, id))
		time.Sleep(time.Minute)
		require.NoError(t, cancelEvent(t.Context(), bus, id))
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

func TestD7_PublishReturnsWhenTheStoreHasTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) storetest.Fault {
			return storetest.Fault{Delay: time.Second}
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute) // the catalog is recorded
		began := time.Now()
		mustPublish(t, bus, "a", "x")
		require.Equal(t, time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := bus.Publish(ctx, "a", "y")
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, err, &unknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, unknown.ID.IsZero())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1", "mail y 1"}, disk.took())
		shutdown(t, bus)
	})
}

// An event is due before the store has it: its publisher, or the operator who replays it, waits.
func TestD7_AScheduledEventMayBeDueBeforeItsCommit(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.NoFault, storetest.FailBefore, storetest.FailAfter} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := true
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					if len(b.New) > 0 && first {
						first = false
						f = storetest.Fault{Kind: kind, Delay: 10 * time.Second}
					}
					return f
				}))
				bus, _ := disk.open(t)
				disk.handles(t, bus, "mail", nil)
				require.NoError(t, bus.Start(t.Context()))
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				_, err := bus.Publish(ctx, "a", "x", eventbus.After(time.Second))
				var unknown *eventbus.IndeterminateError
				require.ErrorAs(t, err, &unknown)
				mustPublish(t, bus, "a", "x", eventbus.ID(unknown.ID), eventbus.After(time.Second)) // waits for the first
				time.Sleep(time.Minute)
				require.Equal(t, []string{"mail x 1"}, disk.took())
				require.Empty(t, disk.Dump().Records)
				shutdown(t, bus)
			})
		})
	}
}

func TestL3_AScheduledEventMayBeDueBeforeItsReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			return storetest.Fault{Delay: time.Duration(len(b.Take)) * 10 * time.Second}
		}))
		bus, _ := disk.open(t)
		var dies atomic.Bool
		dies.Store(true)
		disk.handles(t, bus, "mail", func(string, int) error {
			if dies.Load() {
				return eventbus.Permanent(errDead)
			}
			time.Sleep(time.Second) // the store claims it meanwhile
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Minute)
		dies.Store(false)
		l, err := disk.Open().Letter(t.Context(), driver.ID(letters(t, bus)[0].ID))
		require.NoError(t, err)
		id, due := eventbus.LetterID(eventbus.NewEventID()), time.Now().Add(time.Second).UTC() // as an import may have it
		l.ID, l.Details = driver.ID(id), edited(t, l.Details, map[string]any{"id": id, "due": due})
		done := make(chan error, 1)
		disk.Open().Submit(&driver.Batch{Now: time.Now().UTC(), Bury: []*driver.Letter{&l}}, func(err error) { done <- err })
		require.NoError(t, <-done)
		disk.took()
		require.NoError(t, bus.DLQ().Replay(t.Context(), id))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.Empty(t, disk.Dump().Records)
		require.True(t, bus.Metrics().Ledger.Balanced(), "%+v", bus.Metrics().Ledger)
		shutdown(t, bus)
	})
}

// slowLookup is a store that takes its time to look for an event.
type slowLookup struct{ driver.Store }

func (s slowLookup) Lookup(ctx context.Context, id driver.ID) ([]*driver.Record, error) {
	time.Sleep(time.Second)
	return s.Store.Lookup(ctx, id)
}

// Beside a bus with the lease, the event of an unknown publication may have settled before the store is
// asked for it.
func TestD7_AnUnknownPublicationBesideTheBusIsRepeatedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if len(b.Leave) > 0 && fails.Load() {
				fails.Store(false)
				return storetest.Fault{Kind: storetest.FailAfter}
			}
			return storetest.Fault{}
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		beside, _ := newBus(t, eventbus.WithStore(slowLookup{disk.Open()}))
		disk.handles(t, beside, "mail", nil)
		fails.Store(true)
		_, err := beside.Publish(t.Context(), "a", "x")
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, err, &unknown)
		time.Sleep(time.Minute)
		require.Equal(t, unknown.ID, mustPublish(t, beside, "a", "x", eventbus.ID(unknown.ID)))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, beside)
		fails.Store(true)
		without, _ := newBus(t, eventbus.WithStore(slowLookup{disk.Open()}))
		_, err = without.Publish(t.Context(), "a", "y") // it has no targets here
		require.ErrorAs(t, err, &unknown)
		time.Sleep(time.Minute)
		require.Equal(t, unknown.ID, mustPublish(t, without, "a", "y", eventbus.ID(unknown.ID)))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail y 1"}, disk.took())
		shutdown(t, without)
		shutdown(t, bus)
	})
}

// The event of an unknown publication settles, and the store fails before it remembers the id.
func TestD7_AnEventInDoubtThatHasSettledIsRepeatedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		fails.Store(true)
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			switch {
			case len(b.New) > 0:
				return storetest.Fault{Delay: time.Second}
			case len(b.Remember) > 0 && fails.Load():
				fails.Store(false)
				return storetest.Fault{Kind: storetest.FailBefore}
			}
			return storetest.Fault{}
		}))
		bus := disk.spy(t, &spyStore{submit: func(b *driver.Batch, _ func(error)) bool {
			if len(b.New) == 0 && len(b.Remember) > 0 {
				time.Sleep(time.Second) // until the event has settled
			}
			return false
		}})
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := bus.Publish(ctx, "a", "x")
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, err, &unknown)
		time.Sleep(time.Minute)
		require.False(t, fails.Load())
		require.Equal(t, unknown.ID, mustPublish(t, bus, "a", "x", eventbus.ID(unknown.ID)))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, bus)
	})
}

// No event is needed for the bus to notice that its store has failed.
func TestS3_AStoreThatFailsAtAPurgeIsReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		fails.Store(true)
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if len(b.Take) > 0 && fails.Load() {
				fails.Store(false)
				return storetest.Fault{Kind: storetest.FailBefore}
			}
			return storetest.Fault{}
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(eventbus.Permanent(errDead)))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Minute)
		l := letters(t, bus)[0]
		require.Error(t, bus.DLQ().Purge(t.Context(), l.ID))
		time.Sleep(time.Minute)
		require.NoError(t, bus.DLQ().Purge(t.Context(), l.ID))
		shutdown(t, bus)
	})
}

// An event whose publisher waits was accepted: it is in no doubt after its store has failed.
func TestD7_AStoreFailureDuringTheWaitIsNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if len(b.Update) > 0 {
				return storetest.Fault{Kind: storetest.FailBefore}
			}
			return storetest.Fault{}
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", func(_ string, attempt int) error {
			if attempt == 1 && len(disk.Dump().Records) == 1 && disk.Dump().Lease == 1 {
				return errBoom // the store fails when it records the retry
			}
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		r, err := bus.PublishAndWait(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrStoreFailed)
		var unknown *eventbus.IndeterminateError
		require.NotErrorAs(t, err, &unknown)
		require.Equal(t, eventbus.Stored, r.Outcome)
		require.False(t, r.ID.IsZero())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1", "mail x 1"}, disk.took(), "it goes on")
		require.Empty(t, disk.Dump().Records)
		shutdown(t, bus)
	})
}

func TestE6_AStoreRemembersIDsAcrossACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "mail")
		id := eventbus.NewEventID()
		mustPublish(t, bus, "a", "x", eventbus.ID(id))
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, id, mustPublish(t, again, "a", "x", eventbus.ID(id)))
		require.Equal(t, []string{"mail x 1"}, disk.took())
		_, err := again.Publish(t.Context(), "a", "y", eventbus.ID(id))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		time.Sleep(eventbus.DefaultIdempotencyWindow)
		mustPublish(t, again, "a", "y", eventbus.ID(id))
		require.Equal(t, []string{"mail y 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestD7_PublishAndWaitOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(1), eventbus.WithConcurrency(1))
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			time.Sleep(time.Second)
			if payload == "dies" {
				return eventbus.Permanent(errDead)
			}
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		var waits sync.WaitGroup
		for i := range 5 { // most of them wait on the disk
			waits.Go(func() {
				r, err := bus.PublishAndWait(t.Context(), "a", fmt.Sprint(i), eventbus.After(time.Duration(i%2)*time.Minute))
				if err != nil || r.Outcome != eventbus.Handled {
					t.Error(r, err)
				}
			})
		}
		waits.Wait()
		_, err := bus.PublishAndWait(t.Context(), "a", "dies")
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		disk.took()
		shutdown(t, bus)
	})
}

// A publication whose outcome is unknown can be repeated with its id, and is accepted once.
func TestD7_AnUnknownOutcomeCanBeRepeated(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.NoFault, storetest.FailBefore, storetest.FailAfter} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				faults := 0
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
					if len(b.New) == 0 || faults > 0 {
						return storetest.Fault{}
					}
					faults++
					return storetest.Fault{Kind: kind, Delay: time.Second}
				}))
				bus, _ := disk.open(t)
				disk.handles(t, bus, "mail", nil)
				require.NoError(t, bus.Start(t.Context()))
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				_, err := bus.Publish(ctx, "a", "x")
				var unknown *eventbus.IndeterminateError
				require.ErrorAs(t, err, &unknown)
				for {
					id, err := bus.Publish(t.Context(), "a", "x", eventbus.ID(unknown.ID))
					if err == nil {
						require.Equal(t, unknown.ID, id)
						break
					}
					time.Sleep(time.Second)
				}
				time.Sleep(time.Minute)
				calls := disk.took()
				n := 0
				for _, call := range calls {
					if call == "mail x 1" {
						n++
					}
				}
				require.Equal(t, 1, n, "%v", calls)
				_, err = bus.Publish(t.Context(), "a", "y", eventbus.ID(unknown.ID))
				require.ErrorIs(t, err, eventbus.ErrDuplicateID)
				shutdown(t, bus)
			})
		})
	}
}

// The error of a batch whose outcome is unknown has the ids with which to publish it again.
func TestD7_AnUnknownBatchCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if len(b.New) > 1 && fails.Load() {
				fails.Store(false)
				return storetest.Fault{Kind: storetest.FailAfter}
			}
			return storetest.Fault{}
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		batch := []eventbus.Publication{{Type: "a", Payload: "x"}, {Type: "a", Payload: "y"}}
		fails.Store(true)
		_, err := bus.PublishBatch(t.Context(), batch)
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, err, &unknown)
		require.Len(t, unknown.IDs, 2)
		require.Equal(t, unknown.ID, unknown.IDs[0])
		for i, id := range unknown.IDs {
			batch[i].Options = append(batch[i].Options, eventbus.ID(id))
		}
		time.Sleep(time.Minute)
		ids, err := bus.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
		require.Equal(t, unknown.IDs, ids)
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"mail x 1", "mail y 1"}, disk.took())
		shutdown(t, bus)
	})
}

// The ids that a bus makes need no row in the store that holds the lease: no other process settles their events.
// The store without the lease remembers them, because the bus with the lease may.
func TestD7_MadeIDsAreRememberedOnlyWithoutTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		remembered := func(ids ...eventbus.EventID) {
			t.Helper()
			var known []eventbus.EventID
			for _, entry := range disk.Dump().Remembered {
				known = append(known, eventbus.EventID(entry.Event))
			}
			require.ElementsMatch(t, ids, known)
		}
		before := mustPublish(t, bus, "a", "before Start")
		remembered(before)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "after Start")
		remembered(before)

		beside, _ := newBus(t, eventbus.WithStore(disk.Open()))
		disk.handles(t, beside, "mail", nil)
		remembered(before, mustPublish(t, beside, "a", "beside"))
		shutdown(t, beside)
		shutdown(t, bus)
	})
}

// A batch is deferrable if nothing waits for its commit.
func TestD7_OnlyWhatNothingAwaitsIsDeferrable(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails bool
		act   func(t *testing.T, bus *eventbus.Bus)
		want  bool
	}{
		{name: "handled", want: true, act: func(t *testing.T, bus *eventbus.Bus) { mustPublish(t, bus, "a", "x") }},
		{name: "waited for", act: func(t *testing.T, bus *eventbus.Bus) {
			_, err := bus.PublishAndWait(t.Context(), "a", "x")
			require.NoError(t, err)
		}},
		{name: "with a key", act: func(t *testing.T, bus *eventbus.Bus) { mustPublish(t, bus, "a", "x", eventbus.Key("k")) }},
		{name: "dead-lettered", fails: true, act: func(t *testing.T, bus *eventbus.Bus) { mustPublish(t, bus, "a", "x") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				store := disk.Open()
				var mu sync.Mutex
				var settled []bool
				spy := &spyStore{Store: store, submit: func(b *driver.Batch, _ func(error)) bool {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case len(b.Delete) > 0:
						settled = append(settled, b.Deferrable)
					case b.Deferrable:
						t.Error("a batch that settles nothing is deferrable")
					}
					return false
				}}
				bus, _ := newBus(t, eventbus.WithStore(spy))
				var result func(string, int) error
				if c.fails {
					result = always(eventbus.Permanent(errors.New("no")))
				}
				disk.handles(t, bus, "mail", result)
				require.NoError(t, bus.Start(t.Context()))
				c.act(t, bus)
				synctest.Wait()
				mu.Lock()
				require.Equal(t, []bool{c.want}, settled)
				mu.Unlock()
				shutdown(t, bus)
			})
		})
	}
}

// An event that waits for room is accepted with the targets of its publication, of which one may have been retired since.
// Its delivery there is held, also once a new subscription has the name: the wait goes on for the others only.
func TestD7_HeldAtARetiredNameOnAStore(t *testing.T) {
	for _, c := range []struct {
		targets []string
		opts    []eventbus.Option
	}{
		{targets: []string{"mail", "crm", "stock"}},
		{targets: []string{"crm"}},
		{targets: []string{"mail", "crm", "stock"}, opts: []eventbus.Option{eventbus.WithIsolation()}},
	} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, append(c.opts, eventbus.WithQueueCapacity(1), eventbus.WithConcurrency(1), eventbus.WithMaxUnsettled(5))...)
			free := make(chan struct{})
			mustSubscribe(t, bus, "blocks", func(context.Context, eventbus.Event) error { <-free; return nil }, eventbus.Named("blocks"))
			var handled sync.Map
			subscribe := func(name string) *eventbus.Subscription {
				return mustSubscribe(t, bus, "order", eventbus.Typed(func(context.Context, string) error {
					time.Sleep(time.Second)
					handled.Store(name, true)
					return nil
				}), eventbus.Named(name))
			}
			var retired *eventbus.Subscription
			for _, name := range c.targets {
				if s := subscribe(name); name == "crm" {
					retired = s
				}
			}
			start(t, bus)
			mustPublish(t, bus, "blocks", "0")
			for range 3 {
				mustPublish(t, bus, "blocks", "1")
			}
			last := mustPublish(t, bus, "blocks", "2")
			var (
				r    eventbus.Result
				err  error
				wait sync.WaitGroup
			)
			wait.Go(func() { r, err = bus.PublishAndWait(t.Context(), "order", "o-17") })
			synctest.Wait() // for room
			require.NoError(t, retired.Detach())
			_, failed := bus.Retire(t.Context(), "crm")
			require.NoError(t, failed)
			_, failed = bus.Cancel(t.Context(), last)
			require.NoError(t, failed)
			synctest.Wait() // it is accepted
			close(free)
			time.Sleep(time.Millisecond)
			subscribe("crm")
			wait.Wait()
			require.ErrorIs(t, err, eventbus.ErrHeld)
			require.Equal(t, []string{"crm"}, r.Held)
			for _, name := range c.targets {
				_, is := handled.Load(name)
				require.Equal(t, name != "crm", is, name)
			}
			time.Sleep(time.Minute)
			_, is := handled.Load("crm")
			require.True(t, is)
			shutdown(t, bus)
		})
	}
}

// A delivery that is held under a later name than the recorded one, and that only the store has, is not awaited again when it is claimed.
func TestD7_HeldUnderALaterNameOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithIsolation(), eventbus.WithConcurrency(2), eventbus.WithQueueCapacity(10))
		free := make(chan struct{})
		mustSubscribe(t, bus, "blocks", until(free), eventbus.Named("blocks"), eventbus.Timeout(time.Hour))
		var slowEnded atomic.Bool
		mustSubscribe(t, bus, "order", func(context.Context, eventbus.Event) error {
			time.Sleep(time.Hour)
			slowEnded.Store(true)
			return nil
		}, eventbus.Named("slow"), eventbus.Timeout(2*time.Hour))
		first := mustSubscribe(t, bus, "{order,fill}", ok, eventbus.Named("crm"))
		start(t, bus)
		require.NoError(t, first.Pause())
		for range eventbus.DefaultLineCapacity + 1 { // more than memory keeps in a line
			mustPublish(t, bus, "fill", nil)
		}
		for range 20 { // more than the queue has room for: the store has the next event, too
			mustPublish(t, bus, "blocks", nil)
		}
		synctest.Wait()
		var (
			wait sync.WaitGroup
			err  error
		)
		wait.Go(func() { _, err = bus.PublishAndWait(t.Context(), "order", nil) })
		synctest.Wait()
		require.NoError(t, first.Detach())
		second := mustSubscribe(t, bus, "{order,fill}", ok, eventbus.Named("customers"), eventbus.Formerly("crm"))
		require.NoError(t, second.Pause())
		close(free)
		time.Sleep(time.Minute) // it is held, and in the store
		require.NoError(t, second.Resume())
		wait.Wait()
		require.True(t, slowEnded.Load(), "the wait ends with the last delivery")
		require.ErrorIs(t, err, eventbus.ErrHeld)
		shutdown(t, bus)
	})
}
