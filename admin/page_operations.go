package admin

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// bulkBody is the data of the preview of a bulk operation.
type bulkBody struct {
	Action          OperationAction
	Purge, NeedsAll bool
	Preview         eventbus.ReplayPreview
	Filters         []field
	Hidden          []pair // the filters and the instant that fixes the set, for the form
	AsOf            time.Time
	Letters, Renew  string
	Rate, StopAfter string
	Why             why
}

// bulkInput has the fields of the form of a bulk operation.
type bulkInput struct {
	OperationRequest
	asOf                             time.Time // fixes the set: letters that died later do not belong to it
	expect, confirm, rate, stopAfter string
}

// parameters of the form, and of its page.
func (b *bulkInput) parameters() []parameter {
	return append(filterParameters(&b.Query), textParameter("action", &b.Action), textParameter("why", &b.Why),
		textParameter("rate", &b.rate), textParameter("stop_after", &b.stopAfter),
		textParameter("expect", &b.expect), textParameter("confirm", &b.confirm), timeParameter("as_of", &b.asOf))
}

// set returns the query of the letters that the page shows.
func (b *bulkInput) set() eventbus.LetterQuery {
	q := b.Query
	if !b.asOf.IsZero() && (q.Until.IsZero() || b.asOf.Before(q.Until)) {
		q.Until = b.asOf
	}
	return q
}

// request returns the operation that the form asks for.
func (b *bulkInput) request() (OperationRequest, error) {
	r := b.OperationRequest
	expect, err := strconv.Atoi(b.expect)
	if err != nil || b.asOf.IsZero() {
		return r, badRequest("the number of letters, or the time that fixes them, is missing", "use the form of this page")
	}
	if r.Query == (eventbus.LetterQuery{}) { // otherwise the fixed time would pass for a filter
		return r, badRequest("an empty query matches every letter", "check the box for every letter, or set a filter")
	}
	r.Expect, r.Query = &expect, b.set()
	if r.Action == PurgeMatching && strings.TrimSpace(b.confirm) != b.expect {
		return r, badRequest("the number of letters is not confirmed", "type "+b.expect+" to purge as many letters")
	}
	if b.rate != "" {
		if r.Rate, err = strconv.ParseFloat(b.rate, 64); err != nil {
			return r, badRequest("rate must be a number of letters per second", "correct the value, or leave it empty for no limit")
		}
	}
	if b.stopAfter != "" {
		if r.StopAfter, err = strconv.Atoi(b.stopAfter); err != nil {
			return r, badRequest("stop after must be a number of failures", "correct the value, or leave it empty to continue after any failure")
		}
	}
	return r, nil
}

func (c *call) bulkPage() (any, error) {
	var in bulkInput
	query, err := c.filters(in.parameters()...)
	if err != nil {
		return nil, err
	}
	return c.showBulk(&in, query, nil)
}

// showBulk shows the preview and the form.
func (c *call) showBulk(in *bulkInput, query url.Values, err error) (any, error) {
	if _, known := kinds[in.Action]; !known || in.Action.ofEvents() {
		return nil, badRequest("the action is missing or unknown", "begin with a group or a list of letters")
	}
	if denied := c.authorizeOne(in.Action.permission()); denied != nil {
		return nil, denied
	}
	filter := without(query, "action", "why", "rate", "stop_after", "expect", "confirm", "all", "as_of")
	body := bulkBody{
		Action: in.Action, Purge: in.Action == PurgeMatching, NeedsAll: len(filter) == 0,
		Filters: append(onlySet(filled(mainLetterFields, filter)), onlySet(filled(moreLetterFields, filter))...),
		Letters: linkTo(c.path("letters"), filter), Rate: in.rate, StopAfter: in.stopAfter, Why: why{"why", in.Why},
	}
	for _, f := range body.Filters {
		body.Hidden = append(body.Hidden, pair{f.Name, f.Value})
	}
	if !in.asOf.IsZero() {
		body.Renew = c.bulkLink(string(in.Action), filter)
	}
	q := in.set()
	q.All = false
	preview, asOf, bad := c.fixed(q)
	body.Preview, body.AsOf = preview, asOf
	body.Hidden = append(body.Hidden, pair{"as_of", asOf.Format(time.RFC3339Nano)})
	title := "Replay letters"
	if body.Purge {
		title = "Purge letters"
	}
	return c.show("bulk", &page{Title: title, Section: sectionLetters, Body: body}, either(err, bad))
}

// fixed returns the preview of a set, and the instant that fixes it: the last death of a letter in it. The clocks of this
// process and of the one whose letters these are may differ, and letters that died before now may be on their way.
func (c *call) fixed(q eventbus.LetterQuery) (p eventbus.ReplayPreview, asOf time.Time, err error) {
	p, err = c.preview(q)
	if asOf = q.Until; asOf.IsZero() || asOf.After(time.Now()) {
		asOf = p.Newest
	}
	return p, asOf, err
}

func (c *call) bulkForm() (any, error) {
	var in bulkInput
	values, err := c.form(in.parameters()...)
	if err != nil {
		return nil, err
	}
	request, err := in.request()
	if err != nil {
		return c.showBulk(&in, values, err)
	}
	op, err := c.begin(request)
	if err != nil {
		return c.showBulk(&in, values, err)
	}
	return c.redirect("", "operations", op.ID)
}

func (c *call) operationsPage() (any, error) {
	w := window{limit: rowsOnPage}
	query, err := c.filters(windowParameters(&w)...)
	if err != nil {
		return nil, err
	}
	found := c.operationPage(w)
	body := struct {
		OperationPage
		Pager pager
	}{found, c.nextPage(query, "offset", positive(found.Next), "operations")}
	return c.show("operations", &page{Title: "Operations", Section: sectionOperations, Body: body}, nil)
}

// positive returns a number as text, and "" for 0.
func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// operationBody is the data of the progress page.
type operationBody struct {
	Operation
	Noun               string // what it processes
	Running, MayCancel bool
	Next               string // what to do now
	Facts              []pair
	Filters            []field
	Stayed             []eventbus.StayedLetter
	Matching           string // the list of what matches now
	Again              *link  // to the letters that died again, with their number
	Rest               string // the bulk page for what was not processed
	Reasons            []pair // why events were left, with their number
}

func (c *call) progressPage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	return c.showOperation(nil)
}

// maxStayedRows bounds the letters that stayed on the progress page.
const maxStayedRows = 25

func (c *call) showOperation(err error) (any, error) {
	found, missing := c.operations.find(c.args["id"])
	if missing != nil {
		return nil, either(err, missing)
	}
	op := c.operations.show(c.config, found)
	filter := queryValues(&op.Query)
	body := operationBody{
		Operation: op, Noun: op.Action.noun(), Running: op.State == OperationRunning, MayCancel: c.may(op.Action.permission()),
		Filters:  append(onlySet(filled(mainLetterFields, filter)), onlySet(filled(moreLetterFields, filter))...),
		Matching: linkTo(c.path("letters"), without(filter, "all", "until")),
	}
	if op.Action.ofEvents() {
		filter = queryValues(op.Dispatches)
		body.Filters, body.Matching = onlySet(filled(dispatchFields, filter)), linkTo(c.path("events"), without(filter, "all", "published_until"))
	}
	switch r := op.ReplayReport; {
	case r != nil:
		body.Facts = []pair{{"Replayed", count(r.Replayed)}, {"Gone before", count(r.Gone)}, {"Stayed", count(len(r.Stayed))}, {"Failures", count(r.Failures)}}
		body.Stayed = r.Stayed[:min(len(r.Stayed), maxStayedRows)]
	case op.PurgeReport != nil:
		body.Facts = []pair{{"Purged", count(op.PurgeReport.Purged)}, {"Gone before", count(op.PurgeReport.Gone)}}
	case op.ActionsReport != nil:
		body.Facts, body.Reasons = actionsFacts(op.ActionsReport)
	}
	if op.PerSecond > 0 {
		body.Facts = append(body.Facts, pair{"Rate", strconv.FormatFloat(op.PerSecond, 'g', 3, 64) + " " + body.Noun + " per second"})
	}
	body.Next = nextStep(&op)
	if !body.Running && op.Done < op.Total && !op.DryRun && op.filter() == found.filter() && body.MayCancel {
		body.Rest = c.restLink(&op, filter)
	}
	if op.Again != nil {
		n, bad := c.countMatching(*found.Again)
		body.Again, err = &link{plural(int64(n), "letter", "letters"), linkTo(c.path("letters"), queryValues(op.Again))}, either(err, bad)
	}
	p := &page{Title: actionName(op.Action), Section: sectionOperations, Body: body}
	if body.Running {
		p.Refresh = 2
	}
	return c.show("operation", p, err)
}

// restLink links to the form for the letters of an operation that were not processed.
func (c *call) restLink(op *Operation, filter url.Values) string {
	query := without(filter, "all")
	query.Set("action", string(op.Action))
	if op.Probe {
		query.Set("probe", "true")
	}
	if op.Rate > 0 {
		query.Set("rate", strconv.FormatFloat(op.Rate, 'g', -1, 64))
	}
	if op.StopAfter > 0 {
		query.Set("stop_after", strconv.Itoa(op.StopAfter))
	}
	if op.Why != "" {
		query.Set("why", op.Why)
	}
	if op.Action.ofEvents() {
		return linkTo(c.path("events", "bulk"), query)
	}
	return linkTo(c.path("bulk"), query)
}

// actionsFacts returns what the report of an action on events counts, and why deliveries were left.
func actionsFacts(r *eventbus.ActionsReport) (facts, reasons []pair) {
	for _, reason := range slices.Sorted(maps.Keys(r.Reasons)) {
		reasons = append(reasons, pair{reason, plural(int64(r.Reasons[reason]), "delivery", "deliveries")})
	}
	return []pair{{"Done", count(r.Done)}, {"Went on by themselves", count(r.Idle)}, {"Left", count(r.Left)}, {"Settled before", count(r.Gone)}}, reasons
}

// nextStep says what an operator does after an operation.
func nextStep(op *Operation) string {
	switch {
	case op.State == OperationRunning:
		return "It runs in the process of the bus: you may leave this page."
	case op.State == OperationStopped:
		return "It stopped after the number of failures that you set. Look at the letters that died again, fix the cause, and go on with the rest."
	case op.State == OperationCancelled:
		return "The " + op.Action.noun() + " that were not processed are unchanged."
	case op.State == OperationFailed:
		return "The " + op.Action.noun() + " that were not processed are unchanged. Go on with the rest when the error is fixed."
	case op.Action == ReplayMatching:
		return "Every letter of the set was processed. A replay that fails again makes a new letter."
	}
	if op.Action.ofEvents() {
		return "Every event of the set was looked at."
	}
	return "Every letter of the set was processed."
}

func (c *call) cancelOperationForm() (any, error) {
	_, err := c.form()
	if err == nil {
		_, err = c.cancelOperation(c.args["id"], "")
	}
	if err != nil {
		return c.showOperation(err)
	}
	return c.redirect("stopping", "operations", c.args["id"])
}

// queryValues returns the fields of a query that are set, as parameters.
func queryValues(q any) url.Values {
	values := make(url.Values)
	fields := make(map[string]any)
	if data, err := json.Marshal(q); err != nil || json.Unmarshal(data, &fields) != nil {
		return values // a time that the bus would have refused
	}
	for name, value := range fields {
		values.Set(name, fmt.Sprint(value))
	}
	return values
}
