// Package pace bounds what a bulk operation does, how much at once, how fast, and for how long after its context has
// ended; and how long the bus waits for a store.
package pace

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/surebus/eventbus/internal/timeline"
)

// Next returns the first elements of a list that are one part: at most count, and at most bytes in total, but at least
// one. The parts of a list are always the same.
func Next[E any](list []E, count, bytes int, size func(E) int) []E {
	n, total := 0, 0
	for ; n < min(len(list), count); n++ {
		if total += size(list[n]); n > 0 && total > bytes {
			break
		}
	}
	return list[:n]
}

// After returns the smallest id that is larger than id. It is zero for the largest one.
func After(id [16]byte) [16]byte {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			break
		}
	}
	return id
}

// Patient returns a context that ends d after ctx, by the timeline, or with cancel.
func Patient(ctx context.Context, t *timeline.Timeline, d time.Duration) (patient context.Context, cancel context.CancelFunc) {
	patient, cancel = context.WithCancel(context.WithoutCancel(ctx))
	ended := ctx.Done()
	go func() { // context.AfterFunc panics if the methods of ctx contradict each other
		select {
		case <-ended:
			t.AfterFunc(d, cancel)
		case <-patient.Done():
		}
	}()
	return patient, cancel
}

// Pace is a rate limiter. It waits on the caller's goroutine, with one timer and without a lock.
type Pace struct {
	Time      *timeline.Timeline
	PerSecond float64 // 0: no limit

	begun bool
	due   int64 // when the last element was due
}

// burst bounds how much a Pace catches up. Timers fire about a millisecond late, so without it a rate of 1,000 per
// second would reach only half of that.
const burst = 10 * time.Millisecond

// Wait blocks until the next element may be processed, or until one of the channels, which may be nil, is ready. It
// reports whether that was done.
func (p *Pace) Wait(done, shutdown, stopped <-chan struct{}) (isDone bool) {
	if p.PerSecond == 0 {
		return false
	}
	now := p.Time.Nanos()
	if !p.begun {
		p.begun, p.due = true, now
		return false
	}
	interval := time.Duration(math.MaxInt64)
	if exact := float64(time.Second) / p.PerSecond; exact < math.MaxInt64 {
		interval = time.Duration(exact)
	}
	p.due = max(timeline.Later(p.due, interval), now-int64(burst))
	if p.due <= now {
		return false
	}
	fired := make(chan struct{})
	timer := p.Time.AfterFunc(time.Duration(p.due-now), func() { close(fired) })
	defer timer.Stop()
	select {
	case <-fired:
	case <-done:
		return true
	case <-shutdown:
	case <-stopped:
	}
	return false
}

// Within runs a read of the store and waits for its answer, up to d of the runtime's time. A store that
// ignores its context keeps the goroutine.
func Within[T any](d time.Duration, read func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	type answer struct {
		result T
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		result, err := read(ctx)
		answers <- answer{result, err}
	}()
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("eventbus: store did not answer within %s: %w", d, ctx.Err())
	}
}

// OrderWithin reorders the elements of each group among the places that they have in the list. Elements of the group ""
// stay. compare returns the order of a group.
func OrderWithin[E any](list []E, group func(E) string, compare func(group []E) func(x, y E) int) {
	places := make(map[string][]int)
	for i, e := range list {
		if of := group(e); of != "" {
			places[of] = append(places[of], i)
		}
	}
	for _, of := range places {
		if len(of) < 2 {
			continue
		}
		ordered := make([]E, len(of))
		for n, i := range of {
			ordered[n] = list[i]
		}
		slices.SortStableFunc(ordered, compare(ordered))
		for n, i := range of {
			list[i] = ordered[n]
		}
	}
}

// Backoff is a delay that doubles. The zero Backoff has none.
type Backoff struct{ delay time.Duration }

// Reset begins again: the next delay is 0.
func (b *Backoff) Reset() { b.delay = 0 }

// Grow returns the next delay after a failure: first, then twice the one before, at most last.
func (b *Backoff) Grow(first, last time.Duration) time.Duration {
	b.delay = min(max(2*b.delay, first), last)
	return b.delay
}

// Smallest returns the n smallest different ids of all, in order.
func Smallest[T any](n int, all []T, id func(T) [16]byte) [][16]byte {
	ids := make([][16]byte, 0, min(len(all), 4*n))
	compare := func(x, y [16]byte) int { return bytes.Compare(x[:], y[:]) }
	bounded := false // ids are the n smallest so far
	trim := func() {
		slices.SortFunc(ids, compare)
		ids = slices.Compact(ids)
		ids = ids[:min(len(ids), n)]
		bounded = len(ids) == n
	}
	var bound [16]byte
	for _, x := range all {
		next := id(x)
		if bounded && compare(next, bound) >= 0 {
			continue
		}
		if ids = append(ids, next); len(ids) >= 4*n {
			if trim(); bounded {
				bound = ids[n-1]
			}
		}
	}
	trim()
	return ids
}

// Semaphore is a lock that may be held for long: its waiters are durably blocked in a bubble of testing/synctest. Make it
// with a capacity of 1.
type Semaphore chan struct{}

// Lock waits for the semaphore.
func (s Semaphore) Lock() { s <- struct{}{} }

// TryLock acquires the semaphore if it is free, and reports whether it has.
func (s Semaphore) TryLock() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// Unlock frees it.
func (s Semaphore) Unlock() { <-s }
