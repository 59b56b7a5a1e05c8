package sqlite

import (
	"errors"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
)

// crashLook bounds the records that countCrash reads at each end of the table, besides those of the lease: Open
// does not depend on the number of records.
const crashLook = 1 << 14

// countCrash counts the events of which the crash of a lease is counted, as transaction.lease does it; -1 if that would take
// long, or a record cannot be read. m is the state at the crash.
//
// The records of the lease are in no index, but m has their number. A bus that keeps up has the newest ones, and a
// bus that is behind the oldest.
func (c *committer) countCrash(m *meta) int64 {
	conn, left := c.w.conn, m.leased
	suspects, err := queryInt(conn, "SELECT count(DISTINCT event) FROM eventbus_record INDEXED BY record_suspect WHERE suspect = 1 AND owner = ?", m.epoch)
	switch {
	case err != nil:
		return -1
	case suspects > 0:
		return suspects
	}
	events := make(map[driver.ID]bool)
	last, read, limit := m.nextRef, int64(0), m.leased+crashLook
	visit := func(stmt *sqlite3.Stmt) error {
		if left == 0 {
			return errStop
		}
		last = stmt.ColumnInt64(0)
		read++
		if stmt.ColumnInt64(1) != m.epoch {
			return nil
		}
		left--
		if stmt.ColumnBool(2) {
			var id driver.ID
			stmt.ColumnBytes(3, id[:])
			events[id] = true
		}
		return nil
	}
	const columns = "SELECT ref, owner, kind & 3 = 0 AND crashes < 2, event FROM eventbus_record NOT INDEXED WHERE ref < ? ORDER BY ref "
	for _, from := range []string{"DESC LIMIT ?", "LIMIT ?"} {
		read = 0
		if err := query(conn, columns+from, visit, last, limit); err != nil && !errors.Is(err, errStop) {
			return -1
		}
		if left == 0 || read < limit { // there are no others
			return int64(len(events))
		}
	}
	return -1
}
