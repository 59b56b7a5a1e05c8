package driver

import (
	"slices"
	"time"
)

// Letter is a dead letter: the columns by which it is found, and four parts that only the bus reads.
type Letter struct {
	ID           ID        // the letter's id
	Event        ID        // the event's id
	Type         string    // the event type
	Key          string    // the event's key; empty for none
	Subscription string    // where the dispatch ended
	Reason       string    // why it ended
	Fingerprint  string    // identifies the letter's group
	Published    time.Time // when the event was published
	DiedAt       time.Time // when the dispatch ended

	// Details and Failures are JSON. Queries may compare them, but not Payload and Original, which may be large.
	Details  []byte
	Failures []byte
	// Payload is the payload of the event. Original is the payload that a replay replaced, or nil.
	Payload  []byte
	Original []byte
}

// Size returns the bytes of the four parts.
func (l *Letter) Size() int {
	return len(l.Details) + len(l.Failures) + len(l.Payload) + len(l.Original)
}

// LetterQuery selects the letters that match every field that is set.
type LetterQuery struct {
	Event         ID       // zero: all
	Key           string   // empty: all
	Subscriptions []string // letters of any of these; empty: all
	Reason        string   // empty: all
	Fingerprint   string   // empty: all
	// The bounds are inclusive. They may be outside of the years that a store keeps.
	Since, Until                   time.Time                                    // bound DiedAt
	PublishedSince, PublishedUntil time.Time                                    // bound Published
	Type                           func(eventType string) bool                  // nil: all
	Parts                          func(details, failures []byte) (bool, error) // nil: all; it keeps neither

	Limit      int  // of a page; at least 1
	Before     ID   // selects smaller ids; zero: all
	ExactTotal bool // LetterPage.Total is exact beyond MaxTotal
	NoTotal    bool // the letters are not counted: LetterPage.Total is 0 and TotalIsMore false; overrides ExactTotal
}

// Compares reports whether the query has a function with which each letter must be compared.
func (q *LetterQuery) Compares() bool { return q.Type != nil || q.Parts != nil }

// Matches reports whether a letter matches all fields but Limit, Before, ExactTotal and NoTotal, for stores that
// compare letters one by one. Letters from Before on are not on the page, but count in its Total.
func (q *LetterQuery) Matches(l *Letter) (bool, error) {
	if !(q.Event.IsZero() || q.Event == l.Event) ||
		q.Key != "" && q.Key != l.Key ||
		len(q.Subscriptions) > 0 && !slices.Contains(q.Subscriptions, l.Subscription) ||
		q.Reason != "" && q.Reason != l.Reason ||
		q.Fingerprint != "" && q.Fingerprint != l.Fingerprint ||
		!q.Since.IsZero() && l.DiedAt.Before(q.Since) || !q.Until.IsZero() && l.DiedAt.After(q.Until) ||
		!q.PublishedSince.IsZero() && l.Published.Before(q.PublishedSince) ||
		!q.PublishedUntil.IsZero() && l.Published.After(q.PublishedUntil) ||
		q.Type != nil && !q.Type(l.Type) {
		return false, nil
	}
	if q.Parts == nil {
		return true, nil
	}
	return q.Parts(l.Details, l.Failures)
}

// LetterPage is a page of letters, newest first.
type LetterPage struct {
	Letters []Letter // newest first
	// Next is the Before of the next page. It is zero on the last page.
	Next ID
	// Total is the number of letters that match, on all pages. If TotalIsMore is set, more letters match.
	Total       int
	TotalIsMore bool
}

// Limits of stores.
const (
	// MaxTotal bounds LetterPage.Total, unless the query asks for an exact one.
	MaxTotal = 10_000
	// MaxGroups bounds the groups of Groups, without the group for all other letters.
	MaxGroups = 10_000
)

// Group is a set of letters with one Fingerprint.
type Group struct {
	Fingerprint string    // identifies the group
	Count       int       // number of letters
	First, Last time.Time // the earliest and the latest DiedAt
	Newest      ID        // the largest id
	// Sample is the letter Newest without Payload and Original. It is nil for the group of all other letters.
	Sample *Letter
}
