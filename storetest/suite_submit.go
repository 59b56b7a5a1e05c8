package storetest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
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
		send(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}, func(err error) {
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
		send(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}, done)
		<-entered
		for range count - 1 {
			send(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}, done)
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
	var refs []driver.Ref
	outcomes := make(chan error, 2*count)
	for i := range count {
		b := &driver.Batch{Now: noon, New: []*driver.Record{ready(), ready()}}
		if i%5 == 3 {
			b.Delete = []driver.Ref{1 << 40}
		}
		send(s, b, func(err error) {
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
			require.ErrorIs(t, err, driver.ErrNotLeased)
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
	require.GreaterOrEqual(t, refs[0], driver.Ref(1))
}

func testDoneMaySubmit(t *testing.T, r *rig) {
	s := r.open(t)
	outcome := make(chan error, 1)
	first := ready(leased)
	send(s, &driver.Batch{Now: noon, New: []*driver.Record{first}}, func(err error) {
		if err != nil {
			outcome <- err
			return
		}
		send(s, &driver.Batch{Now: noon, Delete: []driver.Ref{first.Ref}}, func(err error) { outcome <- err })
	})
	require.NoError(t, await(t, outcome))
	require.Zero(t, stats(t, s).Unsettled())
}

// What done reports as durable is there after the process ends.
func testIsDurableWhenDone(t *testing.T, r *rig) {
	s := r.open(t)
	one, two, l := ready(), ready(leased), letter()
	apply(t, s, &driver.Batch{Now: noon, New: []*driver.Record{one, two}, Bury: []*driver.Letter{l}})
	require.Len(t, lookup(t, s, one.ID), 1, "a read after done misses the batch")
	if r.Crash != nil {
		s = r.crash(t, s)
	} else {
		s = r.reopen(t, s)
	}
	requireRecords(t, []*driver.Record{one, two}, claimReady(t, s))
	requireLetters(t, []*driver.Letter{l}, page(t, s, driver.LetterQuery{}).Letters)
}

func testEmptyBatch(t *testing.T, r *rig) {
	s := r.open(t)
	apply(t, s, &driver.Batch{})
	require.Zero(t, stats(t, s))
}

var closeTests = []conformanceTest{
	{name: "AppliesSubmitted", run: testCloseAppliesSubmitted},
	{name: "WaitsForDone", run: testCloseWaitsForDone},
	{name: "CutShort", run: testCloseCutShort},
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
		send(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}, func(err error) {
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

// Reopen and Close return after every done has returned, and not when it is called.
func testCloseWaitsForDone(t *testing.T, r *rig) {
	const takes = 50 * time.Millisecond
	s := r.open(t)
	for _, call := range []struct {
		name string
		call func(context.Context) error
	}{{"Reopen", s.Reopen}, {"Close", s.Close}} {
		var returned atomic.Bool
		send(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}, func(error) {
			pause(t, takes)
			returned.Store(true)
		})
		require.NoError(t, call.call(t.Context()), call.name)
		require.True(t, returned.Load(), "%s returned before a done that takes %v", call.name, takes)
	}
}

// Close and Reopen return soon after their ctx has ended, although a done hangs, and beside a Close that waits. Close
// goes on, and later ones wait for it.
func testCloseCutShort(t *testing.T, r *rig) {
	for _, first := range []string{"ended", "waiting"} {
		t.Run("First_"+first, func(t *testing.T) {
			s := r.open(t)
			entered, leave := make(chan error, 1), make(chan struct{})
			var once sync.Once
			release := func() { once.Do(func() { close(leave) }) }
			defer release()
			n := ready(leased)
			send(s, &driver.Batch{Now: noon, New: []*driver.Record{n}}, func(err error) {
				entered <- err
				<-leave
			})
			require.NoError(t, await(t, entered))
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			cut := func(name string, call func(context.Context) error) {
				t.Helper()
				var err error
				within(t, name+", with an ended context while a done hangs,", func() { err = call(ended) })
				require.ErrorIs(t, err, context.Canceled, "%s, with an ended context while a done hangs", name)
			}
			cut("Reopen", s.Reopen)
			if first == "ended" {
				cut("Close", s.Close)
			}
			closed := make(chan error, 1)
			go func() { closed <- s.Close(t.Context()) }()
			pause(t, 20*time.Millisecond)
			cut("Close", s.Close)
			require.Empty(t, closed, "Close returned before a done that hangs")
			release()
			require.NoError(t, await(t, closed), "a Close that waited")
			require.NoError(t, s.Close(t.Context()), "a last Close")
			s = r.open(t)
			require.Zero(t, crashesOf(t, s)[n.Ref], "Close counts no crash")
			apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{n.Ref}})
			require.NoError(t, s.Close(t.Context()))
		})
	}
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
	require.ErrorIs(t, submit(t, s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}}), driver.ErrClosed)
	for name, call := range callsOf(s) {
		require.ErrorIs(t, call(t.Context()), driver.ErrClosed, name)
	}
	s.Watch(func(driver.Change) {})()
	require.Zero(t, stats(t, next))
}

// callsOf returns the calls of a store that return an error.
func callsOf(s driver.Store) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Claim": func(ctx context.Context) error {
			_, err := s.Claim(ctx, driver.ClaimQuery{Limit: 1})
			return err
		},
		"Letter": func(ctx context.Context) error {
			_, err := s.Letter(ctx, driver.ID{1})
			return err
		},
		"Letters": func(ctx context.Context) error {
			_, err := s.Letters(ctx, driver.LetterQuery{Limit: 1})
			return err
		},
		"Groups": func(ctx context.Context) error {
			return s.Groups(ctx, driver.LetterQuery{}, func(*driver.Group) error { return nil })
		},
		"Directives": func(ctx context.Context) error {
			_, err := s.Directives(ctx)
			return err
		},
		"Lookup": func(ctx context.Context) error {
			_, err := s.Lookup(ctx, newID())
			return err
		},
		"Catalogs": func(ctx context.Context) error {
			_, err := s.Catalogs(ctx)
			return err
		},
		"Incoming": func(ctx context.Context) error {
			_, err := s.Incoming(ctx, driver.IncomingQuery{Limit: 1})
			return err
		},
		"Requests": func(ctx context.Context) error {
			_, err := s.Requests(ctx, driver.RequestQuery{Limit: 1})
			return err
		},
		"Answer": func(ctx context.Context) error {
			_, _, err := s.Answer(ctx, 1)
			return err
		},
		"Acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, driver.AcquireQuery{Wait: true})
			return err
		},
		"Release": func(ctx context.Context) error { return s.Release(ctx, driver.SlotSet{}) },
		"Now": func(ctx context.Context) error {
			_, err := s.Now(ctx)
			return err
		},
		"Audit": func(ctx context.Context) error {
			_, err := s.Audit(ctx, driver.AuditQuery{Limit: 1})
			return err
		},
		"Records": func(ctx context.Context) error {
			_, err := s.Records(ctx, driver.RecordQuery{Limit: 1})
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
		if err := call(ctx); err != nil && name != "Letter" && name != "Answer" {
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
	claimed, err := s.Claim(ctx, driver.ClaimQuery{Limit: 1})
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
	for i, record := range []*driver.Record{first, second} {
		send(s, &driver.Batch{Now: noon, Delete: []driver.Ref{record.Ref}, Deferrable: true}, func(err error) {
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
