package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/admin"
	"github.com/surebus/eventbus/store/sqlite"
)

const settles, tick = 10 * time.Second, time.Millisecond

// busNamed returns a bus over a file with one subscription. It was not started.
func busNamed(t *testing.T, path, name string) *eventbus.Bus {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	bus, err := eventbus.New(eventbus.WithStore(store), eventbus.WithSlog(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { _ = bus.Shutdown(context.WithoutCancel(t.Context())) })
	_, err = bus.Subscribe("order.*", func(context.Context, eventbus.Event) error { return nil }, eventbus.Named(name))
	require.NoError(t, err)
	return bus
}

// Names with deliveries and without a subscription are listed, and end when an operator retires them.
func TestD14_RetireOfAnOrphan(t *testing.T) {
	const orphan = "old mail"
	for _, how := range []string{"store", "url"} {
		for _, drop := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "x.db")
			before := busNamed(t, path, orphan)
			require.NoError(t, before.Start(t.Context()))
			require.NoError(t, before.Subscription(orphan).Pause())
			for range 3 {
				_, err := before.Publish(t.Context(), "order.placed", 1)
				require.NoError(t, err)
			}
			require.NoError(t, before.Shutdown(t.Context()))
			bus := busNamed(t, path, "mail")
			require.NoError(t, bus.Start(t.Context()))
			h, err := admin.New(bus, admin.WithAuthorizer(func(*http.Request, admin.Action) (admin.Principal, error) {
				return admin.Principal{Name: "anna"}, nil
			}))
			require.NoError(t, err)
			server := httptest.NewServer(h)
			at := map[string]string{"store": path, "url": server.URL}[how]
			arg := "--" + how

			var code int
			var out, errOut string
			require.Eventually(t, func() bool { // the bus records its catalog within a second
				code, out, errOut = call(t, "subs", "list", arg, at)
				return bus.Metrics().Orphaned[orphan] == 3 && strings.Contains(out, "missing")
			}, settles, tick)
			require.Zero(t, code, errOut)
			require.Contains(t, errOut, "without a subscription: 1 name; deploy it, use Formerly, or end it: eventbus subs retire NAME")
			code, out, errOut = call(t, "subs", "show", orphan, arg, at, "--json")
			require.Zero(t, code, errOut)
			require.Contains(t, out, `"parked":3,"orphan":true`)
			code, _, errOut = call(t, "subs", "show", orphan, arg, at)
			require.Zero(t, code, errOut)

			args := []string{"subs", "retire", orphan, arg, at}
			if drop {
				args = append(args, "--drop")
			}
			code, out, _ = call(t, append(args, "--dry-run")...)
			require.Zero(t, code)
			require.Contains(t, out, "would retire old mail: 3 waiting deliveries, and those for later, ")
			code, _, errOut = call(t, args...)
			require.Equal(t, exitUsage, code, "it asks")
			require.Contains(t, errOut, "add --yes")
			code, out, errOut = call(t, append(args, "--yes")...)
			require.Zero(t, code, errOut)
			require.Equal(t, "old mail retired: deliveries ended: 3\n", out)
			require.Equal(t, map[bool]int{false: 3, true: 0}[drop], bus.Metrics().DeadLetters)

			code, _, errOut = call(t, "subs", "retire", "mail", "--yes", arg, at)
			require.Equal(t, exitConflict, code)
			require.Regexp(t, `a live bus has the subscription|has "mail"`, errOut)
			require.Contains(t, errOut, "next: look whether its deployment is right")
			server.Close()
			require.NoError(t, bus.Shutdown(t.Context()))
		}
	}
}

// A server of an earlier version knows no orphans.
func TestD14_OrphansOfAnEarlierServer(t *testing.T) {
	s := newServed(t, nil)
	earlier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/orphans" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":{"code":"not_found","message":"there is no such path","remedy":"look"}}`))
			return
		}
		s.Config.Handler.ServeHTTP(w, r)
	}))
	defer earlier.Close()
	code, out, errOut := call(t, "subs", "list", "--url", earlier.URL)
	require.Zero(t, code, errOut)
	require.Contains(t, out, "billing")
}
