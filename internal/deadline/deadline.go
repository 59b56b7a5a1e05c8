// Package deadline watches running calls, reports those that are slow, and ends those
// that exceed their timeouts.
//
// A call costs no goroutine and no timer. The goroutine that runs it shows it in a slot.
// One timer is set to the earliest instant at which a call becomes slow or exceeds its
// timeout, and looks at all slots. The goroutine and the watch compete for the call's Word:
// the first compare-and-swap decides how the call ends.
package deadline

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// State is the state of a call.
type State uint32

// The states of a call. It leaves Running once.
const (
	Running   State = iota
	Ended           // by its goroutine
	Overran         // its deadline has passed
	Stopped         // by StopAll
	Revoked         // by RevokeAll
	Cancelled       // by CancelIf

	stateBits = 3
)

// Word is the state of a call, and a number that its user chooses, in four bytes. Its methods are
// safe for concurrent use.
type Word struct{ bits uint32 }

// MaxNumber is the largest number in a Word.
const MaxNumber = 1<<(32-stateBits) - 1

// Begin returns the word of a call that runs. It must be set before the call is shown: only then
// does another goroutine read it.
func Begin(number uint32) Word { return Word{number << stateBits} }

// Number returns the number that was given to Begin.
func (w *Word) Number() uint32 { return atomic.LoadUint32(&w.bits) >> stateBits }

// State returns the state.
func (w *Word) State() State { return stateOf(atomic.LoadUint32(&w.bits)) }

func stateOf(bits uint32) State { return State(bits & (1<<stateBits - 1)) }

// End ends the call. It returns false if the watch ended it first.
func (w *Word) End() bool { return w.end(Ended) }

func (w *Word) end(as State) bool {
	bits := atomic.LoadUint32(&w.bits)
	return stateOf(bits) == Running && atomic.CompareAndSwapUint32(&w.bits, bits, bits|uint32(as))
}

// Slot publishes the call that a goroutine runs to the watch.
type Slot[T any] struct {
	// Written with every call: the padding keeps it off the cache lines of other cores' data.
	_       [64]byte
	current atomic.Pointer[T]
	_       [64]byte

	// Guarded by Watch.mu.
	index int // in Watch.slots
	seen  *T  // the running call at the last Look
	timed *T  // the call that due and slow refer to
	due   int64
	slow  bool // the call was reported as slow
}

// Show publishes a call that begins. The watch's next Look sets its deadline, unless Arm sets it
// first. Show each call once.
func (s *Slot[T]) Show(call *T) { s.current.Store(call) }

// Clear empties the slot, so that an idle goroutine keeps no call in memory.
func (s *Slot[T]) Clear() { s.current.Store(nil) }

// Timer is the part of a timer that the watch needs.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Late is a slow call and when it began.
type Late[T any] struct {
	Call  *T
	Began int64
}

const never = math.MaxInt64

// Config describes a watch over calls T.
type Config[T any] struct {
	// Of returns the word of a call and its timeout. These are fixed.
	Of func(*T) (*Word, time.Duration)
	// Slow is called without a lock, on its own goroutine, with the calls that have used a
	// third of their timeouts, once for each call. They may end meanwhile.
	Slow func([]Late[T])
	// Overrun is called without a lock, once for each call that the watch has ended.
	Overrun func(*T)
	// Nanos reads the clock.
	Nanos func() int64
	// AfterFunc runs a function on its own goroutine after a delay.
	AfterFunc func(time.Duration, func()) Timer
}

// Watch looks at the slots of many goroutines. Its methods are safe for concurrent use.
type Watch[T any] struct {
	cfg Config[T]

	// armed is when the timer fires next. It is written under mu, and Rest reads it without.
	armed atomic.Int64

	mu    sync.Mutex // guards the following
	slots []*Slot[T]
	timer Timer

	reporting sync.WaitGroup // calls of Slow; added to under mu
}

// New returns a watch.
func New[T any](cfg Config[T]) *Watch[T] {
	w := &Watch[T]{cfg: cfg}
	w.armed.Store(never)
	return w
}

// Open returns a slot for a goroutine that will run calls.
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

// runningLocked returns the call that the slot shows if it runs, and its timeout.
func (w *Watch[T]) runningLocked(s *Slot[T]) (call *T, timeout time.Duration) {
	call = s.current.Load()
	if call == nil {
		return nil, 0
	}
	word, timeout := w.cfg.Of(call)
	if word.State() != Running {
		return nil, 0
	}
	return call, timeout
}

// Arm sets the deadline of the slot's call, which begins now. The watch looks again no
// later than when the call becomes slow.
func (w *Watch[T]) Arm(s *Slot[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if call, timeout := w.runningLocked(s); call != nil {
		w.armLocked(slowAt(s.dueLocked(call, timeout, w.cfg.Nanos()), timeout))
	}
}

// Deadline returns the deadline of a call that runs in a slot. If the call has none yet,
// Deadline sets it as if the call began now. For an ended call it may return the current
// time.
func (w *Watch[T]) Deadline(s *Slot[T], call *T) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.cfg.Nanos()
	if s.timed == call {
		return s.due
	}
	if runs, timeout := w.runningLocked(s); runs == call {
		return s.dueLocked(call, timeout, now)
	}
	return now
}

// dueLocked returns the deadline of a running call. It sets a missing one as if the call
// began now.
func (s *Slot[T]) dueLocked(call *T, timeout time.Duration, now int64) int64 {
	if s.timed != call {
		s.timed, s.due, s.slow = call, after(now, timeout), false
	}
	return s.due
}

// after returns the deadline of a call that begins now.
func after(now int64, timeout time.Duration) int64 {
	if due := now + int64(timeout); due >= now {
		return due
	}
	return never - 1
}

// slowAt returns when a call has used a third of its timeout. It computes back from the
// deadline: start + timeout/3 overflows for large timeouts.
func slowAt(due int64, timeout time.Duration) int64 {
	return due - int64(timeout/3*2+timeout%3*2/3)
}

// Rest stops the timer if nothing runs.
func (w *Watch[T]) Rest() {
	if w.armed.Load() != never {
		w.Look()
	}
}

// Wait waits until every call of Slow has returned. No call may begin meanwhile.
func (w *Watch[T]) Wait() {
	w.mu.Lock()   // a look in progress has added its reports when it unlocks
	w.mu.Unlock() //nolint:staticcheck // see above
	w.reporting.Wait()
}

// StopAll ends every running call, regardless of its deadline, and returns them.
func (w *Watch[T]) StopAll() []*T { return w.endAll(Stopped) }

// RevokeAll does what StopAll does. The state of the calls is Revoked.
func (w *Watch[T]) RevokeAll() []*T { return w.endAll(Revoked) }

// CancelIf does what StopAll does with the calls that match. The state of these is Cancelled. matches must be quick, and must not
// use the watch.
func (w *Watch[T]) CancelIf(matches func(*T) bool) []*T { return w.endIf(matches, Cancelled) }

func (w *Watch[T]) endAll(as State) []*T { return w.endIf(func(*T) bool { return true }, as) }

func (w *Watch[T]) endIf(matches func(*T) bool, as State) []*T {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*T
	for _, s := range w.slots {
		if call, _ := w.runningLocked(s); call != nil && matches(call) && w.end(call, as) {
			all = append(all, call)
		}
	}
	return all
}

// end ends a running call in place of its goroutine. It returns false if the goroutine
// ended it first.
func (w *Watch[T]) end(call *T, as State) bool {
	word, _ := w.cfg.Of(call)
	return word.end(as)
}

// Running returns the calls that are running.
func (w *Watch[T]) Running() []*T {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*T
	for _, s := range w.slots {
		if call, _ := w.runningLocked(s); call != nil {
			all = append(all, call)
		}
	}
	return all
}

// Look ends the calls that are due, reports the slow ones, and sets the timer. It reports
// whether a slot has another call than at the last Look.
func (w *Watch[T]) Look() (changed bool) {
	w.mu.Lock()
	w.armed.Store(never)
	earliest, now := int64(never), w.cfg.Nanos()
	var slow []Late[T]
	var ended []*T
	for _, s := range w.slots {
		call, timeout := w.runningLocked(s)
		changed = changed || call != s.seen
		if s.seen = call; call == nil {
			s.timed = nil
			continue
		}
		if s.timed != call {
			now = w.cfg.Nanos() // after the call was found: it began before
		}
		due := s.dueLocked(call, timeout, now)
		if due <= now {
			if w.end(call, Overran) {
				ended = append(ended, call)
			}
			continue
		}
		if at := slowAt(due, timeout); !s.slow && at > now {
			due = at
		} else if !s.slow {
			s.slow = true
			slow = append(slow, Late[T]{call, due - int64(timeout)})
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
		w.reporting.Go(func() { w.cfg.Slow(slow) })
	}
	w.mu.Unlock()
	for _, call := range ended {
		w.cfg.Overrun(call)
	}
	return changed
}

func (w *Watch[T]) armLocked(due int64) {
	if due >= w.armed.Load() {
		return
	}
	w.armed.Store(due)
	for {
		now := w.cfg.Nanos()
		d := time.Duration(due - now)
		if due > now && d < 0 { // overflow
			d = math.MaxInt64
		}
		if d <= 0 {
			// Not by the timer: a mock clock fires a timer of zero only when it next moves.
			go w.Look()
			return
		}
		if w.timer == nil {
			w.timer = w.cfg.AfterFunc(d, func() { w.Look() })
		} else {
			w.timer.Reset(d)
		}
		// If the clock moved after now was read, the timer is late by that much. A mock clock
		// that stops again would never fire it.
		if moved := w.cfg.Nanos() - now; moved <= min(int64(d)/16, int64(time.Millisecond)) {
			return
		}
	}
}
