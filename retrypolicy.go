package eventbus

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Unlimited, as MaxRetries, never gives up.
const Unlimited = -1

// maxMaxRetries keeps attempt numbers within 32 bits.
const maxMaxRetries = math.MaxInt32 - 1

// RetryPolicy says whether and when a failed dispatch is tried again. Every
// field counts: start from DefaultRetryPolicy to change some of them, or give
// the bus or a subscription the options of the same names, which leave the other
// fields alone. A whole RetryPolicy is such an option too.
type RetryPolicy struct {
	// MaxRetries is how often a dispatch is tried again after its first
	// attempt: 3 retries are 4 attempts. 0 is never, Unlimited is for ever.
	MaxRetries int
	// BaseDelay is the delay before the first retry, attempt 2. 0 is at once.
	BaseDelay time.Duration
	// MaxDelay caps every delay, BaseDelay too if that is larger, before
	// jitter.
	MaxDelay time.Duration
	// BackoffMultiplier is what the delay grows by with each further retry. At
	// least 1, which keeps it constant.
	BackoffMultiplier float64
	// MaxElapsed bounds the time since publication: a retry that could start
	// only at or past it is not made. 0 is no bound. It never stops a first
	// attempt.
	MaxElapsed time.Duration
	// Jitter spreads the delays, so that what failed together does not come
	// back together. Of several subscriptions, the failing one's holds.
	Jitter Jitter
	// RetryIf says which errors are worth a retry; nil says all. The others end
	// the dispatch with the reason permanent. Of several subscriptions, the
	// failing one's is asked, and no other. It must be quick, as it is a part of
	// the handler's time, and safe for concurrent use; if it panics, or does not
	// return, the error is worth a retry, and that is logged.
	RetryIf func(error) bool
	// IncludeErrors are the names of the errors that are worth a retry, as
	// ErrorTraits has them: one of an error's names must be in the list, exactly. An
	// empty list retries nothing; nil is no list, and all are.
	IncludeErrors []string
	// ExcludeErrors are the names of those that are not, and comes before
	// IncludeErrors. An error must pass both lists and RetryIf; like that, they are
	// the failing subscription's.
	ExcludeErrors []string
}

// DefaultRetryPolicy returns the policy of a bus that was not given another: 3
// retries after 1 s, 2 s and 4 s (at most 30 s), each ±10 %.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		MaxRetries:        3,
		BaseDelay:         time.Second,
		MaxDelay:          30 * time.Second,
		BackoffMultiplier: 2,
	}
}

// Delay is the delay before an attempt, without jitter: none before attempt 1,
// and min(BaseDelay × BackoffMultiplier^(attempt−2), MaxDelay) before the others.
// With the default policy: 0, 1 s, 2 s, 4 s, 8 s, 16 s, 30 s.
func (p RetryPolicy) Delay(attempt int) time.Duration { return p.delay(attempt) }

func (p *RetryPolicy) delay(attempt int) time.Duration {
	if attempt <= 1 || p.BaseDelay == 0 {
		return 0
	}
	d := float64(p.BaseDelay) * math.Pow(p.BackoffMultiplier, float64(attempt-2))
	// Compared as floats: beyond the cap lie infinity and what a Duration
	// cannot hold.
	if !(d < float64(p.MaxDelay)) { // nor a multiplier that is not a number
		return p.MaxDelay
	}
	return time.Duration(max(d, 0))
}

// maxAttempts is the number of the last attempt, 0 for no last one.
func (p *RetryPolicy) maxAttempts() int {
	if p.MaxRetries == Unlimited {
		return 0
	}
	return p.MaxRetries + 1
}

// Jitter is how the delays of a RetryPolicy are spread. It is a RetryOption.
type Jitter int

const (
	// ProportionalJitter, the default, is d ± 10 %.
	ProportionalJitter Jitter = iota
	// NoJitter is d.
	NoJitter
	// FullJitter is anything in [0, d].
	FullJitter
	// EqualJitter is anything in [d/2, d].
	EqualJitter
	// DecorrelatedJitter is min(MaxDelay, anything in [BaseDelay, 3 × the
	// previous delay]), where the first previous delay is BaseDelay;
	// BackoffMultiplier has no part in it. The formula is Marc Brooker's, in
	// "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
	DecorrelatedJitter
)

var jitterNames = [...]string{"proportional", "none", "full", "equal", "decorrelated"}

// String names it: "proportional", "none", "full", "equal", "decorrelated".
func (j Jitter) String() string {
	return nameOf("Jitter", jitterNames[:], int(j))
}

// nameOf is the name of a constant, or what it would be if it were one.
func nameOf(typ string, names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("%s(%d)", typ, i)
	}
	return names[i]
}

// spread applies the jitter to the delay before an attempt. previous is what it
// returned for the attempt before, 0 if there was none; random is in [0, 1).
func (p *RetryPolicy) spread(attempt int, previous time.Duration, random float64) time.Duration {
	d := p.delay(attempt)
	switch p.Jitter {
	case NoJitter:
		return d
	case FullJitter:
		return time.Duration(float64(d) * random)
	case EqualJitter:
		return d - time.Duration(float64(d)/2*random)
	case DecorrelatedJitter:
		base := float64(min(p.BaseDelay, p.MaxDelay))
		upper := 3 * max(float64(previous), base)
		return clampDuration(base+(upper-base)*random, p.MaxDelay)
	default:
		return clampDuration(float64(d)*(0.9+0.2*random), math.MaxInt64)
	}
}

// clampDuration is d, or most if d is more than that.
func clampDuration(d float64, most time.Duration) time.Duration {
	if d >= float64(most) {
		return most
	}
	return time.Duration(d)
}

// RetryOption sets one field of a retry policy, or, being a RetryPolicy, all.
type RetryOption interface {
	applyRetry(*retryOverride)
}

// retryOverride is a policy of which only some fields are set.
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

	allRetryFields = fieldExcludeErrors<<1 - 1
	// unmergedFields are the failing subscription's own.
	unmergedFields = fieldJitter | fieldRetryIf | fieldIncludeErrors | fieldExcludeErrors
)

type retryOption func(*retryOverride)

func (o retryOption) applyRetry(r *retryOverride) { o(r) }

// MaxRetries sets RetryPolicy.MaxRetries. MaxRetries(0) tries once, Unlimited
// never gives up.
func MaxRetries(n int) RetryOption {
	return retryOption(func(r *retryOverride) { r.MaxRetries, r.set = n, r.set|fieldMaxRetries })
}

// BaseDelay sets RetryPolicy.BaseDelay.
func BaseDelay(d time.Duration) RetryOption {
	return retryOption(func(r *retryOverride) { r.BaseDelay, r.set = d, r.set|fieldBaseDelay })
}

// MaxDelay sets RetryPolicy.MaxDelay.
func MaxDelay(d time.Duration) RetryOption {
	return retryOption(func(r *retryOverride) { r.MaxDelay, r.set = d, r.set|fieldMaxDelay })
}

// BackoffMultiplier sets RetryPolicy.BackoffMultiplier.
func BackoffMultiplier(m float64) RetryOption {
	return retryOption(func(r *retryOverride) { r.BackoffMultiplier, r.set = m, r.set|fieldBackoffMultiplier })
}

// MaxElapsed sets RetryPolicy.MaxElapsed.
func MaxElapsed(d time.Duration) RetryOption {
	return retryOption(func(r *retryOverride) { r.MaxElapsed, r.set = d, r.set|fieldMaxElapsed })
}

// RetryIf sets RetryPolicy.RetryIf.
func RetryIf(worthIt func(error) bool) RetryOption {
	return retryOption(func(r *retryOverride) { r.RetryPolicy.RetryIf, r.set = worthIt, r.set|fieldRetryIf })
}

// IncludeErrors sets RetryPolicy.IncludeErrors. IncludeErrors() retries nothing.
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

// clone shares no list with p.
func (p RetryPolicy) clone() RetryPolicy {
	p.IncludeErrors, p.ExcludeErrors = slices.Clone(p.IncludeErrors), slices.Clone(p.ExcludeErrors)
	return p
}

// newRetryOverride applies and validates the options; in names the option that
// they were given to.
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
	case has(fieldJitter) && (r.Jitter < 0 || int(r.Jitter) >= len(jitterNames)):
		return refuse("Jitter", int(r.Jitter), noSuchJitter)
	}
	return nil
}

const noSuchJitter = "is none of the Jitter constants: proportional, none, full, equal, decorrelated"

// mergedPolicy is the policy of a dispatch to several subscriptions. Its Jitter,
// RetryIf and names are the bus's, for the subscriptions that have none of their own.
type mergedPolicy struct {
	RetryPolicy
	rules *ruleSet // the bus's, likewise
	// own are what the subscriptions had of their own when the dispatch was opened.
	own []ownRetry
	// origin says, for each merged field, which of the subscriptions its value
	// came from, or -1 for the bus's default policy.
	origin struct{ maxRetries, baseDelay, maxDelay, backoffMultiplier, maxElapsed int }
}

// mergePolicies takes, for each field, the most permissive value among the
// overrides that set it. A field that none sets is the default's, so a default
// never overrides what was chosen lower on purpose. Of equal values the first
// override's is named the origin: that alone depends on their order.
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
		if unmerged.set &= unmergedFields; unmerged.set != 0 {
			policy := unmerged.over(m.RetryPolicy)
			own[i].policy = &policy
		}
	}
	return m
}

// permits reports whether limit a is larger than limit b, where unbounded is the
// largest.
func permits[N int | time.Duration](a, b, unbounded N) bool {
	return b != unbounded && (a == unbounded || a > b)
}

// over is p with the fields that r sets.
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
	return p
}

// retryFields are the fields of a policy, with their names and texts.
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
			return "every error"
		}
		return "a function"
	}},
	{fieldIncludeErrors, "IncludeErrors", func(p *RetryPolicy) string {
		switch {
		case p.IncludeErrors == nil:
			return "every error"
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

// texts are the fields that r sets.
func (r *retryOverride) texts() map[string]string {
	texts := make(map[string]string)
	for _, f := range retryFields {
		if r.set&f.set != 0 {
			texts[f.name] = f.text(&r.RetryPolicy)
		}
	}
	return texts
}

// origins is p.origin by the fields' names.
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
