package eventbus

import (
	"sync"
)

// fatalCrashes is the number of Crashes at which a dispatch is dead-lettered.
const fatalCrashes = SuspectCrashes + len(suspectGroups)

// suspectGroups are the sizes of the groups in which suspects run, by the crashes since they became
// suspects.
var suspectGroups = [...]int{64, 8, 1}

// suspects isolates an event that crashes the process. A dispatch that memory had in two crashes is
// a suspect. Suspects run beside other dispatches, one marked group at a time. If the process
// crashes while a group is marked, only the group counts the crash, and its members run in smaller
// groups after the restart. A dispatch that crashes the process in a group of its own is
// dead-lettered. A suspect that ends its attempt is none any more.
type suspects struct {
	mu      sync.Mutex // guards the following; a leaf
	waiting []*dispatch
	marked  int // members of the group that have not ended their attempts
}

// detain keeps a dispatch that was read from a store from running now. It reports whether it does.
func (b *Bus) detain(d *dispatch, s *stored) bool {
	switch due := d.takeNotBefore(); {
	case s.leaves, b.stops(d):
		b.leaveToStore(d)
	case due > b.time.Nanos():
		b.await(d, due)
	case s.marked || s.crashes < SuspectCrashes:
		return false
	case s.crashes >= fatalCrashes:
		b.bury(d, ReasonCrash)
	default:
		b.ledger.waiting.Add(1)
		d.state = stateWaiting
		b.suspects.mu.Lock()
		b.suspects.waiting = append(b.suspects.waiting, d)
		b.suspects.mu.Unlock()
		b.runSuspects()
	}
	return true
}

// runSuspects runs the next group of suspects, if none runs. The group is marked in the store
// before it runs.
func (b *Bus) runSuspects() {
	group := b.suspects.next()
	if len(group) == 0 {
		return
	}
	batch := &Batch{Now: b.time.Now().UTC}
	for _, d := range group {
		record := b.updatedRecord(d, RecordReady)
		record.Leased, record.Suspect = true, true
		batch.Update = append(batch.Update, record)
	}
	b.store.Submit(batch, func(err error) {
		b.ledger.waiting.Add(int64(-len(group)))
		for _, d := range group {
			d.stored().marked = true
			d.stored().leaves = err != nil
		}
		b.requeue(group...)
	})
}

// next removes the next group from the waiting suspects: those with as many crashes as the first.
func (s *suspects) next() (group []*dispatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marked > 0 || len(s.waiting) == 0 {
		return nil
	}
	crashes := s.waiting[0].stored().crashes
	var others []*dispatch
	for _, d := range s.waiting {
		if d.stored().crashes == crashes && len(group) < suspectGroups[crashes-SuspectCrashes] {
			group = append(group, d)
		} else {
			others = append(others, d)
		}
	}
	s.waiting, s.marked = others, len(group)
	return group
}

// acquit ends the suspicion of a dispatch whose attempt did not crash the process.
func (b *Bus) acquit(d *dispatch) {
	s := d.stored()
	if s == nil {
		return
	}
	s.crashes = 0
	if !s.marked {
		return
	}
	s.marked = false
	b.suspects.mu.Lock()
	b.suspects.marked--
	b.suspects.mu.Unlock()
	b.runSuspects()
}

// drain removes the suspects that wait.
func (s *suspects) drain() []*dispatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.waiting
	s.waiting = nil
	return all
}
