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
	since     int64 // store.clock of the first look that saw it
	goneSince int64 // of the first look, of those that follow each other, that did not see the connection; 0: it was there
}

// heartbeat is the part of the row that each commit and each reconnection changes.
type heartbeat struct{ owner, epoch, batch, tries int64 }

// Acquire begins a lease. While another store has the lease, Acquire with Wait looks about every 150 ms. It begins the
// lease within that time after the other store has released it or is closed. Of several stores that wait, any one gets it.
//
// If the process of the other store has died, the server sees that its connection is gone, and Acquire takes the lease over
// about 2 s later. If the server does not see that, because the machine is gone, the process is stopped, or a pooler is in
// between, it takes the time of the lease. Only a store that has looked all the time takes over, and only if the other one
// gives no sign of life.
//
// The new lease counts a crash if the connection of the process was gone. Without that, it cannot tell a crash from a
// pause, and counts none.
//
// Without Wait, the error is at once a *HeldError, unless the connection of the other store is gone: then Acquire waits
// until it may take over.
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
			coalesce(i.backend <> 0 AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = i.backend), false)
		FROM ~.slot LEFT JOIN ~.instance i ON i.id = slot.owner WHERE slot.id = 0`
	var now heartbeat
	var live, expired, ended, gone bool
	var host []byte
	var pid int
	attempts := 0
	err = s.read(ctx, func(ctx context.Context, db querier) error {
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
	if now != seen.row || attempts > 1 { // the server did not answer: it may not have answered the other store either
		*seen = evidence{row: now, since: at}
	}
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

// begin begins a lease. After a transient error, it finds out whether the lease has begun, and tries again. If it cannot
// find out, the store fails: Reopen ends a lease that it does not know. After any other error, nothing has changed.
func (c *committer) begin(ready readiness) error {
	deadline := c.store.clock() + int64(c.store.cfg.leaseTime)
	for {
		w := leaseWrite{c: c, from: ready.takeOver, crashed: ready.crashed, sentAt: c.store.clock()}
		_, err := c.prepare(deadline, nil, nil, nil) // connected, and registered
		if err == nil {
			err = w.endSession(deadline)
		}
		if err == nil {
			err = w.run(deadline)
		}
		if err == nil {
			w.finish()
			return nil
		}
		if !isTransient(err) && sqlState(err) != stateFenced {
			return explain(err)
		}
		sent := w.sent && !isDefinite(err)
		committed, cause := c.resolve(deadline, sent)
		switch {
		case committed:
			w.finish()
			return nil
		case cause != nil && sent:
			return c.reportFailure(fmt.Errorf("%w, after: %w", cause, err))
		case cause != nil:
			return fmt.Errorf("%w, after: %w", cause, err)
		case c.store.clock() > deadline:
			return fmt.Errorf("postgres: the lease could not be begun for %v: %w", c.store.cfg.leaseTime, err)
		}
	}
}

// leaseWrite is the transaction that begins a lease. It locks the row of the slot, then that of the store from which it
// takes the lease over, then its own.
type leaseWrite struct {
	c       *committer
	from    heartbeat // the row of the store from which the lease is taken over
	crashed bool      // the connection of that store was gone
	sentAt  int64
	sent    bool // the commit

	lease   driver.Lease
	nextRef int64
}

// finish notes that the lease has begun.
func (w *leaseWrite) finish() {
	c := w.c
	c.row.batch++
	c.row.nextRef = w.nextRef
	c.setLease(w.lease)
	c.store.confirmed.Store(w.sentAt)
}

func (w *leaseWrite) run(deadline int64) error {
	ctx, cancel := w.c.context(deadline)
	defer cancel()
	tx, err := w.c.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	if err := w.write(ctx, tx); err != nil {
		if failed := tx.Rollback(ctx); failed != nil {
			closeNow(w.c.conn)
		}
		return err
	}
	w.sent = true
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return w.c.loseAnswer()
}

// endSession ends the session of the store from which the lease is taken over. A process that was stopped while it sent a
// commit may have locked its row, and more.
func (w *leaseWrite) endSession(deadline int64) error {
	if w.from.owner == 0 {
		return nil
	}
	ctx, cancel := w.c.context(deadline)
	defer cancel()
	const sql = `SELECT pg_terminate_backend(a.pid) FROM ~.instance i JOIN pg_stat_activity a ON a.pid = i.backend
		WHERE i.id = $1 AND i.epoch = $2 AND i.batch = $3 AND i.tries = $4 AND a.datname = current_database() AND a.usename = current_user`
	_, err := w.c.conn.Exec(ctx, w.c.store.sql(sql), w.from.owner, w.from.epoch, w.from.batch, w.from.tries)
	return err
}

func (w *leaseWrite) write(ctx context.Context, tx pgx.Tx) error {
	c, s := w.c, w.c.store
	var owner, epoch int64
	var version int
	const slot = "SELECT owner, epoch, (SELECT version FROM ~.meta WHERE id = 1) FROM ~.slot WHERE id = 0 FOR UPDATE"
	if err := tx.QueryRow(ctx, s.sql(slot)).Scan(&owner, &epoch, &version); err != nil {
		return err
	}
	if err := s.checkVersion(version); err != nil { // another process may have migrated since Open
		return err
	}
	taken := false
	if owner != s.instance.Load() {
		var err error
		if taken, err = w.takeOver(ctx, tx, owner, epoch); err != nil {
			return err
		}
	}
	// The slot may have been changed by hand, while a store has the lease: no other row may have one.
	if _, err := tx.Exec(ctx, s.sql("UPDATE ~.instance SET epoch = 0, leased = 0 WHERE epoch <> 0 AND id <> $1"), s.instance.Load()); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, s.sql("SELECT max(next_ref) FROM (SELECT next_ref FROM ~.slot UNION ALL SELECT next_ref FROM ~.instance) n")).Scan(&w.nextRef); err != nil {
		return err
	}
	w.lease = driver.Lease{Epoch: epoch + 1, Slots: driver.AllSlots(), Crashed: taken && w.crashed}
	if err := w.free(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, s.sql("UPDATE ~.slot SET owner = $1, epoch = $2, next_ref = $3 WHERE id = 0"), s.instance.Load(), w.lease.Epoch, w.nextRef); err != nil {
		return err
	}
	if err := w.removeOld(ctx, tx); err != nil {
		return err
	}
	const begin = `WITH changed AS (UPDATE ~.instance SET batch = batch + 1, epoch = $5, leased = 0, next_ref = $6, expires = clock_timestamp() + $7
			WHERE id = $1 AND epoch = $2 AND batch = $3 AND tries = $4 RETURNING 1)
		SELECT ~.eventbus_check('` + stateFenced + `', count(*), 1, 'the fence') FROM changed`
	_, err := tx.Exec(ctx, s.sql(begin), s.instance.Load(), c.row.epoch, c.row.batch, c.row.tries, w.lease.Epoch, w.nextRef, s.cfg.leaseTime)
	return err
}

// takeOver ends the lease of another store, and reports whether that one still had it.
func (w *leaseWrite) takeOver(ctx context.Context, tx pgx.Tx, owner, epoch int64) (taken bool, err error) {
	const end = `UPDATE ~.instance SET epoch = 0, leased = 0
		WHERE id = $1 AND epoch = $2 AND (expires = '-infinity' OR $1 = $3 AND $2 = $4 AND batch = $5 AND tries = $6)`
	tag, err := tx.Exec(ctx, w.c.store.sql(end), owner, epoch, w.from.owner, w.from.epoch, w.from.batch, w.from.tries)
	if err != nil || tag.RowsAffected() > 0 {
		return err == nil, err
	}
	var live bool
	err = tx.QueryRow(ctx, w.c.store.sql("SELECT EXISTS (SELECT 1 FROM ~.instance WHERE id = $1 AND epoch = $2)"), owner, epoch).Scan(&live)
	if err == nil && live && owner != 0 {
		err = errTaken
	}
	return false, err
}

// removeOld removes the rows of stores that have ended without Close. One that still lives inserts another row.
func (w *leaseWrite) removeOld(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, w.c.store.sql("SELECT id FROM ~.instance WHERE id NOT IN (0, $1) AND epoch = 0 AND expires < clock_timestamp() - $2::interval FOR UPDATE SKIP LOCKED"), w.c.store.instance.Load(), instanceAge)
	if err != nil {
		return err
	}
	old, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, id := range old {
		if err == nil {
			_, err = tx.Exec(ctx, w.c.store.sql(mergeInstance), id)
		}
	}
	return err
}

// instanceAge is the age of the last commit of a store from which on its row is removed.
const instanceAge = 24 * time.Hour

// free frees the records of the last lease. If it has crashed, they count that, see driver.Record.
func (w *leaseWrite) free(ctx context.Context, tx pgx.Tx) error {
	const sql = `WITH marked AS (SELECT EXISTS (SELECT 1 FROM ~.record WHERE owner > 0 AND suspect) AS some),
		held AS (SELECT ref, event, $1 AND CASE WHEN marked.some THEN suspect ELSE kind & 3 = 0 AND crashes < $2 END AS counts FROM ~.record, marked WHERE owner > 0),
		freed AS (UPDATE ~.record r SET owner = 0, crashes = r.crashes + held.counts::int FROM held WHERE r.ref = held.ref)
		SELECT count(DISTINCT event) FROM held WHERE counts`
	return tx.QueryRow(ctx, w.c.store.sql(sql), w.lease.Crashed, int16(driver.SuspectCrashes)).Scan(&w.lease.CrashedEvents)
}

// Release ends the lease. The store has all slots or none: it releases all if slots has slot 0, which is the one that all
// records have. See [driver.Store].
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
	if id := c.store.instance.Load(); id != 0 {
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
