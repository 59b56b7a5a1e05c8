package mwl_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// FuzzLoad: whatever the source, Load returns a definition or a list of problems,
// always the same ones.
func FuzzLoad(f *testing.F) {
	for _, dir := range []string{"valid", "invalid"} {
		for _, source := range sources(f, dir) {
			f.Add(source)
		}
	}
	f.Add([]byte(`{"$schema": 5, "steps": {"": {"action": "Raise"}}}`))
	catalog := shop(f)
	f.Fuzz(func(t *testing.T, source []byte) {
		def, err := mwl.Load(source, mwl.WithCatalog(catalog))
		again, errAgain := mwl.Load(source, mwl.WithCatalog(catalog))
		require.Equal(t, err, errAgain)
		if err != nil {
			require.Nil(t, def)
			require.Nil(t, again)
			requirePlaced(t, source, problemsOf(t, err))
			return
		}
		require.True(t, json.Valid(source))
		require.Equal(t, source, def.Source())
		require.Equal(t, def.Warnings(), again.Warnings())
		requirePlaced(t, source, def.Warnings())
	})
}

// requirePlaced checks that problems say where they are.
func requirePlaced(t *testing.T, source []byte, problems []mwl.Problem) {
	t.Helper()
	require.LessOrEqual(t, len(problems), 100)
	for _, p := range problems {
		require.NotEmpty(t, p.Message)
		require.True(t, utf8.ValidString(p.String()), "%q", p)
		require.Positive(t, p.Line)
		require.Positive(t, p.Column)
		require.LessOrEqual(t, len(p.Source), 1000)
		require.LessOrEqual(t, p.Line, len(source)+1)
	}
}
