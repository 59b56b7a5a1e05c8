package mwl_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/loader"
	"github.com/surebus/eventbus/mwl/internal/schema"
)

const (
	// schemaTestsDir names a directory with documents that are to be accepted,
	// valid/flow and valid/provider, and refused, invalid/flow and invalid/provider.
	schemaTestsDir = "MWL_SCHEMA_TESTS_DIR"
	// schemaDir names a directory with the published schemas, flow/schema.json and
	// provider/schema.json.
	schemaDir = "MWL_SCHEMA_DIR"
)

// everyProvider is a catalog that has every provider, with any arguments: which ones
// there are is not what schemas are about.
type everyProvider struct{}

var anyArguments = func() *schema.Schema {
	accepts, err := schema.Compile(map[string]any{"type": "object", "additionalProperties": true})
	if err != nil {
		panic(err)
	}
	return accepts
}()

func (everyProvider) CallProvider(uri string) (*definition.CallContract, bool) {
	return &definition.CallContract{URI: uri, Parameters: anyArguments}, true
}

func (everyProvider) Middleware(uri string) (*definition.MiddlewareContract, bool) {
	contract := &definition.MiddlewareContract{URI: uri, Levels: definition.StepLevel | definition.FlowLevel}
	for phase := range contract.Phases {
		contract.Phases[phase].Parameters = anyArguments
	}
	return contract, true
}

// TestSchemaFixtures reads the documents that MWL_SCHEMA_TESTS_DIR has, and our
// own.
func TestSchemaFixtures(t *testing.T) {
	dirs := []string{filepath.Join("testdata", "schema")}
	if named, ok := os.LookupEnv(schemaTestsDir); ok {
		dirs = append(dirs, named)
	}
	for _, dir := range dirs {
		files := jsonFiles(t, dir)
		require.NotEmpty(t, files, "%s has no documents", dir)
		for _, file := range files {
			name, err := filepath.Rel(dir, file)
			require.NoError(t, err)
			t.Run(filepath.ToSlash(name), func(t *testing.T) {
				source, err := os.ReadFile(file)
				require.NoError(t, err)
				parts := strings.Split(filepath.ToSlash(name), "/")
				require.GreaterOrEqual(t, len(parts), 3, "the name is not verdict/kind/file")
				problems := read(t, parts[1], source)
				switch parts[0] {
				case "valid":
					require.Empty(t, problems)
				case "invalid":
					require.NotEmpty(t, problems)
					t.Log(problems)
				default:
					t.Fatalf("%q is neither valid nor invalid", parts[0])
				}
			})
		}
	}
}

func jsonFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) == ".json" {
			files = append(files, path)
		}
		return err
	}))
	return files
}

// read loads a document of the kind.
func read(t *testing.T, kind string, source []byte) []definition.Problem {
	t.Helper()
	compiler, err := expr.NewCompiler(expr.Limits{})
	require.NoError(t, err)
	options := loader.Options{Catalog: everyProvider{}, Compiler: compiler}
	var problems []definition.Problem
	switch kind {
	case "flow":
		_, problems, _ = loader.Load(source, options)
	case "provider":
		_, problems, _ = loader.LoadProvider(source, loader.AnyProvider, options)
	default:
		t.Fatalf("there are no documents of the kind %q", kind)
	}
	return problems
}

// TestShapeAgreesWithThePublishedSchema makes every change of many kinds to valid
// documents, and some several at once, and compares the verdict of the published
// schema with ours about the shape.
func TestShapeAgreesWithThePublishedSchema(t *testing.T) {
	dir, ok := os.LookupEnv(schemaDir)
	if !ok {
		t.Skipf("%s names no directory with the published schemas", schemaDir)
	}
	for _, kind := range []string{"flow", "provider"} {
		t.Run(kind, func(t *testing.T) {
			published, err := os.ReadFile(filepath.Join(dir, kind, "schema.json"))
			require.NoError(t, err)
			compareShapes(t, kind, published)
		})
	}
}

// TestShapeAgreesWithOurSchema is TestShapeAgreesWithThePublishedSchema for the
// schema that this package publishes.
func TestShapeAgreesWithOurSchema(t *testing.T) { compareShapes(t, "flow", mwl.Schema()) }

func compareShapes(t *testing.T, kind string, judge []byte) {
	t.Helper()
	own := map[string]string{"flow": filepath.Join("testdata", "definitions", "valid"), "provider": filepath.Join("testdata", "schema", "valid", "provider")}
	whole := map[string]int{"flow": 1, "provider": 2} // of everything.json, and of both kinds of providers
	check := map[string]func([]byte, loader.Options) ([]definition.Problem, int){"flow": loader.Shape, "provider": loader.ProviderShape}
	oracle := compile(t, judge)
	var documents []any
	for _, file := range jsonFiles(t, own[kind]) {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		documents = append(documents, decode(t, source))
	}
	c := comparison{oracle: oracle, check: check[kind]}
	m := mutator{rand: rand.New(rand.NewPCG(1, 2)), documents: documents} //nolint:gosec // no secrecy is needed
	m.learn()
	for _, document := range documents[:whole[kind]] {
		for _, part := range pieces(document) {
			m.each(t, part, func(source []byte) {
				if *search || m.rand.IntN(10) == 0 {
					c.compare(t, source)
				}
			})
		}
	}
	for range 100 {
		c.compare(t, m.next(t))
	}
	t.Logf("%d documents were accepted and %d refused", c.accepted, c.refused)
	require.Greater(t, c.accepted, 50)
	require.Greater(t, c.refused, 50)
}

// TestProviderSchema_AgreesWithWhatIsRead does the same for provider documents.
func TestProviderSchema_AgreesWithWhatIsRead(t *testing.T) {
	compareShapes(t, "provider", mwl.ProviderSchema())
}

// TestProviderSchema_AcceptsOwnContracts includes what Catalog.Document makes of Go values.
func TestProviderSchema_AcceptsOwnContracts(t *testing.T) {
	oracle := compile(t, mwl.ProviderSchema())
	catalog, err := mwl.NewCatalog()
	require.NoError(t, err)
	for _, uri := range catalog.URIs() {
		document, ok := catalog.Document(uri)
		require.True(t, ok)
		require.NoError(t, oracle.Validate(decode(t, document)), uri)
	}
}

// TestSchemaJudgesDefinitions compares the verdicts of the schema that this package
// publishes with those about whole documents: valid ones pass, and what it refuses,
// Load refuses.
func TestSchemaJudgesDefinitions(t *testing.T) {
	oracle := compile(t, mwl.Schema())
	dirs := []string{"testdata/conformance", "testdata/definitions", "testdata/schema"}
	for _, name := range []string{conformanceDir, schemaTestsDir} {
		if dir, ok := os.LookupEnv(name); ok {
			dirs = append(dirs, dir)
		}
	}
	accepted, refused := 0, 0
	for _, dir := range dirs {
		for _, file := range jsonFiles(t, dir) {
			name := filepath.ToSlash(file)
			isCase := filepath.Base(file) == "definition.json"
			if !isCase && !strings.Contains(name, "/flow/") && !strings.Contains(name, "testdata/definitions/") {
				continue
			}
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			document, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
			if err != nil {
				continue // no schema can judge what is no JSON
			}
			verdict := oracle.Validate(document)
			if verdict == nil {
				accepted++
			} else {
				refused++
				require.NotEmpty(t, read(t, "flow", source), "%s: Load accepts what the schema refuses: %v", file, verdict)
			}
			if isCase || strings.Contains(name, "/valid/") {
				require.NoError(t, verdict, file)
			}
			if strings.Contains(name, "/invalid/flow/") {
				require.Error(t, verdict, file)
			}
		}
	}
	require.Greater(t, accepted, 100)
	require.Positive(t, refused)
}

// TestSchemaDescribesEveryMember requires a text for an editor to show wherever a
// member may stand.
func TestSchemaDescribesEveryMember(t *testing.T) {
	describesEveryMember(t, mwl.Schema(), 80)
	describesEveryMember(t, mwl.ProviderSchema(), 20)
}

func describesEveryMember(t *testing.T, source []byte, least int) {
	t.Helper()
	root := decode(t, source).(map[string]any)
	definitions := root["$defs"].(map[string]any)
	described := func(member map[string]any) bool {
		if member["description"] != nil {
			return true
		}
		reference, _ := member["$ref"].(string)
		if name, ok := strings.CutPrefix(reference, "#/$defs/"); ok {
			return definitions[name].(map[string]any)["description"] != nil
		}
		name, ok := strings.CutPrefix(reference, "#/properties/")
		return ok && root["properties"].(map[string]any)[name].(map[string]any)["description"] != nil
	}
	members := 0
	judge := func(where string, object map[string]any) {
		properties, _ := object["properties"].(map[string]any)
		for name, member := range properties {
			members++
			require.True(t, described(member.(map[string]any)), "%s: %s has no description", where, name)
		}
	}
	judge("the root", root)
	for name, object := range definitions {
		require.NotEmpty(t, object.(map[string]any)["description"], name)
		judge(name, object.(map[string]any))
	}
	require.Greater(t, members, least)
}

// comparison compares verdicts, and counts them.
type comparison struct {
	oracle            *jsonschema.Schema
	check             func([]byte, loader.Options) ([]definition.Problem, int)
	accepted, refused int
}

func (c *comparison) compare(t *testing.T, source []byte) {
	verdict := c.oracle.Validate(decode(t, source))
	problems, _ := c.check(source, loader.Options{})
	if (verdict == nil) != (len(problems) == 0) { // require builds its message even if all is well
		t.Fatalf("%s\nthe schema: %v\nwe: %v", source, verdict, problems)
	}
	if verdict == nil {
		c.accepted++
	} else {
		c.refused++
	}
}

// pieces returns small documents that together have what the document has. Names
// do not resolve in them, which shapes are not about.
func pieces(document any) []any {
	whole, ok := document.(map[string]any)
	if !ok || whole["steps"] == nil {
		return []any{document}
	}
	var parts []any
	part := func(members map[string]any) {
		p := map[string]any{"$schema": whole["$schema"], "entrypoint": "s", "steps": map[string]any{"s": map[string]any{"action": "Return"}}}
		maps.Copy(p, members)
		parts = append(parts, p)
	}
	part(map[string]any{"comment": "c", "parameters": map[string]any{"type": "object"}, "flows": map[string]any{}, "middleware": []any{}})
	steps := func(flow map[string]any) {
		for _, name := range sortedNames(flow["steps"].(map[string]any)) {
			part(map[string]any{"steps": map[string]any{"s": flow["steps"].(map[string]any)[name]}})
		}
	}
	steps(whole)
	if stack, ok := whole["middleware"].([]any); ok {
		for _, entry := range stack {
			part(map[string]any{"middleware": []any{entry}})
		}
	}
	if flows, ok := whole["flows"].(map[string]any); ok {
		for _, name := range sortedNames(flows) {
			flow := flows[name].(map[string]any)
			steps(flow)
			part(map[string]any{"flows": map[string]any{"F": map[string]any{
				"comment": "c", "entrypoint": "s", "steps": map[string]any{"s": map[string]any{"action": "Raise"}},
			}}})
		}
	}
	return parts
}

func sortedNames(object map[string]any) []string {
	return slices.Sorted(maps.Keys(object))
}

func compile(t *testing.T, source []byte) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	require.NoError(t, c.AddResource("published.json", decode(t, source)))
	compiled, err := c.Compile("published.json")
	require.NoError(t, err)
	return compiled
}

func decode(t testing.TB, source []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
	require.NoError(t, err)
	return v
}

// mutator alters documents.
type mutator struct {
	rand      *rand.Rand
	documents []any
	// names are those of members anywhere, values what stands anywhere, byName what
	// stands under a name, and odd what is right at few places.
	names  []string
	values []any
	odd    []any
	byName map[string][]any
}

// odd are values that are right at few places.
var odd = []string{
	`null`, `true`, `false`, `0`, `-1`, `1`, `1.0`, `1e0`, `2.5`, `1e300`, `""`, `"x"`, `"success"`, `"error"`, `[]`, `{}`, `[null]`, `[{}]`, `["*"]`, `["success"]`,
	`"{{ a }}"`, `"{{}}"`, `"{{ a }} and {{ b }}"`, `"{{ a"`, `" {{ a }}"`, `"{{ a }} "`, `"{{ a }}\n"`, `"{}"`, `"{{}"`, `"{{\n}}"`,
	`"mwl:provider.call/a/b"`, `"mwl:provider.call/a"`, `"mwl:provider.call/a/b/"`, `"mwl:provider.call/a/b/c/d"`, `"mwl:provider.call/a b/c"`, `"mwl:provider.call/a/b\n"`,
	`"mwl:provider.middleware/a/b"`, `"MWL:provider.call/a/b"`, `"mwl:provider.call//b"`, `"mwl:provider.calls/a/b"`, `"mwl:provider.call/é/b"`, `"mwl:provider.call/./.."`,
	`"Call"`, `"Gather"`, `"Match"`, `"Pass"`, `"Sleep"`, `"Return"`, `"Raise"`, `"call"`, `{"type":"object"}`, `{"type":["object"]}`, `{"type":"array"}`, `{"codes":["*"]}`,
	`"https://mwl.dev/v0.1/flow/schema.json"`, `"https://mwl.dev/v0.1/provider/schema.json"`, `"step"`, `["step","step"]`, `["flow"]`, `"Provider.Call.A.B"`, `["Provider.Call.A.*"]`, `["Provider.Call.A"]`,
	`"Aa1"`, `"aA"`, `"control"`, `{"entrypoint":"a","steps":{"a":{"action":"Return"}}}`, `{"action":"Raise"}`, `{"provider":"mwl:provider.call/a/b"}`,
}

var extraNames = []string{"$schema", "comment", "x", "Next", "whenn", "parameters", "attachment", "phases", "calls", "over", "until", "for", "flow", "provider", "previous", "type", "retryable", "concurrency"}

func (m *mutator) learn() {
	m.byName = map[string][]any{}
	m.names = slices.Clone(extraNames)
	for _, text := range odd {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			panic(fmt.Sprint(text, err))
		}
		m.odd = append(m.odd, v)
		m.values = append(m.values, v)
	}
	var walk func(v any)
	walk = func(v any) {
		m.values = append(m.values, v)
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				m.names = append(m.names, name)
				m.byName[name] = append(m.byName[name], v[name])
				walk(v[name])
			}
		}
	}
	for _, d := range m.documents {
		walk(d)
	}
	slices.Sort(m.names)
	m.names = slices.Compact(m.names)
}

// next returns a document that has been altered at one to three places.
func (m *mutator) next(t testing.TB) []byte {
	t.Helper()
	document := []any{copied(pick(m.rand, m.documents))} // in a list, so that the root has a place, too
	for range 1 + m.rand.IntN(3) {
		var places []func()
		m.places(document, &places)
		pick(m.rand, places)()
	}
	source, err := json.Marshal(document[0])
	require.NoError(t, err)
	return source
}

// each gives all documents that one change makes of the document.
func (m *mutator) each(t testing.TB, document any, give func([]byte)) {
	root := []any{copied(document)}
	changed := func() {
		source, err := json.Marshal(root[0])
		require.NoError(t, err)
		give(source)
	}
	changed()
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case []any:
			for i, was := range v {
				for _, other := range m.odd {
					v[i] = other
					changed()
				}
				v[i] = was
				visit(was)
			}
		case map[string]any:
			for _, name := range sortedNames(v) {
				was := v[name]
				delete(v, name)
				changed()
				v["x"+name] = was
				changed()
				delete(v, "x"+name)
				for _, other := range m.odd {
					v[name] = other
					changed()
				}
				v[name] = was
				visit(was)
			}
			for _, name := range m.names {
				if _, has := v[name]; has {
					continue
				}
				for _, other := range append([]any{nil, map[string]any{}}, m.byName[name][:min(2, len(m.byName[name]))]...) {
					v[name] = other
					changed()
				}
				delete(v, name)
			}
		}
	}
	visit(root)
}

// places lists what may be altered in v.
func (m *mutator) places(v any, to *[]func()) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			*to = append(*to, func() { v[i] = copied(pick(m.rand, m.values)) })
			m.places(v[i], to)
		}
	case map[string]any:
		names := slices.Sorted(maps.Keys(v))
		*to = append(*to, func() { v[pick(m.rand, m.names)] = copied(pick(m.rand, m.values)) }, func() {
			name := pick(m.rand, m.names)
			if like := m.byName[name]; like != nil {
				v[name] = copied(pick(m.rand, like))
			}
		})
		for _, name := range names {
			*to = append(*to,
				func() { delete(v, name) },
				func() { v[name] = copied(pick(m.rand, m.values)) },
				func() {
					if like := m.byName[name]; like != nil {
						v[name] = copied(pick(m.rand, like))
					}
				},
				func() {
					value := v[name]
					delete(v, name)
					v[pick(m.rand, m.names)] = value
				})
			m.places(v[name], to)
		}
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func copied(v any) any {
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = copied(v[i])
		}
		return list
	case map[string]any:
		object := make(map[string]any, len(v))
		for name := range v {
			object[name] = copied(v[name])
		}
		return object
	default:
		return v
	}
}
