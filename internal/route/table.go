package route

import (
	"sync"
	"sync/atomic"
)

// Router is what the bus needs of a [Table]. It is an interface because of those who import the
// bus: with a *Table in it, each of their packages would compile all methods of a Table and of what
// is in it, for half a second.
type Router[S comparable, R any] interface {
	Add(p *Pattern, s S) *Place[S]
	Remove(p *Pattern, place *Place[S])
	Renew()
	Match(typ string) []S
	Cached(typ string) (r R, hash Hash, ok bool)
	Find(typ string, hash Hash) R
}

// Table indexes values of type S, the subscriptions, by pattern. For an event type it
// returns a result of type R, built from the matching subscriptions in the order in which
// they were added. It caches the results of types that are looked up more than once.
//
// All methods are safe for concurrent use. Readers take no lock (copy-on-write): a change
// builds a new state and then publishes it, and a reader uses the state that it found
// first. A lookup sees every Add and every removal that returned before it began. A Table
// must not be copied.
type Table[S comparable, R any] struct {
	build func(typ string, subs []S) R
	state atomic.Pointer[state[S, R]]
	seen  doorkeeper

	mu    sync.Mutex // held by changes, one at a time
	seq   uint64     // of the last place; guarded by mu
	tails tails      // guarded by mu
}

// state is a version of the table. Only its cache changes. Each state has its own cache, so
// no result outlives the state that it was built from.
type state[S comparable, R any] struct {
	version uint64
	root    node[S]
	len     int
	cache   cache[R]
}

// NewTable returns an empty table. Lookup calls build for a type that is not in the cache.
// build may keep subs, which is nil if no pattern matches, but must not change them. It is
// called without a lock, possibly concurrently, and more than once for the same type.
func NewTable[S comparable, R any](build func(typ string, subs []S) R) *Table[S, R] {
	t := &Table[S, R]{build: build, tails: tails{}}
	t.state.Store(&state[S, R]{})
	return t
}

// Add subscribes s to the types that match p. Every lookup that begins after Add
// has returned sees it. The same s may be added more than once, and then counts
// as several. The pattern is not kept, its text may be.
func (t *Table[S, R]) Add(p *Pattern, s S) *Place[S] {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	place := &Place[S]{subs: [1]S{s}, seq: t.seq}
	t.edit(p, +1, func(m *more[S]) { m.add(place) })
	return place
}

// Remove removes the subscription with a place. p is the pattern that was passed to Add, or
// one parsed from the same text. No lookup that begins after Remove has returned sees the
// subscription. Further calls do nothing.
func (t *Table[S, R]) Remove(p *Pattern, place *Place[S]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if place.removedAt.Load() != 0 {
		return
	}
	place.removedAt.Store(t.state.Load().version + 1)
	t.edit(p, -1, (*more[S]).drop)
}

// edit publishes the next state, in which apply has changed the nodes at which p
// ends. t.mu is held.
func (t *Table[S, R]) edit(p *Pattern, add int, apply func(*more[S])) {
	old := t.state.Load()
	next := &state[S, R]{version: old.version + 1, root: old.root, len: old.len + add}
	change := &change[S]{apply, t.tails}
	for _, v := range p.variants {
		next.root = next.root.edit(v, false, change)
	}
	t.state.Store(next)
}

// Renew discards the cached results. A lookup that begins after Renew has returned finds no
// result that was built before.
func (t *Table[S, R]) Renew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.state.Load()
	t.state.Store(&state[S, R]{version: old.version + 1, root: old.root, len: old.len})
}

// Len returns the number of subscriptions.
func (t *Table[S, R]) Len() int { return t.state.Load().len }

// Hash is the hash of a type, see [Table.Cached].
type Hash uint64

// Match returns the subscriptions that match typ, a valid type, in the order in which they
// were added. It neither builds nor caches a result. The slice must not be changed.
func (t *Table[S, R]) Match(typ string) []S {
	st := t.state.Load()
	return subscriptions(st.root.match(typ, nil), st.version)
}

// Lookup returns the result for typ, a valid type (see [CheckType]), from the cache or
// built anew. It is the result for one state of the table that existed during the call. The
// second lookup of a type adds it to the cache.
func (t *Table[S, R]) Lookup(typ string) R {
	r, hash, ok := t.Cached(typ)
	if !ok {
		r = t.Find(typ, hash)
	}
	return r
}

// Find is Lookup for a type that Cached did not find. hash is the Hash that Cached
// returned.
func (t *Table[S, R]) Find(typ string, hash Hash) R {
	st := t.state.Load()
	// Before the walk: the doorkeeper writes, and a processor completes its pending loads
	// before the write.
	admit := t.seen.knows(uint64(hash)) && len(typ) <= MaxTypeBytes
	var space [8]*node[S]
	r := t.build(typ, subscriptions(st.root.match(typ, space[:0]), st.version))
	if admit {
		st.cache.put(uint64(hash), typ, r)
	}
	return r
}
