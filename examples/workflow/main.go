// Command workflow handles events with workflow definitions of the Metolia Workflow Language (module mwl) as handlers: a saga with
// compensation (saga.json), polling with a deadline (polling.json), and fan-out with partial success (fanout.json).
//
//	go run ./examples/workflow
//
// The saga runs for the orders of examples/orders. Orders without the address that they need become dead letters, with the envelope
// of the workflow's error. The program corrects one of them and replays it. The exit status is 0 if each order ended in one of the
// ways that the program prints, and the money matches the shipped orders.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl"
)

//go:embed saga.json
var saga []byte

//go:embed polling.json
var polling []byte

//go:embed fanout.json
var fanout []byte

//go:embed parcels.jsonl
var parcels []byte

//go:embed prices.jsonl
var prices []byte

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "workflow:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	orders, err := readOrders()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out, "This program runs three workflow definitions as handlers: for orders, parcels and prices.")
	bus, err := eventbus.New(eventbus.WithSlog(slog.DiscardHandler)) // sagas fail on purpose
	if err != nil {
		return err
	}
	shop := newShop()
	catalog, err := mwl.NewCatalog(append(shop.providers(), mwl.PublishTo(bus))...)
	if err != nil {
		return err
	}
	results := &tally{counts: make(map[string]int)}
	for name, flow := range map[string]struct {
		pattern string
		source  []byte
	}{
		"saga":    {"order.placed", saga},
		"polling": {"parcel.sent", polling},
		"fanout":  {"price.wanted", fanout},
	} {
		definition, err := mwl.Load(flow.source, mwl.WithCatalog(catalog))
		if err != nil {
			return fmt.Errorf("%s.json: %w", name, err)
		}
		// The saga retries the bank itself, so the subscription makes one attempt.
		_, err = definition.Subscribe(bus, flow.pattern, []mwl.HandlerOption{mwl.OnResult(results.add)},
			eventbus.Named(name), eventbus.Retry(eventbus.MaxRetries(0)))
		if err != nil {
			return err
		}
	}
	if err := errors.Join(bus.Start(ctx), publish(ctx, bus, "order.placed", orders)); err != nil {
		return err
	}
	if err := settle(ctx, bus); err != nil {
		return err
	}
	letters, err := bus.DLQ().List(ctx, eventbus.LetterQuery{Subscription: "saga", Limit: 1000})
	if err != nil || len(letters.Letters) == 0 {
		return fmt.Errorf("expected dead letters of the saga: %w", err)
	}
	letter := letters.Letters[len(letters.Letters)-1]
	_, _ = fmt.Fprintf(out, "\n== saga.json: reserve, charge, ship; what fails is compensated\nfirst dead letter: %s\n  envelope: %s\n", letter.Failures[0].Error, letter.Failures[0].Details)
	succeeded, compensated := results.count("saga", "succeeded"), results.count("saga", "compensated")

	replayed, err := fix(ctx, bus, &letter)
	if err != nil {
		return err
	}
	if err := errors.Join(settle(ctx, bus), publish(ctx, bus, "parcel.sent", parcels), publish(ctx, bus, "price.wanted", prices), settle(ctx, bus)); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "\n%-24s %6s\n", "SAGA", "ORDERS")
	for _, row := range []struct {
		name string
		n    int
	}{{"succeeded", succeeded}, {"compensated", compensated}, {"dead-lettered", len(letters.Letters)}, {"fixed and replayed", replayed}} {
		_, _ = fmt.Fprintf(out, "%-24s %6d\n", row.name, row.n)
	}
	_, _ = fmt.Fprintf(out, "\n== polling.json asks for parcels until a deadline, fanout.json asks suppliers for prices\npolling: %d arrived, %d late\n", results.count("polling", "arrived"), results.count("polling", "late"))
	_, _ = fmt.Fprintf(out, "fanout:  %d prices from %d of %d suppliers asked\n",
		results.count("fanout", ""), results.count("fanout", "answered"), results.count("fanout", "asked"))

	if err := bus.Shutdown(ctx); err != nil {
		return err
	}
	ledger := bus.Metrics().Ledger
	switch {
	case !ledger.Balanced():
		return fmt.Errorf("the bus's books do not balance: %+v", ledger)
	case succeeded+compensated+len(letters.Letters) != bytes.Count(orders, []byte("\n")):
		return fmt.Errorf("%d + %d + %d orders, of %d", succeeded, compensated, len(letters.Letters), bytes.Count(orders, []byte("\n")))
	case results.count("saga", "succeeded") != succeeded+replayed:
		return errors.New("the fixed order was not shipped")
	}
	if err := shop.balanced(succeeded + replayed); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "\nOK: the books balance: %d cents charged, %d refunded, %d for %d shipped orders\n",
		shop.charged, shop.refunded, shop.earned, len(shop.shipped))
	return nil
}

// fix replays a letter with the address that its order lacks.
func fix(ctx context.Context, bus *eventbus.Bus, letter *eventbus.DeadLetter) (replayed int, err error) {
	var order map[string]json.RawMessage // the other members keep their digits
	data, err := json.Marshal(letter.Event.Payload)
	if err == nil {
		err = json.Unmarshal(data, &order)
	}
	if err != nil {
		return 0, err
	}
	order["address"] = json.RawMessage(`"1 Pier Road"`)
	return 1, bus.DLQ().ReplayEdited(ctx, letter.ID, order, eventbus.Because("the customer has sent the address"))
}

// readOrders returns the lines of the orders that are placed.
func readOrders() (placed []byte, err error) {
	var all []byte
	for _, path := range []string{"examples/orders/orders.jsonl", "../orders/orders.jsonl"} {
		if all, err = os.ReadFile(path); err == nil { //nolint:gosec // one of two constants
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w; run it in the root of the repository", err)
	}
	for line := range bytes.Lines(all) {
		if bytes.Contains(line, []byte(`"type":"order.placed"`)) {
			placed = append(placed, line...)
		}
	}
	return placed, nil
}

// publish publishes an event for each line.
func publish(ctx context.Context, bus *eventbus.Bus, eventType string, lines []byte) error {
	for in := bufio.NewScanner(bytes.NewReader(lines)); in.Scan(); {
		if _, err := bus.Publish(ctx, eventType, json.RawMessage(bytes.Clone(in.Bytes()))); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until no event is queued, running or waiting for a retry.
func settle(ctx context.Context, bus *eventbus.Bus) error {
	for ctx.Err() == nil {
		if l := bus.Metrics().Ledger; l.Balanced() && l.Queued+l.Running+l.Waiting == 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return ctx.Err()
}

// tally counts the Results of each subscription.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *tally) add(ctx context.Context, _ eventbus.Event, value any) error {
	delivery, _ := eventbus.FromContext(ctx)
	result, _ := value.(map[string]any)
	outcome, _ := result["outcome"].(string)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[delivery.Subscription+" "+outcome]++
	for _, number := range []string{"asked", "answered"} {
		n, _ := result[number].(float64)
		t.counts[delivery.Subscription+" "+number] += int(n)
	}
	return nil
}

func (t *tally) count(subscription, outcome string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts[subscription+" "+outcome]
}
