package loader

import (
	"fmt"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// field compiles the value of a place that accepts expressions.
func (l *loader) field(n *strictjson.Node, roots expr.Root) definition.Field {
	if l.shapeOnly {
		return definition.Field{}
	}
	l.survey(n)
	return l.compile(n, n.Value(), roots)
}

// survey counts the expressions of a value, and looks for numbers that are not
// what they seem.
func (l *loader) survey(n *strictjson.Node) {
	switch n.Kind {
	case strictjson.String:
		if _, ok := expr.Body(n.Text); ok {
			l.expressions++
			if most := l.options.MaxExpressions; most > 0 && l.expressions == most+1 {
				l.refuse(n, "split the definition, or raise the limit", "the definition has more expressions than the limit of %d", most)
			}
		} else if expressionShape(n) {
			l.warn(n, "let one pair of {{ }} span the whole string, or write it otherwise if it is text",
				"the string begins with {{ and ends with }}, but is no expression: it is used as it is written")
		} else if _, inside, ok := strings.Cut(n.Text, "{{"); ok && strings.Contains(inside, "}}") {
			l.warn(n, "write one expression for the whole string, such as {{ 'Order ' + string(vars.id) }}, or leave it if it is text",
				"{{ }} inside text is not evaluated: the string is used as it is written")
		}
	case strictjson.Number:
		if !n.Exact {
			l.warn(n, "carry it as a string", "the number %s is read as %s, the nearest that a double can hold", n.Text, strings.Replace(fmt.Sprintf("%.17g", n.Number), "e+", "e", 1))
		}
	default:
		for _, item := range n.Items {
			l.survey(item)
		}
		for _, m := range n.Members {
			l.survey(m.Value)
		}
	}
}

// compile is field for a value that lacks some of the node's members.
func (l *loader) compile(n *strictjson.Node, value any, roots expr.Root) definition.Field {
	if most := l.options.MaxExpressions; most > 0 && l.expressions > most {
		return definition.Field{} // refused already
	}
	template, problems := l.options.Compiler.Template(value, roots)
	for _, p := range problems {
		at := n.At(p.Pointer)
		remedy := ""
		if name, reserved := strings.CutPrefix(strings.TrimSpace(p.Err.Text), "reserved identifier: "); reserved {
			remedy = l.meantRoot(name, roots)
		}
		l.problems.add(at, at.TextOffset(p.Err.Offset), remedy, "the expression cannot be read: %s", p.Err.Text)
	}
	if template == nil {
		return definition.Field{}
	}
	for _, w := range template.Names() {
		at := n.At(w.Pointer)
		remedy := w.Name.Remedy
		if remedy == "" && !w.Name.Function {
			remedy = l.meantRoot(w.Name.Name, roots)
		}
		l.warnings.add(at, at.TextOffset(w.Name.Offset), remedy, "%s", w.Name.Message)
	}
	return definition.Field{Pointer: l.pointer(n), Template: template}
}

// otherRoots are what other languages, and authors in a hurry, call a root or
// one of its members.
var otherRoots = []struct {
	name, meant string
	root        expr.Root
}{
	{"variables", "vars", expr.Vars},
	{"params", "vars", expr.Vars},
	{"parameters", "vars", expr.Vars},
	{"args", "vars", expr.Vars},
	{"context", "execution", expr.Execution},
	{"error", "failure", expr.Failure},
	{"item", "call.input", expr.Call},
	{"index", "call.index", expr.Call},
	{"input", "step.input", expr.Step},
	{"input", "frame.input", expr.Frame},
	{"result", "call.result", expr.Call},
	{"result", "middleware.result", expr.Middleware},
	{"result", "step.result", expr.Step},
}

// meantRoot says which root was meant by a name; "" if that is not clear.
func (l *loader) meantRoot(name string, roots expr.Root) string {
	for _, other := range otherRoots {
		if strings.EqualFold(other.name, name) && roots&other.root != 0 {
			return fmt.Sprintf("did you mean %q?", other.meant)
		}
	}
	if closest, ok := l.effort.closest(name, strings.Split(roots.String(), ", ")); ok {
		return fmt.Sprintf("did you mean %q?", closest)
	}
	return ""
}

// textField is field for a value that is written as a string.
func (l *loader) textField(n *strictjson.Node, what string, roots expr.Root) definition.Field {
	if n.Kind != strictjson.String {
		l.misshapen(n, "write a string, which may be an expression", "%s, not %s", what, kind(n))
		return definition.Field{}
	}
	return l.field(n, roots)
}

// expressionShape is what the published schema can say about an expression.
func expressionShape(n *strictjson.Node) bool {
	return n.Kind == strictjson.String && len(n.Text) >= 4 && strings.HasPrefix(n.Text, "{{") && strings.HasSuffix(n.Text, "}}")
}

// orExpression reports whether a value that is no literal of its place is an
// expression.
func (l *loader) orExpression(n *strictjson.Node, what, remedy string) bool {
	if !expressionShape(n) {
		l.misshapen(n, remedy, "%s, not %s", what, described(n))
		return false
	}
	if _, ok := expr.Body(n.Text); !ok {
		l.refuse(n, "let one pair of {{ }} span the whole string", "%s, not a string with several parts", what)
		return false
	}
	return true
}

// described is kind, with what keeps a string from being an expression.
func described(n *strictjson.Node) string {
	if n.Kind == strictjson.String {
		return "a string without {{ }} around all of it"
	}
	return kind(n)
}

// assign reads an assign block.
func (l *loader) assign(n *strictjson.Node, roots expr.Root) definition.Assign {
	if n.Kind != strictjson.Object {
		l.misshapen(n, "write an object", "assign is an object of values by variable, not %s", kind(n))
		return nil
	}
	a := make(definition.Assign, len(n.Members))
	for i, m := range n.Members {
		a[i] = definition.Binding{Name: m.Name, Value: l.field(m.Value, roots)}
	}
	slices.SortFunc(a, func(a, b definition.Binding) int { return strings.Compare(a.Name, b.Name) })
	return a
}

// raise reads the result of a Raise.
func (r stepReader) raise(n *strictjson.Node) *definition.Envelope {
	e := &definition.Envelope{Pointer: r.pointer(n)}
	r.object(n, shape{
		what: "a result", required: []string{"code"}, members: r.envelope(e, stepRoots),
		strangers: func(name string) string {
			if name == "value" {
				return "delete it; a Raise completes with a failure, and only a Return has a value"
			}
			return ""
		},
	})
	return e
}

// envelope has the fields of a failure.
func (l *loader) envelope(e *definition.Envelope, roots expr.Root) []member {
	text := func(name string, to *definition.Field) member {
		return member{name, func(n *strictjson.Node) { *to = l.textField(n, name+" is a string", roots) }}
	}
	return []member{
		{"type", func(n *strictjson.Node) {
			if n.Kind == strictjson.String && n.Text == "success" {
				l.misshapen(n, `write the type of a failure, such as "error"`, "the type of a failure is not success")
				return
			}
			e.Type = l.textField(n, "type is a string", roots)
		}},
		text("code", &e.Code),
		text("message", &e.Message),
		{"details", func(n *strictjson.Node) { e.Details = l.field(n, roots) }},
		{"retryable", func(n *strictjson.Node) {
			if n.Kind == strictjson.Bool || n.Kind == strictjson.Null ||
				l.orExpression(n, "retryable is true, false, null or an expression", "write true, false, null or an expression") {
				e.Retryable = l.field(n, roots)
			}
		}},
		{"previous", func(n *strictjson.Node) {
			if n.Kind == strictjson.Object || n.Kind == strictjson.Null ||
				l.orExpression(n, "previous is a failure, null or an expression", "write null to drop what went before, a failure or an expression") {
				e.Previous = l.field(n, roots)
			}
		}},
	}
}
