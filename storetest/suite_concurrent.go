package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var concurrentTests = []conformanceTest{
	{name: "Submitters", run: testConcurrentSubmitters},
	{name: "Claims", run: testConcurrentClaims},
	{name: "Processes", run: testConcurrentProcesses},
	{name: "SubmitDuringClose", run: testSubmitDuringClose},
}

// journal records the order of Submit and of done. submit holds its lock during Submit, as a bus
// does, and done acquires another.
type journal struct {
	mu        sync.Mutex // held during Submit
	submitted []*driver.Batch

	doneMu sync.Mutex // guards the following
	done   []*driver.Batch
	errs   []error
	wait   sync.WaitGroup
}

func (j *journal) submit(s driver.Store, b *driver.Batch) {
	j.submitBy(func(b *driver.Batch, done func(error)) { send(s, b, done) }, b)
}

// submitAs submits a batch as it is, also without an Epoch.
func (j *journal) submitAs(s driver.Store, b *driver.Batch) { j.submitBy(s.Submit, b) }

func (j *journal) submitBy(submit func(b *driver.Batch, done func(error)), b *driver.Batch) {
	j.wait.Add(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.submitted = append(j.submitted, b)
	submit(b, func(err error) {
		j.doneMu.Lock()
		defer j.doneMu.Unlock()
		j.done = append(j.done, b)
		j.errs = append(j.errs, err)
		j.wait.Done()
	})
}

// check waits for all done, and checks their order and the order of the refs.
func (j *journal) check(t *testing.T) (applied int) {
	t.Helper()
	within(t, "waiting for done", j.wait.Wait)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.doneMu.Lock()
	defer j.doneMu.Unlock()
	require.Len(t, j.done, len(j.submitted))
	var last driver.Ref
	for i, b := range j.done {
		require.Same(t, j.submitted[i], b, "done %d was not called in the order of Submit", i)
		if j.errs[i] != nil {
			continue
		}
		applied++
		for _, n := range b.New {
			require.Greater(t, n.Ref, last, "refs do not grow in the order of Submit")
			last = n.Ref
		}
	}
	return applied
}

// 64 goroutines accept and settle records.
func testConcurrentSubmitters(t *testing.T, r *rig) {
	const submitters, each = 64, 20
	s := r.open(t)
	var j journal
	var group sync.WaitGroup
	for i := range submitters {
		group.Go(func() {
			for k := range each {
				n := ready(leased, key(fmt.Sprint(i)))
				b := &driver.Batch{Now: noon, New: []*driver.Record{n}}
				b.Remember = []driver.Dedupe{{Key: fmt.Sprint(i%4, k), Event: n.ID, Expires: noon.Add(1)}}
				j.submit(s, b)
			}
		})
	}
	group.Wait()
	// 4 * each keys, of which the first batch of each applied.
	require.Equal(t, 4*each, j.check(t))
	require.EqualValues(t, 4*each, stats(t, s).Ready)
	for _, err := range j.errs {
		if err != nil {
			require.ErrorIs(t, err, driver.ErrDuplicateID)
		}
	}
	for _, b := range j.done {
		if b.New[0].Ref != 0 {
			send(s, &driver.Batch{Now: noon, Delete: []driver.Ref{b.New[0].Ref}}, func(error) {})
		}
	}
	apply(t, s, &driver.Batch{Now: noon})
	require.Zero(t, stats(t, s))
}

// Claims beside submitters lease each record once.
func testConcurrentClaims(t *testing.T, r *rig) {
	const submitters, each = 8, 50
	s := r.open(t)
	var j journal
	var mu sync.Mutex
	var claimed []driver.Ref
	claimSome := func() (int, error) {
		c, err := s.Claim(t.Context(), driver.ClaimQuery{Kind: driver.ClaimReady, Limit: 7})
		mu.Lock()
		defer mu.Unlock()
		claimed = append(claimed, refsOf(c.Records)...)
		return len(c.Records), err
	}
	var group sync.WaitGroup
	for i := range submitters {
		group.Go(func() {
			for k := range each {
				j.submit(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}, Bury: []*driver.Letter{letter()}})
				if (i+k)%5 == 0 {
					if _, err := claimSome(); err != nil {
						t.Errorf("Claim: %v", err)
					}
					if _, err := s.Letters(t.Context(), driver.LetterQuery{Limit: 3}); err != nil {
						t.Errorf("Letters: %v", err)
					}
				}
			}
		})
	}
	group.Wait()
	require.Equal(t, submitters*each, j.check(t))
	for {
		n, err := claimSome()
		require.NoError(t, err)
		if n == 0 {
			break
		}
	}
	slices.Sort(claimed)
	require.Len(t, slices.Compact(claimed), submitters*each)
	require.Zero(t, stats(t, s).Free)
}

// Two processes leave and insert events, and take each other's letters: one of them gets each.
func testConcurrentProcesses(t *testing.T, r *rig) {
	const letters, each = 40, 40
	s, beside := r.open(t), r.beside(t)
	var ids []driver.ID
	for range letters {
		l := letter()
		ids = append(ids, l.ID)
		apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{l}})
	}
	journals := make([]journal, 2)
	var group sync.WaitGroup
	for i, store := range []driver.Store{s, beside} {
		group.Go(func() {
			for k := range each {
				var news []*driver.Record
				if store == s {
					news = append(news, ready())
				}
				journals[i].submit(store, &driver.Batch{Now: noon, Leave: []*driver.Incoming{incoming()}})
				journals[i].submit(store, &driver.Batch{Now: noon, Take: ids[k : k+1], Leave: []*driver.Incoming{incoming()}, New: news})
			}
		})
	}
	group.Wait()
	require.Equal(t, 2*each+letters, journals[0].check(t)+journals[1].check(t))
	counts := stats(t, s)
	require.Zero(t, counts.Letters)
	require.EqualValues(t, 2*each+letters, counts.Incoming)
	require.Len(t, incomingOf(t, s, driver.IncomingQuery{Limit: 7}), 2*each+letters)
	require.Len(t, claimReady(t, s), int(counts.Ready))
}

// A batch that is submitted during Close is applied and durable, or fails with driver.ErrClosed.
func testSubmitDuringClose(t *testing.T, r *rig) {
	s := r.open(t)
	var j journal
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				j.submit(s, &driver.Batch{Now: noon, New: []*driver.Record{ready()}})
			}
		})
	}
	require.NoError(t, s.Close(t.Context()))
	group.Wait()
	applied := j.check(t)
	for i, err := range j.errs {
		if err != nil {
			require.ErrorIs(t, err, driver.ErrClosed)
			require.GreaterOrEqual(t, i, applied, "a batch was applied after driver.ErrClosed")
		}
	}
	require.Len(t, claimReady(t, r.open(t)), applied)
}
