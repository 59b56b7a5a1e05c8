package sqlite

import (
	"fmt"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// whereCancels selects the free scheduled records of an event. The second parameter is the epoch of the lease.
const whereCancels = " FROM eventbus_record INDEXED BY record_event WHERE event = ? AND kind IN (2, 6) AND owner <> ?"

// checkCancel returns the refusal of a batch that cancels an event without a free scheduled record.
func (tx *transaction) checkCancel(b *driver.Batch) (refusal, err error) {
	if len(b.Cancel) == 0 {
		return nil, nil
	}
	if err := tx.insertRecords(); err != nil { // those of earlier batches
		return nil, err
	}
	seen := make(map[driver.ID]bool)
	for _, id := range b.Cancel {
		found := false
		err := tx.one("SELECT 1"+whereCancels+" LIMIT 1", func(*sqlite3.Stmt) error {
			found = true
			return nil
		}, id[:], tx.epoch)
		if err != nil {
			return nil, err
		}
		if !found || seen[id] {
			return &driver.RefusedError{Event: id, Err: driver.ErrNotScheduled}, nil
		}
		seen[id] = true
	}
	return nil, nil
}

// cancel removes the free scheduled records of an event.
func (tx *transaction) cancel(b *driver.Batch, id driver.ID) error {
	var refs []driver.Ref
	err := tx.one("SELECT ref"+whereCancels, func(stmt *sqlite3.Stmt) error {
		refs = append(refs, driver.Ref(stmt.ColumnInt64(0)))
		return nil
	}, id[:], tx.epoch)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if tx.store.cfg.history > 0 {
			if err := tx.addHistory(ref, deletion{b}); err != nil {
				return err
			}
		}
		if n, err := tx.w.exec("DELETE FROM eventbus_record WHERE ref = ?", int64(ref)); err != nil {
			return err
		} else if n != 1 {
			return &CorruptError{Path: tx.store.path, Table: "eventbus_record", Row: fmt.Sprint(int64(ref)), Detail: "the row was found and cannot be deleted"}
		}
		tx.m.states[driver.Scheduled]--
		tx.pages += 2
	}
	return nil
}

// keepClaimed returns those records of a claim that the lease has now. The others were cancelled
// after they had been selected: only scheduled ones may be.
func (tx *transaction) keepClaimed(records []*driver.Record) (kept []*driver.Record, err error) {
	for _, r := range records {
		found := false
		err := tx.one("SELECT 1 FROM eventbus_record WHERE ref = ? AND owner = ?", func(*sqlite3.Stmt) error {
			found = true
			return nil
		}, int64(r.Ref), tx.epoch)
		switch {
		case err != nil:
			return nil, err
		case found:
			kept = append(kept, r)
		case r.State != driver.Scheduled:
			return nil, tx.missing(r.Ref)
		}
	}
	return kept, nil
}
