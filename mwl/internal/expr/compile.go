package expr

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"

	"github.com/surebus/eventbus/mwl/internal/regex"
)

// Limits bound an expression and its evaluation. A zero field means its default.
type Limits struct {
	// Length is how many bytes a string with an expression may have: 8 KiB.
	Length int
	// Total is how many bytes the expressions of one compiler may have together: 128 KiB. A KiB takes about 10 ms to compile and keeps about 200 KiB.
	Total int
	// Depth is how deep its syntax may nest: 200.
	Depth int
	// Cost is how much work one evaluation may do, in CEL's units of cost; about a million take 0.1 s: 1,000,000. Expressions whose calls all take
	// constant time are not counted: their text bounds them.
	Cost uint64
	// Message is how many bytes the text of a fault may have: 1 KiB.
	Message int
}

func (l Limits) withDefaults() Limits {
	if l.Length <= 0 {
		l.Length = 8 << 10
	}
	if l.Total <= 0 {
		l.Total = 128 << 10
	}
	if l.Depth <= 0 {
		l.Depth = 200
	}
	if l.Cost == 0 {
		l.Cost = 1_000_000
	}
	if l.Message <= 0 {
		l.Message = 1 << 10
	}
	return l
}

// Compiler compiles expressions under the same limits. It is safe for concurrent use.
type Compiler struct {
	env    *environment
	limits Limits
	// length is the length of all expressions, in bytes.
	length atomic.Int64
	// patterns is the size of all constant patterns, which CEL compiles in advance.
	patterns atomic.Int64
}

// maxPatterns bounds the size of all constant patterns of a compiler, in instructions.
const maxPatterns = 20 * regex.MaxSize

// NewCompiler returns a compiler. It is cheap: what it needs of CEL is built once per process.
func NewCompiler(limits Limits) (*Compiler, error) {
	env, err := shared()
	if err != nil {
		return nil, err
	}
	return &Compiler{env: env, limits: limits.withDefaults()}, nil
}

// environment is CEL with the language's additions: syntax, functions, and no variable, since expressions are not type-checked. A checker would refuse what the language allows, a
// conditional whose sides differ in type above all.
type environment struct {
	*cel.Env
	replaced []*functions.Overload
	// functions holds the names of all functions.
	functions map[string]bool
}

var shared = sync.OnceValues(func() (*environment, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	a := adapter{registry}
	options := append([]cel.EnvOption{
		cel.CustomTypeAdapter(a),
		cel.CustomTypeProvider(registry),
		cel.CrossTypeNumericComparisons(true),
		// The versions of github.com/google/cel-go/ext, which the profiles name. Later ones have functions that are not portable, and need optional values.
		ext.Strings(ext.StringsVersion(5)),
		ext.Lists(ext.ListsVersion(3)),
		ext.Sets(),
		ext.Encoders(ext.EncodersVersion(1)),
		ext.Math(ext.MathVersion(3)),
	}, language(a)...)
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, err
	}
	g, err := replacements(env)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for name := range env.Functions() {
		names[name] = true
	}
	return &environment{Env: env, replaced: g, functions: names}, nil
})

// Compile compiles one expression, written with its delimiters, for a site that sees the given roots. The error is a *SyntaxError. A name that does not resolve is no
// error: it faults when an evaluation reaches it; see [Program.Names].
func (c *Compiler) Compile(s string, roots Root) (*Program, error) {
	p, err := c.compile(s, roots)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Compiler) compile(s string, roots Root) (*Program, *SyntaxError) {
	body, ok := Body(s)
	if !ok {
		return nil, at(s, 0, "it is not one expression between {{ and }}")
	}
	if len(s) > c.limits.Length {
		return nil, at(s, 0, fmt.Sprintf("it has %d bytes, more than the %d that are allowed: compute parts in earlier Steps", len(s), c.limits.Length))
	}
	if c.length.Add(int64(len(s))) > int64(c.limits.Total) {
		return nil, at(s, 0, fmt.Sprintf("all expressions together have more than the %d bytes that are allowed: write shorter ones, or split the definition", c.limits.Total))
	}
	if i := firstInvalid(s); i >= 0 {
		return nil, at(s, i, "it is not valid UTF-8")
	}
	if strings.TrimSpace(body) == "" {
		return nil, at(s, len(opening), "it is empty: write an expression, or null for no value")
	}
	parsed, issues := c.env.Parse(body)
	if err := issues.Err(); err != nil {
		return nil, syntaxError(s, body, issues)
	}
	p := &Program{source: strings.TrimSpace(body), roots: roots, messageLimit: c.limits.Message, costLimit: c.limits.Cost}
	tree := parsed.NativeRep()
	seen := c.env.analyze(tree, roots)
	if seen.deepest > c.limits.Depth {
		return nil, at(s, len(opening), fmt.Sprintf("it nests deeper than the %d levels that are allowed: compute parts in earlier Steps", c.limits.Depth))
	}
	for _, pattern := range seen.patterns {
		size, err := regex.Size(pattern)
		if err == nil && c.patterns.Add(int64(size)) > maxPatterns {
			err = errors.New("the patterns of all expressions together are too large: use shorter repetitions, or fewer patterns")
		}
		if err != nil {
			return nil, at(s, len(opening), err.Error())
		}
	}
	for _, names := range [][]Name{seen.unresolved, seen.details} {
		for i := range names {
			names[i].Offset = len(opening) + offsetOf(body, names[i].Offset)
		}
	}
	p.unresolved, p.details, p.counted = seen.unresolved, seen.details, seen.counted
	p.program, p.broken = c.env.plan(ast.NewCheckedAST(tree, seen.types, seen.references), c.limits, seen)
	return p, nil
}

// plan makes the program. What CEL finds wrong only now, a constant regular expression that does not compile for example, is found again when an evaluation reaches it; so it is
// tried without the optimization first, and what still fails faults at every evaluation.
func (e *environment) plan(tree *ast.AST, limits Limits, seen *analysis) (cel.Program, error) {
	options := []cel.ProgramOption{inPlace(e.replaced)}
	if seen.counted {
		options = append(options, cel.CostTracking(work{seen.sizes}), cel.CostLimit(limits.Cost), cel.InterruptCheckFrequency(10))
	}
	program, err := e.tryPlan(tree, append(options, cel.EvalOptions(cel.OptOptimize)))
	if err == nil {
		return program, nil
	}
	return e.tryPlan(tree, options)
}

// tryPlan survives what CEL does not: it evaluates constant parts while it plans, and panics at a map with a key of bytes.
func (e *environment) tryPlan(tree *ast.AST, options []cel.ProgramOption) (program cel.Program, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("CEL cannot plan it: %v", r)
		}
	}()
	return e.PlanProgram(tree, options...)
}

// inPlace puts overloads in the place of those of the environment.
func inPlace(overloads []*functions.Overload) cel.ProgramOption {
	return cel.Functions(overloads...) //nolint:staticcheck // The way that replaced it declares new functions; these take the place of declared ones.
}

func firstInvalid(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return i
			}
		}
	}
	return -1
}

// at makes the error for a byte of the string.
func at(s string, offset int, text string) *SyntaxError {
	line := 1 + strings.Count(s[:offset], "\n")
	start := strings.LastIndexByte(s[:offset], '\n') + 1
	return &SyntaxError{Offset: offset, Line: line, Column: 1 + utf8.RuneCountInString(s[start:offset]), Text: text}
}

func syntaxError(s, body string, issues *cel.Issues) *SyntaxError {
	errs := issues.Errors()
	if len(errs) == 0 {
		return at(s, len(opening), issues.Err().Error())
	}
	first := errs[0]
	for _, e := range errs[1:] {
		if before(e, first) {
			first = e
		}
	}
	offset := 0
	for line := 1; line < first.Location.Line(); line++ {
		next := strings.IndexByte(body[offset:], '\n')
		if next < 0 {
			break
		}
		offset += next + 1
	}
	for column := 0; column < first.Location.Column() && offset < len(body); column++ {
		_, size := utf8.DecodeRuneInString(body[offset:])
		offset += size
	}
	return at(s, len(opening)+offset, clip(plainly(strings.TrimPrefix(first.Message, "Syntax error: ")), 512))
}

func before(a, b *cel.Error) bool {
	if a.Location.Line() != b.Location.Line() {
		return a.Location.Line() < b.Location.Line()
	}
	return a.Location.Column() < b.Location.Column()
}

// offsetOf turns an offset in characters into one in bytes.
func offsetOf(s string, characters int) int {
	for i := range s {
		if characters == 0 {
			return i
		}
		characters--
	}
	return len(s)
}
