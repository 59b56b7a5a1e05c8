package expr

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/surebus/eventbus/mwl/internal/value"
)

// Template is a compiled field: a value in which any string may be an expression. Member names never are.
type Template struct {
	// One of program, members, elements and literal; a part without any expression is one literal.
	program  *Program
	members  []member
	elements []*Template
	object   bool
	literal  any
	// counted is set when a program in it is.
	counted bool
}

type member struct {
	name string
	part *Template
}

// Problem is an expression of a field that does not compile.
type Problem struct {
	// Pointer leads from the field to the string, as a JSON pointer; "" is the field itself.
	Pointer string
	Err     *SyntaxError
	// Source is the string.
	Source string
}

// Warning is a name of an expression of a field that resolves to nothing.
type Warning struct {
	// Pointer leads from the field to the string, as a JSON pointer; "" is the field itself.
	Pointer string
	Name    Name
}

// maxFindings is how many problems, and how many names, a template reports.
const maxFindings = 100

// place is where a part of a field stands. Its pointer is made only when there is something to say about the part: names can be long.
type place struct {
	outer *place
	// name is that of a member; index that of an element, -1 for a member.
	name  string
	index int
}

func (p *place) pointer() string {
	if p == nil {
		return ""
	}
	token := value.Escape(p.name)
	if p.index >= 0 {
		token = strconv.Itoa(p.index)
	}
	return p.outer.pointer() + "/" + token
}

// Template compiles a field for a site that sees the given roots. It looks at every string and returns all problems, though no more than 100; with any there is no template.
// The template keeps v.
func (c *Compiler) Template(v any, roots Root) (*Template, []Problem) {
	var problems []Problem
	t := c.template(v, roots, nil, &problems)
	if problems != nil {
		return nil, problems
	}
	return t, nil
}

func (c *Compiler) template(v any, roots Root, at *place, problems *[]Problem) *Template {
	t := &Template{literal: v}
	dynamic := false
	switch v := v.(type) {
	case string:
		if _, ok := Body(v); !ok {
			return t
		}
		p, err := c.compile(v, roots)
		if err != nil {
			if len(*problems) < maxFindings {
				*problems = append(*problems, Problem{Pointer: at.pointer(), Err: err, Source: v})
			}
			return t
		}
		return &Template{program: p, counted: p.counted}
	case []any:
		elements, counted := make([]*Template, len(v)), false
		for i, e := range v {
			elements[i] = c.template(e, roots, &place{outer: at, index: i}, problems)
			dynamic = dynamic || elements[i].dynamic()
			counted = counted || elements[i].counted
		}
		if dynamic {
			return &Template{elements: elements, counted: counted}
		}
	case map[string]any:
		members, counted := make([]member, 0, len(v)), false
		for name := range v {
			members = append(members, member{name: name})
		}
		slices.SortFunc(members, func(a, b member) int { return compare(a.name, b.name) })
		for i, m := range members {
			members[i].part = c.template(v[m.name], roots, &place{outer: at, name: m.name, index: -1}, problems)
			dynamic = dynamic || members[i].part.dynamic()
			counted = counted || members[i].part.counted
		}
		if dynamic {
			return &Template{members: members, object: true, counted: counted}
		}
	}
	return t
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (t *Template) dynamic() bool { return t.program != nil || t.elements != nil || t.object }

// Literal returns the field when no expression is in it. It is shared: nobody may write to it.
func (t *Template) Literal() (v any, ok bool) {
	if t.dynamic() {
		return nil, false
	}
	return t.literal, true
}

// Whole reports whether one expression spans the whole field.
func (t *Template) Whole() bool { return t.program != nil }

// Program returns the one expression that spans the whole field, or nil.
func (t *Template) Program() *Program { return t.program }

// Member returns the part of a field that is written as an object, or nil. A field that is a literal has its members too.
func (t *Template) Member(name string) *Template {
	if t.object {
		for _, m := range t.members {
			if m.name == name {
				return m.part
			}
		}
		return nil
	}
	if m, ok := t.literal.(map[string]any); ok && !t.dynamic() {
		if v, ok := m[name]; ok {
			return &Template{literal: v}
		}
	}
	return nil
}

// Names lists the names in the field's expressions that resolve to nothing at their site, or may.
func (t *Template) Names() []Warning {
	var out []Warning
	t.names(nil, &out)
	return out
}

func (t *Template) names(at *place, out *[]Warning) {
	if t.program != nil {
		for _, n := range t.program.Names() {
			if len(*out) < maxFindings {
				*out = append(*out, Warning{Pointer: at.pointer(), Name: n})
			}
		}
	}
	for i, e := range t.elements {
		e.names(&place{outer: at, index: i}, out)
	}
	for _, m := range t.members {
		m.part.names(&place{outer: at, name: m.name, index: -1}, out)
	}
}

// Usage is what an evaluation took.
type Usage struct {
	// Cost is the work, in CEL's units of cost; 1 at least for each expression.
	Cost uint64
	// Bytes is the size of the value, as [value.Measure] has it.
	Bytes int
}

// Limit bounds the value of a field.
type Limit struct{ Bytes, Depth int }

// ErrTooLarge is returned for a value beyond the [Limit].
var ErrTooLarge = errors.New("the value is too large")

// Eval evaluates every expression of the field, members in the order of their names, and returns the field's value. It may share its parts with the definition
// and with what the scope gave. Errors are those of [Program.Eval], and [ErrTooLarge]; a *Fault has the pointer of its expression. The usage counts with an error too.
func (t *Template) Eval(ctx context.Context, s Scope, limit Limit) (any, Usage, error) {
	var used Usage
	v, err := t.eval(ctx, s, limit, &used)
	return v, used, err
}

func (t *Template) eval(ctx context.Context, s Scope, limit Limit, used *Usage) (any, error) {
	switch {
	case t.program != nil:
		v, cost, err := t.program.evaluate(ctx, s)
		used.Cost += cost
		if err != nil {
			return nil, err
		}
		return v, used.add(v, limit)
	case t.elements != nil:
		out := make([]any, len(t.elements))
		used.Bytes += 24 + 16*len(out)
		for i, e := range t.elements {
			v, err := e.eval(ctx, s, limit.inside(), used)
			if err != nil {
				return nil, within(err, strconv.Itoa(i))
			}
			out[i] = v
		}
		return out, nil
	case t.object:
		out := make(map[string]any, len(t.members))
		used.Bytes += 320 + 80*len(t.members)
		for _, m := range t.members {
			v, err := m.part.eval(ctx, s, limit.inside(), used)
			if err != nil {
				return nil, within(err, m.name)
			}
			out[m.name] = v
		}
		return out, nil
	}
	return t.literal, used.add(t.literal, limit)
}

func (l Limit) inside() Limit { return Limit{l.Bytes, l.Depth - 1} }

func (u *Usage) add(v any, limit Limit) error {
	bytes, ok := value.Measure(v, limit.Bytes-u.Bytes, limit.Depth)
	u.Bytes += bytes
	if !ok {
		return ErrTooLarge
	}
	return nil
}

// Bool evaluates a predicate; see [Program.Bool]. A literal is one when it is a boolean.
func (t *Template) Bool(ctx context.Context, s Scope) (bool, Usage, error) {
	if t.program != nil {
		holds, cost, err := t.program.predicate(ctx, s)
		return holds, Usage{Cost: cost}, err
	}
	if b, ok := t.literal.(bool); ok {
		return b, Usage{}, nil
	}
	return false, Usage{}, &Fault{Code: EvaluationError, Text: "a predicate must be true or false: write an expression that gives one", Source: clip(value.JSON(t.literal), 160)}
}

// Counted reports whether an expression of the field may take more work or memory than its text and data.
func (t *Template) Counted() bool { return t.counted }

func within(err error, token string) error {
	var f *Fault
	if errors.As(err, &f) {
		f.Pointer = "/" + value.Escape(token) + f.Pointer
	}
	return err
}
