package sqlite

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestStore_KeepsRecords(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	plain, keyed := ready(""), ready("k\n\"ü")
	require.NoError(t, json.Unmarshal([]byte(`{"a":"1","b":"ü"}`), &keyed.Metadata))
	waiting := with(ready(""), func(r *eventbus.Record) {
		r.State, r.Due = eventbus.RecordWaiting, t0.Add(time.Hour)
		r.Progress = &eventbus.RecordProgress{Next: 1, Attempts: 2, Failures: []eventbus.Failure{{Attempt: 1, Error: "e", Time: t0}}}
		r.Replay = &eventbus.RecordReplay{Began: t0, Count: 1, Original: []byte("x")}
		r.Scheduled = t0.Add(time.Minute)
	})
	beside := with(ready(""), func(r *eventbus.Record) { r.Position = eventbus.BesidePrevious; r.Payload = nil })
	accept(t, s, plain, keyed, waiting, beside)
	require.Equal(t, []eventbus.Ref{1, 2, 3, 4}, refsOf([]*eventbus.Record{plain, keyed, waiting, beside}))
	require.Equal(t, int64(3), beside.Position)
	closeStore(t, s)

	s = openAt(t, path)
	for _, want := range []*eventbus.Record{plain, keyed, waiting, beside} {
		got, err := s.Lookup(context.Background(), want.ID)
		require.NoError(t, err)
		want.Leased = false
		require.Equal(t, []*eventbus.Record{want}, got)
	}
	c := claim(t, s, eventbus.ClaimQuery{})
	require.Equal(t, []eventbus.Ref{1, 2, 4}, refsOf(c.Records))
	require.False(t, c.More)
	c = claim(t, s, eventbus.ClaimQuery{Kind: eventbus.ClaimDue, Now: t0})
	require.Empty(t, c.Records)
	require.Equal(t, waiting.Due, c.NextDue)
	c = claim(t, s, eventbus.ClaimQuery{Kind: eventbus.ClaimDue, Now: t0.Add(time.Hour)})
	require.Equal(t, []eventbus.Ref{3}, refsOf(c.Records))
	stats, err := s.Stats(context.Background())
	require.NoError(t, err)
	require.Equal(t, eventbus.StoreStats{HasLease: true, Ready: 3, Waiting: 1}, stats)
	require.NoError(t, submit(s, &eventbus.Batch{Delete: []eventbus.Ref{1, 4, 3, 2}}))
	stats, err = s.Stats(context.Background())
	require.NoError(t, err)
	require.Equal(t, eventbus.StoreStats{HasLease: true}, stats)
	accept(t, s, plain)
	require.Equal(t, eventbus.Ref(5), plain.Ref)
}

func TestStore_RefusesAlone(t *testing.T) {
	s := openAt(t, testPath(t))
	a, b := ready(""), ready("")
	accept(t, s, a, b)
	entry := eventbus.Dedupe{Scope: "s", Key: "k", Event: a.ID, Content: "c", Expires: t0.Add(time.Hour)}
	require.NoError(t, submit(s, &eventbus.Batch{Remember: []eventbus.Dedupe{entry}}))

	unknown := eventbus.LetterID{1}
	for name, batch := range map[string]*eventbus.Batch{
		"remember":     {Remember: []eventbus.Dedupe{{Scope: "x"}, entry}, New: []*eventbus.Record{ready("")}},
		"take":         {Take: []eventbus.LetterID{unknown}, New: []*eventbus.Record{ready("")}},
		"delete":       {Delete: []eventbus.Ref{a.Ref, 77}, Bury: []*eventbus.DeadLetter{letterFor("s", eventbus.ReasonCrash, "e")}},
		"delete twice": {Delete: []eventbus.Ref{a.Ref, a.Ref}},
		"update":       {Update: []*eventbus.Record{{Ref: 77}}, Delete: []eventbus.Ref{a.Ref}},
		"freed before": {Update: []*eventbus.Record{{Ref: a.Ref}}, Delete: []eventbus.Ref{a.Ref}},
	} {
		err := submit(s, batch)
		var refused *eventbus.RefusedError
		require.ErrorAs(t, err, &refused, name)
		switch name {
		case "remember":
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
			require.Equal(t, &entry, refused.Known)
		case "take":
			require.ErrorIs(t, err, eventbus.ErrNotFound)
			require.Equal(t, unknown, refused.Letter)
		default:
			require.ErrorIs(t, err, eventbus.ErrNotLeased, name)
		}
	}
	stats, err := s.Stats(context.Background())
	require.NoError(t, err)
	require.Equal(t, eventbus.StoreStats{HasLease: true, Ready: 2}, stats)
	require.NoError(t, submit(s, &eventbus.Batch{Now: entry.Expires, Remember: []eventbus.Dedupe{entry}}), "it has expired")
}

func TestStore_CountsCrashes(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	a, b := ready(""), ready("")
	accept(t, s, a, b)
	crash(t, s)

	s = openAt(t, path)
	c := claim(t, s, eventbus.ClaimQuery{})
	require.Equal(t, []int{1, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes})
	require.NoError(t, submit(s, &eventbus.Batch{Update: []*eventbus.Record{with(c.Records[0], func(r *eventbus.Record) { r.Suspect = true })}}))
	crash(t, s)

	s = openAt(t, path)
	c = claim(t, s, eventbus.ClaimQuery{})
	require.Equal(t, []int{2, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes}, "only suspects count")
	require.False(t, c.Records[0].Suspect)
	closeStore(t, s)

	s = openAt(t, path)
	require.NoError(t, s.Reopen(context.Background()))
	c = claim(t, s, eventbus.ClaimQuery{})
	require.Equal(t, []int{2, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes}, "neither Close nor Reopen counts")
	require.NoError(t, s.Reopen(context.Background()))
	c = claim(t, s, eventbus.ClaimQuery{})
	require.Equal(t, []int{2, 1}, []int{c.Records[0].Crashes, c.Records[1].Crashes})
}

func TestStore_HasOneLease(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	_, err := Open(context.Background(), path)
	require.ErrorIs(t, err, ErrLocked)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, os.Getpid(), locked.PID)
	require.NotEmpty(t, locked.Host)

	beside := openAt(t, path, Beside())
	_, err = beside.Claim(context.Background(), eventbus.ClaimQuery{Limit: 1})
	require.ErrorIs(t, err, eventbus.ErrNoLease)
	require.ErrorIs(t, submit(beside, &eventbus.Batch{New: []*eventbus.Record{ready("")}}), eventbus.ErrNotLeased)
	r := free(ready(""))
	accept(t, beside, r)
	c := claim(t, s, eventbus.ClaimQuery{})
	require.Equal(t, []eventbus.Ref{r.Ref}, refsOf(c.Records))
	require.False(t, c.Records[0].Own)
	own := free(ready(""))
	accept(t, s, own)
	require.True(t, claim(t, s, eventbus.ClaimQuery{}).Records[0].Own)
	closeStore(t, s)
	openAt(t, path)
}

func TestStore_ClaimsInOrder(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	var all []*eventbus.Record
	for i := range 40 {
		r := ready("")
		if i%3 == 1 {
			r.Position = eventbus.BesidePrevious
		}
		if i%4 == 0 {
			r.Leased = false
		}
		all = append(all, r)
	}
	accept(t, s, all...)
	crash(t, s)
	s = openAt(t, path)
	var got []*eventbus.Record
	for {
		c := claim(t, s, eventbus.ClaimQuery{Limit: 7})
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

func TestStore_KeepsLetters(t *testing.T) {
	s := openAt(t, testPath(t))
	a := letterFor("billing", eventbus.ReasonExhausted, "timeout after 10 s")
	b := letterFor("billing", eventbus.ReasonExhausted, "timeout after 20 s")
	c := letterFor("mail", eventbus.ReasonPermanent, "no address")
	c.Event.Payload, c.Original, c.Edited = eventbus.EncodedPayload("x"), eventbus.EncodedPayload(""), true
	bury(t, s, a, b, c, a)
	ctx := context.Background()
	for _, want := range []*eventbus.DeadLetter{a, b, c} {
		got, err := s.Letter(ctx, want.ID)
		require.NoError(t, err)
		require.Equal(t, *want, got)
	}
	_, err := s.Letter(ctx, eventbus.LetterID{})
	require.ErrorIs(t, err, eventbus.ErrNotFound)
	ids := func(q eventbus.LetterQuery) (ids []eventbus.LetterID) {
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
	require.Equal(t, []eventbus.LetterID{c.ID, b.ID, a.ID}, ids(eventbus.LetterQuery{}))
	require.Equal(t, []eventbus.LetterID{b.ID, a.ID}, ids(eventbus.LetterQuery{Subscription: "billing"}))
	require.Equal(t, []eventbus.LetterID{b.ID, a.ID}, ids(eventbus.LetterQuery{Fingerprint: a.Fingerprint}))
	require.Equal(t, []eventbus.LetterID{c.ID}, ids(eventbus.LetterQuery{Reason: eventbus.ReasonPermanent, Type: "order.*"}))
	require.Equal(t, []eventbus.LetterID{c.ID}, ids(eventbus.LetterQuery{Error: "address"}))
	require.Equal(t, []eventbus.LetterID{c.ID, b.ID, a.ID}, ids(eventbus.LetterQuery{Since: t0, Until: t0}))
	require.Empty(t, ids(eventbus.LetterQuery{Since: t0.Add(1)}))

	for _, q := range []eventbus.LetterQuery{{}, {Type: "order.*"}} {
		groups, err := s.Groups(ctx, q)
		require.NoError(t, err)
		require.Len(t, groups, 2)
		want := b.Group()
		want.Count, want.First, want.Last, want.Newest = 2, t0, t0, b.ID
		require.Equal(t, want, groups[0])
	}
	require.NoError(t, submit(s, &eventbus.Batch{Take: []eventbus.LetterID{a.ID, c.ID}}))
	require.Equal(t, []eventbus.LetterID{b.ID}, ids(eventbus.LetterQuery{}))
}

func TestStore_KeepsOrders(t *testing.T) {
	s := openAt(t, testPath(t))
	o := eventbus.Order{Subscription: "mail", Pause: true, Until: t0.Add(time.Hour), By: "eve", Why: "test", At: t0}
	require.NoError(t, submit(s, &eventbus.Batch{Orders: []eventbus.Order{{Subscription: "a", Trip: true, At: t0}, o}}))
	resumed := eventbus.Order{Subscription: "a", At: t0.Add(time.Second)}
	require.NoError(t, submit(s, &eventbus.Batch{Orders: []eventbus.Order{resumed}}))
	orders, err := s.Orders(context.Background())
	require.NoError(t, err)
	require.Equal(t, []eventbus.Order{resumed, o}, orders, "one that resumes counts against older ones under other names")
}

// A clock that is set back by less than an hour finds the ids that have expired.
func TestStore_KeepsExpiredIDsForAnHour(t *testing.T) {
	s := openAt(t, testPath(t))
	entry := eventbus.Dedupe{Key: "k", Event: eventbus.NewEventID(), Expires: t0}
	remember := &eventbus.Batch{Now: t0.Add(-time.Second), Remember: []eventbus.Dedupe{entry}}
	require.NoError(t, submit(s, remember))
	require.NoError(t, submit(s, &eventbus.Batch{Now: t0.Add(59 * time.Minute), Bury: []*eventbus.DeadLetter{letterFor("a", "b", "c")}}))
	require.ErrorIs(t, submit(s, remember), eventbus.ErrDuplicateID)
	require.NoError(t, submit(s, &eventbus.Batch{Now: t0.Add(time.Hour)}))
	require.NoError(t, submit(s, remember))
}

func TestStore_Watch(t *testing.T) {
	path := testPath(t)
	s := openAt(t, path)
	changed := make(chan struct{}, 1)
	stop := s.Watch(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	accept(t, openAt(t, path, Beside()), free(ready("")))
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
		s.Submit(&eventbus.Batch{Now: t0, New: []*eventbus.Record{ready("")}}, func(err error) { done = append(done, err) })
	}
	closeStore(t, s)
	require.Equal(t, []error{nil, nil, nil}, done)
	closeStore(t, s)
	require.ErrorIs(t, submit(s, &eventbus.Batch{}), eventbus.ErrStoreClosed)
	_, err := s.Stats(context.Background())
	require.ErrorIs(t, err, eventbus.ErrStoreClosed)
}
