package sqlite

import (
	"slices"
	"sync"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
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

// Watch calls changed after another process has committed. It polls the file every 100 ms, and not
// at all without a watcher. See [driver.Store].
func (s *Store) Watch(changed func(driver.Change)) (stop func()) {
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

// seen is what a look at the file has found.
type seen struct {
	commits             int64 // without the lease; of a store beside, all
	records, directives int64 // those of them that changed these
}

// changes returns what has changed since an earlier look. A store beside cannot tell what the store with the
// lease has changed.
func (w *watch) changes(was, now seen) (c driver.Change) {
	if w.store.cfg.beside && now.commits != was.commits {
		return driver.AnyChange
	}
	if now.records != was.records {
		c |= driver.ChangedRecords
	}
	if now.directives != was.directives {
		c |= driver.ChangedDirectives
	}
	return c
}

// run polls. Commits of this store change the version of the data as well. A store with the lease
// therefore compares the number of commits without the lease.
func (w *watch) run(stop chan struct{}) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	// The first look is a change: another process may have committed since Watch was called.
	var was seen
	for ok, broken := false, false; ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now, readable := w.look(was)
		// A store that fails while it is idle is a change too: the watchers find out that it has failed.
		if failed := w.store.committer.failure() != nil; failed != broken {
			if broken = failed; failed && !w.call(stop, driver.AnyChange) {
				return
			}
		}
		if !readable {
			continue
		}
		changed := driver.AnyChange
		if ok {
			changed = w.changes(was, now)
		}
		was, ok = now, true
		if changed != 0 && !w.call(stop, changed) {
			return
		}
	}
}

func (w *watch) call(stop chan struct{}, c driver.Change) (goOn bool) {
	w.mu.Lock()
	watchers := slices.Clone(w.watchers)
	w.mu.Unlock()
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

// look returns what the file has now. ok is false if it cannot be read.
func (w *watch) look(was seen) (now seen, ok bool) {
	r := w.store.claims
	if w.store.cfg.beside {
		r = w.store.reads
	}
	err := r.read(r.ctx, func(c *sqlite3.Conn) error {
		if w.store.moved() != "" {
			w.store.committer.enqueue(&job{control: w.store.committer.lookIdle})
		}
		m, err := w.store.readMeta(c)
		if err != nil {
			return err
		}
		if w.store.cfg.beside {
			now = seen{commits: m.commits}
			return nil
		}
		if m.beside == was.commits {
			now = was
			return nil
		}
		now.commits = m.beside
		return query(c, "SELECT record_commits, directive_commits FROM beside", func(stmt *sqlite3.Stmt) error {
			now.records, now.directives = stmt.ColumnInt64(0), stmt.ColumnInt64(1)
			return nil
		})
	})
	return now, err == nil
}
