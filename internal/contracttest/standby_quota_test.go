package contracttest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// A publication that is refused makes room for an event that waits to be taken in.
func TestT4_ARefusedPublicationMakesRoomForATakeIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var slow atomic.Bool
		spy := &spyStore{}
		spy.submit = func(b *driver.Batch, done func(error)) bool {
			if len(b.Remember) == 0 || !slow.Load() {
				return false
			}
			go func() { time.Sleep(time.Second); spy.Store.Submit(b, done) }()
			return true
		}
		bus := disk.spy(t, spy, eventbus.WithMaxUnsettled(3))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		known := mustPublish(t, bus, "a", "known", eventbus.ID(eventbus.NewEventID()))
		mustPublish(t, bus, "a", "1", eventbus.After(time.Hour))
		mustPublish(t, bus, "a", "2", eventbus.After(time.Hour))
		require.Equal(t, []string{"mail known 1"}, disk.took())
		slow.Store(true)
		refused := make(chan error, 1)
		go func() {
			_, err := bus.Publish(context.Background(), "a", "another", eventbus.ID(known))
			refused <- err
		}()
		synctest.Wait()
		tool := disk.tool(t)
		mustPublish(t, tool, "a", "incoming")
		time.Sleep(500 * time.Millisecond)
		require.Len(t, disk.Dump().Incoming, 1, "the bound is reached")
		require.ErrorIs(t, <-refused, eventbus.ErrDuplicateID)
		time.Sleep(250 * time.Millisecond)
		require.Equal(t, []string{"mail incoming 1"}, disk.took())
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// A publisher that waits at the bound waits on when the restart of the bus ends.
func TestS3_APublisherAtTheBoundWaitsOnAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
			if len(b.Directives) > 0 && fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		reopened := make(chan struct{})
		log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(discard{}), zap.InfoLevel), zap.Hooks(func(e zapcore.Entry) error {
			if e.Message == "store reopened" {
				close(reopened)
				time.Sleep(time.Second) // before the bus goes on
			}
			return nil
		}))
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(1), eventbus.WithLogger(log))
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		fail.Store(true)
		require.Error(t, mail.Pause())
		<-reopened
		published := make(chan error, 1)
		go func() {
			_, err := bus.Publish(context.Background(), "a", "x")
			published <- err
		}()
		time.Sleep(time.Minute)
		requireWaits(t, published)
		require.NoError(t, cancelEvent(t.Context(), bus, id))
		require.NoError(t, <-published)
		require.Equal(t, []string{"mail x 1"}, disk.took())

		mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		go func() {
			_, err := bus.Publish(context.Background(), "a", "x")
			published <- err
		}()
		synctest.Wait()
		requireWaits(t, published)
		shutdown(t, bus)
		require.ErrorIs(t, <-published, eventbus.ErrShutdown)
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// A bulk replay does not hold up the hand-over. Its letters are replayed by the bus that gets the lease.
func TestS6_TheHandOverEndsDuringABulkReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3000
		var delay atomic.Int64
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			f.Delay = time.Duration(delay.Load())
			return f
		}))
		first, _ := disk.open(t, eventbus.WithStandby(), eventbus.WithQueueCapacity(n))
		var fails atomic.Bool
		fails.Store(true)
		disk.handles(t, first, "mail", func(string, int) error {
			if fails.Load() {
				return eventbus.Permanent(errBoom)
			}
			return nil
		})
		require.NoError(t, first.Start(t.Context()))
		var batch []eventbus.Publication
		for i := range n {
			batch = append(batch, eventbus.Publication{Type: "a", Payload: fmt.Sprint(i)})
		}
		_, err := first.PublishBatch(t.Context(), batch)
		require.NoError(t, err)
		require.Len(t, disk.took(), n)
		time.Sleep(time.Second)
		fails.Store(false)
		delay.Store(int64(300 * time.Microsecond))
		replayed := make(chan error, 1)
		go func() {
			report, err := first.DLQ().ReplayMatching(context.Background(), allLetters)
			if err == nil && report.Replayed != n {
				err = fmt.Errorf("%d were replayed", report.Replayed)
			}
			replayed <- err
		}()
		time.Sleep(200 * time.Millisecond)
		second, _ := disk.standby(t, "mail", "audit")
		began := time.Now()
		require.NoError(t, second.Start(t.Context()))
		require.LessOrEqual(t, time.Since(began), 750*time.Millisecond, "the commits of 256 replays, and 500 ms")
		requireWaits(t, replayed)
		require.NoError(t, <-replayed)
		time.Sleep(time.Minute)
		require.Len(t, disk.took(), n)
		requireBalanced(t, first)
		requireBalanced(t, second)
		shutdown(t, first)
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
	})
}

// An event is taken in while the bus is behind and its queue is full.
func TestL6_ATakeInNeedsNoRoomInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(1))
		release := make(chan struct{})
		disk.handles(t, bus, "mail", func(string, int) error { <-release; return nil }, eventbus.Timeout(24*time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		const n = 30
		for i := range n {
			mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.Key("k"))
		}
		tool := disk.tool(t)
		for i := range n {
			time.Sleep(time.Second)
			mustPublish(t, tool, "a", fmt.Sprint(n+i), eventbus.Key("k"))
			time.Sleep(250 * time.Millisecond)
			require.Empty(t, disk.Dump().Incoming)
		}
		close(release)
		time.Sleep(time.Minute)
		var want []string
		for i := range 2 * n {
			want = append(want, fmt.Sprintf("mail %d 1", i))
		}
		require.Equal(t, want, disk.took())
		requireBalanced(t, bus)
		shutdown(t, tool)
		shutdown(t, bus)
	})
}

// Publishers that wait at the bound without a pause leave room to the events that wait to be taken in.
func TestT4_PublishersAtTheBoundLeaveRoomToTheTakeIn(t *testing.T) {
	for _, queue := range []int{1000, 4} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			spy := &spyStore{claim: func(_ context.Context, _ driver.ClaimQuery, next func() (driver.Claimed, error)) (driver.Claimed, error) {
				time.Sleep(25 * time.Millisecond) // publishers are quicker than the feeder
				return next()
			}}
			bus := disk.spy(t, spy, eventbus.WithMaxUnsettled(10), eventbus.WithQueueCapacity(queue), eventbus.WithConcurrency(1))
			disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(10 * time.Millisecond); return nil })
			require.NoError(t, bus.Start(t.Context()))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var local atomic.Int64
			for range 20 {
				go func() {
					for ctx.Err() == nil {
						if _, err := bus.Publish(ctx, "a", "local"); err != nil {
							return
						}
						local.Add(1)
					}
				}()
			}
			go func() { // it never fits
				_, _ = bus.PublishBatch(ctx, []eventbus.Publication{{Type: "a"}, {Type: "a"}, {Type: "a"}, {Type: "a"}})
			}()
			time.Sleep(time.Second)
			tool := disk.tool(t)
			for range 20 {
				mustPublish(t, tool, "a", "incoming")
				time.Sleep(250 * time.Millisecond)
				require.Empty(t, disk.Dump().Incoming)
			}
			const n = 50
			for range n {
				mustPublish(t, tool, "a", "incoming")
			}
			time.Sleep(5 * time.Second)
			require.Empty(t, disk.Dump().Incoming)
			before := local.Load()
			time.Sleep(5 * time.Second)
			require.Greater(t, local.Load(), before, "then publishers go on")
			cancel()
			time.Sleep(time.Minute)
			requireBalanced(t, bus)
			shutdown(t, tool)
			shutdown(t, bus)
		})
	}
}
