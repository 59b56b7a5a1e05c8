package storetest

import (
	"fmt"
	"slices"

	"github.com/surebus/eventbus/driver"
)

// crashedLease is a lease that ended by neither Release, Close nor Reopen.
type crashedLease struct {
	epoch    int64
	slots    driver.SlotSet // of which no Acquire has counted the crash
	suspects bool           // it had records with Suspect set
}

// crashOf is what Acquire reports of the crashes that it has counted: see driver.Lease.Crashed.
type crashOf struct {
	crashed bool
	events  int64
}

// Crash ends every store with a lease as SIGKILL ends a process. Batches that were not applied are lost, and later
// calls do not change the data. The first store that waits in Acquire gets the lease.
//
// The goroutines of the process continue. The test must end them, for example with the bus's Shutdown and a context
// that has ended. For that, later calls on the store return driver.ErrFailed at once. The done of every outstanding or
// later batch gets an error that matches driver.ErrFailed, in order, after the crash. Crash does not wait for that. If
// no store has a lease, Crash has no effect.
func (m *Model) Crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range slices.Clone(m.holdersLocked()) {
		m.crashLocked(s)
	}
}

// Kill ends one store of the Model as Crash does, whether it has a lease or not.
func (m *Model) Kill(s driver.Store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashLocked(m.own(s))
}

// LoseLease takes the leases away from some stores of the Model, or from all, as if their time had run out. The stores
// continue. Their Lease is the zero Lease, batches with the old Epoch are refused with driver.ErrLeaseLost, and their
// watchers get driver.ChangedLease. The first store that waits in Acquire gets the lease.
//
// If crash is set, the next Acquire counts a crash and frees the records. Otherwise the records are
// free at once. The function of WithFaults may call LoseLease: the batch is refused then.
func (m *Model) LoseLease(crash bool, of ...driver.Store) {
	m.mu.Lock()
	var told []*watcher
	for _, s := range slices.Clone(m.holdersLocked()) {
		if len(of) > 0 && !slices.ContainsFunc(of, func(other driver.Store) bool { return m.own(other) == s }) {
			continue
		}
		told = append(told, s.watchers...)
		m.endLeaseLocked(s, crash)
	}
	m.handOverLocked()
	m.mu.Unlock()
	for _, w := range told {
		w.call(driver.ChangedLease)
	}
}

// own returns a store of the Model, and panics for another one.
func (m *Model) own(s driver.Store) *modelStore {
	if s, ok := s.(*modelStore); ok && s.model == m {
		return s
	}
	panic(fmt.Sprintf("storetest: %T is not a store of this Model", s))
}

// holdersLocked returns the stores with a lease.
func (m *Model) holdersLocked() (all []*modelStore) {
	for _, s := range m.stores {
		if s.lease.IsHeld() {
			all = append(all, s)
		}
	}
	return all
}

func (m *Model) crashLocked(s *modelStore) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed || s.crashed.Swap(true) {
		return
	}
	close(s.gone)
	m.removeLocked(s)
	m.endLeaseLocked(s, true)
	m.endWaitLocked(s, errCrashed)
	m.handOverLocked()
}

// endLeaseLocked ends the lease of a store, if it has one. The caller hands the free slots over.
func (m *Model) endLeaseLocked(s *modelStore, crash bool) {
	if !s.lease.IsHeld() {
		return
	}
	if crash {
		lost := crashedLease{epoch: s.lease.Epoch, slots: s.slots}
		for _, r := range m.records {
			lost.suspects = lost.suspects || r.lease == lost.epoch && r.Suspect
		}
		m.crashed = append(m.crashed, lost)
	} else {
		m.freeLocked(s.lease.Epoch, s.slots)
	}
	m.free = m.free.Union(s.slots)
	s.slots = driver.SlotSet{}
	s.setLeaseLocked(driver.Lease{})
}

// freeLocked frees the records of a lease in some slots.
func (m *Model) freeLocked(epoch int64, slots driver.SlotSet) {
	for _, r := range m.records {
		if r.lease == epoch && slots.Has(r.Slot) {
			r.lease, r.Leased = 0, false
		}
	}
}

// takeLocked takes up to want free slots, or all if it is 0, in the order of their numbers.
func (m *Model) takeLocked(want int) (taken driver.SlotSet) {
	for slot := range m.slots {
		one := driver.SlotsOf(driver.Slot(slot))
		if m.free.Has(driver.Slot(slot)) && (want <= 0 || taken.Len() < want) {
			taken = taken.Union(one)
		}
	}
	m.free = m.free.Without(taken)
	return taken
}

// beginLocked begins the lease of a store, or adds slots to it. It counts the crashes of earlier
// leases of the slots, and frees their records. Own is false for all of these.
func (m *Model) beginLocked(s *modelStore, slots driver.SlotSet) crashOf {
	crash := m.countCrashesLocked(slots)
	for _, r := range m.records {
		if slots.Has(r.Slot) {
			r.lease, r.freedIn, r.Leased = 0, 0, false
		}
	}
	lease := s.lease
	if !lease.IsHeld() {
		m.epoch++
		lease.Epoch = m.epoch
	}
	s.slots = s.slots.Union(slots)
	if lease.Slots = s.slots; m.slots == 1 {
		lease.Slots = driver.AllSlots()
	}
	lease.Crashed = lease.Crashed || crash.crashed
	lease.CrashedEvents += crash.events
	s.setLeaseLocked(lease)
	return crash
}

// countCrashesLocked counts the crashes of earlier leases in some slots.
func (m *Model) countCrashesLocked(slots driver.SlotSet) crashOf {
	all := m.unreported
	m.unreported = crashOf{}
	events := make(map[driver.ID]bool)
	left := m.crashed[:0]
	for _, lease := range m.crashed {
		rest := lease.slots.Without(slots)
		all.crashed = all.crashed || rest != lease.slots
		for _, r := range m.records {
			unmarked := !lease.suspects && r.State == driver.Ready && r.Crashes < driver.SuspectCrashes
			if r.lease == lease.epoch && slots.Has(r.Slot) && (r.Suspect || unmarked) {
				r.Crashes++
				events[r.ID] = true
			}
		}
		if lease.slots = rest; !rest.IsEmpty() {
			left = append(left, lease)
		}
	}
	m.crashed = left
	all.events += int64(len(events))
	return all
}
