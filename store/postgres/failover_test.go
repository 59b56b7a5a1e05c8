//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/store/postgres"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// failover is a bus, a primary and its replica, with a network between each two.
type failover struct {
	t                *testing.T
	primary, replica *postgrestest.Server
	toServer         *proxy // between the bus and a server
	toPrimary        *proxy // between the replica and the primary
	bus              *eventbus.Bus

	mu       sync.Mutex // guards the following
	accepted map[eventbus.EventID]int
	handled  map[int]int
	gate     chan struct{} // calls wait for it
}

// workers is how many events run at the failover, at most.
const workers = 4

func newFailover(t *testing.T) *failover {
	t.Helper()
	f := &failover{t: t, primary: privateServer(t), accepted: make(map[eventbus.EventID]int), handled: make(map[int]int), gate: make(chan struct{})}
	f.toServer = startProxy(t, f.primary.Socket())
	f.toPrimary = startProxy(t, f.primary.Socket())
	close(f.gate)
	s := open(t, f.toServer.DSN(), "eventbus", postgres.WithLeaseTime(clusterLease))
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	var err error
	f.bus, err = eventbus.New(eventbus.WithStore(s), eventbus.WithConcurrency(workers))
	require.NoError(t, err)
	_, err = f.bus.Subscribe("order.*", eventbus.Typed(f.handle), eventbus.Named("billing"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f.replica, err = f.primary.StartReplica(ctx, f.toPrimary.replication())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.replica.Remove()) })
	return f
}

func (f *failover) handle(_ context.Context, n int) error {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	<-gate
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handled[n]++
	return nil
}

// publish publishes events from..to-1. It repeats a publication with its id until its outcome is known.
func (f *failover) publish(from, to int) {
	for n := from; n < to; n++ {
		id := eventbus.NewEventID()
		for {
			_, err := f.bus.Publish(f.t.Context(), "order.placed", n, eventbus.ID(id))
			if err == nil || errors.Is(err, eventbus.ErrDuplicateID) {
				break
			}
			if f.t.Context().Err() != nil {
				f.t.Error(err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		f.mu.Lock()
		f.accepted[id] = n
		f.mu.Unlock()
	}
}

// awaitReplica waits until the replica has what the primary has.
func (f *failover) awaitReplica() {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.primary.DSN())
	require.NoError(f.t, err)
	defer func() { require.NoError(f.t, conn.Close(f.t.Context())) }()
	require.Eventually(f.t, func() (same bool) {
		err := conn.QueryRow(f.t.Context(), "SELECT count(*) = 1 AND coalesce(bool_and(pg_current_wal_lsn() <= replay_lsn), false) FROM pg_stat_replication").Scan(&same)
		return assert.NoError(f.t, err) && same
	}, time.Minute, 10*time.Millisecond)
}

// failOver ends the primary, promotes the replica, and makes the bus reach it. It returns the events that the replica has.
func (f *failover) failOver() (has map[int]bool) {
	f.t.Helper()
	require.NoError(f.t, f.primary.Stop("immediate"))
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	require.NoError(f.t, f.replica.Promote(ctx))
	conn, err := pgx.Connect(ctx, f.replica.DSN())
	require.NoError(f.t, err)
	rows, err := conn.Query(ctx, "SELECT event FROM eventbus.record UNION SELECT event FROM eventbus.incoming")
	require.NoError(f.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	require.NoError(f.t, errors.Join(err, conn.Close(ctx)))
	has = make(map[int]bool)
	f.mu.Lock()
	for _, id := range ids {
		if n, ok := f.accepted[eventbus.EventID(id)]; ok {
			has[n] = true
		}
	}
	f.mu.Unlock()
	f.toServer.lead(f.replica.Socket())
	return has
}

// lost returns how many of the accepted events were not handled.
func (f *failover) lost() (lost []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.accepted {
		if f.handled[n] == 0 {
			lost = append(lost, n)
		}
	}
	return lost
}

// An asynchronous replica is promoted. The events that it had not got are lost, although Publish had returned nil. Those
// that it had are handled, and the bus goes on in place.
func TestS6_AFailoverToAnAsynchronousReplica(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it copies a server")
	}
	const replicated, late, after = 200, 50, 100
	for name, starts := range map[string]bool{"before it has started": false, "while it dispatches": true} {
		t.Run(name, func(t *testing.T) {
			f := newFailover(t)
			gate := make(chan struct{})
			if starts {
				require.NoError(t, f.bus.Start(t.Context()))
				f.publish(0, replicated/2)
				drain(t, f.bus)
			}
			f.mu.Lock()
			f.gate = gate
			f.mu.Unlock()
			f.publish(replicated/2, replicated)
			f.awaitReplica()
			goOn := f.toPrimary.stall()
			f.publish(replicated, replicated+late)
			has := f.failOver()
			goOn()
			if starts { // the events that run have their effect, and the others must not begin before the bus notices
				require.Eventually(t, func() bool {
					_, err := f.bus.Publish(t.Context(), "order.placed", -1)
					return errors.Is(err, eventbus.ErrStoreFailed)
				}, time.Minute, 10*time.Millisecond)
			}
			close(gate)
			require.Len(t, has, replicated/2, "the replica has what it got before the network stalled")
			f.publish(replicated+late, replicated+late+after)
			if !starts {
				require.NoError(t, f.bus.Start(t.Context()))
			}
			require.Eventually(t, func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				for n := range replicated + late + after {
					if isLate := n >= replicated && n < replicated+late; !isLate && f.handled[n] == 0 && (starts || n >= replicated/2) {
						return false
					}
				}
				return true
			}, time.Minute, 10*time.Millisecond, "what the replica had, and what was published afterwards, is handled")
			drain(t, f.bus)
			require.Zero(t, f.bus.Metrics().Store.Unsettled())
			shutDown(t, f.bus)
			lost := len(f.lost())
			t.Logf("%d of %d accepted events are lost", lost, len(f.accepted))
			require.LessOrEqual(t, lost, late, "the replica had the others")
			require.GreaterOrEqual(t, lost, late-workers)
		})
	}
}

// A replica that synchronous_standby_names has is promoted while events are published. None is lost.
func TestS6_AFailoverToASynchronousReplica(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it copies a server")
	}
	const each, of = 150, 4
	f := newFailover(t)
	require.NoError(t, f.primary.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '"+postgrestest.ReplicaName+"'"))
	require.NoError(t, f.primary.Exec(t.Context(), "SELECT pg_reload_conf()"))
	f.awaitReplica()
	require.NoError(t, f.bus.Start(t.Context()))
	var publishers sync.WaitGroup
	for p := range of {
		publishers.Go(func() { f.publish(p*each, (p+1)*each) })
	}
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.accepted) > each
	}, time.Minute, time.Millisecond)
	f.failOver()
	publishers.Wait()
	drain(t, f.bus)
	shutDown(t, f.bus)
	require.Len(t, f.accepted, each*of)
	require.Empty(t, f.lost())
}
