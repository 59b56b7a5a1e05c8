// Package dedupe remembers a bounded number of keys, each with a content.
package dedupe

// Memory remembers a bounded number of keys K, each with its content C. Beyond the bound it
// forgets the oldest key. Its methods must not be called concurrently.
type Memory[K, C comparable] struct {
	most  int
	known map[K]entry[C]
	ring  []K // in order of arrival; the oldest is at old
	old   int
}

type entry[C comparable] struct {
	content C
	place   int // in the ring
}

// New returns a memory for up to most keys.
func New[K, C comparable](most int) *Memory[K, C] {
	return &Memory[K, C]{most: most, known: make(map[K]entry[C])}
}

// Lookup returns the content of a key.
func (m *Memory[K, C]) Lookup(key K) (content C, known bool) {
	e, known := m.known[key]
	return e.content, known
}

// Remember adds a key that is not known.
func (m *Memory[K, C]) Remember(key K, content C) {
	place := len(m.ring)
	if place < m.most {
		m.ring = append(m.ring, key)
	} else {
		place = m.old
		// A key that was forgotten may be known again, in another place.
		if oldest := m.ring[place]; m.known[oldest].place == place {
			delete(m.known, oldest)
		}
		m.ring[place] = key
		m.old = (m.old + 1) % m.most
	}
	m.known[key] = entry[C]{content, place}
}

// Forget removes a key.
func (m *Memory[K, C]) Forget(key K) { delete(m.known, key) }
