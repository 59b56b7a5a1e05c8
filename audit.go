package eventbus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/recent"
	"github.com/surebus/eventbus/internal/texts"
)

// AuditAction names an action of an operator.
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
	AuditRetryNow       AuditAction = "retry_now"
	AuditGiveUp         AuditAction = "give_up"
	AuditRetire         AuditAction = "retire"
)

var auditActions = []AuditAction{
	AuditPause, AuditHoldUntil, AuditResume, AuditTrip, AuditReset, AuditReplay, AuditReplayEdited, AuditReplayMatching,
	AuditPurge, AuditPurgeMatching, AuditImport, AuditCancel, AuditRetryNow, AuditGiveUp, AuditRetire,
}

// AuditActions returns all actions.
func AuditActions() []AuditAction { return slices.Clone(auditActions) }

// AuditEntry records what an operator did. By and Because give By and Why.
type AuditEntry struct {
	// Number grows with each entry, from 1. The bus or the store assigns it.
	Number int64       `json:"number"`
	At     time.Time   `json:"at"`            // when the bus recorded the entry, in UTC
	Action AuditAction `json:"action"`        // what the operator did
	By     string      `json:"by,omitempty"`  // the operator, from the option By
	Why    string      `json:"why,omitempty"` // the reason, from the option Because
	// Remote is the address of the client, and RequestID the id of its request, from FromRequest.
	Remote    string `json:"remote,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	// Denied is why the action was denied, see AuditDenied. It is empty if the bus carried it out.
	Denied string `json:"denied,omitempty"`
	// Subscription is the subscription of a directive, or the one at which the letter died.
	Subscription string    `json:"subscription,omitempty"`
	Destination  string    `json:"destination,omitempty"` // the destination of a directive to one; otherwise ""
	Until        time.Time `json:"until,omitzero"`        // the end of a HoldUntil
	Letter       LetterID  `json:"letter_id,omitzero"`    // the letter of a replay or a purge
	Event        EventID   `json:"event_id,omitzero"`     // the event of a replay or of an action on an event
	// Query is the query of a bulk operation on letters. Count is the number of letters that matched when it began. For
	// an import, Count is the number of letters of its input.
	Query *LetterQuery `json:"query,omitempty"`
	// Dispatches is the query of a bulk action on events. Count is then the number of events.
	Dispatches *DispatchQuery `json:"dispatches,omitempty"`
	Count      int            `json:"count,omitempty"`
	// Drop is set for a Retire with DropRetired. For a Retire, Count is the number of deliveries that were parked when
	// it began.
	Drop bool `json:"drop,omitempty"`
	// Outcome is set in the second entry of a bulk operation or an import, which the bus adds at its end. The second
	// entry repeats the first one, apart from Number and At.
	Outcome *AuditOutcome `json:"outcome,omitempty"`
}

// AuditOutcome is how a bulk operation ended. An operation without one still runs, or its process has
// ended.
type AuditOutcome struct {
	BeganAt  time.Time `json:"began_at"` // At of the first entry
	Done     int       `json:"done"`     // letters replayed, purged or imported, or deliveries that Retire has ended
	Failures int       `json:"failures"` // as in ReplayReport; 0 otherwise
	Stopped  bool      `json:"stopped"`  // StopAfter ended it
	// Error is the text of the error that ended it early, cut at 255 bytes.
	Error string `json:"error,omitempty"`
}

// AuditQuery selects the entries that match every field that is set.
type AuditQuery struct {
	Action       AuditAction `json:"action,omitzero"`       // selects one kind of action
	By           string      `json:"by,omitzero"`           // matches AuditEntry.By
	RequestID    string      `json:"request_id,omitzero"`   // matches AuditEntry.RequestID
	Denied       bool        `json:"denied,omitzero"`       // selects denied actions only
	Subscription string      `json:"subscription,omitzero"` // matches AuditEntry.Subscription; a name, or one from Formerly, matches all names of its subscription
	Letter       LetterID    `json:"letter_id,omitzero"`    // matches AuditEntry.Letter
	Event        EventID     `json:"event_id,omitzero"`     // matches AuditEntry.Event
	// Since and Until bound At, both inclusive.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	same *names.Same

	// Limit is the size of a page: 100 if it is 0, at most 10,000.
	Limit int `json:"limit,omitzero"`
	// Before selects entries with a smaller Number. Set it to the Next of the previous page.
	Before int64 `json:"before,omitzero"`
}

// matches reports whether an entry matches all fields but Limit.
func (q *AuditQuery) matches(e *AuditEntry) bool {
	return (q.Action == "" || q.Action == e.Action) && (q.By == "" || q.By == e.By) &&
		(q.RequestID == "" || q.RequestID == e.RequestID) && (!q.Denied || e.Denied != "") &&
		(q.Subscription == "" || q.Subscription == e.Subscription || q.same.Has(e.Subscription)) &&
		(q.Letter.IsZero() || q.Letter == e.Letter) && (q.Event.IsZero() || q.Event == e.Event) &&
		(q.Since.IsZero() || !e.At.Before(q.Since)) && (q.Until.IsZero() || !e.At.After(q.Until)) &&
		(q.Before == 0 || e.Number < q.Before)
}

// AuditPage is a page of entries, newest first.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"` // newest first
	// Next is the Before of the next page. It is 0 on the last page.
	Next int64 `json:"next,omitempty"`
}

// Audit returns a page of the actions of operators, newest first. It has directives, replays, purges, imports, entries
// of AuditDenied, and actions on events with By, Because or FromRequest. A bulk operation has an entry from before its
// first letter and an entry with its outcome.
//
// In memory, the bus keeps the last 1,000 entries of this process. A store keeps at least the last 10,000 of all
// processes. Denied entries do not push out others. A store records an entry in the commit of the action itself. Audit
// compares the entries one by one. It blocks for the reads of a store only, which ctx bounds.
//
// Errors: *OptionError, the store's, the context's.
func (b *Bus) Audit(ctx context.Context, q AuditQuery) (AuditPage, error) {
	if err := b.ready(ctx); err != nil {
		return AuditPage{}, fmt.Errorf("Audit: %w", err)
	}
	page, err := b.operators.auditPage(ctx, q)
	if err != nil {
		return AuditPage{}, fmt.Errorf("Audit: %w", err)
	}
	if page.Entries == nil {
		page.Entries = []AuditEntry{} // in JSON, a list
	}
	return page, nil
}

func (op *operators) auditPage(ctx context.Context, q AuditQuery) (AuditPage, error) {
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
	var err error
	if q.same, err = op.namesOf(ctx, q.Subscription); err != nil {
		return AuditPage{}, err
	}
	q.Limit = cmp.Or(q.Limit, defaultPage)
	return op.audits.page(ctx, &q)
}

// entry returns an entry for an action of the operator, now.
func (op *operators) entry(o operator, action AuditAction) *AuditEntry {
	return &AuditEntry{
		At: op.time.Now().UTC, Action: action, By: o.by, Why: o.why, Remote: o.remote, RequestID: o.requestID,
	}
}

// retireEntry returns the entry of a Retire.
func (op *operators) retireEntry(r request, parked int) *AuditEntry {
	e := op.entry(r.operator(), AuditRetire)
	e.Subscription, e.Count, e.Drop = r.Subscription, parked, r.Drop
	return e
}

// bulkEntry returns the entry of a bulk operation.
func (op *operators) bulkEntry(o operator, action AuditAction, q LetterQuery, matched int) *AuditEntry {
	e := op.entry(o, action)
	e.Query, e.Count = auditedQuery(q), matched
	return e
}

// auditedQuery returns a query as the audit keeps it: long texts are cut, and a time that JSON cannot
// encode is left out.
func auditedQuery(q LetterQuery) *LetterQuery {
	for _, t := range []*time.Time{&q.Since, &q.Until, &q.PublishedSince, &q.PublishedUntil} {
		if !driver.Storable(*t) {
			*t = time.Time{}
		}
	}
	for _, text := range []*string{&q.Type, &q.Subscription, &q.MetadataValue, &q.Error} {
		*text = texts.Shorten(*text, maxName)
	}
	return &q
}

// audited notes an action that was done. e may be nil.
func audited(book auditBook, r *reporter, e *AuditEntry) {
	if e != nil {
		book.done(e)
		r.action(e)
	}
}

// operator returns the operator of an entry.
func (e *AuditEntry) operator() operator {
	return operator{by: e.By, why: e.Why, remote: e.Remote, requestID: e.RequestID}
}

// fields returns the log fields of an entry.
func (e *AuditEntry) fields() []zap.Field {
	fields := []zap.Field{zap.String("action", string(e.Action))}
	for _, f := range []struct{ name, value string }{
		{"by", e.By},
		{"why", e.Why},
		{"remote", e.Remote},
		{"request_id", e.RequestID},
		{"denied", e.Denied},
		{"subscription_id", e.Subscription},
	} {
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
	if o := e.Outcome; o != nil {
		fields = append(fields, zap.Int("done", o.Done), zap.Int("failures", o.Failures), zap.Bool("stopped", o.Stopped))
	}
	return fields
}

// auditBulk records the entry of a bulk operation before its first letter.
func (op *operators) auditBulk(ctx context.Context, e *AuditEntry) error {
	if err := op.audits.record(ctx, e, nil); err != nil {
		return err
	}
	op.report.action(e)
	return nil
}

// auditOutcome records how a bulk operation ended that began with an entry, and makes the store forget. If ctx
// has ended, it does not wait for the store.
func (op *operators) auditOutcome(ctx context.Context, began *AuditEntry, o AuditOutcome, ended error, forget []driver.Dedupe) error {
	if o.BeganAt = began.At; ended != nil {
		o.Error = texts.Shorten(textOf(ended, ""), maxName)
	}
	e := *began
	e.At, e.Outcome = op.time.Now().UTC, &o
	err := op.audits.record(ctx, &e, forget)
	if err != nil && ctx.Err() == nil {
		op.log.Warn("outcome of a bulk operation is not in the audit", append(e.fields(), zap.Error(err))...)
	}
	if err != nil && (forget != nil || ctx.Err() == nil) {
		return err
	}
	op.report.action(&e)
	return nil
}

// AuditDenied records that an operator's action was denied, for a tool that decides who may do what. The
// bus sets Number and At. It returns when a store has the entry.
//
// Errors, after which nothing is recorded: ErrUninitialized, ErrNilContext; an *OptionError without
// Action or Denied, with an Outcome, a negative Count, or an Until outside the years 0 to 9999, or for a
// text that By would refuse; an *OptionError or a *PatternError for a Query that List would refuse, and for a pattern in
// Dispatches; the store's. After the context's error, it is unknown whether a store has recorded the entry.
func (b *Bus) AuditDenied(ctx context.Context, e AuditEntry) error {
	err := b.ready(ctx)
	if err == nil && ctx.Err() != nil {
		err = contextError(ctx)
	}
	if err == nil {
		err = b.operators.checkDenied(ctx, &e)
	}
	if err != nil {
		return fmt.Errorf("AuditDenied: %w", err)
	}
	if e.At, e.Until = b.time.Now().UTC, e.Until.UTC(); e.Query != nil {
		e.Query = auditedQuery(*e.Query)
	}
	if e.Dispatches != nil {
		e.Dispatches = e.Dispatches.audited()
	}
	if err := b.audits.record(ctx, &e, nil); err != nil {
		return fmt.Errorf("AuditDenied: %w", err)
	}
	b.log.Warn("operator action denied", e.fields()...)
	return nil
}

// checkDenied validates the entry of AuditDenied.
func (op *operators) checkDenied(ctx context.Context, e *AuditEntry) error {
	refuse := func(field string, value any, reason string) error {
		return &OptionError{Option: "AuditEntry." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	for _, text := range []struct{ field, value string }{
		{"By", e.By},
		{"Why", e.Why},
		{"Remote", e.Remote},
		{"RequestID", e.RequestID},
		{"Denied", e.Denied},
		{"Subscription", e.Subscription},
	} {
		if err := checkDirectiveText("AuditEntry."+text.field, text.value); err != nil {
			return err
		}
	}
	switch {
	case !slices.Contains(auditActions, e.Action):
		return refuse("Action", strconv.Quote(shorten(string(e.Action))), fmt.Sprintf("must be one of %v", auditActions))
	case e.Denied == "":
		return refuse("Denied", `""`, "must be the reason why the action was denied")
	case e.Outcome != nil:
		return refuse("Outcome", "not nil", "must be nil: a denied action has no outcome")
	case e.Count < 0:
		return refuse("Count", e.Count, "must not be negative")
	case !driver.Storable(e.Until):
		return refuse("Until", e.Until, badYear)
	}
	var err error
	if e.Dispatches != nil {
		_, err = typeMatcher(e.Dispatches.Type)
	}
	if e.Query != nil && err == nil {
		_, err = op.DLQ().filter(ctx, *e.Query)
	}
	return err
}

// auditBook keeps what operators did: in memory (recentAudits) or in the store of a bus (storedAudits).
type auditBook interface {
	// page returns a page of matching entries, newest first.
	page(ctx context.Context, q *AuditQuery) (AuditPage, error)
	// record keeps the entry of what changes nothing else. A store forgets in the same commit.
	record(ctx context.Context, e *AuditEntry, forget []driver.Dedupe) error
	// done keeps the entry of a change. A store has it already: it was in the commit of the change.
	done(e *AuditEntry)
}

// recentAudits are the latest entries, in memory. Denied ones are a kind of their own: otherwise an operator without
// permissions could push out what others did.
type recentAudits struct{ log *recent.Log[AuditEntry] }

// maxAudits is how many entries memory keeps of each kind: actions, and denied requests.
const maxAudits = 1000

func newRecentAudits() *recentAudits { return &recentAudits{recent.New[AuditEntry](2, maxAudits)} }

func (a *recentAudits) record(_ context.Context, e *AuditEntry, _ []driver.Dedupe) error {
	a.done(e)
	return nil
}

func (a *recentAudits) done(e *AuditEntry) { a.log.Add(min(len(e.Denied), 1), *e) }

func (a *recentAudits) page(_ context.Context, q *AuditQuery) (page AuditPage, err error) {
	a.log.All(func(number int64, e AuditEntry) bool {
		e.Number = number
		switch {
		case !q.matches(&e):
			return true
		case len(page.Entries) == q.Limit:
			page.Next = page.Entries[q.Limit-1].Number
			return false
		}
		if e.Query != nil {
			query := *e.Query
			e.Query = &query
		}
		if e.Outcome != nil {
			outcome := *e.Outcome
			e.Outcome = &outcome
		}
		page.Entries = append(page.Entries, e)
		return true
	})
	return page, nil
}

// storedAudits are the entries of a store.
type storedAudits struct{ store *guardedStore }

func (a *storedAudits) page(ctx context.Context, q *AuditQuery) (page AuditPage, err error) {
	read, err := a.store.Audit(ctx, driver.AuditQuery{Before: q.Before, Limit: q.Limit, Match: func(e *driver.AuditEntry) (bool, error) {
		decoded, err := decodeAudit(e)
		return err == nil && q.matches(&decoded), err
	}})
	for i := range read.Entries {
		e, undecodable := decodeAudit(&read.Entries[i])
		page.Entries, err = append(page.Entries, e), cmp.Or(err, undecodable)
	}
	page.Next = read.Next
	return page, err
}

func (a *storedAudits) record(ctx context.Context, e *AuditEntry, forget []driver.Dedupe) error {
	w := &batch{Batch: driver.Batch{Now: e.At, Forget: forget}}
	w.audit(e)
	return a.store.commit(ctx, w)
}

func (a *storedAudits) done(*AuditEntry) {}

func decodeAudit(e *driver.AuditEntry) (decoded AuditEntry, err error) {
	if err = json.Unmarshal(e.Body, &decoded); err == nil && e.Denied != (decoded.Denied != "") {
		err = fmt.Errorf("denied is %t", e.Denied)
	}
	if err != nil {
		err = &DecodeError{What: fmt.Sprintf("audit entry %d", e.Number), Err: err}
	}
	decoded.Number = e.Number
	return decoded, err
}
