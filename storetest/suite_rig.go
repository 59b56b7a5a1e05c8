package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// rig has the helpers of the conformance tests.
type rig struct {
	Backend
}

// patience is how long a test waits for a done.
const patience = 20 * time.Second

// noon is the time of the tests.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 123456789, time.UTC)

// open opens the store with the lease and closes it at the end of the test.
func (r *rig) open(t *testing.T) eventbus.Store {
	t.Helper()
	s := r.Open(t)
	require.NotNil(t, s, "Backend.Open")
	t.Cleanup(func() { closeInTime(s) })
	return s
}

// beside opens a store without the lease and closes it at the end of the test.
func (r *rig) beside(t *testing.T) eventbus.Store {
	t.Helper()
	s := r.Beside(t)
	require.NotNil(t, s, "Backend.Beside")
	t.Cleanup(func() { closeInTime(s) })
	return s
}

// closeInTime closes a store that may have been closed or crashed.
func closeInTime(s eventbus.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = s.Close(ctx)
}

// reopen closes the store and opens it again.
func (r *rig) reopen(t *testing.T, s eventbus.Store) eventbus.Store {
	t.Helper()
	require.NoError(t, s.Close(t.Context()), "Close")
	return r.open(t)
}

// crash ends the store as a killed process does, and opens it again.
func (r *rig) crash(t *testing.T, s eventbus.Store) eventbus.Store {
	t.Helper()
	r.Crash(t, s)
	return r.open(t)
}

// submit submits a batch and returns the error of its done.
func submit(t *testing.T, s eventbus.Store, b *eventbus.Batch) error {
	t.Helper()
	outcome := make(chan error, 2)
	s.Submit(b, func(err error) { outcome <- err })
	return await(t, outcome)
}

// await receives the error of a done.
func await(t *testing.T, outcome <-chan error) error {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-outcome:
		return err
	case <-timer.C:
		require.FailNow(t, "done was not called", "after %v", patience)
		return nil
	}
}

// apply submits a batch that must apply.
func apply(t *testing.T, s eventbus.Store, b *eventbus.Batch) {
	t.Helper()
	require.NoError(t, submit(t, s, b))
}

// refuse submits a batch that must be refused for a reason.
func refuse(t *testing.T, s eventbus.Store, b *eventbus.Batch, reason error) eventbus.RefusedError {
	t.Helper()
	err := submit(t, s, b)
	refused, ok := err.(*eventbus.RefusedError) //nolint:errorlint // done receives it unwrapped
	require.True(t, ok, "want a *RefusedError, got %T: %v", err, err)
	require.ErrorIs(t, err, reason)
	return *refused
}

// insert inserts records.
func insert(t *testing.T, s eventbus.Store, records ...*eventbus.Record) {
	t.Helper()
	apply(t, s, &eventbus.Batch{Now: noon, New: records})
}

// claim claims records.
func claim(t *testing.T, s eventbus.Store, q eventbus.ClaimQuery) eventbus.Claimed {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	claimed, err := s.Claim(t.Context(), q)
	require.NoError(t, err, "Claim")
	for _, r := range claimed.Records {
		require.True(t, r.Leased, "record %d is claimed and not Leased", r.Ref)
	}
	return claimed
}

// claimReady claims all ready records.
func claimReady(t *testing.T, s eventbus.Store) []*eventbus.Record {
	t.Helper()
	return claim(t, s, eventbus.ClaimQuery{Kind: eventbus.ClaimReady}).Records
}

// lookup returns the records of an event.
func lookup(t *testing.T, s eventbus.Store, id eventbus.EventID) []*eventbus.Record {
	t.Helper()
	found, err := s.Lookup(t.Context(), id)
	require.NoError(t, err, "Lookup")
	return found
}

// stats returns the counts of the store, without HasLease and Crashed.
func stats(t *testing.T, s eventbus.Store) eventbus.StoreStats {
	t.Helper()
	counts, err := s.Stats(t.Context())
	require.NoError(t, err, "Stats")
	counts.HasLease, counts.Crashed, counts.CrashedEvents = false, false, 0
	return counts
}

// hasLease returns StoreStats.HasLease.
func hasLease(t *testing.T, s eventbus.Store) bool {
	t.Helper()
	counts, err := s.Stats(t.Context())
	require.NoError(t, err, "Stats")
	return counts.HasLease
}

// ready returns a new record that is ready and free.
func ready(opts ...func(*eventbus.Record)) *eventbus.Record {
	r := &eventbus.Record{
		ID: eventbus.NewEventID(), Type: "order.placed", Payload: []byte(`{"cents":17}`), Published: noon,
		Targets: []string{"billing", "shipping"},
	}
	for _, opt := range opts {
		opt(r)
	}
	return r
}

func leased(r *eventbus.Record)  { r.Leased = true }
func suspect(r *eventbus.Record) { r.Suspect = true }

func key(k string) func(*eventbus.Record) { return func(r *eventbus.Record) { r.Key = k } }

func at(position int64) func(*eventbus.Record) {
	return func(r *eventbus.Record) { r.Position = position }
}

func parked(door string) func(*eventbus.Record) {
	return func(r *eventbus.Record) { r.State, r.Door = eventbus.RecordParked, door }
}

func waiting(d time.Duration) func(*eventbus.Record) {
	return func(r *eventbus.Record) { r.State, r.Due = eventbus.RecordWaiting, noon.Add(d) }
}

func scheduled(d time.Duration) func(*eventbus.Record) {
	return func(r *eventbus.Record) {
		r.State, r.Due, r.Scheduled = eventbus.RecordScheduled, noon.Add(d), noon.Add(d)
	}
}

// letter returns a new dead letter.
func letter(opts ...func(*eventbus.DeadLetter)) *eventbus.DeadLetter {
	l := &eventbus.DeadLetter{
		ID:     eventbus.LetterID(eventbus.NewEventID()),
		Event:  eventbus.Event{ID: eventbus.NewEventID(), Type: "order.placed", Payload: json.RawMessage(`{"cents":17}`), Time: noon},
		Reason: eventbus.ReasonCircuitOpen, Subscription: "billing", DiedAt: noon,
	}
	for _, opt := range opts {
		opt(l)
	}
	l.Fingerprint = l.Group().Fingerprint
	return l
}

// refsOf returns the refs of records.
func refsOf(records []*eventbus.Record) []eventbus.Ref {
	refs := []eventbus.Ref{}
	for _, r := range records {
		refs = append(refs, r.Ref)
	}
	return refs
}

// recordText describes the durable content of a record. An empty slice equals a nil one, except for
// the payload. The order of metadata does not matter.
func recordText(r *eventbus.Record) string {
	text, err := json.Marshal(r)
	return fmt.Sprintf("%s nil payload=%t own=%t error=%v", text, r.Payload == nil, r.Own, err)
}

// letterText describes the content of a letter.
func letterText(l *eventbus.DeadLetter) string {
	text, err := json.Marshal(l)
	return fmt.Sprintf("%s payload=%s original=%s error=%v", text, payloadText(l.Event.Payload), payloadText(l.Original), err)
}

func payloadText(payload any) string {
	switch p := payload.(type) {
	case json.RawMessage:
		return fmt.Sprintf("json %q", []byte(p))
	case eventbus.EncodedPayload:
		return fmt.Sprintf("encoded %q", []byte(p))
	}
	return fmt.Sprintf("%T", payload)
}

// requireRecords requires that the records have the content of want, apart from what Claim sets.
func requireRecords(t *testing.T, want, got []*eventbus.Record) {
	t.Helper()
	texts := func(records []*eventbus.Record) []string {
		all := []string{}
		for _, r := range records {
			c := *r
			c.Leased, c.Crashes, c.Own, c.Suspect = false, 0, false, false
			all = append(all, recordText(&c))
		}
		return all
	}
	require.Equal(t, texts(want), texts(got))
}

// requireLetters requires that the letters are those of want.
func requireLetters(t *testing.T, want []*eventbus.DeadLetter, got []eventbus.DeadLetter) {
	t.Helper()
	wanted, gotten := []string{}, []string{}
	for _, l := range want {
		wanted = append(wanted, letterText(l))
	}
	for i := range got {
		gotten = append(gotten, letterText(&got[i]))
	}
	require.Equal(t, wanted, gotten)
}

// newestFirst sorts letters as Letters returns them.
func newestFirst(letters []*eventbus.DeadLetter) []*eventbus.DeadLetter {
	return slices.SortedFunc(slices.Values(letters), func(x, y *eventbus.DeadLetter) int {
		return compareLetterIDs(y.ID, x.ID)
	})
}

// page returns a page of letters.
func page(t *testing.T, s eventbus.Store, q eventbus.LetterQuery) eventbus.LetterPage {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 10_000
	}
	p, err := s.Letters(t.Context(), q)
	require.NoError(t, err, "Letters")
	return p
}
