// Rules shows how errors of different kinds are retried differently: by ordered rules, each with attempts and delays of its own.
// The program replaces the rules while the bus runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"time"

	"github.com/surebus/eventbus"
)

// BankError has a code, which rules match.
type BankError struct{ code string }

func (e *BankError) Error() string { return "the bank says " + e.code }

// Code is the method by which the bus finds the code, also in a wrapped error.
func (e *BankError) Code() string { return "Bank." + e.code }

func main() {
	fmt.Print("This program charges orders at a bank that answers with different errors. Rules decide how often each is retried.\n\n")
	ctx := context.Background()
	observer := eventbus.Observer{
		AttemptEnded: func(a eventbus.EndedAttempt) {
			if a.Failure == nil {
				fmt.Printf("  attempt %d: charged\n", a.Number)
				return
			}
			decidedBy := "the retry policy"
			if a.Failure.Rule != nil {
				decidedBy = a.Failure.Rule.String()
			}
			fmt.Printf("  attempt %d: %s (%s)\n", a.Number, a.Failure.Error, decidedBy)
		},
	}
	bus, err := eventbus.New(
		eventbus.WithObserver(observer),
		eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(10*time.Millisecond)),
		eventbus.WithErrorTypeName[*net.OpError]("ConnectionError"),
		eventbus.WithCircuit(eventbus.NoCircuit()), // most of these events fail, and would open it
		eventbus.WithSlog(slog.DiscardHandler),     // the observer prints the failures
	)
	if err != nil {
		log.Fatal(err)
	}

	// The payload of an event has the bank's answers, one for each attempt.
	billing, err := bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, answers []error) error {
		delivery, _ := eventbus.FromContext(ctx)
		if n := delivery.Attempt - 1; n < len(answers) {
			return fmt.Errorf("charging: %w", answers[n])
		}
		return nil
	}), eventbus.Named("billing"), eventbus.RetryRules(
		// The first rule that matches the error decides.
		eventbus.RetryRule{Name: "declined", Match: eventbus.ErrorMatch{Codes: []string{"Bank.Declined"}}, Attempts: 1},
		eventbus.RetryRule{
			Name: "busy", Match: eventbus.ErrorMatch{Codes: []string{"Bank.*"}},
			Attempts: 5, BaseDelay: 10 * time.Millisecond, BackoffMultiplier: 2, MaxDelay: 50 * time.Millisecond, Jitter: eventbus.FullJitter,
		},
		eventbus.RetryRule{Name: "network", Match: eventbus.ErrorMatch{As: []any{new(*net.OpError)}}, Attempts: 3},
	))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("== The rules, as bus.Explain prints them\n%s", bus.Explain("order.placed"))
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}

	busy, declined := &BankError{"Busy"}, &BankError{"Declined"}
	offline := &net.OpError{Op: "dial", Err: errors.New("no route")}
	bug := errors.New("index out of range")
	place := func(what string, answers ...error) {
		fmt.Printf("\n== %s\n", what)
		_, err := bus.PublishAndWait(ctx, "order.placed", answers)
		var died *eventbus.DeliveryError
		if errors.As(err, &died) {
			letter := died.Letters[0]
			fmt.Printf("  dead letter: %s", letter.Reason)
			if letter.Rule != nil {
				fmt.Printf(" (%s)", letter.Rule)
			}
			fmt.Println()
		}
	}
	place("The bank is busy three times: the rule \"busy\" allows 5 attempts", busy, busy, busy)
	place("The bank declines: the rule \"declined\" allows no retry", declined)
	place("Several errors: each rule counts its own attempts, and so does the policy", bug, busy, offline, busy, offline)
	place("An error that no rule matches: the policy allows 2 attempts", bug, busy, bug)

	// Events that were published before keep their rules.
	if err := billing.SetRetryRules(eventbus.RetryRule{Name: "patience", Match: eventbus.ErrorMatch{Codes: []string{"*"}}, Attempts: 4}); err != nil {
		log.Fatal(err)
	}
	place("After SetRetryRules: the rule \"patience\" allows 4 attempts", declined, declined, declined, declined)

	fmt.Println("\n== A mistake in a rule: the error names the place, and the rules stay as they are")
	err = billing.SetRetryRules(eventbus.RetryRule{Match: eventbus.ErrorMatch{Codes: []string{"Bank*"}}, Attempts: 4})
	if err == nil {
		log.Fatal("the bus has accepted a rule with a mistake")
	}
	fmt.Println(" ", err)

	fmt.Println("\n== What a rule can match in an error, by bus.ErrorTraits")
	traits := bus.ErrorTraits(fmt.Errorf("charging: %w", offline))
	fmt.Printf("  %v: result type %q, names %v\n", offline, traits.ResultType, traits.Names)

	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("\nOK: the kind of the error decided how often the bus retried")
}
