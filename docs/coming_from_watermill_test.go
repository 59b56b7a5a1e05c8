package docs_test

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_ComingFromWatermill(t *testing.T) {
	docpagetest.Page(t, "coming-from/watermill.md",
		docpagetest.Code(docsWatermillTheirs),
		docpagetest.Code(docsOursInMemory),
	)
}

func docsWatermillTheirs(t *testing.T) (failed error) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		type Order struct{ ID string }
		sendMail, sent := failsOnce(func(o Order) string { return o.ID })
		failed = func() error {
			pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
			router, err := message.NewRouter(message.RouterConfig{}, nil)
			if err != nil {
				return err
			}
			poison, err := middleware.PoisonQueue(pubSub, "poison") // a topic: subscribe to it
			if err != nil {
				return err
			}
			retry := middleware.Retry{MaxRetries: 3, InitialInterval: time.Second, Multiplier: 2, MaxInterval: 30 * time.Second}
			router.AddMiddleware(poison, retry.Middleware, middleware.Timeout(30*time.Second), middleware.Recoverer)
			router.AddConsumerHandler("mail", "order.placed", pubSub, func(m *message.Message) error {
				var order Order
				if err := json.Unmarshal(m.Payload, &order); err != nil {
					return err
				}
				return sendMail(m.Context(), order)
			})
			ended := make(chan error, 1)
			go func() { ended <- router.Run(ctx) }()
			<-router.Running()

			payload, err := json.Marshal(Order{ID: "o-17"})
			if err != nil {
				return err
			}
			if err := pubSub.Publish("order.placed", message.NewMessage(watermill.NewUUID(), payload)); err != nil {
				return err
			}

			return errors.Join(router.Close(), <-ended)
		}()
		require.True(t, isClosed(sent))
	})
	return failed
}

// What the page says of the other library, beside the code that it shows.
func TestPages_ComingFromWatermill_Theirs(t *testing.T) {
	start := func(t *testing.T, config gochannel.Config, handle message.NoPublishHandlerFunc, mw ...message.HandlerMiddleware) (*gochannel.GoChannel, *message.Router) {
		pubSub := gochannel.NewGoChannel(config, nil)
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		require.NoError(t, err)
		router.AddMiddleware(mw...)
		router.AddConsumerHandler("mail", "order.placed", pubSub, handle)
		go func() { _ = router.Run(t.Context()) }() // it ends with Close
		<-router.Running()
		return pubSub, router
	}
	publish := func(t *testing.T, pubSub *gochannel.GoChannel, body string) {
		require.NoError(t, pubSub.Publish("order.placed", message.NewMessage(watermill.NewUUID(), []byte(body))))
	}
	t.Run("no middleware, no delay and no end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls, begin := 0, time.Now()
			pubSub, router := start(t, gochannel.Config{BlockPublishUntilSubscriberAck: true}, func(*message.Message) error {
				if calls++; calls < 1000 {
					return errors.New("down")
				}
				return nil
			})
			publish(t, pubSub, "")
			require.Equal(t, 1000, calls)
			require.Zero(t, time.Since(begin))
			require.NoError(t, router.Close())
		})
	})
	t.Run("a waiting retry delays no other message of gochannel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var mu sync.Mutex // guards handled
			handled := make(map[string]time.Duration)
			pubSub, router := start(t, gochannel.Config{}, func(m *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if body := string(m.Payload); body == "good" || time.Since(begin) >= time.Minute {
					handled[body] = time.Since(begin)
					return nil
				}
				return errors.New("down")
			}, middleware.Retry{MaxRetries: 1, InitialInterval: time.Minute, Multiplier: 1}.Middleware)
			publish(t, pubSub, "bad")
			synctest.Wait()
			publish(t, pubSub, "good")
			time.Sleep(2 * time.Minute)
			mu.Lock()
			defer mu.Unlock()
			require.Contains(t, handled, "good")
			require.Zero(t, handled["good"], "each message has a goroutine of gochannel")
			require.GreaterOrEqual(t, handled["bad"], time.Minute)
			require.NoError(t, router.Close())
		})
	})
	t.Run("Close drops a waiting retry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			pubSub, router := start(t, gochannel.Config{}, func(*message.Message) error {
				calls++
				return errors.New("down")
			}, middleware.Retry{MaxRetries: 3, InitialInterval: time.Minute, Multiplier: 1}.Middleware)
			poisoned, err := pubSub.Subscribe(t.Context(), "poison")
			require.NoError(t, err)
			publish(t, pubSub, "")
			synctest.Wait()
			require.NoError(t, router.Close())
			require.Equal(t, 1, calls)
			require.Empty(t, poisoned)
		})
	})
	t.Run("a topic without a subscriber", func(t *testing.T) {
		pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
		require.NoError(t, pubSub.Publish("order.placed", message.NewMessage("1", nil)), "it is discarded")
		require.NoError(t, pubSub.Close())
	})
	t.Run("a topic is a plain text", func(t *testing.T) {
		pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
		messages, err := pubSub.Subscribe(t.Context(), "order.*")
		require.NoError(t, err)
		require.NoError(t, pubSub.Publish("order.placed", message.NewMessage("1", nil)))
		select {
		case <-messages:
			t.Error("it matches")
		case <-time.After(50 * time.Millisecond):
		}
		require.NoError(t, pubSub.Close())
	})
}
