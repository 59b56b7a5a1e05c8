package conformance

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A corpus that cannot be run must not pass for one that has been.
func TestRead_RefusesWhatCannotBeRun(t *testing.T) {
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Read(t.TempDir())
	require.ErrorContains(t, err, "no case")
	_, err = Read("corpus.go")
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
		"scenario undeclared":   {"scenarios/other/input.json", `1`, "other has no place in scenarios"},
		"scenario misnamed":     {"case.json", `{"description": "d", ` + core + `, "marks": [], "scenarios": {"base": {}, "../base": {}}}`, "no name"},
		"file misnamed":         {"scenarios/base/expected.json", `1`, "expected.json"},
		"arguments no object":   {"scenarios/base/arguments.json", `null`, "object"},
		"input trailing":        {"scenarios/base/input.json", `1 2`, "follows the end"},
		"expectation no Result": {"scenarios/base/expected-result.json", `{"value": 1}`, "no Result"},
		"success without value": {"scenarios/base/expected-result.json", `{"type": "success"}`, "no value"},
		"failure without code":  {"scenarios/base/expected-result.json", `{"type": "error"}`, "code"},
		"unknown envelope":      {"scenarios/base/expected-result.json", `{"type": "error", "code": "X", "cause": 1}`, "cause"},
		"expectation of data":   {"scenarios/base/expected-result.json", `{"type": "error", "code": "X", "previous": "text"}`, "no Result"},
		"member twice":          {"scenarios/base/expected-result.json", `{"type": "success", "value": 2, "value": 1}`, "value"},
		"member in other case":  {"case.json", `{"description": "d", "Description": "e", ` + core + `, "marks": [], "scenarios": {"base": {}}}`, `"Description"`},
		"input not UTF-8":       {"scenarios/base/input.json", "\"\xff\"", "UTF-8"},
		"arguments misplaced":   {"arguments.json", `{}`, "arguments.json has no place in a case"},
		"scenarios misspelt":    {"scenario/base/input.json", `1`, "scenario has no place in a case"},
		"scenario no object":    {"case.json", `{"description": "d", ` + core + `, "marks": [], "scenarios": {"base": 1}}`, "want an object"},
		"file of a tool":        {"scenarios/.DS_Store", `1`, ""},
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
			corpus, err := Read(dir)
			require.NoError(t, err)
			require.Len(t, corpus, 1)
			if test.reason == "" {
				require.NoError(t, corpus[0].Malformed)
				require.Len(t, corpus[0].Scenarios, 1)
				return
			}
			require.ErrorContains(t, corpus[0].Malformed, test.reason)
		})
	}
}

// Names that begin with a dot are no cases, and a case that cannot be opened is one failed
// case, not the end of the corpus.
func TestRead_EntriesThatAreNoCases(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".git", "HEAD"), "ref")
	write(t, filepath.Join(dir, "README.md"), "text")
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "broken")))
	corpus, err := Read(dir)
	require.NoError(t, err)
	require.Len(t, corpus, 1)
	require.Equal(t, "broken", corpus[0].Name)
	require.ErrorIs(t, corpus[0].Malformed, fs.ErrNotExist)
}

// A file that may never end is not read.
func TestReadFile_HasAnEnd(t *testing.T) {
	_, err := readFile(os.DevNull)
	require.ErrorContains(t, err, "not a regular file")

	large := filepath.Join(t.TempDir(), "large")
	write(t, large, "")
	require.NoError(t, os.Truncate(large, maxFileBytes+1))
	_, err = readFile(large)
	require.ErrorContains(t, err, "more than 8388608 bytes")
}

func TestMatches(t *testing.T) {
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
		{"data with a type and a code", `{"type":"error","code":"X","details":{"type":"order","code":"A1"}}`, `{"type":"error","code":"X","details":{"type":"order","code":"A1","total":1}}`, false},
		{"equal data with a type and a code", `{"type":"error","code":"X","details":{"type":"order","code":"A1","total":1}}`, `{"type":"error","code":"X","details":{"type":"order","code":"A1","total":1}}`, true},
		{"previous in details is text", `{"type":"error","code":"X","details":[{"type":"error","code":"Y","previous":"text"}]}`, `{"type":"error","code":"X","details":[{"type":"error","code":"Y","previous":{"a":1}}]}`, false},
		{"previous in details is an array", `{"type":"error","code":"X","details":[{"type":"error","code":"Y","previous":[1,2]}]}`, `{"type":"error","code":"X","details":[{"type":"error","code":"Y","previous":{"a":1}}]}`, false},
		{"type is an object", `{"type":"error","code":"X","details":[{"type":"error","code":"X","previous":{"type":{}}}]}`, `{"type":"error","code":"X","details":[{"type":"error","code":"X","previous":{"type":{}}}]}`, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var expected, actual any
			require.NoError(t, json.Unmarshal([]byte(test.expected), &expected))
			require.NoError(t, json.Unmarshal([]byte(test.actual), &actual))
			require.NoError(t, expectable(expected))
			require.NoError(t, WellFormed(actual))
			require.Equal(t, test.same, matches(expected, actual) == nil)
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}
