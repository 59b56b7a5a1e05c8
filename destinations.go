package eventbus

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/circuit"
	"github.com/surebus/eventbus/internal/keys"
)

// CommonDestination names the destination that deliveries without their own destination share. The function of
// PerDestination returned "" or panicked, or MaxDestinations others are in use.
const CommonDestination = "(common)"

// MaxDestinations is the largest number of destinations that a subscription knows at a time. For a further one, the bus
// forgets the idle destination that was not used for the longest time. A destination is idle if it has no delivery, no
// abandoned call and no directive in force. Its circuit must be closed with an empty window, and its rate limit admit a
// whole burst. If none is idle, deliveries for new destinations share CommonDestination, which
// DestinationsMetrics.Shared counts.
const MaxDestinations = 10_000

// linesInMemory times LineCapacity is the bound of the lines of all destinations of a subscription together.
const linesInMemory = 10

// abandonedTogether times MaxAbandoned calls at all destinations hold the whole subscription.
const abandonedTogether = 10

// fullPatience is the pause before the next search for an idle destination, after one that found none: it visits all of them.
const fullPatience = time.Second

// destinations has the doors of a subscription's destinations. A delivery first passes the subscription's own door. Then the
// user's function is asked for its destination, and it asks for admission at that door.
//
// Order by key is the subscription's. A delivery that waits for a destination holds back later ones of its key at the door where
// the first of them took its seat, their home. The first of those that have waited there goes to its own destination, and has
// its place at home all the same, until it has settled. Those that wait at the subscription's own door pass it in their
// order, and then have their places at home, not there any more.
type destinations struct {
	own   *door // the subscription's
	set   atomic.Pointer[destinationTerms]
	homes keys.Homes[*door]

	seats  atomic.Int64 // in all lines
	known  atomic.Int64 // length of doors
	shared atomic.Int64 // deliveries that share the common destination because no other is idle
	opens  atomic.Int64 // times that a circuit has opened

	evicting sync.Mutex // held while a victim is chosen; it comes before mu

	mu           sync.RWMutex // guards the following; it comes before door.mu
	doors        map[string]*list.Element
	used         list.List // of *door, the one used last first
	closed       Reason    // set once the lines accept no deliveries
	fullUntil    int64     // no destination is idle before; see fullPatience
	sharedLogged bool      // the log says that the common one is shared

	shares  doorQueue // doors that wait until other destinations use less of the subscription's share of the workers
	crowded doorQueue // doors that did not ask for what the store has, because the lines of all had no room

	panicLogged atomic.Bool // the log says that the user's function has panicked
}

// destinationTerms are the settings of a subscription for each of its destinations.
type destinationTerms struct {
	ask       func(Event) string
	circuit   circuit.Config
	abandoned int32 // MaxAbandoned
	rate      *RateSettings
	limit     int32 // Concurrency
}

func newDestinations(s *Subscription, c *subscriptionConfig) *destinations {
	ds := &destinations{own: s.door, doors: make(map[string]*list.Element)}
	ds.set.Store(&destinationTerms{ask: c.destination, circuit: c.circuit, abandoned: c.maxAbandoned(), rate: c.rate, limit: s.concurrency})
	return ds
}

// of returns the subscription whose destinations they are now.
func (ds *destinations) of() *Subscription { return ds.own.of() }

// divideByDestination makes the destinations of a new subscription. t are the terms of its own door, which has no limits but the
// bus's.
func (s *Subscription) divideByDestination(c *subscriptionConfig, t terms) {
	most := c.maxAbandoned()
	if most < math.MaxInt32/abandonedTogether {
		most *= abandonedTogether
	} else {
		most = math.MaxInt32
	}
	t.limit, t.share, t.rate = math.MaxInt32, int32(min(max(s.bus.config.concurrency/2, 1), math.MaxInt32)), nil
	if c.limit == Unlimited {
		t.share = math.MaxInt32
	}
	s.door.sets(t)
	s.door.hanging.Init(&s.door.circuit.Gate, most)
	s.door.circuit.Init(circuit.Config{Disabled: true, Window: c.circuit.Window}, s.bus.time)
	s.destinations = newDestinations(s, c)
}

// doors returns the subscription's own door, and those of its destinations.
func (s *Subscription) doors() []*door {
	all := []*door{s.door}
	if s.destinations != nil {
		all = append(all, s.destinations.all()...)
	}
	return all
}

// doorTo returns the door of a destination, or the subscription's own for "" or without PerDestination.
func (s *Subscription) doorTo(name string) *door {
	if s.destinations == nil || name == "" {
		return s.door
	}
	return s.destinations.door(name)
}

// recover makes the feeder claim anew what the store has for the subscription, after the store was reopened.
func (s *Subscription) recover() {
	s.door.recover()
	if s.destinations != nil {
		for _, o := range s.destinations.all() {
			o.forgetSpill()
		}
	}
}

// hasSpilled reports whether a door is open and the store may have deliveries for it.
func (s *Subscription) hasSpilled() bool {
	return slices.ContainsFunc(s.doors(), func(o *door) bool { return o.hasSpilled(s.bus) })
}

// closeDoors empties the lines for good, see door.close.
func (s *Subscription) closeDoors(why Reason) (all []*dispatch) {
	if s.destinations != nil {
		s.destinations.close(why)
	}
	for _, o := range s.doors() {
		all = append(all, o.close(s.bus, why)...)
	}
	return all
}

func (ds *destinations) all() (all []*door) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for e := ds.used.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*door))
	}
	return all
}

func (ds *destinations) close(why Reason) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.closed = why
}

// claiming returns the names of the destinations that claim for themselves what the store has for them.
func (ds *destinations) claiming() (names []string) {
	for _, o := range ds.all() {
		if o.claims() {
			names = append(names, o.name)
		}
	}
	return names[:min(len(names), MaxDestinations)] // see driver.ClaimQuery; the subscription claims for the others, too
}

// find returns the door of a destination that is in use, or nil.
func (ds *destinations) find(name string) *door {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if e := ds.doors[name]; e != nil {
		return e.Value.(*door)
	}
	return nil
}

// door returns the door of a destination, and makes a missing one. If too many are in use, that is the door of the common one. The
// name is as the user's function has given it.
func (ds *destinations) door(given string) *door {
	o, first := ds.get(given)
	if first {
		ds.of().bus.log.Warn("destinations share the common one: too many are in use",
			zap.String("subscription_id", ds.of().id), zap.Int("destinations", MaxDestinations),
			zap.String("remedy", "let the function of PerDestination return fewer names, or look at those that are not well in Metrics"))
	}
	return o
}

// get is door. first is set if it is the first time that the common destination is shared.
func (ds *destinations) get(given string) (o *door, first bool) {
	now := ds.of().bus.time.Shared()
	if o = ds.find(given); o != nil && now != nil && o.used.Load() == now.Nanos { // it moved to the front at this tick
		return o, false
	}
	name := destinationName(given)
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if e := ds.doors[name]; e != nil {
		ds.used.MoveToFront(e)
		if o = e.Value.(*door); now != nil {
			o.used.Store(now.Nanos)
		}
		return o, false
	}
	if len(ds.doors) >= MaxDestinations && name != CommonDestination && !ds.forgetLocked() {
		ds.shared.Add(1)
		first, ds.sharedLogged = !ds.sharedLogged, true
		if e := ds.doors[CommonDestination]; e != nil {
			return e.Value.(*door), first
		}
		name = CommonDestination
	}
	return ds.addLocked(name), first
}

// pinned returns the door of a destination, and keeps it from being forgotten until unpin is called. It makes a
// missing one.
func (ds *destinations) pinned(name string) (o *door, unpin func()) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	e := ds.doors[name]
	if e == nil { // an operator may exceed MaxDestinations
		ds.addLocked(name)
		e = ds.doors[name]
	}
	o = e.Value.(*door)
	o.pins.Add(1)
	return o, func() { o.pins.Add(-1) }
}

func (ds *destinations) addLocked(name string) *door {
	b, set := ds.of().bus, ds.set.Load()
	o := &door{name: name, whole: ds.own, made: b.time.Nanos(), ledger: ds.own.ledger}
	o.sets(ds.own.termsOfEach(set))
	o.spill.allowed = ds.own.spills()
	o.closed = ds.closed
	o.hanging.Init(&o.circuit.Gate, set.abandoned)
	o.circuit.Init(set.circuit, b.time)
	ds.doors[name] = ds.used.PushFront(o)
	ds.known.Store(int64(len(ds.doors)))
	return o
}

// termsOfEach returns the terms of a destination at a subscription's own door.
func (o *door) termsOfEach(set *destinationTerms) terms {
	t := *o.terms()
	t.limit, t.rate = set.limit, newRate(set.rate)
	return t
}

// spills reports whether deliveries that find the line full stay in the store.
func (o *door) spills() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spill.allowed
}

// forgetLocked forgets the idle destination that was not used for the longest time. It reports whether there was one.
func (ds *destinations) forgetLocked() bool {
	now := ds.of().bus.time.Nanos()
	if now < ds.fullUntil {
		return false
	}
	for e := ds.used.Back(); e != nil; e = e.Prev() {
		if o := e.Value.(*door); o.forget(now) {
			delete(ds.doors, o.name)
			ds.known.Store(int64(len(ds.doors)))
			ds.used.Remove(e)
			return true
		}
	}
	ds.fullUntil = now + int64(fullPatience)
	return false
}

// hasFullRate reports whether the rate limit admits a whole burst.
func (o *door) hasFullRate(now int64) bool {
	rate := o.terms().rate
	return rate == nil || rate.IsFull(now)
}

// forget reports whether the door is idle. Then the door admits no delivery any more.
func (o *door) forget(now int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endPauseLocked(o.of().bus)
	gate := o.circuit.Gate.Or(circuit.Forgotten) // before running is read: a delivery counts itself before it reads the gate
	hanging, _ := o.hanging.Calls()
	switch {
	case o.running.Load()+o.pins.Load() > 0, hanging > 0,
		gate&(circuit.Ask&^(circuit.Rated|circuit.Slowed)) != 0,
		gate&circuit.Slowed != 0 && now < o.slowdown.Until(), // nothing has run since: the window is empty
		!o.line.IsIdle(), o.spill.committing > 0,
		!o.hasFullRate(now), !o.circuit.IsIdle(now):
		o.circuit.Gate.And(^uint64(circuit.Forgotten))
		return false
	}
	return true
}

// destinationName returns a name that the user's function has given, if it has at most 255 bytes of valid UTF-8 without NUL. It
// cuts another one, which then ends with a hash of the whole.
func destinationName(given string) string {
	switch {
	case given == "":
		return CommonDestination
	case len(given) <= maxName && utf8.ValidString(given) && !strings.Contains(given, "\x00"):
		return given
	}
	digest := sha256.Sum256([]byte(given))
	mark := "#" + hex.EncodeToString(digest[:16])
	valid := strings.ReplaceAll(strings.ToValidUTF8(given, ""), "\x00", "")
	for len(valid) > maxName-len(mark) || !utf8.ValidString(valid) {
		valid = valid[:min(len(valid)-1, maxName-len(mark))]
	}
	return valid + mark
}

// enter requests admission at the door of the next target: with PerDestination at the subscription's own, and then at the door of
// the delivery's destination. If the user's function does not return, the worker is lost.
func (m *machine) enter(w *worker, d *dispatch, s *Subscription, event *Event) (at *door, pass uint64, shut *barrier) {
	at = s.door
	if s.destinations == nil {
		pass, shut = at.enter(m.Bus, d)
		return at, pass, shut
	}
	name := d.destination()
	if name == "" {
		if home := s.destinations.behind(d); home != nil {
			return home, 0, behindKey
		}
		if pass, shut = at.enter(m.Bus, d); shut != nil {
			return at, pass, shut
		}
		if name = m.askDestination(w, d, at, pass, event); w.lost {
			return at, pass, nil
		}
		m.exit(d, at, pass, noOutcome)
	}
	for at, shut = nil, forgotten; shut == forgotten; {
		at = s.destinations.door(name)
		pass, shut = at.enter(m.Bus, d)
	}
	if shut != nil {
		d.goesTo(at)
	} else {
		m.moveSeat(d, at)
	}
	return at, pass, shut
}

// askDestination calls the user's function for a delivery, as a call of its own under the watch. If the function does not return in
// time, the worker is lost.
func (m *machine) askDestination(w *worker, d *dispatch, at *door, pass uint64, event *Event) (name string) {
	c := m.begin(w, d, at, pass)
	returned := false
	defer func() {
		if !returned { // it has ended its goroutine
			m.handlerExited(w, c, nil)
		}
	}()
	name = at.of().destinations.nameOf(*event)
	returned = true
	if !c.word.End() {
		m.endedLate(w, c, result{})
		return ""
	}
	c.cancel()
	return name
}

// nameOf returns the name that the user's function returns, or "" if the function panics.
func (ds *destinations) nameOf(e Event) (name string) {
	defer func() {
		if p := recover(); p != nil {
			name = ""
			ds.panicked(p)
		}
	}()
	return ds.set.Load().ask(e)
}

// panicked logs that the user's function has panicked, once.
func (ds *destinations) panicked(p any) {
	if !ds.panicLogged.Swap(true) {
		ds.of().bus.log.Error("PerDestination panicked: its events go to the common destination",
			zap.String("subscription_id", ds.of().id), zap.String("panic", panicText(p)))
	}
}

// behind returns the door at which an earlier delivery of the key holds back one whose destination is not known yet, or nil.
func (ds *destinations) behind(d *dispatch) *door {
	sits := d.seat().Number != 0
	switch {
	case d.key == "", sits && d.seatDoor() != ds.own, d.home() != nil: // it has no order, or has its place among those of its key
		return nil
	case !sits && !d.hasPassed() && ds.own.holdsBack(d):
		return ds.own
	}
	if home := ds.homes.Of(d.key); home != nil && home.holdsBack(d) {
		return home
	}
	return nil
}

// holdsBack reports whether an earlier delivery of the key has its place at the door.
func (o *door) holdsBack(d *dispatch) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.whole == nil {
		return o.comesAfterLocked(d) || o.goesToStoreLocked(d)
	}
	return o.comesAfterLocked(d) || !d.staysInMemory(o) && o.isHomeOfLocked(d.key)
}

// tendAll tends a door that has changed, and if it is a subscription's own, those of all destinations.
func (m *machine) tendAll(o *door) {
	m.tend(o)
	if o.whole == nil && o.of().destinations != nil {
		for _, each := range o.of().destinations.all() {
			m.tend(each)
		}
	}
}

// releaseVisitorsLocked releases deliveries that have waited here behind others of their keys: they go to their own
// destinations now, and no barrier of this one keeps them.
func (o *door) releaseVisitorsLocked(b *Bus) {
	if o.whole == nil || len(o.line.Visitors()) == 0 {
		return
	}
	if shut, until := o.whole.paused(b); shut {
		if !until.IsZero() {
			o.tendAtLocked(b, b.time.Look(until))
		}
		return
	}
	if o.wholeGate() != 0 {
		return
	}
	for _, d := range o.line.Visitors() {
		o.goesLocked(b, d)
		b.machine.requeue(d)
	}
}

// destination returns the name of the delivery's destination at the next target, or "" while it is not known.
func (d *dispatch) destination() string {
	if d.story == nil || d.story.detours == nil {
		return ""
	}
	return d.story.detours.destination
}

// goesTo notes the destination at the next target, once the user's function has returned it.
func (d *dispatch) goesTo(at *door) {
	if at.name != "" && d.destination() == "" {
		d.ensureDetours().destination = at.name
	}
}

// pinned returns the door of a destination, or the subscription's own for "", and keeps it from being forgotten until unpin is
// called.
func (s *Subscription) pinned(destination string) (at *door, unpin func()) {
	if s.destinations == nil || destination == "" {
		return s.door, func() {}
	}
	return s.destinations.pinned(destination)
}
