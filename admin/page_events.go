package admin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/surebus/eventbus"
)

// eventsBody is the data of the list of dispatches.
type eventsBody struct {
	Find     field
	FindKey  []field // the idempotency key and the type of an event
	Fields   []field
	Filtered bool
	Bulk     []link // to the pages of bulk actions
	Table    dispatchTable
	Pager    pager
}

func (c *call) eventsPage() (any, error) {
	q := eventbus.DispatchQuery{Limit: rowsOnPage}
	var id, key, keyType string
	query, err := c.filters(append(dispatchParameters(&q), textParameter("id", &id), textParameter("find_idempotency_key", &key), textParameter("find_type", &keyType))...)
	body := eventsBody{
		Find: field{Value: id, Name: "id"}, FindKey: filled(findFields, query), Fields: filled(dispatchFields, query),
	}
	body.Filtered = anySet(body.Fields)
	if err == nil && key+keyType != "" {
		var found eventbus.EventStatus
		if found, err = c.eventByKey(keyType, key); err == nil {
			return c.redirect("found", "events", found.ID.String())
		}
		for i := range body.FindKey {
			body.FindKey[i].Invalid = true
		}
	}
	if err == nil && id != "" {
		parsed, bad := eventbus.ParseEventID(id)
		if bad == nil {
			return c.redirect("", "events", parsed.String())
		}
		body.Find.Invalid = true
		err = badRequest("the id is not the id of an event", "copy it from a log entry, a letter or a list: it is a UUID of 36 characters")
	}
	if err == nil {
		var found eventbus.DispatchPage
		found, err = c.dispatches(q)
		body.Table = c.dispatchTable("Dispatches that have not settled, oldest first", found.Dispatches)
		body.Pager = c.nextPage(query, "after", found.Next, "events")
		body.Bulk = c.bulkActions(without(query, "limit", "after"))
	}
	return c.show("events", &page{Title: "Events", Section: sectionEvents, Body: body}, err)
}

// eventBody is the data of an event's page.
type eventBody struct {
	Status  eventbus.EventStatus
	Table   dispatchTable
	Summary string
	Settled []settledRow
	More    int // deliveries that Settled leaves out
	Replays []replayRow
	Bulk    string // link to the bulk replays of an operator
	Whole   *verbs // nil if the operator may do nothing with the event
	Audit   string
}

func (c *call) eventPage() (any, error) {
	var report string
	if _, err := c.filters(textParameter("report", &report)); err != nil {
		return nil, err
	}
	return c.showEvent("", nil)
}

// showEvent shows the event in the path. err is the error of a form, and reason what was typed.
func (c *call) showEvent(reason string, err error) (any, error) {
	id, invalid := c.eventID()
	if invalid != nil {
		return nil, badRequest("the id is not the id of an event", "copy it from a log entry, a letter or a list: it is a UUID of 36 characters")
	}
	status, bad := c.event(id)
	status.ID = id
	body := eventBody{
		Status: status, Table: c.dispatchTable("Dispatches that have not settled", status.Dispatches), Summary: summaryOf(&status),
		Audit: linkTo(c.path("audit"), url.Values{"event_id": {id.String()}}), Whole: c.verbsOfAll(&status, reason),
	}
	body.Settled, body.More = settledRows(status.Settled)
	body.Replays = c.eventReplays(&status)
	body.Bulk = c.bulkReplaysBy(&status, body.Replays)
	if errors.Is(bad, eventbus.ErrUnknownEvent) {
		body.Summary = "The bus does not know the event: it has settled and was forgotten, or was never accepted. It has no dead letter. A bus without a store may not find an event that is on its way: try again."
		if c.r.URL.Query().Has("done") { // it was known a moment ago
			bad = nil
		}
	}
	return c.show("event", &page{Title: "Event " + id.String(), Section: sectionEvents, Report: c.reports.find(c.r.URL.Query().Get("report"), id), Body: body}, either(err, bad))
}

// settledRow is a delivery that has ended.
type settledRow struct {
	Class string // "good", "bad" or ""
	eventbus.SettledDelivery
}

// maxSettledRows bounds the deliveries on a page, which has at most 100 KB.
const maxSettledRows = 25

// settledRows returns the latest deliveries that have ended, oldest first, and the number of those before.
func settledRows(all []eventbus.SettledDelivery) (rows []settledRow, more int) {
	more = max(0, len(all)-maxSettledRows)
	for _, d := range all[more:] {
		class := ""
		switch d.Outcome { //nolint:exhaustive // the others are neither good nor bad
		case eventbus.Handled:
			class = "good"
		case eventbus.DeadLettered:
			class = "bad"
		}
		rows = append(rows, settledRow{class, d})
	}
	return rows, more
}

// summaryOf says what became of an event.
func summaryOf(s *eventbus.EventStatus) string {
	waiting, dead := len(s.Dispatches), s.Letters.Total
	switch {
	case waiting > 0 && s.Dispatches[0].State == eventbus.DispatchIncoming:
		return "The bus with the lease of the store has not taken the event in."
	case waiting > 0 && dead > 0:
		return fmt.Sprintf("%s not settled, and the event has %s.", plural(int64(waiting), "dispatch has", "dispatches have"), plural(int64(dead), "dead letter", "dead letters"))
	case waiting > 0:
		return plural(int64(waiting), "dispatch has", "dispatches have") + " not settled."
	case dead > 0:
		return "The event has settled, with " + plural(int64(dead), "dead letter", "dead letters") + "."
	}
	if len(s.Settled) > 0 {
		return "The event has settled without a dead letter."
	}
	return "The event has settled without a dead letter: it was handled, unrouted, dropped or cancelled, or its letters were purged."
}

// explainBody is the data of the page that explains a type.
type explainBody struct {
	Type   string
	Known  []string // types that were published, for completion
	Links  []link
	Plan   *eventbus.Plan
	Policy []policyRow
}

type policyRow struct{ Name, Value, Origin string }

// maxKnownTypes bounds the types that the page offers.
const maxKnownTypes = 50

func (c *call) explainPage() (any, error) {
	var body explainBody
	_, err := c.filters(explainParameters(&body.Type)...)
	known := slices.Sorted(maps.Keys(c.bus.Metrics().Types))
	known = slices.DeleteFunc(known, func(name string) bool { return name == eventbus.OtherTypes })
	body.Known = known[:min(len(known), maxKnownTypes)]
	for _, name := range body.Known[:min(len(body.Known), 10)] {
		body.Links = append(body.Links, link{name, linkTo(c.path("explain"), url.Values{"type": {name}})})
	}
	if err == nil && body.Type != "" {
		var plan eventbus.Plan
		if plan, err = c.plan(body.Type); err == nil {
			body.Plan, body.Policy = &plan, policyRowsOf(&plan)
		}
	}
	return c.show("explain", &page{Title: "Explain", Section: sectionExplain, Body: body}, err)
}

// policyRowsOf returns the fields of a plan's retry policy, with their origins.
func policyRowsOf(p *eventbus.Plan) []policyRow {
	if len(p.Targets) == 0 {
		return nil
	}
	retries := "unlimited"
	if p.Policy.MaxRetries != eventbus.Unlimited {
		retries = count(p.Policy.MaxRetries)
	}
	elapsed := "unbounded"
	if p.Policy.MaxElapsed != 0 {
		elapsed = duration(p.Policy.MaxElapsed)
	}
	rows := []policyRow{
		{"MaxRetries", retries, ""},
		{"BaseDelay", duration(p.Policy.BaseDelay), ""},
		{"MaxDelay", duration(p.Policy.MaxDelay), ""},
		{"BackoffMultiplier", strconv.FormatFloat(p.Policy.BackoffMultiplier, 'g', -1, 64), ""},
		{"MaxElapsed", elapsed, ""},
		{"Jitter", p.Policy.Jitter.String(), ""},
	}
	for i := range rows {
		rows[i].Origin = cmp.Or(p.Origins[rows[i].Name], eventbus.BusDefault)
	}
	return rows
}

// auditBody is the data of the audit's page.
type auditBody struct {
	Fields   []field
	Filtered bool
	Entries  []eventbus.AuditEntry
	Pager    pager
}

func (c *call) auditPage() (any, error) {
	q := eventbus.AuditQuery{Limit: rowsOnPage}
	query, err := c.filters(auditParameters(&q)...)
	body := auditBody{Fields: filled(auditFields, query)}
	body.Filtered = anySet(body.Fields)
	if err == nil {
		var found eventbus.AuditPage
		found, err = c.audit(q)
		body.Entries = found.Entries
		next := ""
		if found.Next > 0 {
			next = strconv.FormatInt(found.Next, 10)
		}
		body.Pager = c.nextPage(query, "before", next, "audit")
	}
	return c.show("audit", &page{Title: "Audit", Section: sectionAudit, Body: body}, err)
}
