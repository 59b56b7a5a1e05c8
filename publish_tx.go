package eventbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus/driver"
)

// PublishTx publishes an event in a transaction of the caller: the event exists if and only if the caller commits. It
// returns the id before that. The store says which types of transactions it takes: store/sqlite takes a *sql.Tx on its file.
//
// The bus with the lease takes the event in after the commit, usually within milliseconds, and routes it then: to the
// subscriptions that match in this bus now, and to its own that match then. Acceptance, the window of an id and MaxElapsed
// count from there. The payload is encoded now. In one process, Publish keeps the order of a key: it comes behind the events
// of the key whose transactions were committed before.
//
// With store/sqlite, the commits of the bus wait for the transaction: keep it short. Until it has ended, a Publish with the
// same context, or in the handler that began it, is ErrWouldDeadlock.
//
// PublishTx only inserts rows, with the caller's connection. It blocks as an insert does, and ctx bounds it. It works
// before Start, on a standby and on a bus WithoutHandlers. In a handler it does what Publish does: the event exists when the
// transaction is committed, whatever the handler returns.
//
// If the outcome of the commit is unknown, publish again with the same ID: the event is dispatched once. An id that is
// known with the same content inserts nothing. One that is found only when the event is taken in becomes a dead letter with
// ReasonDuplicate if the content differs.
//
// Errors: those of Publish before it waits; ErrNoTransaction for another type, a transaction on another database or one
// that has ended, and a bus without such a store; ErrQueueFull if the store has as many events as WithMaxUnsettled allows;
// the transaction's. After an error of the transaction, roll it back.
func (b *Bus) PublishTx(ctx context.Context, tx any, eventType string, payload any, opts ...PublishOption) (EventID, error) {
	if err := b.ready(ctx); err != nil {
		return EventID{}, fmt.Errorf("PublishTx: %w", err)
	}
	from := callFrom(ctx)
	inside := b.intake.running(from)
	d, err := b.intake.prepare(ctx, from, inside, eventType, payload, opts)
	if err == nil {
		err = b.journal.acceptTx(ctx, inside, tx, d)
	}
	if err != nil {
		return EventID{}, fmt.Errorf("PublishTx(%q): %w", shorten(eventType), err)
	}
	return d.id, nil
}

// acceptTx leaves an event in incoming, in a transaction of the caller.
func (j *durable) acceptTx(ctx context.Context, inside bool, tx any, d *dispatch) error {
	store, ok := j.config.store.(driver.TxStore)
	if exclusive, is := j.config.store.(driver.Exclusive); is && exclusive.IsExclusive() {
		return fmt.Errorf("%w: the store has its data alone; open it so that others can open them too", ErrNoTransaction)
	}
	if !ok {
		return fmt.Errorf("%w: %T takes none", ErrNoTransaction, j.config.store)
	}
	return j.intake.whileEntering(inside, func() error {
		if known, err := j.isRepeated(ctx, d); err != nil || known {
			return err
		}
		if err := j.admitsIncoming(ctx, 1); err != nil && !inside {
			return err
		}
		w := newBatch(j.time)
		in := &driver.Incoming{Record: j.encodeIncoming(w, d, true), Given: d.from().given, Codec: j.config.codecName()}
		if w.err != nil {
			return w.err
		}
		j.inTx.note(d.key, d.id, j.time.Now().UTC)
		if _, err := guard(j.store, "SubmitTx", func() (struct{}, error) {
			return struct{}{}, store.SubmitTx(ctx, tx, []*driver.Incoming{in})
		}); err != nil {
			j.inTx.forget(d.key, d.id)
			return err
		}
		j.locks.note(ctx, tx)
		return nil
	})
}

// isRepeated reports whether the store knows the given id of an event with the same content.
func (j *durable) isRepeated(ctx context.Context, d *dispatch) (bool, error) {
	if !d.from().given {
		return false, nil
	}
	entry := j.remembered(d, j.time.Now().UTC)
	known, found, err := j.store.Remembered(ctx, entry.Scope, entry.Key)
	switch {
	case err != nil || !found || !known.Expires.After(j.time.Aged()):
		return false, err
	case known.Content != entry.Content:
		return false, fmt.Errorf("%w: %s was given to another event; its type, key or payload differs", ErrDuplicateID, d.id)
	}
	return true, nil
}

// txKeys has the keys of events that were published in transactions and that the bus has not taken in, as far as this
// process knows. A transaction may have been rolled back.
type txKeys struct {
	mu   sync.Mutex // guards the following; a leaf
	keys map[string][]txEvent
	n    int
	over bool // one was not noted, because there were too many
}

type txEvent struct {
	id EventID
	at time.Time
}

const (
	// maxTxKeys bounds the events of txKeys. Once there were more, each publication with a key takes in first what has come
	// of that key.
	maxTxKeys = 10_000
	// txKeyAge is how long an event is noted that is not taken in: its transaction was rolled back.
	txKeyAge = 24 * time.Hour
)

// note notes an event. It drops those that are too old, at the bound.
func (k *txKeys) note(key string, id EventID, now time.Time) {
	if key == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.n >= maxTxKeys {
		k.dropLocked(now.Add(-txKeyAge))
	}
	if k.n >= maxTxKeys {
		k.over = true
		return
	}
	if k.keys == nil {
		k.keys = make(map[string][]txEvent)
	}
	k.keys[key] = append(k.keys[key], txEvent{id, now})
	k.n++
}

func (k *txKeys) dropLocked(before time.Time) {
	for key, events := range k.keys {
		for len(events) > 0 && events[0].at.Before(before) {
			events = events[1:]
			k.n--
		}
		if k.keys[key] = events; len(events) == 0 {
			delete(k.keys, key)
		}
	}
}

// forget drops an event that was taken in, or not inserted.
func (k *txKeys) forget(key string, id EventID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, e := range k.keys[key] {
		if e.id == id {
			k.n--
			if k.keys[key] = append(k.keys[key][:i:i], k.keys[key][i+1:]...); len(k.keys[key]) == 0 {
				delete(k.keys, key)
			}
			return
		}
	}
}

// of returns the events of some keys, in the order of PublishTx. all is set if there may be others.
func (k *txKeys) of(keys func(yield func(string) bool)) (ids []EventID, all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.n == 0 && !k.over {
		return nil, false
	}
	for key := range keys {
		for _, e := range k.keys[key] {
			ids = append(ids, e.id)
		}
	}
	return ids, k.over
}

// takeInBefore takes in the events of the keys of a publication whose transactions were committed. Otherwise the
// publication would overtake them.
func (f *feeder) takeInBefore(ctx context.Context, o *opening) error {
	ids, all := f.bus.durable.inTx.of(func(yield func(string) bool) {
		for _, d := range o.all() {
			if d.key != "" && !yield(d.key) {
				return
			}
		}
	})
	all = all || o.inside && f.leaves()
	if !all && len(ids) == 0 {
		return nil
	}
	blocked := f.bus.store.blocks.signal()
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-blocked.begun:
			cancel()
		case <-bounded.Done():
		}
	}()
	var err error
	if all {
		err = f.takeInKeys(bounded, o)
	} else {
		err = f.takeInEvents(bounded, ids)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return contextError(ctx)
	case bounded.Err() != nil: // nothing of the publication was submitted
		return fmt.Errorf("%w: it has not taken in what was published before in transactions: %w", ErrStoreFailed, blocked.why)
	}
	return err
}

// takeInEvents takes in those of some events that are incoming.
func (f *feeder) takeInEvents(ctx context.Context, ids []EventID) error {
	for _, id := range ids {
		for again := true; again; {
			page, err := f.bus.store.Incoming(ctx, driver.IncomingQuery{Event: driver.ID(id), Limit: 1})
			if err != nil {
				return err
			}
			if again = len(page.Events) > 0; again {
				err = f.takeInPage(ctx, page.Events)
			}
			if refused := (*driver.RefusedError)(nil); errors.As(err, &refused) && refused.Incoming != 0 {
				continue // the feeder has taken it in
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// takeInKeys takes in all incoming events of the keys of a publication, beyond WithMaxUnsettled too. A handler publishes
// past the events that wait for room: they wait for the end of the handler's event.
func (f *feeder) takeInKeys(ctx context.Context, o *opening) error {
	keyed := func(key string) bool {
		return key != "" && slices.ContainsFunc(o.all(), func(d *dispatch) bool { return d.key == key })
	}
	if !slices.ContainsFunc(o.all(), func(d *dispatch) bool { return d.key != "" }) {
		return nil
	}
	for q, more := (driver.IncomingQuery{Limit: feederPage}), true; more; {
		page, err := f.bus.store.Incoming(ctx, q)
		if err != nil {
			return err
		}
		var of []*driver.Incoming
		for _, in := range page.Events {
			if q.After = in.ID; keyed(in.Record.Key) {
				of = append(of, in)
			}
		}
		err = f.takeInPage(ctx, of)
		if refused := (*driver.RefusedError)(nil); errors.As(err, &refused) && refused.Incoming != 0 {
			q.After = 0 // the feeder has taken one in
			continue
		}
		if err != nil {
			return err
		}
		more = page.More
	}
	return nil
}
