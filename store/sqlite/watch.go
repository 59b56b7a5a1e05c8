package sqlite

import (
	"slices"
	"sync"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"
)

// watch looks for commits of other processes while there are watchers.
type watch struct {
	store *Store

	mu       sync.Mutex // guards the following
	watchers []*watcher
	running  bool
	closed   bool
	stop     chan struct{} // closed when the last watcher stops
}

// watcher is a Watch in progress.
type watcher struct {
	changed func()

	mu      sync.Mutex // held during a call
	stopped bool
}

func (w *watcher) call() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.changed()
	}
}

// Watch calls changed after another process has committed. It polls the file every 100 ms, and not
// at all without a watcher. See [driver.Store].
func (s *Store) Watch(changed func()) (stop func()) {
	w := &watcher{changed: changed}
	s.watch.mu.Lock()
	s.watch.watchers = append(s.watch.watchers, w)
	if !s.watch.running && !s.watch.closed {
		s.watch.running = true
		s.watch.stop = make(chan struct{})
		go s.watch.run(s.watch.stop)
	}
	s.watch.mu.Unlock()
	return func() {
		s.watch.mu.Lock()
		s.watch.watchers = slices.DeleteFunc(s.watch.watchers, func(other *watcher) bool { return other == w })
		if len(s.watch.watchers) == 0 && s.watch.running {
			s.watch.running = false
			close(s.watch.stop)
		}
		s.watch.mu.Unlock()
		w.mu.Lock()
		w.stopped = true
		w.mu.Unlock()
	}
}

// close ends the polling of a store that closes.
func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed = true; w.running {
		w.running = false
		close(w.stop)
	}
}

// run polls. Commits of this store change the version of the data as well. A store with the lease
// therefore compares the number of commits without the lease.
func (w *watch) run(stop chan struct{}) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	// The first look is a change: another process may have committed since Watch was called.
	for seen, ok, broken := int64(0), false, false; ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now, readable := w.version()
		// A store that fails while it is idle is a change too: the watchers find out that it has failed.
		if failed := w.store.committer.failure() != nil; failed != broken {
			if broken = failed; failed && !w.call(stop) {
				return
			}
		}
		if !readable || ok && now == seen {
			continue
		}
		if seen, ok = now, true; !w.call(stop) {
			return
		}
	}
}

func (w *watch) call(stop chan struct{}) (goOn bool) {
	w.mu.Lock()
	watchers := slices.Clone(w.watchers)
	w.mu.Unlock()
	for _, one := range watchers {
		select {
		case <-stop:
			return false
		default:
			one.call()
		}
	}
	return true
}

// version returns a number that changes with the commits of other processes. ok is false if the file
// cannot be read now.
func (w *watch) version() (n int64, ok bool) {
	r := w.store.claims
	if w.store.cfg.beside {
		r = w.store.reads
	}
	err := r.read(r.ctx, func(c *sqlite3.Conn) error {
		if w.store.moved() != "" {
			w.store.committer.enqueue(&job{control: w.store.committer.lookIdle})
		}
		m, err := w.store.readMeta(c)
		if n = m.beside; w.store.cfg.beside {
			n = m.commits
		}
		return err
	})
	return n, err == nil
}
