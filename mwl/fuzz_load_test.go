package mwl_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// small are definitions for the fuzzer to alter. They are short, because it spends
// most of its time on shortening what it finds.
var small = []string{
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","steps":{"a":{"action":"Return","value":"{{ step.input }}"}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","steps":{"a":{"action":"Pass","assign":{"x":[1,"{{ now() }}"]},"next":"a"}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","steps":{"a":{"action":"Sleep","for":"PT1S","next":"a"}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","steps":{"a":{"action":"Raise","result":{"code":"A.B","previous":null}}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","steps":{"a":{"action":"Match","cases":[{"when":"{{ true }}","next":"a"}],"default":{"next":"a"}}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","steps":{"a":{"action":"Call","call":{"provider":"mwl:provider.call/mwl/mock/v1","with":{"value":1}},"catch":[{"match":{"codes":["A.*"]},"next":"a"}],"next":"a"}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","flows":{"F":{"entrypoint":"b","steps":{"b":{"action":"Return"}}}},"steps":{"a":{"action":"Gather","calls":[{"flow":"F"}],"next":"a"}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","entrypoint":"a","middleware":[{"provider":"mwl:provider.middleware/mwl/finally/v1","onAlways":{"with":{"call":{"provider":"mwl:provider.call/mwl/mock/v1"},"middleware":[]}}}],"steps":{"a":{"action":"Raise"}}}`,
	`{"$schema":"https://mwl.dev/v0.1/flow/schema.json","parameters":{"type":"object","properties":{"a":{"default":1}}},"entrypoint":"a","steps":{"a":{"action":"Raise"}}}`,
	`{"$schema": 5, "steps": {"": {"action": "Raise"}}}`, ``, `"\ud800"`, `{"a":1,"a":[1e999,`,
}

// FuzzLoad: whatever the source, Load returns a definition or a list of problems,
// always the same ones. With changes other than zero, what is loaded is not the
// source but what so many changes, as that number has them, make of it.
func FuzzLoad(f *testing.F) {
	for _, source := range small {
		f.Add([]byte(source), uint64(0))
		f.Add([]byte(source), uint64(1))
	}
	catalog := testCatalog(f)
	learned := mutator{}
	for _, source := range sources(f, "valid") {
		learned.documents = append(learned.documents, decode(f, source))
	}
	learned.learn()
	f.Fuzz(func(t *testing.T, source []byte, changes uint64) {
		if changes != 0 {
			document, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
			if err != nil {
				return // a source that cannot be read is looked at without changes
			}
			m := learned
			m.rand, m.documents = rand.New(rand.NewPCG(changes, 0)), []any{document} //nolint:gosec // no secrecy is needed
			source = m.next(t)
		}
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
	require.LessOrEqual(t, len(problems), 101)
	for _, p := range problems {
		require.NotEmpty(t, p.Message)
		require.True(t, utf8.ValidString(p.String()), "%q", p)
		require.Positive(t, p.Line)
		require.Positive(t, p.Column)
		require.LessOrEqual(t, len(p.Source), 1000)
		require.LessOrEqual(t, p.Line, len(source)+1)
	}
}
