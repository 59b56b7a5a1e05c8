package sqlite

import (
	"context"
	"fmt"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// Settled is a dispatch in the history.
type Settled = storekit.Settled

// SettledOutcome is how a dispatch in the history ended.
type SettledOutcome = storekit.SettledOutcome

// The outcomes.
const (
	OutcomeSettled      = storekit.OutcomeSettled
	OutcomeDeadLettered = storekit.OutcomeDeadLettered
)

// WithHistory keeps the id, the type, the key and the outcome of each dispatch for some time after
// it has settled. Without the option, a handled event leaves nothing behind. See Store.History.
//
// For each settled dispatch it costs a read, a row with two index entries, and about 150 bytes in the file until the
// retention ends. The store removes older rows as it settles others. retention must be more than 0.
func WithHistory(retention time.Duration) Option {
	return func(c *config) error {
		if retention <= 0 {
			return &OptionError{Option: "WithHistory", Value: retention.String(), Reason: "must be more than 0; leave the option out for no history"}
		}
		c.history = retention
		return nil
	}
}

// History returns the settled dispatches of an event, oldest first. It is empty if the store that
// settled them was opened without WithHistory, or if their retention has ended.
//
// Errors: *CorruptError, driver.ErrFailed, driver.ErrClosed, the context's error.
func (s *Store) History(ctx context.Context, id driver.ID) (history []Settled, err error) {
	const sql = "SELECT type, key, outcome, settled_at FROM eventbus_history WHERE event = ? ORDER BY settled_at, ref"
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		history = nil
		return query(c, sql, func(stmt *sqlite3.Stmt) error {
			at, err := storekit.ParseTime(stmt.ColumnText(3))
			history = append(history, Settled{Event: id, Type: stmt.ColumnText(0), Key: stmt.ColumnText(1), Outcome: SettledOutcome(stmt.ColumnText(2)), At: at})
			return err
		}, id[:])
	})
	if err != nil {
		return nil, fmt.Errorf("History: %w", err)
	}
	return history, nil
}

// deletion is a batch that deletes records, for the history.
type deletion struct{ batch *driver.Batch }

// writeHistory adds the records that the batches delete to the history. They still exist.
func (tx *transaction) writeHistory() error {
	for _, d := range tx.deletions {
		for _, ref := range d.batch.Delete {
			if err := tx.addHistory(ref, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// addHistory adds a record that a batch deletes.
func (tx *transaction) addHistory(ref driver.Ref, d deletion) error {
	const (
		find   = "SELECT event, body FROM eventbus_record WHERE ref = ?"
		insert = "INSERT OR REPLACE INTO eventbus_history (ref, event, type, key, outcome, settled_at) VALUES (?,?,?,?,?,?)"
	)
	r := new(driver.Record)
	err := tx.one(find, func(stmt *sqlite3.Stmt) error {
		stmt.ColumnBytes(0, r.ID[:])
		if err := storekit.DecodeBody(columnBytes(stmt, 1), r); err != nil {
			return &CorruptError{Path: tx.store.path, Table: "eventbus_record", Row: fmt.Sprint(int64(ref)), Detail: err.Error()}
		}
		return nil
	}, int64(ref))
	if err != nil || d.reopens(r.ID) {
		return err
	}
	if _, err := tx.w.exec(insert, int64(ref), r.ID[:], r.Type, r.Key, string(d.outcome(r.ID)), storekit.TimeText(d.batch.Now)); err != nil {
		return err
	}
	tx.pages += 2
	reach("history: written")
	return nil
}

// reopens reports whether the batch replaces the record, because a scheduled event is due.
func (d deletion) reopens(id driver.ID) bool {
	for _, r := range d.batch.New {
		if r.ID == id {
			return true
		}
	}
	return false
}

func (d deletion) outcome(id driver.ID) SettledOutcome {
	for _, l := range d.batch.Bury {
		if l.Event == id {
			return OutcomeDeadLettered
		}
	}
	return OutcomeSettled
}

// pruneHistory removes rows whose retention has ended. It reports whether none is left.
func (tx *transaction) pruneHistory() (done bool, err error) {
	const some = 2 * storekit.MaxGroup // more than a commit usually adds
	const sql = "DELETE FROM eventbus_history WHERE ref IN (SELECT ref FROM eventbus_history WHERE settled_at <= ? ORDER BY settled_at LIMIT ?)"
	n, err := tx.w.exec(sql, storekit.TimeText(tx.now.Add(-tx.store.cfg.history)), some)
	tx.pages += int64(n / 8)
	reach("history: pruned")
	return n < some, err
}
