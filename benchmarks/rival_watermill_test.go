package benchmarks

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	gobreakerv1 "github.com/sony/gobreaker"
)

// openWatermill is a gochannel, whose messages a goroutine for each subscription
// handles and acknowledges.
func openWatermill(_ testing.TB, s setup) system {
	channel := newGoChannel(s)
	var receivers sync.WaitGroup
	for _, sub := range s.subscriptions {
		messages, err := channel.Subscribe(context.Background(), sub.topic)
		check(err)
		receivers.Go(func() {
			for m := range messages {
				check(sub.handle(numberIn(m.Payload)))
				m.Ack()
			}
		})
	}
	return system{
		publisher: watermillPublisher(channel),
		unbounded: true,
		few:       16,
		close: func() {
			check(channel.Close())
			receivers.Wait()
		},
	}
}

// openWatermillRouter is a router on a gochannel, with middlewares that protect as
// this bus does.
func openWatermillRouter(_ testing.TB, s setup) system {
	channel := newGoChannel(s)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(watermillProtections(channel, s.retry)...)
	for i, sub := range s.subscriptions {
		router.AddConsumerHandler(fmt.Sprint(sub.topic, "#", i), sub.topic, channel, func(m *message.Message) error {
			return sub.handle(numberIn(m.Payload))
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	return system{
		publisher: watermillPublisher(channel),
		unbounded: true,
		few:       4,
		close: func() {
			check(router.Close())
			check(<-ended)
			check(channel.Close())
		},
	}
}

func newGoChannel(s setup) *gochannel.GoChannel {
	return gochannel.NewGoChannel(gochannel.Config{
		OutputChannelBuffer:            1024,
		BlockPublishUntilSubscriberAck: s.wait,
	}, watermill.NopLogger{})
}

func watermillPublisher(to message.Publisher) func(topic string) func(*note) {
	return func(topic string) func(*note) {
		return func(x *note) {
			check(to.Publish(topic, message.NewMessage(watermill.NewUUID(), x.bytes[:])))
		}
	}
}

// watermillProtections are, from the outermost: a dead letter topic, retries, a
// circuit breaker, a timeout, and a panic made an error.
func watermillProtections(letters message.Publisher, retry time.Duration) []message.HandlerMiddleware {
	poison, err := middleware.PoisonQueue(letters, "poison")
	check(err)
	retries := middleware.Retry{MaxRetries: 3, InitialInterval: time.Second, MaxInterval: 30 * time.Second, Multiplier: 2, RandomizationFactor: 0.1}
	var circuit gobreakerv1.Settings
	if retry > 0 {
		retries.InitialInterval, retries.RandomizationFactor = retry, 0
		circuit.ReadyToTrip = func(gobreakerv1.Counts) bool { return false }
	}
	return []message.HandlerMiddleware{
		poison,
		retries.Middleware,
		middleware.NewCircuitBreaker(circuit).Middleware,
		middleware.Timeout(30 * time.Second),
		middleware.Recoverer,
	}
}

// watermillCall is a handler within the middlewares, called without a router.
func watermillCall(handle func(context.Context) error) func() {
	channel := newGoChannel(setup{})
	h := func(m *message.Message) ([]*message.Message, error) { return nil, handle(m.Context()) }
	protections := watermillProtections(channel, 0)
	for i := len(protections) - 1; i >= 0; i-- {
		h = protections[i](h)
	}
	return func() {
		_, err := h(message.NewMessage("", nil))
		check(err)
	}
}
