package eventbus

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/surebus/eventbus/internal/route"
)

// LetterQuery selects the dead letters that match every field that is set.
type LetterQuery struct {
	// Type is a pattern of event types, as for Subscribe.
	Type string
	// Subscription matches DeadLetter.Subscription.
	Subscription string
	// Reason matches DeadLetter.Reason.
	Reason Reason
	// Fingerprint selects the letters of a group, see DLQ.Groups.
	Fingerprint string
	// Error is a substring of the text of one of the failures.
	Error string
	// Since and Until bound DeadLetter.DiedAt, both inclusive.
	Since, Until time.Time
	// All must be set if ReplayMatching or PurgeMatching is called without any of the fields above.
	All bool

	// Limit is the size of a page: 100 if it is 0, at most 10,000. List only.
	Limit int
	// Before selects letters older than this id. Set it to the Next of the previous page. List only.
	Before LetterID
	// ExactTotal makes LetterPage.Total exact beyond 10,000. List only.
	ExactTotal bool
}

// LetterPage is a page of dead letters, newest first.
type LetterPage struct {
	Letters []DeadLetter
	// Next is the Before of the next page. It is zero on the last page.
	Next LetterID
	// Total is the number of letters that match, on all pages. If TotalIsMore is set, more letters
	// match.
	Total       int
	TotalIsMore bool
}

const (
	defaultPage = 100
	maxPage     = 10_000
	maxTotal    = 10_000
)

// letterFilter is a validated LetterQuery.
type letterFilter struct {
	LetterQuery
	pattern *route.Pattern
	bounded bool // until applies, even if it is the zero time
	until   time.Time
	limit   int // page size
}

// filter validates a query for List.
func (q *DLQ) filter(ctx context.Context, query LetterQuery) (*letterFilter, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	refuse := func(field string, value any, reason string) (*letterFilter, error) {
		return nil, &OptionError{Option: "LetterQuery." + field, Value: fmt.Sprint(value), Reason: reason}
	}
	f := &letterFilter{LetterQuery: query, limit: query.Limit, until: query.Until, bounded: !query.Until.IsZero()}
	if query.Type != "" {
		pattern, offence := route.Parse(query.Type)
		if offence != nil {
			return nil, patternError(query.Type, offence)
		}
		f.pattern = pattern
	}
	if query.Limit == 0 {
		f.limit = defaultPage
	}
	switch {
	case query.Reason != "" && !slices.Contains(reasons, query.Reason):
		return refuse("Reason", query.Reason, fmt.Sprintf("must be one of %v", reasons))
	case query.Fingerprint != "" && !isFingerprint(query.Fingerprint):
		return refuse("Fingerprint", shorten(query.Fingerprint), "must be 32 lower-case hexadecimal digits; copy it from DLQ.Groups or from a letter")
	case query.Limit < 0 || query.Limit > maxPage:
		return refuse("Limit", query.Limit, fmt.Sprintf("must be from 1 to %d, or 0 for %d", maxPage, defaultPage))
	case f.bounded && query.Since.After(query.Until):
		return refuse("Since", query.Since, "must not be after Until")
	}
	return f, nil
}

// Matcher returns a function that reports whether a letter matches the fields of the query, except
// Before, for stores that compare letters one by one. The error is a *PatternError.
func (q LetterQuery) Matcher() (matches func(*DeadLetter) bool, err error) {
	f := &letterFilter{LetterQuery: q, until: q.Until, bounded: !q.Until.IsZero()}
	if q.Type != "" {
		pattern, offence := route.Parse(q.Type)
		if offence != nil {
			return nil, patternError(q.Type, offence)
		}
		f.pattern = pattern
	}
	return f.matches, nil
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
	return f.byIndex() && f.Subscription == "" && f.Reason == "" && f.Fingerprint == ""
}

// byIndex reports whether every letter of the filter's index matches, so that no letter has to be
// compared. There is an index for each subscription, reason, pair of both, and fingerprint, and one
// for all letters.
func (f *letterFilter) byIndex() bool {
	return f.pattern == nil && f.Error == "" && f.Since.IsZero() && !f.bounded &&
		(f.Fingerprint == "" || f.Subscription == "" && f.Reason == "")
}

// isBefore reports whether the letter is older than the last page.
func (f *letterFilter) isBefore(l *DeadLetter) bool {
	return f.Before.IsZero() || bytes.Compare(l.ID[:], f.Before[:]) < 0
}

// matches reports whether the letter matches all fields of the filter.
func (f *letterFilter) matches(l *DeadLetter) bool {
	return (f.Subscription == "" || f.Subscription == l.Subscription) &&
		(f.Reason == "" || f.Reason == l.Reason) &&
		(f.Fingerprint == "" || f.Fingerprint == l.Fingerprint) &&
		(f.Since.IsZero() || !l.DiedAt.Before(f.Since)) &&
		(!f.bounded || !l.DiedAt.After(f.until)) &&
		(f.pattern == nil || f.pattern.Match(l.Event.Type)) &&
		(f.Error == "" || slices.ContainsFunc(l.Failures, func(x Failure) bool { return strings.Contains(x.Error, f.Error) }))
}
