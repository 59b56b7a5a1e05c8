package sabotage

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Prune leaves those tests out of a Go file for which keeps returns false, and what it imports for them alone. The compiler spends most
// of its time on tests. Lines keep their numbers.
func Prune(source []byte, keeps func(test string) bool) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	pruned := bytes.Clone(source)
	cut := func(from, to token.Pos) {
		for i := files.Position(from).Offset; i < files.Position(to).Offset; i++ {
			if pruned[i] != '\n' {
				pruned[i] = ' '
			}
		}
	}
	used := make(map[string]bool)
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && isTest(f.Name.Name) && !keeps(f.Name.Name) {
			cut(f.Pos(), f.End())
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok {
					used[x.Name] = true
				}
			}
			return true
		})
	}
	for _, i := range file.Imports {
		if name := importName(i); name != "_" && !used[name] {
			cut(i.Pos(), i.End())
		}
	}
	return pruned, nil
}

// isTest reports whether go test would run a function.
func isTest(name string) bool {
	if name == "TestMain" {
		return false
	}
	for _, prefix := range []string{"Test", "Benchmark", "Fuzz", "Example"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// importName is the name by which a file refers to what it imports, if the package is called as its directory.
func importName(i *ast.ImportSpec) string {
	if i.Name != nil {
		return i.Name.Name
	}
	from := strings.Trim(i.Path.Value, "\"`")
	if base := path.Base(from); majorVersion.MatchString(base) {
		from = path.Dir(from)
	}
	return path.Base(from)
}

// Selects returns whether go test -run with an expression runs a test, or a subtest of it.
func Selects(run string) func(test string) bool {
	var tests []*regexp.Regexp
	depth, from, slash := 0, 0, -1
	end := func(at int) {
		if slash < 0 {
			slash = at
		}
		tests = append(tests, regexp.MustCompile(run[from:slash]))
		from, slash = at+1, -1
	}
	for i := range len(run) {
		switch run[i] {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case '/':
			if depth == 0 && slash < 0 {
				slash = i
			}
		case '|':
			if depth == 0 {
				end(i)
			}
		}
	}
	end(len(run))
	return func(test string) bool {
		return slices.ContainsFunc(tests, func(r *regexp.Regexp) bool { return r.MatchString(test) })
	}
}
