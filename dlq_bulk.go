package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/surebus/eventbus/internal/timeline"
)

// BulkOption is an option of ReplayMatching and PurgeMatching.
type BulkOption func(*bulk)

// bulk is what the options of a bulk operation say.
type bulk struct {
	perSecond float64 // 0 for as fast as possible
	dryRun    bool
	stopAfter int // 0 for never
	progress  func(BulkProgress)
	err       error
}

func (b *bulk) refuseIf(bad bool, name string, value any, reason string) {
	if bad && b.err == nil {
		b.err = &OptionError{Option: name, Value: fmt.Sprint(value), Reason: reason}
	}
}

// Rate has at most so many letters dealt with in a second, evenly, by the bus's
// clock. The first one is at once. After a delay, such as that of a slow OnProgress,
// it catches up by at most 10 ms. By default there is no bound.
func Rate(perSecond float64) BulkOption {
	return func(b *bulk) {
		b.refuseIf(!(perSecond > 0 && perSecond <= math.MaxFloat64), "Rate", perSecond,
			"must be a finite number above 0; leave the option out for no bound")
		b.perSecond = perSecond
	}
}

// DryRun only counts the letters that match. The other options have no effect then,
// so that it can be added to a call to see what the call would be about.
func DryRun() BulkOption { return func(b *bulk) { b.dryRun = true } }

// StopAfter stops a ReplayMatching when there have been n failures, as
// ReplayReport.Failures counts them. Give it a Rate too: without one, most letters
// have been replayed before the first handler fails.
func StopAfter(n int) BulkOption {
	return func(b *bulk) {
		b.refuseIf(n < 1, "StopAfter", n, "must be at least 1; leave the option out to go on after any failure")
		b.stopAfter = n
	}
}

// OnProgress has f called after each letter of a ReplayMatching; of a PurgeMatching
// after each one if it has a Rate, and after every 1,000 and the last if not. It is
// called by the goroutine that runs the operation, which waits for it, and holds no
// lock. What it panics with is the caller's: the letters dealt with so far are.
func OnProgress(f func(BulkProgress)) BulkOption {
	return func(b *bulk) {
		b.refuseIf(f == nil, "OnProgress", "nil", "must be a function; leave the option out for none")
		b.progress = f
	}
}

// BulkProgress is how far a bulk operation has come.
type BulkProgress struct {
	Matched  int // letters in the set
	Done     int // of these, those that have been dealt with, whatever became of them
	Failures int // as ReplayReport counts them; 0 for PurgeMatching
}

// ReplayReport tells what became of the letters of ReplayMatching. The letters that
// are in none of Replayed, Gone and Stayed have not been tried.
type ReplayReport struct {
	// Matched is the size of the set, fixed when the operation began.
	Matched  int
	Replayed int
	// Gone were replayed or purged by somebody else meanwhile, or fell out.
	Gone int
	// Stayed are the letters that could not be replayed, and why.
	Stayed []StayedLetter
	// Failures counts, while the operation ran, the letters that stayed, and of
	// the events that it replayed every failed attempt and every death without
	// one, as that of a replay that an open circuit skips.
	Failures int
	// Stopped is set if StopAfter has left letters untried.
	Stopped bool
}

// StayedLetter is a letter that could not be replayed.
type StayedLetter struct {
	ID  LetterID
	Err error
}

// PurgeReport tells what became of the letters of PurgeMatching. The letters that are
// in neither Purged nor Gone have not been tried.
type PurgeReport struct {
	// Matched is the size of the set, fixed when the operation began.
	Matched int
	Purged  int
	// Gone were replayed or purged by somebody else meanwhile, or fell out.
	Gone int
}

// ReplayMatching replays the letters that match a query, as Replay does, oldest
// first. Letters of events with the same key are replayed in the order of publication. The set is fixed when it begins: letters that come to match while it
// runs, such as those that die again, stay. It goes on after a letter that cannot
// be replayed. It returns when the last dispatch is queued, and stops before when
// ctx ends, the bus is shut down, or StopAfter says so; the report counts what was
// done also then. It blocks only for a Rate and in OnProgress.
//
// A subscription whose circuit is open holds what is replayed, as any delivery,
// unless its WhenOpen says otherwise. Errors: those of List, ErrShutdown.
func (q *DLQ) ReplayMatching(ctx context.Context, query LetterQuery, opts ...BulkOption) (ReplayReport, error) {
	var report ReplayReport
	o, f, err := q.bulk(ctx, "ReplayMatching", query, opts)
	if err != nil {
		return report, fmt.Errorf("ReplayMatching: %w", err)
	}
	ids := replayOrder(q.bus.letters.snapshot(f))
	report.Matched = len(ids)
	if o.dryRun {
		return report, nil
	}
	run := &bulkRun{stopAfter: int64(o.stopAfter), stopped: make(chan struct{})}
	r := &replaying{run: run}
	pace := pace{time: q.bus.time, perSecond: o.perSecond, shutdown: q.bus.leaving, stopped: run.stopped}
	for i, id := range ids {
		if err = pace.wait(ctx); err != nil {
			break
		}
		if err = q.bus.replay(id, r); errors.Is(err, ErrShutdown) {
			break
		}
		switch {
		case err == nil:
			report.Replayed++
		case errors.Is(err, ErrNotFound):
			report.Gone++
		default:
			report.Stayed = append(report.Stayed, StayedLetter{id, err})
			run.failed()
		}
		err = nil
		if o.progress != nil {
			o.progress(BulkProgress{Matched: len(ids), Done: i + 1, Failures: run.count()})
		}
	}
	report.Failures = run.count()
	if errors.Is(err, errStopped) {
		report.Stopped, err = true, nil
	}
	if err != nil {
		return report, fmt.Errorf("ReplayMatching: %w", err)
	}
	return report, nil
}

// replayOrder returns the ids of letters in the order in which to replay them. The letters of
// a key share out the places that they have among the others, in the order of publication: a
// shutdown that finds some events of a key parked and others queued makes their letters in
// another order.
func replayOrder(letters []*DeadLetter) []LetterID {
	ids := make([]LetterID, len(letters))
	places := make(map[string][]int)
	for i, l := range letters {
		ids[i] = l.ID
		if l.Event.Key != "" {
			places[l.Event.Key] = append(places[l.Event.Key], i)
		}
	}
	for _, of := range places {
		if len(of) < 2 {
			continue
		}
		ordered := make([]*DeadLetter, len(of))
		for n, i := range of {
			ordered[n] = letters[i]
		}
		slices.SortStableFunc(ordered, publicationOrder(ordered))
		for n, i := range of {
			ids[i] = ordered[n].ID
		}
	}
	return ids
}

// publicationOrder compares letters of one key. An imported letter has no order. If there is
// one among them, all are compared by time and id: two ways of comparison in one set are
// no order.
func publicationOrder(letters []*DeadLetter) func(x, y *DeadLetter) int {
	if !slices.ContainsFunc(letters, func(l *DeadLetter) bool { return l.order.IsZero() }) {
		return func(x, y *DeadLetter) int { return bytes.Compare(x.order[:], y.order[:]) }
	}
	return func(x, y *DeadLetter) int {
		return cmp.Or(x.Event.Time.Compare(y.Event.Time), bytes.Compare(x.Event.ID[:], y.Event.ID[:]))
	}
}

// PurgeMatching deletes the letters that match a query, oldest first. The set is
// fixed when it begins: letters that come to match while it runs stay. It stops when
// ctx ends; the report counts what was done also then. It blocks only for a Rate and
// in OnProgress, and works after Shutdown too. Errors: those of List; StopAfter is an
// *OptionError.
func (q *DLQ) PurgeMatching(ctx context.Context, query LetterQuery, opts ...BulkOption) (PurgeReport, error) {
	o, f, err := q.bulk(ctx, "PurgeMatching", query, opts)
	if err == nil && o.stopAfter != 0 {
		err = &OptionError{Option: "StopAfter", Value: strconv.Itoa(o.stopAfter), Reason: "is for ReplayMatching; a purge has no failures"}
	}
	var report PurgeReport
	if err == nil {
		report, err = q.purge(ctx, f, o)
	}
	if err != nil {
		return report, fmt.Errorf("PurgeMatching: %w", err)
	}
	return report, nil
}

// PurgeUntil deletes the letters that died at or before an instant, and returns
// how many. It stops when ctx ends. The error is the context's.
func (q *DLQ) PurgeUntil(ctx context.Context, instant time.Time) (int, error) {
	if err := q.ready(ctx); err != nil {
		return 0, fmt.Errorf("PurgeUntil: %w", err)
	}
	report, err := q.purge(ctx, &letterFilter{until: instant, bounded: true}, &bulk{})
	if err != nil {
		return report.Purged, fmt.Errorf("PurgeUntil: %w", err)
	}
	return report.Purged, nil
}

// purgeBatch is how many letters are purged under one lock, while nothing can die.
const purgeBatch = 1000

func (q *DLQ) purge(ctx context.Context, f *letterFilter, o *bulk) (PurgeReport, error) {
	ids := q.bus.letters.match(f)
	report := PurgeReport{Matched: len(ids)}
	if o.dryRun {
		return report, nil
	}
	batch := purgeBatch
	if o.perSecond != 0 {
		batch = 1
	}
	pace := pace{time: q.bus.time, perSecond: o.perSecond}
	for done := 0; done < len(ids); {
		if err := pace.wait(ctx); err != nil {
			return report, err
		}
		part := ids[done:min(done+batch, len(ids))]
		n := q.bus.letters.remove(part)
		report.Purged += n
		report.Gone += len(part) - n
		done += len(part)
		if o.progress != nil {
			o.progress(BulkProgress{Matched: len(ids), Done: done})
		}
	}
	return report, nil
}

// bulk checks what a bulk operation was given.
func (q *DLQ) bulk(ctx context.Context, operation string, query LetterQuery, opts []BulkOption) (*bulk, *letterFilter, error) {
	if err := q.ready(ctx); err != nil {
		return nil, nil, err
	}
	var b bulk
	for i, o := range opts {
		if o == nil {
			return nil, nil, nilOption(operation, i)
		}
		if o(&b); b.err != nil {
			return nil, nil, b.err
		}
	}
	f, err := q.wholeFilter(ctx, query)
	if err == nil && !query.All && query == (LetterQuery{ExactTotal: query.ExactTotal}) {
		err = &OptionError{Option: "LetterQuery.All", Value: "false", Reason: "an empty query matches every letter; set All to mean that"}
	}
	return &b, f, err
}

// bulkRun is a ReplayMatching, as its replays know it. They may outlive it.
type bulkRun struct {
	failures  atomic.Int64
	stopAfter int64
	stopped   chan struct{} // closed at so many failures
}

func (r *bulkRun) failed() {
	if r != nil && r.failures.Add(1) == r.stopAfter {
		close(r.stopped)
	}
}

func (r *bulkRun) count() int { return int(r.failures.Load()) }

// pace spreads what a bulk operation does. It waits on the caller's goroutine, with
// one timer and without a lock.
type pace struct {
	time      *timeline.Timeline
	perSecond float64
	shutdown  <-chan struct{} // ends it with ErrShutdown
	stopped   <-chan struct{} // ends it with errStopped
	begun     bool
	due       int64 // when the last one was
}

var errStopped = errors.New("stopped")

// paceBurst is how much a pace catches up. Timers are late by about a millisecond,
// so without it a thousand a second would be half as many.
const paceBurst = 10 * time.Millisecond

// wait returns when the next one may be done, or why none may.
func (p *pace) wait(ctx context.Context) error {
	if err := p.ended(ctx); err != nil || p.perSecond == 0 {
		return err
	}
	now := p.time.Nanos()
	if !p.begun {
		p.begun, p.due = true, now
		return nil
	}
	p.due = max(timeline.Later(p.due, clampDuration(float64(time.Second)/p.perSecond, math.MaxInt64)), now-int64(paceBurst))
	if p.due <= now {
		return nil
	}
	fired := make(chan struct{})
	timer := p.time.AfterFunc(time.Duration(p.due-now), func() { close(fired) })
	defer timer.Stop()
	select {
	case <-fired:
	case <-ctx.Done():
	case <-p.shutdown:
	case <-p.stopped:
	}
	return p.ended(ctx)
}

// ended is why the operation must not go on, if anything.
func (p *pace) ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	select {
	case <-p.shutdown:
		return ErrShutdown
	case <-p.stopped:
		return errStopped
	default:
		return nil
	}
}
