package contracttest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

func TestT1_AnEventExistsIfTheTransactionCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))

		tx := disk.Begin()
		id, err := bus.PublishTx(t.Context(), tx, "a", "committed")
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.Empty(t, disk.took())
		_, err = bus.Event(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrUnknownEvent)
		require.NoError(t, tx.Commit())
		require.Equal(t, []string{"mail committed 1"}, disk.took())

		other := disk.Begin()
		_, err = bus.PublishTx(t.Context(), other, "a", "rolled back")
		require.NoError(t, err)
		require.NoError(t, other.Rollback())
		time.Sleep(time.Hour)
		require.Empty(t, disk.took())
		requireBalanced(t, bus)
		require.EqualValues(t, 1, bus.Metrics().Ledger.Accepted, "a rolled back event is not counted")
		shutdown(t, bus)
	})
}

// Before Start, on a standby and on a tool, PublishTx works as well.
func TestT1_WithoutTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		early, _ := disk.open(t)
		disk.handles(t, early, "mail", nil)
		tool := disk.tool(t)
		for _, bus := range []*eventbus.Bus{early, tool} {
			tx := disk.Begin()
			_, err := bus.PublishTx(t.Context(), tx, "a", "x")
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
		}
		require.EqualValues(t, 2, early.Metrics().Store.Incoming)
		require.NoError(t, early.Start(t.Context()))
		require.Equal(t, []string{"mail x 1", "mail x 1"}, disk.took())
		shutdown(t, tool)
		shutdown(t, early)
	})
}

func TestT1_BadTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, other := newDisk(), newDisk()
		bus, _ := disk.open(t)
		memory, _ := newBus(t)
		ended := disk.Begin()
		require.NoError(t, ended.Commit())
		known := eventbus.NewEventID()
		mustPublish(t, bus, "a", "x", eventbus.ID(known))
		for name, c := range map[string]struct {
			bus *eventbus.Bus
			tx  any
			is  error
		}{
			"nil":              {bus, nil, eventbus.ErrNoTransaction},
			"another type":     {bus, &sql.Tx{}, eventbus.ErrNoTransaction},
			"another database": {bus, other.Begin(), eventbus.ErrNoTransaction},
			"ended":            {bus, ended, sql.ErrTxDone},
			"in memory":        {memory, disk.Begin(), eventbus.ErrNoTransaction},
		} {
			for _, opts := range [][]eventbus.PublishOption{nil, {eventbus.ID(known)}} {
				id, err := c.bus.PublishTx(t.Context(), c.tx, "a", "x", opts...)
				require.ErrorIs(t, err, c.is, name)
				require.Zero(t, id, name)
				require.True(t, strings.HasPrefix(err.Error(), `PublishTx("a"): `), "%s: %v", name, err)
			}
		}
		require.Len(t, disk.Dump().Incoming, 1, "the known event")
		shutdown(t, memory)
		shutdown(t, bus)
	})
}

// What Publish refuses, PublishTx refuses before it inserts anything.
func TestT1_BadEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithPayloadLimit(100))
		tx := disk.Begin()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, publish := range map[string]func() error{
			"type":    func() error { _, err := bus.PublishTx(t.Context(), tx, "a b", "x"); return err },
			"payload": func() error { _, err := bus.PublishTx(t.Context(), tx, "a", strings.Repeat("x", 100)); return err },
			"option":  func() error { _, err := bus.PublishTx(t.Context(), tx, "a", "x", nil); return err },
			"context": func() error { _, err := bus.PublishTx(ended, tx, "a", "x"); return err },
		} {
			require.Error(t, publish(), name)
		}
		require.NoError(t, tx.Commit())
		require.Empty(t, disk.Dump().Incoming)
		shutdown(t, bus)
		_, err := bus.PublishTx(t.Context(), disk.Begin(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrShutdown)
	})
}

// A Publish of a key comes behind what this process has committed under that key before, also when the bus has not
// noticed the commit.
func TestT2_PublishFollowsTheTransactionsOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := disk.Open()
		bus, _ := newBus(t, eventbus.WithStore(deafTxStore{deafStore{store}, store.(driver.TxStore)}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		tx := disk.Begin()
		for i := range 3 {
			_, err := bus.PublishTx(t.Context(), tx, "a", fmt.Sprint("tx ", i), eventbus.Key("k"))
			require.NoError(t, err)
		}
		open := disk.Begin()
		_, err := bus.PublishTx(t.Context(), open, "a", "open", eventbus.Key("k"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		mustPublish(t, bus, "a", "plain", eventbus.Key("k"))
		require.Equal(t, []string{"mail tx 0 1", "mail tx 1 1", "mail tx 2 1", "mail plain 1"}, disk.took())
		require.NoError(t, open.Commit())
		mustPublish(t, bus, "a", "last", eventbus.Key("k"))
		require.Equal(t, []string{"mail open 1", "mail last 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

// deafTxStore is a deafStore that takes transactions.
type deafTxStore struct {
	deafStore
	driver.TxStore
}

// MaxElapsed counts from when the event was taken in.
func TestT2_MaxElapsedCountsFromTheTakeIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithRetry(eventbus.MaxRetries(3), eventbus.BaseDelay(time.Second), eventbus.MaxElapsed(time.Minute), eventbus.NoJitter))
		disk.handles(t, bus, "mail", func(_ string, attempt int) error {
			if attempt < 3 {
				return errBoom
			}
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "x")
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.NoError(t, tx.Commit())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1", "mail x 2", "mail x 3"}, disk.took())
		shutdown(t, bus)
	})
}

func TestT3_AKnownIDIsFoundAtTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		mustPublish(t, bus, "a", "x", eventbus.ID(id))
		require.Equal(t, []string{"mail x 1"}, disk.took())

		tx := disk.Begin()
		again, err := bus.PublishTx(t.Context(), tx, "a", "x", eventbus.ID(id))
		require.NoError(t, err)
		require.Equal(t, id, again)
		_, err = bus.PublishTx(t.Context(), tx, "a", "other", eventbus.ID(id))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		require.NoError(t, tx.Commit())
		require.Empty(t, disk.took())
		require.Empty(t, disk.Dump().Incoming)
		shutdown(t, bus)
	})
}

// Of two open transactions with one id, the first to be taken in wins. The other one is dropped as a repetition.
func TestT3_ARepetitionIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		transactions := []*storetest.Tx{disk.Begin(), disk.Begin(), disk.Begin()}
		for _, tx := range transactions {
			for range 2 {
				_, err := bus.PublishTx(t.Context(), tx, "a", "x", eventbus.ID(id), eventbus.Key("k"))
				require.NoError(t, err)
			}
		}
		for _, tx := range transactions {
			require.NoError(t, tx.Commit())
			time.Sleep(time.Second)
		}
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.EqualValues(t, 5, bus.Metrics().Repetitions)
		require.Empty(t, disk.Dump().Incoming)
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}

func TestT3_ADuplicateBecomesALetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		first, second := disk.Begin(), disk.Begin()
		_, err := bus.PublishTx(t.Context(), first, "a", "first", eventbus.ID(id))
		require.NoError(t, err)
		_, err = bus.PublishTx(t.Context(), second, "a", "second", eventbus.ID(id))
		require.NoError(t, err)
		require.NoError(t, first.Commit())
		require.NoError(t, second.Commit())
		require.Equal(t, []string{"mail first 1"}, disk.took())
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonDuplicate, l.Reason)
		require.Equal(t, "mail", l.Subscription)
		require.JSONEq(t, `"second"`, string(l.Event.Payload.(json.RawMessage)))
		require.Contains(t, l.Failures[0].Error, "duplicate event id")
		requireBalanced(t, bus)
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		require.Equal(t, []string{"mail second 1"}, disk.took())
		shutdown(t, bus)
	})
}

// The id of a transaction is remembered when its event is taken in, for the whole window.
func TestT3_TheWindowBeginsWithTheTakeIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithIdempotencyWindow(time.Hour))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "x", eventbus.ID(id))
		require.NoError(t, err)
		time.Sleep(2 * time.Hour)
		require.NoError(t, tx.Commit())
		require.Equal(t, []string{"mail x 1"}, disk.took())
		time.Sleep(59 * time.Minute)
		mustPublish(t, bus, "a", "x", eventbus.ID(id))
		require.Empty(t, disk.took())
		shutdown(t, bus)
	})
}

// An event that another process has published does not fit this one.
func TestT4_WhatDoesNotFitBecomesALetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		publisher, _ := disk.open(t)
		disk.handles(t, publisher, "mail", nil)
		bus, _ := disk.open(t, eventbus.WithPayloadLimit(100))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, publisher, "a", strings.Repeat("x", 200))
		mustPublish(t, publisher, "a", "fits")
		require.Equal(t, []string{"mail fits 1"}, disk.took())
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonInvalid, l.Reason)
		require.Contains(t, l.Failures[0].Error, "100")
		requireBalanced(t, bus)
		shutdown(t, publisher)
		shutdown(t, bus)
	})
}

func TestT4_AnotherCodecDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		publisher, _ := disk.open(t, eventbus.WithCodec(wrapped{}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, publisher, "a", "x")
		require.Empty(t, disk.took())
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonInvalid, l.Reason)
		require.Contains(t, l.Failures[0].Error, "codec")
		shutdown(t, publisher)
		shutdown(t, bus)
	})
}

// leaves commits an incoming event as the program of another version might.
func (d *disk) leaves(t *testing.T, of *driver.Record) {
	t.Helper()
	id := eventbus.NewEventID()
	of.ID, of.State, of.Payload, of.Published = driver.ID(id), driver.Ready, []byte(`"x"`), time.Now().UTC()
	store, done := d.Open(), make(chan error, 1)
	store.Submit(&driver.Batch{Now: time.Now().UTC(), Leave: []*driver.Incoming{{Record: of, Codec: "json"}}}, func(err error) { done <- err })
	require.NoError(t, <-done)
	require.NoError(t, store.Close(t.Context()))
}

// A type that this version refuses, and metadata that it cannot decode.
func TestT4_ABadRowBecomesALetter(t *testing.T) {
	for name, c := range map[string]struct {
		of  driver.Record
		why string
	}{
		"type":     {driver.Record{Type: "a b", Targets: []string{"mail"}}, "type"},
		"no type":  {driver.Record{Targets: []string{"mail"}}, "type"},
		"metadata": {driver.Record{Type: "a", Metadata: []byte("{")}, "decoded"},
		"replay":   {driver.Record{Type: "a", Replay: []byte("?"), Targets: []string{"mail"}}, "decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.lead(t, "mail")
				disk.leaves(t, &c.of)
				require.Empty(t, disk.took())
				l := oneLetter(t, bus)
				require.Equal(t, eventbus.ReasonInvalid, l.Reason)
				require.Equal(t, "mail", l.Subscription)
				require.Contains(t, l.Failures[0].Error, c.why)
				require.JSONEq(t, `"x"`, string(l.Event.Payload.(json.RawMessage)))
				mustPublish(t, bus, "a", "next")
				require.Equal(t, []string{"mail next 1"}, disk.took())
				requireBalanced(t, bus)
				shutdown(t, bus)
				require.Empty(t, disk.Dump().Incoming)
			})
		})
	}
}

// Without a subscription there is no dead letter: the event is unrouted, as any other one, and the log says why it was refused.
func TestT4_ABadRowWithoutSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var unrouted []eventbus.Event
		bus, logs := disk.open(t, eventbus.WithObserver(eventbus.Observer{Unrouted: func(e eventbus.Event) { unrouted = append(unrouted, e) }}))
		require.NoError(t, bus.Start(t.Context()))
		disk.leaves(t, &driver.Record{Type: "a b"})
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		require.EqualValues(t, 1, bus.Metrics().Ledger.Unrouted)
		require.Len(t, unrouted, 1)
		all := logs.FilterMessageSnippet("event refused").All()
		require.Len(t, all, 1)
		require.Equal(t, "invalid", all[0].ContextMap()["reason"])
		requireBalanced(t, bus)
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Incoming)
	})
}

// blockedStore says that its commits wait for a foreign lock.
type blockedStore struct {
	driver.Store
	why   error
	holds func(tx any) bool
}

func (s *blockedStore) Blocked() error { return s.why }

func (s *blockedStore) SubmitTx(ctx context.Context, tx any, in []*driver.Incoming) error {
	return s.Store.(driver.TxStore).SubmitTx(ctx, tx, in)
}

func (s *blockedStore) HoldsLock(tx any) bool { return s.holds(tx) }

var errForeignLock = errors.New("another program holds the lock")

// A publication, a directive and a wait that a foreign lock delays end when the store has waited for its patience. The
// store goes on, and nothing is lost.
func TestT5_AForeignLockEndsTheWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		disk := newDisk(storetest.WithPatience(time.Second), storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			f.Delay = time.Duration(delay.Load())
			return f
		}))
		store := &blockedStore{Store: disk.Open(), why: errForeignLock}
		bus, logs := newBus(t, eventbus.WithStore(store))
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		delay.Store(int64(5 * time.Second))
		began := time.Now()
		results := make(chan error, 2)
		go func() { _, err := bus.Publish(t.Context(), "a", "x"); results <- err }()
		go func() { results <- mail.Pause() }()
		for range 2 {
			err := <-results
			var unknown *eventbus.IndeterminateError
			require.ErrorAs(t, err, &unknown)
			require.ErrorIs(t, err, errForeignLock)
			require.NotErrorIs(t, err, eventbus.ErrStoreFailed)
		}
		require.Equal(t, time.Second, time.Since(began))
		synctest.Wait()
		require.Equal(t, 1, logs.FilterMessage("commits of the store wait for a lock of another program").Len())
		delay.Store(0)
		time.Sleep(time.Minute)
		require.Equal(t, 1, logs.FilterMessage("commits of the store go on").Len())
		require.Zero(t, logs.FilterMessage("store failed: the bus restarts").Len())
		require.NoError(t, mail.Resume())
		require.Equal(t, []string{"mail x 1"}, disk.took())
		shutdown(t, bus)
	})
}

// A slow store that waits for no lock ends no wait.
func TestT5_ASlowStoreEndsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		disk := newDisk(storetest.WithPatience(time.Second), storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			f.Delay = time.Duration(delay.Load())
			return f
		}))
		bus, _ := newBus(t, eventbus.WithStore(&blockedStore{Store: disk.Open()}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		delay.Store(int64(5 * time.Second))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		delay.Store(0)
		shutdown(t, bus)
	})
}

// A publication in the meantime by the caller who has the transaction open would wait for itself.
func TestT5_APublicationWouldWaitForItsOwnTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		open := map[any]bool{}
		store := &blockedStore{Store: disk.Open(), holds: func(tx any) bool { return open[tx] }}
		bus, _ := newBus(t, eventbus.WithStore(store))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		request, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx := disk.Begin()
		open[tx] = true
		_, err := bus.PublishTx(request, tx, "a", "tx")
		require.NoError(t, err)
		_, err = bus.Publish(request, "a", "plain")
		require.ErrorIs(t, err, eventbus.ErrWouldDeadlock)
		_, err = bus.PublishBatch(request, []eventbus.Publication{{Type: "a", Payload: "plain"}})
		require.ErrorIs(t, err, eventbus.ErrWouldDeadlock)
		_, err = bus.PublishAndWait(request, "a", "plain")
		require.ErrorIs(t, err, eventbus.ErrWouldDeadlock)
		mustPublish(t, bus, "a", "of another caller")
		require.Equal(t, []string{"mail of another caller 1"}, disk.took())
		open[tx] = false
		require.NoError(t, tx.Commit())
		_, err = bus.Publish(request, "a", "after")
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"mail tx 1", "mail after 1"}, disk.took())
		shutdown(t, bus)
	})
}

// In a handler, its call is the caller, whatever the context.
func TestT5_AHandlerWouldWaitForItsOwnTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		open := map[any]bool{}
		store := &blockedStore{Store: disk.Open(), holds: func(tx any) bool { return open[tx] }}
		bus, _ := newBus(t, eventbus.WithStore(store))
		disk.handles(t, bus, "mail", nil)
		mustSubscribe(t, bus, "start", func(ctx context.Context, _ eventbus.Event) error {
			tx := disk.Begin()
			open[tx] = true
			_, err := bus.PublishTx(ctx, tx, "a", "tx")
			require.NoError(t, err)
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			_, err = bus.Publish(derived, "a", "plain")
			require.ErrorIs(t, err, eventbus.ErrWouldDeadlock)
			open[tx] = false
			return tx.Commit()
		}, eventbus.Named("starts"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "start", "x")
		synctest.Wait()
		require.ElementsMatch(t, []string{"mail x 1", "mail tx 1"}, disk.took())
		shutdown(t, bus)
	})
}

// lateClaims is a store whose second claim of ready records, once it is slow, returns late.
type lateClaims struct {
	driver.Store
	slow  atomic.Bool
	ready atomic.Int32
}

func (s *lateClaims) Claim(ctx context.Context, q driver.ClaimQuery) (driver.Claimed, error) {
	claimed, err := s.Store.Claim(ctx, q)
	if s.slow.Load() && q.Kind == driver.ClaimReady && s.ready.Add(1) == 2 {
		time.Sleep(time.Second)
	}
	return claimed, err
}

// A publisher takes in the events of its key while the bus claims the last records that only the store has.
func TestT2_ATakeInWhileTheBusCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		late := &lateClaims{Store: disk.Open()}
		bus, _ := newBus(t, eventbus.WithStore(deafTxStore{deafStore{late}, late.Store.(driver.TxStore)}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		late.slow.Store(true)
		mustSubscribe(t, bus, "other", ok, eventbus.Named("late"))
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 2, late.ready.Load(), "the bus catches up")
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "tx", eventbus.Key("k"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		mustPublish(t, bus, "a", "plain", eventbus.Key("k"))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail tx 1", "mail plain 1"}, disk.took())
		requireBalanced(t, bus)
		shutdown(t, bus)
	})
}
