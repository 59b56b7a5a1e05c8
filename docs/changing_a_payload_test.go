package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/storetest"
)

func TestDocs_ChangingAPayload(t *testing.T) {
	docpagetest.Page(t, "changing-a-payload.md",
		docpagetest.Code(docsFieldMore),
		docpagetest.Code(docsAnotherName),
		docpagetest.Code(docsNewType),
		docpagetest.Code(docsOldEventsLeft),
		docpagetest.Code(docsConvertLetters),
		docpagetest.Code(docsStrictDecoding),
		docpagetest.Code(docsPayloadVersions),
	)
}

func docsFieldMore(t *testing.T) error {
	type Order struct {
		ID    string `json:"id"`
		Cents int    `json:"cents"`
		// Currency is empty in events that are older than this field.
		Currency string `json:"currency,omitempty"`
	}
	type earlier struct {
		ID    string `json:"id"`
		Cents int    `json:"cents"`
	}
	require.Equal(t, Order{ID: "o-1", Cents: 5}, decoded[Order](t, earlier{"o-1", 5}))
	require.Equal(t, earlier{"o-1", 5}, decoded[earlier](t, Order{"o-1", 5, "EUR"}))
	return nil
}

// decoded returns a payload as a handler for a T gets it from a store.
func decoded[T any](t *testing.T, payload any) (got T) {
	t.Helper()
	bus := eventbustest.New(t, eventbus.WithStore(storetest.NewModel().Open()))
	_, err := bus.Subscribe("decoded", eventbus.Typed(func(_ context.Context, payload T) error {
		got = payload
		return nil
	}), eventbus.Named("decoded"))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "decoded", payload)
	require.NoError(t, err)
	return got
}

type Transfer struct {
	Order string `json:"order"`
	Total int    `json:"total"`
	// Cents is the earlier name of Total. Remove it when no old event is left.
	Cents int `json:"cents,omitempty"`
}

// Amount reads events of both versions.
func (t Transfer) Amount() int {
	if t.Total == 0 {
		return t.Cents
	}
	return t.Total
}

func docsAnotherName(t *testing.T) error {
	require.Equal(t, 5, decoded[Transfer](t, json.RawMessage(`{"order":"o-1","cents":5}`)).Amount())
	require.Equal(t, 5, decoded[Transfer](t, Transfer{"o-1", 5, 5}).Amount())
	type renamed struct {
		Order string `json:"order"`
		Total int    `json:"total"`
	}
	require.Zero(t, decoded[renamed](t, json.RawMessage(`{"order":"o-1","cents":5}`)).Total)
	return nil
}

func docsNewType(t *testing.T) error {
	type (
		Order   struct{ ID string }
		OrderV2 struct{ Number int }
	)
	var (
		OrderPlaced   = eventbus.NewTopic[Order]("order.placed")
		OrderPlacedV2 = eventbus.NewTopic[OrderV2]("order.placed_v2")
	)
	ctx, bus := t.Context(), eventbustest.New(t)
	var all, old eventbustest.Recorder
	_, err := bus.Subscribe("order.*", all.Handle)
	require.NoError(t, err)
	_, err = bus.Subscribe("order.placed", old.Handle)
	require.NoError(t, err)
	_, err = OrderPlaced.Publish(ctx, bus, Order{"o-1"})
	require.NoError(t, err)
	_, err = OrderPlacedV2.Publish(ctx, bus, OrderV2{1})
	require.NoError(t, err)
	_, err = bus.Publish(ctx, "order.placed.v2", OrderV2{1})
	require.NoError(t, err)
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, 2, all.Len())
	require.Equal(t, 1, old.Len())
	return nil
}

func docsOldEventsLeft(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t, eventbus.WithStore(storetest.NewModel().Open()))
	stock, err := bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("stock"))
	require.NoError(t, err)
	require.NoError(t, stock.Pause())
	_, err = bus.Publish(ctx, "order.placed", nil)
	require.NoError(t, err)
	eventbustest.WaitSettled(t, bus, eventbustest.HeldIsSettled())
	left, err := bus.Dispatches(ctx, eventbus.DispatchQuery{Type: "order.placed"})
	if err != nil {
		return err
	}
	letters, err := bus.DLQ().List(ctx, eventbus.LetterQuery{Type: "order.placed"})
	if err != nil {
		return err
	}
	fmt.Println(len(left.Dispatches), "waiting,", letters.Total, "dead letters")
	return stock.Resume()
}

// order is a payload whose price changed its type.
type order struct {
	ID    string
	Price int
}

func fromPrice(id, price string) (order, error) {
	euros, err := strconv.ParseFloat(price, 64)
	return order{id, int(math.Round(euros * 100))}, err
}

func docsConvertLetters(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t, eventbus.WithStore(storetest.NewModel().Open()))
	var got []order
	_, err := bus.Subscribe("order.placed", eventbus.Typed(func(_ context.Context, o order) error {
		got = append(got, o)
		return nil
	}), eventbus.Named("billing"))
	require.NoError(t, err)
	_, err = bus.Publish(ctx, "order.placed", json.RawMessage(`{"id":"o-17","price":"42.00"}`))
	require.NoError(t, err)
	letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
	require.Equal(t, "*eventbus.PayloadTypeError", letter.Failures[0].Class)
	require.Equal(t, 1, letter.Attempts)
	replay := func() error {
		page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{Type: "order.placed", Reason: eventbus.ReasonPermanent, Error: "cannot become"})
		if err != nil {
			return err
		}
		for _, letter := range page.Letters {
			var old struct{ ID, Price string } // {"id": "o-17", "price": "42.00"}
			if err := json.Unmarshal(letter.Event.Payload.(json.RawMessage), &old); err != nil {
				return err
			}
			order, err := fromPrice(old.ID, old.Price)
			if err != nil {
				return err
			}
			if err := bus.DLQ().ReplayEdited(ctx, letter.ID, order, eventbus.Because("price is cents now")); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, replay())
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []order{{"o-17", 4200}}, got)
	return nil
}

func docsStrictDecoding(t *testing.T) error {
	bus := eventbustest.New(t, eventbus.WithEncodedPayloads())
	bill := func(context.Context, order) error { return nil }
	_, err := bus.Subscribe("order.placed", eventbus.Typed(bill), eventbus.Named("billing"), eventbus.StrictDecoding())
	require.NoError(t, err)
	_, err = bus.Publish(t.Context(), "order.placed", json.RawMessage(`{"ID":"o-17","prize":4200}`))
	require.NoError(t, err)
	letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
	require.Equal(t, eventbus.ReasonPermanent, letter.Reason)
	require.Contains(t, letter.Failures[0].Error, `unknown field "prize"`)
	return nil
}

func docsPayloadVersions(t *testing.T) error {
	type Order struct {
		ID       string
		Cents    int
		Currency string
	}
	bus := eventbustest.New(t, eventbus.WithEncodedPayloads())
	var got []Order
	_, err := bus.Subscribe("order.placed", eventbus.Typed(func(_ context.Context, o Order) error {
		got = append(got, o)
		return nil
	}))
	require.NoError(t, err)
	for _, version := range []string{`{"id":"o-1","cents":5}`, `{"id":"o-1","cents":5,"currency":"EUR"}`} {
		_, err := bus.PublishAndWait(t.Context(), "order.placed", json.RawMessage(version))
		require.NoError(t, err)
	}
	require.Equal(t, []Order{{"o-1", 5, ""}, {"o-1", 5, "EUR"}}, got)
	return nil
}
