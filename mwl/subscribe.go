package mwl

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// Subscribe subscribes the definition's [Definition.Handler] to the events that match
// the pattern, as eventbus.Bus.Subscribe does with the subscription's options.
//
// It logs a warning with the bus's logger when
//   - the definition runs parts of itself again on failures (Retry), and the
//     subscription retries too: the attempts multiply,
//   - a literal Sleep or Timeout is longer than the subscription's timeout.
//
// Both are judged by the subscription's own settings at this time. Other subscriptions
// of the same event can raise its number of attempts, see eventbus.Bus.Explain.
//
// Errors: *OptionError for a handler option, and those of eventbus.Bus.Subscribe.
func (d *Definition) Subscribe(bus *eventbus.Bus, pattern string, handler []HandlerOption, options ...eventbus.SubscribeOption) (*eventbus.Subscription, error) {
	handle, err := d.Handler(handler...)
	if err != nil {
		return nil, err
	}
	s, err := bus.Subscribe(pattern, handle, append(options[:len(options):len(options)], eventbus.CallerSkip(1))...)
	if err != nil {
		return nil, err
	}
	log := bus.Logger().With(zap.String("subscription_id", s.ID()))
	settings, err := settingsOf(bus, s)
	if err != nil {
		log.Warn("definition not checked against its subscription", zap.String("error", err.Error()))
		return s, nil
	}
	d.warnOfRetries(log, settings.attempts)
	d.warnOfDurations(log, settings.timeout)
	return s, nil
}

// subscriptionSettings are the ones that go together with those of a definition.
type subscriptionSettings struct {
	timeout time.Duration
	// attempts is how many attempts the subscription's policy, or the most generous of
	// its rules, makes; math.MaxInt for no limit.
	attempts int
}

func settingsOf(bus *eventbus.Bus, s *eventbus.Subscription) (subscriptionSettings, error) {
	// A bus with handlers knows its subscriptions; a store is asked for orders only.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	catalog, err := bus.Catalog(ctx)
	if err != nil {
		return subscriptionSettings{}, err
	}
	for _, of := range catalog.Subscriptions {
		if of.Subscription != s.ID() {
			continue
		}
		retries, rules := catalog.Policy.MaxRetries, catalog.Rules
		if _, own := of.Overrides["MaxRetries"]; own {
			retries = of.Retry.MaxRetries
		}
		if of.OwnRules {
			rules = of.Rules
		}
		attempts := 0
		if retries != eventbus.Unlimited {
			attempts = retries + 1
		}
		attempts = unlimited(attempts)
		for _, rule := range rules {
			n := rule.Attempts
			if n == eventbus.Unlimited {
				n = 0
			}
			attempts = max(attempts, unlimited(n))
		}
		return subscriptionSettings{of.Timeout, attempts}, nil
	}
	return subscriptionSettings{}, fmt.Errorf("subscription %q has ended", s.ID())
}

// unlimited is a number of attempts, of which none means no limit.
func unlimited(attempts int) int {
	if attempts <= 0 {
		return math.MaxInt
	}
	return attempts
}

func (d *Definition) warnOfRetries(log *zap.Logger, attempts int) {
	m := &multiplier{flows: make(map[*definition.Flow]int)}
	runs := m.flow(d.root.Flow)
	runs = max(runs, m.cleanup)
	if attempts <= 1 || runs <= 1 && !m.unknown {
		return
	}
	product := countText(times(runs, attempts), m.unknown)
	log.Warn("retries of the definition and of the subscription multiply",
		zap.String("pointer", m.pointer),
		zap.String("definition_runs", countText(runs, m.unknown)),
		zap.String("subscription_attempts", countText(attempts, false)),
		zap.String("product", product),
		zap.String("remedy", "subscribe with Retry(MaxRetries(0)), or leave retries to the bus"))
}

func countText(n int, atLeast bool) string {
	switch {
	case n == math.MaxInt:
		return "unlimited"
	case atLeast:
		return "at least " + strconv.Itoa(n)
	default:
		return strconv.Itoa(n)
	}
}

// times multiplies numbers of runs, and saturates.
func times(a, b int) int {
	if a > math.MaxInt/b {
		return math.MaxInt
	}
	return a * b
}

// multiplier computes how often the middleware of a definition runs a Step again when
// it fails: for the Step where that is most.
type multiplier struct {
	flows map[*definition.Flow]int
	// cleanup is the same for the calls of a Finally, each by itself.
	cleanup int
	// unknown: an expression, or a middleware in Go, decides on some.
	unknown bool
	// pointer is that of the first middleware that runs its scope again.
	pointer string
}

func (m *multiplier) flow(f *definition.Flow) int {
	if runs, known := m.flows[f]; known {
		return runs
	}
	most := 1
	for _, name := range slices.Sorted(maps.Keys(f.Steps)) {
		step := f.Steps[name]
		most = max(most, times(m.stack(step.Middleware), m.calls(step)))
	}
	runs := times(m.stack(f.Middleware), most)
	m.flows[f] = runs
	return runs
}

func (m *multiplier) calls(step *definition.Step) int {
	most := 1
	for call := range callsOf(step) {
		if call.Flow != nil {
			most = max(most, m.flow(call.Flow))
		}
	}
	return most
}

func (m *multiplier) stack(entries []*definition.Entry) int {
	runs := 1
	for _, entry := range entries {
		runs = times(runs, m.entry(entry))
	}
	return runs
}

func (m *multiplier) entry(entry *definition.Entry) int {
	for _, block := range entry.Blocks {
		runs := 1 // of a Finally's call, inside its stack
		for _, name := range slices.Sorted(maps.Keys(block.Structural)) {
			structure := block.Structural[name]
			runs = times(runs, m.stack(structure.Stack))
			if structure.Call != nil && structure.Call.Flow != nil {
				runs = times(runs, m.flow(structure.Call.Flow))
			}
		}
		m.cleanup = max(m.cleanup, runs)
	}
	runs := 1
	switch entry.Contract.Implementation.(type) {
	case retryMiddleware:
		with := entry.Blocks[definition.OnEntry].With
		if !with.Written() {
			return 1
		}
		v, literal := with.Template.Literal()
		if !literal {
			m.unknown = true
			break
		}
		object, _ := v.(map[string]any)
		for _, policy := range readPolicies(object) {
			runs = int(min(float64(runs)+max(policy.attempts-1, 0), 1<<53))
		}
		if runs == 1 {
			return 1
		}
	case *goMiddleware:
		if entry.Contract.Phases[definition.OnFailure].Kind != definition.Control {
			return 1
		}
		m.unknown = true
	default:
		return 1
	}
	if m.pointer == "" {
		m.pointer = entry.Pointer
	}
	return runs
}

// callsOf yields the calls that a Step dispatches.
func callsOf(step *definition.Step) func(yield func(*definition.Call) bool) {
	return func(yield func(*definition.Call) bool) {
		if step.Call != nil && !yield(step.Call) || step.Gather == nil {
			return
		}
		for _, call := range step.Gather.Calls {
			if !yield(call) {
				return
			}
		}
	}
}

func (d *Definition) warnOfDurations(log *zap.Logger, timeout time.Duration) {
	w := &durationWalk{seen: make(map[*definition.Flow]bool), visit: func(what string, field definition.Field, text string) {
		if parsed, err := temporal.ParseDuration(text); err == nil && parsed > timeout {
			log.Warn(what+" is longer than the subscription's timeout",
				zap.String("pointer", field.Pointer),
				zap.String("duration", text),
				zap.Duration("timeout", timeout),
				zap.String("remedy", "raise the timeout with eventbus.Timeout, or publish an event that is due later (PublishTo, after)"))
		}
	}}
	w.flow(d.root.Flow)
}

// durationWalk visits the literal durations of Sleeps and Timeouts.
type durationWalk struct {
	seen  map[*definition.Flow]bool
	visit func(what string, field definition.Field, text string)
}

func (w *durationWalk) flow(f *definition.Flow) {
	if f == nil || w.seen[f] {
		return
	}
	w.seen[f] = true
	w.stack(f.Middleware)
	for _, name := range slices.Sorted(maps.Keys(f.Steps)) {
		step := f.Steps[name]
		if step.Action == definition.ActionSleep && step.For.Written() {
			if v, ok := step.For.Template.Literal(); ok {
				text, _ := v.(string)
				w.visit("sleep", step.For, text)
			}
		}
		w.stack(step.Middleware)
		for call := range callsOf(step) {
			w.flow(call.Flow)
		}
	}
}

func (w *durationWalk) stack(entries []*definition.Entry) {
	for _, entry := range entries {
		if _, ok := entry.Contract.Implementation.(timeoutMiddleware); ok {
			w.timeout(entry.Blocks[definition.OnEntry].With)
		}
		for _, block := range entry.Blocks {
			for _, structure := range block.Structural {
				if structure.Call != nil {
					w.flow(structure.Call.Flow)
				}
				w.stack(structure.Stack)
			}
		}
	}
}

func (w *durationWalk) timeout(with definition.Field) {
	if !with.Written() {
		return
	}
	if v, literal := with.Template.Literal(); literal {
		object, _ := v.(map[string]any)
		if text, ok := object["duration"].(string); ok {
			w.visit("timeout of the definition", with, text)
		}
	}
}
