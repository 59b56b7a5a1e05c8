package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
)

const (
	// standbyPoll is the time between two looks of a store that waits for the lease.
	standbyPoll = 150 * time.Millisecond
	// goneFor is how long the connection of the store with the lease must be gone, while the store does not connect again.
	goneFor = 2 * time.Second
)

// evidence is what a store that waits has seen of the row of the store with the lease.
//
// An expired lease alone proves nothing: after an outage of the server, all leases have expired, and the first to come back
// would take the lease of a healthy store. So the row must stay the same while this store looks at it: for the time of a
// lease, or for goneFor while the server does not have the connection that renews it. The fence is the row itself, and not
// a clock: the store that had the lease can commit no more once its row is changed.
type evidence struct {
	row       heartbeat
	at        int64 // store.clock of the last look
	since     int64 // store.clock of the first look that saw it
	goneSince int64 // of the first look, of those that follow each other, that did not see the connection; 0: it was there
}

// heartbeat is the part of the row that each commit and each reconnection changes.
type heartbeat struct{ owner, epoch, batch, tries int64 }

// Acquire begins a lease. While another store has the lease, Acquire with Wait tries about every 150 ms. It begins the
// lease within that time after the other store has released it or is closed. Of several waiting stores, any one
// acquires it.
//
// If the process of the other store dies, the server notices the lost connection, and Acquire takes the lease over
// about 2 s later. The server does not notice it if the machine is gone, the process is stopped, or a pooler is in
// between. Then a take-over takes the time of the lease (WithLeaseTime). Only a store that has tried during that time,
// without a gap of half of it, takes over, and only if the other store renewed nothing.
//
// The new lease counts a crash if the connection of the process was gone. Otherwise a crash looks like a pause, and the
// lease counts none.
//
// Without Wait, Acquire returns a *HeldError at once. If the connection of the other store is gone, it waits until it
// may take over.
//
// Errors: *HeldError (driver.ErrNoLease); driver.ErrFailed; driver.ErrClosed, also if Close is called while Acquire waits;
// those of the server; the context's error.
func (s *Store) Acquire(ctx context.Context, q driver.AcquireQuery) (driver.Lease, error) {
	lease, err := s.acquire(ctx, q.Wait)
	if err != nil {
		return driver.Lease{}, fmt.Errorf("Acquire: %w", err)
	}
	return lease, nil
}

func (s *Store) acquire(ctx context.Context, wait bool) (driver.Lease, error) {
	var seen evidence
	for look := 1; ; look++ {
		lease, err := s.tryAcquire(ctx, &seen)
		held := (*HeldError)(nil)
		if !errors.As(err, &held) || !wait && seen.goneSince == 0 {
			return lease, err
		}
		if look == 2 {
			s.cfg.logger.Info("waiting for the lease", s.fields(zap.String("holder_host", held.Host), zap.Int("holder_pid", held.PID))...)
		}
		timer := time.NewTimer(standbyPoll + rand.N(standbyPoll/4)) //nolint:gosec // standbys need not look at the same time
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			err = fmt.Errorf("%w: %w", held, ctx.Err())
		case <-s.end.Began():
			err = driver.ErrClosed
		}
		timer.Stop()
		return driver.Lease{}, err
	}
}

// tryAcquire begins a lease if no other store has it, or if there is evidence that it may be taken over. Otherwise the error
// is a *HeldError.
func (s *Store) tryAcquire(ctx context.Context, seen *evidence) (driver.Lease, error) {
	select {
	case s.acquiring <- struct{}{}:
		defer func() { <-s.acquiring }()
	case <-ctx.Done():
		return driver.Lease{}, ctx.Err()
	}
	if err := errors.Join(s.state(), ctx.Err()); err != nil {
		return driver.Lease{}, err
	}
	if s.Lease().IsHeld() { // it may be lost
		if err := s.committer.queue.Control(ctx, func() error { s.committer.renew(); return s.committer.queue.Failure() }); err != nil {
			return driver.Lease{}, err
		}
		if lease := s.Lease(); lease.IsHeld() {
			return lease, nil
		}
	}
	ready, err := s.look(ctx, seen)
	if err != nil {
		return driver.Lease{}, err
	}
	if held := ready.held; held != nil {
		return driver.Lease{}, held
	}
	var given atomic.Bool // to the caller, who may have gone meanwhile
	err = s.committer.queue.Control(ctx, func() error {
		err := s.committer.acquire(ready)
		if err == nil && ctx.Err() != nil && given.CompareAndSwap(false, true) {
			err = errors.Join(ctx.Err(), s.committer.release())
		}
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			return driver.Lease{}, s.abandon(&given, err)
		}
		return driver.Lease{}, err
	}
	return s.Lease(), nil
}

// abandon releases a lease that Acquire has begun, and whose context has ended before it could be returned.
func (s *Store) abandon(given *atomic.Bool, cause error) error {
	s.committer.queue.Add(&job{
		Control: func() {
			if !given.CompareAndSwap(false, true) || s.committer.queue.Failure() != nil {
				return
			}
			if err := s.committer.release(); err != nil {
				s.cfg.logger.Warn("lease that is not awaited any more cannot be released", s.fields(zap.Error(err))...)
			}
		},
	})
	return cause
}

// readiness is the result of a look at the lease.
type readiness struct {
	held     *HeldError // nil if the lease may be acquired
	takeOver heartbeat  // zero if nobody has it
	crashed  bool       // the connection of the store that has it is gone
}

// look looks at the lease, and adds what it sees to the evidence.
func (s *Store) look(ctx context.Context, seen *evidence) (r readiness, err error) {
	const sql = `SELECT slot.owner, slot.epoch, coalesce(i.batch, 0), coalesce(i.tries, 0), coalesce(i.epoch = slot.epoch, false),
			coalesce(i.expires < clock_timestamp(), true), coalesce(i.expires = '-infinity', false), coalesce(i.host, ''), coalesce(i.pid, 0),
			coalesce(i.backend <> 0 AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE ` + isBackend + `), false)
		FROM ~.slot LEFT JOIN ~.instance i ON i.id = slot.owner WHERE slot.id = 0`
	var now heartbeat
	var live, expired, ended, gone bool
	var host []byte
	var pid int
	attempts := 0
	err = s.read(ctx, func(ctx context.Context, db querier) error {
		ctx, cancel := context.WithTimeout(ctx, longestExchange) // the server may be gone, and another one in its place
		defer cancel()
		attempts++
		return db.QueryRow(ctx, s.sql(sql)).Scan(&now.owner, &now.epoch, &now.batch, &now.tries, &live, &expired, &ended, &host, &pid, &gone)
	})
	if err != nil {
		*seen = evidence{}
		return r, err
	}
	if now.owner == 0 || !live { // it was released, or was taken and lost
		return r, nil
	}
	at := s.clock()
	// If this store did not look for a while, or had no answer, then the other one may have had none either.
	if unseen := at - seen.at; now != seen.row || attempts > 1 || unseen > int64(s.cfg.leaseTime)/2 {
		*seen = evidence{row: now, since: at}
	}
	seen.at = at
	switch {
	case !gone:
		seen.goneSince = 0
	case seen.goneSince == 0:
		seen.goneSince = at
	}
	isDead := gone && at-seen.goneSince >= int64(goneFor)
	isSilent := expired && at-seen.since >= int64(s.cfg.leaseTime)
	if ended || isDead || isSilent {
		return readiness{takeOver: now, crashed: gone}, nil
	}
	return readiness{held: &HeldError{Schema: s.cfg.schema, Host: string(host), PID: pid}}, nil
}

// errTaken is returned by begin if another store was first.
var errTaken = errors.New("postgres: another store has acquired the lease meanwhile")

// acquire begins a lease.
func (c *committer) acquire(ready readiness) error {
	if c.row.epoch != 0 {
		return nil // it was acquired meanwhile, which Acquire excludes
	}
	if err := c.queue.Failure(); err != nil {
		return err
	}
	err := c.begin(ready)
	if errors.Is(err, errTaken) {
		return &HeldError{Schema: c.store.cfg.schema}
	}
	return err
}

// Release ends the lease. The store has all slots or none: it releases all if slots contains slot 0, which all records
// have. See [driver.Store].
//
// Errors: driver.ErrFailed; driver.ErrClosed; the context's error.
func (s *Store) Release(ctx context.Context, slots driver.SlotSet) error {
	err := s.committer.queue.Control(ctx, func() error {
		if err := s.committer.queue.Failure(); err != nil || !slots.Has(0) {
			return err
		}
		return s.committer.release()
	})
	if err != nil {
		return fmt.Errorf("Release: %w", err)
	}
	return nil
}

// release ends the lease. The next one frees the records.
func (c *committer) release() error {
	if c.row.epoch == 0 {
		return nil
	}
	if err := c.run(nil, nil, true); err != nil {
		return c.reportFailure(err)
	}
	return nil
}

// end ends the lease and removes the row of the store, for Close.
func (c *committer) end() error {
	if c.faults.killed {
		if c.conn != nil {
			closeNow(c.conn)
		}
		return nil
	}
	failed := c.queue.Failure() != nil
	if failed && c.conn != nil {
		closeNow(c.conn)
	}
	err := c.leave(failed)
	if c.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), connectTime)
		defer cancel()
		_ = c.conn.Close(ctx) // all that it was used for is confirmed
	}
	return err
}

// leave ends the lease, and adds the counters of the store to those of row 0.
func (c *committer) leave(failed bool) error {
	if c.store.instance.Load() == 0 {
		return nil
	}
	if failed {
		if err := c.rejoin(c.store.clock() + int64(connectTime)); err != nil {
			return err
		}
	}
	if c.row.epoch != 0 {
		if err := c.run(nil, nil, true); err != nil {
			return err
		}
	}
	if id := c.store.instance.Load(); id != 0 && c.conn != nil { // without a connection, the row stays
		ctx, cancel := context.WithTimeout(context.Background(), connectTime)
		defer cancel()
		if _, err := c.conn.Exec(ctx, c.store.sql(mergeInstance), id); err != nil {
			c.store.cfg.logger.Info("the row of the store stays in table instance", c.store.fields(zap.Error(err))...)
		}
	}
	return nil
}

// mergeInstance removes the row of a store that has ended. Its counters stay in the sums.
const mergeInstance = `WITH gone AS (DELETE FROM ~.instance WHERE id = $1 AND epoch = 0 RETURNING *)
	UPDATE ~.instance i SET ready = i.ready + g.ready, waiting = i.waiting + g.waiting, scheduled = i.scheduled + g.scheduled, parked = i.parked + g.parked,
		letters = i.letters + g.letters, incoming = i.incoming + g.incoming, requests = i.requests + g.requests, answers = i.answers + g.answers,
		directives = i.directives + g.directives, catalogs = i.catalogs + g.catalogs
	FROM gone g WHERE i.id = 0`

// reopen connects again, and begins a new lease if the store has one.
func (c *committer) reopen(ctx context.Context) error {
	if c.conn != nil {
		closeNow(c.conn)
	}
	conn, err := c.store.source.look(ctx)
	if err != nil {
		return err
	}
	c.conn = conn
	switch identity, err := c.store.enter(ctx, conn); {
	case err != nil:
		return err
	case identity != c.store.identity:
		return fmt.Errorf("%w: schema %s has other data since the program started: restart the program", ErrOtherSchema, c.store.cfg.schema)
	}
	had := c.row.epoch != 0
	if err := c.rejoin(c.store.clock() + int64(c.store.cfg.leaseTime)); err != nil || c.row.epoch == 0 {
		return err
	}
	if err = c.begin(readiness{}); errors.Is(err, errTaken) || errors.Is(err, driver.ErrLeaseLost) {
		err = nil
		if had {
			c.lose()
		}
	}
	return err
}

// rejoin reads the row of the store after a failure: the outcome of its last commit does not matter any more.
func (c *committer) rejoin(deadline int64) error {
	now, err := c.reconnect(deadline)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		c.store.instance.Store(0)
		c.lose()
		return nil
	case err != nil:
		return err
	case c.store.instance.Load() == 0:
		c.lose()
		return nil
	}
	c.row.batch, c.row.tries = now.batch, now.tries
	if now.epoch == c.row.epoch {
		return nil
	}
	c.lose()
	if now.epoch == 0 {
		return nil
	}
	// It has begun a lease without knowing: the answer was lost.
	ctx, cancel := c.context(deadline)
	defer cancel()
	_, err = c.conn.Exec(ctx, c.store.sql("UPDATE ~.instance SET epoch = 0, leased = 0 WHERE id = $1"), c.store.instance.Load())
	return err
}
