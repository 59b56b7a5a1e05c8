package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/surebus/eventbus/driver"
)

// Times between two looks of Watch.
const (
	watchInterval = 100 * time.Millisecond
	ownInterval   = 10 * time.Millisecond // while an event of SubmitTx of this store waits to be taken in
	ownTime       = 10 * time.Second      // for so long at most: the caller may never commit
)

// seen is what a look at the tables has found.
type seen struct {
	counts [5]int64 // commits of other stores, by changeBits
	// The incoming events that wait, the first 1,000 of them: their number, and two sums of their ids. An event of a
	// transaction may have a smaller id than one that is seen already.
	waiting, sum, xor int64
	lost              int64 // leases that this store has lost
}

// changeBits are the bits of driver.Change that have a counter, in the order of seen.counts.
var changeBits = [...]driver.Change{
	driver.ChangedIncoming, driver.ChangedRequests, driver.ChangedAnswers, driver.ChangedDirectives, driver.ChangedCatalogs,
}

// looked bounds the incoming events that a look reads.
const looked = 1000

// changes returns what has changed since an earlier look. While many events wait, each look is a change.
func (now seen) changes(was seen) (c driver.Change) {
	for i, bit := range changeBits {
		if now.counts[i] != was.counts[i] {
			c |= bit
		}
	}
	if now.waiting != was.waiting || now.sum != was.sum || now.xor != was.xor || now.waiting == looked {
		c |= driver.ChangedIncoming
	}
	if now.lost != was.lost {
		c |= driver.ChangedLease
	}
	return c
}

// Watch calls changed after another store or a transaction of a caller has committed. While there is a watcher, it
// checks every 100 ms, and every 10 ms while an event of SubmitTx of this store is incoming. A check is one query of a
// few rows. See [driver.Store].
func (s *Store) Watch(changed func(driver.Change)) (stop func()) { return s.watching.Add(changed) }

// watch is the goroutine of Watch.
func (s *Store) watch(stop <-chan struct{}) {
	var was seen
	tick := time.NewTimer(watchInterval)
	defer tick.Stop()
	for known, broken := false, false; ; {
		if !s.own.wait(stop, tick) {
			return
		}
		now, err := s.lookAround()
		// A store that fails while it is idle is a change too: the watchers find out that it has failed.
		if failed := s.committer.queue.Failure() != nil; failed != broken {
			if broken = failed; failed && !s.watching.Call(stop, driver.AnyChange) {
				return
			}
		}
		if err != nil {
			now = was
		}
		now.lost = s.lost.Load()
		changed := now.changes(was)
		if err == nil && !known { // another store may have committed since Watch was called
			changed, known = driver.AnyChange, true
		}
		was = now
		if changed != 0 && !s.watching.Call(stop, changed) {
			return
		}
	}
}

// lookAround returns what the tables have now.
func (s *Store) lookAround() (now seen, err error) {
	const sql = `SELECT w.*, i.*, (SELECT epoch FROM ~.instance WHERE id = $1) FROM
		(SELECT count(*), coalesce(sum(id), 0)::bigint, coalesce(bit_xor(id), 0) FROM (SELECT id FROM ~.incoming ORDER BY id LIMIT $2) AS first) AS w,
		(SELECT sum(incoming)::bigint, sum(requests)::bigint, sum(answers)::bigint, sum(directives)::bigint, sum(catalogs)::bigint FROM ~.instance WHERE id <> $1) AS i`
	if err := s.state(); err != nil {
		return now, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, statementTime)
	defer cancel()
	lease := s.Lease()
	var epoch *int64
	own := s.instance.Load()
	if own == 0 {
		own = -1 // it has no row yet, and row 0 counts
	}
	err = s.reads.QueryRow(ctx, s.sql(sql), own, looked).Scan(&now.waiting, &now.sum, &now.xor,
		&now.counts[0], &now.counts[1], &now.counts[2], &now.counts[3], &now.counts[4], &epoch)
	if err == nil && lease.IsHeld() && (epoch == nil || *epoch != lease.Epoch) && s.Lease() == lease {
		s.committer.queue.Add(&job{Control: func() {
			if s.committer.queue.Failure() == nil {
				s.committer.renew()
			}
		}})
	}
	return now, err
}

// ownEvents are the events of SubmitTx of this store that it has not seen taken in.
type ownEvents struct {
	wake chan struct{} // has an element after submitted

	mu      sync.Mutex // guards the following
	waiting map[int64]time.Time
}

// submitted notes events.
func (o *ownEvents) submitted(ids []int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		o.waiting[id] = time.Now()
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// wait waits until the next look. It returns false if stop is closed first.
func (o *ownEvents) wait(stop <-chan struct{}, tick *time.Timer) bool {
	for due := time.Now().Add(o.interval()); ; {
		tick.Reset(time.Until(due))
		select {
		case <-stop:
			return false
		case <-tick.C:
			return true
		case <-o.wake: // sooner, and not later: events may come without a pause
			if soon := time.Now().Add(ownInterval); soon.Before(due) {
				due = soon
			}
		}
	}
}

// accepted notes that events were taken in.
func (o *ownEvents) accepted(ids []int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		delete(o.waiting, id)
	}
}

// interval returns the time until the next look.
func (o *ownEvents) interval() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, at := range o.waiting {
		if time.Since(at) < ownTime {
			return ownInterval
		}
		delete(o.waiting, id)
	}
	return watchInterval
}
