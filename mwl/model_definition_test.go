package mwl_test

import (
	"fmt"

	"pgregory.net/rapid"
)

// What definitions are made of. Every frame has the variables log and tries.
type (
	modelFlow struct {
		stack []modelEntry
		steps []modelStep
	}
	modelStep struct {
		name, kind string // pass, sleep, call, gather, raise, reraise
		ms         int
		code       string
		stack      []modelEntry
		targets    []modelTarget
		catch      string // a pattern; "" is no clause
		skip       int    // how many Steps the clause goes on
		needed     int
		wait       bool
	}
	modelTarget struct {
		name  string
		ms    int
		code  string // "" succeeds
		until int    // fails only while there have been fewer tries
		flow  *modelFlow
	}
	modelEntry struct {
		name, kind string // trace, timeout, retry, loop, finally
		ms, n      int
		pattern    string
		cleanup    modelTarget
		around     []modelEntry // the cleanup
	}
)

func (f *modelFlow) definition() map[string]any {
	steps := map[string]any{"end": map[string]any{"action": "Return", "value": "{{ vars.log }}"}}
	name := func(i int) string {
		if i < len(f.steps) {
			return f.steps[i].name
		}
		return "end"
	}
	for i, s := range f.steps {
		steps[s.name] = s.definition(name(i+1), name(i+1+s.skip))
	}
	return map[string]any{
		"parameters": map[string]any{"type": "object", "properties": map[string]any{"log": map[string]any{"default": ""}, "tries": map[string]any{"default": 0}}},
		"middleware": entries(f.stack),
		"entrypoint": f.steps[0].name,
		"steps":      steps,
	}
}

func logged(what string) map[string]any {
	return map[string]any{"log": fmt.Sprintf("{{ vars.log + '%s' }}", what)}
}

func (s *modelStep) definition(next, handler string) map[string]any {
	switch s.kind {
	case "pass":
		return map[string]any{"action": "Pass", "assign": logged(s.name), "next": next}
	case "sleep":
		return map[string]any{"action": "Sleep", "for": milliseconds(s.ms), "next": next}
	case "raise":
		return map[string]any{"action": "Raise", "result": map[string]any{"code": s.code}}
	case "reraise":
		return map[string]any{"action": "Raise"}
	}
	step := map[string]any{"next": next, "assign": logged(s.name + "+")}
	if s.catch != "" {
		step["catch"] = []any{map[string]any{"match": map[string]any{"codes": []string{s.catch}}, "assign": logged(s.name + "!"), "next": handler}}
	}
	if s.kind == "call" {
		step["action"], step["call"], step["middleware"] = "Call", s.targets[0].call(), entries(s.stack)
		return step
	}
	calls := make([]any, len(s.targets))
	for i := range s.targets {
		calls[i] = s.targets[i].call()
	}
	step["action"], step["calls"] = "Gather", calls
	step["completion"] = map[string]any{"successes": s.needed, "wait": s.wait}
	return step
}

func milliseconds(ms int) string { return fmt.Sprintf("PT%d.%03dS", ms/1000, ms%1000) }

func (g *modelTarget) call() map[string]any {
	var call map[string]any
	seen := ""
	if g.flow != nil {
		call = map[string]any{"flow": g.flow.definition()}
		seen = " + '(' + flow.vars.log + ')'"
	} else {
		with := map[string]any{"name": g.name, "ms": g.ms}
		if g.code != "" {
			with["fail"] = g.code
			if g.until > 0 {
				with["fail"] = fmt.Sprintf("{{ vars.tries < %d.0 ? '%s' : null }}", g.until, g.code)
			}
		}
		call = map[string]any{"provider": "mwl:provider.call/test/do/v1", "with": with}
	}
	call["onSuccess"] = map[string]any{"assign": map[string]any{"log": fmt.Sprintf("{{ vars.log%s + '%ss' }}", seen, g.name)}}
	call["onFailure"] = map[string]any{"assign": map[string]any{"log": fmt.Sprintf("{{ vars.log%s + '%sf' }}", seen, g.name)}}
	return call
}

func entries(stack []modelEntry) []any {
	defs := make([]any, len(stack))
	for i, e := range stack {
		d := map[string]any{"provider": "mwl:provider.middleware/mwl/" + e.kind + "/v1"}
		switch e.kind {
		case "trace":
			d["provider"] = "mwl:provider.middleware/test/trace/v1"
			d["onEntry"] = map[string]any{"with": map[string]any{"name": e.name}}
		case "timeout":
			d["onEntry"] = map[string]any{"with": map[string]any{"duration": milliseconds(e.ms)}}
		case "retry":
			policy := map[string]any{"match": map[string]any{"codes": []string{e.pattern}}, "attempts": e.n, "backoff": map[string]any{"initial": milliseconds(e.ms)}}
			d["onEntry"] = map[string]any{"with": map[string]any{"policies": []any{policy}}}
			d["onFailure"] = map[string]any{"assign": map[string]any{"tries": "{{ vars.tries + 1.0 }}"}}
		case "loop":
			d["onSuccess"] = map[string]any{"when": fmt.Sprintf("{{ middleware.metadata.iteration < %d }}", e.n), "assign": logged("o")}
		case "finally":
			d["onAlways"] = map[string]any{"with": map[string]any{"call": e.cleanup.call(), "middleware": entries(e.around)}}
		}
		defs[i] = d
	}
	return defs
}

type modelGenerator struct {
	t     *rapid.T
	names int
}

func (g *modelGenerator) n(limit int, what string) int {
	return rapid.IntRange(0, limit-1).Draw(g.t, what)
}

func (g *modelGenerator) name(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

// ms is a duration of its own, so that instants seldom coincide.
func (g *modelGenerator) ms() int { return 10*(1+g.n(400, "ms")) + g.names%7 }

func (g *modelGenerator) pattern() string {
	return []string{"*", "App.*", "Clean.*", "Provider.*", "System.*"}[g.n(5, "pattern")]
}

func (g *modelGenerator) flow(depth int) *modelFlow {
	f := &modelFlow{stack: g.stack(depth)}
	for range 1 + g.n(4, "steps") {
		f.steps = append(f.steps, g.step(depth))
	}
	if g.n(6, "raise") == 0 {
		f.steps = append(f.steps, modelStep{name: g.name("r"), kind: []string{"raise", "reraise"}[g.n(2, "kind")], code: "App.Raised"})
	}
	return f
}

func (g *modelGenerator) step(depth int) modelStep {
	s := modelStep{name: g.name("s"), kind: []string{"pass", "sleep", "call", "call", "call", "gather"}[g.n(6, "kind")], ms: g.ms()}
	switch s.kind {
	case "call":
		s.stack, s.targets = g.stack(depth), []modelTarget{g.target(depth)}
	case "gather":
		for range 1 + g.n(3, "dispatches") {
			s.targets = append(s.targets, g.target(depth))
		}
		s.needed, s.wait = g.n(len(s.targets)+1, "needed"), g.n(2, "wait") == 0
	default:
		return s
	}
	if g.n(2, "catch") == 0 {
		s.catch, s.skip = g.pattern(), g.n(3, "skip")
	}
	return s
}

func (g *modelGenerator) target(depth int) modelTarget {
	target := modelTarget{name: g.name("t"), ms: g.ms()}
	if depth > 0 && g.n(5, "flow") < 2 {
		target.flow = g.flow(depth - 1)
		return target
	}
	if g.n(2, "fails") == 0 {
		target.code, target.until = "App."+target.name, g.n(3, "until")
	}
	return target
}

func (g *modelGenerator) stack(depth int) []modelEntry {
	var stack []modelEntry
	for range g.n(4, "entries") {
		e := modelEntry{name: g.name("m"), kind: []string{"trace", "timeout", "retry", "loop", "finally"}[g.n(5, "entry")], ms: g.ms(), n: 1 + g.n(3, "n"), pattern: g.pattern()}
		if e.kind == "finally" {
			e.cleanup = modelTarget{name: g.name("c"), ms: g.ms()}
			switch g.n(8, "cleanup") {
			case 0, 1:
				e.cleanup.code = "Clean." + e.name
			case 2:
				if depth > 0 {
					e.cleanup.flow = g.flow(0)
				}
			case 3:
				if depth > 0 {
					e.around = g.stack(0)
				}
			}
		}
		stack = append(stack, e)
	}
	return stack
}
