// Package sabotage is a list of bugs that the tests must notice. Each is a patch of one
// source file, of a kind that a careful author could have written. TestSabotage overlays the
// source with the patched copy (go test -overlay) and fails unless a test fails. The source
// itself is never changed.
//
//	go test -v -run TestSabotage ./internal/sabotage -args -bug D3-retry-from-start
//	go test -v -run TestSabotage ./internal/sabotage -args -random 5
//	go test -v -timeout 60m -run TestSabotage ./internal/sabotage -args -all
//
// -random takes others in each run. Without any of these,
// as in go test work, no bug is run: it is only seen whether all patches apply.
//
// # A bug
//
// A bug is a file bugs/NAME.bug. Its name begins with the clause of the contract
// that it breaks, and goes on in lower case:
//
//	what: A retry begins again at the first subscription.
//	breaks: D3
//	file: dispatcher.go
//	caught by: . ^TestD3_
//	-- old --
//	d.attempt = max(d.attempt, d.attempt+1)
//	-- new --
//	d.next, d.attempt = 0, max(d.attempt, d.attempt+1)
//
// what says in one sentence what goes wrong. breaks lists all the clauses that
// are broken, separated by spaces, the one of the name first. file is the source,
// from the root of the module. caught by is a package directory, from there too,
// and the -run expression of the tests that should catch it: narrow, so that it
// takes seconds. They are run with -short, must pass without the bug, and one of
// them must fail with it. A panic or a deadlock that ends the test program is
// such a failure; a bug that does not compile is none, and neither is a program
// that hangs, unless a line such as
//
//	hangs: 20s
//
// says so, and how long to wait for it.
//
// An old text must occur exactly once in the file, and is replaced by the new one,
// which may be empty. There may be several pairs. Make them short, and of what is
// not likely to change: a patch that no longer applies fails, and must be brought
// up to date or, if the bug cannot be made any more, deleted.
//
// To add one: write the file, run it with -bug, and if nothing catches it, write
// the test that does.
package sabotage

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Bug is a mistake that the tests must notice.
type Bug struct {
	Name    string   // of its file, without .bug
	What    string   // goes wrong, in one sentence
	Clauses []string // of the contract that are broken, the one of the name first
	File    string   // that is patched, from the root of the module, with slashes
	Package string   // directory of the tests that catch it, likewise
	Run     string   // their -run expression
	Hangs   time.Duration
	edits   []edit
}

type edit struct{ before, after string }

//go:embed bugs/*.bug
var files embed.FS

// Bugs returns all bugs, by name.
func Bugs() ([]Bug, error) {
	entries, err := files.ReadDir("bugs")
	if err != nil {
		return nil, err
	}
	bugs := make([]Bug, len(entries))
	for i, e := range entries {
		text, err := files.ReadFile("bugs/" + e.Name())
		if err != nil {
			return nil, err
		}
		if bugs[i], err = parse(strings.TrimSuffix(e.Name(), ".bug"), string(text)); err != nil {
			return nil, fmt.Errorf("bugs/%s: %w", e.Name(), err)
		}
	}
	return bugs, nil
}

var (
	nameForm   = regexp.MustCompile(`^([A-Z][0-9]+)(-[a-z0-9]+)+$`)
	clauseForm = regexp.MustCompile(`^[A-Z][0-9]+$`)
)

const oldMark, newMark = "-- old --\n", "-- new --\n"

func parse(name, text string) (Bug, error) {
	b := Bug{Name: name}
	header, patch, _ := strings.Cut("\n"+text, "\n"+oldMark)
	for _, line := range strings.Split(strings.TrimSpace(header), "\n") {
		key, value, _ := strings.Cut(line, ": ")
		var err error
		switch key {
		case "what":
			b.What = value
		case "breaks":
			b.Clauses = strings.Fields(value)
		case "file":
			b.File = value
		case "caught by":
			b.Package, b.Run, _ = strings.Cut(value, " ")
		case "hangs":
			b.Hangs, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("unknown line %q; there are what, breaks, file, caught by and hangs", line)
		}
		if err != nil {
			return b, err
		}
	}
	for _, pair := range strings.Split(patch, "\n"+oldMark) {
		before, after, ok := strings.Cut("\n"+pair+"\n", "\n"+newMark)
		before, after = strings.Trim(before, "\n"), strings.Trim(after, "\n")
		if !ok || before == "" {
			return b, fmt.Errorf("an %q without its %q, or without a text", strings.TrimSpace(oldMark), strings.TrimSpace(newMark))
		}
		b.edits = append(b.edits, edit{before, after})
	}
	clause := nameForm.FindStringSubmatch(name)
	switch {
	case clause == nil:
		return b, fmt.Errorf("the name must be a clause and words, as in D3-retry-from-start")
	case b.What == "" || b.File == "" || b.Package == "" || b.Run == "":
		return b, fmt.Errorf("one of what, file and caught by is missing, or has no value")
	case len(b.Clauses) == 0 || b.Clauses[0] != clause[1]:
		return b, fmt.Errorf("breaks must begin with the clause of the name, %s", clause[1])
	case slices.ContainsFunc(b.Clauses, func(c string) bool { return !clauseForm.MatchString(c) }):
		return b, fmt.Errorf("breaks must be clauses, as in D3 C2, and is %q", b.Clauses)
	case !fs.ValidPath(b.File) || path.Ext(b.File) != ".go" || strings.HasSuffix(b.File, "_test.go"):
		return b, fmt.Errorf("file must be a source file, from the root of the module, and is %q", b.File)
	case !fs.ValidPath(b.Package):
		return b, fmt.Errorf("the package must be a directory, from the root of the module, and is %q", b.Package)
	}
	if _, err := regexp.Compile(b.Run); err != nil {
		return b, err
	}
	return b, nil
}

// Patch returns the source with the bug.
func (b *Bug) Patch(source string) (string, error) {
	for _, e := range b.edits {
		if n := strings.Count(source, e.before); n != 1 {
			return "", fmt.Errorf("the patch no longer applies: this occurs %d times in %s, and should once:\n%s", n, b.File, e.before)
		}
		source = strings.Replace(source, e.before, e.after, 1)
	}
	return source, nil
}
