package admin

import (
	"github.com/surebus/eventbus"
)

func (c *call) getEvent() (any, error) {
	id, err := c.eventID()
	if err != nil {
		return nil, err
	}
	status, err := c.event(id)
	if err != nil {
		return nil, err
	}
	return status, nil
}

func (c *call) event(id eventbus.EventID) (eventbus.EventStatus, error) {
	status, err := c.bus.Event(c.ctx, id)
	if err != nil {
		return status, err
	}
	status.Dispatches = c.dispatchList(status.Dispatches)
	status.Letters = c.letters(status.Letters)
	return status, nil
}

func (c *call) postCancelEvent() (any, error) {
	var body ChangeRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	id, err := c.eventID()
	if err != nil {
		return nil, err
	}
	return Done{}, c.cancelEvent(id, body.Why)
}

func (c *call) cancelEvent(id eventbus.EventID, why string) error {
	return c.bus.Cancel(c.ctx, id, c.operator(why)...)
}

func dispatchParameters(q *eventbus.DispatchQuery) []parameter {
	return []parameter{
		textParameter("state", &q.State), textParameter("type", &q.Type), textParameter("subscription", &q.Subscription),
		textParameter("key", &q.Key), textParameter("idempotency_key", &q.IdempotencyKey),
		intParameter("limit", &q.Limit, 1, maxLimit), textParameter("after", &q.After),
	}
}

func (c *call) listDispatches() (any, error) {
	var q eventbus.DispatchQuery
	if err := c.parameters(dispatchParameters(&q)); err != nil {
		return nil, err
	}
	return c.dispatches(q)
}

func (c *call) dispatches(q eventbus.DispatchQuery) (eventbus.DispatchPage, error) {
	page, err := c.bus.Dispatches(c.ctx, q)
	page.Dispatches = c.dispatchList(page.Dispatches)
	return page, err
}

func explainParameters(eventType *string) []parameter {
	return []parameter{textParameter("type", eventType)}
}

func (c *call) getPlan() (any, error) {
	var eventType string
	if err := c.parameters(explainParameters(&eventType)); err != nil {
		return nil, err
	}
	return c.plan(eventType)
}

func auditParameters(q *eventbus.AuditQuery) []parameter {
	return []parameter{
		textParameter("action", &q.Action), textParameter("by", &q.By), textParameter("request_id", &q.RequestID),
		boolParameter("denied", &q.Denied), textParameter("subscription", &q.Subscription), idParameter("letter_id", &q.Letter),
		idParameter("event_id", &q.Event), timeParameter("since", &q.Since), timeParameter("until", &q.Until),
		intParameter("limit", &q.Limit, 1, maxLimit), intParameter("before", &q.Before, 1, 1<<62),
	}
}

func (c *call) listAudit() (any, error) {
	var q eventbus.AuditQuery
	if err := c.parameters(auditParameters(&q)); err != nil {
		return nil, err
	}
	return c.audit(q)
}

func (c *call) audit(q eventbus.AuditQuery) (eventbus.AuditPage, error) {
	page, err := c.bus.Audit(c.ctx, q)
	for i := range page.Entries {
		e := &page.Entries[i]
		if e.Query = c.query(e.Query); e.Outcome != nil && e.Outcome.Error != "" {
			outcome := *e.Outcome
			outcome.Error = "the operation ended early; the log of the process has the reason"
			e.Outcome = &outcome
		}
	}
	return page, err
}
