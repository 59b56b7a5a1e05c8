package mwl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus/mwl"
)

// TestModel executes random definitions and compares what happens, and when, with
// a second reading of the language's execution model: the model below, which has
// no goroutine and no clock but computes instants. Steps, stacks of middleware,
// subflows and fan-outs nest at random; a bound or a cancellation may strike
// anywhere.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := &modelGenerator{t: rt}
		root := g.flow(3)
		cancelAt := 0
		if rapid.Bool().Draw(rt, "cancelled") {
			cancelAt = rapid.IntRange(1, 3000).Draw(rt, "cancelAt")*10 + 5
		}

		m := &model{}
		if cancelAt > 0 {
			m.external = &modelBound{at: cancelAt, chain: []string{cancelled}}
		}
		wantChain, wantLog, wantEnd := m.execute(root)
		if m.unsettled != "" {
			rt.Skip("the language leaves open: " + m.unsettled)
		}

		source := root.definition()
		source["$schema"] = "https://mwl.dev/v0.1/flow/schema.json"
		written, err := json.Marshal(source)
		require.NoError(rt, err)
		j := &journal{}
		start := time.Time{}
		catalog, err := mwl.NewCatalog(timed(j, &start), j.timedTrace(&start))
		require.NoError(rt, err)
		def, err := mwl.Load(written, mwl.WithCatalog(catalog), mwl.WithLimits(mwl.Limits{Cleanup: -1, StepRuns: -1, FlowNesting: -1}))
		require.NoError(rt, err, "%s", written)

		var (
			result mwl.Result
			end    int
		)
		synctest.Test(t, func(t *testing.T) {
			start = time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if cancelAt > 0 {
				timer := time.AfterFunc(time.Duration(cancelAt)*time.Millisecond, cancel)
				defer timer.Stop()
			}
			var trace mwl.Trace
			result = def.Execute(ctx, nil, mwl.WithObserver(trace.Observer()))
			checkSpans(rt, &trace, result, "model")
			end = int(time.Since(start) / time.Millisecond)
		})
		require.Equal(rt, wantChain, envelope(result.Failure), "cancelled at %d: %s", cancelAt, written)
		require.Equal(rt, wantEnd, end, "cancelled at %d: %s", cancelAt, written)
		if result.Failure == nil {
			require.Equal(rt, wantLog, result.Value, "cancelled at %d: %s", cancelAt, written)
		}
		got := j.all()
		slices.Sort(got)
		slices.Sort(m.journal)
		require.Equal(rt, m.journal, got, "cancelled at %d: %s", cancelAt, written)
	})
}

// timed is a call provider that works for ms, then fails, or not. With until, it
// fails while fewer tries have been made.
func timed(j *journal, start *time.Time) mwl.CatalogEntry {
	return do(func(ctx context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		name, _ := r.With["name"].(string)
		ms, _ := r.With["ms"].(float64)
		j.add(at(*start, name+" begins"))
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-ctx.Done():
			j.add(at(*start, name+" stops"))
			return mwl.CallResponse{}, ctx.Err()
		}
		j.add(at(*start, name+" ends"))
		if code, ok := r.With["fail"].(string); ok {
			return mwl.CallResponse{}, &mwl.Failure{Code: code}
		}
		return mwl.CallResponse{}, nil
	})
}

func at(start time.Time, what string) string {
	return fmt.Sprintf("%08d %s", time.Since(start)/time.Millisecond, what)
}

func (j *journal) timedTrace(start *time.Time) mwl.CatalogEntry {
	phase := func(what string) *mwl.PhaseAction {
		return &mwl.PhaseAction{Kind: mwl.SideEffect, Run: func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
			j.add(at(*start, what+" "+r.State.(string)))
			return mwl.Decision{}, nil
		}}
	}
	return mwl.Middleware{
		URI: "mwl:provider.middleware/test/trace/v1", CodePrefix: "Trace",
		OnEntry: &mwl.PhaseAction{
			Kind: mwl.SideEffect, Parameters: json.RawMessage(`{"type": "object", "properties": {"name": {"type": "string"}}}`),
			Run: func(_ context.Context, r *mwl.PhaseRun) (mwl.Decision, error) {
				r.State = r.With["name"]
				j.add(at(*start, "entry "+r.State.(string)))
				return mwl.Decision{}, nil
			},
		},
		OnSuccess: phase("success"), OnFailure: phase("failure"), OnAlways: phase("always"),
	}
}

// model computes executions.
type model struct {
	external  *modelBound
	journal   []string
	unsettled string // why the language does not say what happens
}

// modelBound interrupts a scope at an instant; what it imposes is in the chain.
type modelBound struct {
	at    int
	chain []string
}

// modelResult: no chain is a success; by is set while it is a teardown.
type modelResult struct {
	chain []string
	by    *modelBound
}

func (r modelResult) failed() bool { return len(r.chain) > 0 }

type modelFrame struct {
	log     string
	value   string // what Return took of the log
	tries   int
	failure []string
}

type scope []*modelBound

func (m *model) note(now int, what string) {
	m.journal = append(m.journal, fmt.Sprintf("%08d %s", now, what))
}

func (m *model) execute(root *modelFlow) (chain []string, log string, end int) {
	var bounds scope
	if m.external != nil {
		bounds = scope{m.external}
	}
	f, r, now := m.flow(root, bounds, 0)
	return r.chain, f.value, now
}

// struck is what has interrupted the scope by now: the first bound that elapsed.
func (m *model) struck(bounds scope, now int) *modelBound {
	var first *modelBound
	for _, b := range bounds {
		if b.at == now {
			m.unsettled = "two things at once"
		}
		if b.at <= now && (first == nil || b.at < first.at) {
			first = b
		}
	}
	return first
}

// wait waits until then, or the interruption.
func (m *model) wait(bounds scope, now, then int) (int, *modelBound) {
	first := (*modelBound)(nil)
	for _, b := range bounds {
		if b.at == then || b.at == now {
			m.unsettled = "two things at once"
		}
		if b.at < then && (first == nil || b.at < first.at) {
			first = b
		}
	}
	if first == nil {
		return then, nil
	}
	return max(now, first.at), first
}

func (m *model) flow(flow *modelFlow, bounds scope, now int) (*modelFrame, modelResult, int) {
	f := &modelFrame{}
	r, now := m.wrap(f, flow.stack, bounds, now, func(bounds scope, now int) (modelResult, int) {
		return m.graph(f, flow, bounds, now)
	})
	return f, r, now
}

func (m *model) graph(f *modelFrame, flow *modelFlow, bounds scope, now int) (modelResult, int) {
	f.failure = nil
	for i := 0; i < len(flow.steps); i++ {
		s := &flow.steps[i]
		if b := m.struck(bounds, now); b != nil {
			return modelResult{b.chain, b}, now
		}
		var r modelResult
		switch s.kind {
		case "pass":
			f.log += s.name
		case "sleep":
			var by *modelBound
			if now, by = m.wait(bounds, now, now+s.ms); by != nil {
				return modelResult{by.chain, by}, now
			}
		case "raise":
			return modelResult{chain: append([]string{"error " + s.code}, f.failure...)}, now
		case "reraise":
			if f.failure == nil {
				return modelResult{chain: []string{"error " + mwl.CodeEmptyRaise}}, now
			}
			return modelResult{chain: f.failure}, now
		case "call":
			r, now = m.wrap(f, s.stack, bounds, now, func(bounds scope, now int) (modelResult, int) {
				return m.call(f, &s.targets[0], bounds, now)
			})
		case "gather":
			r, now = m.gather(f, s, bounds, now)
		}
		switch {
		case r.by != nil:
			return r, now
		case !r.failed():
			if s.kind == "call" || s.kind == "gather" {
				f.log += s.name + "+"
			}
			f.failure = nil
			continue
		}
		f.failure = slices.Concat(r.chain, f.failure)
		if s.catch == "" || !patternMatches(s.catch, r.chain[0]) {
			return modelResult{chain: f.failure}, now
		}
		f.log += s.name + "!"
		i += s.skip
	}
	if b := m.struck(bounds, now); b != nil {
		return modelResult{b.chain, b}, now
	}
	f.value = f.log
	return modelResult{}, now
}

func patternMatches(pattern, failure string) bool {
	_, code, _ := strings.Cut(failure, " ")
	return pattern == "*" || strings.HasPrefix(code, strings.TrimSuffix(pattern, "*"))
}

// target runs a target, and leaves the arm to the caller.
func (m *model) target(f *modelFrame, g *modelTarget, bounds scope, now int) (inner *modelFrame, r modelResult, end int) {
	if b := m.struck(bounds, now); b != nil {
		return nil, modelResult{b.chain, b}, now
	}
	if g.flow != nil {
		return m.flow(g.flow, bounds, now)
	}
	m.note(now, g.name+" begins")
	now, by := m.wait(bounds, now, now+g.ms)
	if by != nil {
		m.note(now, g.name+" stops")
		return nil, modelResult{by.chain, by}, now
	}
	m.note(now, g.name+" ends")
	if g.code != "" && (g.until == 0 || f.tries < g.until) {
		return nil, modelResult{chain: []string{"error " + g.code}}, now
	}
	return nil, modelResult{}, now
}

func (m *model) arm(f *modelFrame, g *modelTarget, inner *modelFrame, r modelResult) {
	if inner != nil {
		f.log += "(" + inner.log + ")"
	}
	if r.failed() {
		f.log += g.name + "f"
	} else {
		f.log += g.name + "s"
	}
}

func (m *model) call(f *modelFrame, g *modelTarget, bounds scope, now int) (modelResult, int) {
	inner, r, now := m.target(f, g, bounds, now)
	if r.by == nil {
		m.arm(f, g, inner, r)
	}
	return r, now
}

type modelDispatch struct {
	inner   *modelFrame
	r       modelResult
	end     int
	journal []string
}

func (m *model) gather(f *modelFrame, s *modelStep, bounds scope, now int) (modelResult, int) {
	run := func(g *modelTarget, bounds scope) modelDispatch {
		kept := m.journal
		m.journal = nil
		inner, r, end := m.target(f, g, bounds, now)
		d := modelDispatch{inner, r, end, m.journal}
		m.journal = kept
		return d
	}
	dispatches := make([]modelDispatch, len(s.targets))
	for i := range s.targets {
		dispatches[i] = run(&s.targets[i], bounds)
	}
	accepted := make([]bool, len(dispatches))
	for i := range accepted {
		accepted[i] = true
	}
	if !s.wait {
		if decided, ok := m.decided(s, dispatches, now); ok {
			imposed := &modelBound{at: decided, chain: []string{"cancellation " + mwl.CodeGatherDispatchCancelled}}
			ends := 0
			for i := range dispatches {
				if s.needed == 0 {
					// The policy was met before anything started.
					dispatches[i] = modelDispatch{r: modelResult{chain: []string{"skipped " + mwl.CodeGatherDispatchSkipped}}, end: now}
					accepted[i] = false
					continue
				}
				if dispatches[i].end <= decided {
					if dispatches[i].end == decided {
						ends++
					}
					continue
				}
				dispatches[i] = run(&s.targets[i], append(slices.Clip(bounds), imposed))
				if dispatches[i].r.by == imposed {
					dispatches[i].r.by = nil
					accepted[i] = false
				}
			}
			if ends > 1 {
				m.unsettled = "two dispatches that end at once"
			}
		}
	}
	end, successes := now, 0
	var torn *modelResult
	for i := range dispatches {
		d := &dispatches[i]
		m.journal = append(m.journal, d.journal...)
		end = max(end, d.end)
		if d.r.by != nil {
			accepted[i] = false
			if torn != nil && len(torn.chain) != len(d.r.chain) {
				m.unsettled = "which cleanup of a fan-out's teardown goes on"
			}
			if torn == nil {
				torn = &d.r
			}
		}
		if !d.r.failed() {
			successes++
		}
	}
	if torn != nil {
		return *torn, end
	}
	if b := m.struck(bounds, end); b != nil {
		return modelResult{b.chain, b}, end
	}
	for i := range dispatches {
		if accepted[i] {
			m.arm(f, &s.targets[i], dispatches[i].inner, dispatches[i].r)
		}
	}
	if successes < s.needed {
		return modelResult{chain: []string{"error " + mwl.CodeGatherCompletionUnmet}}, end
	}
	return modelResult{}, end
}

// decided is when the outcome of a fan-out is.
func (m *model) decided(s *modelStep, dispatches []modelDispatch, now int) (int, bool) {
	if s.needed == 0 {
		return now, true
	}
	order := slices.Clone(dispatches)
	slices.SortStableFunc(order, func(a, b modelDispatch) int { return a.end - b.end })
	successes, failures := 0, 0
	for i, d := range order {
		if i > 0 && order[i-1].end == d.end && len(order) > 1 {
			m.unsettled = "two dispatches that end at once"
		}
		switch {
		case d.r.by != nil:
			continue
		case d.r.failed():
			failures++
		default:
			successes++
		}
		if successes >= s.needed || len(order)-failures < s.needed {
			return d.end, true
		}
	}
	return 0, false
}

type modelOperation func(bounds scope, now int) (modelResult, int)

// wrap runs an operation in a stack. An interruption that came while a cleanup ran
// takes effect after that.
func (m *model) wrap(f *modelFrame, stack []modelEntry, bounds scope, now int, op modelOperation) (modelResult, int) {
	if len(stack) == 0 {
		return op(bounds, now)
	}
	if b := m.struck(bounds, now); b != nil {
		return modelResult{b.chain, b}, now
	}
	e := &stack[0]
	inner := func(bounds scope, now int) (modelResult, int) {
		return m.wrap(f, stack[1:], bounds, now, op)
	}
	var r modelResult
	switch e.kind {
	case "trace":
		m.note(now, "entry "+e.name)
		r, now = inner(bounds, now)
		if r.by == nil {
			m.note(now, map[bool]string{true: "failure ", false: "success "}[r.failed()]+e.name)
		}
		m.note(now, "always "+e.name)
	case "timeout":
		r, now = m.timeout(e, inner, bounds, now)
	case "retry":
		r, now = m.retry(f, e, inner, bounds, now)
	case "loop":
		for n := 1; ; n++ {
			r, now = inner(bounds, now)
			if r.failed() {
				break
			}
			f.log += "o"
			if n >= e.n {
				break
			}
		}
	case "finally":
		r, now = inner(bounds, now)
		var c modelResult
		c, now = m.wrap(f, e.around, nil, now, func(bounds scope, now int) (modelResult, int) {
			return m.call(f, &e.cleanup, bounds, now)
		})
		if c.failed() {
			if b := m.struck(bounds, now); b != nil && r.by == nil {
				// The cancellation was in flight when the cleanup failed.
				r = modelResult{b.chain, b}
			}
			r.chain = slices.Concat(c.chain, r.chain)
		}
	}
	if r.by != nil {
		return r, now
	}
	if b := m.struck(bounds, now); b != nil {
		return modelResult{b.chain, b}, now
	}
	return r, now
}

func (m *model) timeout(e *modelEntry, inner modelOperation, bounds scope, now int) (modelResult, int) {
	exceeded := "timeout " + mwl.CodeTimeoutExceeded
	b := &modelBound{at: now + e.ms, chain: []string{cancelled, exceeded}}
	for _, other := range bounds {
		if other.at == b.at {
			m.unsettled = "two things at once"
		}
	}
	r, now := inner(append(slices.Clip(bounds), b), now)
	switch {
	case r.by == b && len(r.chain) == 2:
		return modelResult{chain: []string{exceeded}}, now
	case r.by == b:
		return modelResult{chain: r.chain}, now
	default:
		return r, now
	}
}

func (m *model) retry(f *modelFrame, e *modelEntry, inner modelOperation, bounds scope, now int) (modelResult, int) {
	log := f.log
	for n := 1; ; n++ {
		r, then := inner(bounds, now)
		now = then
		if r.by != nil || !r.failed() {
			return r, now
		}
		if !patternMatches(e.pattern, r.chain[0]) {
			f.tries++
			return r, now
		}
		if n >= e.n {
			f.tries++
			return modelResult{chain: slices.Concat([]string{"error " + mwl.CodeRetryExhausted}, r.chain)}, now
		}
		f.log, f.tries = log, f.tries+1
		var by *modelBound
		if now, by = m.wait(bounds, now, now+e.ms); by != nil {
			return modelResult{by.chain, by}, now
		}
	}
}
