// Policies shows a retry policy that lies in a file, and is changed while the bus
// runs: what is published from then on is retried by the new one, what was published
// before by the old one. A file that has gone bad changes nothing, and says why.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

// Without an include_errors that names it, or a WithErrorName that calls it
// ValueError, a document would not retry this error at all.
var errBankBusy = errors.New("the bank is busy")

func main() {
	dir, err := os.MkdirTemp("", "policies")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "billing.json")
	save(path, `{"stop": {"max_attempts": 3}, "wait": {"strategy": "fixed", "delay": 0.3}, "retry": {"include_errors": ["BankBusy"]}}`)

	file, err := retryspec.Open(path, retryspec.Parse)
	if err != nil {
		log.Fatal(err)
	}
	bus, err := eventbus.New(eventbus.WithErrorName(errBankBusy, "BankBusy"))
	if err != nil {
		log.Fatal(err)
	}
	billing, err := bus.Subscribe("payment.*", func(ctx context.Context, e eventbus.Event) error {
		d, _ := eventbus.FromContext(ctx)
		fmt.Printf("%s: attempt %d\n", e.Payload, d.Attempt)
		return errBankBusy
	}, eventbus.Named("billing"))
	if err != nil {
		log.Fatal(err)
	}
	// Now, and whenever the file has changed.
	if err := file.Follow(func(d retryspec.Document) error { return billing.SetRetry(d.Policy()) }); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		report := func(err error) {
			if err != nil {
				fmt.Println("not taken over:", errorText(err))
			} else {
				fmt.Println("taken over")
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
	publish("before the change")

	save(path, `{"stop": {"max_attempts": 0}}`)
	<-changes
	save(path, `{"stop": {"max_attempts": 2}, "wait": {"strategy": "fixed", "delay": 0.05}, "retry": {"include_errors": ["BankBusy"]}}`)
	<-changes
	publish("after the change")

	// It waits for the retries of both.
	if err := bus.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	cancel()
	watching.Wait()
}

// save writes another file and renames it, so that nobody reads half of it.
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
