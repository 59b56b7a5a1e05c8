//go:build unix

package sqlite

import (
	"fmt"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/driver/storekit"
)

// historyRow is a row of the history.
type historyRow struct {
	ref                            int64
	event, eventType, key, outcome string
	at                             time.Time
}

func historyOf(c *sqlite3.Conn) (rows []historyRow, err error) {
	const sql = "SELECT ref, event, type, key, outcome, settled_at FROM eventbus_history ORDER BY ref"
	err = query(c, sql, func(stmt *sqlite3.Stmt) error {
		var id driver.ID
		stmt.ColumnBytes(1, id[:])
		at, err := storekit.ParseTime(stmt.ColumnText(5))
		rows = append(rows, historyRow{stmt.ColumnInt64(0), id.String(), stmt.ColumnText(2), stmt.ColumnText(3), stmt.ColumnText(4), at})
		return err
	})
	return rows, err
}

// checkHistory checks that the history has no dispatch that has a record, that it keeps its rows, and
// that the process has added rows only of dispatches that have settled. It returns the rows by event.
func (o *crashOracle) checkHistory(d *crashDump) (byEvent map[string][]historyRow) {
	byEvent = make(map[string][]historyRow)
	events := make(map[string]*crashEvent, len(o.events))
	for _, e := range o.events {
		events[e.id] = e
	}
	unsettled := make(map[int64]*testRecord, len(d.records))
	for _, r := range d.records {
		unsettled[int64(r.Ref)] = r
	}
	history := make(map[int64]historyRow, len(d.history))
	for _, row := range d.history {
		history[row.ref] = row
		byEvent[row.event] = append(byEvent[row.event], row)
		e := events[row.event]
		if e == nil {
			o.violate("H", nil, "the history has an event that was not published: %+v", row)
			continue
		}
		before, known := o.history[row.ref]
		_, pending := unsettled[row.ref]
		switch {
		case pending:
			o.violate("H", e, "the history has a dispatch that has a record: %+v", row)
		case known && before != row:
			o.violate("H", e, "the history has %+v, and had %+v", row, before)
		case known:
		case o.retention == 0:
			o.violate("H", e, "a process without a history has added %+v", row)
		case row.eventType != e.eventType || row.key != e.key || row.ref <= 0 || row.ref >= d.meta.nextRef,
			row.at.Before(o.began.Add(-time.Millisecond)) || row.at.After(time.Now().Add(time.Second)):
			o.violate("H", e, "the history has %+v", row)
		default:
			o.settled++
		}
	}
	ended := time.Now().Add(-o.retention) // of the retention
	for ref, row := range o.history {
		if _, stays := history[ref]; !stays && (o.retention == 0 || row.at.After(ended)) {
			o.violate("H", events[row.event], "the history has lost %+v", row)
		}
	}
	if o.wholeHistory {
		o.checkRefs(d, history, unsettled)
	}
	o.history, o.unsettled = history, unsettled
	return byEvent
}

// checkRefs checks that each record that the file has had is there, or in the history. Only two kinds
// leave neither, because others replace them: that of a scheduled event when it is due, and one with
// several targets that is divided.
func (o *crashOracle) checkRefs(d *crashDump, history map[int64]historyRow, unsettled map[int64]*testRecord) {
	for ref, r := range o.unsettled {
		_, settled := history[ref]
		if unsettled[ref] == nil && !settled && r.State != driver.Scheduled && len(r.Targets) == 1 {
			o.violate("H", nil, "record %d, %s, has settled, and the history has no row", ref, r.State)
		}
	}
	replaced := 0 // at most
	for _, e := range o.events {
		replaced += len(e.targets) // a record of n targets is divided n-1 times
	}
	if gone := int(d.meta.nextRef) - 1 - len(history) - len(unsettled); gone < 0 || gone > replaced {
		o.violate("H", nil, "%d records, %d rows of the history, %d refs", len(unsettled), len(history), d.meta.nextRef-1)
	}
}

// checkHistoryOf checks that the history has each dispatch of an event that has settled, once.
func (o *crashOracle) checkHistoryOf(e *crashEvent, byEvent map[string][]historyRow, found map[string]*status, over bool) {
	if e.cancelling && len(byEvent[e.id]) == 0 {
		return // it may have been withdrawn, and then it was never a dispatch
	}
	handled, dead := 0, 0
	for _, row := range byEvent[e.id] {
		switch SettledOutcome(row.outcome) {
		case OutcomeSettled:
			handled++
		case OutcomeDeadLettered:
			dead++
		default:
			o.violate("H", e, "the history has %+v", row)
		}
	}
	letters := 0
	for _, l := range o.letters {
		if l.name == e.name {
			letters++
		}
	}
	has := fmt.Sprintf("the history has it as handled %d times, as dead %d times, and it has had %d letters", handled, dead, letters)
	if dead > letters {
		o.violate("H", e, "%s", has)
	}
	settled := false
	for _, t := range e.targets {
		settled = settled || t.closed != "" && (t.seen || !t.optional)
	}
	if over && settled && handled+dead == 0 {
		o.violate("H", e, "%s", has)
	}
	if len(e.targets) != 1 {
		return // a delivery that was split off and dies at once never has a record
	}
	t := e.targets[0]
	if t.optional && !t.seen {
		return // it may have been unrouted, or cancelled
	}
	least, most := 1, 1 // times handled
	switch s := found[t.name]; {
	case s != nil && s.pending+s.dead > 0, !settled:
		least, most = 0, 0
	case t.gone:
		least = 0 // maybe only its letter was purged
	}
	if dead != letters || handled < least || handled > most {
		o.violate("H", e, "%s; its delivery is %q: %+v", has, t.closed, found[t.name])
	}
}
