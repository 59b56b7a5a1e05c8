package eventbus

import (
	"context"
	"errors"
	"slices"

	"github.com/surebus/eventbus/driver"
)

// Every bus may leave events in the incoming table of the store. The bus with the lease takes them in: it routes them, and
// in one batch removes them from there and inserts their records.

// takeIn takes in a page of incoming events. It reports whether there may be more, and whether WithMaxUnsettled has no room
// for them.
func (f *feeder) takeIn(ctx context.Context) (more, full bool, err error) {
	limit := f.page()
	if q := &f.bus.intake.quota; q.Most > 0 {
		limit = int(min(int64(limit), q.Most-q.Used()))
	}
	if limit <= 0 {
		return true, true, nil
	}
	page, err := f.bus.store.Incoming(ctx, driver.IncomingQuery{Limit: limit})
	if err != nil {
		return true, false, err
	}
	for rest := page.Events; len(rest) > 0 && err == nil; {
		n := 1
		if rest[0].Record.Replay == nil {
			for n < len(rest) && rest[n].Record.Replay == nil {
				n++
			}
		}
		err = f.takeInTogether(ctx, rest[:n])
		rest = rest[n:]
	}
	if refused := (*driver.RefusedError)(nil); errors.As(err, &refused) && refused.Incoming != 0 {
		return true, false, nil // Cancel has withdrawn one since the page was read
	}
	return page.More || err != nil, false, err
}

// takeInAll takes in a page of what is there, if something may be. When nothing is left, new events get records.
func (f *feeder) takeInAll(ctx context.Context) error {
	if !f.looks.Swap(false) && f.leads.Load() {
		return nil
	}
	more, full, err := f.takeIn(ctx)
	if err == nil && !more && !f.leads.Load() {
		full, err = f.beginToLead(ctx)
	}
	if more || full || err != nil {
		f.looks.Store(true)
	}
	if more && !full && err == nil {
		f.wakeUp()
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
	f.catching = false
	f.caught.Broadcast()
	f.leads.Store(err == nil && !full)
	return full, err
}

// takeInTogether takes in publications, or one replay, and waits until it is recorded.
func (f *feeder) takeInTogether(ctx context.Context, all []*driver.Incoming) error {
	j := f.bus.durable
	c := &change{kind: toAccept}
	for _, in := range all {
		d, missing, err := j.incoming(in)
		if err != nil {
			return err
		}
		c.batch = append(c.batch, d)
		c.takesIn = append(c.takesIn, in.ID)
		c.divides = c.divides || missing
	}
	if c.d = c.batch[0]; c.d.from().replay != nil {
		c.kind, c.batch = toReplay, nil
	} else {
		j.intake.quota.Add(c.records())
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
		j.followups.Return(false, func() { j.takenIn(c, err) }) // observers may block
		return err
	case <-ctx.Done():
		go func() { j.takenIn(c, <-applied) }()
		return errClaimsEnded
	}
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
func (j *durable) incoming(in *driver.Incoming) (d *dispatch, missing bool, err error) {
	r, err := decodeRecord(in.Record)
	if err != nil {
		return nil, false, err
	}
	to, missing := j.registry.targetsOfIncoming(r)
	d = j.decodeRow(r, to)
	d.origin.given = in.Given
	j.feeder.mu.Lock()
	defer j.feeder.mu.Unlock()
	if waiter := j.feeder.waiters[d.id]; waiter != nil && r.replay == nil {
		d.origin.waiter = waiter
	}
	return d, missing, nil
}

// targetsOfIncoming returns the targets of an incoming event: those that match it here, and behind them those of its
// publisher. A name and its former names are one target. missing is set if a subscription of the publisher does not exist
// here. A replay has the targets of its letter.
func (r *registry) targetsOfIncoming(of *record) (to *targets, missing bool) {
	var here []*Subscription
	if of.replay == nil {
		known, hash, ok := r.cached(of.Type)
		if !ok {
			known = r.targetsOf(of.Type, hash)
		}
		here = slices.Clone(known.subscriptions)
	}
	to = &targets{eventType: of.Type, subscriptions: here}
	r.mu.Lock()
	for _, name := range of.Targets {
		s, ok := r.all.Find(name)
		if !ok {
			s, missing = r.absent(name), true
		}
		if !slices.Contains(to.subscriptions, s) {
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
		f.wakeUp()
	}
}
