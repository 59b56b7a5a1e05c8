package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/goccy/go-graphviz"
	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/mwl"
)

func (a *app) graphCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "graph FILE",
		Short: "Draw the step graph of a definition",
		Long: `Print the step graph of a definition: its Steps with what they call and the
middleware around them, and an edge for each next, case and catch (dashed). Bold
edges lead to the Flows that are called. A graph with many branches is too much for
svg; Graphviz itself draws it: mwl graph FILE --format dot | dot -Tsvg`,
		Example: `  mwl graph saga.json                          # Mermaid, for Markdown
  mwl graph saga.json --format dot
  mwl graph saga.json --format svg >saga.svg
  mwl graph saga.json --format json`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().StringVarP(&format, "format", "f", "mermaid", "`FORMAT`: mermaid, dot, svg or json")
	c.RunE = func(c *cobra.Command, args []string) error {
		source, err := a.definition(c.Context(), args[0], false)
		if err != nil {
			return err
		}
		d, _, err := load(source, &catalog{}, mwl.DeferArgumentErrors()) // which a drawing does not show
		if err != nil {
			return definitionFailure(err, args[0], "--defer-arguments")
		}
		graph := d.Graph()
		text := graph.Mermaid()
		switch format {
		case "mermaid":
			if _, edges, _ := size(graph); edges > mermaidEdges || len(text) > mermaidBytes {
				fmt.Fprintf(a.err, "mwl: Mermaid does not draw this unless its maxEdges and maxTextSize are raised: %d edges, %d bytes\n", edges, len(text))
			}
		case "dot":
			text = graph.DOT()
		case "svg":
			if steps, _, branches := size(graph); steps*(branches+1) > maxDrawing {
				err := fmt.Errorf("the graph of %s and %d branches is too large for svg", counted(steps, "Step"), branches)
				return &failure{exitProblem, err, "use --format dot, and Graphviz to draw it: dot -Tsvg"}
			}
			text, err = within(c.Context(), func() (string, error) { return svg(c.Context(), graph.DOT()) })
			if err != nil {
				return &failure{exitProblem, err, "--format dot prints the graph for another program"}
			}
		case "json":
			return a.line(graph)
		default:
			return usage("write mermaid, dot, svg or json", "--format %q is unknown", format)
		}
		_, err = fmt.Fprint(a.out, text)
		return err
	}
	return c
}

// maxDrawing bounds the Steps of a drawing times its branches. The time of a drawing
// depends on how far its branches reach; the worst graphs within the bound took 5 s. A
// graph without branches is drawn fast.
const maxDrawing = 5000

// The largest drawing that Mermaid makes with its own configuration.
const (
	mermaidEdges = 500
	mermaidBytes = 50_000
)

// size returns the number of Steps, of edges, and of branches: the edges that lead to a
// Step or a Flow to which another edge leads, too.
func size(g mwl.Graph) (steps, edges, branches int) {
	type target struct {
		flow int
		step string
	}
	reached := map[target]bool{}
	edge := func(to target) {
		edges++
		if reached[to] {
			branches++
		}
		reached[to] = true
	}
	calls := func(calls []mwl.GraphCall) {
		for _, call := range calls {
			if call.Flow >= 0 {
				edge(target{flow: call.Flow})
			}
		}
	}
	for i, flow := range g.Flows {
		steps += len(flow.Steps)
		calls(flow.Calls)
		for _, step := range flow.Steps {
			for _, e := range step.Edges {
				edge(target{i, e.To})
			}
			calls(step.Calls)
		}
	}
	return steps, edges, branches
}

// svg draws a graph in the language of Graphviz.
func svg(ctx context.Context, dot string) (drawing string, err error) {
	g, err := graphviz.New(ctx)
	if err != nil {
		return "", fmt.Errorf("drawing the graph: %w", err)
	}
	defer func() { _ = g.Close() }()
	parsed, err := graphviz.ParseBytes([]byte(dot))
	if err != nil {
		return "", fmt.Errorf("drawing the graph: %w", err)
	}
	defer func() { _ = parsed.Close() }()
	var b bytes.Buffer
	if err := g.Render(ctx, parsed, graphviz.SVG, &b); err != nil {
		return "", fmt.Errorf("drawing the graph: %w", err)
	}
	return b.String(), nil
}
