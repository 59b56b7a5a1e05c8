package eventbus

import (
	"context"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/circuit"
)

// spill is what a door knows of its deliveries in the store. Memory keeps DefaultLineCapacity parked
// deliveries of a door. The others stay in the store until the line is half empty. While the store
// may have one, all that come to the door go there too: they would overtake it. A door's mutex
// guards it.
type spill struct {
	allowed    bool           // the bus has a store, and LineCapacity and WhenFull are not set
	onDisk     bool           // the store may have deliveries for the door
	committing int            // deliveries that the store does not have yet
	keys       map[string]int // those at a destination that only the store has, by key
	again      bool           // the last claim may have missed one
	asked      bool           // the feeder will claim deliveries, or does
	coming     map[string]int // claimed deliveries that have not arrived, by key: at a subscription's own door, those with a key
	inbound    int            // the sum of these
}

// spillLocked notes that a delivery is parked in the store only. It has no seat.
func (o *door) spillLocked(d *dispatch, how parking) {
	o.spill.onDisk, o.spill.again = true, true
	o.spill.committing++
	if o.whole != nil && d.key != "" {
		o.spill.keys = counted(o.spill.keys, d.key, 1)
	}
	o.circuit.Gate.Or(circuit.Line)
	o.keepHomeLocked(d)
	if !parkingRules[how].waiterWaits {
		d.unawait(d.seatedAt())
	}
}

// spillCommitted notes that the store has a delivery of spillLocked.
func (o *door) spillCommitted() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill.committing--
}

// goesToStoreLocked reports whether a delivery would overtake another in the store, or on its way
// from there. One that waits behind one of its key that waits for another destination only overtakes those of its key.
func (o *door) goesToStoreLocked(d *dispatch) bool {
	switch s := &o.spill; {
	case d.staysInMemory(o):
		return false
	case o.whole != nil && o.line.IsLedElsewhere(d.key): // spill.keys has those; the subscription's own door counts none
		return s.coming[d.key]+s.keys[d.key] > 0
	default:
		return s.onDisk || d.key != "" && s.coming[d.key] > 0
	}
}

// begin makes the feeder claim the deliveries that the store may have for the door. The feeder has
// been asked.
func (s *spill) begin() { s.onDisk, s.asked = true, true }

// asksLocked reports whether the feeder must claim deliveries now.
func (o *door) asksLocked() bool {
	s := &o.spill
	if !s.onDisk || s.asked || o.closed != "" || o.roomLocked() < (o.claimsUpTo()+1)/2 {
		return false
	}
	s.asked = true
	return true
}

// roomLocked returns how many deliveries the line may get by claims. While all lines of the subscription are as long as memory
// keeps them, strangers count, too: the door asks again when they are not.
func (o *door) roomLocked() int {
	taken := o.seatsLocked()
	if ds := o.of().destinations; o.whole != nil && ds.isFull() {
		if ds.crowded.add(o); ds.isFull() { // still: otherwise nothing would call the door
			taken = o.line.Taken()
		}
	}
	return o.claimsUpTo() - taken - o.spill.inbound
}

// claims reports whether the store may have deliveries for the door, which it then claims for itself.
func (o *door) claims() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spill.onDisk
}

// roomToClaim begins a claim, and returns the largest number of deliveries to claim.
func (o *door) roomToClaim(most int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill.again = o.spill.committing > 0 // the claim may miss those
	return max(1, min(most, o.roomLocked()))
}

// claimsUpTo returns how long a line may become by claims. While all lines of the subscription are as long as memory keeps
// them, each destination has the same part of that.
func (o *door) claimsUpTo() int {
	if o.whole == nil || !o.of().destinations.isFull() {
		return o.terms().capacity
	}
	ds := o.of().destinations
	return max(2, min(o.terms().capacity, int(ds.most()/max(ds.known.Load(), 1))))
}

// claimEnded ends a claim. more is set if the store has others. It reports whether to tend the door,
// which asks for them when it has room. A delivery that is not in the store yet tends it later.
func (o *door) claimEnded(more bool) (tends bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.spill
	s.asked = false
	if more || s.committing > 0 {
		return more
	}
	if s.onDisk = s.again; !s.onDisk {
		s.keys = nil
		o.leaveHomesLocked()
	}
	o.endLineLocked()
	return s.onDisk || o.line.Taken() > 0
}

// comes notes that a delivery was claimed from those that are parked at the door. Until it arrives,
// later ones of its key must not enter.
func (o *door) comes(d *dispatch) {
	d.origin.row.from = o
	if d.key == "" && o.whole == nil {
		return // it holds back none, and the queue has room for it
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill.coming = counted(o.spill.coming, d.key, 1)
	if o.spill.keys[d.key] > 0 {
		o.spill.keys = counted(o.spill.keys, d.key, -1)
	}
	o.spill.inbound++
	if o.whole != nil && (o.seatsLocked()+o.spill.inbound > o.terms().capacity || o.of().destinations.isFull()) {
		// The feeder claims for all destinations at first. The store may have more of this one: they stay there until it asks.
		o.spill.onDisk, o.spill.again = true, true
	}
	o.keepHomeLocked(d)
	o.circuit.Gate.Or(circuit.Line)
	d.origin.row.counted = true
}

// arrivedLocked notes that a claimed delivery has a seat, enters, or does not come any more.
func (o *door) arrivedLocked(d *dispatch) {
	s := d.row()
	if s == nil || !s.counted || s.from != o {
		return
	}
	s.counted = false
	if o.spill.coming[d.key] == 0 {
		return // the store was reopened meanwhile
	}
	o.spill.inbound--
	o.spill.coming = counted(o.spill.coming, d.key, -1)
	o.leaveHomeLocked(d.key)
	o.endLineLocked()
}

// counted adds to the number of a key, and returns the map. One without keys is nil: a map keeps the memory of removed keys.
func counted(numbers map[string]int, key string, more int) map[string]int {
	if numbers == nil {
		numbers = make(map[string]int)
	}
	if numbers[key] += more; numbers[key] == 0 {
		delete(numbers, key)
	}
	if len(numbers) == 0 {
		return nil
	}
	return numbers
}

// arrived is arrivedLocked for a dispatch that settles, leaves memory, or goes to another door. The door may ask for others then.
func (m *machine) arrived(d *dispatch) {
	if s := d.row(); s != nil && s.counted {
		s.from.arrived(d)
		m.tend(s.from)
	}
}

// arrivedElsewhere ends the arrival of a claimed delivery at the door where it was parked, because it goes to another door.
func (m *machine) arrivedElsewhere(d *dispatch, at *door) {
	if s := d.row(); s != nil && s.from != at {
		m.arrived(d)
	}
}

func (o *door) arrived(d *dispatch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.arrivedLocked(d)
}

// endLineLocked opens the fast way into the door again when nothing is parked there.
func (o *door) endLineLocked() {
	if o.line.Taken() == 0 && !o.spill.onDisk && len(o.spill.coming) == 0 {
		o.circuit.Gate.And(^uint64(circuit.Line))
	}
}

// forgetSpill forgets what the store may have for a destination: the subscription's own door claims it.
func (o *door) forgetSpill() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill = spill{allowed: o.spill.allowed}
	o.leaveHomesLocked()
	o.endLineLocked()
}

// keepHomeLocked makes a destination's door the home of a delivery's key: later deliveries of the key wait here.
func (o *door) keepHomeLocked(d *dispatch) {
	if ds := o.of().destinations; ds != nil && o.whole != nil && d.key != "" {
		ds.homes.Keep(d.key, o)
	}
}

// leaveHomeLocked ends the home of a key, if no delivery of the key is left here.
func (o *door) leaveHomeLocked(key string) {
	if ds := o.of().destinations; ds != nil && key != "" && !o.isHomeOfLocked(key) {
		ds.homes.Leave(key, o)
	}
}

// leaveHomesLocked is leaveHomeLocked for all keys. Call it when the store has no deliveries for the door any more.
func (o *door) leaveHomesLocked() {
	if ds := o.of().destinations; ds != nil {
		ds.homes.LeaveAll(o, o.isHomeOfLocked)
	}
}

// isHomeOfLocked reports whether there are deliveries of a key that hold back later ones here.
func (o *door) isHomeOfLocked(key string) bool {
	_, taken := o.line.First(key)
	return taken || o.spill.coming[key]+o.spill.keys[key] > 0
}

// recover begins anew, after the store was reopened.
func (o *door) recover() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill = spill{allowed: o.spill.allowed}
	o.spill.begin()
	o.leaveHomesLocked()
	o.circuit.Gate.Or(circuit.Line)
}

// hasSpilled reports whether the door is open and the store may have deliveries for it.
func (o *door) hasSpilled(b *Bus) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spill.onDisk && o.closed == "" && o.shutLocked(b) == nil
}

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
	queued, more, err := f.claim(ctx, q, waits)
	switch {
	case err != nil:
		f.askDoor(at)
	case !exists:
		// If the queue had room and has none of them, all are later than the retirement and parked again, as are those behind them.
		if more && (queued > 0 || !waits) {
			f.askDoor(at)
		}
	case exists && o.claimEnded(more):
		b.machine.tend(o)
	}
	return err
}
