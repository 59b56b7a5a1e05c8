package eventbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/route"
)

// Every bus may leave events in the incoming table of the store. The bus with the lease takes them in: it routes them, and
// in one batch removes them from there and inserts their records.

// incomingEvent is an incoming event, decoded.
type incomingEvent struct {
	*driver.Incoming
	record *record
}

// isNamed reports whether a remembered id or idempotency key is the event's.
func (e incomingEvent) isNamed(known *driver.Dedupe) bool {
	if known.Scope == "" {
		return e.Given && e.Record.ID == known.Event
	}
	return e.remembersKey() && e.Record.Type == known.Scope && e.Record.IdempotencyKey == known.Key
}

// remembersKey reports whether the bus that takes the event in must remember its idempotency key.
func (e incomingEvent) remembersKey() bool { return !e.Record.KeyExpires.IsZero() }

// repeats reports whether the event has the id or the idempotency key of another one.
func (e incomingEvent) repeats(other incomingEvent) bool {
	x, y := e.Record, other.Record
	return e.Given && x.ID == y.ID || e.remembersKey() && x.IdempotencyKey == y.IdempotencyKey && x.Type == y.Type
}

// decodeIncoming decodes an incoming event and checks it again: its publisher may have had other options, or be of another
// version. invalid says what does not fit.
func (j *durable) decodeIncoming(in *driver.Incoming) (e incomingEvent, invalid error) {
	e.Incoming = in
	if e.record, invalid = decodeRecord(in.Record); invalid != nil {
		bare := *in.Record
		bare.Metadata, bare.Replay = nil, nil
		e.record = &record{Record: &bare}
	}
	codec := j.config.codecName()
	switch offence := route.CheckType(in.Record.Type); {
	case offence != nil:
		invalid = typeError(in.Record.Type, offence)
	case in.Record.Type == deadLetterType && in.Record.Replay == nil:
		invalid = reservedType()
	case in.Codec != codec:
		invalid = fmt.Errorf("the payload was encoded by the codec %q, and this bus has %q", in.Codec, codec)
	case len(in.Record.Payload) > j.config.payloadLimit && in.Record.Replay == nil:
		invalid = &PayloadError{GoType: "incoming event", Size: len(in.Record.Payload), Limit: j.config.payloadLimit}
	}
	return e, invalid
}

// ownIncoming has how far the events are taken in that this process has left in incoming.
type ownIncoming struct {
	last    atomic.Int64 // the largest IncomingID that it has left
	unknown atomic.Bool  // it may have left others: the outcomes of batches are unknown
	reached atomic.Int64 // all events are taken in up to this IncomingID
}

// note notes the events that a batch has left.
func (o *ownIncoming) note(r *changeBatch, err error) {
	var refused *driver.RefusedError
	switch leave := r.batch.Leave; {
	case len(leave) == 0 || errors.As(err, &refused):
	case err != nil:
		o.unknown.Store(true)
	default:
		raise(&o.last, int64(leave[len(leave)-1].ID))
	}
}

// areTakenIn reports whether none is left.
func (o *ownIncoming) areTakenIn() bool {
	return !o.unknown.Load() && o.reached.Load() >= o.last.Load()
}

// raise sets a number to n unless it is larger.
func raise(v *atomic.Int64, n int64) {
	for was := v.Load(); was < n && !v.CompareAndSwap(was, n); was = v.Load() {
	}
}

// takeIn takes in a page of incoming events. It reports whether there may be more, and whether WithMaxUnsettled has no room
// for them.
func (f *feeder) takeIn(ctx context.Context) (more, full bool, err error) {
	limit := f.page()
	if q := &f.bus.intake.quota; q.Most > 0 {
		if limit = q.RoomToTakeIn(limit); limit == 0 {
			return true, true, nil
		}
		defer q.TakenIn()
	}
	last, unknown := f.own.last.Load(), f.own.unknown.Swap(false)
	page, err := f.bus.store.Incoming(ctx, driver.IncomingQuery{Limit: limit})
	if err == nil {
		err = f.takeInPage(ctx, page.Events)
	}
	switch n := len(page.Events); {
	case err == nil && !page.More:
		raise(&f.own.reached, last)
		unknown = false
	case err == nil:
		raise(&f.own.reached, int64(page.Events[n-1].ID))
	}
	if unknown {
		f.own.unknown.Store(true)
	}
	if refused := (*driver.RefusedError)(nil); errors.As(err, &refused) && refused.Incoming != 0 {
		return true, false, nil // Cancel has withdrawn one since the page was read
	}
	return page.More || err != nil, false, err
}

// takeInPage takes in events in their order: as many publications as possible together, and replays one by one. Of two with
// one id, the first must be known when the second is taken in.
func (f *feeder) takeInPage(ctx context.Context, all []*driver.Incoming) (err error) {
	var together []incomingEvent
	flush := func() error {
		err := f.takeInTogether(ctx, together)
		together = nil
		return err
	}
	for _, in := range all {
		e, invalid := f.bus.durable.decodeIncoming(in)
		again := slices.ContainsFunc(together, func(other incomingEvent) bool { return e.repeats(other) })
		if len(together) > 0 && (again || invalid != nil || e.record.replay != nil || together[0].record.replay != nil) {
			if err := flush(); err != nil {
				return err
			}
		}
		if invalid != nil {
			if err := f.buryIncoming(ctx, e, ReasonInvalid, invalid); err != nil {
				return err
			}
			continue
		}
		together = append(together, e)
	}
	return flush()
}

// takeInAll takes in a page of what is there, if something may be. When nothing is left, new events get records; where
// WithMaxUnsettled has no room, when nothing of this process is left.
func (f *feeder) takeInAll(ctx context.Context) error {
	if !f.looks.Swap(false) && f.tookIn.Load() {
		return nil
	}
	more, full, err := f.takeIn(ctx)
	if err == nil && !f.tookIn.Load() && (!more || full && f.own.areTakenIn()) {
		full, err = f.beginToLead(ctx)
	}
	if more || full || err != nil {
		f.looks.Store(true)
	}
	if q := &f.bus.intake.quota; full && q.Used() < q.Most { // a dispatch may have settled before looks was set
		f.lookForIncoming()
	}
	if more && !full && err == nil {
		f.lookForIncoming()
	}
	return err
}

// beginToLead takes in what this process has left in incoming, while publishers wait, so that no later event of a key
// overtakes. From then on new events get records.
func (f *feeder) beginToLead(ctx context.Context) (full bool, err error) {
	f.beginCatching()
	for more := true; more && !full && err == nil; {
		more, full, err = f.takeIn(ctx)
	}
	f.submitting.Lock()
	defer f.submitting.Unlock()
	f.endCatchingLocked()
	f.tookIn.Store(err == nil && (!full || f.own.areTakenIn()))
	return full, err
}

// takeInTogether takes in publications, or one replay, and waits until it is recorded. It leaves out repetitions.
func (f *feeder) takeInTogether(ctx context.Context, all []incomingEvent) error {
	for len(all) > 0 {
		err := f.takeInOnce(ctx, all)
		var refused *driver.RefusedError
		if !errors.As(err, &refused) || refused.Known == nil {
			return err
		}
		i := slices.IndexFunc(all, func(e incomingEvent) bool { return e.isNamed(refused.Known) })
		if i < 0 {
			return err
		}
		if err := f.dropRepetition(ctx, all[i], refused.Known); err != nil {
			return err
		}
		all = slices.Delete(all, i, i+1)
	}
	return nil
}

func (f *feeder) takeInOnce(ctx context.Context, all []incomingEvent) error {
	j := f.bus.durable
	c := &change{kind: toAccept}
	for i := range all {
		d, missing := j.incoming(&all[i])
		c.batch = append(c.batch, d)
		c.takesIn = append(c.takesIn, all[i].ID)
		c.divides = c.divides || missing
	}
	if c.d = c.batch[0]; c.d.from().replay != nil {
		c.kind, c.batch = toReplay, nil
	}
	return f.takeInAs(ctx, c)
}

// takeInAs records a change that takes events in, and waits for that.
func (f *feeder) takeInAs(ctx context.Context, c *change) error {
	j := f.bus.durable
	if c.kind == toAccept {
		j.intake.quota.Add(c.records())
		c.counted = true
		if j.report.seesAccepted() {
			for _, d := range c.batch {
				c.events = append(c.events, d.event(j.time))
			}
		}
	}
	j.ledger.entering.Add(1)
	applied := j.recordLater(c)
	select {
	case err := <-applied:
		if err == nil {
			c.takenIn(&j.inTx)
		}
		j.followups.Return(false, func() { j.takenIn(c, err) }) // observers may block
		return err
	case <-ctx.Done():
		go func() { j.takenIn(c, <-applied) }()
		return errClaimsEnded
	}
}

// takenIn forgets the keys of events that are taken in.
func (c *change) takenIn(keys *txKeys) {
	for _, d := range c.all() {
		keys.forget(d.key, d.id)
	}
	for _, r := range c.refused {
		keys.forget(r.d.key, r.d.id)
	}
}

// dropRepetition ends an incoming event whose id is known. With another content, nobody can be told but by a letter.
func (f *feeder) dropRepetition(ctx context.Context, e incomingEvent, known *driver.Dedupe) error {
	j := f.bus.durable
	d, _ := j.incoming(&e)
	id := d.id
	if err := j.repeats(d, known); err != nil {
		return f.buryIncoming(ctx, e, ReasonDuplicate, err)
	}
	w := newBatch(j.time)
	w.Accept = []driver.IncomingID{e.ID}
	if err := f.commit(ctx, w); err != nil {
		return err
	}
	j.repeated.Add(1)
	j.inTx.forget(d.key, id)
	return nil
}

// buryIncoming takes in an event that becomes a dead letter at once.
func (f *feeder) buryIncoming(ctx context.Context, e incomingEvent, reason Reason, why error) error {
	j := f.bus.durable
	d, _ := j.incoming(&e)
	c := &change{kind: toAccept, opening: opening{batch: []*dispatch{}}, takesIn: []driver.IncomingID{e.ID}}
	c.refuse(j.machine, d, reason, why)
	return f.takeInAs(ctx, c)
}

// refusal is the end of an accepted event that cannot be dispatched: a dead letter at its first target. Without a target, it is unrouted.
type refusal struct {
	d      *dispatch
	reason Reason
	why    error
	letter *keptLetter
}

func (m *machine) refuse(d *dispatch, reason Reason, why error) *refusal {
	r := &refusal{d: d, reason: reason, why: why}
	if len(d.to.subscriptions) > 0 {
		d.ensureStory().failures = []failure{{err: why, text: why.Error(), subscription: d.to.subscriptions[0], at: m.time.Nanos()}}
		r.letter = m.letter(d, reason)
	}
	return r
}

// refuse adds the refusal of an event, and the event of its letter.
func (c *change) refuse(m *machine, d *dispatch, reason Reason, why error) {
	r := m.refuse(d, reason, why)
	told, missing := m.tell(d, r.letter)
	c.refused, c.batch, c.divides = append(c.refused, r), append(c.batch, told...), c.divides || missing
}

// refuse adds the letter.
func (w *batch) refuse(r *refusal) {
	w.ForgetSettled = append(w.ForgetSettled, entriesToFree(r.d)...)
	if r.letter != nil {
		w.bury(&r.letter.DeadLetter)
	}
}

func (m *machine) applyRefusal(r *refusal) {
	m.ledger.accepted.Add(1)
	r.d.to.counters.events.Add(1)
	if r.letter == nil {
		m.log.Warn("event refused: it matches no subscription, so there is no dead letter", zap.Stringer("event_id", r.d.id),
			zap.String("event_type", r.d.to.eventType), zap.String("reason", string(r.reason)), zap.Error(r.why))
	}
	m.applySettle(r.d, r.outcome(), r.letter)
}

func (r *refusal) outcome() Outcome {
	if r.letter == nil {
		return Unrouted
	}
	return DeadLettered
}

// commit waits for a batch of the feeder.
func (f *feeder) commit(ctx context.Context, w *batch) error {
	err := f.bus.store.commit(ctx, w)
	if err != nil && ctx.Err() != nil {
		return errClaimsEnded
	}
	return err
}

// takenIn reports events that were taken in, and settles those without targets.
func (j *durable) takenIn(c *change, err error) {
	if err == nil && c.kind == toAccept {
		j.intake.accepted(&c.opening)
	}
	j.ledger.entering.Add(-1)
	j.ledger.checkDrained()
}

// incoming returns the dispatch of an incoming event, and whether a subscription of its publisher is missing here.
func (j *durable) incoming(in *incomingEvent) (d *dispatch, missing bool) {
	to, missing := j.registry.targetsOfIncoming(in.record)
	d = j.decodeRow(in.record, to)
	d.origin.given = in.Given
	if waited := j.time.Now().UTC.Sub(in.Record.Published); waited > shortWait { // MaxElapsed counts from now
		d.ensureStory().parked = waited
	}
	if in.record.replay == nil {
		d.origin.waiter = j.feeder.waiterOf(d.id)
	}
	return d, missing
}

// shortWait is how long an event usually waits to be taken in. MaxElapsed ignores that.
const shortWait = 250 * time.Millisecond

// targetsOfIncoming returns the targets of an incoming event: those that match it here, and behind them those of its
// publisher. A name and its former names are one target. missing is set if a subscription of the publisher does not exist
// here. A replay has the targets of its letter.
func (r *registry) targetsOfIncoming(of *record) (to *targets, missing bool) {
	var here []*Subscription
	if of.replay == nil && route.CheckType(of.Type) == nil {
		here = slices.Clone(matching(r.routes, of.Type).subscriptions)
	}
	to = &targets{eventType: of.Type, subscriptions: here}
	r.mu.Lock()
	for _, name := range of.Targets {
		s, ok := r.all.Find(name)
		if !ok {
			s, missing = r.absent(name), true
		}
		if !slices.ContainsFunc(to.subscriptions, func(other *Subscription) bool { return other.door == s.door }) {
			to.subscriptions = append(to.subscriptions, s)
		}
	}
	r.mu.Unlock()
	r.complete(to)
	return to, missing
}

// lookIfWaiting makes the feeder look for incoming events that had no room before a dispatch has settled.
func (f *feeder) lookIfWaiting() {
	if f.bus.intake.quota.Most > 0 && f.looks.Load() {
		f.lookForIncoming()
	}
}

// lookForIncoming wakes the feeder, which does not wait for room in the queue then. See looks. Records that have expired do not wait
// for that either.
func (f *feeder) lookForIncoming() {
	select {
	case f.comes <- struct{}{}:
	default:
	}
	f.wakeUp()
}
