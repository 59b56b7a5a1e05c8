package loader

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/surebus/eventbus/mwl/internal/strictjson"
)

// resolve finds what the names of Steps and Flows mean.
func (l *loader) resolve() {
	for _, f := range l.flows {
		for i := range f.jumps {
			l.resolveJump(f, &f.jumps[i])
		}
	}
	for _, c := range l.calls {
		if c.name != nil {
			l.resolveFlow(c)
		}
	}
	for _, c := range l.calls {
		if c.target != nil {
			c.target.called = true
		}
	}
	l.findCycles()
}

func (l *loader) resolveJump(f *flowSite, j *jump) {
	step, ok := f.flow.Steps[j.node.Text]
	if ok {
		j.to = step
		j.set(step)
		return
	}
	remedy := "add it"
	if len(f.order) > 0 {
		remedy = l.effort.meant(j.node.Text, f.order)
	}
	if outer := f.outer; outer != nil && outer.flow.Steps[j.node.Text] != nil {
		remedy = "a Step of an outer Flow cannot be reached; return to it with a Return, or " + remedy
	}
	l.refuse(j.node, remedy, "there is no Step %q in this Flow", j.node.Text)
}

func (l *loader) resolveFlow(c *callSite) {
	var visible []string
	for f := c.flow; f != nil; f = f.outer {
		if target := f.names[c.name.Text]; target != nil {
			c.target, c.call.Flow = target, target.flow
			return
		}
		if l.effort.spend(16 * len(f.names)) {
			visible = append(visible, slices.Sorted(maps.Keys(f.names))...)
		}
	}
	remedy := l.effort.meant(c.name.Text, visible)
	switch {
	case strings.HasPrefix(c.name.Text, "mwl:"):
		remedy = `name providers with "provider"`
	case len(visible) == 0:
		remedy = `declare it in "flows"`
	}
	l.refuse(c.name, remedy, "there is no Flow %q in the flows of this Flow or of those around it", c.name.Text)
}

// findCycles refuses Flows that reach themselves by calls.
func (l *loader) findCycles() {
	state := map[*flowSite]int{} // 1: on the path, 2: done
	var path []*flowSite
	var visit func(f *flowSite)
	visit = func(f *flowSite) {
		state[f] = 1
		path = append(path, f)
		for _, c := range f.calls {
			switch {
			case c.target == nil:
			case state[c.target] == 0:
				visit(c.target)
			case state[c.target] == 1:
				l.refuse(c.targetNode(), "repeat with Loop, or by routing within one Flow", "the Flow reaches itself: %s", cycle(path, c.target))
			}
		}
		path = path[:len(path)-1]
		state[f] = 2
	}
	for _, f := range l.flows {
		if state[f] == 0 {
			visit(f)
		}
	}
}

func (c *callSite) targetNode() *strictjson.Node { return c.node.Member("flow") }

// cycle is the part of the path that begins with the Flow, and the Flow again; a
// long one without its middle.
func cycle(path []*flowSite, start *flowSite) string {
	var names []string
	path = path[slices.Index(path, start):]
	for i, f := range path {
		switch {
		case i < 6 || i == len(path)-1:
			names = append(names, f.String())
		case i == 6:
			names = append(names, "…")
		}
	}
	return strings.Join(append(names, start.String()), " calls ")
}

// String names the Flow for people.
func (f *flowSite) String() string {
	switch {
	case f.flow.Name != "":
		return fmt.Sprintf("%q", f.flow.Name)
	case f.outer == nil:
		return "the root"
	default:
		return "the Flow at " + f.flow.Pointer
	}
}
