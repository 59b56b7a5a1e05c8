package sqlite

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// transaction is a commit in progress. Each batch is checked before it is applied, so a refused one
// needs no savepoint. New records and deletions are collected and written at the end.
type transaction struct {
	*committer
	m           meta
	changed     bool
	pages       int64     // estimate of the pages that it writes
	now         time.Time // the latest Batch.Aged
	inserts     []insertion
	written     int // of inserts
	deletes     []driver.Ref
	settled     []driver.Dedupe // of ForgetSettled
	remembers   remembering
	changes     driver.Change // of the batches applied so far
	removed     int64         // incoming events
	left        []leaving     // new incoming events
	leftWritten int           // of left
	asked       []asking
	// deletions has the batches of deletes, with WithHistory.
	deletions []deletion
	buffer    []byte // of insertRows
	args      []any  // of insertIncomingRows
	bytes     int    // that were inserted
}

// insertion is a new record.
type insertion struct {
	ref      driver.Ref
	position int64
	record   *driver.Record
}

func (tx *transaction) begin() error {
	tx.changed, tx.pages, tx.bytes, tx.now = false, 4, 0, time.Time{}
	tx.written, tx.leftWritten, tx.changes, tx.removed = 0, 0, 0, 0
	clear(tx.inserts)
	clear(tx.deletions)
	clear(tx.left)
	clear(tx.asked)
	tx.inserts, tx.deletes, tx.deletions, tx.left, tx.asked = tx.inserts[:0], tx.deletes[:0], tx.deletions[:0], tx.left[:0], tx.asked[:0]
	tx.settled = tx.settled[:0]
	tx.remembers.reset()
	m, err := tx.readMeta()
	if err != nil {
		return err
	}
	if tx.epoch != 0 && (m.epoch != tx.epoch || !m.held) {
		tx.lose()
	}
	tx.m = m
	return nil
}

// commit writes what was collected, and commits. Then it sets the Ref and Position of the new
// records, and the ID of what else is new.
func (tx *transaction) commit() error {
	if !tx.changed {
		_, err := tx.w.exec("ROLLBACK")
		return err
	}
	reach("commit: batches applied")
	if err := tx.insertRecords(); err != nil {
		return err
	}
	if err := tx.insertIncoming(); err != nil {
		return err
	}
	if err := tx.countChanges(); err != nil {
		return err
	}
	if err := tx.writeHistory(); err != nil {
		return err
	}
	if err := tx.deleteRecords(); err != nil {
		return err
	}
	if err := tx.writeRemembered(); err != nil {
		return err
	}
	if err := tx.forgetSettled(); err != nil {
		return err
	}
	if err := tx.prune(); err != nil {
		return err
	}
	reach("commit: pruned")
	tx.m.commits++
	if tx.epoch == 0 {
		tx.m.beside++
	} else {
		tx.m.leased = int64(len(tx.leased))
	}
	if err := tx.m.update(tx.w); err != nil {
		return err
	}
	reach("commit: counted")
	if err := tx.broken; err != nil {
		tx.broken = nil
		return err
	}
	// Not after COMMIT: a look in between would take the change for that of another store, and the next one of another
	// store for one that it has seen.
	tx.store.watch.noteOwn(tx.changes, len(tx.left), 1)
	if _, err := tx.w.exec("COMMIT"); err != nil {
		tx.store.watch.noteOwn(tx.changes, len(tx.left), -1)
		return err
	}
	reach("commit: committed")
	tx.committed(tx.m, tx.pages+int64(tx.bytes/3000))
	for _, i := range tx.inserts {
		i.record.Ref, i.record.Position = i.ref, i.position
	}
	for _, l := range tx.left {
		l.in.ID = l.id
	}
	for _, a := range tx.asked {
		a.request.ID = a.id
	}
	return nil
}

// apply applies a batch, or returns a refusal and changes nothing.
func (tx *transaction) apply(b *driver.Batch) (refusal, err error) {
	if refusal, err := tx.check(b); refusal != nil || err != nil {
		return refusal, err
	}
	tx.changed = true
	tx.changes |= b.Changes()
	if b.Aged().After(tx.now) {
		tx.now = b.Aged()
	}
	for i := range b.Remember {
		tx.remember(&b.Remember[i])
	}
	for _, d := range b.Forget {
		tx.unremember(&d)
		if _, err := tx.w.exec("DELETE FROM eventbus_dedupe WHERE scope = ? AND key = ?", d.Scope, d.Key); err != nil {
			return nil, err
		}
		reach("batch: forgotten")
	}
	for _, id := range b.Take {
		if n, err := tx.w.exec("DELETE FROM eventbus_letter WHERE id = ?", id[:]); err != nil {
			return nil, err
		} else if n != 1 {
			return nil, &CorruptError{Path: tx.store.path, Table: "eventbus_letter", Row: id.String(), Detail: "the row was found and cannot be deleted"}
		}
		tx.m.letters--
		tx.pages += 4
		reach("batch: taken")
	}
	if err := tx.remove(b); err != nil {
		return nil, err
	}
	tx.open(b.New)
	for _, r := range b.Update {
		if err := tx.update(r); err != nil {
			return nil, err
		}
		reach("batch: updated")
	}
	for _, ref := range b.Delete {
		tx.m.states[tx.leased[ref]]--
		delete(tx.leased, ref)
		tx.deletes = append(tx.deletes, ref)
	}
	if len(b.Delete) > 0 && tx.store.cfg.history > 0 {
		tx.deletions = append(tx.deletions, deletion{b})
	}
	tx.settled = append(tx.settled, b.ForgetSettled...)
	for _, l := range b.Bury {
		if err := tx.bury(l); err != nil {
			return nil, err
		}
		reach("batch: buried")
	}
	for _, in := range b.Leave {
		tx.left = append(tx.left, leaving{in: in})
	}
	if err := tx.request(b); err != nil {
		return nil, err
	}
	for i := range b.Directives {
		if err := tx.direct(&b.Directives[i]); err != nil {
			return nil, err
		}
		reach("batch: ordered")
	}
	for i := range b.Audit {
		if err := tx.audit(&b.Audit[i]); err != nil {
			return nil, err
		}
		reach("batch: audited")
	}
	for i := range b.Outcomes {
		if err := tx.outcome(&b.Outcomes[i]); err != nil {
			return nil, err
		}
		reach("batch: outcome added")
	}
	if b.Catalog != nil {
		if err := tx.catalog(b); err != nil {
			return nil, err
		}
		reach("batch: cataloged")
	}
	return nil, nil
}

// check returns the refusal of a batch, or nil.
func (tx *transaction) check(b *driver.Batch) (refusal, err error) {
	if b.Epoch != 0 && b.Epoch != tx.epoch || b.Epoch == 0 && b.NeedsLease() {
		return &driver.RefusedError{Err: driver.ErrLeaseLost}, nil
	}
	if refusal := b.CheckTimes(); refusal != nil {
		return refusal, nil
	}
	if b.IfCatalogs != nil {
		catalogs, err := tx.catalogs()
		if err != nil {
			return nil, err
		}
		if !b.HasCatalogs(catalogs) {
			return &driver.RefusedError{Err: driver.ErrCatalogsChanged}, nil
		}
	}
	for i := range b.Remember {
		known, err := tx.known(b, i)
		if err != nil {
			return nil, err
		}
		if known != nil {
			return &driver.RefusedError{Known: known, Err: driver.ErrDuplicateID}, nil
		}
	}
	for i, id := range b.Take {
		known, err := tx.hasLetter(id)
		if err != nil {
			return nil, err
		}
		if !known || slices.Contains(b.Take[:i], id) {
			return &driver.RefusedError{Letter: id, Err: driver.ErrNotFound}, nil
		}
	}
	if refusal, err := tx.checkRemove(b); refusal != nil || err != nil {
		return refusal, err
	}
	if ref := tx.notLeased(b); ref != 0 {
		return &driver.RefusedError{Ref: ref, Err: driver.ErrNotLeased}, nil
	}
	return tx.checkRequests(b)
}

func (tx *transaction) hasLetter(id driver.ID) (found bool, err error) {
	err = tx.one("SELECT 1 FROM eventbus_letter WHERE id = ?", func(*sqlite3.Stmt) error {
		found = true
		return nil
	}, id[:])
	return found, err
}

// one runs a query on the writer's connection.
func (tx *transaction) one(sql string, row func(*sqlite3.Stmt) error, args ...any) error {
	stmt, err := tx.w.stmt(sql)
	if err != nil {
		return err
	}
	for i, a := range args {
		bind(stmt, i+1, a)
	}
	return run(stmt, row)
}

// notLeased returns the first record of Update or Delete that the lease does not have when its turn
// comes, or 0.
func (tx *transaction) notLeased(b *driver.Batch) driver.Ref {
	var gone map[driver.Ref]bool // freed or deleted earlier in the batch
	leave := func(ref driver.Ref) {
		if gone == nil {
			gone = make(map[driver.Ref]bool)
		}
		gone[ref] = true
	}
	has := func(ref driver.Ref) bool {
		_, ok := tx.leased[ref]
		return ok && !gone[ref]
	}
	for _, r := range b.Update {
		if !has(r.Ref) {
			return r.Ref
		}
		if !r.Leased {
			leave(r.Ref)
		}
	}
	for i, ref := range b.Delete {
		if !has(ref) {
			return ref
		}
		if i+1 < len(b.Delete) {
			leave(ref)
		}
	}
	return 0
}

// open collects the new records of a batch and assigns their refs.
func (tx *transaction) open(records []*driver.Record) {
	var previous int64
	for _, r := range records {
		ref := driver.Ref(tx.m.nextRef)
		tx.m.nextRef++
		position := r.Position
		switch position {
		case 0:
			position = int64(ref)
		case driver.BesidePrevious:
			position = previous
		}
		previous = position
		tx.inserts = append(tx.inserts, insertion{ref, position, r})
		tx.m.states[r.State]++
		if r.Leased {
			tx.leased[ref] = uint8(r.State)
		}
	}
}

// update changes a record that the lease has.
func (tx *transaction) update(r *driver.Record) error {
	const sql = `UPDATE eventbus_record SET kind = kind & 4 | ?, due = ?, door = ?, owner = ?, suspect = ?, progress = ?, live_crc = ?, crashes = ?, destination = ?
		WHERE ref = ? AND owner = ?`
	stmt, err := tx.w.stmt(sql)
	if err != nil {
		return err
	}
	live := encodeLive(r)
	stmt.BindInt64(1, int64(r.State))
	live.bind(stmt, 2, 3, 9, 6)
	stmt.BindInt64(4, tx.ownerOf(r))
	stmt.BindBool(5, r.Suspect)
	stmt.BindInt64(7, live.crc)
	stmt.BindInt64(8, int64(r.Crashes))
	stmt.BindInt64(10, int64(r.Ref))
	stmt.BindInt64(11, tx.epoch)
	if err := run(stmt, nil); err != nil {
		return err
	}
	if tx.w.conn.Changes() != 1 {
		return tx.missing(r.Ref)
	}
	tx.pages += 2
	tx.m.states[tx.leased[r.Ref]]--
	tx.m.states[r.State]++
	if r.Leased {
		tx.leased[r.Ref] = uint8(r.State)
	} else {
		delete(tx.leased, r.Ref)
	}
	return nil
}

// ownerOf returns the owner of a record after a batch of this store.
func (tx *transaction) ownerOf(r *driver.Record) int64 {
	if r.Leased {
		return tx.epoch
	}
	return -tx.epoch
}

func (tx *transaction) missing(ref driver.Ref) error {
	return &CorruptError{Path: tx.store.path, Table: "eventbus_record", Row: fmt.Sprint(ref), Detail: "the lease has the record, and the table does not"}
}

// deleteRecords deletes the collected records, by ranges of refs. A range may contain refs of
// records that are gone or free: the statement selects by owner. It contains no other record of the
// lease.
func (tx *transaction) deleteRecords() error {
	const maxGap = 64
	refs := tx.deletes
	slices.SortFunc(refs, cmp.Compare[driver.Ref])
	for i := 0; i < len(refs); {
		n := 1
		for i+n < len(refs) && refs[i+n]-refs[i+n-1] <= maxGap && !tx.leasesBetween(refs[i+n-1], refs[i+n]) {
			n++
		}
		deleted, err := tx.w.exec("DELETE FROM eventbus_record WHERE ref BETWEEN ? AND ? AND owner = ?", int64(refs[i]), int64(refs[i+n-1]), tx.epoch)
		if err != nil {
			return err
		}
		if deleted != n {
			return tx.missing(refs[i])
		}
		reach("commit: deleted")
		i += n
	}
	tx.pages += int64(len(refs) / 8)
	return nil
}

// leasesBetween reports whether the lease has a record between two refs.
func (tx *transaction) leasesBetween(from, to driver.Ref) bool {
	for ref := from + 1; ref < to; ref++ {
		if _, ok := tx.leased[ref]; ok {
			return true
		}
	}
	return false
}

// catalogs returns the catalogs of all instances.
func (tx *transaction) catalogs() (all []driver.Catalog, err error) {
	stmt, err := tx.w.stmt("SELECT " + catalogColumns + " FROM eventbus_catalog NOT INDEXED ORDER BY number")
	if err != nil {
		return nil, err
	}
	err = run(stmt, func(stmt *sqlite3.Stmt) error {
		c, err := tx.store.scanCatalog(stmt)
		all = append(all, c)
		return err
	})
	return all, err
}

// catalog replaces or removes the catalog of an instance.
func (tx *transaction) catalog(b *driver.Batch) error {
	c := b.Catalog
	if c.Body == nil {
		_, err := tx.w.exec("DELETE FROM eventbus_catalog WHERE instance = ?", c.Instance)
		return err
	}
	tx.bytes += len(c.Body)
	const sql = `INSERT INTO eventbus_catalog (instance, seen, body, crc) VALUES (?, ?, ?, ?)
		ON CONFLICT (instance) DO UPDATE SET seen = excluded.seen, body = excluded.body, crc = excluded.crc`
	_, err := tx.w.exec(sql, c.Instance, storekit.TimeText(b.Now), c.Body, checksum(c.Body))
	return err
}

// direct replaces the directive of a subscription.
func (tx *transaction) direct(d *driver.Directive) error {
	const sql = "INSERT OR REPLACE INTO eventbus_directive (subscription, body, crc) VALUES (?, ?, ?)"
	_, err := tx.w.exec(sql, d.Subscription, d.Body, checksum(d.Body))
	return err
}
