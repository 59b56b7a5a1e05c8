package eventbus_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/doc/comment"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The rules of the root's structure. A rule has no number that can be raised: what a feature would break is a question
// about the design.

const modulePath = "github.com/surebus/eventbus"

// Whether there is a store is asked where the parts are chosen, and where options are checked.
func TestStructure_Rule2_TheStoreIsAskedForInNewOnly(t *testing.T) {
	allowed := map[string]bool{"New": true, "newConfig": true, "newSubscriptionConfig": true, "checkTool": true, "checkStandby": true}
	pkg := loadRoot(t)
	asked := 0
	for _, f := range pkg.files {
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				compared, ok := n.(*ast.BinaryExpr)
				if !ok || compared.Op != token.EQL && compared.Op != token.NEQ || !isNilIdent(compared.Y) || !isStore(pkg.info.TypeOf(compared.X)) {
					return true
				}
				if asked++; !allowed[fn.Name.Name] {
					t.Errorf("%s asks whether there is a store: the journal knows", pkg.fset.Position(n.Pos()))
				}
				return true
			})
		}
	}
	if asked == 0 {
		t.Error("the test finds no question")
	}
}

func isNilIdent(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "nil"
}

// isStore reports whether a type is a store, or a part that a bus with one kind of journal has alone.
func isStore(t types.Type) bool {
	return slices.Contains([]string{
		modulePath + "/driver.Store", "*" + modulePath + ".guardedStore", "*" + modulePath + ".durable",
		"*" + modulePath + ".letterQueue", "*" + modulePath + ".memoryJournal",
	}, t.String())
}

// The state of a type is the business of its methods.
func TestStructure_Rule3_AMutexIsLockedByMethodsOfItsType(t *testing.T) {
	pkg := loadRoot(t)
	locked := 0
	for _, f := range pkg.files {
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			receiver := ""
			if fn.Recv != nil {
				receiver = typeName(pkg.info.TypeOf(fn.Recv.List[0].Type))
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !strings.HasSuffix(method.Sel.Name, "Lock") {
					return true
				}
				mutex, ok := method.X.(*ast.SelectorExpr) // x.mu in x.mu.Lock()
				if !ok || !strings.HasPrefix(pkg.info.TypeOf(mutex).String(), "sync.") {
					return true
				}
				if locked++; typeName(pkg.info.TypeOf(mutex.X)) != receiver {
					t.Errorf("%s locks the mutex of %s in a method of %q", pkg.fset.Position(n.Pos()), typeName(pkg.info.TypeOf(mutex.X)), receiver)
				}
				return true
			})
		}
	}
	if locked == 0 {
		t.Error("the test finds no mutex")
	}
}

// typeName returns the name of a type of the root, or of what a pointer to one points to.
func typeName(t types.Type) string {
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name()
	}
	return t.String()
}

// A store knows nothing of the bus. Those of store are modules of their own, so they are asked for what they import of this one.
func TestStructure_Rule4_DriversDoNotDependOnTheRoot(t *testing.T) {
	packages := []string{"./driver", "./driver/storekit", "./storetest"}
	files, err := filepath.Glob("store/*/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range file.Imports {
			if imported := strings.Trim(i.Path.Value, `"`); strings.HasPrefix(imported+"/", modulePath+"/") && !strings.HasPrefix(imported, modulePath+"/store/") {
				packages = append(packages, imported)
			}
		}
	}
	require.Contains(t, packages, modulePath+"/driver")
	slices.Sort(packages)
	for _, pkg := range slices.Compact(packages) {
		for _, dep := range goList(t, "-deps", "-f", "{{.ImportPath}}", pkg) {
			if dep == modulePath || strings.Contains(dep, "gobreaker") || strings.Contains(dep, "benbjohnson") {
				t.Errorf("%s depends on %s", pkg, dep)
			}
		}
	}
}

// What only drivers need stands in package driver.
func TestStructure_Rule5_NoExportedNameIsOfDriversAlone(t *testing.T) {
	drivers, others := make(map[string]bool), make(map[string]bool)
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // other packages' tests make and remove files meanwhile
		case err != nil:
			return err
		case d.IsDir() && name != "." && d.Name()[0] == '.':
			return fs.SkipDir
		case path.Ext(name) != ".go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		slashed := filepath.ToSlash(name)
		used := others
		if strings.HasPrefix(slashed, "store/") || strings.HasPrefix(slashed, "storetest/") || strings.HasPrefix(slashed, "driver/") {
			used = drivers
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "eventbus" {
					used[s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	for _, name := range loadRoot(t).types.Scope().Names() {
		if token.IsExported(name) && drivers[name] && !others[name] {
			t.Errorf("%s is used by drivers alone: move it to package driver", name)
		}
	}
}

// A value that crosses to a store shows all that it has.
func TestStructure_Rule6_DriverValuesHideNothing(t *testing.T) {
	scope := load(t, modulePath+"/driver").types.Scope()
	structs := 0
	for _, name := range scope.Names() {
		of, ok := scope.Lookup(name).Type().Underlying().(*types.Struct)
		if !ok {
			continue
		}
		structs++
		for i := range of.NumFields() {
			if f := of.Field(i); !f.Exported() {
				t.Errorf("driver.%s has the unexported field %s", name, f.Name())
			}
		}
	}
	if structs == 0 {
		t.Error("package driver has no struct")
	}
}

// The section "Options" of the package comment lists every option, and each link of the comment leads to a name.
func TestStructure_PackageCommentListsEveryOption(t *testing.T) {
	pkg := loadRoot(t)
	all, listed := docLinks(packageComment(pkg))
	if len(listed) == 0 {
		t.Fatal(`the package comment has no section "Options" with links`)
	}
	for link := range all {
		if !resolves(pkg.types, link) {
			t.Errorf("the package comment links to [%s], and the package has no such name", link)
		}
	}
	options := optionsOf(pkg.types)
	for name := range options {
		if !listed[name] {
			t.Errorf(`the section "Options" of the package comment does not list [%s]: add it to the group of its purpose`, name)
		}
	}
	for link := range listed {
		if !options[link] && resolves(pkg.types, link) {
			t.Errorf(`the section "Options" of the package comment lists [%s], which is no option`, link)
		}
	}
}

// optionsOf returns the exported functions that return an option, and the exported types that are options themselves.
// An option is a value of an exported type whose name ends in "Option".
func optionsOf(pkg *types.Package) map[string]bool {
	options := make(map[string]bool)
	var kinds []*types.Interface
	for _, name := range pkg.Scope().Names() {
		if of, ok := pkg.Scope().Lookup(name).Type().Underlying().(*types.Interface); ok && isOptionName(name) {
			kinds = append(kinds, of)
		}
	}
	for _, name := range pkg.Scope().Names() {
		if !token.IsExported(name) {
			continue
		}
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Func:
			results := o.Signature().Results()
			if results.Len() == 1 && isOptionName(typeName(results.At(0).Type())) {
				options[name] = true
			}
		case *types.TypeName:
			for _, kind := range kinds {
				if !types.IsInterface(o.Type()) && types.Implements(o.Type(), kind) {
					options[name] = true
				}
			}
		}
	}
	return options
}

func isOptionName(name string) bool {
	return token.IsExported(name) && strings.HasSuffix(name, "Option")
}

func packageComment(pkg typedPackage) *comment.Doc {
	var text strings.Builder
	for _, f := range pkg.files {
		text.WriteString(f.Doc.Text())
	}
	anything := comment.Parser{LookupSym: func(string, string) bool { return true }}
	return anything.Parse(text.String())
}

// docLinks returns the links of a comment to names of the package, and those in the lists of its section "Options".
func docLinks(doc *comment.Doc) (all, listed map[string]bool) {
	all, listed = make(map[string]bool), make(map[string]bool)
	collect := func(block comment.Block, into ...map[string]bool) {
		p, ok := block.(*comment.Paragraph)
		if !ok {
			return
		}
		for _, text := range p.Text {
			link, ok := text.(*comment.DocLink)
			if !ok || link.ImportPath != "" {
				continue
			}
			name := link.Name
			if link.Recv != "" {
				name = link.Recv + "." + name
			}
			for _, links := range into {
				links[name] = true
			}
		}
	}
	section := ""
	for _, block := range doc.Content {
		switch b := block.(type) {
		case *comment.Heading:
			section = ""
			if title, ok := b.Text[0].(comment.Plain); ok {
				section = string(title)
			}
		case *comment.List:
			for _, item := range b.Items {
				for _, block := range item.Content {
					if section == "Options" {
						collect(block, all, listed)
					} else {
						collect(block, all)
					}
				}
			}
		default:
			collect(block, all)
		}
	}
	return all, listed
}

// resolves reports whether a package has an exported name, or an exported method or field "Type.Name".
func resolves(pkg *types.Package, link string) bool {
	name, member, isMember := strings.Cut(link, ".")
	of := pkg.Scope().Lookup(name)
	if of == nil || !ast.IsExported(name) || !isMember {
		return of != nil && ast.IsExported(name)
	}
	found, _, _ := types.LookupFieldOrMethod(of.Type(), true, pkg, member)
	return found != nil && found.Exported()
}

// goList returns the lines of go list.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	var failure strings.Builder
	list.Stderr = &failure
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", list, err, failure.String())
	}
	return strings.Fields(string(out))
}

type typedPackage struct {
	fset  *token.FileSet
	files []*ast.File
	types *types.Package
	info  *types.Info
}

func loadRoot(t *testing.T) typedPackage { return load(t, modulePath) }

// load parses and type-checks the non-test files of a package. Dependencies come
// from the compiler's export data in the build cache.
func load(t *testing.T, of string) typedPackage {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", of)
	var failure strings.Builder
	list.Stderr = &failure
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", list, err, failure.String())
	}
	exports := make(map[string]string) // import path → file with export data
	sources := make(map[string]string)
	for packages := json.NewDecoder(strings.NewReader(string(out))); packages.More(); {
		var listed struct {
			ImportPath, Export, Dir string
			GoFiles                 []string
		}
		if err := packages.Decode(&listed); err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		exports[listed.ImportPath] = listed.Export
		if listed.ImportPath != of {
			continue
		}
		for _, file := range listed.GoFiles {
			source, err := os.ReadFile(filepath.Join(listed.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			sources[file] = string(source)
		}
	}
	if len(sources) == 0 {
		t.Fatalf("%s lists no file of %s", list, of)
	}
	return typeCheck(t, sources, func(importPath string) (io.ReadCloser, error) {
		return os.Open(exports[importPath])
	})
}

func typeCheck(t *testing.T, sources map[string]string, lookup importer.Lookup) typedPackage {
	t.Helper()
	pkg := typedPackage{fset: token.NewFileSet(), info: &types.Info{Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object), Types: make(map[ast.Expr]types.TypeAndValue)}}
	var files []*ast.File
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		file, err := parser.ParseFile(pkg.fset, name, sources[name], parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	pkg.files = files
	config := types.Config{Importer: importer.ForCompiler(pkg.fset, "gc", lookup)}
	var err error
	if pkg.types, err = config.Check(modulePath, pkg.fset, files, pkg.info); err != nil {
		t.Fatalf("the package does not compile: %v", err)
	}
	return pkg
}
