package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/surebus/eventbus"
)

// filterFlags adds a flag for each field of a LetterQuery that selects letters.
func filterFlags(c *cobra.Command, q *eventbus.LetterQuery) {
	f := c.Flags()
	f.StringVar(&q.Type, "type", "", "`PATTERN` of the event type, such as 'order.*'")
	f.StringVar(&q.Subscription, "subscription", "", "`NAME` of the subscription at which the letter died")
	choiceFlag(c, &q.Reason, "reason", "`REASON` of the death", reasonNames())
	f.StringVar(&q.Fingerprint, "fingerprint", "", "`GROUP` of the letter, see 'eventbus dlq groups'")
	f.TextVar(&q.Event, "event", eventbus.EventID{}, "`ID` of the event")
	f.StringVar(&q.Key, "key", "", "`KEY` of the event")
	f.StringVar(&q.IdempotencyKey, "idempotency-key", "", "idempotency `KEY` of the event")
	f.StringVar(&q.MetadataName, "metadata-name", "", "`NAME` in the metadata of the event")
	f.StringVar(&q.MetadataValue, "metadata-value", "", "`VALUE` of --metadata-name")
	f.StringVar(&q.Error, "error", "", "`TEXT` in the error of a failure")
	timeFlag(f, &q.Since, "since", "died at or after `TIME`: 2026-11-25T03:00:00Z, 2026-11-25, or 2h for two hours ago")
	timeFlag(f, &q.Until, "until", "died at or before `TIME`")
	timeFlag(f, &q.PublishedSince, "published-since", "published at or after `TIME`")
	timeFlag(f, &q.PublishedUntil, "published-until", "published at or before `TIME`")
	f.BoolVar(&q.Replayed, "replayed", false, "of events that were replayed before they died")
	f.Lookup("event").DefValue = ""
}

func reasonNames() (all []string) {
	for _, r := range eventbus.Reasons() {
		all = append(all, string(r))
	}
	return all
}

func timeFlag(f *pflag.FlagSet, t *time.Time, name, help string) {
	f.Var((*timeValue)(t), name, help)
}

// timeValue is a time that a flag sets.
type timeValue time.Time

func (v *timeValue) Type() string { return "TIME" }

func (v *timeValue) String() string {
	if t := time.Time(*v); !t.IsZero() {
		return t.Format(time.RFC3339Nano)
	}
	return ""
}

func (v *timeValue) Set(text string) error {
	t, err := parseTime(text, false)
	if err == nil && t.IsZero() { // a query takes it for no bound
		err = fmt.Errorf("must be after 0001-01-01T00:00:00Z")
	}
	if err == nil {
		*v = timeValue(t)
	}
	return err
}

// parseTime parses a time, a date in UTC, or a duration, which is before now, or after it if ahead is set.
func parseTime(text string, ahead bool) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		if !ahead {
			d = -d
		}
		return time.Now().UTC().Add(d), nil
	}
	return time.Time{}, fmt.Errorf("must be a time such as 2026-11-25T03:00:00Z, a date, or a duration such as 90m or 2h")
}

// isEmpty reports whether no field selects letters.
func isEmpty(q eventbus.LetterQuery) bool {
	q.Limit, q.Before, q.ExactTotal, q.All = 0, eventbus.LetterID{}, false, false
	return q == eventbus.LetterQuery{}
}

// filterArgs returns the flags that select the same letters, for a command line that is printed.
func filterArgs(q eventbus.LetterQuery) string {
	var b strings.Builder
	add := func(flag, value string) {
		if value != "" {
			fmt.Fprintf(&b, " --%s %s", flag, shellQuote(value))
		}
	}
	when := func(flag string, t time.Time) {
		if !t.IsZero() {
			add(flag, t.UTC().Format(time.RFC3339Nano))
		}
	}
	if q.All {
		b.WriteString(" --all")
	}
	add("type", q.Type)
	add("subscription", q.Subscription)
	add("reason", string(q.Reason))
	add("fingerprint", q.Fingerprint)
	if !q.Event.IsZero() {
		add("event", q.Event.String())
	}
	add("key", q.Key)
	add("idempotency-key", q.IdempotencyKey)
	add("metadata-name", q.MetadataName)
	add("metadata-value", q.MetadataValue)
	add("error", q.Error)
	when("since", q.Since)
	when("until", q.Until)
	when("published-since", q.PublishedSince)
	when("published-until", q.PublishedUntil)
	if q.Replayed {
		b.WriteString(" --replayed")
	}
	return b.String()
}

// dispatchFlags adds a flag for each field of a DispatchQuery that selects dispatches, but the subscription.
func dispatchFlags(c *cobra.Command, q *eventbus.DispatchQuery) {
	f := c.Flags()
	choiceFlag(c, &q.State, "state", "`STATE`", []string{"queued", "running", "waiting", "scheduled", "parked"})
	f.StringVar(&q.Type, "type", "", "`PATTERN` of the event type, such as 'order.*'")
	f.StringVar(&q.Destination, "destination", "", "`NAME` of the destination of the next delivery")
	f.StringVar(&q.Key, "key", "", "`KEY` of the event")
	f.StringVar(&q.IdempotencyKey, "idempotency-key", "", "idempotency `KEY` of the event")
	f.StringVar(&q.Error, "error", "", "`TEXT` in the last error")
	timeFlag(f, &q.PublishedUntil, "published-until", "published at or before `TIME`: 2026-11-25T03:00:00Z, 2026-11-25, or 2h for two hours ago")
}

// dispatchArgs returns the flags that select the same events, for a command line that is printed.
func dispatchArgs(q eventbus.DispatchQuery) string {
	var b strings.Builder
	if q.All {
		b.WriteString(" --all")
	}
	until := ""
	if !q.PublishedUntil.IsZero() {
		until = q.PublishedUntil.UTC().Format(time.RFC3339Nano)
	}
	for _, f := range []struct{ name, value string }{
		{"state", string(q.State)},
		{"type", q.Type},
		{"subscription", q.Subscription},
		{"destination", q.Destination},
		{"key", q.Key},
		{"idempotency-key", q.IdempotencyKey},
		{"error", q.Error},
		{"published-until", until},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " --%s %s", f.name, shellQuote(f.value))
		}
	}
	return b.String()
}

// shellQuote quotes an argument for a POSIX shell, if it needs it.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,+=@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
