package mwl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/conformance"
)

// FuzzExecute runs definitions that are made of the input's bytes, in virtual time
// and cancelled at some instant or not at all: there is exactly one Result, it is
// well formed, and when it is there nothing runs any more.
func FuzzExecute(f *testing.F) {
	f.Add([]byte{})
	for seed := range byte(40) {
		bytes := make([]byte, 200)
		state := uint32(seed) + 1
		for i := range bytes {
			state = state*1664525 + 1013904223
			bytes[i] = byte(state >> 24)
		}
		f.Add(bytes)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		g := &generator{bytes: bytes}
		source, err := json.Marshal(g.flow(true, nil))
		require.NoError(t, err)
		def, err := mwl.Load(source, mwl.DeferArgumentErrors(), mwl.WithLimits(mwl.Limits{StepRuns: 300, FanOut: 20, ValueBytes: 1 << 12}))
		require.NoError(t, err, "%s", source)
		input, after := g.data(2), time.Duration(g.next(40))*500*time.Millisecond
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if after > 0 {
				timer := time.AfterFunc(after, cancel)
				defer timer.Stop()
			}
			trace := mwl.Trace{MaxSpans: -1}
			result := def.Execute(ctx, input, mwl.WithObserver(trace.Observer()))
			checkSpans(t, &trace, result, string(source))
			written, err := json.Marshal(result)
			require.NoError(t, err)
			var read any
			require.NoError(t, json.Unmarshal(written, &read))
			require.NoError(t, conformance.WellFormed(read), "%s gives %s", source, written)
		})
	})
}

// generator makes definitions that load, of bytes.
type generator struct {
	bytes []byte
	depth int
}

// next is a number below n; zero when there are no bytes left.
func (g *generator) next(n int) int {
	if len(g.bytes) == 0 {
		return 0
	}
	b := g.bytes[0]
	g.bytes = g.bytes[1:]
	return int(b) % n
}

func (g *generator) maybe() bool { return g.next(3) == 1 }

func (g *generator) flow(root bool, names []string) map[string]any {
	g.depth++
	defer func() { g.depth-- }()
	flow := map[string]any{}
	if root {
		flow["$schema"] = "https://mwl.dev/v0.1/flow/schema.json"
	}
	if g.maybe() {
		flow["parameters"] = map[string]any{"type": "object", "properties": map[string]any{"p": map[string]any{"default": g.data(1)}}}
	}
	if g.depth < 3 && g.maybe() {
		name := fmt.Sprintf("flow%d", g.depth)
		flow["flows"] = map[string]any{name: g.flow(false, nil)}
		names = append(names, name)
	}
	if g.maybe() {
		flow["middleware"] = g.stack(names)
	}
	count := 1 + g.next(4)
	steps := map[string]any{"end": map[string]any{"action": "Return"}}
	for i := range count {
		steps[g.step(i)] = g.action(i, count, names)
	}
	flow["steps"], flow["entrypoint"] = steps, g.step(0)
	return flow
}

func (*generator) step(i int) string { return fmt.Sprintf("s%d", i) }

// target is a Step to go to: mostly a later one.
func (g *generator) target(i, count int) string {
	to := i + 1 + g.next(3)
	if g.next(8) == 7 {
		to = g.next(count)
	}
	if to >= count {
		return "end"
	}
	return g.step(to)
}

func (g *generator) action(i, count int, names []string) map[string]any {
	step := map[string]any{}
	switch g.next(8) {
	case 0, 1:
		step["action"], step["call"] = "Call", g.call(names)
		if g.maybe() {
			step["middleware"] = g.stack(names)
		}
		g.shape(step, "input", "output")
	case 2:
		step["action"] = "Gather"
		if g.maybe() {
			step["calls"] = []any{g.call(names), g.call(names)}
		} else {
			step["over"], step["call"] = g.value([]any{1, "b", nil}), g.call(names)
		}
		if g.maybe() {
			step["completion"] = map[string]any{"successes": g.value(g.next(3)), "wait": g.maybe()}
		}
		if g.maybe() {
			step["concurrency"] = 1 + g.next(3)
		}
		g.shape(step, "output")
	case 3:
		step["action"] = "Match"
		clause := map[string]any{"when": g.expression(), "next": g.target(i, count)}
		g.shape(clause, "output")
		step["cases"], step["default"] = []any{clause}, map[string]any{"next": g.target(i, count)}
		return step
	case 4:
		step["action"] = "Pass"
		g.shape(step, "output")
	case 5:
		step["action"] = "Sleep"
		if g.maybe() {
			step["until"] = g.text("2000-01-01T00:00:09Z")
		} else {
			step["for"] = g.text("PT2S")
		}
	case 6:
		step["action"] = "Return"
		if g.maybe() {
			step["value"] = g.value("x")
		}
		return step
	default:
		step["action"] = "Raise"
		if g.maybe() {
			step["result"] = g.envelope(map[string]any{"code": g.text("Raised.It")})
		}
		return step
	}
	step["next"] = g.target(i, count)
	if _, has := step["call"]; (has || step["calls"] != nil) && g.maybe() {
		clause := map[string]any{"match": g.matcher(), "next": g.target(i, count)}
		g.shape(clause, "output")
		step["catch"] = []any{clause}
	}
	return step
}

// shape adds shaping fields and an assign, now and then.
func (g *generator) shape(to map[string]any, fields ...string) {
	for _, field := range fields {
		if g.maybe() {
			to[field] = g.value("shaped")
		}
	}
	if g.maybe() {
		to["assign"] = map[string]any{"a": g.value(1), "b": g.expression()}
	}
}

func (g *generator) call(names []string) map[string]any {
	call := map[string]any{}
	switch {
	case g.depth < 3 && g.next(4) == 1:
		call["flow"] = g.flow(false, names)
	case len(names) > 0 && g.maybe():
		call["flow"] = names[g.next(len(names))]
	default:
		call["provider"] = "mwl:provider.call/mwl/mock/v1"
		with := map[string]any{}
		if g.maybe() {
			with["delay"] = g.text("PT3S")
		}
		if g.maybe() {
			with["value"] = g.value("mocked")
		}
		if g.maybe() {
			with["failure"] = g.envelope(map[string]any{"code": g.text("Mock.Failed")})
		}
		call["with"] = with
	}
	if g.maybe() {
		call["input"] = g.value("in")
	}
	if g.maybe() {
		call["onSuccess"] = map[string]any{"value": g.expression(), "assign": map[string]any{"c": g.expression()}}
	}
	if g.maybe() {
		call["onFailure"] = map[string]any{"assign": map[string]any{"c": g.expression()}}
	}
	return call
}

func (g *generator) envelope(e map[string]any) map[string]any {
	if g.maybe() {
		e["type"] = "Custom"
	}
	if g.maybe() {
		e["details"] = g.value("why")
	}
	if g.maybe() {
		e["previous"] = nil
	}
	if g.maybe() {
		e["retryable"] = g.maybe()
	}
	return e
}

func (g *generator) matcher() map[string]any {
	if g.maybe() {
		return map[string]any{"codes": []any{"Mock.*", "System.*"}}
	}
	return map[string]any{"codes": []any{"*"}}
}

func (g *generator) stack(names []string) []any {
	entries := []any{}
	for range 1 + g.next(3) {
		entries = append(entries, g.entry(names))
	}
	return entries
}

func (g *generator) entry(names []string) map[string]any {
	provider := func(name string) map[string]any {
		return map[string]any{"provider": "mwl:provider.middleware/mwl/" + name + "/v1"}
	}
	blocks := map[string]map[string]any{"onEntry": {}, "onSuccess": {}, "onFailure": {}, "onAlways": {}}
	var entry map[string]any
	switch g.next(4) {
	case 0:
		entry = provider("retry")
		blocks["onEntry"]["with"] = map[string]any{"policies": []any{map[string]any{
			"match": g.matcher(), "attempts": 1 + g.next(3),
			"backoff": map[string]any{"initial": "PT1S", "rate": 2, "jitter": []any{"none", "full", "equal", "decorrelated"}[g.next(4)]},
		}}}
		if g.maybe() {
			blocks["onFailure"]["with"] = map[string]any{"delay": g.text("PT0.5S")}
		}
	case 1:
		entry = provider("timeout")
		blocks["onEntry"]["with"] = map[string]any{"duration": g.text("PT4S")}
	case 2:
		entry = provider("loop")
		blocks["onSuccess"]["when"] = "{{ middleware.metadata.iteration < 3 }}"
		if g.maybe() {
			blocks["onSuccess"]["when"] = g.expression()
		}
	default:
		entry = provider("finally")
		if g.depth < 3 {
			g.depth++
			with := map[string]any{"call": g.call(names)}
			if g.maybe() {
				with["middleware"] = g.stack(names)
			}
			blocks["onAlways"]["with"] = with
			g.depth--
		}
	}
	if g.maybe() {
		blocks["onEntry"]["output"] = g.value("down")
	}
	if g.maybe() {
		blocks["onSuccess"]["value"] = g.value("up")
	}
	if g.maybe() {
		blocks["onFailure"]["code"] = g.text("Renamed.It")
	}
	for _, name := range []string{"onEntry", "onSuccess", "onFailure", "onAlways"} {
		if name != "onSuccess" && g.next(8) == 1 {
			blocks[name]["when"] = g.expression()
		}
		if g.next(6) == 1 {
			blocks[name]["assign"] = map[string]any{"m": g.expression()}
		}
		if len(blocks[name]) > 0 {
			entry[name] = blocks[name]
		}
	}
	return entry
}

// value is a literal or an expression.
func (g *generator) value(literal any) any {
	if g.maybe() {
		return g.expression()
	}
	return literal
}

// text is a literal, or an expression that may give something else.
func (g *generator) text(literal string) string {
	switch g.next(5) {
	case 1:
		return g.expression()
	case 2:
		return "{{ '" + literal + "' }}"
	default:
		return literal
	}
}

var expressions = []string{
	"true", "false", "1 + 1", "[1, 2, 3]", "{'k': 'v'}", "null", "5 / 0", "5.0 / 0.0",
	"step.input", "step.result.value", "step.results", "step.metadata", "vars", "vars.a", "has(vars.a)", "vars.a + 1.0",
	"frame.input", "frame.metadata.enteredAt", "execution.id", "failure", "failure == null ? 'none' : failure.code",
	"call.input", "call.index", "call.result", "call.metadata", "flow.vars", "provider.metadata", "match.input", "middleware.input",
	"middleware.result", "middleware.metadata", "middleware.result.type", "now()", "string(now())", "toJson(vars)",
	"durationToIso8601(now() - timestamp(frame.metadata.enteredAt))", "9007199254740993", "[1, 2, 3].map(x, x * 2)", "'PT1S'", "b'x'",
}

func (g *generator) expression() string {
	return "{{ " + expressions[g.next(len(expressions))] + " }}"
}

// data is an input.
func (g *generator) data(depth int) any {
	switch g.next(6) {
	case 0:
		return nil
	case 1:
		return g.maybe()
	case 2:
		return float64(g.next(256)) - 100
	case 3:
		return "text"
	case 4:
		if depth == 0 {
			return []any{}
		}
		return []any{g.data(depth - 1), g.data(depth - 1)}
	default:
		if depth == 0 {
			return map[string]any{}
		}
		return map[string]any{"k": g.data(depth - 1)}
	}
}
