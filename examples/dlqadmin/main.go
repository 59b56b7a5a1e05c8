// Command dlqadmin repairs the dead letters of a bus from a second process, while the bus runs.
//
//	go run ./examples/dlqadmin [-store FILE]
//
// The program starts a shop as a child process, a second run of its own executable, whose bus has a
// store. Some payments have no amount, and the mail server is down: their events become dead letters.
// The program opens the same file for a bus without handlers. It groups the letters by cause and replays the payments with
// corrected amounts. When the mail server is back, it replays the others. The shop's bus takes in the replayed events within 250 ms.
//
// The exit status is 0 if the shop has handled all of them. -store keeps the file. Without it, the file is temporary. The command
// eventbus does the same in a terminal.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if isShop() {
		os.Exit(shopMain(ctx))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("dlqadmin", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("store", "", "keep the events in this `file`")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "usage: dlqadmin [-store FILE]")
		return 2
	}
	if *file == "" {
		dir, err := os.MkdirTemp("", "dlqadmin")
		if err != nil {
			fmt.Fprintln(stderr, "dlqadmin:", err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		*file = filepath.Join(dir, "events.db")
	}
	if err := repair(ctx, *file, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "dlqadmin:", err)
		return 1
	}
	return 0
}

// repair starts the shop and repairs its dead letters.
func repair(ctx context.Context, file string, stdout, stderr io.Writer) (err error) {
	s, err := startShop(ctx, file, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	tool, err := openTool(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tool.Shutdown(ctx)) }()
	dlq := tool.DLQ()

	if err := printGroups(ctx, dlq, stdout); err != nil {
		return err
	}
	corrected, err := correctPayments(ctx, dlq)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "\n== Billing: replays with corrected payloads (ReplayEdited)")
	fmt.Fprintf(stdout, "  %d payments were replayed with the amount of their orders.\n", corrected)

	if err := s.say("mail server is back"); err != nil {
		return err
	}
	if err := replayMail(ctx, dlq, stdout); err != nil {
		return err
	}
	if err := awaitEmpty(ctx, tool); err != nil {
		return err
	}
	if err := printAudit(ctx, tool, stdout); err != nil {
		return err
	}
	return printBooks(ctx, dlq, stdout)
}

// openTool opens the file beside the bus that runs the handlers.
func openTool(ctx context.Context, file string) (*eventbus.Bus, error) {
	store, err := sqlite.Open(ctx, file, sqlite.MustExist())
	if err != nil {
		return nil, err
	}
	tool, err := eventbus.New(eventbus.WithStore(store), eventbus.WithoutHandlers())
	if err != nil {
		return nil, errors.Join(err, store.Close(ctx))
	}
	return tool, nil
}

func printGroups(ctx context.Context, dlq *eventbus.DLQ, stdout io.Writer) error {
	groups, err := dlq.Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "This program repairs the dead letters of a shop from a second process, while the shop runs.")
	fmt.Fprintln(stdout, "\n== The dead letters by cause")
	for _, g := range groups {
		fmt.Fprintf(stdout, "  %2d at %-8s %s\n", g.Count, g.Subscription, g.Message)
	}
	return nil
}

// operator is for the audit: who acts, and why.
var operator = []eventbus.DirectiveOption{eventbus.By("night shift"), eventbus.Because("ticket 4711")}

// correctPayments replays each payment without an amount with a corrected payload.
func correctPayments(ctx context.Context, dlq *eventbus.DLQ) (corrected int, err error) {
	page, err := dlq.List(ctx, eventbus.LetterQuery{Type: "order.paid", Reason: eventbus.ReasonPermanent})
	if err != nil {
		return 0, err
	}
	for _, letter := range page.Letters {
		var o order
		if err := json.Unmarshal(letter.Event.Payload.(json.RawMessage), &o); err != nil {
			return corrected, err
		}
		o.Cents = 100 * o.Number
		if err := dlq.ReplayEdited(ctx, letter.ID, o, operator...); err != nil {
			return corrected, err
		}
		corrected++
	}
	return corrected, nil
}

// replayMail replays the remaining letters of the subscription mail, at most 100 a second, and stops
// at the third that dies again.
func replayMail(ctx context.Context, dlq *eventbus.DLQ, stdout io.Writer) error {
	// Until freezes the set: letters of events that die during the replay are not replayed.
	q := eventbus.LetterQuery{Subscription: "mail", Until: time.Now()}
	preview, err := dlq.PreviewReplay(ctx, q)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "\n== Mail, whose server is back: a preview, and a bulk replay of at most 100 a second (ReplayMatching)")
	fmt.Fprintf(stdout, "  %d letters of mail match, the oldest of %s.\n", preview.Matched, preview.Oldest.Format(time.TimeOnly))
	report, err := dlq.ReplayMatching(ctx, q, eventbus.Rate(100), eventbus.StopAfter(3), operator[0], operator[1])
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "  %d were replayed.\n", report.Replayed)
	return nil
}

// awaitEmpty waits until the shop's bus has settled all replayed events.
func awaitEmpty(ctx context.Context, tool *eventbus.Bus) error {
	for {
		m := tool.Metrics()
		if m.StoreError != "" {
			return errors.New(m.StoreError)
		}
		if m.Store.Incoming+m.Store.Unsettled() == 0 { // the shop's bus has taken them in, and settled them
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func printAudit(ctx context.Context, tool *eventbus.Bus, stdout io.Writer) error {
	page, err := tool.Audit(ctx, eventbus.AuditQuery{Limit: 3})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "\n== The last entries of the audit, the newest first: who did what, and why")
	for _, e := range page.Entries {
		fmt.Fprintf(stdout, "  %s by %s, %s", e.Action, e.By, e.Why)
		if e.Outcome != nil { // the second entry of a bulk operation
			fmt.Fprintf(stdout, ": %d of %d done", e.Outcome.Done, e.Count)
		}
		fmt.Fprintln(stdout)
	}
	return nil
}

// printBooks returns an error if letters are left.
func printBooks(ctx context.Context, dlq *eventbus.DLQ, stdout io.Writer) error {
	page, err := dlq.List(ctx, eventbus.LetterQuery{Limit: 1})
	if err != nil {
		return err
	}
	if page.Total > 0 {
		return fmt.Errorf("%d dead letters are left", page.Total)
	}
	fmt.Fprintln(stdout, "\nOK: no dead letter is left, and the shop never stopped")
	return nil
}
