package eventbus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/surebus/eventbus"
)

// dlqShop is a bus with dead letters of two kinds, whose cause has been mended.
func dlqShop(ctx context.Context) *eventbus.Bus {
	bus, _ := eventbus.New(eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithRetry(eventbus.MaxRetries(0)))
	var mended atomic.Bool
	_, _ = bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, number int) error {
		switch {
		case mended.Load() && number >= 0:
			return nil
		case number < 0:
			return fmt.Errorf("order %d has no lines", number)
		default:
			return fmt.Errorf("charge order %d: %w", number, errors.New("no connection"))
		}
	}), eventbus.Named("billing"))
	_ = bus.Start(ctx)
	for _, number := range []int{1, 2, -3, 4} {
		_, _ = bus.PublishAndWait(ctx, "order.placed", number)
	}
	mended.Store(true)
	return bus
}

func ExampleDLQ_Groups() {
	ctx := context.Background()
	bus := dlqShop(ctx)
	groups, err := bus.DLQ().Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		panic(err)
	}
	for _, g := range groups {
		fmt.Println(g.Count, g.Subscription, g.Message)
	}
	// What the largest group died of has been mended.
	report, err := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{Fingerprint: groups[0].Fingerprint})
	fmt.Println(report.Replayed, err)
	_ = bus.Shutdown(ctx)
	// Output:
	// 3 billing charge order #: no connection
	// 1 billing order -# has no lines
	// 3 <nil>
}

func ExampleDLQ_ReplayMatching() {
	ctx := context.Background()
	bus := dlqShop(ctx)
	mended := eventbus.LetterQuery{Subscription: "billing", Error: "no connection"}
	preview, _ := bus.DLQ().ReplayMatching(ctx, mended, eventbus.DryRun())
	fmt.Println("would replay", preview.Matched)
	report, err := bus.DLQ().ReplayMatching(ctx, mended,
		eventbus.Rate(100),    // a second
		eventbus.StopAfter(5), // failures
		eventbus.OnProgress(func(p eventbus.BulkProgress) {
			fmt.Printf("%d of %d\n", p.Done, p.Matched)
		}),
	)
	fmt.Println(report.Replayed, "replayed, stopped:", report.Stopped, err)
	_ = bus.Shutdown(ctx)
	// Output:
	// would replay 3
	// 1 of 3
	// 2 of 3
	// 3 of 3
	// 3 replayed, stopped: false <nil>
}

func ExampleDLQ_PurgeMatching() {
	ctx := context.Background()
	bus := dlqShop(ctx)
	report, err := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{Error: "no lines"})
	fmt.Println(report.Purged, err)
	_ = bus.Shutdown(ctx)
	// Output: 1 <nil>
}

func ExampleDLQ_ReplayEdited() {
	ctx := context.Background()
	bus := dlqShop(ctx)
	page, _ := bus.DLQ().List(ctx, eventbus.LetterQuery{Error: "no lines"})
	l := page.Letters[0]
	fmt.Println(l.Event.Payload, l.Failures[0].Error)
	fmt.Println(bus.DLQ().ReplayEdited(ctx, l.ID, 3))
	_ = bus.Shutdown(ctx)
	page, _ = bus.DLQ().List(ctx, eventbus.LetterQuery{Error: "no lines"})
	fmt.Println(len(page.Letters), "left")
	// Output:
	// -3 order -3 has no lines
	// <nil>
	// 0 left
}

// Letters outlive the process: here, of another bus.
func ExampleDLQ_Import() {
	ctx := context.Background()
	var file bytes.Buffer
	old := dlqShop(ctx)
	_ = old.Shutdown(ctx)
	exported, err := old.DLQ().Export(ctx, &file, eventbus.LetterQuery{Error: "no connection"})
	fmt.Println(exported.Exported, "exported", err)

	bus, _ := eventbus.New()
	_, _ = bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, number int) error {
		fmt.Println("charge order", number)
		return nil
	}), eventbus.Named("billing"))
	imported, err := bus.DLQ().Import(ctx, &file)
	fmt.Println(imported.Imported, "imported", err)
	_ = bus.Start(ctx)
	_, _ = bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{All: true})
	_ = bus.Shutdown(ctx)
	// Unordered output:
	// 3 exported <nil>
	// 3 imported <nil>
	// charge order 1
	// charge order 2
	// charge order 4
}

func ExampleDLQ_Export() {
	ctx := context.Background()
	bus := dlqShop(ctx)
	report, err := bus.DLQ().Export(ctx, io.Discard, eventbus.LetterQuery{Subscription: "billing"})
	fmt.Println(report.Exported, len(report.Unexported), err)
	_ = bus.Shutdown(ctx)
	// Output: 4 0 <nil>
}
