package admin

import (
	"errors"

	"github.com/surebus/eventbus"
)

// auditActions maps the actions of single changes to those of the audit.
var auditActions = map[Action]eventbus.AuditAction{
	ActionReplay: eventbus.AuditReplay, ActionEdit: eventbus.AuditReplayEdited, ActionImport: eventbus.AuditImport,
	ActionPurge: eventbus.AuditPurge, ActionCancel: eventbus.AuditCancel,
}

// auditDenied records a denied change. Calls without a valid operator are in the log only: in the audit, any peer could
// push out its oldest entries with them. q is the query of a bulk operation, or nil.
func (c *call) auditDenied(action Action, denied error, q *eventbus.LetterQuery, why string) {
	if !action.changes() || c.who.Name == "" || !validName(c.who.Name) || errors.Is(denied, ErrUnauthenticated) {
		return
	}
	e := eventbus.AuditEntry{
		Action: auditActions[action], By: c.who.Name, Why: auditText(why), Remote: auditText(c.r.RemoteAddr), RequestID: c.id,
		Denied: string(errorOf(denied).Code), Subscription: auditText(c.args["name"]),
	}
	switch {
	case action == ActionControl:
		e.Action = orders[c.args["order"]]
	case q != nil && action == ActionPurge:
		e.Action, e.Query = eventbus.AuditPurgeMatching, q
	case q != nil:
		e.Action, e.Query = eventbus.AuditReplayMatching, q
	case action == ActionCancel:
		e.Event, _ = c.eventID() // zero for a malformed one
	case c.route != nil && c.route.path == operationsPath:
		e.Action = eventbus.AuditReplayMatching // its body is unread
	default:
		e.Letter, _ = c.letterID()
	}
	err := c.bus.AuditDenied(c.ctx, e)
	if errors.Is(err, eventbus.ErrInvalidOption) || errors.Is(err, eventbus.ErrInvalidPattern) { // the query is invalid
		e.Query = nil
		err = c.bus.AuditDenied(c.ctx, e)
	}
	if err != nil {
		c.log.Error("admin denied change is not in the audit", c.attributes("error", cut(err.Error(), 4096))...)
	}
}
