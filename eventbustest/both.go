package eventbustest

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"sync"
	"testing"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// Both runs a test twice, as the subtests "memory" and "store": with a bus in memory, and with one on an empty
// storetest.Model. newBus is New with that store, or without: call it instead, also inside a testing/synctest bubble. Each call
// makes a bus with a store of its own.
//
// In memory, all handlers and the publisher share the data that a payload points to, and with a store each gets its
// own. So Both also finds handlers that change this data. In memory, it encodes each payload before and after the call
// of a handler, and reports a difference as an error of the test. It skips payloads that encoding/json cannot encode.
// If handlers change a payload at the same time, the race detector reports it here.
func Both(t *testing.T, test func(t *testing.T, newBus func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		test(t, func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
			t.Helper()
			return New(t, append([]eventbus.Option{eventbus.WithMiddleware(unchanged(t))}, opts...)...)
		})
	})
	t.Run("store", func(t *testing.T) {
		test(t, func(t testing.TB, opts ...eventbus.Option) *eventbus.Bus {
			t.Helper()
			return New(t, append([]eventbus.Option{eventbus.WithStore(storetest.NewModel().Open())}, opts...)...)
		})
	})
}

// unchanged returns a middleware that reports payloads that a handler changes, each type once.
func unchanged(t testing.TB) eventbus.Middleware {
	var mu sync.Mutex // guards the following
	reported := make(map[reflect.Type]bool)
	over := false
	t.Cleanup(func() { // it runs after that of New: an abandoned handler may return later
		mu.Lock()
		defer mu.Unlock()
		over = true
	})
	report := func(ctx context.Context, e eventbus.Event) {
		mu.Lock()
		defer mu.Unlock()
		if of := reflect.TypeOf(e.Payload); !over && !reported[of] {
			reported[of] = true
			d, _ := eventbus.FromContext(ctx)
			t.Errorf("eventbustest.Both: the payload of %s (%s), a %T, has changed while the handler of %s ran: other handlers and the publisher have the same value; change a copy. With a store, each handler has its own",
				e.Type, e.ID, e.Payload, d.Subscription)
		}
	}
	return func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			before, err := json.Marshal(e.Payload)
			if err != nil {
				return next(ctx, e)
			}
			defer func() {
				if after, err := json.Marshal(e.Payload); err != nil || !bytes.Equal(before, after) {
					report(ctx, e)
				}
			}()
			return next(ctx, e)
		}
	}
}
