// Package idle lets callers wait for an instant at which nothing is left to do.
package idle

import (
	"sync"
	"sync/atomic"
	"time"
)

// Watch is a set of callers that wait. The zero Watch is ready to use.
type Watch struct {
	callers atomic.Int32
	mu      sync.Mutex    // guards the following
	next    chan struct{} // closed by Reached; nil if no caller waits
}

// IsWatched reports whether a caller waits. Work that ends asks this afterwards, and then looks whether any is
// left: a caller looks after it has registered, so one of the two sees the other.
func (w *Watch) IsWatched() bool { return w.callers.Load() > 0 }

// Reached wakes the callers. Nothing was left at some instant after the call that asked IsWatched.
func (w *Watch) Reached() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		close(w.next)
		w.next = nil
	}
}

func (w *Watch) register() (next <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.next
}

// Await waits for an instant at which nothing is left, here and elsewhere. Work that ends here calls Reached. Nothing
// reports what ends elsewhere: while nothing is left here, Await looks there once in each interval. A nil elsewhere
// has nothing. It returns false if one of the channels is closed before.
func (w *Watch) Await(here, elsewhere func() bool, interval time.Duration, ended, closed <-chan struct{}) bool {
	w.callers.Add(1)
	defer w.callers.Add(-1)
	for {
		next := w.register()
		var again <-chan time.Time
		if here() {
			if elsewhere == nil || elsewhere() {
				return true
			}
			next, again = nil, time.After(interval)
		}
		select {
		case <-next:
			if elsewhere == nil { // more may have come since
				return true
			}
		case <-again:
		case <-ended:
			return false
		case <-closed:
			return false
		}
	}
}
