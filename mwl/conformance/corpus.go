package conformance

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
	"strings"

	"github.com/surebus/eventbus/mwl"
)

// Case is one directory of a corpus: a definition and the scenarios that execute it.
type Case struct {
	// Name is that of the directory.
	Name string
	// Definition is the text of definition.json.
	Definition []byte
	// Scenarios are sorted by name.
	Scenarios []Scenario
	// Malformed says why the case cannot be run; nil if it can.
	Malformed error
}

// Scenario is one execution of a case, with the Result that is expected.
type Scenario struct {
	Name  string
	Input any
	// Arguments are nil if the scenario has none.
	Arguments map[string]any
	// Expected is the Result as a JSON value.
	Expected any
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

// Read reads every case of the directory, sorted by name. A case that is malformed is
// among them, with the reason. A directory without cases is an error, so that a corpus
// that was not run does not pass for one that was.
func Read(dir string) ([]Case, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the corpus cannot be read: %w", err)
	}
	var corpus []Case
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("the corpus cannot be read: %w", err)
		}
		if !info.IsDir() {
			continue
		}
		c := Case{Name: entry.Name()}
		c.Malformed = c.read(path)
		corpus = append(corpus, c)
	}
	if len(corpus) == 0 {
		return nil, fmt.Errorf("there is no case in %s", dir)
	}
	return corpus, nil
}

func (c *Case) read(dir string) error {
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
	if c.Definition, err = os.ReadFile(filepath.Join(dir, "definition.json")); err != nil {
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
		s.Name = name
		c.Scenarios = append(c.Scenarios, s)
	}
	slices.SortFunc(c.Scenarios, func(a, b Scenario) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func readScenario(dir string) (Scenario, error) {
	var s Scenario
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
	if err := readStrict(filepath.Join(dir, "input.json"), &s.Input); err != nil {
		return s, err
	}
	err = readStrict(filepath.Join(dir, "arguments.json"), &s.Arguments)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return s, err
	case s.Arguments == nil:
		return s, errors.New("arguments.json: it must be an object")
	}
	if err := readStrict(filepath.Join(dir, "expected-result.json"), &s.Expected); err != nil {
		return s, err
	}
	return s, expectable(s.Expected)
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
	if err := WellFormed(bare); err != nil {
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
