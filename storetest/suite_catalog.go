package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var catalogTests = []conformanceTest{
	{name: "Replaces", run: testCatalogReplaces},
	{name: "WithTheBatch", run: testCatalogWithTheBatch},
	{name: "OfAnotherProcess", needs: needsBeside, run: testCatalogOfAnotherProcess},
	{name: "SurvivesACrash", needs: needsCrash, run: testCatalogSurvivesACrash},
}

func catalogOf(t *testing.T, s eventbus.Store) *eventbus.Catalog {
	t.Helper()
	c, err := s.Catalog(t.Context())
	require.NoError(t, err)
	return c
}

func catalogWith(names ...string) *eventbus.Catalog {
	c := &eventbus.Catalog{
		At: noon, Policy: eventbus.DefaultRetryPolicy(), RetryIf: true, Timeout: time.Second, Isolated: true, Concurrency: 7, QueueCapacity: 8,
		Circuit: eventbus.CircuitSettings{FailureRatio: 0.5, MinEvents: 4, Window: time.Minute, OpenFor: time.Second},
	}
	for _, name := range names {
		c.Subscriptions = append(c.Subscriptions, eventbus.CatalogSubscription{
			Subscription: name, Pattern: "order.*", Formerly: []string{"former"}, Concurrency: eventbus.Unlimited, Timeout: time.Minute, LineCapacity: 3,
			WhenOpen: eventbus.DropWhenOpen, WhenFull: eventbus.DropOldestWhenFull, Overrides: map[string]string{"MaxRetries": "5"},
			Retry: eventbus.RetryPolicy{MaxRetries: 5, IncludeErrors: []string{}},
			Rules: []eventbus.RetryRule{{Name: "r", Match: eventbus.ErrorMatch{Codes: []string{"a.*"}}, Attempts: 2}}, OwnRules: true,
		})
	}
	return c
}

// The last catalog returns with every field, also after the store was opened again.
func testCatalogReplaces(t *testing.T, r *rig) {
	s := r.open(t)
	require.Nil(t, catalogOf(t, s))
	first := catalogWith("mail", "bill")
	apply(t, s, &eventbus.Batch{Now: noon, Catalog: first})
	require.Equal(t, first, catalogOf(t, s))
	catalogOf(t, s).Subscriptions[0].Subscription = "changed"
	require.Equal(t, first, catalogOf(t, s), "a reader shares no memory")
	apply(t, s, &eventbus.Batch{Now: noon})
	require.Equal(t, first, catalogOf(t, s), "a batch without one keeps it")
	second := catalogWith("other")
	second.At = noon.Add(time.Hour)
	apply(t, s, &eventbus.Batch{Now: noon, Catalog: second})
	s = r.reopen(t, s)
	require.Equal(t, second, catalogOf(t, s))
}

// A refused batch changes no catalog.
func testCatalogWithTheBatch(t *testing.T, r *rig) {
	s := r.open(t)
	first := catalogWith("mail")
	apply(t, s, &eventbus.Batch{Now: noon, Catalog: first})
	refuse(t, s, &eventbus.Batch{Now: noon, Take: []eventbus.LetterID{letter().ID}, Catalog: catalogWith("other")}, eventbus.ErrNotFound)
	late := catalogWith("other")
	late.At = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
	refuse(t, s, &eventbus.Batch{Now: noon, Catalog: late}, eventbus.ErrInvalidEvent)
	require.Equal(t, first, catalogOf(t, s))
}

func testCatalogOfAnotherProcess(t *testing.T, r *rig) {
	s := r.open(t)
	beside := r.beside(t)
	require.Nil(t, catalogOf(t, beside))
	apply(t, s, &eventbus.Batch{Now: noon, Catalog: catalogWith("mail")})
	require.Equal(t, catalogWith("mail"), catalogOf(t, beside))
}

func testCatalogSurvivesACrash(t *testing.T, r *rig) {
	s := r.open(t)
	apply(t, s, &eventbus.Batch{Now: noon, Catalog: catalogWith("mail")})
	r.Crash(t, s)
	require.Equal(t, catalogWith("mail"), catalogOf(t, r.open(t)))
}
