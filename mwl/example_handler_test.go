package mwl_test

import (
	"context"
	"fmt"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl"
)

func ExampleDefinition_Subscribe() {
	bus, err := eventbus.New()
	if err != nil {
		panic(err)
	}
	definition, err := mwl.Load([]byte(`{
		"$schema": "https://mwl.dev/v0.1/flow/schema.json",
		"entrypoint": "check",
		"steps": {
			"check": {
				"action": "Match",
				"cases": [{"when": "{{ step.input.cents > 0.0 }}", "next": "done"}],
				"default": {"next": "refuse"}
			},
			"done": {"action": "Return", "value": "{{ execution.platform.event.type + ' accepted' }}"},
			"refuse": {"action": "Raise", "result": {"code": "Order.Refused", "retryable": false}}
		}
	}`))
	if err != nil {
		panic(err)
	}
	_, err = definition.Subscribe(bus, "order.*", []mwl.HandlerOption{
		mwl.OnResult(func(_ context.Context, _ eventbus.Event, value any) error {
			fmt.Println(value)
			return nil
		}),
	}, eventbus.Named("checks"))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	if err := bus.Start(ctx); err != nil {
		panic(err)
	}
	_, _ = bus.PublishAndWait(ctx, "order.placed", map[string]int{"cents": 700})
	_, _ = bus.PublishAndWait(ctx, "order.placed", map[string]int{"cents": 0})
	page, _ := bus.DLQ().List(ctx, eventbus.LetterQuery{})
	for _, l := range page.Letters {
		fmt.Println(l.Reason, string(l.Failures[0].Details))
	}
	_ = bus.Shutdown(ctx)
	// Output:
	// order.placed accepted
	// permanent {"type":"error","code":"Order.Refused","retryable":false}
}

func ExamplePublishTo() {
	bus, err := eventbus.New()
	if err != nil {
		panic(err)
	}
	catalog, err := mwl.NewCatalog(mwl.PublishTo(bus))
	if err != nil {
		panic(err)
	}
	definition, err := mwl.Load([]byte(`{
		"$schema": "https://mwl.dev/v0.1/flow/schema.json",
		"entrypoint": "announce",
		"steps": {
			"announce": {
				"action": "Call",
				"input": {"order": "{{ step.input }}"},
				"call": {"provider": "mwl:provider.call/eventbus/publish/v1", "with": {"type": "mail.wanted"}},
				"next": "done"
			},
			"done": {"action": "Return"}
		}
	}`), mwl.WithCatalog(catalog))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	sent := make(chan struct{})
	_, err = bus.Subscribe("mail.*", func(_ context.Context, e eventbus.Event) error {
		defer close(sent)
		fmt.Println(e.Payload, e.Metadata.Get(mwl.CausationID) != "")
		return nil
	})
	if err != nil {
		panic(err)
	}
	if _, err := definition.Subscribe(bus, "order.*", nil); err != nil {
		panic(err)
	}
	if err := bus.Start(ctx); err != nil {
		panic(err)
	}
	_, _ = bus.Publish(ctx, "order.placed", "o-1")
	<-sent
	_ = bus.Shutdown(ctx)
	// Output: map[order:o-1] true
}
