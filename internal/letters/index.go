package letters

import (
	"bytes"
	"iter"
	"slices"
)

// index has letters in the order of their IDs: in the list of all, and in a list for each combination of labels that
// queries look for. It is not safe for concurrent use.
type index[L any] struct {
	facts func(L) Facts
	all   list[L]
	lists map[Labels]*list[L] // without empty ones
}

// list has the letters that share labels. A removed letter leaves a tombstone.
type list[L any] struct {
	entries []*entry[L] // the first one is not a tombstone
	length  int         // entries without tombstones
	removed int         // letters removed since the last compaction
}

type entry[L any] struct {
	id      ID
	letter  L
	removed bool
	lists   [listsOfALetter]*list[L] // nil for zero labels
}

const listsOfALetter = 7

// keys returns the labels of the lists that a letter is in.
func (l *Labels) keys() [listsOfALetter - 1]Labels {
	return [...]Labels{
		{Subscription: l.Subscription},
		{Reason: l.Reason},
		{Subscription: l.Subscription, Reason: l.Reason},
		{Fingerprint: l.Fingerprint},
		{Event: l.Event},
		{Key: l.Key},
	}
}

func byID[L any](e, other *entry[L]) int { return bytes.Compare(e.id[:], other.id[:]) }

func newIndex[L any](facts func(L) Facts) *index[L] {
	return &index[L]{facts: facts, lists: make(map[Labels]*list[L])}
}

// with lists the letters with a key, which is not zero. The list is valid until the index changes.
func (x *index[L]) with(key Labels) *list[L] {
	if l := x.lists[key]; l != nil {
		return l
	}
	return &list[L]{}
}

// find returns the entry of a letter, or nil.
func (x *index[L]) find(id ID) *entry[L] {
	i, ok := x.all.search(id)
	if !ok || x.all.entries[i].removed {
		return nil
	}
	return x.all.entries[i]
}

// add adds a letter whose ID the index does not have.
func (x *index[L]) add(l L) {
	e := x.newEntry(l, x.facts(l))
	for _, l := range e.lists {
		if l != nil {
			l.insert(e)
		}
	}
}

// addAll adds letters, skips those whose IDs the index has, and returns how many it added.
// It sorts each list once: a sequence of adds would move all newer entries each time.
func (x *index[L]) addAll(letters []L) (added int) {
	var entries []*entry[L]
	seen := make(map[ID]bool, len(letters))
	for _, l := range letters {
		if facts := x.facts(l); !seen[facts.ID] && x.find(facts.ID) == nil {
			seen[facts.ID] = true
			entries = append(entries, x.newEntry(l, facts))
		}
	}
	unsorted := make(map[*list[L]]bool)
	for _, e := range entries {
		for _, l := range e.lists {
			if l == nil {
				continue
			}
			l.entries = append(l.entries, e)
			l.length++
			if len(l.entries) > 1 { // most lists of some keys have one letter
				unsorted[l] = true
			}
		}
	}
	for l := range unsorted {
		// A tombstone may have the ID of a letter that is added again. If both stayed, find could
		// return the tombstone.
		l.compact()
		slices.SortFunc(l.entries, byID)
	}
	return len(entries)
}

// remove removes the letter with an ID and returns whether there was one.
func (x *index[L]) remove(id ID) bool {
	e := x.find(id)
	if e == nil {
		return false
	}
	facts := x.facts(e.letter)
	var none L
	e.letter, e.removed = none, true
	x.all.release()
	for i, key := range facts.keys() {
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

func (x *index[L]) newEntry(l L, facts Facts) *entry[L] {
	e := &entry[L]{id: facts.ID, letter: l}
	e.lists[0] = &x.all
	for i, key := range facts.keys() {
		if key == (Labels{}) {
			continue
		}
		in := x.lists[key]
		if in == nil {
			in = &list[L]{}
			x.lists[key] = in
		}
		e.lists[i+1] = in
	}
	return e
}

// search returns the position of an ID, or the position at which to insert it.
func (l *list[L]) search(id ID) (int, bool) {
	return slices.BinarySearchFunc(l.entries, id, func(e *entry[L], id ID) int {
		return bytes.Compare(e.id[:], id[:])
	})
}

// insert adds an entry in the order of IDs. A new ID is usually the largest. A tombstone
// may have the ID of a letter that is added again. The entry must precede it: search returns
// the first.
func (l *list[L]) insert(e *entry[L]) {
	i := len(l.entries)
	if i > 0 && byID(e, l.entries[i-1]) <= 0 {
		i, _ = l.search(e.id)
	}
	l.entries = slices.Insert(l.entries, i, e)
	l.length++
}

// release updates the list after an entry became a tombstone. It frees tombstones at the
// old end at once, because eviction creates them there. It frees the others when they
// outnumber the letters.
func (l *list[L]) release() {
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
func (l *list[L]) compact() {
	entries := make([]*entry[L], 0, l.length)
	for _, e := range l.entries {
		if !e.removed {
			entries = append(entries, e)
		}
	}
	l.entries, l.removed = entries, 0
}

// first returns the entry with the smallest ID, or nil.
func (l *list[L]) first() *entry[L] {
	if len(l.entries) == 0 {
		return nil
	}
	return l.entries[0]
}

// ascending yields the entries by ID.
func (l *list[L]) ascending() iter.Seq[*entry[L]] {
	return func(yield func(*entry[L]) bool) {
		for _, e := range l.entries {
			if !e.removed && !yield(e) {
				return
			}
		}
	}
}

// descending yields the entries whose IDs are less than before, or all for the zero ID, the
// largest ID first.
func (l *list[L]) descending(before ID) iter.Seq[*entry[L]] {
	return func(yield func(*entry[L]) bool) {
		end := len(l.entries)
		if before != (ID{}) {
			end, _ = l.search(before)
		}
		for _, e := range slices.Backward(l.entries[:end]) {
			if !e.removed && !yield(e) {
				return
			}
		}
	}
}
