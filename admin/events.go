package admin

import (
	"errors"

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
	return c.shownStatus(c.bus.Event(c.ctx, id))
}

// keyParameters name an event by its type and its idempotency key.
func keyParameters(eventType, key *string) []parameter {
	return []parameter{textParameter("type", eventType), textParameter("idempotency_key", key)}
}

func (c *call) findEvent() (any, error) {
	var eventType, key string
	if err := c.parameters(keyParameters(&eventType, &key)); err != nil {
		return nil, err
	}
	status, err := c.eventByKey(eventType, key)
	if err != nil {
		return nil, err
	}
	return status, nil
}

// eventByKey returns the event of a type with an idempotency key.
func (c *call) eventByKey(eventType, key string) (eventbus.EventStatus, error) {
	status, err := c.shownStatus(c.bus.EventByIdempotencyKey(c.ctx, eventType, key))
	if errors.Is(err, eventbus.ErrUnknownEvent) {
		err = notFound("no event of this type is known by this idempotency key", "check both; a key is known for a while, and then only while its event has not settled or is a dead letter")
	}
	return status, err
}

// shownStatus returns a status as answers show it.
func (c *call) shownStatus(status eventbus.EventStatus, err error) (eventbus.EventStatus, error) {
	if err != nil {
		return status, err
	}
	status.Dispatches = c.dispatchList(status.Dispatches)
	status.Letters = c.letters(status.Letters)
	return status, nil
}

// dispatchFilter are the fields of a query that select dispatches.
func dispatchFilter(q *eventbus.DispatchQuery) []parameter {
	return []parameter{
		textParameter("state", &q.State), textParameter("type", &q.Type), textParameter("subscription", &q.Subscription), textParameter("destination", &q.Destination),
		textParameter("key", &q.Key), textParameter("idempotency_key", &q.IdempotencyKey), textParameter("error", &q.Error), timeParameter("published_until", &q.PublishedUntil),
	}
}

func dispatchParameters(q *eventbus.DispatchQuery) []parameter {
	return append(dispatchFilter(q), intParameter("limit", &q.Limit, 1, maxLimit), textParameter("after", &q.After))
}

func (c *call) getActionPreview() (any, error) {
	var q eventbus.DispatchQuery
	if err := c.parameters(dispatchFilter(&q)); err != nil {
		return nil, err
	}
	return c.actionPreview(q)
}

func (c *call) actionPreview(q eventbus.DispatchQuery) (eventbus.ActionPreview, error) {
	p, err := c.bus.PreviewMatching(c.ctx, q)
	p.Sample = c.dispatchList(p.Sample)
	return p, err
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
		e.Dispatches = c.dispatchQuery(e.Dispatches)
		if e.Query = c.query(e.Query); e.Outcome != nil && e.Outcome.Error != "" {
			outcome := *e.Outcome
			outcome.Error = "the operation ended early; the log of the process has the reason"
			e.Outcome = &outcome
		}
	}
	return page, err
}
