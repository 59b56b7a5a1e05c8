package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/surebus/eventbus"
)

// EventRequest is the body of a request to cancel, retry or give up an event.
type EventRequest struct {
	Why string `json:"why,omitempty"` // for the audit: up to 255 bytes without control characters
	// Subscription limits the request to the event's delivery to one subscription; empty for the whole event.
	Subscription string `json:"subscription,omitempty"`
	// Probe makes a retry try a held delivery, too. It is an error in other requests.
	Probe bool `json:"probe,omitempty"`
}

func (c *call) postEventVerb() (any, error) {
	var body EventRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	report, err := c.actOnEvent(body)
	if err != nil {
		return nil, err
	}
	return report, nil
}

// actOnEvent carries out the action of the route for the event in the path.
func (c *call) actOnEvent(r EventRequest) (report eventbus.ActionReport, err error) {
	id, err := c.eventID()
	if err != nil {
		return report, err
	}
	var opts []eventbus.ActionOption
	for _, o := range c.operator(r.Why) {
		opts = append(opts, o)
	}
	if r.Subscription != "" {
		opts = append(opts, eventbus.OfSubscription(r.Subscription))
	}
	if r.Probe {
		opts = append(opts, eventbus.Probe())
	}
	switch c.route.audit { //nolint:exhaustive // the actions on events
	case eventbus.AuditCancel:
		report, err = c.bus.Cancel(c.ctx, id, opts...)
	case eventbus.AuditRetryNow:
		report, err = c.bus.RetryNow(c.ctx, id, opts...)
	case eventbus.AuditGiveUp:
		report, err = c.bus.GiveUp(c.ctx, id, opts...)
	}
	switch {
	case errors.Is(err, eventbus.ErrNothingDone):
		err = nothingDone(&report)
	case errors.Is(err, eventbus.ErrSettled) && r.Subscription != "":
		err = &Error{
			Code: CodeSettled, Message: fmt.Sprintf("nothing of the event is left for the subscription %q", cut(r.Subscription, 80)),
			Remedy: "look at the event: it names the subscriptions for which something is left",
		}
	case errors.Is(err, context.DeadlineExceeded):
		err = conflict("the answer did not come in time; it is unknown whether anything was done", "look at the event, and in the audit; to repeat the request is safe")
	}
	return report, err
}

// nothingDone returns the error for a report of which everything was left.
func nothingDone(report *eventbus.ActionReport) *Error {
	e := &Error{Code: CodeNothingDone, Message: "nothing was done", Remedy: "look at the event", Report: report}
	for _, d := range report.Deliveries {
		if d.Left == "" {
			continue
		}
		reason, remedy, _ := strings.Cut(d.Left, "; ")
		e.Message = fmt.Sprintf("nothing was done: %s is %s: %s", cmp.Or(cut(d.Subscription, 80), "the event"), d.State, reason)
		e.Remedy = cmp.Or(remedy, e.Remedy)
		break
	}
	return e
}
