package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// OrderPlaced is the payload of some of the examples.
type OrderPlaced struct {
	Order string
	Items int
}

// A program with a bus. Without a logger it would be silent about failures;
// zap.NewProduction makes one for real use.
func Example() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithLogger(zap.NewExample()))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", func(_ context.Context, e eventbus.Event) error {
		fmt.Println("a mail about", e.Type, e.Payload)
		return nil
	}, eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", "o-17"); err != nil {
		log.Fatal(err)
	}
	// Shutdown waits until the published events are handled.
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: a mail about order.placed o-17
}

// Patterns are dotted globs. An event visits the subscriptions that match it in
// the order in which they were made.
func ExampleBus_Subscribe() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	show := func(ctx context.Context, e eventbus.Event) error {
		delivery, _ := eventbus.FromContext(ctx)
		fmt.Println(e.Type, "to", delivery.Subscription)
		return nil
	}
	for _, s := range []struct{ name, pattern string }{
		{"audit", "**"},                      // every type
		{"orders", "order.*"},                // one more segment
		{"north", "order.eu-n*.placed"},      // a part of a segment
		{"payments", "payment.{paid,lost}"},  // one of these
		{"numbers", "order.[0-9][0-9].paid"}, // classes of characters
	} {
		if _, err := bus.Subscribe(s.pattern, show, eventbus.Named(s.name)); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, eventType := range []string{"order.placed", "order.eu-north.placed", "order.17.paid", "payment.lost"} {
		// Publish would do; waiting keeps the output in order.
		if _, err := bus.PublishAndWait(ctx, eventType, nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order.placed to audit
	// order.placed to orders
	// order.eu-north.placed to audit
	// order.eu-north.placed to north
	// order.17.paid to audit
	// order.17.paid to numbers
	// payment.lost to audit
	// payment.lost to payments
}

// A typed handler takes the payload as it was published.
func ExampleTyped() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(_ context.Context, o OrderPlaced) error {
		fmt.Printf("%s: %d items\n", o.Order, o.Items)
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", OrderPlaced{Order: "o-17", Items: 3}); err != nil {
		log.Fatal(err)
	}
	// No retry makes an OrderPlaced of a string: this one is dead at once.
	_, err = bus.PublishAndWait(ctx, "order.placed", "o-18")
	var wrong *eventbus.PayloadTypeError
	fmt.Println(errors.As(err, &wrong), wrong.Want, wrong.Got)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// o-17: 3 items
	// true eventbus_test.OrderPlaced string
}

// A handler that fails is called again, by default after 1 s, 2 s and 4 s.
func ExampleRetry() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	calls := 0
	_, err = bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		if calls++; calls < 3 {
			return errors.New("the bank is busy")
		}
		return nil
	}, eventbus.Retry(eventbus.MaxRetries(5), eventbus.BaseDelay(time.Millisecond), eventbus.NoJitter))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	fmt.Println(result.Outcome, "at attempt", result.Attempts, err)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: handled at attempt 3 <nil>
}

// What no retry can mend goes to the dead letter queue at once.
func ExamplePermanent() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("payment.refunded", eventbus.Typed(func(_ context.Context, cents int) error {
		if cents <= 0 {
			return eventbus.Permanent(fmt.Errorf("a refund of %d cents", cents))
		}
		return nil
	}), eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "payment.refunded", -500); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
	if err != nil {
		log.Fatal(err)
	}
	for _, letter := range page.Letters {
		fmt.Printf("%s at %s after %d attempt: %s\n", letter.Reason, letter.Subscription, letter.Attempts, letter.Failures[0].Error)
	}
	// Output: permanent at billing after 1 attempt: a refund of -500 cents
}

// A service that says when it will be ready again is asked then, whatever the
// retry policy says.
func ExampleRetryAfter() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error {
		if delivery, _ := eventbus.FromContext(ctx); delivery.Attempt == 1 {
			return eventbus.RetryAfter(errors.New("429 Too Many Requests"), 20*time.Millisecond)
		}
		return nil
	}, eventbus.Retry(eventbus.BaseDelay(time.Hour), eventbus.MaxDelay(time.Hour)))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	begin := time.Now()
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	fmt.Println(result.Outcome, err, time.Since(begin) >= 20*time.Millisecond)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: handled <nil> true
}

// PublishAndWait returns when the event has settled, and says what died of it.
func ExampleBus_PublishAndWait() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	errBusy := errors.New("the bank is busy")
	_, err = bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error { return errBusy },
		eventbus.Named("billing"), eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := bus.PublishAndWait(ctx, "order.placed", "o-17")
	fmt.Println(result.Outcome, "after", result.Attempts, "attempts")
	fmt.Println(errors.Is(err, errBusy))
	var undelivered *eventbus.DeliveryError
	if errors.As(err, &undelivered) {
		for _, letter := range undelivered.Letters {
			fmt.Println(letter.Reason, "at", letter.Subscription)
		}
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// dead-lettered after 2 attempts
	// true
	// exhausted at billing
}

// Explain tells where each value of the retry policy of an event comes from.
func ExampleBus_Explain() {
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.MaxDelay(time.Minute)))
	if err != nil {
		log.Fatal(err)
	}
	handler := func(context.Context, eventbus.Event) error { return nil }
	_, err = bus.Subscribe("order.*", handler, eventbus.Named("billing"),
		eventbus.Retry(eventbus.MaxRetries(5), eventbus.BaseDelay(500*time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("**", handler, eventbus.Named("mail"), eventbus.Timeout(5*time.Second),
		eventbus.Retry(eventbus.MaxRetries(2), eventbus.BaseDelay(200*time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(bus.Explain("order.placed"))
	// Output:
	// order.placed goes to 2 subscription(s)
	//   1. billing  pattern "order.*", timeout 30s, circuit closed, hold when open
	//   2. mail  pattern "**", timeout 5s, circuit closed, hold when open
	//      MaxRetries = 5  (billing)
	//      BaseDelay = 200ms  (mail)
	//      MaxDelay = 1m0s  (bus default)
	//      BackoffMultiplier = 2  (bus default)
	//      MaxElapsed = unbounded  (bus default)
	//      Jitter = proportional  (bus default, for those that set none)
	//      RetryIf = every error  (bus default, for those that set none)
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

// A subscription that fails at more than half of its events is left alone for a
// while. What it misses is kept, as dead letters.
func ExampleCircuit() {
	ctx := context.Background()
	watch := clock.NewMock() // so that nobody has to wait
	bus, err := eventbus.New(eventbus.WithClock(watch), eventbus.WithRetry(eventbus.MaxRetries(0)))
	if err != nil {
		log.Fatal(err)
	}
	var repaired atomic.Bool
	placed := make(chan any, 1)
	warehouse, err := bus.Subscribe("order.placed", func(_ context.Context, e eventbus.Event) error {
		if !repaired.Load() {
			return errors.New("the warehouse does not answer")
		}
		placed <- e.Payload
		return nil
	}, eventbus.Circuit(eventbus.MinEvents(2), eventbus.OpenFor(10*time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, order := range []string{"o-1", "o-2", "o-3"} {
		result, _ := bus.PublishAndWait(ctx, "order.placed", order)
		fmt.Println(order, result.Outcome, bus.Explain("order.placed").Targets[0].Circuit)
	}
	fmt.Println(bus.Metrics().Held, "held for", warehouse.ID())
	repaired.Store(true)
	watch.Add(10 * time.Second) // what is held becomes the probe
	fmt.Println("placed", <-placed)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// o-1 dead-lettered closed
	// o-2 dead-lettered open
	// o-3 held open
	// 1 held for order.placed#1
	// placed o-3
}

// Middleware wraps a handler; it sees every attempt.
func ExampleUse() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	traced := func(next eventbus.Handler) eventbus.Handler {
		return func(ctx context.Context, e eventbus.Event) error {
			fmt.Println("before", e.Type)
			err := next(ctx, e)
			fmt.Println("after", e.Type, err)
			return err
		}
	}
	_, err = bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		fmt.Println("handled")
		return nil
	}, eventbus.Use(traced))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", "o-17"); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// before order.placed
	// handled
	// after order.placed <nil>
}

// A handler can ask its context what it is called for: here, to make an
// idempotency key that is the same at every attempt.
func ExampleFromContext() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	keys := make(map[string]int)
	charge := func(ctx context.Context, order string) error {
		delivery, _ := eventbus.FromContext(ctx)
		keys[delivery.Event.ID.String()+"/"+delivery.Subscription]++
		if delivery.Attempt == 1 {
			return errors.New("the connection broke: has it been charged?")
		}
		fmt.Println("charged", order, "at attempt", delivery.Attempt)
		return nil
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(charge), eventbus.Named("billing"),
		eventbus.Retry(eventbus.BaseDelay(time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", "o-17"); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("keys:", len(keys))
	// Output:
	// charged o-17 at attempt 2
	// keys: 1
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

// Shutdown refuses what is new and waits for what has been published. How long, its
// context says; what is unfinished then is named in the error.
func ExampleBus_Shutdown() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	var handled atomic.Int64
	_, err = bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		handled.Add(1)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for range 1000 {
		if _, err := bus.Publish(ctx, "order.placed", nil); err != nil {
			log.Fatal(err)
		}
	}
	grace, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = bus.Shutdown(grace)
	var cut *eventbus.ShutdownError
	if errors.As(err, &cut) {
		fmt.Println(len(cut.Unfinished), "events are unfinished")
	}
	fmt.Println(handled.Load(), "handled,", err)
	_, err = bus.Publish(ctx, "order.placed", nil)
	fmt.Println(err)
	// Output:
	// 1000 handled, <nil>
	// Publish("order.placed"): eventbus: bus is shut down
}

// Drain waits for the retry, too. It refuses nothing, and the bus goes on.
func ExampleBus_Drain() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		fmt.Println(e.Type, "attempt", d.Attempt)
		if d.Attempt == 1 {
			return eventbus.RetryAfter(errors.New("the mail server is down"), 10*time.Millisecond)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", nil); err != nil {
		log.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fmt.Println(bus.Drain(waiting))
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order.placed attempt 1
	// order.placed attempt 2
	// <nil>
}

// A durable bus. The model is a store in memory that stands for the disk here; a program opens one of
// store/sqlite. Both runs are a process: the second one handles what the first one has left.
func ExampleWithStore() {
	ctx := context.Background()
	disk := storetest.NewModel()
	run := func(process string, work func(bus *eventbus.Bus)) {
		store, err := disk.Open() // sqlite.Open(ctx, "events.db")
		if err != nil {
			log.Fatal(err)
		}
		bus, err := eventbus.New(eventbus.WithStore(store))
		if err != nil {
			log.Fatal(err)
		}
		_, err = bus.Subscribe("order.*", eventbus.Typed(func(ctx context.Context, o OrderPlaced) error {
			d, _ := eventbus.FromContext(ctx)
			fmt.Printf("%s process, attempt %d: a mail about %s\n", process, d.Attempt, o.Order)
			if d.Attempt == 1 {
				return eventbus.RetryAfter(errors.New("the mail server is down"), 100*time.Millisecond)
			}
			return nil
		}), eventbus.Named("mail"))
		if err != nil {
			log.Fatal(err)
		}
		if err := bus.Start(ctx); err != nil {
			log.Fatal(err)
		}
		work(bus)
		if err := bus.Shutdown(ctx); err != nil { // it leaves retries in the store, and closes the store
			log.Fatal(err)
		}
	}
	run("first", func(bus *eventbus.Bus) {
		if _, err := bus.Publish(ctx, "order.placed", OrderPlaced{"o-17", 3}); err != nil {
			log.Fatal(err)
		}
		for bus.Metrics().Store.Waiting == 0 { // until the retry is recorded
			time.Sleep(time.Millisecond)
		}
	})
	run("second", func(bus *eventbus.Bus) {
		for bus.Metrics().Store.Unsettled() > 0 {
			time.Sleep(time.Millisecond)
		}
	})
	// Output:
	// first process, attempt 1: a mail about o-17
	// second process, attempt 2: a mail about o-17
}
