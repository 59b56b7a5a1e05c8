package contracttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// filterBus has the letters 0 to 4 of five events, published a minute apart. Each died 20 seconds
// after its publication, except 4: it was scheduled for two hours later.
func filterBus(t *testing.T) (bus *eventbus.Bus, ids []eventbus.EventID) {
	t.Helper()
	bus, _ = startBus(t, oneAttempt, withoutCircuit)
	mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
		time.Sleep(20 * time.Second)
		return errBroken
	}, eventbus.Named("s"))
	for i, opts := range [][]eventbus.PublishOption{
		{eventbus.Key("k"), eventbus.Metadata("tenant", "acme")},
		{eventbus.Metadata("tenant", "acme corp"), eventbus.Metadata("region", "eu")},
		{eventbus.Key("k2"), eventbus.Metadata("region", "acme")},
		{eventbus.Key("k"), eventbus.Metadata("tenant", "")},
		{eventbus.After(2 * time.Hour)},
	} {
		ids = append(ids, mustPublish(t, bus, "a", i, opts...))
		time.Sleep(time.Minute)
	}
	time.Sleep(3 * time.Hour)
	synctest.Wait()
	return bus, ids
}

// requireFilter compares the letters that a query selects, newest first, in each method that
// takes a query. It changes no letter.
func requireFilter(t *testing.T, bus *eventbus.Bus, q eventbus.LetterQuery, want ...any) {
	t.Helper()
	page := list(t, bus, q)
	require.Equal(t, want, payloads(page.Letters), "%+v", q)
	require.Equal(t, len(want), page.Total)
	counted := 0
	for _, g := range groupsOf(t, bus, q) {
		counted += g.Count
	}
	require.Equal(t, len(want), counted, "Groups")
	exported, err := bus.DLQ().Export(t.Context(), io.Discard, q)
	require.NoError(t, err)
	require.Equal(t, len(want), exported.Exported)
	// The query is not empty, so that neither needs All.
	replayed, err := bus.DLQ().ReplayMatching(t.Context(), q, eventbus.DryRun())
	require.NoError(t, err)
	require.Equal(t, len(want), replayed.Matched)
	purged, err := bus.DLQ().PurgeMatching(t.Context(), q, eventbus.DryRun())
	require.NoError(t, err)
	require.Equal(t, len(want), purged.Matched)
}

func TestL2_ListFiltersByEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, ids := filterBus(t)
		for i, id := range ids {
			requireFilter(t, bus, eventbus.LetterQuery{Event: id}, i)
		}
		requireFilter(t, bus, eventbus.LetterQuery{Event: eventbus.NewEventID()})
		requireFilter(t, bus, eventbus.LetterQuery{Event: ids[0], Type: "b"})
		requireFilter(t, bus, eventbus.LetterQuery{Event: ids[0], Reason: eventbus.ReasonExpired})
		shutdown(t, bus)
	})
}

// With isolation an event has a letter for each subscription. A replay that fails leaves a new
// letter of the same event.
func TestL2_ListFiltersByEventWithManyLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, oneAttempt, withoutCircuit, eventbus.WithIsolation())
		mustSubscribe(t, bus, "a", failBroken, eventbus.Named("mail"))
		mustSubscribe(t, bus, "a", failBroken, eventbus.Named("billing"))
		id := mustPublish(t, bus, "a", 1)
		mustPublish(t, bus, "a", 2)
		synctest.Wait()
		ofEvent := eventbus.LetterQuery{Event: id}
		requireFilter(t, bus, ofEvent, 1, 1)
		atMail := eventbus.LetterQuery{Event: id, Subscription: "mail"}
		require.Equal(t, 1, list(t, bus, atMail).Total)
		report, err := bus.DLQ().ReplayMatching(t.Context(), atMail)
		require.NoError(t, err)
		require.Equal(t, 1, report.Replayed)
		synctest.Wait()
		requireFilter(t, bus, ofEvent, 1, 1)
		require.Equal(t, 1, list(t, bus, atMail).Letters[0].Replays)
		purged, err := bus.DLQ().PurgeMatching(t.Context(), ofEvent)
		require.NoError(t, err)
		require.Equal(t, 2, purged.Purged)
		require.Equal(t, []any{2, 2}, payloads(letters(t, bus)))
		shutdown(t, bus)
	})
}

func TestL2_ListFiltersByReplays(t *testing.T) {
	for name, opts := range map[string][]eventbus.Option{
		"in memory": nil, "stored": {eventbus.WithStore(storetest.NewModel().Open())},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, append(opts, oneAttempt, withoutCircuit)...)
				mustSubscribe(t, bus, "a", failBroken, eventbus.Named("mail"))
				mustPublish(t, bus, "a", 1)
				id := mustPublish(t, bus, "a", 2)
				synctest.Wait()
				again := eventbus.LetterQuery{Replayed: true}
				require.Zero(t, list(t, bus, again).Total)
				_, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Event: id})
				require.NoError(t, err)
				synctest.Wait()
				found := list(t, bus, again)
				require.Equal(t, 1, found.Total)
				require.Equal(t, id, found.Letters[0].Event.ID)
				require.Equal(t, 2, list(t, bus, eventbus.LetterQuery{}).Total)
				purged, err := bus.DLQ().PurgeMatching(t.Context(), again)
				require.NoError(t, err, "it is a filter, which needs no All")
				require.Equal(t, 1, purged.Purged)
				shutdown(t, bus)
			})
		})
	}
}

func TestL2_ListFiltersByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, ids := filterBus(t)
		requireFilter(t, bus, eventbus.LetterQuery{Key: "k"}, 3, 0)
		requireFilter(t, bus, eventbus.LetterQuery{Key: "k2"}, 2)
		requireFilter(t, bus, eventbus.LetterQuery{Key: "unknown"})
		requireFilter(t, bus, eventbus.LetterQuery{Key: "k", Subscription: "s", Event: ids[3]}, 3)
		purged, err := bus.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{Key: "k"})
		require.NoError(t, err)
		require.Equal(t, 2, purged.Purged)
		requireFilter(t, bus, eventbus.LetterQuery{Key: "k"})
		require.Equal(t, []any{4, 2, 1}, payloads(letters(t, bus)))
		shutdown(t, bus)
	})
}

func TestL2_ListFiltersByMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := filterBus(t)
		requireFilter(t, bus, eventbus.LetterQuery{MetadataName: "tenant", MetadataValue: "acme"}, 0)
		requireFilter(t, bus, eventbus.LetterQuery{MetadataName: "tenant", MetadataValue: "acm"})
		requireFilter(t, bus, eventbus.LetterQuery{MetadataName: "region", MetadataValue: "eu"}, 1)
		requireFilter(t, bus, eventbus.LetterQuery{MetadataName: "region"}, 2, 1)
		requireFilter(t, bus, eventbus.LetterQuery{MetadataName: "tenant"}, 3, 1, 0)
		requireFilter(t, bus, eventbus.LetterQuery{MetadataName: "tenan"})
		requireFilter(t, bus, eventbus.LetterQuery{MetadataName: "tenant", Key: "k"}, 3, 0)
		shutdown(t, bus)
	})
}

// Publication and death are different times: the bounds of one do not limit the other.
func TestL2_ListFiltersByTimeOfPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := filterBus(t)
		published := make([]time.Time, 5)
		for _, l := range letters(t, bus) {
			published[l.Event.Payload.(int)] = l.Event.Time
		}
		requireFilter(t, bus, eventbus.LetterQuery{PublishedSince: published[2]}, 4, 3, 2)
		requireFilter(t, bus, eventbus.LetterQuery{PublishedSince: published[2].Add(1)}, 4, 3)
		requireFilter(t, bus, eventbus.LetterQuery{PublishedUntil: published[2]}, 2, 1, 0)
		requireFilter(t, bus, eventbus.LetterQuery{PublishedUntil: published[2].Add(-1)}, 1, 0)
		requireFilter(t, bus, eventbus.LetterQuery{PublishedSince: published[1], PublishedUntil: published[1]}, 1)
		requireFilter(t, bus, eventbus.LetterQuery{PublishedSince: published[4].Add(1)})
		requireFilter(t, bus, eventbus.LetterQuery{PublishedUntil: published[0].Add(-1)})
		// The scheduled event died an hour after the others.
		requireFilter(t, bus, eventbus.LetterQuery{PublishedUntil: published[4], Since: published[0].Add(time.Hour)}, 4)
		shutdown(t, bus)
	})
}

func TestL2_BadFilters(t *testing.T) {
	bus, _ := startBus(t)
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		option, remedy string
		query          eventbus.LetterQuery
	}{
		{"LetterQuery.PublishedSince", "must not be after PublishedUntil", eventbus.LetterQuery{PublishedSince: time.Unix(2, 0), PublishedUntil: time.Unix(1, 0)}},
		{"LetterQuery.Key", "longer than 255 bytes; use a digest", eventbus.LetterQuery{Key: long}},
		{"LetterQuery.Key", "control character", eventbus.LetterQuery{Key: "a\nb"}},
		{"LetterQuery.Key", "not valid UTF-8", eventbus.LetterQuery{Key: "\xff"}},
		{"LetterQuery.MetadataName", "copy it from a letter", eventbus.LetterQuery{MetadataName: long}},
		{"LetterQuery.MetadataName", "copy it from a letter", eventbus.LetterQuery{MetadataName: "\x00"}},
		{"LetterQuery.MetadataValue", "MetadataName", eventbus.LetterQuery{MetadataValue: "acme"}},
	} {
		check := func(err error) {
			t.Helper()
			requireOptionError(t, err, c.option)
			require.ErrorContains(t, err, c.remedy)
			require.Less(t, len(err.Error()), 400)
		}
		_, err := bus.DLQ().List(t.Context(), c.query)
		check(err)
		_, err = bus.DLQ().Groups(t.Context(), c.query)
		check(err)
		_, err = bus.DLQ().Export(t.Context(), io.Discard, c.query)
		check(err)
		_, err = bus.DLQ().ReplayMatching(t.Context(), c.query)
		check(err)
		_, err = bus.DLQ().PurgeMatching(t.Context(), c.query)
		check(err)
	}
	// A zero time excludes no letter, in any location.
	zero := time.Time{}.In(time.FixedZone("east", 3600))
	for _, q := range []eventbus.LetterQuery{{PublishedSince: zero}, {PublishedUntil: zero}} {
		_, err := bus.DLQ().PurgeMatching(t.Context(), q)
		requireOptionError(t, err, "LetterQuery.All")
	}
	shutdown(t, bus)
}

// filterEvent is an event that dies, by what it is filtered for. Small numbers repeat.
type filterEvent struct {
	Type, Key, Tenant, Permanent int
	Pause                        int // seconds until the next publication
}

// filterChoice is a query by its fields: 0 leaves a field unset. Times are taken from letters.
type filterChoice struct {
	Type, Subscription, Reason, Fingerprint, Event, Key, Name, Value, Error int
	Since, Until, PublishedSince, PublishedUntil, Replayed                  int
}

func drawFilterChoice(rt *rapid.T) (c filterChoice) {
	for _, field := range []*int{
		&c.Type, &c.Subscription, &c.Reason, &c.Fingerprint, &c.Event, &c.Key, &c.Name, &c.Value, &c.Error,
		&c.Since, &c.Until, &c.PublishedSince, &c.PublishedUntil, &c.Replayed,
	} {
		if rapid.IntRange(0, 3).Draw(rt, "set") == 3 {
			*field = rapid.IntRange(1, 40).Draw(rt, "value")
		}
	}
	return c
}

// query returns the query, and a reference: for each set field a condition on a letter.
func (c filterChoice) query(all []eventbus.DeadLetter) (q eventbus.LetterQuery, matches func(l eventbus.DeadLetter) bool) {
	var conditions []func(l eventbus.DeadLetter) bool
	where := func(field int, set func(from eventbus.DeadLetter) func(l eventbus.DeadLetter) bool) {
		if field > 0 {
			conditions = append(conditions, set(all[field%len(all)]))
		}
	}
	type letter = eventbus.DeadLetter
	where(c.Type, func(from letter) func(letter) bool {
		q.Type = from.Event.Type
		return func(l letter) bool { return l.Event.Type == q.Type }
	})
	where(c.Subscription, func(from letter) func(letter) bool {
		q.Subscription = from.Subscription
		return func(l letter) bool { return l.Subscription == q.Subscription }
	})
	where(c.Reason, func(from letter) func(letter) bool {
		q.Reason = from.Reason
		return func(l letter) bool { return l.Reason == q.Reason }
	})
	where(c.Fingerprint, func(from letter) func(letter) bool {
		q.Fingerprint = from.Fingerprint
		return func(l letter) bool { return l.Fingerprint == q.Fingerprint }
	})
	where(c.Event, func(from letter) func(letter) bool {
		q.Event = from.Event.ID
		return func(l letter) bool { return l.Event.ID == q.Event }
	})
	where(c.Key, func(from letter) func(letter) bool {
		q.Key = from.Event.Key // perhaps empty, which excludes no letter
		return func(l letter) bool { return q.Key == "" || l.Event.Key == q.Key }
	})
	where(c.Name+c.Value, func(from letter) func(letter) bool {
		q.MetadataName = "tenant"
		if c.Value > 0 {
			q.MetadataValue = from.Event.Metadata.Get("tenant")
		}
		return func(l letter) bool {
			for name, value := range l.Event.Metadata.All() {
				if name == "tenant" {
					return q.MetadataValue == "" || value == q.MetadataValue
				}
			}
			return false
		}
	})
	where(c.Error, func(from letter) func(letter) bool {
		q.Error = from.Failures[0].Error[3:]
		return func(l letter) bool { return strings.HasSuffix(l.Failures[0].Error, q.Error) }
	})
	where(c.Since, func(from letter) func(letter) bool {
		q.Since = from.DiedAt
		return func(l letter) bool { return l.DiedAt.Compare(q.Since) >= 0 }
	})
	where(c.Until, func(from letter) func(letter) bool {
		q.Until = from.DiedAt
		return func(l letter) bool { return l.DiedAt.Compare(q.Until) <= 0 }
	})
	where(c.PublishedSince, func(from letter) func(letter) bool {
		q.PublishedSince = from.Event.Time
		return func(l letter) bool { return l.Event.Time.Compare(q.PublishedSince) >= 0 }
	})
	where(c.PublishedUntil, func(from letter) func(letter) bool {
		q.PublishedUntil = from.Event.Time
		return func(l letter) bool { return l.Event.Time.Compare(q.PublishedUntil) <= 0 }
	})
	where(c.Replayed, func(letter) func(letter) bool {
		q.Replayed = true
		return func(l letter) bool { return l.Replays > 0 }
	})
	return q, func(l eventbus.DeadLetter) bool {
		return !slices.ContainsFunc(conditions, func(holds func(letter) bool) bool { return !holds(l) })
	}
}

// Any combination of fields selects, in each method that takes a query, the letters that a plain
// loop over all letters selects.
func TestL2_FiltersAgreeWithAReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) filterEvent {
			n := func(most int) int { return rapid.IntRange(0, most).Draw(rt, "of event") }
			return filterEvent{n(2), n(2), n(3), n(1), n(2)}
		}), 1, 30).Draw(rt, "events")
		choices := rapid.SliceOfN(rapid.Custom(drawFilterChoice), 1, 20).Draw(rt, "queries")
		var problem error
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, silent(oneAttempt, withoutCircuit, eventbus.WithIsolation())...)
			for _, name := range []string{"mail", "billing"} {
				mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
					time.Sleep(time.Duration(len(name)) * time.Second)
					err := fmt.Errorf("at %s: %s", name, e.Type)
					if e.Payload.(int) == 1 {
						return eventbus.Permanent(err)
					}
					return err
				}, eventbus.Named(name))
			}
			for _, e := range events {
				opts := []eventbus.PublishOption{eventbus.Key([]string{"", "k", "l"}[e.Key])}
				if e.Tenant > 0 {
					opts = append(opts, eventbus.Metadata("tenant", []string{"", "acme", "globex"}[e.Tenant-1]))
				}
				mustPublish(t, bus, []string{"a", "b", "c"}[e.Type], e.Permanent, opts...)
				time.Sleep(time.Duration(e.Pause) * time.Second)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			all := letters(t, bus)
			require.Len(t, all, 2*len(events))
			for _, c := range choices {
				if q, matches := c.query(all); problem == nil {
					problem = checkFilter(t, bus, all, q, matches)
				}
			}
			_ = bus.Shutdown(context.Background())
		})
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

// checkFilter compares what the queue selects with what matches selects from all letters.
func checkFilter(t *testing.T, bus *eventbus.Bus, all []eventbus.DeadLetter, q eventbus.LetterQuery, matches func(eventbus.DeadLetter) bool) error {
	dlq := bus.DLQ()
	page, err := dlq.List(t.Context(), q)
	if q.Since.After(q.Until) && !q.Until.IsZero() || q.PublishedSince.After(q.PublishedUntil) && !q.PublishedUntil.IsZero() {
		if !errors.Is(err, eventbus.ErrInvalidOption) {
			return fmt.Errorf("%+v is accepted: %w", q, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	var want []eventbus.LetterID
	for _, l := range all {
		if matches(l) {
			want = append(want, l.ID)
		}
	}
	var listed []eventbus.LetterID
	for _, l := range page.Letters {
		listed = append(listed, l.ID)
	}
	if !slices.Equal(want, listed) || page.Total != len(want) {
		return fmt.Errorf("%+v: List returned %v with a total of %d, want %v", q, listed, page.Total, want)
	}
	q.All = true // an empty query needs it
	groups, _ := dlq.Groups(t.Context(), q)
	grouped := 0
	for _, g := range groups {
		grouped += g.Count
	}
	var exported bytes.Buffer
	_, _ = dlq.Export(t.Context(), &exported, q)
	lines := bytes.Count(exported.Bytes(), []byte("\n"))
	replay, _ := dlq.ReplayMatching(t.Context(), q, eventbus.DryRun())
	purge, _ := dlq.PurgeMatching(t.Context(), q, eventbus.DryRun())
	if n := len(want); grouped != n || lines != n || replay.Matched != n || purge.Matched != n {
		return fmt.Errorf("%+v: want %d letters, got %d of Groups, %d of Export, %d of ReplayMatching, %d of PurgeMatching",
			q, n, grouped, lines, replay.Matched, purge.Matched)
	}
	return nil
}
