package loader

import (
	"maps"
	"slices"

	"github.com/surebus/eventbus/mwl/internal/definition"
)

// lintReruns warns of middleware that re-runs what re-runs, too: the runs
// multiply.
func (l *loader) lintReruns() {
	stacks, flows := map[*definition.Step]*stackSite{}, map[*definition.Flow]*flowSite{}
	for _, s := range l.stacks {
		if s.step != nil {
			stacks[s.step] = s
		}
	}
	for _, f := range l.flows {
		flows[f.flow] = f
	}
	r := reruns{stacks: stacks, flows: flows, found: map[*flowSite]string{}}
	for _, s := range l.stacks {
		for i, e := range s.entries {
			if !e.Contract.Reruns {
				continue
			}
			if inner := r.within(s, i+1); inner != "" {
				l.warn(s.nodes[i], "make sure that the product of their runs is what you want",
					"what this middleware re-runs holds middleware that re-runs, too, at %s", inner)
			}
		}
	}
}

// reruns finds middleware that re-runs its scope.
type reruns struct {
	stacks map[*definition.Step]*stackSite
	flows  map[*definition.Flow]*flowSite
	// found has what was found in a Flow, its own stack included.
	found map[*flowSite]string
}

// within returns the pointer of the first one inside the stack's first entries,
// "" for none.
func (r reruns) within(s *stackSite, from int) string {
	if p := r.first(s.entries[from:]); p != "" {
		return p
	}
	switch {
	case s.level == definition.FlowLevel:
		return r.graph(s.flow)
	case s.step != nil && s.step.Call.Flow != nil:
		return r.flow(r.flows[s.step.Call.Flow])
	default:
		return ""
	}
}

// first looks at entries and at the cleanup that they make.
func (r reruns) first(entries []*definition.Entry) string {
	for _, e := range entries {
		if e.Contract.Reruns {
			return e.Pointer
		}
		for _, block := range e.Blocks {
			for _, name := range slices.Sorted(maps.Keys(block.Structural)) {
				structure := block.Structural[name]
				if p := r.first(structure.Stack); p != "" {
					return p
				}
				if call := structure.Call; call != nil && call.Flow != nil {
					if p := r.flow(r.flows[call.Flow]); p != "" {
						return p
					}
				}
			}
		}
	}
	return ""
}

func (r reruns) flow(f *flowSite) string {
	if p, ok := r.found[f]; ok {
		return p
	}
	p := r.first(f.flow.Middleware)
	if p == "" {
		p = r.graph(f)
	}
	r.found[f] = p
	return p
}

// graph looks at the Steps of a Flow.
func (r reruns) graph(f *flowSite) string {
	for _, name := range f.order {
		step := f.flow.Steps[name]
		if p := r.first(step.Middleware); p != "" {
			return p
		}
		calls := []*definition.Call{step.Call}
		if step.Gather != nil && step.Call == nil {
			calls = step.Gather.Calls
		}
		for _, c := range calls {
			if c == nil || c.Flow == nil {
				continue
			}
			if p := r.flow(r.flows[c.Flow]); p != "" {
				return p
			}
		}
	}
	return ""
}
