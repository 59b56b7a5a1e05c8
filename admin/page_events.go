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
	Find       field
	Fields     []field
	Filtered   bool
	Caption    string
	Dispatches []eventbus.DispatchInfo
	Pager      pager
}

func (c *call) eventsPage() (any, error) {
	q := eventbus.DispatchQuery{Limit: rowsOnPage}
	var id string
	query, err := c.filters(append(dispatchParameters(&q), textParameter("id", &id))...)
	body := eventsBody{
		Find: field{Value: id, Name: "id"}, Fields: filled(dispatchFields, query), Caption: "Dispatches that have not settled, oldest first",
	}
	body.Filtered = anySet(body.Fields)
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
		body.Dispatches = found.Dispatches
		body.Pager = c.nextPage(query, "after", found.Next, "events")
	}
	return c.show("events", &page{Title: "Events", Section: sectionEvents, Body: body}, err)
}

// eventBody is the data of an event's page.
type eventBody struct {
	Status     eventbus.EventStatus
	Dispatches []eventbus.DispatchInfo
	Caption    string
	Summary    string
	Scheduled  bool
	Audit      string
	Why        why
}

func (c *call) eventPage() (any, error) {
	if _, err := c.filters(); err != nil {
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
		Status: status, Dispatches: status.Dispatches, Caption: "Dispatches that have not settled", Summary: summaryOf(&status),
		Audit: linkTo(c.path("audit"), url.Values{"event_id": {id.String()}}), Why: why{"why", reason},
	}
	body.Scheduled = slices.ContainsFunc(status.Dispatches, func(d eventbus.DispatchInfo) bool {
		return d.State == eventbus.DispatchScheduled || d.State == eventbus.DispatchIncoming && !d.Due.IsZero()
	})
	if errors.Is(bad, eventbus.ErrUnknownEvent) {
		body.Summary = "The bus does not know the event: it has settled and was forgotten, or was never accepted. It has no dead letter."
		if c.r.URL.Query().Has("done") { // it was known a moment ago
			bad = nil
		}
	}
	return c.show("event", &page{Title: "Event " + id.String(), Section: sectionEvents, Body: body}, either(err, bad))
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
	return "The event has settled without a dead letter: it was handled, unrouted, dropped or cancelled, or its letters were purged."
}

func (c *call) cancelEventForm() (any, error) {
	var reason string
	_, err := c.form(textParameter("why", &reason))
	id, invalid := c.eventID()
	if err = either(err, invalid); err == nil {
		err = c.cancelEvent(id, reason)
	}
	if err != nil {
		return c.showEvent(reason, err)
	}
	return c.redirect("cancelled", "events", id.String())
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
