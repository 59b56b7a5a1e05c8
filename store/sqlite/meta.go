package sqlite

import (
	"encoding/binary"
	"hash/crc32"

	sqlite3 "zombiezen.com/go/sqlite"
)

// meta is the row of the table eventbus_meta. Each commit reads it first, which detects that another store
// has taken the lease.
type meta struct {
	store   storeID
	epoch   int64
	held    bool
	nextRef int64
	commits int64
	beside  int64
	states  [4]int64 // number of records, by state
	leased  int64
	letters int64
}

func (m *meta) numbers() []int64 {
	held := int64(0)
	if m.held {
		held = 1
	}
	return []int64{
		m.epoch, held, m.nextRef, m.commits, m.beside,
		m.states[0], m.states[1], m.states[2], m.states[3], m.leased, m.letters,
	}
}

const metaColumns = "epoch, held, next_ref, commits, beside, ready, waiting, scheduled, parked, leased, letters"

func (m *meta) crc() int64 {
	sum := crc32.Update(0, castagnoli, m.store[:])
	var b [8]byte
	for _, n := range m.numbers() {
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		sum = crc32.Update(sum, castagnoli, b[:])
	}
	return int64(sum)
}

func (m *meta) insert(w *writer) error {
	args := []any{m.store[:]}
	for _, n := range m.numbers() {
		args = append(args, n)
	}
	_, err := w.exec("INSERT INTO eventbus_meta (id, store, "+metaColumns+", crc) VALUES (1, ?,?,?,?,?,?,?,?,?,?,?,?,?)", append(args, m.crc())...)
	return err
}

func (m *meta) update(w *writer) error {
	const sql = `UPDATE eventbus_meta SET epoch = ?, held = ?, next_ref = ?, commits = ?, beside = ?,
		ready = ?, waiting = ?, scheduled = ?, parked = ?, leased = ?, letters = ?, crc = ? WHERE id = 1`
	stmt, err := w.stmt(sql)
	if err != nil {
		return err
	}
	numbers := m.numbers()
	for i, n := range numbers {
		stmt.BindInt64(i+1, n)
	}
	stmt.BindInt64(len(numbers)+1, m.crc())
	return run(stmt, nil)
}

const (
	metaTable = "eventbus_meta"
	metaQuery = "SELECT store, crc, " + metaColumns + " FROM " + metaTable + " WHERE id = 1"
	// The same in a schema before 6.
	oldMetaTable = "meta"
	oldMetaQuery = "SELECT store, crc, " + metaColumns + " FROM " + oldMetaTable + " WHERE id = 1"
)

// readMeta reads the row through a statement of metaQuery.
func readMeta(stmt *sqlite3.Stmt, path string) (meta, error) {
	return scanMeta(stmt, path, metaTable)
}

// readMetaOf reads the row of a file whose schema may be older than that of this package.
func (w *writer) readMetaOf(version int, path string) (meta, error) {
	sql, table := metaQuery, metaTable
	if version < 6 {
		sql, table = oldMetaQuery, oldMetaTable
	}
	stmt, err := w.stmt(sql)
	if err != nil {
		return meta{}, err
	}
	return scanMeta(stmt, path, table)
}

func scanMeta(stmt *sqlite3.Stmt, path, table string) (m meta, err error) {
	found, crc := false, int64(0)
	err = run(stmt, func(stmt *sqlite3.Stmt) error {
		found = true
		stmt.ColumnBytes(0, m.store[:])
		crc = stmt.ColumnInt64(1)
		const first = 2
		m.epoch, m.held = stmt.ColumnInt64(first), stmt.ColumnInt64(first+1) != 0
		m.nextRef, m.commits, m.beside = stmt.ColumnInt64(first+2), stmt.ColumnInt64(first+3), stmt.ColumnInt64(first+4)
		for i := range m.states {
			m.states[i] = stmt.ColumnInt64(first + 5 + i)
		}
		m.leased, m.letters = stmt.ColumnInt64(first+9), stmt.ColumnInt64(first+10)
		return nil
	})
	if err == nil && (!found || crc != m.crc()) {
		err = &CorruptError{Path: path, Table: table, Row: "1", Detail: "the row is missing or does not match its checksum"}
	}
	return m, err
}
