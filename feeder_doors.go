package eventbus

import (
	"context"

	"github.com/surebus/eventbus/driver"
)

// holdBack makes new events wait in the store until the feeder has claimed the deliveries that are
// parked there for a subscription that is being made. Call arrived with its name when it exists.
func (f *feeder) holdBack() (arrived func(name string)) {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	f.behind = true
	f.arriving++
	return func(name string) {
		f.submitting.Lock()
		defer f.submitting.Unlock()
		f.arriving--
		f.doors = append(f.doors, place{subscription: name})
		f.wakeUp()
	}
}

// askDoor makes the feeder claim the deliveries that are parked in the store for these.
func (f *feeder) askDoor(doors ...place) {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	f.doors = append(f.doors, doors...)
	f.wakeUp()
}

// askNames is askDoor for the names of subscriptions.
func (f *feeder) askNames(names ...string) {
	for _, name := range names {
		f.askDoor(place{subscription: name})
	}
}

// nextDoor returns the next place whose deliveries are to be claimed, or the zero place.
func (f *feeder) nextDoor() (next place) {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	if len(f.doors) > 0 {
		next, f.doors = f.doors[0], f.doors[1:]
	}
	return next
}

// feedDoors claims deliveries at the doors that have asked. It waits for room in the queue, or
// leaves the others for later.
func (f *feeder) feedDoors(ctx context.Context, waits bool) error {
	f.submitting.Lock()
	asked := len(f.doors)
	f.submitting.Unlock()
	for range asked {
		if err := f.feedDoor(ctx, f.nextDoor(), waits); err != nil {
			return err
		}
	}
	return nil
}

// feedDoor claims a page of the deliveries that are parked in the store at the door of a
// subscription, under all its names, or of one of its destinations. The door asks again when it has room.
//
// The subscription's own door claims for all destinations but those that claim for themselves. So after a restart it
// claims what the store has, until each destination has as much as its line keeps.
func (f *feeder) feedDoor(ctx context.Context, at place, waits bool) error {
	b := f.bus
	s, exists := b.registry.doorOf(at.subscription)
	if s == nil {
		return nil
	}
	names := b.registry.namesAtDoor(s)
	b.intake.quota.Add(b.durable.orphans.Adopt(names...)) // they have a subscription now
	o, unpin := s.pinned(at.destination)
	defer unpin()
	q := driver.ClaimQuery{Kind: driver.ClaimParked, Limit: o.roomToClaim(f.page()), Doors: names}
	switch {
	case o.whole != nil:
		q.Destinations = []string{o.name}
	case s.destinations != nil && exists:
		q.OtherThan = s.destinations.claiming()
	}
	more, err := f.claim(ctx, q, waits)
	switch {
	case err != nil, !exists && more:
		f.askDoor(at)
	case exists && o.claimEnded(more):
		b.machine.tend(o)
	}
	return err
}
