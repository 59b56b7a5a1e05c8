package eventbus

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/room"
)

// unknowns are the ids of events whose publishers got an *IndeterminateError. The store does not
// remember an id that the bus has made, so a repetition with ID waits here until the outcome of the
// first publication is known, and the store remembers the id if it was accepted.
type unknowns struct {
	mu      sync.Mutex // guards the following; a leaf
	pending map[EventID]*unknown
	any     atomic.Bool // there were some; in memory there are none
}

type unknown struct {
	entry    driver.Dedupe
	accepted bool          // the store has accepted it, and does not remember its id yet
	settled  chan struct{} // closed when the outcome is known
}

// addUnknown notes that the outcome of a publication is unknown.
func (j *durable) addUnknown(events []*dispatch) {
	for _, d := range events {
		if !d.from().given && d.records() > 0 {
			j.unknown.add(d.id, j.rememberedID(d, j.time.Now().UTC))
		}
	}
}

func (u *unknowns) add(id EventID, entry driver.Dedupe) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending == nil {
		u.any.Store(true)
		u.pending = make(map[EventID]*unknown)
	}
	u.pending[id] = &unknown{entry: entry, settled: make(chan struct{})}
}

// await waits for the outcomes of earlier publications with the ids of a change, until Shutdown gives
// up on the store.
func (u *unknowns) await(ctx context.Context, gaveUp <-chan struct{}, c *opening) error {
	if !u.any.Load() {
		return nil
	}
	for _, d := range c.all() {
		if !d.from().given {
			continue
		}
		u.mu.Lock()
		pending := u.pending[d.id]
		u.mu.Unlock()
		if pending == nil {
			continue
		}
		select {
		case <-pending.settled:
		case <-ctx.Done():
			return contextError(ctx)
		case <-gaveUp:
			return ErrShutdown
		}
	}
	return nil
}

// resolveLater completes a publication, or a replay, whose caller no longer waits. Shutdown waits
// for it.
func (j *durable) resolveLater(c *change, applied <-chan error) {
	j.ledger.entering.Add(1)
	if c.kind == toAccept {
		j.addUnknown(c.all())
	}
	go func() {
		defer func() {
			j.ledger.entering.Add(-1)
			j.ledger.checkDrained()
		}()
		var refused *driver.RefusedError
		switch err := <-applied; {
		case c.kind != toAccept:
		case err == nil:
			j.intake.accepted(&c.opening)
			j.resolve(c.all(), true)
		case errors.As(err, &refused):
			j.resolve(c.all(), false)
		}
		// Otherwise the store has failed: resolveAll asks it after the restart.
	}()
}

// resolve ends the doubt about events.
func (j *durable) resolve(events []*dispatch, accepted bool) {
	u, w := &j.unknown, newBatch(j.time)
	var ids []EventID
	w.Remember, ids = u.note(events, accepted)
	if accepted && len(ids) > 0 {
		committed := make(chan error, 1) // a foreign lock does not end this wait
		j.store.submit(w, room.Pass{}, func(err error) { committed <- err })
		var err error
		select {
		case err = <-committed:
		case <-j.gaveUp:
			return
		}
		var refused *driver.RefusedError // they are remembered already
		if err != nil && !errors.As(err, &refused) {
			return // the store has failed, or is closed: resolveAll tries again after the restart
		}
	}
	u.resolved(ids)
}

// note notes whether events were accepted. It returns those that are in doubt.
func (u *unknowns) note(events []*dispatch, accepted bool) (entries []driver.Dedupe, ids []EventID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, d := range events {
		if pending := u.pending[d.id]; pending != nil {
			pending.accepted = accepted
			entries, ids = append(entries, pending.entry), append(ids, d.id)
		}
	}
	return entries, ids
}

// all returns what is in doubt.
func (u *unknowns) all() []unknown {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]unknown, 0, len(u.pending))
	for _, pending := range u.pending {
		all = append(all, *pending)
	}
	return all
}

func (u *unknowns) resolved(ids []EventID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		if pending := u.pending[id]; pending != nil {
			close(pending.settled)
			delete(u.pending, id)
		}
	}
}

// has reports whether the store has an event that has not settled, or its id: the bus with the lease may have settled one
// that was left in incoming, which has its id remembered.
func (j *durable) has(ctx context.Context, id driver.ID) (bool, error) {
	if incoming, err := j.store.Incoming(ctx, driver.IncomingQuery{Event: id, Limit: 1}); err != nil || len(incoming.Events) > 0 {
		return err == nil, err
	}
	if records, err := j.store.Lookup(ctx, id); err != nil || len(records) > 0 { // it may have been taken in meanwhile
		return err == nil, err
	}
	return j.remembers(ctx, EventID(id))
}

// resolveAll asks the store about all events in doubt, after it was reopened and before anything
// is dispatched. The caller settles their ids once the bus accepts publications again: the
// repetitions that wait would be refused before.
func (j *durable) resolveAll(ctx context.Context) (ids []EventID, err error) {
	for _, pending := range j.unknown.all() {
		entry := pending.entry
		if !pending.accepted { // otherwise it may have settled
			if pending.accepted, err = j.has(ctx, entry.Event); err != nil {
				return nil, err
			}
		}
		if pending.accepted {
			w := newBatch(j.time)
			w.Remember = []driver.Dedupe{entry}
			err := j.store.commit(ctx, w)
			var refused *driver.RefusedError // it is remembered already
			if err != nil && !errors.As(err, &refused) {
				return nil, err
			}
		}
		ids = append(ids, EventID(entry.Event))
	}
	return ids, nil
}
