package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var requestTests = []conformanceTest{
	{name: "IsAsked", run: testRequestIsAsked},
	{name: "IsAnswered", run: testRequestIsAnswered},
	{name: "Pages", run: testRequestPages},
	{name: "AnsweredOnce", run: testRequestAnsweredOnce},
	{name: "Unask", run: testUnask},
	{name: "WithTheBatch", run: testRequestWithTheBatch},
	{name: "IDsGrow", run: testRequestIDsGrow},
	{name: "SurvivesACrash", needs: needsCrash, run: testRequestSurvivesACrash},
	{name: "AnswerAge", run: testAnswerAge},
	{name: "FromTwoStores", run: testAskFromTwoStores},
	{name: "AnswerOrUnask", run: testAnswerOrUnask},
}

// ask inserts a request and returns its ID.
func ask(t *testing.T, s driver.Store) driver.RequestID {
	t.Helper()
	asked := request()
	apply(t, s, &driver.Batch{Now: noon, Ask: []*driver.Request{asked}})
	require.Positive(t, asked.ID, "RequestID")
	return asked.ID
}

// answer returns a batch with an answer.
func answer(id driver.RequestID, body string) *driver.Batch {
	return &driver.Batch{Now: noon, Answer: []driver.Answer{{Request: id, Body: []byte(body)}}}
}

// requireRequests requires that these requests have no answer.
func requireRequests(t *testing.T, s driver.Store, want ...driver.RequestID) {
	t.Helper()
	got, err := s.Requests(t.Context(), driver.RequestQuery{Limit: 1000})
	require.NoError(t, err, "Requests")
	ids := []driver.RequestID{}
	for _, asked := range got {
		ids = append(ids, asked.ID)
	}
	require.Equal(t, append([]driver.RequestID{}, want...), ids, "requests without an answer")
}

// requireAnswer requires the answer of a request: none if it is empty.
func requireAnswer(t *testing.T, s driver.Store, id driver.RequestID, want string) {
	t.Helper()
	body, answered, err := s.Answer(t.Context(), id)
	require.NoError(t, err, "Answer")
	require.Equal(t, want != "", answered, "whether request %d has an answer", id)
	require.Equal(t, want, string(body), "the answer of request %d", id)
}

// requireNoRequest requires that a request is unknown.
func requireNoRequest(t *testing.T, s driver.Store, id driver.RequestID) {
	t.Helper()
	body, answered, err := s.Answer(t.Context(), id)
	require.ErrorIs(t, err, driver.ErrNotFound, "Answer of request %d", id)
	require.False(t, answered)
	require.Empty(t, body)
}

// refuseRequest submits a batch that must be refused because of a request of Answer or Unask.
func refuseRequest(t *testing.T, s driver.Store, b *driver.Batch, id driver.RequestID, what string) {
	t.Helper()
	refused := refuse(t, s, b, driver.ErrNotFound, what)
	require.Equal(t, id, refused.Request, "%s: RefusedError.Request", what)
}

// Every store asks, and all stores see the bytes of the request.
func testRequestIsAsked(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	var want []driver.Request
	for i, body := range []string{`{}`, `null`, `{"b":1.0,"a":"ü'\u003c\u0000","c":null}`} {
		asked := &driver.Request{ID: 99, Body: []byte(body)}
		apply(t, []driver.Store{s, other, other}[i], &driver.Batch{Now: noon, Ask: []*driver.Request{asked}})
		want = append(want, *asked)
	}
	require.NotEqual(t, want[0].ID, want[1].ID)
	for _, store := range []driver.Store{s, other} {
		got, err := store.Requests(t.Context(), driver.RequestQuery{Limit: 9})
		require.NoError(t, err)
		require.ElementsMatch(t, want, got)
		for _, asked := range want {
			requireAnswer(t, store, asked.ID, "")
		}
		requireNoRequest(t, store, 1<<40)
		requireNoRequest(t, store, 0)
	}
}

// The answer of a request ends it, and every store reads the answer.
func testRequestIsAnswered(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	one, two := ask(t, other), ask(t, other)
	const body = `{"b":1.0,"a":"ü'\u003c\u0000","c":null}`
	apply(t, s, answer(one, body))
	for _, store := range []driver.Store{s, other} {
		requireRequests(t, store, two)
		requireAnswer(t, store, one, body)
		requireAnswer(t, store, two, "")
	}
	require.NoError(t, other.Close(t.Context()))
	s = r.reopen(t, s)
	requireAnswer(t, s, one, body)
	apply(t, s, answer(two, "null"))
	requireAnswer(t, s, two, "null")
	requireRequests(t, s)
}

func testRequestPages(t *testing.T, r *rig) {
	s := r.open(t)
	var ids []driver.RequestID
	for range 5 {
		ids = append(ids, ask(t, s))
	}
	apply(t, s, answer(ids[1], `{}`))
	apply(t, s, &driver.Batch{Now: noon, Unask: []driver.RequestID{ids[3]}})
	want := []driver.RequestID{ids[0], ids[2], ids[4]}
	for limit := 1; limit <= 4; limit++ {
		var got []driver.RequestID
		for q := (driver.RequestQuery{Limit: limit}); ; {
			page, err := s.Requests(t.Context(), q)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), limit)
			if len(page) == 0 {
				break
			}
			for _, asked := range page {
				require.Greater(t, asked.ID, q.After, "Requests returns requests in the order of ID, after After")
				q.After = asked.ID
				got = append(got, asked.ID)
			}
		}
		require.Equal(t, want, got, "pages of %d requests, in the order of ID", limit)
	}
}

// Answer of a request that is unknown or has an answer is refused, and nothing changes.
func testRequestAnsweredOnce(t *testing.T, r *rig) {
	s := r.open(t)
	answered, open, unasked := ask(t, s), ask(t, s), ask(t, s)
	apply(t, s, answer(answered, `{"first":true}`))
	apply(t, s, &driver.Batch{Now: noon, Unask: []driver.RequestID{unasked}})
	for what, id := range map[string]driver.RequestID{"answered": answered, "unasked": unasked, "unknown": 1 << 40, "zero": 0} {
		b := answer(open, `{"refused":true}`)
		b.Answer = append(b.Answer, driver.Answer{Request: id, Body: []byte(`{"second":true}`)})
		b.New = []*driver.Record{ready()}
		refuseRequest(t, s, b, id, "Answer, "+what)
		require.Zero(t, b.New[0].Ref)
		requireAnswer(t, s, open, "")
	}
	twice := answer(open, `{}`)
	twice.Answer = append(twice.Answer, twice.Answer[0])
	refuseRequest(t, s, twice, open, "Answer of a request twice")
	requireAnswer(t, s, answered, `{"first":true}`)
	requireRequests(t, s, open)
	require.Zero(t, stats(t, s).Unsettled())
}

// Unask removes a request that has no answer. It needs no lease. All others are refused, and nothing changes.
func testUnask(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	one, two, answered := ask(t, other), ask(t, other), ask(t, other)
	apply(t, s, answer(answered, `{}`))
	apply(t, other, &driver.Batch{Now: noon, Unask: []driver.RequestID{one}})
	requireNoRequest(t, s, one)
	for what, id := range map[string]driver.RequestID{"twice": two, "answered": answered, "unasked": one, "unknown": 1 << 40, "zero": 0} {
		b := &driver.Batch{Now: noon, Unask: []driver.RequestID{two, id}, Bury: []*driver.Letter{letter()}}
		refuseRequest(t, other, b, id, "Unask, "+what)
	}
	requireRequests(t, s, two)
	requireAnswer(t, other, answered, `{}`)
	require.Zero(t, stats(t, s))
	apply(t, other, &driver.Batch{Now: noon, Unask: []driver.RequestID{two}})
	requireRequests(t, s)
}

// A request is done and answered by one batch, or by none.
func testRequestWithTheBatch(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	due := ready(scheduled(time.Hour), leased)
	insert(t, s, due)
	id := ask(t, other)
	remove := func(ref driver.Ref) *driver.Batch {
		b := answer(id, `{"done":true}`)
		b.Delete = []driver.Ref{ref}
		return b
	}
	refuse(t, s, remove(due.Ref+1), driver.ErrNotLeased)
	requireAnswer(t, other, id, "")
	require.Len(t, lookup(t, other, due.ID), 1)
	apply(t, s, remove(due.Ref))
	requireAnswer(t, other, id, `{"done":true}`)
	require.Empty(t, lookup(t, other, due.ID))
	again := ready(scheduled(time.Hour), leased)
	insert(t, s, again)
	refuseRequest(t, s, remove(again.Ref), id, "a repeated answer")
	require.Len(t, lookup(t, other, again.ID), 1, "a refused batch removed a record")
	// Unask comes before Answer.
	both := answer(ask(t, other), `{}`)
	both.Unask = []driver.RequestID{both.Answer[0].Request}
	refuseRequest(t, s, both, both.Unask[0], "Answer of a request that the same batch removes")
	requireRequests(t, s, both.Unask[0])
}

// Ids grow, and are never used again.
func testRequestIDsGrow(t *testing.T, r *rig) {
	s := r.open(t)
	var last driver.RequestID
	for i := range 8 {
		batch := []*driver.Request{request(), request()}
		apply(t, s, &driver.Batch{Now: noon, Ask: batch})
		for _, asked := range batch {
			require.Greater(t, asked.ID, last, "RequestID")
			last = asked.ID
		}
		apply(t, s, &driver.Batch{Now: noon, Unask: []driver.RequestID{batch[0].ID, batch[1].ID}})
		if i%3 == 1 {
			s = r.reopen(t, s)
		}
	}
	requireRequests(t, s)
}

func testRequestSurvivesACrash(t *testing.T, r *rig) {
	s, other := r.open(t), r.beside(t)
	answered, open := ask(t, other), ask(t, other)
	apply(t, s, answer(answered, `{"done":true}`))
	r.Crash(t, other)
	s = r.crash(t, s)
	requireRequests(t, s, open)
	requireAnswer(t, s, answered, `{"done":true}`)
	apply(t, s, answer(open, `{}`))
}

// An answer stays for AnswerAge, by AgedAt and not by Now. A request without an answer stays for ever.
func testAnswerAge(t *testing.T, r *rig) {
	s := r.open(t)
	answered, open := ask(t, s), ask(t, s)
	apply(t, s, answer(answered, `{}`))
	for _, b := range []*driver.Batch{
		{Now: noon.Add(driver.AnswerAge - 1), New: []*driver.Record{ready()}},
		{Now: noon.Add(48 * time.Hour), AgedAt: noon.Add(driver.AnswerAge - 1), New: []*driver.Record{ready()}},
		{Now: noon.Add(49 * time.Hour), AgedAt: noon.Add(driver.AnswerAge - 1), Ask: []*driver.Request{request()}},
	} {
		apply(t, s, b)
		requireAnswer(t, s, answered, `{}`)
	}
	s = r.reopen(t, s)
	requireAnswer(t, s, answered, `{}`)
	for i := range 3 { // now the store may remove it
		apply(t, s, &driver.Batch{Now: noon.Add(time.Duration(100+i) * time.Hour), New: []*driver.Record{ready()}})
	}
	if _, _, err := s.Answer(t.Context(), answered); err != nil {
		require.ErrorIs(t, err, driver.ErrNotFound)
	} else {
		requireAnswer(t, s, answered, `{}`)
	}
	refuseRequest(t, s, answer(answered, `{"again":true}`), answered, "Answer of a request whose answer has expired")
	requireAnswer(t, s, open, "")
	late := answer(open, `{"late":true}`)
	late.Now = noon.Add(200 * time.Hour)
	apply(t, s, late)
	requireAnswer(t, s, open, `{"late":true}`)
}

// Two stores ask at once, and the one with the lease answers each request once.
func testAskFromTwoStores(t *testing.T, r *rig) {
	const each = 60
	s, other := r.open(t), r.beside(t)
	var group sync.WaitGroup
	journals := make([]journal, 2)
	for i, store := range []driver.Store{s, other} {
		group.Go(func() {
			for range each {
				journals[i].submit(store, &driver.Batch{Now: noon, Ask: []*driver.Request{request()}})
			}
		})
	}
	answered := make(map[driver.RequestID]bool)
	took := time.Now()
	for len(answered) < 2*each {
		require.Less(t, time.Since(took), patience, "requests that were asked are missing")
		page, err := s.Requests(t.Context(), driver.RequestQuery{Limit: 7})
		require.NoError(t, err)
		for _, asked := range page {
			require.False(t, answered[asked.ID], "request %d has an answer, and returned", asked.ID)
			answered[asked.ID] = true
			apply(t, s, answer(asked.ID, fmt.Sprintf(`{"of":%d}`, asked.ID)))
		}
		if len(page) == 0 {
			pause(t, time.Millisecond)
		}
	}
	group.Wait()
	for i := range journals {
		require.Equal(t, each, journals[i].check(t))
		for _, b := range journals[i].done {
			require.True(t, answered[b.Ask[0].ID])
			requireAnswer(t, other, b.Ask[0].ID, fmt.Sprintf(`{"of":%d}`, b.Ask[0].ID))
		}
	}
}

// Of an answer and an Unask at the same time, one gets each request.
func testAnswerOrUnask(t *testing.T, r *rig) {
	const n = 200
	s, other := r.open(t), r.beside(t)
	var ids []driver.RequestID
	for range n / 10 {
		var batch []*driver.Request
		for range 10 {
			batch = append(batch, request())
		}
		apply(t, other, &driver.Batch{Now: noon, Ask: batch})
		for _, asked := range batch {
			ids = append(ids, asked.ID)
		}
	}
	journals := make([]journal, 2)
	var group sync.WaitGroup
	group.Go(func() {
		for i := n - 1; i >= 0; i-- {
			journals[0].submit(other, &driver.Batch{Now: noon, Unask: []driver.RequestID{ids[i]}})
			if i%10 == 0 {
				journals[0].wait.Wait()
			}
		}
	})
	group.Go(func() {
		for i, id := range ids {
			b := answer(id, `{"done":true}`)
			b.New = []*driver.Record{ready()}
			journals[1].submit(s, b)
			if i%10 == 0 {
				journals[1].wait.Wait()
			}
		}
	})
	group.Wait()
	unasked, answered := journals[0].check(t), journals[1].check(t)
	require.Equal(t, n, unasked+answered, "%d were unasked, %d were answered", unasked, answered)
	for i := range journals {
		for _, err := range journals[i].errs {
			if err != nil {
				require.ErrorIs(t, err, driver.ErrNotFound)
			}
		}
	}
	for i, b := range journals[1].done {
		if journals[1].errs[i] == nil {
			requireAnswer(t, other, b.Answer[0].Request, `{"done":true}`)
		} else {
			requireNoRequest(t, other, b.Answer[0].Request)
		}
	}
	require.EqualValues(t, answered, stats(t, other).Ready, "a request was done and not answered")
	requireRequests(t, s)
}
