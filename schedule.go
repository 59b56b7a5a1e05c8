package eventbus

import (
	"context"
	"errors"
	"fmt"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/room"
)

// schedule stores a dispatch until it is due.
func (m *machine) schedule(d *dispatch) {
	d.state = stateScheduled
	m.ledger.scheduled.Add(1)
	due, add := d.from().due.nanos, m.scheduled.Add
	if at := d.from().due.at; !at.IsZero() {
		due, add = m.time.WallOf(at), m.scheduled.AddInstant
	}
	if !add(due, d.id, d) { // Shutdown has closed it
		m.ledger.scheduled.Add(-1)
		m.buryScheduled(d)
	}
	m.ledger.checkDrained() // Shutdown does not wait for d any more
}

// due queues a scheduled dispatch. It takes its place in its key's order now.
func (m *machine) due(d *dispatch) {
	o, now := *d.origin, m.time.Now()
	m.ids.Put((*[16]byte)(&o.order), now.Millis)
	if at := o.due.at; !at.IsZero() {
		o.due = &due{nanos: now.Point(at), at: at}
	}
	d.origin = &o
	m.journal.due(d)
}

// buryScheduled dead-letters a scheduled dispatch, or each of its copies.
func (m *machine) buryScheduled(d *dispatch) {
	for _, copied := range m.copies(d) {
		m.bury(copied, ReasonShutdown)
	}
}

// Cancel cancels an event that was published with After or At and is not due yet. No handler runs
// for it, and its id can be used again, unless it is a replay. Cancel waits for the store, if there is one. With By, Because
// or FromRequest, Audit has it.
//
// A bus without the lease of the store, such as a standby or one WithoutHandlers, cancels an event that waits to be taken
// in, and otherwise asks the bus that has the lease.
//
// Errors: ErrNotScheduled if the id is unknown, due already, or cancelled; *OptionError; the
// context's, and then it is unknown whether a store has cancelled the event; ErrNoAnswer; the store's.
func (b *Bus) Cancel(ctx context.Context, id EventID, opts ...DirectiveOption) error {
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("Cancel: %w", err)
	}
	o, err := newOperator("Cancel", opts)
	if err != nil {
		return fmt.Errorf("Cancel: %w", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("Cancel: %w", contextError(ctx))
	}
	if err := b.operators.cancel(ctx, id, o); err != nil {
		return fmt.Errorf("Cancel(%s): %w", id, err)
	}
	return nil
}

func (op *operators) cancel(ctx context.Context, id EventID, o operator) error {
	for {
		err := op.journal.cancel(ctx, id, op.cancelEntry(o, id), 0)
		if !errors.Is(err, ErrNoLease) && !errors.Is(err, ErrLeaseLost) {
			return err
		}
		answer, asked, err := op.journal.ask(ctx, request{
			Action: AuditCancel, Event: id, By: o.by, Why: o.why, Remote: o.remote, RequestID: o.requestID,
		})
		if asked && err == nil {
			err = answer.err()
		}
		if asked {
			return err
		}
	}
}

// cancel settles a scheduled event that the store has. The error matches ErrNoLease if only the bus with the lease may.
func (j *durable) cancel(ctx context.Context, id EventID, entry *AuditEntry, answers driver.RequestID) error {
	if err := j.withdraw(ctx, id, entry, answers); !errors.Is(err, ErrNotScheduled) {
		return err
	}
	if !j.store.leads() {
		return ErrNoLease
	}
	claims := j.feeder.claimsContext()
	claimed, err := j.store.Claim(ctx, driver.ClaimQuery{Kind: driver.ClaimEvent, Event: driver.ID(id), Limit: 1})
	if err != nil {
		if ctx.Err() == nil {
			j.feeder.failed(claims, err)
		}
		return err
	}
	if len(claimed.Records) == 0 {
		return ErrNotScheduled
	}
	records, err := decodeRecords(claimed.Records)
	if err != nil {
		j.feeder.failed(claims, err)
		return err
	}
	for _, r := range records {
		// Not by a followup: all of those may run observers that cancel events.
		here := make(chan func(), 1)
		settled := j.recordLater(&change{
			kind: toSettle, opening: opening{d: j.feeder.load(r)}, outcome: Cancelled, claimed: r, here: here, audit: entry, answers: answers,
		})
		var why error
		select {
		case apply := <-here:
			apply()
			err = errors.Join(err, <-settled)
			continue
		case <-ctx.Done():
			why = contextError(ctx)
		case <-j.gaveUp:
			why = ErrShutdown
		}
		go func() { (<-here)() }()
		err = errors.Join(err, fmt.Errorf("the outcome is unknown: %w", why))
	}
	if err == nil {
		audited(j.audits, j.report, entry)
	}
	return err
}

// freeScheduled gives a claimed event back to the store, which has refused to cancel it: its request was taken back.
func (j *durable) freeScheduled(r *record) {
	free := *r.Record
	free.Leased = false
	w := newBatch(j.time)
	w.Update = []*driver.Record{&free}
	j.store.submit(w, room.Pass{}, func(err error) {
		if err == nil {
			j.feeder.due.Add(free.Due)
		}
	})
}

// withdraw removes a scheduled event that waits to be taken in. Every bus may.
func (j *durable) withdraw(ctx context.Context, id EventID, entry *AuditEntry, answers driver.RequestID) error {
	page, err := j.store.Incoming(ctx, driver.IncomingQuery{Event: driver.ID(id), Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Events) == 0 {
		return ErrNotScheduled
	}
	w := newBatch(j.time)
	w.Withdraw = []driver.ID{driver.ID(id)}
	if r := page.Events[0].Record; r.Replay == nil { // a handler may have had the event of a replay
		w.cancels(id, r.Type, r.IdempotencyKey)
	}
	w.audit(entry)
	w.answer(answers, nil)
	if err = j.store.commit(ctx, w); errors.Is(err, ErrNotScheduled) {
		return ErrNotScheduled
	}
	if err == nil {
		audited(j.audits, j.report, entry)
	}
	return err
}
