//go:build unix

package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
	"github.com/surebus/eventbus/storetest"
)

func pooler(t *testing.T, server *postgrestest.Server) *postgrestest.Pooler {
	t.Helper()
	p, err := server.StartPooler(t.Context())
	if errors.Is(err, postgrestest.ErrNoPooler) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop()) })
	return p
}

// The suite passes through a pooler in transaction mode, which gives each transaction another connection.
func TestStore_ThroughAPooler(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes most of a minute")
	}
	parts := []string{"Random", "Tx", "Once"}
	if *Search {
		parts = nil // all
	}
	server := ownServer(t)
	p := pooler(t, server)
	require.NoError(t, server.Exec(t.Context(), "CREATE DATABASE other"))
	databases := alternating(p.DSNOf)
	storetest.Run(t, func(t *testing.T) storetest.Backend {
		b := backend(postgrestest.NewSchema(), databases())
		open := b.Open
		b.Open = func(t *testing.T) driver.Store {
			s := open(t)
			require.True(t, s.(*Store).source.pooled.Load(), "the store notices the pooler")
			return s
		}
		return b
	}, parts...)
}

// Behind a pooler, nothing but its silence says that a process is dead.
func TestS6_BehindAPoolerTheTimeOfTheLeaseCounts(t *testing.T) {
	t.Parallel()
	dsn := pooler(t, ownServer(t)).DSN()
	schema := postgrestest.NewSchema()
	s, standby := openIn(t, dsn, schema, WithLeaseTime(4*time.Second)), openIn(t, dsn, schema, WithLeaseTime(4*time.Second))
	acquire(t, s)
	inside(t, s, func(c *committer) { c.faults.killed = true })
	require.NoError(t, s.Close(t.Context()))
	began := time.Now()
	lease := acquire(t, standby)
	require.Greater(t, time.Since(began), goneFor+time.Second)
	require.False(t, lease.Crashed)
}
