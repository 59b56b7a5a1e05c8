// Package standing keeps orders about items that are on their way, for whoever meets them next.
package standing

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Order is an order as one giver has given it. It counts the items that were met until the giver takes the number.
type Order struct {
	mu    sync.Mutex // guards the following; a leaf, also under that of Orders
	met   int64
	taken bool // the giver does not count any more
}

// takeMet returns how many items were met for the giver since the last call. It counts no more, unless it gives the order again.
func (o *Order) takeMet() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	met := o.met
	o.met, o.taken = 0, true
	return met
}

// counts counts items, unless the giver has taken the number.
func (o *Order) counts(met int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.taken {
		o.met += met
	}
	return !o.taken
}

func (o *Order) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken = false
}

// order is what stands for a key.
type order struct {
	until  int64
	givers []*Order
}

// count counts an item for one giver: the first that still counts, or none.
func (o *order) count(met int64) {
	for _, g := range o.givers {
		if g.counts(met) {
			return
		}
	}
}

// Orders has the keys of items for which an order stands until a point in time. The zero Orders is empty. Its methods are safe for
// concurrent use.
type Orders[K comparable] struct {
	n atomic.Int64 // the length of orders

	mu     sync.Mutex // guards the following
	orders map[K]*order
	until  int64 // no order stands for longer
	kept   int   // length of orders after those that are over were forgotten
}

// Give gives an order for a key, which stands until a later point in time. If one stands already, it lasts longer, and has one giver
// more, unless that is own, which the caller has given before.
func (o *Orders[K]) Give(key K, own *Order, now, until int64) *Order {
	if own == nil {
		own = &Order{}
	}
	own.begin()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.orders) >= 2*o.kept { // not each time: that would take quadratic time
		for k, order := range o.orders {
			if order.until <= now {
				delete(o.orders, k)
			}
		}
		o.kept = max(len(o.orders), minKept)
	}
	if o.orders == nil {
		o.orders = make(map[K]*order)
	}
	stands := o.orders[key]
	if stands == nil || stands.until <= now {
		stands = &order{}
		o.orders[key] = stands
	}
	if !slices.Contains(stands.givers, own) {
		stands.givers = append(stands.givers, own)
	}
	stands.until = max(stands.until, until)
	o.until = max(o.until, until)
	o.n.Store(int64(len(o.orders)))
	return own
}

// minKept is the number of orders from which Give forgets those that are over.
const minKept = 16

// Stands reports whether an order stands for a key. Without any order it costs one load.
func (o *Orders[K]) Stands(key K, now func() int64) bool {
	return o.n.Load() > 0 && o.find(key, now(), 0)
}

// Meets reports whether an order stands for a key, and counts that an item of it was met. Without any order it costs one load.
func (o *Orders[K]) Meets(key K, now func() int64) bool {
	return o.n.Load() > 0 && o.find(key, now(), 1)
}

// find reports whether an order stands for a key, and counts items that were met. Once no order stands, it forgets all of them.
func (o *Orders[K]) find(key K, now, met int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now >= o.until {
		o.clearLocked()
		return false
	}
	order := o.orders[key]
	if order == nil || order.until <= now {
		return false
	}
	order.count(met)
	return true
}

func (o *Orders[K]) clearLocked() {
	o.orders, o.until, o.kept = nil, 0, 0 // a map keeps the memory of removed keys
	o.n.Store(0)
}

// TakeMet returns how many items were met for the giver of an order since it gave it. It counts no more. If it was none and keeps is
// not set, the order is taken back, unless others have given it too: once one was met, those that follow must be.
func (o *Orders[K]) TakeMet(key K, own *Order, keeps bool) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	met := own.takeMet()
	if met == 0 && !keeps {
		o.takeBackLocked(key, own)
	}
	return met
}

func (o *Orders[K]) takeBackLocked(key K, own *Order) {
	stands := o.orders[key]
	if stands == nil {
		return
	}
	if i := slices.Index(stands.givers, own); i >= 0 {
		stands.givers = slices.Delete(stands.givers, i, i+1)
	}
	if len(stands.givers) == 0 {
		o.withdrawLocked(key)
	}
}

// Withdraw takes the order for a key back, whoever has given it.
func (o *Orders[K]) Withdraw(key K) {
	if o.n.Load() > 0 {
		o.withdraw(key)
	}
}

func (o *Orders[K]) withdraw(key K) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.withdrawLocked(key)
}

func (o *Orders[K]) withdrawLocked(key K) {
	if delete(o.orders, key); len(o.orders) == 0 {
		o.clearLocked()
		return
	}
	o.n.Store(int64(len(o.orders)))
}
