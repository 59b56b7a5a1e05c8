// Package suspects chooses what runs together of things that may crash the process.
package suspects

import "sync"

// groups are the sizes of the groups in which suspects run, by the crashes since they became suspects.
var groups = [...]int{64, 8, 1}

// Fatal is the number of crashes since it became a suspect after which one is known to be the cause.
const Fatal = len(groups)

// Waiting are the suspects that wait until their group runs: one group at a time. The zero value is empty. Its
// methods are safe for concurrent use; its lock is a leaf.
type Waiting[S any] struct {
	mu      sync.Mutex // guards the following
	waiting []S
	running int // members of the group that have not ended their attempts
}

// Add adds a suspect.
func (w *Waiting[S]) Add(s S) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, s)
}

// Next removes the next group, if none runs: suspects with as many crashes, since they became suspects, as the first.
func (w *Waiting[S]) Next(crashes func(S) int) (group []S) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running > 0 || len(w.waiting) == 0 {
		return nil
	}
	first := crashes(w.waiting[0])
	var others []S
	for _, s := range w.waiting {
		if crashes(s) == first && len(group) < groups[first] {
			group = append(group, s)
		} else {
			others = append(others, s)
		}
	}
	w.waiting, w.running = others, len(group)
	return group
}

// Ended notes that a member of the group that runs has ended its attempt.
func (w *Waiting[S]) Ended() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
}

// Drain removes all that wait.
func (w *Waiting[S]) Drain() []S { return w.Take(func(S) bool { return true }) }

// Take removes those that wait and for which takes returns true, and returns them. takes must not use w.
func (w *Waiting[S]) Take(takes func(S) bool) (taken []S) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var others []S
	for _, s := range w.waiting {
		if takes(s) {
			taken = append(taken, s)
		} else {
			others = append(others, s)
		}
	}
	w.waiting = others
	return taken
}

// Each calls visit with those that wait. visit must not use w.
func (w *Waiting[S]) Each(visit func(S)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.waiting {
		visit(s)
	}
}
