// Package index keeps values in the order of their ids, and lists those that share a key.
package index

import (
	"bytes"
	"iter"
	"slices"
)

// ID identifies a value and is its place in the order.
type ID = [16]byte

// Keys is the number of keys of a value.
const Keys = 6

// Index has values V, each in the list of all and in a list for each of its keys K. A zero key has
// no list. An Index is not safe for concurrent use.
type Index[K comparable, V any] struct {
	id    func(V) ID
	keys  func(V) [Keys]K
	all   List[K, V]
	lists map[K]*List[K, V] // without empty ones
}

// List has the values that share a key. A removed value leaves a tombstone.
type List[K comparable, V any] struct {
	entries []*entry[K, V] // the first one is not a tombstone
	length  int            // entries without tombstones
	removed int            // values removed since the last compaction
}

type entry[K comparable, V any] struct {
	id      ID
	value   V
	removed bool
	lists   [Keys + 1]*List[K, V] // nil for a zero key
}

func byID[K comparable, V any](e, other *entry[K, V]) int { return bytes.Compare(e.id[:], other.id[:]) }

// New returns an index. The id and the keys of a value must never change.
func New[K comparable, V any](id func(V) ID, keys func(V) [Keys]K) *Index[K, V] {
	return &Index[K, V]{id: id, keys: keys, lists: make(map[K]*List[K, V])}
}

// All lists all values.
func (x *Index[K, V]) All() *List[K, V] { return &x.all }

// With lists the values that have a key, which is not zero. The list is valid until the index changes.
func (x *Index[K, V]) With(key K) *List[K, V] {
	if l := x.lists[key]; l != nil {
		return l
	}
	return &List[K, V]{}
}

// Get returns the value with an id.
func (x *Index[K, V]) Get(id ID) (v V, ok bool) {
	if e := x.find(id); e != nil {
		return e.value, true
	}
	return v, false
}

func (x *Index[K, V]) find(id ID) *entry[K, V] {
	i, ok := x.all.search(id)
	if !ok || x.all.entries[i].removed {
		return nil
	}
	return x.all.entries[i]
}

// Add adds a value whose id the index does not have.
func (x *Index[K, V]) Add(v V) {
	e := x.newEntry(v)
	for _, l := range e.lists {
		if l != nil {
			l.insert(e)
		}
	}
}

// AddAll adds values, skips those whose ids the index has, and returns how many it added.
// It sorts each list once: a sequence of Adds would move all newer entries each time.
func (x *Index[K, V]) AddAll(values []V) (added int) {
	var entries []*entry[K, V]
	seen := make(map[ID]bool, len(values))
	for _, v := range values {
		if id := x.id(v); !seen[id] && x.find(id) == nil {
			seen[id] = true
			entries = append(entries, x.newEntry(v))
		}
	}
	unsorted := make(map[*List[K, V]]bool)
	for _, e := range entries {
		for _, l := range e.lists {
			if l == nil {
				continue
			}
			l.entries = append(l.entries, e)
			l.length++
			if len(l.entries) > 1 { // most lists of some keys have one value
				unsorted[l] = true
			}
		}
	}
	for l := range unsorted {
		// A tombstone may have the id of a value that is added again. If both stayed, find could
		// return the tombstone.
		l.compact()
		slices.SortFunc(l.entries, byID)
	}
	return len(entries)
}

// Remove removes the value with an id and returns whether there was one.
func (x *Index[K, V]) Remove(id ID) bool {
	e := x.find(id)
	if e == nil {
		return false
	}
	keys := x.keys(e.value)
	var none V
	e.value, e.removed = none, true
	x.all.release()
	for i, key := range keys {
		l := e.lists[i+1]
		if l == nil {
			continue
		}
		l.release()
		if l.length == 0 {
			delete(x.lists, key)
		}
	}
	return true
}

func (x *Index[K, V]) newEntry(v V) *entry[K, V] {
	e := &entry[K, V]{id: x.id(v), value: v}
	e.lists[0] = &x.all
	var none K
	for i, key := range x.keys(v) {
		if key == none {
			continue
		}
		l := x.lists[key]
		if l == nil {
			l = &List[K, V]{}
			x.lists[key] = l
		}
		e.lists[i+1] = l
	}
	return e
}

// search returns the position of an id, or the position at which to insert it.
func (l *List[K, V]) search(id ID) (int, bool) {
	return slices.BinarySearchFunc(l.entries, id, func(e *entry[K, V], id ID) int {
		return bytes.Compare(e.id[:], id[:])
	})
}

// insert adds an entry in the order of ids. A new id is usually the largest. A tombstone
// may have the id of a value that is added again. The entry must precede it: search returns
// the first.
func (l *List[K, V]) insert(e *entry[K, V]) {
	i := len(l.entries)
	if i > 0 && byID(e, l.entries[i-1]) <= 0 {
		i, _ = l.search(e.id)
	}
	l.entries = slices.Insert(l.entries, i, e)
	l.length++
}

// release updates the list after an entry became a tombstone. It frees tombstones at the
// old end at once, because eviction creates them there. It frees the others when they
// outnumber the values.
func (l *List[K, V]) release() {
	l.length--
	l.removed++
	for len(l.entries) > 0 && l.entries[0].removed {
		l.entries[0] = nil
		l.entries = l.entries[1:]
	}
	if l.removed <= l.length+64 && l.length > 0 {
		return
	}
	l.compact()
}

// compact frees the tombstones. It copies the entries, because the slice keeps its memory.
func (l *List[K, V]) compact() {
	entries := make([]*entry[K, V], 0, l.length)
	for _, e := range l.entries {
		if !e.removed {
			entries = append(entries, e)
		}
	}
	l.entries, l.removed = entries, 0
}

// Len returns the number of values.
func (l *List[K, V]) Len() int { return l.length }

// First returns the value with the smallest id.
func (l *List[K, V]) First() (v V, ok bool) {
	if len(l.entries) == 0 {
		return v, false
	}
	return l.entries[0].value, true
}

// Ascending yields the values by id.
func (l *List[K, V]) Ascending() iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, e := range l.entries {
			if !e.removed && !yield(e.value) {
				return
			}
		}
	}
}

// Descending yields the values whose ids are less than before, or all for the zero ID, the
// largest id first.
func (l *List[K, V]) Descending(before ID) iter.Seq[V] {
	return func(yield func(V) bool) {
		end := len(l.entries)
		if before != (ID{}) {
			end, _ = l.search(before)
		}
		for _, e := range slices.Backward(l.entries[:end]) {
			if !e.removed && !yield(e.value) {
				return
			}
		}
	}
}
