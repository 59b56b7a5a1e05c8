package storetest

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus/driver"
)

// Model is the data of a store in memory. It outlives the stores that Open returns, as a disk
// outlives a process. It copies all values in and out.
//
// A Model may be made outside of a testing/synctest bubble. Each of its stores must be used in the
// bubble in which it was opened.
type Model struct {
	faults      func(n int, b *driver.Batch) Fault
	claimFaults func(n int, q driver.ClaimQuery) Fault
	applied     func(n int, b *driver.Batch)
	denied      func(r *driver.Record) bool
	patience    time.Duration
	slots       int
	auditKept   int // 0: all

	mu         sync.Mutex // guards the following, and the state of the stores
	stores     []*modelStore
	epoch      int64          // of the last lease
	free       driver.SlotSet // slots that no store has
	waiting    []*acquisition // oldest first; while one waits, no slot is free
	crashed    []crashedLease // leases of which Acquire has not counted the crash
	unreported crashOf        // of an Acquire that was undone
	batches    int
	claims     int
	lastRef    driver.Ref
	records    map[driver.Ref]*row
	letters    map[driver.ID]*driver.Letter
	order      []driver.ID // of letters, ascending
	remember   map[dedupeKey]driver.Dedupe
	latest     time.Time // the latest Batch.Aged: what expires until then is unknown
	directives map[string]driver.Directive
	audit      []driver.AuditEntry // by Number
	outcomes   []outcomeRow        // oldest first
	catalogs   map[string]driver.Catalog

	lastIncoming driver.IncomingID
	incoming     map[driver.IncomingID]driver.Incoming
	lastRequest  driver.RequestID
	requests     map[driver.RequestID]requestRow
	marks        map[markKey]*mark
}

// row is a record with its lease.
type row struct {
	driver.Record
	lease   int64 // an epoch; 0 if the record is free
	freedIn int64 // the epoch of the lease whose bus freed or inserted it; 0 if another lease of its slot has begun since
}

type dedupeKey struct{ scope, key string }

// requestRow is a request with its answer.
type requestRow struct {
	driver.Request
	answer   []byte
	answered bool
	expires  time.Time // of the answer
}

// outcomeRow is an outcome with the number of the last audit entry when it was added.
type outcomeRow struct {
	driver.Outcome
	audit int64
}

// NewModel returns a Model without data.
func NewModel(opts ...Option) *Model {
	m := &Model{
		patience:   10 * time.Second,
		slots:      1,
		records:    make(map[driver.Ref]*row),
		letters:    make(map[driver.ID]*driver.Letter),
		remember:   make(map[dedupeKey]driver.Dedupe),
		directives: make(map[string]driver.Directive),
		catalogs:   make(map[string]driver.Catalog),
		incoming:   make(map[driver.IncomingID]driver.Incoming),
		requests:   make(map[driver.RequestID]requestRow),
		marks:      make(map[markKey]*mark),
	}
	for _, opt := range opts {
		opt(m)
	}
	for slot := range m.slots {
		m.free = m.free.Union(driver.SlotsOf(driver.Slot(slot)))
	}
	return m
}

// Open returns a store without a lease, as another process opens it. It never fails.
func (m *Model) Open() driver.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &modelStore{model: m, gone: make(chan struct{})}
	m.stores = append(m.stores, s)
	return s
}

// removeLocked forgets a store that has ended.
func (m *Model) removeLocked(s *modelStore) {
	m.stores = slices.DeleteFunc(m.stores, func(other *modelStore) bool { return other == s })
}

func (m *Model) directivesLocked() []driver.Directive {
	var all []driver.Directive
	for _, name := range slices.Sorted(maps.Keys(m.directives)) {
		all = append(all, deepCopy(m.directives[name]))
	}
	return all
}

func (m *Model) catalogsLocked() []driver.Catalog {
	var all []driver.Catalog
	for _, c := range m.catalogs {
		all = append(all, deepCopy(c))
	}
	slices.SortFunc(all, func(x, y driver.Catalog) int { return cmp.Compare(x.Number, y.Number) })
	return all
}

func compareIDs(x, y driver.ID) int { return bytes.Compare(x[:], y[:]) }
