package eventbus

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus/driver"
)

// PublishTx publishes an event in a transaction of the caller: the event exists if and only if the caller commits. It
// returns the id before that. The store determines the type of tx: store/sqlite accepts a *sql.Tx on its file,
// store/postgres a pgx.Tx or a *sql.Tx.
//
// After the commit, the bus with the lease takes the event in and routes it, usually within milliseconds. The event
// goes to the subscriptions of this bus that match now, and to those of the bus with the lease that match then.
// MaxElapsed and the window of an id start at this take-in. PublishTx encodes the payload now. In one process, an event
// of Publish is dispatched after the events of its key whose transactions were committed before.
//
// With store/sqlite, the bus cannot commit while the transaction is open: keep it short. Give each transaction a context
// of its own that can end. Until the transaction has ended, a Publish with its context, or in the handler that began it,
// returns ErrWouldDeadlock. If goroutines share the context, their calls of Publish get ErrWouldDeadlock too. With
// context.Background, a Publish waits for WithLockWait instead.
//
// PublishTx only inserts rows, with the caller's connection. It blocks as an insert does, until ctx ends. It works
// before Start, on a standby and on a bus WithoutHandlers. In a handler, too, the event exists when the transaction is
// committed, whatever the handler returns.
//
// If the outcome of the commit is unknown, publish again with the same ID: the event is dispatched once. A known id with
// the same content inserts nothing. If the content differs and the bus notices it at the take-in, the event becomes a
// dead letter with ReasonDuplicate.
//
// Errors:
//
//   - those of Publish that do not come from waiting or from a commit
//   - ErrNoTransaction: tx has another type, is on another database or has ended, or the store has no transactions
//   - *FullError: the store has as many events as WithMaxUnsettled allows
//   - the transaction's error: roll the transaction back
func (b *Bus) PublishTx(ctx context.Context, tx any, eventType string, payload any, opts ...PublishOption) (EventID, error) {
	if err := b.ready(ctx); err != nil {
		return EventID{}, fmt.Errorf("PublishTx: %w", err)
	}
	if b.config.hooks != nil {
		return b.config.around(ctx, "PublishTx", eventType, payload, opts, func(opts []PublishOption) (EventID, error) {
			return b.publishTx(ctx, tx, eventType, payload, opts)
		})
	}
	return b.publishTx(ctx, tx, eventType, payload, opts)
}

func (b *Bus) publishTx(ctx context.Context, tx any, eventType string, payload any, opts []PublishOption) (EventID, error) {
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

// InTx runs the handler in a transaction of the store's database, which also records that the subscription has handled
// the event. The handler's effects in the transaction happen once. A retry after a crash, a timeout or an unknown
// outcome finds the record, and succeeds without a call of the handler. With store/postgres, postgres.Tx returns the
// transaction from the handler's context. Effects outside of it may happen more than once.
//
// The bus commits when the handler has returned nil, and rolls back after an error, a panic and the timeout. A commit that
// fails is a failed attempt. ReplayEdited runs the handler again, other replays of an event that it has handled do not. The
// store forgets an event when it has no delivery and no letter of it, and the window of its id (WithIdempotencyWindow) is
// over. Middleware runs outside of the transaction.
//
// The transaction holds a connection until the handler returns, so Concurrency is limited to the connections that the
// store has for handlers. The subscriptions share them: one with slow handlers, and one whose handlers wait for others
// with InTx (PublishAndWait), need more connections. For other databases, use the module inbox. Subscribe returns an
// *OptionError if the store cannot do it.
func InTx() SubscribeOption {
	return subscribeOption(func(c *subscriptionConfig) { c.inTx = true })
}

// limitRuns limits a subscription with InTx to the transactions that the store can run at once. More calls would wait for one
// within their timeouts: a backlog would become dead letters.
func (c *subscriptionConfig) limitRuns(most int, bus *config) error {
	switch {
	case most == 0:
	case c.limit == 0:
		c.limit = min(most, bus.concurrency)
	case c.limit > most || c.limit == Unlimited:
		return &OptionError{Option: "Concurrency", Value: fmt.Sprint(c.limit), Reason: fmt.Sprintf(
			"is more than the %d transactions that the store runs at once for handlers with InTx: give it more connections (store/postgres: pool_max_conns), or leave it out", most)}
	}
	return nil
}

var errOtherContext = errors.New("eventbus: InTx: a middleware has replaced the handler's context: derive the new one from it")

// inTransaction returns a handler that runs in a transaction: see InTx.
func (b *Bus) inTransaction(handler Handler) (Handler, error) {
	store, ok := b.config.store.(driver.OnceStore)
	if !ok {
		return nil, &OptionError{Option: "InTx", Reason: "the bus has no store that runs handlers in transactions: use store/postgres, or the middleware of module inbox with a database of your own"}
	}
	return func(ctx context.Context, e Event) error {
		call := callFrom(ctx)
		if call == nil {
			return errOtherContext
		}
		d := call.delivery()
		m := driver.Mark{
			Event: driver.ID(e.ID), Names: append([]string{d.Subscription}, d.Formerly...), Published: d.Event.Time, Edit: editOf(d),
			Until: b.time.Now().UTC.Add(b.config.idempotency),
		}
		_, err := store.RunOnce(ctx, m, func(ctx context.Context, tx any) error { return b.emitInTx(ctx, tx, call, handler, e) })
		return err
	}, nil
}

// emitInTx calls a handler in its transaction, and writes there what it has emitted.
func (b *Bus) emitInTx(ctx context.Context, tx any, c *call, handler Handler, e Event) error {
	inner, emits := c.within(ctx, emitter{scope: scopeInTx})
	defer func() { _, _ = c.takeEmittedIn(emits) }() // after an error or a panic, too, Emit there is an error
	if err := handler(inner, e); err != nil {
		return err
	}
	emitted, err := c.takeEmittedIn(emits)
	if err == nil && len(emitted) > 0 {
		err = b.journal.emitTx(ctx, tx, emitted)
	}
	return err
}

// editOf identifies the edits of a delivery. An import of a letter that was exported before an edit begins to count again, so
// the number is not enough.
func editOf(d Delivery) string {
	if d.Edits == 0 {
		return ""
	}
	return fmt.Sprintf("%d %x", d.Edits, sha256.Sum256(payloadBytes(d.Event.Payload)))
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
		known, err := j.isRepeated(ctx, d)
		if err != nil {
			return err
		}
		if known {
			return j.leaveTx(ctx, store, tx) // the transaction is checked all the same
		}
		if err := j.admitsIncoming(ctx, 1); err != nil && !inside {
			return err
		}
		return j.leaveTx(ctx, store, tx, d)
	})
}

// emitTx leaves what a handler has emitted in incoming. Whether an id or a key is known shows when the bus takes the events in.
func (j *durable) emitTx(ctx context.Context, tx any, emitted []*dispatch) error {
	store, ok := j.config.store.(driver.TxStore)
	if !ok {
		return fmt.Errorf("%w: %T takes no events in the transaction of a handler", ErrNoTransaction, j.config.store)
	}
	return j.intake.whileEntering(true, func() error {
		j.machine.publishNow(emitted)
		return j.leaveTx(ctx, store, tx, emitted...)
	})
}

// leaveTx leaves events in incoming, in a transaction.
func (j *durable) leaveTx(ctx context.Context, store driver.TxStore, tx any, all ...*dispatch) (err error) {
	w := newBatch(j.time)
	for _, d := range all {
		in := &driver.Incoming{Record: j.encodeIncoming(w, d, true), Given: d.from().given, Codec: j.config.codecName()}
		if once := d.from().once; once.key != "" {
			in.Record.KeyExpires = in.Record.Published.Add(max(j.config.idempotency, once.keep))
		}
		w.Leave = append(w.Leave, in)
	}
	if w.err != nil {
		return w.err
	}
	for _, d := range all {
		j.inTx.note(d.key, d.id, j.time.Nanos())
	}
	_, err = guard(j.store, "SubmitTx", func() (struct{}, error) { return struct{}{}, store.SubmitTx(ctx, tx, w.Leave) })
	if err != nil {
		for _, d := range all {
			j.inTx.forget(d.key, d.id)
		}
		return err
	}
	if holder := txHolder(ctx); holder != nil && len(all) > 0 {
		j.locks.Note(holder, tx)
	}
	return nil
}

// txHolder returns who must end a transaction: nil if that is unknown, because everything shares the context.
func txHolder(ctx context.Context) any {
	if c := callFrom(ctx); c != nil {
		return c
	}
	if ctx.Done() == nil || !reflect.ValueOf(ctx).Comparable() {
		return nil
	}
	return ctx
}

var errOwnTx = errors.New("the commit would wait for the transaction that this caller has open: publish with PublishTx in it, or after it")

// wouldDeadlock reports whether a commit for a caller would wait for a transaction that this caller has to end.
func (j *durable) wouldDeadlock(ctx context.Context) bool {
	if j.locks.None() {
		return false
	}
	holder := txHolder(ctx)
	return holder != nil && j.locks.Has(holder)
}

// isRepeated reports whether the store knows the idempotency key or the given id of an event with the same content. The event gets the
// id of the one that has its key.
func (j *durable) isRepeated(ctx context.Context, d *dispatch) (bool, error) {
	for _, entry := range j.remembered(d, j.time.Now().UTC) {
		known, found, err := j.store.Remembered(ctx, entry.Scope, entry.Key)
		switch {
		case err != nil:
			return false, err
		case found && known.Expires.After(j.time.Aged()):
			known.Scope, known.Key = entry.Scope, entry.Key
			return true, j.repeats(d, &known)
		}
	}
	return false, nil
}

// txKeys has the keys of events that were published in transactions and that the bus has not taken in, as far as this
// process knows. It does not know the transactions that were rolled back, nor the events that were cancelled or that another
// process has taken in: those are dropped by age. A bus without the lease notes its events too: it may get the lease while
// their transactions are open.
type txKeys struct {
	mu         sync.Mutex // guards the following; a leaf
	young, old txNotes    // the old ones are dropped together, after txKeyAge to twice that
	since      int64      // when young began
}

type txNotes struct {
	keys map[string][]EventID
	n    int
	over bool // an event was not noted, because there were too many
}

const (
	// maxTxKeys bounds the events of txKeys. After it was met, each publication with a key first takes in all incoming
	// events of that key, until the notes have aged.
	maxTxKeys = 10_000
	// txKeyAge is how long a transaction may be open before its events may be forgotten.
	txKeyAge = 2 * time.Hour
	// maxTxReads bounds the events that a publication looks for one by one. If its keys have more, it reads all of incoming.
	maxTxReads = 16
)

// note notes an event.
func (k *txKeys) note(key string, id EventID, nanos int64) {
	if key == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ageLocked(nanos)
	if k.young.n+k.old.n >= maxTxKeys {
		k.young.over = true
		return
	}
	if k.young.keys == nil {
		k.young.keys = make(map[string][]EventID)
	}
	k.young.keys[key] = append(k.young.keys[key], id)
	k.young.n++
}

// ageLocked drops what is too old.
func (k *txKeys) ageLocked(nanos int64) {
	age := time.Duration(nanos - k.since)
	if age < txKeyAge {
		return
	}
	if k.old = k.young; age >= 2*txKeyAge {
		k.old = txNotes{}
	}
	k.young, k.since = txNotes{}, nanos
}

// forget drops an event that was taken in, or not inserted.
func (k *txKeys) forget(key string, id EventID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, notes := range []*txNotes{&k.old, &k.young} {
		ids := notes.keys[key]
		i := slices.Index(ids, id)
		if i < 0 {
			continue
		}
		notes.n--
		if notes.keys[key] = slices.Delete(ids, i, i+1); len(ids) == 1 {
			delete(notes.keys, key)
		}
		return
	}
}

// of returns the events of the keys of some dispatches, in the order of PublishTx. all is set if there may be others, or if
// they are too many to look for each.
func (k *txKeys) of(dispatches []*dispatch, nanos int64) (ids []EventID, all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ageLocked(nanos)
	all = k.young.over || k.old.over
	if k.young.n+k.old.n == 0 || all {
		return nil, all
	}
	for _, d := range dispatches {
		if d.key == "" {
			continue
		}
		ids = append(append(ids, k.old.keys[d.key]...), k.young.keys[d.key]...)
		if len(ids) > maxTxReads {
			return nil, true
		}
	}
	return ids, false
}

// takeInBefore takes in the events of the keys of a publication whose transactions were committed. Otherwise the
// publication would overtake them.
func (f *feeder) takeInBefore(ctx context.Context, o *opening) error {
	ids, all := f.bus.durable.inTx.of(o.all(), f.bus.time.Nanos())
	all = all || o.inside && f.leaves()
	if !all && len(ids) == 0 {
		return nil
	}
	block := f.bus.store.blocks.Block()
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-block.Begun:
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
		return fmt.Errorf("%w: it has not taken in what was published before in transactions: %w", ErrStoreFailed, block.Why)
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
