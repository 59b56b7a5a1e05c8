package eventbus

import (
	"github.com/surebus/eventbus/internal/pool"
)

// SetRandom replaces the source of the bus's jitter, for tests in package eventbus_test.
// It must be called before Start.
func SetRandom(b *Bus, random func() float64) { b.config.random = random }

// SetGates makes workers ask before they run what they have taken, and before they
// take more if a PublishAndWait has returned because of what they ran. It must be called before
// anything is published.
func SetGates(b *Bus, run func(e Event, subscription string, attempt int), next func()) {
	workers := b.machine.workers()
	goOn := workers.Run
	workers.Run = func(w *worker, d *dispatch) bool {
		waiter := d.waiter()
		run(d.event(b.time), d.to.subscriptions[d.next].id, int(d.attempt)+1)
		stays := goOn(w, d)
		if waiter != nil {
			select {
			case <-waiter.settled:
				next()
			default:
			}
		}
		return stays
	}
	b.machine.pool = pool.New(workers)
}

// SetRecord lets a hook decide when a change has been recorded, and whether it is refused.
// It must be called before anything is published.
func SetRecord(b *Bus, record func(done func(error))) {
	b.journal.(*memoryJournal).hook = record
}

// HeldAt is what waits at a subscription's door, oldest first.
func HeldAt(s *Subscription) []Event {
	o := &s.door
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.line.All()
	events := make([]Event, len(all))
	for i, d := range all {
		events[i] = d.event(s.bus.time)
	}
	return events
}
