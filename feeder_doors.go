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
		f.doors = append(f.doors, name)
		f.wakeUp()
	}
}

// askDoor makes the feeder claim the deliveries that are parked in the store under these names.
func (f *feeder) askDoor(names ...string) {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	f.doors = append(f.doors, names...)
	f.wakeUp()
}

// nextDoor returns the next subscription whose deliveries are to be claimed, or "".
func (f *feeder) nextDoor() (name string) {
	f.submitting.Lock()
	defer f.submitting.Unlock()
	if len(f.doors) > 0 {
		name, f.doors = f.doors[0], f.doors[1:]
	}
	return name
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
// subscription, under all its names. The door asks again when it has room.
func (f *feeder) feedDoor(ctx context.Context, name string, waits bool) error {
	b := f.bus
	s, exists := b.registry.doorOf(name)
	if s == nil {
		return nil
	}
	q := driver.ClaimQuery{Kind: driver.ClaimParked, Limit: s.door.roomToClaim(f.page()), Doors: b.registry.namesAtDoor(s)}
	more, err := f.claim(ctx, q, waits)
	switch {
	case err != nil, !exists && more:
		f.askDoor(name)
	case exists && s.door.claimEnded(more):
		b.machine.tend(s)
	}
	return err
}
