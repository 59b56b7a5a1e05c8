package driver

import (
	"errors"
	"fmt"
	"time"
)

// Errors of stores. Package eventbus exports those that users of a bus need.
var (
	// ErrFailed is matched by the errors of a store that has failed and was not reopened. See Store.
	ErrFailed = errors.New("eventbus: store has failed")
	// ErrClosed is matched by the errors of a store after Close.
	ErrClosed = errors.New("eventbus: store is closed")
	// ErrNotErased is matched by the error of an Erase if payloads of purged letters remain in the storage. The store
	// erases them later.
	ErrNotErased = errors.New("eventbus: payloads of purged letters are not erased yet")
	// ErrNoLease is matched by errors of Claim without the lease, and of Acquire without Wait while another store has
	// it. The error of Acquire names the process with the lease, if the store knows it.
	ErrNoLease = errors.New("eventbus: store does not hold the lease")
	// ErrLeaseLost is the refusal of a batch with the Epoch of a lease that the store does not have. The store
	// committed nothing. The bus becomes a standby.
	ErrLeaseLost = errors.New("eventbus: lease was lost")
	// ErrBusy is matched by the error of an Acquire or a Release that waited too long for a lock of another program,
	// such as a transaction of a caller. Nothing has changed, and the store has not failed. The bus calls again.
	ErrBusy = errors.New("eventbus: another program holds the write lock of the store")
	// ErrNotLeased is the refusal of a batch that changes a record that is not leased, or not by this
	// bus.
	ErrNotLeased = errors.New("eventbus: record is not leased by this bus")
	// ErrNotFound is the refusal of a batch with an unknown letter, incoming event or request, and the error of Letter
	// and Answer.
	ErrNotFound = errors.New("eventbus: no such dead letter, incoming event or request: unknown, or removed already")
	// ErrCatalogsChanged is the refusal of a batch whose IfCatalogs differ from the catalogs of the store.
	ErrCatalogsChanged = errors.New("eventbus: another bus has changed its catalog of subscriptions")
	// ErrDuplicateID is the refusal of a batch that remembers a known id.
	ErrDuplicateID = errors.New("eventbus: duplicate event id")
	// ErrNoTransaction is matched by the error of SubmitTx for a transaction that the store does not accept.
	ErrNoTransaction = errors.New("eventbus: not a transaction of the store's database")
	// ErrInvalidOption is matched by the error of an invalid option.
	ErrInvalidOption = errors.New("eventbus: invalid option")
	// ErrTime is the refusal of a batch with a time outside the years 0 to 9999.
	ErrTime = errors.New("eventbus: time is outside the years 0 to 9999")
)

// RefusedError reports that a store did not apply a batch, and why. The batch changed nothing, and the store continues.
type RefusedError struct {
	Letter   ID         // ErrNotFound: the letter of Take that is unknown
	Incoming IncomingID // ErrNotFound: the incoming event of Accept that is unknown
	Request  RequestID  // ErrNotFound: the request of Answer or Unask that is unknown, or has an answer
	Event    ID         // ErrNotFound: the event of Withdraw that has no incoming event
	Known    *Dedupe    // ErrDuplicateID: the remembered entry
	Ref      Ref        // ErrNotLeased: the record of Update or Delete; 0 if New has a record in a slot of another lease
	// Err is the reason: ErrNotFound, ErrDuplicateID, ErrNotLeased, ErrLeaseLost, ErrCatalogsChanged, or one
	// that matches ErrTime.
	Err error
}

// Error returns the text of the error.
func (e *RefusedError) Error() string {
	switch {
	case e.Known != nil:
		return fmt.Sprintf("%v: %q is known as event %s", e.Err, e.Known.Key, e.Known.Event)
	case e.Ref != 0:
		return fmt.Sprintf("%v: %d", e.Err, e.Ref)
	case !e.Letter.IsZero():
		return fmt.Sprintf("%v: %s", e.Err, e.Letter)
	case !e.Event.IsZero():
		return fmt.Sprintf("%v: event %s", e.Err, e.Event)
	case e.Incoming != 0:
		return fmt.Sprintf("%v: incoming event %d", e.Err, e.Incoming)
	case e.Request != 0:
		return fmt.Sprintf("%v: request %d", e.Err, e.Request)
	}
	return e.Err.Error()
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Storable reports whether the year of a time in UTC is from 0 to 9999. encoding/json encodes no other times.
func Storable(t time.Time) bool {
	const first, last = -62167219200, 253402300799 // 0000-01-01T00:00:00Z, 9999-12-31T23:59:59Z
	s := t.Unix()
	return first <= s && s <= last
}

// CheckTimes returns a *RefusedError that matches ErrTime if a time in the batch, except Now and AgedAt, is not
// Storable. The bus rejects such times earlier. A store that encodes times calls CheckTimes first, so that a defect
// costs one batch and does not make the store fail.
func (b *Batch) CheckTimes() error {
	for _, d := range b.Remember {
		if err := checkTimes(d.Expires); err != nil {
			return err
		}
	}
	for _, r := range b.New {
		if err := checkTimes(r.Published, r.Scheduled, r.Expires, r.KeyExpires, r.Due); err != nil {
			return err
		}
	}
	for _, in := range b.Leave {
		r := in.Record
		if err := checkTimes(r.Published, r.Scheduled, r.Expires, r.KeyExpires, r.Due); err != nil {
			return err
		}
	}
	for _, r := range b.Update {
		if err := checkTimes(r.Due); err != nil {
			return err
		}
	}
	for _, l := range b.Bury {
		if err := checkTimes(l.Published, l.DiedAt); err != nil {
			return err
		}
	}
	return nil
}

func checkTimes(times ...time.Time) error {
	for _, t := range times {
		if !Storable(t) {
			return &RefusedError{Err: fmt.Errorf("%w: %s", ErrTime, t)}
		}
	}
	return nil
}
