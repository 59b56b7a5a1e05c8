package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var watchTests = []conformanceTest{
	{name: "OtherProcess", run: testWatch},
	{name: "EachPart", run: testWatchEachPart},
	{name: "LeaseLoss", needs: needsLoss, run: testWatchLeaseLoss},
	{name: "GoesOnAfterReopen", run: testWatchGoesOnAfterReopen},
	{name: "StopWaits", run: testWatchStop},
	{name: "StopAfterClose", run: testWatchStopAfterClose},
}

// watchPatience is how long a test waits for a hint: 250 ms, and time for a slow machine.
const watchPatience = 5 * time.Second

// watched is what the calls of changed have told.
type watched struct {
	calls chan struct{}

	mu  sync.Mutex // guards the following
	all driver.Change
}

func newWatched() *watched { return &watched{calls: make(chan struct{}, 1000)} }

func (w *watched) changed(c driver.Change) {
	w.mu.Lock()
	w.all |= c
	w.mu.Unlock()
	select {
	case w.calls <- struct{}{}:
	default:
	}
}

func (w *watched) told() driver.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

func (w *watched) forget() {
	w.mu.Lock()
	w.all = 0
	w.mu.Unlock()
	for len(w.calls) > 0 {
		<-w.calls
	}
}

// await requires that changed is called with the bits of a change.
func (w *watched) await(t *testing.T, want driver.Change, what string) {
	t.Helper()
	timer := time.NewTimer(watchPatience)
	defer timer.Stop()
	for w.told()&want != want {
		select {
		case <-w.calls:
		case <-timer.C:
			require.FailNow(t, "Watch did not call changed", "%s: within %v it was called with changes %b, want %b", what, watchPatience, w.told(), want)
		}
	}
}

// awaitLeft requires that changed is called after other has left an event.
func (w *watched) awaitLeft(t *testing.T, other driver.Store) {
	t.Helper()
	w.forget()
	apply(t, other, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}})
	w.await(t, driver.ChangedIncoming, "another store has left an event")
}

// Each part of a batch that Batch.Changes names comes to the watchers of other stores.
func testWatchEachPart(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	in, other, answered, taken := incoming(scheduled(time.Hour)), incoming(), request(), request()
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{in, other}, Ask: []*driver.Request{answered, taken}})
	hints, own := newWatched(), newWatched()
	defer beside.Watch(hints.changed)()
	defer s.Watch(own.changed)()
	for _, b := range []*driver.Batch{
		{Leave: []*driver.Incoming{incoming()}},
		{Withdraw: []driver.ID{in.Record.ID}},
		{Ask: []*driver.Request{request()}},
		{Unask: []driver.RequestID{taken.ID}},
		{Answer: []driver.Answer{{Request: answered.ID, Body: []byte(`{}`)}}},
		{Directives: []driver.Directive{directive("mail", "pause")}},
		{Catalog: &driver.Catalog{Instance: "one", Body: []byte(`{}`)}},
		{Catalog: &driver.Catalog{Instance: "one"}},
		{Leave: []*driver.Incoming{incoming()}, Directives: []driver.Directive{directive("mail", "resume")}},
	} {
		hints.forget()
		b.Now = noon
		apply(t, s, b)
		hints.await(t, b.Changes(), fmt.Sprintf("a batch of another store has the changes %b", b.Changes()))
	}
	for _, b := range []*driver.Batch{
		{Leave: []*driver.Incoming{incoming()}},
		{Ask: []*driver.Request{request()}},
		{Catalog: &driver.Catalog{Instance: "two", Body: []byte(`{}`)}},
	} {
		own.forget()
		b.Now = noon
		apply(t, beside, b)
		own.await(t, b.Changes(), fmt.Sprintf("a batch of a store without the lease has the changes %b", b.Changes()))
	}
}

// The loss of the lease comes to the watchers of the store that had it.
func testWatchLeaseLoss(t *testing.T, r *rig) {
	s := r.open(t)
	hints := newWatched()
	defer s.Watch(hints.changed)()
	hints.forget()
	r.LoseLease(t, s)
	hints.await(t, driver.ChangedLease, "the store has lost its lease")
}

func testWatchGoesOnAfterReopen(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	hints := newWatched()
	stop := s.Watch(hints.changed)
	require.NoError(t, s.Reopen(t.Context()))
	pause(t, 300*time.Millisecond) // a hint of the Reopen
	hints.awaitLeft(t, beside)
	stop()
	stop()
}

func testWatch(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	hints := newWatched()
	for _, pair := range [][2]driver.Store{{s, beside}, {beside, s}} {
		stop := pair[0].Watch(hints.changed)
		hints.awaitLeft(t, pair[1])
		stop()
		hints.forget()
		apply(t, pair[1], &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}})
		pause(t, 300*time.Millisecond)
		require.Empty(t, hints.calls, "a hint came after stop")
	}
}

// pause waits, unless the test ends.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// stop waits for a call in progress.
func testWatchStop(t *testing.T, r *rig) {
	s, beside := r.open(t), r.beside(t)
	entered, leave := make(chan error, 1), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	returned := false
	stop := s.Watch(func(driver.Change) {
		once.Do(func() {
			entered <- nil
			<-leave
			mu.Lock()
			defer mu.Unlock()
			returned = true
		})
	})
	send(beside, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}}, func(error) {})
	require.NoError(t, await(t, entered))
	go func() {
		pause(t, 20*time.Millisecond)
		close(leave)
	}()
	stop()
	mu.Lock()
	defer mu.Unlock()
	require.True(t, returned, "stop returned during a call")
}

func testWatchStopAfterClose(t *testing.T, r *rig) {
	s := r.open(t)
	stop := s.Watch(func(driver.Change) {})
	require.NoError(t, s.Close(t.Context()))
	within(t, "stop, after Close,", stop)
	within(t, "a second stop", stop)
}
