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

// Counted is an effect without records.
func Counted(counter *atomic.Int64, n int64) Effect { return Effect{[]count{{counter, n}}, 0} }

// And is the effect of both.
func (e Effect) And(other Effect) Effect {
	return Effect{slices.Concat(e.counts, other.counts), e.records + other.records}
}

// Change is a change of unknown outcome: either it was applied, or it was lost.
type Change struct {
	Applied, Lost Effect
	// Opens is the id of an event of which there is a record if the change was applied, or zero. The number of records does not
	// show whether a change was applied that opens one and ends one.
	Opens [16]byte

	known, applied bool // after Ask
}

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

// Ask asks for each change with Opens whether there is a record of it.
func (c *Changes) Ask(has func(event [16]byte) (bool, error)) (err error) {
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	for i := range all {
		if all[i].known = all[i].Opens != [16]byte{}; all[i].known && err == nil {
			all[i].applied, err = has(all[i].Opens)
		}
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	copy(c.all, all) // nothing was added or removed meanwhile: the store has failed
	return nil
}

// boundsLocked returns how many of the first changes were applied at least and at most, after Ask.
func (c *Changes) boundsLocked() (least, most int) {
	most = len(c.all)
	for i, change := range c.all {
		switch {
		case change.known && change.applied:
			least = i + 1
		case change.known && i < most:
			most = i
		}
	}
	return least, max(least, most)
}

// Resolve removes all changes, and counts each as applied or lost: as applied as many of the first ones
// as bring the sum of their records closest to more. It returns that sum.
func (c *Changes) Resolve(more int64) (records int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range c.all {
		records += change.Lost.records
	}
	least, most := c.boundsLocked()
	applied, best := 0, records
	for i, change := range c.all[:most] {
		records += change.Applied.records - change.Lost.records
		if i < least || abs(more-records) < abs(more-best) {
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
