package eventbus

import (
	"cmp"
	"slices"
)

// SetRandom replaces what the bus draws its jitter from, for tests in package
// eventbus_test. It must be called before Start.
func SetRandom(b *Bus, random func() float64) { b.config.random = random }

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
		return cmp.Compare(x.story.rare.seat.number, y.story.rare.seat.number)
	})
	events := make([]Event, len(all))
	for i, d := range all {
		events[i] = d.event()
	}
	return events
}
