package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/sqlite"
)

// shop is the child process.
type shop struct {
	process *exec.Cmd
	input   io.WriteCloser
}

// startShop starts the shop and waits until its events have settled.
func startShop(ctx context.Context, file string, stderr io.Writer) (*shop, error) {
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
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	if !bufio.NewScanner(output).Scan() { // the shop is ready, or has failed
		return nil, fmt.Errorf("the shop has not started: %w", s.end())
	}
	return s, nil
}

func (s *shop) say(line string) error {
	_, err := fmt.Fprintln(s.input, line)
	return err
}

// end makes the shop shut down.
func (s *shop) end() error {
	return errors.Join(s.input.Close(), s.process.Wait())
}

// isShop reports whether this process is the child.
func isShop() bool { return len(os.Args) == 3 && os.Args[1] == "shop" }

// shopMain runs the shop and returns its exit status.
func shopMain(ctx context.Context) int {
	if err := runShop(ctx, os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		return 1
	}
	return 0
}

// order is the payload of every event.
type order struct {
	Number int `json:"number"`
	Cents  int `json:"cents"`
}

func runShop(ctx context.Context, file string) (err error) {
	store, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	bus, err := eventbus.New(eventbus.WithStore(store),
		eventbus.WithRetry(eventbus.MaxRetries(1), eventbus.BaseDelay(10*time.Millisecond)),
		eventbus.WithCircuit(eventbus.NoCircuit()), // an open circuit would hold the mails instead
		eventbus.WithSlog(slog.DiscardHandler))     // handlers fail on purpose
	if err != nil {
		return errors.Join(err, store.Close(ctx))
	}
	defer func() { err = errors.Join(err, bus.Shutdown(context.WithoutCancel(ctx))) }() // closes the store

	var mailIsUp atomic.Bool
	_, err1 := bus.Subscribe("order.paid", eventbus.Typed(charge), eventbus.Named("billing"))
	_, err2 := bus.Subscribe("order.placed", func(context.Context, eventbus.Event) error {
		if !mailIsUp.Load() {
			return errors.New("smtp: connection refused")
		}
		return nil
	}, eventbus.Named("mail"))
	if err := errors.Join(err1, err2, bus.Start(ctx)); err != nil {
		return err
	}
	if err := sell(ctx, bus); err != nil {
		return err
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); { // until the parent closes it
		mailIsUp.Store(lines.Text() == "mail server is back")
	}
	return nil
}

func charge(_ context.Context, o order) error {
	if o.Cents <= 0 {
		return eventbus.Permanent(fmt.Errorf("order o-%d costs %d cents", o.Number, o.Cents))
	}
	return nil
}

// sell publishes the events of 40 orders, and waits until they have settled.
func sell(ctx context.Context, bus *eventbus.Bus) error {
	for number := 1; number <= 40; number++ {
		o := order{Number: number, Cents: 100 * number}
		if number%10 == 0 {
			o.Cents = 0
		}
		for _, eventType := range []string{"order.placed", "order.paid"} {
			var dead *eventbus.DeliveryError
			if _, err := bus.PublishAndWait(ctx, eventType, o); err != nil && !errors.As(err, &dead) {
				return err
			}
		}
	}
	return nil
}
