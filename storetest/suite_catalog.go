package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var catalogTests = []conformanceTest{
	{name: "Replaces", run: testCatalogReplaces},
	{name: "OfInstances", run: testCatalogOfInstances},
	{name: "Number", run: testCatalogNumber},
	{name: "WithTheBatch", run: testCatalogWithTheBatch},
	{name: "OfAnotherProcess", run: testCatalogOfAnotherProcess},
	{name: "IfCatalogs", run: testIfCatalogs},
	{name: "SurvivesACrash", needs: needsCrash, run: testCatalogSurvivesACrash},
}

// requireCatalogs requires that the store has exactly these catalogs, in any order, and that their Numbers ascend.
func requireCatalogs(t *testing.T, s driver.Store, want ...driver.Catalog) {
	t.Helper()
	got, err := s.Catalogs(t.Context())
	require.NoError(t, err, "Catalogs")
	text := func(all []driver.Catalog) (lines []string) {
		for _, c := range all {
			lines = append(lines, fmt.Sprintf("%q %s %s", c.Instance, c.Seen.Format(time.RFC3339Nano), bytesText(c.Body)))
		}
		return lines
	}
	require.ElementsMatch(t, text(want), text(got), "Catalogs")
	require.True(t, slices.IsSortedFunc(got, func(x, y driver.Catalog) int { return cmp.Compare(x.Number, y.Number) }), "Catalogs: by Number")
}

// A batch that depends on the catalogs is refused if they are others.
func testIfCatalogs(t *testing.T, r *rig) {
	s := r.open(t)
	one, two := catalogOf("one", catalogWith("mail")), catalogOf("two", anyBytes("a catalog"))
	mark := func(all ...driver.Catalog) *driver.Batch {
		return &driver.Batch{Now: noon, Directives: []driver.Directive{{Subscription: "x", Body: []byte("{}")}}, IfCatalogs: append([]driver.Catalog{}, all...)}
	}
	refused := func(all ...driver.Catalog) {
		t.Helper()
		err := submit(t, s, mark(all...))
		var refusal *driver.RefusedError
		require.ErrorAs(t, err, &refusal)
		require.ErrorIs(t, err, driver.ErrCatalogsChanged)
		directives, err := s.Directives(t.Context())
		require.NoError(t, err)
		require.Empty(t, directives)
	}
	refused(one)
	apply(t, s, &driver.Batch{Now: noon, Catalog: &one})
	apply(t, s, &driver.Batch{Now: noon, Catalog: &two})
	refused()
	refused(one)
	refused(one, catalogOf("two", catalogWith("mail")))
	refused(one, two, catalogOf("three", nil))
	two.Seen = noon.Add(time.Hour) // it is not compared
	apply(t, s, mark(two, one))
	apply(t, s, &driver.Batch{Now: noon, Catalog: &driver.Catalog{Instance: "one"}})
	apply(t, s, mark(two))
	apply(t, s, &driver.Batch{Now: noon, Catalog: &driver.Catalog{Instance: "two"}})
	apply(t, s, mark())
}

// catalogWith returns a catalog as a bus encodes it.
func catalogWith(name string) []byte {
	return []byte(`{"at":"2026-03-04T12:00:00Z","subscriptions":[{"subscription":"` + name + `","pattern":"order.*","text":"ü'\u003c"}],"a":null}`)
}

// catalogOf returns the catalog of an instance, seen at noon.
func catalogOf(instance string, body []byte) driver.Catalog {
	return driver.Catalog{Instance: instance, Seen: noon, Body: body}
}

// The bytes of the last catalog return, also after the store was opened again.
func testCatalogReplaces(t *testing.T, r *rig) {
	s := r.open(t)
	requireCatalogs(t, s)
	for i, body := range [][]byte{catalogWith("mail"), catalogWith("other"), {}, []byte("null"), anyBytes("a catalog"), catalogWith("a shorter one")} {
		c := driver.Catalog{Instance: "one", Body: body, Seen: noon.AddDate(1, 0, 0)} // a store ignores Seen of the batch
		at := noon.Add(time.Duration(i) * time.Hour)
		apply(t, s, &driver.Batch{Now: at, Catalog: &c})
		require.Equal(t, noon.AddDate(1, 0, 0), c.Seen, "the batch does not change")
		c.Seen = at
		requireCatalogs(t, s, c)
		apply(t, s, &driver.Batch{Now: at.Add(time.Minute)})
		requireCatalogs(t, s, c) // a batch without one keeps it
		s = r.reopen(t, s)
		requireCatalogs(t, s, c)
	}
}

// Each instance has a catalog.
func testCatalogOfInstances(t *testing.T, r *rig) {
	s := r.open(t)
	put := func(instance string, body []byte) {
		apply(t, s, &driver.Batch{Now: noon, Catalog: &driver.Catalog{Instance: instance, Body: body}})
	}
	names := []string{"b", "a", "B", "a 'ü\"%", "", "ab"}
	for _, name := range names {
		put(name, catalogWith(name))
	}
	all := func(names ...string) (of []driver.Catalog) {
		for _, name := range names {
			of = append(of, catalogOf(name, catalogWith(name)))
		}
		return of
	}
	requireCatalogs(t, s, all("", "B", "a", "a 'ü\"%", "ab", "b")...)
	put("a", nil)
	put("unknown", nil)
	requireCatalogs(t, s, all("", "B", "a 'ü\"%", "ab", "b")...)
	put("", nil)
	put("b", []byte{})
	s = r.reopen(t, s)
	requireCatalogs(t, s, append(all("B", "a 'ü\"%", "ab"), catalogOf("b", []byte{}))...)
}

// Number orders the instances by their first catalogs, and stays when a catalog is replaced.
func testCatalogNumber(t *testing.T, r *rig) {
	s := r.open(t)
	put := func(instance string, body []byte) {
		apply(t, s, &driver.Batch{Now: noon, Catalog: &driver.Catalog{Instance: instance, Number: 77, Body: body}})
	}
	order := func() (names []string) {
		all, err := s.Catalogs(t.Context())
		require.NoError(t, err, "Catalogs")
		for _, c := range all {
			require.Positive(t, c.Number)
			names = append(names, c.Instance)
		}
		return names
	}
	for _, name := range []string{"c", "a", "b"} {
		put(name, []byte("first"))
	}
	put("c", []byte("second"))
	put("a", []byte("second"))
	require.Equal(t, []string{"c", "a", "b"}, order())
	put("c", nil)
	put("c", []byte("again"))
	require.Equal(t, []string{"a", "b", "c"}, order())
	s = r.reopen(t, s)
	put("d", []byte("first"))
	require.Equal(t, []string{"a", "b", "c", "d"}, order())
}

// A refused batch changes no catalog.
func testCatalogWithTheBatch(t *testing.T, r *rig) {
	s := r.open(t)
	first := catalogOf("one", catalogWith("mail"))
	apply(t, s, &driver.Batch{Now: noon, Catalog: &first})
	for _, c := range []driver.Catalog{catalogOf("one", catalogWith("other")), catalogOf("one", nil), catalogOf("two", catalogWith("other"))} {
		refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{newID()}, Catalog: &c}, driver.ErrNotFound)
		requireCatalogs(t, s, first)
	}
}

// A store needs no lease to put its catalog. All stores see it.
func testCatalogOfAnotherProcess(t *testing.T, r *rig) {
	s := r.open(t)
	beside := r.beside(t)
	requireCatalogs(t, beside)
	one, two := catalogOf("one", catalogWith("mail")), catalogOf("two", catalogWith("other"))
	apply(t, s, &driver.Batch{Now: noon, Catalog: &one})
	apply(t, beside, &driver.Batch{Now: noon, Catalog: &two})
	requireCatalogs(t, s, one, two)
	requireCatalogs(t, beside, one, two)
	apply(t, beside, &driver.Batch{Now: noon, Catalog: &driver.Catalog{Instance: "one"}})
	requireCatalogs(t, s, two)
}

func testCatalogSurvivesACrash(t *testing.T, r *rig) {
	s := r.open(t)
	c := catalogOf("one", catalogWith("mail"))
	apply(t, s, &driver.Batch{Now: noon, Catalog: &c})
	r.Crash(t, s)
	requireCatalogs(t, r.open(t), c)
}
