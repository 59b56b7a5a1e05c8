package mwl_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
)

// A conformanceCase is one directory of a corpus: a definition and the scenarios
// that execute it.
type conformanceCase struct {
	name       string
	definition []byte
	scenarios  []scenario
	malformed  error // why it cannot be run
}

type scenario struct {
	name      string
	input     any
	arguments map[string]any // nil: none
	expected  any
}

// The profiles that this implementation claims: all there are.
var profiles = []string{
	"https://mwl.dev/v0.1/conformance/core",
	"https://mwl.dev/v0.1/conformance/expressions/cel",
	"https://mwl.dev/v0.1/conformance/expressions/cel/strings",
	"https://mwl.dev/v0.1/conformance/expressions/cel/lists",
	"https://mwl.dev/v0.1/conformance/expressions/cel/sets",
	"https://mwl.dev/v0.1/conformance/expressions/cel/encoders",
	"https://mwl.dev/v0.1/conformance/expressions/cel/math",
}

var scenarioName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// readCorpus reads every case of the directory. A case that is malformed is among
// them, with the reason.
func readCorpus(dir string) ([]conformanceCase, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the corpus cannot be read: %w", err)
	}
	var corpus []conformanceCase
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("the corpus cannot be read: %w", err)
		}
		if !info.IsDir() {
			continue
		}
		c := conformanceCase{name: entry.Name()}
		c.malformed = c.read(path)
		corpus = append(corpus, c)
	}
	if len(corpus) == 0 {
		return nil, fmt.Errorf("there is no case in %s", dir)
	}
	return corpus, nil
}

func (c *conformanceCase) read(dir string) error {
	var meta struct {
		Description *string   `json:"description"`
		Profiles    *[]string `json:"profiles"`
		Marks       *[]string `json:"marks"`
		Scenarios   map[string]struct {
			Description *string `json:"description"`
		} `json:"scenarios"`
	}
	if err := readStrict(filepath.Join(dir, "case.json"), &meta); err != nil {
		return err
	}
	switch {
	case meta.Description == nil || *meta.Description == "":
		return errors.New("case.json: there is no description")
	case meta.Profiles == nil || !slices.Contains(*meta.Profiles, profiles[0]):
		return fmt.Errorf("case.json: profiles must have %s", profiles[0])
	case meta.Marks == nil:
		return errors.New("case.json: there are no marks")
	case len(meta.Scenarios) == 0:
		return errors.New("case.json: there is no scenario")
	}
	for i, profile := range *meta.Profiles {
		if !slices.Contains(profiles, profile) || slices.Contains((*meta.Profiles)[:i], profile) {
			return fmt.Errorf("case.json: the profile %q is unknown or repeated", profile)
		}
	}
	if marks := *meta.Marks; len(marks) > 1 || len(marks) == 1 && marks[0] != "temporal" {
		return fmt.Errorf("case.json: marks are %q, only temporal is known", marks)
	}
	var err error
	if c.definition, err = os.ReadFile(filepath.Join(dir, "definition.json")); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(dir, "scenarios"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		if _, ok := meta.Scenarios[name]; !ok {
			return fmt.Errorf("scenarios/%s is not declared in case.json", name)
		}
	}
	for name := range meta.Scenarios {
		if !scenarioName.MatchString(name) {
			return fmt.Errorf("case.json: %q is no name for a scenario", name)
		}
		s, err := readScenario(filepath.Join(dir, "scenarios", name))
		if err != nil {
			return fmt.Errorf("scenario %s: %w", name, err)
		}
		s.name = name
		c.scenarios = append(c.scenarios, s)
	}
	slices.SortFunc(c.scenarios, func(a, b scenario) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return nil
}

func readScenario(dir string) (scenario, error) {
	var s scenario
	entries, err := os.ReadDir(dir)
	if err != nil {
		return s, err
	}
	for _, entry := range entries {
		switch entry.Name() {
		case "input.json", "arguments.json", "expected-result.json":
		default:
			return s, fmt.Errorf("%s has no place in a scenario", entry.Name())
		}
	}
	if err := readStrict(filepath.Join(dir, "input.json"), &s.input); err != nil {
		return s, err
	}
	err = readStrict(filepath.Join(dir, "arguments.json"), &s.arguments)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return s, err
	case s.arguments == nil:
		return s, errors.New("arguments.json: it must be an object")
	}
	if err := readStrict(filepath.Join(dir, "expected-result.json"), &s.expected); err != nil {
		return s, err
	}
	return s, expectable(s.expected)
}

// expectable says whether the value is a Result to compare with.
func expectable(expected any) error {
	o := object(expected)
	kind, ok := o["type"].(string)
	if !ok {
		return errors.New("expected-result.json: it is no Result")
	}
	bare := make(map[string]any, len(o))
	for name, value := range o {
		// A null there asserts absence.
		if value != nil || kind == mwl.TypeSuccess || name != "previous" && name != "retryable" {
			bare[name] = value
		}
	}
	previous := bare["previous"]
	delete(bare, "previous")
	if err := wellFormed(bare); err != nil {
		return fmt.Errorf("expected-result.json: %w", err)
	}
	if previous != nil {
		return expectable(previous)
	}
	return nil
}

func readStrict(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: there is more after the value", filepath.Base(path))
	}
	return nil
}

// A corpus that cannot be run must not pass for one that has been.
func TestConformanceCorpusRefused(t *testing.T) {
	_, err := readCorpus(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = readCorpus(t.TempDir())
	require.ErrorContains(t, err, "no case")
	_, err = readCorpus("corpus_test.go")
	require.ErrorContains(t, err, "cannot be read")

	const core = `"profiles": ["https://mwl.dev/v0.1/conformance/core"]`
	whole := map[string]string{
		"case.json":                           `{"description": "d", ` + core + `, "marks": [], "scenarios": {"base": {}}}`,
		"definition.json":                     `{}`,
		"scenarios/base/input.json":           `null`,
		"scenarios/base/arguments.json":       `{}`,
		"scenarios/base/expected-result.json": `{"type": "success", "value": 1}`,
	}
	for name, test := range map[string]struct{ file, content, reason string }{
		"whole":                 {"", "", ""},
		"no case.json":          {"case.json", "", "no such file"},
		"no definition":         {"definition.json", "", "no such file"},
		"no input":              {"scenarios/base/input.json", "", "no such file"},
		"no expectation":        {"scenarios/base/expected-result.json", "", "no such file"},
		"no description":        {"case.json", `{` + core + `, "marks": [], "scenarios": {"base": {}}}`, "description"},
		"no marks":              {"case.json", `{"description": "d", ` + core + `, "scenarios": {"base": {}}}`, "marks"},
		"unknown mark":          {"case.json", `{"description": "d", ` + core + `, "marks": ["slow"], "scenarios": {"base": {}}}`, "slow"},
		"no profile":            {"case.json", `{"description": "d", "profiles": [], "marks": [], "scenarios": {"base": {}}}`, "profiles"},
		"unknown profile":       {"case.json", `{"description": "d", "profiles": ["https://mwl.dev/v0.1/conformance/core", "x"], "marks": [], "scenarios": {"base": {}}}`, `"x"`},
		"no scenario":           {"case.json", `{"description": "d", ` + core + `, "marks": [], "scenarios": {}}`, "no scenario"},
		"unknown member":        {"case.json", `{"description": "d", "skip": true, ` + core + `, "marks": [], "scenarios": {"base": {}}}`, "skip"},
		"scenario absent":       {"case.json", `{"description": "d", ` + core + `, "marks": [], "scenarios": {"base": {}, "more": {}}}`, "more"},
		"scenario undeclared":   {"scenarios/other/input.json", `1`, "scenarios/other"},
		"scenario misnamed":     {"case.json", `{"description": "d", ` + core + `, "marks": [], "scenarios": {"base": {}, "../base": {}}}`, "no name"},
		"file misnamed":         {"scenarios/base/expected.json", `1`, "expected.json"},
		"arguments no object":   {"scenarios/base/arguments.json", `null`, "object"},
		"input trailing":        {"scenarios/base/input.json", `1 2`, "more after"},
		"expectation no Result": {"scenarios/base/expected-result.json", `{"value": 1}`, "no Result"},
		"success without value": {"scenarios/base/expected-result.json", `{"type": "success"}`, "no value"},
		"failure without code":  {"scenarios/base/expected-result.json", `{"type": "error"}`, "code"},
		"unknown envelope":      {"scenarios/base/expected-result.json", `{"type": "error", "code": "X", "cause": 1}`, "cause"},
		"previous no Result":    {"scenarios/base/expected-result.json", `{"type": "error", "code": "X", "previous": {"code": "Y"}}`, "no Result"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, content := range whole {
				if path == test.file {
					content = test.content
				}
				if content != "" {
					write(t, filepath.Join(dir, "case", path), content)
				}
			}
			if _, ok := whole[test.file]; !ok && test.file != "" {
				write(t, filepath.Join(dir, "case", test.file), test.content)
			}
			corpus, err := readCorpus(dir)
			require.NoError(t, err)
			require.Len(t, corpus, 1)
			if test.reason == "" {
				require.NoError(t, corpus[0].malformed)
				require.Len(t, corpus[0].scenarios, 1)
				return
			}
			require.ErrorContains(t, corpus[0].malformed, test.reason)
		})
	}
}

func TestConformanceComparison(t *testing.T) {
	for _, test := range []struct {
		name, expected, actual string
		same                   bool
	}{
		{"values", `{"type":"success","value":{"a":[1,null]}}`, `{"type":"success","value":{"a":[1.0,null]}}`, true},
		{"other value", `{"type":"success","value":{"a":1}}`, `{"type":"success","value":{"a":1,"b":2}}`, false},
		{"null value", `{"type":"success","value":null}`, `{"type":"success","value":0}`, false},
		{"other type", `{"type":"error","code":"X"}`, `{"type":"timeout","code":"X"}`, false},
		{"unconstrained", `{"type":"error","code":"X"}`, `{"type":"error","code":"X","message":"m","details":1}`, true},
		{"constrained", `{"type":"error","code":"X","message":"m"}`, `{"type":"error","code":"X"}`, false},
		{"null is absence", `{"type":"error","code":"X","previous":null,"retryable":null}`, `{"type":"error","code":"X"}`, true},
		{"null is not presence", `{"type":"error","code":"X","previous":null}`, `{"type":"error","code":"X","previous":{"type":"error","code":"Y"}}`, false},
		{"previous", `{"type":"error","code":"X","previous":{"type":"error","code":"Y","previous":null}}`, `{"type":"error","code":"X","previous":{"type":"error","code":"Y","message":"m"}}`, true},
		{"other previous", `{"type":"error","code":"X","previous":{"type":"error","code":"Y"}}`, `{"type":"error","code":"X","previous":{"type":"error","code":"Z"}}`, false},
		{"Result in details", `{"type":"error","code":"X","details":{"failures":[{"index":0,"result":{"type":"error","code":"Y"}}]}}`, `{"type":"error","code":"X","details":{"failures":[{"index":0,"result":{"type":"error","code":"Y","message":"m"}}]}}`, true},
		{"other Result in details", `{"type":"error","code":"X","details":[{"type":"error","code":"Y","previous":null}]}`, `{"type":"error","code":"X","details":[{"type":"error","code":"Y","previous":{"type":"error","code":"Z"}}]}`, false},
		{"no Result in details", `{"type":"error","code":"X","details":{"code":"Y"}}`, `{"type":"error","code":"X","details":{"code":"Y","message":"m"}}`, false},
		{"success in details", `{"type":"error","code":"X","details":[{"type":"success","value":1}]}`, `{"type":"error","code":"X","details":[{"type":"success","value":2}]}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var expected, actual any
			require.NoError(t, json.Unmarshal([]byte(test.expected), &expected))
			require.NoError(t, json.Unmarshal([]byte(test.actual), &actual))
			require.NoError(t, expectable(expected))
			require.NoError(t, wellFormed(actual))
			require.Equal(t, test.same, matches(expected, actual) == nil)
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}
