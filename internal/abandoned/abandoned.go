// Package abandoned keeps the calls that were abandoned and still run.
package abandoned

import (
	"sync"
	"time"

	"github.com/surebus/eventbus/internal/circuit"
)

// Calls is the set of calls C that were abandoned and still run. The zero Calls is empty.
type Calls[C comparable] struct {
	mu    sync.Mutex // guards the following
	calls map[C]call
	late  map[C]bool // calls that ended before they were added
}

type call struct {
	since  time.Time
	counts []count
}

// count is a Hanging count that includes a call.
type count struct {
	in  *circuit.Hanging
	era uint32 // see circuit.Hanging
}

// Add adds a call that counts in all of some Hanging counts. For each that becomes hung by this call, hung has how often that has
// happened, and 0 for the others.
func (a *Calls[C]) Add(c C, since time.Time, in ...*circuit.Hanging) (hung []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.late[c] {
		delete(a.late, c)
		return nil
	}
	one := call{since: since}
	for _, h := range in {
		era, shuts := h.Add()
		one.counts, hung = append(one.counts, count{h, era}), append(hung, shuts)
	}
	if a.calls == nil {
		a.calls = make(map[C]call)
	}
	a.calls[c] = one
	return hung
}

// Remove removes a call. It reports whether one of its Hanging counts is no longer hung.
func (a *Calls[C]) Remove(c C) (resumes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one, added := a.calls[c]
	if !added {
		if a.late == nil {
			a.late = make(map[C]bool)
		}
		a.late[c] = true
		return false
	}
	delete(a.calls, c)
	for _, n := range one.counts {
		resumes = n.in.Remove(n.era) || resumes
	}
	return resumes
}

// Len returns the number of calls.
func (a *Calls[C]) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.calls)
}

// Each calls visit with each call, and when it was abandoned, under the lock of the set.
func (a *Calls[C]) Each(visit func(c C, since time.Time)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c, one := range a.calls {
		visit(c, one.since)
	}
}
