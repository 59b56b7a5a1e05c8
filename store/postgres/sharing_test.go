//go:build unix

package postgres_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// standbyBus makes a bus that starts in the background.
func standbyBus(t *testing.T, s *postgres.Store, pattern, name string, c *counter, opts ...eventbus.Option) (bus *eventbus.Bus, started chan error) {
	t.Helper()
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithStore(s), eventbus.WithStandby()}, opts...)...)
	require.NoError(t, err)
	_, err = bus.Subscribe(pattern, eventbus.Typed(c.handle), eventbus.Named(name))
	require.NoError(t, err)
	started = make(chan error, 1)
	go func() { started <- bus.Start(t.Context()) }()
	return bus, started
}

// Two buses with the same subscriptions in one process: the second one cannot start beside the first, and can afterwards.
func TestS6_TwoBusesOfOneName(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	var c counter
	first := startBus(t, open(t, server.DSN(), schema), &c)
	second, err := eventbus.New(eventbus.WithStore(open(t, server.DSN(), schema)))
	require.NoError(t, err)
	_, err = second.Subscribe("order.*", eventbus.Typed(c.handle), eventbus.Named("billing"))
	require.NoError(t, err)
	err = second.Start(t.Context())
	require.ErrorIs(t, err, eventbus.ErrNoLease)
	var held *postgres.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, os.Getpid(), held.PID)
	require.Equal(t, schema, held.Schema)
	for n, bus := range map[int]*eventbus.Bus{1: first, 2: second} {
		published(t, bus, n, eventbus.NewEventID())
	}
	require.Zero(t, requireAllHandled(t, server.DSN(), schema, 2, &c))
	shutDown(t, first)
	require.NoError(t, second.Start(t.Context()))
	published(t, second, 3, eventbus.NewEventID())
	require.Zero(t, requireAllHandled(t, server.DSN(), schema, 3, &c))
	shutDown(t, second)
}

// Two applications with different subscriptions in one schema are standbys of each other, as OPERATIONS.md says: without
// WithStandby the second one does not start. With it, the events of each wait until it has the lease, and none is lost.
func TestS6_TwoApplicationsInOneSchema(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	var billing, mail, again counter
	shop := startBus(t, open(t, server.DSN(), schema), &billing)
	news, started := standbyBus(t, open(t, server.DSN(), schema), "user.*", "mail", &mail)
	for n := 1; n <= 20; n++ {
		_, err := news.Publish(t.Context(), "user.joined", n)
		require.NoError(t, err)
		_, err = news.Publish(t.Context(), "order.placed", n)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { billing.mu.Lock(); defer billing.mu.Unlock(); return billing.all == 20 }, time.Minute, time.Millisecond)
	require.Empty(t, started, "the other application has the lease")
	require.Zero(t, mail.all)
	shutDown(t, shop)
	require.NoError(t, <-started)
	require.Eventually(t, func() bool { mail.mu.Lock(); defer mail.mu.Unlock(); return mail.all == 20 }, time.Minute, time.Millisecond)

	shop, started = standbyBus(t, open(t, server.DSN(), schema), "order.*", "billing", &again)
	_, err := shop.Publish(t.Context(), "order.placed", 21)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return count(t, server.DSN(), expand("SELECT (SELECT count(*) FROM ~.record) * 10 + (SELECT count(*) FROM ~.incoming)", schema)) == 10
	}, time.Minute, 10*time.Millisecond, "the event waits for the subscription")
	shutDown(t, news)
	require.NoError(t, <-started)
	require.Zero(t, requireAllHandled(t, server.DSN(), schema, 21, &billing, &again))
	shutDown(t, shop)
}

// A process that has opened the store before a newer version migrated the schema does not get the lease.
func TestS6_AStandbyOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	schema := newStore(t, server)
	version := func(n string) {
		require.NoError(t, server.Exec(context.Background(), expand("UPDATE ~.meta SET version = "+n, schema)))
	}
	var first, second counter
	active := startBus(t, open(t, server.DSN(), schema), &first)
	alone := open(t, server.DSN(), schema)
	core, logs := observer.New(zap.ErrorLevel)
	standby, started := standbyBus(t, open(t, server.DSN(), schema), "order.*", "billing", &second, eventbus.WithLogger(zap.New(core)))
	require.Eventually(t, func() bool {
		return count(t, server.DSN(), expand("SELECT count(*) FROM ~.catalog", schema)) == 2
	}, time.Minute, 10*time.Millisecond, "the standby waits")
	version("5")
	published(t, active, 1, eventbus.NewEventID())
	published(t, standby, 2, eventbus.NewEventID())
	require.Zero(t, requireHandledBy(t, 2, &first))
	shutDown(t, active)
	_, err := alone.Acquire(t.Context(), driver.AcquireQuery{})
	require.ErrorIs(t, err, postgres.ErrSchemaTooNew)
	require.ErrorContains(t, err, "has version 5, and this package knows version 4")
	require.NoError(t, alone.Close(t.Context()))
	require.Eventually(t, func() bool {
		for _, e := range logs.All() {
			if err, _ := e.ContextMap()["error"].(string); e.Message == "store does not reopen" && strings.Contains(err, "has version 5") {
				return true
			}
		}
		return false
	}, time.Minute, 10*time.Millisecond)
	require.Zero(t, count(t, server.DSN(), expand("SELECT owner FROM ~.slot", schema)), "it has the lease")
	require.Empty(t, started)
	_, err = standby.Publish(t.Context(), "order.placed", 3)
	require.ErrorIs(t, err, eventbus.ErrStoreFailed)
	version("4")
	require.NoError(t, <-started)
	published(t, standby, 3, eventbus.NewEventID())
	require.Zero(t, requireAllHandled(t, server.DSN(), schema, 3, &first, &second))
	shutDown(t, standby)
}

// requireHandledBy waits until a bus has handled n events.
func requireHandledBy(t *testing.T, n int, c *counter) (repeated int) {
	t.Helper()
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.all >= n }, time.Minute, time.Millisecond)
	_, repeated = c.lostAndRepeated(n)
	return repeated
}
