package admin_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	sqlWord  = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|WHERE|ORDER BY|LIMIT|VALUES|FROM)\b`)
	matching = regexp.MustCompile(`\b(LIKE|GLOB|REGEXP|MATCH)\b`)
)

// sources parses the Go files of a directory that are not tests.
func sources(t *testing.T, dir string) (files []*ast.File, set *token.FileSet) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	set = token.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		require.NoError(t, err)
		files = append(files, file)
	}
	require.NotEmpty(t, files, dir)
	return files, set
}

// operands returns the parts of a concatenation.
func operands(e ast.Expr) []ast.Expr {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.ADD {
		return append(operands(b.X), operands(b.Y)...)
	}
	return []ast.Expr{e}
}

// literal returns the value of a string literal, or "".
func literal(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(l.Value)
	return text
}

// SQL is put together from constants, names of columns and indexes, and calls of a few functions. What a caller gives is
// a field of a struct, and passes as an argument of a "?".
func TestZ16_SQLHasParametersOnly(t *testing.T) {
	functions := map[string]bool{"from": true, "Join": true, "Repeat": true, "Itoa": true}
	texts := 0
	files, set := sources(t, "../store/sqlite")
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				require.False(t, sqlWord.MatchString(literal(n)) && matching.MatchString(literal(n)), "%s: a pattern needs escapes", set.Position(n.Pos()))
			case *ast.CallExpr:
				name, ok := n.Fun.(*ast.SelectorExpr)
				if ok && strings.HasSuffix(name.Sel.Name, "rintf") && len(n.Args) > 0 {
					require.False(t, sqlWord.MatchString(literal(n.Args[0])), "%s: SQL is not formatted", set.Position(n.Pos()))
				}
			case *ast.BinaryExpr:
				parts := operands(n)
				isSQL := false
				for _, p := range parts {
					isSQL = isSQL || sqlWord.MatchString(literal(p))
				}
				if !isSQL {
					return true
				}
				texts++
				for i, p := range parts {
					at := set.Position(p.Pos())
					switch p := p.(type) {
					case *ast.BasicLit, *ast.Ident:
					case *ast.CallExpr:
						f, ok := p.Fun.(*ast.SelectorExpr)
						require.True(t, ok && functions[f.Sel.Name], "%s: a call in SQL", at)
					default:
						t.Errorf("%s: SQL has an operand that may be data: pass it as a parameter", at)
					}
					if i > 0 {
						require.False(t, strings.HasSuffix(strings.TrimSpace(literal(parts[i-1])), "ORDER BY"), "%s: the order is a constant", at)
					}
				}
				return false
			}
			return true
		})
	}
	require.Greater(t, texts, 10)
}

func TestZ24_DependenciesAreFewAndTheirCheckIsInCI(t *testing.T) {
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
	require.NoError(t, err)
	allowed := map[string]bool{
		"github.com/surebus/eventbus": true, "github.com/benbjohnson/clock": true, "github.com/gobwas/glob": true,
		"github.com/sony/gobreaker/v2": true, "go.uber.org/zap": true, "go.uber.org/multierr": true,
	}
	for module := range strings.FieldsSeq(string(deps)) {
		require.True(t, allowed[module], "%s: admin adds no dependency to the bus", module)
	}
	for _, store := range []string{"../store/sqlite/go.mod"} {
		_, err := os.Stat(store)
		require.NoError(t, err, "a store is a module of its own")
	}
	for _, name := range []string{"../SECURITY.md", "../go.sum"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.NotZero(t, info.Size(), name)
	}
	ci, err := os.ReadFile("../.ci/run")
	require.NoError(t, err)
	tools := regexp.MustCompile(`[a-z0-9.-]+\.[a-z]+/[A-Za-z0-9./_-]+@(\S+)`).FindAllStringSubmatch(string(ci), -1)
	require.NotEmpty(t, tools)
	for _, tool := range tools {
		require.Regexp(t, `^v[0-9]+\.[0-9]+\.[0-9]+$`, tool[1], "%s: a tool has an exact version", tool[0])
	}
	require.Contains(t, string(ci), "golang.org/x/vuln/cmd/govulncheck@v", "CI looks for known vulnerabilities")
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	require.NotContains(t, string(mod), "replace ")
}

func TestZ28_NothingDecodesTypesOfTheSendersChoice(t *testing.T) {
	for _, dir := range []string{".", "..", "../internal/jsonline", "../store/sqlite"} {
		files, _ := sources(t, dir)
		for _, file := range files {
			for _, spec := range file.Imports {
				require.NotContains(t, []string{`"encoding/gob"`, `"encoding/xml"`, `"plugin"`, `"unsafe"`}, spec.Path.Value, "%s: %s", dir, file.Name)
			}
		}
	}
}
