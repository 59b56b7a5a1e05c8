package docs_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/storetest"
)

func TestDocs_RenamingAndRemovingASubscription(t *testing.T) {
	docpagetest.Page(t, "renaming-and-removing-a-subscription.md",
		docpagetest.Code(docsNamed),
		docpagetest.Code(docsFormerly),
		docpagetest.Code(docsOrphaned),
		docpagetest.Code(docsRetire),
		docpagetest.Code(docsRenameInTwoDeploys),
		docpagetest.Code(docsDetach),
		docpagetest.Code(docsOnce),
	)
}

// leave publishes an event for a subscription, whose process leaves it in the store.
func leave(t *testing.T, model *storetest.Model, names ...eventbus.SubscribeOption) {
	t.Helper()
	bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
	sub, err := bus.Subscribe("order.*", eventbustest.Fail(nil), names...)
	require.NoError(t, err)
	require.NoError(t, sub.Pause())
	_, err = bus.Publish(t.Context(), "order.placed", "o-17")
	require.NoError(t, err)
	eventbustest.WaitSettled(t, bus, eventbustest.HeldIsSettled())
	require.NoError(t, bus.Shutdown(t.Context()))
}

// The pattern may change: what waits goes to the name.
func docsNamed(t *testing.T) error {
	model := storetest.NewModel()
	leave(t, model, eventbus.Named("mail"))
	bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
	var rec eventbustest.Recorder
	mail, err := bus.Subscribe("retired.mail", rec.Handle, eventbus.Named("mail"))
	require.NoError(t, err)
	require.NoError(t, mail.Resume())
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []string{"o-17"}, eventbustest.Payloads[string](&rec))

	send := rec.Handle
	bus = eventbustest.New(t)
	subscribe := func() error {
		_, err := bus.Subscribe("order.*", send, eventbus.Named("mail"))
		return err
	}
	return subscribe()
}

func docsFormerly(t *testing.T) error {
	model := storetest.NewModel()
	leave(t, model, eventbus.Named("mail"))
	var rec eventbustest.Recorder
	send := rec.Handle
	bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
	_, err := bus.Subscribe("order.*", send, eventbus.Named("notifications"), eventbus.Formerly("mail"))
	require.NoError(t, err)
	eventbustest.WaitSettled(t, bus, eventbustest.HeldIsSettled())
	require.Zero(t, rec.Len(), "the pause of mail holds")
	require.NoError(t, bus.Subscription("notifications").Resume())
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []string{"o-17"}, eventbustest.Payloads[string](&rec))
	return nil
}

func docsOrphaned(t *testing.T) error {
	model := storetest.NewModel()
	leave(t, model, eventbus.Named("mail"))
	bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
	eventbustest.WaitSettled(t, bus)
	fmt.Println("orphaned:", bus.Metrics().Orphaned)
	_, err := bus.Retire(t.Context(), "mail", eventbus.DropRetired())
	return err
}

func docsRetire(t *testing.T) error {
	model := storetest.NewModel()
	leave(t, model, eventbus.Named("mail"))
	ctx, bus := t.Context(), eventbustest.New(t, eventbus.WithStore(model.Open()))
	report, err := bus.Retire(ctx, "mail", eventbus.By("anna"), eventbus.Because("mails are sent by the CRM now"))
	if err != nil {
		return err
	}
	fmt.Println("ended:", report.Ended)
	letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
	require.Equal(t, eventbus.ReasonUnsubscribed, letter.Reason)
	return nil
}

func docsRenameInTwoDeploys(t *testing.T) error {
	model := storetest.NewModel()
	leave(t, model, eventbus.Named("notifications"), eventbus.Formerly("mail")) // the second deploy, which is rolled back
	var rec eventbustest.Recorder
	send := rec.Handle
	bus := eventbustest.New(t, eventbus.WithStore(model.Open()))
	_, err := bus.Subscribe("order.*", send, eventbus.Named("mail"), eventbus.Formerly("notifications"))
	require.NoError(t, err)
	require.NoError(t, bus.Subscription("mail").Resume())
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []string{"o-17"}, eventbustest.Payloads[string](&rec))

	// While both versions run, the second deploy runs no event twice.
	second := eventbustest.NewUnstarted(t, eventbus.WithStore(model.Open()), eventbus.WithStandby())
	_, err = second.Subscribe("order.*", send, eventbus.Named("notifications"), eventbus.Formerly("mail"))
	require.NoError(t, err)
	started := make(chan error, 1)
	go func() { started <- second.Start(t.Context()) }()
	for _, publisher := range []*eventbus.Bus{bus, second} {
		_, err = publisher.Publish(t.Context(), "order.placed", "o-18")
		require.NoError(t, err)
	}
	rec.Wait(t, 3)
	require.NoError(t, bus.Shutdown(t.Context()))
	require.NoError(t, <-started)
	eventbustest.WaitSettled(t, second)
	require.Equal(t, 3, rec.Len())
	return nil
}

func docsDetach(t *testing.T) error {
	return eachKindOfBus(t, func(t *testing.T, bus *eventbus.Bus) error {
		var rec eventbustest.Recorder
		sendBetter := rec.Handle
		_, err := bus.Subscribe("order.*", eventbustest.Fail(nil), eventbus.Named("mail"))
		require.NoError(t, err)
		require.NoError(t, bus.Subscription("mail").Detach())
		_, err = bus.Publish(t.Context(), "order.placed", "o-17")
		require.NoError(t, err)
		eventbustest.WaitSettled(t, bus, eventbustest.HeldIsSettled())
		replace := func() error {
			if err := bus.Subscription("mail").Detach(); err != nil {
				return err
			}
			// Events that are published now are held.
			_, err := bus.Subscribe("order.*", sendBetter, eventbus.Named("mail"))
			return err
		}
		require.NoError(t, replace())
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, []string{"o-17"}, eventbustest.Payloads[string](&rec))
		return nil
	})
}

func docsOnce(t *testing.T) error {
	return eachKindOfBus(t, func(t *testing.T, bus *eventbus.Bus) error {
		var rec eventbustest.Recorder
		rec.FailNext(1, nil)
		open := rec.Handle
		_, err := bus.Subscribe("cache.warmed", open, eventbus.Named("opening"), eventbus.Once())
		require.NoError(t, err)
		for range 3 {
			_, err := bus.Publish(t.Context(), "cache.warmed", nil)
			require.NoError(t, err)
		}
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 2, rec.Len(), "one event and its retry")
		require.False(t, bus.Subscription("opening").Exists())
		return nil
	})
}

// eachKindOfBus runs f with a bus in memory and one with a store.
func eachKindOfBus(t *testing.T, f func(t *testing.T, bus *eventbus.Bus) error) error {
	t.Helper()
	for _, opts := range [][]eventbus.Option{nil, {eventbus.WithStore(storetest.NewModel().Open())}} {
		opts = append(opts, eventbus.WithRetry(eventbus.BaseDelay(0)))
		if err := f(t, eventbustest.New(t, opts...)); err != nil {
			return err
		}
	}
	return nil
}
