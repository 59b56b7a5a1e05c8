package eventbus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

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

// A page of dead letters, newest first, and the next one.
func ExampleDLQ_List() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.MaxRetries(0)))
	if err != nil {
		log.Fatal(err)
	}
	broken := func(context.Context, eventbus.Event) error { return errors.New("it is broken") }
	if _, err := bus.Subscribe("**", broken, eventbus.Circuit(eventbus.NoCircuit())); err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, order := range []string{"o-1", "o-2", "o-3"} {
		if _, err := bus.PublishAndWait(ctx, "order.placed", order); err == nil {
			log.Fatal("it should have failed")
		}
	}
	query := eventbus.LetterQuery{Type: "order.*", Error: "broken", Limit: 2}
	for {
		page, err := bus.DLQ().List(ctx, query)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d of %d:", len(page.Letters), page.Total)
		for _, letter := range page.Letters {
			fmt.Print(" ", letter.Event.Payload)
		}
		fmt.Println()
		if page.Next.IsZero() {
			break
		}
		query.Before = page.Next
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 2 of 3: o-3 o-2
	// 1 of 3: o-1
}

// An event that a service did not handle is replayed once that is repaired.
func ExampleDLQ_Replay() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.MaxRetries(0)))
	if err != nil {
		log.Fatal(err)
	}
	var repaired atomic.Bool
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		if !repaired.Load() {
			return errors.New("the warehouse does not answer")
		}
		delivery, _ := eventbus.FromContext(ctx)
		fmt.Println("reserved", e.Payload, "at replay", delivery.Replays)
		return nil
	}, eventbus.Named("stock"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", "o-17"); err == nil {
		log.Fatal("it should have failed")
	}
	page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{Subscription: "stock"})
	if err != nil {
		log.Fatal(err)
	}
	repaired.Store(true)
	for _, letter := range page.Letters {
		fmt.Println("dead:", letter.Event.Payload, letter.Failures[0].Error)
		if err := bus.DLQ().Replay(ctx, letter.ID); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil { // which waits for the replay
		log.Fatal(err)
	}
	fmt.Println("dead letters:", bus.Metrics().DeadLetters)
	// Output:
	// dead: o-17 the warehouse does not answer
	// reserved o-17 at replay 1
	// dead letters: 0
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

func ExampleDLQ_PurgeMatching() {
	ctx := context.Background()
	bus := dlqShop(ctx)
	report, err := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{Error: "no lines"})
	fmt.Println(report.Purged, err)
	_ = bus.Shutdown(ctx)
	// Output: 1 <nil>
}

// Letters that nobody has replayed for a week are deleted.
func ExampleDLQ_PurgeUntil() {
	ctx := context.Background()
	watch := clock.NewMock() // so that the example need not take a week
	bus, err := eventbus.New(eventbus.WithClock(watch), eventbus.WithRetry(eventbus.MaxRetries(0)))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("**", func(context.Context, eventbus.Event) error { return errors.New("it is broken") })
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, order := range []string{"o-1", "o-2"} {
		if _, err := bus.PublishAndWait(ctx, "order.placed", order); err == nil {
			log.Fatal("it should have failed")
		}
		watch.Add(5 * 24 * time.Hour)
	}
	purged, err := bus.DLQ().PurgeUntil(ctx, watch.Now().AddDate(0, 0, -7))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("purged:", purged, "left:", bus.Metrics().DeadLetters)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: purged: 1 left: 1
}

func ExampleDLQ_Export() {
	ctx := context.Background()
	bus := dlqShop(ctx)
	report, err := bus.DLQ().Export(ctx, io.Discard, eventbus.LetterQuery{Subscription: "billing"})
	fmt.Println(report.Exported, len(report.Unexported), err)
	_ = bus.Shutdown(ctx)
	// Output: 4 0 <nil>
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

// A customer asks for an order, of which the shop has the idempotency key.
func ExampleBus_EventByIdempotencyKey() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", "two books", eventbus.IdempotencyKey("checkout-17")); err != nil {
		log.Fatal(err)
	}
	status, err := bus.EventByIdempotencyKey(ctx, "order.placed", "checkout-17")
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range status.Settled {
		fmt.Println(d.Outcome, d.Subscription)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// handled mail
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

// The metrics of a subscription, and the books of the bus.
func ExampleBus_Metrics() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(ctx context.Context, _ eventbus.Event) error {
		if delivery, _ := eventbus.FromContext(ctx); delivery.Attempt == 1 {
			return errors.New("the bank is busy")
		}
		return nil
	}, eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, eventType := range []string{"order.placed", "order.paid", "user.created"} {
		if _, err := bus.Publish(ctx, eventType, nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	m := bus.Metrics()
	for _, s := range m.Subscriptions {
		fmt.Printf("%s: %d successes, %d failures, circuit %s\n", s.Subscription, s.Successes, s.Failures, s.Circuit)
	}
	fmt.Printf("%d accepted = %d handled + %d unrouted: %t\n",
		m.Ledger.Accepted, m.Ledger.Handled, m.Ledger.Unrouted, m.Ledger.Balanced())
	// Output:
	// billing: 2 successes, 2 failures, circuit closed
	// 3 accepted = 2 handled + 1 unrouted: true
}

// An observer sees every turn of an event: here, one that fails once and is then
// handled, and one that nobody takes.
func ExampleObserver() {
	ctx := context.Background()
	bus, err := eventbus.New(
		eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond), eventbus.NoJitter),
		eventbus.WithObserver(eventbus.Observer{
			Unrouted: func(e eventbus.Event) { fmt.Println("nobody takes", e.Type) },
			AttemptBegun: func(a eventbus.Attempt) {
				fmt.Printf("%s: attempt %d begins\n", a.Event.Type, a.Number)
			},
			AttemptEnded: func(e eventbus.EndedAttempt) {
				fmt.Printf("%s: attempt %d has ended: %s\n", e.Event.Type, e.Number, e.Outcome)
			},
			RetryScheduled: func(r eventbus.ScheduledRetry) {
				fmt.Printf("%s: %s failed (%s), again in %s\n", r.Event.Type, r.Failure.Subscription, r.Failure.Error, r.Delay)
			},
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error {
		if d, _ := eventbus.FromContext(ctx); d.Attempt == 1 {
			return errors.New("mail server is away")
		}
		return nil
	}, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, eventType := range []string{"order.lost", "order.placed"} {
		if _, err := bus.PublishAndWait(ctx, eventType, nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// nobody takes order.lost
	// order.placed: attempt 1 begins
	// order.placed: attempt 1 has ended: waiting
	// order.placed: mail failed (mail server is away), again in 1ms
	// order.placed: attempt 2 begins
	// order.placed: attempt 2 has ended: handled
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

// A handler that has used up a third of its timeout is told of while it runs, with
// where its subscription was made.
func ExampleSlowHandler() {
	ctx := context.Background()
	told := make(chan struct{})
	bus, err := eventbus.New(eventbus.WithObserver(eventbus.Observer{
		SlowHandler: func(s eventbus.SlowHandler) {
			file, _, _ := strings.Cut(filepath.Base(s.MadeAt), ":") // and the line
			fmt.Printf("%s, made in %s, is slow with %s\n", s.Subscription, file, s.Event.Type)
			close(told)
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		<-told // slow as it may be
		return nil
	}, eventbus.Named("mail"), eventbus.Timeout(300*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", nil); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: mail, made in example_operators_test.go, is slow with order.placed
}

// Another handler takes over what a subscription has: its line, the order of its keys and its running calls. No event is lost
// or handled twice meanwhile.
func ExampleSubscription_Detach() {
	bus, _ := eventbus.New()
	mail, _ := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		fmt.Println("the first version")
		return nil
	}, eventbus.Named("mail"))
	_ = bus.Start(context.Background())

	_ = mail.Detach()
	_, _ = bus.Publish(context.Background(), "order.placed", nil) // it is held
	_, _ = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		fmt.Println("the second version")
		return nil
	}, eventbus.Named("mail"))
	_ = bus.Drain(context.Background())
	_ = bus.Shutdown(context.Background())
	// Output: the second version
}

// What a detached subscription has becomes dead letters.
func ExampleBus_Retire() {
	bus, _ := eventbus.New()
	mail, _ := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	_ = bus.Start(context.Background())
	_, err := bus.Retire(context.Background(), "mail")
	fmt.Println(errors.Is(err, eventbus.ErrNameInUse))

	_ = mail.Detach()
	result, _ := bus.PublishAndWait(context.Background(), "order.placed", nil)
	report, _ := bus.Retire(context.Background(), "mail", eventbus.By("ann"), eventbus.Because("the mail service is gone"))
	fmt.Println(result.Held, report.Ended)
	_ = bus.Shutdown(context.Background())
	// Output:
	// true
	// [mail] 1
}

// The customer is gone: what waits for billing never has to be done, and stays as a dead letter.
func ExampleBus_GiveUp() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	billing, err := bus.Subscribe("invoice.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if err := billing.Pause(); err != nil {
		log.Fatal(err)
	}
	published, err := bus.PublishAndWait(ctx, "invoice.due", 42) // does not wait for held deliveries
	if !errors.Is(err, eventbus.ErrHeld) {
		log.Fatal(err)
	}
	report, err := bus.GiveUp(ctx, published.ID, eventbus.OfSubscription("billing"), eventbus.By("ann"), eventbus.Because("ticket 4711"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Deliveries[0].Subscription, "was", report.Deliveries[0].State)
	status, err := bus.Event(ctx, published.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("letter:", status.Letters.Letters[0].Reason)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// billing was parked
	// letter: operator
}

// The reminder is not needed any more. Nothing of it is left, also if it is being sent.
func ExampleBus_Cancel() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("reminder", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	id, err := bus.Publish(ctx, "reminder", "pay", eventbus.After(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	report, err := bus.Cancel(ctx, id)
	fmt.Println(report.Deliveries[0].State, report.Forgotten, err)
	_, err = bus.Cancel(ctx, id)
	fmt.Println(errors.Is(err, eventbus.ErrSettled))
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// scheduled true <nil>
	// true
}

// The service of one subscription is back, and nothing has to wait for its retries any longer.
func ExampleBus_RetryNowMatching() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	report, err := bus.RetryNowMatching(ctx, eventbus.DispatchQuery{Subscription: "billing", Error: "connection refused"}, eventbus.Probe(), eventbus.Rate(50))
	fmt.Println(report.Matched, err)
	if err := bus.Shutdown(ctx); err != nil && !errors.Is(err, eventbus.ErrNotStarted) {
		log.Fatal(err)
	}
	// Output:
	// 0 <nil>
}
