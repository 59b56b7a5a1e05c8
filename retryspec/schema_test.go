package retryspec_test

import (
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/retryspec"
)

func compileSchema(t *testing.T, text []byte) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", schema))
	compiled, err := c.Compile("schema.json")
	require.NoError(t, err)
	return compiled
}

// The schemas accept what the parsers accept, and nothing else.
func TestSchemas_AgreeWithTheParsers(t *testing.T) {
	documents := 10_000
	if testing.Short() {
		documents = 3_000
	}
	for _, format := range []struct {
		name     string
		schema   []byte
		parse    func([]byte) error
		generate func(generator) string
	}{
		{"policy", retryspec.PolicySchema(), parse, generator.policy},
		{"rules", retryspec.RulesSchema(), parseRules, generator.rules},
	} {
		t.Run(format.name, func(t *testing.T) {
			schema := compileSchema(t, format.schema)
			accepted := 0
			for seed := range documents {
				text := format.generate(newGenerator(uint64(seed)))
				document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
				require.NoError(t, err, text)
				byParser, bySchema := format.parse([]byte(text)), schema.Validate(document)
				require.Equal(t, byParser == nil, bySchema == nil, "%s\nthe parser: %v\nthe schema: %v", text, byParser, bySchema)
				if byParser == nil {
					accepted++
				} else {
					requireHelpful(t, byParser)
				}
			}
			t.Logf("%d of %d documents were accepted", accepted, documents)
			require.Greater(t, accepted, documents/5)
			require.Less(t, accepted, documents*4/5)
		})
	}
}

func parse(text []byte) error {
	_, err := retryspec.Parse(text)
	return err
}

func parseRules(text []byte) error {
	_, err := retryspec.ParseRules(text)
	return err
}

// requireHelpful looks whether an error says where, what, and what would be right.
func requireHelpful(t require.TestingT, err error) {
	var e *retryspec.Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, retryspec.ErrInvalid)
	require.NotEmpty(t, e.Value)
	require.NotEmpty(t, e.Expected)
	require.Positive(t, e.Line)
	require.Positive(t, e.Column)
	require.Contains(t, e.Error(), e.Value)
	require.Contains(t, e.Error(), e.Expected)
	if len(e.Path) < 80 {
		require.Contains(t, e.Error(), e.Path)
	}
}

func TestSchemas_AreTheCallersToChange(t *testing.T) {
	for _, schema := range []func() []byte{retryspec.PolicySchema, retryspec.RulesSchema} {
		first := schema()
		first[0] = 'x'
		require.Equal(t, byte('{'), schema()[0])
	}
}
