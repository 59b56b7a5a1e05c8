package retryspec_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

func handle(context.Context, eventbus.Event) error { return nil }

func Example() {
	document, err := retryspec.Parse([]byte(`{
		"stop":  {"max_attempts": 6, "max_delay": 3600},
		"wait":  {"strategy": "exponential", "initial_delay": 0.5, "multiplier": 3, "max_delay": 60},
		"retry": {"include_errors": ["TimeoutError", "ConnectionError"]}
	}`))
	if err != nil {
		log.Fatal(err)
	}
	bus, err := eventbus.New(eventbus.WithRetry(document.Policy()))
	if err != nil {
		log.Fatal(err)
	}
	policy := bus.Explain("payment.made").Policy
	fmt.Println(policy.MaxRetries, "retries, the first after", policy.BaseDelay)
	fmt.Println("within", policy.MaxElapsed, "of", policy.IncludeErrors)
	// Output:
	// 5 retries, the first after 500ms
	// within 1h0m0s of [TimeoutError ConnectionError]
}

// A document that does not say otherwise retries only errors named ValueError. The
// errors of a program get such names where the bus is made.
func ExampleDocument_Policy_names() {
	errBankBusy := errors.New("the bank is busy")
	bus, err := eventbus.New(
		eventbus.WithRetry(retryspec.Default().Policy()),
		eventbus.WithErrorName(errBankBusy, "ValueError"),
		eventbus.WithErrorName(context.DeadlineExceeded, "TimeoutError"),
		eventbus.WithErrorTypeName[*net.OpError]("ConnectionError"),
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range []error{
		fmt.Errorf("charging: %w", errBankBusy),
		&net.OpError{Op: "dial", Err: context.DeadlineExceeded},
		errors.New("no name of its own"),
	} {
		fmt.Println(bus.ErrorTraits(err).Names)
	}
	fmt.Println(retryspec.Default().Retries("ValueError"), retryspec.Default().Retries("TimeoutError"))
	// Output:
	// [wrapError ValueError]
	// [ConnectionError TimeoutError]
	// [errorString]
	// true false
}

func ExampleParse_errors() {
	_, err := retryspec.Parse([]byte("{\n  \"stop\": {\"max_atempts\": 3}\n}"))
	fmt.Println(err)
	var e *retryspec.Error
	if errors.As(err, &e) {
		fmt.Println(e.Path, "in line", e.Line)
	}
	// Output:
	// retryspec: line 2, column 12: stop.max_atempts: got a member that is unknown here, want one of max_attempts, max_delay; did you mean max_attempts?
	// stop.max_atempts in line 2
}

func ExampleParseRules() {
	rules, err := retryspec.ParseRules([]byte(`{"policies": [
		{"match": {"codes": ["Bank.*"], "retryable": true}, "attempts": 4, "backoff": {"initial": "PT0.5S", "rate": 2, "jitter": "full"}},
		{"match": {"types": ["timeout"]}, "attempts": 2}
	]}`))
	if err != nil {
		log.Fatal(err)
	}
	bus, err := eventbus.New(eventbus.WithRetryRules(rules...))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Subscribe("payment.*", handle); err != nil {
		log.Fatal(err)
	}
	for _, rule := range bus.Explain("payment.failed").Targets[0].Rules {
		fmt.Println(rule)
	}
	// Output:
	// code Bank.*, retryable true: 4 attempts after 500ms × 2, jitter full
	// type timeout: 2 attempts without delay
}

func ExampleDocument_MarshalJSON() {
	d := retryspec.Default()
	d.Stop.MaxAttempts = retryspec.NoLimit
	d.Retry.IncludeErrors = []string{"TimeoutError"}
	text, err := json.Marshal(d)
	fmt.Println(string(text), err)
	// Output:
	// {"version":1,"stop":{"max_attempts":null,"max_delay":null},"wait":{"strategy":"exponential_jitter","delay":1,"initial_delay":1,"multiplier":2,"max_delay":300},"retry":{"include_errors":["TimeoutError"],"exclude_errors":[]}} <nil>
}

// The delays alone: 0 is the first run, 1 the first retry.
func ExampleDocument_Bounds() {
	d := retryspec.Default()
	for attempt := range 4 {
		least, most := d.Bounds(attempt)
		fmt.Println(attempt, least, most, d.Delay(attempt, 0.25), d.Stopped(attempt, 0))
	}
	// Output:
	// 0 0s 0s 0s false
	// 1 0s 1s 250ms false
	// 2 0s 2s 500ms false
	// 3 0s 4s 1s false
}

// A file that is changed while the bus runs. Watch, on a goroutine of its own, calls
// Reload every so often.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, "retry.json")
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
	}

	write(`{"stop": {"max_attempts": 3}}`)
	file, err := retryspec.Open(name, retryspec.Parse)
	if err != nil {
		log.Fatal(err)
	}
	bus, err := eventbus.New()
	if err != nil {
		log.Fatal(err)
	}
	sub, err := bus.Subscribe("payment.*", handle)
	if err != nil {
		log.Fatal(err)
	}
	if err := file.Follow(func(d retryspec.Document) error { return sub.SetRetry(d.Policy()) }); err != nil {
		log.Fatal(err)
	}
	show := func() { fmt.Println(bus.Explain("payment.failed").Policy.MaxRetries, file.Err() == nil) }
	show()

	write(`{"stop": {"max_attempts": 10}}`)
	_ = file.Reload()
	show()
	write(`{"stop": {"max_attempts": 0}}`)
	_ = file.Reload()
	show()
	// Output:
	// 2 true
	// 9 true
	// 9 false
}
