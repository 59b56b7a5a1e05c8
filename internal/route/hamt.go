package route

import "slices"

// hamt is a persistent map from string to V (a hash array mapped trie): with
// and without return a new map that shares all but a few small arrays with the
// old one, which stays as it was. So a change of the index costs microseconds
// however large it is, and readers of an older state are never disturbed.
//
// The zero value is empty. The caller hashes; two keys may have the same hash.
type hamt[V any] struct {
	// below has the map for each value of the hash's next digit. It is nil as long
	// as there are few items; then they are here, in no order.
	below *[hamtWidth]hamt[V]
	items []hamtItem[V]
}

type hamtItem[V any] struct {
	hash  uint64
	key   string
	value V
}

const (
	hamtBits   = 4
	hamtWidth  = 1 << hamtBits
	hamtBottom = 64 // shift at which the hash is used up, and items can be many
	// hamtFew items are kept together: enough that the levels below are not mostly
	// empty, few enough that their hashes are in a cache line or two.
	hamtFew = 8
)

func hamtDigit(shift uint, hash uint64) uint64 { return hash >> shift % hamtWidth }

func (m *hamt[V]) empty() bool { return m.below == nil && len(m.items) == 0 }

// get returns the value of key; ok is false if there is none.
func (m *hamt[V]) get(hash uint64, key string) (value V, ok bool) {
	for digits := hash; m.below != nil; digits >>= hamtBits {
		m = &m.below[digits%hamtWidth]
	}
	if i := m.index(hash, key); i >= 0 {
		return m.items[i].value, true
	}
	return value, false
}

// index returns where key is among the items, or -1.
func (m *hamt[V]) index(hash uint64, key string) int {
	for i := range m.items {
		if it := &m.items[i]; it.hash == hash && it.key == key {
			return i
		}
	}
	return -1
}

// with returns a map in which key has value.
func (m hamt[V]) with(hash uint64, key string, value V) hamt[V] {
	return m.insert(0, hamtItem[V]{hash, key, value})
}

func (m hamt[V]) insert(shift uint, it hamtItem[V]) hamt[V] {
	if m.below != nil {
		below := *m.below
		b := &below[hamtDigit(shift, it.hash)]
		*b = b.insert(shift+hamtBits, it)
		return hamt[V]{below: &below}
	}
	if i := m.index(it.hash, it.key); i >= 0 {
		items := slices.Clone(m.items)
		items[i] = it
		return hamt[V]{items: items}
	}
	if len(m.items) < hamtFew || shift >= hamtBottom {
		items := make([]hamtItem[V], len(m.items)+1)
		items[copy(items, m.items)] = it
		return hamt[V]{items: items}
	}
	var below [hamtWidth]hamt[V]
	for _, it := range append(m.items[:len(m.items):len(m.items)], it) {
		b := &below[hamtDigit(shift, it.hash)]
		*b = b.insert(shift+hamtBits, it)
	}
	return hamt[V]{below: &below}
}

// without returns a map that does not have key.
func (m hamt[V]) without(hash uint64, key string) hamt[V] {
	if _, ok := m.get(hash, key); !ok {
		return m
	}
	return m.remove(0, hash, key)
}

// remove is without for a key that the map has.
func (m hamt[V]) remove(shift uint, hash uint64, key string) hamt[V] {
	if m.below == nil {
		i := m.index(hash, key)
		return hamt[V]{items: slices.Concat(m.items[:i], m.items[i+1:])}
	}
	below := *m.below
	b := &below[hamtDigit(shift, hash)]
	*b = b.remove(shift+hamtBits, hash, key)
	// Half of what made it split, so that coming and going at the limit is cheap.
	var left []hamtItem[V]
	for i := range below {
		if below[i].below != nil || len(left)+len(below[i].items) > hamtFew/2 {
			return hamt[V]{below: &below}
		}
		left = append(left, below[i].items...)
	}
	return hamt[V]{items: left}
}
