//go:build unix

package sqlite

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/surebus/eventbus/driver"
)

// crashOracle knows what the processes with one file have witnessed. It says what the file must have,
// and which handler runs are forbidden. It knows nothing of the code that it judges.
type crashOracle struct {
	seed    uint64
	events  map[string]*crashEvent // by name
	open    map[string]*crashEvent // those that may still change
	letters map[string]*crashLetter
	keys    map[string]int      // last rank started, by key and subscription
	ranks   map[string]int      // events so far, by key
	orders  map[string][]string // last acknowledged, and intended since, by subscription

	repeatable []*crashEvent // those that can be published again with their ids

	checked      bool                  // a copy had a schema
	wholeHistory bool                  // all processes with the file keep a history, which stays
	history      map[int64]historyRow  // of the last copy, by ref
	unsettled    map[int64]*testRecord // of the last copy, by ref

	life       int
	retention  time.Duration // of the history of this process; 0: it keeps none
	began      time.Time
	faults     int // of this process
	mailLeft   bool
	clean      bool     // the process ended by Shutdown
	manyGone   []string // subscriptions whose letters of earlier processes were all replayed or purged
	violations []string
	lines      int

	acknowledged, reruns, replays, purges, cancels, crashLetters, neverRan int
	byBeside, settled                                                      int
	takeOvers, transactions, rolledBack                                    int
	children, emitters, emissions                                          int
}

// crashEvent is what is known of an event.
type crashEvent struct {
	name, eventType, key, id, hash string
	given                          bool
	rank                           int
	born                           int // process of the first publication
	due                            int64
	acked, refused, unknown        bool
	cancelling, cancelled          bool
	waits                          bool // the last copy has it as an incoming event, which gets further targets
	inTx                           bool // it was published in a transaction, and no copy has shown yet whether that committed
	targets                        []*crashTarget
	parent                         *crashEvent  // its handler emits the event; nil if it was published
	by                             *crashTarget // that handler
	lines                          []string
}

// crashTarget is an event's delivery to a subscription.
type crashTarget struct {
	name     string
	optional bool // it depends on a race whether the event has this target
	seen     bool
	ok       int // the process of the last successful run, plus 1
	reruns   int // in that process
	closed   string
	gone     bool // its letter was purged, or the event was cancelled
	life     int  // of the last run
	attempt  int
	replays  int
	recorded int // attempts, by the last copy
	ofReplay int // the replays of that record
}

// crashLetter is a dead letter that a copy has shown or an operator has named.
type crashLetter struct {
	id, name, sub string
	targets       []string
	born          int    // process in which it was first seen
	seen          bool   // on a copy
	leaving       bool   // a replay or a purge was intended
	left          string // the operation that has removed it
}

func newCrashOracle(seed uint64) *crashOracle {
	return &crashOracle{
		seed: seed, events: make(map[string]*crashEvent), open: make(map[string]*crashEvent), letters: make(map[string]*crashLetter),
		keys: make(map[string]int), ranks: make(map[string]int), orders: make(map[string][]string),
	}
}

// violate notes a violation of a clause, with everything that is known of the event.
func (o *crashOracle) violate(clause string, e *crashEvent, format string, args ...any) {
	text := clause + ": " + fmt.Sprintf(format, args...)
	if e != nil {
		text += fmt.Sprintf("\n  event %s (%s, key %q, id %s)\n    %s", e.name, e.eventType, e.key, e.id, strings.Join(e.lines, "\n    "))
	}
	o.violations = append(o.violations, text)
}

// begin starts the books of a process.
func (o *crashOracle) begin(spec *crashSpec) {
	o.life, o.faults, o.mailLeft, o.clean, o.manyGone = spec.Life, 0, false, false, nil
	o.retention, o.began = spec.History, spec.Began
}

func (e *crashEvent) target(name string) *crashTarget {
	for _, t := range e.targets {
		if t.name == name {
			return t
		}
	}
	return nil
}

// read takes a line of a process.
func (o *crashOracle) read(line string) {
	o.lines++
	f := strings.Split(line, "\t")
	switch f[0] {
	case "C", "O", "G", "T", "Q", "Z":
	case "N": // a standby has the lease
		o.life++
		o.takeOvers++
		o.clean = false
	case "B":
		o.byBeside++
	case "ZA":
		if f[1] != "true" {
			o.violate("S2", nil, "Shutdown failed: %s", f[2])
		}
		o.clean = o.faults == 0 // otherwise closing the store may fail
	case "F":
		o.faults++
	case "M":
		o.mailLeft = true
	case "V":
		o.violate("child", nil, "%s", f[1])
	case "L":
		if o.faults == 0 {
			o.violate("log", nil, "a process without a planned fault logged %s", f[1])
		}
	case "DM", "DMA", "XM", "XMA":
		o.readMany(f)
	case "Y":
		if o.orders[f[1]] == nil {
			o.orders[f[1]] = []string{""}
		}
		o.orders[f[1]] = append(o.orders[f[1]], f[2])
	case "YA":
		o.orders[f[1]] = []string{f[2]}
	case "D", "X", "DA", "XA":
		o.readLetter(f, line)
	case "I":
		o.readIntent(f, line)
	default:
		e := o.events[f[1]]
		if e == nil {
			o.violate("K2", nil, "unknown event: %s", line)
			return
		}
		e.lines = append(e.lines, fmt.Sprintf("%d: %s", o.life, line))
		o.readEvent(e, f)
	}
}

func (o *crashOracle) readIntent(f []string, line string) {
	name, given := f[1], f[4]
	e := o.events[name]
	var names []string
	if f[6] != "" {
		names = strings.Split(f[6], ",")
	}
	if e == nil {
		e = &crashEvent{name: name, eventType: f[2], key: f[3], given: given != "-", hash: f[7], born: o.life}
		if e.given {
			e.id = given
		}
		e.due, _ = strconv.ParseInt(f[5], 10, 64)
		o.ranks[e.key]++
		e.rank = o.ranks[e.key]
		for _, n := range names {
			e.targets = append(e.targets, &crashTarget{name: strings.TrimSuffix(n, "?"), optional: strings.HasSuffix(n, "?")})
		}
		o.events[name], o.open[name] = e, e
		if e.given {
			o.repeatable = append(o.repeatable, e)
		}
	} else { // published again: it has the targets of one of the two publications
		e.refused = false
		if !e.acked {
			for _, n := range names {
				if e.target(strings.TrimSuffix(n, "?")) == nil {
					e.targets = append(e.targets, &crashTarget{name: strings.TrimSuffix(n, "?"), optional: true})
				}
			}
			for _, t := range e.targets {
				t.optional = t.optional || !strings.Contains(","+f[6]+",", ","+t.name+",")
			}
		}
	}
	e.lines = append(e.lines, fmt.Sprintf("%d: %s", o.life, line))
}

func (o *crashOracle) readEvent(e *crashEvent, f []string) {
	switch f[0] {
	case "A":
		if e.id != "" && e.id != f[2] {
			o.violate("E6", e, "acknowledged with id %s", f[2])
		}
		if e.id = f[2]; !e.acked {
			o.acknowledged++
		}
		e.acked = true
	case "U":
		if e.unknown = true; !e.given && f[2] != (driver.ID{}).String() {
			e.id = f[2]
			o.repeatable = append(o.repeatable, e)
		}
	case "E":
		if e.acked && o.faults == 0 && !strings.Contains(f[2], "shut") {
			o.violate("E6", e, "a repetition with the same id and content was refused")
		}
		e.refused = !e.acked && !e.unknown
	case "W":
		o.readWait(e, f)
	case "J":
		e.inTx = true
	case "K":
		e.cancelling = true
	case "KA":
		switch f[2] {
		case "ok":
			e.cancelled = true
			o.cancels++
		case "late":
			e.cancelling = false
		}
	case "P", "PA":
		o.readEmitted(e, f)
	case "S":
		o.readStart(e, f)
	case "R":
		o.readResult(e, f)
	}
}

func (o *crashOracle) readResult(e *crashEvent, f []string) {
	t := e.target(f[2])
	if t == nil || f[5] != "ok" {
		return
	}
	if t.ok != o.life+1 {
		t.ok, t.reruns = o.life+1, 0
	}
}

// readWait checks the outcome of PublishAndWait. What has settled stays settled.
func (o *crashOracle) readWait(e *crashEvent, f []string) {
	if f[2] != "handled" || f[3] != "" { // a delivery that was split off has a letter
		return
	}
	for _, t := range e.targets {
		switch {
		case t.optional && !t.seen, strings.Contains(f[4], t.name):
		case t.ok == 0:
			o.violate("D7", e, "PublishAndWait returned handled, and %s did not handle it", t.name)
		default:
			t.closed = "handled, by PublishAndWait"
		}
	}
}

// readStart checks the start of a handler.
func (o *crashOracle) readStart(e *crashEvent, f []string) {
	t := e.target(f[2])
	attempt, _ := strconv.Atoi(f[3])
	replays, _ := strconv.Atoi(f[4])
	at, _ := strconv.ParseInt(f[7], 10, 64)
	switch {
	case t == nil:
		o.violate("K2", e, "%s is no target", f[2])
		return
	case f[5] != e.hash:
		o.violate("K2", e, "%s received other content", t.name)
	case e.id != "" && f[6] != e.id:
		o.violate("K2", e, "%s received the id %s", t.name, f[6])
	}
	if e.id = f[6]; e.refused {
		o.violate("D7", e, "%s runs, and Publish returned an error that says that nothing was accepted", t.name)
	}
	if e.parent != nil && e.by.ok == 0 {
		o.violate("D15", e, "%s runs, and %s of %s has not succeeded", t.name, e.by.name, e.parent.name)
	}
	if e.cancelled {
		o.violate("K", e, "%s runs after Cancel returned nil", t.name)
	}
	if e.due != 0 && replays == 0 && at < e.due-2 {
		o.violate("due", e, "%s runs %v early", t.name, time.Duration(e.due-at)*time.Millisecond)
	}
	if t.closed != "" {
		o.violate("K4", e, "%s runs again after it was %s", t.name, t.closed)
	}
	if t.ok > 0 { // it has handled the event
		if t.ok == o.life+1 {
			if t.reruns++; t.reruns > o.faults {
				o.violate("K5", e, "%s runs again in the process in which it succeeded", t.name)
			}
		}
		o.reruns++
	}
	o.checkAttempt(e, t, attempt, replays)
	o.checkOrder(e, t, replays)
	t.seen, t.life, t.attempt, t.replays = true, o.life, attempt, replays
}

func (o *crashOracle) checkAttempt(e *crashEvent, t *crashTarget, attempt, replays int) {
	if attempt < 1 || attempt > crashRetries+1 {
		o.violate("K6", e, "%s: attempt %d of %d", t.name, attempt, crashRetries+1)
	}
	if t.life == o.life && t.seen && t.replays == replays && attempt <= t.attempt && o.faults == 0 {
		o.violate("K6", e, "%s: attempt %d after attempt %d", t.name, attempt, t.attempt)
	}
	if replays < t.replays {
		o.violate("K6", e, "%s: replay %d after replay %d", t.name, replays, t.replays)
	}
	if t.ofReplay == replays && attempt <= t.recorded {
		o.violate("K6", e, "%s: attempt %d, and the store had %d", t.name, attempt, t.recorded)
	}
}

// checkOrder checks the order of a key. A replay joins at the end, so it has no place in it.
func (o *crashOracle) checkOrder(e *crashEvent, t *crashTarget, replays int) {
	if e.key == "" || replays > 0 {
		return
	}
	at := e.key + " " + t.name
	if o.keys[at] > e.rank {
		o.violate("D5", e, "%s runs after a later event of its key: rank %d, last %d", t.name, e.rank, o.keys[at])
	}
	o.keys[at] = e.rank
}

// readLetter takes the intent and the outcome of a replay or a purge of one letter.
func (o *crashOracle) readLetter(f []string, line string) {
	e := o.events[f[2]]
	if e == nil {
		o.violate("K2", nil, "letter of an unknown event: %s", line)
		return
	}
	e.lines = append(e.lines, fmt.Sprintf("%d: %s", o.life, line))
	if len(f) > 5 && e.id == "" {
		e.id = f[5]
	}
	l := o.letters[f[1]]
	switch f[0] {
	case "D", "X":
		if l == nil {
			l = &crashLetter{id: f[1], name: f[2], sub: f[3], targets: targetsOfLetter(f[3], strings.Split(f[4], ",")), born: o.life}
			o.letters[f[1]] = l
		}
		o.leaves(l, f[0] == "X")
	case "DA", "XA":
		if f[3] != "ok" {
			return
		}
		if l.left != "" {
			o.violate("K8", e, "letter %s was removed twice: %s, then %s", l.id, l.left, f[0])
		}
		if l.left = f[0]; f[0] == "DA" {
			o.replays++
		} else {
			o.purges++
		}
	}
}

func targetsOfLetter(sub string, notReached []string) []string {
	targets := []string{canonical(sub)}
	for _, n := range notReached {
		if n != "" {
			targets = append(targets, canonical(n))
		}
	}
	return targets
}

// leaves notes that a letter may leave the queue from now on.
func (o *crashOracle) leaves(l *crashLetter, purged bool) {
	l.leaving = true
	e := o.events[l.name]
	o.open[l.name] = e
	for _, name := range l.targets {
		t := e.target(name)
		if t == nil {
			continue // checkLetter reports it
		}
		if purged {
			t.gone = true
		} else if t.closed == closedDead {
			t.closed = ""
		}
	}
}

// readMany takes the intent and the outcome of ReplayMatching and PurgeMatching. They apply to the
// letters of a subscription that died before the process began.
func (o *crashOracle) readMany(f []string) {
	if len(f[0]) == 3 {
		if n, _ := strconv.Atoi(f[3]); f[0] == "DMA" {
			o.replays += n
		} else {
			o.purges += n
		}
		if f[2] == "true" {
			o.manyGone = append(o.manyGone, f[1])
		}
		return
	}
	for _, l := range o.letters {
		if l.seen && l.born < o.life && l.sub == f[1] {
			e := o.events[l.name]
			e.lines = append(e.lines, fmt.Sprintf("%d: %s %s (letter %s)", o.life, f[0], f[1], l.id))
			o.leaves(l, f[0] == "XM")
		}
	}
}

// again chooses events to publish again: of the latest, those whose outcome is unknown, and some that
// were acknowledged.
func (o *crashOracle) again(n int) (all []againEvent) {
	for i := len(o.repeatable) - 1; i >= 0 && len(all) < n; i-- {
		e := o.repeatable[i]
		if e.key != "" || e.due != 0 || e.id == "" || e.cancelling || e.acked && i%3 != 0 {
			continue
		}
		all = append(all, againEvent{Name: e.name, Type: e.eventType, ID: e.id})
	}
	return all
}
