package eventbus

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/surebus/eventbus/internal/abandoned"
	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/delay"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/keys"
	"github.com/surebus/eventbus/internal/pool"
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
	shared       sync.Map            // *door to nil: those that may throttle because the bus is full
	unloadedKeys sync.Map            // leftKey to nil, see noteUnloaded
	expiring     expiring            // dispatches in memory whose events expire
	seenIDs      uint64              // of busy
	ended        func(*Subscription) // ends one that has taken its event, see Once
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

// delayClock adapts the timeline to the delay queue.
type delayClock struct{ *timeline.Timeline }

func (c delayClock) AfterFunc(d time.Duration, f func()) delay.Timer {
	return c.Timeline.AfterFunc(d, f)
}

// wallClock is the wall clock of the timeline, for instants.
type wallClock struct{ delayClock }

func (c wallClock) Nanos() int64 { return c.Now().Wall }
