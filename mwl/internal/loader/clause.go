package loader

import (
	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// matchClause reads a case of a Match, or its default.
func (r stepReader) matchClause(n *strictjson.Node, isCase bool) *definition.Clause {
	c := &definition.Clause{Pointer: r.pointer(n)}
	s := r.clause(c, stepRoots|expr.Match)
	if isCase {
		s.what, s.required = "a case", []string{"when", "next"}
		s.members = append(s.members, member{"when", func(n *strictjson.Node) {
			if r.orExpression(n, "when is an expression", "write an expression such as \"{{ match.input.ready }}\"") {
				c.When = r.loader.field(n, stepRoots|expr.Match)
			}
		}})
	} else {
		s.what, s.required = "a default", []string{"next"}
		s.strangers = func(name string) string {
			if name == "when" {
				return "delete it; the default is for what no case selects"
			}
			return ""
		}
	}
	r.object(n, s)
	return c
}

// catchClause reads a clause of a catch.
func (r stepReader) catchClause(n *strictjson.Node) *definition.Clause {
	c := &definition.Clause{Pointer: r.pointer(n)}
	s := r.clause(c, stepRoots)
	s.what, s.required = "a catch clause", []string{"match", "next"}
	s.members = append(s.members, member{"match", func(n *strictjson.Node) { c.Matcher = r.matcher(n) }})
	s.strangers = func(name string) string {
		switch name {
		case "codes", "types", "retryable":
			return `put it into "match"`
		case "failureCodes", "errors", "code":
			return `select with "match": {"codes": […]}`
		case "when":
			return `delete it; a clause selects with "match", and a Match Step can look at the failure later`
		default:
			return ""
		}
	}
	r.object(n, s)
	return c
}

// clause has what all clauses have.
func (r stepReader) clause(c *definition.Clause, roots expr.Root) shape {
	return shape{members: []member{
		{"output", func(n *strictjson.Node) { c.Output = r.loader.field(n, roots) }},
		{"assign", func(n *strictjson.Node) { c.Assign = r.loader.assign(n, roots) }},
		{"next", func(n *strictjson.Node) {
			r.jump(r.flow, n, r.step, func(next *definition.Step) { c.Next = next })
		}},
		{"comment", r.textTo(&c.Comment, "a comment")},
	}}
}

// matcher reads what a catch clause selects by.
func (l *loader) matcher(n *strictjson.Node) *definition.Matcher {
	m := &definition.Matcher{}
	ok := l.object(n, shape{
		what: "a failure matcher",
		members: []member{
			{"codes", func(n *strictjson.Node) {
				m.Codes = l.texts(n, "codes", "a pattern is a code, a prefix with .* or *", nil)
			}},
			{"types", func(n *strictjson.Node) {
				m.Types = l.texts(n, "types", "an element of types is the name of a type", func(n *strictjson.Node) {
					if n.Text == "success" {
						l.misshapen(n, "delete it", "a matcher selects among failures, and success is none")
					}
				})
			}},
			{"retryable", func(n *strictjson.Node) {
				retryable := l.boolean(n, "retryable")
				m.Retryable = &retryable
			}},
		},
	})
	if ok && len(n.Members) == 0 {
		l.misshapen(n, `write {"codes": ["*"]} to select every failure`, "a failure matcher is empty")
	}
	return m
}

func (l *loader) texts(n *strictjson.Node, name, what string, check func(*strictjson.Node)) []string {
	texts := []string{}
	l.array(n, name, 1, func(n *strictjson.Node) {
		if !l.structural(n, what) {
			return
		}
		texts = append(texts, n.Text)
		if check != nil {
			check(n)
		}
	})
	return texts
}
