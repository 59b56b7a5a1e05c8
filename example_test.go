package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
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

// The first program: a handler fails once, and the bus retries it. Without a logger, the bus logs failures to stderr.
func Example() {
	type Order struct{ ID string }
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", eventbus.Typed(func(ctx context.Context, o Order) error {
		d, _ := eventbus.FromContext(ctx)
		fmt.Printf("attempt %d: mail for %s (%s)\n", d.Attempt, o.ID, d.Event.Type)
		if d.Attempt == 1 {
			return errors.New("the mail server is busy") // the bus retries after about 1 s
		}
		return nil
	}), eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", Order{ID: "o-17"}); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil { // waits for the retry
		log.Fatal(err)
	}
	fmt.Println("OK: every accepted event is handled")
	// Output:
	// attempt 1: mail for o-17 (order.placed)
	// attempt 2: mail for o-17 (order.placed)
	// OK: every accepted event is handled
}

// The package comment begins with these lines.
func Example_packageComment() {
	ctx := context.Background()
	type Order struct{ ID string }
	order := Order{ID: "o-17"}
	send := func(_ context.Context, o Order) error {
		fmt.Println("mail about", o.ID)
		return nil
	}
	run := func() error {
		bus, err := eventbus.New()
		if err != nil {
			return err
		}
		_, err = bus.Subscribe("order.*", func(ctx context.Context, e eventbus.Event) error {
			return send(ctx, e.Payload.(Order)) // after an error the bus retries
		}, eventbus.Named("mail"))
		if err != nil {
			return err
		}
		if err := bus.Start(ctx); err != nil {
			return err
		}
		if _, err := bus.Publish(ctx, "order.placed", order); err != nil {
			return err
		}
		return bus.Shutdown(ctx) // waits until the events are handled
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
	// Output: mail about o-17
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

// A code that is mailed too late is of no use: it becomes a dead letter.
func ExampleExpiresIn() {
	ctx := context.Background()
	watch := clock.NewMock() // so that nobody has to wait
	bus, err := eventbus.New(eventbus.WithClock(watch))
	if err != nil {
		log.Fatal(err)
	}
	mail, err := bus.Subscribe("login.code", eventbus.Typed(func(_ context.Context, code string) error {
		fmt.Println("mailed", code)
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(mail.Pause(), bus.Start(ctx)); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "login.code", "4711", eventbus.ExpiresIn(10*time.Minute)); err != nil {
		log.Fatal(err)
	}
	watch.Add(11 * time.Minute)
	if err := errors.Join(mail.Resume(), bus.Drain(ctx)); err != nil {
		log.Fatal(err)
	}
	page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range page.Letters {
		fmt.Println(l.Event.Payload, l.Reason)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: 4711 too_late
}

// A webhook that is delivered again, with another body, is one event.
func ExampleIdempotencyKey() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("payment.received", eventbus.Typed(func(_ context.Context, body string) error {
		fmt.Println("received", body)
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	first, err := bus.Publish(ctx, "payment.received", "payment 17", eventbus.IdempotencyKey("hook-4711"))
	if err != nil {
		log.Fatal(err)
	}
	again, err := bus.PublishAndWait(ctx, "payment.received", "payment 17, second delivery", eventbus.IdempotencyKey("hook-4711"))
	fmt.Println(again.Outcome, again.ID == first, err)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// received payment 17
	// repeated true <nil>
}

// The handler fails once. Only its success publishes the invoice.
func ExampleEmit() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond)), eventbus.WithLogger(zap.NewNop()))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		if _, err := eventbus.Emit(ctx, "invoice.created", fmt.Sprintf("invoice for %v, of attempt %d", e.Payload, d.Attempt)); err != nil {
			return err
		}
		if d.Attempt == 1 {
			return errors.New("out of paper")
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("invoice.created", eventbus.Typed(func(_ context.Context, text string) error {
		fmt.Println(text)
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", "order 17"); err != nil {
		log.Fatal(err)
	}
	if err := bus.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: invoice for order 17, of attempt 2
}

// The last step of a story: the customer hears of it.
func ExampleBus_OnDeadLetter() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithLogger(zap.NewNop()))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		return eventbus.Permanent(errors.New("card declined"))
	}, eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.OnDeadLetter("order.*", func(_ context.Context, letter eventbus.DeadLetter) error {
		fmt.Printf("sorry, %v: %s at %s\n", letter.Event.Payload, letter.Failures[0].Error, letter.Subscription)
		return nil
	}, eventbus.Named("apologies"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "order.placed", "order 17"); err != nil {
		log.Fatal(err)
	}
	if err := bus.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: sorry, order 17: card declined at billing
}

// A handler that publishes gives its child an id that its retry has, too.
func ExampleChildID() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.BaseDelay(time.Millisecond)), eventbus.WithLogger(zap.NewNop()))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, order string) error {
		if _, err := bus.Publish(ctx, "invoice.due", order, eventbus.ID(eventbus.ChildID(ctx, "invoice"))); err != nil {
			return err
		}
		if d, _ := eventbus.FromContext(ctx); d.Attempt < 3 {
			return errors.New("the mail server is down")
		}
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("invoice.due", eventbus.Typed(func(_ context.Context, order string) error {
		fmt.Println("one invoice of", order)
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.PublishAndWait(ctx, "order.placed", "o-17"); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: one invoice of o-17
}

// A topic has the event type and the Go type in one place, which the compiler checks at both ends.
func ExampleTopic() {
	ctx := context.Background()
	placed := eventbus.NewTopic[OrderPlaced]("order.placed") // a variable of the package that owns the event
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = placed.Subscribe(bus, func(_ context.Context, o OrderPlaced) error {
		fmt.Printf("%s: %d items\n", o.Order, o.Items)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := placed.PublishAndWait(ctx, bus, OrderPlaced{Order: "o-17", Items: 3}); err != nil {
		log.Fatal(err)
	}
	// The same name with another Go type is refused.
	_, err = eventbus.NewTopic[string]("order.placed").Publish(ctx, bus, "o-18")
	fmt.Println(err)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// o-17: 3 items
	// Publish("order.placed"): eventbus: invalid topic "order.placed" of string: this bus has it with eventbus_test.OrderPlaced: use one variable for the topic, or another name
}

// A service that answers 429 wants everyone to wait: no attempt is spent.
func ExampleThrottle() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.MaxRetries(0)))
	if err != nil {
		log.Fatal(err)
	}
	busy := true
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(_ context.Context, order string) error {
		if busy {
			busy = false
			return eventbus.Throttle(errors.New("429 Too Many Requests"), 20*time.Millisecond)
		}
		fmt.Println("shipped", order)
		return nil
	}))
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
	// Output:
	// shipped o-17
	// handled at attempt 1 <nil>
}

// Each customer's webhook is a destination: one that is dead holds up no other.
func ExamplePerDestination() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithRetry(eventbus.MaxRetries(0)))
	if err != nil {
		log.Fatal(err)
	}
	type invoice struct{ Customer string }
	hooks, err := bus.Subscribe("invoice.sent", eventbus.Typed(func(_ context.Context, i invoice) error {
		if i.Customer == "acme" {
			return errors.New("connection refused")
		}
		return nil
	}), eventbus.Named("hooks"), eventbus.PerDestination(func(e eventbus.Event) string { return e.Payload.(invoice).Customer }))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, customer := range []string{"acme", "acme", "acme", "acme", "acme", "globex"} {
		_, err := bus.PublishAndWait(ctx, "invoice.sent", invoice{customer})
		if errors.Is(err, eventbus.ErrHeld) {
			fmt.Println("held for", customer)
		} else if err == nil {
			fmt.Println("delivered to", customer)
		}
	}
	for _, d := range bus.Metrics().Subscriptions[0].Destinations.List {
		fmt.Println(d.Destination, "has an", d.Circuit, "circuit")
	}
	if err := hooks.Destination("acme").Reset(); err != nil { // it is repaired
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// held for acme
	// delivered to globex
	// acme has an open circuit
}

// A handler can postpone a delivery. The others of its subscription go on.
func ExampleSnooze() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	accounts := make(map[string]bool)
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(_ context.Context, customer string) error {
		if !accounts[customer] { // it comes a little later
			accounts[customer] = true
			return eventbus.Snooze(20 * time.Millisecond)
		}
		fmt.Println("welcome,", customer)
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := bus.PublishAndWait(ctx, "order.placed", "Ada")
	fmt.Println(result.Outcome, err)
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// welcome, Ada
	// handled <nil>
}

// A handler can know that no further attempt follows, and act on it.
func ExampleDelays() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error {
		delivery, _ := eventbus.FromContext(ctx)
		if delivery.Attempt == delivery.LastAttempt {
			fmt.Println("attempt", delivery.Attempt, "is the last: the customer gets a letter")
			return nil
		}
		return errors.New("the mail server is busy")
	}, eventbus.Retry(eventbus.Delays(time.Millisecond, 5*time.Millisecond)))
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
	// Output: attempt 3 is the last: the customer gets a letter
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

// BankError is an error that rules can tell from others.
type BankError struct{ code string }

func (e *BankError) Error() string { return "the bank says " + e.code }
func (e *BankError) Code() string  { return "Bank." + e.code }

// Each kind of error has a budget of its own.
func ExampleRetryRules() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	answers := []string{"Busy", "Busy", "Declined"}
	_, err = bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		answer := answers[0]
		answers = answers[1:]
		return &BankError{answer}
	}, eventbus.Named("billing"), eventbus.RetryRules(
		// The first one that matches decides.
		eventbus.RetryRule{Name: "declined", Match: eventbus.ErrorMatch{Codes: []string{"Bank.Declined"}}, Attempts: 1},
		eventbus.RetryRule{Name: "busy", Match: eventbus.ErrorMatch{Codes: []string{"Bank.*"}}, Attempts: 10, BaseDelay: time.Millisecond},
	))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = bus.PublishAndWait(ctx, "order.placed", "o-17")
	var died *eventbus.DeliveryError
	if errors.As(err, &died) {
		letter := died.Letters[0]
		fmt.Printf("%s after %d attempts by %s\n", letter.Reason, letter.Attempts, letter.Rule)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: exhausted after 3 attempts by rule 0 of billing, "declined"
}

// A rule that is refused is named by its position.
func ExampleWithRetryRules() {
	_, err := eventbus.New(eventbus.WithRetryRules(
		eventbus.RetryRule{Match: eventbus.ErrorMatch{Types: []string{"timeout"}}, Attempts: 3},
		eventbus.RetryRule{Match: eventbus.ErrorMatch{Codes: []string{"*"}}},
	))
	fmt.Println(err)
	// Output: New: eventbus: invalid option WithRetryRules[1].Attempts(0): must be from 1 to 2147483647, the first run counted, or Unlimited
}

// Every member that is set must match.
func ExampleErrorMatch_Matches() {
	busy := eventbus.ErrorMatch{Codes: []string{"Bank.Busy", "Net.*"}, As: []any{new(*BankError)}}
	fmt.Println(busy.Matches(fmt.Errorf("charging: %w", &BankError{"Busy"})))
	fmt.Println(busy.Matches(&BankError{"Declined"}))
	fmt.Println(busy)
	// Output:
	// true
	// false
	// code Bank.Busy or Net.*, as *eventbus_test.BankError
}

// Only errors of some names are retried: those of their types, or what they are called
// instead.
func ExampleIncludeErrors() {
	bus, err := eventbus.New(
		eventbus.WithErrorName(context.DeadlineExceeded, "TimeoutError"),
		eventbus.WithErrorTypeName[*net.OpError]("ConnectionError"),
		eventbus.WithRetry(eventbus.IncludeErrors("TimeoutError", "ConnectionError", "BankError")),
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range []error{
		fmt.Errorf("asking: %w", context.DeadlineExceeded),
		&net.OpError{Op: "dial", Err: errors.New("no route")},
		errors.Join(&BankError{"Busy"}, fs.ErrClosed),
	} {
		fmt.Println(bus.ErrorTraits(err).Names)
	}
	// Output:
	// [wrapError TimeoutError]
	// [ConnectionError errorString]
	// [joinError BankError errorString]
}

// An operator has learnt that the bank is down for an hour.
func ExampleSubscription_SetRetry() {
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	billing, err := bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error { return nil },
		eventbus.Named("billing"), eventbus.Retry(eventbus.MaxRetries(5)))
	if err != nil {
		log.Fatal(err)
	}
	if err := billing.SetRetry(eventbus.MaxRetries(20), eventbus.MaxDelay(10*time.Minute)); err != nil {
		log.Fatal(err)
	}
	policy := bus.Explain("order.placed").Policy // of what is published from now on
	fmt.Println(policy.MaxRetries, policy.MaxDelay, policy.BaseDelay)
	// Output: 20 10m0s 1s
}

// A test has jitter come out as it likes.
func ExampleWithRandom() {
	ctx := context.Background()
	bus, err := eventbus.New(
		eventbus.WithRandom(func() float64 { return 0.5 }),
		eventbus.WithRetry(eventbus.BaseDelay(10*time.Millisecond), eventbus.MaxRetries(1), eventbus.FullJitter),
		eventbus.WithObserver(eventbus.Observer{RetryScheduled: func(r eventbus.ScheduledRetry) { fmt.Println("again in", r.Delay) }}),
	)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Subscribe("a", func(context.Context, eventbus.Event) error { return errors.New("broken") }); err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(ctx, "a", nil); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: again in 5ms
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

// A concurrency limit protects a slow service. Deliveries beyond it wait in the subscription's line,
// without goroutines, and Shutdown waits for them.
func ExampleConcurrency() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	var running atomic.Int32
	render := func(context.Context, eventbus.Event) error {
		if n := running.Add(1); n > 2 {
			fmt.Println(n, "calls at once")
		}
		defer running.Add(-1)
		time.Sleep(time.Millisecond)
		return nil
	}
	if _, err = bus.Subscribe("report.requested", render, eventbus.Concurrency(2)); err != nil {
		log.Fatal(err)
	}
	if err = bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for range 20 {
		if _, err = bus.Publish(ctx, "report.requested", "monthly"); err != nil {
			log.Fatal(err)
		}
	}
	if err = bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("handled:", bus.Metrics().Ledger.Handled)
	// Output: handled: 20
}

// A publication whose context ends while it waits for room says what is full.
func ExampleFullError() {
	ctx := context.Background()
	bus, err := eventbus.New(eventbus.WithQueueCapacity(1), eventbus.WithLogger(zap.NewNop()))
	if err != nil {
		log.Fatal(err)
	}
	if _, err = bus.Subscribe("report.*", func(context.Context, eventbus.Event) error { return nil }); err != nil {
		log.Fatal(err)
	}
	for range 2 { // the bus is not started: the queue fills
		_, err = bus.Publish(ctx, "report.requested", "monthly")
	}
	var full *eventbus.FullError
	if errors.As(err, &full) {
		fmt.Println("full:", full.Bound, full.Most)
	}
	fmt.Println("is ErrQueueFull:", errors.Is(err, eventbus.ErrQueueFull))
	if err = bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if err = bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// full: queue 1
	// is ErrQueueFull: true
}

// A lossy subscription drops deliveries instead of making publishers wait for room in its line.
// Metrics count the dropped deliveries.
func ExampleWhenFull() {
	ctx := context.Background()
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	began, slow := make(chan struct{}), make(chan struct{})
	show := func(_ context.Context, e eventbus.Event) error {
		if e.Payload == 1.07 {
			close(began)
			<-slow
		}
		fmt.Println("EUR/USD", e.Payload)
		return nil
	}
	_, err = bus.Subscribe("price", show, eventbus.Concurrency(1), eventbus.LineCapacity(1), eventbus.DropNewestWhenFull)
	if err != nil {
		log.Fatal(err)
	}
	if err = bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	publish := func(price float64, opts ...eventbus.PublishOption) {
		if _, err := bus.Publish(ctx, "price", price, opts...); err != nil {
			log.Fatal(err)
		}
	}
	publish(1.07)
	<-began
	order := eventbus.Key("EUR/USD") // the next prices reach the line one after the other
	publish(1.08, order)             // waits in the line
	publish(1.09, order)             // finds it full
	result, err := bus.PublishAndWait(ctx, "price", 1.10, order)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Outcome)
	close(slow)
	if err = bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("dropped:", bus.Metrics().Ledger.Dropped)
	// Output:
	// dropped
	// EUR/USD 1.07
	// EUR/USD 1.08
	// dropped: 2
}

// While as many calls hang as MaxAbandoned allows, deliveries wait and spend no attempt. They go on when a
// call returns, or after Resume.
func ExampleMaxAbandoned() {
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	service := make(chan struct{}) // does not answer
	s, err := bus.Subscribe("order.*", func(context.Context, eventbus.Event) error {
		<-service
		return nil
	}, eventbus.Named("crm"), eventbus.Timeout(time.Millisecond), eventbus.MaxAbandoned(1), eventbus.Concurrency(1))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := bus.Publish(ctx, "order.placed", nil); err != nil {
			log.Fatal(err)
		}
	}
	for !bus.Metrics().Subscriptions[0].Hung {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("abandoned:", bus.Metrics().Subscriptions[0].Abandoned)
	close(service) // it answers again
	for bus.Metrics().Ledger.Handled < 3 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("hung:", bus.Metrics().Subscriptions[0].Hung, "dead letters:", bus.Metrics().DeadLetters, s.ID())
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// abandoned: 1
	// hung: false dead letters: 0 crm
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

type tenantKey struct{}

// A web framework may give the context of a request to the next one. So copy what handlers need while
// Publish runs: values for handlers in memory, text for stores and dead letters.
func ExampleWithContextFrom() {
	bus, err := eventbus.New(
		eventbus.WithContextFrom(func(ctx context.Context) context.Context {
			return context.WithValue(context.Background(), tenantKey{}, ctx.Value(tenantKey{}))
		}),
		eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string {
			return map[string]string{"tenant": fmt.Sprint(ctx.Value(tenantKey{}))}
		}),
		eventbus.WithInheritedMetadata("tenant"), // events that handlers publish have it too
	)
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.placed", func(ctx context.Context, e eventbus.Event) error {
		fmt.Println(ctx.Value(tenantKey{}), e.Metadata.Get("tenant"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Publish(context.WithValue(ctx, tenantKey{}, "acme"), "order.placed", nil); err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: acme acme
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
		store := disk.Open() // sqlite.Open(ctx, "events.db")
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

// Two buses on one store, as two processes of a program have them: the second one is the standby of the first. What it
// publishes, the first one handles, and when that shuts down, the second one goes on.
func ExampleWithStandby() {
	ctx := context.Background()
	disk := storetest.NewModel() // a program opens a store of store/sqlite
	open := func(process string) *eventbus.Bus {
		bus, err := eventbus.New(eventbus.WithStore(disk.Open()), eventbus.WithStandby())
		if err != nil {
			log.Fatal(err)
		}
		_, err = bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, o OrderPlaced) error {
			fmt.Println("the", process, "process handles", o.Order)
			return nil
		}), eventbus.Named("mail"))
		if err != nil {
			log.Fatal(err)
		}
		return bus
	}
	publish := func(bus *eventbus.Bus, order string) {
		if _, err := bus.Publish(ctx, "order.placed", OrderPlaced{order, 3}); err != nil {
			log.Fatal(err)
		}
	}

	first, second := open("first"), open("second")
	if err := first.Start(ctx); err != nil {
		log.Fatal(err)
	}
	started := make(chan error)
	go func() { started <- second.Start(ctx) }() // waits for the lease

	publish(second, "o-17")
	for first.Metrics().Ledger.Handled == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := first.Shutdown(ctx); err != nil { // hands the lease over
		log.Fatal(err)
	}
	if err := <-started; err != nil {
		log.Fatal(err)
	}
	publish(second, "o-18")
	if err := second.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	if err := second.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the first process handles o-17
	// the second process handles o-18
}

// An event exists if and only if the transaction of the caller commits. The model and its transactions stand for a
// database here. With store/sqlite, tx is a *sql.Tx on the store's file, in which the service also writes its own tables.
func ExampleBus_PublishTx() {
	ctx := context.Background()
	database := storetest.NewModel()
	bus, err := eventbus.New(eventbus.WithStore(database.Open()))
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("order.*", eventbus.Typed(func(_ context.Context, o OrderPlaced) error {
		fmt.Println("a mail about", o.Order)
		return nil
	}), eventbus.Named("mail"))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}

	place := func(o OrderPlaced) error {
		tx := database.Begin()
		defer tx.Rollback()
		// Here, a service inserts the order in a table of its own.
		if _, err := bus.PublishTx(ctx, tx, "order.placed", o); err != nil {
			return err
		}
		if o.Items == 0 {
			return errors.New("an order of nothing")
		}
		return tx.Commit()
	}
	fmt.Println(place(OrderPlaced{"o-17", 3}))
	for bus.Metrics().Ledger.Handled == 0 { // the bus takes it in within milliseconds
		time.Sleep(time.Millisecond)
	}
	fmt.Println(place(OrderPlaced{"o-18", 0}))
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// <nil>
	// a mail about o-17
	// an order of nothing
}
