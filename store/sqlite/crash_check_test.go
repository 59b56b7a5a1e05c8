//go:build unix

package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	sqlite3 "zombiezen.com/go/sqlite"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

const (
	closedDead   = "dead"
	closedDone   = "handled"
	closedPurged = "purged or cancelled"

	// fatalKills is the number of crashes after which a bus dead-letters an event that may have caused
	// them.
	fatalKills = 5

	removedSilently = "an operation without an answer"
)

// crashDump is everything that a copy of a file has.
type crashDump struct {
	meta    meta
	records []*testRecord
	owners  []int64
	waiting []*testRecord // incoming events
	asked   int           // requests without an answer
	letters []*testLetter
	orders  []orderJSON
	known   map[string]bool // remembered ids
	history []historyRow
	service map[string]bool // rows of the transactions of the processes
}

// dumpCopy reads a copy through a store without the lease, and verifies the file. It returns nil for a file that
// was not initialized yet.
func dumpCopy(path string) (d *crashDump, problems []string, err error) {
	if begun, err := wasInitialized(path); err != nil || !begun {
		return nil, nil, err
	}
	ctx := context.Background()
	s, err := Open(ctx, path, MustExist())
	if err != nil {
		return nil, nil, err
	}
	defer s.Close(ctx)
	d = &crashDump{known: make(map[string]bool)}
	directives, err := s.Directives(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, directive := range directives {
		order, err := decodePart[orderJSON](directive.Body)
		if err == nil && order.Subscription != directive.Subscription {
			err = fmt.Errorf("the order of %s is one of %s", directive.Subscription, order.Subscription)
		}
		if err != nil {
			return nil, nil, err
		}
		d.orders = append(d.orders, order)
	}
	for q := (driver.LetterQuery{Limit: 1000}); ; {
		page, err := s.Letters(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		for _, l := range page.Letters {
			decoded, err := decodeLetter(l)
			if err != nil {
				return nil, nil, err
			}
			d.letters = append(d.letters, decoded)
		}
		if q.Before = page.Next; q.Before.IsZero() {
			break
		}
	}
	incoming, err := s.Incoming(ctx, driver.IncomingQuery{Limit: math.MaxInt})
	if err != nil {
		return nil, nil, err
	}
	for _, in := range incoming.Events {
		decoded, err := decodeRecord(in.Record)
		if err != nil {
			return nil, nil, err
		}
		if d.waiting = append(d.waiting, decoded); in.Given {
			d.known[in.Record.ID.String()] = true // the bus that takes it in remembers it
		}
	}
	requests, err := s.Requests(ctx, driver.RequestQuery{Limit: math.MaxInt})
	if err != nil {
		return nil, nil, err
	}
	d.asked = len(requests)
	report, err := s.Verify(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range report.Problems {
		problems = append(problems, p.Error())
	}
	err = s.reads.read(ctx, func(c *sqlite3.Conn) error {
		if d.meta, err = s.readMeta(c); err != nil {
			return err
		}
		err := query(c, "SELECT "+recordColumns+" FROM eventbus_record ORDER BY ref", func(stmt *sqlite3.Stmt) error {
			r, owner, err := s.scanRecord(stmt)
			if err != nil {
				return err
			}
			decoded, err := decodeRecord(r)
			d.records, d.owners = append(d.records, decoded), append(d.owners, owner)
			return err
		})
		if err != nil {
			return err
		}
		err = query(c, "SELECT key FROM eventbus_dedupe", func(stmt *sqlite3.Stmt) error {
			d.known[stmt.ColumnText(0)] = true
			return nil
		})
		if err != nil {
			return err
		}
		if d.history, err = historyOf(c); err != nil {
			return err
		}
		if d.service, err = serviceRows(c); err != nil {
			return err
		}
		return query(c, "PRAGMA integrity_check", func(stmt *sqlite3.Stmt) error {
			if text := stmt.ColumnText(0); text != "ok" {
				problems = append(problems, text)
			}
			return nil
		})
	})
	return d, append(problems, d.verify()...), err
}

// wasInitialized reports whether a file has a schema. The first process may have been killed before.
func wasInitialized(path string) (bool, error) {
	if _, err := os.Stat(path); err != nil {
		return false, nil
	}
	c, err := sqlite3.OpenConn(path, sqlite3.OpenReadWrite)
	if err != nil {
		return false, err
	}
	defer c.Close()
	version, err := queryInt(c, "PRAGMA user_version")
	return version > 0, err
}

// verify compares the counters with what is there.
func (d *crashDump) verify() (problems []string) {
	states, leased, last := [4]int64{}, int64(0), driver.Ref(0)
	for i, r := range d.records {
		states[r.State]++
		last = max(last, r.Ref)
		owner := d.owners[i]
		if owner == d.meta.epoch {
			leased++
		}
		if owner > d.meta.epoch || owner < -d.meta.epoch {
			problems = append(problems, fmt.Sprintf("record %d belongs to lease %d, and the last one is %d", r.Ref, owner, d.meta.epoch))
		}
		if p := &r.progress; p.Next >= len(r.Targets) || p.Next < 0 {
			problems = append(problems, fmt.Sprintf("record %d: next target is %d of %d", r.Ref, p.Next, len(r.Targets)))
		}
		if (r.Door != "") != (r.State == driver.Parked) {
			problems = append(problems, fmt.Sprintf("record %d: state %s, door %q", r.Ref, r.State, r.Door))
		}
	}
	m := d.meta
	if m.states != states || m.letters != int64(len(d.letters)) || m.held && m.leased != leased || m.nextRef <= int64(last) {
		problems = append(problems, fmt.Sprintf("counters %+v; found states %v, %d leased, last ref %d, %d letters", m, states, leased, last, len(d.letters)))
	}
	return problems
}

// status is where a delivery is, by a copy.
type status struct {
	pending int // records that will visit the target
	done    bool
	dead    int
	record  *testRecord
}

// check compares a copy with what was witnessed.
func (o *crashOracle) check(d *crashDump, settled bool) {
	if d == nil {
		if o.acknowledged > 0 {
			o.violate("K1", nil, "the file has no schema, and %d events were acknowledged", o.acknowledged)
		}
		return
	}
	o.checked = true
	o.checkTransactions(d)
	found := make(map[string]map[string]*status)
	o.checkRecords(d, found)
	o.checkLetters(d, found)
	rows := o.checkHistory(d)
	for _, e := range o.parentsFirst() {
		o.checkEmitted(e, found)
		if e.given && e.acked && !e.cancelling && !d.known[e.id] {
			o.violate("E6", e, "its id is not remembered")
		}
		over := o.settle(e, found[e.name])
		if o.wholeHistory {
			o.checkHistoryOf(e, rows, found[e.name], over)
		}
		if over && !e.awaitsParent() {
			delete(o.open, e.name)
		}
	}
	for name, want := range o.orders {
		i, now := slices.IndexFunc(d.orders, func(x orderJSON) bool { return x.Subscription == name }), ""
		if i >= 0 {
			now = d.orders[i].Why
		}
		switch {
		case !slices.Contains(want, now) && i < 0:
			o.violate("C6", nil, "the order %s is lost", name)
		case !slices.Contains(want, now):
			o.violate("C6", nil, "the order %s has %q, and %q was acknowledged", name, now, want[0])
		case d.asked == 0: // otherwise an earlier one may still be carried out
			o.orders[name] = []string{now}
		}
	}
	if o.clean && d.meta.held {
		o.violate("S2", nil, "Shutdown has returned, and the lease has not ended")
	}
	if settled && o.emissions > 0 {
		o.checkChildren()
	}
	if left := append(d.records, d.waiting...); settled && len(left) > 0 {
		o.violate("Q1", nil, "%d records are left, the first is %+v", len(left), left[0])
	}
}

func statusOf(found map[string]map[string]*status, name, target string) *status {
	if found[name] == nil {
		found[name] = make(map[string]*status)
	}
	s := found[name][target]
	if s == nil {
		s = &status{}
		found[name][target] = s
	}
	return s
}

// checkRecords checks that the records were published as they are, and that what they call done was
// done.
func (o *crashOracle) checkRecords(d *crashDump, found map[string]map[string]*status) {
	for _, e := range o.events {
		e.waits = false
	}
	for i, r := range slices.Concat(d.records, d.waiting) {
		var p crashPayload
		_ = json.Unmarshal(r.Payload, &p) // an unknown name is a violation
		e := o.events[p.Name]
		if e == nil {
			o.violate("K2", nil, "the store has an event that was not published: %+v", r)
			continue
		}
		if contentHash(r.Type, r.Key, r.metadata["name"], r.Payload) != e.hash || e.id != "" && e.id != r.ID.String() {
			o.violate("K2", e, "its record differs: %+v", r)
		}
		e.id = r.ID.String()
		if e.refused {
			o.violate("D7", e, "it has a record, and Publish returned an error that says that nothing was accepted")
		}
		o.open[p.Name] = e
		e.waits = e.waits || i >= len(d.records)
		for i, name := range r.Targets {
			t := e.target(canonical(name))
			if t == nil {
				o.violate("K2", e, "its record has the target %s", name)
				continue
			}
			s := statusOf(found, p.Name, t.name)
			switch {
			case slices.Contains(r.progress.Skipped, i):
			case i < r.progress.Next:
				if s.done = true; t.ok == 0 {
					o.violate("K3", e, "the store says that %s has handled it: %+v", t.name, r)
				}
			default:
				s.pending++
				s.record = r
			}
		}
	}
}

// checkLetters checks the letters, and that none left that was not told to.
func (o *crashOracle) checkLetters(d *crashDump, found map[string]map[string]*status) {
	present := make(map[string]bool)
	for _, l := range d.letters {
		id := l.ID.String()
		present[id] = true
		e := o.checkLetter(l)
		if e == nil {
			continue
		}
		e.id = l.Event.String()
		known := o.letters[id]
		if known == nil {
			known = &crashLetter{id: id, name: e.name, born: o.life, sub: canonical(l.Subscription), targets: targetsOfLetter(l.Subscription, l.details.NotReached)}
			o.letters[id] = known
		}
		if known.left != "" {
			o.violate("K8", e, "letter %s was removed by %s, and is there", id, known.left)
		}
		if known.born < o.life && slices.Contains(o.manyGone, known.sub) {
			o.violate("K8", e, "letter %s was removed with all of %s, and is there", id, known.sub)
		}
		known.seen, known.leaving = true, false
		o.open[e.name] = e
		for _, name := range known.targets {
			statusOf(found, e.name, name).dead++
		}
	}
	for id, l := range o.letters {
		if present[id] || l.left == removedSilently {
			continue
		}
		if !l.leaving && l.left == "" {
			o.violate("K9", o.events[l.name], "letter %s of %s has disappeared", id, l.sub)
		}
		if l.left == "" {
			l.left = removedSilently
		}
	}
}

// checkLetter checks a letter against the runs that were witnessed.
func (o *crashOracle) checkLetter(l *testLetter) *crashEvent {
	payload := l.payload()
	var p crashPayload
	_ = json.Unmarshal(payload, &p) // an unknown name is a violation
	e := o.events[p.Name]
	switch {
	case e == nil:
		o.violate("K2", nil, "letter of an event that was not published: %+v", l)
		return nil
	case contentHash(l.Type, l.Key, l.details.Event.Metadata["name"], payload) != e.hash, e.id != "" && e.id != l.Event.String():
		o.violate("K7", e, "the event of letter %s differs: %+v", l.ID, l)
	case o.letters[l.ID.String()] != nil && o.letters[l.ID.String()].seen:
		return e // it was checked
	}
	for _, name := range append([]string{l.Subscription}, l.details.NotReached...) {
		if e.target(canonical(name)) == nil {
			o.violate("K7", e, "letter %s has the target %s", l.ID, name)
		}
	}
	for _, name := range l.details.Succeeded {
		if t := e.target(canonical(name)); t == nil || t.ok == 0 {
			o.violate("K3", e, "letter %s says that %s has handled it", l.ID, name)
		}
	}
	o.checkFailures(e, l)
	return e
}

// checkFailures checks that a letter has each failed attempt of its last dispatch, as witnessed.
func (o *crashOracle) checkFailures(e *crashEvent, l *testLetter) {
	last := 0
	var attempts []int
	for _, f := range l.failures {
		sub := canonical(f.Subscription)
		text := failureText(e.name, sub, f.Attempt, f.Replays)
		if !strings.Contains(f.Error, text) {
			o.violate("K7", e, "letter %s: failure %+v; expected %q", l.ID, f, text)
		}
		run := fmt.Sprintf("R\t%s\t%s\t%d\t%d\t", e.name, sub, f.Attempt, f.Replays)
		if !slices.ContainsFunc(e.lines, func(line string) bool {
			return strings.Contains(line, run) && !strings.HasSuffix(line, "\tok")
		}) {
			o.violate("K7", e, "letter %s has a failure that no handler returned: %+v", l.ID, f)
		}
		place := f.Replays*100 + f.Attempt
		if place <= last {
			o.violate("K7", e, "letter %s: the failures are out of order: %+v", l.ID, l.failures)
		}
		if last = place; f.Replays == l.details.Replays {
			attempts = append(attempts, f.Attempt)
		}
	}
	b := behaviour{}
	if n := len(attempts); n > 0 {
		b = behaviourOf(o.seed, e.name, canonical(l.Subscription), attempts[n-1], l.details.Replays)
	}
	switch eventbus.Reason(l.Reason) {
	case eventbus.ReasonExhausted:
		// A delivery that was split off has only the failures at its own subscription.
		if len(attempts) == 0 || attempts[len(attempts)-1] != crashRetries+1 || l.details.Attempts != crashRetries+1 || b.result == "ok" || b.result == "perm" {
			o.violate("K7", e, "letter %s is exhausted with the attempts %v of %d", l.ID, attempts, l.details.Attempts)
		}
	case eventbus.ReasonPermanent:
		if len(attempts) == 0 || attempts[len(attempts)-1] != l.details.Attempts || b.result != "perm" {
			o.violate("K7", e, "letter %s is permanent with the attempts %v of %d", l.ID, attempts, l.details.Attempts)
		}
	case eventbus.ReasonUnsubscribed:
		if !o.mailLeft {
			o.violate("K7", e, "letter %s has the reason %s", l.ID, l.Reason)
		}
	case eventbus.ReasonCrash:
		o.crashLetters++
		if !slices.ContainsFunc(e.lines, func(line string) bool { return strings.Contains(line, ": S\t") }) {
			o.neverRan++
		}
		if o.life-e.born < fatalKills {
			o.violate("K7", e, "letter %s has the reason %s after %d processes", l.ID, l.Reason, o.life-e.born)
		}
	default:
		o.violate("K7", e, "letter %s has the reason %s", l.ID, l.Reason)
	}
	if d := l.DiedAt; d.Before(l.Published) || d.After(time.Now().Add(time.Second)) {
		o.violate("K7", e, "letter %s: published %v, died %v", l.ID, l.Published, d)
	}
}

// settle compares an event with what a copy has of it. It reports whether nothing more may happen to
// it.
func (o *crashOracle) settle(e *crashEvent, found map[string]*status) (over bool) {
	over = true
	for _, t := range e.targets {
		s := found[t.name]
		if s == nil {
			s = &status{}
		}
		t.recorded, t.ofReplay = 0, math.MinInt
		if s.pending+s.dead > 1 {
			o.violate("K8", e, "%s: %d records and %d letters", t.name, s.pending, s.dead)
		}
		if e.cancelled && s.pending > 0 {
			o.violate("K", e, "%s: it was cancelled, and has a record", t.name)
		}
		if s.pending+s.dead > 0 && t.closed != "" && (t.closed != closedDead || s.dead == 0) {
			o.violate("K4", e, "%s was %s, and now %d records and %d letters have it", t.name, t.closed, s.pending, s.dead)
		}
		switch {
		case s.pending == 0 && s.dead == 0 && t.closed == "" && e.waits:
			over = false
		case s.pending > 0:
			over, t.seen, t.gone = false, true, false
			t.recorded = lastAttempt(s.record.progress.Failures, t.name)
			t.ofReplay = s.record.replay.Count
		case s.dead > 0:
			t.seen, t.gone, t.closed = true, false, closedDead
		case t.ok > 0:
			t.closed = closedDone
		case t.gone, e.cancelling: // a later process may carry out the request of an earlier one
			t.closed = closedPurged
		case e.acked && (!t.optional || t.seen):
			o.violate("K1", e, "LOST: %s has neither handled it, nor a record, nor a letter", t.name)
		}
	}
	return over
}

// lastAttempt returns the last attempt that failed at a subscription. A delivery that is split off
// counts only those.
func lastAttempt(failures []failureJSON, sub string) (n int) {
	for _, f := range failures {
		if canonical(f.Subscription) == sub {
			n = max(n, f.Attempt)
		}
	}
	return n
}
