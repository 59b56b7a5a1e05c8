package eventbustest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/storetest"
)

// A service: who has placed an order is charged for it, and told so.

type Order struct {
	ID    string
	Cents int
}

type Bank interface {
	Charge(ctx context.Context, order string, cents int) error
}

type Orders struct {
	bus  *eventbus.Bus
	bank Bank
}

func NewOrders(bus *eventbus.Bus, bank Bank) (*Orders, error) {
	o := &Orders{bus, bank}
	_, err := bus.Subscribe("order.placed", eventbus.Typed(o.charge), eventbus.Named("billing"),
		eventbus.Timeout(5*time.Second), eventbus.Retry(eventbus.MaxRetries(2), eventbus.BaseDelay(time.Minute), eventbus.MaxDelay(time.Hour)))
	return o, err
}

func (o *Orders) Place(ctx context.Context, order Order) error {
	_, err := o.bus.Publish(ctx, "order.placed", order)
	return err
}

func (o *Orders) charge(ctx context.Context, order Order) error {
	if order.Cents <= 0 {
		return eventbus.Permanent(fmt.Errorf("order %s costs %d cents", order.ID, order.Cents))
	}
	if err := o.bank.Charge(ctx, order.ID, order.Cents); err != nil {
		return err
	}
	_, err := o.bus.Publish(ctx, "order.paid", order)
	return err
}

type bankFunc func(ctx context.Context, order string, cents int) error

func (f bankFunc) Charge(ctx context.Context, order string, cents int) error {
	return f(ctx, order, cents)
}

func solvent(context.Context, string, int) error { return nil }

// newOrders makes the service for a test, and records what it publishes and what
// its handlers do.
func newOrders(t *testing.T, bank bankFunc, opts ...eventbus.Option) (*Orders, *eventbus.Bus, *eventbustest.Recorder) {
	t.Helper()
	rec := new(eventbustest.Recorder)
	bus := eventbustest.New(t, append(opts, eventbus.WithMiddleware(rec.Wrap))...)
	orders, err := NewOrders(bus, bank)
	require.NoError(t, err)
	_, err = bus.Subscribe("order.paid", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("paid"))
	require.NoError(t, err)
	return orders, bus, rec
}

// What a service publishes.
func TestOrders_Paid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders, bus, rec := newOrders(t, solvent)
		require.NoError(t, orders.Place(t.Context(), Order{"o-17", 4200}))

		eventbustest.NoDeadLetters(t, bus) // waits until all has settled
		require.Len(t, rec.ByType("order.paid"), 1)
		require.Equal(t, []Order{{"o-17", 4200}, {"o-17", 4200}}, eventbustest.Payloads[Order](rec))
	})
}

// What a service does about failures. Minutes take no time in here.
func TestOrders_Retried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders, bus, rec := newOrders(t, solvent, eventbus.WithRetry(eventbus.NoJitter))
		rec.FailNext(1, errors.New("the network is down"))
		rec.Script(eventbustest.Overrun)
		require.NoError(t, orders.Place(t.Context(), Order{"o-17", 4200}))

		eventbustest.NoDeadLetters(t, bus)
		placed := rec.ByType("order.placed")
		require.Len(t, placed, 3)
		require.ErrorIs(t, placed[1].Err, context.DeadlineExceeded)
		require.Equal(t, []time.Duration{time.Minute, 2 * time.Minute}, rec.Delays(placed[0].Event.ID))
	})
}

// What a service gives up. A letter that a test does not expect fails it.
func TestOrders_Dead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := false
		orders, bus, rec := newOrders(t, func(context.Context, string, int) error {
			if !up {
				return errors.New("the bank does not answer")
			}
			return nil
		})
		require.NoError(t, orders.Place(t.Context(), Order{"o-17", 4200}))
		require.NoError(t, orders.Place(t.Context(), Order{"o-18", 0}))

		letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
		require.Equal(t, Order{"o-18", 0}, letter.Event.Payload)
		letter = eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonExhausted})
		require.Equal(t, 3, letter.Attempts)

		// What an operator would do after the outage.
		up = true
		require.NoError(t, bus.DLQ().Replay(t.Context(), letter.ID))
		eventbustest.WaitSettled(t, bus)
		require.Len(t, rec.ByType("order.paid"), 1)
	})
}

// What a service does about a crash. The model is the disk of both processes.
func TestOrders_Crash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := storetest.NewModel()
		store := model.Open()
		orders, bus, rec := newOrders(t, solvent, eventbus.WithStore(store))
		rec.FailNext(1, errors.New("the network is down"))
		require.NoError(t, orders.Place(t.Context(), Order{"o-17", 4200}))
		rec.Wait(t, 1)
		synctest.Wait() // the store has recorded the failure
		eventbustest.Crash(t, bus, model.Crash)

		store = model.Open()
		_, bus, rec = newOrders(t, solvent, eventbus.WithStore(store))
		eventbustest.NoDeadLetters(t, bus)
		require.Equal(t, 2, rec.ByType("order.placed")[0].Attempt)
		require.Len(t, rec.ByType("order.paid"), 1)
	})
}

// While a handler is at work.
func TestOrders_SlowBank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		orders, _, rec := newOrders(t, solvent)
		rec.Script(eventbustest.Block(release))
		require.NoError(t, orders.Place(t.Context(), Order{"o-17", 4200}))
		rec.WaitBegun(t, 1)
		require.NoError(t, orders.Place(t.Context(), Order{"o-18", 4200}))

		rec.Wait(t, 2) // o-18 is charged, and paid
		require.False(t, rec.Deliveries()[0].Ended())
		close(release) // or it would overrun, and be tried again
	})
}

// Without testing/synctest: shorten the delays that the service leaves to the bus,
// or let a mock clock drive it all, as here.
func TestOrders_MockClock(t *testing.T) {
	mock := clock.NewMock()
	orders, bus, rec := newOrders(t, solvent, eventbus.WithClock(mock))
	rec.FailNext(2, errors.New("the network is down"))
	require.NoError(t, orders.Place(t.Context(), Order{"o-17", 4200}))

	eventbustest.AdvanceUntilSettled(t, bus, mock)
	eventbustest.NoDeadLetters(t, bus)
	require.Len(t, rec.ByType("order.paid"), 1)
}

// A recorder needs no test, only a bus.
func ExampleRecorder() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	var rec eventbustest.Recorder
	rec.FailNext(1, eventbus.RetryAfter(errors.New("the bank is busy"), time.Millisecond))
	if _, err := bus.Subscribe("order.*", rec.Handle, eventbus.Named("billing")); err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", Order{"o-17", 4200}); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	for _, d := range rec.Deliveries() {
		fmt.Println(d.Subscription, "attempt", d.Attempt, d.Err)
	}
	fmt.Println(eventbustest.Payloads[Order](&rec))
	// Output:
	// billing attempt 1 the bank is busy
	// billing attempt 2 <nil>
	// [{o-17 4200}]
}
