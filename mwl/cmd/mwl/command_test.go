package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// Ctrl-C cancels the execution. Its cleanup runs, and its Result is printed.
func TestRun_InterruptRunsCleanup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "slow.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "wait",
		"middleware": [{"provider": "mwl:provider.middleware/mwl/finally/v1", "onAlways": {"with": {"call": {
			"provider": "mwl:provider.call/shop/release/v1"}}}}],
		"steps": {"wait": {"action": "Sleep", "for": "PT1H", "next": "done"}, "done": {"action": "Return"}}}`), 0o600))
	mock := filepath.Join(t.TempDir(), "mocks.json")
	require.NoError(t, os.WriteFile(mock, []byte(`{"mwl:provider.call/shop/release/v1": {"failure": {"code": "Provider.Call.Release.Lost"}, "delay": "PT2S"}}`), 0o600))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out, errOut bytes.Buffer
		code := make(chan int)
		began := time.Now()
		go func() { code <- run(ctx, []string{"run", file, "--mock", mock}, strings.NewReader(""), &out, &errOut) }()
		synctest.Wait()
		cancel()
		require.Equal(t, exitProblem, <-code)
		require.Equal(t, 2*time.Second, time.Since(began), "the cleanup ran to its end")
		var result struct {
			Code     string
			Previous struct{ Code string }
		}
		require.NoError(t, json.Unmarshal(out.Bytes(), &result), out.String())
		require.Equal(t, "Provider.Call.Release.Lost", result.Code)
		require.Equal(t, mwl.CodeCancelled, result.Previous.Code)
		require.Empty(t, errOut.String())
	})
}

// A drawing is XML without scripts, links and event handlers, whatever the names are.
func TestGraph_SVGIsInert(t *testing.T) {
	names := []string{
		`<script>alert(1)</script>`, `" onload="alert(1)`, `]]><a href="javascript:alert(1)">`, `&lt;&amp;&#x41;`, `\N\G\"`, "a\u0000b\u001b[2J\u202e", "日本 😀", `<<b>bold</b>>`,
	}
	steps := map[string]any{}
	for i, name := range names {
		steps[name] = map[string]any{
			"action":  "Match",
			"cases":   []any{map[string]any{"when": `{{ step.input == '<img src=x onerror="alert(1)">' }}`, "next": names[(i+1)%len(names)]}},
			"default": map[string]any{"next": "end"},
		}
	}
	steps["end"] = map[string]any{"action": "Return"}
	source, err := json.Marshal(map[string]any{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": names[0], "steps": steps})
	require.NoError(t, err)
	d, err := mwl.Load(source)
	require.NoError(t, err)
	drawing, err := svg(t.Context(), d.Graph().DOT())
	require.NoError(t, err)

	var texts []string
	decoder := xml.NewDecoder(strings.NewReader(drawing))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			require.Contains(t, []string{"svg", "g", "title", "polygon", "ellipse", "path", "text", "polyline"}, token.Name.Local)
			for _, attribute := range token.Attr {
				require.NotRegexp(t, `^(on|href|style)`, attribute.Name.Local)
			}
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
	for _, name := range names {
		if !strings.Contains(name, "\x1b") {
			require.Contains(t, texts, name)
		}
	}
	require.Contains(t, texts, "a b [2J ")
}

// A graph that would take long is not drawn as SVG, and one that is large but simple is.
func TestGraph_LargeDrawings(t *testing.T) {
	definition := func(steps, cases int) string {
		flow := map[string]any{"end": map[string]any{"action": "Return"}}
		name := func(i int) string { return fmt.Sprintf("s%03d", i%steps) }
		for i := range steps {
			next := name(i + 1)
			if i == steps-1 {
				next = "end"
			}
			step := map[string]any{"action": "Pass", "next": next}
			if cases > 0 {
				clauses := make([]any, cases)
				for j := range clauses {
					clauses[j] = map[string]any{"when": "{{ step.input == 1.0 }}", "next": name(i*7 + j*13)}
				}
				step = map[string]any{"action": "Match", "cases": clauses, "default": map[string]any{"next": next}}
			}
			flow[name(i)] = step
		}
		source, err := json.Marshal(map[string]any{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": name(0), "steps": flow})
		require.NoError(t, err)
		return writeFile(t, string(source))
	}
	var out, errOut bytes.Buffer
	require.Equal(t, exitProblem, run(t.Context(), []string{"graph", definition(100, 3), "-f", "svg"}, strings.NewReader(""), &out, &errOut))
	require.Contains(t, errOut.String(), "101 Steps and 299 branches")
	require.Contains(t, errOut.String(), "--format dot")
	require.Contains(t, errOut.String(), "dot -Tsvg")
	require.Empty(t, out.String())

	errOut.Reset()
	require.Equal(t, exitOK, run(t.Context(), []string{"graph", definition(200, 0), "-f", "svg"}, strings.NewReader(""), &out, &errOut), errOut.String())
	require.Contains(t, out.String(), "<svg ")

	errOut.Reset()
	require.Equal(t, exitOK, run(t.Context(), []string{"graph", definition(500, 0)}, strings.NewReader(""), &out, &errOut))
	require.Empty(t, errOut.String())
	require.Equal(t, exitOK, run(t.Context(), []string{"graph", definition(501, 0)}, strings.NewReader(""), &out, &errOut))
	require.Contains(t, errOut.String(), "maxEdges")
}
