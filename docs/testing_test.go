package docs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/storetest"
)

func TestDocs_Testing(t *testing.T) {
	docpagetest.Page(t, "testing.md",
		docpagetest.Code(docsFirstTest),
		docpagetest.Code(docsRecorder),
		docpagetest.Code(docsFailNext),
		docpagetest.Code(docsDeadLetter),
		docpagetest.Code(docsBoth),
		docpagetest.Code(docsCrash),
	)
}

// Checkout is a service that learns which orders are paid.
type Checkout struct {
	mu   sync.Mutex
	paid map[string]bool
}

// NewCheckout subscribes to payments. A test's bus is fresh: no name is in use.
func NewCheckout(bus *eventbus.Bus) *Checkout {
	c := &Checkout{paid: make(map[string]bool)}
	_, err := bus.Subscribe("payment.received", eventbus.Typed(func(_ context.Context, order string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paid[order] = true
		return nil
	}), eventbus.Named("checkout"))
	if err != nil {
		panic(err)
	}
	return c
}

// Paid reports whether an order is paid.
func (c *Checkout) Paid(order string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paid[order]
}

// Invoicing is a service that publishes.
type Invoicing struct{ bus *eventbus.Bus }

// NewInvoicing returns a service that publishes to a bus.
func NewInvoicing(bus *eventbus.Bus) *Invoicing { return &Invoicing{bus} }

// Close makes the invoice of an order.
func (i *Invoicing) Close(ctx context.Context, order string) error {
	_, err := i.bus.Publish(ctx, "invoice.created", order)
	return err
}

// NewMailing subscribes a handler that always succeeds.
func NewMailing(bus *eventbus.Bus) {
	_, err := bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"),
		eventbus.Retry(eventbus.Delays(time.Minute, time.Hour), eventbus.NoJitter))
	if err != nil {
		panic(err)
	}
}

func TestCheckout_Paid(t *testing.T) {
	bus := eventbustest.New(t)
	checkout := NewCheckout(bus) // subscribes to payment.received

	_, err := bus.Publish(t.Context(), "payment.received", "o-17")
	require.NoError(t, err)
	eventbustest.WaitSettled(t, bus)

	require.True(t, checkout.Paid("o-17"))
}

func docsFirstTest(t *testing.T) error {
	TestCheckout_Paid(t)
	return nil
}

func docsRecorder(t *testing.T) error {
	bus := eventbustest.New(t)
	var invoices eventbustest.Recorder
	_, err := bus.Subscribe("invoice.*", invoices.Handle)
	require.NoError(t, err)

	invoicing := NewInvoicing(bus)
	require.NoError(t, invoicing.Close(t.Context(), "o-17"))
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []string{"o-17"}, eventbustest.Payloads[string](&invoices))
	return nil
}

func docsFailNext(t *testing.T) error {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, eventbus.WithMiddleware(rec.Wrap))
		NewMailing(bus) // subscribes as mail, with Retry(Delays(time.Minute, time.Hour), NoJitter)
		rec.FailNext(2, errors.New("the mail server is busy"))

		id, err := bus.Publish(t.Context(), "order.placed", "o-17")
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []time.Duration{time.Minute, time.Hour}, rec.Delays(id))
	})
	return nil
}

func docsDeadLetter(t *testing.T) error {
	synctest.Test(t, func(t *testing.T) {
		var rec eventbustest.Recorder
		bus := eventbustest.New(t, eventbus.WithMiddleware(rec.Wrap))
		NewMailing(bus)
		rec.Script(eventbustest.Overrun, eventbustest.Panic("no template"), eventbustest.Fail(nil))

		_, err := bus.Publish(t.Context(), "order.placed", "o-17")
		require.NoError(t, err)
		letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Subscription: "mail"})
		require.Equal(t, 3, letter.Attempts)
	})
	return nil
}

func TestCheckout_PaidInMemoryAndStored(t *testing.T) {
	eventbustest.Both(t, func(t *testing.T, newBus func(testing.TB, ...eventbus.Option) *eventbus.Bus) {
		bus := newBus(t)
		checkout := NewCheckout(bus)
		_, err := bus.Publish(t.Context(), "payment.received", "o-17")
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus)
		require.True(t, checkout.Paid("o-17"))
	})
}

// docsBoth is the place of TestCheckout_PaidInMemoryAndStored, which has subtests and runs on its own.
func docsBoth(*testing.T) error { return nil }

func docsCrash(t *testing.T) error {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		var rec eventbustest.Recorder
		first := eventbustest.New(t, eventbus.WithStore(model.Open()), eventbus.WithMiddleware(rec.Wrap))
		NewCheckout(first)
		rec.Script(eventbustest.Overrun) // the handler runs when the process crashes
		_, err := first.Publish(t.Context(), "payment.received", "o-17")
		require.NoError(t, err)
		rec.WaitBegun(t, 1)
		eventbustest.Crash(t, first, model.Crash)

		second := eventbustest.New(t, eventbus.WithStore(model.Open()))
		checkout := NewCheckout(second)
		eventbustest.WaitSettled(t, second)
		require.True(t, checkout.Paid("o-17"))
	})
	return nil
}
