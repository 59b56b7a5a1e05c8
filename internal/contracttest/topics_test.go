package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

type placed struct {
	Order int
	Total float64
}

var orderPlaced = eventbus.NewTopic[placed]("order.placed")

// What a topic publishes reaches its handlers with its Go type, and other subscriptions as always.
func TestE10_ATopicPublishesAndSubscribes(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got, untyped := new(journal[placed]), new(journal[string])
		sub, err := orderPlaced.Subscribe(bus, func(ctx context.Context, p placed) error {
			d, in := eventbus.FromContext(ctx)
			require.True(t, in)
			require.Equal(t, "k", d.Event.Key)
			got.add(p)
			return nil
		}, eventbus.Named("invoice"))
		require.NoError(t, err)
		require.Equal(t, "order.placed", sub.Pattern())
		mustSubscribe(t, bus, "order.*", func(_ context.Context, e eventbus.Event) error {
			untyped.add(e.Type)
			return nil
		}, eventbus.Named("all"))
		require.NoError(t, bus.Start(t.Context()))

		id, err := orderPlaced.Publish(t.Context(), bus, placed{1, 2.5}, eventbus.Key("k"))
		require.NoError(t, err)
		require.False(t, id.IsZero())
		result, err := orderPlaced.PublishAndWait(t.Context(), bus, placed{2, 3}, eventbus.Key("k"))
		require.NoError(t, err)
		require.Equal(t, eventbus.Handled, result.Outcome)
		_, err = bus.PublishAndWait(t.Context(), orderPlaced.Name(), &placed{3, 4}, eventbus.Key("k"))
		require.NoError(t, err, "events of Bus.Publish that fit")
		require.Equal(t, []placed{{1, 2.5}, {2, 3}, {3, 4}}, got.all())
		require.Equal(t, []string{"order.placed", "order.placed", "order.placed"}, untyped.all())
	})
}

// A second Go type of a name is refused by whatever method shows it first, and nothing happens.
func TestE10_ANameHasOneGoType(t *testing.T) {
	others := map[string]func(bus *eventbus.Bus) error{
		"pointer": func(bus *eventbus.Bus) error { _, err := publishTo[*placed](bus, nil); return err },
		"alike": func(bus *eventbus.Bus) error {
			type placed struct{ Order int }
			_, err := publishTo(bus, placed{1})
			return err
		},
		"raw":      func(bus *eventbus.Bus) error { _, err := publishTo(bus, json.RawMessage(`{}`)); return err },
		"any":      func(bus *eventbus.Bus) error { _, err := publishTo[any](bus, placed{}); return err },
		"function": func(bus *eventbus.Bus) error { _, err := publishTo[func()](bus, func() {}); return err },
		"wait": func(bus *eventbus.Bus) error {
			_, err := eventbus.NewTopic[string]("order.placed").PublishAndWait(context.Background(), bus, "x")
			return err
		},
		"tx": func(bus *eventbus.Bus) error {
			_, err := eventbus.NewTopic[string]("order.placed").PublishTx(context.Background(), bus, nil, "x")
			return err
		},
		"subscribe": func(bus *eventbus.Bus) error {
			_, err := eventbus.NewTopic[string]("order.placed").Subscribe(bus, func(context.Context, string) error { return nil }, eventbus.Named("mail"))
			return err
		},
	}
	firsts := map[string]func(bus *eventbus.Bus) error{
		"published": func(bus *eventbus.Bus) error {
			_, err := orderPlaced.Publish(context.Background(), bus, placed{})
			return err
		},
		"subscribed": func(bus *eventbus.Bus) error {
			_, err := orderPlaced.Subscribe(bus, func(context.Context, placed) error { return nil }, eventbus.Named("invoice"))
			return err
		},
	}
	for how, first := range firsts {
		for name, other := range others {
			t.Run(how+" "+name, func(t *testing.T) {
				onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
					require.NoError(t, bus.Start(t.Context()))
					require.NoError(t, first(bus))
					before := bus.Metrics().Ledger
					err := other(bus)
					var refused *eventbus.TopicError
					require.ErrorAs(t, err, &refused)
					require.ErrorIs(t, err, eventbus.ErrInvalidTopic)
					require.Equal(t, "order.placed", refused.Topic)
					require.NotEmpty(t, refused.Type)
					require.Contains(t, refused.Reason, "this bus has it with contracttest.placed")
					require.Equal(t, before.Accepted, bus.Metrics().Ledger.Accepted)
					_, err = publishTo(bus, placed{})
					require.NoError(t, err, "the first type stays")
				})
			})
		}
	}
}

func publishTo[T any](bus *eventbus.Bus, payload T) (eventbus.EventID, error) {
	return eventbus.NewTopic[T]("order.placed").Publish(context.Background(), bus, payload)
}

// Topics are values without state: made twice they are the same, and each bus has its own types.
func TestE10_TopicsHaveNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, orderPlaced, eventbus.NewTopic[placed]("order.placed"))
		one, _ := startBus(t)
		two, _ := startBus(t)
		_, err := publishTo(one, placed{1, 1})
		require.NoError(t, err)
		_, err = publishTo(one, placed{1, 1})
		require.NoError(t, err)
		_, err = publishTo(two, "another type on another bus")
		require.NoError(t, err)
		shutdown(t, one)
		shutdown(t, two)
	})
}

// A bad name is refused by the first method, with Bus's errors, and is not kept.
func TestE10_ABadNameIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		for _, name := range []string{"", "a b", "a..b", "order.*", strings.Repeat("x", 256)} {
			topic := eventbus.NewTopic[placed](name)
			_, err := topic.Publish(t.Context(), bus, placed{})
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent, "%q", name)
			_, err = topic.PublishAndWait(t.Context(), bus, placed{})
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent, "%q", name)
			_, err = eventbus.NewTopic[string](name).Publish(t.Context(), bus, "")
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent, "%q has no type", name)
		}
		for _, name := range []string{"a b", "a..b", "order.>", "["} {
			_, err := eventbus.NewTopic[placed](name).Subscribe(bus, func(context.Context, placed) error { return nil })
			require.ErrorIs(t, err, eventbus.ErrInvalidPattern, "%q", name)
			_, err = eventbus.NewTopic[string](name).Subscribe(bus, func(context.Context, string) error { return nil })
			require.ErrorIs(t, err, eventbus.ErrInvalidPattern, "%q has no type", name)
		}
		_, err := orderPlaced.Subscribe(bus, nil)
		require.ErrorIs(t, err, eventbus.ErrNilHandler)
		_, err = orderPlaced.Subscribe(nil, func(context.Context, placed) error { return nil })
		require.ErrorIs(t, err, eventbus.ErrUninitialized)
		_, err = orderPlaced.Publish(t.Context(), new(eventbus.Bus), placed{})
		require.ErrorIs(t, err, eventbus.ErrUninitialized)
		var zero eventbus.Topic[placed]
		_, err = zero.Publish(t.Context(), bus, placed{})
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		shutdown(t, bus)
	})
}

// A topic with a pattern subscribes only; its subscription says where it was made.
func TestE10_ATopicWithAPatternSubscribes(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := new(journal[int])
		orders := eventbus.NewTopic[placed]("order.{placed,paid}")
		sub, err := orders.Subscribe(bus, func(_ context.Context, p placed) error { got.add(p.Order); return nil }, eventbus.Named("orders"))
		require.NoError(t, err)
		require.Contains(t, sub.MadeAt(), "topics_test.go:")
		require.NoError(t, bus.Start(t.Context()))
		_, err = orderPlaced.PublishAndWait(t.Context(), bus, placed{Order: 1})
		require.NoError(t, err, "a pattern and a type are two names")
		_, err = orders.Publish(t.Context(), bus, placed{})
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		require.Equal(t, []int{1}, got.all())
	})
}

// A payload that does not fit is a dead letter without retries, as with Typed.
func TestE10_APayloadThatDoesNotFit(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		_, err := orderPlaced.Subscribe(bus, func(context.Context, placed) error { return nil }, eventbus.Named("invoice"))
		require.NoError(t, err)
		require.NoError(t, bus.Start(t.Context()))
		_, err = bus.PublishAndWait(t.Context(), "order.placed", "no order")
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		letter := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonPermanent, letter.Reason)
		require.Len(t, letter.Failures, 1)
	})
}

// Topics that are made at run time are refused at a bound, and the bus's own methods go on.
func TestE10_TopicsInALoopAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		for i := range 10_000 {
			_, err := eventbus.NewTopic[int](fmt.Sprint("tenant.", i)).Publish(t.Context(), bus, i)
			require.NoError(t, err)
		}
		_, err := orderPlaced.Publish(t.Context(), bus, placed{})
		require.ErrorIs(t, err, eventbus.ErrInvalidTopic)
		require.ErrorContains(t, err, "topics are for the program's life")
		_, err = eventbus.NewTopic[int]("tenant.7").Publish(t.Context(), bus, 7)
		require.NoError(t, err, "a known one")
		mustPublish(t, bus, "order.placed", placed{})
		shutdown(t, bus)
	})
}

// Of many that are the first at once, with two types, one type wins, and everybody sees the same one.
func TestE10_TheFirstTypeWinsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			bus, _ := startBus(t)
			var ints, texts atomic.Int64
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { count1(&ints, func() error { _, err := publishTo(bus, 1); return err }) })
				all.Go(func() { count1(&texts, func() error { _, err := publishTo(bus, "x"); return err }) })
			}
			all.Wait()
			require.ElementsMatch(t, []int64{0, 4}, []int64{ints.Load(), texts.Load()})
			time.Sleep(time.Second)
			require.EqualValues(t, 4, bus.Metrics().Ledger.Accepted)
			shutdown(t, bus)
		}
	})
}

// count1 counts a call without an error.
func count1(n *atomic.Int64, call func() error) {
	if err := call(); err == nil {
		n.Add(1)
	} else if !errors.Is(err, eventbus.ErrInvalidTopic) {
		panic(err)
	}
}
