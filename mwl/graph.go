package mwl

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
)

// Graph is the step graph of a definition, for drawings and other tools.
type Graph struct {
	// Flows are all Flows that the definition runs: the root, then the others in the
	// order in which calls reach them. A named Flow that no call targets is not there.
	Flows []GraphFlow `json:"flows"`
}

// GraphFlow is a Flow of a [Graph].
type GraphFlow struct {
	// Name is the key in flows; "" for the root and for inline Flows.
	Name string `json:"name,omitempty"`
	// Pointer is the JSON pointer (RFC 6901) of the Flow; "" is the root.
	Pointer string `json:"pointer"`
	// Middleware are the URIs of the Flow's middleware, outermost first.
	Middleware []string `json:"middleware,omitempty"`
	// Calls are the targets of the middleware's cleanup.
	Calls []GraphCall `json:"calls,omitempty"`
	// Entrypoint is the name of the first Step.
	Entrypoint string `json:"entrypoint"`
	// Steps are in the order in which the graph reaches them from the entrypoint. Unreachable Steps come last, by name.
	Steps []GraphStep `json:"steps"`
}

// GraphStep is a Step of a [GraphFlow].
type GraphStep struct {
	Name    string `json:"name"`    // the name of the Step
	Action  string `json:"action"`  // its action, such as Call
	Pointer string `json:"pointer"` // its JSON pointer (RFC 6901)
	// Middleware are the URIs of a Call Step's middleware, outermost first.
	Middleware []string `json:"middleware,omitempty"`
	// Calls are the targets of a Call or a Gather, and of the middleware's cleanup.
	Calls []GraphCall `json:"calls,omitempty"`
	// Edges lead to the Steps that may follow.
	Edges []GraphEdge `json:"edges,omitempty"`
}

// GraphCall is the target of a call object: a provider or a Flow.
type GraphCall struct {
	// Provider is the provider's URI; "" if the target is a Flow.
	Provider string `json:"provider,omitempty"`
	// Flow is the index of the target in [Graph.Flows]; -1 if it is a provider.
	Flow int `json:"flow"`
}

// EdgeKind is the reason to follow an edge from a Step to another.
type EdgeKind string

// The kinds of edges.
const (
	EdgeNext    EdgeKind = "next"    // the Step succeeded
	EdgeCase    EdgeKind = "case"    // a case of a Match holds
	EdgeDefault EdgeKind = "default" // no case of a Match holds
	EdgeCatch   EdgeKind = "catch"   // a catch clause matches the failure
)

// GraphEdge leads to a Step of the same Flow.
type GraphEdge struct {
	To   string   `json:"to"`   // the name of the next Step
	Kind EdgeKind `json:"kind"` // when the edge is taken
	// Label is the condition of a case, or the codes, types and retryability that a
	// catch clause matches; "" if there is none.
	Label string `json:"label,omitempty"`
}

// Graph returns the step graph of the definition. It is the caller's own.
func (d *Definition) Graph() Graph {
	b := grapher{numbers: map[*definition.Flow]int{}}
	b.flow(d.root.Flow)
	for i := 0; i < len(b.flows); i++ {
		flow := b.draw(b.flows[i]) // may find further Flows
		b.graph.Flows = append(b.graph.Flows, flow)
	}
	return b.graph
}

type grapher struct {
	graph   Graph
	flows   []*definition.Flow
	numbers map[*definition.Flow]int
}

// flow returns the number of a Flow.
func (b *grapher) flow(f *definition.Flow) int {
	n, ok := b.numbers[f]
	if !ok {
		n = len(b.flows)
		b.numbers[f] = n
		b.flows = append(b.flows, f)
	}
	return n
}

func (b *grapher) draw(f *definition.Flow) GraphFlow {
	g := GraphFlow{Name: f.Name, Pointer: f.Pointer, Middleware: urisOf(f.Middleware), Entrypoint: f.Entrypoint.Name}
	for _, e := range f.Middleware {
		g.Calls = append(g.Calls, b.cleanup(e)...)
	}
	seen := map[*definition.Step]bool{f.Entrypoint: true}
	order := []*definition.Step{f.Entrypoint}
	visit := func(s *definition.Step) {
		if !seen[s] {
			seen[s] = true
			order = append(order, s)
		}
	}
	for i := 0; i < len(order); i++ {
		for _, e := range edgesOf(order[i]) {
			visit(e.to)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Steps)) {
		visit(f.Steps[name])
	}
	for _, s := range order {
		step := GraphStep{Name: s.Name, Action: s.Action.String(), Pointer: s.Pointer, Middleware: urisOf(s.Middleware), Calls: b.calls(s)}
		for _, e := range edgesOf(s) {
			step.Edges = append(step.Edges, GraphEdge{To: e.to.Name, Kind: e.kind, Label: e.label})
		}
		g.Steps = append(g.Steps, step)
	}
	return g
}

func urisOf(entries []*definition.Entry) []string {
	var uris []string
	for _, e := range entries {
		uris = append(uris, e.Contract.URI)
	}
	return uris
}

func (b *grapher) calls(s *definition.Step) []GraphCall {
	var calls []GraphCall
	if s.Call != nil {
		calls = append(calls, b.call(s.Call))
	}
	if s.Gather != nil {
		for _, c := range s.Gather.Calls {
			calls = append(calls, b.call(c))
		}
	}
	for _, e := range s.Middleware {
		calls = append(calls, b.cleanup(e)...)
	}
	return calls
}

// cleanup returns the calls that a middleware's blocks hold.
func (b *grapher) cleanup(e *definition.Entry) []GraphCall {
	var calls []GraphCall
	for _, block := range e.Blocks {
		for _, name := range slices.Sorted(maps.Keys(block.Structural)) {
			structure := block.Structural[name]
			if structure.Call != nil {
				calls = append(calls, b.call(structure.Call))
			}
			for _, inner := range structure.Stack {
				calls = append(calls, b.cleanup(inner)...)
			}
		}
	}
	return calls
}

func (b *grapher) call(c *definition.Call) GraphCall {
	if c.Flow != nil {
		return GraphCall{Flow: b.flow(c.Flow)}
	}
	return GraphCall{Provider: c.Provider.URI, Flow: -1}
}

type edge struct {
	to    *definition.Step
	kind  EdgeKind
	label string
}

func edgesOf(s *definition.Step) []edge {
	var edges []edge
	if s.Next != nil {
		edges = append(edges, edge{s.Next, EdgeNext, ""})
	}
	if s.Match != nil {
		for _, c := range s.Match.Cases {
			edges = append(edges, edge{c.Next, EdgeCase, conditionOf(c.When)})
		}
		edges = append(edges, edge{s.Match.Default.Next, EdgeDefault, ""})
	}
	for _, c := range s.Catch {
		edges = append(edges, edge{c.Next, EdgeCatch, matcherText(c.Matcher)})
	}
	return edges
}

func conditionOf(f definition.Field) string {
	if p := f.Template.Program(); p != nil {
		return p.Source()
	}
	return ""
}

func matcherText(m *definition.Matcher) string {
	var parts []string
	if len(m.Codes) > 0 {
		parts = append(parts, strings.Join(m.Codes, ", "))
	}
	if len(m.Types) > 0 {
		parts = append(parts, "type "+strings.Join(m.Types, ", "))
	}
	if m.Retryable != nil {
		parts = append(parts, "retryable "+strconv.FormatBool(*m.Retryable))
	}
	return strings.Join(parts, "; ")
}
