package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
)

type invoicePaid struct{ Number int }

// jsonCodec is encoding/json as a codec of its own, for which handlers receive an EncodedPayload.
type jsonCodec struct{}

func (jsonCodec) Marshal(payload any) ([]byte, error)      { return json.Marshal(payload) }
func (jsonCodec) Unmarshal(data []byte, pointer any) error { return json.Unmarshal(data, pointer) }

func TestE5_AnAssertionOnAnEncodedPayloadNamesTyped(t *testing.T) {
	asserts := map[string]eventbus.Handler{
		"a struct":     func(_ context.Context, e eventbus.Event) error { _ = e.Payload.(invoicePaid); return nil },
		"a pointer":    func(_ context.Context, e eventbus.Event) error { _ = e.Payload.(*invoicePaid); return nil },
		"an interface": func(_ context.Context, e eventbus.Event) error { _ = e.Payload.(context.Context); return nil },
	}
	for name, h := range asserts {
		for _, opts := range [][]eventbus.Option{nil, {eventbus.WithCodec(jsonCodec{})}} {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t, append(opts, oneAttempt)...)
				mustSubscribe(t, bus, "a", h, eventbus.Named("mail"))
				require.NoError(t, bus.Start(t.Context()))
				_, err := bus.PublishAndWait(t.Context(), "a", invoicePaid{1})
				require.ErrorContains(t, err, "interface conversion", name)
				require.ErrorContains(t, err, "use Typed", name)
				require.Contains(t, oneLetter(t, bus).Failures[0].Error, "use Typed")
				shutdown(t, bus)
			})
		}
	}
}

// Other panics, and other assertions, have no such hint.
func TestE5_OtherPanicsDoNotNameTyped(t *testing.T) {
	for _, h := range []eventbus.Handler{
		func(_ context.Context, e eventbus.Event) error { _ = e.Payload.(invoicePaid); return nil },
		func(context.Context, eventbus.Event) error {
			panic("interface conversion: json.RawMessage, not a story")
		},
		func(_ context.Context, e eventbus.Event) error { _ = e.Payload.(json.RawMessage); return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, oneAttempt)
			mustSubscribe(t, bus, "a", h)
			_, err := bus.PublishAndWait(t.Context(), "a", "text")
			require.ErrorContains(t, err, "handler panicked")
			require.NotContains(t, err.Error(), "use Typed")
			shutdown(t, bus)
		})
	}
}

type hidden struct{ number int }

type empty struct{}

// What loses its content when it is encoded is accepted, and one warning for each type says so.
func TestE3_AHollowPayloadIsOneWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, logs := disk.open(t)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		for range 3 {
			for _, payload := range []any{hidden{1}, &hidden{2}, errors.New("boom"), empty{}, invoicePaid{1}, nil, map[string]int{}} {
				mustPublish(t, bus, "a", payload)
			}
		}
		shutdown(t, bus)
		var types []any
		for _, e := range logs.All() {
			if e.Level == zapcore.WarnLevel {
				require.Equal(t, "payload is encoded as {}: its type has no exported field, or is an error", e.Message)
				require.Contains(t, e.ContextMap()["remedy"], "export")
				types = append(types, e.ContextMap()["go_type"])
			}
		}
		require.ElementsMatch(t, []any{"contracttest.hidden", "*contracttest.hidden", "*errors.errorString"}, types)
	})
}
