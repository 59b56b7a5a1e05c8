package route

// byText is a persistent map from texts, segments or parts of them, to V. The caller
// hashes (see hashOf), always in the same way. The zero value is empty.
//
// No text has a byte that is 0: with one it could be taken for another one.
type byText[V any] struct {
	// A short text is not kept, as no other one has its hash. So an item is small, and
	// it needs no look at a text, which would be elsewhere in memory.
	short hamt[V]
	long  hamt[named[V]]
}

// named is what a long text has, in front of what others with the same hash have.
type named[V any] struct {
	text  string
	value V
	next  *named[V]
}

func (m *byText[V]) empty() bool { return m.short.empty() && m.long.empty() }

// get returns a pointer to the value of text, or nil. The value must not be changed.
func (m *byText[V]) get(hash uint64, text string) *V {
	if len(text) <= shortText {
		return m.short.get(hash)
	}
	for n := m.long.get(hash); n != nil; n = n.next {
		if n.text == text {
			return &n.value
		}
	}
	return nil
}

// with returns a map in which text has value.
func (m byText[V]) with(hash uint64, text string, value V) byText[V] {
	if len(text) <= shortText {
		m.short = m.short.with(hash, value)
	} else {
		others := m.long.get(hash).without(text)
		m.long = m.long.with(hash, named[V]{text, value, others})
	}
	return m
}

// without returns a map that does not have text.
func (m byText[V]) without(hash uint64, text string) byText[V] {
	if len(text) <= shortText {
		m.short = m.short.without(hash)
	} else if others := m.long.get(hash).without(text); others != nil {
		m.long = m.long.with(hash, *others)
	} else {
		m.long = m.long.without(hash)
	}
	return m
}

// all yields every value, in no order. They must not be changed.
func (m *byText[V]) all(yield func(*V) bool) {
	_ = m.short.each(yield) && m.long.each(func(n *named[V]) bool {
		for ; n != nil; n = n.next {
			if !yield(&n.value) {
				return false
			}
		}
		return true
	})
}

func (n *named[V]) without(text string) *named[V] {
	switch {
	case n == nil:
		return nil
	case n.text == text:
		return n.next
	}
	return &named[V]{n.text, n.value, n.next.without(text)}
}
