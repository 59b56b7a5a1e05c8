package admin

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// column is a column of the list of subscriptions.
type column struct {
	Name, Class string
	Sort        string // "ascending" or "descending" if the list is sorted by it
	Link        string // sorts by it
}

// subscriptionColumns are the columns by which the list can be sorted. Numbers are sorted largest first.
var subscriptionColumns = []struct {
	name, sort string
	number     bool
}{
	{"Subscription", "name", false},
	{"State", "-state", false},
	{"Calls", "-calls", true},
	{"Failures", "-failures", true},
	{"Failure rate", "-rate", true},
	{"Letters", "-letters", true},
	{"Parked", "-parked", true},
	{"p50", "-p50", true},
	{"p99", "-p99", true},
}

// columns returns the head of the list, for a query that is sorted.
func (c *call) columns(query url.Values, sorted string) []column {
	all := make([]column, len(subscriptionColumns))
	for i, of := range subscriptionColumns {
		all[i] = column{Name: of.name}
		if of.number {
			all[i].Class = "num"
		}
		next := of.sort
		if strings.TrimPrefix(sorted, "-") == strings.TrimPrefix(of.sort, "-") {
			all[i].Sort, next = "ascending", "-"+sorted
			if strings.HasPrefix(sorted, "-") {
				all[i].Sort, next = "descending", sorted[1:]
			}
		}
		to := without(query, "offset", "sort")
		to.Set("sort", next)
		all[i].Link = linkTo(c.path("subscriptions"), to)
	}
	return all
}

// subscriptionView is a subscription as the list shows it.
type subscriptionView struct {
	eventbus.SubscriptionMetrics
	Figures *SubscriptionFigures
	Circuit []badge
	Letters string // the link to its letters
	Spark   chartView
}

func (c *call) subscriptionsPage() (any, error) {
	q := subscriptionQuery{window: window{limit: rowsOnPage}}
	query, err := c.filters(subscriptionParameters(&q)...)
	if err != nil {
		return nil, err
	}
	found, err := c.subscriptions(q)
	if err != nil {
		return nil, err
	}
	orphans, err := c.orphanPage(q.window)
	if err != nil {
		return nil, err
	}
	next := max(found.Next, orphans.Next)
	rows := make([]subscriptionView, len(found.Subscriptions))
	for i := range found.Subscriptions {
		m, f := &found.Subscriptions[i], &found.Figures[i]
		rows[i] = subscriptionView{
			SubscriptionMetrics: *m, Figures: f, Circuit: circuitBadge(m.Circuit, f), Spark: sparkOf(f),
			Letters: linkTo(c.path("letters"), url.Values{"subscription": {m.Subscription}}),
		}
	}
	body := struct {
		Rows      []subscriptionView
		Columns   []column
		Sorted    bool
		CatalogAt time.Time
		Orphans   OrphanPage
		Pager     pager
	}{rows, c.columns(query, q.sort), q.sort != "", found.CatalogAt, orphans, c.nextPage(query, "offset", positive(next), "subscriptions")}
	return c.show("subscriptions", &page{Title: "Subscriptions", Section: sectionSubscriptions, Body: body}, nil)
}

// subscriptionBody is the data of a subscription's page.
type subscriptionBody struct {
	Subscription           eventbus.SubscriptionMetrics
	Figures                *SubscriptionFigures // nil if they are not known
	Circuit                []badge
	Spans                  []link // of the charts; that of the shown ones has no address
	Charts                 []chartView
	Letters, Parked, Audit string
	CatalogAt              time.Time
	Until                  string // what was typed, or a time soon
	Why                    why
}

func (c *call) subscriptionPage() (any, error) {
	var day bool
	if _, err := c.filters(historyParameters(&day)...); err != nil {
		return nil, err
	}
	return c.showSubscription("", "", day, nil)
}

// holdFor is how long the form holds a subscription, unless the operator changes the time.
const holdFor = 15 * time.Minute

// showSubscription shows the subscription in the path, with the charts of an hour or a day. err is the error of a form, and
// the others what was typed.
func (c *call) showSubscription(reason, until string, day bool, err error) (any, error) {
	m, missing := c.subscription(c.args["name"])
	if orphans := c.snapshot().metrics.Orphaned[c.args["name"]]; missing != nil && orphans > 0 && err == nil {
		return c.showOrphan(c.args["name"], orphans)
	}
	if missing != nil {
		return nil, either(err, missing)
	}
	if until == "" {
		until = rfc3339(time.Now().Add(holdFor))
	}
	var catalogAt time.Time
	if c.tool {
		_, at, bad := c.allSubscriptions()
		if bad != nil {
			return nil, bad
		}
		catalogAt = at
	}
	of := url.Values{"subscription": {m.Subscription}}
	body := subscriptionBody{
		Subscription: m, CatalogAt: catalogAt, Until: until, Why: why{"why", reason},
		Letters: linkTo(c.path("letters"), of), Audit: linkTo(c.path("audit"), of),
		Parked: linkTo(c.path("events"), url.Values{"subscription": {m.Subscription}, "state": {string(eventbus.DispatchParked)}}),
	}
	if !c.tool {
		taken := c.snapshot()
		i := slices.IndexFunc(taken.figures, func(f SubscriptionFigures) bool { return f.Subscription == m.Subscription })
		if i >= 0 {
			body.Figures = &taken.figures[i]
		}
		body.Charts = subscriptionCharts(c.subscriptionHistory(&m, day))
		body.Spans = []link{{"1 hour", linkTo(c.path("subscriptions", m.Subscription), nil)}, {"24 hours", linkTo(c.path("subscriptions", m.Subscription), url.Values{"span": {"day"}})}}
		body.Spans[map[bool]int{false: 0, true: 1}[day]].Link = ""
	}
	body.Circuit = circuitBadge(m.Circuit, body.Figures)
	return c.show("subscription", &page{Title: m.Subscription, Section: sectionSubscriptions, Body: body}, err)
}

// showOrphan shows a name for which deliveries wait, and that no subscription has.
func (c *call) showOrphan(name string, waiting int64) (any, error) {
	of := url.Values{"subscription": {name}}
	body := struct {
		Name                   string
		Waiting                int64
		Letters, Parked, Audit string
	}{name, waiting, linkTo(c.path("letters"), of), linkTo(c.path("events"), url.Values{"subscription": {name}, "state": {string(eventbus.DispatchParked)}}), linkTo(c.path("audit"), of)}
	return c.show("orphan", &page{Title: name, Section: sectionSubscriptions, Body: body}, nil)
}

// directiveForm gives a directive. The buttons of one form send until with each directive: only hold-until reads it.
func (c *call) directiveForm() (any, error) {
	var request ControlRequest
	var until string
	_, err := c.form(textParameter("why", &request.Why), textParameter("until", &until), textParameter("destination", &request.Destination))
	if err == nil && c.route.audit == eventbus.AuditHoldUntil {
		err = setParameters(nonEmpty(url.Values{"until": {until}}), []parameter{timeParameter("until", &request.Until)})
	}
	if err == nil {
		_, err = c.control(c.args["name"], c.route.audit, request)
	}
	if err != nil {
		return c.showSubscription(request.Why, until, false, err)
	}
	return c.redirect(path.Base(c.route.path), "subscriptions", c.args["name"])
}
