package contracttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// heldDisk is a disk whose commits can be held, as an fsync that hangs.
type heldDisk struct {
	*disk
	mu          sync.Mutex
	held        chan struct{} // nil: commits go on
	outstanding atomic.Int64  // records that were submitted and not answered
	most        atomic.Int64
	order       []string // payloads of new records and incoming events, in the order of Submit
	letters     int      // submitted
}

func newHeldDisk(opts ...storetest.Option) *heldDisk {
	d := &heldDisk{}
	d.disk = newDisk(append([]storetest.Option{storetest.WithFaults(func(int, *driver.Batch) storetest.Fault {
		d.mu.Lock()
		held := d.held
		d.mu.Unlock()
		if held != nil {
			<-held
		}
		return storetest.Fault{}
	})}, opts...)...)
	return d
}

func (d *heldDisk) hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = make(chan struct{})
}

func (d *heldDisk) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held != nil {
		close(d.held)
	}
	d.held = nil
}

// releaseOne lets one commit go on.
func (d *heldDisk) releaseOne() {
	d.held <- struct{}{}
	synctest.Wait()
}

// open makes a bus that notes what it submits.
func (d *heldDisk) open(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	spy := &spyStore{}
	spy.submit = func(b *driver.Batch, done func(error)) bool {
		n := int64(len(b.New) + len(b.Update) + len(b.Delete) + len(b.Bury) + len(b.Leave))
		d.mu.Lock()
		d.most.Store(max(d.most.Load(), d.outstanding.Add(n)))
		for _, r := range b.New {
			d.order = append(d.order, string(r.Payload))
		}
		for _, in := range b.Leave {
			d.order = append(d.order, string(in.Record.Payload))
		}
		d.letters += len(b.Bury)
		d.mu.Unlock()
		spy.Store.Submit(b, func(err error) {
			d.outstanding.Add(-n)
			done(err)
		})
		return true
	}
	return d.spy(t, spy, opts...)
}

func (d *heldDisk) submitted() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.order)
}

// buried returns the number of letters that were submitted.
func (d *heldDisk) buried() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.letters
}

// publishLater publishes on a goroutine, and waits until nothing moves.
func publishLater(ctx context.Context, bus *eventbus.Bus, payloads ...any) (ends []chan error) {
	for _, p := range payloads {
		end := make(chan error, 1)
		ends = append(ends, end)
		go func() {
			_, err := bus.Publish(ctx, "a", p)
			end <- err
		}()
		synctest.Wait()
	}
	return ends
}

func requireWaits(t *testing.T, ends ...chan error) {
	t.Helper()
	for i, end := range ends {
		select {
		case err := <-end:
			require.FailNow(t, "a publication does not wait", "%d: %v", i, err)
		default:
		}
	}
}

func requireDefiniteRefusal(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, eventbus.ErrStoreFailed)
	var unknown *eventbus.IndeterminateError
	require.NotErrorAs(t, err, &unknown, "nothing was submitted")
}

func TestS7_TheBoundsAreValidated(t *testing.T) {
	for _, bounds := range [][2]int{{0, 1}, {1, 0}, {-1, 1}, {1, -1}} {
		_, err := eventbus.New(eventbus.WithMaxUnconfirmed(bounds[0], bounds[1]))
		requireOptionError(t, err, "WithMaxUnconfirmed")
	}
}

// 400 requests with a context of 100 ms publish again and again, while the disk hangs.
func TestS7_AHangingStoreReceivesNoMoreThanTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 1000
		disk := newHeldDisk(storetest.WithPatience(time.Hour))
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(bound, 1<<30))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		disk.hold()
		var refused, unknown atomic.Int64
		var requests sync.WaitGroup
		for range 400 {
			requests.Go(func() {
				for began := time.Now(); time.Since(began) < 5*time.Second; {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					_, err := bus.Publish(ctx, "a", "x")
					cancel()
					var indeterminate *eventbus.IndeterminateError
					if errors.As(err, &indeterminate) {
						unknown.Add(1)
						continue
					}
					if errors.Is(err, eventbus.ErrStoreFailed) && errors.Is(err, context.DeadlineExceeded) {
						refused.Add(1)
					}
				}
			})
		}
		requests.Wait()
		require.EqualValues(t, bound, disk.most.Load())
		require.EqualValues(t, bound, unknown.Load())
		require.EqualValues(t, 400*50, unknown.Load()+refused.Load())
		disk.release()
		synctest.Wait()
		require.Len(t, disk.took(), bound, "what was submitted is handled, and nothing else")
		shutdown(t, bus)
	})
}

// By bytes as by records.
func TestS7_ThePayloadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(100, 10))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("mail"))
		disk.hold()
		ends := publishLater(t.Context(), bus, 1234, 5678, 90, 1, 2)
		require.Equal(t, []string{"1234", "5678", "90"}, disk.submitted())
		disk.releaseOne()
		require.NoError(t, <-ends[0])
		require.Equal(t, []string{"1234", "5678", "90", "1", "2"}, disk.submitted())
		disk.release()
		shutdown(t, bus)
	})
}

// Publications that wait are submitted in the order in which they came.
func TestS7_PublishersWaitInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(10, 1<<20))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("mail"))
		disk.hold()
		var first []eventbus.Publication
		for range 8 {
			first = append(first, eventbus.Publication{Type: "a", Payload: "first"})
		}
		batch := func(all []eventbus.Publication) {
			go func() { _, _ = bus.PublishBatch(t.Context(), all) }()
			synctest.Wait()
		}
		batch(first)
		var expected []string
		for range 8 {
			expected = append(expected, `"first"`)
		}
		for i := range 50 {
			if i%7 == 0 { // it does not fit, and the next ones would
				batch([]eventbus.Publication{{Type: "a", Payload: i}, {Type: "a", Payload: i}, {Type: "a", Payload: i}})
				expected = append(expected, fmt.Sprint(i), fmt.Sprint(i), fmt.Sprint(i))
				continue
			}
			publishLater(t.Context(), bus, i)
			expected = append(expected, fmt.Sprint(i))
		}
		require.Equal(t, expected[:8], disk.submitted())
		disk.release()
		synctest.Wait()
		require.Equal(t, expected, disk.submitted())
		require.LessOrEqual(t, disk.most.Load(), int64(10))
		shutdown(t, bus)
	})
}

// The store has nothing of a publication whose context ends while it waits, and no id is in doubt.
func TestS7_TheEndOfTheContextIsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(1, 1<<20), eventbus.WithMaxUnsettled(2))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		disk.hold()
		first := publishLater(t.Context(), bus, "first")
		id := eventbus.NewEventID()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := bus.Publish(ctx, "a", "x", eventbus.ID(id))
		requireDefiniteRefusal(t, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []string{`"first"`}, disk.submitted())
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		cancelled := make(chan error, 1)
		go func() {
			_, err := bus.PublishAndWait(ctx, "a", "y")
			cancelled <- err
		}()
		synctest.Wait()
		requireWaits(t, cancelled)
		cancel()
		err = <-cancelled
		requireDefiniteRefusal(t, err)
		require.ErrorIs(t, err, context.Canceled)
		disk.release()
		require.NoError(t, <-first[0])
		synctest.Wait()
		_, err = bus.Publish(t.Context(), "a", "other", eventbus.ID(id))
		require.NoError(t, err, "the id is new, and its quota was given back")
		mustPublish(t, bus, "a", "last")
		synctest.Wait()
		require.Equal(t, []string{"mail first 1", "mail other 1", "mail last 1"}, disk.took())
		shutdown(t, bus)
	})
}

// What handlers publish waits too.
func TestS7_HandlersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(2, 1<<20))
		chained := make(chan error, 1)
		disk.handles(t, bus, "mail", nil)
		mustSubscribe(t, bus, "start", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			_, err := bus.Publish(ctx, "a", "chained")
			chained <- err
			return err
		}, eventbus.Named("start"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "start", "s")
		require.Equal(t, []string{"mail s 1"}, disk.took())
		disk.hold()
		publishLater(t.Context(), bus, "p", "q")
		time.Sleep(2 * time.Second)
		requireWaits(t, chained)
		disk.release()
		require.NoError(t, <-chained)
		require.ElementsMatch(t, []string{"mail p 1", "mail q 1", "mail chained 1"}, disk.took())
		shutdown(t, bus)
	})
}

// Letters and successes exceed the bound, and count: a publication waits for their confirmation.
func TestS7_ResultsCountAndDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(2, 1<<20))
		disk.handles(t, bus, "mail", func(string, int) error {
			time.Sleep(time.Second)
			return eventbus.Permanent(errBoom)
		})
		require.NoError(t, bus.Start(t.Context()))
		for i := range 5 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		synctest.Wait()
		disk.hold()
		time.Sleep(2 * time.Second)
		require.Equal(t, 5, disk.buried())
		ends := publishLater(t.Context(), bus, "waits")
		requireWaits(t, ends...)
		require.Len(t, disk.submitted(), 5)
		disk.release()
		require.NoError(t, <-ends[0])
		time.Sleep(2 * time.Second)
		require.Len(t, letters(t, bus), 6)
		shutdown(t, bus)
	})
}

func TestS7_ShutdownEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk(storetest.WithPatience(0))
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(1, 1<<20))
		inside := make(chan error, 1)
		mustSubscribe(t, bus, "start", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			_, err := bus.Publish(context.WithoutCancel(ctx), "b", nil)
			inside <- err
			return err
		}, eventbus.Named("start"))
		mustSubscribe(t, bus, "a", ok, eventbus.Named("a"))
		mustSubscribe(t, bus, "b", ok, eventbus.Named("b"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "start", nil)
		synctest.Wait()
		disk.hold()
		publishLater(t.Context(), bus, "first")
		ends := publishLater(t.Context(), bus, "x", "y")
		time.Sleep(2 * time.Second)
		requireWaits(t, append(ends, inside)...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		down := make(chan error, 1)
		go func() { down <- bus.Shutdown(ctx) }()
		synctest.Wait()
		for _, end := range ends {
			require.ErrorIs(t, <-end, eventbus.ErrShutdown)
		}
		requireWaits(t, inside) // running handlers may publish, until the context of Shutdown ends
		time.Sleep(2 * time.Minute)
		err := <-inside
		require.ErrorIs(t, err, eventbus.ErrShutdown)
		require.Error(t, <-down)
		disk.release()
		time.Sleep(time.Minute)
		require.LessOrEqual(t, len(disk.submitted()), 2, "nothing that waited was submitted")
	})
}

// A failure of the store ends the wait, and the restart does not wait for the publishers.
func TestS7_AFailureOfTheStoreEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		held := make(chan struct{})
		disk := newDisk(storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			if fail.Swap(false) {
				<-held
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, _ := disk.open(t, eventbus.WithMaxUnconfirmed(1, 1<<20))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		fail.Store(true)
		first := publishLater(t.Context(), bus, "first")
		ends := publishLater(t.Context(), bus, "x", "y", "z")
		requireWaits(t, ends...)
		close(held)
		for _, end := range ends {
			requireDefiniteRefusal(t, <-end)
		}
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, <-first[0], &unknown)
		time.Sleep(time.Second)
		mustPublish(t, bus, "a", "again")
		synctest.Wait()
		require.Equal(t, []string{"mail again 1"}, disk.took())
		shutdown(t, bus)
	})
}

// A batch larger than the bound goes when no other publication is outstanding.
func TestS7_ABatchLargerThanTheBoundGoesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(2, 1<<20))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("mail"))
		disk.hold()
		first := publishLater(t.Context(), bus, 1)
		large := make(chan error, 1)
		go func() {
			_, err := bus.PublishBatch(t.Context(), []eventbus.Publication{{Type: "a", Payload: 2}, {Type: "a", Payload: 3}, {Type: "a", Payload: 4}})
			large <- err
		}()
		synctest.Wait()
		last := publishLater(t.Context(), bus, 5)
		require.Equal(t, []string{"1"}, disk.submitted())
		disk.releaseOne()
		require.NoError(t, <-first[0])
		require.Equal(t, []string{"1", "2", "3", "4"}, disk.submitted())
		requireWaits(t, last...)
		disk.releaseOne()
		require.NoError(t, <-large)
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, disk.submitted())
		disk.release()
		shutdown(t, bus)
	})
}

// An observer that does not return keeps what follows a commit, and not the room.
func TestS7_RoomIsBackBeforeObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		blocks := make(chan struct{})
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(2, 1<<20), eventbus.WithConcurrency(4), eventbus.WithObserver(eventbus.Observer{
			AttemptEnded: func(eventbus.EndedAttempt) { <-blocks },
		}))
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		for i := range 20 { // the results of the first ones occupy all followups
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := bus.Publish(ctx, "a", fmt.Sprint(i))
			cancel()
			require.NoError(t, err)
			synctest.Wait()
		}
		close(blocks)
		shutdown(t, bus)
	})
}

// A store that confirms nothing for its patience gets no publication until it confirms something.
func TestS7_ASilentStoreIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk(storetest.WithPatience(5 * time.Second))
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(2, 1<<20))
		inside := make(chan error, 1)
		disk.handles(t, bus, "mail", nil)
		mustSubscribe(t, bus, "start", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Minute)
			_, err := bus.Publish(ctx, "a", "chained")
			inside <- err
			return nil
		}, eventbus.Named("start"), eventbus.Timeout(time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "start", "s")
		time.Sleep(30 * time.Second) // nothing is outstanding
		require.Zero(t, bus.Metrics().StoreSilentSince)
		disk.hold()
		began := time.Now()
		first := publishLater(t.Context(), bus, "1", "2")
		waiting := publishLater(t.Context(), bus, "3", "4")
		time.Sleep(5*time.Second - time.Millisecond)
		requireWaits(t, append(waiting, first...)...)
		require.Zero(t, bus.Metrics().StoreSilentSince)
		time.Sleep(time.Millisecond)
		for _, end := range waiting {
			err := <-end
			requireDefiniteRefusal(t, err)
			require.ErrorContains(t, err, "5s")
		}
		require.WithinDuration(t, began, bus.Metrics().StoreSilentSince, 0)
		time.Sleep(time.Minute)
		_, err := bus.Publish(t.Context(), "a", "5")
		requireDefiniteRefusal(t, err)
		require.ErrorContains(t, err, "1m5s")
		requireDefiniteRefusal(t, <-inside)
		requireWaits(t, first...)

		disk.releaseOne()
		require.NoError(t, <-first[0])
		require.Zero(t, bus.Metrics().StoreSilentSince)
		later := publishLater(t.Context(), bus, "6")
		disk.release()
		require.NoError(t, <-later[0])
		synctest.Wait()
		require.ElementsMatch(t, []string{"mail s 1", "mail 1 1", "mail 2 1", "mail 6 1"}, disk.took())
		shutdown(t, bus)
	})
}

// Replays wait as publications do, and their letters stay if they are refused.
func TestS7_ReplaysWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHeldDisk()
		bus := disk.open(t, eventbus.WithMaxUnconfirmed(1, 1<<20))
		disk.handles(t, bus, "mail", always(eventbus.Permanent(errBoom)))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		synctest.Wait()
		letter := oneLetter(t, bus)
		disk.hold()
		publishLater(t.Context(), bus, "first")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := bus.DLQ().Replay(ctx, letter.ID)
		requireDefiniteRefusal(t, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		disk.release()
		synctest.Wait()
		require.NoError(t, bus.DLQ().Replay(t.Context(), letter.ID))
		shutdown(t, bus)
	})
}
