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
	if earlier := tx.remembers.find(d); earlier != nil {
		if earlier.Expires.After(b.Aged()) {
			return earlier, nil
		}
		return nil, nil //nolint:nilnil // it replaces what the table has
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

// remembering are the entries that a transaction inserts at its end, in statements of many rows.
type remembering struct {
	entries []driver.Dedupe
	at      map[dedupeKey]int // of the latest entry
}

type dedupeKey struct{ scope, key string }

// find returns a copy of the entry with the Scope and Key of d, or nil.
func (r *remembering) find(d *driver.Dedupe) *driver.Dedupe {
	i, ok := r.at[dedupeKey{d.Scope, d.Key}]
	if !ok {
		return nil
	}
	found := r.entries[i]
	return &found
}

func (r *remembering) reset() {
	clear(r.entries)
	r.entries = r.entries[:0]
	clear(r.at)
}

// remember adds an entry, or replaces one that has expired.
func (tx *transaction) remember(d *driver.Dedupe) {
	r, entry := &tx.remembers, *d
	entry.Expires = d.Expires.Round(0).UTC()
	if i, ok := r.at[dedupeKey{d.Scope, d.Key}]; ok {
		r.entries[i] = entry
		return
	}
	if r.at == nil {
		r.at = make(map[dedupeKey]int)
	}
	r.at[dedupeKey{d.Scope, d.Key}] = len(r.entries)
	r.entries = append(r.entries, entry)
}

// unremember removes an entry that the transaction has not inserted yet.
func (tx *transaction) unremember(d *driver.Dedupe) {
	r := &tx.remembers
	i, ok := r.at[dedupeKey{d.Scope, d.Key}]
	if !ok {
		return
	}
	delete(r.at, dedupeKey{d.Scope, d.Key})
	last := len(r.entries) - 1
	if i != last {
		r.entries[i] = r.entries[last]
		r.at[dedupeKey{r.entries[i].Scope, r.entries[i].Key}] = i
	}
	r.entries = r.entries[:last]
}

// insertRemembered replaces entries of the same Scope and Key that have expired.
var insertRemembered = insertStatements("INSERT OR REPLACE INTO eventbus_dedupe", "scope, key, event, content, expires", func(func() string) string {
	return "(?,?,?,?,?)"
}, 0)

func (tx *transaction) writeRemembered() error {
	rows := tx.remembers.entries
	for _, size := range insertSizes {
		for ; len(rows) >= size; rows = rows[size:] {
			stmt, err := tx.w.stmt(insertRemembered[size])
			if err != nil {
				return err
			}
			p := 0
			next := func() int { p++; return p }
			for i := range rows[:size] {
				d := &rows[i]
				stmt.BindText(next(), d.Scope)
				stmt.BindText(next(), d.Key)
				stmt.BindBytes(next(), d.Event[:])
				stmt.BindText(next(), d.Content)
				stmt.BindText(next(), storekit.TimeText(d.Expires))
			}
			if err := run(stmt, nil); err != nil {
				return err
			}
			reach("commit: remembered")
		}
	}
	return nil
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
	if err == nil {
		outcomes, failed := tx.pruneOutcomes()
		done, err = done && outcomes, failed
	}
	if err == nil && done {
		tx.pruned = tx.now
	}
	tx.pages += int64(n / 8)
	return err
}
