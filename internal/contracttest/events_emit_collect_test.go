package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// ledger is the database of a middleware that calls a handler once for each event, and keeps the events that it has emitted.
type ledger struct {
	mu      sync.Mutex // guards the following
	entries map[eventbus.EventID][]byte
	fails   int // commits after which the attempt fails
}

func newLedger(fails int) *ledger {
	return &ledger{entries: make(map[eventbus.EventID][]byte), fails: fails}
}

func (l *ledger) find(id eventbus.EventID) (data []byte, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, found = l.entries[id]
	return data, found
}

// commit notes what the handler of an event has emitted.
func (l *ledger) commit(id eventbus.EventID, data []byte) (fails bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[id] = data
	l.fails--
	return l.fails >= 0
}

// change changes what all handlers have emitted.
func (l *ledger) change(f func(data []byte) []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, data := range maps.Clone(l.entries) {
		l.entries[id] = f(data)
	}
}

func (l *ledger) once(ctx context.Context, call func(context.Context) error) error {
	d, _ := eventbus.FromContext(ctx)
	if data, found := l.find(d.Event.ID); found {
		return eventbus.EmitCollected(ctx, data)
	}
	inner, collected := eventbus.CollectEmitted(ctx)
	if err := call(inner); err != nil {
		return err
	}
	data, err := collected()
	if err != nil {
		return err
	}
	if l.commit(d.Event.ID, data) {
		return errors.New("failed after the commit")
	}
	return eventbus.EmitCollected(ctx, data)
}

// variousChildren are events with all options.
func variousChildren(given eventbus.EventID) map[string][]eventbus.PublishOption {
	return map[string][]eventbus.PublishOption{
		"plain":   nil,
		"keyed":   {eventbus.Key("k"), eventbus.Metadata("a", "b")},
		"later":   {eventbus.After(time.Hour), eventbus.Metadata("tenant", "own")},
		"id":      {eventbus.ID(given)},
		"once":    {idem("once"), eventbus.KeepFor(48 * time.Hour)},
		"pending": {idem("pending"), eventbus.UntilSettled()},
		"both":    {idem("both"), eventbus.ID(eventbus.DeriveID(given, "both"))},
	}
}

// A middleware that skips the handler, because an earlier attempt has committed, has all its events again, as they were.
func TestD15_Collect_SkippingTheHandlerEmitsAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		kept, given, calls := newLedger(2), eventbus.NewEventID(), 0
		ids := make(map[string]eventbus.EventID)
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			calls++
			for payload, opts := range variousChildren(given) {
				id, err := eventbus.Emit(ctx, "child", payload, opts...)
				require.NoError(t, err)
				ids[payload] = id
			}
			return nil
		}, eventbus.Named("emits"), around(kept.once))
		seen := new(journal[func(map[string]eventbus.Event)])
		mustSubscribe(t, bus, "child", eventbus.Typed(func(ctx context.Context, payload string) error {
			d, _ := eventbus.FromContext(ctx)
			seen.add(func(all map[string]eventbus.Event) {
				require.NotContains(t, all, payload)
				all[payload] = d.Event
			})
			return nil
		}), eventbus.Named("child"))
		children := func() map[string]eventbus.Event {
			synctest.Wait()
			all := make(map[string]eventbus.Event)
			for _, add := range seen.all() {
				add(all)
			}
			return all
		}
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil, eventbus.Metadata("tenant", "blue"))
		time.Sleep(30 * time.Minute)
		require.Len(t, children(), 6)
		require.Equal(t, 1, calls)
		time.Sleep(31 * time.Minute)
		got := children()
		require.Len(t, got, 7)
		require.Equal(t, given, ids["id"])
		for payload, id := range ids {
			require.Equal(t, id, got[payload].ID, payload)
		}
		require.Equal(t, "k", got["keyed"].Key)
		require.Equal(t, "b", got["keyed"].Metadata.Get("a"))
		require.Equal(t, "blue", got["plain"].Metadata.Get("tenant"))
		require.Equal(t, "own", got["later"].Metadata.Get("tenant"))

		mustPublish(t, bus, "child", "pending again", idem("pending"))
		require.Contains(t, children(), "pending again", "it has settled")
		time.Sleep(30 * time.Hour)
		require.Equal(t, ids["once"], mustPublish(t, bus, "child", "once again", idem("once")))
		require.NotContains(t, children(), "once again")
		requireBalanced(t, bus)
	}, eventbus.WithInheritedMetadata("tenant"), eventbus.WithRetry(retry(5, time.Second)))
}

// What the middleware emits itself, before and behind the handler, has ids of its own. A handler that fails has emitted nothing.
func TestD15_Collect_OnlyTheSuccessIsKept(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		kept := newLedger(0)
		ids := emitting(t, bus, failsUntil(3, func(context.Context) error { return errBoom }), around(func(ctx context.Context, call func(context.Context) error) error {
			if _, err := eventbus.Emit(ctx, "child", "of the middleware"); err != nil {
				return err
			}
			return kept.once(ctx, call)
		}))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.ElementsMatch(t, []string{"of the middleware", "of attempt 3"}, got.all())
		require.Equal(t, ids.all()[0], ids.all()[2])
		requireBalanced(t, bus)
	}, eventbus.WithRetry(retry(5, time.Second)))
}

// Two such middlewares, one in the other.
func TestD15_Collect_Twice(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		outer, inner := newLedger(1), newLedger(1)
		ids := emitting(t, bus, func(context.Context, int) error { return nil }, around(outer.once), around(inner.once))
		var got []eventbus.EventID
		mustSubscribe(t, bus, "child", func(_ context.Context, e eventbus.Event) error {
			got = append(got, e.ID)
			return nil
		}, eventbus.Named("child"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, ids.all(), got)
		require.Len(t, got, 1)
		requireBalanced(t, bus)
	}, eventbus.WithRetry(retry(5, time.Second)))
}

// A handler whose call is over for its middleware emits nothing more, while the middleware commits.
func TestD15_Collect_AfterTheHandler(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var kept context.Context
		emitting(t, bus, func(ctx context.Context, _ int) error { kept = ctx; return nil }, around(func(ctx context.Context, call func(context.Context) error) error {
			inner, collected := eventbus.CollectEmitted(ctx)
			require.NoError(t, call(inner))
			data, err := collected()
			require.NoError(t, err)
			_, err = eventbus.Emit(kept, "child", "late")
			require.ErrorIs(t, err, eventbus.ErrNotInHandler)
			again, err := collected()
			require.NoError(t, err)
			require.Equal(t, data, again)
			require.NoError(t, eventbus.EmitCollected(ctx, data))
			return eventbus.EmitCollected(ctx, data) // twice is once
		}))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"of attempt 1"}, got.all())
		require.Empty(t, letters(t, bus))
		requireBalanced(t, bus)
	})
}

// The limits of Emit are those of the handler's call. They refuse nothing that is committed, such as after a restart with others.
func TestD15_Collect_Limits(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		kept, full := newLedger(1), 0
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			for {
				_, err := eventbus.Emit(ctx, "child", strings.Repeat("x", 100))
				if errors.Is(err, eventbus.ErrBatchTooLarge) {
					return nil
				}
				require.NoError(t, err)
				full++
			}
		}, eventbus.Named("emits"), around(func(ctx context.Context, call func(context.Context) error) error {
			if _, err := eventbus.Emit(ctx, "child", strings.Repeat("y", 900)); err != nil {
				return err
			}
			return kept.once(ctx, call)
		}))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		require.Equal(t, 9, full, "102 bytes each")
		require.Len(t, got.all(), 10)
		requireBalanced(t, bus)
	}, eventbus.WithQueueCapacity(10), eventbus.WithMaxEmittedBytes(1000), eventbus.WithRetry(retry(5, time.Second)))
}

// Bad data is an error before the first of its events is emitted, and the attempt fails.
func TestD15_Collect_BadData(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"no json":  {"[", "?", "invalid character"},
		"codec":    {`"codec":"`, `"codec":"other `, `by the codec "other `},
		"no id":    {`"id":"`, `"di":"`, "no id"},
		"key":      {`"key":"k"`, `"key":"\u0000"`, "control character"},
		"type":     {`"type":"child"`, `"type":"a b"`, "type"},
		"metadata": {`"metadata":{"a"`, `"metadata":{"eventbus.a"`, "reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				kept := newLedger(1)
				mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
					_, err := eventbus.Emit(ctx, "child", "x", eventbus.Key("k"), eventbus.Metadata("a", "b"))
					return err
				}, eventbus.Named("emits"), around(kept.once))
				got := noting(t, bus, "child")
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "parent", nil)
				synctest.Wait()
				var good []byte
				kept.change(func(data []byte) []byte {
					good = data
					bad := strings.Replace(string(data), c.from, c.to, 1)
					require.NotEqual(t, string(data), bad)
					return []byte(bad)
				})
				time.Sleep(time.Hour)
				synctest.Wait()
				require.Empty(t, got.all())
				letter := oneLetter(t, bus)
				failures := letter.Failures
				require.Contains(t, failures[len(failures)-1].Error, c.want)
				kept.change(func([]byte) []byte { return good })
				require.NoError(t, bus.DLQ().Replay(t.Context(), letter.ID))
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, []string{"x"}, got.all())
				requireBalanced(t, bus)
			}, eventbus.WithRetry(retry(2, time.Second)))
		})
	}
}

// Nothing emitted is nil, and outside of a handler there is nothing to collect.
func TestD15_Collect_OutsideAHandler(t *testing.T) {
	inner, collected := eventbus.CollectEmitted(t.Context())
	require.Equal(t, t.Context(), inner)
	data, err := collected()
	require.NoError(t, err)
	require.Nil(t, data)
	require.NoError(t, eventbus.EmitCollected(t.Context(), nil))
	require.Equal(t, t.Context(), eventbus.WithoutEmit(t.Context()))
	id := eventbus.NewEventID()
	one, err := json.Marshal([]map[string]any{{"id": id, "given": true, "type": "child", "codec": "json"}})
	require.NoError(t, err)
	require.ErrorIs(t, eventbus.EmitCollected(t.Context(), one), eventbus.ErrNotInHandler)
	var decode *eventbus.DecodeError
	require.ErrorAs(t, eventbus.EmitCollected(t.Context(), []byte{}), &decode)
}

// A middleware that can keep nothing makes Emit an error, of the handler alone.
func TestD15_WithoutEmit(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
			id, err := eventbus.Emit(ctx, "child", "refused")
			require.ErrorIs(t, err, eventbus.ErrNoTransaction)
			require.ErrorContains(t, err, "a middleware of emits")
			require.True(t, id.IsZero())
			require.ErrorIs(t, eventbus.EmitCollected(ctx, []byte(`[{"id":"`+eventbus.NewEventID().String()+`","given":true,"type":"child","codec":"json"}]`)), eventbus.ErrNoTransaction)
			return nil
		}, eventbus.Named("emits"), around(func(ctx context.Context, call func(context.Context) error) error {
			if err := call(eventbus.WithoutEmit(ctx)); err != nil {
				return err
			}
			_, err := eventbus.Emit(ctx, "child", "of the middleware")
			return err
		}))
		got := noting(t, bus, "child")
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "parent", nil)
		require.NoError(t, bus.Drain(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"of the middleware"}, got.all())
		require.Empty(t, letters(t, bus))
		requireBalanced(t, bus)
	})
}

// WithContextFrom may pass on a context with the collector of another call. The handler of the child does not emit there.
func TestD15_Collect_ACollectorOfTheParent(t *testing.T) {
	itself := func(ctx context.Context) context.Context { return ctx }
	for name, wrap := range map[string]func(context.Context) context.Context{
		"collects": func(ctx context.Context) context.Context { inner, _ := eventbus.CollectEmitted(ctx); return inner },
		"refuses":  eventbus.WithoutEmit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := newBus(t, eventbus.WithContextFrom(itself))
				mustSubscribe(t, bus, "parent", func(ctx context.Context, _ eventbus.Event) error {
					_, err := bus.Publish(ctx, "middle", nil)
					return err
				}, eventbus.Named("publishes"), around(func(ctx context.Context, call func(context.Context) error) error {
					return call(wrap(ctx))
				}))
				mustSubscribe(t, bus, "middle", func(ctx context.Context, _ eventbus.Event) error {
					_, err := eventbus.Emit(ctx, "child", "x")
					return err
				}, eventbus.Named("emits"))
				got := noting(t, bus, "child")
				require.NoError(t, bus.Start(t.Context()))
				mustPublish(t, bus, "parent", nil)
				require.NoError(t, bus.Drain(t.Context()))
				synctest.Wait()
				require.Equal(t, []string{"x"}, got.all())
				requireBalanced(t, bus)
			})
		})
	}
}
