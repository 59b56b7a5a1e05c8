package sqlite

import "time"

// Another connection that waits for the write lock sleeps between its looks: with SQLite's busy handler 1, 2, 5, 10, 15,
// 20, 25, 25, 25, 50, 50 and then 100 ms. A bus at full speed frees the lock for microseconds between two commits, so such
// a connection can wait for seconds. Nothing shows that it waits.
//
// So the committer leaves gaps while other programs commit, until foreignWindow after their last commit. The short ones
// let most of them in at an early look. Each look in the first 130 ms meets a long one if it has the time for it. A gap
// ends when another program has committed in it.
const (
	foreignWindow = time.Second

	shortGap   = 2 * time.Millisecond
	shortEvery = 15 * time.Millisecond
	longGap    = 30 * time.Millisecond
	longEvery  = 100 * time.Millisecond

	gapLook = time.Millisecond // between two looks for a commit in a gap
)

// fairness decides when the committer leaves a gap. Only the committer's goroutine uses it.
type fairness struct {
	at      version   // when the store last looked
	foreign time.Time // when it last noticed another program
	short   time.Time // the end of the last gap of at least shortGap
	long    time.Time // the end of the last gap of at least longGap
	left    int       // gaps that were left, for tests
}

// free notes that the write lock was free from an instant until now.
func (f *fairness) free(since time.Time) {
	now := time.Now()
	switch d := now.Sub(since); {
	case d >= longGap:
		f.short, f.long = now, now
	case d >= shortGap:
		f.short = now
	}
}

// due returns the length of the gap to leave now, or 0.
func (f *fairness) due() time.Duration {
	if f.foreign.IsZero() {
		return 0
	}
	now := time.Now()
	switch {
	case now.Sub(f.foreign) >= foreignWindow:
		return 0
	case now.Sub(f.long) >= longEvery:
		return longGap
	case now.Sub(f.short) >= shortEvery:
		return shortGap
	}
	return 0
}

// noteForeign looks for a commit of another connection since the last look, and for a write lock that the last
// transaction has waited for.
func (c *committer) noteForeign() (found bool, err error) {
	number, err := queryInt(c.w.conn, "PRAGMA data_version")
	if err != nil {
		return false, err
	}
	f, latest := &c.fair, version{c.w.conn, number}
	found = c.w.waited || f.at.conn == latest.conn && f.at != latest // each connection counts for itself
	if f.at, c.w.waited = latest, false; found {
		f.foreign = time.Now()
	}
	return found, nil
}

// leaveGap leaves a gap before the next commit, if one is due.
func (c *committer) leaveGap() {
	gap := c.fair.due()
	if gap == 0 || c.queue.State() != nil {
		return
	}
	c.fair.left++
	began := time.Now()
	for time.Since(began) < gap {
		time.Sleep(gapLook)
		if found, err := c.noteForeign(); found || err != nil {
			break // the next commit meets the error
		}
	}
	c.fair.short = time.Now()
	if gap == longGap {
		c.fair.long = c.fair.short
	}
}
