package circuit

import (
	"math"
	"sync/atomic"
)

// Slowdown is what a handler asks for whose service wants everyone to wait: no call begins until an instant. Then one
// goes alone, and each that ends lets twice as many run. Slowed is set in the gate meanwhile. Its methods must not be
// called concurrently.
type Slowdown struct {
	until int64
	most  int // calls that may run at once, after until
}

// slowMost is how many calls at once end a slowdown: a service that takes as many can take all.
const slowMost = 64

// Begin shuts the gate until an instant, or the one of before if that is later. It reports whether it was open.
func (s *Slowdown) Begin(gate *atomic.Uint64, until int64) (begins bool) {
	begins = gate.Or(Slowed)&Slowed == 0
	if begins {
		s.until = until
	}
	s.until, s.most = max(s.until, until), 1
	return begins
}

// Admits returns how many calls may begin now beside others. If none may, it returns when that changes without the end of a
// call.
func (s *Slowdown) Admits(now int64, others int) (most int, again int64) {
	switch {
	case now < s.until:
		return 0, s.until
	case others >= s.most:
		return 0, math.MaxInt64
	}
	return s.most - others, 0
}

// Ended notes that a call has ended that began during the slowdown. limit is that of calls at once.
func (s *Slowdown) Ended(gate *atomic.Uint64, now int64, limit int) {
	if now < s.until {
		return
	}
	if s.most *= 2; s.most >= min(limit, slowMost) {
		s.End(gate)
	}
}

// End opens the gate. It reports whether it was shut.
func (s *Slowdown) End(gate *atomic.Uint64) (was bool) { return gate.And(^uint64(Slowed))&Slowed != 0 }

// Until returns when the first call may begin.
func (s *Slowdown) Until() int64 { return s.until }
