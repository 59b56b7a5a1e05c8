package sqlite

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// turnBack gives a closed file the schema of an earlier version. It loses what that version cannot have.
func turnBack(t *testing.T, path string, version int) {
	t.Helper()
	undo := [][]string{
		nil, // schema 1
		{"DROP TABLE audit"},
		{"DROP TABLE catalog", "DROP TABLE beside"},
		{"DROP INDEX audit_place", "ALTER TABLE audit DROP COLUMN place", "ALTER TABLE audit DROP COLUMN denied"},
		{"ALTER TABLE beside DROP COLUMN record_commits", "ALTER TABLE beside DROP COLUMN directive_commits"},
		{
			"CREATE TABLE catalog (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL, crc INTEGER NOT NULL) STRICT",
			"INSERT INTO catalog SELECT 1, body, crc FROM eventbus_catalog LIMIT 1",
			`CREATE TABLE beside (id INTEGER PRIMARY KEY CHECK (id = 1), records INTEGER NOT NULL,
				record_commits INTEGER NOT NULL DEFAULT 0, directive_commits INTEGER NOT NULL DEFAULT 0) STRICT`,
			"INSERT INTO beside (id, records) VALUES (1, 0)",
			"DROP TABLE eventbus_incoming", "DROP TABLE eventbus_request", "DROP TABLE eventbus_counter", "DROP TABLE eventbus_catalog",
			"ALTER TABLE eventbus_directive RENAME TO orders",
		},
		{"DROP INDEX eventbus_record_destination", "ALTER TABLE eventbus_record DROP COLUMN destination"},
		{"DROP INDEX eventbus_record_expires", "ALTER TABLE eventbus_record DROP COLUMN expires"},
		{"DROP TABLE eventbus_outcome"},
	}
	for _, name := range []string{"meta", "crash", "record", "letter", "dedupe", "history", "audit"} {
		undo[5] = append(undo[5], "ALTER TABLE eventbus_"+name+" RENAME TO "+name)
	}
	for v := len(undo); v > version; v-- {
		execAt(t, path, undo[v-1]...)
	}
	execAt(t, path, fmt.Sprintf("PRAGMA user_version = %d", version))
}

// tablesAt returns the tables in a file, with their columns and the names of their indexes.
func tablesAt(t *testing.T, path string) map[string]string {
	t.Helper()
	c, err := sqlite3.OpenConn(path, sqlite3.OpenReadOnly)
	require.NoError(t, err)
	defer c.Close()
	tables := make(map[string]string)
	const sql = `SELECT name, (SELECT group_concat(name) FROM pragma_table_info(t.name)),
		(SELECT group_concat(name) FROM (SELECT name FROM pragma_index_list(t.name) ORDER BY name))
		FROM sqlite_schema AS t WHERE type = 'table' AND name NOT LIKE 'sqlite%'`
	require.NoError(t, query(c, sql, func(stmt *sqlite3.Stmt) error {
		tables[stmt.ColumnText(0)] = stmt.ColumnText(1) + "; " + stmt.ColumnText(2)
		return nil
	}))
	return tables
}

// tablesOf returns the tables of a version.
func tablesOf(t *testing.T, version int) map[string]string {
	t.Helper()
	path := testPath(t)
	c, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite|sqlite3.OpenCreate)
	require.NoError(t, err)
	for _, script := range migrations[:version] {
		require.NoError(t, sqlitex.ExecuteScript(c, script, nil))
	}
	require.NoError(t, c.Close())
	return tablesAt(t, path)
}

// A file of an earlier schema is migrated by the bus, in one transaction, and keeps what it has. A
// program beside the bus does not migrate it.
func TestStore_MigratesAnEarlierSchema(t *testing.T) {
	all := migrations
	defer func() { migrations = all }()
	for version := 1; version < len(all); version++ {
		path := testPath(t)
		old := openAt(t, path)
		r, l := ready(""), letterFor("mail", eventbus.ReasonPermanent, "dead")
		catalog := encodePart(&eventbus.Catalog{At: t0})
		accept(t, old, r)
		bury(t, old, l)
		require.NoError(t, submit(old, &driver.Batch{Catalog: catalogOf(catalog)}))
		closeStore(t, old)
		turnBack(t, path, version)
		require.Equal(t, tablesOf(t, version), tablesAt(t, path))

		// A store of an earlier version has the file and the lease.
		conn, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite)
		require.NoError(t, err)
		meta := "meta"
		if version >= 6 {
			meta = "eventbus_meta"
		}
		require.NoError(t, query(conn, "SELECT * FROM "+meta, nil))
		held, err := acquireLease(path)
		require.NoError(t, err)
		require.NoError(t, held.sign(holder{}))
		before := read(t, path)
		_, err = Open(t.Context(), path)
		var locked *LockedError
		require.ErrorAs(t, err, &locked)
		require.ErrorIs(t, err, ErrLocked)
		require.NotErrorIs(t, err, driver.ErrNoLease, "the lease was not asked for")
		require.Equal(t, os.Getpid(), locked.PID)
		require.Contains(t, locked.Reason, "end that process")
		require.Equal(t, before, read(t, path))
		require.NoError(t, errors.Join(conn.Close(), held.release()))

		_, err = Open(t.Context(), path, MustExist())
		require.ErrorContains(t, err, "open the file with the bus first")
		require.ErrorIs(t, err, ErrNotMigrated)
		execAt(t, path, "CREATE TABLE request_of_the_service (id INTEGER PRIMARY KEY)", "INSERT INTO request_of_the_service VALUES (7)",
			"CREATE VIEW stale AS SELECT * FROM table_that_is_gone")
		s := openOnly(t, path)
		require.False(t, leaseIsHeld(path), "the lock has ended with the migration")
		acquire(t, s)
		require.False(t, s.Lease().Crashed)
		var ofService int64
		inside(t, s, func(c *committer) (err error) {
			ofService, err = queryInt(c.w.conn, "SELECT id FROM request_of_the_service")
			return err
		})
		require.EqualValues(t, 7, ofService)
		tables := tablesOf(t, len(all))
		tables["request_of_the_service"] = "id; "
		require.Equal(t, tables, tablesAt(t, path))
		found, err := s.Lookup(t.Context(), r.ID)
		require.NoError(t, err)
		require.Len(t, found, 1)
		_, err = s.Letter(t.Context(), l.ID)
		require.NoError(t, err)
		entry := auditOf(eventbus.AuditEntry{At: t0, Action: eventbus.AuditPurge, By: "ann", Letter: eventbus.LetterID(l.ID)})
		require.NoError(t, submit(s, &driver.Batch{Take: []driver.ID{l.ID}, Audit: []driver.AuditEntry{entry}}))
		page, err := s.Audit(t.Context(), driver.AuditQuery{Limit: 10})
		require.NoError(t, err)
		entry.Number = 1
		require.Equal(t, []driver.AuditEntry{entry}, page.Entries)
		require.NoError(t, submit(s, &driver.Batch{Catalog: catalogOf([]byte(`{}`))}))
		stored, err := s.Catalogs(t.Context())
		require.NoError(t, err)
		want := []driver.Catalog{{Instance: "a", Number: 1, Seen: t0, Body: []byte(`{}`)}}
		if version >= 3 && version < 6 { // the catalog had no instance
			want[0].Number = 2
			want = append([]driver.Catalog{{Number: 1, Body: catalog}}, want...)
		}
		require.Equal(t, want, stored)
		closeStore(t, s)
		require.Empty(t, problems(verifyAt(t, path)))

		migrations = all[:version]
		_, err = Open(t.Context(), path)
		require.ErrorIs(t, err, ErrSchemaTooNew)
		migrations = all
	}
}

// The migration of a file that the version before has made is one commit: until then, and after a failure in it, the file
// is as it was.
func TestStore_AMigrationIsOneCommit(t *testing.T) {
	path := testPath(t)
	old := openAt(t, path)
	accept(t, old, ready(""))
	closeStore(t, old)
	turnBack(t, path, 4)
	defer func() { setFailpoint(nil) }()
	seen := 0
	look := func() (version, tables int64) {
		c, err := sqlite3.OpenConn(path, sqlite3.OpenReadOnly)
		if err == nil {
			defer c.Close()
			version, err = queryInt(c, "PRAGMA user_version")
		}
		if err == nil {
			tables, err = queryInt(c, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name LIKE 'eventbus\_%' ESCAPE '\'`)
		}
		if err != nil {
			t.Error(err)
		}
		return version, tables
	}
	setFailpoint(func(name string) {
		if name != "migrate: tables made" && name != "migrate: before commit" {
			return
		}
		seen++
		if version, tables := look(); version != 4 || tables != 0 {
			t.Errorf("%s: version %d, %d new tables", name, version, tables)
		}
	})
	s := openAt(t, path)
	require.Equal(t, 2, seen)
	version, tables := look()
	require.EqualValues(t, len(migrations), version)
	require.EqualValues(t, 13, tables)
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 1)
	require.Empty(t, problems(verifyAt(t, path)))
}

// migratesInOneCommit gives a closed file an earlier schema, and opens it. Until the commit, others see that schema.
func migratesInOneCommit(t *testing.T, path string, from int) *Store {
	t.Helper()
	turnBack(t, path, from)
	before := tablesAt(t, path)
	defer func() { setFailpoint(nil) }()
	seen := 0
	setFailpoint(func(name string) {
		if name == "migrate: tables made" || name == "migrate: before commit" {
			seen++
			require.Equal(t, before, tablesAt(t, path), name)
		}
	})
	s := openAt(t, path)
	require.Equal(t, 2, seen)
	return s
}

// The destinations are added in one commit, too. The checksums of the records stay.
func TestStore_AMigrationFromSchema6IsOneCommit(t *testing.T) {
	path := testPath(t)
	old := openAt(t, path)
	parked := with(ready(""), func(r *driver.Record) { r.State, r.Door = driver.Parked, "mail" })
	accept(t, old, parked)
	closeStore(t, old)
	s := migratesInOneCommit(t, path, 6)
	require.Contains(t, tablesAt(t, path)["eventbus_record"], "live_crc,destination,expires; eventbus_record_destination,")
	claimed := claim(t, s, driver.ClaimQuery{Kind: driver.ClaimParked, Doors: []string{"mail"}}).Records
	require.Len(t, claimed, 1)
	directed := *claimed[0]
	directed.Destination, directed.Leased = "a", false
	require.NoError(t, submit(s, &driver.Batch{Update: []*driver.Record{&directed}}))
	require.Empty(t, problems(verifyAt(t, path)))
	execAt(t, path, "UPDATE eventbus_record SET destination = 'b'")
	require.Contains(t, problems(verifyAt(t, path)), "does not match its checksum")
}

// The column of expiries is added in one commit, too. After a failure in it the file has schema 7.
func TestStore_AMigrationFromSchema7IsOneCommit(t *testing.T) {
	path := testPath(t)
	old := openAt(t, path)
	accept(t, old, ready(""))
	closeStore(t, old)
	s := migratesInOneCommit(t, path, 7)
	require.Contains(t, tablesAt(t, path)["eventbus_record"], "destination,expires; eventbus_record_destination,eventbus_record_expires,")
	expires := with(ready(""), func(r *driver.Record) { r.Expires, r.Leased = t0, false })
	accept(t, s, expires)
	q := driver.ClaimQuery{Kind: driver.ClaimExpired, Now: t0}
	claimed := claim(t, s, q).Records
	require.Len(t, claimed, 1)
	require.Equal(t, t0, claimed[0].Expires)
	require.Empty(t, problems(verifyAt(t, path)))
	execAt(t, path, "UPDATE eventbus_record SET expires = '1' WHERE expires IS NOT NULL")
	require.Contains(t, problems(verifyAt(t, path)), "the column expires does not match the body")
}

// The table of outcomes is made in one commit, too. After a failure in it the file has schema 8.
func TestStore_AMigrationFromSchema8IsOneCommit(t *testing.T) {
	path := testPath(t)
	old := openAt(t, path)
	accept(t, old, ready(""))
	closeStore(t, old)
	s := migratesInOneCommit(t, path, 8)
	o := driver.Outcome{Event: newID(), Body: []byte(`{"by":"ann"}`)}
	require.NoError(t, submit(s, &driver.Batch{Outcomes: []driver.Outcome{o}}))
	found, err := s.Outcomes(t.Context(), o.Event)
	require.NoError(t, err)
	require.Equal(t, []driver.Outcome{o}, found)
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 1)
	require.Empty(t, problems(verifyAt(t, path)))
	execAt(t, path, `UPDATE eventbus_outcome SET body = CAST('{"by":"bob"}' AS BLOB)`)
	require.Contains(t, problems(verifyAt(t, path)), "table eventbus_outcome, row 1 is corrupt: the row does not match its checksum")
	_, err = s.Outcomes(t.Context(), o.Event)
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
}

// A package that knows an earlier schema only refuses a file of this one, and leaves it as it is.
func TestStore_AnEarlierVersionRefusesThisOne(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	closeStore(t, s)
	before := read(t, path)
	all := migrations
	defer func() { migrations = all }()
	for version := 1; version < len(all); version++ {
		migrations = all[:version]
		_, err := Open(t.Context(), path)
		require.ErrorIs(t, err, ErrSchemaTooNew)
		require.ErrorContains(t, err, fmt.Sprintf("has version 9, the newest known version is %d", version))
		require.Equal(t, before, read(t, path))
	}
}

// All tables of the store have a file with an older schema at once. One migrates it while the other one inspects it.
func TestOpen_WhileAnotherProcessMigrates(t *testing.T) {
	path := testPath(t)
	closeStore(t, openAt(t, path))
	turnBack(t, path, 4)
	defer func() { setFailpoint(nil) }()
	setFailpoint(func(name string) {
		if name == "open: version read" {
			setFailpoint(nil)
			openOnly(t, path)
		}
	})
	s := openAt(t, path)
	require.Nil(t, failpoint.Load())
	accept(t, s, ready(""))
}

// A damaged file with an older schema is refused before it is migrated.
func TestOpen_ADamagedFileOfAnEarlierSchema(t *testing.T) {
	path := testPath(t)
	closeStore(t, openAt(t, path))
	turnBack(t, path, 5)
	execAt(t, path, "UPDATE meta SET crc = crc + 1")
	before := read(t, path)
	_, err := Open(t.Context(), path)
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Equal(t, "meta", corrupt.Table)
	require.Equal(t, before, read(t, path))
}

// All tables of the store have the prefix, so that a service finds no other name taken.
func TestStore_ItsTablesHaveAPrefix(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	tables := tablesAt(t, path)
	require.Len(t, tables, 13)
	var ofService []string
	for name := range tables {
		common, ok := strings.CutPrefix(name, "eventbus_")
		require.True(t, ok, name)
		ofService = append(ofService, "CREATE TABLE "+common+" (id INTEGER PRIMARY KEY)", "INSERT INTO "+common+" VALUES (7)")
	}
	execAt(t, path, ofService...)
	accept(t, s, ready(""))
	bury(t, s, letterFor("mail", eventbus.ReasonPermanent, "dead"))
	leave(t, s)
	takeIn(t, s)
	closeStore(t, s)
	s = openAt(t, path)
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 2)
	require.Empty(t, problems(verifyAt(t, path)))
}

// A version refuses a file of a later one, and leaves it as it is.
func TestStore_ALaterSchemaIsLeftAsItIs(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	accept(t, s, ready(""))
	leave(t, s)
	closeStore(t, s)
	execAt(t, path, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1), "PRAGMA wal_checkpoint(TRUNCATE)")
	before, lease := read(t, path), read(t, path+leaseSuffix)
	for _, opts := range [][]Option{nil, {MustExist()}, {WithExclusive()}} {
		_, err := Open(t.Context(), path, opts...)
		require.ErrorIs(t, err, ErrSchemaTooNew)
		require.Equal(t, before, read(t, path))
		if len(opts) == 0 {
			require.Equal(t, lease, read(t, path+leaseSuffix))
		}
	}
	execAt(t, path, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))
	s = openAt(t, path)
	takeIn(t, s)
	require.Len(t, claim(t, s, driver.ClaimQuery{}).Records, 2)
}

// The audit keeps the newest entries, and a flipped byte is noticed.
func TestStore_TheAuditIsBoundedAndChecked(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 101,000 entries")
	}
	path := testPath(t)
	s := openAt(t, path)
	entries := make([]driver.AuditEntry, 1000)
	for i := range entries {
		entries[i] = auditOf(eventbus.AuditEntry{At: t0, Action: eventbus.AuditPause})
	}
	ids := make([]driver.ID, maxAudit/len(entries)+1)
	for i := range ids { // one outcome at least has all its entries removed
		ids[i] = newID()
		outcomes := slices.Repeat([]driver.Outcome{{Event: ids[i], Body: []byte(`{}`)}}, 3)
		require.NoError(t, submit(s, &driver.Batch{Now: t0.Add(time.Duration(i) * time.Minute), Audit: entries, Outcomes: outcomes}))
	}
	require.NoError(t, submit(s, &driver.Batch{Now: t0.Add(time.Hour * 24)}))
	for i, id := range ids {
		kept, err := s.Outcomes(t.Context(), id)
		require.NoError(t, err)
		if i == 0 {
			require.Empty(t, kept, "no audit entry of its time is left")
		} else {
			require.Len(t, kept, 3)
		}
	}
	page, err := s.Audit(t.Context(), driver.AuditQuery{Limit: 2 * maxAudit})
	require.NoError(t, err)
	require.Len(t, page.Entries, maxAudit)
	require.EqualValues(t, maxAudit+len(entries), page.Entries[0].Number)
	inside(t, s, func(c *committer) error {
		_, err := c.w.exec("UPDATE eventbus_audit SET crc = crc + 1 WHERE number = 50000")
		return err
	})
	_, err = s.Audit(t.Context(), driver.AuditQuery{Limit: 10})
	require.NoError(t, err)
	_, err = s.Audit(t.Context(), driver.AuditQuery{Before: 50_001, Limit: 1})
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Equal(t, "eventbus_audit", corrupt.Table)
}

// Outcomes are kept until audit entries that were not denied are removed. Then those stay that are not older than the rest.
func TestStore_OutcomesAreKeptWithTheAudit(t *testing.T) {
	s := openAt(t, testPath(t))
	entry, denied := driver.AuditEntry{Body: []byte(`{}`)}, driver.AuditEntry{Denied: true, Body: []byte(`{}`)}
	var ids []driver.ID
	now := t0
	add := func(audit ...driver.AuditEntry) {
		id := newID()
		ids, now = append(ids, id), now.Add(time.Minute)
		require.NoError(t, submit(s, &driver.Batch{Now: now, Audit: audit, Outcomes: []driver.Outcome{{Event: id, Body: []byte(`{}`)}}}))
	}
	left := func() (left []bool) {
		now = now.Add(time.Minute)
		require.NoError(t, submit(s, &driver.Batch{Now: now}))
		for _, id := range ids {
			found, err := s.Outcomes(t.Context(), id)
			require.NoError(t, err)
			left = append(left, len(found) > 0)
		}
		return left
	}
	add()
	for _, audit := range []driver.AuditEntry{denied, entry, entry, denied, entry} {
		add(audit)
	}
	require.Equal(t, []bool{true, true, true, true, true, true}, left())
	inside(t, s, func(c *committer) error {
		_, err := c.w.exec("DELETE FROM eventbus_audit WHERE denied = 0 AND place <= 2") // as if there were too many
		return err
	})
	require.Equal(t, []bool{false, false, false, false, false, true}, left())
}

// Denied entries do not push out what operators did. Entries of an earlier schema are kept.
func TestStore_DeniedEntriesPushOutOnlyEachOther(t *testing.T) {
	isDenied := func(e *driver.AuditEntry) (bool, error) { return e.Denied, nil }
	path := testPath(t)
	s := openAt(t, path)
	pause := auditOf(eventbus.AuditEntry{At: t0, Action: eventbus.AuditPause, By: "ann"})
	denied := auditOf(eventbus.AuditEntry{At: t0, Action: eventbus.AuditPurge, By: "bob", Denied: "bob may only view"})
	require.NoError(t, submit(s, &driver.Batch{Audit: []driver.AuditEntry{pause, denied, pause}}))
	closeStore(t, s)
	turnBack(t, path, 3)
	s = openAt(t, path)
	entries := make([]driver.AuditEntry, 1000)
	for i := range entries {
		entries[i] = denied
	}
	for range maxDenied/len(entries) + 1 {
		require.NoError(t, submit(s, &driver.Batch{Audit: entries}))
	}
	require.NoError(t, submit(s, &driver.Batch{Audit: []driver.AuditEntry{pause}}))
	page, err := s.Audit(t.Context(), driver.AuditQuery{Match: auditsBy("ann"), Limit: maxAudit})
	require.NoError(t, err)
	var numbers []int64
	for _, e := range page.Entries {
		numbers = append(numbers, e.Number)
	}
	require.Equal(t, []int64{maxDenied + 1000 + 4, 3, 1}, numbers)
	page, err = s.Audit(t.Context(), driver.AuditQuery{Match: isDenied, Limit: maxAudit})
	require.NoError(t, err)
	require.Len(t, page.Entries, maxDenied)
	report, err := s.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	inside(t, s, func(c *committer) error {
		_, err := c.w.exec("UPDATE eventbus_audit SET place = 1000000 WHERE number = 3")
		return err
	})
	report, err = s.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, report.Problems, 1)
	require.Contains(t, report.Problems[0].Error(), "table eventbus_audit, row 3")
	require.NoError(t, submit(s, &driver.Batch{Audit: []driver.AuditEntry{pause}}))
	page, err = s.Audit(t.Context(), driver.AuditQuery{Match: auditsBy("ann"), Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Entries, 4, "a damaged place removes nothing")
}

// A flipped byte in the catalog is noticed.
func TestStore_TheCatalogIsChecked(t *testing.T) {
	s := openAt(t, testPath(t))
	require.NoError(t, submit(s, &driver.Batch{Catalog: catalogOf(encodePart(&eventbus.Catalog{At: t0, Timeout: 17}))}))
	inside(t, s, func(c *committer) error {
		_, err := c.w.exec("UPDATE eventbus_catalog SET body = CAST(replace(CAST(body AS TEXT), '17', '18') AS BLOB)")
		return err
	})
	_, err := s.Catalogs(t.Context())
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Equal(t, "eventbus_catalog", corrupt.Table)
}
