package admin

import (
	"bytes"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/surebus/eventbus"
)

// page is what a template shows. Body has the data of the page itself.
type page struct {
	Title   string
	Section string // the entry of Nav to which the page belongs
	Refresh int    // seconds until a browser without JavaScript loads the page again; 0 for never
	Problem *Error
	Notice  string // what was done
	Report  *reportView
	Body    any

	Nav       []navItem
	Attention int  // causes that need attention
	Live      bool // the page updates itself
	still     bool // it does not, although its route is live
	Principal string
	ReadOnly  bool
	Tool      bool // the bus was made WithoutHandlers: no counters

	status int // 0 for 200
	call   *call
	may    map[Action]bool // answers of the authorizer
}

type navItem struct{ Name, Path string }

// The sections of the pages.
const (
	sectionOverview      = "Overview"
	sectionLetters       = "Dead letters"
	sectionOperations    = "Operations"
	sectionSubscriptions = "Subscriptions"
	sectionEvents        = "Events"
	sectionExplain       = "Explain"
	sectionAudit         = "Audit"
)

var nav = []navItem{
	{sectionOverview, ""},
	{sectionLetters, "groups"},
	{sectionOperations, "operations"},
	{sectionSubscriptions, "subscriptions"},
	{sectionEvents, "events"},
	{sectionExplain, "explain"},
	{sectionAudit, "audit"},
}

const formMedia = "application/x-www-form-urlencoded"

// pageRoutes returns the routes of the pages. A form is a POST that redirects to a page.
func pageRoutes() []*route {
	get := func(path string, action Action, serve func(*call) (any, error)) *route {
		return &route{method: http.MethodGet, path: path, actions: []Action{action}, serve: serve, page: true, gives: "text/html"}
	}
	live := func(path string, serve func(*call) (any, error)) *route {
		r := get(path, ActionView, serve)
		r.live = true
		return r
	}
	post := func(path string, audit eventbus.AuditAction, serve func(*call) (any, error), actions ...Action) *route {
		return &route{method: http.MethodPost, path: path, actions: actions, audit: audit, serve: serve, page: true, media: formMedia, gives: "text/html"}
	}
	directive := func(name string, audit eventbus.AuditAction) *route {
		return post("/subscriptions/{name}/"+name, audit, (*call).directiveForm, ActionControl)
	}
	bulk := get("/bulk", ActionReplay, (*call).bulkPage)
	bulk.actions = append(bulk.actions, ActionPurge)
	events := get("/events/bulk", ActionCancel, (*call).actPage)
	events.actions = append(events.actions, ActionRetry, ActionGiveUp)
	return []*route{
		live("/", (*call).overviewPage),
		live("/groups", (*call).groupsPage),
		live("/letters", (*call).lettersPage),
		live("/letters/{id}", (*call).letterPage),
		post("/letters/{id}/replay", eventbus.AuditReplay, (*call).replayForm, ActionReplay),
		get("/letters/{id}/edit", ActionEdit, (*call).editPage),
		post("/letters/{id}/edit", eventbus.AuditReplayEdited, (*call).editForm, ActionEdit),
		get("/letters/{id}/purge", ActionPurge, (*call).purgePage),
		post("/letters/{id}/purge", eventbus.AuditPurge, (*call).purgeForm, ActionPurge),
		bulk,
		live("/operations", (*call).operationsPage),
		post("/operations", eventbus.AuditReplayMatching, (*call).bulkForm, ActionReplay, ActionPurge),
		live("/operations/{id}", (*call).progressPage),
		post("/operations/{id}/cancel", eventbus.AuditReplayMatching, (*call).cancelOperationForm, ActionReplay, ActionPurge, ActionCancel, ActionRetry, ActionGiveUp),
		live("/subscriptions", (*call).subscriptionsPage),
		live("/subscriptions/{name}", (*call).subscriptionPage),
		directive("pause", eventbus.AuditPause),
		directive("hold-until", eventbus.AuditHoldUntil),
		directive("resume", eventbus.AuditResume),
		directive("trip", eventbus.AuditTrip),
		directive("reset", eventbus.AuditReset),
		get("/subscriptions/{name}/retire", ActionRetire, (*call).retirePage),
		post("/subscriptions/{name}/retire", eventbus.AuditRetire, (*call).retireForm, ActionRetire),
		live("/events", (*call).eventsPage),
		events,
		post("/events/bulk", eventbus.AuditReplayMatching, (*call).actForm, ActionCancel, ActionRetry, ActionGiveUp),
		live("/events/{id}", (*call).eventPage),
		get("/events/{id}/cancel", ActionCancel, (*call).verbPage),
		post("/events/{id}/cancel", eventbus.AuditCancel, (*call).verbForm, ActionCancel),
		post("/events/{id}/retry", eventbus.AuditRetryNow, (*call).verbForm, ActionRetry),
		get("/events/{id}/give-up", ActionGiveUp, (*call).verbPage),
		post("/events/{id}/give-up", eventbus.AuditGiveUp, (*call).verbForm, ActionGiveUp),
		get("/explain", ActionView, (*call).explainPage),
		live("/audit", (*call).auditPage),
		get("/static/{file}", ActionView, (*call).staticFile),
	}
}

// May reports whether the operator may perform an action. Pages offer no other ones.
func (p *page) May(name string) bool {
	action := Action(name)
	allowed, known := p.may[action]
	if !known && p.call != nil {
		allowed = p.call.may(action)
		p.may[action] = allowed
	}
	return allowed
}

// show writes a page. err is shown above it, and sets its status: what the operator has typed stays.
func (c *call) show(template string, p *page, err error) (any, error) {
	p.call, p.may = c, make(map[Action]bool)
	p.Principal, p.ReadOnly = c.who.Name, true
	for _, action := range Actions() {
		if action.changes() && p.May(string(action)) {
			p.ReadOnly = false
		}
	}
	if c.fragment != nil {
		c.problem = err
	} else if err != nil {
		p.Problem = c.report(err)
		p.status = p.Problem.Status()
		p.Report = c.reportIn(err)
	}
	p.Live = c.route.live && !p.still
	p.Attention = c.snapshot().needAttention(c.prefix)
	if done := c.r.URL.Query().Get("done"); c.r.Method == http.MethodGet && err == nil {
		p.Notice = notices[done]
	}
	return nil, c.write(template, p)
}

// isPage reports whether the answer is a page. For an unknown path the browser decides.
func (c *call) isPage() bool {
	if c.route != nil {
		return c.route.page
	}
	return c.pages != nil && strings.Contains(c.r.Header.Get("Accept"), "text/html")
}

// failPage writes a page that has only an error. It does not ask the authorizer: the request may have no
// valid credentials.
func (c *call) failPage(e *Error) {
	p := &page{Title: http.StatusText(e.Status()), Problem: e, Principal: c.who.Name, status: e.Status()}
	if err := c.write("error", p); err != nil {
		c.log.Error("admin answer failed", c.attributes("error", err.Error())...)
	}
}

// write executes a template. An error means that nothing was written.
func (c *call) write(template string, p *page) error {
	p.Nav, p.Tool = nav, c.tool
	if c.fragment != nil {
		if err := c.pages[template].ExecuteTemplate(c.fragment, "fragment", p); err != nil {
			c.fragment.Reset()
			return internal("the page cannot be shown", err)
		}
		return nil
	}
	var body bytes.Buffer
	if err := c.pages[template].ExecuteTemplate(&body, "layout", p); err != nil {
		return internal("the page cannot be shown", err)
	}
	c.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	c.w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	c.setWriteDeadline(answerTimeout)
	c.w.WriteHeader(max(p.status, http.StatusOK))
	_, _ = c.w.Write(body.Bytes()) // the peer may have gone
	return nil
}

// path returns the path of a page.
func (c *call) path(segments ...string) string { return pagePath(c.prefix, segments...) }

// redirect ends a form: the browser loads a page, which says what was done. A reload does not repeat it.
func (c *call) redirect(done string, segments ...string) (any, error) {
	query := url.Values{}
	if done != "" {
		query.Set("done", done)
	}
	c.w.Header().Set("Location", linkTo(c.path(segments...), query))
	c.w.WriteHeader(http.StatusSeeOther)
	return nil, nil
}

// notices are what pages say after a form, by the parameter done.
var notices = map[string]string{
	"replayed":   "The letter was replayed. This page shows whether the event settles.",
	"edited":     "The letter was replayed with the new payload. This page shows whether the event settles.",
	"purged":     "The letter was purged.",
	"pause":      "The subscription is paused. Its deliveries are held until you resume it.",
	"resume":     "The subscription is resumed. Held deliveries follow, oldest first.",
	"hold-until": "The subscription is paused until the time below.",
	"trip":       "The circuit is open. After a while, one delivery at a time probes.",
	"reset":      "The circuit is closed.",
	"cancelled":  "It was cancelled. No further handler is called for it.",
	"retried":    "What waited goes on now. This page shows whether it settles.",
	"given-up":   "What waited became dead letters, which can be replayed.",
	"stopping":   "The operation is being cancelled.",
	"retired":    "The name is retired, and its deliveries that waited have ended. The audit has their number.",

	"found": "This event has the idempotency key.",

	"nothing-needed": "Nothing had to be done: it goes on by itself.",
	"retired-later":  "The name is retired. The next bus on the store ends its deliveries.",
}

// form reads the fields of a form. Unknown fields are errors, as unknown parameters are.
func (c *call) form(known ...parameter) (url.Values, error) {
	from, err := c.reader()
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(from)
	if err != nil {
		return nil, bodyError(err)
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, badRequest("the form is malformed", "use the forms of the pages")
	}
	values = nonEmpty(values)
	return values, setParameters(values, known)
}

// filters reads the query of a page. Forms without JavaScript send empty values, which count as absent.
func (c *call) filters(known ...parameter) (url.Values, error) {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query string is malformed", "escape its values")
	}
	values = nonEmpty(values)
	delete(values, "done")
	return values, setParameters(values, known)
}

// staticTypes are the media types of the static files.
var staticTypes = map[string]string{
	"app.css": "text/css; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
}

func (c *call) staticFile() (any, error) {
	media, known := staticTypes[c.args["file"]]
	if !known {
		return nil, notFound("there is no such file", "load the page again")
	}
	data, err := fs.ReadFile(staticFiles, "static/"+c.args["file"])
	if err != nil {
		return nil, err
	}
	c.w.Header().Set("Content-Type", media)
	c.w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	c.setWriteDeadline(answerTimeout)
	_, _ = c.w.Write(data) // the peer may have gone
	return nil, nil
}

// why is the input for the reason of a change.
type why struct{ ID, Value string }

// pager links to further pages of a list.
type pager struct{ First, Next, Count string }

// nextPage returns the pager of a list with a cursor. next is empty on the last page.
func (c *call) nextPage(query url.Values, cursor, next string, segments ...string) pager {
	var p pager
	if query.Has(cursor) {
		p.First = linkTo(c.path(segments...), without(query, cursor))
	}
	if next != "" {
		query = without(query, cursor)
		query.Set(cursor, next)
		p.Next = linkTo(c.path(segments...), query)
	}
	return p
}
