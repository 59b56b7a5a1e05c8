package eventbus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/errchain"
	"github.com/surebus/eventbus/internal/fingerprint"
	"github.com/surebus/eventbus/internal/jsonscan"
	"github.com/surebus/eventbus/internal/letters"
	"github.com/surebus/eventbus/internal/names"
	"github.com/surebus/eventbus/internal/route"
	"github.com/surebus/eventbus/internal/texts"
)

// LetterQuery selects the dead letters that match every field that is set.
type LetterQuery struct {
	// Type is a pattern of event types, as for Subscribe.
	Type string `json:"type,omitzero"`
	// Subscription matches DeadLetter.Subscription. A name that a subscription has, or had by Formerly,
	// matches the letters of all its names.
	Subscription string `json:"subscription,omitzero"`
	// Reason matches DeadLetter.Reason.
	Reason Reason `json:"reason,omitzero"`
	// Fingerprint selects the letters of a group, see DLQ.Groups.
	Fingerprint string `json:"fingerprint,omitzero"`
	// Event matches the id of the event, DeadLetter.Event.ID.
	Event EventID `json:"event,omitzero"`
	// Key matches the key of the event. It cannot select events without a key.
	Key string `json:"key,omitzero"`
	// IdempotencyKey matches the idempotency key of the event.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// MetadataName selects events whose metadata has this name, with the value MetadataValue. If
	// MetadataValue is empty, any value matches.
	MetadataName  string `json:"metadata_name,omitzero"`
	MetadataValue string `json:"metadata_value,omitzero"`
	// Error is a substring of the text of any of the failures.
	Error string `json:"error,omitzero"`
	// Since and Until bound DeadLetter.DiedAt, both inclusive.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// PublishedSince and PublishedUntil bound the time of the event, both inclusive. It is when Publish
	// was called, also for a scheduled event.
	PublishedSince time.Time `json:"published_since,omitzero"`
	PublishedUntil time.Time `json:"published_until,omitzero"`
	// Replayed selects events that were replayed before this death: DeadLetter.Replays is above 0.
	Replayed bool `json:"replayed,omitzero"`
	// All must be set if ReplayMatching or PurgeMatching is called without any of the fields above.
	All bool `json:"all,omitzero"`

	// Limit is the size of a page: 100 if it is 0, at most 10,000. List only.
	Limit int `json:"limit,omitzero"`
	// Before selects letters older than this id. Set it to the Next of the previous page. List only.
	Before LetterID `json:"before,omitzero"`
	// ExactTotal makes LetterPage.Total exact beyond 10,000. List only.
	ExactTotal bool `json:"exact_total,omitzero"`
}

// LetterPage is a page of dead letters, newest first.
type LetterPage struct {
	Letters []DeadLetter `json:"letters"` // newest first
	// Next is the Before of the next page. It is zero on the last page.
	Next LetterID `json:"next,omitzero"`
	// Total is the number of letters that match, on all pages. If TotalIsMore is set, more letters
	// match.
	Total       int  `json:"total"`
	TotalIsMore bool `json:"total_is_more,omitempty"`
}

const (
	defaultPage = 100
	maxPage     = 10_000
)

// letterFilter is a validated LetterQuery.
type letterFilter struct {
	LetterQuery
	same    *names.Same // of Subscription
	pattern *route.Pattern
	bounded bool // until applies, even if it is the zero time
	until   time.Time
	limit   int // page size
	noTotal bool
	encoded encodedTexts // of matchesParts
}

// filter validates a query for List.
func (q *DLQ) filter(ctx context.Context, query LetterQuery) (*letterFilter, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	refuse := func(field string, value any, reason string) (*letterFilter, error) {
		return nil, &OptionError{Option: "LetterQuery." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	f, err := query.filter()
	if err != nil {
		return nil, err
	}
	if query.Limit == 0 {
		f.limit = defaultPage
	}
	if f.same, err = q.bus.operators.namesOf(ctx, query.Subscription); err != nil {
		return nil, err
	}
	key, once := checkKey(query.Key), checkKey(query.IdempotencyKey)
	name, _ := texts.Problem(query.MetadataName, maxName)
	switch {
	case query.Reason != "" && !slices.Contains(reasons, query.Reason):
		return refuse("Reason", query.Reason, fmt.Sprintf("must be one of %v", reasons))
	case query.Fingerprint != "" && !isFingerprint(query.Fingerprint):
		return refuse("Fingerprint", shorten(query.Fingerprint), "must be 32 lower-case hexadecimal digits; copy it from DLQ.Groups or from a letter")
	case query.Limit < 0 || query.Limit > maxPage:
		return refuse("Limit", query.Limit, fmt.Sprintf("must be from 1 to %d, or 0 for %d", maxPage, defaultPage))
	case f.bounded && query.Since.After(query.Until):
		return refuse("Since", query.Since, "must not be after Until")
	case !query.PublishedUntil.IsZero() && query.PublishedSince.After(query.PublishedUntil):
		return refuse("PublishedSince", query.PublishedSince, "must not be after PublishedUntil")
	case key != "":
		return refuse("Key", shorten(query.Key), key)
	case once != "":
		return refuse("IdempotencyKey", shorten(query.IdempotencyKey), once)
	case name != "":
		return refuse("MetadataName", shorten(query.MetadataName), name+"; copy it from a letter")
	case query.MetadataName == "" && query.MetadataValue != "":
		return refuse("MetadataValue", shorten(query.MetadataValue), "must not be set without MetadataName; set both")
	}
	return f, nil
}

// filter returns the filter of a query. It validates Type only.
func (q LetterQuery) filter() (*letterFilter, error) {
	f := &letterFilter{LetterQuery: q, limit: q.Limit, until: q.Until, bounded: !q.Until.IsZero()}
	if q.Type != "" {
		pattern, offence := route.Parse(q.Type)
		if offence != nil {
			return nil, patternError(q.Type, offence)
		}
		f.pattern = pattern
	}
	return f, nil
}

// stored returns the query for a store, of a page.
func (f *letterFilter) stored(limit int) driver.LetterQuery {
	q := driver.LetterQuery{
		Event: driver.ID(f.Event), Key: f.Key, Subscriptions: f.same.Of(f.Subscription), Reason: string(f.Reason), Fingerprint: f.Fingerprint,
		Since: f.Since, Until: f.Until, PublishedSince: f.PublishedSince, PublishedUntil: f.PublishedUntil,
		Limit: limit, Before: driver.ID(f.Before), ExactTotal: f.ExactTotal, NoTotal: f.noTotal,
	}
	if f.pattern != nil {
		q.Type = f.pattern.Match
	}
	if f.Error != "" || f.MetadataName != "" || f.IdempotencyKey != "" || f.Replayed {
		q.Parts = f.matchesParts
		f.encoded = f.encodedTexts()
	}
	return q
}

// matchesParts compares the encoded parts of a letter. Decoding them would take ten times as long.
func (f *letterFilter) matchesParts(details, failures []byte) (bool, error) {
	for _, text := range f.encoded.details {
		if !bytes.Contains(details, text) {
			return false, nil
		}
	}
	var l DeadLetter
	if f.Replayed {
		replays, err := jsonscan.Find(details, "replays")
		if err != nil || replays == nil {
			return false, err
		}
		l.Replays = 1 // or more: 0 is left out
	}
	var err error
	if f.IdempotencyKey != "" {
		l.Event.IdempotencyKey, _, err = textIn(details, "event", "idempotency_key")
	}
	if f.MetadataName != "" && err == nil {
		var value string
		var has bool
		if value, has, err = textIn(details, "event", "metadata", f.MetadataName); has {
			l.Event.Metadata = EventMetadata{&[]metadataPair{{f.MetadataName, value}}}
		}
	}
	if matches := err == nil && f.matchesFields(&l); !matches || f.Error == "" {
		return matches, err
	}
	return f.matchesError(failures)
}

// errMatches ends the search of matchesError.
var errMatches = errors.New("matches")

// matchesError reports whether one of the encoded failures has the text of Error.
func (f *letterFilter) matchesError(failures []byte) (bool, error) {
	if f.encoded.failures != nil && !bytes.Contains(failures, f.encoded.failures) {
		return false, nil
	}
	err := jsonscan.Each(failures, func(failure []byte) error {
		value, err := jsonscan.Find(failure, "error")
		if value == nil || err != nil {
			return err
		}
		text, err := jsonscan.Text(value)
		if err == nil && bytes.Contains(text, []byte(f.Error)) {
			err = errMatches
		}
		return err
	})
	if errchain.Identical(err, errMatches) {
		return true, nil
	}
	return false, err
}

// encodedTexts are what the encoded parts of each letter that matches have in them. To look for that takes a tenth of the time of
// jsonscan, and few letters match most queries.
type encodedTexts struct {
	details  [][]byte
	failures []byte // nil: unknown
}

func (f *letterFilter) encodedTexts() (e encodedTexts) {
	for _, text := range []string{f.IdempotencyKey, f.MetadataName, f.MetadataValue} {
		if text != "" && isPlain(text) {
			e.details = append(e.details, []byte(`"`+text+`"`))
		}
	}
	if f.Replayed {
		e.details = append(e.details, []byte(`"replays":`))
	}
	if f.Error != "" && isPlain(f.Error) {
		e.failures = []byte(f.Error)
	}
	return e
}

// isPlain reports whether JSON has a text as it is. encoding/json escapes nothing else.
func isPlain(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"\\<>&`, r) })
}

// textIn returns a string in an encoded object, and whether it is there.
func textIn(object []byte, path ...string) (string, bool, error) {
	value, err := jsonscan.Find(object, path...)
	if value == nil || err != nil {
		return "", false, err
	}
	text, err := jsonscan.Text(value)
	return string(text), true, err
}

// wholeFilter validates the query of an operation without pages.
func (q *DLQ) wholeFilter(ctx context.Context, query LetterQuery) (*letterFilter, error) {
	refuse := func(field string, value any) (*letterFilter, error) {
		return nil, &OptionError{Option: "LetterQuery." + field, Value: fmt.Sprint(value), Reason: "must not be set: only List has pages"}
	}
	switch {
	case query.Limit != 0:
		return refuse("Limit", query.Limit)
	case !query.Before.IsZero():
		return refuse("Before", query.Before)
	}
	return q.filter(ctx, query)
}

// matchesAll reports whether no field excludes a letter. A zero time of any location excludes none.
func (f *letterFilter) matchesAll() bool {
	return !f.compares() && f.labels() == (letters.Labels{})
}

// inMemory returns the query for the queue in memory.
func (f *letterFilter) inMemory() letters.Query[*keptLetter] {
	q := letters.Query[*keptLetter]{Labels: f.labels(), Limit: f.limit, Before: letters.ID(f.Before), ExactTotal: f.ExactTotal, NoTotal: f.noTotal}
	if f.compares() {
		q.Matches = func(l *keptLetter) bool { return f.matches(&l.DeadLetter) }
	}
	return q
}

// labels returns the labels that all matching letters have. Letters of a subscription with several names have none of it.
func (f *letterFilter) labels() letters.Labels {
	l := letters.Labels{Reason: string(f.Reason), Fingerprint: f.Fingerprint, Event: letters.ID(f.Event), Key: f.Key}
	if f.same == nil {
		l.Subscription = f.Subscription
	}
	return l
}

// compares reports whether a letter with the labels may not match.
func (f *letterFilter) compares() bool {
	return f.pattern != nil || f.Error != "" || !f.Since.IsZero() || f.bounded ||
		f.same != nil || !f.PublishedSince.IsZero() || !f.PublishedUntil.IsZero() || f.MetadataName != "" || f.IdempotencyKey != "" || f.Replayed
}

// matches reports whether a letter with the labels matches the other fields of the filter.
func (f *letterFilter) matches(l *DeadLetter) bool {
	return (f.same == nil || f.same.Has(l.Subscription)) &&
		(f.PublishedSince.IsZero() || !l.Event.Time.Before(f.PublishedSince)) &&
		(f.PublishedUntil.IsZero() || !l.Event.Time.After(f.PublishedUntil)) &&
		(f.Since.IsZero() || !l.DiedAt.Before(f.Since)) &&
		(!f.bounded || !l.DiedAt.After(f.until)) &&
		(f.pattern == nil || f.pattern.Match(l.Event.Type)) && f.matchesTexts(l)
}

// matchesTexts compares the number of replays, the idempotency key, metadata and the texts of failures.
func (f *letterFilter) matchesTexts(l *DeadLetter) bool {
	return f.matchesFields(l) && (f.Error == "" || slices.ContainsFunc(l.Failures, func(x Failure) bool { return strings.Contains(x.Error, f.Error) }))
}

// matchesFields is matchesTexts without the failures.
func (f *letterFilter) matchesFields(l *DeadLetter) bool {
	return (!f.Replayed || l.Replays > 0) && (f.IdempotencyKey == "" || f.IdempotencyKey == l.Event.IdempotencyKey) &&
		(f.MetadataName == "" || f.matchesMetadata(l.Event.Metadata))
}

func (f *letterFilter) matchesMetadata(m EventMetadata) bool {
	value, ok := m.Lookup(f.MetadataName)
	return ok && (f.MetadataValue == "" || f.MetadataValue == value)
}

// LetterGroup is a set of dead letters that probably have the same cause. They have the same subscription, the same
// class of the last error, and the same error text apart from numbers. Letters without a failure, for example at an
// open circuit, are grouped by reason.
type LetterGroup struct {
	// Fingerprint identifies the group, in any process. Use it in a LetterQuery. It is empty for the
	// group of the letters beyond 10,000 groups.
	Fingerprint  string `json:"fingerprint,omitempty"`
	Subscription string `json:"subscription,omitempty"` // where the dispatches ended
	// Class is the Go type of the last failure's error, such as "*fs.PathError". Wrappers are removed:
	// fmt.Errorf, errors.Join (the first error counts), Permanent, RetryAfter. It is empty without a
	// failure.
	Class string `json:"class,omitempty"`
	// Message is the error's text, cut at 1 KiB. Numbers, UUIDs, and hexadecimal numbers of at least 8
	// digits are replaced by #. Without a failure, Message is the reason.
	Message string `json:"message"`
	Count   int    `json:"count"` // number of letters
	// First and Last are the earliest and the latest DiedAt of the letters, in UTC.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Newest is the largest id of the letters.
	Newest LetterID `json:"newest"`
}

// Limits of Groups.
const (
	maxGroups       = driver.MaxGroups
	maxGroupMessage = 1 << 10
)

// beyondGroups is the message of the group of all letters beyond maxGroups.
var beyondGroups = fmt.Sprintf("(beyond %d groups)", maxGroups)

// Groups returns the groups of the letters that match a query, with their counts. Groups are sorted
// by Count, then by Newest, both descending. An empty query matches all letters.
//
// Groups returns at most 10,000 groups, chosen by the newest letters. One more group at the end counts all other
// letters; it has no fingerprint and no subscription.
//
// Groups holds no lock while it counts, at about 0.4 µs a letter, and stops when ctx ends. Errors:
// those of List; an *OptionError for Limit and Before.
func (q *DLQ) Groups(ctx context.Context, query LetterQuery) ([]LetterGroup, error) {
	f, err := q.wholeFilter(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("Groups: %w", err)
	}
	groups, err := q.bus.letters.groups(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("Groups: %w", err)
	}
	return groups, nil
}

// Group returns the group of a letter, without Count, First, Last and Newest.
func (l *DeadLetter) Group() LetterGroup {
	g := LetterGroup{Subscription: l.Subscription, Message: string(l.Reason)}
	if n := len(l.Failures); n > 0 {
		g.Class, g.Message = l.Failures[n-1].Class, fingerprint.WithoutNumbers(l.Failures[n-1].Error)
	}
	// Each part has its length in front, so that different groups have different texts.
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d %s %t %s",
		len(g.Subscription), g.Subscription, len(g.Class), g.Class, len(l.Failures) > 0, g.Message))
	g.Fingerprint = hex.EncodeToString(sum[:fingerprintSize])
	if len(g.Message) > maxGroupMessage {
		g.Message = strings.ToValidUTF8(g.Message[:maxGroupMessage], "") + "…"
	}
	return g
}

const fingerprintSize = 16

// isFingerprint reports whether s has the form of a fingerprint.
func isFingerprint(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == 2*fingerprintSize && s == strings.ToLower(s)
}

// classOf returns the class of an error, see LetterGroup.
func classOf(err error) string {
	if recorded, ok := err.(*recordedError); ok { //nolint:errorlint // only the store's own
		return recorded.class
	}
	return errchain.Class(err, func(err error) error {
		switch e := err.(type) { //nolint:errorlint // the type of this error, not of the errors that it wraps
		case *permanentError:
			return e.err
		case *throttleError:
			return e.err
		case *retryAfterError:
			return e.err
		}
		return nil
	})
}
