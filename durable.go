package eventbus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/blocked"
	"github.com/surebus/eventbus/internal/doubt"
	"github.com/surebus/eventbus/internal/halt"
	"github.com/surebus/eventbus/internal/pace"
	"github.com/surebus/eventbus/internal/pool"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/suspects"
	"github.com/surebus/eventbus/internal/timeline"
)

// durable is the journal of a bus with a store. It records a transition before it applies it, and recovers the records
// that an earlier process has left.
type durable struct {
	*Bus

	feeder    *feeder
	followups *pool.Pool[func(), struct{}] // applies recorded changes
	stats     storeStats
	suspects  suspects.Waiting[*dispatch]
	repeated  atomic.Int64    // incoming events that were dropped, because their ids were known
	locks     blocked.TxLocks // for which commits wait, by the call of the handler, or the context, that must end them
	inTx      txKeys
	unknown   unknowns
	orphans   room.Orphans // deliveries of missing subscriptions, which the quota does not count
	answering semaphore    // held while requests are answered

	cataloging semaphore // held while the catalogs of other buses are read

	atStart []string // names of the subscriptions when Start was called; immutable then
	yielded sync.Map // instances to which the lease was handed over, or left, to nil

	sightings sightings
	doubts    doubt.Changes // while the store has failed
}

// connect begins to use the store. It reads the directives and the counts.
func (j *durable) connect() error {
	if lock, ok := j.config.store.(driver.TxLock); ok {
		j.locks.HoldsLock = lock.HoldsLock
	}
	j.feeder, j.answering, j.cataloging = newFeeder(j.Bus), make(semaphore, 1), make(semaphore, 1)
	if err := j.useStore(); err != nil {
		return err
	}
	j.followups = pool.New(pool.Config[func(), struct{}]{
		Open:        func() struct{} { return struct{}{} },
		Close:       func(struct{}) {},
		Run:         func(_ struct{}, apply func()) bool { apply(); return true },
		Enter:       func(func()) bool { return true },
		Idle:        func(struct{}) {},
		Freed:       func() {},
		Rest:        func() {},
		Concurrency: j.config.concurrency,
		Capacity:    math.MaxInt32,
	})
	j.followups.Start()
	_, err := pace.Within(newPatience, func(ctx context.Context) (struct{}, error) {
		_, err := j.countUnsettled(ctx)
		return struct{}{}, errors.Join(j.operators.loadDirectives(ctx), err)
	})
	if err != nil {
		j.releaseStore()
	}
	return err
}

func (j *durable) prepare(_ context.Context, d *dispatch) error {
	encoded, err := j.intake.encode(d.payload)
	if err != nil {
		return err
	}
	d.payload = encoded
	if d.origin == nil {
		d.origin = &origin{}
	}
	d.origin.row = &row{}
	if due := d.origin.due; due != nil && due.at.IsZero() { // after a restart there is no other clock
		if due.at = j.time.At(due.nanos); !driver.Storable(due.at) {
			return &EventError{Field: "time", Value: due.at.String(), Reason: badYear}
		}
	}
	return nil
}

func (j *durable) prepareLetter(d *dispatch, l *DeadLetter) {
	d.payload, d.origin.row = encodeLetter(*l), &row{}
}

func (j *durable) accept(ctx context.Context, inside bool, d *dispatch, batch []*dispatch) (fresh int, err error) {
	o := opening{d: d, batch: batch, published: batch, inside: inside}
	if err := j.unknown.await(ctx, j.gaveUp, &o); err != nil { // before it counts as entering: a restart waits for those
		return 0, err
	}
	err = j.intake.whileEntering(inside, func() error {
		if err := j.storeRefuses(); err != nil {
			return err
		}
		if j.wouldDeadlock(ctx) {
			return fmt.Errorf("%w: %w", ErrWouldDeadlock, errOwnTx)
		}
		return j.acceptDurably(ctx, inside, &o)
	})
	if err != nil {
		return 0, err
	}
	o.nameFolded()
	return j.intake.accepted(&o), nil
}

// errBeganToLead reports a publication for which takeInFirst has done nothing, because the bus left its events in incoming then.
var errBeganToLead = errors.New("the bus has begun to lead")

// takeInFirst takes in what a publication must follow, unless the publication is left in incoming itself.
func (j *durable) takeInFirst(ctx context.Context, c *opening) error {
	if c.follows = j.store.leads() && (c.inside || !j.feeder.leaves()); !c.follows {
		return nil
	}
	err := j.feeder.takeInBefore(ctx, c)
	if errors.Is(err, ErrLeaseLost) {
		c.follows = false
		return nil
	}
	return err
}

// acceptDurably accepts the dispatches of a change with a store.
func (j *durable) acceptDurably(ctx context.Context, inside bool, c *opening) error {
	if err := j.intake.given.unknown(c); err != nil { // an id may be twice in a batch
		return err
	}
	for {
		if err := j.takeInFirst(ctx, c); err != nil {
			return err
		}
		c.events = nil
		if j.report.seesAccepted() {
			for _, d := range c.all() {
				c.events = append(c.events, d.event(j.time))
			}
		}
		if err := j.needNoRoom(ctx, c, inside); err != nil || c.d == nil {
			return err
		}
		if err := j.acquireQuota(ctx, c, inside); err != nil {
			return err
		}
		if err := j.acquireRoom(ctx, c, inside); err != nil {
			j.releaseQuota(c, c.records())
			return err
		}
		opened := &change{kind: toAccept, opening: *c}
		applied, err := j.openLater(ctx, opened)
		if err != nil {
			j.releaseQuota(c, c.records())
			if errors.Is(err, errBeganToLead) {
				continue
			}
			return err
		}
		if err = j.awaitRecorded(ctx, opened, applied); err == nil {
			c.left = opened.left
			return nil
		}
		var refused *driver.RefusedError
		switch {
		case errors.Is(err, ErrStoreClosed):
			return j.intake.refuseShutdown()
		case errors.Is(err, ErrLeaseLost):
			continue // it is left in incoming now
		case errors.As(err, &refused) && refused.Known == nil:
			return err // the store has not the event
		case refused == nil:
			var unknown *IndeterminateError
			if !errors.As(err, &unknown) {
				j.addUnknown(c.all())
				err = c.indeterminate(err)
			}
			return err
		}
		if err := c.repeated(j.Bus, refused.Known); err != nil || c.d == nil {
			return err
		}
	}
}

func (j *durable) awaits(id EventID, w *waiter) (ended func()) {
	return func() { j.feeder.forget(id, w) }
}

// encodePayload leaves a payload that is encoded.
func (j *durable) encodePayload(payload any) (any, error) {
	if _, encoded := payload.(EncodedPayload); encoded {
		return payload, nil
	}
	return j.intake.encode(payload)
}

func (j *durable) direct(directives []Directive, audit *AuditEntry, answers driver.RequestID, given *Directive) (shared bool, err error) {
	w := &batch{Batch: driver.Batch{Now: audit.At}}
	w.audit(audit)
	w.answer(answers, &reply{Directive: given})
	w.direct(directives...)
	return true, j.store.commitOr(context.Background(), w, func() { j.feeder.lookLater(j.obeyAgain) })
}

func (j *durable) readDirectives(ctx context.Context) (directives []Directive, known bool, err error) {
	read, err := j.store.Directives(ctx)
	read = slices.DeleteFunc(read, func(d driver.Directive) bool { return strings.HasPrefix(d.Subscription, retiredPrefix) })
	directives = make([]Directive, len(read))
	for i, d := range read {
		offence := json.Unmarshal(d.Body, &directives[i])
		if offence == nil && directives[i].storedAs() != d.Subscription {
			offence = fmt.Errorf("it is to %q", directives[i].storedAs())
		}
		if offence != nil && err == nil {
			err = &DecodeError{What: "directive to " + strconv.Quote(d.Subscription), Err: offence}
		}
	}
	return directives, true, err
}

func (j *durable) untilStop(ctx context.Context) (ending context.Context, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(j.feeder.ctx, cancel)
	return ctx, func() {
		forget()
		cancel()
	}
}

func (j *durable) recordsOf(ctx context.Context, id EventID) (records []*record, exist bool, err error) {
	left, err := j.store.Incoming(ctx, driver.IncomingQuery{Event: driver.ID(id), Limit: incomingOfEvent})
	if err != nil {
		return nil, true, err
	}
	read, err := j.store.Lookup(ctx, driver.ID(id)) // last: it may have been taken in
	if err == nil {
		records, err = decodeRecords(read)
	}
	for i := 0; i < len(left.Events) && err == nil; i++ {
		var r *record
		if r, err = decodeRecord(left.Events[i].Record); err == nil && !slices.ContainsFunc(records, r.isSame) {
			r.incoming, records = true, append(records, r)
		}
	}
	return records, true, err
}

// incomingOfEvent bounds the incoming events with one id: a publication, and its replays.
const incomingOfEvent = 100

// isSame reports whether two records are of the same publication or replay.
func (r *record) isSame(other *record) bool { return bytes.Equal(r.Replay, other.Replay) }

func (j *durable) recordPage(ctx context.Context, q driver.RecordQuery, after string) (records []*record, next string, exist bool, err error) {
	ref, err := strconv.ParseInt(cmp.Or(after, "0"), 10, 64)
	if err != nil {
		err = &OptionError{Option: "DispatchQuery.After", Value: shorten(after), Reason: "must be the Next of the previous page"}
		return nil, "", true, err
	}
	q.After = driver.Ref(ref)
	read, err := j.store.Records(ctx, q)
	if err == nil {
		records, err = decodeRecords(read.Records)
	}
	if read.Next != 0 {
		next = pageAfter(read.Next)
	}
	return records, next, true, err
}

// pageAfter returns the Next of a page that ends with a record.
func pageAfter(ref driver.Ref) string { return strconv.FormatInt(int64(ref), 10) }

func (j *durable) remembers(ctx context.Context, id EventID) (bool, error) {
	entry := eventIDEntry(id)
	_, known, err := j.store.Remembered(ctx, entry.Scope, entry.Key)
	return known, err
}

func (j *durable) keyedEvent(ctx context.Context, eventType, key string) (id EventID, known bool, err error) {
	entry, known, err := j.store.Remembered(ctx, eventType, key)
	return EventID(entry.Event), known && entry.Expires.After(j.time.Aged()), err
}

func (j *durable) comes(s *Subscription, spills bool) (arrived func()) {
	s.door.spill.allowed = spills
	s.recover()
	hold := j.feeder.holdBack()
	return func() { hold(s.id) }
}

// ends makes the feeder ask for deliveries of the names: another subscription may take some of them.
func (j *durable) ends(s *Subscription) { j.feeder.askNames(s.names()...) }

func (j *durable) dispatches() bool { return j.lifecycle.started.Load() && j.store.leads() }

func (j *durable) start(ctx context.Context) error {
	if err := j.feeder.start(ctx); err != nil {
		return err
	}
	return nil
}

// started wakes the feeder: before, a full queue refuses its claims.
func (j *durable) started() {
	j.operators.cataloged.record()
	j.feeder.wakeUp()
}

func (j *durable) unloads() { j.halts.Set(halt.Unload) }

func (j *durable) stop() {
	j.feeder.stop()
	j.unloadAll()
	j.feeder.endWaiters()
}

// storeGrace is how long Shutdown waits for a store that confirms nothing, after its context has
// ended.
const storeGrace = 2 * time.Second

// awaitEnd gives up on a store that does not answer.
func (j *durable) awaitEnd(ended <-chan struct{}) error {
	// After the cut, a confirmed change opens a dispatch or removes one from memory.
	progress := func() int64 { return j.ledger.opened() + j.ledger.settled() }
	for now := progress(); ; {
		select {
		case <-ended:
			return nil
		case <-time.After(storeGrace): // in the runtime's time, like the context
		}
		before := now
		if now = progress(); now == before {
			return &UnconfirmedError{
				Calls: j.store.calls.InProgress(), Recording: j.ledger.recording.Load(), Publishing: j.ledger.entering.Load(),
			}
		}
	}
}

// awaitReturns waits up to 100 ms for handlers that Shutdown or their timeouts have cancelled.
func (j *durable) awaitReturns() {
	for i := 0; i < 100 && j.machine.abandoned.Len() > 0; i++ {
		time.Sleep(timeline.Tick)
	}
}

// close closes the store after the last change is applied.
func (j *durable) close() error {
	if j.feeder.unwatch != nil { // until here, the loss of the lease cancels the calls for which Shutdown waits
		j.feeder.unwatch()
	}
	j.feeder.losses.Wait()
	<-j.followups.Close()
	j.feeder.endWaiters()
	j.operators.cataloged.end()
	defer j.releaseStore()
	if err := j.readStats(); err == nil && j.lifecycle.started.Load() { // Metrics shows them after the end
		j.log.Info("bus shut down", zap.Int64("left_in_store", j.stats.last.Load().Unsettled()))
	}
	err := j.store.Close(context.Background())
	if err != nil {
		j.log.Error("store did not close", zap.Error(err))
	}
	return err
}

// measure reads the counts of the store, or takes the last known ones.
func (j *durable) measure(m *Metrics) {
	err := j.readStats()
	if err != nil {
		m.StoreError = err.Error()
	}
	if since, silent := j.store.room.SilentSince(); silent {
		m.StoreSilentSince = j.time.At(since)
	}
	m.Store = new(driver.Stats)
	if known := j.stats.last.Load(); known != nil {
		*m.Store, m.StoreAt, m.Orphaned = known.Stats, known.at, maps.Clone(known.orphaned)
	}
	m.DeadLetters, m.Repetitions = int(m.Store.Letters), j.repeated.Load()
	m.Behind = j.isBehind()
}

// storeStats has the last known counts of the store.
type storeStats struct {
	last    atomic.Pointer[knownStats]
	reading atomic.Int64
}

type knownStats struct {
	driver.Stats
	orphaned map[string]int64
	at       time.Time
}

// statsPatience is how long Metrics waits for the store.
const statsPatience = time.Second

// maxStatsReads bounds the goroutines that wait for a store that hangs.
const maxStatsReads = 64

var errStatsPending = errors.New("eventbus: store does not answer: too many calls of Stats are in progress")

// readStats updates the last known counts.
func (j *durable) readStats() error {
	if j.stats.reading.Load() >= maxStatsReads {
		return errStatsPending
	}
	stats, err := pace.Within(statsPatience, func(ctx context.Context) (known *knownStats, err error) {
		j.stats.reading.Add(1)
		defer j.stats.reading.Add(-1)
		known = &knownStats{at: j.time.Now().UTC}
		if known.Stats, err = j.store.Stats(ctx); err == nil && known.Parked > 0 {
			known.orphaned, err = j.store.Parked(ctx, j.registry.knownNames())
		}
		return known, err
	})
	if err == nil {
		j.stats.last.Store(stats)
	}
	return err
}

// isBehind reports whether the feeder, or a door that admits deliveries, has records to claim.
func (j *durable) isBehind() bool {
	if !j.dispatches() || j.lifecycle.ending.Load() {
		return false
	}
	behind := j.feeder.hasWork()
	for _, s := range j.registry.list() {
		behind = behind || s.hasSpilled()
	}
	return behind
}
