package eventbus_test

import (
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

// part is a row of the type table: types that are one part of the core, and the parts that their methods may call. A new
// part is a type with a purpose, and never a pair of files.
type part struct {
	types []string
	calls []string // "*" for all
	inOne string   // the type that is meant in memory, if types has an interface
}

var parts = map[string]part{
	"Bus":        {types: []string{"Bus"}, calls: []string{"*"}},
	"views":      {types: []string{"views"}, calls: []string{"*"}},
	"operators":  {types: []string{"operators", "catalogKeeper"}, calls: []string{"Bus", "auditBook", "journal", "letterBook", "machine", "registry", "reporter", "store"}},
	"lifecycle":  {types: []string{"lifecycle"}, calls: []string{"journal", "machine", "registry", "reporter"}},
	"intake":     {types: []string{"intake"}, calls: []string{"auditBook", "journal", "letterBook", "machine", "registry", "reporter"}},
	"machine":    {types: []string{"machine", "door", "destinations"}, calls: []string{"journal", "registry", "reporter"}},
	"journal":    {types: []string{"journal", "memoryJournal", "durable", "feeder", "changeBatch"}, calls: []string{"auditBook", "intake", "letterBook", "machine", "operators", "registry", "reporter", "store"}, inOne: "memoryJournal"},
	"letterBook": {types: []string{"letterBook", "letterQueue", "storedLetters"}, calls: []string{"store"}, inOne: "letterQueue"},
	"auditBook":  {types: []string{"auditBook", "recentAudits", "storedAudits"}, calls: []string{"store"}, inOne: "recentAudits"},
	"registry":   {types: []string{"registry"}},
	"reporter":   {types: []string{"reporter"}},
	"store":      {types: []string{"guardedStore"}},
}

// Nothing calls a view but the exported methods.
func TestStructure_Rule1_TheTypeTable(t *testing.T) {
	c := newCallGraph(t)
	called := make(map[string]map[string]bool)
	for f := range c.bodies {
		from := c.partOf(f)
		if from == "" {
			continue
		}
		for _, to := range c.next(f) {
			if name := c.partOf(to); name != "" && name != from {
				if called[from] == nil {
					called[from] = make(map[string]bool)
				}
				called[from][name] = true
				allowed := parts[from].calls
				if !slices.Contains(allowed, name) && !slices.Contains(allowed, "*") || name == "views" && from != "Bus" {
					t.Errorf("%s of %s calls %s of %s", f.Name(), from, to.Name(), name)
				}
			}
		}
	}
	for from, row := range parts {
		for _, to := range row.calls {
			if to != "*" && !called[from][to] {
				t.Errorf("%s may call %s, and does not: remove it from the table", from, to)
			}
		}
	}
}

// The path of an event in memory, from Publish through its handlers to its end.
func TestStructure_Rule7_ThePathOfAnEvent(t *testing.T) {
	c := newCallGraph(t)
	reached := make(map[string]bool)
	seen := make(map[*types.Func]bool)
	var walk func(f *types.Func)
	walk = func(f *types.Func) {
		f = c.inMemory(f)
		if seen[f] {
			return
		}
		seen[f] = true
		if name := c.partOf(f); name != "" && name != "Bus" {
			reached[name] = true
		}
		for _, to := range c.next(f) {
			walk(to)
		}
	}
	for _, start := range []string{"Bus.Publish", "machine.work"} {
		f := c.named(start)
		if f == nil {
			t.Fatalf("there is no %s", start)
		}
		walk(f)
	}
	want := []string{"intake", "journal", "letterBook", "machine", "registry", "reporter"}
	if got := slices.Sorted(maps.Keys(reached)); !slices.Equal(got, want) {
		t.Errorf("from Publish and the loop, an event reaches %v, and not only %v", got, want)
	}
}

// callGraph has the functions of the root, and which use which.
type callGraph struct {
	typedPackage
	bodies map[*types.Func]*ast.FuncDecl
	part   map[string]string // of a type
}

func newCallGraph(t *testing.T) *callGraph {
	t.Helper()
	c := &callGraph{typedPackage: loadRoot(t), bodies: make(map[*types.Func]*ast.FuncDecl), part: make(map[string]string)}
	for name, row := range parts {
		for _, of := range row.types {
			if c.types.Scope().Lookup(of) == nil {
				t.Errorf("there is no type %s", of)
			}
			c.part[of] = name
		}
	}
	for _, f := range c.files {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				c.bodies[c.info.Defs[fn.Name].(*types.Func)] = fn
			}
		}
	}
	return c
}

// partOf returns the part that has a method, or "".
func (c *callGraph) partOf(f *types.Func) string {
	if recv := f.Signature().Recv(); recv != nil {
		return c.part[typeName(recv.Type())]
	}
	return ""
}

func (c *callGraph) named(name string) *types.Func {
	for f := range c.bodies {
		if recv := f.Signature().Recv(); recv != nil && typeName(recv.Type())+"."+f.Name() == name {
			return f
		}
	}
	return nil
}

// inMemory returns the method that a method of an interface is on a bus in memory.
func (c *callGraph) inMemory(f *types.Func) *types.Func {
	if c.bodies[f] == nil {
		if of := parts[c.partOf(f)].inOne; of != "" {
			return c.named(of + "." + f.Name())
		}
	}
	return f
}

// next returns the functions of the root that a function uses, each method of a part, and through functions and types that
// are of no part.
func (c *callGraph) next(f *types.Func) (all []*types.Func) {
	seen := make(map[*types.Func]bool)
	var walk func(f *types.Func)
	walk = func(f *types.Func) {
		body := c.bodies[f]
		if body == nil {
			return
		}
		ast.Inspect(body, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			callee, ok := c.info.Uses[id].(*types.Func)
			if !ok || callee.Pkg() != c.types || seen[callee.Origin()] {
				return true
			}
			callee = callee.Origin()
			seen[callee] = true
			if c.partOf(callee) != "" {
				all = append(all, callee)
			} else if !strings.HasPrefix(callee.Name(), "Err") {
				walk(callee)
			}
			return true
		})
	}
	walk(f)
	return all
}
