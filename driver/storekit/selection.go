package storekit

import (
	"bytes"

	"github.com/surebus/eventbus/driver"
)

// Selection selects a page of dead letters for Letters of a store that compares them one by one.
type Selection struct {
	Query       driver.LetterQuery // selects the letters
	IDs         []driver.ID        // the letters of the page, newest first
	IsMore      bool               // older letters match
	Total       int                // as in driver.LetterPage
	TotalIsMore bool               // as in driver.LetterPage
}

// Visit adds the next matching letter, newest first. It returns false if further letters cannot change the selection.
func (s *Selection) Visit(l *driver.Letter) bool {
	older := s.Query.Before.IsZero() || bytes.Compare(l.ID[:], s.Query.Before[:]) < 0
	switch {
	case !older || s.IsMore:
	case len(s.IDs) == s.Query.Limit:
		s.IsMore = true
	default:
		s.IDs = append(s.IDs, l.ID)
	}
	switch {
	case s.Query.NoTotal:
	case s.Total == driver.MaxTotal && !s.Query.ExactTotal:
		s.TotalIsMore = true
	default:
		s.Total++
	}
	return !(s.IsMore && (s.TotalIsMore || s.Query.NoTotal))
}
