package sqlite

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
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
func submit(s *Store, b *eventbus.Batch) error {
	if b.Now.IsZero() {
		b.Now = t0
	}
	done := make(chan error, 1)
	s.Submit(b, func(err error) { done <- err })
	return <-done
}

func ready(key string) *eventbus.Record {
	return &eventbus.Record{
		ID: eventbus.NewEventID(), Type: "order.placed", Key: key, Payload: []byte(`{"id":1}`),
		Published: t0, Targets: []string{"billing", "mail"}, Leased: true,
	}
}

func with(r *eventbus.Record, change func(*eventbus.Record)) *eventbus.Record {
	change(r)
	return r
}

func free(r *eventbus.Record) *eventbus.Record { r.Leased = false; return r }

func accept(t testing.TB, s *Store, records ...*eventbus.Record) {
	t.Helper()
	require.NoError(t, submit(s, &eventbus.Batch{New: records}))
}

func claim(t testing.TB, s *Store, q eventbus.ClaimQuery) eventbus.Claimed {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	c, err := s.Claim(context.Background(), q)
	require.NoError(t, err)
	return c
}

func refsOf(records []*eventbus.Record) (refs []eventbus.Ref) {
	for _, r := range records {
		refs = append(refs, r.Ref)
	}
	return refs
}

func letterFor(subscription string, reason eventbus.Reason, text string) *eventbus.DeadLetter {
	l := &eventbus.DeadLetter{
		ID: eventbus.LetterID(eventbus.NewEventID()), Reason: reason, Subscription: subscription,
		Attempts: 1, DiedAt: t0,
		Failures: []eventbus.Failure{{Attempt: 1, Subscription: subscription, Time: t0, Duration: time.Second, Error: text, Class: "*errors.errorString"}},
	}
	l.Event = eventbus.Event{ID: eventbus.NewEventID(), Type: "order.placed", Key: "k", Time: t0, Payload: json.RawMessage(`{"a":1}`)}
	l.Fingerprint = l.Group().Fingerprint
	return l
}

func bury(t testing.TB, s *Store, letters ...*eventbus.DeadLetter) {
	t.Helper()
	require.NoError(t, submit(s, &eventbus.Batch{Bury: letters}))
}
