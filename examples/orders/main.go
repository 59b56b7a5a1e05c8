// Command orders runs a few days of a shop, whose services subscribe to its events.
//
//	go run ./examples/orders                   # the bundled orders
//	go run ./examples/orders 2>orders.log      # with the log in a file
//	go run ./examples/orders my-orders.jsonl   # the orders of a file
//	some-program | go run ./examples/orders -  # the orders of standard input
//
// It has four subscriptions:
//
//   - audit, of **, always works.
//   - billing, of {order.paid,payment.*}, fails once for orders whose number ends in 7, and exceeds its timeout for those that end
//     in 57. Refunds that are not positive fail permanently.
//   - mail, of order.*, takes 20 ms for each event.
//   - stock, of order.{placed,cancelled}, fails until the program repairs the warehouse.
//
// Standard output has the progress: on a terminal a line that is rewritten, elsewhere a line for every 100 events. When all events
// have settled, it has a table of the subscriptions and the ledger. Then the program purges the refunds that no retry can repair,
// repairs the warehouse, and prints both again. It takes about 3 s: the bundled orders are published at 500 a second.
//
// Standard error has the log as JSON lines, and the number of each line of the input that is no event (line 1: ...). The program
// continues with the next line.
//
// An input line is a JSON object of at most 1 MiB. The member type is the event's type. Blank lines are skipped.
//
//	{"type":"order.placed","order":"o-1001","customer":"c-6568","amount_cents":4170,"items":{"descaler":1},"at":"2026-03-02T06:09:10Z"}
//
// The exit status is 0 if the books balance and no dead letter is left. Lines that are no events do not count, because they were
// never accepted. It is 1 if a dead letter is left, the input could not be read to its end, or Ctrl-C ended the program, after the
// accepted events were handled. A second Ctrl-C ends it at once. It is 2 if the file cannot be read.
//
// The bus is in memory. See examples/durable for one with a store.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"github.com/surebus/eventbus"
)

//go:embed orders.jsonl
var bundled []byte

// Order is one line of the input, and the payload of its event.
type Order struct {
	Type        string         `json:"type"`
	ID          string         `json:"order"`
	Customer    string         `json:"customer"`
	AmountCents int64          `json:"amount_cents"`
	Items       map[string]int `json:"items"` // how many of each
}

const warehousePause = 300 * time.Millisecond // how long the circuit of stock stays open

type shop struct {
	mu                          sync.Mutex // for out and err
	out, err                    io.Writer
	terminal                    bool // out is one
	bus                         *eventbus.Bus
	warehouseUp                 atomic.Bool
	published, refused, audited atomic.Int64
}

// subscribe makes the subscriptions. An event visits them in the order of these calls. A failure ends the
// attempt, and the next attempt resumes at the subscription that failed. So a subscription
// that must see every event comes first, and one that is often down comes last.
func (s *shop) subscribe() error {
	audit := func(context.Context, eventbus.Event) error { s.audited.Add(1); return nil }
	_, err1 := s.bus.Subscribe("**", audit, eventbus.Named("audit"))
	_, err2 := s.bus.Subscribe("{order.paid,payment.*}", eventbus.Typed(bill), eventbus.Named("billing"),
		eventbus.Timeout(50*time.Millisecond), eventbus.Retry(eventbus.MaxRetries(5), eventbus.BaseDelay(20*time.Millisecond)))
	mail := func(context.Context, Order) error { time.Sleep(20 * time.Millisecond); return nil } // delays no other event
	_, err3 := s.bus.Subscribe("order.*", eventbus.Typed(mail), eventbus.Named("mail"))
	reserve := func(context.Context, Order) error {
		if !s.warehouseUp.Load() {
			return errors.New("the warehouse does not answer")
		}
		return nil
	}
	_, err4 := s.bus.Subscribe("order.{placed,cancelled}", eventbus.Typed(reserve), eventbus.Named("stock"),
		eventbus.Circuit(eventbus.OpenFor(warehousePause)))
	return errors.Join(err1, err2, err3, err4)
}

// bill fails once for every tenth order, and permanently for invalid refunds.
func bill(ctx context.Context, o Order) error {
	if o.Type == "payment.refunded" && o.AmountCents <= 0 {
		return eventbus.Permanent(fmt.Errorf("a refund of %d cents", o.AmountCents))
	}
	if d, _ := eventbus.FromContext(ctx); d.Attempt > 1 || !strings.HasSuffix(o.ID, "7") {
		return nil
	}
	if strings.HasSuffix(o.ID, "57") {
		<-ctx.Done() // no answer before the timeout
	}
	return errors.New("the bank is busy")
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs the program and returns its exit status: 0 if every event was handled.
func run(ctx context.Context, args []string, in io.Reader, stdout, stderr io.Writer) int {
	f, ok := stdout.(*os.File)
	s := &shop{out: stdout, err: stderr, terminal: ok && term.IsTerminal(int(f.Fd()))}
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	if err := flags.Parse(args); err != nil {
		return 2
	}
	args = flags.Args()
	var pause time.Duration
	if len(args) == 0 {
		in, pause = bytes.NewReader(bundled), 2*time.Millisecond // slow enough to watch
	} else if args[0] != "-" {
		file, err := os.ReadFile(args[0])
		if err != nil || len(args) > 1 {
			s.printf(s.err, "usage: orders [file | -]: %v %v\n", err, args[1:])
			return 2
		}
		in = bytes.NewReader(file)
	}
	if err := s.trade(ctx, in, pause); err != nil {
		s.printf(s.err, "orders: %v\n", err)
		return 1
	}
	s.printf(s.out, "OK: events handled or purged: %d; lines refused: %d\n", s.published.Load(), s.refused.Load())
	return 0
}

func (s *shop) trade(ctx context.Context, in io.Reader, pause time.Duration) (err error) {
	// A core that does not sample: every failed attempt is an entry.
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(s), zap.WarnLevel)
	opts := []eventbus.Option{
		eventbus.WithLogger(zap.New(core)), eventbus.WithRetry(eventbus.BaseDelay(50 * time.Millisecond)),
		eventbus.WithDeadLetterCapacity(1_000_000), // for larger inputs
	}
	if s.bus, err = eventbus.New(opts...); err != nil {
		return err
	}
	s.printf(s.out, "This program publishes the events of a shop to four subscriptions: audit, billing, which fails now and then, mail, which is slow,\n"+
		"and stock, which is down. Then it repairs what failed. The log goes to standard error: 2>orders.log keeps it apart.\n\n")
	if err = errors.Join(s.subscribe(), s.bus.Start(ctx)); err == nil {
		done := make(chan error, 1) // reading a terminal cannot be interrupted
		go func() { done <- s.publish(ctx, in, pause) }()
		select {
		case err = <-done:
		case <-ctx.Done():
		}
	}
	if err = errors.Join(err, s.settle(ctx)); err == nil {
		s.report("Settled, and the warehouse is still down:")
		err = s.repair(ctx)
	}
	// Handle all accepted events before the end, also after Ctrl-C.
	err = errors.Join(err, s.bus.Shutdown(context.WithoutCancel(ctx)))
	m := s.report("At the end:")
	audited := s.audited.Load() == s.published.Load()
	if left := int64(m.DeadLetters) + m.LettersEvicted; err == nil && (left > 0 || !settled(m) || !audited) {
		err = fmt.Errorf("%d dead letters are left, or the books do not balance", left)
	}
	return err
}

// publish publishes an event for each line, and reports invalid lines.
func (s *shop) publish(ctx context.Context, in io.Reader, pause time.Duration) error {
	lines, number := bufio.NewScanner(in), 0
	lines.Buffer(nil, 1<<20)
	for ; lines.Scan() && ctx.Err() == nil; time.Sleep(pause) {
		number++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var o Order
		err := json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			_, err = s.bus.Publish(ctx, o.Type, o, eventbus.Metadata("line", fmt.Sprint(number)))
		}
		if err != nil {
			s.refused.Add(1)
			s.printf(s.err, "line %d: %v\n", number, err)
		} else if n := s.published.Add(1); n%100 == 0 || s.terminal && n%5 == 0 {
			s.progress()
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", number+1, err)
	}
	return nil
}

// settle waits until no event is queued, running or waiting for a retry.
func (s *shop) settle(ctx context.Context) error {
	for !settled(s.bus.Metrics()) && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	return context.Cause(ctx)
}

// settled also checks the balance: the counts can miss an event that moves while they are
// read.
func settled(m eventbus.Metrics) bool {
	l := m.Ledger
	return l.Balanced() && l.Queued+l.Running+l.Waiting+l.Recording == 0
}

// repair purges the permanent letters, repairs the warehouse and replays the others.
func (s *shop) repair(ctx context.Context) error {
	dlq := s.bus.DLQ()
	hopeless, err := dlq.List(ctx, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent, Limit: 10_000})
	for _, l := range hopeless.Letters {
		s.printf(s.out, "purging line %s, %s\n", l.Event.Metadata.Get("line"), l.Failures[0].Error)
		err = errors.Join(err, dlq.Purge(ctx, l.ID))
	}
	s.printf(s.out, "the warehouse is up again, and %d deliveries are held: after at most %s one of them probes, and the others follow\n",
		s.bus.Metrics().Ledger.Held, warehousePause)
	s.warehouseUp.Store(true)
	s.awaitHeld(ctx)
	replayed, replayErr := dlq.ReplayMatching(ctx, eventbus.LetterQuery{Subscription: "stock"})
	if replayed.Replayed > 0 {
		s.printf(s.out, "replayed %d dead letters of stock\n", replayed.Replayed)
	}
	s.awaitHeld(ctx)
	return errors.Join(err, replayErr, s.settle(ctx))
}

// awaitHeld waits until no delivery is held: the closed circuit releases them.
func (s *shop) awaitHeld(ctx context.Context) {
	for s.bus.Metrics().Ledger.Held > 0 && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
}

// progress prints a line. On a terminal, the next line replaces it.
func (s *shop) progress() {
	m, end := s.bus.Metrics(), "\n"
	if s.terminal {
		end = ""
	}
	for _, x := range m.Subscriptions {
		if x.Circuit != eventbus.CircuitClosed {
			end = fmt.Sprintf(", circuit of %s %s%s", x.Subscription, x.Circuit, end)
		}
	}
	s.printf(s.out, "%5d events, %5d handled, %3d to be retried, %3d dead letters%s",
		m.Ledger.Accepted, m.Ledger.Handled, m.Ledger.Waiting, m.DeadLetters, end)
}

// report prints the table and the ledger.
func (s *shop) report(title string) eventbus.Metrics {
	const row = "  %-8s %-24s %9v %8v %8v %7v  %-9v %8v\n"
	s.printf(s.out, "\n%s\n"+row, title, "", "PATTERN", "SUCCESSES", "FAILURES", "TIMEOUTS", "SKIPPED", "CIRCUIT", "P99")
	m := s.bus.Metrics()
	for _, x := range m.Subscriptions {
		s.printf(s.out, row, x.Subscription, x.Pattern, x.Successes, x.Failures, x.Timeouts, x.Skipped, x.Circuit, x.Latency.P99.Round(time.Microsecond))
	}
	s.printf(s.out, "  in:  %d accepted + %d split off (skipped deliveries) + %d replayed\n", m.Ledger.Accepted, m.Ledger.Splits, m.Ledger.Replays)
	s.printf(s.out, "  out: %d handled + %d dead-lettered; %d dead letters are left\n\n", m.Ledger.Handled, m.Ledger.DeadLettered, m.DeadLetters)
	return m
}

// printf prints a line. On a terminal, it replaces the progress line.
func (s *shop) printf(to io.Writer, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		_, _ = io.WriteString(s.out, "\r\x1b[K")
	}
	_, _ = fmt.Fprintf(to, format, args...)
}

func (s *shop) Write(entry []byte) (int, error) {
	s.printf(s.err, "%s", entry)
	return len(entry), nil
}
