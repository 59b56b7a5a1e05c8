package loader

import (
	"fmt"
	"math"
	"slices"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// stepRoots are what the fields of a Step see.
const stepRoots = expr.Everywhere | expr.Step

var actions = []string{"Call", "Gather", "Match", "Pass", "Sleep", "Return", "Raise"}

// step reads a Step. What it returns has the name even if all else is wrong, so
// that references to it are not reported as well.
func (l *loader) step(n *strictjson.Node, name string, f *flowSite) *definition.Step {
	s := &definition.Step{Name: name, Pointer: l.pointer(n)}
	if n.Kind != strictjson.Object {
		l.misshapen(n, "write an object", "a Step is an object, not %s", kind(n))
		return s
	}
	action := n.Member("action")
	if action == nil {
		l.misshapen(n, `add "action"; `+l.effort.meant("", actions), "a Step lacks the member %q", "action")
		return s
	}
	text, ok := l.text(action, "action")
	if !ok {
		return s
	}
	if s.Action, ok = definition.ActionByName(text); !ok {
		l.misshapen(action, l.effort.meant(text, actions), "there is no action %q", text)
		return s
	}
	r := stepReader{loader: l, step: s, flow: f}
	form := r.shape()
	form.members = append(form.members,
		member{"action", func(*strictjson.Node) {}},
		member{"comment", l.textTo(&s.Comment, "a comment")})
	form.required = append(form.required, "action")
	form.strangers = r.stranger
	l.object(n, form)
	switch s.Action {
	case definition.ActionGather:
		l.gatherForm(n)
	case definition.ActionSleep:
		l.exactlyOne(n, "a Sleep Step", "for", "until")
	default:
	}
	return s
}

// stepReader reads the fields of one Step.
type stepReader struct {
	*loader
	step *definition.Step
	flow *flowSite
}

func (r stepReader) shape() shape {
	s := r.step
	switch s.Action {
	case definition.ActionCall:
		return shape{
			what: "a Call Step", required: []string{"call", "next"},
			members: []member{
				{"call", func(n *strictjson.Node) { s.Call = r.call(n, r.flow, stepRoots) }},
				r.field("input", &s.Input), r.field("output", &s.Output), r.assign(),
				{"middleware", func(n *strictjson.Node) {
					stack := r.stack(n, r.flow, definition.StepLevel, stepRoots)
					stack.step, s.Middleware = s, stack.entries
				}},
				r.catch(), r.next(),
			},
		}
	case definition.ActionGather:
		s.Gather = &definition.Gather{Wait: true}
		return shape{
			what: "a Gather Step", required: []string{"next"},
			members: []member{
				{"over", r.over},
				{"call", func(n *strictjson.Node) { s.Call = r.call(n, r.flow, stepRoots) }},
				{"calls", func(n *strictjson.Node) {
					r.array(n, "calls", 1, func(n *strictjson.Node) {
						s.Gather.Calls = append(s.Gather.Calls, r.call(n, r.flow, stepRoots))
					})
				}},
				{"completion", r.completion},
				{"concurrency", r.concurrency},
				r.field("output", &s.Output), r.assign(), r.catch(), r.next(),
			},
		}
	case definition.ActionMatch:
		s.Match = &definition.Match{}
		return shape{
			what: "a Match Step", required: []string{"cases", "default"},
			members: []member{
				r.field("input", &s.Input),
				{"cases", func(n *strictjson.Node) {
					r.array(n, "cases", 0, func(n *strictjson.Node) {
						s.Match.Cases = append(s.Match.Cases, r.matchClause(n, true))
					})
				}},
				{"default", func(n *strictjson.Node) { s.Match.Default = r.matchClause(n, false) }},
			},
		}
	case definition.ActionPass:
		return shape{
			what: "a Pass Step", required: []string{"next"},
			members: []member{r.field("output", &s.Output), r.assign(), r.next()},
		}
	case definition.ActionSleep:
		return shape{
			what: "a Sleep Step", required: []string{"next"},
			members: []member{
				{"for", func(n *strictjson.Node) { s.For = r.textField(n, "for is an ISO 8601 duration", stepRoots) }},
				{"until", func(n *strictjson.Node) { s.Until = r.textField(n, "until is an RFC 3339 timestamp", stepRoots) }},
				r.next(),
			},
		}
	case definition.ActionReturn:
		return shape{what: "a Return Step", members: []member{r.field("value", &s.Value)}}
	default:
		return shape{
			what:    "a Raise Step",
			members: []member{{"result", func(n *strictjson.Node) { s.Raise = r.raise(n) }}},
		}
	}
}

// carriers are the actions that carry a field that others do not.
var carriers = map[string][]definition.Action{
	"input":      {definition.ActionCall, definition.ActionMatch},
	"output":     {definition.ActionCall, definition.ActionGather, definition.ActionPass},
	"assign":     {definition.ActionCall, definition.ActionGather, definition.ActionPass},
	"middleware": {definition.ActionCall},
	"catch":      {definition.ActionCall, definition.ActionGather},
	"next":       {definition.ActionCall, definition.ActionGather, definition.ActionPass, definition.ActionSleep},
	"call":       {definition.ActionCall, definition.ActionGather},
	"over":       {definition.ActionGather}, "calls": {definition.ActionGather},
	"completion": {definition.ActionGather}, "concurrency": {definition.ActionGather},
	"cases": {definition.ActionMatch}, "default": {definition.ActionMatch},
	"for": {definition.ActionSleep}, "until": {definition.ActionSleep},
	"value": {definition.ActionReturn}, "result": {definition.ActionRaise},
}

// stranger says what to do about a field that the Step's action does not carry.
func (r stepReader) stranger(name string) string {
	own := carriers[name]
	switch {
	case own == nil:
		return r.misplaced(name)
	case r.step.Action == definition.ActionMatch && slices.Contains([]string{"output", "assign", "next"}, name):
		return "put it into the cases and the default"
	case r.step.Action == definition.ActionReturn && name == "output":
		return `what a Return gives back is "value"`
	case r.step.Action == definition.ActionGather && name == "middleware":
		return "put it into a Flow that the call targets, or into the Flow that the Step is in"
	case len(own) == 1:
		return fmt.Sprintf("delete it; only %s has it", own[0])
	default:
		text := "delete it; those that have it are "
		for i, action := range own {
			if i > 0 {
				text += ", "
			}
			text += action.String()
		}
		return text
	}
}

// misplaced is for fields that belong elsewhere in a Call or Gather Step.
func (r stepReader) misplaced(name string) string {
	if r.step.Action != definition.ActionCall && r.step.Action != definition.ActionGather {
		return ""
	}
	switch name {
	case "provider", "flow", "with":
		return `put it into "call"`
	case "onEntry", "onAlways":
		return `put it into an entry of "middleware"`
	case "onSuccess", "onFailure":
		return `put it into "call" or into an entry of "middleware"`
	case "retry", "timeout", "loop", "finally":
		return `add an entry to "middleware" with the provider "mwl:provider.middleware/mwl/` + name + `/v1"`
	default:
		return ""
	}
}

func (r stepReader) field(name string, to *definition.Field) member {
	return member{name, func(n *strictjson.Node) { *to = r.loader.field(n, stepRoots) }}
}

func (r stepReader) assign() member {
	return member{"assign", func(n *strictjson.Node) { r.step.Assign = r.loader.assign(n, stepRoots) }}
}

func (r stepReader) next() member {
	return member{"next", func(n *strictjson.Node) {
		r.jump(r.flow, n, r.step, func(next *definition.Step) { r.step.Next = next })
	}}
}

func (r stepReader) catch() member {
	return member{"catch", func(n *strictjson.Node) {
		r.array(n, "catch", 0, func(n *strictjson.Node) { r.step.Catch = append(r.step.Catch, r.catchClause(n)) })
	}}
}

func (r stepReader) over(n *strictjson.Node) {
	if n.Kind != strictjson.Array {
		if !r.orExpression(n, "over is an array or an expression", "write an array or an expression") {
			return
		}
	}
	r.step.Gather.Over = r.loader.field(n, stepRoots)
}

func (r stepReader) completion(n *strictjson.Node) {
	r.object(n, shape{
		what: "a completion", required: []string{"successes"},
		members: []member{
			{"successes", func(n *strictjson.Node) {
				if !integral(n) {
					if !r.orExpression(n, "successes is an integer or an expression", "write an integer or an expression") {
						return
					}
				}
				r.step.Gather.Successes = r.loader.field(n, stepRoots)
			}},
			{"wait", func(n *strictjson.Node) { r.step.Gather.Wait = r.boolean(n, "wait") }},
		},
	})
}

func (r stepReader) concurrency(n *strictjson.Node) {
	switch {
	case n.Kind == strictjson.Null:
	case !integral(n) || n.Number < 1:
		r.misshapen(n, "write a number without a fraction from 1 up, or null for no limit", "concurrency is a positive integer or null")
	case n.Number > math.MaxInt32: // more than any fan-out has
	default:
		r.step.Gather.Concurrency = int(n.Number)
	}
}

// integral reports whether n is a number without a fraction.
func integral(n *strictjson.Node) bool {
	return n.Kind == strictjson.Number && n.Number == math.Trunc(n.Number)
}

func (l *loader) gatherForm(n *strictjson.Node) {
	over, call, calls := n.Member("over") != nil, n.Member("call") != nil, n.Member("calls") != nil
	switch {
	case calls && (over || call):
		l.misshapen(n, `delete "calls", or delete "over" and "call"`, `a Gather Step has "calls" besides "over" or "call"`)
	case calls || over && call:
	case over:
		l.misshapen(n, `add "call"`, `a Gather Step has "over" without "call"`)
	case call:
		l.misshapen(n, `add "over"`, `a Gather Step has "call" without "over"`)
	default:
		l.misshapen(n, `add "over" and "call", or "calls"`, "a Gather Step has nothing to dispatch")
	}
}

// exactlyOne wants one of two members.
func (l *loader) exactlyOne(n *strictjson.Node, what, one, other string) {
	switch first, second := n.Member(one), n.Member(other); {
	case first != nil && second != nil:
		l.misshapen(n, "delete one of them", "%s has both %q and %q", what, one, other)
	case first == nil && second == nil:
		l.misshapen(n, "add one of them", "%s has neither %q nor %q", what, one, other)
	}
}
