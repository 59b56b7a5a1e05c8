// Package docpagetest runs the blocks of code of a page of the documentation.
//
// Each block stands, line by line, in a function of a test file or is a whole program, so the compiler, vet and gofmt see
// it. Around the lines that the page shows, a function has what it needs to run, and what it checks.
package docpagetest

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/surebus/eventbus/internal/docpage"
)

// A Shown is the source of a block of code.
type Shown interface {
	contains(code string) error
	run(t *testing.T) error
}

// Page runs the blocks of a page as subtests, in their order. A block must be in the source shown at its place, and what
// this prints to the standard output must be the page's block ```output, if it has one. Page must not run in parallel.
func Page(t *testing.T, file string, shown ...Shown) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := docpage.Blocks(string(text))
	if err != nil {
		t.Fatalf("%s: %s", file, err)
	}
	for i, block := range blocks {
		t.Run(fmt.Sprintf("line_%d", block.Line), func(t *testing.T) {
			if i >= len(shown) {
				t.Fatalf("%s:%d: no function shows this block", file, block.Line)
			}
			if err := shown[i].contains(block.Code); err != nil {
				t.Fatalf("%s:%d: %s", file, block.Line, err)
			}
			var failed error
			printed := capture(t, func() { failed = shown[i].run(t) })
			if failed != nil {
				t.Fatalf("%s:%d: %s", file, block.Line, failed)
			}
			if want := strings.TrimSpace(block.Output); want != "" && want != strings.TrimSpace(printed) {
				t.Fatalf("%s:%d: the page shows this output:\n%s\nthe code prints:\n%s", file, block.Line, want, printed)
			}
		})
	}
	if len(shown) > len(blocks) {
		t.Errorf("%s has %d blocks of code for %d functions", file, len(blocks), len(shown))
	}
}

// capture returns what f prints to the standard output.
func capture(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	printed := make(chan string)
	go func() {
		var text bytes.Buffer
		_, _ = io.Copy(&text, r) // the pipe is ours: it ends with Close
		printed <- text.String()
	}()
	old := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = old; _ = w.Close() }() // a second Close after the one below does nothing
	f()
	_ = w.Close()
	return <-printed
}

// Code is a block in the body of a function, or a declaration of the function's file. The function's error fails the block.
func Code(f func(t *testing.T) error) Shown { return code{f, false} }

// InBubble is Code that runs in a bubble of testing/synctest, where time is virtual.
func InBubble(f func(t *testing.T) error) Shown { return code{f, true} }

type code struct {
	f      func(t *testing.T) error
	bubble bool
}

func (c code) run(t *testing.T) (err error) {
	if !c.bubble {
		return c.f(t)
	}
	synctest.Test(t, func(t *testing.T) { err = c.f(t) })
	return err
}

func (c code) contains(block string) error {
	pc := reflect.ValueOf(c.f).Pointer()
	name := runtime.FuncForPC(pc).Name()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range parsed.Decls {
		f, isFunc := decl.(*ast.FuncDecl)
		if isFunc && strings.HasSuffix(name, "."+f.Name.Name) && within(source[fset.Position(f.Pos()).Offset:fset.Position(f.End()).Offset], block) {
			return nil
		}
	}
	if isDeclaration(block) && within(source, block) {
		return nil
	}
	return fmt.Errorf("this block is not in %s of %s:\n%s", name, filepath.Base(file), block)
}

// isDeclaration reports whether a block has only declarations, which stand beside a function and not in it.
func isDeclaration(block string) bool {
	_, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+block, parser.SkipObjectResolution)
	return err == nil
}

// within reports whether the lines of a block stand in a source, one after the other, all indented alike.
func within(source []byte, block string) bool {
	lines, want := strings.Split(string(source), "\n"), strings.Split(strings.TrimRight(block, "\n"), "\n")
	for i := 0; i+len(want) <= len(lines); i++ {
		if startsWith(lines[i:], want) {
			return true
		}
	}
	return false
}

func startsWith(lines, want []string) bool {
	indent, ok := strings.CutSuffix(lines[0], want[0])
	if !ok || strings.TrimSpace(indent) != "" {
		return false
	}
	for i, line := range want {
		if line != "" {
			line = indent + line
		}
		if lines[i] != line {
			return false
		}
	}
	return true
}

// Program is a block that is the whole main.go of a directory. It runs with `go run`.
func Program(dir string) Shown { return program(dir) }

type program string

func (p program) contains(block string) error {
	source, err := os.ReadFile(filepath.Join(string(p), "main.go"))
	if err != nil {
		return err
	}
	if _, text, _ := strings.Cut("\n"+string(source), "\npackage "); "package "+text != block {
		return fmt.Errorf("the block is not %s/main.go, from its package clause to its end", p)
	}
	return nil
}

func (p program) run(t *testing.T) error {
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Dir = string(p)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	printed, err := cmd.Output()
	if err != nil {
		return errors.New(err.Error() + ": " + failed.String())
	}
	_, err = os.Stdout.Write(printed)
	return err
}
