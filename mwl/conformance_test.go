package mwl_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// conformanceDir names a further corpus, such as a checkout of the language's own.
const conformanceDir = "MWL_CONFORMANCE_DIR"

// TestConformance executes every scenario of the project's corpus, and of the one
// that MWL_CONFORMANCE_DIR names, in virtual time.
func TestConformance(t *testing.T) {
	dirs := []string{"testdata/conformance"}
	if dir := os.Getenv(conformanceDir); dir != "" {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		corpus, err := readCorpus(dir)
		require.NoError(t, err)
		for _, c := range corpus {
			t.Run(c.name, func(t *testing.T) {
				require.NoError(t, c.malformed)
				def, err := mwl.Load(c.definition, mwl.DeferArgumentErrors()) // as the language has it
				require.NoError(t, err)
				for _, s := range c.scenarios {
					t.Run(s.name, func(t *testing.T) { runScenario(t, def, s) })
				}
			})
		}
	}
}

func runScenario(t *testing.T, def *mwl.Definition, s scenario) {
	var got []byte
	synctest.Test(t, func(t *testing.T) {
		var options []mwl.ExecuteOption
		if s.arguments != nil {
			options = append(options, mwl.WithArguments(s.arguments))
		}
		result := def.Execute(t.Context(), s.input, options...)
		require.Equal(t, result.Failure == nil, result.Err() == nil)
		var err error
		got, err = json.Marshal(result)
		require.NoError(t, err)
	})
	var actual any
	require.NoError(t, json.Unmarshal(got, &actual))
	require.NoError(t, wellFormed(actual), "the Result is malformed: %s", got)
	require.NoError(t, matches(s.expected, actual), "the Result is %s", got)
}

// matches compares as the corpus lays down: a success by its value; a failure by
// the members that are expected, its previous likewise, an expected null being
// satisfied by absence. Results inside details are compared as Results.
func matches(expected, actual any) error {
	e, a, ok := object(expected), object(actual), false
	if _, ok = actual.(map[string]any); !ok {
		return fmt.Errorf("want the Result %v, got %v", expected, actual)
	}
	if e["type"] != a["type"] {
		return fmt.Errorf("want type %v, got %v", e["type"], a["type"])
	}
	for member, want := range e {
		got, present := a[member]
		switch {
		case want == nil && !present && e["type"] != "success":
		case !present:
			return fmt.Errorf("%s is missing, want %v", member, want)
		case member == "previous" && want != nil:
			if err := matches(want, got); err != nil {
				return fmt.Errorf("previous: %w", err)
			}
		case member == "details":
			if err := matchesEvidence(want, got); err != nil {
				return fmt.Errorf("details%w", err)
			}
		case !reflect.DeepEqual(want, got):
			return fmt.Errorf("want %s %v, got %v", member, want, got)
		}
	}
	return nil
}

// matchesEvidence compares a part of details: exactly, but for Results.
func matchesEvidence(expected, actual any) error {
	switch want := expected.(type) {
	case map[string]any:
		got, ok := actual.(map[string]any)
		if isResult(want) && ok {
			if err := matches(want, got); err != nil {
				return fmt.Errorf(": %w", err)
			}
			return nil
		}
		if !ok || len(got) != len(want) {
			return fmt.Errorf(": want %v, got %v", expected, actual)
		}
		for name := range want {
			value, present := got[name]
			if !present {
				return fmt.Errorf(".%s is missing", name)
			}
			if err := matchesEvidence(want[name], value); err != nil {
				return fmt.Errorf(".%s%w", name, err)
			}
		}
		return nil
	case []any:
		got, ok := actual.([]any)
		if !ok || len(got) != len(want) {
			return fmt.Errorf(": want %v, got %v", expected, actual)
		}
		for i := range want {
			if err := matchesEvidence(want[i], got[i]); err != nil {
				return fmt.Errorf("[%d]%w", i, err)
			}
		}
		return nil
	}
	if !reflect.DeepEqual(expected, actual) {
		return fmt.Errorf(": want %v, got %v", expected, actual)
	}
	return nil
}

func isResult(o map[string]any) bool {
	kind, ok := o["type"].(string)
	if !ok {
		return false
	}
	if kind == mwl.TypeSuccess {
		_, ok = o["value"]
		return ok && len(o) == 2
	}
	_, ok = o["code"].(string)
	return ok
}

// wellFormed says whether a Result has the language's shape: no member that it
// does not know, and none that is null in place of being absent.
func wellFormed(result any) error {
	o, ok := result.(map[string]any)
	if !ok {
		return fmt.Errorf("%v is no object", result)
	}
	kind, ok := o["type"].(string)
	if !ok {
		return fmt.Errorf("type is %v", o["type"])
	}
	members := []string{"type", "code", "message", "details", "retryable", "previous"}
	if kind == mwl.TypeSuccess {
		members = []string{"type", "value"}
		if _, ok := o["value"]; !ok {
			return fmt.Errorf("the success has no value")
		}
	}
	for name := range o {
		if !slices.Contains(members, name) {
			return fmt.Errorf("a Result has no member %q", name)
		}
	}
	if kind == mwl.TypeSuccess {
		return nil
	}
	code, ok := o["code"].(string)
	if !ok {
		return fmt.Errorf("code is %v", o["code"])
	}
	if strings.HasPrefix(code, "System.") && !slices.Contains(systemCodes, code) {
		return fmt.Errorf("the language has no code %s", code)
	}
	if message, present := o["message"]; present {
		if _, ok := message.(string); !ok {
			return fmt.Errorf("message is %v", message)
		}
	}
	if retryable, present := o["retryable"]; present {
		if _, ok := retryable.(bool); !ok {
			return fmt.Errorf("retryable is %v", retryable)
		}
	}
	previous, present := o["previous"]
	if !present {
		return nil
	}
	if object(previous)["type"] == mwl.TypeSuccess {
		return fmt.Errorf("previous is a success")
	}
	return wellFormed(previous)
}

// systemCodes are all that may be emitted in the engine's namespace.
var systemCodes = []string{
	mwl.CodeCancelled, mwl.CodeGatherDispatchCancelled, mwl.CodeGatherDispatchSkipped, mwl.CodeGatherCompletionUnmet,
	mwl.CodeExpressionEvaluationError, mwl.CodeParameterValidationFailed, mwl.CodeUnrepresentableValue,
	mwl.CodeEmptyRaise, mwl.CodeFailureChainTruncated,
}

func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}
