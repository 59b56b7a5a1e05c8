//go:build unix

package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// emittedEvent is an event that a handler emits: a child of its own event.
type emittedEvent struct{ name, eventType, key string }

// childrenOf derives what a handler emits from the seed, so that the parent knows it as well. It is the same in each attempt.
func childrenOf(seed uint64, name, sub string) (all []emittedEvent) {
	if strings.Count(name, "/") >= 4 { // a child of a child
		return nil
	}
	h := rand.New(rand.NewPCG(seed, hashOf("children", name, sub)))
	if h.IntN(100) >= 15 {
		return nil
	}
	for i := range 1 + h.IntN(3) {
		child := emittedEvent{name: fmt.Sprintf("%s/%s/%d", name, sub, i), eventType: crashTypeNames[h.IntN(len(crashTypeNames))]}
		if h.IntN(3) == 0 { // several of one handler run in this order
			child.key = fmt.Sprintf("key/%s/%s", name, sub)
		}
		all = append(all, child)
	}
	return all
}

// emitChildren emits what a handler emits, before the handler succeeds or fails. It reports whether the handler may go on.
func (c *crashChild) emitChildren(ctx context.Context, name, sub string) bool {
	if !c.spec.Emit {
		return true
	}
	for _, child := range childrenOf(c.spec.Seed, name, sub) {
		opts := c.intend(child.name, child.eventType, child.key, 0, eventbus.EventID{}, false)
		report("P", child.name, name, sub)
		for {
			id, err := eventbus.Emit(ctx, child.eventType, payloadOf(child.name), opts...)
			if err == nil {
				report("PA", child.name, id)
				break
			}
			if ctx.Err() != nil {
				return false
			}
			if !errors.Is(err, eventbus.ErrStoreFailed) && !errors.Is(err, eventbus.ErrShutdown) {
				report("V", fmt.Sprintf("D15: Emit of %s: %v", child.name, err))
			}
			time.Sleep(time.Millisecond)
		}
	}
	return true
}

// readEmitted takes the intent and the outcome of Emit.
func (o *crashOracle) readEmitted(e *crashEvent, f []string) {
	if f[0] == "PA" {
		if !e.acked { // an attempt that has emitted nothing may have had another id
			e.id = f[2]
		}
		return
	}
	parent := o.events[f[2]]
	if parent == nil || parent.target(f[3]) == nil {
		o.violate("K2", e, "an unknown handler emits it: %s of %s", f[3], f[2])
		return
	}
	e.parent, e.by = parent, parent.target(f[3])
	o.open[e.name] = e
	o.emissions++
}

// parentsFirst returns the open events, each behind the one whose handler emits it.
func (o *crashOracle) parentsFirst() (all []*crashEvent) {
	for _, e := range o.open {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *crashEvent) int { return strings.Count(a.name, "/") - strings.Count(b.name, "/") })
	return all
}

// checkEmitted compares an event with the handler that emits it, by one copy: either both the success of the handler and the event are
// there, or neither.
func (o *crashOracle) checkEmitted(e *crashEvent, found map[string]map[string]*status) {
	if e.parent == nil {
		return
	}
	exists := e.waits
	for _, t := range e.targets {
		s := found[e.name][t.name]
		exists = exists || t.seen || s != nil && (s.done || s.pending+s.dead > 0)
	}
	by := found[e.parent.name][e.by.name]
	if by == nil {
		by = &status{}
	}
	switch {
	case exists && e.by.ok == 0:
		o.violate("D15", e, "it exists, and %s of %s has not succeeded", e.by.name, e.parent.name)
	case exists && by.pending+by.dead > 0:
		o.violate("D15", e, "it exists, and the success of %s of %s is not recorded", e.by.name, e.parent.name)
	}
	if !e.acked && (by.done || e.parent.hasHandled(e.by)) {
		e.acked = true // from now on it must not be lost
		o.children++
	}
}

// hasHandled reports whether the last copy has shown that the success of a delivery is recorded.
func (e *crashEvent) hasHandled(t *crashTarget) bool {
	return strings.HasPrefix(t.closed, closedDone) && !t.gone && !e.cancelling
}

// awaitsParent reports whether the handler of the parent may still emit the event.
func (e *crashEvent) awaitsParent() bool {
	return e.parent != nil && !e.acked && (e.by.closed == "" || e.by.closed == closedDead)
}

// checkChildren checks that each handler that has succeeded has emitted each of its events.
func (o *crashOracle) checkChildren() {
	for _, e := range o.events {
		for _, t := range e.targets {
			if !e.hasHandled(t) {
				continue
			}
			all := childrenOf(o.seed, e.name, t.name)
			for _, child := range all {
				if of := o.events[child.name]; of == nil || !of.acked {
					o.violate("D15", e, "%s has succeeded, and %s does not exist: %+v", t.name, child.name, of)
				}
			}
			if len(all) > 0 {
				o.emitters++
			}
		}
	}
}
