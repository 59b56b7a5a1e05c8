package admin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus"
)

// SubscriptionPage is a page of the subscriptions, in the order in which they were made. On a bus WithoutHandlers the
// page is from the Catalog: it has options and directives, but no counters and no states of circuits.
type SubscriptionPage struct {
	Subscriptions []eventbus.SubscriptionMetrics `json:"subscriptions"` // in the order in which they were made
	// Figures has the recent figures of each entry of Subscriptions, in the same order.
	Figures   []SubscriptionFigures `json:"figures"`
	Total     int                   `json:"total"`               // subscriptions on all pages
	Next      int                   `json:"next,omitempty"`      // the offset of the next page; 0 on the last one
	CatalogAt time.Time             `json:"catalog_at,omitzero"` // eventbus.Catalog.At, if the page is from a catalog; otherwise zero
}

// ControlRequest is the body of a directive to a subscription.
type ControlRequest struct {
	Destination string    `json:"destination,omitempty"` // one destination of a subscription with PerDestination; empty for the whole
	Why         string    `json:"why,omitempty"`         // for the audit: up to 255 bytes without control characters
	Until       time.Time `json:"until,omitzero"`        // the end of a hold-until, which requires it
}

// subscriptionQuery selects a page of the subscriptions.
type subscriptionQuery struct {
	window
	sort string // a name of subscriptionOrders, with - in front for the largest first; empty for the order of delivery
}

func subscriptionParameters(q *subscriptionQuery) []parameter {
	return append(windowParameters(&q.window), parameter{"sort", "string", func(text string) error {
		if subscriptionOrders[strings.TrimPrefix(text, "-")] == nil {
			return fmt.Errorf("must be one of %s, or one with - in front", strings.Join(slices.Sorted(maps.Keys(subscriptionOrders)), ", "))
		}
		q.sort = text
		return nil
	}})
}

// subscriptionRow is a subscription with its figures.
type subscriptionRow struct {
	metrics *eventbus.SubscriptionMetrics
	figures *SubscriptionFigures
	rank    int // by the worst concern
}

// subscriptionOrders compare two subscriptions by what the name says.
var subscriptionOrders = map[string]func(x, y subscriptionRow) int{
	"name":     func(x, y subscriptionRow) int { return cmp.Compare(x.metrics.Subscription, y.metrics.Subscription) },
	"state":    func(x, y subscriptionRow) int { return cmp.Compare(x.rank, y.rank) },
	"calls":    func(x, y subscriptionRow) int { return cmp.Compare(x.figures.Calls, y.figures.Calls) },
	"failures": func(x, y subscriptionRow) int { return cmp.Compare(x.figures.Failures, y.figures.Failures) },
	"rate":     func(x, y subscriptionRow) int { return cmp.Compare(x.figures.FailureRate, y.figures.FailureRate) },
	"letters":  func(x, y subscriptionRow) int { return cmp.Compare(x.figures.Letters, y.figures.Letters) },
	"parked":   func(x, y subscriptionRow) int { return cmp.Compare(x.metrics.Parked(), y.metrics.Parked()) },
	"p50":      func(x, y subscriptionRow) int { return cmp.Compare(x.metrics.Latency.P50, y.metrics.Latency.P50) },
	"p99":      func(x, y subscriptionRow) int { return cmp.Compare(x.metrics.Latency.P99, y.metrics.Latency.P99) },
}

// rank returns how bad the worst concern of a subscription is: 2, 1, or 0 without one.
func (t *snapshot) rank(i int) (worst int) {
	for _, c := range t.subscriptionConcerns(i, "") {
		worst = max(worst, map[Severity]int{SeverityWarn: 1, SeverityBad: 2}[c.Severity])
	}
	return worst
}

func (c *call) listSubscriptions() (any, error) {
	var q subscriptionQuery
	if err := c.parameters(subscriptionParameters(&q)); err != nil {
		return nil, err
	}
	return c.subscriptions(q)
}

func (c *call) subscriptions(q subscriptionQuery) (SubscriptionPage, error) {
	all, catalogAt, err := c.allSubscriptions()
	if err != nil {
		return SubscriptionPage{}, err
	}
	taken := *c.snapshot()
	if c.tool { // only the letters are known
		taken.metrics.Subscriptions, taken.figures = all, make([]SubscriptionFigures, len(all))
		for i := range all {
			taken.figures[i] = SubscriptionFigures{Subscription: all[i].Subscription, Letters: taken.causes.letters[all[i].Subscription]}
		}
	}
	rows := make([]subscriptionRow, len(all))
	for i := range all {
		rows[i] = subscriptionRow{&taken.metrics.Subscriptions[i], &taken.figures[i], 0}
	}
	key := strings.TrimPrefix(q.sort, "-")
	if by := subscriptionOrders[key]; by != nil {
		for i := range rows {
			if key == "state" {
				rows[i].rank = taken.rank(i)
			}
		}
		slices.SortStableFunc(rows, func(x, y subscriptionRow) int {
			if strings.HasPrefix(q.sort, "-") {
				return by(y, x)
			}
			return by(x, y)
		})
	}
	page := SubscriptionPage{Subscriptions: []eventbus.SubscriptionMetrics{}, Figures: []SubscriptionFigures{}, Total: len(all), CatalogAt: catalogAt}
	rows, page.Next = windowOf(q.window, rows)
	for _, r := range rows {
		page.Subscriptions, page.Figures = append(page.Subscriptions, *r.metrics), append(page.Figures, *r.figures)
	}
	return page, nil
}

// SubscriptionHistory has the calls and failures of a subscription, by minutes or by quarters of an hour.
type SubscriptionHistory struct {
	Subscription string        `json:"subscription"` // the subscription's name
	Step         time.Duration `json:"step"`         // the length of an interval, in nanoseconds in JSON
	// Points has the intervals since New, oldest first; the last one is in progress. It is empty for subscriptions
	// beyond the first 1,000.
	Points []Point `json:"points"`
}

// historyParameters has the span of a history.
func historyParameters(day *bool) []parameter {
	return []parameter{{"span", "string", func(text string) error {
		if text != "hour" && text != "day" {
			return errors.New("must be hour or day")
		}
		*day = text == "day"
		return nil
	}}}
}

func (c *call) getHistory() (any, error) {
	var day bool
	if err := c.parameters(historyParameters(&day)); err != nil {
		return nil, err
	}
	m, err := c.subscription(c.args["name"])
	if err != nil {
		return nil, err
	}
	return c.subscriptionHistory(&m, day), nil
}

func (c *call) subscriptionHistory(m *eventbus.SubscriptionMetrics, day bool) SubscriptionHistory {
	h := SubscriptionHistory{Subscription: m.Subscription, Step: time.Minute, Points: []Point{}}
	if day {
		h.Step = quarterStep
	}
	h.Points = append(h.Points, c.history.series(m, c.snapshot().at, day)...)
	return h
}

func (c *call) getSubscription() (any, error) {
	m, err := c.subscription(c.args["name"])
	if err != nil {
		return nil, err
	}
	return m, nil
}

// subscription returns the metrics of a subscription, by its name or one that it had.
func (c *call) subscription(name string) (eventbus.SubscriptionMetrics, error) {
	if s := c.bus.Subscription(name); s.Exists() {
		all, _, err := c.allSubscriptions()
		if err != nil {
			return eventbus.SubscriptionMetrics{}, err
		}
		if i := slices.IndexFunc(all, func(m eventbus.SubscriptionMetrics) bool { return m.Subscription == s.ID() }); i >= 0 {
			return all[i], nil
		}
	}
	return eventbus.SubscriptionMetrics{}, noSubscription(name)
}

func noSubscription(name string) error {
	return notFound(fmt.Sprintf("there is no subscription %q", cut(name, 80)), "copy the name from the list of subscriptions")
}

func (c *call) postDirective() (any, error) {
	var body ControlRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	return c.control(c.args["name"], c.route.audit, body)
}

// directed is a subscription, or one of its destinations.
type directed interface {
	Pause(opts ...eventbus.DirectiveOption) error
	Resume(opts ...eventbus.DirectiveOption) error
	HoldUntil(t time.Time, opts ...eventbus.DirectiveOption) error
	Trip(opts ...eventbus.DirectiveOption) error
	Reset(opts ...eventbus.DirectiveOption) error
}

// control gives a directive to a subscription, or to one of its destinations, and returns the state of the subscription afterwards. A
// bus without handlers does not know the state: it returns the name only.
func (c *call) control(name string, action eventbus.AuditAction, r ControlRequest) (eventbus.SubscriptionMetrics, error) {
	none := eventbus.SubscriptionMetrics{}
	s := c.bus.Subscription(name)
	if !s.Exists() {
		return none, noSubscription(name)
	}
	if c.tool {
		if err := c.checkCatalogued(name); err != nil {
			return none, err
		}
	}
	if hold := action == eventbus.AuditHoldUntil; hold == r.Until.IsZero() {
		return none, badRequest("until is missing, or given for another directive than hold-until", "give hold-until, and no other directive, a time as RFC 3339")
	}
	opts := c.operator(r.Why)
	var to directed = s
	if r.Destination != "" {
		to = s.Destination(r.Destination)
	}
	var err error
	switch action { //nolint:exhaustive // the others are no directives
	case eventbus.AuditPause:
		err = to.Pause(opts...)
	case eventbus.AuditResume:
		err = to.Resume(opts...)
	case eventbus.AuditHoldUntil:
		err = to.HoldUntil(r.Until, opts...)
	case eventbus.AuditTrip:
		err = to.Trip(opts...)
	case eventbus.AuditReset:
		err = to.Reset(opts...)
	}
	if err != nil {
		return none, err
	}
	c.changed()
	m, err := c.subscription(name)
	if err != nil {
		m = eventbus.SubscriptionMetrics{Subscription: name}
	}
	return m, nil
}
