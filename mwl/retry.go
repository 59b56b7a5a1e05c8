package mwl

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/temporal"
)

// retryMiddleware runs its scope again on failures that a policy matches.
type retryMiddleware struct{}

func (retryMiddleware) counter() string { return "attempt" }

func (retryMiddleware) act(_ context.Context, p *phaseRun) (verdict, *outcome) {
	if p.phase == definition.OnEntry {
		p.entry.state = readPolicies(p.with)
		return verdict{}, nil
	}
	policies, armed := p.entry.state.([]*retryPolicy)
	if !armed {
		return verdict{}, nil
	}
	rising := p.result.failure
	i := slices.IndexFunc(policies, func(policy *retryPolicy) bool {
		return policy.match.Match(rising.typ, rising.code, rising.retryable)
	})
	if i < 0 {
		return verdict{}, nil
	}
	policy := policies[i]
	policy.consumed++
	if policy.consumed >= policy.attempts {
		exhausted := newFailure(TypeError, CodeRetryExhausted,
			fmt.Sprintf("policy %d has no attempt left after %d runs", i, p.entry.runs),
			map[string]any{"attempts": float64(p.entry.runs), "policy": float64(i)}, rising)
		return verdict{kind: decideSubstitute, outcome: failed(exhausted)}, nil
	}
	again := RerunOptions{RestoreVariables: true}
	if text, override := p.with["delay"].(string); override {
		again.Delay, _ = temporal.ParseDuration(text) // its schema asserts the format
	} else {
		again.Delay = policy.delay(p.entry.f.x.random)
	}
	return verdict{kind: decideRerun, rerun: again}, nil
}

// retryPolicy is one policy as an entry has captured it.
type retryPolicy struct {
	match    definition.Matcher
	attempts float64
	backoff  bool
	initial  time.Duration
	rate     float64
	longest  time.Duration
	jitter   string

	// consumed are the failures that the policy matched, last the delay of the gap
	// before.
	consumed float64
	last     time.Duration
}

// readPolicies takes the policies from arguments that their schema has accepted.
func readPolicies(with map[string]any) []*retryPolicy {
	list, _ := with["policies"].([]any)
	policies := make([]*retryPolicy, len(list))
	for i, v := range list {
		members, _ := v.(map[string]any)
		match, _ := members["match"].(map[string]any)
		policy := &retryPolicy{
			match:   definition.Matcher{Codes: stringsOf(match["codes"]), Types: stringsOf(match["types"])},
			rate:    1,
			longest: math.MaxInt64,
		}
		if retryable, ok := match["retryable"].(bool); ok {
			policy.match.Retryable = &retryable
		}
		policy.attempts, _ = members["attempts"].(float64)
		if backoff, ok := members["backoff"].(map[string]any); ok {
			policy.readBackoff(backoff)
		}
		policies[i] = policy
	}
	return policies
}

func (p *retryPolicy) readBackoff(backoff map[string]any) {
	p.backoff = true
	initial, _ := backoff["initial"].(string)
	p.initial, _ = temporal.ParseDuration(initial)
	p.last = p.initial
	if rate, ok := backoff["rate"].(float64); ok {
		p.rate = rate
	}
	if longest, ok := backoff["max"].(string); ok {
		p.longest, _ = temporal.ParseDuration(longest)
	}
	p.jitter, _ = backoff["jitter"].(string)
}

func stringsOf(v any) []string {
	list, ok := v.([]any)
	if !ok {
		return nil
	}
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i], _ = item.(string)
	}
	return texts
}

// delay is the wait of the gap after the failure that was consumed last.
func (p *retryPolicy) delay(random func() float64) time.Duration {
	if !p.backoff {
		return 0
	}
	scheduled := min(scaled(p.initial, math.Pow(p.rate, p.consumed-1)), p.longest)
	switch p.jitter {
	case "full":
		return scaled(scheduled, random())
	case "equal":
		return scaled(scheduled, 0.5+random()/2)
	case "decorrelated":
		span := scaled(p.last, 3) - p.initial
		p.last = min(p.initial+scaled(max(span, 0), random()), p.longest)
		return p.last
	default:
		return scheduled
	}
}

// scaled multiplies, and saturates instead of overflowing.
func scaled(d time.Duration, factor float64) time.Duration {
	product := float64(d) * factor
	switch {
	case product >= math.MaxInt64:
		return math.MaxInt64
	case product <= math.MinInt64:
		return math.MinInt64
	case math.IsNaN(product): // nothing times infinity
		return 0
	default:
		return time.Duration(product)
	}
}
