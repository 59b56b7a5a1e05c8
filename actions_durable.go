package eventbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/room"
)

// actionPatience is how long an action waits for dispatches in transit: the store has not confirmed their transition, or the bus is taking
// the event in.
const actionPatience = time.Second

func (j *durable) act(ctx context.Context, a *action, audit *AuditEntry) error {
	if err := j.withdrawAll(ctx, a, audit); err != nil || len(a.events) == 0 {
		return err
	}
	if !j.store.leads() {
		return ErrNoLease
	}
	switch {
	case j.halts.Has(halt.Failed):
		return errReopens()
	case j.halts.Any():
		return ErrShutdown
	}
	do := &acting{}
	err := j.claimScheduled(ctx, a, do)
	if !do.givesBack {
		err = j.gather(ctx, a, do)
		j.machine.leave(a)
	}
	onlyAudit := audit != nil && len(a.hurried) > 0 // what waits in memory is not in the batch
	if len(do.all)+len(do.hurried) == 0 && !onlyAudit && (err != nil || a.answers == 0) {
		j.endPlaces(do)
		return err
	}
	return errors.Join(err, j.submitAction(ctx, a, audit, do))
}

// claimScheduled claims the records of events that Cancel ends before they are due. givesBack is set if there can be nothing else: an
// event has one record before it is due.
func (j *durable) claimScheduled(ctx context.Context, a *action, do *acting) error {
	if !a.endsAll() {
		return nil
	}
	var free []*record
	for id := range a.events {
		records, _, err := j.recordsOf(ctx, id)
		if err != nil || len(records) != 1 || records[0].State != driver.Scheduled || records[0].incoming || records[0].Leased || records[0].replay != nil {
			return err
		}
		free = append(free, records[0])
	}
	err := j.claimFree(ctx, a, free, do)
	do.givesBack = err == nil && len(do.all) == len(free)
	return err
}

// gather takes the dispatches of the action out of memory, and claims those that only the store has, until none is in transit.
func (j *durable) gather(ctx context.Context, a *action, do *acting) error {
	// An empty commit waits for earlier batches. Afterwards, each delivery that is being split off has its record.
	if err := j.store.commit(ctx, newBatch(j.time)); err != nil {
		return err
	}
	began := j.time.Nanos()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		do.all = append(do.all, j.machine.takeAll(a)...)
		free, rest, moving, err := j.lookUp(ctx, a, do)
		if err == nil && len(free) > 0 {
			err = j.claimFree(ctx, a, free, do)
		}
		if err != nil || len(free)+len(moving) == 0 || j.time.Nanos()-began > int64(actionPatience) || !j.time.Sleep(ctx, pause) {
			for _, r := range append(rest, moving...) {
				if r.incoming && a.subscription == "" || slices.ContainsFunc(r.left(), a.names) {
					j.foundRecord(a, r, false)
				}
			}
			return err
		}
	}
}

// lookUp returns the free records that the action is for, and the rest of them. moving has those that are in no place of memory, and were not
// taken.
func (j *durable) lookUp(ctx context.Context, a *action, do *acting) (free, rest, moving []*record, err error) {
	here := make(map[driver.Ref]bool)
	for _, r := range do.hurried {
		here[r.Ref] = true
	}
	for _, d := range do.all {
		here[d.row().ref] = true
	}
	note := func(d *dispatch) {
		if a.events[d.id] && d.row() != nil {
			here[d.row().ref] = true
		}
	}
	for _, p := range j.machine.spots() {
		p.each(func(d *dispatch, _ int64, _ ParkReason) { note(d) })
	}
	for _, c := range j.machine.watch.Running() {
		note(c.dispatch)
	}
	for id := range a.events {
		records, _, err := j.recordsOf(ctx, id)
		if err != nil {
			return nil, nil, nil, err
		}
		for _, r := range records {
			switch {
			case r.incoming:
				moving = append(moving, r)
				j.feeder.lookForIncoming()
			case here[r.Ref]:
			case r.Leased:
				moving = append(moving, r)
			case a.claims(r) && !j.comesInTurn(a, r):
				free = append(free, r)
			default:
				rest = append(rest, r)
			}
		}
	}
	return free, rest, moving, nil
}

// comesInTurn reports whether RetryNow must leave a record to the feeder: it waits for those before it of its key. Only before the feeder
// claims anything under this lease, those behind the record wait as it does.
func (j *durable) comesInTurn(a *action, r *record) bool {
	return a.verb == AuditRetryNow && r.Key != "" && (j.feeder.runs.Load() || j.feeder.starts.Load() && !a.acquires)
}

// claims reports whether an action is for a record that is free. A visited one has no target left, and settles by itself.
func (a *action) claims(r *record) bool {
	left := r.left()
	return (a.verb != AuditRetryNow || r.State == driver.Waiting) && (len(left) == 1 && a.names(left[0]) || len(left) > 1 && a.subscription == "")
}

// left returns the names of the targets that are left.
func (r *record) left() []string { return r.progress.left(r.Targets) }

// names reports whether an action is for the subscription of a name.
func (a *action) names(name string) bool {
	return a.subscription == "" || name == a.subscription || a.same.Has(name)
}

// claimFree claims records. Those of RetryNow are due now, and are claimed again in their turn.
func (j *durable) claimFree(ctx context.Context, a *action, free []*record, do *acting) error {
	refs := make([]driver.Ref, len(free))
	for i, r := range free {
		refs[i] = r.Ref
	}
	claims := j.feeder.claimsContext()
	j.keepPlaces(a, free, do)
	claimed, err := j.store.Claim(ctx, driver.ClaimQuery{Kind: driver.ClaimRefs, Refs: refs, Limit: len(refs)})
	if err != nil {
		if ctx.Err() == nil {
			j.feeder.failed(claims, err)
		}
		return err
	}
	records, err := decodeRecords(claimed.Records)
	if err != nil {
		j.feeder.failed(claims, err)
		return err
	}
	for _, r := range records {
		if a.verb == AuditRetryNow {
			j.foundRecord(a, r, true)
			r.Due, r.Leased = j.time.Now().UTC, false
			if r.Key != "" { // if this lease goes on, no claim finds one that waits. See driver.ClaimDue
				r.State, r.Due = driver.Ready, time.Time{}
			}
			r.wakes()
			if a.isOperators() {
				r.progress.RetriedBy = &a.operator.by
			}
			do.hurried = append(do.hurried, r)
			continue
		}
		if _, missing := j.registry.targetsOfRecord(r); r.State == driver.Parked && len(missing) > 0 {
			j.intake.quota.Add(j.orphans.Remove(r.Door)) // it counts until it has settled
		}
		j.foundRecord(a, r, true)
		do.all, do.claimed = append(do.all, j.feeder.load(r)), append(do.claimed, r)
	}
	return nil
}

// keepPlaces keeps the places of records in the order of their keys that an action is about to claim to end them. The feeder may claim those
// behind them afterwards: if the store then refuses the end, these must not have run.
func (j *durable) keepPlaces(a *action, free []*record, do *acting) {
	for _, r := range free {
		if r.Key == "" || r.State == driver.Scheduled || a.verb == AuditRetryNow {
			continue
		}
		to, _ := j.registry.targetsOfRecord(r)
		gates := make(map[*keyGate]bool)
		for _, s := range to.subscriptions { // it may be divided
			gate := cmp.Or(s.gate, j.machine.keys)
			if !gates[gate] {
				gates[gate] = true
				do.places = append(do.places, j.machine.keepPlace(gate, r.Key))
			}
		}
	}
}

// endPlaces ends the places of keepPlaces.
func (j *durable) endPlaces(do *acting) {
	for _, p := range do.places {
		j.machine.endPlace(p)
	}
	do.places = nil
}

// foundRecord adds a record that only the store has to the report of its event.
func (j *durable) foundRecord(a *action, r *record, done bool) {
	is := ActedDelivery{State: [...]DispatchState{DispatchQueued, DispatchWaiting, DispatchScheduled, DispatchParked}[r.State], Done: done}
	if r.incoming {
		is.State = DispatchIncoming
	}
	if r.progress != nil {
		is.Attempts = r.progress.Attempts
	}
	if is.Targets = slices.Clone(r.left()); len(is.Targets) > 0 {
		is.Subscription = is.Targets[0]
	}
	if !done {
		isNext := a.names(is.Subscription)
		is.Left = a.whyLeft(is, isNext)
		switch {
		case r.incoming && a.verb != AuditRetryNow && !j.feeder.runs.Load():
			is.Left = "no bus has taken it in; start one that dispatches and try again, or cancel the whole event"
		case a.verb != AuditRetryNow || !isNext:
		case is.State == DispatchWaiting:
			is.Left = "others come before it in the store; try again"
		case is.State == DispatchParked:
			is.Left = "only the store has it: its subscription does not exist, or others come before it"
		}
	}
	report := a.reports[EventID(r.ID)]
	report.Deliveries = append(report.Deliveries, is)
}

// acting is an action in the batch that carries it out.
type acting struct {
	all     []*dispatch // that it has taken out of their places, and owns
	claimed []*record   // of those that only the store had
	places  []keyPlace  // of these
	// givesBack is set if all are scheduled events: if the process that has asked for the action does not wait any more, they are
	// as before.
	givesBack bool

	ends    []*change   // toSettle: of the dispatches that it ends
	goOn    []*dispatch // from which these were split off: until the commit, because the batch may be submitted again
	hurried []*record   // of RetryNow
	frees   []*dispatch // of the events whose ids are free then
	audit   *AuditEntry
	answers driver.RequestID
	reply   *reply
	result  chan error // of the commit
}

// addTo adds what the action does beside the dispatches that it ends.
func (c *acting) addTo(w *batch) {
	for _, r := range c.hurried {
		r.Progress = w.encode(r.progress)
		w.Update = append(w.Update, r.Record)
	}
	for _, d := range c.frees {
		w.cancels(d.id, d.to.eventType, d.from().once.key)
	}
	w.audit(c.audit)
	w.answer(c.answers, c.reply)
}

// isTakenBack reports whether a batch was refused because the process that asked for the action no longer waits. The action then
// proceeds without an answer: the dispatches that it took out of memory cannot return to their places.
func (c *acting) isTakenBack(refused *driver.RefusedError) bool {
	if c == nil || c.answers == 0 || c.givesBack || refused.Request != c.answers {
		return false
	}
	c.answers = 0
	return true
}

// submitAction submits what an action does, as one batch, and waits until the store has it.
func (j *durable) submitAction(ctx context.Context, a *action, audit *AuditEntry, do *acting) error {
	do.answers, do.result = a.answers, make(chan error, 1)
	var told []*dispatch
	anyMissing := false
	for _, d := range do.all {
		a.cancelsFresh(d)
		ends, goesOn := j.machine.endsOf(a, d)
		end := &change{kind: toSettle, opening: opening{d: ends}, outcome: Cancelled}
		if a.verb == AuditGiveUp {
			end.outcome, end.letter = DeadLettered, j.machine.letter(ends, ReasonOperator)
			more, missing := j.machine.tell(ends, end.letter)
			told, anyMissing = append(told, more...), anyMissing || missing
		}
		do.ends = append(do.ends, end)
		if goesOn != nil {
			do.goOn = append(do.goOn, goesOn)
		}
	}
	do.frees, do.reply = a.freed(), a.reply()
	if a.any() {
		do.audit = audit
	}
	apply := j.submitActing(do, told, anyMissing)
	err := j.awaitActing(ctx, do, apply)
	if err == nil {
		audited(j.audits, j.report, do.audit)
	}
	return err
}

// submitActing submits a batch. It returns where the function comes that applies it: no followup calls that, because all of these may run
// observers that wait for an action.
func (j *durable) submitActing(do *acting, told []*dispatch, missing bool) <-chan func() {
	here := make(chan func(), 1)
	c := &change{kind: toAct, acting: do, here: here}
	for _, end := range do.ends {
		end.d.state = stateRecording
	}
	for _, d := range do.goOn {
		d.state = stateRecording
	}
	j.ledger.recording.Add(int64(len(do.ends) + len(do.goOn)))
	if len(told) > 0 {
		j.submitOpening(&change{kind: toAccept, of: c, divides: missing, opening: opening{batch: told, published: told, inside: true}})
		return here
	}
	var submit func()
	submit = func() {
		w := j.batchOf(c)
		j.store.submit(&w.batch, room.Pass{}, func(err error) {
			var refused *driver.RefusedError
			if errors.As(err, &refused) && do.isTakenBack(refused) {
				j.followups.Return(false, submit)
				return
			}
			w.committed(err)
			here <- func() {
				if err != nil { // the caller has the error: what a restart finds in the store goes on
					for _, end := range do.ends {
						j.machine.cancelling.Withdraw(end.d.id)
					}
				}
				_ = j.apply(c, err)
				j.ledger.checkDrained()
				do.result <- err
			}
		})
	}
	submit()
	return here
}

// applyAct applies a batch of submitActing that was recorded, or that was refused with err.
func (j *durable) applyAct(do *acting, err error) {
	for _, end := range do.ends {
		_ = j.apply(end, err)
		j.ledger.recording.Add(-1)
	}
	j.endPlaces(do)
	j.machine.requeue(do.goOn...)
	j.ledger.recording.Add(int64(-len(do.goOn)))
	var refused *driver.RefusedError
	if do.givesBack && errors.As(err, &refused) {
		for _, r := range do.claimed {
			j.freeScheduled(r)
		}
	}
	if len(do.hurried) > 0 { // also if the caller no longer waits
		j.feeder.due.Ring()
		j.feeder.wakeUp()
	}
}

// awaitActing waits until the store has the batch of an action, and applies it.
func (j *durable) awaitActing(ctx context.Context, do *acting, apply <-chan func()) error {
	var why error
	block := j.store.blocks.Block()
	select {
	case f := <-apply:
		f()
		return <-do.result
	case <-block.Begun:
		why = block.Why
	case <-ctx.Done():
		why = contextError(ctx)
	case <-j.gaveUp:
		why = ErrShutdown
	}
	go func() { (<-apply)() }()
	return fmt.Errorf("the outcome is unknown: %w", why)
}

// reply returns the answer for another process.
func (a *action) reply() *reply {
	r := &reply{}
	for _, report := range a.reports {
		r.Actions = append(r.Actions, *report)
	}
	return r
}

// freeScheduled gives a claimed record back to the store, which has refused to cancel it: the request was taken back.
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
