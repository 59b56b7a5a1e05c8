package conformance

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

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

// marks are all that a case may have.
var marks = []string{"temporal"}

var scenarioName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// maxFileBytes bounds each file of a corpus.
const maxFileBytes = 8 << 20

// readFile reads a file of a case. A device or a pipe is refused, because reading it may
// never end.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("%s has more than %d bytes, the limit of a file", filepath.Base(path), maxFileBytes)
	}
	return data, err
}

// readDocument reads a JSON document as strictly as definitions are read: a member that
// repeats, or text that is not UTF-8, is an error.
func readDocument(path string) (*strictjson.Node, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	root, problems, _ := strictjson.Parse(data, strictjson.Limits{Problems: 1})
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), &problems[0])
	}
	return root, nil
}

func readValue(path string) (any, error) {
	root, err := readDocument(path)
	if err != nil {
		return nil, err
	}
	return root.Value(), nil
}

// readMetadata reads case.json and returns the names of the scenarios, sorted.
func readMetadata(path string) (scenarios []string, err error) {
	root, err := readDocument(path)
	if err != nil {
		return nil, err
	}
	if scenarios, err = metadata(root); err != nil {
		return nil, fmt.Errorf("case.json: %w", err)
	}
	return scenarios, nil
}

func metadata(root *strictjson.Node) (scenarios []string, err error) {
	if err := closed(root, "description", "profiles", "marks", "scenarios"); err != nil {
		return nil, err
	}
	if !isText(root.Member("description")) || root.Member("description").Text == "" {
		return nil, errors.New("description must be a text")
	}
	claimed, err := texts(root.Member("profiles"), profiles)
	if err != nil {
		return nil, fmt.Errorf("profiles: %w", err)
	}
	if !slices.Contains(claimed, profiles[0]) {
		return nil, fmt.Errorf("profiles must have %s", profiles[0])
	}
	if _, err := texts(root.Member("marks"), marks); err != nil {
		return nil, fmt.Errorf("marks: %w", err)
	}
	declared := root.Member("scenarios")
	if declared == nil || declared.Kind != strictjson.Object || len(declared.Members) == 0 {
		return nil, errors.New("scenarios must have a member for each scenario: there is no scenario")
	}
	for _, m := range declared.Members {
		if !scenarioName.MatchString(m.Name) {
			return nil, fmt.Errorf("%q is no name for a scenario: write lower-case words and digits, joined by -", m.Name)
		}
		if err := closed(m.Value, "description"); err != nil {
			return nil, fmt.Errorf("scenario %s: %w", m.Name, err)
		}
		if description := m.Value.Member("description"); description != nil && !isText(description) {
			return nil, fmt.Errorf("scenario %s: description must be a text", m.Name)
		}
		scenarios = append(scenarios, m.Name)
	}
	slices.Sort(scenarios)
	return scenarios, nil
}

// closed returns an error if the node is not an object with no members but these.
func closed(n *strictjson.Node, members ...string) error {
	if n.Kind != strictjson.Object {
		return fmt.Errorf("want an object, got %s", n.Source())
	}
	for _, m := range n.Members {
		if !slices.Contains(members, m.Name) {
			return fmt.Errorf("there is no member %q; the members are %q", m.Name, members)
		}
	}
	return nil
}

func isText(n *strictjson.Node) bool { return n != nil && n.Kind == strictjson.String }

// texts returns the elements of an array whose elements are known and do not repeat.
func texts(n *strictjson.Node, known []string) ([]string, error) {
	if n == nil || n.Kind != strictjson.Array {
		return nil, errors.New("an array is missing")
	}
	var found []string
	for _, item := range n.Items {
		if !isText(item) || !slices.Contains(known, item.Text) || slices.Contains(found, item.Text) {
			return nil, fmt.Errorf("%s is unknown or repeated; known are %q", item.Source(), known)
		}
		found = append(found, item.Text)
	}
	return found, nil
}
