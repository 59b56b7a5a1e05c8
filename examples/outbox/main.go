// Command outbox shows events that are published in the transactions of a service: an event exists if and only if the
// service has committed.
//
//	go run ./examples/outbox [-store FILE]
//
// A shop keeps its table of orders in the SQLite file of its bus. It inserts an order and publishes the order's event in
// one *sql.Tx. The program runs the shop in child processes, runs of its own executable:
//
//  1. The first one rolls back every seventh transaction, and is killed with SIGKILL before the commit of its last one.
//  2. The second one is killed with SIGKILL after a commit, before the event is handled.
//  3. The third one handles the events that are left, while a fourth one, which runs no handlers, places orders too.
//
// The books balance if each order of the table was charged, and nothing else. The handler runs at least once for each
// event. It charges an order once, because its table has one row for each order.
//
// The exit status is 0 if the books balance. -store keeps the file. Without it, the file is temporary.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
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
	flags := flag.NewFlagSet("outbox", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("store", "", "keep the events and the orders in this `file`")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "usage: outbox [-store FILE]")
		return 2
	}
	if *file == "" {
		dir, err := os.MkdirTemp("", "outbox")
		if err != nil {
			fmt.Fprintln(stderr, "outbox:", err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		*file = filepath.Join(dir, "shop.db")
	}
	if err := runAll(ctx, *file, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "outbox:", err)
		return 1
	}
	return 0
}

func runAll(ctx context.Context, file string, stdout io.Writer, stderr *os.File) error {
	fmt.Fprint(stdout, "This program publishes events in the transactions of a shop, and kills the shop before and after a commit.\n\n")
	b := newBooks()
	for _, task := range []string{killBeforeCommit, killAfterCommit} {
		s, err := startShop(ctx, file, task, stderr)
		if err != nil {
			return err
		}
		err = s.read(b)
		if code := s.process.ProcessState.ExitCode(); code == 0 || code == shopFailed {
			return fmt.Errorf("the process was not killed %s: %w", task, err)
		}
		fmt.Fprintf(stdout, "A process was killed %s: %d orders committed, %d rolled back so far.\n", task, len(b.committed), len(b.rolledBack))
	}

	handles, err := startShop(ctx, file, placeAndHandle, stderr)
	if err != nil {
		return err
	}
	places, err := startShop(ctx, file, placeOnly, stderr)
	if err != nil {
		return errors.Join(err, handles.end(b))
	}
	err = places.end(b)
	if err := errors.Join(err, handles.end(b)); err != nil { // it waits until all events are handled
		return err
	}
	fmt.Fprint(stdout, "Two more processes placed orders, and one of them handled all events that were left.\n\n")
	return b.balance(ctx, file, stdout)
}

// shop is a child process.
type shop struct {
	process *exec.Cmd
	input   io.Closer
	output  io.Reader
}

func startShop(ctx context.Context, file, task string, stderr *os.File) (*shop, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &shop{process: exec.CommandContext(ctx, self, "shop", task, file)}
	s.process.Stderr = stderr
	if s.input, err = s.process.StdinPipe(); err != nil {
		return nil, err
	}
	if s.output, err = s.process.StdoutPipe(); err != nil {
		return nil, err
	}
	return s, s.process.Start()
}

// read enters the lines of the process into the books until it ends.
func (s *shop) read(b *books) error {
	for lines := bufio.NewScanner(s.output); lines.Scan(); {
		b.enter(lines.Text())
	}
	return s.process.Wait()
}

// end tells the process to end when it has done its work.
func (s *shop) end(b *books) error { return errors.Join(s.input.Close(), s.read(b)) }

// books has what the processes have reported.
type books struct{ committed, rolledBack map[string]bool }

func newBooks() *books { return &books{map[string]bool{}, map[string]bool{}} }

// enter reads a line of the shop:
//
//	committed ORDER
//	rolled-back ORDER
func (b *books) enter(line string) {
	switch what, id, _ := strings.Cut(line, " "); what {
	case "committed":
		b.committed[id] = true
	case "rolled-back":
		b.rolledBack[id] = true
	}
}

// balance compares the books with the tables.
func (b *books) balance(ctx context.Context, file string, out io.Writer) (err error) {
	db, err := openTables(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(ctx, `
		SELECT id, TRUE, coalesce(deliveries, 0) FROM shop_orders LEFT JOIN shop_charges USING (id)
		UNION ALL
		SELECT id, FALSE, deliveries FROM shop_charges WHERE id NOT IN (SELECT id FROM shop_orders)`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	orders, repeats := map[string]bool{}, 0
	for rows.Next() {
		var id string
		var deliveries int
		var placed bool
		if err := rows.Scan(&id, &placed, &deliveries); err != nil {
			return err
		}
		switch {
		case !placed:
			return fmt.Errorf("order %s was charged, and it was never committed", id)
		case deliveries == 0:
			return fmt.Errorf("order %s was committed, and its event is lost", id)
		case b.rolledBack[id]:
			return fmt.Errorf("order %s was rolled back, and it is in the table", id)
		}
		orders[id] = true
		repeats += deliveries - 1
	}
	for id := range b.committed {
		if !orders[id] {
			return fmt.Errorf("order %s was committed, and it is not in the table", id)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	fmt.Fprintf(out, "OK: %d orders committed = %d orders charged; %d rolled back, none of them charged; deliveries repeated: %d\n",
		len(orders), len(orders), len(b.rolledBack), repeats)
	return nil
}
