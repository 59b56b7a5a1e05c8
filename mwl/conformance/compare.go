package conformance

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl"
)

// Check returns how the Result differs from the expected one; nil if it does not.
func (s Scenario) Check(result mwl.Result) error {
	text, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("the Result has no JSON form: %w", err)
	}
	var actual any
	if err := json.Unmarshal(text, &actual); err != nil {
		return fmt.Errorf("the Result %s is not JSON: %w", text, err)
	}
	if err := WellFormed(actual); err != nil {
		return fmt.Errorf("the Result %s is malformed: %w", text, err)
	}
	if err := matches(s.Expected, actual); err != nil {
		return fmt.Errorf("%w; the Result is %s", err, text)
	}
	return nil
}

// matches compares as the corpus lays down: a success by its value; a failure by
// the members that are expected, its previous likewise, an expected null being
// satisfied by absence. Results inside details are compared as Results.
func matches(expected, actual any) error {
	e, isObject := expected.(map[string]any)
	a, ok := actual.(map[string]any)
	if !isObject || !ok {
		return fmt.Errorf("want the Result %v, got %v", expected, actual)
	}
	if !reflect.DeepEqual(e["type"], a["type"]) {
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

// matchesEvidence compares a part of details: exactly, but for Results. Data that only
// resembles a Result, such as an order with a type and a code, is compared exactly.
func matchesEvidence(expected, actual any) error {
	switch want := expected.(type) {
	case map[string]any:
		got, ok := actual.(map[string]any)
		if ok && isResult(want) && WellFormed(got) == nil {
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

// WellFormed returns an error if a Result, as a JSON value, does not have the shape of the language: it has an unknown
// member, or a member that is null instead of absent.
func WellFormed(result any) error {
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
	return WellFormed(previous)
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
