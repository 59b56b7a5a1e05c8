package timeline

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// Reminder calls a function once, unless Cancel comes before. The zero Reminder is ready to use. Its methods are safe for
// concurrent use.
type Reminder struct {
	mu    sync.Mutex // guards the following; a leaf
	timer *clock.Timer
	over  bool // Cancel has been called
}

// Arm calls f after d. Only the first call has an effect, and none after Cancel.
func (r *Reminder) Arm(t *Timeline, d time.Duration, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil && !r.over {
		r.timer = t.AfterFunc(d, f)
	}
}

// Cancel stops the timer. A call of the function that has begun goes on.
func (r *Reminder) Cancel() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
}
