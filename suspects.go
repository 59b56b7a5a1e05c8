package eventbus

import (
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/suspects"
)

// An event that crashes the process is isolated. A dispatch that memory had in two crashes is a suspect. Suspects run
// beside other dispatches, one marked group at a time. If the process crashes while a group is marked, only the group
// counts the crash, and its members run in smaller groups after the restart. A dispatch that crashes the process in a
// group of its own is dead-lettered. A suspect that ends its attempt is none any more.

// fatalCrashes is the number of Crashes at which a dispatch is dead-lettered.
const fatalCrashes = driver.SuspectCrashes + suspects.Fatal

// detain keeps a dispatch that was read from a store from running now. It reports whether it does.
func (b *durable) detain(d *dispatch, s *row) bool {
	switch due := d.takeNotBefore(); {
	case s.unloads, b.machine.stops(d):
		b.unload(d)
	case due > b.time.Nanos():
		b.machine.delayUntil(d, due)
	case s.marked || s.crashes < driver.SuspectCrashes:
		return false
	case s.crashes >= fatalCrashes:
		b.machine.bury(d, ReasonCrash)
	default:
		b.ledger.waiting.Add(1)
		d.state = stateWaiting
		b.suspects.Add(d)
		b.runSuspects()
	}
	return true
}

// runSuspects runs the next group of suspects, if none runs. The group is marked in the store before that.
func (b *durable) runSuspects() {
	group := b.suspects.Next(func(d *dispatch) int { return d.row().crashes - driver.SuspectCrashes })
	if len(group) == 0 {
		return
	}
	w := newBatch(b.time)
	for _, d := range group {
		record := b.updatedRecord(w, d, driver.Ready, 0)
		record.Leased, record.Suspect = true, true
		w.Update = append(w.Update, record)
	}
	b.store.submit(w, room.Pass{}, func(err error) {
		b.ledger.waiting.Add(int64(-len(group)))
		for _, d := range group {
			d.row().marked = true
			d.row().unloads = err != nil
		}
		b.machine.requeue(group...)
	})
}

// acquit ends the suspicion of a dispatch whose attempt did not crash the process.
func (b *durable) acquit(d *dispatch) {
	s := d.row()
	if s == nil {
		return
	}
	s.crashes = 0
	if !s.marked {
		return
	}
	s.marked = false
	b.suspects.Ended()
	b.runSuspects()
}
