package sqlite

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

func verifyAt(t *testing.T, path string) VerifyReport {
	t.Helper()
	s := openOnly(t, path, MustExist())
	defer closeStore(t, s)
	report, err := s.Verify(t.Context(), nil)
	require.NoError(t, err)
	return report
}

// execAt runs statements on a closed database.
func execAt(t *testing.T, path string, statements ...string) {
	t.Helper()
	c, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite)
	require.NoError(t, err)
	for _, sql := range statements {
		require.NoError(t, query(c, sql, nil), sql)
	}
	require.NoError(t, c.Close())
}

func problems(r VerifyReport) string {
	var b strings.Builder
	for _, p := range r.Problems {
		b.WriteString(p.Error() + "\n")
	}
	return b.String()
}

func TestVerify_SoundFiles(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path, WithHistory(1e15))
	for _, r := range []*driver.Record{
		ready("a"), ready(""),
		with(ready(""), func(r *driver.Record) { r.State, r.Due = driver.Waiting, t0 }),
		with(ready(""), func(r *driver.Record) { r.State, r.Due, r.Scheduled = driver.Scheduled, t0, t0 }),
		with(ready(""), func(r *driver.Record) { r.State, r.Door = driver.Parked, "mail" }),
		with(ready(""), func(r *driver.Record) { r.State, r.Door, r.Destination = driver.Parked, "mail", "there" }),
		with(ready(""), func(r *driver.Record) { r.Expires = t0 }),
	} {
		accept(t, s, r)
	}
	bury(t, s, letterFor("mail", eventbus.ReasonCrash, "e"))
	require.NoError(t, submit(s, &driver.Batch{
		Remember:   []driver.Dedupe{{Key: "k", Event: newID(), Expires: t0.AddDate(1, 0, 0)}},
		Directives: []driver.Directive{orderFor(eventbus.Directive{Subscription: "mail", Pause: true, At: t0})},
		Audit:      []driver.AuditEntry{auditOf(eventbus.AuditEntry{Action: eventbus.AuditPause, At: t0})},
		Outcomes:   []driver.Outcome{{Event: newID(), Body: []byte(`{}`)}},
		Catalog:    catalogOf([]byte(`{}`)),
		Ask:        []*driver.Request{{Body: []byte(`{}`)}, {Body: []byte(`{}`)}},
	}))
	require.NoError(t, submit(s, &driver.Batch{Answer: []driver.Answer{{Request: 1, Body: []byte(`{}`)}}}))
	leave(t, s)
	takeIn(t, s)
	leave(t, s)
	later := waiting()
	later.Record.State, later.Record.Due = driver.Scheduled, t0
	require.NoError(t, submit(s, &driver.Batch{Leave: []*driver.Incoming{later}}))
	var last VerifyProgress
	report, err := s.Verify(t.Context(), func(p VerifyProgress) { last = p })
	require.NoError(t, err)
	require.True(t, report.IsSound(), problems(report))
	require.Equal(t, VerifyReport{Records: 8, Letters: 1, Others: 9}, report)
	require.EqualValues(t, 18, last.Rows)
	require.EqualValues(t, 18, last.Total)
	require.Empty(t, problems(verifyAt(t, path)), "beside a store with the lease")
	crash(t, s)
	require.Empty(t, problems(verifyAt(t, path)), "after a crash")
	closeStore(t, openAt(t, path))
	require.Empty(t, problems(verifyAt(t, path)), "with the crash recorded")
}

func TestVerify_ReportsDamage(t *testing.T) {
	sound := filled(t)
	require.Empty(t, problems(verifyAt(t, sound)))
	for name, c := range map[string]struct {
		damage func(t *testing.T, path string)
		want   string
	}{
		"flipped byte of a record": {flipAll(strings.Repeat("p", 100)), "table eventbus_record, row 1 is corrupt: the row does not match its checksum"},
		"flipped byte of a letter": {flipAll(strings.Repeat("e", 300)), "table eventbus_letter"},
		"flipped byte of an index": {flipIndex, "missing from index"},
		"missing letter":           {execs("DELETE FROM eventbus_letter WHERE num = 1"), "the books do not balance: 50 letters are counted, and 49 are there"},
		"missing record":           {execs("DELETE FROM eventbus_record WHERE ref = 1"), "[200 0 0 0] records by state are counted, and [199 0 0 0] are there"},
		"other state":              {execs("UPDATE eventbus_record SET kind = 1 WHERE ref = 1"), "row 1 is corrupt: the row does not match its checksum"},
		"other destination":        {execs("UPDATE eventbus_record SET destination = 'there' WHERE ref = 1"), "row 1 is corrupt: the row does not match its checksum"},
		"lease of the future":      {execs("UPDATE eventbus_record SET owner = 99 WHERE ref = 1"), "its lease 99 has not begun"},
		"damaged order":            {execs(`INSERT INTO eventbus_directive VALUES ('mail', x'7b7d', 0)`), "table eventbus_directive, row mail"},
		"damaged catalog":          {execs(`INSERT INTO eventbus_catalog VALUES (1, 'a', '', x'7b7d', 0)`), `table eventbus_catalog, row "a"`},
		"damaged incoming event":   {execs(`INSERT INTO eventbus_incoming VALUES (1, x'00', 0, 0, NULL, x'00', 0, 'json', 0)`), "table eventbus_incoming, row 1"},
		"lost incoming event":      {execs(`INSERT INTO sqlite_sequence VALUES ('eventbus_incoming', 3)`), "3 incoming events are counted, and 0 are there"},
		"damaged request":          {execs(`INSERT INTO eventbus_request VALUES (1, x'7b7d', NULL, NULL, 0)`), "table eventbus_request, row 1"},
		"damaged audit":            {execs(`INSERT INTO eventbus_audit VALUES (1, x'7b7d', 0, 0, 1)`), "table eventbus_audit, row 1"},
		"damaged outcome":          {execs(`INSERT INTO eventbus_outcome VALUES (1, x'00', 0, x'7b7d', 0)`), "table eventbus_outcome, row 1"},
		"damaged id":               {execs(`INSERT INTO eventbus_dedupe VALUES ('', 'k', x'00', '', 'soon')`), "table eventbus_dedupe, row k"},
		"damaged history":          {execs(`INSERT INTO eventbus_history VALUES (1, x'00', '', '', 'gone', 'soon')`), "table eventbus_history, row 1"},
		"crash of the future":      {execs(`INSERT INTO eventbus_crash VALUES (99, 0)`), "table eventbus_crash, row 99"},
	} {
		t.Run(name, func(t *testing.T) {
			path := testPath(t)
			for _, suffix := range []string{"", leaseSuffix} {
				content, err := os.ReadFile(sound + suffix)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(path+suffix, content, 0o600))
			}
			c.damage(t, path)
			report := verifyAt(t, path)
			require.False(t, report.IsSound())
			require.Contains(t, problems(report), c.want)
		})
	}
}

func TestVerify_ReportsALetterWithoutReason(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	bury(t, s, letterFor("mail", "", "e"))
	closeStore(t, s)
	require.Contains(t, problems(verifyAt(t, path)), "table eventbus_letter")
	require.Contains(t, problems(verifyAt(t, path)), "it has no reason")
}

func execs(statements ...string) func(t *testing.T, path string) {
	return func(t *testing.T, path string) { execAt(t, path, statements...) }
}

// flipAll returns a function that flips a bit in each occurrence of a text in a file, also in those that
// earlier versions of a page have left.
func flipAll(text string) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(content), text)
		flipped := []byte(text)
		flipped[0] ^= 1
		require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(content, []byte(text), flipped), 0o600))
	}
}

// flipIndex flips a bit of a name in an index of letters: there, the names of the reasons follow each other.
func flipIndex(t *testing.T, path string) {
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	at := 0
	for i := 0; ; {
		next := bytes.Index(content[i:], []byte("exhausted"))
		if next < 0 {
			break
		}
		if next < 64 { // rows of the table are longer
			at = i + next
		}
		i += next + 1
	}
	require.Positive(t, at)
	content[at] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

func TestVerify_Ends(t *testing.T) {
	s := openAt(t, filled(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Verify(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	closeStore(t, s)
	_, err = s.Verify(t.Context(), nil)
	require.ErrorIs(t, err, driver.ErrClosed)
}
