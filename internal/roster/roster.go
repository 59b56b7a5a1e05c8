// Package roster finds numbered values by their names.
package roster

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Roster has values V in the order of their numbers. It is not safe for concurrent use.
//
// A name that ends with # and the value's number is found by that number. A map of all names would
// be half of the garbage collector's work for a value, because it visits the names in the order
// of their hashes.
type Roster[V comparable] struct {
	name    func(V) string
	aliases func(V) []string
	last    uint64
	entries []entry[V] // by number
	removed int        // of the entries
	named   map[string]V
}

// entry has the zero V if its value was removed.
type entry[V comparable] struct {
	number uint64
	value  V
}

// New returns a roster of values with a name and aliases. Neither may change while the
// roster has the value.
func New[V comparable](name func(V) string, aliases func(V) []string) *Roster[V] {
	return &Roster[V]{name: name, aliases: aliases, named: make(map[string]V)}
}

// Next returns the number of the value that is added next.
func (r *Roster[V]) Next() uint64 { return r.last + 1 }

// Len returns the number of values.
func (r *Roster[V]) Len() int { return len(r.entries) - r.removed }

// Find returns the value with a name or an alias.
func (r *Roster[V]) Find(name string) (v V, ok bool) {
	if v, ok = r.named[name]; ok {
		return v, true
	}
	number, err := strconv.ParseUint(name[strings.LastIndexByte(name, '#')+1:], 10, 64)
	if err != nil {
		return v, false
	}
	if i, ok := r.index(number); ok {
		if e := r.entries[i]; e.value != v && r.name(e.value) == name {
			return e.value, true
		}
	}
	return v, false
}

func (r *Roster[V]) index(number uint64) (int, bool) {
	return slices.BinarySearchFunc(r.entries, number, func(e entry[V], number uint64) int {
		return cmp.Compare(e.number, number)
	})
}

// Add adds a value, whose names must be free, as number Next.
func (r *Roster[V]) Add(v V) {
	r.last++
	r.entries = append(r.entries, entry[V]{r.last, v})
	if found, _ := r.Find(r.name(v)); found != v {
		r.named[r.name(v)] = v
	}
	for _, alias := range r.aliases(v) {
		r.named[alias] = v
	}
}

// Remove removes the value with a number. Its names are free again.
func (r *Roster[V]) Remove(number uint64) {
	i, ok := r.index(number)
	var none V
	if !ok || r.entries[i].value == none {
		return
	}
	v := r.entries[i].value
	delete(r.named, r.name(v))
	for _, alias := range r.aliases(v) {
		delete(r.named, alias)
	}
	r.entries[i].value = none
	if r.removed++; r.removed > len(r.entries)/2 {
		entries := make([]entry[V], 0, r.Len())
		for _, e := range r.entries {
			if e.value != none {
				entries = append(entries, e)
			}
		}
		r.entries, r.removed = entries, 0
	}
}

// All returns the values in the order of their numbers.
func (r *Roster[V]) All() []V {
	var none V
	all := make([]V, 0, r.Len())
	for _, e := range r.entries {
		if e.value != none {
			all = append(all, e.value)
		}
	}
	return all
}
