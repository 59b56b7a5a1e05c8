package loader

import (
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/schema"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// flowSite is a Flow object and what is needed to judge it when all is read.
type flowSite struct {
	flow  *definition.Flow
	node  *strictjson.Node
	outer *flowSite
	depth int
	// names are the entries of the Flow's own flows.
	names map[string]*flowSite
	// steps are the nodes of the Steps, order their names as they are written.
	steps map[string]*strictjson.Node
	order []string
	jumps []jump
	// calls are those of the Flow's own Steps and stacks.
	calls []*callSite
	// stack is the Flow's middleware; nil when it has none.
	stack *stackSite
	// called says that some call targets the Flow.
	called bool
}

// jump is a reference to a Step of the same Flow.
type jump struct {
	node *strictjson.Node
	// from is the Step that refers; nil for the entrypoint.
	from *definition.Step
	// to is the Step that is referred to; nil when there is none.
	to  *definition.Step
	set func(*definition.Step)
}

// flow reads a Flow object; outer is nil for the root.
func (l *loader) flow(n *strictjson.Node, outer *flowSite, name string) *flowSite {
	f := &flowSite{
		flow:  &definition.Flow{Name: name, Pointer: l.pointer(n), Parameters: schema.Empty, Steps: map[string]*definition.Step{}},
		node:  n,
		outer: outer,
		depth: 1,
		names: map[string]*flowSite{},
		steps: map[string]*strictjson.Node{},
	}
	l.flows = append(l.flows, f)
	s := shape{
		what:     "a Flow",
		required: []string{"entrypoint", "steps"},
		members: []member{
			{"comment", l.textTo(&f.flow.Comment, "a comment")},
			{"entrypoint", func(n *strictjson.Node) {
				l.jump(f, n, nil, func(step *definition.Step) { f.flow.Entrypoint = step })
			}},
			{"flows", func(n *strictjson.Node) { l.namedFlows(n, f) }},
			{"middleware", func(n *strictjson.Node) {
				f.stack = l.stack(n, f, definition.FlowLevel, expr.Everywhere)
				f.flow.Middleware = f.stack.entries
			}},
			{"parameters", func(n *strictjson.Node) {
				if compiled := l.compileSchema(n, "parameters"); compiled != nil {
					f.flow.Parameters = compiled
				}
			}},
			{"steps", func(n *strictjson.Node) { l.stepMap(n, f) }},
		},
		strangers: func(name string) string {
			if name == "$schema" {
				return "delete it; only the root of the document has it"
			}
			return ""
		},
	}
	if outer == nil {
		s.what = "the root Flow"
		s.required = append([]string{"$schema"}, s.required...)
		s.members = append(s.members, member{"$schema", l.schemaURI})
		s.strangers = nil
	} else {
		f.depth = outer.depth + 1
		if most := l.options.MaxFlowNesting; most > 0 && f.depth == most+1 {
			l.refuse(n, "nest less, name inner Flows in an outer flows, or raise the limit", "Flows nest deeper than the limit of %d", most)
		}
	}
	l.object(n, s)
	return f
}

func (l *loader) schemaURI(n *strictjson.Node) {
	switch {
	case n.Kind == strictjson.String && n.Text == definition.SchemaURI:
	case n.Kind == strictjson.String && strings.HasPrefix(n.Text, "https://mwl.dev/"):
		l.misshapen(n, `write "`+definition.SchemaURI+`"`, "%q is not the version of the language that can be loaded", n.Text)
	default:
		l.misshapen(n, `write "`+definition.SchemaURI+`"`, "$schema does not name the language")
	}
}

func (l *loader) namedFlows(n *strictjson.Node, f *flowSite) {
	if n.Kind != strictjson.Object {
		l.misshapen(n, "write an object", "flows is an object of Flows by name, not %s", kind(n))
		return
	}
	for _, m := range n.Members {
		f.names[m.Name] = l.flow(m.Value, f, m.Name)
	}
}

func (l *loader) stepMap(n *strictjson.Node, f *flowSite) {
	if n.Kind != strictjson.Object {
		l.misshapen(n, "write an object", "steps is an object of Steps by name, not %s", kind(n))
		return
	}
	if len(n.Members) == 0 {
		l.misshapen(n, `add a Step, such as "done": {"action": "Return"}`, "steps is empty")
	}
	for _, m := range n.Members {
		l.steps++
		if most := l.options.MaxSteps; most > 0 && l.steps == most+1 {
			l.refuse(m.Value, "split the definition, or raise the limit", "the definition has more Steps than the limit of %d", most)
		}
		f.steps[m.Name] = m.Value
		f.order = append(f.order, m.Name)
		f.flow.Steps[m.Name] = l.step(m.Value, m.Name, f)
	}
}

// jump reads a reference to a Step.
func (l *loader) jump(f *flowSite, n *strictjson.Node, from *definition.Step, set func(*definition.Step)) {
	what := "next is the name of a Step"
	if from == nil {
		what = "entrypoint is the name of a Step"
	}
	if l.structural(n, what) {
		f.jumps = append(f.jumps, jump{node: n, from: from, set: set})
	}
}

// structural reads a string that must not be an expression, and reports whether
// it is one.
func (l *loader) structural(n *strictjson.Node, what string) bool {
	if n.Kind != strictjson.String {
		l.misshapen(n, "write a string", "%s, not %s", what, kind(n))
		return false
	}
	if _, ok := expr.Body(n.Text); ok {
		l.refuse(n, "write it out", "%s, not an expression", what)
		return false
	}
	return true
}
