// Package halt records why no call may start.
package halt

import "sync/atomic"

// The reasons.
const (
	Cut       = 1 << iota // Shutdown's context has ended, or the bus was not started
	Failed                // the store has failed, and the bus restarts
	Lost                  // the lease of the store is lost or handed over, and the bus is a standby again
	Unload                // with a store, Shutdown has begun: only what a running call waits for may start
	Unstarted             // Start has not been called, on a bus with handlers
)

// Reasons is a set of reasons. New makes one.
type Reasons struct {
	why atomic.Uint32
	cut chan struct{}
}

// New returns an empty set.
func New() *Reasons { return &Reasons{cut: make(chan struct{})} }

// Any reports whether there is a reason to end calls, and to start none. Unload does not concern every call, and before
// Start there is none.
func (r *Reasons) Any() bool { return r.why.Load()&^(Unload|Unstarted) != 0 }

// Has reports whether the set has a reason.
func (r *Reasons) Has(why uint32) bool { return r.why.Load()&why != 0 }

// Set adds a reason. It returns false if it is set already.
func (r *Reasons) Set(why uint32) bool {
	added := r.why.Or(why)&why == 0
	if added && why == Cut {
		close(r.cut)
	}
	return added
}

// Clear removes a reason.
func (r *Reasons) Clear(why uint32) { r.why.And(^why) }

// IsCut is closed when Cut is set.
func (r *Reasons) IsCut() <-chan struct{} { return r.cut }
