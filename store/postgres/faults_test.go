//go:build unix

package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 123456789, time.UTC)

// ownServer starts a server for a test that stops it.
func ownServer(t testing.TB, settings ...string) *postgrestest.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := postgrestest.Start(ctx, settings...)
	if errors.Is(err, postgrestest.ErrNoServer) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Remove()) })
	return server
}

func acquire(t testing.TB, s *Store) driver.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lease, err := s.Acquire(ctx, driver.AcquireQuery{Wait: true})
	require.NoError(t, err)
	return lease
}

// submit submits a batch, under the lease of the store if it needs one, and waits for its outcome.
func submit(s *Store, b *driver.Batch) error {
	if b.Now.IsZero() {
		b.Now = noon
	}
	if b.Epoch == 0 && b.NeedsLease() {
		b.Epoch = s.Lease().Epoch
	}
	done := make(chan error, 1)
	s.Submit(b, func(err error) { done <- err })
	return <-done
}

func record() *driver.Record {
	return &driver.Record{
		ID: driver.ID(eventbus.NewEventID()), Type: "order.placed", Payload: []byte(`{"id":1}`),
		Published: noon, Targets: []string{"billing"}, Leased: true,
	}
}

// The answers to some commits are lost with the connection. The store asks the server what became of them.
func TestS6_LostAnswersAreResolved(t *testing.T) {
	t.Parallel()
	for _, lease := range []bool{true, false} {
		s := openOnly(t, postgrestest.NewSchema())
		if lease {
			acquire(t, s)
		}
		var lost atomic.Int64
		inside(t, s, func(c *committer) {
			c.faults.lose = func() bool {
				if rand.N(4) > 0 {
					return false
				}
				lost.Add(1)
				return true
			}
		})
		var publishers sync.WaitGroup
		const each, of = 50, 8
		for range of {
			publishers.Go(func() {
				for range each {
					var b *driver.Batch
					if lease {
						b = &driver.Batch{New: []*driver.Record{record()}, Audit: []driver.AuditEntry{{Body: []byte(`{}`)}}}
					} else {
						b = &driver.Batch{Leave: []*driver.Incoming{{Record: record(), Codec: "json"}}, Ask: []*driver.Request{{Body: []byte(`{}`)}}}
					}
					if err := submit(s, b); err != nil {
						t.Error(err)
					}
				}
			})
		}
		publishers.Wait()
		require.Positive(t, lost.Load(), "no answer was lost: the test shows nothing")
		stats, err := s.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, each*of, stats.Ready+stats.Incoming, "each batch was committed once")
		if lease {
			page, err := s.Audit(t.Context(), driver.AuditQuery{Limit: 10})
			require.NoError(t, err)
			require.EqualValues(t, each*of, page.Entries[0].Number)
			inside(t, s, func(c *committer) { c.faults.lose = func() bool { return true } })
			require.NoError(t, s.Release(t.Context(), driver.AllSlots()), "Release whose answer is lost")
			require.False(t, s.Lease().IsHeld())
		}
	}
}

// A commit that was on its way when the connection was lost arrives after the store has asked what became of it.
func TestS6_ALateCommitIsVoid(t *testing.T) {
	t.Parallel()
	s := openOnly(t, postgrestest.NewSchema())
	acquire(t, s)
	var planned, resolved, sent error
	var committed bool
	inside(t, s, func(c *committer) {
		var p *plan
		p, planned = c.prepare(c.deadline(), []*job{{Batch: &driver.Batch{Now: noon, Epoch: c.row.epoch, New: []*driver.Record{record()}}}}, make([]error, 1), nil)
		if planned != nil {
			return
		}
		late := &pgx.Batch{}
		p.queue(late)
		before := c.conn
		c.conn = nil
		committed, resolved = c.resolve(c.deadline(), true)
		p.undo()
		sent = s.source.send(context.Background(), before, late)
		closeNow(before)
	})
	require.NoError(t, planned)
	require.NoError(t, resolved)
	require.False(t, committed)
	require.Equal(t, stateFenced, sqlState(sent))
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Ready)
}

// The answer to the commit that begins a lease is lost, after a crash of the process before. The lease is the one that was
// begun, with the crash that it has counted.
func TestS6_ALeaseWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	schema := postgrestest.NewSchema()
	s, next := openOnly(t, schema), openOnly(t, schema)
	old := acquire(t, s)
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{record()}}))
	crash(t, s)
	always := func(c *committer) { c.faults.lose = func() bool { return true } }
	inside(t, next, always)
	lease := acquire(t, next)
	require.Equal(t, driver.Lease{Epoch: old.Epoch + 1, Slots: driver.AllSlots(), Crashed: true, CrashedEvents: 1}, lease)
	require.NoError(t, next.Reopen(t.Context()))
	require.Equal(t, old.Epoch+2, next.Lease().Epoch)
	claimed, err := next.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 9})
	require.NoError(t, err)
	require.Len(t, claimed.Records, 1)
	require.Equal(t, 1, claimed.Records[0].Crashes)
	require.NoError(t, submit(next, &driver.Batch{Delete: []driver.Ref{claimed.Records[0].Ref}}))
}

// A standby takes the lease of a process that has died as soon as the server has seen for 2 s that its connection is gone,
// and counts the crash.
func TestS6_ADeadProcessIsReplacedWithin3Seconds(t *testing.T) {
	t.Parallel()
	schema := postgrestest.NewSchema()
	s, standby := openOnly(t, schema), openOnly(t, schema)
	old := acquire(t, s)
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{record()}}))
	inside(t, s, func(c *committer) { c.faults.killed = true })
	require.NoError(t, s.Close(t.Context()))
	began := time.Now()
	lease := acquire(t, standby)
	took := time.Since(began)
	require.Greater(t, took, goneFor-standbyPoll)
	require.Less(t, took, s.cfg.leaseTime, "it must not take the time of the lease")
	t.Logf("taken over after %v", took)
	require.Greater(t, lease.Epoch, old.Epoch)
	require.True(t, lease.Crashed)
	require.EqualValues(t, 1, lease.CrashedEvents)
}

// Without Wait, too: a service that is restarted after a crash need not know that it crashed.
func TestS6_AcquireAfterACrashWaitsForTheEvidence(t *testing.T) {
	t.Parallel()
	schema := postgrestest.NewSchema()
	s, next := openOnly(t, schema), openOnly(t, schema)
	acquire(t, s)
	_, err := next.Acquire(t.Context(), driver.AcquireQuery{})
	require.ErrorIs(t, err, driver.ErrNoLease, "while the other one lives")
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.NotZero(t, held.PID)
	inside(t, s, func(c *committer) { c.faults.killed = true })
	require.NoError(t, s.Close(t.Context()))
	require.Eventually(t, func() bool {
		_, err := next.Acquire(t.Context(), driver.AcquireQuery{})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
}

// stop stops the committer of a store, as SIGSTOP stops a process: its connection stays. It goes on with resume.
func stop(t testing.TB, s *Store) (resume func()) {
	t.Helper()
	stopped, wait := make(chan struct{}), make(chan struct{})
	s.committer.queue.Add(&job{Control: func() {
		close(stopped)
		<-wait
	}})
	<-stopped
	return func() { close(wait) }
}

// A process that is stopped keeps its connection: a standby waits for the time of the lease, and counts no crash, because it
// cannot tell the pause from one. When the process continues, it can commit nothing under the old lease, and is a standby.
func TestS6_AStoppedProcessLosesTheLease(t *testing.T) {
	t.Parallel()
	schema := postgrestest.NewSchema()
	s, standby := openOnly(t, schema, WithLeaseTime(2*time.Second)), openOnly(t, schema, WithLeaseTime(2*time.Second))
	old := acquire(t, s)
	r := record()
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{r}}))
	resume := stop(t, s)
	began := time.Now()
	lease := acquire(t, standby)
	require.Greater(t, time.Since(began), time.Second)
	require.Greater(t, lease.Epoch, old.Epoch)
	require.False(t, lease.Crashed)
	claimed, err := standby.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 9})
	require.NoError(t, err)
	require.Len(t, claimed.Records, 1)

	outcome := make(chan error, 1)
	s.Submit(&driver.Batch{Now: noon, Epoch: old.Epoch, Delete: []driver.Ref{r.Ref}}, func(err error) { outcome <- err })
	resume()
	require.ErrorIs(t, <-outcome, driver.ErrLeaseLost)
	require.NoError(t, s.state(), "the store that was stopped has not failed")
	require.False(t, s.Lease().IsHeld())
	require.NoError(t, submit(s, &driver.Batch{Leave: []*driver.Incoming{{Record: record(), Codec: "json"}}}))
	require.NoError(t, submit(standby, &driver.Batch{Delete: []driver.Ref{r.Ref}}))
}

// While the server is down, nobody's lease is taken: afterwards the bus that had it goes on, busy or idle.
func TestS6_AnOutageOfTheServerIsNobodysCrash(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	schema := postgrestest.NewSchema()
	s, standby := openIn(t, server.DSN(), schema), openIn(t, server.DSN(), schema)
	lease := acquire(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := standby.Acquire(ctx, driver.AcquireQuery{Wait: true})
		waited <- err
	}()
	for name, outage := range map[string]func() error{
		"restart":          func() error { return server.Restart(t.Context(), "immediate") },
		"crash":            func() error { return errors.Join(server.Kill(), server.Run(t.Context())) },
		"sessions":         func() error { return server.EndSessions(t.Context()) },
		"a longer restart": func() error { return errors.Join(server.Stop("fast"), wait(3*time.Second), server.Run(t.Context())) },
	} {
		require.NoError(t, outage(), name)
		time.Sleep(goneFor + 2*standbyPoll) // for the standby to take it, if it does
		require.Empty(t, waited, "%s: the standby took the lease", name)
		require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{record()}}), name)
		require.Equal(t, lease, s.Lease(), name)
	}
	require.NoError(t, s.Release(t.Context(), driver.AllSlots()))
	require.NoError(t, <-waited, "a standby whose connections were lost while it waited gets the lease")
	cancel()
	stats, err := standby.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, stats.Ready)
}

func wait(d time.Duration) error {
	time.Sleep(d)
	return nil
}

// A server that is down for longer than the time of the lease makes the store fail. Reopen ends the failure.
func TestS6_ALongOutageFailsTheStore(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	s := openIn(t, server.DSN(), postgrestest.NewSchema(), WithLeaseTime(2*time.Second))
	acquire(t, s)
	r := record()
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{r}}))
	require.NoError(t, server.Stop("immediate"))
	require.ErrorIs(t, submit(s, &driver.Batch{Delete: []driver.Ref{r.Ref}}), driver.ErrFailed)
	require.ErrorIs(t, s.state(), driver.ErrFailed)
	require.Error(t, s.Reopen(t.Context()))
	require.NoError(t, server.Run(t.Context()))
	require.Eventually(t, func() bool { return s.Reopen(t.Context()) == nil }, time.Minute, 50*time.Millisecond)
	require.True(t, s.Lease().IsHeld())
	claimed, err := s.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 9})
	require.NoError(t, err)
	require.Len(t, claimed.Records, 1)
	require.Zero(t, claimed.Records[0].Crashes)
}

// A standby is stopped in the transaction that begins its lease. It has locked the slot, and another standby still gets it.
func TestS6_AStandbyThatIsStoppedWhileItTakesOver(t *testing.T) {
	t.Parallel()
	schema := postgrestest.NewSchema()
	s, other := openOnly(t, schema, WithLeaseTime(leastLeaseTime)), openOnly(t, schema, WithLeaseTime(leastLeaseTime))
	inside(t, s, func(c *committer) {
		_, err := c.conn.Exec(t.Context(), "BEGIN")
		require.NoError(t, err)
		_, err = c.conn.Exec(t.Context(), s.sql("SELECT FROM ~.slot FOR UPDATE"))
		require.NoError(t, err)
	})
	require.True(t, acquire(t, other).IsHeld())
	_, err := s.Acquire(t.Context(), driver.AcquireQuery{})
	require.ErrorIs(t, err, driver.ErrNoLease)
}

// A large PublishBatch takes longer than a statement may.
func TestS6_ALargeCommitHasTheTimeOfTheLease(t *testing.T) {
	t.Parallel()
	s := openOnly(t, postgrestest.NewSchema())
	acquire(t, s)
	exec(t, s, `CREATE FUNCTION ~.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(7.5); RETURN NULL; END $$`)
	exec(t, s, "CREATE TRIGGER slow BEFORE INSERT ON ~.record FOR EACH STATEMENT EXECUTE FUNCTION ~.slow()")
	large := record()
	large.Payload = make([]byte, 9<<20)
	began := time.Now()
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{large}}))
	require.Less(t, time.Since(began), 14*time.Second, "it succeeds at the first try")
}
