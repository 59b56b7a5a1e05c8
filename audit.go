package eventbus

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// AuditAction is what an operator did.
type AuditAction string

// The actions of operators.
const (
	AuditPause          AuditAction = "pause"
	AuditHoldUntil      AuditAction = "hold_until"
	AuditResume         AuditAction = "resume"
	AuditTrip           AuditAction = "trip"
	AuditReset          AuditAction = "reset"
	AuditReplay         AuditAction = "replay"
	AuditReplayEdited   AuditAction = "replay_edited"
	AuditReplayMatching AuditAction = "replay_matching"
	AuditPurge          AuditAction = "purge"
	AuditPurgeMatching  AuditAction = "purge_matching" // PurgeUntil too
	AuditImport         AuditAction = "import"
	AuditCancel         AuditAction = "cancel"
)

var auditActions = []AuditAction{
	AuditPause, AuditHoldUntil, AuditResume, AuditTrip, AuditReset, AuditReplay, AuditReplayEdited, AuditReplayMatching,
	AuditPurge, AuditPurgeMatching, AuditImport, AuditCancel,
}

// actionOf maps the methods of Subscription to their actions.
var actionOf = map[string]AuditAction{
	"Pause": AuditPause, "HoldUntil": AuditHoldUntil, "Resume": AuditResume, "Trip": AuditTrip, "Reset": AuditReset,
}

// AuditEntry records what an operator did. By and Because give By and Why.
type AuditEntry struct {
	// Number grows with each entry, from 1. The bus or the store assigns it.
	Number int64       `json:"number"`
	At     time.Time   `json:"at"` // in UTC
	Action AuditAction `json:"action"`
	By     string      `json:"by,omitempty"`
	Why    string      `json:"why,omitempty"`
	// Subscription is that of an order, or at which the letter died.
	Subscription string    `json:"subscription,omitempty"`
	Until        time.Time `json:"until,omitzero"`     // of HoldUntil
	Letter       LetterID  `json:"letter_id,omitzero"` // of a replay or a purge
	Event        EventID   `json:"event_id,omitzero"`  // of a replay or a cancellation
	// Query is that of a bulk operation, and Count the number of letters that matched it when it
	// began. Of an import, Count is the number of new letters.
	Query *LetterQuery `json:"query,omitempty"`
	Count int          `json:"count,omitempty"`
}

// AuditQuery selects the entries that match every field that is set.
type AuditQuery struct {
	Action       AuditAction `json:"action,omitzero"`
	By           string      `json:"by,omitzero"`
	Subscription string      `json:"subscription,omitzero"`
	Letter       LetterID    `json:"letter_id,omitzero"`
	Event        EventID     `json:"event_id,omitzero"`
	// Since and Until bound At, both inclusive.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// Limit is the size of a page: 100 if it is 0, at most 10,000.
	Limit int `json:"limit,omitzero"`
	// Before selects entries with a smaller Number. Set it to the Next of the previous page.
	Before int64 `json:"before,omitzero"`
}

// Matches reports whether an entry matches all fields but Limit.
func (q *AuditQuery) Matches(e *AuditEntry) bool {
	return (q.Action == "" || q.Action == e.Action) && (q.By == "" || q.By == e.By) &&
		(q.Subscription == "" || q.Subscription == e.Subscription) &&
		(q.Letter.IsZero() || q.Letter == e.Letter) && (q.Event.IsZero() || q.Event == e.Event) &&
		(q.Since.IsZero() || !e.At.Before(q.Since)) && (q.Until.IsZero() || !e.At.After(q.Until)) &&
		(q.Before == 0 || e.Number < q.Before)
}

// AuditPage is a page of entries, newest first.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	// Next is the Before of the next page. It is 0 on the last page.
	Next int64 `json:"next,omitempty"`
}

// Audit returns a page of what operators did, newest first: orders to subscriptions, replays, purges and
// imports, and cancellations with By or Because. A bulk operation has one entry, from before its first
// letter.
//
// In memory, the bus keeps the last 1,000 entries of this process. A store keeps at least the last
// 10,000 of all processes. It records an entry in the commit of what was done. Audit compares the entries
// one by one. It blocks for the reads of a store only, which ctx bounds.
//
// Errors: *OptionError, the store's, the context's.
func (b *Bus) Audit(ctx context.Context, q AuditQuery) (AuditPage, error) {
	page, err := b.auditPage(ctx, q)
	if err != nil {
		return AuditPage{}, fmt.Errorf("Audit: %w", err)
	}
	if page.Entries == nil {
		page.Entries = []AuditEntry{} // in JSON, a list
	}
	return page, nil
}

func (b *Bus) auditPage(ctx context.Context, q AuditQuery) (AuditPage, error) {
	if err := b.ready(ctx); err != nil {
		return AuditPage{}, err
	}
	refuse := func(field string, value any, reason string) (AuditPage, error) {
		return AuditPage{}, &OptionError{Option: "AuditQuery." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	switch {
	case ctx.Err() != nil:
		return AuditPage{}, contextError(ctx)
	case q.Action != "" && !slices.Contains(auditActions, q.Action):
		return refuse("Action", q.Action, fmt.Sprintf("must be one of %v", auditActions))
	case q.Limit < 0 || q.Limit > maxPage:
		return refuse("Limit", q.Limit, fmt.Sprintf("must be from 1 to %d, or 0 for %d", maxPage, defaultPage))
	case q.Before < 0:
		return refuse("Before", q.Before, "must be the Next of the previous page")
	}
	q.Limit = cmp.Or(q.Limit, defaultPage)
	if b.store != nil {
		return b.store.Audit(ctx, q)
	}
	return b.audits.page(&q), nil
}

// maxAudits is the number of entries that memory keeps.
const maxAudits = 1000

// auditLog has the last entries of a bus in memory.
type auditLog struct {
	mu      sync.Mutex // guards the following; a leaf
	entries []AuditEntry
	last    int64 // Number of the last entry
}

func (l *auditLog) add(e AuditEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	e.Number = l.last
	if l.entries = append(l.entries, e); len(l.entries) >= 2*maxAudits {
		l.entries = slices.Clone(l.entries[len(l.entries)-maxAudits:])
	}
}

func (l *auditLog) page(q *AuditQuery) (page AuditPage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range slices.Backward(l.entries[max(len(l.entries)-maxAudits, 0):]) {
		if !q.Matches(&e) {
			continue
		}
		if len(page.Entries) == q.Limit {
			page.Next = page.Entries[q.Limit-1].Number
			break
		}
		if e.Query != nil {
			query := *e.Query
			e.Query = &query
		}
		page.Entries = append(page.Entries, e)
	}
	return page
}

// entry returns an entry for an action of the operator, now.
func (b *Bus) entry(o operator, action AuditAction) *AuditEntry {
	return &AuditEntry{At: b.time.Now().UTC, Action: action, By: o.by, Why: o.why}
}

// bulkEntry returns the entry of a bulk operation.
func (b *Bus) bulkEntry(o operator, action AuditAction, q LetterQuery, matched int) *AuditEntry {
	e := b.entry(o, action)
	for _, t := range []*time.Time{&q.Since, &q.Until, &q.PublishedSince, &q.PublishedUntil} {
		if !storable(*t) {
			*t = time.Time{}
		}
	}
	q.Error = shorten(q.Error)
	e.Query, e.Count = &q, matched
	return e
}

// list returns the part of a batch for an entry. nil stands for none.
func (e *AuditEntry) list() []AuditEntry {
	if e == nil {
		return nil
	}
	return []AuditEntry{*e}
}

// audited notes an action that was done. A store has its entry already. e may be nil.
func (b *Bus) audited(e *AuditEntry) {
	if e == nil {
		return
	}
	if b.store == nil {
		b.audits.add(*e)
	}
	if e.By == "" && e.Why == "" {
		return
	}
	fields := []zap.Field{zap.String("action", string(e.Action))}
	for _, f := range []struct{ name, value string }{{"by", e.By}, {"why", e.Why}, {"subscription_id", e.Subscription}} {
		if f.value != "" {
			fields = append(fields, zap.String(f.name, f.value))
		}
	}
	if !e.Letter.IsZero() {
		fields = append(fields, zap.Stringer("letter_id", e.Letter))
	}
	if !e.Event.IsZero() {
		fields = append(fields, zap.Stringer("event_id", e.Event))
	}
	if e.Count > 0 {
		fields = append(fields, zap.Int("letters", e.Count))
	}
	b.log.Info("operator action", fields...)
}

// auditBulk records the entry of a bulk operation before its first letter.
func (b *Bus) auditBulk(ctx context.Context, e *AuditEntry) error {
	if b.store != nil {
		if err := b.commit(ctx, &Batch{Now: e.At, Audit: e.list()}); err != nil {
			return err
		}
	}
	b.audited(e)
	return nil
}
