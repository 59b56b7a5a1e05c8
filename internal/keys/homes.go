package keys

import (
	"maps"
	"sync"
)

// Homes maps keys to places P. The zero Homes is empty. Its methods are safe for concurrent use.
type Homes[P comparable] struct {
	mu sync.Mutex // guards the following
	at map[string]P
}

// Of returns the place of a key, or the zero P.
func (h *Homes[P]) Of(key string) P {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[key]
}

// Keep gives a key a place, unless it has one.
func (h *Homes[P]) Keep(key string, at P) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, has := h.at[key]; has {
		return
	}
	if h.at == nil {
		h.at = make(map[string]P)
	}
	h.at[key] = at
}

// Leave removes a key, if its place is at.
func (h *Homes[P]) Leave(key string, at P) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if has, ok := h.at[key]; ok && has == at {
		delete(h.at, key)
		h.shrinkLocked()
	}
}

// LeaveAll removes all keys whose place is at, but those for which stays returns true. It calls stays with its lock held.
func (h *Homes[P]) LeaveAll(at P, stays func(key string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.at, func(key string, has P) bool { return has == at && !stays(key) })
	h.shrinkLocked()
}

// shrinkLocked drops an empty map: a map keeps the memory of removed keys.
func (h *Homes[P]) shrinkLocked() {
	if len(h.at) == 0 {
		h.at = nil
	}
}
