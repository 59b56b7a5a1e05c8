package contracttest

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// A publication whose outcome is unknown to its publisher, and the same id from a handler.
func TestD15_AnIDInDoubt(t *testing.T) {
	for _, emit := range []bool{false, true} {
		t.Run(map[bool]string{true: "Emit", false: "Publish"}[emit], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var slow atomic.Bool
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					if slow.Load() && len(b.New) == 1 && b.New[0].Type == "child" {
						f.Delay = 2 * time.Second
					}
					return f
				}))
				bus, _ := disk.open(t)
				got := noting(t, bus, "child")
				ids := make(chan eventbus.EventID, 1)
				mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) (err error) {
					id := <-ids
					if emit {
						_, err = eventbus.Emit(ctx, "child", "once", eventbus.ID(id))
					} else {
						_, err = bus.Publish(ctx, "child", "once", eventbus.ID(id))
					}
					return err
				}, eventbus.Named("emits"), eventbus.Timeout(time.Hour))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "parent", nil)
				synctest.Wait()
				slow.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := bus.Publish(ctx, "child", "once")
				var unknown *eventbus.IndeterminateError
				require.ErrorAs(t, err, &unknown)
				ids <- unknown.ID
				time.Sleep(time.Minute)
				require.Equal(t, []string{"once"}, got.all())
				shutdown(t, bus)
			})
		})
	}
}

// The events of two transactions in one call have ids of their own.
func TestD15_TwoCollectionsInOneCall(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var emitErr error
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			for i := range 2 {
				inner, collected := eventbus.CollectEmitted(ctx)
				if _, err := eventbus.Emit(inner, "child", fmt.Sprint("of transaction ", i)); err != nil {
					return err
				}
				data, err := collected()
				if err != nil {
					return err
				}
				if emitErr = eventbus.EmitCollected(ctx, data); emitErr != nil {
					return emitErr
				}
			}
			return nil
		}, eventbus.Named("emits"))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.ElementsMatch(t, []string{"of transaction 0", "of transaction 1"}, got.all(), "%v", emitErr)
	}, eventbus.WithEncodedPayloads())
}

// EmitCollected publishes the event under the id that Emit has returned.
func TestD15_CollectedIDs(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var ids []eventbus.EventID
		var got []eventbus.EventID
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			inner, collected := eventbus.CollectEmitted(ctx)
			for _, opts := range [][]eventbus.PublishOption{{eventbus.IdempotencyKey("k")}, nil} {
				id, err := eventbus.Emit(inner, "child", "c", opts...)
				if err != nil {
					return err
				}
				ids = append(ids, id)
			}
			data, err := collected()
			if err != nil {
				return err
			}
			return eventbus.EmitCollected(ctx, data)
		}, eventbus.Named("emits"))
		mustSubscribe(t, bus, "child", func(_ context.Context, e eventbus.Event) error { got = append(got, e.ID); return nil }, eventbus.Named("child"), eventbus.Concurrency(1))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.ElementsMatch(t, ids, got)
	})
}

// The outcome of a commit is unknown, in which one record went and one came.
func TestD15_ALedgerAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.New) > 0 && len(b.Delete) > 0 && !failed.Swap(true) {
				f.Kind = storetest.FailAfter
			}
			return f
		}))
		bus, _ := disk.open(t)
		ids := emitting(t, bus, func(context.Context, int) error { return nil })
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(time.Minute)
		require.Len(t, ids.all(), 1)
		require.Len(t, got.all(), 1)
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced())
		require.EqualValues(t, 2, l.Accepted, "%+v", l)
		require.EqualValues(t, 2, l.Handled, "%+v", l)
		shutdown(t, bus)
	})
}

// The outcome of a commit with a refused event is unknown.
func TestD15_ADuplicateInAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Bury) > 0 && len(b.Delete) > 0 && !failed.Swap(true) {
				f.Kind = storetest.FailAfter
			}
			return f
		}))
		bus, _ := disk.open(t)
		id := eventbus.NewEventID()
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			_, err := eventbus.Emit(ctx, "child", "new", eventbus.ID(id))
			return err
		}, eventbus.Named("emits"))
		mustSubscribe(t, bus, "child", ok, eventbus.Named("child"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "child", "old", eventbus.ID(id))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(time.Minute)
		require.True(t, failed.Load())
		require.Len(t, letters(t, bus), 1)
		l := bus.Metrics().Ledger
		require.True(t, l.Balanced())
		require.EqualValues(t, 1, l.DeadLettered, "%+v", l)
		require.EqualValues(t, 3, l.Accepted, "%+v", l)
		shutdown(t, bus)
	})
}

// A context that a handler keeps does not keep what the call has emitted.
func TestD15_AKeptContextKeepsNoEvents(t *testing.T) {
	for _, how := range []string{"fails", "overran", "collected"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := newBus(t, eventbus.WithRetry(retry(0, 0)))
				var kept context.Context
				var big weak.Pointer[[1 << 18]byte]
				mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
					payload := new([1 << 18]byte)
					big, kept = weak.Make(payload), ctx
					if how == "collected" {
						ctx, _ = eventbus.CollectEmitted(ctx)
						kept = ctx
					}
					_, err := eventbus.Emit(ctx, "child", payload)
					require.NoError(t, err)
					if how == "overran" {
						time.Sleep(time.Minute)
					}
					return eventbus.Permanent(errBoom)
				}, eventbus.Named("emits"), eventbus.Timeout(time.Second))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "parent", nil)
				time.Sleep(time.Hour)
				synctest.Wait()
				runtime.GC()
				runtime.GC()
				require.Nil(t, big.Value())
				runtime.KeepAlive(kept)
			})
		})
	}
}

// The error of an Emit after the collection does not look like the end of the call.
func TestD15_AfterCollected(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var err error
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			inner, collected := eventbus.CollectEmitted(ctx)
			_, _ = collected()
			_, err = eventbus.Emit(inner, "child", nil)
			return nil
		}, eventbus.Named("emits"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		synctest.Wait()
		require.Error(t, err)
		require.NotErrorIs(t, err, context.Canceled)
	})
}

// Events of handlers push no idempotency keys out of memory.
func TestD15_IDsOfEmittedEventsAreNotRemembered(t *testing.T) {
	ofManyEvents(t)
	synctest.Test(t, func(t *testing.T) {
		bus, _ := newBus(t)
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			for range 10_000 {
				if _, err := eventbus.Emit(ctx, "child", nil); err != nil {
					return err
				}
			}
			return nil
		}, eventbus.Named("emits"))
		paid := noting(t, bus, "payment")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "payment", "p", idem("k"))
		for range 11 {
			mustPublish(t, bus, "parent", nil)
			require.NoError(t, bus.Drain(t.Context()))
		}
		mustPublish(t, bus, "payment", "p", idem("k"))
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.Len(t, paid.all(), 1)
		shutdown(t, bus)
	})
}

// A collected event keeps its expiry, also if it has passed when the event is emitted again.
func TestD15_ACollectedEventExpires(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		kept := newLedger(1)
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			_, err := eventbus.Emit(ctx, "child", "x", eventbus.ExpiresIn(time.Minute))
			return err
		}, eventbus.Named("emits"), around(kept.once), eventbus.Retry(eventbus.Delays(time.Hour)))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(2 * time.Hour)
		require.Empty(t, got.all())
		require.Equal(t, eventbus.ReasonTooLate, oneLetter(t, bus).Reason)
		requireBalanced(t, bus)
	})
}

// A middleware that collects after the timeout gets an error: it must not commit.
func TestD15_CollectedAfterTheTimeout(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		late := make(chan error, 1)
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt > 1 {
				return nil
			}
			inner, collected := eventbus.CollectEmitted(ctx)
			_, err := eventbus.Emit(inner, "child", "x")
			require.NoError(t, err)
			time.Sleep(time.Minute)
			data, err := collected()
			require.Nil(t, data)
			late <- err
			return nil
		}, eventbus.Named("emits"), eventbus.Timeout(time.Second))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		err := <-late
		require.ErrorIs(t, err, eventbus.ErrNotInHandler)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, got.all())
		requireBalanced(t, bus)
	})
}

// A call may exceed its timeout while it emits. Run with -race.
func TestD15_ATimeoutDuringEmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context, string, eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
			time.Sleep(2 * time.Second)
			return nil, nil
		}
		bus, _ := newBus(t, oneAttempt, eventbus.WithPublishHook(slow))
		emitted := make(chan error, 1)
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			_, err := eventbus.Emit(ctx, "b", nil)
			emitted <- err
			return nil
		}, eventbus.Timeout(time.Second))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", nil)
		require.ErrorIs(t, <-emitted, context.DeadlineExceeded)
		shutdown(t, bus)
	})
}
