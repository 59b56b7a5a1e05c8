package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_OrderAndKeys(t *testing.T) {
	docpagetest.Page(t, "docs/order-and-keys.md",
		docpagetest.Code(docsKey),
		docpagetest.Code(docsOrderOfSubscriptions),
		docpagetest.Code(docsKeyAndRetry),
		docpagetest.Code(docsKeyIsolated),
		docpagetest.Code(docsKeyHeld),
	)
}

func docsKey(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	_, err := bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, step string) error {
		fmt.Println(step)
		return nil
	}))
	require.NoError(t, err)
	for _, step := range []string{"placed", "paid", "shipped"} {
		if _, err := bus.Publish(ctx, "order."+step, step, eventbus.Key("o-17")); err != nil {
			return err
		}
	}
	return bus.Drain(ctx)
}

func docsOrderOfSubscriptions(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	for _, name := range []string{"stock", "mail", "crm"} {
		_, err := bus.Subscribe("order.placed", func(_ context.Context, e eventbus.Event) error {
			fmt.Println(name, "handles", e.Payload)
			return nil
		}, eventbus.Named(name))
		if err != nil {
			return err
		}
	}
	_, err := bus.Publish(ctx, "order.placed", "o-17")
	require.NoError(t, err)
	return bus.Drain(ctx)
}

func docsKeyAndRetry(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		ctx, bus := t.Context(), eventbustest.New(t)
		began := time.Now()
		_, err := bus.Subscribe("order.*", func(ctx context.Context, e eventbus.Event) error {
			fmt.Println(time.Since(began), e.Key, e.Type)
			if d, _ := eventbus.FromContext(ctx); e.Type == "order.paid" && d.Attempt == 1 {
				return errors.New("the bank does not answer")
			}
			return nil
		}, eventbus.Retry(eventbus.Delays(time.Minute), eventbus.NoJitter))
		if err != nil {
			return err
		}
		for _, step := range []struct{ eventType, order string }{
			{"order.paid", "o-17"}, {"order.shipped", "o-17"}, {"order.shipped", "o-18"},
		} {
			if _, err := bus.Publish(ctx, step.eventType, nil, eventbus.Key(step.order)); err != nil {
				return err
			}
			time.Sleep(time.Second)
		}
		return bus.Drain(ctx)
	})
}

func docsKeyIsolated(t *testing.T) error {
	return inBubble(t, func(t *testing.T) error {
		bus, release := eventbustest.New(t), make(chan struct{})
		var stock, mail eventbustest.Recorder
		sendMail := mail.Handle
		_, err := bus.Subscribe("order.*", sendMail, eventbus.Named("mail"), eventbus.Isolated())
		require.NoError(t, err)
		_, err = bus.Subscribe("order.*", stock.Wrap(eventbustest.Block(release)), eventbus.Named("stock"))
		require.NoError(t, err)
		for _, eventType := range []string{"order.placed", "order.paid"} {
			_, err := bus.Publish(t.Context(), eventType, nil, eventbus.Key("o-17"))
			require.NoError(t, err)
		}
		mail.Wait(t, 2)
		require.Equal(t, "order.paid", mail.Deliveries()[1].Event.Type)
		require.Len(t, stock.Deliveries(), 1)
		close(release)
		return bus.Drain(t.Context())
	})
}

func docsKeyHeld(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	for _, name := range []string{"stock", "mail"} {
		_, err := bus.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error {
			fmt.Println(name, e.Type)
			return nil
		}, eventbus.Named(name))
		require.NoError(t, err)
	}
	if err := bus.Subscription("mail").Pause(); err != nil {
		return err
	}
	for _, eventType := range []string{"order.placed", "order.paid"} {
		result, err := bus.PublishAndWait(ctx, eventType, nil, eventbus.Key("o-17"))
		if !errors.Is(err, eventbus.ErrHeld) {
			return err
		}
		fmt.Println("held at", result.Held)
	}
	err := bus.Subscription("mail").Resume()
	eventbustest.WaitSettled(t, bus)
	return err
}

// inBubble runs f with virtual time.
func inBubble(t *testing.T, f func(t *testing.T) error) (failed error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { failed = f(t) })
	return failed
}
