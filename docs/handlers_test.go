package docs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/periodic"
)

func TestDocs_Handlers(t *testing.T) {
	docpagetest.Page(t, "handlers.md",
		docpagetest.InBubble(docsTyped),
		docpagetest.InBubble(docsTopic),
		docpagetest.InBubble(docsTopic),
		docpagetest.InBubble(docsFromContext),
		docpagetest.Code(docsMetadata),
		docpagetest.InBubble(docsMiddleware),
		docpagetest.InBubble(docsPeriodic),
	)
}

// The rows of the page's table of patterns.
func TestHandlers_Patterns(t *testing.T) {
	for pattern, types := range map[string]struct{ matches, others []string }{
		"order.placed":              {[]string{"order.placed"}, []string{"order.placed.eu"}},
		"order.*":                   {[]string{"order.placed"}, []string{"order", "order.placed.eu"}},
		"order.**":                  {[]string{"order.placed", "order.placed.eu", "order"}, []string{"orders"}},
		"user.cre*":                 {[]string{"user.created"}, []string{"user.c"}},
		"{order.placed,order.paid}": {[]string{"order.placed", "order.paid"}, []string{"order.shipped"}},
		"file.[a-z0-9]":             {[]string{"file.a"}, []string{"file.ab"}},
		"file.?":                    {[]string{"file.a"}, []string{"file.ab"}},
		"*":                         {[]string{"order", "order.placed"}, nil},
		"**":                        {[]string{"order", "order.placed"}, nil},
	} {
		bus := eventbustest.New(t)
		handler, _ := failing()
		_, err := bus.Subscribe(pattern, handler)
		require.NoError(t, err)
		for _, is := range types.matches {
			require.Len(t, bus.Explain(is).Targets, 1, "%s and %s", pattern, is)
		}
		for _, other := range types.others {
			require.Empty(t, bus.Explain(other).Targets, "%s and %s", pattern, other)
		}
	}
}

func docsTyped(t *testing.T) error {
	bus := eventbustest.New(t)
	_, err := bus.Subscribe("order.*", eventbus.Typed(func(ctx context.Context, o Order) error {
		fmt.Println("order", o.ID)
		return nil
	}), eventbus.Named("mail"))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", Order{ID: "o-17"})
	require.NoError(t, err)
	result, err := bus.PublishAndWait(t.Context(), "order.placed", "o-17")
	require.Error(t, err)
	require.Equal(t, 1, result.Attempts)
	eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
	return nil
}

var OrderPlaced = eventbus.NewTopic[Order]("order.placed")

func docsTopic(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	_, err := OrderPlaced.Subscribe(bus, func(ctx context.Context, o Order) error {
		fmt.Println("order", o.ID)
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := OrderPlaced.Publish(ctx, bus, Order{ID: "o-17"}); err != nil {
		return err
	}
	return bus.Drain(ctx)
}

// recordingBank fails once, and remembers its payments.
type recordingBank struct{ payments []Payment }

func (b *recordingBank) Charge(_ context.Context, p Payment) error {
	if b.payments = append(b.payments, p); len(b.payments) == 1 {
		return errors.New("the connection broke: has it been charged?")
	}
	return nil
}

func docsFromContext(t *testing.T) error {
	bus, bank := eventbustest.New(t), new(recordingBank)
	_, err := bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		delivery, _ := eventbus.FromContext(ctx)
		return bank.Charge(ctx, Payment{Order: delivery.Event.ID.String() + "/" + delivery.Subscription})
	}, eventbus.Named("billing"))
	require.NoError(t, err)
	result, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
	key := Payment{Order: result.ID.String() + "/billing"}
	require.Equal(t, []Payment{key, key}, bank.payments)
	return err
}

type tenantKey struct{}

func tenantOf(ctx context.Context) string { return ctx.Value(tenantKey{}).(string) }

func docsMetadata(t *testing.T) error {
	bus, err := eventbus.New(
		eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string { // also in stores and dead letters
			return map[string]string{"tenant": tenantOf(ctx)}
		}),
		eventbus.WithInheritedMetadata("tenant"), // events that handlers publish have it too
	)
	adopt(t, bus, err)
	var tenant string
	_, err = bus.Subscribe("order.placed", func(_ context.Context, e eventbus.Event) error {
		tenant = e.Metadata.Get("tenant")
		return nil
	})
	require.NoError(t, err)
	_, err = bus.PublishAndWait(context.WithValue(t.Context(), tenantKey{}, "acme"), "order.placed", nil)
	require.Equal(t, "acme", tenant)
	return err
}

func docsMiddleware(t *testing.T) error {
	bus := eventbustest.New(t)
	handler, _ := failing()
	timed := func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			err := next(ctx, e)
			fmt.Println(e.Type, err)
			return err
		}
	}
	_, err := bus.Subscribe("order.placed", handler, eventbus.Use(timed))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	return err
}

func docsPeriodic(t *testing.T) error {
	bus := eventbustest.New(t)
	handler, rec := failing()
	_, err := bus.Subscribe("report.daily", handler)
	require.NoError(t, err)
	daily, err := periodic.Every(bus, "0 8 * * *", "report.daily", nil, periodic.In(time.UTC))
	if err != nil {
		return err
	}
	defer daily.Stop()
	time.Sleep(48 * time.Hour) // in the bubble
	require.Len(t, rec.Deliveries(), 2)
	return nil
}
