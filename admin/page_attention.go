package admin

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/surebus/eventbus"
)

// Severity is how bad a Concern is.
type Severity string

// The severities.
const (
	SeverityBad  Severity = "bad"
	SeverityWarn Severity = "warn"
)

// Concern is a condition that needs the attention of an operator, apart from the causes of dead letters.
type Concern struct {
	Severity     Severity `json:"severity"`               // how bad it is
	Title        string   `json:"title"`                  // one line for the operator
	Text         string   `json:"text,omitempty"`         // details, or empty
	Subscription string   `json:"subscription,omitempty"` // the subscription concerned, or empty
	Destination  string   `json:"destination,omitempty"`  // the destination concerned, or empty
	// Link is the path of the page with the details, or empty.
	Link string `json:"link,omitempty"`
}

// Bounds of the list of concerns.
const (
	maxConcerns     = 20
	maxDestinations = 5 // of a subscription
)

// A share of failed calls from which a subscription is not well.
const (
	warnFailing = 0.05
	badFailing  = 0.3
	// minFailures is the number of failures from which a share is a concern. The state of the subscription shows it in any case.
	minFailures = 3
)

// concerns returns what needs attention, the worst first.
func (t *snapshot) concerns(prefix string) []Concern {
	all := t.storeConcerns()
	for i := range t.metrics.Subscriptions {
		all = append(all, t.subscriptionConcerns(i, prefix)...)
	}
	m := &t.metrics
	if m.LettersEvicted > 0 {
		all = append(all, Concern{
			Severity: SeverityBad, Title: plural(m.LettersEvicted, "dead letter was", "dead letters were") + " evicted",
			Text: "The queue was full: raise WithDeadLetterCapacity, or use a store.",
		})
	}
	for _, name := range slices.Sorted(maps.Keys(m.Orphaned)) {
		all = append(all, Concern{
			Severity: SeverityWarn, Title: plural(m.Orphaned[name], "delivery waits", "deliveries wait") + " for " + name, Subscription: name,
			Text: "The subscription does not exist. Subscribe under its name, use Formerly, or retire the name.", Link: pagePath(prefix, "subscriptions", name),
		})
	}
	if m.AbandonedHandlers > 0 {
		all = append(all, Concern{
			Severity: SeverityWarn, Title: plural(int64(m.AbandonedHandlers), "abandoned handler still runs", "abandoned handlers still run"),
			Text: "A handler must return when its context ends.", Link: pagePath(prefix, "subscriptions"),
		})
	}
	slices.SortStableFunc(all, func(x, y Concern) int { return cmp.Compare(x.Severity, y.Severity) }) // bad before warn
	return all
}

// listed returns the part of the concerns that a page shows.
func listed(all []Concern, prefix string) []Concern {
	more := len(all) - maxConcerns
	if more <= 0 {
		return all
	}
	return append(slices.Clone(all[:maxConcerns]), Concern{
		Severity: SeverityWarn, Title: fmt.Sprintf("%d more", more), Link: linkTo(pagePath(prefix, "subscriptions"), url.Values{"sort": {"-state"}}),
	})
}

func (t *snapshot) storeConcerns() (all []Concern) {
	m := &t.metrics
	if m.StoreError != "" {
		all = append(all, Concern{Severity: SeverityBad, Title: "The store does not answer", Text: "The store counts are of " + rfc3339(m.StoreAt) + "."})
	} else if !t.causesKnown {
		all = append(all, Concern{Severity: SeverityBad, Title: "The dead letters could not be counted", Text: "The store takes too long, or its letters cannot be read. Load this page again."})
	}
	active := func(b eventbus.CatalogBus) bool { return b.Active }
	if buses := t.catalog.Buses; len(buses) > 0 && !slices.ContainsFunc(buses, active) && !t.catalog.Active {
		all = append(all, Concern{Severity: SeverityBad, Title: "No bus has the lease of the store", Text: "Handlers run where the lease is: start a bus, or look why Start of a standby waits."})
	}
	if !m.StoreSilentSince.IsZero() {
		all = append(all, Concern{
			Severity: SeverityBad, Title: "The store confirms nothing",
			Text: "Publications are refused. The last confirmation was at " + rfc3339(m.StoreSilentSince) + " or before. Look at its disk.",
		})
	}
	return all
}

// subscriptionConcerns returns the concerns of a subscription and its destinations.
func (t *snapshot) subscriptionConcerns(i int, prefix string) (all []Concern) {
	s, link := &t.metrics.Subscriptions[i], pagePath(prefix, "subscriptions", t.metrics.Subscriptions[i].Subscription)
	if severity, state := t.state(i); state != "" {
		c := Concern{Severity: severity, Title: s.Subscription + " " + state, Subscription: s.Subscription, Link: link}
		c.Text = held(s.Held)
		if s.LastError != "" {
			c.Text = strings.TrimSpace(c.Text + " Last failure: " + shown(s.LastError, 160))
		}
		all = append(all, c)
	}
	unwell := 0
	for _, d := range listOf(s.Destinations) {
		severity, state := t.destinationState(s, &d)
		if state == "" {
			continue
		}
		if unwell++; unwell > maxDestinations {
			continue
		}
		all = append(all, Concern{
			Severity: severity, Title: s.Subscription + " to " + shown(d.Destination, 80) + " " + state, Subscription: s.Subscription, Destination: d.Destination,
			Text: held(d.Held), Link: link,
		})
	}
	if unwell > maxDestinations {
		all = append(all, Concern{
			Severity: SeverityWarn, Title: s.Subscription + " has " + plural(int64(unwell-maxDestinations), "more destination", "more destinations") + " that are not well",
			Subscription: s.Subscription, Link: link,
		})
	}
	return all
}

// held says how many deliveries are held, if there are any.
func held(n int) string {
	if n == 0 {
		return ""
	}
	return plural(int64(n), "delivery is", "deliveries are") + " held."
}

// listOf returns the destinations that are not well, at most 100.
func listOf(all *eventbus.DestinationsMetrics) []eventbus.DestinationMetrics {
	if all == nil {
		return nil
	}
	return all.List
}

// states collects what is unusual.
type states struct {
	severity Severity
	texts    []string
}

func (s *states) add(severity Severity, text string) {
	if s.severity != SeverityBad {
		s.severity = severity
	}
	s.texts = append(s.texts, text)
}

// state returns what is unusual about a subscription, or "".
func (t *snapshot) state(i int) (Severity, string) {
	m, f := &t.metrics.Subscriptions[i], &t.figures[i]
	var s states
	s.admission(m.Circuit, m.ShutBy, m.Hung, m.Abandoned)
	if throttled := m.Throttled > 0 || !m.ThrottledUntil.IsZero(); throttled && m.Destinations == nil {
		s.add(SeverityWarn, "is throttled: "+plural(int64(m.Throttled), "delivery waits", "deliveries wait"))
	}
	if m.Destinations == nil && t.full(m.Parked(), m.Options.LineCapacity) {
		s.add(SeverityBad, "is full: "+plural(int64(m.Parked()), "delivery is", "deliveries are")+" parked")
	}
	if calls, failures := f.lately(); failures >= minFailures {
		switch rate := share(failures, calls); {
		case rate >= badFailing:
			s.add(SeverityBad, "fails: "+percent(rate)+" of "+plural(calls, "call", "calls"))
		case rate >= warnFailing:
			s.add(SeverityWarn, "fails: "+percent(rate)+" of "+plural(calls, "call", "calls"))
		}
	}
	if f.RecentSlow > 0 {
		s.add(SeverityWarn, "is slow: "+plural(f.RecentSlow, "call", "calls")+" took more than a third of the timeout in 5 minutes")
	}
	return s.severity, strings.Join(s.texts, " and ")
}

// destinationState returns what is unusual about a destination of a subscription, or "".
func (t *snapshot) destinationState(of *eventbus.SubscriptionMetrics, d *eventbus.DestinationMetrics) (Severity, string) {
	var s states
	shutBy := d.ShutBy
	if of.Paused || of.Detached {
		shutBy = "" // all of them are
	}
	if d.Paused && shutBy == "" && !of.Paused {
		shutBy = eventbus.ParkPaused
	}
	s.admission(d.Circuit, shutBy, d.Hung, d.Abandoned)
	if d.Throttled > 0 || !d.ThrottledUntil.IsZero() {
		s.add(SeverityWarn, "is throttled: "+plural(int64(d.Throttled), "delivery waits", "deliveries wait"))
	}
	if parked := d.Held + d.Throttled + d.Snoozed; t.full(parked, of.Options.LineCapacity) {
		s.add(SeverityBad, "is full: "+plural(int64(parked), "delivery is", "deliveries are")+" parked")
	}
	return s.severity, strings.Join(s.texts, " and ")
}

// full reports whether a line takes no further delivery. With a store, further ones wait there.
func (t *snapshot) full(parked, capacity int) bool {
	return t.metrics.Store == nil && capacity > 0 && parked >= capacity
}

// admission adds why deliveries may not enter.
func (s *states) admission(circuit eventbus.CircuitState, shutBy eventbus.ParkReason, hung bool, abandoned int) {
	switch circuit { //nolint:exhaustive // the others admit deliveries
	case eventbus.CircuitOpen:
		s.add(SeverityBad, "has its circuit open")
	case eventbus.CircuitHalfOpen:
		s.add(SeverityWarn, "has its circuit half-open")
	}
	switch shutBy {
	case "", eventbus.ParkCircuit, eventbus.ParkHung, eventbus.ParkThrottled:
	case eventbus.ParkPaused:
		s.add(SeverityWarn, "is paused")
	case eventbus.ParkDetached:
		s.add(SeverityWarn, "is detached")
	default:
		s.add(SeverityWarn, "is shut: "+string(shutBy))
	}
	if hung {
		s.add(SeverityBad, "is hung: "+plural(int64(abandoned), "abandoned call runs", "abandoned calls run"))
	}
}

// lately returns the calls and failures of the last 5 minutes, or of the hour if there was no call in them.
func (f *SubscriptionFigures) lately() (calls, failures int64) {
	if f.RecentCalls > 0 {
		return f.RecentCalls, f.RecentFailures
	}
	return f.Calls, f.Failures
}

// badge is a word about a state.
type badge struct{ Class, Text string }

// circuitBadge shows a circuit. A closed one is not green while calls fail.
func circuitBadge(circuit eventbus.CircuitState, f *SubscriptionFigures) (all []badge) {
	failing := badge{}
	if f != nil {
		calls, failures := f.lately()
		switch rate := share(failures, calls); {
		case rate >= badFailing:
			failing = badge{"bad", percent(rate) + " fail"}
		case rate >= warnFailing:
			failing = badge{"warn", percent(rate) + " fail"}
		}
	}
	class := map[eventbus.CircuitState]string{eventbus.CircuitOpen: "bad", eventbus.CircuitHalfOpen: "warn"}[circuit]
	if circuit == eventbus.CircuitClosed && f != nil && failing.Text == "" {
		class = "good"
	}
	all = append(all, badge{class, "circuit " + circuit.String()})
	if failing.Text != "" {
		all = append(all, failing)
	}
	return all
}

// percent returns a share in percent. Less than 1 % is not nothing.
func percent(share float64) string {
	if share > 0 && share < 0.01 {
		return "< 1 %"
	}
	return strconv.FormatFloat(math.Floor(share*100+1e-9), 'f', 0, 64) + " %"
}

// plural returns a number with the right noun.
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// account is a part of the ledger.
type account struct {
	Name  string
	Terms []term
}

// term is a number of the ledger. Field is its JSON name.
type term struct {
	Name, Field string
	Value       int64
}

// accountsOf returns the ledger in three parts: what was opened equals what has settled and what has not.
func accountsOf(l *eventbus.Ledger) []account {
	return []account{
		{"Opened", []term{
			{"Accepted", "accepted", l.Accepted},
			{"Copies", "copies", l.Copies},
			{"Splits", "splits", l.Splits},
			{"Replays", "replays", l.Replays},
			{"Claimed from the store", "claimed", l.Claimed},
		}},
		{"Settled", []term{
			{"Handled", "handled", l.Handled},
			{"Unrouted", "unrouted", l.Unrouted},
			{"Dead-lettered", "dead_lettered", l.DeadLettered},
			{"Dropped", "dropped", l.Dropped},
			{"Cancelled", "cancelled", l.Cancelled},
		}},
		{"Not settled", []term{
			{"Scheduled", "scheduled", l.Scheduled},
			{"Queued", "queued", l.Queued},
			{"Running", "running", l.Running},
			{"Waiting", "waiting", l.Waiting},
			{"Held", "held", l.Held},
			{"Throttled", "throttled", l.Throttled},
			{"Snoozed", "snoozed", l.Snoozed},
			{"Recording", "recording", l.Recording},
			{"Left to the store", "stored", l.Stored},
			{"Handed over", "handed_over", l.HandedOver},
		}},
	}
}

// typeRow has the counters of an event type.
type typeRow struct {
	Name, Link string
	eventbus.TypeMetrics
}

// maxTypeRows bounds the table of the overview.
const maxTypeRows = 20

// typeRowsOf returns the types with most dead letters and most events.
func typeRowsOf(types map[string]eventbus.TypeMetrics, prefix string) (rows []typeRow, caption string) {
	for name, m := range types {
		row := typeRow{Name: name, TypeMetrics: m, Link: linkTo(pagePath(prefix, "explain"), url.Values{"type": {name}})}
		if name == eventbus.OtherTypes {
			row.Name, row.Link = "(other types)", ""
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(x, y typeRow) int {
		return cmp.Or(cmp.Compare(y.DeadLettered, x.DeadLettered), cmp.Compare(y.Events, x.Events), cmp.Compare(x.Name, y.Name))
	})
	caption = "Since the bus was made"
	if len(rows) > maxTypeRows {
		caption = fmt.Sprintf("The first %d of %d types, since the bus was made", maxTypeRows, len(rows))
		rows = rows[:maxTypeRows]
	}
	return rows, caption
}
