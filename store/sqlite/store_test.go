package sqlite

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

func TestStore_KeepsRecords(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	plain, keyed := ready(""), ready("k\n\"ü")
	keyed.Metadata = []byte(`{"a":"1","b":"ü"}`)
	waiting := with(ready(""), func(r *driver.Record) {
		r.State, r.Due = driver.Waiting, t0.Add(time.Hour)
		r.Progress = []byte(`{"next":1,"attempts":2,"failures":[{"attempt":1,"error":"e"}]}`)
		r.Replay = []byte(`{"began":"2026-11-24T10:00:00Z","count":1,"original":"eA=="}`)
		r.Scheduled = t0.Add(time.Minute)
	})
	beside := with(ready(""), func(r *driver.Record) { r.Position = driver.BesidePrevious; r.Payload = nil })
	accept(t, s, plain, keyed, waiting, beside)
	require.Equal(t, []driver.Ref{1, 2, 3, 4}, refsOf([]*driver.Record{plain, keyed, waiting, beside}))
	require.Equal(t, int64(3), beside.Position)
	closeStore(t, s)

	s = openAt(t, path)
	for _, want := range []*driver.Record{plain, keyed, waiting, beside} {
		got, err := s.Lookup(context.Background(), want.ID)
		require.NoError(t, err)
		want.Leased = false
		require.Equal(t, []*driver.Record{want}, got)
	}
	c := claim(t, s, driver.ClaimQuery{})
	require.Equal(t, []driver.Ref{1, 2, 4}, refsOf(c.Records))
	require.False(t, c.More)
	c = claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: t0})
	require.Empty(t, c.Records)
	require.Equal(t, waiting.Due, c.NextDue)
	c = claim(t, s, driver.ClaimQuery{Kind: driver.ClaimDue, Now: t0.Add(time.Hour)})
	require.Equal(t, []driver.Ref{3}, refsOf(c.Records))
	stats, err := s.Stats(context.Background())
	require.NoError(t, err)
	require.Equal(t, driver.Stats{Ready: 3, Waiting: 1}, stats)
	require.NoError(t, submit(s, &driver.Batch{Delete: []driver.Ref{1, 4, 3, 2}}))
	stats, err = s.Stats(context.Background())
	require.NoError(t, err)
	require.Equal(t, driver.Stats{}, stats)
	accept(t, s, plain)
	require.Equal(t, driver.Ref(5), plain.Ref)
}

func TestStore_RefusesAlone(t *testing.T) {
	s := openAt(t, testPath(t))
	a, b := ready(""), ready("")
	accept(t, s, a, b)
	entry := driver.Dedupe{Scope: "s", Key: "k", Event: a.ID, Content: "c", Expires: t0.Add(time.Hour)}
	require.NoError(t, submit(s, &driver.Batch{Remember: []driver.Dedupe{entry}}))

	unknown := driver.ID{1}
	for name, batch := range map[string]*driver.Batch{
		"remember":     {Remember: []driver.Dedupe{{Scope: "x"}, entry}, New: []*driver.Record{ready("")}},
		"take":         {Take: []driver.ID{unknown}, New: []*driver.Record{ready("")}},
		"delete":       {Delete: []driver.Ref{a.Ref, 77}, Bury: []*driver.Letter{letterFor("s", eventbus.ReasonCrash, "e")}},
		"delete twice": {Delete: []driver.Ref{a.Ref, a.Ref}},
		"update":       {Update: []*driver.Record{{Ref: 77}}, Delete: []driver.Ref{a.Ref}},
		"freed before": {Update: []*driver.Record{{Ref: a.Ref}}, Delete: []driver.Ref{a.Ref}},
	} {
		err := submit(s, batch)
		var refused *driver.RefusedError
		require.ErrorAs(t, err, &refused, name)
		switch name {
		case "remember":
			require.ErrorIs(t, err, driver.ErrDuplicateID)
			require.Equal(t, &entry, refused.Known)
		case "take":
			require.ErrorIs(t, err, driver.ErrNotFound)
			require.Equal(t, unknown, refused.Letter)
		default:
			require.ErrorIs(t, err, driver.ErrNotLeased, name)
		}
	}
	stats, err := s.Stats(context.Background())
	require.NoError(t, err)
	require.Equal(t, driver.Stats{Ready: 2}, stats)
	require.NoError(t, submit(s, &driver.Batch{Now: entry.Expires, Remember: []driver.Dedupe{entry}}), "it has expired")
}

func TestStore_CountsCrashes(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	a, b := ready(""), ready("")
	accept(t, s, a, b)
	crash(t, s)

	s = openAt(t, path)
	c := claim(t, s, driver.ClaimQuery{})
	require.Equal(t, []int{1, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes})
	require.NoError(t, submit(s, &driver.Batch{Update: []*driver.Record{with(c.Records[0], func(r *driver.Record) { r.Suspect = true })}}))
	crash(t, s)

	s = openAt(t, path)
	c = claim(t, s, driver.ClaimQuery{})
	require.Equal(t, []int{2, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes}, "only suspects count")
	require.False(t, c.Records[0].Suspect)
	closeStore(t, s)

	s = openAt(t, path)
	require.NoError(t, s.Reopen(context.Background()))
	c = claim(t, s, driver.ClaimQuery{})
	require.Equal(t, []int{2, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes}, "neither Close nor Reopen counts")
	require.NoError(t, s.Reopen(context.Background()))
	c = claim(t, s, driver.ClaimQuery{})
	require.Equal(t, []int{2, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes})
}

func TestStore_HasOneLease(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	standby := openOnly(t, path)
	_, err := standby.Acquire(context.Background(), driver.AcquireQuery{})
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorIs(t, err, driver.ErrNoLease)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, os.Getpid(), locked.PID)
	require.NotEmpty(t, locked.Host)

	_, err = standby.Claim(context.Background(), driver.ClaimQuery{Limit: 1})
	require.ErrorIs(t, err, driver.ErrNoLease)
	require.ErrorIs(t, submit(standby, &driver.Batch{New: []*driver.Record{ready("")}}), driver.ErrLeaseLost)
	own := free(ready(""))
	accept(t, s, own)
	require.True(t, claim(t, s, driver.ClaimQuery{}).Records[0].Own)
	closeStore(t, s)
	acquire(t, standby)
}

func TestStore_ClaimsInOrder(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	var all []*driver.Record
	for i := range 40 {
		r := ready("")
		if i%3 == 1 {
			r.Position = driver.BesidePrevious
		}
		if i%4 == 0 {
			r.Leased = false
		}
		all = append(all, r)
	}
	accept(t, s, all...)
	crash(t, s)
	s = openAt(t, path)
	var got []*driver.Record
	for {
		c := claim(t, s, driver.ClaimQuery{Limit: 7})
		got = append(got, c.Records...)
		require.Equal(t, len(got) < len(all), c.More)
		if !c.More {
			break
		}
	}
	require.Len(t, got, len(all))
	for i, r := range got[1:] {
		require.LessOrEqual(t, got[i].Position, r.Position)
		if got[i].Position == r.Position {
			require.Less(t, got[i].Ref, r.Ref)
		}
	}
	for _, r := range got {
		want := 1
		if (int(r.Ref)-1)%4 == 0 {
			want = 0
		}
		require.Equal(t, want, r.Crashes, "the lease did not have free records")
	}
}

func ordersOnly(eventType string) bool { return strings.HasPrefix(eventType, "order.") }

// failedOf selects the letters with a failure whose text has a part.
func failedOf(text string) func(details, failures []byte) (bool, error) {
	return func(_, failures []byte) (bool, error) {
		all, err := decodePart[[]failureJSON](failures)
		return slices.ContainsFunc(all, func(f failureJSON) bool { return strings.Contains(f.Error, text) }), err
	}
}

func TestStore_KeepsLetters(t *testing.T) {
	s := openAt(t, testPath(t))
	a := letterFor("billing", eventbus.ReasonExhausted, "timeout after 10 s")
	b := letterFor("billing", eventbus.ReasonExhausted, "timeout after 20 s")
	c := letterFor("mail", eventbus.ReasonPermanent, "no address", func(l *eventbus.DeadLetter) {
		l.Event.Payload, l.Original, l.Edited = eventbus.EncodedPayload("x"), eventbus.EncodedPayload(""), true
	})
	bury(t, s, a, b, c, a)
	ctx := context.Background()
	for _, want := range []*driver.Letter{a, b, c} {
		got, err := s.Letter(ctx, want.ID)
		require.NoError(t, err)
		require.Equal(t, *want, got)
	}
	_, err := s.Letter(ctx, driver.ID{})
	require.ErrorIs(t, err, driver.ErrNotFound)
	ids := func(q driver.LetterQuery) (ids []driver.ID) {
		q.Limit = 1
		for {
			page, err := s.Letters(ctx, q)
			require.NoError(t, err)
			for _, l := range page.Letters {
				ids = append(ids, l.ID)
			}
			if q.Before = page.Next; q.Before.IsZero() {
				require.Equal(t, len(ids), page.Total)
				return ids
			}
		}
	}
	require.Equal(t, []driver.ID{c.ID, b.ID, a.ID}, ids(driver.LetterQuery{}))
	require.Equal(t, []driver.ID{b.ID, a.ID}, ids(driver.LetterQuery{Subscriptions: []string{"billing"}}))
	require.Equal(t, []driver.ID{b.ID, a.ID}, ids(driver.LetterQuery{Fingerprint: a.Fingerprint}))
	require.Equal(t, []driver.ID{c.ID}, ids(driver.LetterQuery{Reason: string(eventbus.ReasonPermanent), Type: ordersOnly}))
	require.Equal(t, []driver.ID{c.ID}, ids(driver.LetterQuery{Parts: failedOf("address")}))
	require.Equal(t, []driver.ID{c.ID, b.ID, a.ID}, ids(driver.LetterQuery{Since: t0, Until: t0}))
	require.Empty(t, ids(driver.LetterQuery{Since: t0.Add(1)}))

	for _, q := range []driver.LetterQuery{{}, {Type: ordersOnly}} {
		var groups []driver.Group
		require.NoError(t, s.Groups(ctx, q, func(g *driver.Group) error {
			groups = append(groups, *g)
			return nil
		}))
		require.Len(t, groups, 2)
		sample := *b
		sample.Payload = nil
		want := driver.Group{Fingerprint: b.Fingerprint, Count: 2, First: t0, Last: t0, Newest: b.ID, Sample: &sample}
		require.Equal(t, want, groups[0])
	}
	require.NoError(t, submit(s, &driver.Batch{Take: []driver.ID{a.ID, c.ID}}))
	require.Equal(t, []driver.ID{b.ID}, ids(driver.LetterQuery{}))
}

// An error of a function of a query is that of the bus: the file is sound.
func TestStore_ReturnsTheErrorOfAQuery(t *testing.T) {
	s := openAt(t, testPath(t))
	bury(t, s, letterFor("mail", eventbus.ReasonCrash, "e"))
	entry := auditOf(eventbus.AuditEntry{At: t0, Action: eventbus.AuditPause})
	require.NoError(t, submit(s, &driver.Batch{Audit: []driver.AuditEntry{entry}}))
	undecodable := &time.ParseError{Message: "of a part"} // the store takes its own for damage
	q := driver.LetterQuery{Limit: 1, Parts: func(_, _ []byte) (bool, error) { return true, undecodable }}
	_, ofLetters := s.Letters(t.Context(), q)
	ofGroups := s.Groups(t.Context(), q, nil)
	ofEach := s.Groups(t.Context(), driver.LetterQuery{}, func(*driver.Group) error { return undecodable })
	_, ofAudit := s.Audit(t.Context(), driver.AuditQuery{Limit: 1, Match: func(*driver.AuditEntry) (bool, error) { return true, undecodable }})
	for _, err := range []error{ofLetters, ofGroups, ofEach, ofAudit} {
		require.ErrorIs(t, err, undecodable)
		require.False(t, isCorrupt(err))
	}
}

// A total is kept for the next page, and for no other query.
func TestStore_TotalsAreThoseOfTheQuery(t *testing.T) {
	s := openAt(t, testPath(t))
	bury(t, s, letterFor("mail", eventbus.ReasonCrash, "e"), letterFor("bill", eventbus.ReasonCrash, "e"), letterFor("bill", eventbus.ReasonExpired, "e"))
	total := func(q driver.LetterQuery) int {
		q.Limit = 1
		page, err := s.Letters(t.Context(), q)
		require.NoError(t, err)
		return page.Total
	}
	of := func(names ...string) driver.LetterQuery { return driver.LetterQuery{Subscriptions: names} }
	for range 2 {
		require.Equal(t, 1, total(of("mail")))
		require.Equal(t, 2, total(of("bill")))
		require.Equal(t, 3, total(of("bill", "mail")))
		require.Equal(t, 0, total(of("bill mail")))
		require.Equal(t, 2, total(driver.LetterQuery{Reason: string(eventbus.ReasonCrash)}))
		require.Equal(t, 3, total(driver.LetterQuery{Since: t0}))
		require.Equal(t, 0, total(driver.LetterQuery{Since: t0.Add(1)}))
	}
	bury(t, s, letterFor("mail", eventbus.ReasonCrash, "e"))
	require.Equal(t, 3, total(driver.LetterQuery{Reason: string(eventbus.ReasonCrash)}))
}

func TestStore_KeepsOrders(t *testing.T) {
	s := openAt(t, testPath(t))
	o := orderFor(eventbus.Directive{Subscription: "mail", Pause: true, Until: t0.Add(time.Hour), By: "eve", Why: "test", At: t0})
	tripped := orderFor(eventbus.Directive{Subscription: "a", Trip: true, At: t0})
	require.NoError(t, submit(s, &driver.Batch{Directives: []driver.Directive{tripped, o}}))
	resumed := orderFor(eventbus.Directive{Subscription: "a", At: t0.Add(time.Second)})
	require.NoError(t, submit(s, &driver.Batch{Directives: []driver.Directive{resumed}}))
	directives, err := s.Directives(context.Background())
	require.NoError(t, err)
	require.Equal(t, []driver.Directive{resumed, o}, directives, "one that resumes counts against older ones under other names")
}

// A clock that is set back by less than an hour finds the ids that have expired.
func TestStore_KeepsExpiredIDsForAnHour(t *testing.T) {
	s := openAt(t, testPath(t))
	entry := driver.Dedupe{Key: "k", Event: newID(), Expires: t0}
	remember := &driver.Batch{Now: t0.Add(-time.Second), Remember: []driver.Dedupe{entry}}
	require.NoError(t, submit(s, remember))
	require.NoError(t, submit(s, &driver.Batch{Now: t0.Add(59 * time.Minute), Bury: []*driver.Letter{letterFor("a", "b", "c")}}))
	require.ErrorIs(t, submit(s, remember), driver.ErrDuplicateID)
	require.NoError(t, submit(s, &driver.Batch{Now: t0.Add(time.Hour)}))
	require.NoError(t, submit(s, remember))
}

func TestStore_Watch(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	changed := make(chan struct{}, 1)
	stop := s.Watch(func(driver.Change) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	leave(t, openOnly(t, path))
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("no call")
	}
}

func TestStore_Close(t *testing.T) {
	s := openAt(t, testPath(t))
	var done []error
	for range 3 {
		s.Submit(&driver.Batch{Now: t0, Epoch: s.Lease().Epoch, New: []*driver.Record{ready("")}}, func(err error) { done = append(done, err) })
	}
	closeStore(t, s)
	require.Equal(t, []error{nil, nil, nil}, done)
	closeStore(t, s)
	require.ErrorIs(t, submit(s, &driver.Batch{}), driver.ErrClosed)
	_, err := s.Stats(context.Background())
	require.ErrorIs(t, err, driver.ErrClosed)
}
