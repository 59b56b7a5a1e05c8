package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestWatch(t *testing.T) {
	t.Setenv("COLUMNS", "200")
	var out bytes.Buffer
	a := &app{out: &out}
	b := &urlBackend{&client{base: "http://shop.example/\x1b"}}
	at := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	metrics := func(n int64, names ...string) *eventbus.Metrics {
		m := &eventbus.Metrics{Ledger: eventbus.Ledger{Accepted: 10 * n, Handled: 10 * n, Queued: 7}, Retries: n}
		for _, name := range names {
			m.Subscriptions = append(m.Subscriptions, eventbus.SubscriptionMetrics{Subscription: name, Successes: 5 * n, Failures: n})
		}
		return m
	}
	w := &watch{}
	for n := range int64(3) {
		w.add(at.Add(time.Duration(n)*2*time.Second), metrics(n*n, "mail", "crm\x1b"))
	}
	balanced := false
	require.NoError(t, w.draw(a, b, stats{Metrics: w.last, Balanced: &balanced, Imbalance: "off by 1"}))
	for _, want := range []string{
		`http://shop.example/\x1b  2026-11-25 03:00:04Z`, "accepted               15/s  ▃█", "retries               1.5/s  ▃█", "queued 7, running 0",
		"the books do not balance: off by 1", "mail          closed    7.5       1.5       0   0s  ▃█  ▃█", `crm\x1b`,
	} {
		require.Contains(t, out.String(), want)
	}
	require.NotContains(t, out.String(), "crm\x1b")

	// A subscription that has left takes no memory, and counters that begin again have no negative rate.
	w.add(at.Add(8*time.Second), metrics(0, "mail"))
	require.Zero(t, w.rate("accepted").now())
	require.NotContains(t, w.rates, "ok crm\x1b")
	for n := range 100 {
		w.add(at.Add(time.Duration(10+n)*time.Second), metrics(int64(n), "mail"))
	}
	require.Len(t, w.rate("accepted").values, maxSeries)
}
