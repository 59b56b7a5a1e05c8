package route

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
)

const (
	cachePages = 128
	cacheSets  = 8 // in a page
	cacheWays  = 7 // in a set, which is a cache line with its tags
)

// cache holds the results for some types under one state of the table. It never
// holds more than cachePages*cacheSets*cacheWays = 7,168 of them. It begins empty
// with each state and allocates its pages when they are used, because states may
// follow each other quickly.
type cache[R any] struct {
	pages [cachePages]atomic.Pointer[cachePage[R]]
}

type cachePage[R any] [cacheSets]cacheSet[R]

// cacheSet is where the types are whose hashes choose it, each in any of the
// ways. The tags spare a type that is not here the look at all those that are.
type cacheSet[R any] struct {
	tags atomic.Uint64 // of type tags
	ways [cacheWays]atomic.Pointer[cached[R]]
}

type cached[R any] struct {
	name   name
	length int
	result R
	typ    string // if it is longer than its name
}

func newCached[R any](typ string, result R) *cached[R] {
	e := &cached[R]{length: len(typ), result: result}
	e.name, _ = nameOf(typ)
	if len(typ) > maxName {
		e.typ = strings.Clone(typ) // or whatever it is a part of would be kept with it
	}
	return e
}

// get returns the hash of a type too, by which it has looked for it.
func (c *cache[R]) get(typ string) (result R, hash Hash, ok bool) {
	name, h := nameOf(typ)
	page := c.pages[h%cachePages].Load()
	if page == nil {
		return result, Hash(h), false
	}
	set := &page[h/cachePages%cacheSets]
	// One after the other: it is mostly the first, and a branch is foretold.
	for i, tags := 0, set.tags.Load(); i < cacheWays; i, tags = i+1, tags>>8 {
		if tags&0xff != tag(h) {
			continue
		}
		e := set.ways[i].Load()
		if e.length == len(typ) && e.name == name && (len(typ) <= maxName || e.typ == typ) {
			return e.result, Hash(h), true
		}
	}
	return result, Hash(h), false
}

// put stores a result, in place of a random one if the set is full. Sets fill
// from the front and never have a gap.
func (c *cache[R]) put(hash uint64, e *cached[R]) {
	slot := &c.pages[hash%cachePages]
	page := slot.Load()
	if page == nil {
		slot.CompareAndSwap(nil, new(cachePage[R]))
		page = slot.Load()
	}
	set := &page[hash/cachePages%cacheSets]
	for i := range set.ways {
		if set.ways[i].CompareAndSwap(nil, e) {
			set.tag(i, hash)
			return
		}
		if old := set.ways[i].Load(); old.length == e.length && old.name == e.name && old.typ == e.typ {
			return
		}
	}
	i := rand.IntN(cacheWays)
	set.ways[i].Store(e)
	set.tag(i, hash)
}

// tag lets a type that has been stored be found.
func (s *cacheSet[R]) tag(way int, hash uint64) {
	for {
		old := s.tags.Load()
		if s.tags.CompareAndSwap(old, uint64(tags(old).with(way, hash))) {
			return
		}
	}
}

// doorkeeper remembers the last types that were asked for and not found in the
// cache, so that only a type that comes again is admitted: a flood of types that
// come once evicts nothing. It forgets nothing when the table changes.
//
// A word holds sixteen bits of the hash of each of the last four types that fell
// on it, so that types that share a word do not hide each other.
type doorkeeper [4096]atomic.Uint64

// knows reports whether the type with this hash has been here lately, and
// remembers it. It may be wrong, seldom, and no harm is done.
func (d *doorkeeper) knows(hash uint64) bool {
	const each = 0x0001_0001_0001_0001 // a one for each of the four
	word := &d[hash%uint64(len(d))]
	tags, tag := word.Load(), hash>>48|1 // 0 is no type
	// Where a tag is the same the difference is 0, and only from 0 is a one borrowed
	// without the highest bit having been set.
	differences := tags ^ tag*each
	if (differences-each)&^differences&(each<<15) != 0 {
		return true
	}
	word.Store(tags<<16 | tag)
	return false
}
