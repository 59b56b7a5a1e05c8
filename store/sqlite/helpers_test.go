package sqlite

import (
	"context"
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

func openAt(t testing.TB, path string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	require.NoError(t, s.Close(context.Background()))
}

// inside calls f on the committer's goroutine.
func inside(t testing.TB, s *Store, f func(c *committer) error) {
	t.Helper()
	require.NoError(t, s.committer.control(context.Background(), func() error { return f(&s.committer) }))
}

// crash ends a store as SIGKILL does: nothing is written, and the kernel releases the lock.
func crash(t testing.TB, s *Store) {
	t.Helper()
	s.watch.close()
	inside(t, s, func(c *committer) error {
		c.killed = true
		return nil
	})
	require.NoError(t, s.Close(context.Background()))
}

// submit submits a batch and waits for its outcome.
func submit(s *Store, b *driver.Batch) error {
	if b.Now.IsZero() {
		b.Now = t0
	}
	done := make(chan error, 1)
	s.Submit(b, func(err error) { done <- err })
	return <-done
}

func newID() driver.ID { return driver.ID(eventbus.NewEventID()) }

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
