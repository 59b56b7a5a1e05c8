package storekit

import (
	"slices"
	"sync"

	"github.com/surebus/eventbus/driver"
)

// Watchers keeps the functions of Watch of a store. While it has any, it runs the search for changes. Its methods are
// safe for concurrent use.
type Watchers struct {
	// Run looks for changes until stop is closed, and calls Call for them. It must be set before the first Add.
	Run func(stop <-chan struct{})

	mu       sync.Mutex // guards the following
	watchers []*watcher
	closed   bool
	stop     chan struct{} // of Run; nil while it does not run
}

// watcher is a Watch in progress.
type watcher struct {
	changed func(driver.Change)

	mu      sync.Mutex // held during a call
	stopped bool
}

func (w *watcher) call(c driver.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.changed(c)
	}
}

// Add adds a watcher. stop removes it, and waits for a call of it in progress.
func (s *Watchers) Add(changed func(driver.Change)) (stop func()) {
	w := &watcher{changed: changed}
	s.mu.Lock()
	s.watchers = append(s.watchers, w)
	if s.stop == nil && !s.closed {
		s.stop = make(chan struct{})
		go s.Run(s.stop)
	}
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.watchers = slices.DeleteFunc(s.watchers, func(other *watcher) bool { return other == w })
		if len(s.watchers) == 0 {
			s.endLocked()
		}
		s.mu.Unlock()
		w.mu.Lock()
		w.stopped = true
		w.mu.Unlock()
	}
}

// Close ends Run for ever.
func (s *Watchers) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.endLocked()
}

func (s *Watchers) endLocked() {
	if s.stop != nil {
		close(s.stop)
		s.stop = nil
	}
}

// Call calls the watchers, unless stop is closed. It reports whether stop is open.
func (s *Watchers) Call(stop <-chan struct{}, c driver.Change) (goOn bool) {
	s.mu.Lock()
	watchers := slices.Clone(s.watchers)
	s.mu.Unlock()
	for _, one := range watchers {
		select {
		case <-stop:
			return false
		default:
			one.call(c)
		}
	}
	return true
}
