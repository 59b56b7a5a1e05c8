package admin

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// actText is what pages say about a bulk action on events.
type actText struct{ name, warning string }

var actTexts = map[OperationAction]actText{
	CancelMatching:   {"Cancel", "No further handler is called, and there are no dead letters: what is cancelled cannot be restored. The contexts of running calls end."},
	RetryNowMatching: {"Retry now", "What waits for its next attempt runs as soon as there is room. What is held is left, unless you tick Probe."},
	GiveUpMatching:   {"Give up", "What waits becomes dead letters with the reason operator, which can be replayed. Running calls are left."},
}

// bulkActions links to the pages of the actions that the operator may order for the events that match.
func (c *call) bulkActions(filter url.Values) (links []link) {
	for _, action := range []OperationAction{RetryNowMatching, GiveUpMatching, CancelMatching} {
		if c.may(action.permission()) {
			links = append(links, link{actTexts[action].name + " all matching…", c.actLink(action, filter)})
		}
	}
	return links
}

func (c *call) actLink(action OperationAction, filter url.Values) string {
	query := without(filter)
	query.Set("action", string(action))
	return linkTo(c.path("events", "bulk"), query)
}

// actInput has the fields of the form of a bulk action on events.
type actInput struct {
	OperationRequest
	q                     eventbus.DispatchQuery
	asOf                  time.Time // fixes the set: events that were published later do not belong to it
	expect, confirm, rate string
}

// parameters of the form, and of its page.
func (a *actInput) parameters() []parameter {
	return append(dispatchFilter(&a.q), textParameter("action", &a.Action), textParameter("why", &a.Why), textParameter("rate", &a.rate),
		boolParameter("probe", &a.Probe), boolParameter("all", &a.q.All), textParameter("expect", &a.expect), textParameter("confirm", &a.confirm), timeParameter("as_of", &a.asOf))
}

// set returns the query of the events that the page shows.
func (a *actInput) set() eventbus.DispatchQuery {
	q := a.q
	if !a.asOf.IsZero() && (q.PublishedUntil.IsZero() || a.asOf.Before(q.PublishedUntil)) {
		q.PublishedUntil = a.asOf
	}
	return q
}

// request returns the operation that the form asks for.
func (a *actInput) request() (OperationRequest, error) {
	r := a.OperationRequest
	expect, err := strconv.Atoi(a.expect)
	if err != nil || a.asOf.IsZero() {
		return r, badRequest("the number of events, or the time that fixes them, is missing", "use the form of this page")
	}
	if a.q == (eventbus.DispatchQuery{}) { // otherwise the fixed time would pass for a filter
		return r, badRequest("an empty query matches every event that has not settled", "check the box for every event, or set a filter")
	}
	q := a.set()
	r.Expect, r.Dispatches = &expect, &q
	if r.Action == CancelMatching && strings.TrimSpace(a.confirm) != a.expect {
		return r, badRequest("the number of events is not confirmed", "type "+a.expect+" to cancel as many events")
	}
	if a.rate != "" {
		if r.Rate, err = strconv.ParseFloat(a.rate, 64); err != nil {
			return r, badRequest("rate must be a number of events per second", "correct the value, or leave it empty for no limit")
		}
	}
	return r, nil
}

// actBody is the data of the preview of a bulk action on events.
type actBody struct {
	Action              OperationAction
	Name, Warning       string
	Cancels, Probes     bool // it is CancelMatching, RetryNowMatching
	NeedsAll, Probe     bool
	Preview             eventbus.ActionPreview
	States              []pair
	Sample              dispatchTable
	Filters             []field
	Hidden              []pair // the filters and the instant that fixes the set, for the form
	AsOf                time.Time
	Events, Renew, Rate string
	Why                 why
}

func (c *call) actPage() (any, error) {
	var in actInput
	query, err := c.filters(in.parameters()...)
	if err != nil {
		return nil, err
	}
	return c.showAct(&in, query, nil)
}

// showAct shows the preview and the form.
func (c *call) showAct(in *actInput, query url.Values, err error) (any, error) {
	if !in.Action.ofEvents() {
		return nil, badRequest("the action is missing or unknown", "begin with a list of events")
	}
	if denied := c.authorizeOne(in.Action.permission()); denied != nil {
		return nil, denied
	}
	filter := without(query, "action", "why", "rate", "probe", "expect", "confirm", "all", "as_of")
	text := actTexts[in.Action]
	body := actBody{
		Action: in.Action, Name: text.name, Warning: text.warning, Cancels: in.Action == CancelMatching, Probes: in.Action == RetryNowMatching,
		NeedsAll: len(filter) == 0, Probe: in.Probe, Filters: onlySet(filled(dispatchFields, filter)),
		Events: linkTo(c.path("events"), filter), Rate: in.rate, Why: why{"why", in.Why},
	}
	for _, f := range body.Filters {
		body.Hidden = append(body.Hidden, pair{f.Name, f.Value})
	}
	if !in.asOf.IsZero() {
		body.Renew = c.actLink(in.Action, filter)
	}
	q := in.set()
	q.All = false
	preview, bad := c.actionPreview(q)
	if body.AsOf = q.PublishedUntil; body.AsOf.IsZero() || body.AsOf.After(time.Now()) {
		body.AsOf = preview.Newest
	}
	body.Preview, body.Sample = preview, plainTable("Sample: the first dispatches", preview.Sample)
	for _, state := range []eventbus.DispatchState{eventbus.DispatchRunning, eventbus.DispatchQueued, eventbus.DispatchWaiting, eventbus.DispatchParked, eventbus.DispatchScheduled} {
		if n := preview.States[state]; n > 0 {
			body.States = append(body.States, pair{actionName(state), count(n)})
		}
	}
	body.Hidden = append(body.Hidden, pair{"as_of", body.AsOf.Format(time.RFC3339Nano)})
	return c.show("act", &page{Title: text.name + " events", Section: sectionEvents, Body: body}, either(err, bad))
}

func (c *call) actForm() (any, error) {
	var in actInput
	values, err := c.form(in.parameters()...)
	if err != nil {
		return nil, err
	}
	var op Operation
	request, err := in.request()
	if err == nil && !in.Action.ofEvents() {
		err = badRequest(fmt.Sprintf("the action %q is not for events", cut(string(in.Action), 80)), "use the forms of the pages")
	}
	if err == nil {
		op, err = c.begin(request)
	}
	if err != nil {
		return c.showAct(&in, values, err)
	}
	return c.redirect("", "operations", op.ID)
}
