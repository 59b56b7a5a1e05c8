package contracttest

import (
	"context"
	"fmt"
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

// stoppedProcess is the store of a process that is stopped (SIGSTOP) and goes on later. Its calls wait meanwhile, its batches
// reach the store afterwards, in their order, and wait blocks its handlers.
type stoppedProcess struct {
	spyStore

	mu      sync.Mutex
	goesOn  chan struct{} // nil unless it is stopped
	batches []func()
}

func (p *stoppedProcess) wait() {
	p.mu.Lock()
	goesOn := p.goesOn
	p.mu.Unlock()
	if goesOn != nil {
		<-goesOn
	}
}

func (p *stoppedProcess) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goesOn = make(chan struct{})
}

func (p *stoppedProcess) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, submit := range p.batches {
		submit()
	}
	close(p.goesOn)
	p.goesOn, p.batches = nil, nil
}

// stopped makes the bus of a process that can be stopped, with a handler. A call for the payload "slow" takes a second.
func (d *disk) stopped(t *testing.T, name string) (*eventbus.Bus, *stoppedProcess) {
	t.Helper()
	p := new(stoppedProcess)
	p.before = func(string) { p.wait() }
	p.submit = func(b *driver.Batch, done func(error)) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.goesOn != nil {
			p.batches = append(p.batches, func() { p.Store.Submit(b, done) })
		}
		return p.goesOn != nil
	}
	bus := d.spy(t, &p.spyStore, eventbus.WithStandby())
	d.handles(t, bus, name, func(payload string, _ int) error {
		if payload == "slow" {
			time.Sleep(time.Second)
		}
		p.wait()
		return nil
	})
	require.NoError(t, bus.Start(t.Context()))
	synctest.Wait()
	return bus, p
}

// The process of the bus with the lease is stopped for a minute. No standby takes over. Publications wait, directives are
// ErrNoAnswer and are not carried out later.
func TestS6_TheActiveBusIsStoppedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, process := disk.stopped(t, "mail")
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		tool := disk.tool(t)
		mustPublish(t, first, "a", "before")
		mustPublish(t, first, "a", "due", eventbus.After(30*time.Second))
		time.Sleep(500 * time.Millisecond)
		process.stop()
		id := mustPublish(t, second, "a", "later", eventbus.After(time.Hour))
		for i := range 5 {
			mustPublish(t, second, "a", fmt.Sprint(i), eventbus.Key("k"))
		}
		began := time.Now()
		require.ErrorIs(t, tool.Subscription("mail").Pause(), eventbus.ErrNoAnswer)
		require.ErrorIs(t, cancelEvent(t.Context(), tool, eventbus.NewEventID()), eventbus.ErrNoAnswer)
		require.Equal(t, 20*time.Second, time.Since(began))
		require.Empty(t, disk.Dump().Requests, "they were taken back")
		require.NoError(t, cancelEvent(t.Context(), tool, id), "it waits in the store")
		time.Sleep(40 * time.Second)
		requireBlocked(t, waits)
		require.Equal(t, []string{"mail before 1"}, disk.took())

		process.goOn()
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"mail due 1", "mail 0 1", "mail 1 1", "mail 2 1", "mail 3 1", "mail 4 1"}, disk.took())
		require.False(t, metricsOf(t, first, "mail").Paused)
		require.NoError(t, tool.Subscription("mail").Pause(), "it answers again")
		require.NoError(t, tool.Subscription("mail").Resume())
		requireBalanced(t, first)
		shutdown(t, tool)
		shutdown(t, first)
		require.NoError(t, <-waits)
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Incoming)
	})
}

// A store may give the lease of a stopped process to a standby. When the process goes on, what it submits is refused, its
// publication is left to the other bus, and only the call that ran may run twice.
func TestS6_AStoppedActiveBusHasLostItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		first, process := disk.stopped(t, "mail")
		second, _ := disk.standby(t, "mail")
		waits := startLater(t, second)
		mustPublish(t, first, "a", "slow")
		time.Sleep(500 * time.Millisecond)
		process.stop()
		published := make(chan error, 1)
		go func() {
			_, err := first.Publish(context.Background(), "a", "of the stopped process")
			published <- err
		}()
		mustPublish(t, second, "a", "1")
		time.Sleep(30 * time.Second)
		disk.LoseLease(false, process.Store)
		require.NoError(t, <-waits)
		require.Empty(t, published)
		time.Sleep(30 * time.Second)
		require.ElementsMatch(t, []string{"mail slow 1", "mail slow 1", "mail 1 1"}, disk.took())
		process.goOn()
		require.NoError(t, <-published)
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail of the stopped process 1"}, disk.took())
		requireBalanced(t, first)
		requireBalanced(t, second)
		shutdown(t, second)
		time.Sleep(time.Second)
		require.True(t, process.Lease().IsHeld(), "it is a standby again")
		shutdown(t, first)
		require.Empty(t, disk.Dump().Records)
		require.Empty(t, disk.Dump().Incoming)
	})
}

// After a long outage of the store, a standby looks at the lease soon, although it is the only process: no event waits for
// longer than a part of the time of a lease.
func TestS6_AStandbyReopensSoonAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 20 * time.Second
		var fail, down atomic.Bool
		disk := newDisk(storetest.WithPatience(lease), storetest.WithFaults(func(int, *driver.Batch) (f storetest.Fault) {
			if fail.Swap(false) {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		s := &spyStore{before: func(method string) {
			if method == "Reopen" && down.Load() {
				panic("the server does not answer")
			}
		}}
		bus := disk.spy(t, s, eventbus.WithStandby())
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		for range 2 {
			fail.Store(true)
			down.Store(true)
			_, err := bus.Publish(t.Context(), "a", "fails")
			require.Error(t, err)
			time.Sleep(2 * time.Minute)
			require.Empty(t, disk.took())
			down.Store(false)
			time.Sleep(lease / 10)
			mustPublish(t, bus, "a", "works")
			time.Sleep(time.Second)
			require.Contains(t, disk.took(), "mail works 1")
		}
		shutdown(t, bus)
	})
}
