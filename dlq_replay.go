package eventbus

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/pace"
)

// replaying has the parameters of a replay. nil stands for none.
type replaying struct {
	edits   bool
	payload any      // if edits is set
	run     *bulkRun // the bulk replay that it is part of, or nil
	audit   *AuditEntry
	by      string    // the operator
	bulk    time.Time // when run began; zero without it
}

// LetterReplay is a replay of an event from a dead letter.
type LetterReplay struct {
	At     time.Time `json:"at"`               // when the letter was replayed, in UTC
	By     string    `json:"by,omitempty"`     // the operator, from the option By
	Letter LetterID  `json:"letter_id"`        // the letter that was replayed, which is gone
	Edited bool      `json:"edited,omitempty"` // ReplayEdited replaced the payload
	// Bulk is AuditEntry.At of the first entry of its ReplayMatching. It is zero for a single replay.
	Bulk time.Time `json:"bulk,omitzero"`
}

// replayer returns the operator of the last replay, or "".
func replayer(log []LetterReplay) string {
	if len(log) == 0 {
		return ""
	}
	return log[len(log)-1].By
}

// keptReplays bounds DeadLetter.ReplayLog.
const keptReplays = 10

// logged returns the latest replays of a letter's event, with the one that begins now.
func (l *DeadLetter) logged(r *replaying, now time.Time) []LetterReplay {
	log := slices.Clone(l.ReplayLog[max(0, len(l.ReplayLog)-keptReplays+1):])
	next := LetterReplay{At: now, Letter: l.ID}
	if r != nil {
		next.By, next.Edited, next.Bulk = r.by, r.edits, r.bulk
	}
	return append(log, next)
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
	m.cancelling.Withdraw(d.id) // it was cancelled before
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
		log:            l.logged(r, now.UTC),
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

// ReplayPreview describes the letters that a ReplayMatching would replay now, and the subscriptions that would receive
// them.
type ReplayPreview struct {
	// Matched is the number of letters that match.
	Matched int `json:"matched"`
	// Examined is the number of letters that the following fields are about: the newest 10,000.
	Examined int `json:"examined"`
	// Sample has the newest letters, at most 10.
	Sample []DeadLetter `json:"sample"`
	// Oldest is the earliest DiedAt of the examined letters. Newest is the latest DiedAt of all matching letters.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Edited is the number of letters whose payload an earlier replay replaced. Again is the number of letters of
	// replayed events.
	Edited int `json:"edited"`
	Again  int `json:"again"`
	// Missing is the number of letters that would stay, because a subscription of theirs does not exist.
	// It is 0 on a bus WithoutHandlers.
	Missing int `json:"missing"`
	// Targets lists the subscriptions that would receive the events, those with most letters first.
	Targets []ReplayTarget `json:"targets"`
}

// ReplayTarget is a subscription that would receive replayed events.
type ReplayTarget struct {
	Subscription string `json:"subscription"` // the subscription's name
	Letters      int    `json:"letters"`      // examined letters whose events it would receive
	// Exists is set if the bus has the subscription. Otherwise the following fields are zero. A bus
	// WithoutHandlers has none.
	Exists      bool         `json:"exists"`
	Circuit     CircuitState `json:"circuit"`               // the state of its circuit
	WhenOpen    WhenOpen     `json:"when_open"`             // what becomes of the events while the circuit is open
	Paused      bool         `json:"paused"`                // Pause or HoldUntil applies
	PausedUntil time.Time    `json:"paused_until,omitzero"` // the end of HoldUntil; zero for Pause
	ShutBy      ParkReason   `json:"shut_by,omitempty"`     // why the events would be held; empty if they would not
	Held        int          `json:"held"`                  // deliveries that are held now
	Throttled   int          `json:"throttled"`             // deliveries that are throttled now
	Snoozed     int          `json:"snoozed"`               // deliveries that are snoozed now
	Directive   *Directive   `json:"directive,omitempty"`   // the last directive of an operator, or nil
}

// Limits of a preview.
const (
	previewSample  = 10
	previewLetters = 10_000
)

// PreviewReplay returns how many letters match a query, some of them, and the state of the subscriptions
// that would receive them. It changes nothing. An empty query matches all letters. It reads up to 10,000
// letters, from a store in pages, and stops when ctx ends.
//
// The set may be another one when ReplayMatching begins. Give ReplayMatching an Until to leave out later
// letters.
//
// Errors: those of List; an *OptionError for Limit and Before.
func (q *DLQ) PreviewReplay(ctx context.Context, query LetterQuery) (ReplayPreview, error) {
	p, err := q.previewReplay(ctx, query)
	if err != nil {
		return ReplayPreview{}, fmt.Errorf("PreviewReplay: %w", err)
	}
	return p, nil
}

func (q *DLQ) previewReplay(ctx context.Context, query LetterQuery) (ReplayPreview, error) {
	p := ReplayPreview{Sample: []DeadLetter{}, Targets: []ReplayTarget{}}
	f, err := q.wholeFilter(ctx, query)
	if err != nil {
		return p, err
	}
	targets := make(map[string]*ReplayTarget)
	var first LetterID
	f.ExactTotal = true
	for f.limit = previewLetters; ; f.noTotal = true { // one page, unless the letters are large: a store compares all of them for a page
		page, err := q.bus.letters.page(ctx, f)
		if err != nil {
			return p, err
		}
		if f.Before.IsZero() && len(page.letters) > 0 {
			p.Matched, first = page.Total, page.letters[0].ID
		}
		for i := range page.letters {
			p.add(q.bus, &page.letters[i], targets)
		}
		if f.Before = page.Next; f.Before.IsZero() || p.Examined >= previewLetters {
			break
		}
		if ctx.Err() != nil {
			return p, contextError(ctx)
		}
	}
	for _, t := range targets {
		p.Targets = append(p.Targets, *t)
	}
	slices.SortFunc(p.Targets, func(x, y ReplayTarget) int {
		return cmp.Or(cmp.Compare(y.Letters, x.Letters), cmp.Compare(x.Subscription, y.Subscription))
	})
	if p.Examined < p.Matched {
		err = q.findNewest(ctx, f, first, &p)
	}
	return p, err
}

// findNewest sets Newest to the last death of all letters that match, of which only the newest were read. Ids are in the order of the
// deaths, unless a clock was set back. Letters with larger ids than first have died meanwhile.
func (q *DLQ) findNewest(ctx context.Context, f *letterFilter, first LetterID, p *ReplayPreview) error {
	f.Before, f.limit, f.noTotal = LetterID(pace.After(first)), snapshotPage, true
	for ctx.Err() == nil {
		f.Since = p.Newest.Add(1)
		page, err := q.bus.letters.page(ctx, f)
		if err != nil || len(page.letters) == 0 {
			return err
		}
		for i := range page.letters {
			if l := &page.letters[i]; l.DiedAt.After(p.Newest) {
				p.Newest = l.DiedAt
			}
		}
	}
	return contextError(ctx)
}

// add adds a letter to the preview.
func (p *ReplayPreview) add(b *Bus, l *keptLetter, targets map[string]*ReplayTarget) {
	p.Examined++
	if len(p.Sample) < previewSample {
		p.Sample = append(p.Sample, l.DeadLetter)
	}
	if p.Oldest.IsZero() || l.DiedAt.Before(p.Oldest) {
		p.Oldest = l.DiedAt
	}
	if l.DiedAt.After(p.Newest) {
		p.Newest = l.DiedAt
	}
	if l.Edited {
		p.Edited++
	}
	if l.Replays > 0 {
		p.Again++
	}
	missing := false
	seen := make(map[string]bool, 1) // Formerly may map two names to one subscription
	for _, name := range append([]string{l.Subscription}, l.NotReached...) {
		s, err := b.registry.recipient(l, name)
		if err == nil {
			name = s.id
		}
		missing = missing || err != nil
		if seen[name] {
			continue
		}
		seen[name] = true
		if targets[name] == nil {
			targets[name] = replayTarget(name, s)
		}
		targets[name].Letters++
	}
	if missing {
		p.Missing++
	}
}

// replayTarget describes a subscription, which may be nil.
func replayTarget(name string, s *Subscription) *ReplayTarget {
	t := &ReplayTarget{Subscription: name}
	if s == nil || s.bus.config.tool {
		return t
	}
	m := s.metrics()
	t.Exists, t.Circuit, t.WhenOpen, t.Paused, t.PausedUntil = true, m.Circuit, m.Options.WhenOpen, m.Paused, m.PausedUntil
	t.ShutBy, t.Held, t.Throttled, t.Snoozed, t.Directive = m.ShutBy, m.Held, m.Throttled, m.Snoozed, m.Directive
	return t
}
