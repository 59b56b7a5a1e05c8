package docs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/storetest"
)

func TestDocs_Publishing(t *testing.T) {
	docpagetest.Page(t, "publishing.md",
		docpagetest.Code(docsAfter),
		docpagetest.Code(docsExpiresIn),
		docpagetest.Code(docsIdempotencyKey),
		docpagetest.Code(docsUntilSettled),
		docpagetest.Code(docsUnknownOutcome),
		docpagetest.Code(docsEmit),
		docpagetest.Code(docsChildID),
		docpagetest.Code(docsBatchAndWait),
	)
}

// inBubble runs f with virtual time.
func inBubble(t *testing.T, f func(t *testing.T) error) (failed error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { failed = f(t) })
	return failed
}

func docsAfter(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus := t.Context(), eventbustest.New(t)
		var rec eventbustest.Recorder
		_, err := bus.Subscribe("cart.*", rec.Handle)
		require.NoError(t, err)
		kept, err := bus.Publish(ctx, "cart.reminder", "c-4", eventbus.After(24*time.Hour))
		require.NoError(t, err)
		_, err = bus.Subscribe("cart.*", eventbustest.Fail(nil), eventbus.Named("too late to match"))
		require.NoError(t, err)

		cancelled := func() error {
			id, err := bus.Publish(ctx, "cart.reminder", "c-3", eventbus.After(24*time.Hour)) // or At(t)
			if err != nil {
				return err
			}
			_, err = bus.Cancel(ctx, id) // the customer has paid
			return err
		}
		require.NoError(t, cancelled())
		time.Sleep(24*time.Hour - time.Second)
		require.Zero(t, rec.Len())
		time.Sleep(2 * time.Second)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 1, rec.Len())
		require.Len(t, rec.ByEvent(kept), 1)
		return nil
	})
}

func docsExpiresIn(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus := t.Context(), eventbustest.New(t)
		send, err := bus.Subscribe("login.*", eventbustest.Fail(nil), eventbus.Named("send"))
		require.NoError(t, err)
		require.NoError(t, send.Pause())
		drop, err := bus.Subscribe("login.*", eventbustest.Fail(nil), eventbus.Named("drop"), eventbus.Isolated(), eventbus.DropExpired())
		require.NoError(t, err)
		require.NoError(t, drop.Pause())
		publish := func() error {
			_, err := bus.Publish(ctx, "login.code", "4711", eventbus.ExpiresIn(10*time.Minute))
			return err
		}
		require.NoError(t, publish())
		time.Sleep(11 * time.Minute)
		letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
		require.Equal(t, eventbus.ReasonTooLate, letter.Reason)
		require.Equal(t, "send", letter.Subscription)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Dropped)
		return nil
	})
}

func docsIdempotencyKey(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	var rec eventbustest.Recorder
	_, err := bus.Subscribe("order.*", rec.Handle)
	require.NoError(t, err)
	first, err := bus.Publish(ctx, "order.paid", 4200, eventbus.IdempotencyKey("webhook-831"))
	if err != nil {
		return err
	}
	again, err := bus.Publish(ctx, "order.paid", 4200, eventbus.IdempotencyKey("webhook-831"))
	if err != nil {
		return err
	}
	fmt.Println("the same event:", first == again)

	other, err := bus.Publish(ctx, "order.shipped", 4200, eventbus.IdempotencyKey("webhook-831"))
	require.NoError(t, err)
	require.NotEqual(t, first, other)
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, 2, rec.Len())
	return nil
}

func docsUntilSettled(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus, release := t.Context(), eventbustest.New(t), make(chan struct{})
		var rec eventbustest.Recorder
		_, err := bus.Subscribe("index.*", rec.Wrap(eventbustest.Block(release)))
		require.NoError(t, err)
		publish := func() error {
			_, err := bus.Publish(ctx, "index.rebuild", nil, eventbus.IdempotencyKey("catalog"), eventbus.UntilSettled())
			return err
		}
		for range 10 {
			require.NoError(t, publish())
			rec.WaitBegun(t, 1)
		}
		close(release)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 1, rec.Len())
		require.NoError(t, publish())
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 2, rec.Len())
		return nil
	})
}

func docsUnknownOutcome(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		model := storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if len(b.New) > 0 {
				return storetest.Fault{Delay: time.Second}
			}
			return storetest.Fault{}
		}))
		bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
		var rec eventbustest.Recorder
		_, err := bus.Subscribe("order.*", rec.Handle, eventbus.Named("rec"))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		repeated := false
		publish := func() error {
			id := eventbus.NewEventID() // keep it beside the order, and repeat with it after a crash too
			_, err := bus.Publish(ctx, "order.placed", "o-17", eventbus.ID(id))
			var unknown *eventbus.IndeterminateError
			if errors.As(err, &unknown) {
				_, err = bus.Publish(context.WithoutCancel(ctx), "order.placed", "o-17", eventbus.ID(id))
			}
			repeated = unknown != nil
			return err
		}
		require.NoError(t, publish())
		require.True(t, repeated)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 1, rec.Len())
		return nil
	})
}

// flakyBank fails the first charge.
type flakyBank struct{ calls int }

func (b *flakyBank) Charge(context.Context, string) error {
	if b.calls++; b.calls == 1 {
		return errors.New("the bank does not answer")
	}
	return nil
}

func docsEmit(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		bus, bank := eventbustest.New(t), &flakyBank{}
		_, err := bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, order string) error {
			if _, err := eventbus.Emit(ctx, "invoice.created", order); err != nil {
				return err
			}
			return bank.Charge(ctx, order) // an error emits nothing, and the retry emits again
		}), eventbus.Named("billing"))
		requireOneChild(t, bus, "invoice.created")
		require.Equal(t, 2, bank.calls)
		return err
	})
}

func docsChildID(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		bus, bank := eventbustest.New(t), &flakyBank{}
		_, err := bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, order string) error {
			_, err := bus.Publish(ctx, "order.seen", order, eventbus.ID(eventbus.ChildID(ctx, "seen")))
			if err != nil {
				return err
			}
			return bank.Charge(ctx, order)
		}), eventbus.Named("billing"))
		requireOneChild(t, bus, "order.seen")
		require.Equal(t, 2, bank.calls)
		return err
	})
}

// requireOneChild publishes an order, and checks that its handler publishes one event of a type.
func requireOneChild(t *testing.T, bus *eventbus.Bus, child string) {
	t.Helper()
	var rec eventbustest.Recorder
	_, err := bus.Subscribe(child, rec.Handle, eventbus.Named("child"))
	require.NoError(t, err)
	_, err = bus.Publish(t.Context(), "order.placed", "o-17")
	require.NoError(t, err)
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []string{"o-17"}, eventbustest.Payloads[string](&rec))
	require.Equal(t, 1, rec.Len())
}

func docsBatchAndWait(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	var rec eventbustest.Recorder
	_, err := bus.Subscribe("order.*", rec.Handle)
	require.NoError(t, err)
	ids, err := bus.PublishBatch(ctx, []eventbus.Publication{
		{Type: "order.placed", Payload: "o-17", Options: []eventbus.PublishOption{eventbus.Key("o-17")}},
		{Type: "stock.taken", Payload: "o-17"},
	})
	if err != nil {
		return err
	}
	result, err := bus.PublishAndWait(ctx, "order.paid", "o-17")
	fmt.Println(len(ids), result.Outcome, err)
	return err
}
