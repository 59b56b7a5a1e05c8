package storetest

import (
	"cmp"
	"maps"
	"slices"

	"github.com/surebus/eventbus/driver"
)

// Dump is a consistent copy of a Model's data.
type Dump struct {
	Records    []DumpRecord        // by Ref
	Letters    []driver.Letter     // by id
	Remembered []driver.Dedupe     // by Scope, then Key; expired ones included
	Directives []driver.Directive  // by Subscription
	Audit      []driver.AuditEntry // by Number
	Outcomes   []driver.Outcome    // oldest first
	Incoming   []driver.Incoming   // by ID
	Requests   []DumpRequest       // by ID, answered ones included
	Catalogs   []driver.Catalog    // by Number
	Leases     []driver.Lease      // that stores hold, by Epoch
	Lease      int64               // the Epoch of the first of Leases; 0 for none
}

// DumpRecord is a record with the Epoch of its lease.
type DumpRecord struct {
	driver.Record
	Lease int64 // 0 if the record is free; after Crash, the crashed lease until Acquire
}

// DumpRequest is a request with its answer.
type DumpRequest struct {
	driver.Request
	Answered bool   // the request has an answer
	Answer   []byte // the answer; nil without one
}

// Dump returns a copy of the data.
func (m *Model) Dump() Dump {
	m.mu.Lock()
	defer m.mu.Unlock()
	var d Dump
	for _, s := range m.stores {
		if s.lease.IsHeld() {
			d.Leases = append(d.Leases, s.lease)
		}
	}
	slices.SortFunc(d.Leases, func(x, y driver.Lease) int { return cmp.Compare(x.Epoch, y.Epoch) })
	if len(d.Leases) > 0 {
		d.Lease = d.Leases[0].Epoch
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
	for _, o := range m.outcomes {
		d.Outcomes = append(d.Outcomes, deepCopy(o.Outcome))
	}
	for _, id := range slices.Sorted(maps.Keys(m.incoming)) {
		d.Incoming = append(d.Incoming, deepCopy(m.incoming[id]))
	}
	for _, id := range slices.Sorted(maps.Keys(m.requests)) {
		r := m.requests[id]
		d.Requests = append(d.Requests, DumpRequest{deepCopy(r.Request), r.answered, slices.Clone(r.answer)})
	}
	d.Catalogs = m.catalogsLocked()
	return d
}
