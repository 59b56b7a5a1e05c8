package route

import (
	"math/bits"
	"slices"
)

// hamt is a persistent map from hashes to V (a hash array mapped trie): with and without
// return a new map that shares all but a few small arrays with the old one, which does not
// change. A change costs microseconds for any size of the index, and readers keep their
// older state.
//
// The zero value is empty.
type hamt[V any] struct {
	// below has the map for each value of the hash's next digit. It is nil for few items,
	// which are then here, in no order.
	below *[hamtWidth]hamt[V]
	items []hamtItem[V]
	// tags of the items avoid reading the other items, which costs cache lines and
	// unpredictable branches.
	tags [2]tags
}

type hamtItem[V any] struct {
	hash  uint64
	value V
}

const (
	hamtBits  = 5
	hamtWidth = 1 << hamtBits
	hamtFew   = 16 // the number of tags
)

func (m *hamt[V]) empty() bool { return m.below == nil && len(m.items) == 0 }

// get returns a pointer to the value for hash, or nil. The value must not be changed.
func (m *hamt[V]) get(hash uint64) *V {
	for digits := hash; m.below != nil; digits >>= hamtBits {
		m = &m.below[digits%hamtWidth]
	}
	if i := m.index(hash); i >= 0 {
		return &m.items[i].value
	}
	return nil
}

// index returns the index of hash among the items, or -1.
func (m *hamt[V]) index(hash uint64) int {
	// Both at once, to avoid an unpredictable branch.
	for p := m.tags[0].places(hash)>>1 | m.tags[1].places(hash); p != 0; p = p.others() {
		bit := bits.TrailingZeros64(uint64(p))
		if i := bit/8 + bit%2*8; m.items[i].hash == hash {
			return i
		}
	}
	return -1
}

// with returns a map in which hash has value.
func (m hamt[V]) with(hash uint64, value V) hamt[V] {
	return m.insert(0, hamtItem[V]{hash, value})
}

func (m hamt[V]) insert(shift uint, it hamtItem[V]) hamt[V] {
	if m.below != nil {
		below := *m.below
		b := &below[it.hash>>shift%hamtWidth]
		*b = b.insert(shift+hamtBits, it)
		return hamt[V]{below: &below}
	}
	if i := m.index(it.hash); i >= 0 {
		m.items = slices.Clone(m.items)
		m.items[i] = it
		return m
	}
	if n := len(m.items); n < hamtFew {
		items := make([]hamtItem[V], n+1)
		copy(items, m.items)
		items[n] = it
		m.tags[n/8] = m.tags[n/8].with(n%8, it.hash)
		return hamt[V]{items: items, tags: m.tags}
	}
	below := new([hamtWidth]hamt[V])
	for _, each := range append(m.items[:len(m.items):len(m.items)], it) {
		b := &below[each.hash>>shift%hamtWidth]
		*b = b.insert(shift+hamtBits, each)
	}
	return hamt[V]{below: below}
}

// without returns a map that does not have hash.
func (m hamt[V]) without(hash uint64) hamt[V] {
	if m.get(hash) != nil {
		return m.remove(0, hash)
	}
	return m
}

// remove is without for a hash that the map has.
func (m hamt[V]) remove(shift uint, hash uint64) hamt[V] {
	var left []hamtItem[V]
	if m.below == nil {
		i := m.index(hash)
		left = slices.Concat(m.items[:i], m.items[i+1:])
	} else {
		below := *m.below
		b := &below[hash>>shift%hamtWidth]
		*b = b.remove(shift+hamtBits, hash)
		// At half of the limit for a split, so that changes at the limit are cheap.
		for i := range below {
			if below[i].below != nil || len(left)+len(below[i].items) > hamtFew/2 {
				return hamt[V]{below: &below}
			}
			left = append(left, below[i].items...)
		}
	}
	c := hamt[V]{items: left}
	for i := range left {
		c.tags[i/8] = c.tags[i/8].with(i%8, left[i].hash)
	}
	return c
}

// each calls do with every value, in no order, until it returns false.
func (m *hamt[V]) each(do func(*V) bool) bool {
	if m.below != nil {
		for i := range m.below {
			if !m.below[i].each(do) {
				return false
			}
		}
	}
	for i := range m.items {
		if !do(&m.items[i].value) {
			return false
		}
	}
	return true
}
