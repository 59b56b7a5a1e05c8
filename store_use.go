package eventbus

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/surebus/eventbus/internal/room"
)

// storesInUse has the stores of all buses of the process that have not been shut down. Two buses on
// one store would both change the records of its lease.
var storesInUse sync.Map // Store to nil

// useStore registers the bus's store. It returns an *OptionError if another bus uses it.
func (b *Bus) useStore() error {
	if !reflect.ValueOf(b.config.store).Comparable() {
		return nil // it has no identity
	}
	if _, used := storesInUse.LoadOrStore(b.config.store, nil); used {
		return &OptionError{
			Option: "WithStore", Value: fmt.Sprintf("%T", b.config.store),
			Reason: "another bus uses this store; open a store for each bus",
		}
	}
	return nil
}

func (b *Bus) releaseStore() {
	if reflect.ValueOf(b.config.store).Comparable() {
		storesInUse.Delete(b.config.store)
	}
}

// guardedStore is the store of a bus. It turns the panics of its methods into errors, and knows which
// calls have not returned. It does not guard Submit and Watch. It counts what Submit has outstanding.
type guardedStore struct {
	Store
	log    *zap.Logger
	room   *room.Room
	failed func(error) // handles every error of a batch

	mu    sync.Mutex     // guards the following; a leaf
	calls map[string]int // in progress, by method
}

func newGuardedStore(b *Bus) *guardedStore {
	s := &guardedStore{Store: b.config.store, log: b.log, calls: make(map[string]int), failed: b.storeFailed}
	patience, _ := guard(s, "Patience", func() (time.Duration, error) { return s.Store.Patience(), nil })
	s.room = room.New(room.Config{
		Most:      b.config.unconfirmed,
		Patience:  patience,
		Nanos:     b.time.Nanos,
		AfterFunc: func(d time.Duration, f func()) room.Timer { return b.time.AfterFunc(d, f) },
	})
	return s
}

// Submit submits a batch that waits for no room.
func (s *guardedStore) Submit(batch *Batch, done func(error)) { s.submit(batch, room.Pass{}, done) }

// submit submits a batch, with the room of its publication. The answer gives the room back before done
// runs, which may wait for observers.
func (s *guardedStore) submit(batch *Batch, pass room.Pass, done func(error)) {
	size := batch.size()
	s.room.Submitted(size, pass)
	s.Store.Submit(batch, func(err error) {
		if err != nil {
			s.failed(err) // before Answered: the publishers that it wakes are refused
		}
		s.room.Answered(size, pass)
		done(err)
	})
}

// size returns what a batch counts for WithMaxUnconfirmed.
func (b *Batch) size() room.Size {
	changed := len(b.New) + len(b.Update) + len(b.Delete) + len(b.Bury)
	size := room.Size{Records: int64(max(changed, len(b.Remember), 1))}
	for _, r := range b.New {
		size.Bytes += int64(len(r.Payload))
	}
	for _, l := range b.Bury {
		size.Bytes += int64(len(payloadBytes(l.Event.Payload)) + len(payloadBytes(l.Original)))
	}
	return size
}

// guard calls a method of the store.
func guard[T any](s *guardedStore, method string, call func() (T, error)) (result T, err error) {
	s.count(method, 1)
	defer func() {
		s.count(method, -1)
		if p := recover(); p != nil {
			err = fmt.Errorf("eventbus: store panicked in %s: %s", method, panicText(p))
			s.log.Error("store panicked", zap.String("method", method), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return call()
}

func (s *guardedStore) count(method string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[method] += n; s.calls[method] == 0 {
		delete(s.calls, method)
	}
}

// inProgress returns the methods that have not returned, sorted.
func (s *guardedStore) inProgress() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.calls))
}

func (s *guardedStore) Claim(ctx context.Context, q ClaimQuery) (Claimed, error) {
	return guard(s, "Claim", func() (Claimed, error) { return s.Store.Claim(ctx, q) })
}

func (s *guardedStore) Letter(ctx context.Context, id LetterID) (DeadLetter, error) {
	return guard(s, "Letter", func() (DeadLetter, error) { return s.Store.Letter(ctx, id) })
}

func (s *guardedStore) Letters(ctx context.Context, q LetterQuery) (LetterPage, error) {
	return guard(s, "Letters", func() (LetterPage, error) { return s.Store.Letters(ctx, q) })
}

func (s *guardedStore) Groups(ctx context.Context, q LetterQuery) ([]LetterGroup, error) {
	return guard(s, "Groups", func() ([]LetterGroup, error) { return s.Store.Groups(ctx, q) })
}

func (s *guardedStore) Orders(ctx context.Context) ([]Order, error) {
	return guard(s, "Orders", func() ([]Order, error) { return s.Store.Orders(ctx) })
}

func (s *guardedStore) Lookup(ctx context.Context, id EventID) ([]*Record, error) {
	return guard(s, "Lookup", func() ([]*Record, error) { return s.Store.Lookup(ctx, id) })
}

func (s *guardedStore) Stats(ctx context.Context) (StoreStats, error) {
	return guard(s, "Stats", func() (StoreStats, error) { return s.Store.Stats(ctx) })
}

func (s *guardedStore) Parked(ctx context.Context, except map[string]bool) (map[string]int64, error) {
	return guard(s, "Parked", func() (map[string]int64, error) { return s.Store.Parked(ctx, except) })
}

func (s *guardedStore) Audit(ctx context.Context, q AuditQuery) (AuditPage, error) {
	return guard(s, "Audit", func() (AuditPage, error) { return s.Store.Audit(ctx, q) })
}

func (s *guardedStore) Catalog(ctx context.Context) (*Catalog, error) {
	return guard(s, "Catalog", func() (*Catalog, error) { return s.Store.Catalog(ctx) })
}

func (s *guardedStore) Records(ctx context.Context, q RecordQuery) (RecordPage, error) {
	return guard(s, "Records", func() (RecordPage, error) { return s.Store.Records(ctx, q) })
}

func (s *guardedStore) Remembered(ctx context.Context, scope, key string) (entry Dedupe, known bool, err error) {
	_, err = guard(s, "Remembered", func() (_ struct{}, err error) {
		entry, known, err = s.Store.Remembered(ctx, scope, key)
		return struct{}{}, err
	})
	return entry, known, err
}

// Erase does nothing if the store is no Eraser.
func (s *guardedStore) Erase(ctx context.Context) error {
	_, err := guard(s, "Erase", func() (none struct{}, err error) {
		if e, ok := s.Store.(Eraser); ok {
			err = e.Erase(ctx)
		}
		return none, err
	})
	return err
}

func (s *guardedStore) Reopen(ctx context.Context) error {
	_, err := guard(s, "Reopen", func() (struct{}, error) { return struct{}{}, s.Store.Reopen(ctx) })
	return err
}

func (s *guardedStore) Close(ctx context.Context) error {
	_, err := guard(s, "Close", func() (struct{}, error) { return struct{}{}, s.Store.Close(ctx) })
	return err
}

// newPatience is how long New waits for the store.
const newPatience = 10 * time.Second
