package contracttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// emitting subscribes a handler to the type parent that emits a child, and then does what end does.
func emitting(t *testing.T, bus *eventbus.Bus, end func(ctx context.Context, attempt int) error, opts ...eventbus.SubscribeOption) *journal[eventbus.EventID] {
	t.Helper()
	ids := new(journal[eventbus.EventID])
	mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
		delivery, _ := eventbus.FromContext(ctx)
		id, err := eventbus.Emit(ctx, "child", fmt.Sprintf("of attempt %d", delivery.Attempt))
		if err != nil {
			return err
		}
		ids.add(id)
		return end(ctx, delivery.Attempt)
	}, append([]eventbus.SubscribeOption{eventbus.Named("emits")}, opts...)...)
	return ids
}

func failsUntil(attempt int, fail func(ctx context.Context) error) func(context.Context, int) error {
	return func(ctx context.Context, n int) error {
		if n < attempt {
			return fail(ctx)
		}
		return nil
	}
}

// However an attempt ends, only the one that succeeds has a child, and the child has one id.
func TestD15_OnlyASuccessEmits(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context) error{
		"error":    func(context.Context) error { return errors.New("failed") },
		"panic":    func(context.Context) error { panic("failed") },
		"goexit":   func(context.Context) error { runtime.Goexit(); return nil },
		"timeout":  func(ctx context.Context) error { <-ctx.Done(); return nil },
		"throttle": func(context.Context) error { return eventbus.Throttle(errors.New("429"), time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				calls := 0
				ids := emitting(t, bus, func(ctx context.Context, _ int) error {
					if calls++; calls < 3 {
						return fail(ctx)
					}
					return nil
				}, eventbus.Timeout(time.Second))
				got := noting(t, bus, "child")
				require.NoError(t, bus.Start(t.Context()))
				parent := mustPublish(t, bus, "parent", nil)
				time.Sleep(time.Hour)
				require.Len(t, got.all(), 1)
				require.Len(t, ids.all(), 3)
				require.Len(t, slices.Compact(ids.all()), 1, "each attempt derives the same id")
				require.NotEqual(t, parent, ids.all()[0])
				require.EqualValues(t, 2, bus.Metrics().Ledger.Handled)
				requireBalanced(t, bus)
			})
		})
	}
}

func TestD15_ASnoozedDeliveryEmitsNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		calls := 0
		emitting(t, bus, func(context.Context, int) error {
			if calls++; calls == 1 {
				return eventbus.Snooze(time.Minute)
			}
			return nil
		})
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(59 * time.Second)
		require.Empty(t, got.all())
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"of attempt 1"}, got.all())
		requireBalanced(t, bus)
	})
}

// A child does not exist while the handler runs, and then at once.
func TestD15_AChildFollowsTheSuccess(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		emitting(t, bus, func(context.Context, int) error {
			time.Sleep(10 * time.Second)
			return nil
		})
		var published time.Time
		mustSubscribe(t, bus, "child", func(_ context.Context, e eventbus.Event) error {
			published = e.Time
			require.Equal(t, "blue", e.Metadata.Get("tenant"))
			return nil
		}, eventbus.Named("child"))
		require.NoError(t, bus.Start(t.Context()))
		began := time.Now()
		mustPublish(t, bus, "parent", nil, eventbus.Metadata("tenant", "blue"))
		time.Sleep(9 * time.Second)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Accepted)
		late := noting(t, bus, "chil?")
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.WithinDuration(t, began.Add(10*time.Second), published, time.Second, "it is published with the success")
		require.Equal(t, []string{"of attempt 1"}, late.all(), "and matched then")
		requireBalanced(t, bus)
	}, eventbus.WithInheritedMetadata("tenant"))
}

// The success of a target is recorded with its children before the next target begins. A retry of that one emits nothing again.
func TestD15_TargetsThatFollow(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		ids := emitting(t, bus, failsUntil(2, func(context.Context) error { return errors.New("failed") }))
		got := noting(t, bus, "child")
		calls := 0
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			calls++
			require.EqualValues(t, 2, bus.Metrics().Ledger.Accepted, "call %d", calls)
			_, err := eventbus.Emit(ctx, "child", "of the second")
			if calls < 3 {
				err = errors.New("failed")
			}
			return err
		}, eventbus.Named("second"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(time.Hour)
		require.Len(t, ids.all(), 2)
		require.Equal(t, []string{"of attempt 2", "of the second"}, got.all())
		requireBalanced(t, bus)
	}, eventbus.WithRetry(retry(5, time.Second)))
}

// A process dies while the second target runs, whose first one has emitted.
func TestD15_ACrashAfterTheSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		emitting(t, bus, func(context.Context, int) error { return nil })
		mustSubscribe(t, bus, "parent", until(make(chan struct{})), eventbus.Named("second"))
		mustSubscribe(t, bus, "child", until(make(chan struct{})), eventbus.Named("child"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		synctest.Wait()
		disk.crash(bus)

		again, _ := disk.open(t)
		ids := emitting(t, again, func(context.Context, int) error { return nil })
		disk.handles(t, again, "second", nil)
		mustSubscribe(t, again, "child", func(context.Context, eventbus.Event) error { disk.note("child"); return nil }, eventbus.Named("child"))
		mustSubscribe(t, again, "parent", ok, eventbus.Named("unused"))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Empty(t, ids.all(), "its success is recorded")
		require.Equal(t, 1, times(disk.took(), "child"))
		require.Empty(t, disk.Dump().Records)
		shutdown(t, again)
	})
}

// The store has the success and the children, or neither.
func TestD15_TheStoreFailsInTheCommit(t *testing.T) {
	for kind, name := range map[storetest.FaultKind]string{storetest.FailBefore: "before", storetest.FailAfter: "after"} {
		for _, targets := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " ", targets), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var failed atomic.Bool
					disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
						if emits := len(b.New) > 0 && len(b.Delete)+len(b.Update) > 0; emits && !failed.Swap(true) {
							f.Kind = kind
						}
						return f
					}))
					bus, _ := disk.open(t)
					ids := emitting(t, bus, func(context.Context, int) error { return nil })
					got := noting(t, bus, "child")
					if targets == 2 {
						mustSubscribe(t, bus, "parent", ok, eventbus.Named("second"))
					}
					require.NoError(t, bus.Start(t.Context()))
					mustPublish(t, bus, "parent", nil)
					time.Sleep(time.Minute)
					require.True(t, failed.Load())
					require.Len(t, got.all(), 1)
					require.Len(t, ids.all(), map[bool]int{true: 2, false: 1}[kind == storetest.FailBefore])
					require.Empty(t, disk.Dump().Records)
					requireBalanced(t, bus)
					shutdown(t, bus)
				})
			})
		}
	}
}

// Emit works while the handler runs, and only then.
func TestD15_OutsideAHandler(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		refused := func(ctx context.Context) {
			t.Helper()
			id, err := eventbus.Emit(ctx, "child", nil)
			require.ErrorIs(t, err, eventbus.ErrNotInHandler)
			require.True(t, id.IsZero())
		}
		refused(t.Context())
		_, err := eventbus.Emit(nil, "child", nil) //nolint:staticcheck // what a user may pass
		require.ErrorIs(t, err, eventbus.ErrNilContext)

		var kept context.Context
		release := make(chan struct{})
		inGoroutine := make(chan error, 1)
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			kept = ctx
			go func() {
				<-release
				_, err := eventbus.Emit(ctx, "child", nil)
				inGoroutine <- err
			}()
			return nil
		}, eventbus.Named("returns"))
		late := make(chan error, 1)
		mustSubscribe(t, bus, "hangs", func(ctx context.Context, e eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt > 1 {
				return nil
			}
			_, err := eventbus.Emit(ctx, "child", nil)
			require.NoError(t, err)
			time.Sleep(time.Minute)
			_, err = eventbus.Emit(ctx, "child", nil)
			late <- err
			return nil
		}, eventbus.Named("hangs"), eventbus.Timeout(time.Second))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		mustPublish(t, bus, "hangs", nil)
		synctest.Wait()
		refused(kept)
		close(release)
		require.ErrorIs(t, <-inGoroutine, eventbus.ErrNotInHandler)
		err = <-late
		require.ErrorIs(t, err, eventbus.ErrNotInHandler)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, got.all())
		requireBalanced(t, bus)
	})
}

func TestD15_WhatACallMayEmit(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		var tooMany, tooLarge, large error
		mustSubscribe(t, bus, "many", func(ctx context.Context, e eventbus.Event) (err error) {
			for i := 0; tooMany == nil; i++ {
				_, tooMany = eventbus.Emit(ctx, "child", fmt.Sprint(i))
			}
			return nil
		}, eventbus.Named("many"))
		mustSubscribe(t, bus, "large", func(ctx context.Context, e eventbus.Event) (err error) {
			for tooLarge == nil {
				_, tooLarge = eventbus.Emit(ctx, "child", strings.Repeat("x", 100<<10))
			}
			_, large = eventbus.Emit(ctx, "child", strings.Repeat("x", 64<<20))
			return nil
		}, eventbus.Named("large"))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "many", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.ErrorIs(t, tooMany, eventbus.ErrBatchTooLarge)
		require.Len(t, got.all(), 100)
		mustPublish(t, bus, "large", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.ErrorIs(t, tooLarge, eventbus.ErrBatchTooLarge)
		require.ErrorContains(t, tooLarge, "may emit 1048576")
		require.ErrorIs(t, large, eventbus.ErrInvalidPayload)
		require.Len(t, got.all(), 110)
		synctest.Wait()
		requireBalanced(t, bus)
	}, eventbus.WithQueueCapacity(100), eventbus.WithMaxEmittedBytes(1<<20))
}

// Bad events are refused by Emit itself, and the handler may go on.
func TestD15_BadEvents(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			for _, bad := range []struct {
				eventType string
				payload   any
				opts      []eventbus.PublishOption
				want      error
			}{
				{"", nil, nil, eventbus.ErrInvalidEvent},
				{"a*", nil, nil, eventbus.ErrInvalidEvent},
				{"child", make(chan int), nil, eventbus.ErrInvalidPayload},
				{"child", nil, []eventbus.PublishOption{nil}, eventbus.ErrInvalidOption},
				{"child", nil, []eventbus.PublishOption{eventbus.IdempotencyKey("")}, eventbus.ErrInvalidEvent},
				{"child", nil, []eventbus.PublishOption{eventbus.Metadata("", "")}, eventbus.ErrInvalidEvent},
			} {
				_, err := eventbus.Emit(ctx, bad.eventType, bad.payload, bad.opts...)
				require.ErrorIs(t, err, bad.want)
			}
			_, err := eventbus.Emit(ctx, "child", "good")
			return err
		}, eventbus.Named("emits"))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"good"}, got.all())
		_, err := eventbus.New(eventbus.WithMaxEmittedBytes(0))
		requireOptionError(t, err, "WithMaxEmittedBytes")
	})
}

// A child with the key of its parent waits for the parent's end. The parent does not wait for it.
func TestD15_TheKeyOfTheParent(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		order := new(journal[string])
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			_, err := eventbus.Emit(ctx, "child", "c", eventbus.Key(e.Key))
			return err
		}, eventbus.Named("emits"))
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			time.Sleep(time.Second)
			order.add("parent")
			return nil
		}, eventbus.Named("second"))
		mustSubscribe(t, bus, "child", func(ctx context.Context, e eventbus.Event) error {
			order.add("child")
			time.Sleep(time.Hour)
			return nil
		}, eventbus.Named("child"), eventbus.Timeout(2*time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		began := time.Now()
		result, err := bus.PublishAndWait(t.Context(), "parent", nil, eventbus.Key("k"))
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, result.Outcome)
		require.Less(t, time.Since(began), time.Minute)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.GreaterOrEqual(t, time.Since(began), time.Hour, "Drain waits for the children")
		require.Equal(t, []string{"parent", "child"}, order.all())
		requireBalanced(t, bus)
	})
}

// What a handler emits refuses no success: a known id or key makes a repetition, or a letter.
func TestD15_AKnownIDOrKey(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		x, y, z := eventbus.NewEventID(), eventbus.NewEventID(), eventbus.NewEventID()
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			for _, child := range []struct {
				eventType, payload string
				opts               []eventbus.PublishOption
			}{
				{"child", "same", []eventbus.PublishOption{eventbus.ID(x)}},
				{"child", "other type and id", []eventbus.PublishOption{eventbus.ID(y)}},
				{"nobody", "unrouted", []eventbus.PublishOption{eventbus.ID(y), eventbus.Key("k")}},
				{"child", "any", []eventbus.PublishOption{idem("h")}},
				{"child", "another event key", []eventbus.PublishOption{idem("i"), eventbus.Key("k")}},
				{"child", "new", []eventbus.PublishOption{idem("j")}},
				{"child", "newer", []eventbus.PublishOption{eventbus.ID(z)}},
				{"child", "newest", nil},
			} {
				if _, err := eventbus.Emit(ctx, child.eventType, child.payload, child.opts...); err != nil && child.eventType == "child" {
					return err
				}
			}
			return nil
		}, eventbus.Named("emits"))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "child", "same", eventbus.ID(x))
		mustPublish(t, bus, "other", "known", eventbus.ID(y))
		mustPublish(t, bus, "child", "first", idem("h"))
		mustPublish(t, bus, "child", "first", idem("i"))
		require.NoError(t, bus.Drain(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.ElementsMatch(t, []string{"same", "first", "first", "new", "newer", "newest"}, got.all())
		all := letters(t, bus)
		require.Len(t, all, 2)
		for _, l := range all {
			require.Equal(t, eventbus.ReasonDuplicate, l.Reason)
			require.Equal(t, "notes child", l.Subscription)
			require.Contains(t, l.Failures[0].Error, "duplicate")
		}
		requireBalanced(t, bus)
	})
}

// Within one call, a second event with an id or a key is compared at once.
func TestD15_TwiceInOneCall(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		id := eventbus.NewEventID()
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			emit := func(payload string, opts ...eventbus.PublishOption) eventbus.EventID {
				id, err := eventbus.Emit(ctx, "child", payload, opts...)
				require.NoError(t, err)
				return id
			}
			require.Equal(t, emit("1", idem("k")), emit("2", idem("k")))
			require.Equal(t, emit("3", eventbus.ID(id)), emit("3", eventbus.ID(id)))
			_, err := eventbus.Emit(ctx, "child", "4", eventbus.ID(id), eventbus.Key("k"))
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
			require.NotEqual(t, emit("5"), emit("5"))
			return nil
		}, eventbus.Named("emits"))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.ElementsMatch(t, []string{"1", "3", "5", "5"}, got.all())
		require.Empty(t, letters(t, bus))
		requireBalanced(t, bus)
	})
}

// A handler may succeed again, after an import of its letter. Its children have the same ids. After an edit, they are others.
func TestD15_AHandlerThatSucceedsAgain(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		fails := true
		ids := emitting(t, bus, func(context.Context, int) error {
			if fails {
				return errors.New("failed")
			}
			return nil
		})
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", "x")
		synctest.Wait()
		var exported strings.Builder
		_, err := bus.DLQ().Export(t.Context(), &exported, eventbus.LetterQuery{})
		require.NoError(t, err)
		fails = false
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		synctest.Wait()
		require.Len(t, got.all(), 1)
		imported := func() eventbus.LetterID {
			_, err = bus.DLQ().Import(t.Context(), strings.NewReader(exported.String()))
			require.NoError(t, err)
			return oneLetter(t, bus).ID
		}
		require.NoError(t, bus.DLQ().Replay(t.Context(), imported()))
		synctest.Wait()
		require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), imported(), "edited"))
		synctest.Wait()
		require.Len(t, got.all(), 3)
		all := ids.all()
		require.Equal(t, []eventbus.EventID{all[0], all[0], all[0]}, all[:3])
		require.NotEqual(t, all[0], all[3])
		requireBalanced(t, bus)
	}, eventbus.WithRetry(retry(0, 0)))
}

// A delivery that was recorded under an earlier name, and events in another order, have the same ids.
func TestD15_TheHandlerIsRenamedBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(retry(3, time.Hour)))
		ids := emitting(t, bus, func(context.Context, int) error { return errors.New("failed") })
		mustSubscribe(t, bus, "child", ok, eventbus.Named("child"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", "x")
		synctest.Wait()
		disk.crash(bus)

		again, _ := disk.open(t)
		mustSubscribe(t, again, "parent", func(ctx context.Context, _ eventbus.Event) error {
			for i := range 2 {
				id, err := eventbus.Emit(ctx, "child", fmt.Sprint(i))
				if err != nil {
					return err
				}
				ids.add(id)
			}
			return nil
		}, eventbus.Named("renamed"), eventbus.Formerly("emits"))
		got := noting(t, again, "child")
		mustSubscribe(t, again, "unused", ok, eventbus.Named("child"))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(2 * time.Hour)
		require.Equal(t, []string{"0", "1"}, got.all())
		require.Equal(t, ids.all()[0], ids.all()[1])
		requireBalanced(t, again)
		shutdown(t, again)
	})
}

// A handler that emitted a thousand events and is called again submits its success twice, and not a thousand times.
func TestD15_AThousandRepetitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches atomic.Int64
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) storetest.Fault { batches.Add(1); return storetest.Fault{} }))
		bus, _ := disk.open(t)
		ids := make([]eventbus.EventID, 1000)
		for i := range ids {
			ids[i] = eventbus.NewEventID()
		}
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			for _, id := range ids {
				if _, err := eventbus.Emit(ctx, "child", "x", eventbus.ID(id)); err != nil {
					return err
				}
			}
			return nil
		}, eventbus.Named("emits"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", 1)
		synctest.Wait()
		before := batches.Load()
		mustPublish(t, bus, "parent", 2)
		synctest.Wait()
		require.LessOrEqual(t, batches.Load()-before, int64(3))
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// A handler emits its own event again, with the key that the event has until it has settled: it is a repetition. Later events are too.
func TestD15_OptionsOfPublications(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "tick", func(ctx context.Context, e eventbus.Event) error {
			_, err := eventbus.Emit(ctx, "tick", "again", idem("k"), eventbus.UntilSettled())
			if err != nil {
				return err
			}
			_, err = eventbus.Emit(ctx, "later", "l", eventbus.After(time.Hour))
			return err
		}, eventbus.Named("ticks"))
		later := noting(t, bus, "later")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "tick", "first", idem("k"), eventbus.UntilSettled())
		time.Sleep(59 * time.Minute)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Handled)
		require.Empty(t, later.all())
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"l"}, later.all())
		requireBalanced(t, bus)
	})
}

func TestD15_IsolatedChildrenAndUnroutedOnes(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			for _, child := range []string{"child", "nobody"} {
				if _, err := eventbus.Emit(ctx, child, "x"); err != nil {
					return err
				}
			}
			return nil
		}, eventbus.Named("emits"))
		a, b := noting(t, bus, "child"), noting(t, bus, "chil*")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.Len(t, a.all(), 1)
		require.Len(t, b.all(), 1)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Unrouted)
		requireBalanced(t, bus)
	}, eventbus.WithIsolation())
}

func TestD15_ObserversSeeChildren(t *testing.T) {
	accepted := new(journal[string])
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		emitting(t, bus, func(context.Context, int) error { return nil })
		noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.ElementsMatch(t, []string{"parent", "child"}, accepted.all()[len(accepted.all())-2:])
	}, eventbus.WithObserver(eventbus.Observer{Accepted: func(e eventbus.Event) { accepted.add(e.Type) }}))
}

func TestD15_ATopicEmits(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		child := eventbus.NewTopic[string]("child")
		got := new(journal[string])
		_, err := child.Subscribe(bus, func(_ context.Context, s string) error { got.add(s); return nil }, eventbus.Named("child"))
		require.NoError(t, err)
		mustSubscribe(t, bus, "parent", func(ctx context.Context, e eventbus.Event) error {
			_, err := eventbus.NewTopic[int]("child").Emit(ctx, 1)
			require.ErrorIs(t, err, eventbus.ErrInvalidTopic)
			_, err = child.Emit(ctx, "x")
			return err
		}, eventbus.Named("emits"))
		_, err = child.Emit(t.Context(), "x")
		require.ErrorIs(t, err, eventbus.ErrNotInHandler)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"x"}, got.all())
	})
}

// The attempt in which a target has emitted is not over: after a crash it begins again with the same number.
func TestD15_ASuccessBeforeTheEndSpendsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		emitting(t, bus, func(context.Context, int) error { return nil })
		hangs := make(chan struct{})
		mustSubscribe(t, bus, "parent", until(hangs), eventbus.Named("second"))
		mustSubscribe(t, bus, "child", ok, eventbus.Named("child"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		synctest.Wait()
		disk.crash(bus)
		close(hangs)
		again, _ := disk.open(t)
		attempts := new(journal[int])
		emitting(t, again, func(context.Context, int) error { return nil })
		mustSubscribe(t, again, "child", ok, eventbus.Named("child"))
		mustSubscribe(t, again, "parent", func(ctx context.Context, _ eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			attempts.add(d.Attempt)
			return nil
		}, eventbus.Named("second"))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Equal(t, []int{1}, attempts.all())
		shutdown(t, again)
	})
}
