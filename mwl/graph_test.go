package mwl_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

func TestGraph_StepsEdgesAndFlows(t *testing.T) {
	def := load(t, `
		"middleware": [{$FINALLY, "onAlways": {"with": {"call": {"flow": "tidy"}}}}],
		"entrypoint": "ask",
		"flows": {"tidy": {"entrypoint": "end", "steps": {"end": {"action": "Return"}}}},
		"steps": {
			"ask": {"action": "Call", "call": {$MOCK},
				"middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"retryable": true}, "attempts": 2}]}}}],
				"catch": [{"match": {"codes": ["A.B", "A.C"], "types": ["timeout"], "retryable": false}, "next": "many"}, {"match": {"types": ["error"]}, "next": "lost"}],
				"next": "choose"},
			"choose": {"action": "Match", "cases": [{"when": "{{ step.input == 1.0 }}", "next": "many"}], "default": {"next": "done"}},
			"many": {"action": "Gather", "calls": [{"flow": "tidy"}, {$MOCK}], "next": "done"},
			"lost": {"action": "Raise"},
			"apart": {"action": "Pass", "next": "done"},
			"done": {"action": "Return"}
		}`, nil)
	const mock, retry, finally = "mwl:provider.call/mwl/mock/v1", "mwl:provider.middleware/mwl/retry/v1", "mwl:provider.middleware/mwl/finally/v1"
	require.Equal(t, mwl.Graph{Flows: []mwl.GraphFlow{
		{
			Middleware: []string{finally}, Calls: []mwl.GraphCall{{Flow: 1}}, Entrypoint: "ask",
			Steps: []mwl.GraphStep{
				{
					Name: "ask", Action: "Call", Pointer: "/steps/ask", Middleware: []string{retry}, Calls: []mwl.GraphCall{{Provider: mock, Flow: -1}},
					Edges: []mwl.GraphEdge{
						{To: "choose", Kind: mwl.EdgeNext},
						{To: "many", Kind: mwl.EdgeCatch, Label: "A.B, A.C; type timeout; retryable false"},
						{To: "lost", Kind: mwl.EdgeCatch, Label: "type error"},
					},
				},
				{
					Name: "choose", Action: "Match", Pointer: "/steps/choose",
					Edges: []mwl.GraphEdge{{To: "many", Kind: mwl.EdgeCase, Label: "step.input == 1.0"}, {To: "done", Kind: mwl.EdgeDefault}},
				},
				{
					Name: "many", Action: "Gather", Pointer: "/steps/many", Calls: []mwl.GraphCall{{Flow: 1}, {Provider: mock, Flow: -1}},
					Edges: []mwl.GraphEdge{{To: "done", Kind: mwl.EdgeNext}},
				},
				{Name: "lost", Action: "Raise", Pointer: "/steps/lost"},
				{Name: "done", Action: "Return", Pointer: "/steps/done"},
				{Name: "apart", Action: "Pass", Pointer: "/steps/apart", Edges: []mwl.GraphEdge{{To: "done", Kind: mwl.EdgeNext}}},
			},
		},
		{Name: "tidy", Pointer: "/flows/tidy", Entrypoint: "end", Steps: []mwl.GraphStep{{Name: "end", Action: "Return", Pointer: "/flows/tidy/steps/end"}}},
	}}, def.Graph())
}

// The calls of a Flow's middleware are drawn, and several calls of a Flow as one edge.
func TestGraph_DrawsCalls(t *testing.T) {
	g := load(t, `
		"middleware": [{$FINALLY, "onAlways": {"with": {"call": {"flow": "tidy"}}}}, {$FINALLY, "onAlways": {"with": {"call": {$MOCK}}}}],
		"entrypoint": "many",
		"flows": {"tidy": {"entrypoint": "end", "steps": {"end": {"action": "Return"}}}},
		"steps": {
			"many": {"action": "Gather", "calls": [{"flow": "tidy"}, {"flow": "tidy"}], "next": "done"},
			"done": {"action": "Return"}
		}`, nil).Graph()
	require.Len(t, g.Flows[0].Steps[0].Calls, 2)
	mermaid, dot := g.Mermaid(), g.DOT()
	require.Contains(t, mermaid, "subgraph f0[\"root #40;mwl#47;finally#47;v1, mwl#47;finally#47;v1#41; calls mwl#47;mock#47;v1\"]\n")
	require.Contains(t, mermaid, "\n  f0 ==> f1\n  f0s0 ==> f1\n")
	require.Equal(t, 2, strings.Count(mermaid, "==>"))
	require.Contains(t, dot, `label="root (mwl/finally/v1, mwl/finally/v1) calls mwl/mock/v1";`)
	require.Contains(t, dot, "\n  f0s0 -> f1s0 [style=bold, ltail=cluster_f0, lhead=cluster_f1];\n  f0s0 -> f1s0 [style=bold, lhead=cluster_f1];\n")
	require.Equal(t, 2, strings.Count(dot, "style=bold"))
}

// Text of a definition cannot leave its label.
func TestGraph_EscapesNames(t *testing.T) {
	def := load(t, `"entrypoint": "a\"] --> b\n%%{init}%% <script>alert(1)</script>; & \u001b[31m",
		"steps": {"a\"] --> b\n%%{init}%% <script>alert(1)</script>; & \u001b[31m": {"action": "Return"}}`, nil)
	mermaid, dot := def.Graph().Mermaid(), def.Graph().DOT()
	require.Equal(t, 3, strings.Count(mermaid, "\n")-1, mermaid)
	for _, forbidden := range []string{"<script", "%%", "\x1b", `a"`} {
		require.NotContains(t, mermaid, forbidden)
	}
	require.Contains(t, dot, `a\"] --> b %%{init}%% <script>alert(1)</script>; &amp;  [31m`)
	require.NotContains(t, dot, "\x1b")

	decoded := load(t, `"entrypoint": "$$x$$ fa:fa-car", "steps": {"$$x$$ fa:fa-car": {"action": "Return"}}`, nil)
	require.Contains(t, decoded.Graph().Mermaid(), `"#36;#8203;#36;#8203;x#36;#8203;#36;#8203; fa#58;#8203;fa-car<br>Return"`,
		"Mermaid would draw maths and an icon")

	reordered := load(t, `"entrypoint": "a\u202eb\u2028c\u009b2J", "steps": {"a\u202eb\u2028c\u009b2J": {"action": "Return"}}`, nil)
	require.Contains(t, reordered.Graph().DOT(), `"a b c 2J\nReturn"`)
}

var graphs = flag.String("graphs", "", "write the Mermaid text of every graph into this `directory`")

// Every definition of the corpora and of testdata has a graph whose edges end at its
// Steps.
func TestGraph_OfTheCorpus(t *testing.T) {
	patterns := []string{"testdata/conformance/*/definition.json", "testdata/definitions/valid/*.json", "testdata/hostile/run/*.json"}
	if dir := os.Getenv(conformanceDir); dir != "" {
		patterns = append(patterns, filepath.Join(dir, "*", "definition.json"))
	}
	var files []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	for i, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		def, err := mwl.Load(source, mwl.DeferArgumentErrors(), mwl.WithResolver(anyProvider))
		require.NoError(t, err, file)
		g := def.Graph()
		for _, f := range g.Flows {
			names := map[string]bool{}
			for _, s := range f.Steps {
				names[s.Name] = true
			}
			require.True(t, names[f.Entrypoint], file)
			for _, s := range f.Steps {
				for _, e := range s.Edges {
					require.True(t, names[e.To], file)
				}
				for _, c := range s.Calls {
					require.Equal(t, c.Provider == "", c.Flow >= 0 && c.Flow < len(g.Flows), file)
				}
			}
		}
		require.Equal(t, len(g.Flows), strings.Count(g.DOT(), "subgraph "), file)
		require.Equal(t, len(g.Flows), strings.Count(g.Mermaid(), "subgraph "), file)
		if *graphs != "" {
			require.NoError(t, os.WriteFile(filepath.Join(*graphs, fmt.Sprint(i, ".mmd")), []byte(g.Mermaid()), 0o600))
		}
	}
}
