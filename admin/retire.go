package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/surebus/eventbus"
)

// Orphan is the name of a subscription that does not exist, and for which the store has deliveries.
type Orphan struct {
	Subscription string `json:"subscription"` // the name
	Parked       int64  `json:"parked"`       // deliveries that wait for it; a store may stop counting at 100,000 in all
}

// OrphanPage is a page of orphans, those with most deliveries first. Beside the bus, a name is an orphan if the last catalog
// of a bus does not have it.
type OrphanPage struct {
	Orphans []Orphan `json:"orphans"`        // most deliveries first
	Total   int      `json:"total"`          // orphans on all pages
	Next    int      `json:"next,omitempty"` // the offset of the next page; 0 on the last one
}

// RetireRequest is the body of a request to retire the name of a subscription that no bus has any more, or that is detached.
type RetireRequest struct {
	Drop bool   `json:"drop,omitempty"` // drop the deliveries; otherwise they become dead letters with the reason unsubscribed
	Why  string `json:"why,omitempty"`  // for the audit: up to 255 bytes without control characters
}

func (c *call) listOrphans() (any, error) {
	var w window
	if err := c.parameters(orphanParameters(&w)); err != nil {
		return nil, err
	}
	return c.orphanPage(w)
}

// orphanParameters allow for larger pages than other lists have: each page counts all orphans.
func orphanParameters(w *window) []parameter {
	p := windowParameters(w)
	p[0] = intParameter("limit", &w.limit, 1, 10_000)
	return p
}

func (c *call) orphanPage(w window) (page OrphanPage, err error) {
	all, err := c.orphans()
	page.Total = len(all)
	page.Orphans, page.Next = windowOf(w, all)
	return page, err
}

// orphans returns all orphans, those with most deliveries first.
func (c *call) orphans() ([]Orphan, error) {
	parked := maps.Clone(c.snapshot().metrics.Orphaned)
	if c.tool { // it counts the deliveries of all subscriptions
		catalog, err := c.catalog(c.ctx)
		if err != nil || catalog.At.IsZero() {
			return nil, err
		}
		maps.DeleteFunc(parked, func(name string, _ int64) bool {
			_, has := catalog.Find(name)
			return has
		})
	}
	all := make([]Orphan, 0, len(parked))
	for name, n := range parked {
		all = append(all, Orphan{name, n})
	}
	slices.SortFunc(all, func(x, y Orphan) int {
		return cmp.Or(cmp.Compare(y.Parked, x.Parked), cmp.Compare(x.Subscription, y.Subscription))
	})
	return all, nil
}

func (c *call) postRetire() (any, error) {
	var body RetireRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	return c.retire(c.args["name"], body)
}

// retire ends a name, and waits until its deliveries have ended.
func (c *call) retire(name string, r RetireRequest) (eventbus.RetireReport, error) {
	var opts []eventbus.RetireOption
	for _, o := range c.operator(r.Why) {
		opts = append(opts, o)
	}
	if r.Drop {
		opts = append(opts, eventbus.DropRetired())
	}
	report, err := c.bus.Retire(c.ctx, name, opts...)
	switch {
	case errors.Is(err, eventbus.ErrNoSubscription):
		err = notFound(fmt.Sprintf("neither a subscription nor a delivery has the name %q", cut(name, 80)), "copy the name from the list of orphans")
	case errors.Is(err, context.DeadlineExceeded):
		err = conflict("the deliveries did not end in time; the bus goes on if the name is retired", "look in the audit, which has the outcome")
	}
	return report, err
}

// retireBody is the data of the page that retires a name.
type retireBody struct {
	Name   string
	Parked int64 // deliveries that wait
	InUse  bool  // by a subscription of this bus
	Drop   bool
	Why    why
}

func (c *call) retirePage() (any, error) {
	if _, err := c.filters(); err != nil {
		return nil, err
	}
	return c.showRetire(RetireRequest{}, nil)
}

// showRetire shows what retiring the name in the path ends. err is the error of a form.
func (c *call) showRetire(r RetireRequest, err error) (any, error) {
	name := c.args["name"]
	if !validName(name) {
		return nil, noSubscription(name)
	}
	body := retireBody{Name: name, Drop: r.Drop, Why: why{"why", r.Why}}
	m := c.bus.Metrics()
	body.Parked = m.Orphaned[name]
	for i := range m.Subscriptions {
		if s := &m.Subscriptions[i]; s.Subscription == name {
			body.Parked, body.InUse = int64(s.Parked()), !s.Detached
		}
	}
	return c.show("retire", &page{Title: "Retire " + name, Section: sectionSubscriptions, Body: body}, err)
}

func (c *call) retireForm() (any, error) {
	var r RetireRequest
	var confirm string
	_, err := c.form(textParameter("why", &r.Why), boolParameter("drop", &r.Drop), textParameter("confirm", &confirm))
	if name := c.args["name"]; err == nil && strings.TrimSpace(confirm) != strings.TrimSpace(name) {
		err = badRequest("the name is not confirmed", "type the name of the subscription to retire it")
	}
	var report eventbus.RetireReport
	if err == nil {
		report, err = c.retire(c.args["name"], r)
	}
	switch {
	case err != nil:
		return c.showRetire(r, err)
	case report.Left:
		return c.redirect("retired-later", "subscriptions")
	}
	return c.redirect("retired", "subscriptions")
}
