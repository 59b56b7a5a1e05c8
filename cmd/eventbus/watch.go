package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

// watchInterval is the time between two looks.
const watchInterval = time.Second

// watchStats shows the rates of a running bus until ctx ends.
func (a *app) watchStats(ctx context.Context, b backend) error {
	if _, remote := b.(*urlBackend); !remote {
		return usage("give --url: a store file has no rates", "--watch needs a running bus")
	}
	if !a.json && !isTerminal(a.out) {
		return usage("add --json for a program, or leave --watch out", "--watch needs a terminal")
	}
	w := &watch{}
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	for {
		s, err := b.Stats(ctx)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is the usual end
		case err != nil:
			return err
		case a.json:
			err = a.printJSON(s)
		default:
			w.add(time.Now(), s.Metrics)
			err = w.draw(a, b, s)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// watch has the rates of the last looks.
type watch struct {
	at     time.Time
	last   *eventbus.Metrics
	rates  map[string]*series
	rounds int
}

// series are the rates of a counter, a second.
type series struct {
	values []float64
	round  int // of the last value
}

// maxSeries bounds the length of a sparkline.
const maxSeries = 30

func (s *series) now() float64 {
	if len(s.values) == 0 {
		return 0
	}
	return s.values[len(s.values)-1]
}

// add computes the rates since the last look.
func (w *watch) add(at time.Time, m *eventbus.Metrics) {
	w.rounds++
	if w.last != nil && at.After(w.at) {
		seconds := at.Sub(w.at).Seconds()
		w.note("accepted", float64(m.Ledger.Accepted-w.last.Ledger.Accepted)/seconds)
		w.note("handled", float64(m.Ledger.Handled-w.last.Ledger.Handled)/seconds)
		w.note("dead-lettered", float64(m.Ledger.DeadLettered-w.last.Ledger.DeadLettered)/seconds)
		w.note("retries", float64(m.Retries-w.last.Retries)/seconds)
		before := make(map[string]*eventbus.SubscriptionMetrics, len(w.last.Subscriptions))
		for i := range w.last.Subscriptions {
			before[w.last.Subscriptions[i].Subscription] = &w.last.Subscriptions[i]
		}
		for i := range m.Subscriptions {
			s := &m.Subscriptions[i]
			if old := before[s.Subscription]; old != nil {
				w.note("ok "+s.Subscription, float64(s.Successes-old.Successes)/seconds)
				w.note("failed "+s.Subscription, float64(s.Failures-old.Failures)/seconds)
			}
		}
	}
	w.at, w.last = at, m
	for name, s := range w.rates {
		if s.round < w.rounds {
			delete(w.rates, name) // the subscription has left
		}
	}
}

// note adds a rate. After a restart of the bus the counters begin again.
func (w *watch) note(name string, rate float64) {
	if w.rates == nil {
		w.rates = make(map[string]*series)
	}
	s := w.rates[name]
	if s == nil {
		s = &series{}
		w.rates[name] = s
	}
	s.values = append(s.values, max(rate, 0))
	s.values = s.values[max(len(s.values)-maxSeries, 0):]
	s.round = w.rounds
}

func (w *watch) rate(name string) *series {
	if s := w.rates[name]; s != nil {
		return s
	}
	return &series{}
}

// draw clears the terminal and prints the rates.
func (w *watch) draw(a *app, b backend, s stats) error {
	const home, empty = "\x1b[H", "\x1b[2J\x1b[3J"
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s  %s\n\n", term.Escape(b.Where()), timeText(w.at))
	for _, name := range []string{"accepted", "handled", "retries", "dead-lettered"} {
		r := w.rate(name)
		fmt.Fprintf(&out, "%-14s %10s/s  %s\n", name, rateText(r.now()), term.Sparkline(r.values))
	}
	l := s.Metrics.Ledger
	fmt.Fprintf(&out, "\nqueued %s, running %s, waiting %s, held %s, throttled %s, snoozed %s, dead letters %s", count(l.Queued), count(l.Running), count(l.Waiting),
		count(l.Held), count(l.Throttled), count(l.Snoozed), count(s.Metrics.DeadLetters))
	if s.Balanced != nil && !*s.Balanced {
		fmt.Fprintf(&out, "\nthe books do not balance: %s", term.Escape(s.Imbalance))
	}
	fmt.Fprint(&out, "\n\n")
	t := term.NewTable(
		term.Column{Name: "SUBSCRIPTION", Min: 16}, term.Column{Name: "CIRCUIT"}, term.Column{Name: "OK/S", Right: true},
		term.Column{Name: "FAILED/S", Right: true}, term.Column{Name: "PARKED", Right: true}, term.Column{Name: "P99", Right: true, Drop: true},
		term.Column{Name: "OK", Drop: true}, term.Column{Name: "FAILED", Drop: true},
	)
	for i := range s.Metrics.Subscriptions {
		m := &s.Metrics.Subscriptions[i]
		ok, bad := w.rate("ok "+m.Subscription), w.rate("failed "+m.Subscription)
		t.Add(m.Subscription, m.Circuit.String(), rateText(ok.now()), rateText(bad.now()), count(m.Parked()), duration(m.Latency.P99),
			term.Sparkline(ok.values), term.Sparkline(bad.values))
	}
	err := t.Write(&out, a.columns())
	// The lines are printed over the old ones, so that the picture does not flicker.
	lines := strings.ReplaceAll(out.String(), "\n", "\x1b[K\n")
	if w.rounds == 1 {
		lines = empty + lines
	}
	_, printed := fmt.Fprint(a.out, home+lines+"\x1b[J")
	return errors.Join(err, printed)
}

// rateText returns a rate with few digits.
func rateText(r float64) string {
	const precise = 10
	if r > 0 && r < precise {
		return fmt.Sprintf("%.1f", r)
	}
	return count(int64(math.Round(r)))
}
