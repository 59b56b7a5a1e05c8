//go:build unix

package postgres

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

// parked returns a free record that is parked at the door "mail".
func parked(key, destination string) *driver.Record {
	r := record()
	r.Key, r.State, r.Door, r.Destination, r.Leased = key, driver.Parked, "mail", destination, false
	return r
}

// schemaOfVersion makes a schema as an earlier version of the package does, with the rows of a store that is closed. It returns
// that schema.
func schemaOfVersion(t *testing.T, s *Store, version int) string {
	t.Helper()
	schema := postgrestest.NewSchema()
	exec(t, s, "CREATE SCHEMA "+schema)
	for _, script := range migrations[:version] {
		_, err := poolOf(t, s).Exec(context.Background(), (&Store{quotedSchema: schema}).sql(script), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	}
	tables := []string{"meta", "instance", "slot", "letter", "dedupe", "mark", "history", "incoming", "request", "directive", "audit", "catalog"}
	for _, table := range tables {
		exec(t, s, "TRUNCATE "+schema+"."+table)
		exec(t, s, "INSERT INTO "+schema+"."+table+" OVERRIDING SYSTEM VALUE SELECT * FROM ~."+table)
	}
	columns := "ref, position, owner, event, kind, crashes, suspect, due, door, progress, body"
	if version > 1 {
		columns += ", destination"
	}
	if version > 2 {
		columns += ", expires"
	}
	exec(t, s, "INSERT INTO "+schema+".record ("+columns+") SELECT "+columns+" FROM ~.record")
	exec(t, s, "SELECT setval('"+schema+".instance_id', nextval('~.instance_id'))")
	exec(t, s, "UPDATE "+schema+".meta SET version = "+strconv.Itoa(version))
	return schema
}

// claimedRefs claims records that are parked at the door "mail".
func claimedRefs(t *testing.T, s *Store, q driver.ClaimQuery) (refs []driver.Ref) {
	t.Helper()
	q.Kind, q.Doors, q.Limit = driver.ClaimParked, []string{"mail"}, 10
	claimed, err := s.Claim(t.Context(), q)
	require.NoError(t, err)
	for _, r := range claimed.Records {
		refs = append(refs, r.Ref)
	}
	return refs
}

func requireSound(t *testing.T, s *Store) {
	t.Helper()
	report, err := s.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
}

// A schema of version 1 is migrated, and keeps what it has. Its records have no destination.
func TestStore_MigratesVersion1(t *testing.T) {
	t.Parallel()
	before := openOnly(t, postgrestest.NewSchema())
	acquire(t, before)
	first, keyed, queued := parked("", ""), parked("k", ""), record()
	require.NoError(t, submit(before, &driver.Batch{New: []*driver.Record{first, keyed, queued}}))
	require.NoError(t, before.Close(t.Context()))
	schema := schemaOfVersion(t, before, 1)

	_, err := Open(t.Context(), postgrestest.Shared(t).DSN(), WithSchema(schema), MustExist())
	require.ErrorIs(t, err, ErrNotMigrated)
	require.ErrorContains(t, err, "has version 1, and this package needs version 4")
	s := openOnly(t, schema)
	acquire(t, s)
	requireSound(t, s)
	require.Empty(t, claimedRefs(t, s, driver.ClaimQuery{Destinations: []string{"a"}}))
	require.Equal(t, []driver.Ref{first.Ref}, claimedRefs(t, s, driver.ClaimQuery{OtherThan: []string{"a"}}))
	first.Destination = "a"
	next := parked("", "b")
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{next}, Update: []*driver.Record{first}}))
	require.Equal(t, []driver.Ref{first.Ref}, claimedRefs(t, s, driver.ClaimQuery{Destinations: []string{"a"}}))
	require.Equal(t, []driver.Ref{next.Ref}, claimedRefs(t, s, driver.ClaimQuery{OtherThan: []string{"a"}}))
	requireSound(t, s)
}

// A schema of version 2 is migrated, and keeps what it has. Its records never expire.
func TestStore_MigratesVersion2(t *testing.T) {
	t.Parallel()
	before := openOnly(t, postgrestest.NewSchema())
	acquire(t, before)
	first := parked("k", "a")
	require.NoError(t, submit(before, &driver.Batch{New: []*driver.Record{first, record()}}))
	require.NoError(t, before.Close(t.Context()))
	schema := schemaOfVersion(t, before, 2)

	_, err := Open(t.Context(), postgrestest.Shared(t).DSN(), WithSchema(schema), MustExist())
	require.ErrorIs(t, err, ErrNotMigrated)
	require.ErrorContains(t, err, "has version 2, and this package needs version 4")
	s := openOnly(t, schema)
	acquire(t, s)
	requireSound(t, s)
	q := driver.ClaimQuery{Kind: driver.ClaimExpired, Now: time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC), Limit: 10}
	claimed, err := s.Claim(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, claimed.Records)
	expires := parked("", "b")
	expires.Expires = q.Now
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{expires}}))
	claimed, err = s.Claim(t.Context(), q)
	require.NoError(t, err)
	require.Len(t, claimed.Records, 1)
	require.Equal(t, expires.Ref, claimed.Records[0].Ref)
	requireSound(t, s)
}

// A schema of version 3 is migrated, and keeps what it has. It has no outcomes.
func TestStore_MigratesVersion3(t *testing.T) {
	t.Parallel()
	before := openOnly(t, postgrestest.NewSchema())
	acquire(t, before)
	first := parked("k", "a")
	first.Expires = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	audit := driver.AuditEntry{Body: []byte(`{}`)}
	require.NoError(t, submit(before, &driver.Batch{New: []*driver.Record{first, record()}, Audit: []driver.AuditEntry{audit}}))
	require.NoError(t, before.Close(t.Context()))
	schema := schemaOfVersion(t, before, 3)

	_, err := Open(t.Context(), postgrestest.Shared(t).DSN(), WithSchema(schema), MustExist())
	require.ErrorIs(t, err, ErrNotMigrated)
	require.ErrorContains(t, err, "has version 3, and this package needs version 4")
	s := openOnly(t, schema)
	acquire(t, s)
	requireSound(t, s)
	q := driver.ClaimQuery{Kind: driver.ClaimExpired, Now: first.Expires, Limit: 10}
	claimed, err := s.Claim(t.Context(), q)
	require.NoError(t, err)
	require.Len(t, claimed.Records, 1)
	o := driver.Outcome{Event: first.ID, Body: []byte(`{"by":"ann"}`)}
	require.NoError(t, submit(s, &driver.Batch{Delete: []driver.Ref{first.Ref}, Outcomes: []driver.Outcome{o}}))
	found, err := s.Outcomes(t.Context(), first.ID)
	require.NoError(t, err)
	require.Equal(t, []driver.Outcome{o}, found)
	page, err := s.Audit(t.Context(), driver.AuditQuery{Limit: 2})
	require.NoError(t, err)
	require.Len(t, page.Entries, 1)
	requireSound(t, s)
}

// Outcomes are removed with the audit entries of their time, and not before any entry is.
func TestStore_OutcomesArePrunedWithTheAudit(t *testing.T) {
	t.Parallel()
	s := openOnly(t, postgrestest.NewSchema())
	acquire(t, s)
	entry := []driver.AuditEntry{{Body: []byte(`{}`)}}
	denied := []driver.AuditEntry{{Denied: true, Body: []byte(`{}`)}}
	var ids []driver.ID
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	add := func(audit []driver.AuditEntry) {
		r := record()
		ids, now = append(ids, r.ID), now.Add(time.Minute)
		require.NoError(t, submit(s, &driver.Batch{Now: now, Audit: audit, Outcomes: []driver.Outcome{{Event: r.ID, Body: []byte(`{}`)}}}))
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
	add(nil)
	for _, audit := range [][]driver.AuditEntry{denied, entry, entry, denied, entry} {
		add(audit)
	}
	require.Equal(t, []bool{true, true, true, true, true, true}, left())
	exec(t, s, "DELETE FROM ~.audit WHERE NOT denied AND place <= 2") // as if there were too many
	require.Equal(t, []bool{false, false, false, false, false, true}, left())
}

// A migration that fails leaves the schema as it is.
func TestStore_AMigrationIsOneCommit(t *testing.T) {
	t.Parallel()
	before := openOnly(t, postgrestest.NewSchema())
	acquire(t, before)
	require.NoError(t, submit(before, &driver.Batch{New: []*driver.Record{parked("", "")}}))
	require.NoError(t, before.Close(t.Context()))
	schema := schemaOfVersion(t, before, 1)
	exec(t, before, "CREATE TABLE "+schema+".record_destination ()") // the name of the new index
	_, err := Open(t.Context(), postgrestest.Shared(t).DSN(), WithSchema(schema))
	require.ErrorContains(t, err, "record_destination")
	var version, columns int
	const look = "SELECT version, (SELECT count(*) FROM pg_attribute WHERE attrelid = '~.record'::regclass AND attname = 'destination') FROM ~.meta"
	require.NoError(t, poolOf(t, before).QueryRow(t.Context(), (&Store{quotedSchema: schema}).sql(look)).Scan(&version, &columns))
	require.Equal(t, []int{1, 0}, []int{version, columns})
	exec(t, before, "DROP TABLE "+schema+".record_destination")
	s := openOnly(t, schema)
	acquire(t, s)
	require.Len(t, claimedRefs(t, s, driver.ClaimQuery{}), 1)
}

// A package that knows an earlier version only refuses a schema of this one, and leaves it as it is. The test replaces a
// variable: it does not run beside others.
func TestStore_AnEarlierVersionRefusesThisOne(t *testing.T) {
	schema := postgrestest.NewSchema()
	s := openOnly(t, schema)
	acquire(t, s)
	r := parked("", "a")
	require.NoError(t, submit(s, &driver.Batch{New: []*driver.Record{r}}))
	require.NoError(t, s.Close(t.Context()))
	all := migrations
	defer func() { migrations = all }()
	for version := 1; version < len(all); version++ {
		migrations = all[:version]
		_, err := Open(t.Context(), postgrestest.Shared(t).DSN(), WithSchema(schema))
		require.ErrorIs(t, err, ErrSchemaTooNew)
		require.ErrorContains(t, err, fmt.Sprintf("has version 4, and this package knows version %d: use the package of the program that has migrated it", version))
	}
	migrations = all
	s = openOnly(t, schema)
	acquire(t, s)
	require.Equal(t, []driver.Ref{r.Ref}, claimedRefs(t, s, driver.ClaimQuery{Destinations: []string{"a"}}))
}
