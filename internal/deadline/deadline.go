// Package deadline watches running calls, tells of those that are slow, and ends
// those that overrun.
//
// A protected call costs no goroutine and no timer: whoever runs it shows it in
// a slot, and one timer, set to the earliest instant at which one of them becomes
// slow or overruns, looks at them. Whoever takes a call out of its slot first, the
// caller by ending it or the watch by giving it up, has decided the race.
package deadline

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// State is what has become of a call.
type State = uint32

// The states of a call that a slot has shown. It leaves Running once, for one of the
// others.
const (
	Running State = iota
	Ended         // by itself
	Overran       // its deadline has passed
	Stopped       // by StopAll
)

// after is the deadline of a call that begins now. Times are the watch's
// nanoseconds.
func after(now int64, timeout time.Duration) int64 {
	if due := now + int64(timeout); due >= now {
		return due
	}
	return never - 1
}

// slowAt is when a call with this deadline has used up a third of its timeout. It
// is told by what is left, which overflows nowhere: a deadline at the end of time
// is not the timeout after its beginning.
func slowAt(due int64, timeout time.Duration) int64 {
	return due - int64(timeout/3*2+timeout%3*2/3)
}

// Timer is what the watch needs of a timer.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Slot shows the watch what one goroutine runs at the moment. A call is shown once,
// so that a stale pointer to it can do no harm. Once one has been given up, nothing is
// shown there any more.
type Slot[T any] struct {
	// Written with every call: no other core is to find it beside what it reads.
	_ [64]byte
	// current is what runs; nil between two calls, and &mark when one has been given
	// up, which is the last one.
	current atomic.Pointer[T]
	_       [64]byte
	mark    T
	// Written under Watch.mu before the mark is set, and read by those who have seen it.
	givenUp *T
	as      State

	// guarded by Watch.mu
	index   int  // in Watch.slots
	seen    *T   // at the last look
	cleared bool // since then, of what was seen
	timed   *T   // what the following is about
	due     int64
	slow    bool // it has been told of
}

// Begin shows the watch that t runs from now on. It gets its deadline at the next
// Look, unless Arm gives it one.
func (s *Slot[T]) Begin(t *T) { s.current.Store(t) }

// End ends t, which was begun. It reports false if the watch gave it up before.
func (s *Slot[T]) End(t *T) bool { return s.current.CompareAndSwap(t, nil) }

// Pass is End of one call and Begin of the next one in one step. With false neither
// has happened.
func (s *Slot[T]) Pass(from, to *T) bool { return s.current.CompareAndSwap(from, to) }

// Runs reports whether t, which was begun, has neither ended nor been given up.
func (s *Slot[T]) Runs(t *T) bool { return s.current.Load() == t }

// State is what has become so far of t, which was begun.
func (s *Slot[T]) State(t *T) State {
	switch current := s.current.Load(); {
	case current == t:
		return Running
	case current == &s.mark && s.givenUp == t:
		return s.as
	}
	return Ended
}

// giveUpLocked takes t from its caller. It reports false if it has ended.
func (s *Slot[T]) giveUpLocked(t *T, as State) bool {
	s.givenUp, s.as = t, as
	return s.current.CompareAndSwap(t, &s.mark)
}

// runningLocked is what the slot shows, if that has not been given up.
func (s *Slot[T]) runningLocked() *T {
	if t := s.current.Load(); t != &s.mark {
		return t
	}
	return nil
}

// Slow is a call that has used up a third of its timeout, and when it began.
type Slow[T any] struct {
	Call  *T
	Began int64
}

// never is later than every deadline.
const never = math.MaxInt64

// Watch tells of the calls that use up a third of their timeouts, and overruns
// those that pass their deadlines. T is what a slot shows, and not of size zero.
type Watch[T any] struct {
	timeout  func(*T) time.Duration
	slow     func([]Slow[T])
	overrun  func(*T)
	nanos    func() int64
	schedule func(time.Duration, func()) Timer

	// armed is when the timer will look next. It is written under mu and read
	// without, by Rest.
	armed atomic.Int64

	mu    sync.Mutex // guards the following
	slots []*Slot[T]
	timer Timer

	telling sync.WaitGroup // runs of slow; added to under mu
}

// New makes a watch on the time of nanos and the timers of schedule, which runs
// its function on a goroutine of its own. overrun is called, without a lock,
// once for each call that the watch has given up.
//
// slow is called, without a lock, with calls that still ran when a third of their
// timeouts had passed, each once: with all that one look has found, on a goroutine
// of its own, so that it may take its time. They may have ended meanwhile.
func New[T any](
	timeout func(*T) time.Duration,
	slow func([]Slow[T]),
	overrun func(*T),
	nanos func() int64,
	schedule func(time.Duration, func()) Timer,
) *Watch[T] {
	w := &Watch[T]{timeout: timeout, slow: slow, overrun: overrun, nanos: nanos, schedule: schedule}
	w.armed.Store(never)
	return w
}

// Open adds a slot for a goroutine that is going to run calls.
func (w *Watch[T]) Open() *Slot[T] {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &Slot[T]{index: len(w.slots)}
	w.slots = append(w.slots, s)
	return s
}

// Close removes a slot.
func (w *Watch[T]) Close(s *Slot[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.slots) - 1
	w.slots[s.index] = w.slots[last]
	w.slots[s.index].index = s.index
	w.slots[last] = nil
	w.slots = w.slots[:last]
}

// Arm gives t, which the slot shows and which begins now, its deadline, and has the
// watch look when it becomes slow, or earlier.
func (w *Watch[T]) Arm(s *Slot[T], t *T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	due, timeout := w.dueLocked(s, t, w.nanos())
	w.armLocked(slowAt(due, timeout))
}

// Deadline is when t, which was shown in the slot, is due. If it has no deadline yet, or
// that has been forgotten, it is as if it began now.
func (w *Watch[T]) Deadline(s *Slot[T], t *T) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.timed != t && !s.Runs(t) {
		return after(w.nanos(), w.timeout(t))
	}
	due, _ := w.dueLocked(s, t, w.nanos())
	return due
}

// dueLocked is the deadline of what the slot shows; one that has none began now.
func (w *Watch[T]) dueLocked(s *Slot[T], t *T, now int64) (due int64, timeout time.Duration) {
	timeout = w.timeout(t)
	if s.timed != t {
		s.timed, s.due, s.slow = t, after(now, timeout), false
	}
	return s.due, timeout
}

// Clear forgets what the slot showed last, and what a look saw there, so that a
// resting goroutine keeps nothing alive.
func (w *Watch[T]) Clear(s *Slot[T]) {
	s.current.Store(nil)
	w.mu.Lock()
	s.cleared = s.cleared || s.seen != nil
	s.seen, s.timed = nil, nil
	w.mu.Unlock()
}

// Rest stops the timer if nothing runs.
func (w *Watch[T]) Rest() {
	if w.armed.Load() != never {
		w.Look()
	}
}

// Wait waits until slow has returned, wherever it runs. No call may begin meanwhile.
func (w *Watch[T]) Wait() {
	w.mu.Lock()   // a look that goes on has added what it tells
	w.mu.Unlock() //nolint:staticcheck // see above
	w.telling.Wait()
}

// StopAll gives up every running call, whatever its deadline, and returns them.
func (w *Watch[T]) StopAll() []*T {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*T
	for _, s := range w.slots {
		if t := s.runningLocked(); t != nil && s.giveUpLocked(t, Stopped) {
			all = append(all, t)
		}
	}
	return all
}

// Look overruns what is due, has those told of that are slow, and sets the timer
// to what is next. It reports whether any slot shows something that it did not show at the last look.
func (w *Watch[T]) Look() (changed bool) {
	w.mu.Lock()
	w.armed.Store(never)
	now, earliest := w.nanos(), int64(never)
	var late []*T
	var slow []Slow[T]
	for _, s := range w.slots {
		t := s.runningLocked()
		if t != s.seen || s.cleared {
			s.seen, s.cleared, changed = t, false, true
		}
		if t == nil {
			continue
		}
		due, timeout := w.dueLocked(s, t, now)
		if due <= now {
			if s.giveUpLocked(t, Overran) {
				late = append(late, t)
			}
			continue
		}
		if at := slowAt(due, timeout); !s.slow && at > now {
			due = at
		} else if !s.slow {
			s.slow = true
			slow = append(slow, Slow[T]{t, due - int64(timeout)})
		}
		earliest = min(earliest, due)
	}
	if earliest == never {
		if w.timer != nil {
			w.timer.Stop()
		}
	} else {
		w.armLocked(earliest)
	}
	if len(slow) > 0 {
		w.telling.Go(func() { w.slow(slow) })
	}
	w.mu.Unlock()
	for _, t := range late {
		w.overrun(t)
	}
	return changed
}

func (w *Watch[T]) armLocked(due int64) {
	if due >= w.armed.Load() {
		return
	}
	w.armed.Store(due)
	for {
		now := w.nanos()
		d := time.Duration(due - now)
		if due > now && d < 0 { // overflow
			d = math.MaxInt64
		}
		if d <= 0 {
			// Not by the timer: a mock clock fires one of 0 only when it is next
			// moved.
			go w.Look()
			return
		}
		if w.timer == nil {
			w.timer = w.schedule(d, func() { w.Look() })
		} else {
			w.timer.Reset(d)
		}
		// A clock that was moved after now was read has left the timer late by
		// as much, for good if it is a mock clock and stands still again.
		if moved := w.nanos() - now; moved <= min(int64(d)/16, int64(time.Millisecond)) {
			return
		}
	}
}
