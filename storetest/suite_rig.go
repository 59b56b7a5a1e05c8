package storetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/uuid7"
)

// rig has the helpers of the conformance tests.
type rig struct {
	Backend
	another func(t *testing.T) Backend // returns the backend of other data
}

// patience is how long a test waits for a done.
const patience = 20 * time.Second

// noon is the time of the tests.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 123456789, time.UTC)

var uuids = uuid7.NewSource()

// newID returns an id that is larger than all before.
func newID() driver.ID { return uuids.Next(time.Now().UnixMilli()) }

// open opens a store, acquires the lease of all slots, and closes the store at the end of the test.
func (r *rig) open(t *testing.T) driver.Store {
	t.Helper()
	s, _ := r.openLease(t)
	return s
}

// openLease opens a store as open does, and returns what Acquire returned.
func (r *rig) openLease(t *testing.T) (driver.Store, driver.Lease) {
	t.Helper()
	s := r.beside(t)
	return s, acquire(t, s)
}

// beside opens a store without the lease and closes it at the end of the test.
func (r *rig) beside(t *testing.T) driver.Store {
	t.Helper()
	s := r.Open(t)
	require.NotNil(t, s, "Backend.Open")
	require.Zero(t, s.Lease(), "Open acquires no lease")
	t.Cleanup(func() { closeInTime(s) })
	return s
}

// acquire acquires the lease. It waits a while for the end of another one.
func acquire(t *testing.T, s driver.Store) driver.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lease, err := s.Acquire(ctx, driver.AcquireQuery{Wait: true})
	require.NoError(t, err, "Acquire")
	require.True(t, lease.IsHeld(), "Acquire returned no lease")
	require.False(t, lease.Slots.IsEmpty(), "Acquire returned a lease without slots")
	require.Equal(t, lease.Epoch, s.Lease().Epoch, "Lease returns what Acquire returned")
	require.Equal(t, lease.Slots, s.Lease().Slots, "Lease returns what Acquire returned")
	return lease
}

// closeInTime closes a store that may have been closed or crashed.
func closeInTime(s driver.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = s.Close(ctx)
}

// reopen closes the store and opens it again.
func (r *rig) reopen(t *testing.T, s driver.Store) driver.Store {
	t.Helper()
	require.NoError(t, s.Close(t.Context()), "Close")
	return r.open(t)
}

// crash ends the store as a killed process does, and opens it again.
func (r *rig) crash(t *testing.T, s driver.Store) driver.Store {
	t.Helper()
	r.Crash(t, s)
	return r.open(t)
}

// send submits a batch under the lease that the store has, unless the batch has an Epoch.
func send(s driver.Store, b *driver.Batch, done func(error)) {
	if b.Epoch == 0 {
		b.Epoch = s.Lease().Epoch
	}
	s.Submit(b, done)
}

// submit sends a batch and returns the error of its done.
func submit(t *testing.T, s driver.Store, b *driver.Batch) error {
	t.Helper()
	outcome := make(chan error, 2)
	send(s, b, func(err error) { outcome <- err })
	return await(t, outcome)
}

// submitAs submits a batch as it is, also without an Epoch, and returns the error of its done.
func submitAs(t *testing.T, s driver.Store, b *driver.Batch) error {
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
func apply(t *testing.T, s driver.Store, b *driver.Batch) {
	t.Helper()
	require.NoError(t, submit(t, s, b))
}

// refuse submits a batch that must be refused for a reason. what, if there is one, says which batch it is.
func refuse(t *testing.T, s driver.Store, b *driver.Batch, reason error, what ...string) driver.RefusedError {
	t.Helper()
	return requireRefused(t, submit(t, s, b), reason, what...)
}

// refuseAs does the same with a batch as it is.
func refuseAs(t *testing.T, s driver.Store, b *driver.Batch, reason error, what ...string) driver.RefusedError {
	t.Helper()
	return requireRefused(t, submitAs(t, s, b), reason, what...)
}

// requireRefused requires the error of a batch that was refused for a reason.
func requireRefused(t *testing.T, err, reason error, what ...string) driver.RefusedError {
	t.Helper()
	of := strings.Join(append([]string{""}, what...), ": ")
	refused, ok := err.(*driver.RefusedError) //nolint:errorlint // done receives it unwrapped
	require.True(t, ok, "done: want a *RefusedError for %q, got %T: %v%s", reason, err, err, of)
	require.ErrorIs(t, err, reason, "RefusedError.Err%s", of)
	return *refused
}

// refuseUnleased submits a batch that must be refused because of a record of Update or Delete.
func refuseUnleased(t *testing.T, s driver.Store, b *driver.Batch, ref driver.Ref, what string) {
	t.Helper()
	got := refuse(t, s, b, driver.ErrNotLeased, what).Ref
	require.Equal(t, ref, got, "%s: RefusedError.Ref must name the record that the lease does not have", what)
}

// insert inserts records.
func insert(t *testing.T, s driver.Store, records ...*driver.Record) {
	t.Helper()
	apply(t, s, &driver.Batch{Now: noon, New: records})
}

// claim claims records.
func claim(t *testing.T, s driver.Store, q driver.ClaimQuery) driver.Claimed {
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
func claimReady(t *testing.T, s driver.Store) []*driver.Record {
	t.Helper()
	return claim(t, s, driver.ClaimQuery{Kind: driver.ClaimReady}).Records
}

// lookup returns the records of an event.
func lookup(t *testing.T, s driver.Store, id driver.ID) []*driver.Record {
	t.Helper()
	found, err := s.Lookup(t.Context(), id)
	require.NoError(t, err, "Lookup")
	return found
}

// stats returns the counts of the store.
func stats(t *testing.T, s driver.Store) driver.Stats {
	t.Helper()
	counts, err := s.Stats(t.Context())
	require.NoError(t, err, "Stats")
	return counts
}

// ready returns a new record that is ready and free.
func ready(opts ...func(*driver.Record)) *driver.Record {
	r := &driver.Record{
		ID: newID(), Type: "order.placed", Payload: []byte(`{"cents":17}`), Published: noon,
		Targets: []string{"billing", "shipping"},
	}
	for _, opt := range opts {
		opt(r)
	}
	return r
}

func leased(r *driver.Record)  { r.Leased = true }
func suspect(r *driver.Record) { r.Suspect = true }

func key(k string) func(*driver.Record) { return func(r *driver.Record) { r.Key = k } }

func at(position int64) func(*driver.Record) {
	return func(r *driver.Record) { r.Position = position }
}

func parked(door string) func(*driver.Record) {
	return func(r *driver.Record) { r.State, r.Door = driver.Parked, door }
}

func waiting(d time.Duration) func(*driver.Record) {
	return func(r *driver.Record) { r.State, r.Due = driver.Waiting, noon.Add(d) }
}

func scheduled(d time.Duration) func(*driver.Record) {
	return func(r *driver.Record) {
		r.State, r.Due, r.Scheduled = driver.Scheduled, noon.Add(d), noon.Add(d)
	}
}

// letter returns a new dead letter.
func letter(opts ...func(*driver.Letter)) *driver.Letter {
	l := &driver.Letter{
		ID: newID(), Event: newID(), Type: "order.placed", Subscription: "billing", Reason: "circuit_open", Published: noon, DiedAt: noon,
		Details: []byte(`{"due":0}`), Failures: []byte(`[]`), Payload: []byte(`{"cents":17}`),
	}
	for _, opt := range opts {
		opt(l)
	}
	if l.Fingerprint == "" {
		l.Fingerprint = "of " + l.Subscription
	}
	return l
}

// refsOf returns the refs of records.
func refsOf(records []*driver.Record) []driver.Ref {
	refs := []driver.Ref{}
	for _, r := range records {
		refs = append(refs, r.Ref)
	}
	return refs
}

// fieldText describes a field of a record or a letter. An empty slice equals a nil one, except for bytes.
func fieldText(field any) string {
	switch field := field.(type) {
	case []byte:
		return bytesText(field)
	case string, []string:
		return fmt.Sprintf("%q", field)
	case time.Time:
		return field.Format(time.RFC3339Nano)
	default:
		return fmt.Sprint(field)
	}
}

// fields describes each field of a record or a letter: its name and its value.
func fields[T driver.Record | driver.Letter](v *T) (all [][2]string) {
	of := reflect.ValueOf(v).Elem()
	for i := range of.NumField() {
		all = append(all, [2]string{of.Type().Field(i).Name, fieldText(of.Field(i).Interface())})
	}
	return all
}

// nameOf names a record by its Ref, and a letter by its ID.
func nameOf[T driver.Record | driver.Letter](v *T) string {
	switch v := any(v).(type) {
	case *driver.Record:
		return fmt.Sprint("record ", int64(v.Ref))
	case *driver.Letter:
		return "letter " + v.ID.String()
	}
	return ""
}

// difference describes in which fields records or letters differ. It is empty for equal ones.
func difference[T driver.Record | driver.Letter](want, got []*T) string {
	names := func(all []*T) string {
		texts := []string{}
		for _, v := range all {
			texts = append(texts, nameOf(v))
		}
		return fmt.Sprint(len(all), ": ", strings.Join(texts, ", "))
	}
	if names(want) != names(got) {
		return fmt.Sprintf("want %s\ngot  %s", names(want), names(got))
	}
	var all strings.Builder
	for i := range want {
		of := fields(got[i])
		for k, field := range fields(want[i]) {
			if field != of[k] {
				fmt.Fprintf(&all, "%s: %s: want %s, got %s\n", nameOf(want[i]), field[0], field[1], of[k][1])
			}
		}
	}
	return all.String()
}

// requireSame requires that records or letters have the fields of want.
func requireSame[T driver.Record | driver.Letter](t *testing.T, want, got []*T, what string, args ...any) {
	t.Helper()
	if found := difference(want, got); found != "" {
		require.FailNow(t, fmt.Sprintf(what, args...)+":\n"+found)
	}
}

// bytesText describes bytes. nil and empty differ.
func bytesText(b []byte) string {
	if b == nil {
		return "nil"
	}
	return fmt.Sprintf("%q", b)
}

// requireRecords requires that the records have the content of want, apart from what Claim sets.
func requireRecords(t *testing.T, want, got []*driver.Record) {
	t.Helper()
	durable := func(records []*driver.Record) (all []*driver.Record) {
		for _, r := range records {
			c := *r
			c.Leased, c.Crashes, c.Own, c.Suspect = false, 0, false, false
			all = append(all, &c)
		}
		return all
	}
	requireSame(t, durable(want), durable(got), "the store returned other records")
}

// requireLetters requires that the letters are those of want.
func requireLetters(t *testing.T, want []*driver.Letter, got []driver.Letter) {
	t.Helper()
	requireSame(t, want, pointers(got), "the store returned other letters")
}

// pointers returns pointers to the elements.
func pointers[T any](s []T) []*T {
	var all []*T
	for i := range s {
		all = append(all, &s[i])
	}
	return all
}

// newestFirst sorts letters as Letters returns them.
func newestFirst(letters []*driver.Letter) []*driver.Letter {
	return slices.SortedFunc(slices.Values(letters), func(x, y *driver.Letter) int {
		return compareIDs(y.ID, x.ID)
	})
}

// page returns a page of letters.
func page(t *testing.T, s driver.Store, q driver.LetterQuery) driver.LetterPage {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 10_000
	}
	p, err := s.Letters(t.Context(), q)
	require.NoError(t, err, "Letters")
	return p
}
