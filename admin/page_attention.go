package admin

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/surebus/eventbus"
)

// concern is something that an operator must look at.
type concern struct {
	Class       string // "bad" or "warn"
	Title, Text string
	Link        string // where to go on
}

// maxConcerns bounds the list of the overview.
const maxConcerns = 20

// concernsOf returns what needs attention, the worst first.
func concernsOf(m *eventbus.Metrics, prefix string) []concern {
	var bad, warn []concern
	add := func(c concern) {
		if c.Class == "bad" {
			bad = append(bad, c)
		} else {
			warn = append(warn, c)
		}
	}
	if m.StoreError != "" {
		add(concern{Class: "bad", Title: "The store does not answer", Text: "The store counts are of " + rfc3339(m.StoreAt) + "."})
	}
	if !m.StoreSilentSince.IsZero() {
		add(concern{
			Class: "bad", Title: "The store confirms nothing",
			Text: "Publications are refused. The last confirmation was at " + rfc3339(m.StoreSilentSince) + " or before. Look at its disk.",
		})
	}
	for i := range m.Subscriptions {
		s := &m.Subscriptions[i]
		if state := stateOf(s); state != "" {
			c := concern{Class: "warn", Title: s.Subscription + " " + state, Link: pagePath(prefix, "subscriptions", s.Subscription)}
			if s.Circuit == eventbus.CircuitOpen || slices.ContainsFunc(shutDestinations(s), isOpen) {
				c.Class = "bad"
			}
			c.Text = plural(int64(s.Held), "delivery is", "deliveries are") + " held."
			if s.LastError != "" {
				c.Text += " Last failure: " + shown(s.LastError, 160)
			}
			add(c)
		}
	}
	if m.DeadLetters > 0 {
		add(concern{
			Class: "warn", Title: plural(int64(m.DeadLetters), "dead letter", "dead letters"),
			Text: "See what they died of, then replay them.", Link: pagePath(prefix, "groups"),
		})
	}
	if m.LettersEvicted > 0 {
		add(concern{
			Class: "bad", Title: plural(m.LettersEvicted, "dead letter was", "dead letters were") + " evicted",
			Text: "The queue was full: raise WithDeadLetterCapacity, or use a store.",
		})
	}
	for _, name := range slices.Sorted(maps.Keys(m.Orphaned)) {
		add(concern{
			Class: "warn", Title: plural(m.Orphaned[name], "delivery waits", "deliveries wait") + " for " + name,
			Text: "The subscription does not exist. Subscribe under its name, use Formerly, or end the name with eventbus subs retire.",
		})
	}
	if m.AbandonedHandlers > 0 {
		add(concern{
			Class: "warn", Title: plural(int64(m.AbandonedHandlers), "abandoned handler still runs", "abandoned handlers still run"),
			Text: "A handler must return when its context ends.", Link: pagePath(prefix, "subscriptions"),
		})
	}
	all := slices.Concat(bad, warn)
	if more := len(all) - maxConcerns; more > 0 {
		all = append(all[:maxConcerns], concern{Class: "warn", Title: fmt.Sprintf("%d more", more), Link: pagePath(prefix, "subscriptions")})
	}
	return all
}

// stateOf returns what is unusual about the admission of a subscription, or "".
func stateOf(s *eventbus.SubscriptionMetrics) string {
	var states []string
	if s.Circuit == eventbus.CircuitOpen || s.Circuit == eventbus.CircuitHalfOpen {
		states = append(states, "has its circuit "+s.Circuit.String())
	}
	switch s.ShutBy {
	case "", eventbus.ParkCircuit, eventbus.ParkHung:
	case eventbus.ParkPaused:
		states = append(states, "is paused")
	case eventbus.ParkDetached:
		states = append(states, "is detached")
	default:
		states = append(states, "is shut: "+string(s.ShutBy))
	}
	if s.Hung {
		states = append(states, "is hung: "+plural(int64(s.Abandoned), "abandoned call runs", "abandoned calls run"))
	}
	if shut := shutDestinations(s); len(shut) > 0 {
		state := "has " + plural(int64(len(shut)), "destination", "destinations") + " shut: " + shown(shut[0].Destination, 40)
		if len(shut) > 1 {
			state += ", …"
		}
		states = append(states, state)
	}
	return strings.Join(states, " and ")
}

// shutDestinations returns the destinations that an outage, hanging calls or an operator have shut, of the 100 with the most
// parked deliveries. One that is throttled works as its options say.
func shutDestinations(s *eventbus.SubscriptionMetrics) (shut []eventbus.DestinationMetrics) {
	if s.Destinations == nil {
		return nil
	}
	for _, d := range s.Destinations.List {
		if isOpen(d) || d.Circuit == eventbus.CircuitHalfOpen || d.Paused || d.Hung {
			shut = append(shut, d)
		}
	}
	return shut
}

func isOpen(d eventbus.DestinationMetrics) bool { return d.Circuit == eventbus.CircuitOpen }

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
