package contracttest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

// hang blocks calls of a store from a switch until its release.
type hang struct {
	on      atomic.Bool
	release chan struct{}
}

func newHang() *hang { return &hang{release: make(chan struct{})} }

func (h *hang) wait() {
	if h.on.Load() {
		<-h.release
	}
}

// in returns a hook that blocks one method.
func (h *hang) in(method string) func(string) {
	return func(called string) {
		if called == method {
			h.wait()
		}
	}
}

// requireGivenUp shuts a bus down whose store hangs.
func requireGivenUp(t *testing.T, bus *eventbus.Bus) *eventbus.UnconfirmedError {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- bus.Shutdown(ctx) }()
	}
	time.Sleep(time.Hour)
	var first *eventbus.ShutdownError
	for range 2 {
		var err error
		select {
		case err = <-ended:
		default:
			require.FailNow(t, "Shutdown waits for a store that hangs")
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var left *eventbus.ShutdownError
		require.ErrorAs(t, err, &left)
		require.True(t, first == nil || first == left)
		first = left
		require.Less(t, time.Since(began), 2*time.Hour)
	}
	var unconfirmed *eventbus.UnconfirmedError
	require.ErrorAs(t, first, &unconfirmed)
	require.Contains(t, first.Error(), unconfirmed.Error())
	require.True(t, bus.Metrics().Ledger.Closed)
	_, err := bus.Publish(t.Context(), "a", "late")
	require.ErrorIs(t, err, eventbus.ErrShutdown)
	return unconfirmed
}

// A store that hangs in any of its methods does not block Shutdown, and costs no event.
func TestS2_AStoreThatHangsDoesNotBlockShutdown(t *testing.T) {
	for _, method := range []string{"Claim", "Close", "Directives", "Incoming", "Reopen", "Requests"} {
		t.Run(method, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { shutdownWithAHang(t, method) }) })
	}
}

func shutdownWithAHang(t *testing.T, method string) {
	t.Helper()
	disk, hangs := newDisk(), newHang()
	var fail atomic.Bool
	spy := &spyStore{before: hangs.in(method), submit: func(b *driver.Batch, done func(error)) bool {
		if len(b.Update) == 0 || !fail.Swap(false) {
			return false
		}
		go done(eventbus.ErrStoreFailed)
		return true
	}}
	bus := disk.spy(t, spy)
	disk.handles(t, bus, "mail", always(errBoom))
	require.NoError(t, bus.Start(t.Context()))
	synctest.Wait()
	hangs.on.Store(true)
	tool := disk.tool(t)
	switch method {
	case "Claim":
		mustSubscribe(t, bus, "other", ok, eventbus.Named("other"))
		time.Sleep(time.Second) // the bus claims what is parked for it
	case "Incoming":
		mustPublish(t, tool, "a", "left")
		time.Sleep(time.Second)
	case "Requests":
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, cancelEvent(brief, tool, eventbus.NewEventID()), context.DeadlineExceeded)
	case "Directives":
		fail.Store(true)
		mustPublish(t, bus, "a", "x")
		time.Sleep(100 * time.Millisecond) // the bus has reopened the store, and reads the directives again
		require.Equal(t, []string{"mail x 1", "mail x 1"}, disk.took())
	case "Reopen":
		fail.Store(true)
		fallthrough
	default:
		mustPublish(t, bus, "a", "x")
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, []string{"mail x 1"}, disk.took())
	}
	unconfirmed := requireGivenUp(t, bus)
	require.Equal(t, []string{method}, unconfirmed.Calls)
	close(hangs.release)
	time.Sleep(time.Minute) // the shutdown completes
	shutdown(t, tool)

	again, _ := disk.open(t)
	disk.handles(t, again, "mail", nil)
	require.NoError(t, again.Start(t.Context()))
	time.Sleep(time.Minute)
	require.Empty(t, disk.Dump().Records)
	require.Empty(t, disk.Dump().Incoming)
	shutdown(t, again)
}

// A store that never confirms a batch does not block Shutdown, nor the callers that wait for it.
func TestS2_ABatchThatIsNeverConfirmedDoesNotBlockShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, hangs := newDisk(), newHang()
		bus := disk.spy(t, &spyStore{submit: func(b *driver.Batch, done func(error)) bool {
			if hangs.on.Load() {
				go func() { hangs.wait(); done(eventbus.ErrStoreFailed) }()
			}
			return hangs.on.Load()
		}})
		mail := disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(100 * time.Millisecond); return nil })
		require.NoError(t, bus.Start(t.Context()))
		results := make(chan error, 3)
		go func() {
			_, err := bus.PublishAndWait(context.Background(), "a", "1")
			results <- err
		}()
		synctest.Wait()
		hangs.on.Store(true) // the end of the call is not recorded
		go func() {
			_, err := bus.Publish(context.Background(), "a", "2")
			results <- err
		}()
		go func() { results <- mail.Pause() }()
		time.Sleep(time.Second)
		unconfirmed := requireGivenUp(t, bus)
		require.Equal(t, &eventbus.UnconfirmedError{Recording: 1, Publishing: 1}, unconfirmed)
		for range 3 {
			select {
			case err := <-results:
				require.ErrorIs(t, err, eventbus.ErrShutdown)
			default:
				require.FailNow(t, "a caller waits for the store after Shutdown")
			}
		}
		close(hangs.release)
		time.Sleep(time.Minute)
		disk.took()

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		shutdown(t, again)
	})
}

// Publishers that wait while the bus claims the last records, and a Cancel, end too.
func TestS2_NoCallWaitsForAStoreThatHangsAfterShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, hangs, silent := newDisk(), newHang(), newHang()
		ready := 0
		bus := disk.spy(t, &spyStore{
			claim: func(_ context.Context, q driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
				if q.Kind == driver.ClaimReady && hangs.on.Load() {
					if ready++; ready == 2 { // the bus catches up
						hangs.wait()
					}
				}
				return next()
			},
			submit: func(b *driver.Batch, done func(error)) bool {
				if silent.on.Load() {
					go func() { silent.wait(); done(eventbus.ErrStoreFailed) }()
				}
				return silent.on.Load()
			},
		})
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		first, second := mustPublish(t, bus, "a", "1", eventbus.After(time.Hour)), mustPublish(t, bus, "a", "2", eventbus.After(time.Hour))
		silent.on.Store(true)
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, cancelEvent(brief, bus, first), context.DeadlineExceeded)
		results := make(chan error, 2)
		go func() { results <- cancelEvent(context.Background(), bus, second) }()
		hangs.on.Store(true)
		mustSubscribe(t, bus, "other", ok, eventbus.Named("other")) // the bus claims what is parked for it
		time.Sleep(time.Second)
		go func() {
			_, err := bus.Publish(context.Background(), "a", "3")
			results <- err
		}()
		synctest.Wait()
		require.Equal(t, []string{"Claim"}, requireGivenUp(t, bus).Calls)
		for range cap(results) {
			select {
			case err := <-results:
				require.ErrorIs(t, err, eventbus.ErrShutdown)
			default:
				require.FailNow(t, "a caller waits for the store after Shutdown")
			}
		}
		close(hangs.release)
		close(silent.release)
		time.Sleep(time.Minute)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(2 * time.Hour)
		require.ElementsMatch(t, []string{"mail 1 1", "mail 2 1"}, disk.took())
		shutdown(t, again)
	})
}

// A store that is slow, and confirms one batch after the other, has the time that it needs.
func TestS2_ShutdownWaitsForAStoreThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var slow atomic.Bool
		order := make(chan func(), 100)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for apply := range order {
				if slow.Load() {
					time.Sleep(time.Second)
				}
				apply()
			}
		}()
		spy := &spyStore{}
		spy.submit = func(b *driver.Batch, done func(error)) bool {
			order <- func() {
				applied := make(chan struct{})
				spy.Store.Submit(b, func(err error) { done(err); close(applied) })
				<-applied
			}
			return true
		}
		bus := disk.spy(t, spy, eventbus.WithConcurrency(1))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Minute); return nil })
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		slow.Store(true)
		accepted := make(chan error, 20)
		for range cap(accepted) {
			go func() {
				_, err := bus.Publish(context.Background(), "a", "x")
				accepted <- err
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := bus.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Greater(t, time.Since(began), 10*time.Second)
		var unconfirmed *eventbus.UnconfirmedError
		require.NotErrorAs(t, err, &unconfirmed)
		requireBalanced(t, bus)
		for range cap(accepted) {
			require.NoError(t, <-accepted)
		}
		close(order)
		<-done
		time.Sleep(time.Minute) // the handler returns
	})
}

func TestS1_NewDoesNotWaitForAStoreThatHangs(t *testing.T) {
	for _, method := range []string{"Directives", "Stats"} {
		synctest.Test(t, func(t *testing.T) {
			disk, hangs := newDisk(), newHang()
			hangs.on.Store(true)
			store := disk.Open()
			began := time.Now()
			_, err := eventbus.New(eventbus.WithStore(&spyStore{Store: store, before: hangs.in(method)}))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.LessOrEqual(t, time.Since(began), 10*time.Second)
			close(hangs.release)
			require.NoError(t, store.Close(t.Context()))
		})
	}
}

// Metrics says since when the counts of the store are known, and why they are not current.
func TestO2_MetricsSayWhetherTheStoreIsCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, hangs := newDisk(), newHang()
		bus := disk.spy(t, &spyStore{before: hangs.in("Stats")})
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "x")
		read := time.Now().UTC()
		m := bus.Metrics()
		require.EqualValues(t, 1, m.Store.Incoming)
		require.Equal(t, read, m.StoreAt)
		require.Empty(t, m.StoreError)

		hangs.on.Store(true)
		time.Sleep(time.Minute)
		for range 100 {
			began := time.Now()
			m = bus.Metrics()
			require.LessOrEqual(t, time.Since(began), time.Second)
			require.EqualValues(t, 1, m.Store.Incoming)
			require.Equal(t, read, m.StoreAt)
			require.Contains(t, m.StoreError, "not answer")
		}
		close(hangs.release)
		synctest.Wait()
		m = bus.Metrics()
		require.Equal(t, time.Now().UTC(), m.StoreAt)
		require.Empty(t, m.StoreError)

		read = time.Now().UTC()
		shutdown(t, bus)
		time.Sleep(time.Hour)
		m = bus.Metrics()
		require.Equal(t, read, m.StoreAt)
		require.Contains(t, m.StoreError, eventbus.ErrStoreClosed.Error())
	})
	synctest.Test(t, func(t *testing.T) { // Shutdown reads them too
		disk, hangs := newDisk(), newHang()
		bus := disk.spy(t, &spyStore{before: hangs.in("Stats")})
		hangs.on.Store(true)
		began := time.Now()
		require.NoError(t, bus.Shutdown(context.Background()))
		require.LessOrEqual(t, time.Since(began), time.Second)
		close(hangs.release)
	})
	inMemory, _ := newBus(t)
	require.Zero(t, inMemory.Metrics().StoreAt)
	shutdown(t, inMemory)
}

// A panic of the store in a call for the bus makes the bus restart in place. A panic in a call for a
// caller is the caller's error.
func TestS3_AStoreThatPanicsDoesNotKillTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var in atomic.Value
		in.Store("")
		store := disk.Open()
		bus, logs := newBus(t, eventbus.WithStore(&spyStore{Store: store, before: func(method string) {
			if in.CompareAndSwap(method, "") {
				panic(errors.New("index out of range in " + method))
			}
		}}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait() // the claims of Start have ended

		in.Store("Claim")
		mustPublish(t, bus, "a", "x", eventbus.After(time.Second))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1"}, disk.took())
		failed := logs.FilterMessage("store failed: the bus restarts").All()
		require.Len(t, failed, 1)
		require.Contains(t, failed[0].ContextMap()["error"], "store panicked in Claim: index out of range in Claim")
		require.Equal(t, 1, logs.FilterMessage("store reopened").Len())

		in.Store("Letters")
		_, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.ErrorContains(t, err, "store panicked in Letters")
		in.Store("Letter")
		_, err = bus.DLQ().Get(t.Context(), eventbus.LetterID{1})
		require.ErrorContains(t, err, "store panicked in Letter")
		in.Store("Groups")
		_, err = bus.DLQ().Groups(t.Context(), eventbus.LetterQuery{})
		require.ErrorContains(t, err, "store panicked in Groups")
		in.Store("Stats")
		require.Contains(t, bus.Metrics().StoreError, "store panicked in Stats")
		in.Store("Close")
		err = bus.Shutdown(t.Context())
		require.ErrorContains(t, err, "store panicked in Close")
		require.NoError(t, store.Close(t.Context()))
		in.Store("Directives")
		_, err = eventbus.New(eventbus.WithStore(&spyStore{Store: store, before: func(string) { panic("no") }}))
		require.ErrorContains(t, err, "store panicked in Directives: no")
	})
}
