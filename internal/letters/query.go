package letters

import (
	"bytes"

	"github.com/surebus/eventbus/driver"
)

// Query selects the letters that have all Labels that are set, and match Matches.
type Query[L any] struct {
	Labels
	Matches func(L) bool // nil matches every letter; called with the lock held

	// Limit is the size of a page, at least 1. Page only.
	Limit int
	// Before, unless it is zero, selects the letters with smaller IDs. Page only.
	Before ID
	// ExactTotal makes Page.Total exact beyond driver.MaxTotal.
	ExactTotal bool
	// NoTotal leaves Page.Total 0. A page then costs no more than its own letters and those between them.
	NoTotal bool
}

// Page is a page of letters.
type Page[L any] struct {
	Letters []L // newest first
	// Next is the Before of the next page. It is zero on the last page.
	Next ID
	// Total is the number of letters that match, on all pages. If TotalIsMore is set, more letters match.
	Total       int
	TotalIsMore bool
}

// Page returns a page of matching letters.
func (q *Queue[L]) Page(query Query[L]) (page Page[L]) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	candidates, matches := q.selectLocked(&query)
	var from, last ID
	counted := matches == nil || query.NoTotal
	if counted {
		from = query.Before
	}
	if !query.NoTotal && matches == nil {
		page.Total = candidates.length
	}
	for e := range candidates.descending(from) {
		if matches != nil && !matches(e.letter) {
			continue
		}
		older := query.Before == ID{} || bytes.Compare(e.id[:], query.Before[:]) < 0
		switch {
		case !older || page.Next != ID{}:
		case len(page.Letters) == query.Limit:
			page.Next = last
		default:
			page.Letters, last = append(page.Letters, e.letter), e.id
		}
		switch {
		case counted:
		case page.Total == driver.MaxTotal && !query.ExactTotal:
			page.TotalIsMore = true
		default:
			page.Total++
		}
		if page.Next != (ID{}) && (counted || page.TotalIsMore) {
			break
		}
	}
	return page
}

// Matching returns the matching letters, oldest first.
func (q *Queue[L]) Matching(query Query[L]) (letters []L) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	candidates, matches := q.selectLocked(&query)
	if matches == nil {
		letters = make([]L, 0, candidates.length)
	}
	for e := range candidates.ascending() {
		if matches == nil || matches(e.letter) {
			letters = append(letters, e.letter)
		}
	}
	return letters
}

// selectLocked returns the shortest list that contains all matching letters, and what selects them there: nil if all
// letters of the list match.
func (q *Queue[L]) selectLocked(query *Query[L]) (shortest *list[L], matches func(L) bool) {
	shortest, matches = &q.letters.all, query.Matches
	keys := 0
	for _, key := range [...]Labels{
		{Event: query.Event},
		{Fingerprint: query.Fingerprint},
		{Key: query.Key},
		{Subscription: query.Subscription, Reason: query.Reason},
	} {
		if key == (Labels{}) {
			continue
		}
		keys++
		if l := q.letters.with(key); l.length < shortest.length {
			shortest = l
		}
	}
	if keys > 1 { // the list has one of the keys
		matches = func(l L) bool {
			return query.match(q.config.Facts(l).Labels) && (query.Matches == nil || query.Matches(l))
		}
	}
	return shortest, matches
}

// match reports whether other labels equal those that are set.
func (l *Labels) match(other Labels) bool {
	return (l.Subscription == "" || l.Subscription == other.Subscription) &&
		(l.Reason == "" || l.Reason == other.Reason) &&
		(l.Fingerprint == "" || l.Fingerprint == other.Fingerprint) &&
		(l.Event == ID{} || l.Event == other.Event) &&
		(l.Key == "" || l.Key == other.Key)
}
