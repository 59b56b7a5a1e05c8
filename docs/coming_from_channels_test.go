package docs_test

import (
	"log"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_ComingFromChannels(t *testing.T) {
	docpagetest.Page(t, "coming-from/channels.md",
		docpagetest.Code(docsChannelsTheirs),
		docpagetest.Code(docsOursInMemory),
	)
}

func docsChannelsTheirs(t *testing.T) error {
	ctx := t.Context()
	type Order struct{ ID string }
	sendMail, sent := failsOnce(func(o Order) string { return o.ID })
	orders := make(chan Order, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for order := range orders {
			if err := sendMail(ctx, order); err != nil {
				log.Printf("order %s: %v", order.ID, err) // and the order is gone
			}
		}
	}()

	orders <- Order{ID: "o-17"}

	close(orders) // a later send panics
	<-done
	require.Panics(t, func() { orders <- Order{ID: "o-18"} })
	require.False(t, isClosed(sent), "nothing calls the handler again")
	return nil
}

// docsOursInMemory is what three pages have as our side of the job.
func docsOursInMemory(t *testing.T) (failed error) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		type Order struct{ ID string }
		sendMail, sent := failsOnce(func(o Order) string { return o.ID })
		failed = func() error {
			bus, err := eventbus.New()
			if err != nil {
				return err
			}
			_, err = bus.Subscribe("order.placed", eventbus.Typed(sendMail), eventbus.Named("mail"))
			if err != nil {
				return err
			}
			if err := bus.Start(ctx); err != nil {
				return err
			}

			if _, err := bus.Publish(ctx, "order.placed", Order{ID: "o-17"}); err != nil {
				return err
			}

			return bus.Shutdown(ctx) // waits until the event has settled, retries included
		}()
		require.True(t, isClosed(sent))
	})
	return failed
}
