package contracttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// emitsInTx subscribes a handler with InTx to the type a that emits an event of the type effect, and then does what end does.
func (d *disk) emitsInTx(t *testing.T, bus *eventbus.Bus, name string, end func(ctx context.Context, attempt int) error, opts ...eventbus.SubscribeOption) *journal[eventbus.EventID] {
	t.Helper()
	ids := new(journal[eventbus.EventID])
	mustSubscribe(t, bus, "a", eventbus.Typed(func(ctx context.Context, payload string) error {
		delivery, _ := eventbus.FromContext(ctx)
		d.note("%s %s %d", name, payload, delivery.Attempt)
		id, err := eventbus.Emit(ctx, "effect", payload, eventbus.Metadata("by", name))
		if err != nil {
			return err
		}
		ids.add(id)
		return end(ctx, delivery.Attempt)
	}), append([]eventbus.SubscribeOption{eventbus.Named(name), eventbus.InTx()}, opts...)...)
	d.notesEffects(t, bus)
	return ids
}

// notesEffects subscribes a handler that notes the events of the type effect.
func (d *disk) notesEffects(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	mustSubscribe(t, bus, "effect", func(_ context.Context, e eventbus.Event) error {
		d.note("effect %s of %s", e.Payload, e.Metadata.Get("by"))
		return nil
	}, eventbus.Named("effects"))
}

// around is a middleware that calls f.
func around(f func(ctx context.Context, call func(context.Context) error) error) eventbus.SubscribeOption {
	return eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			return f(ctx, func(ctx context.Context) error { return next(ctx, e) })
		}
	})
}

// The transaction has the events: they are there when it is committed, before the attempt ends and whatever that returns.
func TestD15_InTx_TheTransactionHasTheEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		ids := disk.emitsInTx(t, bus, "mail", func(context.Context, int) error {
			time.Sleep(10 * time.Second)
			disk.note("ends")
			return nil
		}, around(func(ctx context.Context, call func(context.Context) error) error {
			err := call(ctx)
			time.Sleep(10 * time.Second)
			return errors.Join(err, eventbus.Permanent(errors.New("failed after the commit")))
		}))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(9 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.Empty(t, disk.Dump().Incoming)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"ends", `effect "x" of mail`}, disk.took())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, disk.took(), "the attempt has failed, and emits nothing more")
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, disk.took(), "its mark is found")
		require.Len(t, ids.all(), 1)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Accepted)
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// A transaction that rolls back has no events. The one that commits has them once, with one id.
func TestD15_InTx_ARollbackEmitsNothing(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context) error{
		"error":    func(context.Context) error { return errors.New("failed") },
		"panic":    func(context.Context) error { panic("failed") },
		"deadline": func(ctx context.Context) error { <-ctx.Done(); return nil },
		"snooze":   func(context.Context) error { return eventbus.Snooze(time.Second) },
		"throttle": func(context.Context) error { return eventbus.Throttle(errors.New("429"), time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				calls := 0
				ids := disk.emitsInTx(t, bus, "mail", func(ctx context.Context, _ int) error {
					if calls++; calls < 3 {
						return fail(ctx)
					}
					return nil
				}, eventbus.Timeout(time.Second))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "a", "x")
				time.Sleep(time.Hour)
				synctest.Wait()
				require.Equal(t, 1, times(disk.took(), `effect "x" of mail`))
				all := ids.all()
				require.Equal(t, []eventbus.EventID{all[0], all[0], all[0]}, all)
				require.EqualValues(t, 2, bus.Metrics().Ledger.Accepted)
				requireBalanced(t, bus)
				shutdown(t, bus)
			})
		})
	}
}

// A process dies after the commit, and before the success is recorded. The handler does not run again, under another name too.
func TestD15_InTx_ACrashAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		committed := make(chan struct{})
		disk.emitsInTx(t, bus, "mail", succeeds, around(func(ctx context.Context, call func(context.Context) error) error {
			err := call(ctx)
			close(committed)
			<-t.Context().Done()
			return err
		}))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		<-committed
		disk.crash(bus)
		took := disk.took() // it may have handled the effect, and may not have recorded that

		again, _ := disk.open(t)
		ids := disk.emitsInTx(t, again, "post", succeeds, eventbus.Formerly("mail"))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		took = append(took, disk.took()...)
		require.Equal(t, 1, times(took, "mail x 1"))
		require.Zero(t, times(took, "post x 1", "post x 2"))
		require.Contains(t, took, `effect "x" of mail`)
		require.Empty(t, ids.all())
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Incoming)
		shutdown(t, again)
	})
}

// An id or a key that is known is found when the event is taken in, and refuses no commit.
func TestD15_InTx_AKnownIDOrKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		x, y := eventbus.NewEventID(), eventbus.NewEventID()
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			for _, child := range []struct {
				payload string
				opts    []eventbus.PublishOption
			}{
				{"same", []eventbus.PublishOption{eventbus.ID(x)}},
				{"other", []eventbus.PublishOption{eventbus.ID(y)}},
				{"any", []eventbus.PublishOption{idem("h")}},
				{"another event key", []eventbus.PublishOption{idem("i"), eventbus.Key("k")}},
				{"new", nil},
			} {
				if _, err := eventbus.Emit(ctx, "child", child.payload, child.opts...); err != nil {
					return err
				}
			}
			return nil
		}, eventbus.Named("emits"), eventbus.InTx())
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "child", "same", eventbus.ID(x))
		mustPublish(t, bus, "child", "first", eventbus.ID(y))
		mustPublish(t, bus, "child", "first", idem("h"))
		mustPublish(t, bus, "child", "first", idem("i"))
		require.NoError(t, bus.Drain(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.ElementsMatch(t, []string{"same", "first", "first", "first", "new"}, got.all())
		all := letters(t, bus)
		require.Len(t, all, 2)
		for _, l := range all {
			require.Equal(t, eventbus.ReasonDuplicate, l.Reason)
		}
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// Middleware outside of the transaction emits too: with the success, and with other ids than the handler.
func TestD15_InTx_MiddlewareEmitsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		outer := new(journal[eventbus.EventID])
		emit := func(ctx context.Context, text string) {
			id, err := eventbus.Emit(ctx, "effect", text, eventbus.Metadata("by", "middleware"))
			require.NoError(t, err)
			outer.add(id)
		}
		inner := disk.emitsInTx(t, bus, "mail", succeeds, around(func(ctx context.Context, call func(context.Context) error) error {
			emit(ctx, "before")
			err := call(ctx)
			emit(ctx, "behind")
			if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
				return errors.New("failed after the commit")
			}
			return err
		}))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.ElementsMatch(t, []string{"mail x 1", `effect "x" of mail`, `effect "before" of middleware`, `effect "behind" of middleware`}, disk.took())
		require.Empty(t, letters(t, bus))
		all := outer.all()
		require.Equal(t, all[:2], all[2:], "in each attempt")
		require.NotEqual(t, all[0], all[1])
		require.NotContains(t, all, inner.all()[0])
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// In the context of a transaction that has ended, however, Emit is an error, while the call goes on.
func TestD15_InTx_AfterTheTransaction(t *testing.T) {
	for name, end := range map[string]func() error{
		"success": func() error { return nil },
		"error":   func() error { return errBoom },
		"panic":   func() error { panic("failed") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				var kept context.Context
				disk.emitsInTx(t, bus, "mail", func(ctx context.Context, _ int) error {
					kept = ctx
					return end()
				}, around(func(ctx context.Context, call func(context.Context) error) error {
					func() {
						defer func() { _ = recover() }()
						_ = call(ctx)
					}()
					_, err := eventbus.Emit(kept, "effect", "late")
					require.ErrorIs(t, err, eventbus.ErrNotInHandler)
					require.ErrorContains(t, err, "the handler has ended")
					require.NotContains(t, err.Error(), "nil")
					_, err = eventbus.Emit(ctx, "effect", "y", eventbus.Metadata("by", "middleware"))
					return err
				}))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "a", "x")
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, map[string]int{"success": 1}[name], times(disk.took(), `effect "x" of mail`))
				require.EqualValues(t, 2+map[string]int{"success": 1}[name], bus.Metrics().Ledger.Handled)
				requireBalanced(t, bus)
				shutdown(t, bus)
			})
		})
	}
}

// The events of a transaction come in their order, also those of a key, and before what the middleware publishes behind it.
func TestD15_InTx_TheOrderOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			for i := range 20 {
				if _, err := eventbus.Emit(ctx, "child", fmt.Sprint(i), eventbus.Key("k")); err != nil {
					return err
				}
			}
			return nil
		}, eventbus.Named("emits"), eventbus.InTx(), around(func(ctx context.Context, call func(context.Context) error) error {
			if err := call(ctx); err != nil {
				return err
			}
			_, err := bus.Publish(ctx, "child", "20", eventbus.Key("k"))
			return err
		}))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Minute)
		want := make([]string, 21)
		for i := range want {
			want[i] = fmt.Sprint(i)
		}
		require.Equal(t, want, got.all())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}
