package sabotage_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/race"
	"github.com/surebus/eventbus/internal/sabotage"
)

var (
	all    = flag.Bool("all", false, "run all bugs")
	random = flag.Int("random", 0, "run this many bugs, chosen at random")
	one    = flag.String("bug", "", "run the bugs of these names, separated by commas")
)

// atOnce is how many bugs are run at a time: each keeps a compiler busy.
const atOnce = 2

// patience is how long the tests of a bug may run, which take a second.
const patience = time.Minute

func TestBugs_EveryPatchAppliesAndEveryTestExists(t *testing.T) {
	root := rootDir(t)
	tests := map[string][]string{} // by package
	for _, b := range bugs(t) {
		t.Run(b.Name, func(t *testing.T) {
			patched := patch(t, root, b)
			_, err := parser.ParseFile(token.NewFileSet(), b.File, patched, parser.SkipObjectResolution)
			require.NoError(t, err, "the patched file is not Go any more")
			top, _, _ := strings.Cut(b.Run, "/")
			run := regexp.MustCompile(top)
			if tests[b.Package] == nil {
				tests[b.Package] = testsIn(t, filepath.Join(root, b.Package))
			}
			require.True(t, slices.ContainsFunc(tests[b.Package], run.MatchString),
				"no test in %s matches %s, which should catch it", b.Package, top)
		})
	}
}

func TestSabotage(t *testing.T) {
	chosen := choose(t, bugs(t))
	root := rootDir(t)

	// What fails without a bug has not caught one.
	sound := make(map[string]result)
	runs := make(map[string][]string)
	for _, b := range chosen {
		runs[b.Package] = append(runs[b.Package], b.Run)
	}
	for dir, regexps := range runs {
		r := goTest(t, root, dir, strings.Join(regexps, "|"), 10*patience, nil)
		require.Empty(t, r.failed, "these fail without any bug:\n%s", r.output)
		require.True(t, r.ok, "go test %s fails without any bug:\n%s", dir, r.output)
		sound[dir] = r
	}

	places := make(chan struct{}, atOnce)
	for _, b := range chosen {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			if reason := sound[b.Package].skips(b.Run); reason != "" {
				t.Skipf("SKIP: %s: the tests that would catch it are skipped here: %s", b.Name, reason)
			}
			began := time.Now()
			caughtBy := sabotageWith(t, root, b, sound[b.Package])
			t.Logf("%s (%s) caught by %s, in %.1f s", b.What, strings.Join(b.Clauses, ", "),
				strings.Join(caughtBy, ", "), time.Since(began).Seconds())
		})
	}
}

// sabotageWith runs the tests with a bug, and returns those that have caught it.
func sabotageWith(t *testing.T, root string, b sabotage.Bug, sound result) []string {
	t.Helper()
	dir := t.TempDir()
	copied := filepath.Join(dir, path.Base(b.File))
	require.NoError(t, os.WriteFile(copied, []byte(patch(t, root, b)), 0o600))
	overlay := map[string]string{filepath.Join(root, filepath.FromSlash(b.File)): copied}

	limit := patience
	if b.Hangs > 0 {
		limit = b.Hangs
	}
	r := goTest(t, root, b.Package, b.Run, limit, overlay)
	var caughtBy []string
	for _, name := range r.failed {
		if slices.Contains(sound.passed, name) {
			caughtBy = append(caughtBy, name)
		}
	}
	switch {
	case !r.built:
		t.Fatalf("the patched %s does not compile, which no test has to catch:\n%s", b.File, r.output)
	case r.hung && b.Hangs == 0:
		t.Fatalf("the tests hang (%s), which catches it only if its file says hangs:\n%s", caughtBy, r.output)
	case len(caughtBy) == 0:
		t.Fatalf("NOT CAUGHT: %s\nNo test in %s that matches %s fails. Write one that does.\n%s", b.What, b.Package, b.Run, r.output)
	}
	return caughtBy
}

// pruneTests returns an overlay of the test files of a package that have no tests but those that an expression selects.
func pruneTests(t *testing.T, dir, to, run string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	keeps := sabotage.Selects(run)
	overlay := make(map[string]string)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		pruned, err := sabotage.Prune(source, keeps)
		require.NoError(t, err)
		overlay[file] = filepath.Join(to, filepath.Base(file))
		require.NoError(t, os.WriteFile(overlay[file], pruned, 0o600))
	}
	return overlay
}

// overlayFlag writes an overlay, and returns the flag for it.
func overlayFlag(t *testing.T, dir string, replace map[string]string) string {
	t.Helper()
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	f, err := os.CreateTemp(dir, "overlay*.json")
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Write(overlay)
	require.NoError(t, err)
	return "-overlay=" + f.Name()
}

// choose says which bugs to run, as the flags say.
func choose(t *testing.T, bugs []sabotage.Bug) []sabotage.Bug {
	t.Helper()
	switch {
	case !*all && *random <= 0 && *one == "":
		t.Skip("SKIP: no bug is run without -args and -all, -random n or -bug name")
	case race.Enabled:
		t.Skip("SKIP: the bugs are not run under the race detector: each is a build of its own")
	case testing.Short():
		t.Skip("SKIP: the bugs are not run with -short: each is a build of its own")
	case *one != "":
		var chosen []sabotage.Bug
		for _, name := range strings.Split(*one, ",") {
			i := slices.IndexFunc(bugs, func(b sabotage.Bug) bool { return b.Name == name })
			require.GreaterOrEqual(t, i, 0, "no bug %q; they are in internal/sabotage/bugs", name)
			chosen = append(chosen, bugs[i])
		}
		return chosen
	case *all:
		return bugs
	}
	rand.Shuffle(len(bugs), func(i, j int) { bugs[i], bugs[j] = bugs[j], bugs[i] })
	return bugs[:min(*random, len(bugs))]
}

// result is what go test says.
type result struct {
	built   bool
	ok      bool
	hung    bool
	passed  []string // tests, without their subtests
	failed  []string // tests, and those that ran when the program ended
	skipped []string
	output  string // of those that failed or were skipped, and of the program
}

// skips returns what was printed if every test that an expression selects was skipped, such as those of store/postgres
// without a server. Otherwise it returns "".
func (r result) skips(run string) (reason string) {
	top, _, _ := strings.Cut(run, "/")
	selects := regexp.MustCompile(top).MatchString
	if slices.ContainsFunc(r.passed, selects) || !slices.ContainsFunc(r.skipped, selects) {
		return ""
	}
	return r.output
}

// goTest runs the tests of a package that an expression selects, with files replaced. Most of the time of a build is that of the tests'
// package: it has no others, and is compiled without optimizations.
func goTest(t *testing.T, root, dir, run string, limit time.Duration, replace map[string]string) result {
	t.Helper()
	overlays := t.TempDir()
	pruned := pruneTests(t, filepath.Join(root, dir), overlays, run)
	maps.Copy(pruned, replace)
	r := goTestWith(t, root, dir, run, limit, overlayFlag(t, overlays, pruned))
	if !r.built { // perhaps what was left out is needed
		r = goTestWith(t, root, dir, run, limit, overlayFlag(t, overlays, replace))
	}
	return r
}

func goTestWith(t *testing.T, root, dir, run string, limit time.Duration, overlay string) result {
	t.Helper()
	// The build itself is bounded by the test's own deadline alone.
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "-short", "-count=1", "-vet=off", "-gcflags=./"+dir+"=-N -l",
		"-timeout="+limit.String(), "-run="+run, overlay, "./"+dir)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends its children
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || errors.Is(t.Context().Err(), context.Canceled) {
		t.Fatalf("%s: %v", cmd, err)
	}
	r := readResult(t, &stdout)
	r.ok = err == nil
	r.output = tail(r.output+stderr.String(), 8<<10)
	return r
}

// readResult reads the output of go test -json.
func readResult(t *testing.T, events io.Reader) result {
	t.Helper()
	r := result{built: true}
	outputs := make(map[string]string) // of tests, and of what is none
	ends := make(map[string]string)    // of the tests that have begun, "" if they have none
	ended := false
	for decoder := json.NewDecoder(events); ; {
		var e struct{ Action, Test, Output, FailedBuild string }
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go test -json: %v", err)
		}
		name, sub, _ := strings.Cut(e.Test, "/")
		outputs[name] += e.Output
		r.built = r.built && e.Action != "build-fail" && e.FailedBuild == ""
		r.hung = r.hung || strings.HasPrefix(e.Output, "panic: test timed out after ")
		switch {
		case name == "":
			ended = ended || e.Action == "pass" || e.Action == "fail"
		case sub != "":
		case e.Action == "run":
			ends[name] = ""
		case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
			ends[name] = e.Action
		}
	}
	if !ended {
		r.built = false
	}
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		switch ends[name] {
		case "pass":
			r.passed = append(r.passed, name)
		case "skip":
			r.skipped = append(r.skipped, name)
			r.output += outputs[name]
		case "fail", "":
			r.failed = append(r.failed, name)
			r.output += outputs[name]
		}
	}
	r.output += outputs[""]
	return r
}

func bugs(t *testing.T) []sabotage.Bug {
	t.Helper()
	bugs, err := sabotage.Bugs()
	require.NoError(t, err)
	require.NotEmpty(t, bugs)
	return bugs
}

func rootDir(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "go.mod"))
	return root
}

func patch(t *testing.T, root string, b sabotage.Bug) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(b.File)))
	require.NoError(t, err)
	patched, err := b.Patch(string(source))
	require.NoError(t, err)
	return patched
}

// testsIn are the names of the tests in a directory.
func testsIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// tail is the end of a text.
func tail(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("(%d bytes left out) …%s", len(text)-most, text[len(text)-most:])
}
