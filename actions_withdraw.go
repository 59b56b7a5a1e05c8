package eventbus

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
)

// withdrawAll removes the events of Cancel that wait to be taken in. Every bus may.
func (j *durable) withdrawAll(ctx context.Context, a *action, audit *AuditEntry) error {
	if !a.endsAll() {
		return nil
	}
	for id := range a.events {
		for again := true; again; {
			all, err := j.incomingOf(ctx, id)
			if again = len(all) > 0; again {
				err = j.withdraw(ctx, a, all, audit)
				again = errors.Is(err, driver.ErrNotFound) // one has been taken in
			}
			if err != nil && !again {
				return err
			}
		}
	}
	return nil
}

// incomingOf returns all that is incoming of an event.
func (j *durable) incomingOf(ctx context.Context, id EventID) (all []*driver.Incoming, err error) {
	for q, more := (driver.IncomingQuery{Event: driver.ID(id), Limit: feederPage}), true; more; {
		page, err := j.store.Incoming(ctx, q)
		if err != nil {
			return nil, err
		}
		if all, more = append(all, page.Events...), page.More; more {
			q.After = page.Events[len(page.Events)-1].ID
		}
	}
	return all, nil
}

// withdraw removes what was read of an event's incoming: several are replays of it.
func (j *durable) withdraw(ctx context.Context, a *action, all []*driver.Incoming, audit *AuditEntry) error {
	first := all[0].Record
	id := EventID(first.ID)
	report := ActionReport{Event: id, Forgotten: first.Replay == nil} // a handler may have had the event of a replay
	w := newBatch(j.time)
	switch {
	case report.Forgotten, !j.store.leads():
		w.Withdraw = []driver.ID{first.ID}
	default: // Withdraw goes by the event: it would pass over a replay that was taken in since the read, and remove one that came since
		for _, x := range all {
			w.Accept = append(w.Accept, x.ID)
		}
	}
	if report.Forgotten {
		w.cancels(id, first.Type, first.IdempotencyKey)
	}
	for _, x := range all {
		is := ActedDelivery{Targets: slices.Clone(x.Record.Targets), State: DispatchIncoming, Done: true}
		if len(is.Targets) > 0 {
			is.Subscription = is.Targets[0]
		}
		report.Deliveries = append(report.Deliveries, is)
		if ended := w.decode(x.Record).withdrawn(a, w.Now); a.isOperators() || ended.Replays > 0 {
			w.outcome(id, ended)
		}
	}
	w.audit(audit)
	was := a.reports[id]
	if a.reports[id] = &report; len(a.events) == 1 { // the last one
		w.answer(a.answers, a.reply())
	}
	if err := j.store.commit(ctx, w); err != nil {
		a.reports[id] = was
		return err
	}
	delete(a.events, id)
	audited(j.audits, j.report, audit)
	return nil
}

// withdrawn describes the end of an incoming event that Cancel removes.
func (r *record) withdrawn(a *action, now time.Time) SettledDelivery {
	is := SettledDelivery{Outcome: Cancelled, At: now.Truncate(time.Millisecond), EndedBy: a.operator.by}
	if len(r.Targets) > 0 {
		is.Subscription = r.Targets[0]
	}
	if r.replay != nil {
		is.Replays, is.ReplayedBy = r.replay.Count, replayer(r.replay.Log)
	}
	return is
}
