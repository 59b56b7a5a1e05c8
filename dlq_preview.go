package eventbus

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// ReplayPreview describes what a ReplayMatching would do now.
type ReplayPreview struct {
	// Matched is the number of letters that match.
	Matched int `json:"matched"`
	// Examined is the number of letters that the following fields are about: the newest 10,000.
	Examined int `json:"examined"`
	// Sample has the newest letters, at most 10.
	Sample []DeadLetter `json:"sample"`
	// Oldest and Newest are the earliest and the latest DiedAt.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Edited is the number of letters whose payload an earlier replay replaced, Again of those of events
	// that were replayed before.
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
	Subscription string `json:"subscription"`
	Letters      int    `json:"letters"` // whose events it would receive, of those that were examined
	// Exists is set if the bus has the subscription. Otherwise the following fields are zero. A bus
	// WithoutHandlers has none.
	Exists      bool         `json:"exists"`
	Circuit     CircuitState `json:"circuit"`
	WhenOpen    WhenOpen     `json:"when_open"` // what becomes of the events if the circuit is open
	Paused      bool         `json:"paused"`
	PausedUntil time.Time    `json:"paused_until,omitzero"`
	ShutBy      ParkReason   `json:"shut_by,omitempty"` // why they would be held
	Held        int          `json:"held"`              // deliveries that wait already
	Throttled   int          `json:"throttled"`
	Snoozed     int          `json:"snoozed"`
	Directive   *Directive   `json:"directive,omitempty"` // the last one of an operator
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
	f.ExactTotal = true
	for f.limit = snapshotPage; ; f.ExactTotal = false {
		page, err := q.bus.letters.page(ctx, f)
		if err != nil {
			return p, err
		}
		if f.Before.IsZero() {
			p.Matched = page.Total
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
	return p, nil
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
