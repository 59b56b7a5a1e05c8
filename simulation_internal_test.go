package eventbus

import (
	"cmp"
	"slices"

	"github.com/surebus/eventbus/internal/lane"
)

// SetRandom replaces what the bus draws its jitter from, for tests in package
// eventbus_test. It must be called before Start.
func SetRandom(b *Bus, random func() float64) { b.config.random = random }

// SetGates makes workers ask before they run what they have taken, and before they
// take more when somebody has waited for what they ran. It must be called before
// anything is published.
func SetGates(b *Bus, run func(e Event, subscription string, attempt int), next func()) {
	workers := b.workers()
	goOn, tell := workers.Run, workers.After
	workers.Run = func(w *worker, _ func(*opening) bool) {
		d := w.taken()
		run(d.event(d.to.subscriptions[0].bus.time), d.to.subscriptions[d.next].id, int(d.attempt)+1)
		goOn(w, func(*opening) bool { return false }) // each has a gate
	}
	workers.After = func(w *worker) {
		told := w.settled != nil
		tell(w)
		if told {
			next()
		}
	}
	b.lanes = lane.New(workers)
	b.store.(*memory).lanes = b.lanes
}

// HeldAt is what a subscription holds, oldest first.
func HeldAt(s *Subscription) []Event {
	h := &s.holding
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Clone(h.ready)
	for _, line := range h.lines {
		all = append(all, line.behind...)
	}
	slices.SortFunc(all, func(x, y *dispatch) int {
		return cmp.Compare(x.rare().seat.number, y.rare().seat.number)
	})
	events := make([]Event, len(all))
	for i, d := range all {
		events[i] = d.event(d.to.subscriptions[0].bus.time)
	}
	return events
}
