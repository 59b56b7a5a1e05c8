package contracttest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// spyStore is a store with hooks.
type spyStore struct {
	driver.Store
	claim  func(ctx context.Context, q driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error)
	orders func()
	submit func(b *driver.Batch, done func(error)) (taken bool)
	before func(method string) // of the other methods
}

func (s *spyStore) enter(method string) {
	if s.before != nil {
		s.before(method)
	}
}

func (s *spyStore) Letter(ctx context.Context, id driver.ID) (driver.Letter, error) {
	s.enter("Letter")
	return s.Store.Letter(ctx, id)
}

func (s *spyStore) Letters(ctx context.Context, q driver.LetterQuery) (driver.LetterPage, error) {
	s.enter("Letters")
	return s.Store.Letters(ctx, q)
}

func (s *spyStore) Groups(ctx context.Context, q driver.LetterQuery, each func(*driver.Group) error) error {
	s.enter("Groups")
	return s.Store.Groups(ctx, q, each)
}

func (s *spyStore) Lookup(ctx context.Context, id driver.ID) ([]*driver.Record, error) {
	s.enter("Lookup")
	return s.Store.Lookup(ctx, id)
}

func (s *spyStore) Stats(ctx context.Context) (driver.Stats, error) {
	s.enter("Stats")
	return s.Store.Stats(ctx)
}

func (s *spyStore) Parked(ctx context.Context, except map[string]bool) (map[string]int64, error) {
	s.enter("Parked")
	return s.Store.Parked(ctx, except)
}

func (s *spyStore) Reopen(ctx context.Context) error {
	s.enter("Reopen")
	return s.Store.Reopen(ctx)
}

func (s *spyStore) Close(ctx context.Context) error {
	s.enter("Close")
	return s.Store.Close(ctx)
}

func (s *spyStore) Incoming(ctx context.Context, q driver.IncomingQuery) (driver.IncomingPage, error) {
	s.enter("Incoming")
	page, err := s.Store.Incoming(ctx, q)
	s.enter("end of Incoming")
	return page, err
}

func (s *spyStore) Requests(ctx context.Context, q driver.RequestQuery) ([]driver.Request, error) {
	s.enter("Requests")
	return s.Store.Requests(ctx, q)
}

func (s *spyStore) Catalogs(ctx context.Context) ([]driver.Catalog, error) {
	all, err := s.Store.Catalogs(ctx)
	s.enter("end of Catalogs")
	return all, err
}

func (s *spyStore) Submit(b *driver.Batch, done func(error)) {
	if s.submit == nil || !s.submit(b, done) {
		s.Store.Submit(b, done)
	}
}

func (s *spyStore) Claim(ctx context.Context, q driver.ClaimQuery) (driver.Claimed, error) {
	s.enter("Claim")
	next := func() (driver.Claimed, error) { return s.Store.Claim(ctx, q) }
	if s.claim == nil {
		return next()
	}
	return s.claim(ctx, q, next)
}

func (s *spyStore) Directives(ctx context.Context) ([]driver.Directive, error) {
	s.enter("Directives")
	if s.orders != nil {
		s.orders()
	}
	return s.Store.Directives(ctx)
}

// spy makes the bus of a process whose store has hooks.
func (d *disk) spy(t *testing.T, s *spyStore, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	store := d.Open()
	s.Store = store
	bus, _ := newBus(t, append([]eventbus.Option{eventbus.WithStore(s), eventbus.WithRetry(retry(2, time.Second))}, opts...)...)
	return bus
}

func TestS3_AStoreFailureWakesPublishersThatWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			if fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Second); return nil })
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "1")
		published := make(chan error, 1)
		go func() {
			_, err := bus.Publish(context.Background(), "a", "2") // waits for room
			published <- err
		}()
		synctest.Wait()
		fail.Store(true) // when the handler has succeeded
		time.Sleep(time.Minute)
		select {
		case err := <-published:
			require.ErrorIs(t, err, eventbus.ErrStoreFailed)
		default:
			t.Fatal("Publish still waits, and the bus does not restart")
		}
		mustPublish(t, bus, "a", "3")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 1 1", "mail 1 1", "mail 3 1"}, disk.took())
		shutdown(t, bus)
	})
}

func TestE6_ABatchComparesThePayloadsOfAnIDThatItHasTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := eventbus.NewEventID()
		_, err := bus.PublishBatch(t.Context(), []eventbus.Publication{
			{Type: "a", Payload: "1", Options: []eventbus.PublishOption{eventbus.ID(id)}},
			{Type: "a", Payload: "2", Options: []eventbus.PublishOption{eventbus.ID(id)}},
		})
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		require.Empty(t, disk.took())
		shutdown(t, bus)
	})
}

func TestE6_ABatchErrorNamesTheRightPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		first, second := eventbus.NewEventID(), eventbus.NewEventID()
		mustPublish(t, bus, "a", "1", eventbus.ID(first))
		mustPublish(t, bus, "a", "2", eventbus.ID(second))
		_, err := bus.PublishBatch(t.Context(), []eventbus.Publication{
			{Type: "a", Payload: "1", Options: []eventbus.PublishOption{eventbus.ID(first)}},
			{Type: "a", Payload: "other", Options: []eventbus.PublishOption{eventbus.ID(second)}},
		})
		var which *eventbus.BatchError
		require.ErrorAs(t, err, &which)
		require.Equal(t, 1, which.Index)
		shutdown(t, bus)
	})
}

func TestC6_ASubscriptionMadeAgainObeysTheLatestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, mail.Pause())
		shutdown(t, bus)

		bus, _ = disk.open(t)
		mail = disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, mail.Resume())
		mail.Unsubscribe()
		mail = disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "1")
		require.Equal(t, []string{"mail 1 1"}, disk.took(), "the store has no order")

		require.NoError(t, mail.Pause())
		mail.Unsubscribe()
		mail = disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "2")
		require.Empty(t, disk.took(), "the store has the order to pause")
		require.NoError(t, mail.Resume())
		require.Equal(t, []string{"mail 2 1"}, disk.took())
		shutdown(t, bus)
	})
}

func TestS2_ShutdownDuringStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "x")
		disk.crash(bus)

		claims := 0
		bus = disk.spy(t, &spyStore{claim: func(ctx context.Context, _ driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
			if claims++; claims == 2 {
				<-ctx.Done() // a slow disk
				return driver.Claimed{}, ctx.Err()
			}
			return next()
		}})
		disk.handles(t, bus, "mail", nil)
		ctx, cancel := context.WithCancel(context.Background())
		started := make(chan error, 1)
		go func() { started <- bus.Start(ctx) }()
		synctest.Wait()
		ended := make(chan error, 1)
		go func() { ended <- bus.Shutdown(context.Background()) }()
		time.Sleep(time.Minute)
		cancel()
		time.Sleep(time.Minute)
		require.Error(t, <-started)
		select {
		case err := <-ended:
			t.Log(err) // it may be nil
		default:
			require.FailNow(t, "Shutdown does not return after Start has failed")
		}
		require.Len(t, disk.Dump().Records, 1)
	})
}

func TestS2_ShutdownEndsAStartThatClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus := disk.spy(t, &spyStore{claim: func(ctx context.Context, _ driver.ClaimQuery, _ func() (driver.Claimed, error)) (driver.Claimed, error) {
			<-ctx.Done()
			return driver.Claimed{}, ctx.Err()
		}})
		disk.handles(t, bus, "mail", nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		started := make(chan error, 1)
		go func() { started <- bus.Start(ctx) }()
		synctest.Wait()
		brief, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		began := time.Now()
		_ = bus.Shutdown(brief)
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		require.ErrorIs(t, <-started, eventbus.ErrShutdown)
	})
}

func TestS1_AStartThatFailsCanBeRepeated(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk(storetest.WithClaimFaults(func(n int, _ driver.ClaimQuery) (f storetest.Fault) {
				if n == 1 {
					f.Kind = kind
				}
				return f
			}))
			bus, _ := disk.open(t)
			disk.handles(t, bus, "mail", nil)
			mustPublish(t, bus, "a", "x")
			require.Error(t, bus.Start(t.Context()))
			time.Sleep(time.Minute)
			require.NoError(t, bus.Start(t.Context()))
			require.Equal(t, []string{"mail x 1"}, disk.took())
			shutdown(t, bus)
		})
	}
}

func TestS3_AStoreWhoseClaimsFailDoesNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var broken atomic.Bool
		var claims atomic.Int32
		store := disk.Open()
		bus, logs := newBus(t, eventbus.WithStore(&spyStore{Store: store, claim: func(_ context.Context, _ driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
			if broken.Load() {
				if claims.Add(1) > 5000 {
					time.Sleep(time.Hour)
				}
				return driver.Claimed{}, errors.New("a record does not decode")
			}
			return next()
		}}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x", eventbus.After(time.Second))
		synctest.Wait() // the claims of Start have ended
		broken.Store(true)
		time.Sleep(time.Minute)
		require.Less(t, int(claims.Load()), 50)
		require.Less(t, logs.Len(), 100)
		broken.Store(false)
		time.Sleep(time.Minute)
		require.Len(t, disk.took(), 1)
		shutdown(t, bus)
	})
}

func TestF7_AnObserverMayCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var bus *eventbus.Bus
		var id eventbus.EventID
		got := make(chan error, 2)
		bus, _ = disk.open(t, eventbus.WithConcurrency(1), eventbus.WithObserver(eventbus.Observer{
			AttemptEnded: func(eventbus.EndedAttempt) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				got <- cancelEvent(ctx, bus, id)
			},
		}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id = mustPublish(t, bus, "a", "x", eventbus.After(time.Hour))
		mustPublish(t, bus, "a", "y")
		time.Sleep(2 * time.Minute)
		require.NoError(t, <-got)
		require.Empty(t, disk.Dump().Records)
		disk.took()
		shutdown(t, bus)
	})
}

func TestS5_ShutdownWaitsForAWatchThatReadsOrders(t *testing.T) {
	for _, method := range []string{"Directives", "Requests"} { // a standby obeys orders, and the bus with the lease answers
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				var slow atomic.Bool
				var reading atomic.Int32
				bus := disk.spy(t, &spyStore{before: func(called string) {
					if called == method && slow.Load() {
						reading.Add(1)
						time.Sleep(time.Second)
						reading.Add(-1)
					}
				}}, eventbus.WithStandby())
				disk.handles(t, bus, "mail", nil)
				lead, _ := disk.open(t)
				disk.handles(t, lead, "mail", nil)
				if method == "Directives" {
					require.NoError(t, lead.Start(t.Context()))
				}
				began := startLater(t, bus)
				slow.Store(true)
				tool := disk.tool(t)
				asked := make(chan error, 1)
				go func() { asked <- tool.Subscription("x").Pause() }()
				time.Sleep(500 * time.Millisecond)
				require.EqualValues(t, 1, reading.Load())
				require.NoError(t, bus.Shutdown(context.Background()))
				require.Zero(t, reading.Load(), "a goroutine of the bus is left")
				if err := <-began; method == "Directives" {
					require.ErrorIs(t, err, eventbus.ErrShutdown)
				}
				require.NoError(t, <-asked)
				shutdown(t, tool)
				shutdown(t, lead)
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestD7_AGivenUpWaitLeavesNothing(t *testing.T) {
	ofManyEvents(t)
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return nil }, eventbus.Named("first"))
		release := make(chan struct{})
		mustSubscribe(t, bus, "**", func(context.Context, eventbus.Event) error { <-release; return nil },
			eventbus.Named("full"), eventbus.Concurrency(1), eventbus.Timeout(24*time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		before := heldBytes()
		for range eventbus.DefaultLineCapacity + 1 {
			mustPublish(t, bus, "a", "x")
		}
		synctest.Wait()
		var all sync.WaitGroup
		for range 2000 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				_, err := bus.PublishAndWait(ctx, "slow", "y", eventbus.Metadata("m", strings.Repeat("x", 4000)))
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		all.Wait()
		time.Sleep(time.Minute) // they are only in the store
		close(release)
		time.Sleep(time.Minute)
		require.Empty(t, disk.Dump().Records)
		require.Less(t, heldBytes()-before, int64(6<<20))
		shutdown(t, bus)
	})
}

func TestE6_ARefusalIsNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		refused := &driver.RefusedError{Err: errBoom}
		var refuse atomic.Bool
		bus := disk.spy(t, &spyStore{submit: func(b *driver.Batch, done func(error)) bool {
			if refuse.Load() {
				go done(refused)
			}
			return refuse.Load()
		}})
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		refuse.Store(true)
		id := eventbus.NewEventID()
		_, err := bus.Publish(t.Context(), "a", "x", eventbus.ID(id))
		require.ErrorIs(t, err, errBoom)
		var unknown *eventbus.IndeterminateError
		require.NotErrorAs(t, err, &unknown)
		refuse.Store(false)
		shutdown(t, bus)
	})
}
