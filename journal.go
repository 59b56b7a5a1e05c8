package eventbus

import (
	"context"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/room"
)

// journal is what a transition means beyond memory. The machine decides on a transition, and the journal applies it, exactly
// once: memoryJournal at once, durable when the store has it, on another goroutine. Until then the journal owns the dispatch,
// and nothing else may touch it.
//
// Arguments are values: a pointer to a struct that crosses the interface would cost an allocation for each event.
type journal interface {
	// replay removes a letter and makes its dispatch runnable, or schedules it again: ErrNotFound if another call was first.
	// end waits until it is done, and must be called. An error is a refusal.
	replay(ctx context.Context, o opening, l *keptLetter, audit *AuditEntry) (end func() error, err error)
	// replaysAtOnce is how many replays a bulk operation has in progress.
	replaysAtOnce() int
	// due makes a scheduled dispatch runnable.
	due(d *dispatch)
	// retryLater keeps a dispatch until its next attempt.
	retryLater(d *dispatch, delay time.Duration, due int64)
	// park keeps a delivery at its door. If it spills, only the store does.
	park(d *dispatch, spills bool)
	// settle ends a dispatch. It has a letter if it is dead-lettered, and accepts what its last handler has emitted.
	settle(d *dispatch, outcome Outcome, letter *keptLetter, emitted []*dispatch)
	// cutShort ends what Shutdown, or a failure of the store, does not let go on: with a letter in memory. A store keeps it.
	cutShort(d *dispatch)
	// detains keeps a dispatch that was read from a store from running now, and reports whether it does.
	detains(d *dispatch) bool
	// callEnded is called during Shutdown when a call, or a wait in PublishAndWait, has ended: what only it waited for may be
	// left to the store now.
	callEnded()
	// asksForDoor is called when a door has room for deliveries that only the store has.
	asksForDoor(o *door)
	// passed notes that the next target has handled the event, in an attempt with further targets, and accepts what its handler has
	// emitted. It reports whether the attempt goes on.
	passed(on *worker, d *dispatch, emitted []*dispatch) bool

	// prepare gives a publication what its handlers get: the payload, and values of the publisher's context.
	prepare(ctx context.Context, d *dispatch) error
	// prepareLetter gives the event of a dead letter its payload.
	prepareLetter(d *dispatch, l *DeadLetter)
	// isRepeated reports whether a dispatch repeats an event whose idempotency key or given id is known: accept then adds nothing.
	isRepeated(ctx context.Context, d *dispatch) (bool, error)
	// accept waits for room, and makes a dispatch, or a batch, runnable: those whose ids are new, of which it returns the
	// number. The error is a refusal, or an *IndeterminateError.
	accept(ctx context.Context, inside bool, d *dispatch, batch []*dispatch) (fresh int, err error)
	// acceptTx leaves an event in a transaction of the caller.
	acceptTx(ctx context.Context, inside bool, tx any, d *dispatch) error
	// emitTx leaves what a handler has emitted in the transaction in which it runs.
	emitTx(ctx context.Context, tx any, emitted []*dispatch) error
	// awaits is called before an event is published for which a waiter waits, and its result when the wait has ended.
	awaits(id EventID, w *waiter) (ended func())
	// act carries out an action of an operator, and adds what it has found to the reports. audit is recorded if something was done. The error matches
	// ErrNoLease if the bus with the lease has to do the rest.
	act(ctx context.Context, a *action, audit *AuditEntry) error

	// encodePayload returns a payload as handlers get it.
	encodePayload(payload any) (any, error)
	// ask asks the bus with the lease to do something, and returns its answer. asked is false if this is the bus that does it.
	ask(ctx context.Context, r request) (answer *reply, asked bool, err error)
	// direct records directives to subscriptions, with their entry of the audit, and answers the request with the one that
	// was asked for. It reports whether others may read them.
	direct(directives []Directive, audit *AuditEntry, answers driver.RequestID, given *Directive) (shared bool, err error)
	// retire ends a name that no subscription has, or a detached one. In memory it is done then, and else awaitRetired waits.
	retire(ctx context.Context, r request, s *Subscription) (RetireReport, error)
	awaitRetired(ctx context.Context, name string, report RetireReport) (RetireReport, error)
	// readDirectives returns the latest directive to each name. known is false in memory, where a directive is its subscription's alone.
	readDirectives(ctx context.Context) (directives []Directive, known bool, err error)

	// recordsOf returns the records of an event. If there are any records, they are what exists: memory may have less.
	recordsOf(ctx context.Context, id EventID) (records []*record, exist bool, err error)
	// recordPage returns a page of records, likewise.
	recordPage(ctx context.Context, q driver.RecordQuery, after string) (records []*record, next string, exist bool, err error)
	// settledOf returns how deliveries of an event have ended that this process remembers, or a store because operators have acted upon
	// them.
	settledOf(ctx context.Context, id EventID) ([]SettledDelivery, error)
	// hurried keeps that an operator lets a dispatch go on that waits, or is parked. The caller owns it, or has the lock of its owner:
	// its next transition comes later.
	hurried(d *dispatch, from DispatchState)
	// remembers reports whether an event with an id was accepted.
	remembers(ctx context.Context, id EventID) (bool, error)
	// keyedEvent returns the event for which an idempotency key of a type is known.
	keyedEvent(ctx context.Context, eventType, key string) (id EventID, known bool, err error)
	// measure adds what only the journal counts.
	measure(m *Metrics)

	// comes is called before a subscription is added, and its result afterwards. spills is set if only room bounds its line.
	comes(s *Subscription, spills bool) (arrived func())
	// ends is called when a subscription has left.
	ends(s *Subscription)

	// dispatches reports whether the bus dispatches events: it was started, and is no standby.
	dispatches() bool
	// start waits for the lease and takes up what an earlier process has left, and started is called when the workers run.
	start(ctx context.Context) error
	started()
	// unloads is called when Shutdown begins, and stop before it waits: it leaves what Shutdown does not wait for.
	unloads()
	stop()
	// untilStop returns a context that ends with ctx, and after stop.
	untilStop(ctx context.Context) (ending context.Context, done func())
	// drainsElsewhere returns a function that reports whether nothing is left to do outside of memory, or nil.
	drainsElsewhere(ctx context.Context) func() bool
	// awaitEnd waits until Shutdown has ended, after its cut. The error is why it gives up.
	awaitEnd(ended <-chan struct{}) error
	// awaitReturns gives handlers that were cancelled some time to return, before the error names them.
	awaitReturns()
	// close is called when nothing is left to do.
	close() error
}

// opening has dispatches that become runnable together.
type opening struct {
	d     *dispatch
	batch []*dispatch // if there are several; d is the first
	// published is batch before the repetitions were removed. Of those, repetitions has the ones that repeat an earlier event, whose id
	// they have, and folded those that repeat another one of the batch.
	published   []*dispatch
	repetitions map[*dispatch]bool
	folded      []folded
	refused     []*refusal
	events      []Event   // for Observer.Accepted
	inside      bool      // a handler publishes them
	left        bool      // the events were left in incoming
	follows     bool      // what was published before it in transactions is taken in
	counted     bool      // intake.quota has the records
	pass        room.Pass // of acquireRoom
}

// folded is a dispatch of a batch that repeats another one of it.
type folded struct{ again, first *dispatch }

// all returns the dispatches.
func (o *opening) all() []*dispatch {
	if o.batch != nil || o.d == nil {
		return o.batch
	}
	return []*dispatch{o.d}
}

// records returns the number of records that a store inserts for them.
func (o *opening) records() (records int64) {
	for _, d := range o.all() {
		records += d.records()
	}
	return records
}

// indeterminate returns the error of a publication whose outcome is unknown.
func (o *opening) indeterminate(why error) error {
	e := &IndeterminateError{ID: o.d.id, Err: why}
	for _, d := range o.published {
		e.IDs = append(e.IDs, d.id)
	}
	if e.IDs != nil {
		e.ID = e.IDs[0]
	}
	return e
}
