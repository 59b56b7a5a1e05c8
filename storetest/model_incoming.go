package storetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/surebus/eventbus/driver"
)

// kept returns a copy of an incoming event with the fields that a store keeps.
func kept(in *driver.Incoming, id driver.IncomingID) driver.Incoming {
	c := deepCopy(*in)
	r := *c.Record
	c.ID = id
	c.Record = &driver.Record{
		ID: r.ID, Type: r.Type, Key: r.Key, Published: r.Published, Targets: r.Targets, Scheduled: r.Scheduled,
		Payload: r.Payload, Metadata: r.Metadata, Replay: r.Replay, State: r.State, Due: r.Due, Slot: r.Slot,
		Expires: r.Expires, IdempotencyKey: r.IdempotencyKey, KeyExpires: r.KeyExpires, UntilSettled: r.UntilSettled,
	}
	return c
}

// leave inserts incoming events and returns their ids.
func (tx *transaction) leave(events []*driver.Incoming) (ids []driver.IncomingID) {
	for _, in := range events {
		tx.lastIncoming++
		c := kept(in, tx.lastIncoming)
		set(tx, tx.incoming, c.ID, &c)
		ids = append(ids, c.ID)
	}
	return ids
}

// withdraw removes the incoming events of an event.
func (tx *transaction) withdraw(event driver.ID) error {
	n := 0
	for id, in := range tx.incoming {
		if in.Record.ID == event {
			set(tx, tx.incoming, id, nil)
			n++
		}
	}
	if n == 0 {
		return &driver.RefusedError{Event: event, Err: driver.ErrNotFound}
	}
	return nil
}

// accept removes an incoming event in a slot of the lease.
func (tx *transaction) accept(id driver.IncomingID) error {
	if in, ok := tx.incoming[id]; !ok || !tx.slots.Has(in.Record.Slot) {
		return &driver.RefusedError{Incoming: id, Err: driver.ErrNotFound}
	}
	set(tx, tx.incoming, id, nil)
	return nil
}

// ask inserts requests and returns their ids.
func (tx *transaction) ask(requests []*driver.Request) (ids []driver.RequestID) {
	for _, r := range requests {
		tx.lastRequest++
		c := requestRow{Request: deepCopy(*r)}
		c.ID = tx.lastRequest
		set(tx, tx.requests, c.ID, &c)
		ids = append(ids, c.ID)
	}
	return ids
}

// unanswered returns a request without an answer.
func (tx *transaction) unanswered(id driver.RequestID) (requestRow, error) {
	if r, ok := tx.requests[id]; ok && !r.answered {
		return r, nil
	}
	return requestRow{}, &driver.RefusedError{Request: id, Err: driver.ErrNotFound}
}

func (tx *transaction) unask(id driver.RequestID) error {
	if _, err := tx.unanswered(id); err != nil {
		return err
	}
	set(tx, tx.requests, id, nil)
	return nil
}

func (tx *transaction) answer(b *driver.Batch, a driver.Answer) error {
	r, err := tx.unanswered(a.Request)
	if err != nil {
		return err
	}
	r.answer, r.answered, r.expires = bytes.Clone(a.Body), true, b.Now.Add(driver.AnswerAge)
	set(tx, tx.requests, a.Request, &r)
	return nil
}

// ageLocked removes the answers that have expired.
func (m *Model) ageLocked() {
	for id, r := range m.requests {
		if r.answered && !m.latest.Before(r.expires) {
			delete(m.requests, id)
		}
	}
}

func (s *modelStore) Incoming(ctx context.Context, q driver.IncomingQuery) (page driver.IncomingPage, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return page, err
	}
	for _, id := range slices.Sorted(maps.Keys(s.model.incoming)) {
		in := s.model.incoming[id]
		if id <= q.After || !q.Slots.IsEmpty() && !q.Slots.Has(in.Record.Slot) || !q.Event.IsZero() && q.Event != in.Record.ID {
			continue
		}
		if len(page.Events) == q.Limit {
			page.More = true
			break
		}
		c := deepCopy(in)
		page.Events = append(page.Events, &c)
	}
	return page, nil
}

func (s *modelStore) Requests(ctx context.Context, q driver.RequestQuery) (all []driver.Request, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(s.model.requests)) {
		if r := s.model.requests[id]; id > q.After && !r.answered && len(all) < q.Limit {
			all = append(all, deepCopy(r.Request))
		}
	}
	return all, nil
}

func (s *modelStore) Answer(ctx context.Context, id driver.RequestID) (body []byte, answered bool, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, false, err
	}
	r, ok := s.model.requests[id]
	if !ok {
		return nil, false, fmt.Errorf("storetest: %w: request %d", driver.ErrNotFound, id)
	}
	return bytes.Clone(r.answer), r.answered, nil
}

func (s *modelStore) Catalogs(ctx context.Context) ([]driver.Catalog, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if err := s.endedLocked(ctx); err != nil {
		return nil, err
	}
	return s.model.catalogsLocked(), nil
}
