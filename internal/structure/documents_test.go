package structure

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// examples/first, which the README shows, is the package's Example.
func TestExample_IsTheFirstProgram(t *testing.T) {
	body := func(file, begin string) string {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(data), begin)
		require.True(t, found, "%s has no %q", file, begin)
		text, _, found := strings.Cut(rest, "\n}\n")
		require.True(t, found)
		text, _, _ = strings.Cut(text, "\t// Output:")
		return strings.TrimSpace(text)
	}
	require.Equal(t, body("example_test.go", "func Example() {\n"), body("examples/first/main.go", "func main() {\n"))
}

// What DESIGN.md names is there.
func TestDesign_NamesWhatIs(t *testing.T) {
	data, err := os.ReadFile("DESIGN.md")
	require.NoError(t, err)
	for _, file := range regexp.MustCompile(`\b([a-z_/]+\.go)\b`).FindAllStringSubmatch(string(data), -1) {
		found := false
		for _, dir := range []string{".", "internal/pool", "internal/route", "internal/line", "internal/delay", "internal/deadline"} {
			if _, err := os.Stat(dir + "/" + file[1]); err == nil {
				found = true
			}
		}
		require.True(t, found, "DESIGN.md names %s", file[1])
	}
}

// The package comment begins with code, and this code runs: it is a part of an example.
func TestDoc_BeginsWithAnExampleThatRuns(t *testing.T) {
	data, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(data), "\n//\t")
	require.True(t, found)
	require.LessOrEqual(t, strings.Count(before, "\n"), 5, "lines before the code")
	var code []string
	for line := range strings.Lines("//\t" + rest) {
		text, inside := strings.CutPrefix(line, "//\t")
		if !inside {
			break
		}
		code = append(code, strings.TrimSpace(text))
	}
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	lines := strings.Split(string(examples), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	require.Contains(t, strings.Join(lines, "\n"), strings.Join(code, "\n"))
}
