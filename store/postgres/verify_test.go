//go:build unix

package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/postgres/postgrestest"
)

func TestVerify_FindsDamage(t *testing.T) {
	t.Parallel()
	s := openOnly(t, postgrestest.NewSchema(), WithHistory(time.Hour))
	acquire(t, s)
	letter := &driver.Letter{ID: driver.ID(eventbus.NewEventID()), Event: driver.ID(eventbus.NewEventID()), Type: "a", Subscription: "b\x00", Reason: "r", Fingerprint: "f", Published: noon, DiedAt: noon, Details: []byte(`{}`)}
	settled, kept := record(), record()
	require.NoError(t, submit(s, &driver.Batch{
		New: []*driver.Record{settled, kept}, Bury: []*driver.Letter{letter}, Leave: []*driver.Incoming{{Record: record(), Codec: "json"}},
		Remember: []driver.Dedupe{{Key: "k\x00", Expires: noon.Add(time.Hour)}}, Directives: []driver.Directive{{Subscription: "b\x00", Body: []byte(`{}`)}},
		Audit: []driver.AuditEntry{{Body: []byte(`{}`)}}, Outcomes: []driver.Outcome{{Body: []byte(`{}`)}}, Ask: []*driver.Request{{Body: []byte(`{}`)}}, Catalog: &driver.Catalog{Instance: "i", Body: []byte("x")},
	}))
	require.NoError(t, submit(s, &driver.Batch{Delete: []driver.Ref{settled.Ref}}))
	var last VerifyProgress
	report, err := s.Verify(t.Context(), func(p VerifyProgress) { last = p })
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Equal(t, VerifyReport{Records: 1, Letters: 1, Others: 8}, report)
	require.Equal(t, VerifyProgress{Rows: 10, Total: 10}, last)

	damaged := openOnly(t, postgrestest.NewSchema(), WithHistory(time.Hour))
	for damage, want := range map[string]string{
		"UPDATE ~.record SET body = 'x'":                                     "the body is cut off",
		"UPDATE ~.record SET kind = 3":                                       "it is parked",
		"UPDATE ~.record SET destination = 'd'":                              "it is ready, and has a destination",
		"UPDATE ~.record SET expires = '1'":                                  "the column expires does not match the body",
		"UPDATE ~.record SET owner = 99":                                     "its owner is the lease 99",
		"UPDATE ~.record SET progress = '{'":                                 "the progress is no JSON",
		"DELETE FROM ~.record":                                               "1 leased records are counted, and 0 are there",
		"UPDATE ~.letter SET died_at = 'noon'":                               "cannot parse",
		"UPDATE ~.letter SET details = '{'":                                  "are no JSON",
		"DELETE FROM ~.letter":                                               "1 letters are counted",
		"UPDATE ~.incoming SET state = 1":                                    "neither ready",
		"UPDATE ~.dedupe SET expires = '1'":                                  "cannot parse",
		"UPDATE ~.history SET settled_at = '1'":                              "cannot parse",
		"UPDATE ~.directive SET body = ''":                                   "the body is no JSON",
		"UPDATE ~.audit SET number = 7":                                      "not one of the entries",
		"UPDATE ~.outcome SET body = ''":                                     "the body is no JSON",
		"UPDATE ~.outcome SET audit = 7":                                     "later than all audit entries",
		"UPDATE ~.request SET answered = '1'":                                "a time without an answer",
		"UPDATE ~.catalog SET seen = '1'":                                    "cannot parse",
		"UPDATE ~.slot SET epoch = 5":                                        "a store has the lease 1, and the last one is 5",
		"UPDATE ~.instance SET ready = 7 WHERE id <> 0":                      "the books do not balance",
		"UPDATE ~.instance SET next_ref = 1; UPDATE ~.slot SET next_ref = 1": "the next one would be 1",
	} {
		restore := ""
		for _, table := range []string{"instance", "slot", "meta", "record", "letter", "incoming", "request", "dedupe", "history", "directive", "catalog", "audit", "outcome"} {
			restore += "TRUNCATE ~." + table + "; INSERT INTO ~." + table + " OVERRIDING SYSTEM VALUE SELECT * FROM " + s.sql("~."+table) + ";"
		}
		exec(t, damaged, restore+damage)
		report, err := damaged.Verify(t.Context(), nil)
		require.NoError(t, err, damage)
		require.False(t, report.IsSound(), damage)
		var all []string
		for _, p := range report.Problems {
			all = append(all, p.Error())
		}
		require.Contains(t, all[0]+all[len(all)-1], want, damage)
	}
}
