package route

import "slices"

// hamt is a persistent map from string to V (a hash array mapped trie): with
// and without return a new map that shares all but a few small arrays with the
// old one, which stays as it was. So a change of the index costs microseconds
// however large it is, and readers of an older state are never disturbed.
//
// The zero value is empty. The caller hashes, always in the same way; two keys may
// have the same hash, but not if they are short and equally long (see hashOf).
type hamt[V any] struct {
	// below has the map for each value of the hash's next digit. It is nil as long
	// as there are few items; then they are here, in no order.
	below *[hamtWidth]hamt[V]
	items []hamtItem[V]
	// tags of the items spare a look at those beside the one that is looked for: at
	// their cache lines, and at their keys, which are elsewhere.
	tags tags
}

type hamtItem[V any] struct {
	hash  uint64
	key   string
	value V
}

// has reports whether the item is that of key. The text of a short one, which would be
// waited for because it is elsewhere in memory, is not looked at: its hash says it all.
func (it *hamtItem[V]) has(hash uint64, key string) bool {
	return it.hash == hash && len(it.key) == len(key) && (len(key) <= shortKey || it.key == key)
}

const (
	hamtBits   = 4
	hamtWidth  = 1 << hamtBits
	hamtBottom = 64 // shift at which the hash is used up, and items may be many
	hamtFew    = 8  // as many as have tags
)

func (m *hamt[V]) empty() bool { return m.below == nil && len(m.items) == 0 }

// get returns where the value of key is, not to be changed, or nil.
func (m *hamt[V]) get(hash uint64, key string) *V {
	for digits := hash; m.below != nil; digits >>= hamtBits {
		m = &m.below[digits%hamtWidth]
	}
	if i := m.index(hash, key); i >= 0 {
		return &m.items[i].value
	}
	return nil
}

// index returns where key is among the items, or -1.
func (m *hamt[V]) index(hash uint64, key string) int {
	if len(m.items) > hamtFew {
		return slices.IndexFunc(m.items, func(it hamtItem[V]) bool { return it.has(hash, key) })
	}
	for p := m.tags.places(hash); p != 0; p = p.others() {
		if i := p.first(); m.items[i].has(hash, key) {
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
		b := &below[it.hash>>shift%hamtWidth]
		*b = b.insert(shift+hamtBits, it)
		return hamt[V]{below: &below}
	}
	if i := m.index(it.hash, it.key); i >= 0 {
		m.items = slices.Clone(m.items)
		m.items[i] = it
		return m
	}
	n := len(m.items)
	if n < hamtFew || shift >= hamtBottom {
		items := make([]hamtItem[V], n+1)
		copy(items, m.items)
		items[n] = it
		return hamt[V]{items: items, tags: m.tags.with(n, it.hash)}
	}
	split := hamt[V]{below: new([hamtWidth]hamt[V])}
	for _, old := range m.items {
		split = split.insert(shift, old)
	}
	return split.insert(shift, it)
}

// without returns a map that does not have key.
func (m hamt[V]) without(hash uint64, key string) hamt[V] {
	if m.get(hash, key) != nil {
		return m.remove(0, hash, key)
	}
	return m
}

// remove is without for a key that the map has.
func (m hamt[V]) remove(shift uint, hash uint64, key string) hamt[V] {
	var left []hamtItem[V]
	if m.below == nil {
		i := m.index(hash, key)
		left = slices.Concat(m.items[:i], m.items[i+1:])
	} else {
		below := *m.below
		b := &below[hash>>shift%hamtWidth]
		*b = b.remove(shift+hamtBits, hash, key)
		// Half of what made it split, so that coming and going at the limit is cheap.
		for i := range below {
			if below[i].below != nil || len(left)+len(below[i].items) > hamtFew/2 {
				return hamt[V]{below: &below}
			}
			left = append(left, below[i].items...)
		}
	}
	c := hamt[V]{items: left}
	for i := range left {
		c.tags = c.tags.with(i, left[i].hash)
	}
	return c
}
