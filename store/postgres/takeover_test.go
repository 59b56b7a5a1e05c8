//go:build unix

package postgres

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// A lease that ends with a crash may have a million records, and to free them takes longer than a statement may, and longer
// than a lease lasts. Other standbys wait meanwhile.
func TestS6_ATakeOverOfManyRecordsTakesItsTime(t *testing.T) {
	t.Parallel()
	schema := postgrestest.NewSchema()
	s := openOnly(t, schema)
	acquire(t, s)
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{record()}}))
	exec(t, s, `CREATE FUNCTION ~.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(`+strconv.Itoa(int(statementTime.Seconds()))+`.5); RETURN NULL; END $$`)
	exec(t, s, "CREATE TRIGGER slow BEFORE UPDATE ON ~.record FOR EACH STATEMENT EXECUTE FUNCTION ~.slow()")
	crash(t, s)
	type result struct {
		lease driver.Lease
		err   error
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	results := make(chan result, 2)
	for range cap(results) {
		standby := openOnly(t, schema, WithLeaseTime(leastLeaseTime))
		go func() {
			lease, err := standby.Acquire(ctx, driver.AcquireQuery{Wait: true})
			results <- result{lease, err}
		}()
	}
	began := time.Now()
	first := <-results
	require.NoError(t, first.err)
	require.Less(t, time.Since(began), 2*statementTime, "it succeeds at the first try")
	require.EqualValues(t, 1, first.lease.CrashedEvents)
	cancel()
	require.ErrorIs(t, (<-results).err, context.Canceled)
}

// A store that has not looked for a while cannot tell whether the other one was alive meanwhile.
func TestS6_AGapInTheLooksIsNoEvidence(t *testing.T) {
	t.Parallel()
	schema := postgrestest.NewSchema()
	s, standby := openOnly(t, schema), openOnly(t, schema)
	acquire(t, s)
	crash(t, s)
	exec(t, standby, "UPDATE ~.instance SET expires = clock_timestamp() - interval '1 s'")
	var seen evidence
	ready, err := standby.look(t.Context(), &seen)
	require.NoError(t, err)
	require.NotNil(t, ready.held)
	long := int64(2 * standby.cfg.leaseTime)
	seen.since, seen.goneSince, seen.at = seen.since-long, seen.goneSince-long, seen.at-long
	ready, err = standby.look(t.Context(), &seen)
	require.NoError(t, err)
	require.NotNil(t, ready.held, "it was stopped")
	seen.since, seen.goneSince = seen.since-long, seen.goneSince-long
	ready, err = standby.look(t.Context(), &seen)
	require.NoError(t, err)
	require.Nil(t, ready.held, "it has looked all the time")
}

// Claim returns when its context ends, while a commit before it takes long.
func TestS6_AClaimThatWaitsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := openOnly(t, postgrestest.NewSchema())
	acquire(t, s)
	free := record()
	free.Leased = false
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{free}}))
	busy, goOn := make(chan struct{}), make(chan struct{})
	controlled := make(chan error, 1)
	go func() {
		controlled <- s.committer.queue.Control(context.Background(), func() error {
			close(busy)
			<-goOn
			return nil
		})
	}()
	<-busy
	ctx, cancel := context.WithCancel(t.Context())
	claimed := make(chan error, 1)
	go func() {
		_, err := s.Claim(ctx, driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 10})
		claimed <- err
	}()
	require.Eventually(t, s.committer.queue.HasJobs, 10*time.Second, time.Millisecond)
	cancel()
	select {
	case err := <-claimed:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(10 * time.Second):
		close(goOn) // the store can be closed
		require.Fail(t, "Claim waits beyond its context")
	}
	close(goOn)
	require.NoError(t, <-controlled)
	records, err := s.Lookup(t.Context(), free.ID)
	require.NoError(t, err)
	require.False(t, records[0].Leased, "nobody would have it")
}

// A store whose server is gone can be closed, also if it has a row and no connection.
func TestS6_CloseWithoutAServer(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	s := openIn(t, server.DSN(), "eventbus")
	acquire(t, s)
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	require.NoError(t, server.Stop("fast"))
	inside(t, s, func(c *committer) {
		closeNow(c.conn)
		c.conn = nil // as an attempt to begin a lease leaves it
	})
	require.NoError(t, s.Close(t.Context()))
}

// A standby does not look for its own events: another store takes them in.
func TestT1_OnlyTheActiveStoreLooksForItsOwnEvents(t *testing.T) {
	t.Parallel()
	s := openOnly(t, postgrestest.NewSchema())
	leave := func() int {
		conn, err := pgx.ConnectConfig(t.Context(), s.source.config.ConnConfig)
		require.NoError(t, err)
		tx, commit, _ := begin(t, conn)
		require.NoError(t, s.SubmitTx(t.Context(), tx, []*driver.Incoming{{Record: record()}}))
		require.NoError(t, commit())
		s.own.mu.Lock()
		defer s.own.mu.Unlock()
		return len(s.own.waiting)
	}
	require.Zero(t, leave())
	acquire(t, s)
	require.Equal(t, 1, leave())
}

// The ids of processes come again: a session that has that of a dead process's connection is another one.
func TestS6_AReusedProcessIDIsNotTheProcess(t *testing.T) {
	t.Parallel()
	dsn, schema := postgrestest.Shared(t).DSN(), postgrestest.NewSchema()
	s, standby := openOnly(t, schema), openOnly(t, schema)
	acquire(t, s)
	inside(t, s, func(c *committer) { c.faults.killed = true })
	require.NoError(t, s.Close(t.Context()))
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	tx, commit, _ := begin(t, conn)
	exec(t, standby, "UPDATE ~.instance SET backend = $1 WHERE epoch <> 0", int64(tx.(pgx.Tx).Conn().PgConn().PID()))
	began := time.Now()
	require.True(t, acquire(t, standby).Crashed)
	require.Less(t, time.Since(began), standby.cfg.leaseTime, "the process is dead")
	require.NoError(t, commit(), "the session is that of another program")
}

// The first of several hosts may be gone without a word.
func TestS6_TheNextHostIsTriedIfTheFirstIsSilent(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	server := postgrestest.Shared(t)
	dsn := fmt.Sprintf("host=127.0.0.1,%s port=%d,5432 user=postgres dbname=postgres sslmode=disable target_session_attrs=read-write", server.Dir(), silent.Addr().(*net.TCPAddr).Port)
	s := openIn(t, dsn, postgrestest.NewSchema())
	acquire(t, s)
	inside(t, s, func(c *committer) { closeNow(c.conn) })
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{record()}}), "it connects again")
}
