package circuit

import (
	"time"

	"golang.org/x/time/rate"
)

// Rate limits how fast deliveries enter a door. Its methods must not be called concurrently.
type Rate struct {
	limiter *rate.Limiter
	perCall float64 // nanoseconds between two calls
}

// NewRate returns a limit of n deliveries in a time, and of a burst at once.
func NewRate(n int, per time.Duration, burst int) *Rate {
	perCall := float64(per) / float64(n)
	return &Rate{rate.NewLimiter(rate.Limit(float64(time.Second)/perCall), burst), perCall}
}

// Ready returns how many deliveries may enter now, if others come before them. If none may, it returns when one may.
func (r *Rate) Ready(now int64, others int) (most int, again int64) {
	free := r.limiter.TokensAt(time.Unix(0, now)) - float64(others)
	if wait := int64((1 - free) * r.perCall); wait > 0 { // less than a nanosecond is none
		return 0, now + wait
	}
	return max(int(free), 1), 0
}

// Take counts a delivery that enters.
func (r *Rate) Take(now int64) { r.limiter.ReserveN(time.Unix(0, now), 1) }
