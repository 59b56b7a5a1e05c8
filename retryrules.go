package eventbus

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus/internal/errchain"
	"github.com/surebus/eventbus/internal/errcode"
)

// RetryRule sets the attempts and delays for the errors that it matches. Of the retry policy, only
// MaxElapsed applies to rules too.
type RetryRule struct {
	// Name describes the rule in dead letters, log entries and Explain. It may be empty, and has at
	// most 255 bytes of UTF-8 without control characters.
	Name string `json:"name,omitempty"`
	// Match selects the errors. At least one of its fields must be set.
	Match ErrorMatch `json:"match"`
	// Attempts is the rule's budget, including the first attempt: 3 means 2 retries, 1 means no retry.
	// Only the failures of a dispatch that the rule matches count. It is from 1 to 2,147,483,647, or
	// Unlimited.
	Attempts int `json:"attempts"`
	// BaseDelay is the delay before the rule's first retry. 0 retries at once.
	BaseDelay time.Duration `json:"base_delay"`
	// BackoffMultiplier multiplies the delay with each further retry of the rule. It is at least 1, or
	// 0 for 1, which keeps the delay constant.
	BackoffMultiplier float64 `json:"backoff_multiplier"`
	// MaxDelay caps every delay, before jitter. 0 means no cap.
	MaxDelay time.Duration `json:"max_delay"`
	// Jitter randomizes the delays. Its zero value is ±10 %.
	Jitter Jitter `json:"jitter"`
}

// ErrorMatch selects the errors of a RetryRule. All fields that are set must match; nil means not
// set. A list must not be empty. See ErrorTraits for codes, types and Retryable.
type ErrorMatch struct {
	// Codes lists patterns. One of them must match the error's code. "Payment.Declined" matches that
	// code. "Payment.*" matches all codes that start with "Payment." and are longer. "*" matches every
	// error, with or without a code. A * must be the last segment.
	Codes []string `json:"codes,omitempty"`
	// Types lists result types. One of them must be the error's: "error", "timeout", "cancellation",
	// or a type that your own errors return. "success" is rejected.
	Types []string `json:"types,omitempty"`
	// Retryable must equal the value that the error returns. An error without one does not match.
	Retryable *bool `json:"retryable,omitempty"`
	// Is lists targets of errors.Is. The error must match one of them.
	Is []error `json:"-"`
	// As lists targets of errors.As. The error must match one of them. A target is a pointer to an
	// error type or to an interface, such as new(*net.OpError). It is not written to.
	As []any `json:"-"`
}

// Matches reports whether all fields that are set match err. It returns false for a nil error and
// for an ErrorMatch without fields. It calls methods of the error; a method that panics does not
// match.
func (m ErrorMatch) Matches(err error) bool {
	if err == nil || m.isZero() {
		return false
	}
	return (m.Codes == nil || m.matchesCode(err)) &&
		(m.Types == nil || slices.Contains(m.Types, errchain.ResultType(err))) &&
		(m.Retryable == nil || m.matchesRetryable(err)) &&
		(m.Is == nil || slices.ContainsFunc(m.Is, func(target error) bool { return target != nil && errchain.Is(err, target) })) &&
		(m.As == nil || slices.ContainsFunc(m.As, func(target any) bool {
			return errchain.TargetProblem(target) == "" && errchain.AsType(err, reflect.TypeOf(target).Elem())
		}))
}

func (m *ErrorMatch) isZero() bool {
	return m.Codes == nil && m.Types == nil && m.Retryable == nil && m.Is == nil && m.As == nil
}

func (m *ErrorMatch) matchesCode(err error) bool {
	code := errchain.Code(err)
	return slices.ContainsFunc(m.Codes, func(pattern string) bool { return errcode.Matches(pattern, code) })
}

func (m *ErrorMatch) matchesRetryable(err error) bool {
	said := errchain.Retryable(err)
	return said != nil && *said == *m.Retryable
}

// Delay returns the delay before an attempt, without jitter, if the rule matched all earlier
// failures: 0 before attempt 1, BaseDelay before attempt 2.
func (r RetryRule) Delay(attempt int) time.Duration {
	return r.policy().Delay(attempt)
}

// policy returns the rule's budget and delays as a policy.
func (r *RetryRule) policy() RetryPolicy {
	p := RetryPolicy{
		MaxRetries:        r.Attempts - 1,
		BaseDelay:         r.BaseDelay,
		MaxDelay:          r.MaxDelay,
		BackoffMultiplier: r.BackoffMultiplier,
		Jitter:            r.Jitter,
	}
	if r.Attempts == Unlimited {
		p.MaxRetries = Unlimited
	}
	if r.MaxDelay == 0 {
		p.MaxDelay = math.MaxInt64
	}
	if r.BackoffMultiplier == 0 {
		p.BackoffMultiplier = 1
	}
	return p
}

// String returns the rule as a line of text.
func (r RetryRule) String() string {
	var b strings.Builder
	if r.Name != "" {
		fmt.Fprintf(&b, "%q: ", r.Name)
	}
	b.WriteString(r.Match.String())
	switch r.Attempts {
	case Unlimited:
		b.WriteString(": unlimited attempts")
	case 1:
		b.WriteString(": 1 attempt")
	default:
		fmt.Fprintf(&b, ": %d attempts", r.Attempts)
	}
	if r.Attempts == 1 {
		return b.String()
	}
	if r.BaseDelay == 0 {
		return b.String() + " without delay"
	}
	fmt.Fprintf(&b, " after %s", r.BaseDelay)
	if p := r.policy(); p.BackoffMultiplier != 1 {
		fmt.Fprintf(&b, " × %s", strconv.FormatFloat(p.BackoffMultiplier, 'g', -1, 64))
	}
	if r.MaxDelay != 0 {
		fmt.Fprintf(&b, ", at most %s", r.MaxDelay)
	}
	fmt.Fprintf(&b, ", jitter %s", r.Jitter)
	return b.String()
}

// String returns the fields that are set, as text.
func (m ErrorMatch) String() string {
	var parts []string
	if m.Codes != nil {
		parts = append(parts, "code "+strings.Join(m.Codes, " or "))
	}
	if m.Types != nil {
		parts = append(parts, "type "+strings.Join(m.Types, " or "))
	}
	if m.Retryable != nil {
		parts = append(parts, fmt.Sprint("retryable ", *m.Retryable))
	}
	if m.Is != nil {
		texts := make([]string, len(m.Is))
		for i, target := range m.Is {
			texts[i] = "nil"
			if !isNil(target) {
				texts[i] = strconv.Quote(shorten(textOf(target, "")))
			}
		}
		parts = append(parts, "is "+strings.Join(texts, " or "))
	}
	if m.As != nil {
		texts := make([]string, len(m.As))
		for i, target := range m.As {
			texts[i] = strings.TrimPrefix(fmt.Sprintf("%T", target), "*")
		}
		parts = append(parts, "as "+strings.Join(texts, " or "))
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// RuleRef identifies the rule that decided on a failure.
type RuleRef struct {
	// Position is the index of the rule in its list, from 0.
	Position int `json:"position"`
	// Name is the name of the rule. It may be empty.
	Name string `json:"name,omitempty"`
	// Subscription is the subscription with the rule. It is empty for a rule of the bus.
	Subscription string `json:"subscription,omitempty"`
}

// String returns the reference as text: rule 1 of billing, "bank is busy".
func (r RuleRef) String() string {
	s := fmt.Sprintf("rule %d of %s", r.Position, r.Subscription)
	if r.Subscription == "" {
		s = fmt.Sprintf("rule %d of the bus", r.Position)
	}
	if r.Name != "" {
		s += fmt.Sprintf(", %q", r.Name)
	}
	return s
}

func (r *RuleRef) clone() *RuleRef {
	if r == nil {
		return nil
	}
	c := *r
	return &c
}

// invalid reports whether the position is out of range.
func (r *RuleRef) invalid() bool { return r != nil && (r.Position < 0 || r.Position > math.MaxInt32) }

// RetryRules sets ordered rules for the failures of a subscription. The first rule that matches an
// error decides whether and when to retry. It counts only the failures of the dispatch that it
// matched. These count for no other rule and not for MaxRetries. The retry policy decides on
// failures that no rule matches; IncludeErrors, ExcludeErrors and RetryIf apply only to those.
// Permanent takes precedence over rules, MaxElapsed bounds them, and RetryAfter overrides one
// delay.
//
// Without RetryRules, the rules of WithRetryRules apply. RetryRules() without a rule sets no rules.
// A second RetryRules replaces the first. The error for an invalid rule has its position, from 0:
// RetryRules[1].Match.Codes[0].
func RetryRules(rules ...RetryRule) SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) {
		c.retry.rules, c.err = newRuleSet("RetryRules", rules)
	})
}

// WithRetryRules sets the rules of the subscriptions without RetryRules. In a dispatch, these
// subscriptions share the budgets of the rules.
func WithRetryRules(rules ...RetryRule) Option {
	return option(func(c *config) {
		c.rules, c.err = newRuleSet("WithRetryRules", rules)
	})
}

// ruleSet has the rules of a subscription or of the bus. It is immutable.
type ruleSet struct {
	rules    []RetryRule
	policies []RetryPolicy // by rule
}

// newRuleSet validates and copies rules. in is the name of the option or method that they were
// passed to.
func newRuleSet(in string, rules []RetryRule) (*ruleSet, error) {
	set := &ruleSet{rules: cloneRules(rules)}
	if len(rules) > math.MaxInt32 {
		return nil, &OptionError{Option: in, Value: fmt.Sprint(len(rules)), Reason: "are too many rules"}
	}
	for i := range set.rules {
		if err := set.rules[i].validate(fmt.Sprintf("%s[%d]", in, i)); err != nil {
			return nil, err
		}
		set.policies = append(set.policies, set.rules[i].policy())
	}
	return set, nil
}

// decides returns the position of the first rule that matches, or -1.
func (s *ruleSet) decides(err error) int {
	if s == nil {
		return -1
	}
	return slices.IndexFunc(s.rules, func(r RetryRule) bool { return r.Match.Matches(err) })
}

func (s *ruleSet) list() []RetryRule {
	if s == nil {
		return nil
	}
	return cloneRules(s.rules)
}

// origin returns the name of the subscription that has the rules, or BusDefault. of is nil for the
// bus.
func (s *ruleSet) origin(of *Subscription) string {
	switch {
	case s == nil || len(s.rules) == 0:
		return ""
	case of == nil:
		return BusDefault
	}
	return of.id
}

func cloneRules(rules []RetryRule) []RetryRule {
	rules = slices.Clone(rules)
	for i := range rules {
		m := &rules[i].Match
		m.Codes, m.Types, m.Is, m.As = slices.Clone(m.Codes), slices.Clone(m.Types), slices.Clone(m.Is), slices.Clone(m.As)
		if m.Retryable != nil {
			retryable := *m.Retryable
			m.Retryable = &retryable
		}
	}
	return rules
}

func (r *RetryRule) validate(in string) error {
	refuse := func(member string, value any, reason string) error {
		return &OptionError{Option: in + "." + member, Value: fmt.Sprint(value), Reason: reason}
	}
	if r.Name != "" {
		if err := checkName(in+".Name", r.Name); err != nil {
			return err
		}
	}
	if err := r.Match.validate(in + ".Match"); err != nil {
		return err
	}
	switch {
	case r.Attempts != Unlimited && (r.Attempts < 1 || r.Attempts > math.MaxInt32):
		return refuse("Attempts", r.Attempts, fmt.Sprintf("must be from 1 to %d, the first run counted, or Unlimited", math.MaxInt32))
	case r.BaseDelay < 0:
		return refuse("BaseDelay", r.BaseDelay, "must not be negative; 0 retries at once")
	case r.BackoffMultiplier != 0 && !(r.BackoffMultiplier >= 1 && r.BackoffMultiplier <= math.MaxFloat64):
		return refuse("BackoffMultiplier", r.BackoffMultiplier, "must be a finite number of at least 1, or 0 for 1")
	case r.MaxDelay < 0:
		return refuse("MaxDelay", r.MaxDelay, "must not be negative; 0 is no cap")
	case r.Jitter < 0 || int(r.Jitter) >= len(jitterNames):
		return refuse("Jitter", int(r.Jitter), noSuchJitter)
	}
	return nil
}

func (m *ErrorMatch) validate(in string) error {
	refuse := func(member string, value any, reason string) error {
		return &OptionError{Option: in + member, Value: fmt.Sprint(value), Reason: reason}
	}
	if m.isZero() {
		return refuse("", "nothing", `no member is set; to match every error, set Codes to "*"`)
	}
	for _, list := range []struct {
		member string
		empty  bool
	}{
		{".Codes", m.Codes != nil && len(m.Codes) == 0},
		{".Types", m.Types != nil && len(m.Types) == 0},
		{".Is", m.Is != nil && len(m.Is) == 0},
		{".As", m.As != nil && len(m.As) == 0},
	} {
		if list.empty {
			return refuse(list.member, "empty", "matches nothing; leave it nil if it is not to be asked")
		}
	}
	for i, pattern := range m.Codes {
		if reason := errcode.Problem(pattern); reason != "" {
			return refuse(fmt.Sprintf(".Codes[%d]", i), strconv.Quote(shorten(pattern)), reason)
		}
	}
	for i, t := range m.Types {
		switch t {
		case "":
			return refuse(fmt.Sprintf(".Types[%d]", i), `""`, `must not be empty; errors that say nothing else are of the type "error"`)
		case "success":
			return refuse(fmt.Sprintf(".Types[%d]", i), t, "no failure is a success; leave it out")
		}
	}
	for i, target := range m.Is {
		if isNil(target) {
			return refuse(fmt.Sprintf(".Is[%d]", i), "nil", "no failure is nil; leave it out")
		}
	}
	for i, target := range m.As {
		if reason := errchain.TargetProblem(target); reason != "" {
			return refuse(fmt.Sprintf(".As[%d]", i), fmt.Sprintf("%T", target), reason)
		}
	}
	return nil
}

// ruled returns the number of failures that rules decided.
func (d *dispatch) ruled() (failures int) {
	if d.story != nil && d.story.detours != nil {
		for i := range d.story.detours.spent {
			failures += int(d.story.detours.spent[i].failures)
		}
	}
	return failures
}

// spentOn returns the dispatch's record of a rule's budget. It creates a missing one.
func (d *dispatch) spentOn(of *Subscription, rule int32) *spent {
	r := d.ensureDetours()
	i := slices.IndexFunc(r.spent, func(s spent) bool { return s.of == of && s.rule == rule })
	if i < 0 {
		i = len(r.spent)
		r.spent = append(r.spent, spent{of: of, rule: rule})
	}
	return &r.spent[i]
}
