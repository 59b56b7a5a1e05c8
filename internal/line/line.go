// Package line orders items that wait at a door by the numbers of their seats. Items with
// the same key go one after the other.
//
// A holder takes a seat at its first wait and keeps it until it leaves for good, so a
// holder that comes back has its old place. Of the holders with the same key, only the
// first may go. The others stay behind it until it leaves.
//
// A holder may take its seat in another line and keep its place in the order of its key here: see
// Lend, Follow and Return. Those behind it here are strangers: they wait for the other line.
package line

import (
	"cmp"
	"slices"
)

// Place is the location of the holder of a seat.
type Place uint8

// The places.
const (
	Away   Place = iota // elsewhere, and coming back
	Parked              // in the line
	Coming              // on its way to the door
	Inside
	Leaving // evicted, until it leaves
	places
)

// Reasons is the number of reasons for waiting that a line tells apart.
const Reasons = 3

// Seat is a place in a line. The zero Seat is none.
type Seat struct {
	Number uint64 // 0: none
	Place  Place
	Reason uint8 // less than Reasons
	Since  int64 // when its holder was last parked, or woken
	Until  int64 // until when it sleeps in the line; 0 if it is awake
}

// Holder is an item that waits.
type Holder interface {
	comparable
	Seat() *Seat // its seat in the line; only the line changes it
	Key() string
	Fresh() bool // it has not failed behind the door; it does not change while it is parked
	// Visits reports whether the holder leaves for another line as soon as it is the first of its key, although others
	// may not go. The answer does not change while the holder is parked.
	Visits() bool
}

// Line is a line of holders T. The zero Line is empty. Its methods must not be called
// concurrently.
type Line[T Holder] struct {
	all       []T // parked, by number
	asleep    []T // of these, those that sleep, by Seat.Until
	ready     []T // of the others, the first of each key, and those without a key
	fresh     []T // of these, the fresh ones
	visit     []T // parked holders that Visits selects and that are the first of their key
	keys      map[string]*keyed[T]
	at        [places]int  // seats in each place but Away
	parked    [Reasons]int // seats in the line, by reason
	taken     int
	strangers int // see Strangers
	last      uint64
}

// keyed has the holders of a key.
type keyed[T Holder] struct {
	first     T
	behind    []T
	elsewhere bool  // first has its seat in another line
	reason    uint8 // of that seat
}

// Taken returns the number of seats.
func (l *Line[T]) Taken() int { return l.taken }

// Strangers returns the number of seats of holders behind one of their key that has its seat in another line.
func (l *Line[T]) Strangers() int { return l.strangers }

// Count returns the number of holders in a place other than Away.
func (l *Line[T]) Count(p Place) int { return l.at[p] }

// Parked returns the number of parked holders, by reason.
func (l *Line[T]) Parked() [Reasons]int { return l.parked }

// First returns the first holder of a key.
func (l *Line[T]) First(key string) (first T, ok bool) {
	if k := l.keys[key]; k != nil {
		return k.first, true
	}
	return first, false
}

// IsFirst reports whether a holder is the first of its key.
func (l *Line[T]) IsFirst(x T) bool {
	k := l.keys[x.Key()]
	return k != nil && k.first == x
}

// Leads returns the reason for which the first holder of a key waits, or has waited, and whether it sleeps in this line.
func (l *Line[T]) Leads(key string) (reason uint8, sleeps, ok bool) {
	k := l.keys[key]
	switch {
	case k == nil:
		return 0, false, false
	case k.elsewhere: // the other line has its seat
		return k.reason, false, true
	}
	seat := k.first.Seat()
	return seat.Reason, seat.Until != 0, true
}

// Elsewhere sets the reason that Leads returns for a holder with its seat in another line. It does nothing unless the
// holder is the first of its key.
func (l *Line[T]) Elsewhere(x T, reason uint8) {
	if k := l.keys[x.Key()]; k != nil && k.first == x && k.elsewhere {
		k.reason = reason
	}
}

// Behind returns the parked holders behind one that is the first of its key.
func (l *Line[T]) Behind(x T) (parked []T) {
	k := l.keys[x.Key()]
	if k == nil || k.first != x {
		return nil
	}
	for _, y := range k.behind {
		if y.Seat().Place == Parked {
			parked = append(parked, y)
		}
	}
	return parked
}

// Sit gives a holder the next seat, with the place Away. The holder queues behind earlier
// holders of its key.
func (l *Line[T]) Sit(x T) {
	l.last++
	l.taken++
	*x.Seat() = Seat{Number: l.last}
	key := x.Key()
	if key == "" {
		return
	}
	if !l.queue(x) {
		l.begin(&keyed[T]{first: x})
	}
}

// queue puts a holder behind the others of its key. It reports whether there are any.
func (l *Line[T]) queue(x T) bool {
	k := l.keys[x.Key()]
	if k == nil {
		return false
	}
	k.behind = append(k.behind, x)
	if k.elsewhere {
		l.strangers++
	}
	return true
}

// begin adds the first holder of a key.
func (l *Line[T]) begin(k *keyed[T]) {
	if l.keys == nil {
		l.keys = make(map[string]*keyed[T])
	}
	l.keys[k.first.Key()] = k
}

// Park puts a holder with a seat into the line. If until is not 0, it sleeps there: until Wake wakes it, neither it nor
// one behind it may go.
func (l *Line[T]) Park(x T, reason uint8, now, until int64) {
	seat := x.Seat()
	l.Move(x, Away)
	seat.Reason, seat.Since, seat.Until = reason, now, until
	l.Move(x, Parked)
	if until != 0 {
		l.asleep = insert(l.asleep, x, byUntil)
		return
	}
	l.awake(x)
}

// awake notes that a parked holder may go, if it is not behind another one of its key.
func (l *Line[T]) awake(x T) {
	if k := l.keys[x.Key()]; k == nil || k.first == x {
		l.mayGo(x)
	}
}

// Wake returns the holders whose sleep is over, and ends it.
func (l *Line[T]) Wake(now int64) (woken []T) {
	for len(l.asleep) > 0 && l.asleep[0].Seat().Until <= now {
		x := l.asleep[0]
		l.Rouse(x, now)
		woken = append(woken, x)
	}
	return woken
}

// Rouse ends the sleep of a parked holder that sleeps.
func (l *Line[T]) Rouse(x T, now int64) {
	l.asleep = remove(l.asleep, x, byUntil)
	seat := x.Seat()
	seat.Since, seat.Until = now, 0
	l.awake(x)
}

// Wakes returns when the next holder is to be woken, or 0.
func (l *Line[T]) Wakes() int64 {
	if len(l.asleep) == 0 {
		return 0
	}
	return l.asleep[0].Seat().Until
}

// mayGo notes that a parked holder may go.
func (l *Line[T]) mayGo(x T) {
	if x.Visits() {
		l.visit = insert(l.visit, x, byNumber)
		return
	}
	l.ready = insert(l.ready, x, byNumber)
	if x.Fresh() {
		l.fresh = insert(l.fresh, x, byNumber)
	}
}

// mayNot notes that a holder may not go any more, if it might.
func (l *Line[T]) mayNot(x T) {
	if seat := x.Seat(); seat.Until != 0 {
		l.asleep = remove(l.asleep, x, byUntil)
		seat.Until = 0
		return
	}
	l.ready, l.fresh, l.visit = remove(l.ready, x, byNumber), remove(l.fresh, x, byNumber), remove(l.visit, x, byNumber)
}

// insert adds a holder to a list in an order. Mostly it becomes the last one.
func insert[T Holder](list []T, x T, order func(x, y T) int) []T {
	i, _ := slices.BinarySearchFunc(list, x, order)
	return slices.Insert(list, i, x)
}

// remove removes a holder, if the list has it. Mostly it is the first one.
func remove[T Holder](list []T, x T, order func(x, y T) int) []T {
	i, ok := slices.BinarySearchFunc(list, x, order)
	switch {
	case !ok:
		return list
	case i == 0:
		var none T
		list[0] = none
		return list[1:]
	}
	return slices.Delete(list, i, i+1)
}

func byNumber[T Holder](x, y T) int { return cmp.Compare(x.Seat().Number, y.Seat().Number) }

func byUntil[T Holder](x, y T) int {
	return cmp.Or(cmp.Compare(x.Seat().Until, y.Seat().Until), byNumber(x, y))
}

// Move sets the place of the holder of a seat. Use Park and Go to move into and out of
// the line.
func (l *Line[T]) Move(x T, to Place) {
	seat := x.Seat()
	if seat.Place == Parked {
		l.parked[seat.Reason]--
		l.all = remove(l.all, x, byNumber)
	}
	if to == Parked {
		l.parked[seat.Reason]++
		l.all = insert(l.all, x, byNumber)
	}
	l.at[seat.Place]--
	l.at[to]++
	l.at[Away] = 0
	seat.Place = to
}

// Change gives a parked holder another reason.
func (l *Line[T]) Change(x T, reason uint8) {
	seat := x.Seat()
	l.parked[seat.Reason]--
	seat.Reason = reason
	l.parked[reason]++
}

// Front returns the parked holder that may go first.
func (l *Line[T]) Front() (front T, ok bool) {
	if len(l.ready) == 0 {
		return front, false
	}
	return l.ready[0], true
}

// Oldest returns the parked holder with the lowest number, of the strangers or of the others. It may be behind another one of
// its key.
func (l *Line[T]) Oldest(stranger bool) (oldest T, ok bool) {
	for _, x := range l.all {
		if l.isStranger(x) == stranger {
			return x, true
		}
	}
	return oldest, false
}

// Newest returns the parked holder with the highest number, of the strangers or of the others.
func (l *Line[T]) Newest(stranger bool) (newest T, ok bool) {
	for _, x := range slices.Backward(l.all) {
		if l.isStranger(x) == stranger {
			return x, true
		}
	}
	return newest, false
}

// isStranger reports whether a holder with a seat is behind one that has its own in another line.
func (l *Line[T]) isStranger(x T) bool {
	if l.strangers == 0 {
		return false
	}
	k := l.keys[x.Key()]
	return k != nil && k.elsewhere && k.first != x
}

// IsLedElsewhere reports whether the first holder of a key has its seat in another line.
func (l *Line[T]) IsLedElsewhere(key string) bool {
	k := l.keys[key]
	return k != nil && k.elsewhere
}

// Visitors returns the parked holders that leave for another line now.
func (l *Line[T]) Visitors() []T { return slices.Clone(l.visit) }

// IsIdle reports whether the line has neither seats nor places of keys.
func (l *Line[T]) IsIdle() bool { return l.taken == 0 && len(l.keys) == 0 }

// Fresh returns the parked holder that is fresh and may go: the oldest, or the newest.
func (l *Line[T]) Fresh(newest bool) (x T, ok bool) {
	switch n := len(l.fresh); {
	case n == 0:
		return x, false
	case newest:
		return l.fresh[n-1], true
	}
	return l.fresh[0], true
}

// Go removes a holder that may go from the line. Its place is then Coming.
func (l *Line[T]) Go(x T) {
	l.mayNot(x)
	l.Move(x, Coming)
}

// Drop removes a parked holder from the line. Its place is then Away.
func (l *Line[T]) Drop(x T) {
	l.mayNot(x)
	l.Move(x, Away)
}

// Evict is Drop for a holder that does not come back. Its place is then Leaving.
func (l *Line[T]) Evict(x T) {
	l.Drop(x)
	l.Move(x, Leaving)
}

// Leave frees a seat. The next holder of its key becomes the first.
func (l *Line[T]) Leave(x T) {
	l.Lend(x)
	l.Return(x)
}

// Lend frees the seat of a holder that takes one in another line. The holder keeps its place before others of its key.
func (l *Line[T]) Lend(x T) {
	l.Move(x, Away)
	if k := l.keys[x.Key()]; k != nil && k.first == x {
		if !k.elsewhere {
			l.strangers += len(k.behind)
		}
		k.elsewhere, k.reason = true, x.Seat().Reason
	}
	*x.Seat() = Seat{}
	l.taken--
}

// Follow adds a holder that takes its seat in another line to the end of the order of its key.
func (l *Line[T]) Follow(x T) {
	if !l.queue(x) {
		l.begin(&keyed[T]{first: x, elsewhere: true})
	}
}

// Return removes a holder without a seat here from the order of its key. The next holder becomes the first.
func (l *Line[T]) Return(x T) {
	key := x.Key()
	k := l.keys[key]
	switch {
	case k == nil:
	case k.first != x:
		l.without(k, func(y T) bool { return x == y })
	case len(k.behind) > 0:
		if k.elsewhere {
			l.strangers -= len(k.behind)
		}
		var none T
		k.first = k.behind[0]
		k.behind[0] = none
		k.behind, k.elsewhere = k.behind[1:], false
		if seat := k.first.Seat(); seat.Place == Parked && seat.Until == 0 {
			l.mayGo(k.first)
		}
	default:
		delete(l.keys, key)
		if len(l.keys) == 0 {
			l.keys = nil // a map keeps the memory of removed keys
		}
	}
}

// without removes holders that are behind the first of their key.
func (l *Line[T]) without(k *keyed[T], leaves func(T) bool) {
	before := len(k.behind)
	if k.behind = slices.DeleteFunc(k.behind, leaves); k.elsewhere {
		l.strangers -= before - len(k.behind)
	}
}

// All returns the parked holders, oldest first.
func (l *Line[T]) All() []T { return slices.Clone(l.all) }

// Take removes and returns the parked holders for which takes returns true, oldest first. Their place is
// then Away.
func (l *Line[T]) Take(takes func(T) bool) []T {
	taken := slices.DeleteFunc(l.All(), func(x T) bool { return !takes(x) })
	if len(taken) == 0 {
		return nil
	}
	gone := make(map[T]bool, len(taken)) // to remove them one by one would take quadratic time
	for _, x := range taken {
		gone[x] = true
		seat := x.Seat()
		l.parked[seat.Reason]--
		seat.Place, seat.Until = Away, 0
	}
	l.at[Parked] -= len(taken)
	for _, list := range []*[]T{&l.all, &l.asleep, &l.ready, &l.fresh, &l.visit} {
		*list = slices.DeleteFunc(*list, func(x T) bool { return gone[x] })
	}
	return taken
}

// Empty removes and returns all parked holders, oldest first. Their place is then Away, and
// none of them is behind another.
func (l *Line[T]) Empty() []T {
	all := l.All()
	l.asleep, l.ready, l.fresh, l.visit = nil, nil, nil, nil
	for _, k := range l.keys {
		l.without(k, func(x T) bool { return x.Seat().Place == Parked })
	}
	for _, x := range all {
		l.Move(x, Away)
		x.Seat().Until = 0
	}
	l.all = nil // with its memory
	return all
}
