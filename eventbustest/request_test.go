package eventbustest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
)

type userKey struct{}

// What a context of a request is published with is right only if it was copied during Publish.
func TestRequestContext(t *testing.T) {
	for name, c := range map[string]struct {
		from func(context.Context) context.Context
		want any
	}{
		"not passed": {nil, nil},
		"copied": {func(ctx context.Context) context.Context {
			return context.WithValue(context.Background(), userKey{}, ctx.Value(userKey{}))
		}, "ann"},
		"kept": {func(ctx context.Context) context.Context { return ctx }, "bob"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts []eventbus.Option
				if c.from != nil {
					opts = append(opts, eventbus.WithContextFrom(c.from))
				}
				bus := eventbustest.New(t, opts...)
				var seen any
				_, err := bus.Subscribe("*", func(ctx context.Context, _ eventbus.Event) error {
					time.Sleep(time.Second)
					seen = ctx.Value(userKey{})
					return nil
				})
				require.NoError(t, err)
				type parentKey struct{}
				request := eventbustest.NewRequestContext(context.WithValue(t.Context(), parentKey{}, "value"))
				request.Set(userKey{}, "ann")
				require.Equal(t, "ann", request.Value(userKey{}))
				require.Equal(t, "value", request.Value(parentKey{}))
				_, err = bus.Publish(request, "x", nil)
				require.NoError(t, err)
				request.Reuse()
				require.Nil(t, request.Value(userKey{}))
				request.Set(userKey{}, "bob")
				eventbustest.WaitSettled(t, bus)
				require.Equal(t, c.want, seen)
			})
		})
	}
}
