package structure

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// privateDirs hold programs, measurements and tests of the repository: no user imports their packages.
var privateDirs = []string{"benchmarks", "docs", "examples", "internal", "scripts", "testdata"}

// Every exported name of the public packages, in all modules, has a comment that begins as go doc expects it.
func TestStructure_ExportedNamesHaveComments(t *testing.T) {
	packages := make(map[string]bool)
	walk(t, func(name string, d fs.DirEntry) error {
		base := d.Name()
		if d.IsDir() {
			if name != "." && (base[0] == '.' || base[0] == '_' || slices.Contains(privateDirs, base)) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || file.Name.Name == "main" {
			return err
		}
		packages[path.Dir(filepath.ToSlash(name))] = true
		for _, problem := range commentProblems(fset, file) {
			t.Error(problem)
		}
		return nil
	})
	for _, pkg := range []string{".", "admin", "driver", "observe/otel", "retryspec", "store/sqlite", "storetest"} {
		require.True(t, packages[pkg], "the test does not find package %s", pkg)
	}
}

// The packages that users call begin with an example, on the first screen of go doc.
func TestStructure_PackageCommentsBeginWithExamples(t *testing.T) {
	const screen = 16
	for _, pkg := range []string{
		".", "admin", "eventbustest", "inbox", "mwl", "observe/otel", "observe/prometheus", "periodic", "retryspec",
		"store/postgres", "store/sqlite", "storetest",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), path.Join(pkg, "doc.go"), nil, parser.ParseComments|parser.PackageClauseOnly)
		require.NoError(t, err)
		before, _, found := strings.Cut(file.Doc.Text(), "\n\t")
		if !found || strings.Count(before, "\n") > screen {
			t.Errorf("the comment of package %s has no code in its first %d lines", pkg, screen)
		}
	}
}

// commentProblems finds the exported names of a file whose comment is missing or does not begin properly.
func commentProblems(fset *token.FileSet, file *ast.File) (problems []string) {
	missing := func(n ast.Node, name, want string) {
		problems = append(problems, fmt.Sprintf("%s: %s: %s", fset.Position(n.Pos()), name, want))
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name, of := decl.Name.Name, receiver(decl)
			if ast.IsExported(name) && (of == "" || ast.IsExported(of)) && !startsWith(decl.Doc, name) {
				missing(decl, strings.TrimPrefix(of+"."+name, "."), "has no comment that starts with its name")
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if !ast.IsExported(spec.Name.Name) {
						continue
					}
					if !startsWith(spec.Doc, spec.Name.Name) && (decl.Lparen.IsValid() || !startsWith(decl.Doc, spec.Name.Name)) {
						missing(spec, spec.Name.Name, "has no comment that starts with its name")
					}
					memberProblems(spec, missing)
				case *ast.ValueSpec:
					// The comment above a group is that of its members.
					if name := exported(spec.Names); name != "" && spec.Doc == nil && spec.Comment == nil && decl.Doc == nil {
						missing(spec, name, "has no comment, and nor has its group")
					}
				}
			}
		}
	}
	return problems
}

// memberProblems does the same for the fields of a struct and the methods of an interface. A comment above a group of
// fields is also that of the following ones that it names.
func memberProblems(spec *ast.TypeSpec, missing func(n ast.Node, name, want string)) {
	switch of := spec.Type.(type) {
	case *ast.StructType:
		group := ""
		for _, f := range of.Fields.List {
			if f.Doc != nil {
				group = f.Doc.Text()
			}
			name := exported(f.Names)
			if name != "" && f.Doc == nil && f.Comment == nil && !names(group, name) {
				missing(f, spec.Name.Name+"."+name, "has no comment, and the one above its group does not name it")
			}
		}
	case *ast.InterfaceType:
		for _, m := range of.Methods.List {
			if name := exported(m.Names); name != "" && m.Comment == nil && !startsWith(m.Doc, name) {
				missing(m, spec.Name.Name+"."+name, "has no comment that starts with its name")
			}
		}
	}
}

// exported returns the first exported name, or "".
func exported(names []*ast.Ident) string {
	for _, n := range names {
		if n.IsExported() {
			return n.Name
		}
	}
	return ""
}

// receiver returns the name of the type of a method, or "".
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

// names reports whether a text has a name as a word.
func names(text, name string) bool {
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return r > 127 || !isNameByte(byte(r)) }), name)
}

// startsWith reports whether a comment starts with a name, also behind an article.
func startsWith(doc *ast.CommentGroup, name string) bool {
	text := doc.Text()
	for _, article := range []string{"A ", "An ", "The "} {
		text = strings.TrimPrefix(text, article)
	}
	rest, found := strings.CutPrefix(text, name)
	return found && rest != "" && !isNameByte(rest[0])
}

func isNameByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z'
}

// What is missing is noticed, and what has a comment is not.
func TestStructure_MissingCommentsAreNoticed(t *testing.T) {
	const source = `package p

type Bare struct{}

// It begins otherwise.
func (*Sound) Method() {}

// A Sound type.
type Sound struct {
	// First and Second are a group.
	First  int
	Second int
	Other  int

	Third  int
	Fourth int // has one
	hidden int
}

// Longer is not the name of this one.
type Long interface {
	Undocumented()
	// Documented is.
	Documented()
}

// Sound is.
func (*hidden) Method() {}

const Alone = 1

// The group.
const (
	One = 1
	Two = 2
)

var (
	// Own is.
	Own int
	None int
)

// Generic is.
type Generic[T any] struct{}

func (Generic[T]) Method() {}
`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", source, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	var names []string
	for _, problem := range commentProblems(fset, file) {
		names = append(names, strings.Split(problem, ": ")[1])
	}
	require.Equal(t, []string{"Bare", "Sound.Method", "Sound.Other", "Sound.Third", "Long", "Long.Undocumented", "Alone", "None", "Generic.Method"}, names)
}
