package eventbus

import (
	"math"
	"math/rand/v2"

	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/lane"
	"github.com/surebus/eventbus/internal/timeline"
)

// worker is what a goroutine of the lanes keeps.
type worker struct {
	bus     *Bus
	slot    *deadline.Slot[call]
	batch   *batch    // of calls, for runs of handlers
	only    *visit    // whose calls alone these are; nil: those of all visits
	rest    []call    // of a batch before, for all visits
	visit   [2]*visit // of the last one for what is in each place
	visits  []visit   // for the next ones
	burst   int       // how many calls share the last one's allocation, more while there is more to do
	renewed uint64    // called, when the visits were
	called  uint64    // how often it has run one, from a random number on
	weight  uint32    // of the running one in the latency histogram; 0: not timed
	steps   bool      // its dispatch is in place and has no story: see passOn
	lost    bool      // the watch has given up its call, and somebody else goes on
	handled bool      // the run has ended as the ledger has it under handled
	hasNext bool      // there is next
	settled *waiter   // to be told once the run no longer counts
	handed  int       // how many next there have been without a pause

	places   [2]dispatch         // of what it runs, unless that has moved out, and what it takes ahead
	place    int                 // what it has taken last
	ahead    bool                // which has not begun, but comes next
	takeNext func(*opening) bool // takes ahead
	to       *targets            // of what it runs
	event    Event               // of that, for its handlers
	wall     int64               // when that was published, as its opening has it
	extras   *extras             // of that
	verdict  verdict             // on the last error
	next     opening             // what the run has let through at its key's gate
}

// maxHanded is how many dispatches of a key a worker runs before somebody looks at
// what else there is to do.
const maxHanded = 32

// batch is memory for calls, and what the watch has to know of it, in one allocation.
type batch = deadline.Batch[call]

// workerCalls is how many calls share an allocation at most: their contexts, which
// handlers may keep, keep the others in memory. And what is larger than 512 bytes and
// has pointers begins with one that the runtime writes: see newBatch.
const workerCalls = 30

// workerVisits is how many visits do: one is for many calls, but for those of events that
// were published with values.
const workerVisits = 12

// visitCalls is for about how many calls there is a visit, at most. What is asked of
// their contexts when they have long ended stays with it, and is looked through.
const visitCalls = 64

func (b *Bus) openWorker() *worker {
	return &worker{bus: b, slot: b.watch.Open(), called: uint64(rand.Uint32())}
}

func (b *Bus) closeWorker(w *worker) {
	if w.hasNext { // the handler has ended the goroutine
		b.lanes.Unpark(&w.next)
	}
	b.watch.Close(w.slot)
	// Contexts that handlers have kept may keep the worker.
	w.takeNext, w.next = nil, opening{}
	w.forget()
	if !w.lost { // or somebody else has what it ran
		w.places = [2]dispatch{}
	}
}

// leave gives up the place of a dispatch's key. The next one of the key is the
// worker's next, or has its turn in the queue.
func (b *Bus) leave(w *worker, o *opening) {
	next, ok := b.store.leave(o)
	if w.handed >= maxHanded && b.lanes.Share() {
		w.handed = 0
	}
	switch {
	case !ok:
	case w.slot != nil && !w.hasNext && w.handed < maxHanded && !b.lanes.Crowded():
		w.next, w.hasNext = next, true
		w.handed++
	default:
		w.handed = 0
		b.lanes.Unpark(&next)
	}
}

// goOn puts into the worker's place what the run before has let through.
func (w *worker) goOn() {
	w.places[0].opening = w.next
	w.next, w.hasNext = opening{}, false
}

// idle lets go of what a worker has used for what it has run.
func (w *worker) idle() {
	w.forget()
	w.places = [2]dispatch{}
}

// forget drops the memory of a worker's calls, and what the last of them were about.
func (w *worker) forget() {
	w.slot.Clear()
	w.batch, w.only, w.rest, w.visit, w.visits, w.burst = nil, nil, nil, [2]*visit{}, nil, 0
	w.to, w.event, w.extras, w.verdict = nil, Event{}, nil, verdict{}
}

// ending says what the lanes have to do after a run.
func (w *worker) ending() (end lane.Ending) {
	if w.lost {
		return lane.Lost
	}
	if w.handled {
		end, w.handled = lane.Counted, false
	}
	if w.hasNext {
		end |= lane.LetsThrough
	} else {
		w.handed = 0
	}
	if w.settled != nil {
		end |= lane.Tells
	}
	return end
}

// ended notes for whoever waits how a dispatch has ended.
func (w *worker) ended(waiter *waiter, o Outcome, attempts int) {
	if waiter.ended(o, attempts) {
		w.settled = waiter
	}
}

// tell lets whoever waits for what the worker has settled go on.
func (w *worker) tell() {
	if w.settled != nil {
		w.settled.finish()
		w.settled = nil
	}
}

// taken is the dispatch that the worker has taken: a new one, in its own place, or
// one that goes on.
func (w *worker) taken() *dispatch {
	d := &w.places[w.place]
	if apart, is := d.payload.(*dispatch); is {
		return apart
	}
	d.story, d.attempt, d.next = nil, 0, 0
	return d
}

// putEvent puts the event of a dispatch into the worker's place, if it is not there
// from another copy. An id stands for one payload, but for what was replayed with
// another, or published with an id that was given before: these have extras.
func (w *worker) putEvent(d *dispatch, t *timeline.Timeline) {
	e, extras := &w.event, d.extras()
	switch {
	case d.id == e.ID && extras == w.extras:
		return
	case extras == nil && w.extras == nil && d.wall == w.wall && !e.Time.IsZero():
		// Most are published in the same tick as the one before: its time stands, if it
		// is there (see forget), and there is no metadata, as it has no extras.
		e.ID, e.Type, e.Payload, e.Key = d.id, d.to.eventType, d.payload, d.key
	default:
		d.put(e, t)
		w.extras, w.wall = extras, d.wall
	}
}

// visiting is what the calls of the dispatch's next attempt have in common.
func (w *worker) visiting(d *dispatch) *visit {
	values := d.values()
	if v := w.visit[w.place]; v != nil && values == nil && v.dispatch == d && v.asked.Load() == nil {
		return v
	}
	if linked(values) {
		return &visit{worker: w, dispatch: d, values: values}
	}
	if len(w.visits) == 0 {
		w.visits = make([]visit, min(w.burst+1, workerVisits))
	}
	v := &w.visits[0]
	w.visits = w.visits[1:]
	v.worker, v.dispatch, v.values = w, d, values
	if values == nil {
		w.visit[w.place] = v
	}
	return v
}

// newCall makes the next call, to the subscription at a position of the dispatch.
func (w *worker) newCall(at *visit, position int32, pass uint64) *call {
	w.called++
	var only *visit
	if linked(at.values) {
		only = at
	}
	if w.batch == nil || w.called-w.batch.First >= uint64(len(w.batch.Calls)) || w.only != only {
		w.moreCalls(only, position)
	}
	c := &w.batch.Calls[w.called-w.batch.First]
	c.visit, c.number = at, w.called
	at.passes[w.called%2], at.positions[w.called%2] = pass, position
	return c
}

// moreCalls makes room for the next calls: those of one visit from a position on, or
// those of all that are not linked.
func (w *worker) moreCalls(only *visit, position int32) {
	if w.only == nil && only != nil && w.batch != nil {
		w.rest = w.batch.Calls[min(w.called-w.batch.First, uint64(len(w.batch.Calls))):]
	}
	switch {
	case only != nil:
		w.batch = newBatch(len(only.dispatch.to.subscriptions) - int(position))
	case len(w.rest) > 0:
		w.batch, w.rest = &batch{Calls: w.rest}, nil
	default:
		w.batch = newBatch(2*w.burst + 1)
		w.burst = len(w.batch.Calls)
	}
	w.batch.First, w.only = w.called, only
	w.slot.Provide(w.batch)
	if w.called-w.renewed > visitCalls-workerCalls {
		w.visit, w.renewed = [2]*visit{}, w.called
	}
}

// newBatch makes a batch of at least so many calls, or of workerCalls, that fills its
// allocation.
func newBatch(calls int) *batch {
	switch {
	case calls <= 1:
		b := new(struct {
			batch
			calls [1]call
		})
		return withCalls(&b.batch, b.calls[:])
	case calls <= 6:
		b := new(struct {
			batch
			calls [6]call
		})
		return withCalls(&b.batch, b.calls[:])
	case calls <= 14:
		b := new(struct {
			batch
			calls [14]call
		})
		return withCalls(&b.batch, b.calls[:])
	default:
		b := new(struct {
			batch
			calls [workerCalls]call
		})
		return withCalls(&b.batch, b.calls[:])
	}
}

func withCalls(b *batch, calls []call) *batch {
	// Before any pointer is written: while the collector marks, to write one reads what
	// was there first, and the system then maps new memory twice.
	calls[len(calls)-1].number = 1
	b.Calls = calls
	return b
}

// samples reports whether the call with a number is one of those that are timed.
//
// By a Weyl sequence: to take every 64th call would always be to take the same
// subscription, of an event that visits two.
func samples(number uint64) bool { return uint32(number)*0x9e3779b9 < math.MaxUint32/latencySample }

// begin makes the call of the dispatch's next subscription, and shows the watch that it
// begins now.
//
// While the timeline ticks, the watch looks at every tick, and gives the call its
// deadline then; a tick late, but never too early, as a reading that is a tick
// old would be. If the ticking has ended after recent was asked, the last look
// may have been too early to see the slot.
func (b *Bus) begin(w *worker, at *visit, s *Subscription, pass uint64) *call {
	c := w.newCall(at, at.dispatch.next, pass)
	now, exact := b.time.Recent()
	switch at.started, w.weight = now.Nanos, 0; {
	case exact:
		w.weight = 1
	case samples(c.number):
		at.started, w.weight = b.time.Nanos(), latencySample
	}
	w.slot.Begin(c.number, s.timeout)
	if !b.time.Ticks() || s.timeout < 2*timeline.Tick {
		b.watch.Arm(w.slot, c.number)
	}
	return c
}

// passOn begins the call after c, which has succeeded, in the step that ends c: that of
// the next subscription, or of the first one of an event that is taken ahead, which it
// returns too. It does so if between the two there is nothing to decide, record or tell but
// a success, and no time to be read; otherwise it is nil, and c has not ended, or has been
// given up.
func (b *Bus) passOn(w *worker, c *call, s *Subscription) (next *call, to *Subscription) {
	if !w.steps || w.weight > 0 || samples(w.called+1) {
		return nil, nil
	}
	// In place, the dispatch has what is read here until the worker takes the next one
	// there, also if the call has been given up.
	d, at := c.dispatch, c.visit
	position := c.position() + 1
	ends := int(position) == len(d.to.subscriptions)
	if ends && (d.key != "" || d.extras() != nil) { // somebody may wait for its end
		return nil, nil
	}
	now := b.time.Shared()
	if now == nil || at.asked.Load() != nil {
		return nil, nil
	}
	if !s.circuit.quiet(c.pass(), now.Nanos) {
		return nil, nil
	}
	if ends {
		next, to = b.callAhead(w, c, s, now)
	} else {
		to = d.to.subscriptions[position]
		pass := to.circuit.gate.Load()
		if now.Nanos != at.started || to.timeout < 2*timeline.Tick ||
			pass&gateAsk != 0 || d.key != "" && to.holding.hasLine(d.key) {
			return nil, nil
		}
		next = w.newCall(at, position, pass)
	}
	if next == nil || !w.slot.Pass(c.number, to.timeout) {
		return nil, nil
	}
	s.circuit.successes.Add(1)
	if at.asked.Load() != nil { // at the last moment
		c.cancel()
	}
	if ends {
		w.ahead = false
		b.settleHandled(d)
		d.opening = opening{} // or the worker keeps it as long as the next one runs
	}
	if !b.time.Ticks() {
		b.watch.Arm(w.slot, next.number)
	}
	return next, to
}

// callAhead takes what comes next, for when the dispatch of c, at its last subscription, has
// been handled, and is its first call, with the subscription of that; nil if that must not
// begin without being asked for.
func (b *Bus) callAhead(w *worker, c *call, last *Subscription, now *timeline.Instant) (*call, *Subscription) {
	if !c.running() {
		return nil, nil
	}
	other := &w.places[1-w.place]
	if !w.takeNext(&other.opening) {
		return nil, nil
	}
	w.place, w.ahead = 1-w.place, true
	d := w.taken()
	s := d.to.subscriptions[0]
	pass := s.circuit.gate.Load()
	if d != other || d.key != "" || s.timeout < 2*timeline.Tick || pass&gateAsk != 0 {
		return nil, nil
	}
	d.attempt = 1
	at := w.visiting(d)
	w.to = d.to
	w.putEvent(d, b.time)
	at.started = now.Nanos
	next := w.newCall(at, 0, pass)
	if !last.circuit.quiet(c.pass(), now.Nanos) { // any more
		return nil, nil
	}
	return next, s
}

// putBack gives to others what was taken ahead.
func (b *Bus) putBack(w *worker) {
	if w.ahead {
		w.ahead = false
		place := &w.places[w.place].opening
		b.lanes.PutBack(place)
		*place = opening{}
	}
}
