package loader

import (
	"encoding/json"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// lint warns of what a valid definition likely does not mean, and judges literal
// arguments. It runs only when there are no other problems, so that the tree is
// whole.
func (l *loader) lint() {
	for _, f := range l.flows {
		l.lintFlow(f)
		for _, name := range f.order {
			l.lintStep(f, f.flow.Steps[name], f.steps[name])
		}
	}
	for _, c := range l.calls {
		l.lintCall(c)
	}
	for _, s := range l.stacks {
		l.lintStack(s)
	}
	l.lintReruns()
	l.lintExhausted()
}

func (l *loader) lintFlow(f *flowSite) {
	if f.outer != nil && f.flow.Name != "" {
		if !f.called {
			l.warn(f.node, "call it, or delete it", "no call targets the Flow %q", f.flow.Name)
		}
		for outer := f.outer.outer; outer != nil; outer = outer.outer {
			if outer.names[f.flow.Name] != nil {
				l.warn(f.node, "give it another name, unless it is to stand for the other one here", "the Flow %q shadows one of an outer Flow", f.flow.Name)
				break
			}
		}
	}
	l.lintParameters(f)
	l.lintReach(f)
}

// lintParameters warns of defaults that look like expressions, and of those that can
// never be taken.
func (l *loader) lintParameters(f *flowSite) {
	parameters := f.node.Member("parameters")
	if parameters == nil {
		return
	}
	if properties := parameters.Member("properties"); properties != nil {
		for _, m := range properties.Members {
			if at := m.Value.Member("default"); at != nil && hasExpression(at) {
				l.warn(at, "set the variable with the assign of a Step, or write the value out",
					"the default of %q is used as it is written: {{ }} in it is not evaluated", m.Name)
			}
		}
	}
	required := parameters.Member("required")
	if required == nil {
		return
	}
	for _, item := range required.Items {
		if _, ok := f.flow.Parameters.Defaults()[item.Text]; ok {
			at := parameters.Member("properties").Member(item.Text).Member("default")
			l.warn(at, "delete the default, or do not require the parameter", "the default of %q is never taken, because the parameter is required", item.Text)
		}
	}
}

// lintReach warns of Steps that cannot be reached, and of graphs that cannot end.
func (l *loader) lintReach(f *flowSite) {
	next := map[*definition.Step][]*definition.Step{}
	for _, j := range f.jumps {
		next[j.from] = append(next[j.from], j.to)
	}
	reached := map[*definition.Step]bool{}
	ends := false
	for open := next[nil]; len(open) > 0; {
		step := open[len(open)-1]
		open = open[:len(open)-1]
		if !reached[step] {
			reached[step] = true
			ends = ends || step.Action == definition.ActionReturn || step.Action == definition.ActionRaise
			open = append(open, next[step]...)
		}
	}
	for _, name := range f.order {
		if !reached[f.flow.Steps[name]] {
			l.warn(f.steps[name], "route to it, or delete it", "no way leads from the entrypoint to the Step %q", name)
		}
	}
	if !ends {
		l.warn(f.node.Member("entrypoint"), "route to a Return or a Raise", "no way leads from the entrypoint to an end, so that only a failure or a cancellation ends the Flow")
	}
}

func (l *loader) lintStep(f *flowSite, s *definition.Step, n *strictjson.Node) {
	switch s.Action {
	case definition.ActionMatch:
		l.lintMatch(s, n)
	case definition.ActionSleep:
		l.lintDuration(s.For, n.Member("for"))
		l.lintInstant(s.Until, n.Member("until"))
	case definition.ActionRaise:
		if s.Raise != nil {
			l.lintEnvelope(s.Raise, n.Member("result"))
		}
	case definition.ActionGather:
		l.lintGather(s, n)
	default:
	}
	if catch := n.Member("catch"); catch != nil {
		l.lintCatch(f, s, catch)
	}
}

func (l *loader) lintMatch(s *definition.Step, n *strictjson.Node) {
	cases := n.Member("cases")
	if len(cases.Items) == 0 {
		l.warn(cases, "use a Pass Step", "a Match without cases always takes its default")
	}
	seen := map[string]bool{}
	always := false
	for i, c := range s.Match.Cases {
		source := c.When.Template.Program().Source()
		switch {
		case always || seen[source]:
			l.warn(cases.Items[i], "delete it, or put it further up", "the case is never selected, because an earlier one is")
		case source == "false":
			l.warn(cases.Items[i], "delete it", "the case is never selected")
		case source == "true":
			always = true
			l.warn(cases.Items[i].Member("when"), "make it the default", "the case is always selected")
		default:
			l.lintWhen(c.When, cases.Items[i].Member("when"))
		}
		seen[source] = true
	}
}

func (l *loader) lintGather(s *definition.Step, n *strictjson.Node) {
	what, at := "calls", n.Member("calls")
	if over := n.Member("over"); over != nil {
		what, at = "elements", over
	}
	dispatches := len(at.Items)
	if most := l.options.MaxFanOut; most > 0 && dispatches > most {
		l.warn(at, "dispatch less, or raise the limit", "%d %s are more than the limit of %d dispatches, so that the Gather fails with %s", dispatches, what, most, fanOutExceeded)
	}
	if !s.Gather.Successes.Written() {
		return
	}
	successes := n.At("/completion/successes")
	count, literal := s.Gather.Successes.Template.Literal()
	number, ok := count.(float64)
	switch {
	case !literal || !ok:
	case number <= 0:
		l.warn(successes, "write how many dispatches must succeed", "a Gather that needs %v successes succeeds whatever happens", number)
	case at.Kind == strictjson.Array && number > float64(dispatches):
		l.warn(successes, "ask for less", "%v successes cannot be had from %d %s", number, dispatches, what)
	}
}

// fanOutExceeded is the interpreter's code for a Gather with too many dispatches.
const fanOutExceeded = "Mwl.FanOutLimitExceeded"

func (l *loader) lintStack(s *stackSite) {
	// The Flow is one level, and its own middleware is around the Steps.
	outer := 1
	if s.step != nil && s.flow.stack != nil {
		outer += len(s.flow.stack.entries)
	}
	if most, level := l.options.MaxRunDepth, outer+len(s.entries); most > 0 && len(s.entries) > 0 && level > most {
		l.warn(s.nodes[len(s.nodes)-1], "use less middleware, or raise the limit",
			"the Flow and the middleware around this are %d levels, more than the limit of %d, so that the execution is cancelled here", level, most)
	}
	for i, e := range s.entries {
		l.lintEntry(e, s.nodes[i])
	}
	l.lintRetries(s)
}

func (l *loader) lintEntry(e *definition.Entry, n *strictjson.Node) {
	for phase := range definition.PhaseCount {
		contract, block := &e.Contract.Phases[phase], e.Blocks[phase]
		at := n.Member(phase.String())
		if at != nil && block.When.Written() && contract.Kind == 0 {
			l.warn(at.Member("when"), "delete it", "when has no effect: %s does nothing at %s", e.Contract.URI, phase)
		}
		if at != nil {
			l.lintWhen(block.When, at.Member("when"))
		}
		if gate, ok := literalOf(block.When); ok && gate == false {
			continue // its with is not looked at
		}
		if at != nil && block.Envelope != nil {
			l.lintEnvelope(block.Envelope, at)
		}
		l.lintPhaseWith(e, phase, block, n)
	}
	if e.Contract.NeedsContinuation {
		when := n.At("/onSuccess/when")
		v, _ := literalOf(e.Blocks[definition.OnSuccess].When)
		if goesOn, ok := v.(bool); ok {
			what := "the loop runs once"
			if goesOn {
				what = "only a failure or an interruption ends the loop"
			}
			l.warn(when, "write an expression", "%s, because onSuccess.when is %v", what, goesOn)
		}
	}
}

// lintWhen warns of a constant that is neither true nor false.
func (l *loader) lintWhen(f definition.Field, n *strictjson.Node) {
	if v, ok := literalOf(f); ok {
		if _, gate := v.(bool); !gate {
			l.warn(n, "compare it with something", "when is neither true nor false, so that it fails with %s", definition.CodeExpressionEvaluationError)
		}
	}
}

// literalOf is the value of a field that is written, if it is a literal or an
// expression that is a constant.
func literalOf(f definition.Field) (any, bool) {
	if !f.Written() {
		return nil, false
	}
	p := f.Template.Program()
	if p == nil {
		return f.Template.Literal()
	}
	source := p.Source()
	if text, ok := strings.CutPrefix(source, "'"); ok {
		text, ok = strings.CutSuffix(text, "'")
		return text, ok && !strings.ContainsAny(text, `'\`)
	}
	// The constants of JSON are constants of CEL, too.
	var v any
	err := json.Unmarshal([]byte(source), &v)
	return v, err == nil
}
