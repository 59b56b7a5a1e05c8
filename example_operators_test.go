package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/surebus/eventbus"
)

// An operator asks what became of an event: a pause holds it.
func ExampleBus_Event() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	mail, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if err := mail.Pause(eventbus.By("ann"), eventbus.Because("the mail server moves")); err != nil {
		log.Fatal(err)
	}
	published, err := bus.PublishAndWait(ctx, "order.placed", "o-17") // does not wait for held deliveries
	if !errors.Is(err, eventbus.ErrHeld) {
		log.Fatal(err)
	}
	status, err := bus.Event(ctx, published.ID)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range status.Dispatches {
		fmt.Printf("%s at %s (%s), %d attempts\n", d.State, d.Subscription, d.Parked, d.Attempts)
	}
	if err := mail.Resume(); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// parked at mail (paused), 0 attempts
}

// A page that shows dead letters as they happen adds an observer, and removes it when it is closed.
func ExampleBus_Observe() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("no such address"))
	}, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	remove := bus.Observe(eventbus.Observer{
		DeadLettered: func(l eventbus.DeadLetter) { fmt.Println(l.Event.Payload, "died at", l.Subscription) },
	})
	_, _ = bus.PublishAndWait(ctx, "order.placed", "o-17")
	remove()
	_, _ = bus.PublishAndWait(ctx, "order.placed", "o-18")
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// o-17 died at mail
}

// The audit says who did what, and why.
func ExampleBus_Audit() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("no such address"))
	}, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	_, _ = bus.PublishAndWait(ctx, "order.placed", "o-17")
	ann := eventbus.By("ann")
	if err := bus.Subscription("mail").Pause(ann, eventbus.Because("addresses are repaired")); err != nil {
		log.Fatal(err)
	}
	query := eventbus.LetterQuery{Subscription: "mail"}
	if _, err := bus.DLQ().PurgeMatching(ctx, query, ann, eventbus.Because("test orders")); err != nil {
		log.Fatal(err)
	}
	page, err := bus.Audit(ctx, eventbus.AuditQuery{By: "ann"})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range page.Entries {
		if e.Outcome != nil {
			fmt.Printf("%d. %s ended, with %d of %d letters\n", e.Number, e.Action, e.Outcome.Done, e.Count)
			continue
		}
		fmt.Printf("%d. %s by %s: %s\n", e.Number, e.Action, e.By, e.Why)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 3. purge_matching ended, with 1 of 1 letters
	// 2. purge_matching by ann: test orders
	// 1. pause by ann: addresses are repaired
}

// Before a bulk replay, an operator looks at what it would do.
func ExampleDLQ_PreviewReplay() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	mail, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("mail server is away"))
	}, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, order := range []string{"o-17", "o-18"} {
		_, _ = bus.PublishAndWait(ctx, "order.placed", order)
	}
	if err := mail.Trip(eventbus.By("ann")); err != nil {
		log.Fatal(err)
	}
	preview, err := bus.DLQ().PreviewReplay(ctx, eventbus.LetterQuery{Type: "order.*"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(preview.Matched, "letters, such as", preview.Sample[0].Event.Payload)
	for _, t := range preview.Targets {
		fmt.Printf("%d to %s, circuit %s: %s\n", t.Letters, t.Subscription, t.Circuit, t.WhenOpen)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 2 letters, such as o-18
	// 2 to mail, circuit open: hold
}
