package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"sync"

	"github.com/surebus/eventbus"
)

// verbs are what a page offers to do with an event, or with one of its deliveries.
type verbs struct {
	Event, Subscription string
	Retry, Probe        bool
	Cancel, GiveUp      string // links to the pages that ask
	Why                 *why   // nil in tables
}

// dispatchTable is a table of dispatches.
type dispatchTable struct {
	Caption string
	MayAct  bool
	Rows    []dispatchRow
}

type dispatchRow struct {
	eventbus.DispatchInfo
	RowKey string // by which a live page recognises the row: its form must not become that of another one
	Verbs  *verbs
}

// plainTable returns a table that offers no action.
func plainTable(caption string, dispatches []eventbus.DispatchInfo) dispatchTable {
	t := dispatchTable{Caption: caption}
	for _, d := range dispatches {
		t.Rows = append(t.Rows, dispatchRow{d, shown(d.Event.String()+" "+d.Subscription, 400), nil})
	}
	return t
}

func (c *call) dispatchTable(caption string, dispatches []eventbus.DispatchInfo) dispatchTable {
	t := plainTable(caption, dispatches)
	several := make(map[eventbus.EventID]int)
	for i := range dispatches {
		several[dispatches[i].Event] += max(1, len(dispatches[i].Targets))
	}
	for i := range t.Rows {
		d := &t.Rows[i].DispatchInfo
		only := d.Subscription
		if several[d.Event] == 1 || d.State == eventbus.DispatchScheduled || d.State == eventbus.DispatchIncoming {
			only = "" // its end is that of the event, whose id becomes free
		}
		t.Rows[i].Verbs = c.verbsOf(d, only)
		t.MayAct = t.MayAct || t.Rows[i].Verbs != nil
	}
	return t
}

// isHeld reports whether Probe can try a delivery. Beside the bus it is not known why one is parked.
func isHeld(d *eventbus.DispatchInfo) bool {
	return d.State == eventbus.DispatchParked && slices.Contains([]eventbus.ParkReason{"", eventbus.ParkCircuit, eventbus.ParkHung}, d.Parked)
}

// verbsOf returns what the operator may do with a dispatch, or nil. only is the subscription, or empty for the whole event.
func (c *call) verbsOf(d *eventbus.DispatchInfo, only string) *verbs {
	v := verbs{Event: d.Event.String(), Subscription: only}
	if c.may(ActionRetry) {
		v.Probe = isHeld(d)
		v.Retry = v.Probe || d.State == eventbus.DispatchWaiting || d.Parked == eventbus.ParkSnoozed
	}
	query := nonEmpty(url.Values{"subscription": {only}})
	if c.may(ActionCancel) {
		v.Cancel = linkTo(c.path("events", v.Event, "cancel"), query)
	}
	if c.may(ActionGiveUp) && d.State != eventbus.DispatchRunning {
		v.GiveUp = linkTo(c.path("events", v.Event, "give-up"), query)
	}
	if !v.Retry && v.Cancel == "" && v.GiveUp == "" {
		return nil
	}
	return &v
}

// verbsOfAll returns what the operator may do with an event, or nil.
func (c *call) verbsOfAll(s *eventbus.EventStatus, reason string) *verbs {
	var all *verbs
	for i := range s.Dispatches {
		v := c.verbsOf(&s.Dispatches[i], "")
		switch {
		case v == nil:
		case all == nil:
			all = v
			all.Why = &why{"why", reason}
		default:
			all.Retry, all.Probe = all.Retry || v.Retry, all.Probe || v.Probe
			if all.GiveUp == "" {
				all.GiveUp = v.GiveUp
			}
		}
	}
	if all != nil && !all.Retry {
		all.Why = nil // the pages that ask have it
	}
	return all
}

// verbText is what pages say about an action.
type verbText struct{ name, warning, button, done string }

// verbTexts are by the last segment of the path.
var verbTexts = map[string]verbText{
	"cancel": {
		"Cancel", "No further handler is called, and there is no dead letter: what is cancelled cannot be restored. The context of a running call ends.",
		"Cancel the event", "cancelled",
	},
	"give-up": {"Give up", "What waits becomes dead letters with the reason operator, which can be replayed. A running call is left.", "Give up the event", "given-up"},
	"retry":   {name: "Retry now", done: "retried"},
}

// verb returns the last segment of the path, and its texts.
func (c *call) verb() (string, verbText) {
	name := path.Base(c.route.path)
	return name, verbTexts[name]
}

// verbPage asks before an event is cancelled or given up.
func (c *call) verbPage() (any, error) {
	var r EventRequest
	if _, err := c.filters(textParameter("subscription", &r.Subscription)); err != nil {
		return nil, err
	}
	return c.showVerb(r, nil)
}

// showVerb shows what an action ends. err is the error of its form.
func (c *call) showVerb(r EventRequest, err error) (any, error) {
	id, invalid := c.eventID()
	if invalid != nil {
		return nil, badRequest("the id is not the id of an event", "copy it from a log entry, a letter or a list: it is a UUID of 36 characters")
	}
	if r.Subscription != "" && !validName(r.Subscription) {
		return nil, either(err, noSubscription(r.Subscription))
	}
	status, missing := c.event(id)
	if missing != nil {
		return nil, either(err, missing)
	}
	segment, text := c.verb()
	body := struct {
		Event, Type, Subscription     string
		Name, Warning, Action, Button string
		Table                         dispatchTable
		Why                           why
	}{
		Event: id.String(), Subscription: r.Subscription, Name: text.name, Warning: text.warning, Button: text.button,
		Action: c.path("events", id.String(), segment), Why: why{"why", r.Why}, Table: plainTable("What is left of the event", status.Dispatches),
	}
	if len(status.Dispatches) > 0 {
		body.Type = status.Dispatches[0].Type
	}
	if r.Subscription != "" {
		body.Button = text.name + " the delivery"
	}
	return c.show("verb", &page{Title: text.name + " event", Section: sectionEvents, Body: body}, err)
}

// verbForm carries out an action, and leads to the event's page with the report.
func (c *call) verbForm() (any, error) {
	var r EventRequest
	_, err := c.form(textParameter("why", &r.Why), textParameter("subscription", &r.Subscription), boolParameter("probe", &r.Probe))
	var report eventbus.ActionReport
	if err == nil {
		report, err = c.actOnEvent(r)
	}
	if err != nil {
		if c.route.audit != eventbus.AuditRetryNow && errorOf(err).Code == CodeBadRequest {
			return c.showVerb(r, err)
		}
		return c.showEvent(r.Why, err)
	}
	_, text := c.verb()
	done := text.done
	if !slices.ContainsFunc(report.Deliveries, func(d eventbus.ActedDelivery) bool { return d.Done }) {
		done = "nothing-needed"
	}
	c.reports.keep(c.id, text.name, &report)
	c.w.Header().Set("Location", linkTo(c.path("events", report.Event.String()), url.Values{"done": {done}, "report": {c.id}}))
	c.w.WriteHeader(http.StatusSeeOther)
	return nil, nil
}

// reportView is the report of an action as a page shows it.
type reportView struct {
	event      eventbus.EventID
	Caption    string
	Deliveries []deliveryView
	More       int
	Forgotten  bool
}

type deliveryView struct {
	eventbus.ActedDelivery
	Then int // subscriptions after it
}

// maxReported bounds the deliveries of a report on a page.
const maxReported = 25

func viewOf(name string, r *eventbus.ActionReport) *reportView {
	v := &reportView{event: r.Event, Forgotten: r.Forgotten}
	done, left := 0, 0
	for i, d := range r.Deliveries {
		switch {
		case d.Done:
			done++
		case d.Left != "":
			left++
		}
		if i < maxReported {
			then := max(0, len(d.Targets)-1)
			d.Targets = nil
			v.Deliveries = append(v.Deliveries, deliveryView{d, then})
		}
	}
	v.More = len(r.Deliveries) - len(v.Deliveries)
	v.Caption = fmt.Sprintf("%s found %s: done %d, left %d", name, plural(int64(len(r.Deliveries)), "delivery", "deliveries"), done, left)
	return v
}

// reports keeps the latest reports for the pages to which forms lead. A page without its report shows where the event is.
type reports struct {
	mu     sync.Mutex // guards the following; a leaf
	kept   map[string]*reportView
	oldest []string
}

// maxReports bounds the kept reports.
const maxReports = 100

func (r *reports) keep(request, name string, report *eventbus.ActionReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		r.kept = make(map[string]*reportView)
	}
	if len(r.oldest) == maxReports {
		delete(r.kept, r.oldest[0])
		r.oldest = r.oldest[1:]
	}
	r.kept[request], r.oldest = viewOf(name, report), append(r.oldest, request)
}

// find returns the report of a request about an event, or nil.
func (r *reports) find(request string, event eventbus.EventID) *reportView {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.kept[request]; v != nil && v.event == event {
		return v
	}
	return nil
}

// reportIn returns the report of an action that has done nothing, or nil.
func (c *call) reportIn(err error) *reportView {
	var own *Error
	if !errors.As(err, &own) || own.Report == nil || len(own.Report.Deliveries) == 0 {
		return nil
	}
	_, text := c.verb()
	return viewOf(text.name, own.Report)
}
