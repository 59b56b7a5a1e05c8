package retryspec_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

func TestParseRules_AllThereIs(t *testing.T) {
	rules, err := retryspec.ParseRules([]byte(`{"policies": [
		{"match": {"codes": ["Bank.Busy", "Bank.*", "*"], "types": ["timeout", "error"], "retryable": false},
		 "attempts": 3,
		 "backoff": {"initial": "PT1.5S", "rate": 1.25, "max": "P1DT1M", "jitter": "decorrelated"}},
		{"match": {"retryable": true}, "attempts": 1}
	]}`))
	require.NoError(t, err)
	no, yes := false, true
	require.Equal(t, retryspec.Rules{
		{
			Match:             eventbus.ErrorMatch{Codes: []string{"Bank.Busy", "Bank.*", "*"}, Types: []string{"timeout", "error"}, Retryable: &no},
			Attempts:          3,
			BaseDelay:         1500 * time.Millisecond,
			BackoffMultiplier: 1.25,
			MaxDelay:          24*time.Hour + time.Minute,
			Jitter:            eventbus.DecorrelatedJitter,
		},
		// Immediate, without a cap, without jitter: nothing is the bus's.
		{Match: eventbus.ErrorMatch{Retryable: &yes}, Attempts: 1, BackoffMultiplier: 1, Jitter: eventbus.NoJitter},
	}, rules)

	text, err := json.Marshal(rules)
	require.NoError(t, err)
	want := `{"policies":[` +
		`{"match":{"codes":["Bank.Busy","Bank.*","*"],"types":["timeout","error"],"retryable":false},"attempts":3,` +
		`"backoff":{"initial":"PT1.5S","rate":1.25,"max":"PT24H1M","jitter":"decorrelated"}},` +
		`{"match":{"retryable":true},"attempts":1,"backoff":{"initial":"PT0S","rate":1,"jitter":"none"}}]}`
	require.Equal(t, []byte(want), text, "to the byte")

	_, err = eventbus.New(eventbus.WithRetryRules(rules...))
	require.NoError(t, err)
}

func TestParseRules_Errors(t *testing.T) {
	policy := func(text string) string { return `{"policies": [` + text + `]}` }
	match := func(text string) string { return policy(`{"match": ` + text + `, "attempts": 2}`) }
	backoff := func(text string) string {
		return policy(`{"match": {"codes": ["*"]}, "attempts": 2, "backoff": ` + text + `}`)
	}
	for _, c := range []struct{ text, path, value, expected string }{
		{`null`, "", "null", "an object"},
		{`[]`, "", "[]", "an object"},
		{`{}`, "policies", "nothing", "an array of at least one policy"},
		{`{"policies": []}`, "policies", "[]", "an array of at least one policy"},
		{`{"policies": {}}`, "policies", "{}", "an array of at least one policy"},
		{`{"policies": null}`, "policies", "null", "an array of at least one policy"},
		{`{"policies": [], "x": 1}`, "policies", "[]", "an array of at least one policy"},
		{`{"version": 1}`, "version", "unknown", "one of policies"},
		{policy(`5`), "policies[0]", "5", "an object"},
		{policy(`{"attempts": 2}`), "policies[0].match", "nothing", "an object that says which errors"},
		{policy(`{"match": {"retryable": true}}`), "policies[0].attempts", "nothing", "at least 1"},
		{policy(`{"match": {"retryable": true}, "attempts": 2, "name": "x"}`), "policies[0].name", "unknown", "one of match, attempts, backoff"},
		{policy(`{"match": {"retryable": true}, "attempts": 1}, {"match": 1}`), "policies[1].match", "1", "an object"},
		{policy(`{"match": {"retryable": true}, "attempts": 0}`), "policies[0].attempts", "0", "at least 1"},
		{policy(`{"match": {"retryable": true}, "attempts": 1.5}`), "policies[0].attempts", "1.5", "an integer"},
		{policy(`{"match": {"retryable": true}, "attempts": null}`), "policies[0].attempts", "null", "an integer"},
		{match(`{}`), "policies[0].match", "{}", "at least one of codes, types, retryable"},
		{match(`{"code": ["*"]}`), "policies[0].match.code", "unknown", "did you mean codes?"},
		{match(`{"codes": []}`), "policies[0].match.codes", "[]", "at least one pattern"},
		{match(`{"codes": "*"}`), "policies[0].match.codes", `"*"`, "at least one pattern"},
		{match(`{"codes": null}`), "policies[0].match.codes", `null`, "at least one pattern"},
		{match(`{"codes": ["A", 1]}`), "policies[0].match.codes", `1 as item 2`, "at least one pattern"},
		{match(`{"codes": ["A.*.B"]}`), "policies[0].match.codes", `"A.*.B" as item 1`, `"Prefix.*"`},
		{match(`{"codes": ["A*"]}`), "policies[0].match.codes", `"A*" as item 1`, `"Prefix.*"`},
		{match(`{"codes": [""]}`), "policies[0].match.codes", `"" as item 1`, `"Prefix.*"`},
		{match(`{"codes": ["A..B"]}`), "policies[0].match.codes", `"A..B" as item 1`, `"Prefix.*"`},
		{match(`{"types": []}`), "policies[0].match.types", "[]", "at least one type"},
		{match(`{"types": ["error", "success"]}`), "policies[0].match.types", `"success" as item 2`, `none of them empty or "success"`},
		{match(`{"types": [""]}`), "policies[0].match.types", `"" as item 1`, `none of them empty`},
		{match(`{"retryable": null}`), "policies[0].match.retryable", "null", "true or false"},
		{match(`{"retryable": "true"}`), "policies[0].match.retryable", `"true"`, "true or false"},
		{backoff(`null`), "policies[0].backoff", "null", "an object"},
		{backoff(`{}`), "policies[0].backoff.initial", "nothing", "an ISO 8601 duration"},
		{backoff(`{"rate": 2}`), "policies[0].backoff.initial", "nothing", "an ISO 8601 duration"},
		{backoff(`{"initial": 1}`), "policies[0].backoff.initial", "1", "an ISO 8601 duration"},
		{backoff(`{"initial": "1s"}`), "policies[0].backoff.initial", `"1s"`, "an ISO 8601 duration"},
		{backoff(`{"initial": "PT1S", "rate": 0.5}`), "policies[0].backoff.rate", "0.5", "at least 1"},
		{backoff(`{"initial": "PT1S", "rate": null}`), "policies[0].backoff.rate", "null", "at least 1"},
		{backoff(`{"initial": "PT1S", "max": null}`), "policies[0].backoff.max", "null", "an ISO 8601 duration"},
		{backoff(`{"initial": "PT1S", "jitter": "Full"}`), "policies[0].backoff.jitter", `"Full"`, "did you mean full?"},
		{backoff(`{"initial": "PT1S", "jitter": null}`), "policies[0].backoff.jitter", `null`, `one of "none", "full", "equal", "decorrelated"`},
		{backoff(`{"initial": "PT1S", "delay": "PT1S"}`), "policies[0].backoff.delay", "unknown", "one of initial, rate, max, jitter"},
		{backoff(`{"initial": "PT1S", "initial": "PT1S"}`), "policies[0].backoff.initial", "a second time", "each name once"},
	} {
		_, err := retryspec.ParseRules([]byte(c.text))
		var e *retryspec.Error
		require.ErrorAs(t, err, &e, c.text)
		require.Equal(t, c.path, e.Path, c.text)
		require.Contains(t, e.Value, c.value, c.text)
		require.Contains(t, e.Expected, c.expected, c.text)
		requireHelpful(t, err)
	}
}

// delays are what the durations of a backoff are.
func delays(t *testing.T, initial, most string) (base, limit time.Duration, err error) {
	t.Helper()
	backoff := map[string]string{"initial": initial}
	if most != "" {
		backoff["max"] = most
	}
	text, err := json.Marshal(map[string]any{"policies": []any{map[string]any{
		"match": map[string]any{"codes": []string{"*"}}, "attempts": 2, "backoff": backoff,
	}}})
	require.NoError(t, err)
	rules, err := retryspec.ParseRules(text)
	if err != nil {
		return 0, 0, err
	}
	return rules[0].BaseDelay, rules[0].MaxDelay, nil
}

func TestParseRules_Durations(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"PT0S":                                0,
		"P0D":                                 0,
		"PT30S":                               30 * time.Second,
		"PT1H":                                time.Hour,
		"P1D":                                 day,
		"P1W":                                 7 * day,
		"P1M":                                 30 * day,
		"P1Y":                                 365 * day,
		"PT1M":                                time.Minute,
		"P1Y2M3W4DT5H6M7.5S":                  365*day + 60*day + 21*day + 4*day + 5*time.Hour + 6*time.Minute + 7500*time.Millisecond,
		"P1W2D":                               9 * day,
		"PT1,5S":                              1500 * time.Millisecond,
		"PT0.000000001S":                      1,
		"PT0.0000000019S":                     1,
		"PT0.5H":                              30 * time.Minute,
		"P0.5D":                               12 * time.Hour,
		"P1DT0.5M":                            day + 30*time.Second,
		"PT100H":                              100 * time.Hour,
		"PT0000000000000000000000001S":        time.Second,
		"-PT30S":                              0,
		"-P1Y":                                0,
		"PT2562047H47M16.854775807S":          math.MaxInt64,
		"PT2562047H47M16.854775808S":          math.MaxInt64,
		"P300Y":                               math.MaxInt64,
		"P" + strings.Repeat("9", 1000) + "Y": math.MaxInt64,
		"PT1." + strings.Repeat("0", 1000) + "1S":     time.Second,
		"-P" + strings.Repeat("9", 1000) + "YT1H1M1S": 0,
	} {
		base, _, err := delays(t, text, "")
		require.NoError(t, err, text)
		require.Equal(t, want, base, text)
	}
	for _, text := range []string{
		"", "P", "PT", "P1", "1S", "PT1", "P1DT", "T1S", "P1S", "PT1D", "PT1Y", "pt1s", "P1d", "+PT1S", "PT-1S", "--PT1S", "- PT1S",
		"PT1.S", "PT.5S", "PT1.5.5S", "PT1.5H1M", "P0.5DT1H", "PT1S1M", "PT1S1S", "P1D1W", "P1M1Y", "PT1S ", " PT1S", "PT1S\n", "PTT1S",
		"P1T1S", "PT١S", "P2024-01-01T00:00:00", "PT1HPT1M", "PT", "P-1D", "1h", "PT1e3S", "PT1_0S", "P1DT1HT1M",
	} {
		_, _, err := delays(t, text, "")
		require.Error(t, err, text)
	}
}

// A cap of nothing leaves nothing, and no cap is not one of nothing.
func TestParseRules_ACapOfNothing(t *testing.T) {
	for _, most := range []string{"PT0S", "-PT5S"} {
		base, limit, err := delays(t, "PT10S", most)
		require.NoError(t, err)
		require.Zero(t, base)
		require.Zero(t, limit)
	}
	base, limit, err := delays(t, "PT10S", "")
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, base)
	require.Zero(t, limit)
}

func TestParseRules_MoreAttemptsThanTheBusCounts(t *testing.T) {
	rules, err := retryspec.ParseRules([]byte(`{"policies":[{"match":{"codes":["*"]},"attempts":9007199254740991}]}`))
	require.NoError(t, err)
	require.Equal(t, math.MaxInt32, rules[0].Attempts)
	_, err = eventbus.New(eventbus.WithRetryRules(rules...))
	require.NoError(t, err)
}

func TestRules_JSON(t *testing.T) {
	var in struct{ Rules retryspec.Rules }
	require.NoError(t, json.Unmarshal([]byte(`{"rules":{"policies":[{"match":{"codes":["A"]},"attempts":2}]}}`), &in))
	require.Len(t, in.Rules, 1)
	var e *retryspec.Error
	require.ErrorAs(t, json.Unmarshal([]byte(`{"rules":{"policies":[{}]}}`), &in), &e)
	require.Equal(t, "policies[0].match", e.Path)
	require.Len(t, in.Rules, 1, "bad ones change nothing")
}

// What the format has no words for is not written.
func TestRules_Validate(t *testing.T) {
	every := eventbus.ErrorMatch{Codes: []string{"*"}}
	for path, rule := range map[string]eventbus.RetryRule{
		"policies[1]":                 {Name: "bank", Match: every, Attempts: 1, Jitter: eventbus.NoJitter},
		"policies[1].match":           {Match: eventbus.ErrorMatch{Is: []error{errors.New("x")}}, Attempts: 1, Jitter: eventbus.NoJitter},
		"policies[1].match.codes":     {Match: eventbus.ErrorMatch{Codes: []string{"A.*.B"}}, Attempts: 1, Jitter: eventbus.NoJitter},
		"policies[1].match.types":     {Match: eventbus.ErrorMatch{Types: []string{}}, Attempts: 1, Jitter: eventbus.NoJitter},
		"policies[1].attempts":        {Match: every, Attempts: eventbus.Unlimited, Jitter: eventbus.NoJitter},
		"policies[1].backoff.initial": {Match: every, Attempts: 1, BaseDelay: -1, Jitter: eventbus.NoJitter},
		"policies[1].backoff.max":     {Match: every, Attempts: 1, MaxDelay: -1, Jitter: eventbus.NoJitter},
		"policies[1].backoff.rate":    {Match: every, Attempts: 1, BackoffMultiplier: math.NaN(), Jitter: eventbus.NoJitter},
		"policies[1].backoff.jitter":  {Match: every, Attempts: 1},
	} {
		rules := retryspec.Rules{{Match: every, Attempts: 1, Jitter: eventbus.NoJitter}, rule}
		var e *retryspec.Error
		require.ErrorAs(t, rules.Validate(), &e, path)
		require.Equal(t, path, e.Path, e)
		require.Zero(t, e.Line)
		_, err := json.Marshal(rules)
		require.ErrorAs(t, err, &e)
		require.NoError(t, rules[:1].Validate(), "no multiplier is 1")
	}
	for _, match := range []eventbus.ErrorMatch{{}, {As: []any{new(error)}}, {Codes: []string{"\xff"}}, {Codes: []string{}}, {Types: []string{"\xff"}}} {
		require.Error(t, retryspec.Rules{{Match: match, Attempts: 1, Jitter: eventbus.NoJitter}}.Validate())
	}
	require.Error(t, retryspec.Rules{}.Validate(), "there is at least one")
	require.Error(t, retryspec.Rules(nil).Validate())
	require.Error(t, retryspec.Rules{{Match: every, Attempts: math.MaxInt32 + 1, Jitter: eventbus.NoJitter}}.Validate())
}

func TestRuleBounds(t *testing.T) {
	const s = time.Second
	rule := eventbus.RetryRule{BaseDelay: 2 * s, BackoffMultiplier: 2, MaxDelay: 10 * s}
	for _, c := range []struct {
		jitter      eventbus.Jitter
		attempt     int
		least, most time.Duration
	}{
		{eventbus.NoJitter, 0, 0, 0},
		{eventbus.FullJitter, 1, 0, 0},
		{eventbus.DecorrelatedJitter, 1, 0, 0},
		{eventbus.NoJitter, 3, 4 * s, 4 * s},
		{eventbus.NoJitter, 1_000_000, 10 * s, 10 * s},
		{eventbus.FullJitter, 3, 0, 4 * s},
		{eventbus.EqualJitter, 3, 2 * s, 4 * s},
		{eventbus.ProportionalJitter, 3, 3600 * time.Millisecond, 4400 * time.Millisecond},
		{eventbus.DecorrelatedJitter, 2, 2 * s, 6 * s},
		{eventbus.DecorrelatedJitter, 3, 2 * s, 10 * s},
		{eventbus.DecorrelatedJitter, 1_000_000, 2 * s, 10 * s},
	} {
		rule.Jitter = c.jitter
		least, most := retryspec.RuleBounds(rule, c.attempt)
		require.InDelta(t, c.least, least, 1, "%+v", c)
		require.InDelta(t, c.most, most, 1, "%+v", c)
	}
	least, most := retryspec.RuleBounds(eventbus.RetryRule{BaseDelay: s, Jitter: eventbus.DecorrelatedJitter}, 1000)
	require.Equal(t, s, least)
	require.Equal(t, time.Duration(math.MaxInt64), most)
	least, most = retryspec.RuleBounds(eventbus.RetryRule{Jitter: eventbus.DecorrelatedJitter}, 1_000_000)
	require.Zero(t, least+most)
}
