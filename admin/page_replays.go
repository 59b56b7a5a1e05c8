package admin

import (
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// replayRow is a replay of an event, with a link to the bulk operation of which it was a part.
type replayRow struct {
	eventbus.LetterReplay
	Operation string
	Became    string
}

// replayRows returns the replays of an event that has letters.
func (c *call) replayRows(log []eventbus.LetterReplay, letters []eventbus.DeadLetter) []replayRow {
	rows := make([]replayRow, len(log))
	operations := make(map[time.Time]string)
	for i, r := range log {
		rows[i] = replayRow{LetterReplay: r, Became: becameOf(&r, letters)}
		if r.Bulk.IsZero() {
			continue
		}
		if _, known := operations[r.Bulk]; !known {
			operations[r.Bulk] = c.operationAt(r.Bulk)
		}
		rows[i].Operation = operations[r.Bulk]
	}
	return rows
}

// becameOf returns what the letters of an event tell of a replay.
func becameOf(r *eventbus.LetterReplay, letters []eventbus.DeadLetter) string {
	for i := range letters {
		l := &letters[i]
		for n := range l.ReplayLog {
			switch {
			case l.ReplayLog[n].Letter != r.Letter:
			case n < len(l.ReplayLog)-1:
				return "died again, and was replayed again"
			default:
				return "died again at " + l.DiedAt.Format("2006-01-02 15:04:05Z")
			}
		}
	}
	return "left no letter"
}

// operationAt links to the bulk replay that the audit has at a time: to its page in this process, or else to its entries.
func (c *call) operationAt(began time.Time) string {
	q := eventbus.AuditQuery{Action: eventbus.AuditReplayMatching, Since: began, Until: began, Limit: 1}
	if page, err := c.bus.Audit(c.ctx, q); err == nil && len(page.Entries) > 0 {
		if op, err := c.operations.find(page.Entries[0].RequestID); err == nil {
			return c.path("operations", op.ID)
		}
	}
	at := began.Format(time.RFC3339Nano)
	return linkTo(c.path("audit"), url.Values{"action": {string(q.Action)}, "since": {at}, "until": {at}})
}

// eventReplays returns the replays of an event. Of one that has settled, the audit has those of single letters.
func (c *call) eventReplays(s *eventbus.EventStatus) []replayRow {
	log := s.Replays
	replayed := func(d eventbus.SettledDelivery) bool { return d.Replays > 0 }
	if len(log) == 0 && (len(s.Settled) == 0 || slices.ContainsFunc(s.Settled, replayed)) {
		log = c.auditedReplays(eventbus.AuditQuery{Event: s.ID})
	}
	return c.replayRows(log, s.Letters.Letters)
}

// auditedReplays returns the replays of single letters that the audit has, oldest first.
func (c *call) auditedReplays(q eventbus.AuditQuery) (log []eventbus.LetterReplay) {
	page, err := c.bus.Audit(c.ctx, q)
	if err != nil {
		return nil
	}
	for _, e := range page.Entries {
		if e.Denied == "" && (e.Action == eventbus.AuditReplay || e.Action == eventbus.AuditReplayEdited) {
			log = append(log, eventbus.LetterReplay{At: e.At, By: e.By, Letter: e.Letter, Edited: e.Action == eventbus.AuditReplayEdited})
		}
	}
	slices.Reverse(log)
	return log
}

// bulkReplaysBy links to the bulk replays of the operator who has replayed an event that has settled, or returns "".
func (c *call) bulkReplaysBy(s *eventbus.EventStatus, known []replayRow) string {
	for _, d := range slices.Backward(s.Settled) {
		if d.ReplayedBy != "" && len(known) == 0 {
			return linkTo(c.path("audit"), url.Values{"action": {string(eventbus.AuditReplayMatching)}, "by": {d.ReplayedBy}, "until": {d.At.Format(time.RFC3339Nano)}})
		}
	}
	return ""
}

// goneBody is the data of the page of a letter that was replayed or purged.
type goneBody struct {
	Letter  eventbus.LetterID
	Entry   eventbus.AuditEntry
	Summary string // what became of the event
	Settled []settledRow
}

// showGone shows what became of a letter, if the audit knows who has replayed or purged it. Otherwise it returns the error. An open page
// keeps the letter, so that it can be read. err is the error of a form.
func (c *call) showGone(err, missing error) (any, error) {
	id, invalid := c.letterID()
	if err != nil || invalid != nil || !errors.Is(missing, eventbus.ErrNotFound) {
		return nil, either(err, missing)
	}
	entry, known := c.goneBy(id)
	if !known || c.fragment != nil {
		return nil, c.gone(id, missing)
	}
	body := goneBody{Letter: id, Entry: entry}
	if !entry.Event.IsZero() {
		status, err := c.event(entry.Event)
		body.Summary, body.Settled = summaryOf(&status), nil
		if err != nil {
			body.Summary = errorOf(err).Message + "."
		} else {
			body.Settled, _ = settledRows(slices.DeleteFunc(status.Settled, func(d eventbus.SettledDelivery) bool { return d.At.Before(entry.At.Truncate(time.Millisecond)) }))
		}
	}
	return c.show("gone", &page{Title: "Letter " + id.String(), Section: sectionLetters, Body: body, still: true}, nil)
}
