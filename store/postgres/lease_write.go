package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surebus/eventbus/driver"
)

// begin begins a lease. After a transient error, it finds out whether the lease has begun, and tries again. If it cannot
// find out, the store fails: Reopen ends a lease that it does not know. After any other error, nothing has changed.
func (c *committer) begin(ready readiness) error {
	deadline := c.store.clock() + int64(c.store.cfg.leaseTime)
	for {
		w := leaseWrite{c: c, from: ready.takeOver, crashed: ready.crashed}
		_, err := c.prepare(deadline, nil, nil, nil) // connected, and registered
		if err == nil {
			err = w.endSession(deadline)
		}
		if err == nil {
			err = w.run()
		}
		if err == nil {
			w.finish()
			return nil
		}
		if !isTransient(err) && sqlState(err) != stateFenced {
			return explain(err)
		}
		sent := w.sent && !isDefinite(err)
		committed, cause := c.resolve(max(deadline, c.store.clock()+int64(connectTime)), sent) // to free the records may have taken longer
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

// beginTime bounds the transaction that begins a lease: it frees each record of the lease before, 1,000,000 in 20 s.
const beginTime = time.Minute

// leaseWrite is the transaction that begins a lease. It locks the row of the slot, then that of the store from which it
// takes the lease over, then its own.
type leaseWrite struct {
	c       *committer
	from    heartbeat // the row of the store from which the lease is taken over
	crashed bool      // the connection of that store was gone
	sentAt  int64     // the statement that sets when the lease expires
	sent    bool      // the commit

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

func (w *leaseWrite) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), beginTime)
	defer cancel()
	if err := w.c.ping(); err != nil { // a connection that was idle for long may be gone without a word
		return err
	}
	tx, err := w.c.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	settings := &pgx.Batch{}
	w.c.store.source.queueSettings(settings)
	err = tx.SendBatch(ctx, settings).Close()
	if err == nil {
		err = w.write(ctx, tx)
	}
	if err != nil {
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
	const sql = `SELECT pg_terminate_backend(a.pid) FROM ~.instance i JOIN pg_stat_activity a ON ` + isBackend + `
		WHERE i.id = $1 AND i.epoch = $2 AND i.batch = $3 AND i.tries = $4 AND a.datname = current_database() AND a.usename = current_user`
	_, err := w.c.conn.Exec(ctx, w.c.store.sql(sql), w.from.owner, w.from.epoch, w.from.batch, w.from.tries)
	return err
}

func (w *leaseWrite) write(ctx context.Context, tx pgx.Tx) error {
	c, s := w.c, w.c.store
	var owner, epoch int64
	var version int
	const slot = "SELECT owner, epoch, (SELECT version FROM ~.meta WHERE id = 1) FROM ~.slot WHERE id = 0 FOR UPDATE"
	switch err := tx.QueryRow(ctx, s.sql(slot)).Scan(&owner, &epoch, &version); {
	case sqlState(err) == "55P03": // lock_not_available: another store is about to begin a lease, and has many records to free
		return errTaken
	case err != nil:
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
	w.sentAt = s.clock()
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
	// In the time of a statement it might never end.
	if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = "+strconv.FormatInt(beginTime.Milliseconds(), 10)); err != nil {
		return err
	}
	const sql = `WITH marked AS (SELECT EXISTS (SELECT 1 FROM ~.record WHERE owner > 0 AND suspect) AS some),
		held AS (SELECT ref, event, $1 AND CASE WHEN marked.some THEN suspect ELSE kind & 3 = 0 AND crashes < $2 END AS counts FROM ~.record, marked WHERE owner > 0),
		freed AS (UPDATE ~.record r SET owner = 0, crashes = r.crashes + held.counts::int FROM held WHERE r.ref = held.ref)
		SELECT count(DISTINCT event) FROM held WHERE counts`
	return tx.QueryRow(ctx, w.c.store.sql(sql), w.lease.Crashed, int16(driver.SuspectCrashes)).Scan(&w.lease.CrashedEvents)
}
