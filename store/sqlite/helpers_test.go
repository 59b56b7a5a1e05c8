package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

var t0 = time.Date(2026, 11, 24, 10, 0, 0, 123, time.UTC)

func testPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "events.db")
}

// openAt opens a store and acquires the lease.
func openAt(t testing.TB, path string, opts ...Option) *Store {
	t.Helper()
	s := openOnly(t, path, opts...)
	acquire(t, s)
	return s
}

// openOnly opens a store without the lease.
func openOnly(t testing.TB, path string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// openErr returns the error of Open and Acquire.
func openErr(ctx context.Context, path string, opts ...Option) error {
	s, err := Open(ctx, path, opts...)
	if err != nil {
		return err
	}
	_, err = s.Acquire(ctx, driver.AcquireQuery{})
	return errors.Join(err, s.Close(context.Background()))
}

func acquire(t testing.TB, s *Store) driver.Lease {
	t.Helper()
	lease, err := s.Acquire(context.Background(), driver.AcquireQuery{})
	require.NoError(t, err)
	require.Equal(t, lease, s.Lease())
	require.Equal(t, driver.AllSlots(), lease.Slots)
	return lease
}

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	require.NoError(t, s.Close(context.Background()))
}

// inside calls f on the committer's goroutine.
func inside(t testing.TB, s *Store, f func(c *committer) error) {
	t.Helper()
	require.NoError(t, s.committer.queue.Control(context.Background(), func() error { return f(&s.committer) }))
}

// crash ends a store as SIGKILL does: nothing is written, and the kernel releases the lock.
func crash(t testing.TB, s *Store) {
	t.Helper()
	s.watch.set.Close()
	inside(t, s, func(c *committer) error {
		c.killed = true
		return nil
	})
	require.NoError(t, s.Close(context.Background()))
}

// submit submits a batch, under the lease of the store if it needs one, and waits for its outcome.
func submit(s *Store, b *driver.Batch) error {
	if b.Now.IsZero() {
		b.Now = t0
	}
	if b.Epoch == 0 && b.NeedsLease() {
		b.Epoch = s.Lease().Epoch
	}
	done := make(chan error, 1)
	s.Submit(b, func(err error) { done <- err })
	return <-done
}

func newID() driver.ID { return driver.ID(eventbus.NewEventID()) }

func catalogOf(body []byte) *driver.Catalog { return &driver.Catalog{Instance: "a", Body: body} }

func ready(key string) *driver.Record {
	return &driver.Record{
		ID: newID(), Type: "order.placed", Key: key, Payload: []byte(`{"id":1}`),
		Published: t0, Targets: []string{"billing", "mail"}, Leased: true,
	}
}

func with(r *driver.Record, change func(*driver.Record)) *driver.Record {
	change(r)
	return r
}

func free(r *driver.Record) *driver.Record { r.Leased = false; return r }

func accept(t testing.TB, s *Store, records ...*driver.Record) {
	t.Helper()
	require.NoError(t, submit(s, &driver.Batch{New: records}))
}

// waiting returns a new incoming event.
func waiting() *driver.Incoming { return &driver.Incoming{Record: free(ready("")), Codec: "json"} }

// leave leaves an incoming event, for which no lease is needed.
func leave(t testing.TB, s *Store) *driver.Incoming {
	t.Helper()
	in := waiting()
	require.NoError(t, submit(s, &driver.Batch{Leave: []*driver.Incoming{in}}))
	return in
}

// takeIn accepts all incoming events, as the bus with the lease does.
func takeIn(t testing.TB, s *Store) {
	t.Helper()
	page, err := s.Incoming(context.Background(), driver.IncomingQuery{Limit: 1000})
	require.NoError(t, err)
	b := &driver.Batch{}
	for _, in := range page.Events {
		if in.Record.Targets == nil {
			in.Record.Targets = []string{"mail"}
		}
		b.Accept, b.New = append(b.Accept, in.ID), append(b.New, in.Record)
	}
	require.NoError(t, submit(s, b))
}

func claim(t testing.TB, s *Store, q driver.ClaimQuery) driver.Claimed {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	c, err := s.Claim(context.Background(), q)
	require.NoError(t, err)
	return c
}

func refsOf(records []*driver.Record) (refs []driver.Ref) {
	for _, r := range records {
		refs = append(refs, r.Ref)
	}
	return refs
}

func bury(t testing.TB, s *Store, letters ...*driver.Letter) {
	t.Helper()
	require.NoError(t, submit(s, &driver.Batch{Bury: letters}))
}

// setFailpoint lets stores call f at their failpoints, or nothing if f is nil.
func setFailpoint(f func(name string)) {
	if f == nil {
		failpoint.Store(nil)
		return
	}
	failpoint.Store(&f)
}
