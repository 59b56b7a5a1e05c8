package expr

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/surebus/eventbus/mwl/internal/regex"
)

// Name is a name in an expression that resolves to nothing at its site, or may resolve to nothing. An evaluation that reaches it faults; one that goes around it does not.
type Name struct {
	// Name is the root or the function.
	Name string
	// Function tells a function from a root.
	Function bool
	// Offset counts the bytes of the string, delimiters included, before the name.
	Offset int
	// Message names the offence.
	Message string
	// Remedy is what to do about it; "" when it depends on more than the expression.
	Remedy string
}

// analysis is what a walk over the syntax tree finds.
type analysis struct {
	env   *environment
	info  *ast.SourceInfo
	roots Root

	// references and types tell CEL which names are roots, so that it need not try what else they could be at each evaluation.
	references map[int64]*ast.ReferenceInfo
	types      map[int64]*types.Type
	unresolved []Name
	// details are the reads below the details of failures, guarded the failures whose details the expression tests for.
	details []Name
	guarded map[string]bool
	// counted is set when the expression's work is not bounded by its text and data.
	counted bool
	// In an expression with a comprehension, comparisons, maps with keys (keyed) and the comprehensions (loops) are
	// guarded. Messages and calls of matches() are guarded everywhere.
	comparisons, keyed, loops, messages, matches []ast.Expr
	// patterns are the constant ones of matches(), each as often as it is compiled, and sizes their sizes.
	patterns       []string
	sizes          map[string]int
	depth, deepest int
	// local counts the variables of enclosing comprehensions.
	local map[string]int
}

func (e *environment) analyze(tree *ast.AST, roots Root) *analysis {
	a := &analysis{
		env: e, info: tree.SourceInfo(), roots: roots,
		references: map[int64]*ast.ReferenceInfo{}, types: map[int64]*types.Type{}, local: map[string]int{}, guarded: map[string]bool{}, sizes: map[string]int{},
	}
	a.walk(tree.Expr())
	a.guard()
	a.details = slices.DeleteFunc(a.details, func(n Name) bool { return a.guarded[n.Name] })
	return a
}

func (a *analysis) walk(x ast.Expr) {
	a.depth++
	a.deepest = max(a.deepest, a.depth)
	defer func() { a.depth-- }()
	switch x.Kind() {
	case ast.IdentKind:
		a.ident(x, x.AsIdent())
	case ast.SelectKind:
		a.readsDetails(x, x.AsSelect().Operand())
		if failure, ok := qualified(x.AsSelect().Operand()); ok && x.AsSelect().IsTestOnly() && x.AsSelect().FieldName() == "details" {
			a.guarded[failure] = true
		}
		if name, ok := qualified(x); !ok || !a.isIdent(name) {
			a.walk(x.AsSelect().Operand())
		}
	case ast.CallKind:
		a.call(x)
	case ast.ListKind:
		for _, e := range x.AsList().Elements() {
			a.walk(e)
		}
	case ast.MapKind:
		a.keyed = append(a.keyed, x)
		for _, entry := range x.AsMap().Entries() {
			a.walk(entry.AsMapEntry().Key())
			a.walk(entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		a.counted = true
		a.messages = append(a.messages, x)
		for _, field := range x.AsStruct().Fields() {
			a.walk(field.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		a.loops = append(a.loops, x)
		a.comprehension(x.AsComprehension())
	case ast.LiteralKind, ast.UnspecifiedExprKind:
	}
}

func (a *analysis) guard() {
	g := guarding{factory: ast.NewExprFactory(), next: 1 << 40}
	for _, x := range a.messages {
		g.message(x)
	}
	for _, x := range a.matches {
		g.match(x, a.sizes)
	}
	if a.loops == nil { // values that are compared and hashed once are bounded by the data
		return
	}
	for _, x := range a.comparisons {
		g.comparison(x)
	}
	for _, x := range a.keyed {
		g.key(x)
	}
	for _, x := range a.loops {
		g.loop(x)
	}
}

// guarding puts functions with a guard or a cost around the operands of what CEL plans without a call. Loops would repeat that without a limit, or make values
// whose parts repeat without end.
type guarding struct {
	factory ast.ExprFactory
	// next is the id of the next node. CEL numbers from 1.
	next int64
}

// wrap returns a call with x as its argument. Literals are bounded by the text.
func (g *guarding) wrap(function string, x ast.Expr, more ...ast.Expr) ast.Expr {
	if x.Kind() == ast.LiteralKind {
		return x
	}
	return g.factory.NewCall(g.id(), function, append([]ast.Expr{x}, more...)...)
}

func (g *guarding) id() int64 {
	g.next++
	return g.next
}

func (g *guarding) comparison(x ast.Expr) {
	call, name := x.AsCall(), equalsName
	if call.FunctionName() == operators.NotEquals {
		name = differsName
	}
	x.SetKindCase(g.factory.NewCall(x.ID(), name, call.Args()...))
}

// key wraps the key of an index, or those of a map.
func (g *guarding) key(x ast.Expr) {
	if x.Kind() == ast.CallKind {
		args := x.AsCall().Args()
		x.SetKindCase(g.factory.NewCall(x.ID(), operators.Index, args[0], g.wrap(keyName, args[1])))
		return
	}
	var entries []ast.EntryExpr
	for _, e := range x.AsMap().Entries() {
		entry := e.AsMapEntry()
		entries = append(entries, g.factory.NewMapEntry(e.ID(), g.wrap(keyName, entry.Key()), entry.Value(), entry.IsOptional()))
	}
	x.SetKindCase(g.factory.NewMap(x.ID(), entries))
}

// loop counts the iterations of a loop that need not make a call, such as exists_one(x, false). Loops that make lists do.
func (g *guarding) loop(x ast.Expr) {
	c := x.AsComprehension()
	if c.LoopCondition().Kind() != ast.LiteralKind || c.AccuInit().Kind() == ast.ListKind || c.HasIterVar2() {
		return
	}
	condition := g.factory.NewCall(g.id(), turnName, c.LoopCondition())
	x.SetKindCase(g.factory.NewComprehension(x.ID(), c.IterRange(), c.IterVar(), c.AccuVar(), c.AccuInit(), condition, c.LoopStep(), c.Result()))
}

func (g *guarding) message(x ast.Expr) {
	var fields []ast.EntryExpr
	for _, e := range x.AsStruct().Fields() {
		field := e.AsStructField()
		fields = append(fields, g.factory.NewStructField(e.ID(), field.Name(), g.wrap(fieldName, field.Value()), field.IsOptional()))
	}
	x.SetKindCase(g.factory.NewStruct(x.ID(), x.AsStruct().TypeName(), fields))
}

// match wraps the text for a constant pattern: CEL compiles the pattern in advance, and calls nothing of ours.
func (g *guarding) match(x ast.Expr, sizes map[string]int) {
	call := x.AsCall()
	args := call.Args()
	pattern, _ := constantText(args[len(args)-1])
	size := g.factory.NewLiteral(g.id(), types.Int(sizes[pattern]))
	if call.IsMemberFunction() {
		x.SetKindCase(g.factory.NewMemberCall(x.ID(), "matches", g.wrap(subjectName, call.Target(), size), args...))
	} else {
		x.SetKindCase(g.factory.NewCall(x.ID(), "matches", g.wrap(subjectName, args[0], size), args[1]))
	}
}

func (a *analysis) comprehension(c ast.ComprehensionExpr) {
	a.counted = true
	a.walk(c.IterRange())
	a.walk(c.AccuInit())
	a.local[c.AccuVar()]++
	names := []string{c.IterVar()}
	if c.HasIterVar2() {
		names = append(names, c.IterVar2())
	}
	for _, name := range names {
		a.local[name]++
	}
	a.walk(c.LoopCondition())
	a.walk(c.LoopStep())
	for _, name := range names {
		a.local[name]--
	}
	a.walk(c.Result())
	a.local[c.AccuVar()]--
}

func (a *analysis) ident(x ast.Expr, name string) {
	if a.local[name] > 0 {
		return
	}
	// A leading dot goes around the variables of comprehensions; CEL sees to that.
	name, global := strings.CutPrefix(name, ".")
	root := rootOf(name)
	switch {
	case global && root != 0 && a.roots&root != 0:
	case root != 0 && a.roots&root != 0, name == nowName, name == wallName:
		a.references[x.ID()] = ast.NewIdentReference(name, nil)
		a.types[x.ID()] = types.DynType
	case root != 0:
		a.report(x, name, false, fmt.Sprintf("%s is not in scope here: the roots are %s", name, a.roots))
	case !a.isIdent(name):
		a.report(x, name, false, fmt.Sprintf("%s is not defined: the roots here are %s", name, a.roots))
	}
}

// isIdent reports whether CEL knows the name by itself, as that of a type for example.
func (a *analysis) isIdent(name string) bool {
	_, ok := a.env.CELTypeProvider().FindIdent(strings.TrimPrefix(name, "."))
	return ok
}

func (a *analysis) call(x ast.Expr) {
	call := x.AsCall()
	name := call.FunctionName()
	walkTarget := call.IsMemberFunction()
	if walkTarget {
		if prefix, ok := qualified(call.Target()); ok && a.isFunction(prefix+"."+name) {
			name, walkTarget = prefix+"."+name, false
		}
	}
	if walkTarget {
		a.walk(call.Target())
	}
	for _, arg := range call.Args() {
		a.walk(arg)
	}
	switch args := call.Args(); {
	case len(args) != 2:
	case name == operators.Index:
		a.readsDetails(x, args[0])
		a.keyed = append(a.keyed, x)
	case name == operators.In && args[0].Kind() == ast.LiteralKind && args[0].AsLiteral().Value() == "details":
		if failure, ok := qualified(args[1]); ok {
			a.guarded[failure] = true
		}
	}
	if name == operators.Equals || name == operators.NotEquals {
		a.comparisons = append(a.comparisons, x)
	}
	if !plainCall(name, len(call.Args())) && !a.brief(name, call.Args()) {
		a.counted = true
	}
	if name == "matches" {
		a.pattern(x, call)
	}
	if !a.isFunction(name) {
		a.report(x, name, true, fmt.Sprintf("there is no function %s()", name))
	}
}

// pattern records a call of matches() with a constant pattern.
func (a *analysis) pattern(x ast.Expr, call ast.CallExpr) {
	args := call.Args()
	if len(args) == 0 || len(args) == 1 && !call.IsMemberFunction() || len(args) > 2 {
		return
	}
	if pattern, ok := constantText(args[len(args)-1]); ok {
		a.sizes[pattern], _ = regex.Size(pattern) // the compiler refuses a pattern that is too large
		a.patterns = append(a.patterns, pattern)
		a.matches = append(a.matches, x)
	}
}

// readsDetails records that x reads a member of object, if that is the details of a failure. They may be absent, and has(failure.details.x) faults then, too.
func (a *analysis) readsDetails(x, object ast.Expr) {
	path, ok := qualified(object)
	failure, isDetails := strings.CutSuffix(path, ".details")
	if !ok || !isDetails || a.local[failure] > 0 {
		return
	}
	root, member, _ := strings.Cut(failure, ".")
	if root != "failure" && (rootOf(root) == 0 || member != "result") {
		return
	}
	offset := 0
	if at, ok := a.info.GetOffsetRange(x.ID()); ok {
		offset = int(at.Start)
	}
	a.details = append(a.details, Name{
		Name: failure, Offset: offset,
		Message: path + " may be absent, and then the expression fails",
		Remedy:  fmt.Sprintf("test it first: has(%s) && …, also before has(%s.x)", path, path),
	})
}

func constantText(x ast.Expr) (string, bool) {
	if x.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := x.AsLiteral().(types.String)
	return string(s), ok
}

func (a *analysis) isFunction(name string) bool {
	return a.env.functions[strings.TrimPrefix(name, ".")]
}

func (a *analysis) report(x ast.Expr, name string, function bool, text string) {
	offset := 0
	if at, ok := a.info.GetOffsetRange(x.ID()); ok {
		offset = int(at.Start)
	}
	a.unresolved = append(a.unresolved, Name{Name: name, Function: function, Offset: offset, Message: text})
}

// qualified returns the dotted name that a chain of selections from an identifier spells.
func qualified(x ast.Expr) (string, bool) {
	switch x.Kind() {
	case ast.IdentKind:
		return x.AsIdent(), true
	case ast.SelectKind:
		s := x.AsSelect()
		if s.IsTestOnly() {
			return "", false
		}
		prefix, ok := qualified(s.Operand())
		return prefix + "." + s.FieldName(), ok
	default:
		return "", false
	}
}

// brief reports whether a call whose work is linear in general is bounded by a literal argument.
func (a *analysis) brief(name string, args []ast.Expr) bool {
	switch name {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return slices.ContainsFunc(args, isConstant)
	case operators.Add:
		return slices.ContainsFunc(args, func(x ast.Expr) bool {
			_, text := constantText(x)
			return isConstant(x) && !text
		})
	case operators.In:
		return args[1].Kind() == ast.ListKind
	}
	return false
}

func isConstant(x ast.Expr) bool { return x.Kind() == ast.LiteralKind }
