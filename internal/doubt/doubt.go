// Package doubt keeps the changes whose outcome a failed store has not reported, until the number of
// records in the store shows which of them it has applied.
package doubt

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Effect is what an outcome counts, and how it changes the number of records in the store. The zero
// Effect is none.
type Effect struct {
	counts  []count
	records int64
}

type count struct {
	counter *atomic.Int64
	n       int64
}

// Opened is the effect of records that were inserted: some for dispatches that were opened, the others
// for copies of these.
func Opened(counter *atomic.Int64, opened int64, copiesCounter *atomic.Int64, copies int64) Effect {
	return Effect{[]count{{counter, opened}, {copiesCounter, copies}}, opened + copies}
}

// Ended is the effect of a record that is no longer there, or is not there at all: n is 1 if it ended a
// dispatch, and -1 if the dispatch was never opened.
func Ended(counter *atomic.Int64, n int64) Effect { return Effect{[]count{{counter, n}}, -1} }

// And is the effect of both.
func (e Effect) And(other Effect) Effect {
	return Effect{slices.Concat(e.counts, other.counts), e.records + other.records}
}

// Change is a change of unknown outcome: either it was applied, or it was lost.
type Change struct{ Applied, Lost Effect }

// Changes are changes in the order in which they were submitted. A store applies them in that order, so
// it has applied the first ones, and lost the others. The zero Changes is empty. Its methods are safe
// for concurrent use.
type Changes struct {
	mu  sync.Mutex // guards all; a leaf
	all []Change
}

// Add adds a change.
func (c *Changes) Add(change Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, change)
}

// Resolve removes all changes, and counts each as applied or lost: as applied as many of the first ones
// as bring the sum of their records closest to more. It returns that sum.
func (c *Changes) Resolve(more int64) (records int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range c.all {
		records += change.Lost.records
	}
	applied, best := 0, records
	for i, change := range c.all {
		records += change.Applied.records - change.Lost.records
		if abs(more-records) < abs(more-best) {
			applied, best = i+1, records
		}
	}
	for i, change := range c.all {
		effect := change.Lost
		if i < applied {
			effect = change.Applied
		}
		for _, c := range effect.counts {
			c.counter.Add(c.n)
		}
	}
	c.all = nil
	return best
}

func abs(n int64) int64 { return max(n, -n) }
