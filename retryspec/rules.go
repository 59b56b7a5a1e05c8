package retryspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/surebus/eventbus"
)

// Rules are ordered rules: the first one that matches an error decides. Pass them to
// eventbus.RetryRules or eventbus.WithRetryRules:
//
//	eventbus.RetryRules(rules...)
//
// Rules of ParseRules take no defaults from the bus: without backoff a retry is immediate, without max delays have no
// cap, and without jitter they are exact.
type Rules []eventbus.RetryRule

// codePattern is a code, a prefix of codes, or *. rules.schema.json has the same.
var codePattern = regexp.MustCompile(`^(\*|[^.*]+(\.[^.*]+)*(\.\*)?)$`)

var jitters = map[string]eventbus.Jitter{
	"none":         eventbus.NoJitter,
	"full":         eventbus.FullJitter,
	"equal":        eventbus.EqualJitter,
	"decorrelated": eventbus.DecorrelatedJitter,
}

var jitterNames = []string{"none", "full", "equal", "decorrelated"}

// ParseRules reads ordered rules: {"policies": […]}. Unknown members are refused
// everywhere. The error is an *Error.
//
// Durations are [-]P[nY][nM][nW][nD][T[nH][nM][nS]], as in "PT1.5S", with a fraction in the last part at most; a year
// is 365 days here and a month 30. A negative duration becomes 0, a duration above 292 years becomes 292 years, and
// attempts above 2,147,483,647 become that number. Like Parse, ParseRules also rejects repeated names, invalid UTF-8
// and nesting deeper than 100.
func ParseRules(data []byte) (Rules, error) {
	root, err := decode(data)
	if err != nil {
		return nil, err
	}
	rules, err := readRules(reader{data}, root)
	if err != nil {
		return nil, err
	}
	return rules, nil
}

const (
	wantRules    = "an array of at least one policy"
	wantCodes    = `an array of at least one pattern: "Prefix.Code", "Prefix.*" or "*"`
	wantTypes    = `an array of at least one type of results, none of them empty or "success"`
	wantAttempts = "an integer of at least 1"
	wantBool     = "true or false"
	wantDuration = `an ISO 8601 duration, as in "PT1.5S"`
)

func readRules(r reader, root *node) (rules Rules, err *Error) {
	err = r.object(root, []field{
		{"policies", func(n *node) *Error {
			return r.array(n, 1, wantRules, func(n *node) *Error {
				rule, err := readRule(r, n)
				rules = append(rules, rule)
				return err
			})
		}},
	})
	if err == nil {
		err = r.require(root, "policies", wantRules)
	}
	return rules, err
}

func readRule(r reader, n *node) (eventbus.RetryRule, *Error) {
	rule := eventbus.RetryRule{BackoffMultiplier: 1, Jitter: eventbus.NoJitter}
	err := r.object(n, []field{
		{"match", func(n *node) *Error { return readMatch(r, n, &rule.Match) }},
		{"attempts", func(n *node) *Error {
			attempts, err := r.integer(n, 1, wantAttempts)
			rule.Attempts = int(min(attempts, math.MaxInt32))
			return err
		}},
		{"backoff", func(n *node) *Error { return readBackoff(r, n, &rule) }},
	})
	if err == nil {
		err = r.require(n, "match", "an object that says which errors")
	}
	if err == nil {
		err = r.require(n, "attempts", wantAttempts)
	}
	return rule, err
}

func readMatch(r reader, n *node, m *eventbus.ErrorMatch) *Error {
	fields := []field{
		{"codes", func(n *node) (err *Error) {
			m.Codes, err = r.texts(n, 1, wantCodes, codePattern.MatchString)
			return err
		}},
		{"types", func(n *node) (err *Error) {
			m.Types, err = r.texts(n, 1, wantTypes, func(t string) bool { return t != "" && t != "success" })
			return err
		}},
		{"retryable", func(n *node) *Error {
			if n.kind != isBool {
				return r.refuse(n, wantBool)
			}
			m.Retryable = &n.truth
			return nil
		}},
	}
	err := r.object(n, fields)
	if err == nil && len(n.members) == 0 {
		err = r.refuse(n, `at least one of codes, types, retryable; {"codes": ["*"]} is every error`)
	}
	return err
}

func readBackoff(r reader, n *node, rule *eventbus.RetryRule) *Error {
	capped := false
	err := r.object(n, []field{
		{"initial", func(n *node) (err *Error) {
			rule.BaseDelay, err = r.duration(n)
			return err
		}},
		{"rate", func(n *node) (err *Error) {
			rule.BackoffMultiplier, err = r.number(n, 1, "a number of at least 1")
			return err
		}},
		{"max", func(n *node) (err *Error) {
			rule.MaxDelay, err = r.duration(n)
			capped = true
			return err
		}},
		{"jitter", func(n *node) *Error {
			jitter, ok := jitters[n.text]
			if n.kind != isString || !ok {
				return r.refuse(n, suggest(oneOf(quoted(jitterNames)), n.text, jitterNames))
			}
			rule.Jitter = jitter
			return nil
		}},
	})
	if err == nil {
		err = r.require(n, "initial", wantDuration)
	}
	if capped && rule.MaxDelay == 0 {
		rule.BaseDelay = 0 // since a MaxDelay of 0 is no cap
	}
	return err
}

func (r reader) duration(n *node) (time.Duration, *Error) {
	if n.kind == isString {
		if d, ok := parseISO(n.text); ok {
			return d, nil
		}
	}
	return 0, r.refuse(n, wantDuration)
}

// wireRule is a rule as it is in JSON.
type wireRule struct {
	Match struct {
		Codes     []string `json:"codes,omitempty"`
		Types     []string `json:"types,omitempty"`
		Retryable *bool    `json:"retryable,omitempty"`
	} `json:"match"`
	Attempts int `json:"attempts"`
	Backoff  struct {
		Initial string  `json:"initial"`
		Rate    float64 `json:"rate"`
		Max     string  `json:"max,omitempty"`
		Jitter  string  `json:"jitter"`
	} `json:"backoff"`
}

// MarshalJSON writes the rules with every member that has a value or a default, in the order of the format and without
// white space. The error is the error of Validate.
func (rules Rules) MarshalJSON() ([]byte, error) {
	wire := make([]wireRule, len(rules))
	for i, rule := range rules {
		var err *Error
		if wire[i], err = toWire(rule); err != nil {
			return nil, err.below(index(i)).below("policies")
		}
	}
	text, err := json.Marshal(map[string][]wireRule{"policies": wire})
	if err != nil {
		return nil, err
	}
	if _, err := ParseRules(text); err != nil {
		return nil, withoutPlace(err)
	}
	return text, nil
}

// Validate checks rules that were made or changed in Go. It returns the *Error that ParseRules would return for their
// JSON. The format has no names of rules, no Is and As, no unlimited attempts, and no proportional jitter.
func (rules Rules) Validate() error {
	_, err := rules.MarshalJSON()
	return err
}

// toWire is the rule as it is in JSON, right or wrong as far as that can say it.
func toWire(rule eventbus.RetryRule) (wireRule, *Error) {
	var w wireRule
	no := func(path string, value any, expected string) (wireRule, *Error) {
		err := &Error{Value: shorten(fmt.Sprint(value)), Expected: expected}
		if path == "" {
			return w, err
		}
		return w, err.below(path)
	}
	m := rule.Match
	jitter := slices.IndexFunc(jitterNames, func(name string) bool { return jitters[name] == rule.Jitter })
	invalid := func(s string) bool { return !utf8.ValidString(s) }
	switch {
	case rule.Name != "":
		return no("", fmt.Sprintf("the name %q", rule.Name), "no name: the format has none")
	case m.Is != nil || m.As != nil:
		return no("match", "Is or As", "codes, types and retryable alone: the format has no others")
	case m.Codes != nil && len(m.Codes) == 0 || slices.ContainsFunc(m.Codes, invalid):
		return no("match.codes", fmt.Sprintf("%q", m.Codes), wantCodes+", in valid UTF-8")
	case m.Types != nil && len(m.Types) == 0 || slices.ContainsFunc(m.Types, invalid):
		return no("match.types", fmt.Sprintf("%q", m.Types), wantTypes+", in valid UTF-8")
	case rule.Attempts > math.MaxInt32:
		return no("attempts", rule.Attempts, fmt.Sprintf("at most %d", math.MaxInt32))
	case rule.BaseDelay < 0:
		return no("backoff.initial", rule.BaseDelay, "a duration that is not negative")
	case rule.MaxDelay < 0:
		return no("backoff.max", rule.MaxDelay, "a duration that is not negative")
	case math.IsNaN(rule.BackoffMultiplier) || math.IsInf(rule.BackoffMultiplier, 0):
		return no("backoff.rate", rule.BackoffMultiplier, "a finite number of at least 1")
	case jitter < 0:
		return no("backoff.jitter", rule.Jitter, oneOf(jitterNames))
	}
	w.Match.Codes, w.Match.Types, w.Match.Retryable = m.Codes, m.Types, m.Retryable
	w.Attempts = rule.Attempts
	w.Backoff.Initial = formatISO(rule.BaseDelay)
	w.Backoff.Rate = rule.BackoffMultiplier
	if rule.BackoffMultiplier == 0 {
		w.Backoff.Rate = 1
	}
	if rule.MaxDelay > 0 {
		w.Backoff.Max = formatISO(rule.MaxDelay)
	}
	w.Backoff.Jitter = jitterNames[jitter]
	return w, nil
}

// UnmarshalJSON parses the rules as ParseRules does.
func (rules *Rules) UnmarshalJSON(text []byte) error {
	parsed, err := ParseRules(text)
	if err != nil {
		return err
	}
	*rules = parsed
	return nil
}

// withoutPlace removes the place from an error about a text that the user did not write.
func withoutPlace(err error) error {
	var e *Error
	if errors.As(err, &e) {
		e.Line, e.Column = 0, 0
	}
	return err
}
