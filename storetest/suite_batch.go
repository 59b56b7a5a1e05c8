package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
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
	entry := driver.Dedupe{Key: "known", Event: held.ID, Expires: noon.Add(time.Hour)}
	order := directive("billing", "pause")
	now, due := incoming(), incoming(scheduled(time.Hour))
	open, unasked := request(), request()
	catalog := catalogOf("one", []byte(`{}`))
	apply(t, s, &driver.Batch{
		Now: noon, New: []*driver.Record{held, free}, Bury: []*driver.Letter{kept},
		Remember: []driver.Dedupe{entry}, Directives: []driver.Directive{order},
		Leave: []*driver.Incoming{now, due}, Ask: []*driver.Request{open, unasked}, Catalog: &catalog,
	})
	before := stats(t, s)
	for name, offend := range map[string]func(b *driver.Batch) error{
		"Remember": func(b *driver.Batch) error {
			b.Remember, b.Forget = append(b.Remember, entry), nil
			return driver.ErrDuplicateID
		},
		"Take": func(b *driver.Batch) error {
			b.Take = append(b.Take, letter().ID)
			return driver.ErrNotFound
		},
		"Withdraw": func(b *driver.Batch) error {
			b.Withdraw = append(b.Withdraw, free.ID)
			return driver.ErrNotFound
		},
		"Accept": func(b *driver.Batch) error {
			b.Accept = append(b.Accept, now.ID)
			return driver.ErrNotFound
		},
		"Unask": func(b *driver.Batch) error {
			b.Unask = append(b.Unask, unasked.ID)
			return driver.ErrNotFound
		},
		"Answer": func(b *driver.Batch) error {
			b.Answer = append(b.Answer, driver.Answer{Request: unasked.ID, Body: []byte(`{}`)})
			return driver.ErrNotFound
		},
		"Update": func(b *driver.Batch) error {
			b.Update = append(b.Update, &driver.Record{Ref: free.Ref})
			return driver.ErrNotLeased
		},
		"Delete": func(b *driver.Batch) error {
			b.Delete = append(b.Delete, free.Ref)
			return driver.ErrNotLeased
		},
	} {
		changed := *held
		changed.State, changed.Due, changed.Suspect = driver.Waiting, noon.Add(time.Hour), true
		changed.Progress = []byte(`{"attempts":7}`)
		b := &driver.Batch{
			Now:        noon,
			Remember:   []driver.Dedupe{{Key: "new " + name, Event: held.ID, Expires: noon.Add(time.Hour)}},
			Forget:     []driver.Dedupe{{Key: "known"}},
			Take:       []driver.ID{kept.ID},
			New:        []*driver.Record{ready(), ready(at(driver.BesidePrevious)), ready(at(77))},
			Update:     []*driver.Record{&changed},
			Delete:     []driver.Ref{held.Ref},
			Bury:       []*driver.Letter{letter()},
			Directives: []driver.Directive{directive("billing", "resume"), directive("shipping", "trip")},
			Withdraw:   []driver.ID{due.Record.ID},
			Accept:     []driver.IncomingID{now.ID},
			Leave:      []*driver.Incoming{incoming()},
			Ask:        []*driver.Request{request()},
			Unask:      []driver.RequestID{unasked.ID},
			Answer:     []driver.Answer{{Request: open.ID, Body: []byte(`{}`)}},
			Catalog:    &driver.Catalog{Instance: catalog.Instance},
			Audit:      []driver.AuditEntry{audited("ann")},
			Outcomes:   []driver.Outcome{outcomeOf(held.ID, "a")},
		}
		refuse(t, s, b, offend(b), name)
		requireIncoming(t, s, driver.IncomingQuery{}, now, due)
		requireRequests(t, s, open.ID, unasked.ID)
		requireCatalogs(t, s, catalog)
		require.Empty(t, auditOf(t, s, driver.AuditQuery{}), "%s: the audit", name)
		requireOutcomes(t, s, held.ID)
		require.Zero(t, b.Leave[0].ID, "%s: ID of an incoming event", name)
		require.Zero(t, b.Ask[0].ID, "%s: ID of a request", name)
		for i, position := range []int64{0, driver.BesidePrevious, 77} {
			require.Zero(t, b.New[i].Ref, "%s: Ref of a new record", name)
			require.Equal(t, position, b.New[i].Position, "%s: Position of a new record", name)
			require.Empty(t, lookup(t, s, b.New[i].ID), "%s: a new record", name)
		}
		require.Equal(t, before, stats(t, s), name)
		requireRecords(t, []*driver.Record{held}, lookup(t, s, held.ID))
		require.False(t, lookup(t, s, held.ID)[0].Suspect, "%s: an updated record", name)
		requireLetters(t, []*driver.Letter{kept}, page(t, s, driver.LetterQuery{}).Letters)
		requireDirectives(t, s, order)
		apply(t, s, &driver.Batch{Now: noon, Remember: b.Remember[:1]})
	}
	refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}}, driver.ErrDuplicateID)
}

// Batches that follow a refused one apply, even in the same commit.
func testRefusedIsAlone(t *testing.T, r *rig) {
	s := r.open(t)
	outcomes := make(chan error, 30)
	var applied []*driver.Record
	for i := range 30 {
		b := &driver.Batch{Now: noon, New: []*driver.Record{ready(leased)}}
		if i%3 == 1 {
			b.Take = []driver.ID{letter().ID}
		} else {
			applied = append(applied, b.New[0])
		}
		send(s, b, func(err error) { outcomes <- err })
	}
	for i := range 30 {
		if err := await(t, outcomes); i%3 == 1 {
			require.ErrorIs(t, err, driver.ErrNotFound)
		} else {
			require.NoError(t, err)
		}
	}
	for _, n := range applied {
		apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{n.Ref}})
	}
	require.Zero(t, stats(t, s))
}

// A store applies the fields of a batch in their order.
func testFieldsInOrder(t *testing.T, r *rig) {
	s := r.open(t)
	held, old := ready(leased), letter()
	entry := driver.Dedupe{Key: "k", Event: held.ID, Expires: noon.Add(time.Hour)}
	apply(t, s, &driver.Batch{
		Now: noon, New: []*driver.Record{held}, Bury: []*driver.Letter{old},
		Remember: []driver.Dedupe{entry}, Forget: []driver.Dedupe{entry},
	})
	// Forget came after Remember. This Remember comes before its Forget.
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}})
	refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}, Forget: []driver.Dedupe{entry}}, driver.ErrDuplicateID)

	// Take comes before Bury: it replaces a letter, and does not know the letters of its own batch.
	replaced := letter(func(l *driver.Letter) { l.ID, l.Details = old.ID, []byte(`{"attempts":3}`) })
	apply(t, s, &driver.Batch{Now: noon, Take: []driver.ID{old.ID}, Bury: []*driver.Letter{replaced}})
	requireLetters(t, []*driver.Letter{replaced}, page(t, s, driver.LetterQuery{}).Letters)
	unknown := letter()
	refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{unknown.ID}, Bury: []*driver.Letter{unknown}}, driver.ErrNotFound)

	// Update comes before Delete.
	freed := *held
	freed.Leased = false
	both := &driver.Batch{Now: noon, Update: []*driver.Record{&freed}, Delete: []driver.Ref{held.Ref}}
	refuseUnleased(t, s, both, held.Ref, "Delete of a record that the same batch frees")
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{held}, Delete: []driver.Ref{held.Ref}})
	require.Zero(t, stats(t, s).Unsettled())
}

func testTakeUnknown(t *testing.T, r *rig) {
	s := r.open(t)
	known, unknown := letter(), letter()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{known}})
	refused := refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{known.ID, unknown.ID}}, driver.ErrNotFound)
	require.Equal(t, unknown.ID, refused.Letter, "RefusedError.Letter must name the unknown letter")
	apply(t, s, &driver.Batch{Now: noon, Take: []driver.ID{known.ID}})
	_, err := s.Letter(t.Context(), known.ID)
	require.ErrorIs(t, err, driver.ErrNotFound)
	refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{known.ID}}, driver.ErrNotFound)
}

func testTakeTwice(t *testing.T, r *rig) {
	s := r.open(t)
	l := letter()
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{l}})
	refused := refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{l.ID, l.ID}}, driver.ErrNotFound)
	require.Equal(t, l.ID, refused.Letter, "RefusedError.Letter must name the letter that is twice in Take")
	require.EqualValues(t, 1, stats(t, s).Letters)
}

// An id that exists is skipped, and the rest of the batch applies.
func testBuryExisting(t *testing.T, r *rig) {
	s := r.open(t)
	first, other := letter(), letter()
	again := letter(func(l *driver.Letter) { l.ID, l.Details = first.ID, []byte(`{"attempts":9}`) })
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{first, again}})
	apply(t, s, &driver.Batch{Now: noon, Bury: []*driver.Letter{again, other}})
	requireLetters(t, newestFirst([]*driver.Letter{first, other}), page(t, s, driver.LetterQuery{}).Letters)
}

// Update changes State, Due, Door, Destination, Progress, Leased and Suspect, and nothing else.
func testUpdateKeepsTheRest(t *testing.T, r *rig) {
	s := r.open(t)
	n := fullRecord()
	n.Leased = true
	insert(t, s, n)
	u := fullRecord()
	u.Ref, u.Position, u.State, u.Leased = n.Ref, 12345, driver.Parked, true
	u.Destination = "elsewhere"
	want := *n
	want.State, want.Due, want.Door, want.Destination, want.Progress = u.State, u.Due, u.Door, u.Destination, u.Progress
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{u}})
	requireRecords(t, []*driver.Record{&want}, lookup(t, s, n.ID))

	// The fields can become empty again.
	empty := driver.Record{Ref: n.Ref, Leased: true}
	want.State, want.Due, want.Door, want.Destination, want.Progress = driver.Ready, time.Time{}, "", "", nil
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{&empty}})
	requireRecords(t, []*driver.Record{&want}, lookup(t, s, n.ID))
	counts := stats(t, s)
	require.Equal(t, driver.Stats{Ready: 1}, counts)
}

// Update and Delete of records that the lease does not have are refused, with the Ref.
func testUnleased(t *testing.T, r *rig) {
	s := r.open(t)
	free, deleted, freed := ready(), ready(leased), ready(leased)
	insert(t, s, free, deleted, freed)
	released := *freed
	released.Leased = false
	apply(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{&released}, Delete: []driver.Ref{deleted.Ref}})
	for name, ref := range map[string]driver.Ref{
		"free": free.Ref, "deleted": deleted.Ref, "freed": freed.Ref, "unknown": 1 << 40, "negative": -1,
	} {
		refuseUnleased(t, s, &driver.Batch{Now: noon, Update: []*driver.Record{{Ref: ref, Leased: true}}}, ref, "Update of a record: "+name)
		refuseUnleased(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{ref}}, ref, "Delete of a record: "+name)
	}
	require.Equal(t, driver.Stats{Ready: 2, Free: 2}, stats(t, s))
}

func testLeasedOnce(t *testing.T, r *rig) {
	s := r.open(t)
	n := ready(leased)
	insert(t, s, n)
	refuseUnleased(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{n.Ref, n.Ref}}, n.Ref, "Delete of a record twice")
	require.Len(t, lookup(t, s, n.ID), 1)
	apply(t, s, &driver.Batch{Now: noon, Delete: []driver.Ref{n.Ref}})
	require.Empty(t, lookup(t, s, n.ID))
}

var rememberTests = []conformanceTest{
	{name: "Known", run: testRememberKnown},
	{name: "Scopes", run: testRememberScopes},
	{name: "Expires", run: testRememberExpires},
	{name: "ForgetSettled", run: testForgetSettled},
	{name: "Forget", run: testForget},
	{name: "TwiceInBatch", run: testRememberTwiceInBatch},
	{name: "RemovedByAgedAt", run: testRememberRemovedByAgedAt},
}

func testRememberKnown(t *testing.T, r *rig) {
	s := r.open(t)
	known := fullDedupe()
	require.True(t, known.Expires.After(noon))
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{known}})
	check := func(s driver.Store) {
		other := driver.Dedupe{Scope: known.Scope, Key: known.Key, Event: newID(), Expires: noon.Add(time.Minute)}
		refused := refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{other}}, driver.ErrDuplicateID)
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
	in := func(scope, key string) driver.Dedupe {
		return driver.Dedupe{Scope: scope, Key: key, Event: newID(), Expires: noon.Add(time.Hour)}
	}
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{in("", "ab"), in("a", "b"), in("ab", ""), in("a", "B"), in("b", "b")}})
	refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{in("a", "b")}}, driver.ErrDuplicateID)
	apply(t, s, &driver.Batch{Now: noon, Forget: []driver.Dedupe{in("", "ab")}})
	refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{in("a", "b")}}, driver.ErrDuplicateID)
	apply(t, s, &driver.Batch{Now: noon, Forget: []driver.Dedupe{in("b", "b")}, Remember: []driver.Dedupe{in("", "ab")}})
	refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{in("a", "b")}}, driver.ErrDuplicateID)
}

// Batch.Aged decides which entries have expired, not the clock of the store. After an entry has
// expired, an earlier Aged may find it or not.
func testRememberExpires(t *testing.T, r *rig) {
	s := r.open(t)
	entry := driver.Dedupe{Key: "k", Event: newID(), Expires: noon}
	for _, far := range []time.Duration{-30 * 365 * 24 * time.Hour, 0, 70 * 365 * 24 * time.Hour} {
		entry.Key = far.String()
		entry.Expires = noon.Add(far)
		remember := func(after time.Duration) *driver.Batch {
			return &driver.Batch{Now: entry.Expires.Add(after), Remember: []driver.Dedupe{entry}}
		}
		apply(t, s, remember(-time.Hour))
		refuse(t, s, remember(-time.Nanosecond), driver.ErrDuplicateID)
		stepped := remember(48 * time.Hour)
		stepped.AgedAt = entry.Expires.Add(-time.Nanosecond)
		refuse(t, s, stepped, driver.ErrDuplicateID)
		apply(t, s, remember(0))
		apply(t, s, remember(time.Hour))
	}
}

// AgedAt, and not Now, decides which entries a store may remove.
func testRememberRemovedByAgedAt(t *testing.T, r *rig) {
	s := r.open(t)
	entry := driver.Dedupe{Key: "k", Event: newID(), Expires: noon.Add(time.Hour)}
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}})
	for i := range 3 {
		after := time.Duration(48+i) * time.Hour
		apply(t, s, &driver.Batch{Now: noon.Add(after), AgedAt: entry.Expires.Add(-1), New: []*driver.Record{ready()}})
	}
	const rule = "an entry that expires after AgedAt must stay, although it expires before Now"
	_, known, err := s.Remembered(t.Context(), entry.Scope, entry.Key)
	require.NoError(t, err)
	require.True(t, known, rule)
	again := &driver.Batch{Now: noon.Add(60 * time.Hour), AgedAt: entry.Expires.Add(-1), Remember: []driver.Dedupe{entry}}
	refuse(t, s, again, driver.ErrDuplicateID, rule)
}

// ForgetSettled removes an entry once the last record of its event is deleted, in that commit, and no entry that differs.
func testForgetSettled(t *testing.T, r *rig) {
	s := r.open(t)
	one, two, other := ready(leased), ready(leased), ready(leased)
	two.ID = one.ID
	entry := driver.Dedupe{Scope: "order.placed", Key: "k", Event: one.ID, Content: "x", Expires: noon.Add(time.Hour)}
	remember := &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}}
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}, New: []*driver.Record{one, two, other}})
	settles := func(ref driver.Ref, forgets ...driver.Dedupe) *driver.Batch {
		return &driver.Batch{Now: noon, Delete: []driver.Ref{ref}, ForgetSettled: forgets}
	}
	apply(t, s, settles(one.Ref, entry))
	refuse(t, s, remember, driver.ErrDuplicateID, "a record of the event is left")
	scope, key, event, expires := entry, entry, entry, entry
	scope.Scope, key.Key, event.Event, expires.Expires = "order.paid", "K", other.ID, noon.Add(2*time.Hour)
	apply(t, s, settles(two.Ref, scope, key, event, expires))
	refuse(t, s, remember, driver.ErrDuplicateID, "none of the entries equals it")
	apply(t, s, &driver.Batch{Now: noon, ForgetSettled: []driver.Dedupe{entry}})
	apply(t, s, remember)

	// A zero Expires stands for any, and an incoming event of the event keeps the entry.
	left := incoming()
	left.Record.ID = one.ID
	anyTime := entry
	anyTime.Expires = time.Time{}
	apply(t, s, &driver.Batch{Now: noon, Leave: []*driver.Incoming{left}, ForgetSettled: []driver.Dedupe{anyTime}})
	refuse(t, s, remember, driver.ErrDuplicateID, "an incoming event of the event is left")
	apply(t, s, &driver.Batch{Now: noon, Accept: []driver.IncomingID{left.ID}, ForgetSettled: []driver.Dedupe{anyTime}})
	apply(t, s, remember)

	// Batches that come together are decided in their order.
	three := ready(leased)
	three.ID = entry.Event
	apply(t, s, &driver.Batch{Now: noon, New: []*driver.Record{three}})
	again := entry
	again.Event = newID()
	answers := make(chan error, 3)
	for _, b := range []*driver.Batch{
		{Now: noon, Remember: []driver.Dedupe{again}}, settles(three.Ref, entry), {Now: noon, Remember: []driver.Dedupe{again}},
	} {
		send(s, b, func(err error) { answers <- err })
	}
	require.ErrorIs(t, <-answers, driver.ErrDuplicateID)
	require.NoError(t, <-answers)
	require.NoError(t, <-answers)
	known, found, err := r.reopen(t, s).Remembered(t.Context(), entry.Scope, entry.Key)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, again.Event, known.Event)
}

func testForget(t *testing.T, r *rig) {
	s := r.open(t)
	entry := driver.Dedupe{Key: "k", Event: newID(), Expires: noon.Add(time.Hour)}
	apply(t, s, &driver.Batch{Now: noon, Forget: []driver.Dedupe{entry}})
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}})
	apply(t, s, &driver.Batch{Now: noon, Forget: []driver.Dedupe{{Key: "k"}, {Key: "k"}}})
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{entry}})
}

func testRememberTwiceInBatch(t *testing.T, r *rig) {
	s := r.open(t)
	one := driver.Dedupe{Key: "k", Event: newID(), Expires: noon.Add(time.Hour)}
	two := driver.Dedupe{Key: "k", Event: newID(), Expires: noon.Add(time.Hour)}
	refused := refuse(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{one, two}}, driver.ErrDuplicateID)
	require.Equal(t, &one, refused.Known)
	apply(t, s, &driver.Batch{Now: noon, Remember: []driver.Dedupe{two}})
}

var directiveTests = []conformanceTest{
	{name: "Replace", run: testDirectivesReplace},
	{name: "TwiceInBatch", run: testDirectiveTwiceInBatch},
}

// directive returns a directive of a subscription.
func directive(subscription, body string) driver.Directive {
	return driver.Directive{Subscription: subscription, Body: fmt.Appendf(nil, `{"order":%q,"why":"ü'\u003c\nbank","a":null}`, body)}
}

// requireDirectives requires that the store has exactly these directives.
func requireDirectives(t *testing.T, s driver.Store, want ...driver.Directive) {
	t.Helper()
	got, err := s.Directives(t.Context())
	require.NoError(t, err, "Directives")
	require.Equal(t, append([]driver.Directive{}, want...), append([]driver.Directive{}, got...))
}

// A directive replaces that of its Subscription, and they are sorted by it.
func testDirectivesReplace(t *testing.T, r *rig) {
	s := r.open(t)
	requireDirectives(t, s)
	shipping, billing := *filled[driver.Directive](), directive("billing", "trip")
	shipping.Subscription = "shipping 'ü\""
	apply(t, s, &driver.Batch{Now: noon, Directives: []driver.Directive{shipping, billing}})
	requireDirectives(t, s, billing, shipping)
	shipping.Body = directive("", "pause").Body
	apply(t, s, &driver.Batch{Now: noon, Directives: []driver.Directive{shipping}})
	requireDirectives(t, s, billing, shipping)
	s = r.reopen(t, s)
	requireDirectives(t, s, billing, shipping)
	// Subscriptions are compared byte by byte.
	billing.Body = []byte(`{}`)
	upper, part := directive("Billing", "trip"), directive("bill", "pause")
	apply(t, s, &driver.Batch{Now: noon, Directives: []driver.Directive{part, billing, upper}})
	requireDirectives(t, s, upper, part, billing, shipping)
	shipping.Body = []byte(`{"order":""}`)
	apply(t, s, &driver.Batch{Now: noon.Add(1000 * time.Hour), Directives: []driver.Directive{shipping}})
	requireDirectives(t, s, upper, part, billing, shipping)
}

func testDirectiveTwiceInBatch(t *testing.T, r *rig) {
	s := r.open(t)
	last := directive("billing", "trip")
	apply(t, s, &driver.Batch{Now: noon, Directives: []driver.Directive{directive("billing", "pause"), last}})
	requireDirectives(t, s, last)
}

// A time outside the years that a store keeps costs its batch, and the store goes on.
func testTimes(t *testing.T, r *rig) {
	s := r.open(t)
	held := ready(leased)
	insert(t, s, held)
	before := stats(t, s)
	for _, bad := range []time.Time{farPast, farFuture, noon.AddDate(-2027, 0, 0), noon.AddDate(100_000, 0, 0)} {
		record := func(set func(n *driver.Record)) *driver.Batch {
			n := ready()
			set(n)
			return &driver.Batch{New: []*driver.Record{n}}
		}
		dead := func(set func(l *driver.Letter)) *driver.Batch {
			return &driver.Batch{Bury: []*driver.Letter{letter(set)}}
		}
		for name, b := range map[string]*driver.Batch{
			"Expires":         {Remember: []driver.Dedupe{{Key: "k", Expires: bad}}},
			"Published":       record(func(n *driver.Record) { n.Published = bad }),
			"Scheduled":       record(func(n *driver.Record) { n.Scheduled = bad }),
			"Due":             record(func(n *driver.Record) { n.Due = bad }),
			"Update":          {Update: []*driver.Record{{Ref: held.Ref, Due: bad}}},
			"LetterPublished": dead(func(l *driver.Letter) { l.Published = bad }),
			"DiedAt":          dead(func(l *driver.Letter) { l.DiedAt = bad }),
		} {
			b.Now = noon
			refuse(t, s, b, driver.ErrTime)
			require.Equal(t, before, stats(t, s), "%s %v", name, bad)
		}
	}
	first, last := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	n := ready(func(n *driver.Record) { n.Published, n.Due, n.Scheduled = first, last, last })
	l := letter(func(l *driver.Letter) { l.Published, l.DiedAt = first, last })
	apply(t, s, &driver.Batch{Now: noon, New: []*driver.Record{n}, Bury: []*driver.Letter{l}})
	s = r.reopen(t, s)
	requireRecords(t, []*driver.Record{n}, lookup(t, s, n.ID))
	requireLetters(t, []*driver.Letter{l}, page(t, s, driver.LetterQuery{}).Letters)
}
