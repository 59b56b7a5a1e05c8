package eventbus

import (
	"context"
	"math"

	"github.com/surebus/eventbus/internal/halt"
)

// replaying has the parameters of a replay. nil stands for none.
type replaying struct {
	edits   bool
	payload any      // if edits is set
	run     *bulkRun // the bulk replay that it is part of, or nil
	audit   *AuditEntry
}

// replay removes a letter and opens a dispatch of its event, in one step.
func (in *intake) replay(ctx context.Context, id LetterID, r *replaying) error {
	end, err := in.beginReplay(ctx, id, r)
	if err != nil {
		return err
	}
	return end()
}

// beginReplay submits a replay. end waits until it is recorded, and must be called.
func (in *intake) beginReplay(ctx context.Context, id LetterID, r *replaying) (end func() error, err error) {
	if in.halts.Has(halt.Failed) {
		return nil, errReopens()
	}
	counter := in.enter(false)
	defer func() {
		if err != nil {
			in.leave(counter)
		}
	}()
	if in.lifecycle.ending.Load() {
		return nil, in.refuseShutdown()
	}
	l, err := in.letters.get(ctx, id)
	if err != nil {
		return nil, err
	}
	d, err := in.machine.dispatchOf(&l, r)
	if err != nil {
		return nil, err
	}
	o := opening{d: d}
	var audit *AuditEntry
	if r != nil && r.audit != nil {
		audit = r.audit
		audit.Letter, audit.Event, audit.Subscription = id, l.Event.ID, l.Subscription
	}
	done, err := in.journal.replay(ctx, o, &l, audit)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer in.leave(counter)
		err := done()
		if err == nil {
			audited(in.audits, in.report, audit)
			in.report.replayed(&l.DeadLetter)
		}
		return err
	}, nil
}

// applyReplay makes the dispatch of a letter runnable, or schedules it again.
func (m *machine) applyReplay(d *dispatch) {
	m.ledger.replays.Add(1)
	if d.isScheduled(m.time) {
		m.schedule(d)
	} else {
		m.enqueue(d, false)
	}
}

// dispatchOf returns a dispatch of a letter's event for the subscriptions that did not succeed.
func (m *machine) dispatchOf(l *keptLetter, r *replaying) (*dispatch, error) {
	to, err := m.registry.targetsOfLetter(l)
	if err != nil {
		return nil, err
	}
	now := m.time.Now()
	again := &replay{
		published:      l.Event.Time,
		due:            l.Due,
		began:          now.Nanos,
		count:          int32(min(l.Replays, math.MaxInt32-1)) + 1,
		succeeded:      l.Succeeded,
		history:        l.Failures,
		historyOmitted: l.FailuresOmitted,
		edits:          editsOf(l.Edited, l.Edits),
		original:       l.Original,
	}
	if l.own != nil {
		again.at, again.mark = l.own.at, l.own.mark
	}
	d := &dispatch{
		id: l.Event.ID, payload: l.Event.Payload, to: to, key: l.Event.Key, wall: now.Wall,
		origin: &origin{metadata: l.Event.Metadata, order: l.order(), replay: again, once: idempotency{key: l.Event.IdempotencyKey, known: true}},
	}
	if l.Due.After(now.UTC) {
		d.origin.due = &due{nanos: now.Point(l.Due), at: l.Due}
	}
	if r != nil {
		again.run = r.run
		if r.edits {
			if !l.Edited {
				again.original = l.Event.Payload
			}
			again.edits++
			d.payload = r.payload // with a store, it is encoded
		}
	}
	return d, nil
}
