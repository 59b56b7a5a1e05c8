package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"time"

	"github.com/surebus/eventbus"
)

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
