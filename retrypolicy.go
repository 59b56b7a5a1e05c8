package eventbus

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus/internal/backoff"
	"github.com/surebus/eventbus/internal/names"
)

// Unlimited means no limit, as a MaxRetries, RetryRule.Attempts or Concurrency.
const Unlimited = -1

// maxMaxRetries keeps attempt numbers within 32 bits.
const maxMaxRetries = math.MaxInt32 - 1

// RetryPolicy decides whether and when a failed dispatch is retried. All fields apply: to change
// some of them, start from DefaultRetryPolicy, or use the options of the same names, which set one
// field each. A whole RetryPolicy is such an option too.
type RetryPolicy struct {
	// MaxRetries is the number of retries after the first attempt: 3 retries are 4 attempts. 0 means
	// no retry, Unlimited means no limit.
	MaxRetries int `json:"max_retries"`
	// Delays lists the delays before the retries, each at least 0: the first one is that before attempt 2.
	// Further retries have the last one. An empty list means BaseDelay, BackoffMultiplier and MaxDelay,
	// which do not apply to a list. The list of the failing subscription applies.
	Delays []time.Duration `json:"delays,omitempty"`
	// BaseDelay is the delay before the first retry, attempt 2. 0 retries at once.
	BaseDelay time.Duration `json:"base_delay"`
	// MaxDelay caps every delay, including BaseDelay, before jitter.
	MaxDelay time.Duration `json:"max_delay"`
	// BackoffMultiplier multiplies the delay with each further retry. It is at least 1, which keeps
	// the delay constant.
	BackoffMultiplier float64 `json:"backoff_multiplier"`
	// MaxElapsed bounds the time since publication, since the due time of a scheduled event, or since
	// a replay. The time in which the dispatch is held or throttled does not count. A retry that would
	// start at or after MaxElapsed is not made. 0 means no bound. It never prevents a first attempt.
	MaxElapsed time.Duration `json:"max_elapsed"`
	// Jitter randomizes the delays, so that dispatches that failed together are not retried together.
	// The value of the failing subscription applies.
	Jitter Jitter `json:"jitter"`
	// RetryIf reports whether to retry after an error. nil retries after all errors. If it returns
	// false, the dispatch ends with the reason permanent. Only the RetryIf of the failing subscription
	// is called. It counts towards the handler's timeout, so it must be fast, and it must be safe for
	// concurrent use. If it panics or does not return, the error is retried and a message is logged.
	RetryIf func(error) bool `json:"-"`
	// IncludeErrors lists the names of the errors to retry after, see ErrorTraits. One of the error's
	// names must be in the list, exactly. An empty list retries after no error. nil retries after all
	// errors.
	IncludeErrors []string `json:"include_errors"`
	// ExcludeErrors lists the names of the errors not to retry after. It is checked before
	// IncludeErrors. An error must pass both lists and RetryIf. The lists of the failing subscription
	// apply.
	ExcludeErrors []string `json:"exclude_errors,omitempty"`
}

// DefaultRetryPolicy returns the policy of a bus without WithRetry: 3 retries after 1 s, 2 s and 4 s, each ±10 %, with
// a MaxDelay of 30 s.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		MaxRetries:        3,
		BaseDelay:         time.Second,
		MaxDelay:          30 * time.Second,
		BackoffMultiplier: 2,
	}
}

// Delay returns the delay before an attempt, without jitter. It is 0 before attempt 1, and min(BaseDelay ×
// BackoffMultiplier^(attempt−2), MaxDelay) before later ones, or the value from Delays. The default policy has 0, 1 s,
// 2 s, 4 s, 8 s, 16 s, 30 s.
func (p RetryPolicy) Delay(attempt int) time.Duration {
	if len(p.Delays) > 0 && attempt > 1 {
		return p.Delays[min(attempt-2, len(p.Delays)-1)]
	}
	return backoff.Delay(attempt, p.BaseDelay, p.MaxDelay, p.BackoffMultiplier)
}

// maxAttempts returns the number of the last attempt, or 0 if there is no limit.
func (p *RetryPolicy) maxAttempts() int {
	if p.MaxRetries == Unlimited {
		return 0
	}
	return p.MaxRetries + 1
}

// Jitter selects how the delays of a RetryPolicy are randomized. It is a RetryOption.
type Jitter int

const (
	// ProportionalJitter, the default, is d ± 10 %.
	ProportionalJitter Jitter = iota
	// NoJitter is d.
	NoJitter
	// FullJitter is uniform in [0, d].
	FullJitter
	// EqualJitter is uniform in [d/2, d].
	EqualJitter
	// DecorrelatedJitter is min(MaxDelay, uniform in [BaseDelay, 3 × previous delay]). The first
	// previous delay is BaseDelay. BackoffMultiplier is not used. A subscription with Delays has
	// ProportionalJitter instead. The formula is from Marc Brooker, "Exponential Backoff And Jitter"
	// (AWS Architecture Blog, 2015).
	DecorrelatedJitter
)

var jitterNames = [...]string{"proportional", "none", "full", "equal", "decorrelated"}

// String returns "proportional", "none", "full", "equal" or "decorrelated".
func (j Jitter) String() string {
	return names.Of("Jitter", jitterNames[:], int(j))
}

// MarshalText returns the text that String returns.
func (j Jitter) MarshalText() ([]byte, error) { return []byte(j.String()), nil }

// UnmarshalText reads the text that String returns.
func (j *Jitter) UnmarshalText(text []byte) error {
	return names.Read("Jitter", jitterNames[:], text, j)
}

// spread applies the jitter to the delay before an attempt. previous is its result for the previous
// attempt, or 0. random is in [0, 1).
func (p *RetryPolicy) spread(attempt int, previous time.Duration, random float64) time.Duration {
	d, jitter := p.Delay(attempt), p.Jitter
	if jitter == DecorrelatedJitter && len(p.Delays) > 0 {
		jitter = ProportionalJitter
	}
	switch jitter {
	case NoJitter:
		return d
	case FullJitter:
		return backoff.Full(d, random)
	case EqualJitter:
		return backoff.Equal(d, random)
	case DecorrelatedJitter:
		return backoff.Decorrelated(p.BaseDelay, p.MaxDelay, previous, random)
	default:
		return backoff.Proportional(d, random)
	}
}

// RetryOption sets one field of a retry policy. A RetryPolicy is an option that sets all.
type RetryOption interface {
	applyRetry(*retryOverride)
}

// retryOverride is a policy with only some fields set.
type retryOverride struct {
	RetryPolicy
	set retryField
}

// retryField is a set of the fields of a RetryPolicy.
type retryField uint16

const (
	fieldMaxRetries retryField = 1 << iota
	fieldBaseDelay
	fieldMaxDelay
	fieldBackoffMultiplier
	fieldMaxElapsed
	fieldJitter
	fieldRetryIf
	fieldIncludeErrors
	fieldExcludeErrors
	fieldDelays

	allRetryFields = fieldDelays<<1 - 1
	// unmergedFields apply to the failing subscription only, and are not merged.
	unmergedFields = fieldJitter | fieldRetryIf | fieldIncludeErrors | fieldExcludeErrors | fieldDelays
	// formulaFields compute delays. A list of delays replaces them, and they replace a list.
	formulaFields = fieldBaseDelay | fieldMaxDelay | fieldBackoffMultiplier
)

type retryOption func(*retryOverride)

func (o retryOption) applyRetry(r *retryOverride) { o(r) }

// MaxRetries sets RetryPolicy.MaxRetries. MaxRetries(0) makes one attempt. MaxRetries(Unlimited)
// retries without end.
func MaxRetries(n int) RetryOption {
	return retryOption(func(r *retryOverride) { r.MaxRetries, r.set = n, r.set|fieldMaxRetries })
}

// Delays sets RetryPolicy.Delays, and MaxRetries to the number of delays: Delays(time.Second, time.Minute)
// makes three attempts. A later MaxRetries replaces that. If an event has other subscriptions that allow more
// retries, the last delay is used for those. A later BaseDelay, BackoffMultiplier or MaxDelay replaces the list.
//
// At least one delay is required, and none is negative.
func Delays(delays ...time.Duration) RetryOption {
	delays = append([]time.Duration{}, delays...)
	return retryOption(func(r *retryOverride) {
		r.RetryPolicy.Delays, r.MaxRetries = delays, len(delays)
		r.set = r.set&^formulaFields | fieldDelays | fieldMaxRetries
	})
}

// BaseDelay sets RetryPolicy.BaseDelay.
func BaseDelay(d time.Duration) RetryOption {
	return retryOption(func(r *retryOverride) { r.BaseDelay = d; r.computes(fieldBaseDelay) })
}

// MaxDelay sets RetryPolicy.MaxDelay.
func MaxDelay(d time.Duration) RetryOption {
	return retryOption(func(r *retryOverride) { r.MaxDelay = d; r.computes(fieldMaxDelay) })
}

// BackoffMultiplier sets RetryPolicy.BackoffMultiplier.
func BackoffMultiplier(m float64) RetryOption {
	return retryOption(func(r *retryOverride) { r.BackoffMultiplier = m; r.computes(fieldBackoffMultiplier) })
}

// computes notes that one of formulaFields was set.
func (r *retryOverride) computes(f retryField) {
	r.RetryPolicy.Delays, r.set = nil, r.set&^fieldDelays|f
}

// MaxElapsed sets RetryPolicy.MaxElapsed.
func MaxElapsed(d time.Duration) RetryOption {
	return retryOption(func(r *retryOverride) { r.MaxElapsed, r.set = d, r.set|fieldMaxElapsed })
}

// RetryIf sets RetryPolicy.RetryIf.
func RetryIf(worthIt func(error) bool) RetryOption {
	return retryOption(func(r *retryOverride) { r.RetryPolicy.RetryIf, r.set = worthIt, r.set|fieldRetryIf })
}

// IncludeErrors sets RetryPolicy.IncludeErrors. IncludeErrors() retries after no error.
func IncludeErrors(names ...string) RetryOption {
	names = append([]string{}, names...)
	return retryOption(func(r *retryOverride) { r.RetryPolicy.IncludeErrors, r.set = names, r.set|fieldIncludeErrors })
}

// ExcludeErrors sets RetryPolicy.ExcludeErrors. ExcludeErrors() excludes nothing.
func ExcludeErrors(names ...string) RetryOption {
	names = append([]string{}, names...)
	return retryOption(func(r *retryOverride) { r.RetryPolicy.ExcludeErrors, r.set = names, r.set|fieldExcludeErrors })
}

func (j Jitter) applyRetry(r *retryOverride) { r.Jitter, r.set = j, r.set|fieldJitter }

func (p RetryPolicy) applyRetry(r *retryOverride) { r.RetryPolicy, r.set = p.clone(), allRetryFields }

// clone returns a copy that shares no slice with p.
func (p RetryPolicy) clone() RetryPolicy {
	p.IncludeErrors, p.ExcludeErrors = slices.Clone(p.IncludeErrors), slices.Clone(p.ExcludeErrors)
	p.Delays = append([]time.Duration(nil), p.Delays...) // nil if it is empty
	return p
}

// newRetryOverride applies and validates options. in is the name of the option or method that they
// were passed to.
func newRetryOverride(in string, opts []RetryOption) (retryOverride, error) {
	var r retryOverride
	for i, o := range opts {
		if isNil(o) {
			return r, &OptionError{Option: in, Value: "nil", Reason: fmt.Sprintf("retry option %d is nil; leave it out", i+1)}
		}
		o.applyRetry(&r)
	}
	return r, r.validate(in)
}

func (r *retryOverride) validate(in string) error {
	refuse := func(field string, value any, reason string) error {
		return &OptionError{Option: in + "." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	has := func(f retryField) bool { return r.set&f != 0 }
	switch {
	case has(fieldMaxRetries) && (r.MaxRetries < Unlimited || r.MaxRetries > maxMaxRetries):
		return refuse("MaxRetries", r.MaxRetries, fmt.Sprintf("must be from 0 to %d, or Unlimited", maxMaxRetries))
	case has(fieldBaseDelay) && r.BaseDelay < 0:
		return refuse("BaseDelay", r.BaseDelay, "must not be negative; 0 retries at once")
	case has(fieldMaxDelay) && r.MaxDelay < 0:
		return refuse("MaxDelay", r.MaxDelay, "must not be negative")
	case has(fieldBackoffMultiplier) && !(r.BackoffMultiplier >= 1 && r.BackoffMultiplier <= math.MaxFloat64):
		return refuse("BackoffMultiplier", r.BackoffMultiplier,
			"must be a finite number of at least 1; to set only some fields, start from DefaultRetryPolicy or use the options of their names")
	case has(fieldMaxElapsed) && r.MaxElapsed < 0:
		return refuse("MaxElapsed", r.MaxElapsed, "must not be negative; 0 is no bound")
	case has(fieldDelays) && r.RetryPolicy.Delays != nil && len(r.RetryPolicy.Delays) == 0:
		return refuse("Delays", "none", "has no delay; MaxRetries(0) makes one attempt, BaseDelay(0) retries at once")
	case has(fieldDelays) && slices.ContainsFunc(r.RetryPolicy.Delays, func(d time.Duration) bool { return d < 0 }):
		return refuse("Delays", r.RetryPolicy.Delays, "must not contain a negative delay; 0 retries at once")
	case has(fieldJitter) && r.Jitter == DecorrelatedJitter && len(r.RetryPolicy.Delays) > 0:
		return refuse("Delays", r.RetryPolicy.Delays, "has no effect with DecorrelatedJitter, which computes its own delays; choose one of the two")
	case has(fieldJitter) && (r.Jitter < 0 || int(r.Jitter) >= len(jitterNames)):
		return refuse("Jitter", int(r.Jitter), noSuchJitter)
	}
	return nil
}

const noSuchJitter = "is none of the Jitter constants: proportional, none, full, equal, decorrelated"

// mergedPolicy is the policy of a dispatch to several subscriptions. Its unmerged fields are those
// of the bus, for subscriptions that do not set them.
type mergedPolicy struct {
	RetryPolicy
	rules *ruleSet // of the bus, for subscriptions without rules
	// own has the settings of each subscription when the dispatch was opened.
	own []ownRetry
	// origin has, for each merged field, the index of the subscription that set the value, or -1 for
	// the policy of the bus.
	origin struct{ maxRetries, baseDelay, maxDelay, backoffMultiplier, maxElapsed int }
}

// mergePolicies takes, for each field, the most permissive value of the overrides that set the
// field. A field that no override sets has the default: a default never replaces a stricter value
// that a subscription set. If values are equal, the first override is the origin; only the origin
// depends on the order.
func mergePolicies(def *retrySettings, own []ownRetry) *mergedPolicy {
	m := &mergedPolicy{RetryPolicy: def.RetryPolicy, rules: def.rules, own: own}
	o := &m.origin
	o.maxRetries, o.baseDelay, o.maxDelay, o.backoffMultiplier, o.maxElapsed = -1, -1, -1, -1, -1
	for i := range own {
		r := &own[i].settings.retryOverride
		take := func(f retryField, origin *int, better bool) bool {
			if r.set&f == 0 || *origin >= 0 && !better {
				return false
			}
			*origin = i
			return true
		}
		if take(fieldMaxRetries, &o.maxRetries, permits(r.MaxRetries, m.MaxRetries, Unlimited)) {
			m.MaxRetries = r.MaxRetries
		}
		if take(fieldBaseDelay, &o.baseDelay, r.BaseDelay < m.BaseDelay) {
			m.BaseDelay = r.BaseDelay
		}
		if take(fieldMaxDelay, &o.maxDelay, r.MaxDelay > m.MaxDelay) {
			m.MaxDelay = r.MaxDelay
		}
		if take(fieldBackoffMultiplier, &o.backoffMultiplier, r.BackoffMultiplier > m.BackoffMultiplier) {
			m.BackoffMultiplier = r.BackoffMultiplier
		}
		if take(fieldMaxElapsed, &o.maxElapsed, permits(r.MaxElapsed, m.MaxElapsed, 0)) {
			m.MaxElapsed = r.MaxElapsed
		}
	}
	for i := range own {
		unmerged := own[i].settings.retryOverride
		computes := unmerged.set&formulaFields != 0
		if unmerged.set &= unmergedFields; computes && len(m.Delays) > 0 && unmerged.set&fieldDelays == 0 {
			unmerged.RetryPolicy.Delays, unmerged.set = nil, unmerged.set|fieldDelays // they replace the list of the bus
		}
		if unmerged.set != 0 {
			policy := unmerged.over(m.RetryPolicy)
			own[i].policy = &policy
		}
	}
	return m
}

// permits reports whether limit a is larger than limit b. unbounded is the largest limit.
func permits[N int | time.Duration](a, b, unbounded N) bool {
	return b != unbounded && (a == unbounded || a > b)
}

// over returns p with the fields that r sets.
func (r *retryOverride) over(p RetryPolicy) RetryPolicy {
	if r.set&fieldMaxRetries != 0 {
		p.MaxRetries = r.MaxRetries
	}
	if r.set&fieldBaseDelay != 0 {
		p.BaseDelay = r.BaseDelay
	}
	if r.set&fieldMaxDelay != 0 {
		p.MaxDelay = r.MaxDelay
	}
	if r.set&fieldBackoffMultiplier != 0 {
		p.BackoffMultiplier = r.BackoffMultiplier
	}
	if r.set&fieldMaxElapsed != 0 {
		p.MaxElapsed = r.MaxElapsed
	}
	if r.set&fieldJitter != 0 {
		p.Jitter = r.Jitter
	}
	if r.set&fieldRetryIf != 0 {
		p.RetryIf = r.RetryPolicy.RetryIf
	}
	if r.set&fieldIncludeErrors != 0 {
		p.IncludeErrors = r.RetryPolicy.IncludeErrors
	}
	if r.set&fieldExcludeErrors != 0 {
		p.ExcludeErrors = r.RetryPolicy.ExcludeErrors
	}
	switch {
	case r.set&fieldDelays != 0:
		p.Delays = r.RetryPolicy.Delays
	case r.set&formulaFields != 0:
		p.Delays = nil
	}
	return p
}

const everyError = "every error"

// retryFields lists the fields of a policy, with their names and texts.
var retryFields = []struct {
	set  retryField
	name string
	text func(*RetryPolicy) string
}{
	{fieldMaxRetries, "MaxRetries", func(p *RetryPolicy) string {
		if p.MaxRetries == Unlimited {
			return "unlimited"
		}
		return strconv.Itoa(p.MaxRetries)
	}},
	{fieldDelays, "Delays", func(p *RetryPolicy) string {
		if len(p.Delays) == 0 {
			return "none"
		}
		texts := make([]string, len(p.Delays))
		for i, d := range p.Delays {
			texts[i] = d.String()
		}
		return strings.Join(texts, ", ")
	}},
	{fieldBaseDelay, "BaseDelay", func(p *RetryPolicy) string { return p.BaseDelay.String() }},
	{fieldMaxDelay, "MaxDelay", func(p *RetryPolicy) string { return p.MaxDelay.String() }},
	{fieldBackoffMultiplier, "BackoffMultiplier", func(p *RetryPolicy) string {
		return strconv.FormatFloat(p.BackoffMultiplier, 'g', -1, 64)
	}},
	{fieldMaxElapsed, "MaxElapsed", func(p *RetryPolicy) string {
		if p.MaxElapsed == 0 {
			return "unbounded"
		}
		return p.MaxElapsed.String()
	}},
	{fieldJitter, "Jitter", func(p *RetryPolicy) string { return p.Jitter.String() }},
	{fieldRetryIf, "RetryIf", func(p *RetryPolicy) string {
		if p.RetryIf == nil {
			return everyError
		}
		return "a function"
	}},
	{fieldIncludeErrors, "IncludeErrors", func(p *RetryPolicy) string {
		switch {
		case p.IncludeErrors == nil:
			return everyError
		case len(p.IncludeErrors) == 0:
			return "no error"
		}
		return strings.Join(p.IncludeErrors, ", ")
	}},
	{fieldExcludeErrors, "ExcludeErrors", func(p *RetryPolicy) string {
		if len(p.ExcludeErrors) == 0 {
			return "no error"
		}
		return strings.Join(p.ExcludeErrors, ", ")
	}},
}

// texts returns the fields that r sets, as text.
func (r *retryOverride) texts() map[string]string {
	texts := make(map[string]string)
	for _, f := range retryFields {
		if r.set&f.set != 0 {
			texts[f.name] = f.text(&r.RetryPolicy)
		}
	}
	return texts
}

// origins returns p.origin by field name.
func (p *mergedPolicy) origins() map[string]int {
	o := &p.origin
	return map[string]int{
		"MaxRetries":        o.maxRetries,
		"BaseDelay":         o.baseDelay,
		"MaxDelay":          o.maxDelay,
		"BackoffMultiplier": o.backoffMultiplier,
		"MaxElapsed":        o.maxElapsed,
	}
}
