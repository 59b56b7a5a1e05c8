package loader

import (
	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// stackSite is a middleware array and what is needed to judge it when all is
// read.
type stackSite struct {
	entries []*definition.Entry
	nodes   []*strictjson.Node
	// flow is the Flow that it stands in.
	flow *flowSite
	// level is where it is attached. A stack at the level of Steps is a Step's, or
	// it wraps a call that is part of a phase.
	level definition.Level
	step  *definition.Step
}

// stack reads a middleware array. The roots are those that its place has without
// the middleware itself.
func (l *loader) stack(n *strictjson.Node, f *flowSite, level definition.Level, roots expr.Root) *stackSite {
	s := &stackSite{flow: f, level: level}
	l.stacks = append(l.stacks, s)
	l.array(n, "middleware", 0, func(n *strictjson.Node) {
		s.entries = append(s.entries, l.entry(n, f, level, roots))
		s.nodes = append(s.nodes, n)
	})
	return s
}

func (l *loader) entry(n *strictjson.Node, f *flowSite, level definition.Level, roots expr.Root) *definition.Entry {
	e := &definition.Entry{Pointer: l.pointer(n)}
	if uri := n.Member("provider"); uri != nil {
		e.Contract = l.middlewareProvider(uri)
	}
	s := shape{
		what: "a middleware entry", required: []string{"provider"},
		members: []member{
			{"provider", func(*strictjson.Node) {}}, // read first
			{"comment", l.textTo(&e.Comment, "a comment")},
		},
		strangers: func(name string) string {
			switch name {
			case "with", "when":
				return `put it into a phase, such as "onEntry"`
			case "policies", "duration":
				return `put it into "onEntry": {"with": {…}}`
			case "call", "middleware":
				return `put it into "onAlways": {"with": {…}}`
			default:
				return ""
			}
		},
	}
	for phase := range definition.PhaseCount {
		e.Blocks[phase] = &definition.Block{Pointer: e.Pointer}
		s.members = append(s.members, member{phase.String(), func(n *strictjson.Node) {
			e.Blocks[phase] = l.block(n, f, phase, e.Contract, roots)
		}})
	}
	if !l.object(n, s) || e.Contract == nil {
		return e
	}
	if e.Contract.Levels&level == 0 {
		where, other := "a Step", "a Flow"
		if level == definition.FlowLevel {
			where, other = other, where
		}
		l.refuse(n, "move it to the middleware of "+other, "%s cannot be attached to %s", e.Contract.URI, where)
	}
	if e.Contract.NeedsContinuation && !e.Blocks[definition.OnSuccess].When.Written() && n.At("/onSuccess/when") == nil {
		l.refuse(n, `add "onSuccess": {"when": "{{ … }}"}, true as long as the loop goes on`, "a loop without onSuccess.when never ends")
	}
	return e
}

// block reads the block of a phase. The contract is nil when it is not known.
func (l *loader) block(n *strictjson.Node, f *flowSite, phase definition.Phase, contract *definition.MiddlewareContract, roots expr.Root) *definition.Block {
	b := &definition.Block{Pointer: l.pointer(n)}
	inner := roots | expr.Middleware
	s := shape{
		what: "the phase " + phase.String(),
		members: []member{
			{"when", func(n *strictjson.Node) {
				if n.Kind == strictjson.Bool || l.orExpression(n, "when is true, false or an expression", "write true, false or an expression") {
					b.When = l.field(n, inner)
				}
			}},
			{"with", func(n *strictjson.Node) {
				if l.isWith(n) {
					l.phaseWith(n, f, b, structuralOf(contract, phase), roots)
				}
			}},
			{"assign", func(n *strictjson.Node) { b.Assign = l.assign(n, inner) }},
		},
	}
	switch phase {
	case definition.OnEntry:
		s.members = append(s.members, member{"output", func(n *strictjson.Node) { b.Output = l.field(n, inner) }})
		s.strangers = otherwise("value", `what onEntry passes down is "output"`)
	case definition.OnSuccess:
		s.members = append(s.members, member{"value", func(n *strictjson.Node) { b.Value = l.field(n, inner) }})
		s.strangers = otherwise("output", `what onSuccess passes up is "value"`)
	case definition.OnFailure:
		e := &definition.Envelope{Pointer: l.pointer(n)}
		for _, m := range l.envelope(e, inner) {
			s.members = append(s.members, member{m.name, func(n *strictjson.Node) {
				b.Envelope = e
				m.read(n)
			}})
		}
		s.strangers = otherwise("value", "delete it; onFailure cannot turn a failure into a success")
	default:
		s.strangers = otherwise("value", "delete it; onAlways lets the Result pass as it is")
	}
	l.object(n, s)
	return b
}

// otherwise has a remedy for one stranger.
func otherwise(name, remedy string) func(string) string {
	return func(stranger string) string {
		if stranger == name {
			return remedy
		}
		return ""
	}
}

func structuralOf(contract *definition.MiddlewareContract, phase definition.Phase) map[string]definition.StructureKind {
	if contract == nil {
		return nil
	}
	return contract.Phases[phase].Structural
}

// phaseWith reads the with of a phase, of which some members may be structural.
func (l *loader) phaseWith(n *strictjson.Node, f *flowSite, b *definition.Block, structural map[string]definition.StructureKind, roots expr.Root) {
	if len(structural) == 0 {
		b.With = l.field(n, roots|expr.Middleware)
		return
	}
	if n.Kind != strictjson.Object {
		l.refuse(n, "write an object", "members of with are structural, so it cannot be an expression")
		return
	}
	evaluated := map[string]any{}
	b.Structural = map[string]*definition.Structure{}
	for _, m := range n.Members {
		kind, ok := structural[m.Name]
		if !ok {
			l.survey(m.Value)
			evaluated[m.Name] = m.Value.Value()
			continue
		}
		s := &definition.Structure{Source: m.Value.Value()}
		b.Structural[m.Name] = s
		switch {
		case expressionShape(m.Value):
			l.refuse(m.Value, "write it out", "%s is structural, so it cannot be an expression", m.Name)
		case kind == definition.CallStructure:
			s.Call = l.call(m.Value, f, roots|expr.Middleware)
		case kind == definition.MiddlewareStructure:
			s.Stack = l.stack(m.Value, f, definition.StepLevel, roots).entries
		}
	}
	b.With = l.compile(n, evaluated, roots|expr.Middleware)
}
