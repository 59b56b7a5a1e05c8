package eventbus_test

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus"
)

// simKeys has what is behind each key that a dispatch has the place of.
type simKeys map[string][]*simDispatch

// keysOf is where a dispatch waits for its key.
func (m *simModel) keysOf(d *simDispatch) simKeys {
	if m.isolation {
		return d.subs[0].keys
	}
	return m.keys
}

// simPlace is the place of a key, at one subscription on a bus with isolation.
type simPlace struct {
	key string
	at  *simSub
}

// keyPlace is the place that a dispatch has, if it has one.
func (d *simDispatch) keyPlace(isolation bool) (p simPlace) {
	if d.place {
		p.key = d.event.key
		if isolation {
			p.at = d.sub()
		}
	}
	return p
}

// enqueue queues a dispatch, or has it wait for its key.
func (m *simModel) enqueue(d *simDispatch, at time.Duration) {
	d.at = at
	if key := d.event.key; key != "" {
		d.place = true
		keys := m.keysOf(d)
		if line, taken := keys[key]; taken {
			keys[key] = append(line, d)
			m.parked++
			return
		}
		keys[key] = nil
	}
	m.queue = append(m.queue, d)
}

// leavePlace gives up a key's place, if the dispatch has it.
func (m *simModel) leavePlace(d *simDispatch, at time.Duration) {
	if !d.place {
		return
	}
	d.place = false
	keys, key := m.keysOf(d), d.event.key
	if len(keys[key]) == 0 {
		delete(keys, key)
		return
	}
	next := keys[key][0]
	keys[key] = keys[key][1:]
	m.parked--
	next.at, next.handed = at, true
	m.queue = append(m.queue, next)
}

// simHolding is what a subscription holds, oldest first.
type simHolding struct {
	holds  int // at most
	ready  []*simDispatch
	behind map[string][]*simDispatch // by keys of which one has been held and has not settled
	let    []*simDispatch            // coming, inside or away
	seats  int
	taken  int // seats of those that have not settled
	closed eventbus.Reason
	full   bool // one has found no room since the last look
	left   int  // seats that have been given up since
}

func (h *simHolding) String() string {
	text := fmt.Sprintf("%d ready", len(h.ready))
	for _, d := range slices.Concat(h.ready, h.let) {
		text += fmt.Sprintf(", %d %s %s", d.seat, d.name(), d.where)
	}
	return text
}

func (h *simHolding) held() int {
	n := len(h.ready)
	for _, line := range h.behind {
		n += len(line)
	}
	return n
}

// refuses is why a dispatch is skipped at the door, "" if it is not.
func (s *simSub) refuses(d *simDispatch, earliest, latest time.Duration, seen bool) string {
	_, line := s.behind[d.event.key]
	switch {
	case s.removed:
		return "removed"
	case d.seat == 0 && line:
		return "behind"
	}
	return s.circuit.refuses(earliest, latest, seen)
}

// enter is what happens at the door.
func (s *simSub) enter(d *simDispatch, earliest, latest time.Duration, seen bool) (pass simPass, why string) {
	why = s.refuses(d, earliest, latest, seen)
	if why != "removed" && why != "behind" {
		pass = s.circuit.enter(earliest, latest, seen)
	}
	if d.seat > 0 && why == "" {
		d.where = "inside"
	}
	return pass, why
}

// sit holds a dispatch, or tells why not. Of several it is open who has found room.
func (s *simSub) sit(d *simDispatch, look int, seen *simSeen) (refused eventbus.Reason) {
	h, first, pair := &s.simHolding, d.seat == 0, simPair(d.event.number, s.name)
	switch {
	case h.closed != "":
		return h.closed
	case !first || slices.Contains(seen.held[s], pair):
	case seen.dead[pair] == eventbus.ReasonCircuitOpen || h.taken >= h.holds:
		h.full = true
		return eventbus.ReasonCircuitOpen
	}
	if first {
		h.seats++
		h.taken++
		d.seat, d.sat = h.seats, look
	}
	h.let = slices.DeleteFunc(h.let, func(x *simDispatch) bool { return x == d })
	d.where = "held"
	if key := d.event.key; first && key != "" {
		if line, taken := h.behind[key]; taken {
			h.behind[key] = append(line, d)
			return ""
		}
		h.behind[key] = nil
	}
	h.makeReady(d)
	return ""
}

func (h *simHolding) makeReady(d *simDispatch) {
	h.ready = append(h.ready, d)
	slices.SortFunc(h.ready, func(x, y *simDispatch) int { return x.seat - y.seat })
}

// all is what is held, oldest first.
func (h *simHolding) all() []*simDispatch {
	all := slices.Clone(h.ready)
	for _, line := range h.behind {
		all = append(all, line...)
	}
	slices.SortFunc(all, func(x, y *simDispatch) int { return x.seat - y.seat })
	return all
}

// adopt checks what is held, and takes over the order of those that have come
// since the look before: of several it is open who was first, but for those of a
// key.
func (s *simSub) adopt(seen []string, look int) {
	all := s.all()
	byName := make(map[string]*simDispatch, len(all))
	seats := make([]int, 0, len(all))
	for _, d := range all {
		byName[simPair(d.event.number, s.name)] = d
		seats = append(seats, d.seat)
	}
	simCheck(len(seen) == len(all), "%s holds %v, and should %s", s.name, seen, &s.simHolding)
	simCheck(s.taken <= s.holds, "%s holds %d, with room for %d", s.name, s.taken, s.holds)
	simCheck(!s.full || s.taken+s.left >= s.holds, "%s had room for %d, and took %d and no more", s.name, s.holds, s.taken)
	last := map[string]int{}
	for i, name := range seen {
		d := byName[name]
		simCheck(d != nil, "%s holds %v, and should %s", s.name, seen, &s.simHolding)
		simCheck(d.seat == seats[i] || d.sat == look, "%s holds %v in another order than %s", s.name, seen, &s.simHolding)
		key := d.event.key
		simCheck(key == "" || d.seat > last[key], "%s holds %s before what is older of its key: %v, %s", s.name, name, seen, &s.simHolding)
		last[key] = d.seat
	}
	for i, name := range seen {
		byName[name].seat = seats[i]
	}
	slices.SortFunc(s.ready, func(x, y *simDispatch) int { return x.seat - y.seat })
}

// stand gives up a seat.
func (h *simHolding) stand(d *simDispatch) {
	h.taken--
	h.left++
	h.let = slices.DeleteFunc(h.let, func(x *simDispatch) bool { return x == d })
	line, taken := h.behind[d.event.key]
	switch {
	case !taken:
	case len(line) == 0:
		delete(h.behind, d.event.key)
	default:
		h.behind[d.event.key] = line[1:]
		h.makeReady(line[0])
	}
}

// close makes everything leave, oldest first.
func (h *simHolding) close(why eventbus.Reason) []*simDispatch {
	if h.closed == "" {
		h.closed = why
	}
	all := h.ready
	for key, line := range h.behind {
		all = append(all, line...)
		h.behind[key] = nil
	}
	h.ready = nil
	slices.SortFunc(all, func(x, y *simDispatch) int { return x.seat - y.seat })
	return all
}

// tend lets what is held go, oldest first: all when the circuit is closed, at most
// 64 of them at a time, or one to probe.
func (m *simModel) tend(s *simSub, at time.Duration) {
	for len(s.ready) > 0 && !s.removed && !s.circuit.paused {
		c, coming, inside := &s.circuit, 0, 0
		for _, d := range s.let {
			switch d.where {
			case "coming":
				coming++
			case "inside":
				inside++
			}
		}
		if c.shut && (c.probing || coming > 0 || !c.half && at < c.until) || !c.shut && coming+inside >= 64 {
			return
		}
		d := s.ready[0]
		s.ready = s.ready[1:]
		d.where, d.at = "coming", at
		s.let = append(s.let, d)
		m.queue = append(m.queue, d)
	}
}

// wakes is when something that is held may go by itself.
func (s *simSub) wakes() time.Duration {
	c := &s.circuit
	switch {
	case len(s.ready) == 0:
	case c.paused:
		return c.pausedUntil
	case c.shut && !c.half && !s.isComing():
		return c.until
	}
	return math.MaxInt64
}

func (s *simSub) isComing() bool {
	return slices.ContainsFunc(s.let, func(d *simDispatch) bool { return d.where == "coming" })
}
