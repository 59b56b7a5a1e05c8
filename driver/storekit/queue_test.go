package storekit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nothing is work of no weight.
type nothing struct{}

func (nothing) Weight() int { return 0 }

type job = storekit.Job[nothing]

// store takes the jobs of a queue until it is closed, and notes them in groups.
type store struct {
	queue  *storekit.Queue[nothing]
	closed chan struct{}
	alone  func(*job) bool

	mu     sync.Mutex // guards the following
	groups [][]*driver.Batch
}

func newStore(alone func(*job) bool) *store {
	s := &store{closed: make(chan struct{}), alone: alone}
	s.queue = storekit.NewQueue[nothing](s.closed)
	go s.run()
	return s
}

func (s *store) run() {
	for {
		jobs := s.queue.Take()
		for len(jobs) > 0 {
			n := storekit.Group(jobs, s.alone)
			if jobs[0].Control != nil {
				jobs[0].Control()
			} else {
				s.commit(jobs[:n])
			}
			jobs = jobs[n:]
		}
		select {
		case <-s.closed:
			return
		default:
			<-s.queue.Wake()
		}
	}
}

func (s *store) commit(group []*job) {
	var batches []*driver.Batch
	for _, j := range group {
		batches = append(batches, j.Batch)
	}
	s.mu.Lock()
	s.groups = append(s.groups, batches)
	s.mu.Unlock()
	for _, j := range group {
		j.Done(s.queue.Failure())
	}
}

func (s *store) add(b *driver.Batch) <-chan error {
	done := make(chan error, 1)
	s.queue.Add(&job{Batch: b, Done: func(err error) { done <- err }})
	return done
}

func (s *store) close() {
	s.queue.Close(func() { close(s.closed) })
	<-s.closed
}

func never(*job) bool { return false }

func TestQueue_GroupsWhatHasGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		single := &driver.Batch{Take: []driver.ID{{1}}}
		large := &driver.Batch{New: []*driver.Record{{Payload: make([]byte, 8<<20)}}}
		s := newStore(func(j *job) bool { return j.Batch == single })
		defer s.close()
		hold := make(chan struct{})
		s.queue.Add(&job{Control: func() { <-hold }})
		synctest.Wait()
		a, b, c, d := &driver.Batch{}, &driver.Batch{}, &driver.Batch{}, &driver.Batch{}
		var last <-chan error
		for _, batch := range []*driver.Batch{a, b, single, c, large, d} {
			last = s.add(batch)
		}
		close(hold)
		require.NoError(t, <-last)
		require.Equal(t, [][]*driver.Batch{{a, b}, {single}, {c}, {large}, {d}}, s.groups)
	})
}

func TestQueue_BoundsAGroup(t *testing.T) {
	jobs := make([]*job, storekit.MaxGroup+1)
	for i := range jobs {
		jobs[i] = &job{Batch: &driver.Batch{}}
	}
	require.Equal(t, storekit.MaxGroup, storekit.Group(jobs, never))
	jobs[5] = &job{Control: func() {}}
	require.Equal(t, 5, storekit.Group(jobs, never))
	require.Equal(t, 1, storekit.Group(jobs[5:], never))
}

// A batch that remembers what an earlier one of the group may forget begins another group.
func TestQueue_AGroupEndsBeforeANameThatItMayForget(t *testing.T) {
	entry := driver.Dedupe{Scope: "order.placed", Key: "k", Event: driver.ID{1}}
	same, other := entry, entry
	same.Event, other.Key = driver.ID{2}, "l"
	jobs := []*job{
		{Batch: &driver.Batch{Remember: []driver.Dedupe{entry}}},
		{Batch: &driver.Batch{ForgetSettled: []driver.Dedupe{entry}}},
		{Batch: &driver.Batch{ForgetSettled: []driver.Dedupe{other}}},
		{Batch: &driver.Batch{Remember: []driver.Dedupe{{Scope: "order.paid", Key: "k"}}}},
		{Batch: &driver.Batch{Remember: []driver.Dedupe{same}}},
		{Batch: &driver.Batch{}},
	}
	require.Equal(t, 4, storekit.Group(jobs, never))
	require.Equal(t, 2, storekit.Group(jobs[4:], never))
}

func TestQueue_DefersAFewBatchesThatNobodyWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(never)
		defer s.close()
		began := time.Now()
		require.NoError(t, <-s.add(&driver.Batch{Deferrable: true}))
		require.Equal(t, storekit.Deferral, time.Since(began))
		began = time.Now()
		deferred := s.add(&driver.Batch{Deferrable: true})
		synctest.Wait()
		require.NoError(t, <-s.add(&driver.Batch{}))
		require.NoError(t, <-deferred)
		require.Zero(t, time.Since(began), "another batch ends the deferral")
	})
}

func TestQueue_ControlEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(never)
		defer s.close()
		own := errors.New("own")
		require.ErrorIs(t, s.queue.Control(t.Context(), func() error { return own }), own)
		hold := make(chan struct{})
		s.queue.Add(&job{Control: func() { <-hold }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ran := false
		require.ErrorIs(t, s.queue.Control(ctx, func() error { ran = true; return nil }), context.DeadlineExceeded)
		close(hold)
		require.NoError(t, s.queue.Control(t.Context(), func() error { return nil }))
		require.False(t, ran, "Control has returned, and its function ran")
		require.ErrorIs(t, s.queue.Control(ctx, func() error { return nil }), context.DeadlineExceeded)
	})
}

func TestQueue_FailsAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(never)
		first := errors.New("first")
		require.NoError(t, s.queue.State())
		failed := s.queue.Fail(first)
		require.ErrorIs(t, failed, driver.ErrFailed)
		require.ErrorIs(t, failed, first)
		require.Equal(t, failed, s.queue.Fail(errors.New("second")), "the first error stays")
		require.Equal(t, failed, <-s.add(&driver.Batch{}))
		s.queue.Recover()
		require.NoError(t, <-s.add(&driver.Batch{}))
		require.NoError(t, s.queue.State())
		s.close()
		require.ErrorIs(t, s.queue.State(), driver.ErrClosed)
		for range 3 {
			require.ErrorIs(t, <-s.add(&driver.Batch{}), driver.ErrClosed)
		}
	})
}
