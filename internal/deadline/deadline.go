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

// Slot shows the watch what one goroutine runs at the moment: a call, by its number.
// Numbers go up and come once, so that a stale one can do no harm. Once a call has been
// given up, nothing is shown there any more.
type Slot[T any] struct {
	// Written with every call: no other core is to find it beside what it reads. And not a
	// pointer, which would cost as much again while the collector marks.
	_ [64]byte
	// current is the number of what runs; 0 between two calls, and gone when one has been
	// given up, which is the last one.
	current atomic.Uint64
	_       [64]byte

	// Of the calls with even numbers, and with odd ones: that of one which runs stands,
	// whatever has been prepared for the next one.
	timeouts [2]atomic.Int64
	batch    atomic.Pointer[Batch[T]]
	// Written under Watch.mu before current is gone, and read by those who have seen that.
	givenUp uint64
	as      State

	// guarded by Watch.mu
	index int    // in Watch.slots
	seen  uint64 // at the last look
	timed uint64 // what the following is about
	due   int64
	slow  bool // it has been told of
}

// gone is the number of no call.
const gone = math.MaxUint64

// Batch is where some calls are that have consecutive numbers, from First on. It stays as
// it is once it has been provided.
type Batch[T any] struct {
	First uint64
	Calls []T
}

// Provide says where the calls are that come next. Their numbers are not 0, and greater
// than what was ever shown. If another one is shown meanwhile, its function has returned to
// its caller, which is going to end it: the watch does not find that one any more.
func (s *Slot[T]) Provide(b *Batch[T]) { s.batch.Store(b) }

// call is where the call with a number is, that was shown; nil for one that is going to end.
func (s *Slot[T]) call(number uint64) *T {
	if b := s.batch.Load(); b != nil && number-b.First < uint64(len(b.Calls)) {
		return &b.Calls[number-b.First]
	}
	return nil
}

// Begin shows the watch that a call, of those provided, runs from now on. It gets its
// deadline at the next Look, unless Arm gives it one.
func (s *Slot[T]) Begin(number uint64, timeout time.Duration) {
	s.allow(number, timeout)
	s.current.Store(number)
}

// End ends a call, which was begun. It reports false if the watch gave it up before.
func (s *Slot[T]) End(number uint64) bool { return s.current.CompareAndSwap(number, 0) }

// Pass is End of one call and Begin of the one with the next number in one step. With
// false neither has happened.
func (s *Slot[T]) Pass(number uint64, timeout time.Duration) bool {
	s.allow(number+1, timeout)
	return s.current.CompareAndSwap(number, number+1)
}

// allow gives a call its timeout. Most have that of the one before.
func (s *Slot[T]) allow(number uint64, timeout time.Duration) {
	if t := &s.timeouts[number%2]; t.Load() != int64(timeout) {
		t.Store(int64(timeout))
	}
}

// Runs reports whether a call, which was begun, has neither ended nor been given up.
func (s *Slot[T]) Runs(number uint64) bool { return s.current.Load() == number }

// State is what has become so far of a call, which was begun.
func (s *Slot[T]) State(number uint64) State {
	switch current := s.current.Load(); {
	case current == number:
		return Running
	case current == gone && s.givenUp == number:
		return s.as
	}
	return Ended
}

// giveUpLocked takes a call from its caller, and returns it; nil if it has ended, or is
// going to.
func (s *Slot[T]) giveUpLocked(number uint64, as State) *T {
	t := s.call(number)
	if t == nil {
		return nil
	}
	s.givenUp, s.as = number, as
	if !s.current.CompareAndSwap(number, gone) {
		return nil
	}
	return t
}

// runningLocked is the number of what the slot shows, 0 if that has been given up.
func (s *Slot[T]) runningLocked() uint64 {
	if number := s.current.Load(); number != gone {
		return number
	}
	return 0
}

// Slow is a call that has used up a third of its timeout, and when it began.
type Slow[T any] struct {
	Call  *T
	Began int64
}

// never is later than every deadline.
const never = math.MaxInt64

// Watch tells of the calls that use up a third of their timeouts, and overruns
// those that pass their deadlines. T is a call.
type Watch[T any] struct {
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
	slow func([]Slow[T]),
	overrun func(*T),
	nanos func() int64,
	schedule func(time.Duration, func()) Timer,
) *Watch[T] {
	w := &Watch[T]{slow: slow, overrun: overrun, nanos: nanos, schedule: schedule}
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

// Arm gives the call that the slot shows, and that begins now, its deadline, and has the
// watch look when it becomes slow, or earlier.
func (w *Watch[T]) Arm(s *Slot[T], number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if due, timeout, runs := s.dueLocked(number, w.nanos()); runs {
		w.armLocked(slowAt(due, timeout))
	}
}

// Deadline is when a call, which was shown in the slot, is due. One that has no deadline
// yet is given it as if it began now; that of one that has ended may have been forgotten,
// and is now.
func (w *Watch[T]) Deadline(s *Slot[T], number uint64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.nanos()
	if s.timed == number {
		return s.due
	}
	if due, _, runs := s.dueLocked(number, now); runs {
		return due
	}
	return now
}

// dueLocked is the deadline and the timeout of a call that the slot has shown, if it still
// runs; one that has no deadline yet began now.
func (s *Slot[T]) dueLocked(number uint64, now int64) (due int64, timeout time.Duration, runs bool) {
	timeout = time.Duration(s.timeouts[number%2].Load())
	if !s.Runs(number) { // and the timeout may be another one's
		return 0, 0, false
	}
	if s.timed != number {
		s.timed, s.due, s.slow = number, after(now, timeout), false
	}
	return s.due, timeout, true
}

// Clear forgets where the calls are that the slot has shown, so that a resting goroutine
// keeps nothing alive. Before the next Begin there is to be a Provide.
func (s *Slot[T]) Clear() { s.batch.Store(nil) }

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
		if number := s.runningLocked(); number != 0 {
			if t := s.giveUpLocked(number, Stopped); t != nil {
				all = append(all, t)
			}
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
		number := s.runningLocked()
		if number != s.seen {
			s.seen, changed = number, true
		}
		if number == 0 {
			continue
		}
		if s.timed != number {
			now = w.nanos() // it may have begun after the last reading
		}
		due, timeout, runs := s.dueLocked(number, now)
		if !runs {
			continue
		}
		if due <= now {
			if t := s.giveUpLocked(number, Overran); t != nil {
				late = append(late, t)
			}
			continue
		}
		if at := slowAt(due, timeout); !s.slow && at > now {
			due = at
		} else if !s.slow {
			s.slow = true
			if t := s.call(number); t != nil {
				slow = append(slow, Slow[T]{t, due - int64(timeout)})
			}
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
