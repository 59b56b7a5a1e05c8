package eventbus

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/surebus/eventbus/internal/abandoned"
	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/delay"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/keys"
	"github.com/surebus/eventbus/internal/pool"
	"github.com/surebus/eventbus/internal/settled"
	"github.com/surebus/eventbus/internal/standing"
	"github.com/surebus/eventbus/internal/timeline"
)

// machine runs dispatches: the loop, its transitions, and the doors of the subscriptions. It has the structures that hold
// the dispatches of a bus.
type machine struct {
	*Bus

	pool         *pool.Pool[*dispatch, *worker]
	keys         *keyGate
	delay        *delay.Queue[*dispatch] // retries
	scheduled    *delay.Schedule[EventID, *dispatch]
	doors        *delay.Queue[*door] // doors to tend at a time
	watch        *deadline.Watch[call]
	abandoned    abandoned.Calls[*call]
	shared       sync.Map                      // *door to nil: those that may throttle because the bus is full
	unloadedKeys sync.Map                      // leftKey to nil, see noteUnloaded
	expiring     expiring                      // dispatches in memory whose events expire
	cancelling   standing.Orders[EventID]      // events that Cancel ends wherever a dispatch of them turns up
	settled      settled.Events[*Subscription] // how the last events have settled
	seenIDs      uint64                        // of busy
	ended        func(*Subscription)           // ends one that has taken its event, see Once
}

func newMachine(b *Bus) *machine {
	m := &machine{Bus: b, keys: keys.New[*dispatch](keyGates)}
	m.pool = pool.New(m.workers())
	b.ledger.queued = func() int { return m.pool.Depth() }
	m.delay = delay.New(delayClock{b.time}, m.retryDue)
	m.doors = delay.New(delayClock{b.time}, m.wake)
	m.scheduled = delay.NewSchedule[EventID](delayClock{b.time}, wallClock{delayClock{b.time}}, b.time.Check(), m.due)
	m.watch = deadline.New(deadline.Config[call]{
		Of:        (*call).watched,
		Slow:      b.report.slowHandlers,
		Overrun:   m.overran,
		Nanos:     b.time.Nanos,
		AfterFunc: func(d time.Duration, f func()) deadline.Timer { return b.time.AfterFunc(d, f) },
	})
	b.time.SetHooks(m.busy, func() { m.watch.Look() })
	return m
}

// keyGate holds dispatches until earlier ones with the same key have settled. A bus has one, and
// with isolation one for each subscription.
type keyGate = keys.Gate[*dispatch]

// keyGates is the number of shards of a bus's key gate.
const keyGates = 32

// workers returns the configuration of the pool.
func (m *machine) workers() pool.Config[*dispatch, *worker] {
	return pool.Config[*dispatch, *worker]{
		Open:        func() *worker { return &worker{slot: m.watch.Open(), seen: rand.Uint32()} },
		Close:       func(w *worker) { m.watch.Close(w.slot) },
		Run:         func(w *worker, d *dispatch) bool { m.work(w, d); return !w.lost },
		Enter:       m.enterKey,
		Idle:        func(w *worker) { w.slot.Clear(); w.calls = nil },
		Freed:       m.freed,
		Rest:        func() { m.watch.Rest() },
		Concurrency: m.config.concurrency,
		Capacity:    m.config.queue,
		Wait:        m.config.queueWaits,
	}
}

// busy reports whether events were published, or handlers started, since the last call. It also
// sets the deadlines of the handlers that started.
func (m *machine) busy() bool {
	made := m.ids.Count()
	published := made != m.seenIDs
	m.seenIDs = made
	return m.watch.Look() || published
}

// stops reports whether no call of a dispatch may start, at any door.
func (m *machine) stops(d *dispatch) bool {
	return m.halts.Has(halt.Cut|halt.Failed|halt.Lost|halt.Unload) && (m.halts.Any() || !d.isAwaitedByCall())
}

// leaveUnawaited lets the journal leave, during Shutdown, what no running call waits for any more.
func (m *machine) leaveUnawaited() {
	if m.halts.Has(halt.Unload) {
		m.journal.callEnded()
	}
}

// lend stops counting a call that waits for another event. Its destination must not be forgotten meanwhile.
func (m *machine) lend(at *door) {
	at.pins.Add(1)
	at.end()
	m.vacated(at)
}

// leftKey is a key of which a shutdown has left a dispatch to the store.
type leftKey struct {
	at  any // the *keyGate or the *door where the dispatch had its key's place
	key string
}

// noteUnloaded notes that a dispatch leaves its key's place at a gate or a door. During Shutdown, later
// ones must not take it: they would overtake.
func (m *machine) noteUnloaded(at any, d *dispatch) {
	if d.key != "" && m.lifecycle.ending.Load() {
		m.unloadedKeys.Store(leftKey{at, d.key}, nil)
	}
}

// wasUnloaded reports whether an earlier dispatch of the key was left to the store.
func (m *machine) wasUnloaded(at any, d *dispatch) bool {
	if d.key == "" || !m.lifecycle.ending.Load() {
		return false
	}
	_, left := m.unloadedKeys.Load(leftKey{at, d.key})
	return left
}

// enterKey reports whether a queued dispatch may run now. Otherwise it waits in the key gate until
// the one before it leaves. enterKey runs under a lock of the pool.
func (m *machine) enterKey(d *dispatch) bool {
	if d.seatedAt().ungated() {
		return true
	}
	d.hasTurn = true
	gate := m.gateOf(d)
	admitted := gate.Enter(d.key, d)
	if !admitted && d.seatedAt().ungated() { // it has ended meanwhile, and may have emptied the gate before Enter
		if len(gate.Take(func(waits *dispatch) bool { return waits == d })) == 0 {
			return false // it is requeued
		}
		d.hasTurn = false
		return true
	}
	if s := d.row(); admitted && s != nil {
		s.unloads = s.unloads || m.wasUnloaded(gate, d)
	}
	return admitted
}

// gateOf returns the gate of a dispatch's key: that of its last target. An earlier one may be isolated now, if it handled the event
// in an earlier process, in which it was not.
func (m *machine) gateOf(d *dispatch) *keyGate {
	if own := d.seatedAt().gate; own != nil {
		return own
	}
	return m.keys
}

// ungated reports whether the subscription had a gate, and has ended: its deliveries end without order. In the gate, which the registry
// does not have any more, no action would find them.
func (s *Subscription) ungated() bool {
	return s.gate != nil && s.door.circuit.Gate.Load()&circuit.Removed != 0
}

// leaveKey releases a dispatch's place in its key's order. The next dispatch of the key may run.
func (m *machine) leaveKey(d *dispatch) {
	if !d.hasTurn {
		return
	}
	if next, ok := m.nextOfKey(m.gateOf(d), d); ok {
		m.pool.Release(next)
	}
}

// nextOfKey ends a dispatch's place in its key's order. It returns the dispatch whose turn it is then, if there is one.
func (m *machine) nextOfKey(gate *keyGate, d *dispatch) (next *dispatch, ok bool) {
	held := d.held
	d.hasTurn, d.held = false, false
	if !held {
		return gate.Leave(d.key)
	}
	if next, ok = gate.End(d.key, d); ok && m.wasUnloaded(gate, d) {
		next.row().unloads = true
	}
	return next, ok
}

// holdGate takes dispatches that wait for earlier ones of their keys, to end them. They keep their places in the gate until they have
// settled: if the store fails before that, those behind them must not have run.
func (m *machine) holdGate(gate *keyGate, ends func(*dispatch) bool) []*dispatch {
	all := sortByKey(gate.Hold(ends))
	for _, d := range all {
		d.held = true
	}
	m.pool.Gone(len(all))
	return all
}

// holdQueued is holdGate for a dispatch in the queue, under the locks of the pool. It takes a place behind those in the gate, and those
// that are before it in the queue wait for it, too.
func (m *machine) holdQueued(d *dispatch) {
	if d.key == "" || d.hasTurn || d.seat().Number != 0 || d.seatedAt().ungated() {
		return
	}
	d.hasTurn, d.held = true, true
	m.gateOf(d).Keep(d.key, d)
}

// keyPlace is a place in the order of a key without a dispatch.
type keyPlace struct {
	gate *keyGate
	of   *dispatch
}

// keepPlace takes a place behind the dispatches of a key.
func (m *machine) keepPlace(gate *keyGate, key string) keyPlace {
	place := keyPlace{gate, &dispatch{key: key, hasTurn: true, held: true}}
	gate.Keep(key, place.of)
	return place
}

func (m *machine) endPlace(p keyPlace) {
	if next, ok := m.nextOfKey(p.gate, p.of); ok {
		m.pool.Release(next)
	}
}

// leaveGate takes dispatches that wait for earlier ones of their keys out of a gate.
func (m *machine) leaveGate(gate *keyGate, leaves func(*dispatch) bool) []*dispatch {
	all := sortByKey(gate.Take(leaves))
	for _, d := range all {
		d.hasTurn = false // see enterKey
	}
	m.pool.Gone(len(all))
	return all
}

// sortByKey gives dispatches of a gate an order that does not depend on its hashes. Those of a key keep theirs.
func sortByKey(all []*dispatch) []*dispatch {
	slices.SortStableFunc(all, func(x, y *dispatch) int { return cmp.Compare(x.key, y.key) })
	return all
}

// delayClock adapts the timeline to the delay queue.
type delayClock struct{ *timeline.Timeline }

func (c delayClock) AfterFunc(d time.Duration, f func()) delay.Timer {
	return c.Timeline.AfterFunc(d, f)
}

// wallClock is the wall clock of the timeline, for instants.
type wallClock struct{ delayClock }

func (c wallClock) Nanos() int64 { return c.Now().Wall }

// schedule stores a dispatch until it is due.
func (m *machine) schedule(d *dispatch) {
	d.state = stateScheduled
	m.ledger.scheduled.Add(1)
	due, add := d.from().due.nanos, m.scheduled.Add
	if at := d.from().due.at; !at.IsZero() {
		due, add = m.time.WallOf(at), m.scheduled.AddInstant
	}
	if !add(due, d.id, d) { // Shutdown has closed it
		m.ledger.scheduled.Add(-1)
		m.buryScheduled(d)
	}
	m.ledger.checkDrained() // Shutdown does not wait for d any more
}

// due queues a scheduled dispatch. It takes its place in its key's order now.
func (m *machine) due(d *dispatch) {
	o, now := *d.origin, m.time.Now()
	m.ids.Put((*[16]byte)(&o.order), now.Millis)
	if at := o.due.at; !at.IsZero() {
		o.due = &due{nanos: now.Point(at), at: at}
	}
	d.origin = &o
	m.journal.due(d)
}

// buryScheduled dead-letters a scheduled dispatch, or each of its copies.
func (m *machine) buryScheduled(d *dispatch) {
	for _, copied := range m.copies(d) {
		m.bury(copied, ReasonShutdown)
	}
}

// AbandonedHandler is a handler that exceeded its timeout, or was stopped by Shutdown, and has not
// returned.
type AbandonedHandler struct {
	Subscription string    `json:"subscription"` // the subscription's name
	EventID      EventID   `json:"event_id"`     // the event that the handler received
	EventType    string    `json:"event_type"`   // its type
	Since        time.Time `json:"since"`        // when the handler was abandoned, in UTC
}

func (m *machine) abandonedHandlers() (all []AbandonedHandler) {
	m.abandoned.Each(func(c *call, since time.Time) {
		all = append(all, AbandonedHandler{
			Subscription: c.subscription().id,
			EventID:      c.dispatch.id,
			EventType:    c.dispatch.to.eventType,
			Since:        since,
		})
	})
	return all
}
