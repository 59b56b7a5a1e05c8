package contracttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

func TestS3_AStoreBelongsToOneBus(t *testing.T) {
	model := storetest.NewModel()
	store := model.Open()
	bus, _ := newBus(t, eventbus.WithStore(store))
	_, err := eventbus.New(eventbus.WithStore(store))
	var refused *eventbus.OptionError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "WithStore", refused.Option)
	_, err = eventbus.New(eventbus.WithStore(model.Open()), eventbus.WithStore(model.Open())) // Shutdown would close only one
	requireOptionError(t, err, "WithStore")
	beside, _ := newBus(t, eventbus.WithStore(model.Open()))
	shutdown(t, beside)
	shutdown(t, bus)
	for range 2 { // a failed New does not keep the store
		_, err = eventbus.New(eventbus.WithStore(store))
		require.ErrorIs(t, err, eventbus.ErrStoreClosed)
	}
}

// disk is the data of a model store, and what the handlers of its processes have done.
type disk struct {
	*storetest.Model
	mu     sync.Mutex // guards the following
	calls  []string
	stores map[*eventbus.Bus]driver.Store // of open
}

func newDisk(opts ...storetest.Option) *disk {
	return &disk{Model: storetest.NewModel(opts...), stores: make(map[*eventbus.Bus]driver.Store)}
}

func (d *disk) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}

// took returns the calls so far, and clears them.
func (d *disk) took() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

// open makes the bus of a process. It is not started.
func (d *disk) open(t *testing.T, opts ...eventbus.Option) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	store := d.Open()
	bus, logs := newBus(t, append([]eventbus.Option{eventbus.WithStore(store), eventbus.WithRetry(retry(2, time.Second))}, opts...)...)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stores[bus] = store
	return bus, logs
}

// storeOf returns the store of a bus that open has made, or nil.
func (d *disk) storeOf(bus *eventbus.Bus) driver.Store {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stores[bus]
}

// handles subscribes a handler that notes its calls and returns what result returns.
func (d *disk) handles(t *testing.T, bus *eventbus.Bus, name string, result func(payload string, attempt int) error, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	return mustSubscribe(t, bus, "*", eventbus.Typed(func(ctx context.Context, payload string) error {
		delivery, _ := eventbus.FromContext(ctx)
		d.note("%s %s %d", name, payload, delivery.Attempt)
		if result == nil {
			return nil
		}
		return result(payload, delivery.Attempt)
	}), append([]eventbus.SubscribeOption{eventbus.Named(name)}, opts...)...)
}

// crash ends the process of a bus as SIGKILL does: that of open, whether it has the lease or not, or another one that has it.
func (d *disk) crash(bus *eventbus.Bus) {
	if store := d.storeOf(bus); store != nil {
		d.Kill(store)
	} else {
		d.Crash()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = bus.Shutdown(ctx) // its goroutines end; nothing that it does reaches the disk
	synctest.Wait()
}

// startLater calls Start, and returns its result later. Start has begun to wait, if it waits.
func startLater(t *testing.T, bus *eventbus.Bus) (began <-chan error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- bus.Start(context.Background()) }()
	synctest.Wait()
	return ended
}

func always(err error) func(string, int) error {
	return func(string, int) error { return err }
}

func TestS3_WhatWasAcceptedIsHandledAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		slow(t, bus, "mail")
		for i := range 3 {
			mustPublish(t, bus, "order.placed", fmt.Sprint(i), eventbus.Key("k"), eventbus.Metadata("trace", "7"))
		}
		disk.crash(bus)
		require.Len(t, disk.Dump().Records, 3)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail 0 1", "mail 1 1", "mail 2 1"}, disk.took())
		l := again.Metrics().Ledger
		require.EqualValues(t, 3, l.Claimed)
		require.EqualValues(t, 3, l.Handled)
		require.Empty(t, disk.Dump().Records)
		shutdown(t, again)
	})
}

// What a process accepts before Start has no record. The next one takes it in.
func TestS3_WhatWasAcceptedBeforeStartIsHandledAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		for i := range 3 {
			mustPublish(t, bus, "order.placed", fmt.Sprint(i), eventbus.Key("k"), eventbus.Metadata("trace", "7"))
		}
		require.Zero(t, bus.Metrics().Ledger.Accepted)
		disk.crash(bus)
		require.Empty(t, disk.Dump().Records)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail 0 1", "mail 1 1", "mail 2 1"}, disk.took())
		l := again.Metrics().Ledger
		require.EqualValues(t, 3, l.Accepted, "the process that takes it in counts it")
		require.EqualValues(t, 3, l.Handled)
		require.Empty(t, disk.Dump().Incoming)
		shutdown(t, again)
	})
}
