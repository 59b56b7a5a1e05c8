package eventbus

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// letGo is how many held deliveries a subscription has at a time, on their way
// or in its handler: a service that has come back is not met by all that it has
// missed at once.
const letGo = 64

// holding has the deliveries that a subscription was skipped for, until its
// circuit lets them through. Each is a dispatch of its own.
//
// A delivery that has been held has a seat: its number says when it was held
// first, and it keeps it when it is held again. With a key, it also has a line,
// from when it is held until it has settled: what comes later with the key is
// held behind it.
type holding struct {
	capacity int
	total    *atomic.Int64 // held on the bus
	keyed    atomic.Int32  // len(lines)

	mu     sync.Mutex           // guards the following, and the seats of its dispatches
	ready  []*dispatch          // by their seats' numbers; each the first of its key
	lines  map[string]*heldLine // keys with a delivery that has not settled
	at     [seatPlaces]int      // dispatches in each place; those away are not counted
	seats  uint64               // that there have been
	taken  int                  // seats of dispatches that have not settled
	wakeAt int64                // when the circuit is to be asked again, 0 if that is not known
	closed Reason               // why nothing is held any more
}

// heldLine is what is behind the first of a key.
type heldLine struct{ behind []*dispatch }

// seat is where a dispatch that has been held is.
type seat struct {
	number uint64 // 0: it has not been held
	place  seatPlace
}

type seatPlace int

const (
	seatAway   seatPlace = iota // it waits for a retry, or comes back from there
	seatHeld                    // in ready, or behind
	seatComing                  // let go, and not at the door yet
	seatInside                  // let go, and in the handler
	seatPlaces
)

func (h *holding) moveLocked(d *dispatch, to seatPlace) {
	s := &d.rare().seat
	held := h.at[seatHeld]
	h.at[s.place]--
	h.at[to]++
	h.at[seatAway] = 0
	s.place = to
	h.total.Add(int64(h.at[seatHeld] - held))
}

// wasHeld reports whether the dispatch has a seat.
func (d *dispatch) wasHeld() bool {
	return d.rare() != nil && d.rare().seat.number != 0
}

// refuses is why a dispatch cannot be held now, if it cannot.
func (h *holding) refuses(d *dispatch) Reason {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refusesLocked(d)
}

func (h *holding) refusesLocked(d *dispatch) Reason {
	switch {
	case h.closed != "":
		return h.closed
	case !d.wasHeld() && h.taken >= h.capacity:
		return ReasonCircuitOpen
	}
	return ""
}

// sit holds a dispatch. It reports why not, if not.
func (h *holding) sit(d *dispatch) (refused Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := !d.wasHeld()
	if refused = h.refusesLocked(d); refused != "" {
		return refused
	}
	key := d.key
	if first {
		h.seats++
		h.taken++
		d.rarities().seat.number = h.seats
	}
	h.moveLocked(d, seatHeld)
	if first && key != "" {
		if line := h.lines[key]; line != nil {
			line.behind = append(line.behind, d)
			return ""
		}
		if h.lines == nil {
			h.lines = make(map[string]*heldLine)
		}
		h.lines[key] = &heldLine{}
		h.keyed.Store(int32(len(h.lines)))
	}
	h.readyLocked(d)
	return ""
}

// readyLocked puts a dispatch where its number says. New ones have the highest.
func (h *holding) readyLocked(d *dispatch) {
	i, _ := slices.BinarySearchFunc(h.ready, d, func(x, y *dispatch) int {
		return cmp.Compare(x.rare().seat.number, y.rare().seat.number)
	})
	h.ready = slices.Insert(h.ready, i, d)
}

// hasLine reports whether a delivery of the key is before one that has not been
// held.
func (h *holding) hasLine(key string) bool {
	if h.keyed.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lines[key] != nil
}

// move notes where a dispatch with a seat is now.
func (h *holding) move(d *dispatch, to seatPlace) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moveLocked(d, to)
}

// leave gives up the seat of a dispatch that has settled: the next one of its key
// is the first now.
func (h *holding) leave(d *dispatch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moveLocked(d, seatAway)
	h.taken--
	line := h.lines[d.key]
	if line == nil {
		return
	}
	if len(line.behind) > 0 {
		h.readyLocked(line.behind[0])
		line.behind[0] = nil
		line.behind = line.behind[1:]
		return
	}
	delete(h.lines, d.key)
	if len(h.lines) == 0 {
		h.lines = nil // a map keeps its memory
	}
	h.keyed.Store(int32(len(h.lines)))
}

// close makes everything leave, oldest first. What comes from now on is refused
// with the reason.
func (h *holding) close(why Reason) []*dispatch {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed == "" {
		h.closed = why
	}
	all := h.ready
	for _, line := range h.lines {
		all = append(all, line.behind...)
		line.behind = nil
	}
	slices.SortFunc(all, func(x, y *dispatch) int {
		return cmp.Compare(x.rare().seat.number, y.rare().seat.number)
	})
	for _, d := range all {
		h.moveLocked(d, seatAway)
	}
	h.ready = nil
	return all
}

func (h *holding) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[seatHeld]
}

// hold keeps a delivery until the subscription's circuit lets it through. It
// returns the letter if it cannot be kept.
func (b *Bus) hold(w *worker, d *dispatch, s *Subscription) *DeadLetter {
	o, hasPlace, attempts, attempt := d.opening, d.hasPlace(), int(d.attempt), d.leaveAttempt()
	d.dropWaiter()
	d.dropPlace()
	if attempt != nil && s.holding.refuses(d) == "" {
		// Before the next one can begin.
		b.observeEnd(EndedAttempt{Attempt: *attempt, Outcome: Held})
		attempt = nil
	}
	if refused := s.holding.sit(d); refused != "" {
		d.opening = o
		if hasPlace {
			d.rare().noPlace = false
		}
		d.rarities().attempt = attempt
		return b.bury(w, d, refused)
	}
	// It is somebody else's from here on.
	if hasPlace {
		b.leave(w, &o)
	}
	if waiter := o.waiter(); waiter != nil {
		waiter.holds(s)
		w.ended(waiter, Held, attempts)
	}
	b.checkDrained()
	b.tend(s)
	return nil
}

// tend lets held deliveries go, oldest first: as many as the circuit may let
// through.
func (b *Bus) tend(s *Subscription) {
	h := &s.holding
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.ready) > 0 {
		now := b.time.Nanos()
		most, again := s.circuit.admits(now)
		if most == 1 && h.at[seatComing] > 0 || most > 1 && h.at[seatComing]+h.at[seatInside] >= most {
			return // who comes tends when it has come
		}
		if most == 0 {
			if again != math.MaxInt64 && (h.wakeAt == 0 || again < h.wakeAt) {
				h.wakeAt = again
				b.doors.Add(again, s)
			}
			return
		}
		d := h.ready[0]
		h.ready[0] = nil
		h.ready = h.ready[1:]
		h.moveLocked(d, seatComing)
		b.lanes.Return(d.ticket(), false)
	}
}

// wake asks the circuits of subscriptions again.
func (b *Bus) wake(all []*Subscription) {
	for _, s := range all {
		s.holding.mu.Lock()
		s.holding.wakeAt = 0
		s.holding.mu.Unlock()
		b.tend(s)
	}
}
