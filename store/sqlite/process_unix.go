//go:build unix

package sqlite

import (
	"modernc.org/libc"
	sqlitelib "modernc.org/sqlite/lib"
)

// openFileLocks switches SQLite to locks that belong to an open file (Linux only). With locks that
// belong to the process, any code that closes the database file drops the locks of all connections.
// The switch is for the whole process and works before the first file is locked. late reports that
// it came too late.
//
// This calls what sqlite.OFDLocking of modernc.org/sqlite calls. Importing that package would
// register a database/sql driver.
func openFileLocks() (late bool) {
	tls := libc.NewTLS()
	defer tls.Close()
	const frozen = -2
	return sqlitelib.Xmodernc_ofd_locking(tls, 1) == frozen
}
