package storetest

import (
	"slices"

	"github.com/surebus/eventbus/driver"
)

// transaction applies one batch. undo restores the data in reverse order.
type transaction struct {
	*Model
	epoch int64          // of the lease of the store; 0 for none
	slots driver.SlotSet // of the lease
	undo  []func()
}

// applyLocked applies a batch, or returns a *RefusedError and changes nothing.
func (m *Model) applyLocked(s *modelStore, b *driver.Batch) error {
	if b.Epoch != 0 && b.Epoch != s.lease.Epoch || b.Epoch == 0 && needsLease(b) {
		return &driver.RefusedError{Err: driver.ErrLeaseLost}
	}
	if err := b.CheckTimes(); err != nil {
		return err
	}
	tx := &transaction{Model: m, epoch: s.lease.Epoch, slots: s.slots}
	if err := tx.apply(b); err != nil {
		for _, undo := range slices.Backward(tx.undo) {
			undo()
		}
		return err
	}
	return nil
}

// forgetSettled removes a remembered entry if nothing of its event is left.
func (tx *transaction) forgetSettled(d driver.Dedupe) {
	key := dedupeKey{d.Scope, d.Key}
	was, known := tx.remember[key]
	if !known || was.Event != d.Event || !d.Expires.IsZero() && !was.Expires.Equal(d.Expires) {
		return
	}
	for _, r := range tx.records {
		if r.ID == d.Event {
			return
		}
	}
	for _, in := range tx.incoming {
		if in.Record.ID == d.Event {
			return
		}
	}
	set(tx, tx.remember, key, nil)
}

// needsLease reports whether a batch is refused without an Epoch.
func needsLease(b *driver.Batch) bool {
	return len(b.Accept)+len(b.New)+len(b.Update)+len(b.Delete)+len(b.Directives)+len(b.Answer) > 0
}

func (tx *transaction) apply(b *driver.Batch) error {
	if !b.HasCatalogs(tx.catalogsLocked()) {
		return &driver.RefusedError{Err: driver.ErrCatalogsChanged}
	}
	for _, d := range b.Remember {
		if err := tx.rememberID(b, d); err != nil {
			return err
		}
	}
	for _, d := range b.Forget {
		set(tx, tx.remember, dedupeKey{d.Scope, d.Key}, nil)
	}
	for _, id := range b.Take {
		if tx.letters[id] == nil {
			return &driver.RefusedError{Letter: id, Err: driver.ErrNotFound}
		}
		tx.setLetter(id, nil)
	}
	for _, id := range b.Withdraw {
		if err := tx.withdraw(id); err != nil {
			return err
		}
	}
	for _, id := range b.Accept {
		if err := tx.accept(id); err != nil {
			return err
		}
	}
	inserted, err := tx.insert(b.New, len(b.Update)+len(b.Delete) == 0)
	if err != nil {
		return err
	}
	for _, u := range b.Update {
		if err := tx.update(u); err != nil {
			return err
		}
	}
	for _, ref := range b.Delete {
		if _, err := tx.leased(ref); err != nil {
			return err
		}
		set(tx, tx.records, ref, nil)
	}
	for _, l := range b.Bury {
		if tx.letters[l.ID] == nil {
			tx.setLetter(l.ID, l)
		}
	}
	left, asked := tx.leave(b.Leave), tx.ask(b.Ask)
	for _, d := range b.ForgetSettled {
		tx.forgetSettled(d)
	}
	for _, id := range b.Unask {
		if err := tx.unask(id); err != nil {
			return err
		}
	}
	for _, a := range b.Answer {
		if err := tx.answer(b, a); err != nil {
			return err
		}
	}
	for _, d := range b.Directives {
		c := deepCopy(d)
		set(tx, tx.directives, d.Subscription, &c)
	}
	for _, e := range b.Audit {
		c := deepCopy(e)
		c.Number = tx.lastAudit() + 1
		tx.audit = append(tx.audit, c)
	}
	for _, o := range b.Outcomes {
		tx.outcomes = append(tx.outcomes, outcomeRow{deepCopy(o), tx.lastAudit()})
	}
	tx.pruneAudit()
	if b.Catalog != nil {
		c := deepCopy(*b.Catalog)
		c.Number = tx.numberOf(c.Instance)
		c.Seen = deepCopy(b.Now)
		if set(tx, tx.catalogs, c.Instance, &c); c.Body == nil {
			delete(tx.catalogs, c.Instance)
		}
	}
	if b.Aged().After(tx.latest) {
		tx.latest = b.Aged()
		tx.ageLocked()
	}
	for i, n := range inserted { // the batch is not refused: what the store assigns may change now
		b.New[i].Ref, b.New[i].Position, b.New[i].Leased = n.Ref, n.Position, n.Leased
	}
	for i, id := range left {
		b.Leave[i].ID = id
	}
	for i, id := range asked {
		b.Ask[i].ID = id
	}
	return nil
}

// set sets the value of a key, or deletes the key if the value is nil.
func set[K comparable, V any](tx *transaction, in map[K]V, key K, value *V) {
	old, had := in[key]
	tx.undo = append(tx.undo, func() {
		if delete(in, key); had {
			in[key] = old
		}
	})
	if delete(in, key); value != nil {
		in[key] = *value
	}
}

func (tx *transaction) rememberID(b *driver.Batch, d driver.Dedupe) error {
	key := dedupeKey{d.Scope, d.Key}
	if known, ok := tx.remember[key]; ok && b.Aged().Before(known.Expires) && tx.latest.Before(known.Expires) {
		return &driver.RefusedError{Known: &known, Err: driver.ErrDuplicateID}
	}
	c := deepCopy(d)
	set(tx, tx.remember, key, &c)
	return nil
}

// insert adds records and returns them. With wishes, a Leased may be denied.
func (tx *transaction) insert(records []*driver.Record, wishes bool) (inserted []driver.Record, err error) {
	lastRef := tx.lastRef
	tx.undo = append(tx.undo, func() { tx.lastRef = lastRef })
	var previous int64
	for _, n := range records {
		if !tx.slots.Has(n.Slot) {
			return nil, &driver.RefusedError{Err: driver.ErrNotLeased}
		}
		tx.lastRef++
		r := &row{Record: deepCopy(*n)}
		if r.Leased && wishes && tx.denied != nil {
			c := deepCopy(r.Record)
			r.Leased = !tx.denied(&c)
		}
		r.Ref, r.Crashes, r.Own = tx.lastRef, 0, false
		switch n.Position {
		case 0:
			r.Position = int64(r.Ref)
		case driver.BesidePrevious:
			r.Position = previous
		}
		previous = r.Position
		r.setLease(tx.epoch)
		set(tx, tx.records, r.Ref, &r)
		inserted = append(inserted, r.Record)
	}
	return inserted, nil
}

// setLease records whether the record is leased or free, after a batch of the store with a lease.
func (r *row) setLease(epoch int64) {
	if r.Leased {
		r.lease, r.freedIn = epoch, 0
	} else {
		r.lease, r.freedIn = 0, epoch
	}
}

// leased returns a record of the store's lease.
func (tx *transaction) leased(ref driver.Ref) (*row, error) {
	if r := tx.records[ref]; r != nil && r.lease != 0 && r.lease == tx.epoch {
		return r, nil
	}
	return nil, &driver.RefusedError{Ref: ref, Err: driver.ErrNotLeased}
}

func (tx *transaction) update(u *driver.Record) error {
	old, err := tx.leased(u.Ref)
	if err != nil {
		return err
	}
	r := new(row)
	*r = *old
	c := deepCopy(u)
	r.State, r.Due, r.Door, r.Destination, r.Progress = c.State, c.Due, c.Door, c.Destination, c.Progress
	r.Leased, r.Suspect, r.Crashes = c.Leased, c.Suspect, c.Crashes
	r.setLease(tx.epoch)
	set(tx, tx.records, u.Ref, &r)
	return nil
}

// setLetter adds a letter that does not exist, or removes one if l is nil.
func (tx *transaction) setLetter(id driver.ID, l *driver.Letter) {
	order := tx.order
	tx.undo = append(tx.undo, func() { tx.order = order })
	i, _ := slices.BinarySearchFunc(order, id, compareIDs)
	if l == nil {
		tx.order = slices.Concat(order[:i], order[i+1:])
		set(tx, tx.letters, id, nil)
		return
	}
	if i == len(order) {
		tx.order = append(order, id)
	} else {
		tx.order = slices.Concat(order[:i], []driver.ID{id}, order[i:])
	}
	c := deepCopy(l)
	set(tx, tx.letters, id, &c)
}

// numberOf returns the Number of an instance's catalog: the next one if it has none.
func (m *Model) numberOf(instance string) int64 {
	if c, known := m.catalogs[instance]; known {
		return c.Number
	}
	var last int64
	for _, c := range m.catalogs {
		last = max(last, c.Number)
	}
	return last + 1
}

// lastAudit returns the Number of the last audit entry, or 0.
func (m *Model) lastAudit() int64 {
	if n := len(m.audit); n > 0 {
		return m.audit[n-1].Number
	}
	return 0
}

// pruneAudit removes the oldest entries beyond those that WithAuditKept keeps, and the outcomes that are older than the rest.
func (m *Model) pruneAudit() {
	if m.auditKept == 0 {
		return
	}
	var oldest int64 // that is left
	kept := 0
	for _, e := range slices.Backward(m.audit) {
		if !e.Denied {
			if kept++; kept > m.auditKept {
				break
			}
			oldest = e.Number
		}
	}
	if kept <= m.auditKept {
		return
	}
	m.audit = slices.DeleteFunc(m.audit, func(e driver.AuditEntry) bool { return !e.Denied && e.Number < oldest })
	m.outcomes = slices.DeleteFunc(m.outcomes, func(o outcomeRow) bool { return o.audit < oldest })
}
