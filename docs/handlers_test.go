package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/periodic"
)

func TestDocs_Handlers(t *testing.T) {
	docpagetest.Page(t, "handlers.md",
		docpagetest.InBubble(docsTyped),
		docpagetest.InBubble(docsTopic),
		docpagetest.InBubble(docsTopic),
		docpagetest.InBubble(docsFromContext),
		docpagetest.Code(docsMetadata),
		docpagetest.InBubble(docsMiddleware),
		docpagetest.InBubble(docsPeriodic),
	)
}

// The page's table of patterns: each pattern of a row matches the types of its second cell, and none of the third.
func TestPages_HandlersPatterns(t *testing.T) {
	page, err := os.ReadFile("handlers.md")
	require.NoError(t, err)
	quoted := func(cell string) (texts []string) {
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
			texts = append(texts, match[1])
		}
		return texts
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || len(quoted(cells[1])) == 0 {
			continue
		}
		rows++
		types := quoted(cells[2])
		switch strings.TrimSpace(cells[2]) {
		case "that type":
			types = quoted(cells[1])
		case "both":
			types = []string{"order.placed", "order.paid"}
		case "every type":
			types = []string{"order", "order.placed"}
		}
		require.NotEmpty(t, types, line)
		for _, pattern := range quoted(cells[1]) {
			bus := eventbustest.New(t)
			_, err := bus.Subscribe(pattern, eventbustest.Fail(nil))
			require.NoError(t, err)
			for _, is := range types {
				require.Len(t, bus.Explain(is).Targets, 1, "%s and %s", pattern, is)
			}
			for _, other := range quoted(cells[3]) {
				require.Empty(t, bus.Explain(other).Targets, "%s and %s", pattern, other)
			}
		}
	}
	require.Equal(t, 7, rows)
}

func docsTyped(t *testing.T) error {
	bus := eventbustest.New(t)
	_, err := bus.Subscribe("order.*", eventbus.Typed(func(ctx context.Context, o Order) error {
		fmt.Println("order", o.ID)
		return nil
	}), eventbus.Named("mail"))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", Order{ID: "o-17"})
	require.NoError(t, err)
	result, err := bus.PublishAndWait(t.Context(), "order.placed", "o-17")
	require.Error(t, err)
	require.Equal(t, 1, result.Attempts)
	eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
	return nil
}

var OrderPlaced = eventbus.NewTopic[Order]("order.placed")

func docsTopic(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	_, err := OrderPlaced.Subscribe(bus, func(ctx context.Context, o Order) error {
		fmt.Println("order", o.ID)
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := OrderPlaced.Publish(ctx, bus, Order{ID: "o-17"}); err != nil {
		return err
	}
	return bus.Drain(ctx)
}

// recordingBank fails once, and remembers its payments.
type recordingBank struct{ payments []Payment }

func (b *recordingBank) Charge(_ context.Context, p Payment) error {
	if b.payments = append(b.payments, p); len(b.payments) == 1 {
		return errors.New("the connection broke: has it been charged?")
	}
	return nil
}

func docsFromContext(t *testing.T) error {
	bus, bank := eventbustest.New(t), new(recordingBank)
	_, err := bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		delivery, _ := eventbus.FromContext(ctx)
		return bank.Charge(ctx, Payment{IdempotencyKey: delivery.Event.ID.String() + "/" + delivery.Subscription})
	}, eventbus.Named("billing"))
	require.NoError(t, err)
	result, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
	key := Payment{IdempotencyKey: result.ID.String() + "/billing"}
	require.Equal(t, []Payment{key, key}, bank.payments)
	return err
}

type tenantKey struct{}

// tenantOf returns "" for the context of a handler, which has no values of the publisher's.
func tenantOf(ctx context.Context) string {
	tenant, _ := ctx.Value(tenantKey{}).(string)
	return tenant
}

func docsMetadata(t *testing.T) error {
	bus, err := eventbus.New(
		eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string { // also in stores and dead letters
			if tenant := tenantOf(ctx); tenant != "" {
				return map[string]string{"tenant": tenant}
			}
			return nil // in a handler: an empty text would replace the inherited one
		}),
		eventbus.WithInheritedMetadata("tenant"), // events that handlers publish have it too
	)
	adopt(t, bus, err)
	var tenant, inherited string
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		tenant = e.Metadata.Get("tenant")
		_, err := bus.PublishAndWait(ctx, "invoice.created", nil)
		return err
	})
	require.NoError(t, err)
	_, err = bus.Subscribe("invoice.created", func(_ context.Context, e eventbus.Event) error {
		inherited = e.Metadata.Get("tenant")
		return nil
	})
	require.NoError(t, err)
	_, err = bus.PublishAndWait(context.WithValue(t.Context(), tenantKey{}, "acme"), "order.placed", nil)
	require.Equal(t, "acme", tenant)
	require.Equal(t, "acme", inherited)
	return err
}

func docsMiddleware(t *testing.T) error {
	bus := eventbustest.New(t)
	handler, _ := failing()
	timed := func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			err := next(ctx, e)
			fmt.Println(e.Type, err)
			return err
		}
	}
	_, err := bus.Subscribe("order.placed", handler, eventbus.Use(timed))
	require.NoError(t, err)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
	return err
}

func docsPeriodic(t *testing.T) error {
	bus := eventbustest.New(t)
	handler, rec := failing()
	_, err := bus.Subscribe("report.daily", handler)
	require.NoError(t, err)
	daily, err := periodic.Every(bus, "0 8 * * *", "report.daily", nil, periodic.In(time.UTC))
	if err != nil {
		return err
	}
	defer daily.Stop()
	time.Sleep(48 * time.Hour) // in the bubble
	require.Len(t, rec.Deliveries(), 2)
	return nil
}
