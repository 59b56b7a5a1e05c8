package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// handlesInTx subscribes a handler to the type a that publishes an event of the type effect in its transaction. Then it does
// what end does.
func (d *disk) handlesInTx(t *testing.T, bus *eventbus.Bus, name string, end func(ctx context.Context, attempt int) error, opts ...eventbus.SubscribeOption) {
	t.Helper()
	mustSubscribe(t, bus, "a", eventbus.Typed(func(ctx context.Context, payload string) error {
		delivery, _ := eventbus.FromContext(ctx)
		d.note("%s %s %d", name, payload, delivery.Attempt)
		if _, err := bus.PublishTx(ctx, storetest.TxFrom(ctx), "effect", payload); err != nil {
			return err
		}
		return end(ctx, delivery.Attempt)
	}), append([]eventbus.SubscribeOption{eventbus.Named(name), eventbus.InTx()}, opts...)...)
	mustSubscribe(t, bus, "effect", eventbus.Typed(func(_ context.Context, payload string) error {
		d.note("effect %s", payload)
		return nil
	}), eventbus.Named("effects of "+name))
}

func succeeds(context.Context, int) error { return nil }

func TestT6_AFailedAttemptHasNoEffect(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context) error{
		"error":    func(context.Context) error { return errors.New("failed") },
		"panic":    func(context.Context) error { panic("failed") },
		"deadline": func(ctx context.Context) error { <-ctx.Done(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				disk.handlesInTx(t, bus, "mail", func(ctx context.Context, attempt int) error {
					if attempt < 3 {
						return fail(ctx)
					}
					return nil
				}, eventbus.Timeout(time.Second))
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "a", "x")
				time.Sleep(time.Hour)
				require.Equal(t, []string{"mail x 1", "mail x 2", "mail x 3", "effect x"}, disk.took())
				requireBalanced(t, bus)
				shutdown(t, bus)
			})
		})
	}
}

// A process dies after the commit of a handler, and before its success is recorded.
func TestT6_ACrashAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		committed := make(chan struct{})
		disk.handlesInTx(t, bus, "mail", succeeds, eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
			return func(ctx context.Context, e eventbus.Event) error {
				err := next(ctx, e)
				close(committed)
				<-t.Context().Done()
				return err
			}
		}))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		<-committed
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handlesInTx(t, again, "post", succeeds, eventbus.Formerly("mail"))
		mustSubscribe(t, again, "effect", ok, eventbus.Named("audit"), eventbus.Formerly("effects of mail"))
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Equal(t, 1, times(disk.took(), "mail x 1", "post x 1", "post x 2"))
		require.EqualValues(t, 2, again.Metrics().Ledger.Handled, "the event, and its effect")
		require.Empty(t, disk.Dump().Records)
		shutdown(t, again)
	})
}

func times(all []string, of ...string) (n int) {
	for _, s := range all {
		for _, a := range of {
			if s == a {
				n++
			}
		}
	}
	return n
}

// While an abandoned call has its transaction open, the retry waits for it.
func TestT6_ARetryWaitsForTheAbandonedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handlesInTx(t, bus, "mail", func(_ context.Context, attempt int) error {
			if attempt == 1 {
				time.Sleep(5 * time.Second) // whatever its context says
			}
			return nil
		}, eventbus.Timeout(2*time.Second))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(4900 * time.Millisecond)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		time.Sleep(time.Hour)
		require.Equal(t, 1, times(disk.took(), "effect x"))
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// A letter of an event that its handler has handled: the commit succeeded, and the attempt failed all the same.
func TestT6_AReplayHasNoSecondEffectUnlessItIsEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		fails := true
		disk.handlesInTx(t, bus, "mail", succeeds, eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
			return func(ctx context.Context, e eventbus.Event) error {
				if err := next(ctx, e); err != nil || !fails {
					return err
				}
				return eventbus.Permanent(errors.New("failed after the commit"))
			}
		}))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail x 1", "effect x"}, disk.took())
		for i, again := range []struct {
			edit string
			want []string
		}{{"", nil}, {"y", []string{"mail y 1", "effect y"}}, {"", nil}, {"z", []string{"mail z 1", "effect z"}}, {"z", []string{"mail z 1", "effect z"}}} {
			l := oneLetter(t, bus)
			if again.edit == "" {
				require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
			} else {
				payload, _ := json.Marshal(again.edit)
				require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, json.RawMessage(payload)))
			}
			time.Sleep(25 * time.Hour)
			require.Equal(t, again.want, disk.took(), "replay %d", i+1)
		}
		l := oneLetter(t, bus)
		require.Equal(t, 3, l.Edits)
		require.Equal(t, 5, l.Replays)
		fails = false
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		time.Sleep(time.Second)
		require.Empty(t, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// A letter that was exported before it was edited, and is imported again, has another first edit.
func TestT6_AnImportedLetterHasEditsOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handlesInTx(t, bus, "mail", succeeds, eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
			return func(ctx context.Context, e eventbus.Event) error {
				return errors.Join(next(ctx, e), eventbus.Permanent(errors.New("failed after the commit")))
			}
		}))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail x 1", "effect x"}, disk.took())
		var exported bytes.Buffer
		_, err := bus.DLQ().Export(t.Context(), &exported, eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		for _, edit := range []string{"y", "z"} {
			l := oneLetter(t, bus)
			require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, json.RawMessage(strconv.Quote(edit))))
			time.Sleep(time.Second)
			require.Equal(t, []string{"mail " + edit + " 1", "effect " + edit}, disk.took())
			require.NoError(t, bus.DLQ().Purge(t.Context(), oneLetter(t, bus).ID))
			_, err = bus.DLQ().Import(t.Context(), bytes.NewReader(exported.Bytes()))
			require.NoError(t, err)
		}
		shutdown(t, bus)
	})
}

// The successor of a stopped process waits for the transaction that this has open.
func TestT6_AStoppedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, _ := disk.open(t, eventbus.WithStandby())
		goOn := make(chan struct{})
		disk.handlesInTx(t, first, "mail", func(context.Context, int) error { <-goOn; return nil })
		require.NoError(t, first.Start(t.Context()))
		second, _ := disk.open(t, eventbus.WithStandby())
		disk.handlesInTx(t, second, "mail", succeeds)
		waits := startLater(t, second)
		mustPublish(t, first, "a", "x")
		synctest.Wait()
		disk.LoseLease(true)
		requireStarted(t, waits)
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		close(goOn)
		time.Sleep(time.Minute)
		require.Equal(t, 1, times(disk.took(), "effect x"))
		shutdown(t, first)
		shutdown(t, second)
	})
}

// A store that cannot do it, and no store, are refused when the subscription is made.
func TestT6_WithoutSuchAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, _ := newBus(t)
		other, _ := newBus(t, eventbus.WithStore(struct{ driver.Store }{newDisk().Open()}))
		for _, bus := range []*eventbus.Bus{memory, other} {
			_, err := bus.Subscribe("a", ok, eventbus.Named("mail"), eventbus.InTx())
			var option *eventbus.OptionError
			require.ErrorAs(t, err, &option)
			require.Equal(t, "InTx", option.Option)
			require.ErrorContains(t, err, "inbox")
			require.False(t, bus.Subscription("mail").Exists())
			shutdown(t, bus)
		}
	})
}

// Outside of a handler with InTx there is no transaction.
func TestT6_WithoutTheOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Nil(t, storetest.TxFrom(t.Context()))
		disk := newDisk()
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishTx(ctx, storetest.TxFrom(ctx), "b", "x")
			disk.note("%t", errors.Is(err, eventbus.ErrNoTransaction))
			return nil
		}, eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Second)
		require.Equal(t, []string{"true"}, disk.took())
		shutdown(t, bus)
	})
}

// A middleware that gives the handler a context of its own is told so.
func TestT6_AnotherContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handlesInTx(t, bus, "mail", succeeds, eventbus.Use(func(next eventbus.Handler) eventbus.Handler {
			return func(_ context.Context, e eventbus.Event) error { return next(context.Background(), e) }
		}))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(time.Hour)
		require.Empty(t, disk.took())
		require.Contains(t, oneLetter(t, bus).Failures[0].Error, "a middleware has replaced")
		shutdown(t, bus)
	})
}
