package eventbus

import "slices"

// spill counts the deliveries that are parked at a door and that only the store has. Memory keeps
// DefaultLineCapacity of them. The others, and from then on all that are parked, stay in the store
// until the line is half empty. A door's mutex guards it.
type spill struct {
	allowed bool           // the bus has a store, and LineCapacity and WhenFull are not set
	count   int            // deliveries that this process has parked there
	keys    map[string]int // of these, those with a key, by key
	earlier []string       // names under which an earlier process may have parked others
	asked   int            // claims that the feeder will make
}

// spillLocked notes that a delivery is parked in the store only. It has no seat.
func (o *door) spillLocked(d *dispatch, reason parking) {
	o.spill.count++
	if d.key != "" {
		if o.spill.keys == nil {
			o.spill.keys = make(map[string]int)
		}
		o.spill.keys[d.key]++
	}
	o.circuit.gate.Or(gateLine)
	if !parkingRules[reason].waiterWaits {
		d.unawait(d.seatedAt())
	}
}

// orphan notes that a delivery is parked because its subscription does not exist. If one has taken
// the place of the stand-in meanwhile, the delivery is counted there.
func (b *Bus) orphan(standIn *Subscription, d *dispatch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := &standIn.door
	if s, ok := b.subscriptions.Find(standIn.id); ok {
		o = &s.door
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spillLocked(d, orphaned)
}

// adopt takes over the deliveries of the door before: of a stand-in when its subscription is made, or
// of a subscription that ends. What was counted there is counted down here. Lock order: the door
// before, then its heir.
func (o *door) adopt(before *door) {
	before.mu.Lock()
	defer before.mu.Unlock()
	left := before.spill
	before.spill, before.heir = spill{}, o
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill.count += left.count
	o.spill.earlier = append(o.spill.earlier, left.earlier...)
	for key, n := range left.keys {
		if o.spill.keys == nil {
			o.spill.keys = make(map[string]int)
		}
		o.spill.keys[key] += n
	}
	if o.spill.any() {
		o.circuit.gate.Or(gateLine)
	}
}

// lockSpill locks the door that counts the deliveries of a door now, and returns it.
func (o *door) lockSpill() *door {
	o.mu.Lock()
	for o.heir != nil {
		heir := o.heir
		o.mu.Unlock()
		o = heir
		o.mu.Lock()
	}
	return o
}

// unspill notes that a delivery was claimed. Its key stays with the door until it arrives there, see
// arrivedLocked: otherwise a later one would arrive before it.
func (o *door) unspill() {
	o = o.lockSpill()
	defer o.mu.Unlock()
	o.spill.count = max(o.spill.count-1, 0)
}

// arrivedLocked notes that a claimed delivery has a seat, enters, or does not come any more.
func (o *door) arrivedLocked(d *dispatch) {
	s := d.stored()
	if s == nil || !s.spilled {
		return
	}
	s.spilled = false
	keys := o.spill.keys
	if keys[d.key] == 0 {
		return // the store was reopened meanwhile
	}
	if keys[d.key]--; keys[d.key] == 0 {
		delete(keys, d.key)
		if len(keys) == 0 {
			o.spill.keys = nil // a map keeps the memory of removed keys
		}
	}
}

// arrived is arrivedLocked for a dispatch that settles or leaves memory.
func (d *dispatch) arrived() {
	if s := d.stored(); s == nil || !s.spilled {
		return
	}
	o := d.seatedAt().door.lockSpill()
	defer o.mu.Unlock()
	o.arrivedLocked(d)
}

// any reports whether the store may have deliveries of the door.
func (s *spill) any() bool { return s.count > 0 || len(s.keys) > 0 || len(s.earlier) > 0 }

// forgetSpilled begins anew, after the store was reopened.
func (o *door) forgetSpilled() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill = spill{allowed: o.spill.allowed}
}

// asksLocked returns the names under which to claim deliveries from the store now. Each is claimed
// once.
func (o *door) asksLocked(id string) (names []string) {
	s := &o.spill
	if s.asked > 0 || o.circuit.gate.Load()&gateMissing != 0 || o.closed != "" || o.line.Taken() > o.capacity/2 {
		return nil
	}
	names, s.earlier = s.earlier, nil
	if s.count > 0 && !slices.Contains(names, id) {
		names = append(names, id)
	}
	s.asked = len(names)
	return names
}

// claimed ends a claim of deliveries under a name. more is set if the store has others.
func (o *door) claimed(name string, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spill.asked = max(o.spill.asked-1, 0)
	if more && !slices.Contains(o.spill.earlier, name) {
		o.spill.earlier = append(o.spill.earlier, name)
		o.circuit.gate.Or(gateLine)
	}
}

// hasSpilled reports whether the door is open and the store has deliveries for it.
func (o *door) hasSpilled() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spill.any() && o.closed == "" && o.circuit.gate.Load()&(gatePaused|gateOutage) == 0
}
