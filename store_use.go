package eventbus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/internal/blocked"
	"github.com/surebus/eventbus/internal/recent"
	"github.com/surebus/eventbus/internal/room"
	"github.com/surebus/eventbus/internal/timeline"
)

// WithStore makes the bus durable: when Publish returns nil, the store has the event, and a crash loses nothing. Start
// resumes the unfinished dispatches of earlier processes. The bus closes the store at the end of Shutdown, also if it
// was not started. One store belongs to one bus: New refuses a second store, and one that another bus of the process
// uses, with an *OptionError.
//
// Every subscription needs a name (Named). Payloads must be encodable by the codec, and handlers
// without Typed receive them encoded: a json.RawMessage with the default codec. WithContextFrom has no
// effect: use WithMetadataFrom. The dead letter queue is the store's, so WithDeadLetterCapacity has none.
func WithStore(s driver.Store) Option {
	return option(func(c *config) {
		c.refuseIf(isNil(s), "WithStore", "nil", "leave the option out for a bus in memory")
		c.refuseIf(!isNil(c.store), "WithStore", "a second store", "a bus has one store: close the other, and leave the option out")
		c.store = s
	})
}

// WithCodec sets the encoding of payloads on a bus with a store: encoding/json by default.
func WithCodec(codec Codec) Option {
	return option(func(c *config) {
		c.refuseIf(isNil(codec), "WithCodec", "nil", "leave the option out for encoding/json")
		c.codec = codec
	})
}

// WithEncodedPayloads makes a bus in memory encode payloads at publication. Handlers receive the same payloads as with
// a store: a json.RawMessage, or an EncodedPayload with WithCodec. Use it in tests, and before you add a store. It
// reveals handlers that are not Typed, payloads that do not encode, and handlers that change data of a publisher.
// WithPayloadLimit applies. With a store the option changes nothing.
func WithEncodedPayloads() Option {
	return option(func(c *config) { c.encodes = true })
}

// WithPayloadLimit sets the largest encoded payload that the bus accepts, with a store or WithEncodedPayloads, in bytes: 1
// MiB by default, at least 1.
func WithPayloadLimit(bytes int) Option {
	return option(func(c *config) {
		c.refuseIf(bytes < 1, "WithPayloadLimit", bytes, "must be at least 1")
		c.payloadLimit = bytes
	})
}

// WithMaxUnsettled bounds the dispatches in a store that have not settled. It is at least 1; without the option, only
// the disk bounds them. While the store has as many, Publish blocks, or returns a *FullError with RefuseWhenFull, and
// the bus takes in no events. Without the lease (before Start, on a standby, and on a bus WithoutHandlers), Publish
// returns a *FullError at once, as PublishTx does on every bus. For these calls, incoming events count too. Handlers
// that publish, and replays, exceed the bound. A batch larger than the bound waits for an empty store. The bus with the
// lease does not count deliveries whose subscription is missing (Metrics.Orphaned): they would take the room for ever.
func WithMaxUnsettled(n int) Option {
	return option(func(c *config) {
		c.refuseIf(n < 1, "WithMaxUnsettled", n, "must be at least 1; leave the option out for no bound")
		c.unsettled = n
	})
}

// WithMaxUnconfirmed bounds the changes that the store has not confirmed: the number of their records, and the bytes of
// their payloads. The defaults are 65,536 and 64 MiB, and each is at least 1. Beyond a bound, publications and replays
// wait in their order, also in handlers. A publication larger than a bound waits until no other is outstanding. If its
// context ends first, Publish returns a *FullError that matches ErrStoreFailed, and the store has no part of the event.
// All other changes count too, and never wait.
func WithMaxUnconfirmed(records, bytes int) Option {
	return option(func(c *config) {
		c.refuseIf(records < 1, "WithMaxUnconfirmed", records, "the records must be at least 1; leave the option out for 65,536")
		c.refuseIf(bytes < 1, "WithMaxUnconfirmed", bytes, "the bytes must be at least 1; leave the option out for 64 MiB")
		c.unconfirmed = room.Size{Records: int64(records), Bytes: int64(bytes)}
	})
}

// WithIdempotencyWindow sets how long after the publication the bus remembers an IdempotencyKey, and a store an id of
// the option ID. The default is 24 hours. More than 0. In memory, ids are bounded by their number only.
func WithIdempotencyWindow(d time.Duration) Option {
	return option(func(c *config) {
		c.refuseIf(d <= 0, "WithIdempotencyWindow", d, "must be more than 0")
		c.idempotency = d
	})
}

// WithStandby makes Start wait while another process has the lease of the store. That process dispatches events, and
// this bus is a standby. A standby publishes, schedules, cancels, pauses and answers questions. The bus with the lease
// dispatches the events of a standby. When that bus shuts down, or its process ends, a standby acquires the lease, and
// its Start returns.
//
// The bus with the lease also hands it over to a standby that started later and has all of its subscriptions and more.
// So the newest version of the program routes. It does this once for each standby, and becomes a standby itself.
//
// A bus that loses its lease becomes a standby too, and cancels its running calls with the cause ErrLeaseLost. The
// documentation of the store describes how a lease can be lost.
func WithStandby() Option {
	return option(func(c *config) { c.standby = true })
}

// checkStandby refuses a standby that could not be one.
func (c *config) checkStandby() error {
	switch exclusive, ok := c.store.(driver.Exclusive); {
	case !c.standby:
	case c.store == nil:
		return &OptionError{Option: "WithStandby", Reason: "needs WithStore: a bus in memory is alone"}
	case c.tool:
		return &OptionError{Option: "WithStandby", Reason: "cannot be combined with WithoutHandlers: such a bus never dispatches; leave one out"}
	case ok && exclusive.IsExclusive():
		return &OptionError{Option: "WithStandby", Reason: "cannot be used with a store that has its data alone, as with sqlite.WithExclusive: open it without"}
	}
	return nil
}

// WithoutHandlers makes a bus for a tool, such as a command or an admin page. The bus that runs the handlers may run in
// another process, or not run. The option needs a store. Use its Publish, DLQ, Event, Dispatches, Audit, Catalog and
// Cancel, and the directives of Subscription. Subscribe and Start return ErrNoHandlers. Shutdown closes the store.
//
// The tool does not know the subscriptions. A replay opens a dispatch for the names in the letter. A delivery to a name
// that the bus with the handlers does not have waits there, and the replay returns no ErrNoSubscription. Subscription
// returns a handle for any name. The bus with the lease carries out its directives, such as Pause, and Cancel, within
// 250 ms. If no process has the lease, the tool holds it for the duration of the call. Events that the tool publishes
// are routed by the bus with the lease.
func WithoutHandlers() Option {
	return option(func(c *config) { c.tool = true })
}

// checkTool refuses a tool without a store.
func (c *config) checkTool() error {
	switch {
	case c.tool && c.store == nil:
		return &OptionError{Option: "WithoutHandlers", Reason: "needs WithStore: a bus in memory has nothing but what its handlers do"}
	case c.tool && c.retention != 0:
		return &OptionError{Option: "WithLetterRetention", Value: c.retention.String(), Reason: "has no effect WithoutHandlers: give it to the bus that runs the handlers"}
	}
	return nil
}

// storesInUse has the stores of all buses of the process that have not been shut down. Two buses on
// one store would both change the records of its lease.
var storesInUse sync.Map // Store to nil

// useStore registers the bus's store. It returns an *OptionError if another bus uses it.
func (j *durable) useStore() error {
	if !reflect.ValueOf(j.config.store).Comparable() {
		return nil // it has no identity
	}
	if _, used := storesInUse.LoadOrStore(j.config.store, nil); used {
		return &OptionError{
			Option: "WithStore", Value: fmt.Sprintf("%T", j.config.store),
			Reason: "another bus uses this store; open a store for each bus",
		}
	}
	return nil
}

func (j *durable) releaseStore() {
	if reflect.ValueOf(j.config.store).Comparable() {
		storesInUse.Delete(j.config.store)
	}
}

// guardedStore is the store of a bus. It turns the panics of its methods into errors, and knows which
// calls have not returned. It does not guard Submit and Watch. It counts what Submit has outstanding.
type guardedStore struct {
	of     driver.Store
	log    *zap.Logger
	room   *room.Room
	failed func(error)       // handles every error of a batch
	lost   func(epoch int64) // is called when the lease is lost
	epoch  atomic.Int64      // of the lease; 0 without one
	aged   func() time.Time  // see Batch.AgedAt
	time   *timeline.Timeline
	calls  recent.Calls
	blocks *blocked.Signal
	gaveUp <-chan struct{} // closed when Shutdown gives up on the store

	patience time.Duration // of the store
}

func newGuardedStore(b *Bus) *guardedStore {
	s := &guardedStore{of: b.config.store, log: b.log, failed: b.durable.storeFailed, lost: b.durable.leaseLost, aged: b.time.Aged, time: b.time, gaveUp: b.gaveUp}
	s.blocks = blocked.NewSignal()
	s.patience, _ = guard(s, "Patience", func() (time.Duration, error) { return s.of.Patience(), nil })
	config := room.Config{
		Most:      b.config.unconfirmed,
		Patience:  s.patience,
		Nanos:     b.time.Nanos,
		AfterFunc: func(d time.Duration, f func()) room.Timer { return b.time.AfterFunc(d, f) },
	}
	if by, ok := s.of.(driver.Blocked); ok {
		config.Silent = func() { s.lookWhyBlocked(by) }
	}
	s.room = room.New(config)
	return s
}

// lookWhyBlocked is called when the store has confirmed nothing for Patience.
func (s *guardedStore) lookWhyBlocked(by driver.Blocked) {
	why := by.Blocked()
	if why != nil && s.blocks.Begin(why) {
		s.log.Warn("commits of the store wait for a lock of another program", zap.Error(why))
	}
}

// submit submits a batch, with the room of its publication, if it waited for that. The answer gives the room back
// before done runs, which may wait for observers.
func (s *guardedStore) submit(w *batch, pass room.Pass, done func(error)) {
	size := w.size()
	w.AgedAt = s.aged()
	if w.Epoch == 0 && w.NeedsLease() {
		w.Epoch = s.epoch.Load()
	}
	submitted := &w.Batch
	if w.err != nil { // its refusal comes in order, as that of a store
		submitted = &driver.Batch{Now: w.Now, AgedAt: w.AgedAt}
	}
	s.room.Submitted(size, pass)
	s.of.Submit(submitted, func(err error) {
		if err == nil && w.err != nil {
			err = &driver.RefusedError{Err: w.err}
		}
		if errors.Is(err, ErrLeaseLost) {
			s.lost(w.Epoch) // before done: it leaves what it could not record in incoming
		} else if err != nil {
			s.failed(err) // before Answered: the publishers that it wakes are refused
		}
		s.room.Answered(size, pass)
		if s.blocks.End() {
			s.log.Info("commits of the store go on")
		}
		done(err)
	})
}

// commit submits a batch that changes no dispatch, and waits for it. If ctx ends before, or Shutdown
// gives up on the store, the outcome is unknown.
func (s *guardedStore) commit(ctx context.Context, w *batch) error {
	return s.commitOr(ctx, w, func() {})
}

// commitOr is commit, and calls late if the store applies the batch after the outcome was unknown.
func (s *guardedStore) commitOr(ctx context.Context, w *batch, late func()) (err error) {
	committed, block := make(chan error, 1), s.blocks.Block()
	var over atomic.Bool // the answer has come, or the wait has ended: the first decides
	s.submit(w, room.Pass{}, func(err error) {
		committed <- err
		if over.Swap(true) && err == nil {
			late()
		}
	})
	select {
	case err := <-committed:
		return err
	case <-block.Begun:
		err = &IndeterminateError{Err: block.Why}
	case <-ctx.Done():
		err = contextError(ctx)
	case <-s.gaveUp:
		err = fmt.Errorf("the outcome is unknown: %w", ErrShutdown)
	}
	if over.Swap(true) { // it has come meanwhile
		return <-committed
	}
	return err
}

// size returns what a batch counts for WithMaxUnconfirmed.
func (w *batch) size() room.Size {
	changed := len(w.New) + len(w.Leave) + len(w.Update) + len(w.Delete) + len(w.Bury)
	size := room.Size{Records: int64(max(changed, len(w.Remember), 1))}
	for _, r := range w.New {
		size.Bytes += int64(len(r.Payload))
	}
	for _, in := range w.Leave {
		size.Bytes += int64(len(in.Record.Payload))
	}
	for _, l := range w.Bury {
		size.Bytes += int64(len(l.Payload) + len(l.Original))
	}
	return size
}

// guard calls a method of the store.
func guard[T any](s *guardedStore, method string, call func() (T, error)) (result T, err error) {
	end := s.calls.Begin(method)
	defer func() {
		end()
		if p := recover(); p != nil {
			err = fmt.Errorf("eventbus: store panicked in %s: %s", method, panicText(p))
			s.log.Error("store panicked", zap.String("method", method), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return call()
}

// Claim also notes the loss of the lease that the store had before the call. Another goroutine may acquire one meanwhile.
func (s *guardedStore) Claim(ctx context.Context, q driver.ClaimQuery) (driver.Claimed, error) {
	epoch := s.epoch.Load()
	claimed, err := guard(s, "Claim", func() (driver.Claimed, error) { return s.of.Claim(ctx, q) })
	if errors.Is(err, ErrNoLease) {
		s.lost(epoch)
	}
	return claimed, err
}

func (s *guardedStore) Letter(ctx context.Context, id driver.ID) (driver.Letter, error) {
	return guard(s, "Letter", func() (driver.Letter, error) { return s.of.Letter(ctx, id) })
}

func (s *guardedStore) Letters(ctx context.Context, q driver.LetterQuery) (driver.LetterPage, error) {
	return guard(s, "Letters", func() (driver.LetterPage, error) { return s.of.Letters(ctx, q) })
}

func (s *guardedStore) Groups(ctx context.Context, q driver.LetterQuery, each func(*driver.Group) error) error {
	_, err := guard(s, "Groups", func() (struct{}, error) { return struct{}{}, s.of.Groups(ctx, q, each) })
	return err
}

func (s *guardedStore) Directives(ctx context.Context) ([]driver.Directive, error) {
	return guard(s, "Directives", func() ([]driver.Directive, error) { return s.of.Directives(ctx) })
}

func (s *guardedStore) Lookup(ctx context.Context, id driver.ID) ([]*driver.Record, error) {
	return guard(s, "Lookup", func() ([]*driver.Record, error) { return s.of.Lookup(ctx, id) })
}

func (s *guardedStore) Stats(ctx context.Context) (driver.Stats, error) {
	return guard(s, "Stats", func() (driver.Stats, error) { return s.of.Stats(ctx) })
}

func (s *guardedStore) Parked(ctx context.Context, except map[string]bool) (map[string]int64, error) {
	return guard(s, "Parked", func() (map[string]int64, error) { return s.of.Parked(ctx, except) })
}

func (s *guardedStore) Audit(ctx context.Context, q driver.AuditQuery) (driver.AuditPage, error) {
	return guard(s, "Audit", func() (driver.AuditPage, error) { return s.of.Audit(ctx, q) })
}

func (s *guardedStore) Outcomes(ctx context.Context, event driver.ID) ([]driver.Outcome, error) {
	return guard(s, "Outcomes", func() ([]driver.Outcome, error) { return s.of.Outcomes(ctx, event) })
}

func (s *guardedStore) Catalogs(ctx context.Context) ([]driver.Catalog, error) {
	return guard(s, "Catalogs", func() ([]driver.Catalog, error) { return s.of.Catalogs(ctx) })
}

func (s *guardedStore) Incoming(ctx context.Context, q driver.IncomingQuery) (driver.IncomingPage, error) {
	return guard(s, "Incoming", func() (driver.IncomingPage, error) { return s.of.Incoming(ctx, q) })
}

func (s *guardedStore) Requests(ctx context.Context, q driver.RequestQuery) ([]driver.Request, error) {
	return guard(s, "Requests", func() ([]driver.Request, error) { return s.of.Requests(ctx, q) })
}

func (s *guardedStore) Answer(ctx context.Context, id driver.RequestID) (body []byte, answered bool, err error) {
	_, err = guard(s, "Answer", func() (_ struct{}, err error) {
		body, answered, err = s.of.Answer(ctx, id)
		return struct{}{}, err
	})
	return body, answered, err
}

// busyPause is how long the bus waits before it calls a store again that has waited for the lock of another program.
const busyPause = 50 * time.Millisecond

// waitOut calls a method again while another program holds the lock of the store, until ctx ends.
func (s *guardedStore) waitOut(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !errors.Is(err, driver.ErrBusy) || !s.time.Sleep(ctx, busyPause) {
			return err
		}
	}
}

// Acquire acquires the lease, under which the batches are submitted from then on. With Wait, it also waits for the lock of
// another program.
func (s *guardedStore) Acquire(ctx context.Context, q driver.AcquireQuery) (lease driver.Lease, err error) {
	acquire := func() (err error) {
		lease, err = guard(s, "Acquire", func() (driver.Lease, error) { return s.of.Acquire(ctx, q) })
		return err
	}
	if q.Wait {
		err = s.waitOut(ctx, acquire)
	} else {
		err = acquire()
	}
	if err == nil {
		s.epoch.Store(lease.Epoch)
	}
	return lease, err
}

// Release ends the lease, and waits for the lock of another program. Publications are left in incoming from its beginning.
func (s *guardedStore) Release(ctx context.Context) error {
	s.epoch.Store(0)
	err := s.waitOut(ctx, func() error {
		_, err := guard(s, "Release", func() (struct{}, error) { return struct{}{}, s.of.Release(ctx, driver.AllSlots()) })
		return err
	})
	if err != nil {
		s.epoch.Store(s.of.Lease().Epoch)
	}
	return err
}

func (s *guardedStore) Now(ctx context.Context) (time.Time, error) {
	return guard(s, "Now", func() (time.Time, error) { return s.of.Now(ctx) })
}

func (s *guardedStore) lease() driver.Lease { return s.of.Lease() }

// leads reports whether the store has the lease, as far as the bus knows.
func (s *guardedStore) leads() bool { return s.epoch.Load() != 0 }

func (s *guardedStore) Records(ctx context.Context, q driver.RecordQuery) (driver.RecordPage, error) {
	return guard(s, "Records", func() (driver.RecordPage, error) { return s.of.Records(ctx, q) })
}

func (s *guardedStore) Remembered(ctx context.Context, scope, key string) (entry driver.Dedupe, known bool, err error) {
	_, err = guard(s, "Remembered", func() (_ struct{}, err error) {
		entry, known, err = s.of.Remembered(ctx, scope, key)
		return struct{}{}, err
	})
	return entry, known, err
}

// Erase does nothing if the store is no Eraser.
func (s *guardedStore) Erase(ctx context.Context) error {
	_, err := guard(s, "Erase", func() (none struct{}, err error) {
		if e, ok := s.of.(driver.Eraser); ok {
			err = e.Erase(ctx)
		}
		return none, err
	})
	return err
}

// Watch is not guarded.
func (s *guardedStore) Watch(changed func(driver.Change)) (stop func()) { return s.of.Watch(changed) }

func (s *guardedStore) Reopen(ctx context.Context) error {
	_, err := guard(s, "Reopen", func() (struct{}, error) { return struct{}{}, s.of.Reopen(ctx) })
	if err == nil {
		s.epoch.Store(s.of.Lease().Epoch)
	}
	return err
}

func (s *guardedStore) Close(ctx context.Context) error {
	_, err := guard(s, "Close", func() (struct{}, error) { return struct{}{}, s.of.Close(ctx) })
	return err
}

// newPatience is how long New waits for the store.
const newPatience = 10 * time.Second
