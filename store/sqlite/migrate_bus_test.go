package sqlite_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/store/sqlite"
)

// fileOf returns the path of a copy of a file in testdata:
//
//   - schema4.db.gz: commit de7165b has made it, the last version with schema 4. The first of its buses was shut down, the
//     second was killed in the call with the payload "crashes", and the third was not started.
//   - schema6.db.gz: commit 8935291c has made it, the last version with schema 6. The first of its buses was shut down, and
//     the second was not started.
//   - schema7.db.gz: commit 3e2a2c35 has made it, the last version with schema 7, likewise.
//   - schema8.db.gz: commit 22183f94 has made it, a version with schema 8, likewise.
func fileOf(t *testing.T, name string) string {
	t.Helper()
	packed, err := os.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	defer packed.Close()
	content, err := gzip.NewReader(packed)
	require.NoError(t, err)
	path := newPath(t)
	file, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(file, content)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	return path
}

// passTime sets the clock forward until each of the calls was made. One step is not enough: a timer that the bus sets meanwhile
// waits from there.
func (p *process) passTime(mock *clock.Mock, calls ...string) {
	p.t.Helper()
	p.eventually(fmt.Sprint(calls), func() bool {
		mock.Add(time.Minute)
		called := p.called()
		return !slices.ContainsFunc(calls, func(c string) bool { return called[c] == 0 })
	})
}

// A bus takes over all that a bus of schema 4 has left.
func TestStore_AFileOfSchema4(t *testing.T) {
	path := fileOf(t, "schema4.db.gz")
	_, err := sqlite.Open(t.Context(), path, sqlite.MustExist())
	require.ErrorIs(t, err, sqlite.ErrNotMigrated)

	mock := clock.NewMock()
	began := time.Date(2026, 11, 24, 10, 1, 0, 0, time.UTC) // of the first bus
	mock.Set(began.Add(10 * time.Minute))
	p := begin(t, path, eventbus.WithClock(mock), eventbus.WithIdempotencyWindow(30*24*time.Hour))
	sound := func() {
		t.Helper()
		report, err := p.store.Verify(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, report.IsSound(), "%v", report.Problems)
	}
	sound()

	payloads := make(map[string]driver.State)
	records, err := p.store.Records(t.Context(), driver.RecordQuery{Limit: 100})
	require.NoError(t, err)
	for _, r := range records.Records {
		payloads[string(r.Payload)] = r.State
	}
	require.Equal(t, map[string]driver.State{
		`"waits"`: driver.Waiting, `"scheduled"`: driver.Scheduled, `"parked"`: driver.Parked, `"keyed"`: driver.Parked,
		`"crashes"`: driver.Ready, `"ready"`: driver.Ready,
	}, payloads)
	letters := p.list(eventbus.LetterQuery{})
	require.Len(t, letters, 1)
	require.Equal(t, eventbus.ReasonPermanent, letters[0].Reason)
	require.Equal(t, "no such account", letters[0].Failures[0].Error)
	audit, err := p.Audit(t.Context(), eventbus.AuditQuery{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, []eventbus.AuditEntry{{Number: 1, At: began, Action: eventbus.AuditPause, By: "ann", Why: "deploy", Subscription: "mail"}}, audit.Entries)
	catalogs, err := p.store.Catalogs(t.Context())
	require.NoError(t, err)
	require.Len(t, catalogs, 1)
	require.Contains(t, string(catalogs[0].Body), `"pattern":"payment.*"`)
	id, err := eventbus.ParseEventID("01940000-0000-7000-8000-000000000001")
	require.NoError(t, err)
	_, known, err := p.store.Remembered(t.Context(), "", id.String())
	require.NoError(t, err)
	require.True(t, known)
	for event, outcome := range map[eventbus.EventID]sqlite.SettledOutcome{id: sqlite.OutcomeSettled, letters[0].Event.ID: sqlite.OutcomeDeadLettered} {
		history, err := p.store.History(t.Context(), driver.ID(event))
		require.NoError(t, err)
		require.Len(t, history, 1)
		require.Equal(t, outcome, history[0].Outcome)
	}

	p.handles("mail", nil, eventbus.Retry(eventbus.MaxRetries(0)))
	p.handles("billing", nil)
	p.start()
	catalog, err := p.Catalog(t.Context())
	require.NoError(t, err)
	require.Equal(t, []eventbus.Directive{{Subscription: "mail", Pause: true, By: "ann", Why: "deploy", At: began}}, catalog.Directives)
	p.waitCalls("billing ready", "billing crashes")
	require.NoError(t, p.Subscription("mail").Resume())
	p.waitCalls("mail parked", "mail keyed")
	_, err = p.Publish(t.Context(), "payment.made", "handled", eventbus.ID(id))
	require.NoError(t, err)
	p.passTime(mock, "billing waits", "billing scheduled")
	p.settled()
	require.NoError(t, p.DLQ().Replay(t.Context(), letters[0].ID))
	p.waitCalls("billing dies")
	p.settled()
	require.Zero(t, p.called()["billing handled"])
	sound()
	p.end()
}

// claimParked claims what is parked at the door "mail" without a destination, and returns the payloads.
func (p *process) claimParked(q driver.ClaimQuery) (payloads []string) {
	p.t.Helper()
	q.Kind, q.Doors, q.Limit = driver.ClaimParked, []string{"mail"}, 10
	c, err := p.store.Claim(p.t.Context(), q)
	require.NoError(p.t, err)
	for _, r := range c.Records {
		require.Empty(p.t, r.Destination)
		payloads = append(payloads, string(r.Payload))
	}
	return payloads
}

// A bus takes over all that a bus of schema 6 has left. Its records have no destination.
func TestStore_AFileOfSchema6(t *testing.T) {
	path := fileOf(t, "schema6.db.gz")
	_, err := sqlite.Open(t.Context(), path, sqlite.MustExist())
	require.ErrorIs(t, err, sqlite.ErrNotMigrated)

	mock := clock.NewMock()
	mock.Set(time.Date(2026, 12, 1, 9, 10, 0, 0, time.UTC))
	p := begin(t, path, eventbus.WithClock(mock))
	sound := func() {
		t.Helper()
		report, err := p.store.Verify(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, report.IsSound(), "%v", report.Problems)
	}
	sound()
	_, err = p.store.Acquire(t.Context(), driver.AcquireQuery{})
	require.NoError(t, err)
	require.Empty(t, p.claimParked(driver.ClaimQuery{Destinations: []string{"a"}}))
	require.Empty(t, p.claimParked(driver.ClaimQuery{OtherThan: []string{""}}))
	require.Equal(t, []string{`"parked"`}, p.claimParked(driver.ClaimQuery{OtherThan: []string{"a"}}))
	require.NoError(t, p.store.Release(t.Context(), driver.AllSlots()))

	p.handles("mail", nil)
	p.handles("billing", nil)
	p.start()
	require.NoError(t, p.Subscription("mail").Resume())
	p.waitCalls("mail parked", "mail keyed", "billing incoming", "mail incoming")
	p.passTime(mock, "billing waits", "billing scheduled")
	p.settled()
	require.Len(t, p.list(eventbus.LetterQuery{}), 1)
	sound()
	p.end()
}

// A bus takes over all that a bus of schema 7 has left. Its records never expire, and those that the bus adds may.
func TestStore_AFileOfSchema7(t *testing.T) {
	path := fileOf(t, "schema7.db.gz")
	_, err := sqlite.Open(t.Context(), path, sqlite.MustExist())
	require.ErrorIs(t, err, sqlite.ErrNotMigrated)

	mock := clock.NewMock()
	mock.Set(time.Date(2026, 12, 10, 9, 10, 0, 0, time.UTC))
	p := begin(t, path, eventbus.WithClock(mock))
	sound := func() {
		t.Helper()
		report, err := p.store.Verify(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, report.IsSound(), "%v", report.Problems)
	}
	sound()
	_, err = p.store.Acquire(t.Context(), driver.AcquireQuery{})
	require.NoError(t, err)
	claimed, err := p.store.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimExpired, Now: mock.Now().AddDate(1000, 0, 0), Limit: 10})
	require.NoError(t, err)
	require.Equal(t, driver.Claimed{}, claimed)
	require.NoError(t, p.store.Release(t.Context(), driver.AllSlots()))

	p.handles("mail", nil)
	p.handles("billing", nil)
	p.start()
	require.NoError(t, p.Subscription("mail").Resume())
	p.waitCalls("mail parked", "mail keyed", "billing incoming")
	p.passTime(mock, "billing waits", "billing scheduled")
	p.settled()
	require.Empty(t, p.list(eventbus.LetterQuery{}))
	sound()
	p.end()
}

// A bus takes over all that a bus of schema 8 has left: records that expire, one that a handler has emitted, the audit and keys. It has no
// outcomes of what operators did then, and keeps those of what they do now.
func TestStore_AFileOfSchema8(t *testing.T) {
	path := fileOf(t, "schema8.db.gz")
	_, err := sqlite.Open(t.Context(), path, sqlite.MustExist())
	require.ErrorIs(t, err, sqlite.ErrNotMigrated)

	mock := clock.NewMock()
	began := time.Date(2026, 12, 20, 9, 0, 0, 0, time.UTC) // of the first bus
	mock.Set(began.Add(10 * time.Minute))
	p := begin(t, path, eventbus.WithClock(mock))
	sound := func() {
		t.Helper()
		report, err := p.store.Verify(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, report.IsSound(), "%v", report.Problems)
	}
	sound()
	_, err = p.store.Acquire(t.Context(), driver.AcquireQuery{})
	require.NoError(t, err)
	claimed, err := p.store.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimExpired, Now: began.AddDate(1000, 0, 0), Limit: 10})
	require.NoError(t, err)
	expire := make(map[string]time.Time)
	var parked eventbus.EventID
	for _, r := range claimed.Records {
		if expire[string(r.Payload)] = r.Expires; r.State == driver.Parked {
			parked = eventbus.EventID(r.ID)
		}
	}
	require.Equal(t, map[string]time.Time{
		`"expires"`: began.Add(3 * time.Hour), `"emitted"`: began.Add(48 * time.Hour), `"parked until"`: began.Add(72 * time.Hour),
	}, expire)
	require.NoError(t, p.store.Release(t.Context(), driver.AllSlots()))
	audit, err := p.Audit(t.Context(), eventbus.AuditQuery{Limit: 10})
	require.NoError(t, err)
	require.Len(t, audit.Entries, 3)
	cancel := audit.Entries[1]
	require.Equal(t, eventbus.AuditEntry{Number: 2, At: began, Action: eventbus.AuditCancel, By: "bob", Why: "a mistake", Event: cancel.Event}, cancel)
	outcomes, err := p.store.Outcomes(t.Context(), driver.ID(cancel.Event))
	require.NoError(t, err)
	require.Empty(t, outcomes)

	p.handles("mail", nil)
	p.handles("billing", nil)
	p.start()
	_, err = p.Publish(t.Context(), "payment.made", "emits again", eventbus.IdempotencyKey("p-1"))
	require.NoError(t, err)
	_, err = p.GiveUp(t.Context(), parked, eventbus.By("ann"))
	require.NoError(t, err)
	outcomes, err = p.store.Outcomes(t.Context(), driver.ID(parked))
	require.NoError(t, err)
	require.Len(t, outcomes, 1)
	require.NoError(t, p.Subscription("mail").Resume())
	p.waitCalls("mail parked", "mail keyed", "billing incoming", "billing incoming until")
	p.passTime(mock, "billing waits", "billing expires", "billing emitted", "billing scheduled")
	p.settled()
	called := p.called()
	for _, payload := range []string{"cancelled", "emits again", "parked until"} {
		require.Zero(t, called["billing "+payload]+called["mail "+payload], payload)
	}
	letters := p.list(eventbus.LetterQuery{})
	require.Len(t, letters, 2)
	require.Equal(t, []eventbus.Reason{eventbus.ReasonOperator, eventbus.ReasonPermanent}, []eventbus.Reason{letters[0].Reason, letters[1].Reason})
	sound()
	p.end()
}
