package route

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
)

const (
	cachePages = 128
	cacheSets  = 8 // in a page
	cacheWays  = 8 // in a set
)

// cache holds the results for some types under one state of the table. It never
// holds more than cachePages*cacheSets*cacheWays = 8,192 of them. It begins empty
// with each state and allocates its pages when they are used, because states may
// follow each other quickly.
type cache[R any] struct {
	pages [cachePages]atomic.Pointer[cachePage[R]]
}

// cachePage has a home for each of its types, chosen by the hash. One whose home is
// taken is in another place of the same set, where tags spare it the look at others. It
// takes 640 bytes.
type cachePage[R any] struct {
	places [cacheSets * cacheWays]atomic.Pointer[cached[R]]
	tags   [cacheSets]atomic.Uint64 // of type tags
}

// home returns the index of the place at which a type is looked for first.
func home(hash uint64) uint64 { return hash / cachePages % (cacheSets * cacheWays) }

type cached[R any] struct {
	name   name
	length int
	result R
	typ    string // if it is longer than maxUsual
}

func newCached[R any](typ string, result R) *cached[R] {
	e := &cached[R]{name: nameOf(typ), length: len(typ), result: result}
	if len(typ) > maxUsual {
		e.typ = strings.Clone(typ) // else a string that contains it would stay in memory
	}
	return e
}

// Cached returns the result for typ if it is in the cache. It builds nothing and
// allocates nothing. A type that is in the cache was given to Find or Lookup before;
// one that is not can be given to Find, with the hash, once it is known to be valid.
func (t *Table[S, R]) Cached(typ string) (r R, hash Hash, ok bool) {
	if !usual(typ) {
		return t.cachedUnusual(typ)
	}
	// Without calls: a call would add a tenth to the time.
	name := usualName(typ)
	h := name.hash(len(typ))
	page := t.state.Load().cache.pages[h%cachePages].Load()
	if page == nil {
		return r, Hash(h), false
	}
	e := page.places[home(h)].Load()
	if e == nil || e.length != len(typ) || e.name != name {
		if e = page.find(h, name, typ); e == nil {
			return r, Hash(h), false
		}
	}
	return e.result, Hash(h), true
}

func (t *Table[S, R]) cachedUnusual(typ string) (r R, hash Hash, ok bool) {
	name := nameOf(typ)
	h := name.hash(len(typ))
	if page := t.state.Load().cache.pages[h%cachePages].Load(); page != nil {
		if e := page.find(h, name, typ); e != nil {
			return e.result, Hash(h), true
		}
	}
	return r, Hash(h), false
}

// find searches for a type in all places of its set.
func (p *cachePage[R]) find(hash uint64, name name, typ string) *cached[R] {
	set := home(hash) / cacheWays
	for like := tags(p.tags[set].Load()).places(hash); like != 0; like = like.others() {
		e := p.places[set*cacheWays+like.first()].Load()
		if e.is(name, typ) {
			return e
		}
	}
	return nil
}

func (e *cached[R]) is(name name, typ string) bool {
	return e.length == len(typ) && e.name == name && (len(typ) <= maxUsual || e.typ == typ)
}

// put stores the result for a type: at its home, else elsewhere in its set, in place of a
// random one if the set is full.
func (c *cache[R]) put(hash uint64, typ string, result R) {
	slot := &c.pages[hash%cachePages]
	page := slot.Load()
	if page == nil {
		slot.CompareAndSwap(nil, new(cachePage[R]))
		page = slot.Load()
	}
	e := newCached(typ, result)
	for i := range uint64(cacheWays) {
		at := home(hash) ^ i // all of the set, in the same order for each put of the type
		if page.places[at].CompareAndSwap(nil, e) || page.places[at].Load().is(e.name, typ) {
			page.tag(at, hash)
			return
		}
	}
	at := home(hash) ^ rand.Uint64N(cacheWays)
	page.places[at].Store(e)
	page.tag(at, hash)
}

// tag lets a type that has been stored be found. If two are stored in one place at the same
// time, the tag may be that of the other, until the one is put again.
func (p *cachePage[R]) tag(at uint64, hash uint64) {
	word := &p.tags[at/cacheWays]
	for {
		old := word.Load()
		if word.CompareAndSwap(old, uint64(tags(old).with(int(at%cacheWays), hash))) {
			return
		}
	}
}

// doorkeeper remembers the last types that the cache missed. Only a type that comes again
// is admitted, so a flood of unique types evicts nothing. A change of the table does not
// clear it.
//
// A word holds sixteen bits of the hash of each of the last four types that fell
// on it, so that types that share a word do not hide each other.
type doorkeeper [4096]atomic.Uint64

// knows reports whether the type with this hash came recently, and remembers it. It is
// rarely wrong, and an error is harmless.
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
