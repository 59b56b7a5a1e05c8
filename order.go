package eventbus

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/surebus/eventbus/internal/keys"
)

// keyGates is how many keys of a bus can pass at the same instant.
const keyGates = 32

// keyGate is where dispatches wait until those before them with the same key have
// settled: one for the bus, or one for each subscription on a bus with isolation.
type keyGate = keys.Gate[opening]

func newKeyGate(shards int) *keyGate { return keys.New[opening](shards) }

// queues reports whether the event has somewhere to go now.
func (o *opening) queues() bool {
	return len(o.to.subscriptions) > 0 && o.due() == 0
}

// maxGivenIDs is how many ids that publishers have given are known.
const maxGivenIDs = 100_000

// givenIDs remembers the ids that publishers have given.
type givenIDs struct {
	mu    sync.Mutex // guards the following
	known map[EventID]givenID
	ring  []EventID // in the order in which they came, from oldest on
	old   int
}

// content is what an id stands for.
type content struct{ eventType, key string }

type givenID struct {
	content
	place int // in the ring
}

// take remembers the given ids of events, and returns the events whose ids were
// not known. If an id is known for something else, which is a *BatchError, it
// remembers none of them.
func (g *givenIDs) take(openings []opening) (fresh []opening, err error) {
	if !anyGiven(openings) {
		return openings, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if fresh, err = g.unknownLocked(openings); err != nil {
		return nil, err
	}
	for _, o := range fresh {
		if o.given() {
			g.rememberLocked(o.id, content{o.to.eventType, o.key})
		}
	}
	return fresh, nil
}

// unknown is what take would return now.
func (g *givenIDs) unknown(openings []opening) ([]opening, error) {
	if !anyGiven(openings) {
		return openings, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.unknownLocked(openings)
}

func (g *givenIDs) unknownLocked(openings []opening) (fresh []opening, err error) {
	batch := make(map[EventID]content)
	for i, o := range openings {
		if !o.given() {
			fresh = append(fresh, o)
			continue
		}
		is := content{o.to.eventType, o.key}
		before, known := g.known[o.id]
		was := before.content
		if !known {
			was, known = batch[o.id]
		}
		switch {
		case !known:
			batch[o.id] = is
			fresh = append(fresh, o)
		case was != is:
			return nil, &BatchError{Index: i, EventType: shorten(is.eventType), Err: fmt.Errorf(
				"%w: %s was given to an event of type %q with key %q, and now to one of %q with %q",
				ErrDuplicateID, o.id, was.eventType, was.key, is.eventType, is.key)}
		}
	}
	return fresh, nil
}

func (g *givenIDs) rememberLocked(id EventID, c content) {
	if g.known == nil {
		g.known = make(map[EventID]givenID)
	}
	place := len(g.ring)
	if place < maxGivenIDs {
		g.ring = append(g.ring, id)
	} else {
		place = g.old
		// One that was forgotten may be known again, in another place.
		if oldest := g.ring[place]; g.known[oldest].place == place {
			delete(g.known, oldest)
		}
		g.ring[place] = id
		g.old = (g.old + 1) % maxGivenIDs
	}
	c.key = strings.Clone(c.key) // it may be a piece of something large
	g.known[id] = givenID{c, place}
}

// forget makes an id free to be given again.
func (g *givenIDs) forget(id EventID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.known, id)
}

func anyGiven(openings []opening) bool {
	return slices.ContainsFunc(openings, func(o opening) bool { return o.given() })
}

// given reports whether the publisher has chosen the event's id.
func (o *opening) given() bool {
	e := o.extras()
	return e != nil && e.given
}

// due is when an event that was published for later is due; 0 for one that was not.
func (o *opening) due() int64 {
	if e := o.extras(); e != nil {
		return e.due
	}
	return 0
}
