package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/surebus/eventbus/driver"
)

// FaultKind is the effect of a Fault on a batch or a Claim.
type FaultKind uint8

const (
	// NoFault applies the batch.
	NoFault FaultKind = iota
	// Refuse refuses the batch with a *driver.RefusedError that fits its content, and the store continues. It does not
	// refuse a batch with only New, Forget, Bury, Leave, Ask, Directives, Audit, Outcomes and Catalog, because only a
	// lost lease allows that. For that, call LoseLease in the function of WithFaults.
	Refuse
	// FailBefore fails the store without applying the batch.
	FailBefore
	// FailAfter applies the commit that begins with the batch, then fails the store. The batches that
	// have gathered behind it are part of that commit.
	FailAfter
	// CrashBefore ends the store as Crash does, without applying the batch.
	CrashBefore
	// CrashAfter applies the commit that begins with the batch, then ends the store as Crash does. The
	// batches that have gathered behind it are part of that commit.
	CrashAfter
)

// Fault is the fault of a batch or a Claim. The batches before it are durable, and their done has
// returned, when it happens.
type Fault struct {
	Kind FaultKind // the effect of the fault
	// Delay is how long the store waits before the commit. Inside testing/synctest the time is virtual.
	Delay time.Duration
}

// ErrInjected is the error of the batch or Claim at which FailBefore or FailAfter happens. It does
// not match driver.ErrFailed. The errors of later calls match both.
var ErrInjected = errors.New("storetest: injected failure")

// Option is an option of NewModel.
type Option func(*Model)

// WithFaults sets the function that chooses the fault of each batch. n counts the batches of all
// stores of the Model from 1, in the order in which they apply. Batches that reach a failed store do
// not count. The function runs on the goroutine of a store, without a lock.
func WithFaults(faults func(n int, b *driver.Batch) Fault) Option {
	return func(m *Model) { m.faults = faults }
}

// WithClaimFaults sets the function that chooses the fault of each Claim. n counts the calls from 1.
// Refuse has no effect. After FailAfter and CrashAfter, the records are leased.
func WithClaimFaults(faults func(n int, q driver.ClaimQuery) Fault) Option {
	return func(m *Model) { m.claimFaults = faults }
}

// WithApplied sets a function that observes each batch when it is durable, before its done. n is
// the n of WithFaults. The function must not call the Model or its stores.
func WithApplied(applied func(n int, b *driver.Batch)) Option {
	return func(m *Model) { m.applied = applied }
}

// WithSlots sets the number of slots, from 1 to 256, each with a lease of its own. The default is 1:
// a lease has driver.AllSlots then, and all records and incoming events are in Slot 0.
func WithSlots(n int) Option {
	if n < 1 || n > driver.AllSlots().Len() {
		panic(fmt.Sprintf("storetest: WithSlots(%d): want 1 to 256", n))
	}
	return func(m *Model) { m.slots = n }
}

// WithLeaseDenied sets the function that chooses the new records whose wish Leased is not granted, in batches without
// Update and Delete. They
// are free. The function gets a copy, and must not call the Model or its stores.
func WithLeaseDenied(denied func(r *driver.Record) bool) Option {
	return func(m *Model) { m.denied = denied }
}

// WithAuditKept sets how many audit entries the Model keeps, apart from denied ones: at least 1, and all by default. It removes
// older ones, and the outcomes that are older than these, in the commit that adds more.
func WithAuditKept(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("storetest: WithAuditKept(%d): want at least 1", n))
	}
	return func(m *Model) { m.auditKept = n }
}

// WithPatience sets the Patience of the stores: 10 s by default. It does not limit the delays of WithFaults.
func WithPatience(d time.Duration) Option {
	return func(m *Model) { m.patience = d }
}

// refusalOf returns the error of an injected refusal, or nil if nothing in the batch can be refused.
func refusalOf(b *driver.Batch) error {
	switch {
	case len(b.Remember) > 0:
		known := b.Remember[0]
		known.Event, known.Content = newID(), "another than "+known.Content // it is no repetition
		return &driver.RefusedError{Known: &known, Err: driver.ErrDuplicateID}
	case len(b.Take) > 0:
		return &driver.RefusedError{Letter: b.Take[0], Err: driver.ErrNotFound}
	case len(b.Withdraw) > 0:
		return &driver.RefusedError{Event: b.Withdraw[0], Err: driver.ErrNotFound}
	case len(b.Accept) > 0:
		return &driver.RefusedError{Incoming: b.Accept[0], Err: driver.ErrNotFound}
	case len(b.Update) > 0:
		return &driver.RefusedError{Ref: b.Update[0].Ref, Err: driver.ErrNotLeased}
	case len(b.Delete) > 0:
		return &driver.RefusedError{Ref: b.Delete[0], Err: driver.ErrNotLeased}
	case len(b.Unask) > 0:
		return &driver.RefusedError{Request: b.Unask[0], Err: driver.ErrNotFound}
	case len(b.Answer) > 0:
		return &driver.RefusedError{Request: b.Answer[0].Request, Err: driver.ErrNotFound}
	}
	return nil
}
