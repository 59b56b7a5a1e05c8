// Command durable shows that a bus with a store loses no accepted event when its process is killed.
//
//	go run ./examples/durable [-store FILE]
//
// The program starts a shop as a child process, a second run of its own executable. The shop (shop.go) is an ordinary user of a
// durable bus. It publishes the events of its orders and handles them: some fail and wait for a retry, some are scheduled, the
// events of an order have a key, and some become dead letters. After 1,000 acknowledged events, the program kills the shop with
// SIGKILL. Then it starts the shop again, on the same SQLite file. The second process publishes nothing: it handles the events
// that the first one has left.
//
// The program keeps the books (main.go). Each line that the shop wrote before it died is an acknowledgement, a success or a dead
// letter. The books balance if each subscription of each acknowledged event has handled it, or is named in a dead letter, and the
// events of each order were handled in their order. An event is acknowledged when Publish has returned nil. Deliveries that were
// in progress at the kill are repeated: handlers of a durable bus run at least once. The numbers differ from run to run.
//
// The number claimed from the store is not the number "not settled" of the first process. That number includes the dead letters
// of the first process, because the shop writes them only at its end. The store also has events whose handlers wrote their line
// just before the kill.
//
// -store keeps the file. Without it, the file is temporary. The exit status is 0 if the books balance, 1 if an event is lost or
// overtaken or a process has failed, and 2 for bad arguments.
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

	"github.com/surebus/eventbus"
)

// killAt is the number of acknowledged events after which the program kills the shop.
const killAt = 1000

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
	flags := flag.NewFlagSet("durable", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("store", "", "keep the events in this `file`")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "usage: durable [-store FILE]")
		return 2
	}
	if *file == "" {
		dir, err := os.MkdirTemp("", "durable")
		if err != nil {
			fmt.Fprintln(stderr, "durable:", err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		*file = filepath.Join(dir, "events.db")
	}
	if err := killAndRestart(ctx, *file, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "durable:", err)
		return 1
	}
	return 0
}

func killAndRestart(ctx context.Context, file string, stdout, stderr io.Writer) error {
	books := newBooks()
	fmt.Fprint(stdout, "This program kills a shop and starts it again on the same file. No event that Publish has acknowledged may be lost.\n\n")
	fmt.Fprintln(stdout, "== The first process publishes and handles events.")
	err := runShop(ctx, file, openShop, stderr, func(line string) (kill bool) {
		books.enter(line)
		return books.acknowledged() >= killAt
	})
	if !errors.Is(err, errKilled) {
		return fmt.Errorf("the first process was not killed: %w", err)
	}
	fmt.Fprint(stdout, "It was killed with SIGKILL.\n\n")
	books.print(stdout)

	fmt.Fprintln(stdout, "\n== The second process handles the events that the first one has left.")
	err = runShop(ctx, file, closeShop, stderr, func(line string) bool {
		books.enter(line)
		if text, ok := strings.CutPrefix(line, "shop: "); ok {
			fmt.Fprintln(stdout, "  "+text)
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("the second process failed: %w", err)
	}
	fmt.Fprint(stdout, "It ended.\n\n")
	books.print(stdout)
	fmt.Fprintln(stdout)
	return books.balance(stdout)
}

var errKilled = errors.New("killed")

// runShop runs the shop in a process of its own and passes each line of its output to read. If read
// returns true, it kills the process and reads on: the pipe keeps the lines that the process has
// written.
func runShop(ctx context.Context, file, task string, stderr io.Writer, read func(line string) (kill bool)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	shop := exec.CommandContext(ctx, self, shopArgs(task, file)...)
	shop.Stderr = stderr
	out, err := shop.StdoutPipe()
	if err != nil {
		return err
	}
	if err := shop.Start(); err != nil {
		return err
	}
	killed := false
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if read(lines.Text()) && !killed {
			killed = true
			if err := shop.Process.Kill(); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(lines.Err(), shop.Wait()); !killed {
		return err
	}
	return errKilled
}

// books has what the processes have reported.
type books struct {
	lines   int
	types   map[string]string         // of acknowledged events, by id
	orders  map[string][]string       // ids of acknowledged events with a key, by order
	handled map[string]map[string]int // numbers of the first lines, by event id and subscription
	dead    map[string]map[string]int // the same for subscriptions that dead letters name
	repeats int                       // deliveries that were handled before
}

func newBooks() *books {
	return &books{
		types: map[string]string{}, orders: map[string][]string{},
		handled: map[string]map[string]int{}, dead: map[string]map[string]int{},
	}
}

// enter reads a line of the shop:
//
//	acknowledged EVENT TYPE [ORDER]
//	handled EVENT SUBSCRIPTION
//	dead EVENT SUBSCRIPTION...
func (b *books) enter(line string) {
	words := strings.Fields(line)
	if len(words) < 3 {
		return
	}
	b.lines++
	id, names := words[1], words[2:]
	switch words[0] {
	case "acknowledged":
		b.types[id] = names[0]
		if len(names) == 2 {
			b.orders[names[1]] = append(b.orders[names[1]], id)
		}
	case "handled":
		if !b.add(b.handled, id, names) {
			b.repeats++
		}
	case "dead":
		b.add(b.dead, id, names)
	}
}

// add reports whether a name is new.
func (b *books) add(to map[string]map[string]int, id string, names []string) (added bool) {
	if to[id] == nil {
		to[id] = map[string]int{}
	}
	for _, name := range names {
		if to[id][name] == 0 {
			to[id][name], added = b.lines, true
		}
	}
	return added
}

func (b *books) acknowledged() int { return len(b.types) }

// count returns the numbers of acknowledged events that all their subscriptions have handled, that
// dead letters name, and that have neither end.
func (b *books) count() (handled, dead, open int) {
	for id, eventType := range b.types {
		all, ended := true, true
		for _, name := range targets[eventType] {
			all = all && b.handled[id][name] > 0
			ended = ended && b.handled[id][name]+b.dead[id][name] > 0
		}
		switch {
		case all:
			handled++
		case ended:
			dead++
		default:
			open++
		}
	}
	return handled, dead, open
}

func (b *books) print(out io.Writer) {
	handled, dead, open := b.count()
	fmt.Fprintf(out, "  acknowledged    %5d\n", b.acknowledged())
	fmt.Fprintf(out, "  handled         %5d\n", handled)
	fmt.Fprintf(out, "  dead-lettered   %5d\n", dead)
	fmt.Fprintf(out, "  not settled     %5d\n", open)
}

// overtaken returns the orders whose payment was charged before the stock was reserved, although
// the events have the same key.
func (b *books) overtaken() (orders []string) {
	for order, ids := range b.orders {
		if len(ids) < 2 {
			continue // the process was killed in between
		}
		reserved, charged := b.handled[ids[0]]["stock"], b.handled[ids[1]]["billing"]
		if charged > 0 && charged < reserved {
			orders = append(orders, order)
		}
	}
	return orders
}

// balance returns an error if an acknowledged event has no end, or the order of a key is broken.
func (b *books) balance(out io.Writer) error {
	handled, dead, open := b.count()
	if open > 0 {
		return fmt.Errorf("the books do not balance: %d acknowledged events are lost", open)
	}
	if orders := b.overtaken(); len(orders) > 0 {
		return fmt.Errorf("events overtook others of their order: %v", orders)
	}
	fmt.Fprintf(out, "OK: %d acknowledged = %d handled + %d dead-lettered; deliveries repeated after the kill: %d\n",
		b.acknowledged(), handled, dead, b.repeats)
	return nil
}

// targets has the subscriptions of each event type.
var targets = map[string][]string{
	"order.placed":   {"stock", "mail"},
	"order.paid":     {"billing", "mail"},
	"order.reminder": {"mail"},
}

// letterTargets returns the subscriptions that a letter names as not handled.
func letterTargets(l eventbus.DeadLetter) []string {
	return append([]string{l.Subscription}, l.NotReached...)
}
