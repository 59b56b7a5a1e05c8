package storetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var randomTests = func() []conformanceTest {
	var tests []conformanceTest
	for seed := range uint64(6) {
		tests = append(tests, conformanceTest{
			name: fmt.Sprintf("Seed%d", seed),
			run:  func(t *testing.T, r *rig) { testRandom(t, r, seed) },
		})
	}
	return tests
}()

// walk is a random sequence of calls of two stores that exchange the lease. The oracle predicts their
// outcomes.
type walk struct {
	*rand.Rand
	oracle
	t       *testing.T
	rig     *rig
	s       driver.Store // with the lease
	other   driver.Store // without
	now     time.Time
	epoch   int64       // of the lease
	inLease driver.Ref  // the last one of the lease
	last    driver.Ref  // the largest one
	letters []driver.ID // of all letters so far
	ids     []driver.ID
}

func testRandom(t *testing.T, r *rig, seed uint64) {
	steps := cmp.Or(r.RandomSteps, 400)
	if testing.Short() {
		steps = min(steps, 100)
	}
	w := &walk{Rand: rand.New(rand.NewPCG(seed, 2)), t: t, rig: r, s: r.open(t), other: r.beside(t), now: noon} //nolint:gosec // reproducible
	w.epoch = w.s.Lease().Epoch
	for range 5 {
		w.ids = append(w.ids, newID())
	}
	for step := range steps {
		w.now = w.now.Add(time.Duration(w.IntN(1000)) * time.Millisecond)
		switch n := w.IntN(100); {
		case n < 62:
			w.submit(step)
		case n < 91:
			w.claimSome(step)
		case n < 93:
			require.NoError(t, w.s.Reopen(t.Context()))
			w.began(false)
		case n < 95:
			w.s = r.reopen(t, w.s)
			w.began(false)
		case n < 98:
			w.exchange()
		case r.Crash != nil:
			w.crash()
		}
		for _, s := range []driver.Store{w.s, w.other} {
			require.Equal(t, w.stats(), stats(t, s), "step %d", step)
			require.Equal(t, w.parkedBy("door1"), parkedBy(t, s, "door1"), "step %d", step)
		}
	}
	w.compare()
	w.s = r.reopen(t, w.s)
	w.began(false)
	w.compare()
}

// began ends the lease of the oracle, and expects that the store has a new one.
func (w *walk) began(crash bool) {
	w.end(crash)
	epoch := w.s.Lease().Epoch
	require.Greater(w.t, epoch, w.epoch, "Epoch of a later lease")
	w.epoch, w.inLease = epoch, 0
}

// exchange gives the lease to the other store.
func (w *walk) exchange() {
	if w.IntN(2) == 0 {
		require.NoError(w.t, w.s.Release(w.t.Context(), driver.AllSlots()))
	} else {
		require.NoError(w.t, w.s.Close(w.t.Context()))
		w.s = w.rig.beside(w.t)
	}
	w.s, w.other = w.other, w.s
	acquire(w.t, w.s)
	w.began(false)
}

// crash ends one of the stores, or both.
func (w *walk) crash() {
	n := w.IntN(3)
	if n > 0 {
		w.rig.Crash(w.t, w.other)
		w.other = w.rig.beside(w.t)
	}
	if n < 2 {
		w.rig.Crash(w.t, w.s)
		w.s = w.rig.beside(w.t)
		if w.IntN(2) == 0 {
			w.s, w.other = w.other, w.s
		}
		acquire(w.t, w.s)
		w.began(true)
	}
}

// submit submits a random batch.
func (w *walk) submit(step int) {
	s, holds, epoch := w.s, true, w.epoch
	if w.IntN(5) == 0 {
		s, holds, epoch = w.other, false, 0
	}
	b := w.batch(holds || w.IntN(10) == 0)
	switch w.IntN(25) {
	case 0:
		b.Epoch = 0
	case 1:
		b.Epoch = w.epoch - w.Int64N(2)
	default:
		b.Epoch = epoch
	}
	specified := deepCopy(*b)
	if w.rig.Deny != nil && w.IntN(15) == 0 && len(b.Update)+len(b.Delete) == 0 {
		w.rig.Deny(w.t, s)
		for _, n := range specified.New {
			n.Leased = false
		}
	}
	err := submitAs(w.t, s, b)
	if err != nil {
		want := w.apply(&specified, assigned{}, epoch)
		require.NotNil(w.t, want, "step %d: refused: %v", step, err)
		require.Equal(w.t, want, err, "step %d", step)
		return
	}
	for i, n := range b.New {
		require.Greater(w.t, n.Ref, w.inLease, "step %d: refs of one lease grow", step)
		require.False(w.t, slices.ContainsFunc(w.records, func(r oracleRecord) bool { return r.Ref == n.Ref }), "step %d: Ref %d is known", step, n.Ref)
		w.inLease, w.last = n.Ref, max(w.last, n.Ref)
		require.Equal(w.t, specified.New[i].Leased, n.Leased, "step %d: Leased of %d", step, n.Ref)
	}
	if want := w.apply(&specified, assignedIn(b), epoch); want != nil {
		require.Fail(w.t, "a batch was applied", "step %d: want %v", step, want)
	}
	for _, n := range b.New {
		i := slices.IndexFunc(w.records, func(r oracleRecord) bool { return r.Ref == n.Ref })
		require.Equal(w.t, w.records[i].Position, n.Position, "step %d: Position of %d", step, n.Ref)
	}
}

// chance runs do up to twice.
func (w *walk) chance(percent int, do func()) {
	for range 2 {
		if w.IntN(100) < percent {
			do()
		}
	}
}

// batch returns a batch that the store applies more often than not. leased is set for one that needs the lease.
func (w *walk) batch(leased bool) *driver.Batch {
	b := &driver.Batch{Now: w.now}
	dedupe := func() driver.Dedupe {
		return driver.Dedupe{
			Scope: fmt.Sprint("scope", w.IntN(2)), Key: fmt.Sprint("key", w.IntN(20)), Event: w.someEvent(),
			Content: fmt.Sprint(w.IntN(100)), Expires: w.now.Add(time.Duration(w.IntN(20)-2) * time.Second),
		}
	}
	w.chance(10, func() { b.Remember = append(b.Remember, dedupe()) })
	w.chance(10, func() { b.Forget = append(b.Forget, dedupe()) })
	w.chance(10, func() { b.ForgetSettled = append(b.ForgetSettled, w.settled(dedupe)) })
	w.chance(5, func() {
		if len(w.letters) > 0 {
			b.Take = append(b.Take, w.letters[max(0, len(w.letters)-1-w.IntN(12))])
		}
	})
	w.chance(5, func() { b.Withdraw = append(b.Withdraw, w.withdrawable()) })
	w.chance(20, func() {
		in := fullIncoming()
		in.Record.ID, in.Given = w.ids[w.IntN(len(w.ids))], w.IntN(2) == 0
		if w.IntN(2) == 0 {
			in.Record.State, in.Record.Due, in.Record.Scheduled = driver.Ready, time.Time{}, time.Time{}
		}
		b.Leave = append(b.Leave, in)
	})
	w.chance(10, func() { b.Ask = append(b.Ask, &driver.Request{Body: fmt.Appendf(nil, `{"n":%d}`, w.IntN(1000))}) })
	w.chance(4, func() { b.Unask = append(b.Unask, w.asked()) })
	w.chance(8, func() {
		b.Outcomes = append(b.Outcomes, outcomeOf(w.ids[w.IntN(len(w.ids))], fmt.Sprint(w.IntN(1000))))
	})
	if w.IntN(12) == 0 {
		b.Catalog = &driver.Catalog{Instance: fmt.Sprint("instance", w.IntN(3))}
		if w.IntN(4) > 0 {
			b.Catalog.Body = catalogWith(fmt.Sprint(w.IntN(100)))
		}
	}
	if leased {
		w.leasedPart(b)
	}
	w.chance(8, func() {
		l := fullLetter()
		if w.IntN(3) > 0 {
			l = someLetters(w.Uint64(), 1)[0]
		}
		if len(w.letters) > 0 && w.IntN(4) == 0 {
			l.ID = w.letters[w.IntN(len(w.letters))]
		}
		w.letters = append(w.letters, l.ID)
		b.Bury = append(b.Bury, l)
	})
	return b
}

// settled returns an entry that is known, or another one. Some events have records.
func (w *walk) settled(other func() driver.Dedupe) driver.Dedupe {
	if len(w.known) == 0 || w.IntN(4) == 0 {
		return other()
	}
	known := w.known[w.IntN(len(w.known))]
	if w.IntN(3) == 0 {
		known.Expires = time.Time{} // any
	}
	return known
}

// leasedPart adds what needs the lease.
func (w *walk) leasedPart(b *driver.Batch) {
	w.chance(15, func() {
		if len(w.incoming) > 0 {
			b.Accept = append(b.Accept, w.incoming[w.IntN(len(w.incoming))].ID)
		} else {
			b.Accept = append(b.Accept, driver.IncomingID(w.IntN(20)))
		}
	})
	w.chance(35, func() { b.New = append(b.New, w.newRecord(len(b.New) > 0)) })
	if held := w.held(); len(held) > 0 {
		w.chance(25, func() { b.Update = append(b.Update, w.change(held[w.IntN(len(held))])) })
		w.chance(15, func() { b.Delete = append(b.Delete, held[w.IntN(len(held))].Ref) })
	}
	if w.IntN(30) == 0 && len(w.records) > 0 {
		b.Update = append(b.Update, w.change(w.records[w.IntN(len(w.records))]))
	}
	if w.IntN(30) == 0 && w.last > 0 {
		b.Delete = append(b.Delete, 1+driver.Ref(w.Int64N(int64(w.last))))
	}
	w.chance(8, func() {
		b.Answer = append(b.Answer, driver.Answer{Request: w.asked(), Body: fmt.Appendf(nil, `{"of":%d}`, w.IntN(1000))})
	})
	w.chance(8, func() {
		b.Directives = append(b.Directives, directive(fmt.Sprint("subscription", w.IntN(4)), fmt.Sprint(w.IntN(100))))
	})
}

// someEvent returns an event that may have records.
func (w *walk) someEvent() driver.ID {
	if w.IntN(2) == 0 {
		return newID()
	}
	return w.ids[w.IntN(len(w.ids))]
}

// withdrawable returns the event of an incoming event, or any event.
func (w *walk) withdrawable() driver.ID {
	for _, in := range w.incoming {
		if w.IntN(4) > 0 {
			return in.Record.ID
		}
	}
	return w.ids[w.IntN(len(w.ids))]
}

// asked returns the ID of a request, more often than not.
func (w *walk) asked() driver.RequestID {
	if len(w.requests) == 0 {
		return driver.RequestID(w.IntN(10))
	}
	return w.requests[max(0, len(w.requests)-1-w.IntN(6))].ID
}

// held returns the records that the lease has.
func (w *walk) held() []oracleRecord {
	return slices.DeleteFunc(slices.Clone(w.records), func(r oracleRecord) bool { return !r.Leased })
}

func (w *walk) newRecord(follows bool) *driver.Record {
	n := fullRecord()
	n.ID = w.ids[w.IntN(len(w.ids))]
	n.Key = []string{"", "", "k", "l"}[w.IntN(4)]
	n.Expires = time.Time{}
	if w.IntN(3) == 0 {
		n.Expires = w.now.Add(time.Duration(w.IntN(60_000)) * time.Millisecond)
	}
	w.progress(n)
	switch {
	case w.IntN(5) == 0 && follows:
		n.Position = driver.BesidePrevious
	case w.IntN(5) == 0 && w.last > 0:
		n.Position = 1 + w.Int64N(int64(w.last))
	}
	return n
}

// change returns a random update of a record.
func (w *walk) change(r oracleRecord) *driver.Record {
	u := &driver.Record{Ref: r.Ref, Position: 1, ID: newID(), Type: "ignored", Crashes: 1000, Own: true}
	w.progress(u)
	return u
}

// someDestinations are those of the random tests.
var someDestinations = []string{"", "a", "b", "a 'ü\"%"}

// progress sets the fields of Update.
func (w *walk) progress(r *driver.Record) {
	r.State = driver.State(w.IntN(4))
	r.Due, r.Door, r.Progress = time.Time{}, "", nil
	switch r.State {
	case driver.Waiting, driver.Scheduled:
		r.Due = w.now.Add(time.Duration(w.IntN(6000)-1000) * time.Millisecond)
	case driver.Parked:
		r.Door = fmt.Sprint("door", w.IntN(2))
	case driver.Ready:
	}
	if r.Destination = ""; r.State == driver.Parked || w.IntN(8) == 0 {
		r.Destination = someDestinations[w.IntN(len(someDestinations))]
	}
	if w.IntN(2) == 0 {
		r.Progress = fmt.Appendf(nil, `{"attempts":%d}`, w.IntN(1000))
	}
	r.Leased, r.Suspect = w.IntN(2) == 0, w.IntN(6) == 0
}

// someRefs returns some of the last records, most of which exist.
func (w *walk) someRefs() (some []driver.Ref) {
	for i := range driver.Ref(w.IntN(8)) {
		some = append(some, w.last-5+i)
	}
	w.Shuffle(len(some), func(i, k int) { some[i], some[k] = some[k], some[i] })
	return some
}

// claimSome claims records of a random kind.
func (w *walk) claimSome(step int) {
	q := driver.ClaimQuery{
		Kind: []driver.ClaimKind{driver.ClaimReady, driver.ClaimDue, driver.ClaimParked, driver.ClaimParked, driver.ClaimRefs, driver.ClaimExpired}[w.IntN(6)], Limit: 1 + w.IntN(5), Now: w.now,
		Doors: [][]string{nil, {"door0"}, {"door1"}, {"door1", "door0"}}[w.IntN(4)], Refs: w.someRefs(),
	}
	if q.Kind == driver.ClaimParked {
		of := slices.Clone(someDestinations)
		w.Shuffle(len(of), func(i, k int) { of[i], of[k] = of[k], of[i] })
		of = of[:w.IntN(len(of))]
		if w.IntN(2) == 0 {
			q.Destinations = of
		} else {
			q.OtherThan = of
		}
	}
	want, got := w.claim(q), claim(w.t, w.s, q)
	requireSame(w.t, want.Records, got.Records, "step %d: Claim(%+v)", step, q)
	require.Equal(w.t, want.More, got.More, "step %d: More of %+v", step, q)
	require.True(w.t, want.NextDue.Equal(got.NextDue), "step %d: NextDue of %+v is %v, want %v", step, q, got.NextDue, want.NextDue)
}

// compare compares all data.
func (w *walk) compare() {
	requireLetters(w.t, newestFirst(w.oracle.letters), page(w.t, w.s, driver.LetterQuery{}).Letters)
	if len(w.oracle.letters) > 0 {
		for _, q := range someQueries(w.oracle.letters) {
			want := matching(w.t, w.oracle.letters, q)
			p := page(w.t, w.s, q)
			requireLetters(w.t, want, p.Letters)
			require.Equal(w.t, len(want), p.Total, "Total of %s", queryText(q))
			requireGroups(w.t, groupsOf(want), w.s, q)
		}
	}
	requireDirectives(w.t, w.s, w.directives...)
	requireCatalogs(w.t, w.s, w.catalogs...)
	requireIncoming(w.t, w.s, driver.IncomingQuery{Limit: 3}, pointers(w.incoming)...)
	var open []driver.RequestID
	for _, asked := range w.requests {
		requireAnswer(w.t, w.s, asked.ID, string(asked.answer))
		if asked.answer == nil {
			open = append(open, asked.ID)
		}
	}
	requireRequests(w.t, w.s, open...)
	for _, id := range w.ids {
		var outcomes []driver.Outcome
		for _, o := range w.outcomes {
			if o.Event == id {
				outcomes = append(outcomes, o)
			}
		}
		requireOutcomes(w.t, w.s, id, outcomes...)
		var want []*driver.Record
		for i := range w.records {
			if w.records[i].ID == id {
				want = append(want, &w.records[i].Record)
			}
		}
		requireRecords(w.t, want, lookup(w.t, w.s, id))
	}
}
