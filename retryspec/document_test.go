package retryspec_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/retryspec"
)

func TestParse_TheEmptyDocumentIsTheDefault(t *testing.T) {
	d, err := retryspec.Parse([]byte("{}"))
	require.NoError(t, err)
	require.Equal(t, retryspec.Default(), d)
	require.NoError(t, d.Validate())
}

func TestParse_DefaultsAreNobodysToChange(t *testing.T) {
	retryspec.Default().Retry.IncludeErrors[0] = "changed"
	require.Equal(t, []string{"ValueError"}, retryspec.Default().Retry.IncludeErrors)
}

// What is wrong is told with its place, its path, its value and what would be right.
func TestParse_Errors(t *testing.T) {
	for text, want := range map[string]string{
		"":         `retryspec: line 1, column 1: the document: got no text, want a JSON object`,
		" \n":      `retryspec: line 1, column 1: the document: got no text, want a JSON object`,
		"null":     `retryspec: line 1, column 1: the document: got null, want an object`,
		"\ufeff{}": `retryspec: line 1, column 1: the document: got a byte order mark, want JSON in UTF-8 without one`,
		"{\"retry\":\n {\"include_errors\": [\"a\xff\"]}}": `retryspec: line 2, column 24: the document: got the byte 0xff, want JSON in valid UTF-8`,
		"{\n  \"stop\": {,}}":                              `retryspec: line 2, column 12: the document: got ",}}", want JSON (invalid character ',' looking for beginning of object key string)`,
		`{"stop": {"max_attempts": 3}`:                     `retryspec: line 1, column 29: the document: got the end of the text, want the rest of the JSON`,
		`{} {}`:                                            `retryspec: line 1, column 4: the document: got "{}", want JSON (invalid character '{' after top-level value)`,
		`{"a": 01}`:                                        `retryspec: line 1, column 8: the document: got "1}", want JSON (invalid character '1' after object key:value pair)`,
		`{"a": NaN}`:                                       `retryspec: line 1, column 7: the document: got "NaN}", want JSON (invalid character 'N' looking for beginning of value)`,
		"{\"stop\":\n\t{\"max_attempts\":\n0}}":            `retryspec: line 3, column 1: stop.max_attempts: got 0, want an integer of at least 1, or null`,
		`{"wait": {"max_delay": 1e400}}`:                   `retryspec: line 1, column 24: wait.max_delay: got 1e400, want a number of at least 0`,
		`{"wait": {"strategy": "exponentail"}}`:            `retryspec: line 1, column 23: wait.strategy: got "exponentail", want one of "fixed", "exponential", "exponential_jitter"; did you mean exponential?`,
		`{"wait": {"initial_dely": 3}}`:                    `retryspec: line 1, column 11: wait.initial_dely: got a member that is unknown here, want one of strategy, delay, initial_delay, multiplier, max_delay; did you mean initial_delay?`,
		`{"retry": {"include_errors": ["A", 5]}}`:          `retryspec: line 1, column 36: retry.include_errors: got 5 as item 2, want an array of strings, the names of errors`,
		`{"stop": {"max_delay": 1, "max_delay": 2}}`:       `retryspec: line 1, column 27: stop.max_delay: got the name a second time, want each name once in an object`,
		`{"stop": {}, "st\u006fp": {}}`:                    `retryspec: line 1, column 14: stop: got the name a second time, want each name once in an object`,
		`{"x": [{}, {"a": 1, "a": 1}]}`:                    `retryspec: line 1, column 21: x[1].a: got the name a second time, want each name once in an object`,
		`{"retry": {"include_errors": ["\ud800"]}}`:        `retryspec: line 1, column 32: retry.include_errors[0]: got \ud800, want both halves of a surrogate pair`,
		`{"x\\\udc00\ud800": 1}`:                           "retryspec: line 1, column 6: x\\\ufffd\ufffd: got \\udc00, want both halves of a surrogate pair",
		`{"version": 2}`:                                   `retryspec: line 1, column 13: version: got 2, want 1`,
		`{"stop": {"max_attempts": {"a": [ 1, 2 ]}}}`:      `retryspec: line 1, column 27: stop.max_attempts: got {"a":[1,2]}, want an integer of at least 1, or null`,
	} {
		_, err := retryspec.Parse([]byte(text))
		require.EqualError(t, err, want, text)
		requireHelpful(t, err)
	}
}

func TestParse_SurrogatePairsThatAreWhole(t *testing.T) {
	d, err := retryspec.Parse([]byte(`{"retry": {"include_errors": ["\ud83d\ude00", "\\ud800", "\uFFFD", "\u00e9"]}}`))
	require.NoError(t, err)
	require.Equal(t, []string{"😀", `\ud800`, "\ufffd", "é"}, d.Retry.IncludeErrors)
}

// Of the largest integers every one is read as it is, and more as the largest.
func TestParse_LargeIntegers(t *testing.T) {
	for text, want := range map[string]int64{
		"9007199254740993":     1<<53 + 1,
		"9223372036854775807":  math.MaxInt64,
		"9223372036854775808":  math.MaxInt64,
		"123456789012345678e1": 1234567890123456768, // through a float
		"1e300":                math.MaxInt64,
		"1e400":                math.MaxInt64,
		"1.5e1":                15,
	} {
		d, err := retryspec.Parse([]byte(`{"stop": {"max_attempts": ` + text + `}}`))
		require.NoError(t, err, text)
		require.Equal(t, want, d.Stop.MaxAttempts, text)
		require.Equal(t, int(min(want, math.MaxInt32))-1, d.Policy().MaxRetries, text)
	}
	for _, text := range []string{"-1e400", "1e-400", "-9223372036854775809", "0.9999999"} {
		require.Error(t, parse([]byte(`{"stop": {"max_attempts": `+text+`}}`)), text)
		require.Error(t, parse([]byte(`{"version": `+text+`}`)), text)
	}
	require.Error(t, parse([]byte(`{"version": 1e400}`)))
}

func TestParse_IgnoredMembersAreListed(t *testing.T) {
	d := mustParse(t, `{"owner": "me", "stop": {"max_attempts": 2}, "Retry": {}, "wiat": {"delay": 1}}`)
	require.Equal(t, []string{"Retry", "owner", "wiat"}, d.Ignored)
	require.EqualValues(t, 2, d.Stop.MaxAttempts)
	text, err := json.Marshal(d)
	require.NoError(t, err)
	require.Nil(t, mustParse(t, string(text)).Ignored)
	require.NotContains(t, string(text), "owner")
	_, err = retryspec.Parse([]byte(`{"owner": "me", "stop": {"atempts": 2}}`))
	require.ErrorIs(t, err, retryspec.ErrInvalid, "below the top level they are errors")
}

func TestParse_DepthIsBounded(t *testing.T) {
	nested := func(depth int) []byte {
		return []byte(`{"x":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`)
	}
	require.NoError(t, parse(nested(99)))
	err := parse(nested(101))
	require.ErrorContains(t, err, "want at most 100 arrays and objects in each other")
	requireHelpful(t, err)
	requireHelpful(t, parse(nested(100_000)))
}

// An error is short, however long what it is about.
func TestParse_ErrorsAreShort(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	for _, text := range []string{
		`{"stop": {"` + long + `": 1}}`,
		`{"wait": {"strategy": "` + long + `"}}`,
		`{"version": ["` + long + `"]}`,
		`{"` + long + `": 1, "` + long + `": 2}`,
		`{"x": ` + long + `}`,
	} {
		err := parse([]byte(text))
		require.Error(t, err)
		require.Less(t, len(err.Error()), 500)
	}
}

func TestDocument_JSON(t *testing.T) {
	d, err := retryspec.Parse([]byte(` { "wait": {"max_delay": 60.50, "strategy": "fixed", "delay": -0}, "x": 1, "stop": {"max_attempts": null} } `))
	require.NoError(t, err)
	text, err := json.Marshal(d)
	require.NoError(t, err)
	want := `{"version":1,"stop":{"max_attempts":null,"max_delay":null},` +
		`"wait":{"strategy":"fixed","delay":0,"initial_delay":1,"multiplier":2,"max_delay":60.5},` +
		`"retry":{"include_errors":["ValueError"],"exclude_errors":[]}}`
	require.Equal(t, []byte(want), text, "to the byte")

	var in struct{ Policy retryspec.Document }
	require.NoError(t, json.Unmarshal([]byte(`{"policy": `+string(text)+`}`), &in))
	d.Ignored = nil // the JSON has what the document means
	require.Equal(t, d, in.Policy)
	var e *retryspec.Error
	require.ErrorAs(t, json.Unmarshal([]byte(`{"policy": {"stop": 1}}`), &in), &e)
	require.Equal(t, "stop", e.Path)
	require.Equal(t, d, in.Policy, "a bad one changes nothing")
}

// What was made in Go is checked as what was read.
func TestDocument_Validate(t *testing.T) {
	for path, change := range map[string]func(*retryspec.Document){
		"stop.max_attempts":    func(d *retryspec.Document) { d.Stop.MaxAttempts = 0 },
		"stop.max_delay":       func(d *retryspec.Document) { d.Stop.MaxDelay = -0.5 },
		"wait.strategy":        func(d *retryspec.Document) { d.Wait.Strategy = "linear" },
		"wait.delay":           func(d *retryspec.Document) { d.Wait.Delay = -1 },
		"wait.initial_delay":   func(d *retryspec.Document) { d.Wait.InitialDelay = math.Inf(1) },
		"wait.multiplier":      func(d *retryspec.Document) { d.Wait.Multiplier = math.NaN() },
		"wait.max_delay":       func(d *retryspec.Document) { d.Wait.MaxDelay = math.Inf(-1) },
		"retry.include_errors": func(d *retryspec.Document) { d.Retry.IncludeErrors = []string{"A", "\xff"} },
		"retry.exclude_errors": func(d *retryspec.Document) { d.Retry.ExcludeErrors = []string{"\xff"} },
	} {
		d := retryspec.Default()
		change(&d)
		var e *retryspec.Error
		require.ErrorAs(t, d.Validate(), &e, path)
		require.Equal(t, path, e.Path)
		require.Zero(t, e.Line, "there is no text")
		require.NotContains(t, e.Error(), "column")
		_, err := json.Marshal(d)
		require.ErrorAs(t, err, &e, path)
		require.Zero(t, d.Policy(), path)
	}
	require.Error(t, retryspec.Document{}.Validate())

	d := retryspec.Default()
	minus := math.Copysign(0, -1)
	d.Stop.MaxDelay, d.Wait.Delay, d.Wait.InitialDelay, d.Wait.MaxDelay = minus, minus, minus, minus
	text, err := json.Marshal(d)
	require.NoError(t, err)
	require.NotContains(t, string(text), "-")

	d = retryspec.Default()
	d.Retry = retryspec.Retry{}
	require.NoError(t, d.Validate(), "no list is an empty one")
	text, err = json.Marshal(d)
	require.NoError(t, err)
	require.Contains(t, string(text), `{"include_errors":[],"exclude_errors":[]}`)
}

func TestDocument_Stopped(t *testing.T) {
	d := retryspec.Default()
	require.False(t, d.Stopped(3, math.MaxInt64))
	require.True(t, d.Stopped(4, 0))
	d.Stop.MaxDelay = 10
	require.False(t, d.Stopped(0, 10*time.Second-1))
	require.True(t, d.Stopped(0, 10*time.Second), "the bound itself")
	require.False(t, d.Stopped(0, -time.Hour), "a clock that was set back")
}

func TestDocument_Delay(t *testing.T) {
	d := retryspec.Default()
	require.Zero(t, d.Delay(0, 0.5))
	require.Zero(t, d.Delay(-1, 0.5))
	require.Equal(t, 2*time.Second, d.Delay(3, 0.5))
	require.Zero(t, d.Delay(3, 0))
	require.LessOrEqual(t, d.Delay(3, 1-1.0/(1<<53)), 4*time.Second)
	d.Wait.Strategy = retryspec.Exponential
	require.Equal(t, 4*time.Second, d.Delay(3, 0.5))
}
