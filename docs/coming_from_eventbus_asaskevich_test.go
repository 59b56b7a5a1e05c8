package docs_test

import (
	"context"
	"log"
	"testing"
	"testing/synctest"

	EventBus "github.com/asaskevich/EventBus"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_ComingFromEventbusAsaskevich(t *testing.T) {
	docpagetest.Page(t, "coming-from/eventbus-asaskevich.md",
		docpagetest.Code(docsAsaskevichTheirs),
		docpagetest.Code(docsOursInMemory),
	)
}

func docsAsaskevichTheirs(t *testing.T) error {
	ctx := t.Context()
	type Order struct{ ID string }
	sendMail, sent := failsOnce(func(o Order) string { return o.ID })
	bus := EventBus.New()
	err := bus.SubscribeAsync("order.placed", func(order Order) {
		if err := sendMail(ctx, order); err != nil {
			log.Printf("order %s: %v", order.ID, err) // a handler returns no error
		}
	}, false)
	if err != nil {
		return err
	}

	bus.Publish("order.placed", Order{ID: "o-17"})

	bus.WaitAsync()
	require.False(t, isClosed(sent), "it calls no handler again")
	return nil
}

// What the page says of the other library, beside the code that it shows.
func TestPages_ComingFromEventbusAsaskevich_Theirs(t *testing.T) {
	t.Run("a panic reaches the publisher", func(t *testing.T) {
		bus := EventBus.New()
		require.NoError(t, bus.Subscribe("order.placed", func(string) { panic("boom") }))
		require.Panics(t, func() { bus.Publish("order.placed", "o-17") })
	})
	t.Run("so does a payload of another type", func(t *testing.T) {
		bus := EventBus.New()
		require.NoError(t, bus.Subscribe("order.placed", func(string) {}))
		require.Panics(t, func() { bus.Publish("order.placed", 17) })
	})
	t.Run("a topic is a plain text", func(t *testing.T) {
		bus := EventBus.New()
		require.NoError(t, bus.Subscribe("order.*", func(string) { t.Error("called") }))
		bus.Publish("order.placed", "o-17")
	})
	t.Run("a handler that publishes", func(t *testing.T) {
		bus, published := EventBus.New(), make(chan struct{})
		require.NoError(t, bus.Subscribe("order.placed", func(id string) {
			bus.Publish("mail.due", id)
			close(published)
		}))
		go bus.Publish("order.placed", "o-17") // it stays: that is the point
		require.True(t, staysOpen(published), "Publish holds the lock that a Publish of the handler needs")
	})
}

// The bus reports what the other library panics for.
func TestPages_ComingFromEventbusAsaskevich_Ours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventbustest.New(t)
		_, err := bus.Subscribe("order.*", eventbus.Typed(func(ctx context.Context, _ string) error {
			_, err := bus.Publish(ctx, "mail.due", 1)
			require.NoError(t, err)
			panic("boom")
		}), eventbus.Named("stock"))
		require.NoError(t, err)
		_, err = bus.Publish(t.Context(), "order.placed", "o-17")
		require.NoError(t, err)
		_, err = bus.Publish(t.Context(), "order.shipped", 17)
		require.NoError(t, err)
		letters := eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{Subscription: "stock"}, 2)
		require.Len(t, letters, 2)
	})
}
