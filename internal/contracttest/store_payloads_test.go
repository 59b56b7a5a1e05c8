package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

type traceKey struct{}

// What a handler sees does not depend on whether the event was in memory.
func TestE4_HandlersOnAStoreSeeMetadataAndNoValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		fromContext := eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string {
			return map[string]string{"trace": fmt.Sprint(ctx.Value(traceKey{}))}
		})
		look := func(bus *eventbus.Bus) {
			mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
				trace := e.Metadata.Get("trace")
				disk.note("%v %s", ctx.Value(traceKey{}), trace)
				return nil
			}, eventbus.Named("look"))
		}
		bus, _ := disk.open(t, fromContext)
		look(bus)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), traceKey{}, 7))
		for range 2 {
			_, err := bus.Publish(ctx, "a", "x")
			require.NoError(t, err)
		}
		cancel()
		require.NoError(t, bus.Start(t.Context()))
		require.Equal(t, []string{"<nil> 7", "<nil> 7"}, disk.took())
		_, err := bus.Publish(context.WithValue(t.Context(), traceKey{}, 8), "a", "x")
		require.NoError(t, err)
		require.Equal(t, []string{"<nil> 8"}, disk.took())
		shutdown(t, bus)
	})
}

type invoice struct{ Number int }

// wrapped is a codec whose encoding is not JSON.
type wrapped struct{}

func (wrapped) Marshal(payload any) ([]byte, error) {
	data, err := json.Marshal(payload)
	return append([]byte("<"), data...), err
}

func (wrapped) Unmarshal(data []byte, pointer any) error {
	if len(data) == 0 || data[0] != '<' {
		return errors.New("not wrapped")
	}
	return json.Unmarshal(data[1:], pointer)
}

func TestE5_HandlersOnAStoreReceiveEncodedPayloads(t *testing.T) {
	for name, test := range map[string]struct {
		opts []eventbus.Option
		want any
	}{
		"JSON":  {nil, json.RawMessage(`{"Number":7}`)},
		"codec": {[]eventbus.Option{eventbus.WithCodec(wrapped{})}, eventbus.EncodedPayload(`<{"Number":7}`)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				look := func(bus *eventbus.Bus) {
					mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
						disk.note("%T %s", e.Payload, e.Payload)
						return nil
					}, eventbus.Named("raw"))
					mustSubscribe(t, bus, "*", eventbus.Typed(func(_ context.Context, i *invoice) error {
						disk.note("%+v", *i)
						return nil
					}), eventbus.Named("typed"))
				}
				want := []string{fmt.Sprintf("%T %s", test.want, test.want), "{Number:7}"}
				bus, _ := disk.open(t, test.opts...)
				look(bus)
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "a", invoice{7})
				require.Equal(t, want, disk.took())
				shutdown(t, bus)

				bus, _ = disk.open(t, test.opts...)
				look(bus)
				mustPublish(t, bus, "a", &invoice{7})
				disk.crash(bus)
				again, _ := disk.open(t, test.opts...)
				look(again)
				require.NoError(t, again.Start(t.Context()))
				require.Equal(t, want, disk.took())
				shutdown(t, again)
			})
		})
	}
}

func TestE3_APayloadMustEncode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithPayloadLimit(100))
		disk.handles(t, bus, "mail", nil)
		for _, payload := range []any{make(chan int), func() {}, panics{}, string(make([]byte, 100))} {
			_, err := bus.Publish(t.Context(), "a", payload)
			require.ErrorIs(t, err, eventbus.ErrInvalidPayload)
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		}
		require.Empty(t, disk.Dump().Records)
		_, err := bus.Subscribe("*", ok)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		require.ErrorContains(t, err, "Named")
	})
}

type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic(errors.New("cannot")) }
