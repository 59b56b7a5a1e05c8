package driver

import (
	"bytes"
	"slices"
	"time"
)

// Batch is a set of changes that apply together or not at all. A store applies the fields in their
// order.
type Batch struct {
	// Now is the bus's time, in UTC.
	Now time.Time
	// Epoch is the epoch of the lease under which the bus made the batch, or 0 for none. If the store does not have
	// that lease when it applies the batch, it refuses the batch with ErrLeaseLost. If Epoch is 0, a batch with Accept,
	// New, Update, Delete, Directives or Answer is refused with ErrLeaseLost.
	Epoch int64
	// AgedAt is the time for removals by age: it decides which remembered ids have expired. It stands still for an hour
	// after the bus's clock was set ahead. Zero means Now. See Aged.
	AgedAt time.Time
	// Remember adds entries to the table of remembered ids, one after the other. If an entry is known, and Aged is
	// before its Expires, the batch is refused. Two entries with the same Scope and Key are refused too.
	Remember []Dedupe
	// Forget removes entries from the table of remembered ids, by Scope and Key. Unknown ones are
	// ignored.
	Forget []Dedupe
	// Take removes letters. If one is unknown, or is twice in Take, the batch is refused.
	Take []ID
	// Withdraw removes the incoming events with the ids of events. If there is none, or an id is twice in Withdraw, the batch is
	// refused with ErrNotFound and RefusedError.Event.
	Withdraw []ID
	// Accept removes incoming events: the bus takes them in with New, or Cancel ends them. If one is unknown, in a slot of another lease, or
	// twice in Accept, the batch is refused with ErrNotFound and RefusedError.Incoming.
	Accept []IncomingID
	// New inserts records in slots of the lease. If one is in another slot, the batch is refused with ErrNotLeased,
	// without RefusedError.Ref: the record has none.
	New []*Record
	// Update changes State, Due, Door, Destination, Progress, Leased, Suspect and Crashes of records that
	// the lease has, and ignores the other fields. If the lease does not have one, the batch is refused.
	Update []*Record
	// Delete removes records that the lease has. If it does not have one, the batch is refused.
	Delete []Ref
	// ForgetSettled removes entries from the table of remembered ids if after the batch no record and no incoming event
	// of their Event is left. Entries are compared by Scope, Key and Event, and by Expires unless it is zero here.
	// Other entries are ignored. A store may decide this at the end of a commit of several batches, if no later batch
	// of the commit remembers the same Scope and Key. storekit.Group ensures that.
	ForgetSettled []Dedupe
	// Bury inserts letters. An id that exists, or is twice in Bury, is skipped: an import may repeat.
	Bury []*Letter
	// Leave inserts incoming events.
	Leave []*Incoming
	// Ask inserts requests.
	Ask []*Request
	// Unask removes requests without an answer. If one is unknown, has an answer, or is twice in Unask, the batch is
	// refused with ErrNotFound and RefusedError.Request.
	Unask []RequestID
	// Answer adds the answers of requests. If a request is unknown, has an answer, or is twice in Answer, the batch is
	// refused with ErrNotFound and RefusedError.Request.
	Answer []Answer
	// Directives replaces the directive of each Subscription.
	Directives []Directive
	// Audit adds entries to the audit, each with the next Number. The store ignores Number in a batch.
	Audit []AuditEntry
	// Outcomes adds outcomes. Store.Outcomes returns them.
	Outcomes []Outcome
	// IfCatalogs is nil, or has the catalogs that the bus has read, in any order. Before all changes, the store compares Instance
	// and Body with its own catalogs, and refuses the batch with ErrCatalogsChanged if they differ. An empty list is not nil: the
	// store must have no catalog.
	IfCatalogs []Catalog
	// Catalog replaces the catalog of its Instance, or removes it. nil keeps all.
	Catalog *Catalog
	// Deferrable is set if no caller, and no other dispatch, waits for the batch. A store may delay its
	// commit by up to 1 ms, so that a batch that follows shares it.
	Deferrable bool
}

// HasCatalogs reports whether IfCatalogs is nil, or equals the catalogs of a store, in any order.
func (b *Batch) HasCatalogs(all []Catalog) bool {
	if b.IfCatalogs == nil {
		return true
	}
	return len(all) == len(b.IfCatalogs) && !slices.ContainsFunc(b.IfCatalogs, func(want Catalog) bool {
		return !slices.ContainsFunc(all, func(c Catalog) bool { return c.Instance == want.Instance && bytes.Equal(c.Body, want.Body) })
	})
}

// Aged returns AgedAt, or Now if AgedAt is zero.
func (b *Batch) Aged() time.Time {
	if b.AgedAt.IsZero() {
		return b.Now
	}
	return b.AgedAt
}

// Dedupe is a remembered id of an event, or a remembered idempotency key.
type Dedupe struct {
	Scope string // empty for event ids, the type of the event for idempotency keys
	Key   string // the id as text, or the idempotency key
	// Event is the id of the event. A store does not interpret Event and Content.
	Event   ID
	Content string // identifies the content; the bus compares it with the content of a repetition
	// Expires is when the entry is no longer known. A store may remove the entry once it has seen a
	// Batch.Aged at or after Expires. So after the clock is set back, an expired entry may be known or not.
	Expires time.Time
}

// Directive is an order of an operator to a subscription, which survives restarts.
type Directive struct {
	Subscription string // identifies the directive; a store does not interpret it
	Body         []byte // JSON, never nil
}

// AuditEntry records an action of an operator.
type AuditEntry struct {
	// Number counts the entries from 1, without gaps. The store assigns it.
	Number int64
	// Denied is set if the action was not allowed. A store keeps it, and uses it only to choose the entries
	// that it removes, see Store.Audit.
	Denied bool
	Body   []byte // JSON, never nil
}

// Outcome records how deliveries ended upon which operators acted.
type Outcome struct {
	Event ID     // the event's id
	Body  []byte // JSON, never nil
}

// AuditQuery selects entries.
type AuditQuery struct {
	Match  func(e *AuditEntry) (bool, error) // nil: all
	Before int64                             // selects smaller numbers; 0: all
	Limit  int                               // at least 1
}

// Matches reports whether an entry matches all fields but Limit, Before included, for stores that compare entries one by
// one.
func (q *AuditQuery) Matches(e *AuditEntry) (bool, error) {
	switch {
	case q.Before != 0 && e.Number >= q.Before:
		return false, nil
	case q.Match == nil:
		return true, nil
	}
	return q.Match(e)
}

// AuditPage is a page of entries, newest first.
type AuditPage struct {
	Entries []AuditEntry // newest first
	// Next is the Before of the next page. It is 0 on the last page.
	Next int64
}
