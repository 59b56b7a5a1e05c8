// Command chain shows Emit through kills: the bus publishes an event that a handler emits once, if and only if the handler succeeds.
//
//	go run ./examples/chain [-store FILE]
//
// A shop has three steps, which are handlers of one bus: order.placed emits invoice.created, which emits mail.sent. The program
// runs the shop as a child process, a run of its own executable. It publishes orders, kills the shop with SIGKILL at a random
// moment, starts it again over the same SQLite file, and does so 20 times. In addition, some handlers fail after they have
// emitted, and are retried.
//
// The mail of every twentieth order comes back: its event becomes a dead letter, and a handler of dead letters (OnDeadLetter) makes
// an apology.
//
// The handlers count each run in a ledger, a table of the file. The books balance if each order has exactly one event of each
// type, and those without a mail exactly one apology. A handler runs at least once for each event: a run that a kill cuts short is
// repeated. The events that such a run emitted do not exist.
//
// The exit status is 0 if the books balance. -store keeps the file. Without it, the file is temporary. It takes about 4 s.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

const (
	kills  = 20
	orders = 50 // before each kill
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if isShop() {
		os.Exit(shopMain(ctx))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns its exit status. stderr is a file, which the processes share.
func run(ctx context.Context, args []string, stdout io.Writer, stderr *os.File) int {
	flags := flag.NewFlagSet("chain", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("store", "", "keep the events and the ledger in this `file`")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "usage: chain [-store FILE]")
		return 2
	}
	if *file == "" {
		dir, err := os.MkdirTemp("", "chain")
		if err != nil {
			fmt.Fprintln(stderr, "chain:", err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		*file = filepath.Join(dir, "shop.db")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := killAndBalance(ctx, *file, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "chain:", err)
		return 1
	}
	return 0
}

// killAndBalance kills the shop again and again, lets the last one settle everything, and balances the books.
func killAndBalance(ctx context.Context, file string, stdout io.Writer, stderr *os.File) (err error) {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithoutHandlers()) // it only publishes
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	defer func() { err = errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx))) }()
	fmt.Fprintf(stdout, "This program kills a shop %d times while its handlers emit events: order.placed, invoice.created, mail.sent.\n\n", kills)
	b := newBooks()
	for n := range kills + 1 {
		s, err := startShop(ctx, file, stderr)
		if err != nil {
			return err
		}
		if err := b.publish(ctx, bus); err != nil {
			return errors.Join(err, s.kill(b))
		}
		if n == kills { // the last one ends by itself
			err = s.end(b)
		} else {
			err = s.killSoon(b)
			if (n+1)%5 == 0 {
				fmt.Fprintf(stdout, "kill %2d: %4d orders published, %4d events handled\n", n+1, len(b.orders), len(b.handled))
			}
		}
		if err != nil {
			return err
		}
	}
	return b.balance(ctx, file, stdout)
}

// shop is a child process.
type shop struct {
	process *exec.Cmd
	input   io.Closer
	output  *bufio.Scanner
}

func startShop(ctx context.Context, file string, stderr *os.File) (*shop, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &shop{process: exec.CommandContext(ctx, self, "shop", file)}
	s.process.Stderr = stderr
	if s.input, err = s.process.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := s.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.output = bufio.NewScanner(output)
	return s, s.process.Start()
}

// killSoon kills the shop at a random moment of the second half of its work: an event that is queued or running in kill after kill
// would become a dead letter, as the likely cause of them.
func (s *shop) killSoon(b *books) error {
	left := len(b.orders)*len(steps) - len(b.handled)
	for most := left - mathrand.IntN(left/2); most > 0; most-- {
		if !s.read(b) {
			return errors.Join(errors.New("the shop has ended by itself"), s.process.Wait())
		}
	}
	time.Sleep(time.Duration(mathrand.IntN(5000)) * time.Microsecond)
	return s.kill(b)
}

// read enters the next success into the books, and reports whether there was one.
func (s *shop) read(b *books) bool {
	ok := s.output.Scan()
	if ok {
		b.handled[s.output.Text()] = true
	}
	return ok
}

func (s *shop) kill(b *books) error {
	if err := s.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for s.read(b) {
		continue
	}
	err := s.process.Wait()
	if code := s.process.ProcessState.ExitCode(); code == 0 || code == shopFailed {
		return fmt.Errorf("the shop has ended before it was killed: %w", err)
	}
	return nil
}

// end tells the shop to end when all events are handled.
func (s *shop) end(b *books) error {
	if err := s.input.Close(); err != nil {
		return err
	}
	for s.read(b) {
		continue
	}
	return s.process.Wait()
}

// books has the orders that were published, and the events that handlers have reported: each before its success is recorded.
type books struct {
	prefix  string // of the ids of this run
	orders  map[string]bool
	handled map[string]bool
}

func newBooks() *books {
	return &books{prefix: "o-" + rand.Text()[:6] + "-", orders: map[string]bool{}, handled: map[string]bool{}}
}

func (b *books) publish(ctx context.Context, bus *eventbus.Bus) error {
	for range orders {
		o := Order{ID: fmt.Sprintf("%s%d", b.prefix, len(b.orders)+1)}
		if _, err := bus.Publish(ctx, typePlaced, o, eventbus.IdempotencyKey(o.ID)); err != nil {
			return err
		}
		b.orders[o.ID] = true
	}
	return nil
}

// balance compares the books with the ledger.
func (b *books) balance(ctx context.Context, file string, out io.Writer) (err error) {
	db, err := openLedger(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	fmt.Fprintf(out, "\n%d kills, %d orders. Runs of a handler that a kill or a failure ended were repeated:\n\n", kills, len(b.orders))
	fmt.Fprintf(out, "%-16s %7s %7s\n", "type", "events", "runs")
	all := func(Order) bool { return true }
	arrives := func(o Order) bool { return !bounces(o) }
	for _, of := range []struct {
		eventType string
		has       func(Order) bool
	}{{typePlaced, all}, {typeInvoice, arrives}, {typeMail, arrives}, {typeApology, bounces}} {
		events, runs, err := b.check(ctx, db, of.eventType, of.has)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-16s %7d %7d\n", of.eventType, events, runs)
	}
	fmt.Fprint(out, "\nOK: each order has exactly one invoice, and one mail or one apology\n")
	return nil
}

// check requires that each order that has an event of a type has exactly one, and returns how many there are, and how many runs the
// handler had.
func (b *books) check(ctx context.Context, db *sql.DB, eventType string, has func(Order) bool) (found, runs int, err error) {
	const query = "SELECT order_id, count(*), sum(runs) FROM shop_ledger WHERE type = ? AND order_id LIKE ? GROUP BY order_id"
	rows, err := db.QueryContext(ctx, query, eventType, b.prefix+"%")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id string
		var events, n int
		if err := rows.Scan(&id, &events, &n); err != nil {
			return 0, 0, err
		}
		switch {
		case !b.orders[id] || !has(Order{id}):
			return 0, 0, fmt.Errorf("order %s has %s, and should not", id, eventType)
		case events != 1:
			return 0, 0, fmt.Errorf("order %s has %d events %s", id, events, eventType)
		}
		found++
		runs += n
	}
	missing := -found
	for id := range b.orders {
		if has(Order{id}) {
			missing++
		}
	}
	if missing > 0 && rows.Err() == nil {
		return 0, 0, fmt.Errorf("%d orders have no event %s", missing, eventType)
	}
	return found, runs, rows.Err()
}
