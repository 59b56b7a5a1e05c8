package admin

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/surebus/eventbus"
)

// bulkBody is the data of the preview of a bulk operation.
type bulkBody struct {
	Action          OperationAction
	Purge, NeedsAll bool
	Preview         eventbus.ReplayPreview
	Filters         []field
	Hidden          []pair // the filters, for the form
	Letters         string
	Rate, StopAfter string
	Why             why
}

// bulkInput has the fields of the form of a bulk operation.
type bulkInput struct {
	OperationRequest
	expect, confirm, rate, stopAfter string
}

// parameters of the form, and of its page.
func (b *bulkInput) parameters() []parameter {
	return append(filterParameters(&b.Query), textParameter("action", &b.Action), textParameter("why", &b.Why),
		textParameter("rate", &b.rate), textParameter("stop_after", &b.stopAfter),
		textParameter("expect", &b.expect), textParameter("confirm", &b.confirm))
}

// request returns the operation that the form asks for.
func (b *bulkInput) request() (OperationRequest, error) {
	r := b.OperationRequest
	expect, err := strconv.Atoi(b.expect)
	if err != nil {
		return r, badRequest("the number of letters is missing", "use the form of this page")
	}
	r.Expect = &expect
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
	if in.Action != ReplayMatching && in.Action != PurgeMatching {
		return nil, badRequest("the action is missing or unknown", "begin with a group or a list of letters")
	}
	if denied := c.authorizeOne(in.Action.permission()); denied != nil {
		return nil, denied
	}
	filter := without(query, "action", "why", "rate", "stop_after", "expect", "confirm", "all")
	body := bulkBody{
		Action: in.Action, Purge: in.Action == PurgeMatching, NeedsAll: len(filter) == 0,
		Filters: append(onlySet(filled(mainLetterFields, filter)), onlySet(filled(moreLetterFields, filter))...),
		Letters: linkTo(c.path("letters"), filter), Rate: in.rate, StopAfter: in.stopAfter, Why: why{"why", in.Why},
	}
	for _, f := range body.Filters {
		body.Hidden = append(body.Hidden, pair{f.Name, f.Value})
	}
	q := in.Query
	q.All = false
	preview, bad := c.preview(q)
	body.Preview = preview
	title := "Replay letters"
	if body.Purge {
		title = "Purge letters"
	}
	return c.show("bulk", &page{Title: title, Section: sectionLetters, Body: body}, either(err, bad))
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
	Running, MayCancel bool
	Next               string // what to do now
	Facts              []pair
	Filters            []field
	Stayed             []eventbus.StayedLetter
	Letters            string
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
		Operation: op, Running: op.State == OperationRunning, MayCancel: c.may(op.Action.permission()),
		Filters: append(onlySet(filled(mainLetterFields, filter)), onlySet(filled(moreLetterFields, filter))...),
		Letters: linkTo(c.path("letters"), without(filter, "all", "until")),
	}
	switch r := op.ReplayReport; {
	case r != nil:
		body.Facts = []pair{{"Replayed", count(r.Replayed)}, {"Gone before", count(r.Gone)}, {"Stayed", count(len(r.Stayed))}, {"Failures", count(r.Failures)}}
		body.Stayed = r.Stayed[:min(len(r.Stayed), maxStayedRows)]
	case op.PurgeReport != nil:
		body.Facts = []pair{{"Purged", count(op.PurgeReport.Purged)}, {"Gone before", count(op.PurgeReport.Gone)}}
	}
	body.Next = nextStep(&op)
	p := &page{Title: actionName(op.Action), Section: sectionOperations, Body: body}
	if body.Running {
		p.Refresh = 2
	}
	return c.show("operation", p, err)
}

// nextStep says what an operator does after an operation.
func nextStep(op *Operation) string {
	switch {
	case op.State == OperationRunning:
		return "It runs in the process of the bus: you may leave this page."
	case op.State == OperationStopped:
		return "It stopped after the number of failures that you set. Look at the letters that died again, fix the cause, and begin a new operation for the rest."
	case op.State == OperationCancelled:
		return "The letters that were not processed are unchanged. Begin a new operation for the rest."
	case op.State == OperationFailed:
		return "The letters that were not processed are unchanged. Begin a new operation for the rest when the error is fixed."
	case op.Action == ReplayMatching:
		return "Every letter of the set was processed. A replay that fails again makes a new letter."
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
func queryValues(q *eventbus.LetterQuery) url.Values {
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
