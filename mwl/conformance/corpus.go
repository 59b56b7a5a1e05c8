package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl"
)

// Case is one directory of a corpus: a definition and the scenarios that execute it.
type Case struct {
	// Name is the name of the directory.
	Name string
	// Definition is the text of definition.json.
	Definition []byte
	// Scenarios are sorted by name.
	Scenarios []Scenario
	// Malformed is why the case cannot be run, or nil.
	Malformed error
}

// Scenario is one execution of a case, with the Result that is expected.
type Scenario struct {
	Name  string // the name of its directory
	Input any    // the input, as a JSON value
	// Arguments are nil if the scenario has none.
	Arguments map[string]any
	// Expected is the Result as a JSON value.
	Expected any
}

// Read reads every case of the directory, sorted by name. The result includes malformed cases, with the reason. Read
// ignores files, and directories whose names begin with a dot. It returns an error for a directory without cases, so
// that a missing corpus is noticed.
func Read(dir string) ([]Case, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the corpus cannot be read: %w", err)
	}
	var corpus []Case
	for _, entry := range entries {
		if hidden(entry) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err == nil && !info.IsDir() {
			continue
		}
		c := Case{Name: entry.Name(), Malformed: err}
		if err == nil {
			c.Malformed = c.read(path)
		}
		corpus = append(corpus, c)
	}
	if len(corpus) == 0 {
		return nil, fmt.Errorf("there is no case in %s", dir)
	}
	return corpus, nil
}

// hidden reports whether the name begins with a dot, as those of tools do.
func hidden(entry fs.DirEntry) bool { return strings.HasPrefix(entry.Name(), ".") }

// hasOnly returns an error if the directory has another entry: a misplaced file would
// otherwise be ignored. Hidden entries are.
func hasOnly(dir, what string, known ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !hidden(entry) && !slices.Contains(known, entry.Name()) {
			return fmt.Errorf("%s has no place in %s; move it, or name it as one of %s", entry.Name(), what, strings.Join(known, ", "))
		}
	}
	return nil
}

func (c *Case) read(dir string) error {
	if err := hasOnly(dir, "a case", "case.json", "definition.json", "scenarios", "README.md"); err != nil {
		return err
	}
	names, err := readMetadata(filepath.Join(dir, "case.json"))
	if err != nil {
		return err
	}
	if c.Definition, err = readFile(filepath.Join(dir, "definition.json")); err != nil {
		return err
	}
	if err := hasOnly(filepath.Join(dir, "scenarios"), "scenarios", names...); err != nil {
		return err
	}
	for _, name := range names {
		s, err := readScenario(filepath.Join(dir, "scenarios", name))
		if err != nil {
			return fmt.Errorf("scenario %s: %w", name, err)
		}
		s.Name = name
		c.Scenarios = append(c.Scenarios, s)
	}
	return nil
}

func readScenario(dir string) (s Scenario, err error) {
	if err := hasOnly(dir, "a scenario", "input.json", "arguments.json", "expected-result.json"); err != nil {
		return s, err
	}
	if s.Input, err = readValue(filepath.Join(dir, "input.json")); err != nil {
		return s, err
	}
	arguments, err := readValue(filepath.Join(dir, "arguments.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err == nil {
		if s.Arguments, _ = arguments.(map[string]any); s.Arguments == nil {
			return s, errors.New("arguments.json: it must be an object")
		}
	}
	if s.Expected, err = readValue(filepath.Join(dir, "expected-result.json")); err != nil {
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
