package route

import (
	"math/bits"
	"slices"
)

// hamt is a persistent map from string to V (a hash array mapped trie): with
// and without return a new map that shares all but a few small arrays with the
// old one, which stays as it was. So a change of the index costs microseconds
// however large it is, and readers of an older state are never disturbed.
//
// The empty map is nil. The caller hashes; two keys may have the same hash.
type hamt[V any] struct {
	// present has one bit for each of 32 values of five bits of the hash. The
	// slot of a value is the number of smaller values that are present. At the
	// bottom, where the hash is used up, it is not used, and every slot is
	// compared.
	present uint32
	slots   []hamtSlot[V]
}

// hamtSlot is a key with its value or, if below is not nil, a further level.
type hamtSlot[V any] struct {
	below *hamt[V]
	hash  uint64
	key   string
	value V
}

const (
	hamtBits   = 5
	hamtBottom = 64 / hamtBits * hamtBits // shift at which no whole digit is left
)

// find returns the slot of the hash's digit at shift, and whether it is taken.
// At the bottom it looks for the key itself.
func (m *hamt[V]) find(shift uint, hash uint64, key string) (slot int, taken bool) {
	if shift >= hamtBottom {
		i := slices.IndexFunc(m.slots, func(s hamtSlot[V]) bool { return s.key == key })
		return max(i, 0), i >= 0
	}
	bit := digit(shift, hash)
	return bits.OnesCount32(m.present & (bit - 1)), m.present&bit != 0
}

func digit(shift uint, hash uint64) uint32 {
	return 1 << (hash >> shift & (1<<hamtBits - 1))
}

// get returns the value of key; ok is false if there is none. It is find in a loop,
// written out because a walk of the index spends its time here.
func (m *hamt[V]) get(hash uint64, key string) (value V, ok bool) {
	for shift := uint(0); m != nil; shift += hamtBits {
		var s *hamtSlot[V]
		if shift < hamtBottom {
			bit := digit(shift, hash)
			if m.present&bit == 0 {
				break
			}
			s = &m.slots[bits.OnesCount32(m.present&(bit-1))]
		} else if i, taken := m.find(shift, hash, key); taken {
			s = &m.slots[i]
		} else {
			break
		}
		if s.below == nil {
			if s.hash == hash && s.key == key {
				return s.value, true
			}
			break
		}
		m = s.below
	}
	return value, false
}

// with returns a map in which key has value.
func (m *hamt[V]) with(hash uint64, key string, value V) *hamt[V] {
	return m.insert(0, hamtSlot[V]{hash: hash, key: key, value: value})
}

func (m *hamt[V]) insert(shift uint, s hamtSlot[V]) *hamt[V] {
	if m == nil {
		m = &hamt[V]{}
	}
	i, taken := m.find(shift, s.hash, s.key)
	if !taken {
		c := newHAMT[V](m.present, len(m.slots)+1)
		copy(c.slots, m.slots[:i])
		c.slots[i] = s
		copy(c.slots[i+1:], m.slots[i:])
		if shift < hamtBottom {
			c.present |= digit(shift, s.hash)
		}
		return c
	}
	old := m.slots[i]
	if below := old.below; below != nil {
		s = hamtSlot[V]{below: below.insert(shift+hamtBits, s)}
	} else if old.key != s.key {
		below = below.insert(shift+hamtBits, old)
		s = hamtSlot[V]{below: below.insert(shift+hamtBits, s)}
	}
	return m.replace(i, s)
}

// newHAMT returns a map with room for n slots: for one, as most nodes have it, next
// to the map itself, where a walk finds it without another wait for memory.
func newHAMT[V any](present uint32, n int) *hamt[V] {
	if n > 1 {
		return &hamt[V]{present: present, slots: make([]hamtSlot[V], n)}
	}
	one := &struct {
		hamt[V]
		slot [1]hamtSlot[V]
	}{}
	one.present, one.slots = present, one.slot[:]
	return &one.hamt
}

// without returns a map that does not have key.
func (m *hamt[V]) without(hash uint64, key string) *hamt[V] {
	return m.remove(0, hash, key)
}

func (m *hamt[V]) remove(shift uint, hash uint64, key string) *hamt[V] {
	if m == nil {
		return nil
	}
	i, taken := m.find(shift, hash, key)
	if !taken {
		return m
	}
	if s := &m.slots[i]; s.below != nil {
		if below := s.below.remove(shift+hamtBits, hash, key); below != nil {
			return m.replace(i, hamtSlot[V]{below: below})
		}
	} else if s.key != key {
		return m
	}
	if len(m.slots) == 1 {
		return nil
	}
	c := &hamt[V]{present: m.present, slots: slices.Concat(m.slots[:i], m.slots[i+1:])}
	if shift < hamtBottom {
		c.present &^= digit(shift, hash)
	}
	return c
}

func (m *hamt[V]) replace(i int, s hamtSlot[V]) *hamt[V] {
	c := &hamt[V]{present: m.present, slots: slices.Clone(m.slots)}
	c.slots[i] = s
	return c
}
