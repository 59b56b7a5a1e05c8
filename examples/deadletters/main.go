// Deadletters shows the administration of dead letters: what died and why, the
// whole story, a replay with a corrected payload, a paced replay of the rest, and
// what is kept in a file.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
)

type payment struct {
	Order string `json:"order"`
	Cents int    `json:"cents"`
}

func main() {
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

	dlq := bus.DLQ()
	groups, err := dlq.Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range groups {
		fmt.Printf("%d × %s: %s\n", g.Count, g.Subscription, g.Message)
	}

	// The whole story of one of them.
	page, err := dlq.List(ctx, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
	if err != nil {
		log.Fatal(err)
	}
	letter := page.Letters[0]
	fmt.Println("\ndied:", letter.Event.Payload, "at", letter.Subscription, "for", letter.Reason)
	for _, f := range letter.Failures {
		fmt.Printf("  attempt %d: %s\n", f.Attempt, f.Error)
	}

	repaired.Store(true)
	if err := dlq.ReplayEdited(ctx, letter.ID, payment{Order: "o-0", Cents: 1}); err != nil {
		log.Fatal(err)
	}
	// What is left outlives the process in a file.
	var file bytes.Buffer
	exported, err := dlq.Export(ctx, &file, eventbus.LetterQuery{All: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("\nexported", exported.Exported, "letters,", bytes.Count(file.Bytes(), []byte("\n")), "lines")

	query := eventbus.LetterQuery{Subscription: "billing", Reason: eventbus.ReasonExhausted}
	preview, err := dlq.ReplayMatching(ctx, query, eventbus.DryRun())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a replay would be of", preview.Matched)
	report, err := dlq.ReplayMatching(ctx, query, eventbus.Rate(1000), eventbus.StopAfter(3))
	if err != nil {
		log.Fatal(err)
	}
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("replayed", report.Replayed, "with", report.Failures, "failures;", bus.Metrics().DeadLetters, "letters left")
}

func newBus(repaired *atomic.Bool) *eventbus.Bus {
	bus, err := eventbus.New(
		eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Millisecond)),
		eventbus.WithCircuit(eventbus.NoCircuit()),
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
