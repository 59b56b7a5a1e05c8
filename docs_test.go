package eventbus_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_OrderAndKeys(t *testing.T) {
	docpagetest.Page(t, "docs/order-and-keys.md",
		docpagetest.Code(docsKey),
	)
}

func docsKey(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	_, err := bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, step string) error {
		fmt.Println(step)
		return nil
	}))
	require.NoError(t, err)
	for _, step := range []string{"placed", "paid", "shipped"} {
		if _, err := bus.Publish(ctx, "order."+step, step, eventbus.Key("o-17")); err != nil {
			return err
		}
	}
	return bus.Drain(ctx)
}
