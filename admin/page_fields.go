package admin

import (
	"net/url"
	"slices"

	"github.com/surebus/eventbus"
)

// field is an input of a filter form. Its name is that of the parameter of the API.
type field struct {
	Name, Label, Value, Placeholder string
	Options                         []string // of a selection
	Invalid                         bool
}

const exampleTime = "2026-01-31T08:00:00Z"

// The fields of filters, by the JSON names of LetterQuery, DispatchQuery and AuditQuery.
var (
	mainLetterFields = []field{
		{Name: "type", Label: "Type, a pattern", Placeholder: "order.*"},
		{Name: "subscription", Label: "Subscription"},
		{Name: "reason", Label: "Reason", Options: namesOf(eventbus.Reasons()...)},
		{Name: "error", Label: "Error contains"},
		{Name: "since", Label: "Died since", Placeholder: exampleTime},
		{Name: "until", Label: "Died until", Placeholder: exampleTime},
	}
	moreLetterFields = []field{
		{Name: "key", Label: "Key"},
		{Name: "idempotency_key", Label: "Idempotency key"},
		{Name: "event", Label: "Event id"},
		{Name: "fingerprint", Label: "Group, a fingerprint"},
		{Name: "metadata_name", Label: "Metadata name"},
		{Name: "metadata_value", Label: "Metadata value"},
		{Name: "published_since", Label: "Published since", Placeholder: exampleTime},
		{Name: "published_until", Label: "Published until", Placeholder: exampleTime},
		{Name: "replayed", Label: "Replayed before", Options: []string{"true"}},
		{Name: "limit", Label: "Letters on a page", Placeholder: "25"},
	}
	findFields = []field{
		{Name: "find_idempotency_key", Label: "Idempotency key"},
		{Name: "find_type", Label: "Type of the event, without wildcards", Placeholder: "order.placed"},
	}
	dispatchFields = []field{
		{Name: "state", Label: "State", Options: namesOf(eventbus.DispatchQueued, eventbus.DispatchRunning,
			eventbus.DispatchWaiting, eventbus.DispatchScheduled, eventbus.DispatchParked)},
		{Name: "type", Label: "Type, a pattern", Placeholder: "order.*"},
		{Name: "subscription", Label: "Subscription"},
		{Name: "key", Label: "Key"},
		{Name: "idempotency_key", Label: "Idempotency key"},
		{Name: "destination", Label: "Destination"},
		{Name: "error", Label: "Last error contains"},
		{Name: "published_until", Label: "Published until", Placeholder: exampleTime},
	}
	auditFields = []field{
		{Name: "action", Label: "Action", Options: namesOf(eventbus.AuditActions()...)},
		{Name: "by", Label: "By"},
		{Name: "subscription", Label: "Subscription"},
		{Name: "letter_id", Label: "Letter id"},
		{Name: "event_id", Label: "Event id"},
		{Name: "request_id", Label: "Request id"},
		{Name: "denied", Label: "Denied only", Options: []string{"true"}},
		{Name: "since", Label: "Since", Placeholder: exampleTime},
		{Name: "until", Label: "Until", Placeholder: exampleTime},
	}
)

// namesOf returns constants as texts.
func namesOf[T ~string](values ...T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}

// filled returns the fields with the values of a query.
func filled(fields []field, query url.Values) []field {
	fields = slices.Clone(fields)
	for i := range fields {
		fields[i].Value = query.Get(fields[i].Name)
	}
	return fields
}

// anySet reports whether a field has a value.
func anySet(fields []field) bool {
	return slices.ContainsFunc(fields, func(f field) bool { return f.Value != "" })
}

// onlySet returns the fields that have a value.
func onlySet(fields []field) []field {
	return slices.DeleteFunc(slices.Clone(fields), func(f field) bool { return f.Value == "" })
}

// nonEmpty returns a query without empty values: a form without JavaScript sends all of its fields.
func nonEmpty(query url.Values) url.Values {
	kept := make(url.Values, len(query))
	for name, values := range query {
		values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" })
		if len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// without returns a query without some parameters.
func without(query url.Values, names ...string) url.Values {
	kept := make(url.Values, len(query))
	for name, values := range query {
		if !slices.Contains(names, name) {
			kept[name] = values
		}
	}
	return kept
}
