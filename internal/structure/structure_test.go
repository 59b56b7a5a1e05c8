// Package structure tests the repository as a whole: which package imports which, the size of files, and that the
// documents name what is there.
package structure

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Names of files are from the root of the module.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

const modulePath = "github.com/surebus/eventbus"

// contractTests tests the whole bus through its exported names.
const contractTests = "internal/contracttest"

// testHooks is what the simulation knows besides exported names. The root fills it in hooksOfRoot.
const (
	testHooks   = modulePath + "/internal/testhooks"
	hooksOfRoot = "testhooks.go"
	simulation  = "internal/simulation"
)

// busTests lists the internal packages that import the root, and what else of this module each may import.
// They consist of test files only, so no package can import them.
var busTests = map[string][]string{
	contractTests: {modulePath + "/driver", modulePath + "/internal/race", modulePath + "/storetest", modulePath + "/internal/wallclock"},
	simulation:    {modulePath + "/driver", modulePath + "/storetest", modulePath + "/internal/wallclock", testHooks},
}

// allowedImports lists, for each package of the root module, what its non-test files
// may import besides the standard library. Imports run one way: sub-packages import the
// root, the root imports internal packages, and internal packages never import the root (but see busTests).
// An addition affects the dependencies of every user: explain it in the commit message.
var allowedImports = map[string][]string{
	".": {
		"github.com/benbjohnson/clock",
		"go.uber.org/zap",
		"go.uber.org/zap/zapcore",
		modulePath + "/driver",
		modulePath + "/internal/abandoned",
		modulePath + "/internal/apart",
		modulePath + "/internal/backoff",
		modulePath + "/internal/blocked",
		modulePath + "/internal/capped",
		modulePath + "/internal/circuit",
		modulePath + "/internal/contexts",
		modulePath + "/internal/convert",
		modulePath + "/internal/deadline",
		modulePath + "/internal/dedupe",
		modulePath + "/internal/delay",
		modulePath + "/internal/doubt",
		modulePath + "/internal/errchain",
		modulePath + "/internal/errcode",
		modulePath + "/internal/fingerprint",
		modulePath + "/internal/halt",
		modulePath + "/internal/histogram",
		modulePath + "/internal/idle",
		modulePath + "/internal/jsonline",
		modulePath + "/internal/jsonscan",
		modulePath + "/internal/keys",
		modulePath + "/internal/letters",
		modulePath + "/internal/line",
		modulePath + "/internal/names",
		modulePath + "/internal/pace",
		modulePath + "/internal/pool",
		modulePath + "/internal/recent",
		modulePath + "/internal/roster",
		modulePath + "/internal/room",
		modulePath + "/internal/route",
		modulePath + "/internal/slogcore",
		modulePath + "/internal/stderr",
		modulePath + "/internal/settled",
		modulePath + "/internal/standing",
		modulePath + "/internal/suspects",
		testHooks, // in hooksOfRoot only
		modulePath + "/internal/texts",
		modulePath + "/internal/timeline",
		modulePath + "/internal/uuid7",
		modulePath + "/internal/window",
	},
	"driver":             {modulePath + "/internal/names", modulePath + "/internal/uuid7"},
	"driver/storekit":    {modulePath + "/driver"},
	"internal/abandoned": {modulePath + "/internal/circuit"},
	"internal/apart":     {},
	"internal/blocked":   {},
	"internal/capped":    {},
	"internal/chart":     {},
	"internal/circuit": {
		"github.com/sony/gobreaker/v2", modulePath + "/internal/timeline", modulePath + "/internal/window",
	},
	"internal/convert":             {},
	"internal/deadline":            {},
	"internal/dedupe":              {},
	"internal/backoff":             {},
	"internal/contexts":            {},
	"internal/delay":               {},
	"internal/doubt":               {},
	"internal/errchain":            {modulePath + "/internal/texts"},
	"internal/errcode":             {},
	"internal/fingerprint":         {modulePath + "/internal/uuid7"},
	"internal/halt":                {},
	"internal/histogram":           {},
	"internal/idle":                {},
	"internal/jsonline":            {},
	"internal/jsonscan":            {},
	"internal/keys":                {},
	"internal/letters":             {modulePath + "/driver"},
	"internal/line":                {},
	"internal/docpage":             {},
	"internal/docpage/docpagetest": {modulePath + "/internal/docpage"},
	"internal/linediff":            {},
	"internal/names":               {modulePath + "/internal/texts"},
	"internal/pace":                {modulePath + "/internal/timeline"},
	"internal/pool":                {},
	"internal/race":                {},
	"internal/recent":              {},
	"internal/roster":              {},
	"internal/room":                {},
	"internal/route":               {"github.com/gobwas/glob"},
	"internal/sabotage":            {},
	"internal/slogcore":            {"go.uber.org/zap/zapcore", modulePath + "/internal/texts"},
	"internal/stderr":              {"go.uber.org/zap", "go.uber.org/zap/buffer", "go.uber.org/zap/zapcore"},
	"internal/settled":             {},
	"internal/standing":            {},
	"internal/suspects":            {},
	"internal/testhooks":           {},
	"internal/texts":               {},
	"internal/timeline":            {"github.com/benbjohnson/clock"},
	"internal/uuid7":               {},
	"internal/wallclock":           {"github.com/benbjohnson/clock"},
	"internal/window":              {},

	"admin": {
		modulePath, modulePath + "/internal/chart", modulePath + "/internal/linediff", modulePath + "/internal/texts",
	},
	"eventbustest":    {modulePath, modulePath + "/driver", modulePath + "/internal/errchain", modulePath + "/storetest"},
	"retryspec":       {modulePath, modulePath + "/internal/names"},
	"retryspec/check": {modulePath + "/retryspec"},
	"storetest":       {modulePath + "/driver", modulePath + "/internal/uuid7", "github.com/stretchr/testify/require"},
}

// allowedTestImports are what tests may import as well, sub-packages included.
var allowedTestImports = []string{
	modulePath,
	modulePath + "/internal/race",
	"github.com/benbjohnson/clock",
	"github.com/santhosh-tekuri/jsonschema/v6", // the schemas of retryspec against its parsers
	"github.com/stretchr/testify",
	"go.uber.org/goleak",
	"go.uber.org/zap",
	"pgregory.net/rapid",
}

func TestStructure_Imports(t *testing.T) {
	for _, f := range goFiles(t) {
		allowed, known := allowedImports[f.pkg]
		ofBus, testsBus := busTests[f.pkg]
		if testsBus && !f.test {
			t.Errorf("%s is not a test file: %s contains only test files", f.name, f.pkg)
			continue
		}
		if !known && !f.test {
			t.Errorf("%s: package %s is not in allowedImports of internal/structure: add it there, with what it may import", f.name, f.pkg)
			continue
		}
		for _, spec := range f.ast.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: %v", f.name, err)
			}
			if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
				continue // standard library
			}
			switch {
			case imported == testHooks && f.name != hooksOfRoot && f.pkg != simulation:
				t.Errorf("%s imports %s, which only %s fills and only %s calls", f.name, imported, hooksOfRoot, simulation)
			case f.test && strings.HasPrefix(f.pkg, "internal/") && !testsBus && imported == modulePath:
				t.Errorf("%s imports the root: internal packages never do, their tests included", f.name)
			case testsBus && slices.Contains(ofBus, imported):
			case testsBus && imported != modulePath && isUnderAny(imported, []string{modulePath}):
				t.Errorf("%s imports %s: of this module, %s imports the root and %v only", f.name, imported, f.pkg, ofBus)
			case f.test && isUnderAny(imported, allowedTestImports):
			case !slices.Contains(allowed, imported):
				t.Errorf("%s imports %s, which package %s may not (allowedImports in internal/structure)", f.name, imported, f.pkg)
			}
		}
	}
}

// A file near maxFileLines usually contains a second subject, which deserves a file or an internal package of its own.
const (
	maxFileLines = 500
	minLoopLines = 20
	maxLoopLines = 45
)

func TestStructure_Sizes(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.pkg != "." || f.test {
			continue
		}
		source, err := os.ReadFile(f.name)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(source, []byte("\n")); n > maxFileLines {
			t.Errorf("%s has %d lines, more than %d: split it", f.name, n, maxFileLines)
		}
	}

	switch n := linesOfMethod(t, "dispatcher.go", "machine", "run"); {
	case n == 0:
		t.Error("dispatcher.go declares no method (*machine).run: the loop is missing")
	case n < minLoopLines:
		t.Errorf("(*machine).run has %d lines, fewer than %d: it no longer shows every decision of the loop", n, minLoopLines)
	case n > maxLoopLines:
		t.Errorf("(*machine).run has %d lines, more than %d: move details into functions", n, maxLoopLines)
	default:
		t.Logf("(*machine).run: %d lines", n)
	}
}

// linesOfMethod returns the number of lines of a method of *recv without its doc comment,
// and 0 if the file does not declare it.
func linesOfMethod(t *testing.T, file, recv, method string) int {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv == nil || f.Name.Name != method {
			continue
		}
		pointer, ok := f.Recv.List[0].Type.(*ast.StarExpr)
		if !ok {
			continue
		}
		if name, ok := pointer.X.(*ast.Ident); ok && name.Name == recv {
			return fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1
		}
	}
	return 0
}

func TestStructure_PackageDocs(t *testing.T) {
	documented := make(map[string]bool)
	for _, f := range goFiles(t) {
		if !f.test {
			documented[f.pkg] = documented[f.pkg] || strings.TrimSpace(f.ast.Doc.Text()) != ""
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment: say in one file, above its package clause, what it is for", pkg)
		}
	}
}

// What is published must mean something to whoever has only the repository.
func TestStructure_NoForeignPaths(t *testing.T) {
	needles := []string{".." + "/shared", "/work" + "/shared", ".lib" + "rary"}
	walk(t, func(name string, d fs.DirEntry) error {
		if d.IsDir() {
			if name == ".git" || name == ".ci" {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil || bytes.IndexByte(text, 0) >= 0 {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, needle := range needles {
				if strings.Contains(line, needle) {
					t.Errorf("%s:%d mentions %q, which exists on the author's machine only", name, i+1, needle)
				}
			}
		}
		return nil
	})
}

type goFile struct {
	name string // slash-separated, from the root of the module
	pkg  string // directory, "." for the root
	test bool
	ast  *ast.File
}

// goFiles parses all Go files of the root module, whatever their build tags.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	walk(t, func(name string, d fs.DirEntry) error {
		if d.IsDir() {
			if name == "." {
				return nil
			}
			base := d.Name()
			if base == "testdata" || base[0] == '.' || base[0] == '_' {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return fs.SkipDir // another module
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		slashed := filepath.ToSlash(name)
		files = append(files, goFile{
			name: slashed,
			pkg:  path.Dir(slashed),
			test: strings.HasSuffix(slashed, "_test.go"),
			ast:  parsed,
		})
		return nil
	})
	if len(files) == 0 {
		t.Fatal("found no Go file: the test does not run in the root of the module")
	}
	return files
}

func walk(t *testing.T, visit func(name string, d fs.DirEntry) error) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = visit(name, d)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // other packages' tests make and remove files meanwhile
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func isUnderAny(imported string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return imported == root || strings.HasPrefix(imported, root+"/")
	})
}
