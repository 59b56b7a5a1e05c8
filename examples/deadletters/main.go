// Deadletters shows what an operator does with dead letters: group them by cause, read the failures of one, replay it with a
// corrected payload, export the others to a file, and replay them at a limited rate.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
)

type payment struct {
	Order string `json:"order"`
	Cents int    `json:"cents"`
}

func main() {
	fmt.Println("This program lets 10 payments become dead letters, and repairs them: the bank is down, and one amount is 0.")
	ctx := context.Background()
	var repaired atomic.Bool
	bus := newBus(&repaired)
	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for i := range 10 {
		p := payment{Order: fmt.Sprint("o-", i), Cents: 100 * i}
		if _, err := bus.Publish(ctx, "payment.asked", p); err != nil {
			log.Fatal(err)
		}
	}
	for bus.Metrics().DeadLetters < 10 {
		time.Sleep(time.Millisecond)
	}

	fmt.Println("\n== Groups: the dead letters by cause")
	dlq := bus.DLQ()
	groups, err := dlq.Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range groups {
		fmt.Printf("  %d at %s: %s\n", g.Count, g.Subscription, g.Message)
	}

	fmt.Println("\n== List: one dead letter, with its failures")
	page, err := dlq.List(ctx, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
	if err != nil {
		log.Fatal(err)
	}
	letter := page.Letters[0]
	fmt.Printf("  %s %+v at %s: %s\n", letter.Event.Type, letter.Event.Payload, letter.Subscription, letter.Reason)
	for _, f := range letter.Failures {
		fmt.Printf("  attempt %d: %s\n", f.Attempt, f.Error)
	}

	fmt.Println("\n== ReplayEdited: the same event, with an amount")
	repaired.Store(true)
	if err := dlq.ReplayEdited(ctx, letter.ID, payment{Order: "o-0", Cents: 1}); err != nil {
		log.Fatal(err)
	}
	fmt.Println("  replayed")

	fmt.Println("\n== Export: the other letters as JSON lines, for Import in another process")
	var file bytes.Buffer
	exported, err := dlq.Export(ctx, &file, eventbus.LetterQuery{All: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("  %d letters in %d lines\n", exported.Exported, bytes.Count(file.Bytes(), []byte("\n")))

	fmt.Println("\n== ReplayMatching: a dry run, then at most 1,000 letters a second, until 3 die again")
	query := eventbus.LetterQuery{Subscription: "billing", Reason: eventbus.ReasonExhausted}
	preview, err := dlq.ReplayMatching(ctx, query, eventbus.DryRun())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("  the dry run matches", preview.Matched)
	report, err := dlq.ReplayMatching(ctx, query, eventbus.Rate(1000), eventbus.StopAfter(3))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("  %d replayed, %d died again\n", report.Replayed, report.Failures)
	if left := bus.Metrics().DeadLetters; left > 0 {
		log.Fatalf("%d dead letters are left", left)
	}
	fmt.Println("\nOK: all 10 payments are handled, and no dead letter is left")
}

func newBus(repaired *atomic.Bool) *eventbus.Bus {
	bus, err := eventbus.New(
		eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Millisecond)),
		eventbus.WithCircuit(eventbus.NoCircuit()), // an open circuit would hold the payments instead
		eventbus.WithSlog(slog.DiscardHandler),     // the program prints the failures itself
	)
	if err != nil {
		log.Fatal(err)
	}
	_, err = bus.Subscribe("payment.asked", eventbus.Typed(func(_ context.Context, p payment) error {
		switch {
		case p.Cents == 0:
			return eventbus.Permanent(fmt.Errorf("the amount of %s is 0", p.Order))
		case !repaired.Load():
			return fmt.Errorf("no answer for %s after 30 ms", p.Order)
		}
		return nil
	}), eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	return bus
}
