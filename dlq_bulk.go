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

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/errchain"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/pace"
)

// BulkOption is an option of ReplayMatching and PurgeMatching.
// By, Because and FromRequest are such options too.
type BulkOption interface {
	applyBulk(*bulk)
}

type bulkOption func(*bulk)

func (o bulkOption) applyBulk(b *bulk) { o(b) }

// TransferOption is an option of Export and Import: OnProgress, and for Import By, Because and
// FromRequest. It is a BulkOption too.
type TransferOption interface {
	BulkOption
	transfers()
}

type progressOption struct{ bulkOption }

func (progressOption) transfers() {}

// newBulk applies options.
func newBulk[O BulkOption](operation string, opts []O) (*bulk, error) {
	b := new(bulk)
	for i, o := range opts {
		if isNil(o) {
			return nil, nilOption(operation, i)
		}
		if o.applyBulk(b); b.err != nil {
			return nil, b.err
		}
	}
	return b, nil
}

// bulk has the options of a bulk operation.
type bulk struct {
	perSecond float64 // 0: not limited
	dryRun    bool
	stopAfter int  // 0: never
	probe     bool // of a bulk action
	progress  func(BulkProgress)
	operator  operator
	err       error
}

// refuseIf records an *OptionError if bad is set. The first one counts.
func (b *bulk) refuseIf(bad bool, name string, value any, reason string) {
	if bad && b.err == nil {
		b.err = &OptionError{Option: name, Value: fmt.Sprint(value), Reason: reason}
	}
}

// Rate limits a bulk operation to perSecond letters per second, evenly spaced by the bus's clock.
// The first letter is processed at once. After a delay, such as a slow OnProgress, the operation
// catches up by at most 10 ms. Without Rate there is no limit.
func Rate(perSecond float64) BulkOption {
	return bulkOption(func(b *bulk) {
		b.refuseIf(!(perSecond > 0 && perSecond <= math.MaxFloat64), "Rate", perSecond,
			"must be a finite number above 0; omit the option for no limit")
		b.perSecond = perSecond
	})
}

// DryRun makes a bulk operation only count the letters that match. The other options then have no
// effect.
func DryRun() BulkOption { return bulkOption(func(b *bulk) { b.dryRun = true }) }

// StopAfter stops a ReplayMatching after n failures, as counted by ReplayReport.Failures. Combine
// it with Rate: without a rate, most letters are replayed before the first handler fails.
func StopAfter(n int) BulkOption {
	return bulkOption(func(b *bulk) {
		b.refuseIf(n < 1, "StopAfter", n, "must be at least 1; omit the option to continue after any failure")
		b.stopAfter = n
	})
}

// OnProgress calls f after each letter. PurgeMatching without Rate, Export and Import call f after every
// 500 letters at the latest, and after the last one. The goroutine that runs the operation calls f
// without a lock and waits for it. A panic of f reaches the caller of the operation; the letters
// processed before stay processed.
func OnProgress(f func(BulkProgress)) TransferOption {
	return progressOption{func(b *bulk) {
		b.refuseIf(f == nil, "OnProgress", "nil", "must not be nil; omit the option for no reports")
		b.progress = f
	}}
}

// report calls the function of OnProgress.
func (b *bulk) report(matched, done int) {
	if b.progress != nil {
		b.progress(BulkProgress{Matched: matched, Done: done})
	}
}

// BulkProgress is the progress of a bulk operation, an export or an import.
type BulkProgress struct {
	Matched  int `json:"matched"`  // letters in the set
	Done     int `json:"done"`     // of these, letters processed, with any outcome
	Failures int `json:"failures"` // as in ReplayReport; 0 for the other operations
}

// ReplayReport counts the letters of a ReplayMatching by outcome. Letters in none of Replayed, Gone
// and Stayed were not processed.
type ReplayReport struct {
	// Matched is the number of matching letters when the operation began.
	Matched int `json:"matched"`
	// Replayed is the number of letters replayed.
	Replayed int `json:"replayed"`
	// Gone counts the letters that another call replayed or purged meanwhile, or that were evicted.
	Gone int `json:"gone"`
	// Stayed lists the letters that could not be replayed.
	Stayed []StayedLetter `json:"stayed,omitempty"`
	// Failures counts letters that stayed, failed attempts of replayed events, and replayed events that died without an
	// attempt, for example at an open circuit.
	Failures int `json:"failures"`
	// Stopped is set if StopAfter ended the operation.
	Stopped bool `json:"stopped"`
}

// StayedLetter is a letter that could not be replayed.
type StayedLetter struct {
	ID  LetterID `json:"letter_id"` // the letter's id
	Err error    `json:"-"`         // why the letter could not be replayed
	// Error is the text of Err.
	Error string `json:"error"`
}

// PurgeReport counts the letters of a PurgeMatching by outcome. Letters that are in neither Purged
// nor Gone were not processed.
type PurgeReport struct {
	// Matched is the number of matching letters when the operation began.
	Matched int `json:"matched"`
	Purged  int `json:"purged"` // letters deleted
	// Gone counts the letters that another call replayed or purged meanwhile, or that were evicted.
	Gone int `json:"gone"`
}

// ReplayMatching replays the letters that match a query, oldest first. Letters of events with the same key are replayed
// in the order of publication. The set is fixed at the start: letters that match later, such as the new letters of
// failed replays, are not replayed.
//
// ReplayMatching returns when the last dispatch is queued. It continues after a letter that cannot
// be replayed. It stops early when ctx ends, the bus is shut down, or StopAfter applies; the report is
// valid then too. When ctx ends, a store has a second to record the replays that have begun. It blocks
// only for Rate, in OnProgress and for the store.
//
// An open circuit handles replayed events as any other, by the subscription's WhenOpen.
//
// Errors: those of List; ErrShutdown; an *OptionError for an empty query without All.
func (q *DLQ) ReplayMatching(ctx context.Context, query LetterQuery, opts ...BulkOption) (ReplayReport, error) {
	report, err := q.replayMatching(ctx, query, opts)
	if err != nil {
		return report, fmt.Errorf("ReplayMatching: %w", err)
	}
	return report, nil
}

func (q *DLQ) replayMatching(ctx context.Context, query LetterQuery, opts []BulkOption) (report ReplayReport, err error) {
	o, f, err := q.bulk(ctx, "ReplayMatching", query, opts)
	if err != nil {
		return report, err
	}
	letters, err := q.bus.letters.snapshot(ctx, f)
	if err != nil {
		return report, err
	}
	ids := replayOrder(letters)
	report.Matched = len(ids)
	if o.dryRun || len(ids) == 0 {
		return report, nil
	}
	entry := q.bus.operators.bulkEntry(o.operator, AuditReplayMatching, query, len(ids))
	if err := q.bus.operators.auditBulk(ctx, entry); err != nil {
		return report, err
	}
	defer func() {
		outcome := AuditOutcome{Done: report.Replayed, Failures: report.Failures, Stopped: report.Stopped}
		_ = q.bus.operators.auditOutcome(ctx, entry, outcome, err, nil) // it is logged
	}()
	run := &bulkRun{stopAfter: int64(o.stopAfter), stopped: make(chan struct{})}
	r := &replaying{run: run, by: o.operator.by, bulk: entry.At}
	rate := pacing{pace.Pace{Time: q.bus.time, PerSecond: o.perSecond}, q.bus.lifecycle.leaving, run.stopped}
	ended := func(done int, id LetterID, err error) error {
		switch {
		case err == nil:
			report.Replayed++
		case errchain.Is(err, ErrShutdown):
			return err
		case errchain.Is(err, ErrNotFound):
			report.Gone++
		default:
			report.Stayed = append(report.Stayed, StayedLetter{id, err, err.Error()})
			run.failed()
		}
		if o.progress != nil {
			o.progress(BulkProgress{Matched: len(ids), Done: done, Failures: run.count()})
		}
		return nil
	}
	window := 1
	if o.stopAfter == 0 && o.perSecond == 0 { // StopAfter counts after each replay
		window = q.bus.journal.replaysAtOnce()
	}
	pending := make([]func() error, 0, window) // of ids[done:], in order
	done := 0
	wait := func(left int) (err error) {
		for ; len(pending) > left && err == nil; done++ {
			end := pending[0]
			pending = pending[1:]
			err = ended(done+1, ids[done], end())
		}
		return err
	}
	begun, cancel := pace.Patient(ctx, q.bus.time, bulkPatience)
	defer cancel()
	for _, id := range ids {
		if err = rate.wait(ctx); err != nil {
			break
		}
		end, refused := q.bus.intake.beginReplay(begun, id, r)
		if refused != nil {
			end = func() error { return refused }
		}
		pending = append(pending, end)
		if err = wait(window - 1); err != nil {
			break
		}
	}
	for len(pending) > 0 { // they have begun
		if last := wait(0); err == nil {
			err = last
		}
	}
	report.Failures = run.count()
	if errchain.Is(err, errStopped) {
		report.Stopped, err = true, nil
	}
	return report, err
}

// replayOrder returns the ids of letters in the order in which to replay them. The letters of a key
// keep the set of places that they have in letters, sorted by publication. They may be out of order
// there: a shutdown buries the parked and the queued events of a key concurrently.
func replayOrder(letters []letterRef) []LetterID {
	pace.OrderWithin(letters, func(l letterRef) string { return l.key }, publicationOrder)
	return letterIDs(letters)
}

// publicationOrder returns the comparison for letters of one key. Imported letters have no order
// field. If one letter lacks it, all are compared by time and id, because a mix of two comparisons
// is not transitive.
func publicationOrder(letters []letterRef) func(x, y letterRef) int {
	if !slices.ContainsFunc(letters, func(l letterRef) bool { return l.position == 0 }) {
		return func(x, y letterRef) int { return cmp.Compare(x.position, y.position) }
	}
	if !slices.ContainsFunc(letters, func(l letterRef) bool { return l.order.IsZero() }) {
		return func(x, y letterRef) int { return bytes.Compare(x.order[:], y.order[:]) }
	}
	return func(x, y letterRef) int {
		return cmp.Or(x.published.Compare(y.published), bytes.Compare(x.event[:], y.event[:]))
	}
}

// PurgeMatching deletes the letters that match a query, oldest first. The set is fixed at the start: letters that match
// later stay. It stops early when ctx ends; the report is valid then too. It blocks for Rate, in OnProgress and for the
// store, which commits up to 500 letters at once. When PurgeMatching returns, a store that implements driver.Eraser has
// no copy of the payloads.
//
// Errors: those of List; an *OptionError for StopAfter and for an empty query without All; ErrNotErased,
// with a report of what is deleted.
func (q *DLQ) PurgeMatching(ctx context.Context, query LetterQuery, opts ...BulkOption) (PurgeReport, error) {
	o, f, err := q.bulk(ctx, "PurgeMatching", query, opts)
	if err == nil && o.stopAfter != 0 {
		err = &OptionError{Option: "StopAfter", Value: strconv.Itoa(o.stopAfter), Reason: "must not be set for PurgeMatching: a purge has no failures"}
	}
	var report PurgeReport
	if err == nil {
		report, err = q.purge(ctx, f, o, &o.operator)
	}
	if err != nil {
		return report, fmt.Errorf("PurgeMatching: %w", err)
	}
	return report, nil
}

// PurgeUntil deletes the letters with a DiedAt at or before instant, oldest first, and returns their number, also with
// an error. It stops when ctx ends. With a store, up to 500 letters are one commit, and it blocks for these. Errors:
// *OptionError, ErrNotErased, the context's, the store's.
func (q *DLQ) PurgeUntil(ctx context.Context, instant time.Time, opts ...DirectiveOption) (int, error) {
	err := q.ready(ctx)
	var o operator
	if err == nil {
		o, err = newOperator("PurgeUntil", opts)
	}
	if err != nil {
		return 0, fmt.Errorf("PurgeUntil: %w", err)
	}
	report, err := q.purgeUntil(ctx, instant, o, &o)
	if err != nil {
		return report.Purged, fmt.Errorf("PurgeUntil: %w", err)
	}
	return report.Purged, nil
}

func (q *DLQ) purgeUntil(ctx context.Context, instant time.Time, o operator, by *operator) (PurgeReport, error) {
	return q.purge(ctx, &letterFilter{LetterQuery: LetterQuery{Until: instant}, until: instant, bounded: true}, &bulk{operator: o}, by)
}

// purge deletes letters. A store keeps the outcomes of those that an operator purges: by.
func (q *DLQ) purge(ctx context.Context, f *letterFilter, o *bulk, by *operator) (report PurgeReport, err error) {
	letters, err := q.bus.letters.snapshot(ctx, f)
	report.Matched = len(letters)
	if err != nil || o.dryRun || len(letters) == 0 {
		return report, err
	}
	entry := q.bus.operators.bulkEntry(o.operator, AuditPurgeMatching, f.LetterQuery, len(letters))
	if err := q.bus.operators.auditBulk(ctx, entry); err != nil {
		return report, err
	}
	defer func() { _ = q.bus.operators.auditOutcome(ctx, entry, AuditOutcome{Done: report.Purged}, err, nil) }()
	commits, cancel := pace.Patient(ctx, q.bus.time, bulkPatience)
	defer cancel()
	defer func() {
		if report.Purged > 0 {
			err = cmp.Or(err, q.bus.letters.erase(commits))
		}
	}()
	rate := pacing{Pace: pace.Pace{Time: q.bus.time, PerSecond: o.perSecond}}
	for done := 0; done < len(letters); {
		if err := rate.wait(ctx); err != nil {
			return report, err
		}
		part := nextPart(letters[done:])
		if o.perSecond != 0 {
			part = part[:1]
		}
		n, err := q.bus.letters.remove(commits, part, by, nil)
		if err != nil {
			return report, err
		}
		report.Purged += n
		report.Gone += len(part) - n
		done += len(part)
		o.report(len(letters), done)
	}
	return report, nil
}

// retentionPause is the time between two purges by age.
const retentionPause = time.Hour

// purgeByAge purges what WithLetterRetention does not keep, until ctx ends.
func (op *operators) purgeByAge(ctx context.Context) {
	why := fmt.Sprintf("older than %v (WithLetterRetention)", op.config.retention)
	for again := true; again; again = op.time.Sleep(ctx, retentionPause) {
		if !op.journal.dispatches() || op.halts.Has(halt.Lost) {
			continue // the bus with the lease does it
		}
		until := op.time.Aged().Add(-op.config.retention)
		if _, err := op.DLQ().purgeUntil(ctx, until, operator{by: "retention", why: why}, nil); err != nil && ctx.Err() == nil {
			op.log.Warn("dead letters were not purged by age", zap.Duration("retention", op.config.retention), zap.Error(err))
		}
	}
}

// bulk validates the arguments of a bulk operation.
func (q *DLQ) bulk(ctx context.Context, operation string, query LetterQuery, opts []BulkOption) (*bulk, *letterFilter, error) {
	if err := q.ready(ctx); err != nil {
		return nil, nil, err
	}
	b, err := newBulk(operation, opts)
	if err != nil {
		return nil, nil, err
	}
	f, err := q.wholeFilter(ctx, query)
	if err == nil && !query.All && f.matchesAll() {
		err = &OptionError{Option: "LetterQuery.All", Value: "false", Reason: "an empty query matches every letter; set All to confirm"}
	}
	return b, f, err
}

// bulkRun counts the failures of a ReplayMatching. Its replays may outlive it.
type bulkRun struct {
	failures  atomic.Int64
	stopAfter int64
	stopped   chan struct{} // closed after stopAfter failures
}

// failed counts a failure. r may be nil.
func (r *bulkRun) failed() {
	if r != nil && r.failures.Add(1) == r.stopAfter {
		close(r.stopped)
	}
}

func (r *bulkRun) count() int { return int(r.failures.Load()) }

// pacing is the rate limiter of a bulk operation, and what ends it.
type pacing struct {
	pace.Pace
	shutdown <-chan struct{} // ends the operation with ErrShutdown
	stopped  <-chan struct{} // ends the operation with errStopped
}

var errStopped = errors.New("stopped")

// wait blocks until the next letter may be processed. It returns an error if the operation must
// end.
func (p *pacing) wait(ctx context.Context) error {
	if err := p.ended(ctx); err != nil {
		return err
	}
	if p.Wait(ctx.Done(), p.shutdown, p.stopped) {
		return contextError(ctx)
	}
	return p.ended(ctx)
}

// ended returns why the operation must end, or nil.
func (p *pacing) ended(ctx context.Context) error {
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
