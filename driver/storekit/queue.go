package storekit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/driver"
)

// Bounds of a commit: further batches wait for the next one. A larger batch is committed alone.
const (
	MaxGroup  = 1024    // jobs
	maxWeight = 8 << 20 // by Job.Weight
)

// A commit of deferrable jobs alone waits for up to Deferral for another job. With MaxDeferred of them it does not
// wait, because its cost per job is then small.
const (
	Deferral    = time.Millisecond
	MaxDeferred = 64
)

// Job is an item of the queue: a batch, other work of the store in the same commits, or a function that runs between
// commits.
type Job[W Work] struct {
	Batch   *driver.Batch // a batch; nil for other jobs
	Work    W             // other work, if Batch and Control are nil
	Done    func(error)   // called once with the result; may be nil for a Control
	Control func()        // runs between commits; nil for other jobs
}

// Work is work that a store commits besides batches.
type Work interface {
	// Weight estimates the size of the written data, in bytes.
	Weight() int
}

// RowWeight is the weight of a row with its share of the indexes, without long columns.
const RowWeight = 256

// isDeferrable reports whether the job may wait for another one to share its commit.
func (j *Job[W]) isDeferrable() bool { return j.Batch != nil && j.Batch.Deferrable }

// Weight estimates the size of the data that the job writes, in bytes.
func (j *Job[W]) Weight() int {
	b := j.Batch
	if b == nil {
		return j.Work.Weight()
	}
	n := RowWeight * (len(b.Remember) + len(b.Forget) + len(b.ForgetSettled) + len(b.Take) + len(b.Withdraw) + len(b.Accept) + len(b.New) +
		len(b.Update) + len(b.Delete) + len(b.Bury) + len(b.Leave) + len(b.Ask) + len(b.Unask) + len(b.Answer))
	for _, r := range b.New {
		n += len(r.Payload) + len(r.Metadata) + len(r.Replay) + len(r.Progress)
	}
	for _, r := range b.Update {
		n += len(r.Progress)
	}
	for _, l := range b.Bury {
		n += l.Size()
	}
	for _, in := range b.Leave {
		n += len(in.Record.Payload) + len(in.Record.Metadata) + len(in.Record.Replay)
	}
	return n
}

// Refuse ends a job that is not applied.
func (j *Job[W]) Refuse(err error) {
	if j.Done != nil {
		j.Done(err)
	}
}

// Queue is the queue. One goroutine of the store takes jobs from it. The other methods are safe for concurrent use.
type Queue[W Work] struct {
	closed <-chan struct{} // closed when the last job has ended
	wake   chan struct{}   // has an element while the queue may have jobs

	mu     sync.Mutex // guards the following
	jobs   []*Job[W]
	spare  []*Job[W] // to reuse
	urgent int       // of jobs: those that are not deferrable
	failed error     // matches driver.ErrFailed; nil if the store works
	ended  error     // driver.ErrClosed after Close was called
	late   []*Job[W]
}

// NewQueue returns a queue. closed is closed once the function of Close has ended: jobs that come after Close are refused then.
func NewQueue[W Work](closed <-chan struct{}) *Queue[W] {
	return &Queue[W]{closed: closed, wake: make(chan struct{}, 1)}
}

// Add appends a job. It does not block.
func (q *Queue[W]) Add(j *Job[W]) {
	q.mu.Lock()
	if q.ended != nil {
		if q.late = append(q.late, j); len(q.late) == 1 {
			go q.refuseLate()
		}
		q.mu.Unlock()
		return
	}
	q.jobs = append(q.jobs, j)
	if !j.isDeferrable() {
		q.urgent++
	}
	q.mu.Unlock()
	q.signal()
}

func (q *Queue[W]) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// refuseLate passes driver.ErrClosed to the jobs that came after Close, behind all others.
func (q *Queue[W]) refuseLate() {
	<-q.closed
	for i := 0; ; i++ {
		q.mu.Lock()
		if i == len(q.late) {
			q.late = nil
			q.mu.Unlock()
			return
		}
		j := q.late[i]
		q.mu.Unlock()
		j.Refuse(driver.ErrClosed)
	}
}

// Control calls f on the goroutine that takes the jobs, after everything that was added. If ctx ends
// first, Control returns its error. Then f does not run, unless it has begun.
func (q *Queue[W]) Control(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	const awaited, begun, abandoned = 0, 1, 2
	var state atomic.Int32
	result := make(chan error, 1)
	q.Add(&Job[W]{
		Control: func() {
			if state.CompareAndSwap(awaited, begun) {
				result <- f()
			}
		},
		Done: func(err error) { result <- err },
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		state.CompareAndSwap(awaited, abandoned)
		return ctx.Err()
	}
}

// Close adds the last job. Later ones are refused with driver.ErrClosed.
func (q *Queue[W]) Close(last func()) {
	q.mu.Lock()
	q.ended = driver.ErrClosed
	q.jobs = append(q.jobs, &Job[W]{Control: last})
	q.urgent++
	q.mu.Unlock()
	q.signal()
}

// State returns the error of a store that has failed or is closed, or nil.
func (q *Queue[W]) State() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended != nil {
		return q.ended
	}
	return q.failed
}

// Failure returns the error of a store that has failed, or nil.
func (q *Queue[W]) Failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed
}

// Fail makes the store fail, and returns the error of its methods from then on. A store that has failed keeps its first
// error.
func (q *Queue[W]) Fail(cause error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.failed == nil {
		if q.failed = cause; !errors.Is(cause, driver.ErrFailed) {
			q.failed = fmt.Errorf("%w: %w", driver.ErrFailed, cause)
		}
	}
	return q.failed
}

// Recover makes a store work again.
func (q *Queue[W]) Recover() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = nil
}

// Wake receives when the queue may have jobs. Only the goroutine that takes the jobs receives from it.
func (q *Queue[W]) Wake() <-chan struct{} { return q.wake }

// HasJobs reports whether the queue has jobs.
func (q *Queue[W]) HasJobs() bool { return q.len() > 0 }

// Take takes all jobs, or returns nil if there are none. A few deferrable ones wait for up to 1 ms, for another one. The
// result is valid until the next Take.
func (q *Queue[W]) Take() []*Job[W] {
	q.gather()
	jobs := q.take(false)
	if len(jobs) == 0 && q.defers() {
		q.awaitUrgent()
		jobs = q.take(true)
	}
	return jobs
}

// gathered is the number of jobs from which on a commit does not wait for more of them.
const gathered = 128

// gather lets those run whom the last commit has answered: they add jobs again, which share the next commit. Otherwise two
// halves of the publishers take turns, and each of them waits for two commits. BenchmarkAccept/64 of store/sqlite accepts
// about a fifth more with it, and so does store/postgres.
func (q *Queue[W]) gather() {
	for before, now := -1, q.len(); before != now && now < gathered; before, now = now, q.len() {
		runtime.Gosched()
	}
}

func (q *Queue[W]) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs)
}

func (q *Queue[W]) take(now bool) []*Job[W] {
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs := q.jobs
	if len(jobs) == 0 || !now && q.defersLocked() {
		return nil
	}
	q.jobs, q.urgent = q.spare[:0], 0
	q.spare = jobs
	return jobs
}

// awaitUrgent lets a few deferrable jobs wait for another job, up to Deferral.
func (q *Queue[W]) awaitUrgent() {
	over := time.NewTimer(Deferral)
	defer over.Stop()
	for q.defers() {
		select {
		case <-q.wake:
		case <-over.C:
			return
		}
	}
}

// defers reports whether the queue has deferrable jobs only, and few of them.
func (q *Queue[W]) defers() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.defersLocked()
}

func (q *Queue[W]) defersLocked() bool {
	return q.urgent == 0 && len(q.jobs) > 0 && len(q.jobs) < MaxDeferred
}

// Group returns how many of the first jobs fit into one commit: at least 1. A job for which alone returns true has a
// commit of its own. A Control ends a group. A batch that remembers an id which an earlier batch of the group may
// forget also ends it, because stores decide ForgetSettled at the end of a commit.
func Group[W Work](jobs []*Job[W], alone func(*Job[W]) bool) int {
	if jobs[0].Control != nil || alone(jobs[0]) {
		return 1
	}
	n, weight := 1, jobs[0].Weight()
	var forgotten map[[2]string]bool // by Scope and Key
	for ; n < len(jobs) && n < MaxGroup && jobs[n].Control == nil && !alone(jobs[n]); n++ {
		if b := jobs[n-1].Batch; b != nil && len(b.ForgetSettled) > 0 {
			if forgotten == nil {
				forgotten = make(map[[2]string]bool)
			}
			for _, d := range b.ForgetSettled {
				forgotten[[2]string{d.Scope, d.Key}] = true
			}
		}
		remembers := func(d driver.Dedupe) bool { return forgotten[[2]string{d.Scope, d.Key}] }
		if b := jobs[n].Batch; b != nil && len(forgotten) > 0 && slices.ContainsFunc(b.Remember, remembers) {
			break
		}
		if weight += jobs[n].Weight(); weight > maxWeight {
			break
		}
	}
	return n
}
