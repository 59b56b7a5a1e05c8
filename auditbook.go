package eventbus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/recent"
)

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
