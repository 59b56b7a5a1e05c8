package loader

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/definition"
	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// finding is a problem or a warning that is not located yet.
type finding struct {
	node *strictjson.Node
	// member is the name of one that is not in the tree's node, or nil.
	member          *string
	offset          int
	message, remedy string
}

func (f *finding) pointer() string {
	if f.member != nil {
		return strictjson.AppendToken(f.node.Pointer(), *f.member)
	}
	return f.node.Pointer()
}

type findings struct {
	found []finding
	// more counts those that were dropped before.
	more int
}

// list returns the first ones, with the given problems that were found before, in
// document order, and the number of those that it leaves out.
func (f *findings) list(document *strictjson.Node, before []definition.Problem, limit int) ([]definition.Problem, int) {
	slices.SortStableFunc(f.found, func(a, b finding) int { return cmp.Compare(a.offset, b.offset) })
	found, more := f.found, f.more
	if limit > 0 && len(found) > limit {
		found, more = found[:limit], more+len(found)-limit
	}
	list := before
	for _, p := range found {
		line, column := document.PositionAt(p.offset)
		list = append(list, definition.Problem{
			Pointer: p.pointer(), Line: line, Column: column, Source: document.Excerpt(p.offset), Message: p.message, Remedy: p.remedy,
		})
	}
	slices.SortStableFunc(list, func(a, b definition.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if limit > 0 && len(list) > limit {
		list, more = list[:limit], more+len(list)-limit
	}
	return list, more
}

// misshapen records that the value contradicts the shape of definitions.
func (l *loader) misshapen(n *strictjson.Node, remedy, format string, args ...any) {
	l.problems.add(n, n.Offset, remedy, format, args...)
}

// misnamed is misshapen for a member that the object must not have.
func (l *loader) misnamed(n *strictjson.Node, m strictjson.Member, remedy, format string, args ...any) {
	l.problems.add(n, m.NameOffset, remedy, format, args...)
	l.problems.found[len(l.problems.found)-1].member = &m.Name
}

// refuse records a problem that is beyond shape.
func (l *loader) refuse(n *strictjson.Node, remedy, format string, args ...any) {
	if !l.shapeOnly {
		l.problems.add(n, n.Offset, remedy, format, args...)
	}
}

// argument records a literal argument that fails at run time.
func (l *loader) argument(n *strictjson.Node, remedy, format string, args ...any) {
	if l.options.DeferArgumentErrors {
		l.warn(n, remedy, format, args...)
		return
	}
	l.refuse(n, remedy, format, args...)
}

// warn records what is likely a mistake.
func (l *loader) warn(n *strictjson.Node, remedy, format string, args ...any) {
	if !l.shapeOnly {
		l.warnings.add(n, n.Offset, remedy, format, args...)
	}
}

func (f *findings) add(n *strictjson.Node, offset int, remedy, format string, args ...any) {
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = clip(text, 300)
		}
	}
	f.found = append(f.found, finding{node: n, offset: offset, message: fmt.Sprintf(format, args...), remedy: clip(remedy, 600)})
}

// clip shortens what may come from the document.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// maxPointers bounds the bytes of all pointers in a tree.
const maxPointers = 32 << 20

// pointer is the node's JSON pointer, for the tree.
func (l *loader) pointer(n *strictjson.Node) string {
	if l.pointers > maxPointers {
		return ""
	}
	pointer := n.Pointer()
	if l.pointers += len(pointer); l.pointers > maxPointers {
		l.refuse(n, "make them shorter", "the names of Steps and Flows are too long for so many fields")
	}
	return pointer
}
