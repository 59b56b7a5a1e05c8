package sqlite

import (
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// known returns the entry that refuses b.Remember[i], or nil.
func (tx *transaction) known(b *driver.Batch, i int) (*driver.Dedupe, error) {
	d := &b.Remember[i]
	for _, earlier := range b.Remember[:i] {
		if earlier.Scope == d.Scope && earlier.Key == d.Key && earlier.Expires.After(b.Aged()) {
			earlier.Expires = earlier.Expires.Round(0).UTC()
			return &earlier, nil
		}
	}
	var known *driver.Dedupe
	err := tx.one("SELECT event, content, expires FROM eventbus_dedupe WHERE scope = ? AND key = ?", func(stmt *sqlite3.Stmt) error {
		k := &driver.Dedupe{Scope: d.Scope, Key: d.Key, Content: stmt.ColumnText(1)}
		stmt.ColumnBytes(0, k.Event[:])
		expires, err := storekit.ParseTime(stmt.ColumnText(2))
		if err != nil {
			return &CorruptError{Path: tx.store.path, Table: "eventbus_dedupe", Row: d.Key, Detail: err.Error()}
		}
		if k.Expires = expires; expires.After(b.Aged()) {
			known = k
		}
		return nil
	}, d.Scope, d.Key)
	return known, err
}

// forgetSettled removes the remembered entries of ForgetSettled of whose events nothing is left.
func (tx *transaction) forgetSettled() error {
	const sql = "DELETE FROM eventbus_dedupe WHERE scope = ?1 AND key = ?2 AND event = ?3 AND (expires = ?4 OR ?4 = '')" +
		" AND NOT EXISTS (SELECT 1 FROM eventbus_record WHERE event = ?3) AND NOT EXISTS (SELECT 1 FROM eventbus_incoming WHERE event = ?3)"
	for _, d := range tx.settled {
		if _, err := tx.w.exec(sql, d.Scope, d.Key, d.Event[:], expiresText(d)); err != nil {
			return err
		}
		reach("commit: forgotten")
	}
	return nil
}

// expiresText returns the column of the Expires of an entry, or "" for any.
func expiresText(d driver.Dedupe) string {
	if d.Expires.IsZero() {
		return ""
	}
	return storekit.TimeText(d.Expires)
}

// prune removes some of the remembered ids that expired an hour ago, about once a second. The clock
// of another process may be behind, and the clock of this one may be set back.
func (tx *transaction) prune() error {
	const some = 256
	if tx.now.Sub(tx.pruned) < time.Second {
		return nil
	}
	const sql = "DELETE FROM eventbus_dedupe WHERE (scope, key) IN (SELECT scope, key FROM eventbus_dedupe WHERE expires <= ? ORDER BY expires LIMIT ?)"
	n, err := tx.w.exec(sql, storekit.TimeText(tx.now.Add(-time.Hour)), some)
	done := n < some
	if err == nil && tx.store.cfg.history > 0 {
		none, failed := tx.pruneHistory()
		done, err = done && none, failed
	}
	if err == nil {
		answers, failed := tx.pruneAnswers()
		done, err = done && answers, failed
	}
	if err == nil && done {
		tx.pruned = tx.now
	}
	tx.pages += int64(n / 8)
	return err
}
