package admin

import (
	"net/url"
	"path"
	"time"

	"github.com/surebus/eventbus"
)

func (c *call) subscriptionsPage() (any, error) {
	w := window{limit: rowsOnPage}
	query, err := c.filters(windowParameters(&w)...)
	if err != nil {
		return nil, err
	}
	found, err := c.subscriptions(w)
	if err != nil {
		return nil, err
	}
	body := struct {
		SubscriptionPage
		Pager pager
	}{found, c.nextPage(query, "offset", positive(found.Next), "subscriptions")}
	return c.show("subscriptions", &page{Title: "Subscriptions", Section: sectionSubscriptions, Body: body}, nil)
}

// subscriptionBody is the data of a subscription's page.
type subscriptionBody struct {
	Subscription           eventbus.SubscriptionMetrics
	Letters, Parked, Audit string
	CatalogAt              time.Time
	Until                  string // what was typed, or a time soon
	Why                    why
}

func (c *call) subscriptionPage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	return c.showSubscription("", "", nil)
}

// holdFor is how long the form holds a subscription, unless the operator changes the time.
const holdFor = 15 * time.Minute

// showSubscription shows the subscription in the path. err is the error of a form, and the others what was typed.
func (c *call) showSubscription(reason, until string, err error) (any, error) {
	m, missing := c.subscription(c.args["name"])
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
	return c.show("subscription", &page{Title: m.Subscription, Section: sectionSubscriptions, Body: body}, err)
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
		return c.showSubscription(request.Why, until, err)
	}
	return c.redirect(path.Base(c.route.path), "subscriptions", c.args["name"])
}
