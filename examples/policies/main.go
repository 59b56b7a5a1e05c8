// Policies shows a retry policy in a file, which changes while the bus runs. Events that are published later have the new policy,
// and earlier events keep theirs. An invalid file changes nothing, and the error says why.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

// A document retries only errors of the names in its include_errors. WithErrorName gives this error a name.
var errBankBusy = errors.New("the bank is busy")

func main() {
	fmt.Print("This program changes the retry policy of billing in a file, while events wait for their retries. The bank is always busy.\n\n")
	dir, err := os.MkdirTemp("", "policies")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "billing.json")
	fmt.Println("billing.json: 3 attempts, 300 ms apart")
	save(path, `{"stop": {"max_attempts": 3}, "wait": {"strategy": "fixed", "delay": 0.3}, "retry": {"include_errors": ["BankBusy"]}}`)

	file, err := retryspec.Open(path, retryspec.Parse)
	if err != nil {
		log.Fatal(err)
	}
	bus, err := eventbus.New(eventbus.WithErrorName(errBankBusy, "BankBusy"),
		eventbus.WithSlog(slog.DiscardHandler)) // the program prints the attempts itself
	if err != nil {
		log.Fatal(err)
	}
	var attempts atomic.Int32
	billing, err := bus.Subscribe("payment.*", func(ctx context.Context, e eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		attempts.Add(1)
		fmt.Printf("  %s: attempt %d\n", e.Payload, d.Attempt)
		return errBankBusy
	}, eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	// Follow applies the policy now, and after each change of the file.
	if err := file.Follow(func(d retryspec.Document) error { return billing.SetRetry(d.Policy()) }); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		report := func(err error) {
			if err != nil {
				fmt.Println("  refused:", errorText(err))
			} else {
				fmt.Println("  applied")
			}
			changes <- struct{}{}
		}
		if err := file.Watch(ctx, 20*time.Millisecond, report); err != nil {
			log.Fatal(err)
		}
	})

	if err := bus.Start(ctx); err != nil {
		log.Fatal(err)
	}
	publish := func(what string) {
		if _, err := bus.Publish(ctx, "payment.made", what); err != nil {
			log.Fatal(err)
		}
	}
	publish("event published before the change")

	fmt.Println("billing.json: 0 attempts, which is invalid")
	save(path, `{"stop": {"max_attempts": 0}}`)
	<-changes
	fmt.Println("billing.json: 2 attempts, 50 ms apart")
	save(path, `{"stop": {"max_attempts": 2}, "wait": {"strategy": "fixed", "delay": 0.05}, "retry": {"include_errors": ["BankBusy"]}}`)
	<-changes
	publish("event published after the change")

	// Shutdown waits for the retries of both events.
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	cancel()
	watching.Wait()
	if n := attempts.Load(); n != 3+2 {
		log.Fatalf("%d attempts, want 3 by the first policy and 2 by the second one", n)
	}
	fmt.Println("\nOK: the earlier event had 3 attempts, the later one 2. Both are dead letters now.")
}

// save writes another file and renames it, so that Watch never reads a part of it.
func save(path, text string) {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		log.Fatal(err)
	}
}

// errorText is an error without the path of the file, which differs from run to run.
func errorText(err error) string {
	var e *retryspec.Error
	if errors.As(err, &e) {
		return e.Error()
	}
	return err.Error()
}
