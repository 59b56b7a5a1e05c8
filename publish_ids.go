package eventbus

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/dedupe"
	"github.com/surebus/eventbus/internal/texts"
)

// maxGivenIDs bounds givenIDs.
const maxGivenIDs = 100_000

// givenIDs remembers the latest ids that publishers set with ID.
type givenIDs struct {
	mu    sync.Mutex // guards the following
	known *dedupe.Memory[EventID, content]
}

// content is the part of an event that must be the same if its id is given again.
type content struct{ eventType, key string }

// has reports whether the dispatch has a given id that is known.
func (g *givenIDs) has(d *dispatch) bool {
	return d.from().given && g.isKnown(d.id)
}

// isKnown reports whether an id was given and is known.
func (g *givenIDs) isKnown(id EventID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.known.Lookup(id)
	return known
}

// take remembers the given ids of a change, and removes dispatches whose ids are known. If an id is
// known for another content, take remembers none and returns ErrDuplicateID.
func (g *givenIDs) take(c *opening) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.unknownLocked(c); err != nil {
		return err
	}
	for _, d := range c.all() {
		if d.from().given {
			// Cloned: the key may be a substring of a large string, and would keep it in memory.
			g.known.Remember(d.id, content{d.to.eventType, strings.Clone(d.key)})
		}
	}
	return nil
}

// unknown removes the dispatches whose ids are known, as take does, and remembers none.
func (g *givenIDs) unknown(c *opening) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.unknownLocked(c)
}

func (g *givenIDs) unknownLocked(c *opening) error {
	batch := make(map[EventID]*dispatch)
	var fresh []*dispatch
	for _, d := range c.all() {
		if !d.from().given {
			fresh = append(fresh, d)
			continue
		}
		is := content{d.to.eventType, d.key}
		was, known := g.known.Lookup(d.id)
		first := batch[d.id]
		if !known && first != nil {
			was, known = content{first.to.eventType, first.key}, true
		}
		var err error
		switch {
		case !known:
			batch[d.id] = d
			fresh = append(fresh, d)
		case was != is:
			err = fmt.Errorf("%w: %s was given to an event of type %q with key %q, and now to one of %q with %q",
				ErrDuplicateID, d.id, was.eventType, was.key, is.eventType, is.key)
		case first != nil && !bytes.Equal(payloadBytes(first.payload), payloadBytes(d.payload)) && d.row() != nil:
			err = fmt.Errorf("%w: %s is twice in the batch, with different payloads", ErrDuplicateID, d.id)
		}
		if err != nil {
			return c.errorAt(d, err)
		}
	}
	if c.batch != nil {
		c.batch = fresh
	}
	if c.d = nil; len(fresh) > 0 {
		c.d = fresh[0]
	}
	return nil
}

// errorAt returns the error of a publication of the change.
func (c *opening) errorAt(d *dispatch, err error) error {
	if c.batch == nil {
		return err
	}
	return &BatchError{Index: slices.Index(c.published, d), EventType: shorten(d.to.eventType), Err: err}
}

// forget removes an id, so that it is new again.
func (g *givenIDs) forget(id EventID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known.Forget(id)
}

// forgetAll removes the given ids of a change that was refused.
func (g *givenIDs) forgetAll(c *opening) {
	for _, d := range c.all() {
		if d.from().given {
			g.forget(d.id)
		}
	}
}

// repeated removes the dispatch from a change whose id the store knows.
func (c *opening) repeated(b *Bus, known *driver.Dedupe) error {
	all := c.all()
	i := slices.IndexFunc(all, func(d *dispatch) bool { return d.from().given && d.id == EventID(known.Event) })
	if i < 0 {
		return fmt.Errorf("%w: %s", ErrDuplicateID, known.Key)
	}
	if is := b.durable.remembered(all[i], known.Expires); is.Content != known.Content {
		return c.errorAt(all[i], fmt.Errorf("%w: %s was given to another event; its type, key or payload differs", ErrDuplicateID, known.Key))
	}
	fresh := slices.Delete(slices.Clone(all), i, i+1)
	if c.batch != nil {
		c.batch = fresh
	}
	if c.d = nil; len(fresh) > 0 {
		c.d = fresh[0]
	}
	return nil
}

// shorten bounds a user's input in error messages.
func shorten(s string) string { return texts.Shorten(s, 80) }
