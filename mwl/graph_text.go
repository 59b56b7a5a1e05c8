package mwl

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// maxLabel is how many characters of a condition, a name or a URI a drawing shows.
const maxLabel = 80

// Mermaid returns the graph as a flowchart of Mermaid (mermaid.js.org). Names and
// conditions are escaped, so that text of the definition is only ever text.
//
// Mermaid refuses large drawings unless its configuration allows more: those with more
// than 500 edges (maxEdges) or 50,000 characters (maxTextSize). Draw these with
// [Graph.DOT].
func (g Graph) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	for i, f := range g.Flows {
		fmt.Fprintf(&b, "  subgraph f%d[\"%s\"]\n", i, mermaidText(f.title()))
		for j, s := range f.Steps {
			left, right := mermaidShape(s.Action)
			fmt.Fprintf(&b, "    %s%s\"%s\"%s\n", nodeID(i, j), left, mermaidText(s.lines()...), right)
		}
		for _, e := range f.edges() {
			arrow, label := "-->", e.text()
			if e.Kind == EdgeCatch {
				arrow = "-.->"
			}
			if label != "" {
				label = "|\"" + mermaidText(label) + "\"|"
			}
			fmt.Fprintf(&b, "    %s %s%s %s\n", nodeID(i, e.from), arrow, label, nodeID(i, e.to))
		}
		b.WriteString("  end\n")
	}
	for i, f := range g.Flows {
		for _, target := range flowsOf(f.Calls) {
			fmt.Fprintf(&b, "  f%d ==> f%d\n", i, target)
		}
		for j, s := range f.Steps {
			for _, target := range flowsOf(s.Calls) {
				fmt.Fprintf(&b, "  %s ==> f%d\n", nodeID(i, j), target)
			}
		}
	}
	return b.String()
}

// mermaidShape returns the delimiters of a node: what decides is a rhombus, what ends
// the Flow is round, what calls has double sides.
func mermaidShape(action string) (left, right string) {
	switch action {
	case "Match":
		return "{", "}"
	case "Return", "Raise":
		return "([", "])"
	case "Call", "Gather":
		return "[[", "]]"
	default:
		return "[", "]"
	}
}

// mermaidText escapes text for a quoted label. Every character that is not a letter, a
// digit or plain punctuation becomes an entity code, which Mermaid shows as that
// character; lines are separated by its break. Mermaid decodes the codes before it looks
// for maths, between "$$", and for icons, such as "fa:fa-car". A space without width
// after "$" and ":" prevents both.
func mermaidText(lines ...string) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteString("<br>")
		}
		for _, r := range shortened(line) {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune(" .,-_", r):
				b.WriteRune(r)
			default:
				fmt.Fprintf(&b, "#%d;", r)
				if r == '$' || r == ':' {
					b.WriteString("#8203;")
				}
			}
		}
	}
	return b.String()
}

// DOT returns the graph in the language of Graphviz (graphviz.org). Names and conditions
// are escaped.
func (g Graph) DOT() string {
	var b strings.Builder
	b.WriteString("digraph definition {\n  compound=true;\n  node [shape=box, fontname=\"sans-serif\", fontsize=11];\n  edge [fontname=\"sans-serif\", fontsize=9];\n")
	for i, f := range g.Flows {
		fmt.Fprintf(&b, "  subgraph cluster_f%d {\n    label=%s;\n", i, dotText(f.title()))
		for j, s := range f.Steps {
			fmt.Fprintf(&b, "    %s [label=%s%s];\n", nodeID(i, j), dotText(s.lines()...), dotShape(s.Action))
		}
		for _, e := range f.edges() {
			var style string
			if e.Kind == EdgeCatch {
				style = ", style=dashed"
			}
			fmt.Fprintf(&b, "    %s -> %s [label=%s%s];\n", nodeID(i, e.from), nodeID(i, e.to), dotText(e.text()), style)
		}
		b.WriteString("  }\n")
	}
	for i, f := range g.Flows {
		for _, target := range flowsOf(f.Calls) {
			fmt.Fprintf(&b, "  %s -> %s [style=bold, ltail=cluster_f%d, lhead=cluster_f%d];\n", nodeID(i, 0), nodeID(target, 0), i, target)
		}
		for j, s := range f.Steps {
			for _, target := range flowsOf(s.Calls) {
				fmt.Fprintf(&b, "  %s -> %s [style=bold, lhead=cluster_f%d];\n", nodeID(i, j), nodeID(target, 0), target)
			}
		}
	}
	b.WriteString("}\n")
	return b.String()
}

func dotShape(action string) string {
	switch action {
	case "Match":
		return ", shape=diamond"
	case "Return", "Raise":
		return ", style=rounded"
	case "Call", "Gather":
		return ", peripheries=2"
	default:
		return ""
	}
}

// dotText quotes lines as one label.
func dotText(lines ...string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i, line := range lines {
		if i > 0 {
			b.WriteString(`\n`)
		}
		for _, r := range shortened(line) {
			switch {
			case r == '"' || r == '\\':
				b.WriteByte('\\')
				b.WriteRune(r)
			case r == '&':
				b.WriteString("&amp;") // Graphviz reads entities in labels
			default:
				b.WriteRune(r)
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

// shortened is a text on one line, without what a terminal or a drawing would execute.
func shortened(text string) string {
	var b strings.Builder
	n := 0
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		if n++; n > maxLabel {
			b.WriteRune('…')
			break
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		b.WriteRune(r)
	}
	return b.String()
}

func nodeID(flow, step int) string { return fmt.Sprintf("f%ds%d", flow, step) }

// title is the name, what wraps the Flow, and the providers that this calls.
func (f GraphFlow) title() string {
	title := f.Name
	switch {
	case title != "":
	case f.Pointer == "":
		title = "root"
	default:
		title = f.Pointer
	}
	title += withMiddleware(f.Middleware)
	if providers := providersOf(f.Calls); len(providers) > 0 {
		title += " calls " + strings.Join(providers, ", ")
	}
	return title
}

// lines are the name, what it does, and what wraps it.
func (s GraphStep) lines() []string {
	lines := append([]string{s.Name, s.Action}, providersOf(s.Calls)...)
	if len(s.Middleware) > 0 {
		lines = append(lines, strings.TrimSpace(withMiddleware(s.Middleware)))
	}
	return lines
}

// flowsOf are the Flows among the targets, each once.
func flowsOf(calls []GraphCall) []int {
	var flows []int
	for _, c := range calls {
		if c.Flow >= 0 {
			flows = append(flows, c.Flow)
		}
	}
	slices.Sort(flows)
	return slices.Compact(flows)
}

// providersOf are the providers among the targets.
func providersOf(calls []GraphCall) []string {
	var providers []string
	for _, c := range calls {
		if c.Provider != "" {
			providers = append(providers, shortURI(c.Provider))
		}
	}
	return providers
}

func withMiddleware(uris []string) string {
	if len(uris) == 0 {
		return ""
	}
	names := make([]string, len(uris))
	for i, uri := range uris {
		names[i] = shortURI(uri)
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// shortURI leaves out what all URIs of a kind begin with.
func shortURI(uri string) string {
	for _, prefix := range []string{"mwl:provider.call/", "mwl:provider.middleware/"} {
		if rest, ok := strings.CutPrefix(uri, prefix); ok {
			return rest
		}
	}
	return uri
}

type numberedEdge struct {
	GraphEdge
	from, to int
}

// edges are those of all Steps, with their numbers.
func (f GraphFlow) edges() []numberedEdge {
	numbers := make(map[string]int, len(f.Steps))
	for i, s := range f.Steps {
		numbers[s.Name] = i
	}
	var edges []numberedEdge
	for i, s := range f.Steps {
		for _, e := range s.Edges {
			edges = append(edges, numberedEdge{e, i, numbers[e.To]})
		}
	}
	return edges
}

// text is the label of an edge: its condition, or its kind unless that is plain.
func (e GraphEdge) text() string {
	switch {
	case e.Kind == EdgeNext:
		return ""
	case e.Kind == EdgeCatch && e.Label != "":
		return "catch " + e.Label
	case e.Label != "":
		return e.Label
	default:
		return string(e.Kind)
	}
}
