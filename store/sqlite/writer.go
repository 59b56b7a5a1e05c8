package sqlite

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// writer is the connection that writes. Only the committer's goroutine uses it, and Open before
// that.
type writer struct {
	conn     *sqlite3.Conn
	stmts    map[string]*sqlite3.Stmt // their bindings stay between uses
	lockWait time.Duration
	waited   bool // begin has met the write lock of another connection; see noteForeign
}

// lockLook is the time between two looks at the write lock. The looks of SQLite's own wait are up to 100 ms apart. A bus
// at full speed frees the lock for microseconds only, so that another process would wait for many seconds.
const lockLook = time.Millisecond

// journalLimit is the size to which SQLite cuts the write-ahead log after it was larger.
const journalLimit = 64 << 20

func openWriter(ctx context.Context, s *Store) (*writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := s.openConn(sqlite3.OpenReadWrite)
	if err != nil {
		return nil, err
	}
	c.SetBusyTimeout(s.cfg.lockWait)
	return &writer{conn: c, stmts: make(map[string]*sqlite3.Stmt), lockWait: s.cfg.lockWait}, nil
}

func (w *writer) close() error { return w.conn.Close() }

// stmt returns a prepared statement. The caller binds all parameters.
func (w *writer) stmt(sql string) (*sqlite3.Stmt, error) {
	if stmt := w.stmts[sql]; stmt != nil {
		return stmt, nil
	}
	stmt, err := w.conn.Prepare(sql)
	if err == nil {
		w.stmts[sql] = stmt
	}
	return stmt, err
}

// exec runs a statement without a result, and returns the number of changed rows.
func (w *writer) exec(sql string, args ...any) (changed int, err error) {
	stmt, err := w.stmt(sql)
	if err != nil {
		return 0, err
	}
	for i, a := range args {
		bind(stmt, i+1, a)
	}
	if err := run(stmt, nil); err != nil {
		return 0, err
	}
	return w.conn.Changes(), nil
}

// setUp sets the modes of the connection, reads them back, and migrates the schema.
func (w *writer) setUp(s *Store) error {
	version, err := w.version(s) // before anything is written
	if err != nil {
		return err
	}
	if s.cfg.mustExist && version < len(migrations) {
		return fmt.Errorf("%w: %s has version %d, and this package needs version %d: open the file with the bus first", ErrNotMigrated, s.path, version, len(migrations))
	}
	sync := 2 // FULL
	if s.cfg.normal {
		sync = 1
	}
	if mode, err := w.pragma("journal_mode = WAL"); err != nil {
		return err
	} else if mode != "wal" {
		return fmt.Errorf("sqlite: %s: journal mode is %q, the write-ahead log is not available", s.path, mode)
	}
	for _, p := range []struct {
		name  string
		value int
	}{
		{"synchronous", sync},
		{"wal_autocheckpoint", 0},
		{"journal_size_limit", journalLimit},
		{"trusted_schema", 0},
		{"cell_size_check", 1},
		{"temp_store", 2},
		{"secure_delete", 1},      // see Erase
		{"legacy_alter_table", 1}, // otherwise, an invalid view of the service stops a migration
	} {
		if _, err := w.pragma(fmt.Sprintf("%s = %d", p.name, p.value)); err != nil {
			return err
		}
		if got, err := w.pragma(p.name); err != nil {
			return err
		} else if got != fmt.Sprint(p.value) {
			return fmt.Errorf("sqlite: %s: PRAGMA %s is %s after it was set to %d", s.path, p.name, got, p.value)
		}
	}
	w.conn.SetBusyTimeout(lockLook) // from here on, begin waits
	reach("open: set up")
	return w.migrate(s)
}

// pragma runs a pragma and returns the text of its result.
func (w *writer) pragma(text string) (result string, err error) {
	err = sqlitex.ExecuteTransient(w.conn, "PRAGMA "+text, &sqlitex.ExecOptions{
		ResultFunc: func(stmt *sqlite3.Stmt) error {
			result = stmt.ColumnText(0)
			return nil
		},
	})
	return result, err
}

// migrate brings the schema to the version of this package, in one transaction.
func (w *writer) migrate(s *Store) error {
	version, err := w.version(s)
	if err != nil || version == len(migrations) {
		return err
	}
	return w.transaction(func() error {
		reach("migrate: begun")
		version, err := w.version(s) // another process may have migrated
		if err != nil {
			return err
		}
		for i := version; i < len(migrations); i++ {
			if err := sqlitex.ExecuteScript(w.conn, migrations[i], nil); err != nil {
				return err
			}
		}
		if version == 0 {
			m := &meta{nextRef: 1}
			if _, err := rand.Read(m.store[:]); err != nil {
				return err
			}
			if err := m.insert(w); err != nil {
				return err
			}
		}
		reach("migrate: tables made")
		_, err = w.pragma(fmt.Sprintf("application_id = %d", applicationID))
		if err == nil {
			_, err = w.pragma(fmt.Sprintf("user_version = %d", len(migrations)))
		}
		reach("migrate: before commit")
		return err
	})
}

// version returns the version of the schema, 0 for an empty file.
func (w *writer) version(s *Store) (int, error) {
	var text [3]string
	for i, p := range []string{"application_id", "user_version", "schema_version"} {
		var err error
		if text[i], err = w.pragma(p); err != nil {
			return 0, err
		}
	}
	var id, version, schema int
	if _, err := fmt.Sscan(strings.Join(text[:], " "), &id, &version, &schema); err != nil {
		return 0, err
	}
	switch {
	case id == applicationID && version > len(migrations):
		return 0, fmt.Errorf("%w: %s has version %d, the newest known version is %d", ErrSchemaTooNew, s.path, version, len(migrations))
	case id == applicationID && version > 0:
		return version, nil
	case id == 0 && version == 0 && schema == 0:
		return 0, nil
	case id == applicationID:
		return 0, &CorruptError{Path: s.path, Detail: fmt.Sprintf("it is marked as a store, and has no valid version (%d)", version)}
	}
	return 0, fmt.Errorf("%w: %s (application id %#x, version %d): give the store a file of its own, at another path", ErrOtherProgram, s.path, id, version)
}

// begin takes the write lock. It waits up to lockWait, counted in looks: inside a synctest bubble, time stands still.
func (w *writer) begin() (err error) {
	for range max(1, w.lockWait/lockLook) {
		if _, err = w.exec("BEGIN IMMEDIATE"); sqlite3.ErrCode(err).ToPrimary() != sqlite3.ResultBusy {
			return err
		}
		w.waited = true
	}
	return err
}

// transaction calls f inside an immediate transaction.
func (w *writer) transaction(f func() error) error {
	if err := w.begin(); err != nil {
		return err
	}
	err := f()
	if err == nil {
		_, err = w.exec("COMMIT")
	}
	if err != nil {
		w.rollback()
	}
	return err
}

// rollback ends a transaction, unless SQLite has rolled it back already.
func (w *writer) rollback() {
	if !w.conn.AutocommitEnabled() {
		_, _ = w.exec("ROLLBACK") // the first error counts
	}
}

// quickCheck verifies each page of the file.
func (w *writer) quickCheck() error {
	var found []string
	err := sqlitex.ExecuteTransient(w.conn, "PRAGMA quick_check(3)", &sqlitex.ExecOptions{
		ResultFunc: func(stmt *sqlite3.Stmt) error {
			if text := stmt.ColumnText(0); text != "ok" {
				found = append(found, text)
			}
			return nil
		},
	})
	if err == nil && found != nil {
		err = &CorruptError{Detail: strings.Join(found, "; ")}
	}
	return err
}
