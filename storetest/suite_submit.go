package storetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var submitTests = []conformanceTest{
	{name: "DoesNotCallDone", run: testSubmitDoesNotCallDone},
	{name: "DoesNotBlock", run: testSubmitDoesNotBlock},
	{name: "KeepsOrder", run: testSubmitKeepsOrder},
	{name: "DoneMaySubmit", run: testDoneMaySubmit},
	{name: "IsDurableWhenDone", run: testIsDurableWhenDone},
	{name: "EmptyBatch", run: testEmptyBatch},
	{name: "Deferrable", run: testDeferrable},
}

// within fails the test if do does not return in time.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	returned := make(chan struct{})
	go func() {
		do()
		close(returned)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-returned:
	case <-timer.C:
		require.FailNow(t, what+" did not return", "after %v", patience)
	}
}

// The bus holds a lock during Submit that done acquires.
func testSubmitDoesNotCallDone(t *testing.T, r *rig) {
	s := r.open(t)
	var mu sync.Mutex
	outcome := make(chan error, 1)
	within(t, "Submit, under a lock that done acquires,", func() {
		mu.Lock()
		defer mu.Unlock()
		s.Submit(&eventbus.Batch{Now: noon, New: []*eventbus.Record{ready()}}, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			outcome <- err
		})
	})
	require.NoError(t, await(t, outcome))
}

// While a done waits for the submitter's lock, Submit still returns.
func testSubmitDoesNotBlock(t *testing.T, r *rig) {
	const count = 2000
	s := r.open(t)
	var mu sync.Mutex
	entered := make(chan struct{}, count)
	outcomes := make(chan error, count)
	done := func(err error) {
		entered <- struct{}{}
		mu.Lock()
		defer mu.Unlock()
		outcomes <- err
	}
	within(t, "Submit, while a done waits,", func() {
		mu.Lock()
		defer mu.Unlock()
		s.Submit(&eventbus.Batch{Now: noon, New: []*eventbus.Record{ready()}}, done)
		<-entered
		for range count - 1 {
			s.Submit(&eventbus.Batch{Now: noon, New: []*eventbus.Record{ready()}}, done)
		}
	})
	for range count {
		require.NoError(t, await(t, outcomes))
	}
	require.EqualValues(t, count, stats(t, s).Ready)
}

// done is called once per batch, in the order of Submit, whether applied or refused.
func testSubmitKeepsOrder(t *testing.T, r *rig) {
	const count = 300
	s := r.open(t)
	var mu sync.Mutex
	var order []int
	var refs []eventbus.Ref
	outcomes := make(chan error, 2*count)
	for i := range count {
		b := &eventbus.Batch{Now: noon, New: []*eventbus.Record{ready(), ready()}}
		if i%5 == 3 {
			b.Delete = []eventbus.Ref{1 << 40}
		}
		s.Submit(b, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, i)
			if err == nil {
				refs = append(refs, b.New[0].Ref, b.New[1].Ref)
			}
			outcomes <- err
		})
	}
	refused := 0
	for range count {
		if err := await(t, outcomes); err != nil {
			require.ErrorIs(t, err, eventbus.ErrNotLeased)
			refused++
		}
	}
	require.NoError(t, s.Close(t.Context()))
	require.Empty(t, outcomes, "done was called twice")
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, count/5, refused)
	require.Len(t, order, count)
	require.True(t, slices.IsSorted(order), "done was not called in the order of Submit: %v", order)
	require.True(t, slices.IsSorted(refs) && len(slices.Compact(slices.Clone(refs))) == len(refs),
		"refs do not grow in the order of Submit: %v", refs)
	require.GreaterOrEqual(t, refs[0], eventbus.Ref(1))
}

func testDoneMaySubmit(t *testing.T, r *rig) {
	s := r.open(t)
	outcome := make(chan error, 1)
	first := ready(leased)
	s.Submit(&eventbus.Batch{Now: noon, New: []*eventbus.Record{first}}, func(err error) {
		if err != nil {
			outcome <- err
			return
		}
		s.Submit(&eventbus.Batch{Now: noon, Delete: []eventbus.Ref{first.Ref}}, func(err error) { outcome <- err })
	})
	require.NoError(t, await(t, outcome))
	require.Zero(t, stats(t, s).Unsettled())
}

// What done reports as durable is there after the process ends.
func testIsDurableWhenDone(t *testing.T, r *rig) {
	s := r.open(t)
	one, two, l := ready(), ready(leased), letter()
	apply(t, s, &eventbus.Batch{Now: noon, New: []*eventbus.Record{one, two}, Bury: []*eventbus.DeadLetter{l}})
	require.Len(t, lookup(t, s, one.ID), 1, "a read after done misses the batch")
	if r.Crash != nil {
		s = r.crash(t, s)
	} else {
		s = r.reopen(t, s)
	}
	requireRecords(t, []*eventbus.Record{one, two}, claimReady(t, s))
	requireLetters(t, []*eventbus.DeadLetter{l}, page(t, s, eventbus.LetterQuery{}).Letters)
}

func testEmptyBatch(t *testing.T, r *rig) {
	s := r.open(t)
	apply(t, s, &eventbus.Batch{})
	require.Zero(t, stats(t, s))
}

var closeTests = []conformanceTest{
	{name: "AppliesSubmitted", run: testCloseAppliesSubmitted},
	{name: "Twice", run: testCloseTwice},
	{name: "RefusesLaterCalls", run: testCloseRefusesLaterCalls},
	{name: "EndedContext", run: testEndedContext},
}

// Close applies what was submitted, and waits for every done.
func testCloseAppliesSubmitted(t *testing.T, r *rig) {
	const count = 200
	s := r.open(t)
	var mu sync.Mutex
	called := 0
	for range count {
		s.Submit(&eventbus.Batch{Now: noon, New: []*eventbus.Record{ready()}}, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				called++
			}
		})
	}
	require.NoError(t, s.Close(t.Context()))
	mu.Lock()
	require.Equal(t, count, called, "done that returned before Close")
	mu.Unlock()
	require.EqualValues(t, count, stats(t, r.open(t)).Ready)
}

func testCloseTwice(t *testing.T, r *rig) {
	s := r.open(t)
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, s.Close(t.Context()))
	s = r.open(t)
	insert(t, s, ready())
}

func testCloseRefusesLaterCalls(t *testing.T, r *rig) {
	s := r.open(t)
	require.NoError(t, s.Close(t.Context()))
	next := r.open(t)
	require.ErrorIs(t, submit(t, s, &eventbus.Batch{Now: noon, New: []*eventbus.Record{ready()}}), eventbus.ErrStoreClosed)
	for name, call := range callsOf(s) {
		require.ErrorIs(t, call(t.Context()), eventbus.ErrStoreClosed, name)
	}
	s.Watch(func() {})()
	require.Zero(t, stats(t, next))
}

// callsOf returns the calls of a store that return an error.
func callsOf(s eventbus.Store) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Claim": func(ctx context.Context) error {
			_, err := s.Claim(ctx, eventbus.ClaimQuery{Limit: 1})
			return err
		},
		"Letter": func(ctx context.Context) error {
			_, err := s.Letter(ctx, eventbus.LetterID{1})
			return err
		},
		"Letters": func(ctx context.Context) error {
			_, err := s.Letters(ctx, eventbus.LetterQuery{Limit: 1})
			return err
		},
		"Groups": func(ctx context.Context) error {
			_, err := s.Groups(ctx, eventbus.LetterQuery{})
			return err
		},
		"Orders": func(ctx context.Context) error {
			_, err := s.Orders(ctx)
			return err
		},
		"Lookup": func(ctx context.Context) error {
			_, err := s.Lookup(ctx, eventbus.NewEventID())
			return err
		},
		"Audit": func(ctx context.Context) error {
			_, err := s.Audit(ctx, eventbus.AuditQuery{Limit: 1})
			return err
		},
		"Records": func(ctx context.Context) error {
			_, err := s.Records(ctx, eventbus.RecordQuery{Limit: 1})
			return err
		},
		"Remembered": func(ctx context.Context) error {
			_, _, err := s.Remembered(ctx, "", "key")
			return err
		},
		"Stats": func(ctx context.Context) error {
			_, err := s.Stats(ctx)
			return err
		},
		"Parked": func(ctx context.Context) error {
			_, err := s.Parked(ctx, nil)
			return err
		},
		"Reopen": s.Reopen,
	}
}

// A call whose context has ended changes nothing, whether it returns an error or not.
func testEndedContext(t *testing.T, r *rig) {
	s := r.open(t)
	insert(t, s, ready())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range callsOf(s) {
		if err := call(ctx); err != nil && name != "Letter" {
			require.ErrorIs(t, err, context.Canceled, name)
		}
	}
	for range 20 { // a select between an ended context and a free connection takes either
		if err := s.Reopen(ctx); err != nil {
			require.ErrorIs(t, err, context.Canceled, "Reopen")
		}
	}
	_, err := s.Stats(t.Context())
	require.NoError(t, err, "a Reopen whose context had ended made the store fail")
	claimed, err := s.Claim(ctx, eventbus.ClaimQuery{Limit: 1})
	require.ErrorIs(t, err, context.Canceled, "Claim")
	require.Empty(t, claimed.Records)
	require.Len(t, claimReady(t, s), 1, "a Claim whose context had ended leased the record")
}

// A deferrable batch is committed although no other one follows, and in its place of the order.
func testDeferrable(t *testing.T, r *rig) {
	s := r.open(t)
	first, second := ready(leased), ready(leased)
	insert(t, s, first, second)
	outcomes := make(chan int, 2)
	for i, record := range []*eventbus.Record{first, second} {
		s.Submit(&eventbus.Batch{Now: noon, Delete: []eventbus.Ref{record.Ref}, Deferrable: true}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			outcomes <- i
		})
	}
	within(t, "deferrable batches", func() {
		if i := <-outcomes; i != 0 {
			t.Errorf("batch %d was committed first", i)
		}
		<-outcomes
	})
	require.Zero(t, stats(t, s).Unsettled())
}
