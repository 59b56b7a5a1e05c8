package storetest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus/driver"
)

// Model is the data of a store in memory. It outlives the stores that Open and Beside return, as a
// disk outlives a process. It copies all records and letters in and out.
//
// A Model may be made outside of a testing/synctest bubble. Each of its stores must be used in the
// bubble in which it was opened.
type Model struct {
	faults      func(n int, b *driver.Batch) Fault
	claimFaults func(n int, q driver.ClaimQuery) Fault
	applied     func(n int, b *driver.Batch)
	patience    time.Duration

	mu         sync.Mutex // guards the following, and the state of the stores
	stores     []*modelStore
	holder     *modelStore // the store with the lease, or nil
	leases     int64       // number of leases so far; a lease is its number
	crashed    []int64     // leases that ended without Close, of which Open has not counted the crash
	batches    int
	claims     int
	lastRef    driver.Ref
	records    map[driver.Ref]*row
	letters    map[driver.ID]*driver.Letter
	order      []driver.ID // of letters, ascending
	remember   map[dedupeKey]driver.Dedupe
	latest     time.Time // the latest Batch.Aged: entries of remember that expire until then are unknown
	directives map[string]driver.Directive
	audit      []driver.AuditEntry // by Number
	catalog    []byte              // nil for none
	beside     int64               // see driver.Stats.Beside
}

// row is a record with its lease.
type row struct {
	driver.Record
	lease   int64 // 0 if the record is free
	freedIn int64 // the lease under which its own bus freed or inserted it; 0 otherwise
}

type dedupeKey struct{ scope, key string }

// NewModel returns a Model without data.
func NewModel(opts ...Option) *Model {
	m := &Model{
		patience:   10 * time.Second,
		records:    make(map[driver.Ref]*row),
		letters:    make(map[driver.ID]*driver.Letter),
		remember:   make(map[dedupeKey]driver.Dedupe),
		directives: make(map[string]driver.Directive),
	}
	for _, opt := range opts {
		opt(m)
	}
	return m
}

// Open returns a store that holds the lease. While another store holds it, Open returns an error
// that matches driver.ErrNoLease.
func (m *Model) Open() (driver.Store, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder != nil {
		return nil, fmt.Errorf("storetest: Open: %w: another store has it", driver.ErrNoLease)
	}
	after := m.countCrashesLocked()
	s := m.newStoreLocked()
	s.after = after
	m.leases++
	m.holder, s.lease = s, m.leases
	return s, nil
}

// Beside returns a store without the lease, as another process opens it.
func (m *Model) Beside() driver.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newStoreLocked()
}

func (m *Model) newStoreLocked() *modelStore {
	s := &modelStore{model: m, gone: make(chan struct{})}
	m.stores = append(m.stores, s)
	return s
}

// Crash ends the store with the lease as SIGKILL ends a process. Batches that were not applied are
// lost. Nothing that the process still does reaches the data.
//
// The goroutines of the process go on, and a test must end them, for example with the bus's
// Shutdown and a context that has ended. So that this is possible, later calls on the store return
// driver.ErrFailed at once. The done of every outstanding or later batch gets an error that matches
// driver.ErrFailed, in order, after the crash. Crash does not wait for that. Without an open store,
// Crash has no effect.
func (m *Model) Crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder != nil {
		m.crashLocked(m.holder)
	}
}

func (m *Model) crashLocked(s *modelStore) {
	if s.crashed.Swap(true) {
		return
	}
	close(s.gone)
	if m.holder == s {
		m.crashed = append(m.crashed, s.lease)
	}
	m.removeLocked(s)
}

// removeLocked forgets a store that has ended.
func (m *Model) removeLocked(s *modelStore) {
	m.stores = slices.DeleteFunc(m.stores, func(other *modelStore) bool { return other == s })
	if m.holder == s {
		m.holder = nil
	}
}

// crashOf is the crash of the lease before that of a store: see driver.Stats.Crashed.
type crashOf struct {
	crashed bool
	events  int64
}

// countCrashesLocked frees the records of crashed leases, and counts the crashes.
func (m *Model) countCrashesLocked() (last crashOf) {
	for _, lease := range m.crashed {
		suspects := false
		for _, r := range m.records {
			suspects = suspects || r.lease == lease && r.Suspect
		}
		events := make(map[driver.ID]bool)
		for _, r := range m.records {
			unmarked := !suspects && r.State == driver.Ready && r.Crashes < driver.SuspectCrashes
			if r.lease == lease && (r.Suspect || unmarked) {
				r.Crashes++
				events[r.ID] = true
			}
		}
		last = crashOf{true, int64(len(events))}
		m.freeLocked(lease)
	}
	m.crashed = nil
	return last
}

// freeLocked frees the records of a lease that has ended.
func (m *Model) freeLocked(lease int64) {
	for _, r := range m.records {
		if r.lease == lease {
			r.lease, r.Leased = 0, false
		}
	}
}

// Dump is a consistent copy of a Model's data.
type Dump struct {
	Records    []DumpRecord        // by Ref
	Letters    []driver.Letter     // by id
	Remembered []driver.Dedupe     // by Scope, then Key; expired ones included
	Directives []driver.Directive  // by Subscription
	Audit      []driver.AuditEntry // by Number
	Lease      int64               // the lease that a store holds; 0 for none
}

// DumpRecord is a record with its lease. Leases are numbered from 1.
type DumpRecord struct {
	driver.Record
	Lease int64 // 0 if the record is free; after Crash, the crashed lease until Open
}

// Dump returns a copy of the data.
func (m *Model) Dump() Dump {
	m.mu.Lock()
	defer m.mu.Unlock()
	var d Dump
	if m.holder != nil {
		d.Lease = m.holder.lease
	}
	for _, ref := range slices.Sorted(maps.Keys(m.records)) {
		r := m.records[ref]
		d.Records = append(d.Records, DumpRecord{deepCopy(r.Record), r.lease})
	}
	for _, id := range m.order {
		d.Letters = append(d.Letters, deepCopy(*m.letters[id]))
	}
	for _, r := range m.remember {
		d.Remembered = append(d.Remembered, r)
	}
	slices.SortFunc(d.Remembered, func(x, y driver.Dedupe) int {
		return cmp.Or(cmp.Compare(x.Scope, y.Scope), cmp.Compare(x.Key, y.Key))
	})
	d.Directives = m.directivesLocked()
	for _, e := range m.audit {
		d.Audit = append(d.Audit, deepCopy(e))
	}
	return d
}

func (m *Model) directivesLocked() []driver.Directive {
	var all []driver.Directive
	for _, name := range slices.Sorted(maps.Keys(m.directives)) {
		all = append(all, deepCopy(m.directives[name]))
	}
	return all
}

func compareIDs(x, y driver.ID) int { return bytes.Compare(x[:], y[:]) }
