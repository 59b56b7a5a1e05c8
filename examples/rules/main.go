// Rules shows how errors of different kinds are retried differently: by ordered rules,
// each with its own budget and delays, which are replaced while the bus runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/surebus/eventbus"
)

// BankError tells its code, which the rules go by.
type BankError struct{ code string }

func (e *BankError) Error() string { return "the bank says " + e.code }

// Code is found by the bus wherever the error is wrapped.
func (e *BankError) Code() string { return "Bank." + e.code }

func main() {
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
		eventbus.WithCircuit(eventbus.NoCircuit()), // most of these few events fail, and would open it
	)
	if err != nil {
		log.Fatal(err)
	}

	// What the bank answers, one answer an attempt, is the event's payload.
	billing, err := bus.Subscribe("order.placed", eventbus.Typed(func(ctx context.Context, answers []error) error {
		delivery, _ := eventbus.FromContext(ctx)
		if n := delivery.Attempt - 1; n < len(answers) {
			return fmt.Errorf("charging: %w", answers[n])
		}
		return nil
	}), eventbus.Named("billing"), eventbus.RetryRules(
		// The first one that matches decides.
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
	fmt.Println(bus.Explain("order.placed"))
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}

	busy, declined := &BankError{"Busy"}, &BankError{"Declined"}
	offline := &net.OpError{Op: "dial", Err: errors.New("no route")}
	bug := errors.New("index out of range")
	place := func(what string, answers ...error) {
		fmt.Println(what)
		_, err := bus.PublishAndWait(ctx, "order.placed", answers)
		var died *eventbus.DeliveryError
		if errors.As(err, &died) {
			letter := died.Letters[0]
			fmt.Printf("  dead: %s", letter.Reason)
			if letter.Rule != nil {
				fmt.Printf(", %s", letter.Rule)
			}
			fmt.Println()
		}
	}
	place("the bank is busy for a while:", busy, busy, busy)
	place("no retry helps here:", declined)
	place("each budget is its own, the policy's of 2 attempts too:", bug, busy, offline, busy, offline)
	place("the policy's is spent:", bug, busy, bug)

	// Rules can be replaced while the bus runs. What was published before keeps its own.
	if err := billing.SetRetryRules(eventbus.RetryRule{Name: "patience", Match: eventbus.ErrorMatch{Codes: []string{"*"}}, Attempts: 4}); err != nil {
		log.Fatal(err)
	}
	place("with other rules:", declined, declined, declined, declined)

	// A mistake is refused with its place, and nothing changes.
	fmt.Println(billing.SetRetryRules(eventbus.RetryRule{Match: eventbus.ErrorMatch{Codes: []string{"Bank*"}}, Attempts: 4}))

	// Why does a rule match, or not? An error tells.
	traits := bus.ErrorTraits(fmt.Errorf("charging: %w", offline))
	fmt.Printf("%v is of the type %q, and has the names %v\n", offline, traits.ResultType, traits.Names)

	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}
