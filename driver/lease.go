package driver

import "math/bits"

// Slot is a part of the data that has a lease of its own. The records of one Key are in one Slot. Every store has one
// slot now, 0. More of them are for stores that share the work among processes.
type Slot uint8

// SlotSet is a set of slots. The zero value is empty.
type SlotSet [4]uint64

// AllSlots returns the set of all 256 slots.
func AllSlots() SlotSet {
	const all = ^uint64(0)
	return SlotSet{all, all, all, all}
}

// SlotsOf returns the set of some slots.
func SlotsOf(slots ...Slot) (s SlotSet) {
	for _, slot := range slots {
		s[slot/64] |= 1 << (slot % 64)
	}
	return s
}

// Has reports whether the set has a slot.
func (s SlotSet) Has(slot Slot) bool { return s[slot/64]&(1<<(slot%64)) != 0 }

// IsEmpty reports whether the set has no slot.
func (s SlotSet) IsEmpty() bool { return s == SlotSet{} }

// Len returns the number of slots in the set.
func (s SlotSet) Len() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// Union returns the slots that are in either set.
func (s SlotSet) Union(other SlotSet) SlotSet {
	for i, word := range other {
		s[i] |= word
	}
	return s
}

// Without returns the slots of the set that are not in the other one.
func (s SlotSet) Without(other SlotSet) SlotSet {
	for i, word := range other {
		s[i] &^= word
	}
	return s
}

// Lease is the right to write records. Of all open stores over the same data, at most one has a slot.
type Lease struct {
	// Epoch is a fencing token: more than 0, and larger than the epoch of every earlier lease. It is 0 without a lease.
	Epoch int64
	// Slots are the slots of the lease. Only stores that share the work among processes have other sets than AllSlots
	// and none.
	Slots SlotSet

	// Crashed reports that an earlier lease of the slots ended by neither Release, Close nor Reopen, and that
	// Acquire has counted that crash: see Record.Crashes. CrashedEvents is the number of distinct event ids of the
	// records whose Crashes grew by it; -1 if that is unknown.
	Crashed       bool
	CrashedEvents int64
}

// IsHeld reports whether this is a lease.
func (l Lease) IsHeld() bool { return l.Epoch != 0 }

// AcquireQuery has the arguments of Acquire.
type AcquireQuery struct {
	// Wait makes Acquire wait while another store has the lease.
	Wait bool
	// Want is the number of slots to acquire; 0 means as many as possible. Stores with one slot ignore it.
	Want int
}

// Change is a set of bits: the kinds of data that other stores may have changed.
type Change uint8

const (
	// ChangedIncoming is set if a batch had Leave or Withdraw, or if a transaction of SubmitTx was committed.
	ChangedIncoming Change = 1 << iota
	// ChangedRequests is set if a batch had Ask or Unask.
	ChangedRequests
	// ChangedAnswers is set if a batch had Answer.
	ChangedAnswers
	// ChangedDirectives is set if a batch had Directives.
	ChangedDirectives
	// ChangedCatalogs is set if a batch had a Catalog.
	ChangedCatalogs
	// ChangedLease is set if this store may have lost its lease: read Store.Lease.
	ChangedLease

	// AnyChange has all bits.
	AnyChange = ChangedIncoming | ChangedRequests | ChangedAnswers | ChangedDirectives | ChangedCatalogs | ChangedLease
)

// Changes returns the bits that Watch of other stores reports for the batch.
func (b *Batch) Changes() (c Change) {
	for _, part := range []struct {
		n   int
		bit Change
	}{
		{len(b.Leave) + len(b.Withdraw), ChangedIncoming},
		{len(b.Ask) + len(b.Unask), ChangedRequests},
		{len(b.Answer), ChangedAnswers},
		{len(b.Directives), ChangedDirectives},
	} {
		if part.n > 0 {
			c |= part.bit
		}
	}
	if b.Catalog != nil {
		c |= ChangedCatalogs
	}
	return c
}

// NeedsLease reports whether the batch has a part that only the bus with the lease may commit. Such a batch has an Epoch.
func (b *Batch) NeedsLease() bool {
	return len(b.Accept)+len(b.New)+len(b.Update)+len(b.Delete)+len(b.Directives)+len(b.Answer) > 0
}
