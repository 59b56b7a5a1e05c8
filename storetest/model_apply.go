package storetest

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/surebus/eventbus"
)

// transaction applies one batch. undo restores the data in reverse order.
type transaction struct {
	*Model
	lease int64 // of the store; 0 without
	undo  []func()
}

// applyLocked applies a batch, or returns a *RefusedError and changes nothing.
func (m *Model) applyLocked(lease int64, b *eventbus.Batch) error {
	if err := b.CheckTimes(); err != nil {
		return err
	}
	tx := &transaction{Model: m, lease: lease}
	if err := tx.apply(b); err != nil {
		for _, undo := range slices.Backward(tx.undo) {
			undo()
		}
		return err
	}
	return nil
}

func (tx *transaction) apply(b *eventbus.Batch) error {
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
			return &eventbus.RefusedError{Letter: id, Err: eventbus.ErrNotFound}
		}
		tx.setLetter(id, nil)
	}
	cancelled := 0
	for _, id := range b.Cancel {
		n := tx.cancel(id)
		if n == 0 {
			return &eventbus.RefusedError{Event: id, Err: eventbus.ErrNotScheduled}
		}
		cancelled += n
	}
	refs, err := tx.insert(b.New)
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
	for _, o := range b.Orders {
		o.Until, o.At = o.Until.Round(0).UTC(), o.At.Round(0).UTC()
		set(tx, tx.orders, o.Subscription, &o)
	}
	for _, e := range b.Audit {
		c := deepCopy(e)
		c.Number = int64(len(tx.audit)) + 1
		tx.audit = append(tx.audit, c)
	}
	if tx.lease == 0 {
		tx.beside += int64(len(b.New) - cancelled)
	}
	if b.Catalog != nil {
		body, err := json.Marshal(b.Catalog)
		if err != nil {
			panic(fmt.Sprintf("storetest: catalog: %v", err))
		}
		tx.catalog = body
	}
	if b.Aged().After(tx.latest) {
		tx.latest = b.Aged()
	}
	for i, ref := range refs { // the batch is not refused: its records may change now
		b.New[i].Ref, b.New[i].Position = ref, tx.records[ref].Position
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

func (tx *transaction) rememberID(b *eventbus.Batch, d eventbus.Dedupe) error {
	key := dedupeKey{d.Scope, d.Key}
	if known, ok := tx.remember[key]; ok && b.Aged().Before(known.Expires) && tx.latest.Before(known.Expires) {
		return &eventbus.RefusedError{Known: &known, Err: eventbus.ErrDuplicateID}
	}
	d.Expires = d.Expires.Round(0).UTC()
	set(tx, tx.remember, key, &d)
	return nil
}

// cancel removes the free scheduled records of an event, and returns their number.
func (tx *transaction) cancel(id eventbus.EventID) (n int) {
	for ref, r := range tx.records {
		if r.ID == id && r.State == eventbus.RecordScheduled && r.lease == 0 {
			set(tx, tx.records, ref, nil)
			n++
		}
	}
	return n
}

// insert adds records and returns their refs.
func (tx *transaction) insert(records []*eventbus.Record) ([]eventbus.Ref, error) {
	lastRef := tx.lastRef
	tx.undo = append(tx.undo, func() { tx.lastRef = lastRef })
	var refs []eventbus.Ref
	var previous int64
	for _, n := range records {
		if n.Leased && tx.lease == 0 {
			return nil, &eventbus.RefusedError{Err: eventbus.ErrNotLeased}
		}
		tx.lastRef++
		r := &row{Record: deepCopy(*n)}
		r.Ref, r.Crashes, r.Own = tx.lastRef, 0, false
		switch n.Position {
		case 0:
			r.Position = int64(r.Ref)
		case eventbus.BesidePrevious:
			r.Position = previous
		}
		previous = r.Position
		r.setLease(tx.lease)
		set(tx, tx.records, r.Ref, &r)
		refs = append(refs, r.Ref)
	}
	return refs, nil
}

// setLease records whether the record is leased or free, after a batch of the store with a lease.
func (r *row) setLease(lease int64) {
	if r.Leased {
		r.lease, r.freedIn = lease, 0
	} else {
		r.lease, r.freedIn = 0, lease
	}
}

// leased returns a record of the store's lease.
func (tx *transaction) leased(ref eventbus.Ref) (*row, error) {
	if r := tx.records[ref]; r != nil && r.lease != 0 && r.lease == tx.lease {
		return r, nil
	}
	return nil, &eventbus.RefusedError{Ref: ref, Err: eventbus.ErrNotLeased}
}

func (tx *transaction) update(u *eventbus.Record) error {
	old, err := tx.leased(u.Ref)
	if err != nil {
		return err
	}
	r := new(row)
	*r = *old
	r.State, r.Due, r.Door = u.State, u.Due.Round(0).UTC(), u.Door
	r.Progress, r.Leased, r.Suspect, r.Crashes = deepCopy(u.Progress), u.Leased, u.Suspect, u.Crashes
	r.setLease(tx.lease)
	set(tx, tx.records, u.Ref, &r)
	return nil
}

// setLetter adds a letter that does not exist, or removes one if l is nil.
func (tx *transaction) setLetter(id eventbus.LetterID, l *eventbus.DeadLetter) {
	order := tx.order
	tx.undo = append(tx.undo, func() { tx.order = order })
	i, _ := slices.BinarySearchFunc(order, id, compareLetterIDs)
	if l == nil {
		tx.order = slices.Concat(order[:i], order[i+1:])
		set(tx, tx.letters, id, nil)
		return
	}
	if i == len(order) {
		tx.order = append(order, id)
	} else {
		tx.order = slices.Concat(order[:i], []eventbus.LetterID{id}, order[i:])
	}
	c := deepCopy(l)
	set(tx, tx.letters, id, &c)
}
