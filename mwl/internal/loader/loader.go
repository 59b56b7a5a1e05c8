// Package loader reads workflow definitions: strict JSON, the shape of Flow
// objects, and the checks that need no execution. It reports all problems that
// it can find, not the first.
package loader

import (
	"fmt"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/expr"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// Options say what a definition may use and how large it may be. A limit that is
// zero or less is none.
type Options struct {
	// Catalog resolves provider URIs. One that has the method URIs() []string, too,
	// lets the loader say which URI was meant.
	Catalog definition.Catalog
	// Compiler compiles expressions, and bounds their length.
	Compiler *expr.Compiler
	// MaxBytes is the size of the document.
	MaxBytes int
	// MaxDepth is how deep its arrays and objects may nest.
	MaxDepth int
	// MaxFlowNesting is how deep Flow objects may nest; the root alone is 1.
	MaxFlowNesting int
	// MaxSteps and MaxExpressions count those of the whole document.
	MaxSteps, MaxExpressions int
	// MaxFanOut and MaxRunDepth are limits of the executions: loading warns of what
	// always exceeds them.
	MaxFanOut, MaxRunDepth int
	// DeferArgumentErrors makes literal arguments that are not valid a warning, as the
	// language has it. Otherwise they are problems.
	DeferArgumentErrors bool
	// MaxProblems is how many problems, and how many warnings, are returned. One more
	// warning says how many were left out.
	MaxProblems int
}

// Load reads the definition that source holds, which must not be altered any
// more. It returns a tree if and only if there are no problems; more is how many
// problems were left out because of MaxProblems. Problems and warnings are in
// document order. Loading is deterministic.
func Load(source []byte, o Options) (root *definition.Root, problems []definition.Problem, more int) {
	l := &loader{options: o, effort: utmost}
	document, broken := l.parse(source)
	if document == nil {
		return nil, broken, l.problems.more
	}
	flow := l.flow(document, nil, "")
	l.resolve()
	if problems, more = l.problems.list(document, broken, o.MaxProblems); len(problems) > 0 {
		return nil, problems, more
	}
	l.lint()
	if problems, more = l.problems.list(document, nil, o.MaxProblems); len(problems) > 0 {
		return nil, problems, more
	}
	return &definition.Root{Flow: flow.flow, Source: source, Warnings: l.listWarnings(document)}, nil, 0
}

// listWarnings returns the first warnings. The last one stands where those that are
// left out begin, and counts them.
func (l *loader) listWarnings(document *strictjson.Node) []definition.Problem {
	limit := l.options.MaxProblems
	if limit <= 0 {
		warnings, _ := l.warnings.list(document, nil, 0)
		return warnings
	}
	warnings, more := l.warnings.list(document, nil, limit+1)
	if len(warnings) > limit {
		warnings[limit].Message = fmt.Sprintf("there are %d more warnings from here on", more+1)
		warnings[limit].Remedy = "mend those above first"
	}
	return warnings
}

// Shape checks only what the language's published schema for definitions can
// say: neither names nor provider URIs are resolved, and no expression is read.
func Shape(source []byte, o Options) (problems []definition.Problem, more int) {
	l := &loader{options: o, effort: utmost, shapeOnly: true}
	document, broken := l.parse(source)
	if document == nil {
		return broken, l.problems.more
	}
	l.flow(document, nil, "")
	return l.problems.list(document, broken, o.MaxProblems)
}

// loader is the state of loading one document.
type loader struct {
	options   Options
	shapeOnly bool

	problems, warnings findings

	// flows are all Flow objects, outer ones before inner ones.
	flows []*flowSite
	// calls are all call objects, and stacks all middleware arrays.
	calls  []*callSite
	stacks []*stackSite

	steps, expressions int
	// pointers counts the bytes of those in the tree.
	pointers int
	effort   effort
}

func (l *loader) parse(source []byte) (*strictjson.Node, []definition.Problem) {
	root, unreadable, more := strictjson.Parse(source, strictjson.Limits{
		Bytes: l.options.MaxBytes, Depth: l.options.MaxDepth, Problems: l.options.MaxProblems,
	})
	l.problems.more = more
	problems := make([]definition.Problem, len(unreadable))
	for i, p := range unreadable {
		problems[i] = definition.Problem{
			Pointer: p.Pointer, Line: p.Line, Column: p.Column, Source: p.Source, Message: p.Message, Remedy: p.Remedy,
		}
	}
	return root, problems
}
