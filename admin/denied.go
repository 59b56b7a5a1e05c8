package admin

import (
	"errors"

	"github.com/surebus/eventbus"
)

// bulkSet is the query of a bulk operation: of letters, of events, or none.
type bulkSet struct {
	letters *eventbus.LetterQuery
	events  *eventbus.DispatchQuery
}

// auditDenied records a denied change. Calls without a valid operator are in the log only: in the audit, any peer could
// push out its oldest entries with them. set is that of a bulk operation.
func (c *call) auditDenied(action Action, denied error, set bulkSet, why string) {
	if c.route == nil || c.route.audit == "" || !action.changes() || !validName(c.who.Name) || errors.Is(denied, ErrUnauthenticated) {
		return
	}
	e := eventbus.AuditEntry{
		Action: c.route.audit, By: c.who.Name, Why: auditText(why), Remote: auditText(c.r.RemoteAddr), RequestID: c.id,
		Denied: string(errorOf(denied).Code), Subscription: auditText(c.args["name"]), Query: set.letters, Dispatches: set.events,
	}
	switch c.route.audit { //nolint:exhaustive // the others have no id, or the subscription
	case eventbus.AuditCancel, eventbus.AuditRetryNow, eventbus.AuditGiveUp:
		e.Event, _ = c.eventID() // zero for a malformed one
	case eventbus.AuditReplay, eventbus.AuditReplayEdited, eventbus.AuditPurge:
		e.Letter, _ = c.letterID()
	case eventbus.AuditReplayMatching: // of all bulk operations
		for _, k := range kinds {
			if k.permission == action {
				e.Action = k.audit
			}
		}
	}
	err := c.bus.AuditDenied(c.ctx, e)
	if errors.Is(err, eventbus.ErrInvalidOption) || errors.Is(err, eventbus.ErrInvalidPattern) { // the query is invalid
		e.Query, e.Dispatches = nil, nil
		err = c.bus.AuditDenied(c.ctx, e)
	}
	if err != nil {
		c.log.Error("admin denied change is not in the audit", c.attributes("error", cut(err.Error(), 4096))...)
	}
}
