package circuit

import (
	"sync"
	"sync/atomic"
)

// Hanging counts the abandoned calls of a subscription that still run. Too many of them set Hung in its
// gate.
type Hanging struct {
	gate *atomic.Uint64

	mu    sync.Mutex // guards the following
	most  int32
	calls int32  // of this era
	shuts uint32 // times that they have shut the gate
	lasts bool   // they have shut it for long
	era   uint32 // Forgive begins a new one: it admits deliveries as if those that hang had returned
}

// Init prepares the count for a gate, which most calls shut.
func (h *Hanging) Init(gate *atomic.Uint64, most int32) { h.gate, h.most = gate, most }

// Limit sets how many calls shut the gate. It does not shut an open one: the next abandoned call does.
func (h *Hanging) Limit(most int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.most = most; h.calls < most {
		h.openLocked()
	}
}

// Most returns how many calls shut the gate.
func (h *Hanging) Most() int32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most
}

// Add counts an abandoned call. If that shuts the gate, shuts is how often that has happened, from 1.
func (h *Hanging) Add() (era, shuts uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	if h.calls >= h.most && h.gate.Or(Hung)&Hung == 0 {
		h.lasts = false
		h.shuts++
		shuts = h.shuts
	}
	return h.era, shuts
}

// Remove ends an abandoned call of an era. It reports whether that opens the gate.
func (h *Hanging) Remove(era uint32) (opens bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if era != h.era {
		return false
	}
	if h.calls--; h.calls < h.most {
		opens = h.openLocked()
	}
	return opens
}

// Forgive forgets the calls. It reports whether that opens the gate.
func (h *Hanging) Forgive() (opens bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = 0
	h.era++
	return h.openLocked()
}

func (h *Hanging) openLocked() (opens bool) { return h.gate.And(^uint64(Hung))&Hung != 0 }

// Last notes that the gate has been shut for long, if it is the same time. It reports whether it is.
func (h *Hanging) Last(shuts uint32) (calls int, lasts bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lasts = h.gate.Load()&Hung != 0 && h.shuts == shuts; lasts {
		h.lasts = true
	}
	return int(h.calls), lasts
}

// Lasts reports whether the gate is shut, and has been for long.
func (h *Hanging) Lasts() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gate.Load()&Hung != 0 && h.lasts
}

// Calls returns the number of calls, and whether they shut the gate.
func (h *Hanging) Calls() (calls int, shut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return int(h.calls), h.gate.Load()&Hung != 0
}
