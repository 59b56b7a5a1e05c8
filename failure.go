package eventbus

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/apart"
	"github.com/surebus/eventbus/internal/errchain"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/timeline"
)

// judgement is the policy and the rules that decide on the failures of a subscription.
type judgement struct {
	rules   *ruleSet      // nil for none
	rulesOf *Subscription // nil for the bus
	policy  *RetryPolicy  // the merged policy, with the subscription's unmerged fields
	names   *errorNames
}

// at returns the judgement for one of the dispatch's subscriptions.
func (p *mergedPolicy) at(s *Subscription, names *errorNames) judgement {
	j := judgement{policy: &p.RetryPolicy, names: names}
	if own := p.ownOf(s); own != nil && own.policy != nil {
		j.policy = own.policy
	}
	j.rules, j.rulesOf = p.rulesAt(s)
	return j
}

// ownOf returns a subscription's own settings, or nil if it is not a target of the dispatch.
func (p *mergedPolicy) ownOf(s *Subscription) *ownRetry {
	for i := range p.own {
		if p.own[i].of == s {
			return &p.own[i]
		}
	}
	return nil
}

// verdict is the classification of an error, by the error itself and by the policy.
type verdict struct {
	text       string
	details    *json.RawMessage // nil for none
	permanent  bool             // it must not be retried, regardless of the policy
	rule       int              // position of the rule that decides; -1 if the policy does
	worthIt    bool             // the policy retries such errors
	rejected   bool             // declared not worth retrying: no outcome for the circuit
	cutShort   bool             // Shutdown has ended a publication or a wait of the call, with a store
	throttle   *throttleError
	snooze     *snoozeError
	retryAfter *retryAfterError
}

// postpones reports whether the error is no failure: the delivery comes again, without an attempt.
func (v *verdict) postpones() bool { return v != nil && (v.throttle != nil || v.snooze != nil) }

// judge classifies an error. It runs user code: methods of the error, RetryIf. So it runs inside a
// call or inside guarded. If user code ends the goroutine, v keeps the values that are set first.
func (v *verdict) judge(err error, by *judgement) {
	told := false
	*v = verdict{rule: -1, worthIt: true}
	defer func() {
		if !told { // a method ended the goroutine
			v.text = fmt.Sprintf("%T, whose methods broke off", err)
		}
	}()
	v.text = textOf(err, "")
	told = true
	if details := errchain.Details(err); details != nil {
		v.details = &details
	}
	own := isOwnFailure(err)
	if errchain.Wraps(err) { // permanentError and retryAfterError wrap an error
		_, v.permanent = errchain.As[*permanentError](err)
		v.retryAfter, _ = errchain.As[*retryAfterError](err)
	}
	if !own && !v.permanent {
		v.throttle, _ = errchain.As[*throttleError](err)
		if v.throttle == nil {
			v.snooze, _ = errchain.As[*snoozeError](err)
		}
		if v.postpones() {
			return
		}
	}
	v.rejected = v.permanent && !own
	if v.permanent || by == nil {
		return
	}
	if v.rule = by.rules.decides(err); v.rule >= 0 {
		return
	}
	if said := errchain.Retryable(err); said != nil && !*said && !own {
		v.permanent, v.rejected = true, true
		return
	}
	var rejected bool
	v.worthIt, rejected = by.worthIt(err)
	v.rejected = rejected && !own
}

// isOwnFailure reports whether the bus made the error: for a timeout, a panic, or a handler that
// ended its goroutine. These are never rejections.
func isOwnFailure(err error) bool {
	_, panicked := err.(*PanicError) //nolint:errorlint // an error that wraps one of these comes from the handler
	return panicked || isBusError(err)
}

// isBusError reports whether no method of an error is user code. That of a panic asks its value.
func isBusError(err error) bool {
	_, timeout := err.(*TimeoutError)         //nolint:errorlint // see above
	return timeout || err == ErrHandlerExited //nolint:errorlint // see above
}

// worthIt reports whether the policy retries an error, and if not, whether it rejects the error.
// An error that IncludeErrors does not list is not rejected.
func (j *judgement) worthIt(err error) (worthIt, rejected bool) {
	p := j.policy
	if p.IncludeErrors != nil || len(p.ExcludeErrors) > 0 {
		names := j.names.of(err)
		if !errchain.Passes(names, nil, p.ExcludeErrors) {
			return false, true
		}
		if !errchain.Passes(names, p.IncludeErrors, nil) {
			return false, false
		}
	}
	if p.RetryIf != nil && !p.RetryIf(err) {
		return false, true
	}
	return true, false
}

// deciding returns the policy of the verdict's rule, or else the one that applies at the subscription.
func (j *judgement) deciding(v *verdict) *RetryPolicy {
	if v.rule >= 0 {
		return &j.rules.policies[v.rule]
	}
	return j.policy
}

// count counts a failure against the rule or the policy that decides. It returns the new count, and
// a pointer to the last delay of that rule or policy.
func (j *judgement) count(d *dispatch, v *verdict) (failures int, previous *time.Duration) {
	s := d.ensureStory()
	if v.rule < 0 {
		return max(int(d.attempt)-d.ruled(), 1), &s.previous
	}
	spent := d.spentOn(j.rulesOf, int32(v.rule))
	spent.failures = max(spent.failures, spent.failures+1) // it must not wrap around
	return int(spent.failures), &spent.previous
}

// failedAttempt is the input of RetryPolicy.decide.
type failedAttempt struct {
	number   int           // of failures that the policy decided, including this one
	elapsed  time.Duration // see dispatch.elapsed
	previous time.Duration // the scheduled delay after the previous failure
	bound    time.Duration // of elapsed, 0 for none
	*verdict
}

// decision is the consequence of a failed attempt: a retry after delay, or a dead letter with a
// reason. scheduled is the delay of the policy, without RetryAfter.
type decision struct {
	retry            bool
	delay, scheduled time.Duration
	reason           Reason
}

// decide returns the decision on f. random is in [0, 1).
func (p *RetryPolicy) decide(f *failedAttempt, random float64) decision {
	if f.permanent || !f.worthIt {
		return decision{reason: ReasonPermanent}
	}
	if last := p.maxAttempts(); last != 0 && f.number >= last {
		return decision{reason: ReasonExhausted}
	}
	scheduled := p.spread(f.number+1, f.previous, random)
	delay := scheduled
	if f.retryAfter != nil {
		delay = f.retryAfter.delay
	}
	if runsOut(f.bound, f.elapsed, delay) {
		return decision{reason: ReasonExpired}
	}
	return decision{retry: true, delay: delay, scheduled: scheduled}
}

// runsOut reports whether the time that MaxElapsed bounds is over after a delay. A bound of 0 is none.
func runsOut(bound, elapsed, delay time.Duration) bool {
	left := bound - elapsed
	overflow := left < 0 && elapsed < 0 // the clock was set back
	return bound != 0 && !overflow && delay >= left
}

// rulesAt returns the rules for the failures of a subscription, and their owner: nil for the bus.
func (p *mergedPolicy) rulesAt(s *Subscription) (*ruleSet, *Subscription) {
	if own := p.ownOf(s); own != nil && own.settings.rules != nil {
		return own.settings.rules, s
	}
	return p.rules, nil
}

// ruleRef returns the rule that decided on a failure, or nil if the policy did.
func (p *mergedPolicy) ruleRef(f *failure) *RuleRef {
	if f.rule == 0 {
		return nil
	}
	rules, of := p.rulesAt(f.subscription)
	position := int(f.rule) - 1
	ref := &RuleRef{Position: position, Subscription: of.ID()}
	if rules != nil && position < len(rules.rules) { // an earlier process may have had other rules
		ref.Name = rules.rules[position].Name
	}
	return ref
}

// decider returns the policy of the rule that decided on a failure, or else the merged policy.
func (p *mergedPolicy) decider(f *failure) *RetryPolicy {
	rules, _ := p.rulesAt(f.subscription)
	if position := int(f.rule) - 1; rules != nil && position >= 0 && position < len(rules.policies) {
		return &rules.policies[position]
	}
	return &p.RetryPolicy
}

// failureOf converts a failure to its exported form.
func (d *dispatch) failureOf(f *failure, t *timeline.Timeline) Failure {
	var details json.RawMessage
	if f.details != nil {
		details = slices.Clone(*f.details) // observers get it too
	}
	return Failure{
		Attempt:      int(f.attempt),
		Replays:      int(d.replay().count),
		Subscription: f.subscription.id,
		Time:         t.At(f.at),
		Duration:     f.duration,
		Error:        f.text,
		Class:        classOf(f.err),
		Details:      details,
		Rule:         d.to.policy().ruleRef(f),
		Err:          f.err,
	}
}

// randomly returns a random number in [0, 1) for the jitter of a retry.
func (m *machine) randomly(p *RetryPolicy, s *Subscription) float64 {
	switch {
	case p.Jitter == NoJitter:
		return 0
	case m.config.random == nil:
		return rand.Float64()
	}
	given := new(float64)
	panicked, done := m.guardedFor(s, func() { *given = m.config.random() })
	if panicked != "" {
		m.log.Error("WithRandom panicked", zap.String("panic", panicked))
	}
	switch {
	case !done || !(*given >= 0): // or NaN
		return 0
	case *given >= 1:
		return math.Nextafter(1, 0)
	}
	return *given
}

// judgeInside classifies a handler's error inside its call, so that the watch bounds the time.
func (m *machine) judgeInside(s *Subscription, to *targets, err error) (v *verdict) {
	v = new(verdict)
	if m.halts.Has(halt.Unload) && errchain.Is(err, ErrShutdown) || m.halts.Has(halt.Lost) && errchain.Is(err, ErrLeaseLost) {
		v.cutShort = true
		return v
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			m.logRetryIfPanic(s, panicText(panicked))
		}
	}()
	by := to.policy().at(s, &m.config.names)
	v.judge(err, &by)
	return v
}

// judge classifies an error after the call has ended, on its own goroutine. It waits up to the
// handler's timeout.
func (m *machine) judge(s *Subscription, err error, by *judgement) *verdict {
	asked := new(verdict) // not v: code that hangs may write it later
	panicked, done := m.guardedFor(s, func() { asked.judge(err, by) })
	v := asked
	if !done {
		v = &verdict{text: fmt.Sprintf("%T, whose methods did not return", err), rule: -1, worthIt: true}
		if by == nil {
			return v
		}
		if isBusError(err) {
			v.text = textOf(err, "")
		}
		m.log.Error("RetryIf did not return", zap.String("subscription_id", s.id))
	}
	if panicked != "" {
		m.logRetryIfPanic(s, panicked)
	}
	return v
}

// guardedFor runs user code that decides on a subscription's failure. It waits up to the handler's
// timeout, and less if Shutdown's context ends.
func (m *machine) guardedFor(s *Subscription, f func()) (panicked string, done bool) {
	late := make(chan struct{})
	timer := m.time.AfterFunc(s.timeout, func() { close(late) })
	defer timer.Stop()
	return apart.Run(m.halts.IsCut(), late, panicText, f)
}

func (m *machine) logRetryIfPanic(s *Subscription, panicked string) {
	m.log.Error("RetryIf panicked", zap.String("subscription_id", s.id), zap.String("panic", panicked))
}
