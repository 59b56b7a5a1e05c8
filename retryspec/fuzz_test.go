package retryspec_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

// FuzzParse looks whether what Parse accepts is JSON, is valid, prints and parses to
// the same, and has delays within their bounds; and whether the errors help.
func FuzzParse(f *testing.F) {
	for _, v := range readVectors(f, "testdata/more.json") {
		f.Add([]byte(v.Policy))
	}
	addFiles(f, "testdata/*.json", "testdata/bad/*.json")
	for _, text := range []string{"", "\ufeff{}", "{}{}", `{"stop":{},"stop":{}}`, `{"x":"\ud800"}`, "{\"x\":\"\xff\"}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := retryspec.Parse(text)
		if err != nil {
			requireHelpful(t, err)
			require.Equal(t, retryspec.Document{}, d)
			return
		}
		require.True(t, json.Valid(text))
		printed, err := json.Marshal(d)
		require.NoError(t, err)
		again, err := retryspec.Parse(printed)
		require.NoError(t, err)
		meant := d
		meant.Ignored = nil
		require.Equal(t, meant, again)
		for _, attempt := range []int{0, 1, 2, 10, 1_000_000} {
			least, most := d.Bounds(attempt)
			delay := d.Delay(attempt, 0.5)
			require.True(t, 0 <= least && least <= delay && delay <= most, "%s in [%s, %s]", delay, least, most)
		}
		_, err = eventbus.New(eventbus.WithRetry(d.Policy()))
		require.NoError(t, err)
	})
}

// FuzzParseRules is FuzzParse for rules.
func FuzzParseRules(f *testing.F) {
	for seed := range uint64(50) {
		f.Add([]byte(newGenerator(seed).rules()))
	}
	addFiles(f, "testdata/*.json", "testdata/bad/*.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		rules, err := retryspec.ParseRules(text)
		if err != nil {
			requireHelpful(t, err)
			require.Nil(t, rules)
			return
		}
		require.True(t, json.Valid(text))
		printed, err := json.Marshal(rules)
		require.NoError(t, err)
		again, err := retryspec.ParseRules(printed)
		require.NoError(t, err)
		require.Equal(t, rules, again)
		for _, rule := range rules {
			for _, attempt := range []int{1, 2, 10, 1_000_000} {
				least, most := retryspec.RuleBounds(rule, attempt)
				require.True(t, 0 <= least && least <= most, "[%s, %s]", least, most)
			}
			require.False(t, rule.Match.Matches(nil))
			rule.Match.Matches(os.ErrNotExist)
		}
		_, err = eventbus.New(eventbus.WithRetryRules(rules...))
		require.NoError(t, err)
	})
}

// FuzzDurations looks whether a duration that is accepted is one that is written as
// it, and read again.
func FuzzDurations(f *testing.F) {
	for seed := range uint64(100) {
		var text string
		if err := json.Unmarshal([]byte(newGenerator(seed).duration()), &text); err == nil {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules := func(initial string) (retryspec.Rules, error) {
			quoted, err := json.Marshal(initial)
			require.NoError(t, err)
			return retryspec.ParseRules([]byte(`{"policies":[{"match":{"codes":["*"]},"attempts":2,"backoff":{"initial":` + string(quoted) + `}}]}`))
		}
		read, err := rules(text)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, read[0].BaseDelay, time.Duration(0))
		printed, err := json.Marshal(read)
		require.NoError(t, err)
		again, err := retryspec.ParseRules(printed)
		require.NoError(t, err)
		require.Equal(t, read, again)
	})
}

func addFiles(f *testing.F, patterns ...string) {
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		require.NoError(f, err)
		require.NotEmpty(f, names)
		for _, name := range names {
			text, err := os.ReadFile(name)
			require.NoError(f, err)
			f.Add(text)
		}
	}
}
