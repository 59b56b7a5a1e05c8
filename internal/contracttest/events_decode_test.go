package contracttest

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// onBothEncoded is onBoth with payloads that are encoded in memory, too.
func onBothEncoded(t *testing.T, test func(t *testing.T, bus *eventbus.Bus), opts ...eventbus.Option) {
	t.Helper()
	onBoth(t, test, append([]eventbus.Option{eventbus.WithEncodedPayloads()}, opts...)...)
}

// stockItem has members of which placed has none.
type stockItem struct {
	SKU   string `json:"sku"`
	Count int    `json:"count"`
}

// An object of which no member fits the handler's struct is dead at once, and says which members it has.
func TestE5_AnObjectOfWhichNoMemberFits(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "*", eventbus.Typed(func(context.Context, placed) error { return nil }), eventbus.Named("invoice"))
		require.NoError(t, bus.Start(t.Context()))
		_, err := bus.PublishAndWait(t.Context(), "order.placed", stockItem{"x", 1})
		var wrong *eventbus.PayloadTypeError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, "contracttest.placed", wrong.Want)
		letter := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonPermanent, letter.Reason)
		require.Contains(t, letter.Failures[0].Error, `no member of the object fits: it has "sku", "count", and the type has "Order", "Total"`)

		for _, fits := range []any{placed{}, json.RawMessage(`{}`), json.RawMessage(`{"order":0,"sku":"x"}`), json.RawMessage(`null`)} {
			_, err = bus.PublishAndWait(t.Context(), "order.placed", &fits)
			if string(must(json.Marshal(fits))) != "null" { // null is no struct, as before
				require.NoError(t, err, "%s", fits)
			}
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// StrictDecoding refuses each unknown member, at its own subscription.
func TestE5_StrictDecodingRefusesUnknownMembers(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		got := new(journal[placed])
		handle := func(_ context.Context, p placed) error { got.add(p); return nil }
		mustSubscribe(t, bus, "a", eventbus.Typed(handle), eventbus.Named("strict"), eventbus.StrictDecoding())
		mustSubscribe(t, bus, "b", eventbus.Typed(handle), eventbus.Named("lenient"))
		require.NoError(t, bus.Start(t.Context()))
		more := json.RawMessage(`{"Order":1,"Total":2.5,"Currency":"EUR"}`)
		_, err := bus.PublishAndWait(t.Context(), "a", more)
		var wrong *eventbus.PayloadTypeError
		require.ErrorAs(t, err, &wrong)
		require.ErrorContains(t, wrong.Err, `unknown field "Currency"`)
		require.Equal(t, eventbus.ReasonPermanent, oneLetter(t, bus).Reason)
		_, err = bus.PublishAndWait(t.Context(), "b", more)
		require.NoError(t, err)
		_, err = bus.PublishAndWait(t.Context(), "a", placed{2, 3})
		require.NoError(t, err)
		require.Equal(t, []placed{{1, 2.5}, {2, 3}}, got.all())
	})
}

// With WithCodec the codec decodes, and StrictDecoding would have no effect: it is refused.
func TestE5_StrictDecodingIsForJSON(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		_, err := bus.Subscribe("a", ok, eventbus.Named("a"), eventbus.StrictDecoding())
		requireOptionError(t, err, "StrictDecoding")
	}, eventbus.WithCodec(spaced{}))
}

// spaced is a codec that is no JSON: a space precedes it.
type spaced struct{}

func (spaced) Marshal(payload any) ([]byte, error) {
	data, err := json.Marshal(payload)
	return append([]byte(" "), data...), err
}

func (spaced) Unmarshal(data []byte, pointer any) error { return json.Unmarshal(data, pointer) }

// With WithEncodedPayloads, each handler in memory gets its own copy of the payload, as with a store.
func TestE5_EncodedPayloadsInMemory(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		untyped, typed := new(journal[string]), new(journal[placed])
		mustSubscribe(t, bus, "a", func(_ context.Context, e eventbus.Event) error {
			untyped.add(string(e.Payload.(json.RawMessage)))
			return nil
		}, eventbus.Named("untyped"))
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, p *placed) error {
			typed.add(*p)
			p.Order = 99
			return nil
		}), eventbus.Named("typed"))
		mustSubscribe(t, bus, "a", eventbus.Typed(func(_ context.Context, p *placed) error {
			typed.add(*p)
			return nil
		}), eventbus.Named("typed after it"))
		order := &placed{1, 2}
		id := mustPublish(t, bus, "a", order)
		require.False(t, id.IsZero())
		order.Order = 7
		require.NoError(t, bus.Start(t.Context()))
		_, err := bus.PublishAndWait(t.Context(), "a", &placed{2, 3})
		require.NoError(t, err)
		synctest.Wait()
		require.ElementsMatch(t, []string{`{"Order":1,"Total":2}`, `{"Order":2,"Total":3}`}, untyped.all())
		require.ElementsMatch(t, []placed{{1, 2}, {1, 2}, {2, 3}, {2, 3}}, typed.all())
	})
}

// In memory, too, a payload that cannot be encoded or is too large is refused.
func TestE5_EncodedPayloadsAreRefusedInMemory(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "a", ok, eventbus.Named("a"))
		for _, payload := range []any{make(chan int), "longer than ten bytes", func() {}} {
			_, err := bus.Publish(t.Context(), "a", payload)
			var refused *eventbus.PayloadError
			require.ErrorAs(t, err, &refused)
		}
		require.Zero(t, bus.Metrics().Ledger.Accepted)
	}, eventbus.WithPayloadLimit(10))
}

// The codec is that of the bus, and an edited replay is encoded by it.
func TestE5_EncodedPayloadsInMemoryHaveTheCodec(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		raw, values := new(journal[string]), new(journal[placed])
		mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
			raw.add(string(e.Payload.(eventbus.EncodedPayload)))
			return eventbus.Typed(func(_ context.Context, p placed) error {
				values.add(p)
				if p.Order < 0 {
					return eventbus.Permanent(errBoom)
				}
				return nil
			})(ctx, e)
		}, eventbus.Named("a"))
		require.NoError(t, bus.Start(t.Context()))
		_, err := bus.PublishAndWait(t.Context(), "a", placed{-1, 2})
		require.Error(t, err)
		err = bus.DLQ().ReplayEdited(t.Context(), oneLetter(t, bus).ID, placed{3, 4})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []string{` {"Order":-1,"Total":2}`, ` {"Order":3,"Total":4}`}, raw.all())
		require.Equal(t, []placed{{-1, 2}, {3, 4}}, values.all())
		require.Empty(t, letters(t, bus))
	}, eventbus.WithCodec(spaced{}))
}
