package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/driver"
)

var catalogTests = []conformanceTest{
	{name: "Replaces", run: testCatalogReplaces},
	{name: "WithTheBatch", run: testCatalogWithTheBatch},
	{name: "OfAnotherProcess", needs: needsBeside, run: testCatalogOfAnotherProcess},
	{name: "SurvivesACrash", needs: needsCrash, run: testCatalogSurvivesACrash},
}

// requireCatalog requires that the store has a catalog: nil for none.
func requireCatalog(t *testing.T, want []byte, s driver.Store) {
	t.Helper()
	got, err := s.Catalog(t.Context())
	require.NoError(t, err, "Catalog")
	require.Equal(t, bytesText(want), bytesText(got))
}

// catalogWith returns a catalog as a bus encodes it.
func catalogWith(name string) []byte {
	return []byte(`{"at":"2026-03-04T12:00:00Z","subscriptions":[{"subscription":"` + name + `","pattern":"order.*","text":"ü'\u003c"}],"a":null}`)
}

// The bytes of the last catalog return, also after the store was opened again.
func testCatalogReplaces(t *testing.T, r *rig) {
	s := r.open(t)
	requireCatalog(t, nil, s)
	for _, catalog := range [][]byte{catalogWith("mail"), catalogWith("other"), {}, []byte("null"), catalogWith("a shorter one")} {
		apply(t, s, &driver.Batch{Now: noon, Catalog: catalog})
		requireCatalog(t, catalog, s)
		apply(t, s, &driver.Batch{Now: noon})
		requireCatalog(t, catalog, s) // a batch without one keeps it
		s = r.reopen(t, s)
		requireCatalog(t, catalog, s)
	}
}

// A refused batch changes no catalog.
func testCatalogWithTheBatch(t *testing.T, r *rig) {
	s := r.open(t)
	first := catalogWith("mail")
	apply(t, s, &driver.Batch{Now: noon, Catalog: first})
	refuse(t, s, &driver.Batch{Now: noon, Take: []driver.ID{newID()}, Catalog: catalogWith("other")}, driver.ErrNotFound)
	requireCatalog(t, first, s)
}

func testCatalogOfAnotherProcess(t *testing.T, r *rig) {
	s := r.open(t)
	beside := r.beside(t)
	requireCatalog(t, nil, beside)
	apply(t, s, &driver.Batch{Now: noon, Catalog: catalogWith("mail")})
	requireCatalog(t, catalogWith("mail"), beside)
}

func testCatalogSurvivesACrash(t *testing.T, r *rig) {
	s := r.open(t)
	apply(t, s, &driver.Batch{Now: noon, Catalog: catalogWith("mail")})
	r.Crash(t, s)
	requireCatalog(t, catalogWith("mail"), r.open(t))
}
