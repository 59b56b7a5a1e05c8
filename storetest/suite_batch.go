package storetest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var batchTests = []conformanceTest{
	{name: "RefusedChangesNothing", run: testRefusedChangesNothing},
	{name: "RefusedIsAlone", run: testRefusedIsAlone},
	{name: "FieldsInOrder", run: testFieldsInOrder},
	{name: "TakeUnknown", run: testTakeUnknown},
	{name: "TakeTwice", run: testTakeTwice},
	{name: "BuryExisting", run: testBuryExisting},
	{name: "UpdateKeepsTheRest", run: testUpdateKeepsTheRest},
	{name: "Unleased", run: testUnleased},
	{name: "LeasedOnce", run: testLeasedOnce},
	{name: "Times", run: testTimes},
}

func testRefusedChangesNothing(t *testing.T, r *rig) {
	s := r.open(t)
	held, free, kept := ready(leased), ready(), letter()
	entry := eventbus.Dedupe{Key: "known", Event: held.ID, Expires: noon.Add(time.Hour)}
	order := eventbus.Order{Subscription: "billing", Pause: true, At: noon}
	apply(t, s, &eventbus.Batch{
		Now: noon, New: []*eventbus.Record{held, free}, Bury: []*eventbus.DeadLetter{kept},
		Remember: []eventbus.Dedupe{entry}, Orders: []eventbus.Order{order},
	})
	before := stats(t, s)
	for name, offend := range map[string]func(b *eventbus.Batch) error{
		"Remember": func(b *eventbus.Batch) error {
			b.Remember, b.Forget = append(b.Remember, entry), nil
			return eventbus.ErrDuplicateID
		},
		"Take": func(b *eventbus.Batch) error {
			b.Take = append(b.Take, letter().ID)
			return eventbus.ErrNotFound
		},
		"Cancel": func(b *eventbus.Batch) error {
			b.Cancel = append(b.Cancel, free.ID)
			return eventbus.ErrNotScheduled
		},
		"Update": func(b *eventbus.Batch) error {
			b.Update = append(b.Update, &eventbus.Record{Ref: free.Ref})
			return eventbus.ErrNotLeased
		},
		"Delete": func(b *eventbus.Batch) error {
			b.Delete = append(b.Delete, free.Ref)
			return eventbus.ErrNotLeased
		},
	} {
		changed := *held
		changed.State, changed.Due, changed.Suspect = eventbus.RecordWaiting, noon.Add(time.Hour), true
		changed.Progress = &eventbus.RecordProgress{Attempts: 7}
		b := &eventbus.Batch{
			Now:      noon,
			Remember: []eventbus.Dedupe{{Key: "new " + name, Event: held.ID, Expires: noon.Add(time.Hour)}},
			Forget:   []eventbus.Dedupe{{Key: "known"}},
			Take:     []eventbus.LetterID{kept.ID},
			New:      []*eventbus.Record{ready(), ready(at(eventbus.BesidePrevious)), ready(at(77))},
			Update:   []*eventbus.Record{&changed},
			Delete:   []eventbus.Ref{held.Ref},
			Bury:     []*eventbus.DeadLetter{letter()},
			Orders:   []eventbus.Order{{Subscription: "billing"}, {Subscription: "shipping", Trip: true, At: noon}},
		}
		refuse(t, s, b, offend(b))
		for i, position := range []int64{0, eventbus.BesidePrevious, 77} {
			require.Zero(t, b.New[i].Ref, "%s: Ref of a new record", name)
			require.Equal(t, position, b.New[i].Position, "%s: Position of a new record", name)
			require.Empty(t, lookup(t, s, b.New[i].ID), "%s: a new record", name)
		}
		require.Equal(t, before, stats(t, s), name)
		requireRecords(t, []*eventbus.Record{held}, lookup(t, s, held.ID))
		require.False(t, lookup(t, s, held.ID)[0].Suspect, "%s: an updated record", name)
		requireLetters(t, []*eventbus.DeadLetter{kept}, page(t, s, eventbus.LetterQuery{}).Letters)
		orders, err := s.Orders(t.Context())
		require.NoError(t, err)
		require.Equal(t, []eventbus.Order{order}, orders, name)
		apply(t, s, &eventbus.Batch{Now: noon, Remember: b.Remember[:1]})
	}
	refuse(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{entry}}, eventbus.ErrDuplicateID)
}

// Batches that follow a refused one apply, even in the same commit.
func testRefusedIsAlone(t *testing.T, r *rig) {
	s := r.open(t)
	outcomes := make(chan error, 30)
	var applied []*eventbus.Record
	for i := range 30 {
		b := &eventbus.Batch{Now: noon, New: []*eventbus.Record{ready(leased)}}
		if i%3 == 1 {
			b.Take = []eventbus.LetterID{letter().ID}
		} else {
			applied = append(applied, b.New[0])
		}
		s.Submit(b, func(err error) { outcomes <- err })
	}
	for i := range 30 {
		if err := await(t, outcomes); i%3 == 1 {
			require.ErrorIs(t, err, eventbus.ErrNotFound)
		} else {
			require.NoError(t, err)
		}
	}
	for _, n := range applied {
		apply(t, s, &eventbus.Batch{Now: noon, Delete: []eventbus.Ref{n.Ref}})
	}
	require.Zero(t, stats(t, s))
}

// A store applies the fields of a batch in their order.
func testFieldsInOrder(t *testing.T, r *rig) {
	s := r.open(t)
	held, old := ready(leased), letter()
	entry := eventbus.Dedupe{Key: "k", Event: held.ID, Expires: noon.Add(time.Hour)}
	apply(t, s, &eventbus.Batch{
		Now: noon, New: []*eventbus.Record{held}, Bury: []*eventbus.DeadLetter{old},
		Remember: []eventbus.Dedupe{entry}, Forget: []eventbus.Dedupe{entry},
	})
	// Forget came after Remember. This Remember comes before its Forget.
	apply(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{entry}})
	refuse(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{entry}, Forget: []eventbus.Dedupe{entry}}, eventbus.ErrDuplicateID)

	// Take comes before Bury: it replaces a letter, and does not know the letters of its own batch.
	replaced := letter(func(l *eventbus.DeadLetter) { l.ID, l.Attempts = old.ID, 3 })
	apply(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{old.ID}, Bury: []*eventbus.DeadLetter{replaced}})
	requireLetters(t, []*eventbus.DeadLetter{replaced}, page(t, s, eventbus.LetterQuery{}).Letters)
	unknown := letter()
	refuse(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{unknown.ID}, Bury: []*eventbus.DeadLetter{unknown}}, eventbus.ErrNotFound)

	// Update comes before Delete.
	freed := *held
	freed.Leased = false
	refused := refuse(t, s, &eventbus.Batch{Now: noon, Update: []*eventbus.Record{&freed}, Delete: []eventbus.Ref{held.Ref}}, eventbus.ErrNotLeased)
	require.Equal(t, held.Ref, refused.Ref)
	apply(t, s, &eventbus.Batch{Now: noon, Update: []*eventbus.Record{held}, Delete: []eventbus.Ref{held.Ref}})
	require.Zero(t, stats(t, s).Unsettled())
}

func testTakeUnknown(t *testing.T, r *rig) {
	s := r.open(t)
	known, unknown := letter(), letter()
	apply(t, s, &eventbus.Batch{Now: noon, Bury: []*eventbus.DeadLetter{known}})
	refused := refuse(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{known.ID, unknown.ID}}, eventbus.ErrNotFound)
	require.Equal(t, unknown.ID, refused.Letter)
	apply(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{known.ID}})
	_, err := s.Letter(t.Context(), known.ID)
	require.ErrorIs(t, err, eventbus.ErrNotFound)
	refuse(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{known.ID}}, eventbus.ErrNotFound)
}

func testTakeTwice(t *testing.T, r *rig) {
	s := r.open(t)
	l := letter()
	apply(t, s, &eventbus.Batch{Now: noon, Bury: []*eventbus.DeadLetter{l}})
	refused := refuse(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{l.ID, l.ID}}, eventbus.ErrNotFound)
	require.Equal(t, l.ID, refused.Letter)
	require.EqualValues(t, 1, stats(t, s).Letters)
}

// An id that exists is skipped, and the rest of the batch applies.
func testBuryExisting(t *testing.T, r *rig) {
	s := r.open(t)
	first, other := letter(), letter()
	again := letter(func(l *eventbus.DeadLetter) { l.ID, l.Attempts = first.ID, 9 })
	apply(t, s, &eventbus.Batch{Now: noon, Bury: []*eventbus.DeadLetter{first, again}})
	apply(t, s, &eventbus.Batch{Now: noon, Bury: []*eventbus.DeadLetter{again, other}})
	requireLetters(t, newestFirst([]*eventbus.DeadLetter{first, other}), page(t, s, eventbus.LetterQuery{}).Letters)
}

// Update changes State, Due, Door, Progress, Leased and Suspect, and nothing else.
func testUpdateKeepsTheRest(t *testing.T, r *rig) {
	s := r.open(t)
	n := fullRecord()
	n.Leased = true
	insert(t, s, n)
	u := fullRecord()
	u.Ref, u.Position, u.State, u.Leased = n.Ref, 12345, eventbus.RecordParked, true
	want := *n
	want.State, want.Due, want.Door, want.Progress = u.State, u.Due, u.Door, u.Progress
	apply(t, s, &eventbus.Batch{Now: noon, Update: []*eventbus.Record{u}})
	requireRecords(t, []*eventbus.Record{&want}, lookup(t, s, n.ID))

	// The fields can become empty again.
	empty := eventbus.Record{Ref: n.Ref, Leased: true}
	want.State, want.Due, want.Door, want.Progress = eventbus.RecordReady, time.Time{}, "", nil
	apply(t, s, &eventbus.Batch{Now: noon, Update: []*eventbus.Record{&empty}})
	requireRecords(t, []*eventbus.Record{&want}, lookup(t, s, n.ID))
	counts := stats(t, s)
	require.Equal(t, eventbus.StoreStats{Ready: 1}, counts)
}

// Update and Delete of records that the lease does not have are refused, with the Ref.
func testUnleased(t *testing.T, r *rig) {
	s := r.open(t)
	free, deleted, freed := ready(), ready(leased), ready(leased)
	insert(t, s, free, deleted, freed)
	released := *freed
	released.Leased = false
	apply(t, s, &eventbus.Batch{Now: noon, Update: []*eventbus.Record{&released}, Delete: []eventbus.Ref{deleted.Ref}})
	for name, ref := range map[string]eventbus.Ref{
		"free": free.Ref, "deleted": deleted.Ref, "freed": freed.Ref, "unknown": 1 << 40, "negative": -1,
	} {
		require.Equal(t, ref, refuse(t, s, &eventbus.Batch{Now: noon, Update: []*eventbus.Record{{Ref: ref, Leased: true}}}, eventbus.ErrNotLeased).Ref, name)
		require.Equal(t, ref, refuse(t, s, &eventbus.Batch{Now: noon, Delete: []eventbus.Ref{ref}}, eventbus.ErrNotLeased).Ref, name)
	}
	require.Equal(t, eventbus.StoreStats{Ready: 2, Free: 2}, stats(t, s))
}

func testLeasedOnce(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready(leased)
	insert(t, s, n)
	refused := refuse(t, s, &eventbus.Batch{Now: noon, Delete: []eventbus.Ref{n.Ref, n.Ref}}, eventbus.ErrNotLeased)
	require.Equal(t, n.Ref, refused.Ref)
	require.Len(t, lookup(t, s, n.ID), 1)
	apply(t, s, &eventbus.Batch{Now: noon, Delete: []eventbus.Ref{n.Ref}})
	require.Empty(t, lookup(t, s, n.ID))
}

var rememberTests = []conformanceTest{
	{name: "Known", run: testRememberKnown},
	{name: "Scopes", run: testRememberScopes},
	{name: "Expires", run: testRememberExpires},
	{name: "Forget", run: testForget},
	{name: "TwiceInBatch", run: testRememberTwiceInBatch},
}

func testRememberKnown(t *testing.T, r *rig) {
	s := r.open(t)
	known := eventbus.Dedupe{
		Scope: "scope", Key: "key 'ü\"", Event: eventbus.NewEventID(), Content: "content\n", Expires: noon.Add(time.Hour),
	}
	apply(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{known}})
	check := func(s eventbus.Store) {
		other := eventbus.Dedupe{Scope: known.Scope, Key: known.Key, Event: eventbus.NewEventID(), Expires: noon.Add(time.Minute)}
		refused := refuse(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{other}}, eventbus.ErrDuplicateID)
		require.NotNil(t, refused.Known)
		require.Equal(t, known, *refused.Known)
		got, ok, err := s.Remembered(t.Context(), known.Scope, known.Key)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, known, got)
		_, ok, err = s.Remembered(t.Context(), "", known.Key)
		require.NoError(t, err)
		require.False(t, ok)
	}
	check(s)
	check(r.reopen(t, s))
}

func testRememberScopes(t *testing.T, r *rig) {
	s := r.open(t)
	in := func(scope, key string) eventbus.Dedupe {
		return eventbus.Dedupe{Scope: scope, Key: key, Event: eventbus.NewEventID(), Expires: noon.Add(time.Hour)}
	}
	apply(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{in("", "ab"), in("a", "b"), in("ab", ""), in("a", "B"), in("b", "b")}})
	refuse(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{in("a", "b")}}, eventbus.ErrDuplicateID)
	apply(t, s, &eventbus.Batch{Now: noon, Forget: []eventbus.Dedupe{in("", "ab")}})
	refuse(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{in("a", "b")}}, eventbus.ErrDuplicateID)
	apply(t, s, &eventbus.Batch{Now: noon, Forget: []eventbus.Dedupe{in("b", "b")}, Remember: []eventbus.Dedupe{in("", "ab")}})
	refuse(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{in("a", "b")}}, eventbus.ErrDuplicateID)
}

// Batch.Aged decides which entries have expired, not the clock of the store. After an entry has
// expired, an earlier Aged may find it or not.
func testRememberExpires(t *testing.T, r *rig) {
	s := r.open(t)
	entry := eventbus.Dedupe{Key: "k", Event: eventbus.NewEventID(), Expires: noon}
	for _, far := range []time.Duration{-30 * 365 * 24 * time.Hour, 0, 70 * 365 * 24 * time.Hour} {
		entry.Key = far.String()
		entry.Expires = noon.Add(far)
		remember := func(after time.Duration) *eventbus.Batch {
			return &eventbus.Batch{Now: entry.Expires.Add(after), Remember: []eventbus.Dedupe{entry}}
		}
		apply(t, s, remember(-time.Hour))
		refuse(t, s, remember(-time.Nanosecond), eventbus.ErrDuplicateID)
		stepped := remember(48 * time.Hour)
		stepped.AgedAt = entry.Expires.Add(-time.Nanosecond)
		refuse(t, s, stepped, eventbus.ErrDuplicateID)
		apply(t, s, remember(0))
		apply(t, s, remember(time.Hour))
	}
}

func testForget(t *testing.T, r *rig) {
	s := r.open(t)
	entry := eventbus.Dedupe{Key: "k", Event: eventbus.NewEventID(), Expires: noon.Add(time.Hour)}
	apply(t, s, &eventbus.Batch{Now: noon, Forget: []eventbus.Dedupe{entry}})
	apply(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{entry}})
	apply(t, s, &eventbus.Batch{Now: noon, Forget: []eventbus.Dedupe{{Key: "k"}, {Key: "k"}}})
	apply(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{entry}})
}

func testRememberTwiceInBatch(t *testing.T, r *rig) {
	s := r.open(t)
	one := eventbus.Dedupe{Key: "k", Event: eventbus.NewEventID(), Expires: noon.Add(time.Hour)}
	two := eventbus.Dedupe{Key: "k", Event: eventbus.NewEventID(), Expires: noon.Add(time.Hour)}
	refused := refuse(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{one, two}}, eventbus.ErrDuplicateID)
	require.Equal(t, &one, refused.Known)
	apply(t, s, &eventbus.Batch{Now: noon, Remember: []eventbus.Dedupe{two}})
}

var orderTests = []conformanceTest{
	{name: "SetReplaceResume", run: testOrders},
	{name: "TwiceInBatch", run: testOrderTwiceInBatch},
}

func testOrders(t *testing.T, r *rig) {
	s := r.open(t)
	requireOrders := func(want ...eventbus.Order) {
		t.Helper()
		got, err := s.Orders(t.Context())
		require.NoError(t, err)
		wantText, _ := json.Marshal(append([]eventbus.Order{}, want...))
		gotText, _ := json.Marshal(append([]eventbus.Order{}, got...))
		require.Equal(t, string(wantText), string(gotText))
	}
	requireOrders()
	shipping := eventbus.Order{Subscription: "shipping", Pause: true, Until: noon.Add(time.Hour), Trip: true, By: "ann 'ü\"", Why: "bank\nis down", At: noon}
	billing := eventbus.Order{Subscription: "billing", Trip: true, At: noon}
	apply(t, s, &eventbus.Batch{Now: noon, Orders: []eventbus.Order{shipping, billing}})
	requireOrders(billing, shipping)
	shipping = eventbus.Order{Subscription: "shipping", Pause: true, At: noon.Add(time.Second)}
	apply(t, s, &eventbus.Batch{Now: noon, Orders: []eventbus.Order{shipping}})
	requireOrders(billing, shipping)
	s = r.reopen(t, s)
	requireOrders(billing, shipping)
	billing, unknown := eventbus.Order{Subscription: "billing", By: "ann", At: noon}, eventbus.Order{Subscription: "unknown", At: noon}
	apply(t, s, &eventbus.Batch{Now: noon, Orders: []eventbus.Order{billing, unknown}})
	requireOrders(billing, shipping, unknown)
	shipping = eventbus.Order{Subscription: "shipping", At: noon.Add(time.Hour)}
	apply(t, s, &eventbus.Batch{Now: noon.Add(1000 * time.Hour), Orders: []eventbus.Order{shipping}})
	requireOrders(billing, shipping, unknown)
}

func testOrderTwiceInBatch(t *testing.T, r *rig) {
	s := r.open(t)
	last := eventbus.Order{Subscription: "billing", Trip: true, At: noon}
	apply(t, s, &eventbus.Batch{Now: noon, Orders: []eventbus.Order{{Subscription: "billing", Pause: true, At: noon}, last}})
	orders, err := s.Orders(t.Context())
	require.NoError(t, err)
	require.Equal(t, []eventbus.Order{last}, orders)
}

// A time that JSON cannot encode costs its batch, and the store goes on.
func testTimes(t *testing.T, r *rig) {
	s := r.open(t)
	held := ready(leased)
	insert(t, s, held)
	before := stats(t, s)
	for _, bad := range []time.Time{farPast, farFuture, noon.AddDate(-2027, 0, 0), noon.AddDate(100_000, 0, 0)} {
		failures := []eventbus.Failure{{Time: bad}}
		record := func(set func(n *eventbus.Record)) *eventbus.Batch {
			n := ready()
			set(n)
			return &eventbus.Batch{New: []*eventbus.Record{n}}
		}
		dead := func(set func(l *eventbus.DeadLetter)) *eventbus.Batch {
			return &eventbus.Batch{Bury: []*eventbus.DeadLetter{letter(set)}}
		}
		for name, b := range map[string]*eventbus.Batch{
			"Expires":   {Remember: []eventbus.Dedupe{{Key: "k", Expires: bad}}},
			"Published": record(func(n *eventbus.Record) { n.Published = bad }),
			"Scheduled": record(func(n *eventbus.Record) { n.Scheduled = bad }),
			"Due":       record(func(n *eventbus.Record) { n.Due = bad }),
			"Began":     record(func(n *eventbus.Record) { n.Replay = &eventbus.RecordReplay{Began: bad} }),
			"History":   record(func(n *eventbus.Record) { n.Replay = &eventbus.RecordReplay{Began: noon, History: failures} }),
			"Progress":  record(func(n *eventbus.Record) { n.Progress = &eventbus.RecordProgress{Failures: failures} }),
			"Update":    {Update: []*eventbus.Record{{Ref: held.Ref, Due: bad}}},
			"Event":     dead(func(l *eventbus.DeadLetter) { l.Event.Time = bad }),
			"LetterDue": dead(func(l *eventbus.DeadLetter) { l.Due = bad }),
			"DiedAt":    dead(func(l *eventbus.DeadLetter) { l.DiedAt = bad }),
			"Failures":  dead(func(l *eventbus.DeadLetter) { l.Failures = failures }),
			"Until":     {Orders: []eventbus.Order{{Subscription: "s", Pause: true, Until: bad, At: noon}}},
			"At":        {Orders: []eventbus.Order{{Subscription: "s", Pause: true, At: bad}}},
		} {
			b.Now = noon
			refuse(t, s, b, eventbus.ErrInvalidEvent)
			require.Equal(t, before, stats(t, s), "%s %v", name, bad)
		}
	}
	first, last := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	n, l := ready(func(n *eventbus.Record) { n.Published, n.Due, n.Scheduled = first, last, last }), letter(func(l *eventbus.DeadLetter) {
		l.Event.Time, l.DiedAt = first, last
	})
	apply(t, s, &eventbus.Batch{Now: noon, New: []*eventbus.Record{n}, Bury: []*eventbus.DeadLetter{l}})
	s = r.reopen(t, s)
	requireRecords(t, []*eventbus.Record{n}, lookup(t, s, n.ID))
	requireLetters(t, []*eventbus.DeadLetter{l}, page(t, s, eventbus.LetterQuery{}).Letters)
}
