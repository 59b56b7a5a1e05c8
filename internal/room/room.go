// Package room bounds what a store has received and not answered, in records and in bytes.
//
// Publications enter before they are submitted, and wait in their order for room. All other batches
// are counted and never wait. The answer of the store gives the room back.
//
// A publication that has waited holds the turn until it is submitted: the next one enters only then,
// so those that wait are submitted in the order in which they began to wait.
package room

import (
	"container/list"
	"sync"
	"time"
)

// Size is an amount of records and of bytes.
type Size struct{ Records, Bytes int64 }

func (s Size) plus(t Size) Size  { return Size{s.Records + t.Records, s.Bytes + t.Bytes} }
func (s Size) minus(t Size) Size { return Size{s.Records - t.Records, s.Bytes - t.Bytes} }

// fits reports whether neither dimension exceeds the bound.
func (s Size) fits(most Size) bool { return s.Records <= most.Records && s.Bytes <= most.Bytes }

// Timer is a timer of Config.AfterFunc.
type Timer interface{ Stop() bool }

// Config is the configuration of a Room.
type Config struct {
	Most      Size
	Patience  time.Duration // without an answer, until the store is silent; 0 or less: it never is
	Nanos     func() int64  // the current time
	AfterFunc func(d time.Duration, f func()) Timer
	// Silent, unless it is nil, is called without a lock when the store has answered nothing for Patience, and then again
	// after each Patience.
	Silent func()
}

// Room counts what is outstanding. New returns one. Its methods are safe for concurrent use and do not
// block, except that Nanos and AfterFunc are called with its lock held.
type Room struct {
	config Config

	mu      sync.Mutex // guards the following; a leaf
	used    Size       // entered or submitted, and not answered
	passes  int        // publications among these
	batches int        // submitted and not answered
	since   int64      // of the last answer, or of the submission after which batches was not 0
	line    list.List  // of *Waiter, in order
	turn    bool       // a publication that has waited is not submitted yet: no other one enters
	timer   Timer      // runs while the line is not empty, if there is a Patience
	watches bool       // watch will be called
}

// New returns an empty Room.
func New(c Config) *Room { return &Room{config: c} }

// Pass is the room that a publication holds. The zero Pass holds none.
type Pass struct {
	size Size
	held bool
	turn bool
}

// Waiter is a publication that waits.
type Waiter struct {
	room  *Room
	pass  Pass
	ready chan struct{} // closed when it has entered, or may not enter
	// Guarded by Room.mu.
	place  *list.Element // nil: it does not wait any more
	silent time.Duration // more than 0: the store was silent for as long, and the publication did not enter
}

// Enter admits a publication. It enters if it fits, and a publication that exceeds the bound by itself
// enters if no other publication is outstanding. Otherwise the Waiter is not nil: wait for Ready. If the
// store is silent, nothing enters, and Enter returns for how long.
func (r *Room) Enter(size Size) (p Pass, w *Waiter, silent time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if silent = r.silenceLocked(); silent > 0 {
		return Pass{}, nil, silent
	}
	if !r.turn && r.line.Len() == 0 && r.admitsLocked(size) {
		r.addLocked(size)
		return Pass{size: size, held: true}, nil, 0
	}
	w = &Waiter{room: r, pass: Pass{size: size}, ready: make(chan struct{})}
	w.place = r.line.PushBack(w)
	if r.timer == nil && r.config.Patience > 0 {
		r.armLocked()
	}
	return Pass{}, w, 0
}

// Ready returns a channel that is closed when the publication has entered, or may not enter.
func (w *Waiter) Ready() <-chan struct{} { return w.ready }

// Entered returns the room of a publication whose Ready is closed. If it may not enter, it returns how
// long the store has been silent.
func (w *Waiter) Entered() (p Pass, silent time.Duration) {
	w.room.mu.Lock()
	defer w.room.mu.Unlock()
	return w.pass, w.silent
}

// Leave ends the wait, or gives the room back if the publication has entered and is not submitted.
func (w *Waiter) Leave() {
	r := w.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.place == nil {
		r.leaveLocked(w.pass)
		w.pass = Pass{}
		return
	}
	r.line.Remove(w.place)
	w.place = nil
	r.admitLocked()
}

// Leave gives back the room of a publication that is not submitted.
func (r *Room) Leave(p Pass) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveLocked(p)
}

func (r *Room) leaveLocked(p Pass) {
	if !p.held {
		return
	}
	r.used = r.used.minus(p.size)
	r.passes--
	if p.turn {
		r.turn = false
	}
	r.admitLocked()
}

// Submitted counts a batch that is about to be submitted, with the Pass of its publication or none. Of
// two batches of publications that have waited, call it first for the one that is submitted first.
func (r *Room) Submitted(size Size, p Pass) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = r.used.plus(size).minus(p.size)
	if r.batches++; r.batches == 1 {
		r.since = r.config.Nanos()
	}
	if r.config.Silent != nil && r.config.Patience > 0 && !r.watches {
		r.watches = true
		r.config.AfterFunc(r.config.Patience, r.watch)
	}
	if p.turn {
		r.turn = false
		r.admitLocked()
	}
}

// Answered gives the room of a submitted batch back.
func (r *Room) Answered(size Size, p Pass) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = r.used.minus(size)
	if p.held {
		r.passes--
	}
	if r.batches--; r.batches > 0 {
		r.since = r.config.Nanos()
	}
	r.admitLocked()
}

// watch calls Silent if the store is silent, and looks again while it has something to answer.
func (r *Room) watch() {
	r.mu.Lock()
	if r.watches = r.batches > 0; !r.watches {
		r.mu.Unlock()
		return
	}
	silent := r.silenceLocked() > 0
	next := r.config.Patience
	if !silent {
		next -= time.Duration(r.config.Nanos() - r.since)
	}
	r.config.AfterFunc(next, r.watch)
	r.mu.Unlock()
	if silent {
		r.config.Silent()
	}
}

// IsAwaited reports whether publications wait for room.
func (r *Room) IsAwaited() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.line.Len() > 0
}

// SilentSince returns since when the store has answered nothing, if that is longer than the patience.
func (r *Room) SilentSince() (nanos int64, silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since, r.silenceLocked() > 0
}

// silenceLocked returns how long the store has been silent, or 0.
func (r *Room) silenceLocked() time.Duration {
	if r.batches == 0 || r.config.Patience <= 0 {
		return 0
	}
	if d := time.Duration(r.config.Nanos() - r.since); d >= r.config.Patience {
		return d
	}
	return 0
}

func (r *Room) admitsLocked(size Size) bool {
	return r.used.plus(size).fits(r.config.Most) || r.passes == 0 && !size.fits(r.config.Most)
}

func (r *Room) addLocked(size Size) {
	r.used = r.used.plus(size)
	r.passes++
}

// admitLocked lets the first publication in the line enter if it may.
func (r *Room) admitLocked() {
	if first := r.line.Front(); first != nil && !r.turn {
		w := first.Value.(*Waiter)
		if r.admitsLocked(w.pass.size) {
			r.addLocked(w.pass.size)
			w.pass.held, w.pass.turn, r.turn = true, true, true
			r.endLocked(w)
		}
	}
	if r.line.Len() == 0 && r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// endLocked ends a wait.
func (r *Room) endLocked(w *Waiter) {
	r.line.Remove(w.place)
	w.place = nil
	close(w.ready)
}

// armLocked looks for silence when it can begin at the earliest.
func (r *Room) armLocked() {
	left := r.config.Patience
	if r.batches > 0 {
		left -= time.Duration(r.config.Nanos() - r.since)
	}
	var timer Timer
	timer = r.config.AfterFunc(max(left, 0), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.timer == timer { // otherwise it was stopped as it fired
			r.lookLocked()
		}
	})
	r.timer = timer
}

// lookLocked ends all waits if the store is silent.
func (r *Room) lookLocked() {
	r.timer = nil
	silent := r.silenceLocked()
	for silent > 0 && r.line.Len() > 0 {
		w := r.line.Front().Value.(*Waiter)
		w.silent, w.pass = silent, Pass{}
		r.endLocked(w)
	}
	if r.line.Len() > 0 {
		r.armLocked()
	}
}
