package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// until is a handler that returns when it is released or stopped.
func until(release <-chan struct{}) eventbus.Handler {
	return func(ctx context.Context, _ eventbus.Event) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}
}

// whereabouts is what became of an event.
func whereabouts(t *testing.T, bus *eventbus.Bus, id eventbus.EventID) eventbus.EventStatus {
	t.Helper()
	time.Sleep(time.Millisecond) // the pool starts a worker
	synctest.Wait()
	status, err := bus.Event(context.Background(), id)
	require.NoError(t, err)
	require.Equal(t, id, status.ID)
	return status
}

// onlyDispatch is the only dispatch of an event that has no letter.
func onlyDispatch(t *testing.T, bus *eventbus.Bus, id eventbus.EventID) eventbus.DispatchInfo {
	t.Helper()
	status := whereabouts(t, bus, id)
	require.Len(t, status.Dispatches, 1)
	require.Empty(t, status.Letters.Letters)
	require.False(t, status.IsSettled())
	require.Equal(t, id, status.Dispatches[0].Event)
	return status.Dispatches[0]
}

// onBothBuses runs a test with a bus in memory, and with one over a store.
func onBothBuses(t *testing.T, test func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus)) {
	for name, store := range map[string]bool{"memory": false, "store": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, func(opts ...eventbus.Option) *eventbus.Bus {
					opts = append([]eventbus.Option{eventbus.WithRetry(retry(2, time.Second))}, opts...)
					if store {
						bus, _ := newDisk().open(t, opts...)
						return bus
					}
					bus, _ := newBus(t, opts...)
					return bus
				})
			})
		})
	}
}

func TestO6_AnEventIsFoundWhereverItIs(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		release := make(chan struct{})
		subscribe := func(pattern string, h eventbus.Handler, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
			return mustSubscribe(t, bus, pattern, h, append([]eventbus.SubscribeOption{eventbus.Named(pattern), eventbus.Circuit(eventbus.NoCircuit())}, opts...)...)
		}
		subscribe("runs", until(release), eventbus.Timeout(time.Hour))
		subscribe("fails", failing(errBoom))
		paused := subscribe("paused", ok)
		subscribe("limited", until(release), eventbus.Concurrency(1), eventbus.Timeout(time.Hour))
		subscribe("ok", ok)

		early := mustPublish(t, bus, "runs", "early")
		info := onlyDispatch(t, bus, early)
		if bus.Metrics().Store == nil {
			require.Equal(t, eventbus.DispatchQueued, info.State)
		} else {
			require.Equal(t, eventbus.DispatchIncoming, info.State, "the bus has no lease before Start")
			require.True(t, info.InStore)
			require.Equal(t, []string{"runs"}, info.Targets)
		}
		require.Zero(t, info.Attempts)
		require.NoError(t, bus.Start(t.Context()))

		info = onlyDispatch(t, bus, early)
		require.Equal(t, eventbus.DispatchInfo{
			Event: early, Type: "runs", Published: info.Published, State: eventbus.DispatchRunning,
			Subscription: "runs", Targets: []string{"runs"}, Attempts: 1,
		}, info)

		failed := mustPublish(t, bus, "fails", nil)
		info = onlyDispatch(t, bus, failed)
		require.Equal(t, eventbus.DispatchWaiting, info.State)
		require.Equal(t, "boom", info.LastError)
		require.Equal(t, 1, info.Attempts)
		require.Equal(t, time.Second, info.Due.Sub(info.Published).Round(10*time.Millisecond))

		later := mustPublish(t, bus, "ok", nil, eventbus.After(time.Hour))
		info = onlyDispatch(t, bus, later)
		require.Equal(t, eventbus.DispatchScheduled, info.State)
		require.Equal(t, time.Hour, info.Due.Sub(info.Published).Round(10*time.Millisecond))

		require.NoError(t, paused.Pause())
		held := mustPublish(t, bus, "paused", nil, eventbus.Key("k"))
		info = onlyDispatch(t, bus, held)
		require.Equal(t, eventbus.DispatchParked, info.State)
		require.Equal(t, eventbus.ParkPaused, info.Parked)
		require.Equal(t, "k", info.Key)

		running := mustPublish(t, bus, "limited", nil)
		require.Equal(t, eventbus.DispatchRunning, onlyDispatch(t, bus, running).State) // events without a key have no order
		throttled := mustPublish(t, bus, "limited", nil)
		info = onlyDispatch(t, bus, throttled)
		require.Equal(t, eventbus.ParkThrottled, info.Parked)

		given := mustPublish(t, bus, "ok", nil, eventbus.ID(eventbus.NewEventID()))
		require.True(t, whereabouts(t, bus, given).IsSettled())

		time.Sleep(10 * time.Second)
		status := whereabouts(t, bus, failed)
		require.True(t, status.IsSettled())
		require.Len(t, status.Letters.Letters, 1)
		require.Equal(t, eventbus.ReasonExhausted, status.Letters.Letters[0].Reason)

		close(release)
		synctest.Wait()
		handled := mustPublish(t, bus, "ok", nil)
		time.Sleep(time.Second)
		require.Equal(t, []string{"ok handled 1"}, endsOf(t, bus, handled))
		unknown := eventbus.NewEventID()
		_, err := bus.Event(t.Context(), unknown)
		require.ErrorIs(t, err, eventbus.ErrUnknownEvent)
		require.ErrorContains(t, err, unknown.String())
	})
}

// An event that a queue or an earlier event of its key holds back is queued.
func TestO6_AnEventBehindItsKeyIsQueued(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		for _, isolated := range []bool{false, true} {
			var opts []eventbus.Option
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			bus := open(opts...)
			release := make(chan struct{})
			for _, name := range []string{"a", "b"} {
				mustSubscribe(t, bus, "*", until(release), eventbus.Named(name))
			}
			require.NoError(t, bus.Start(t.Context()))
			first := mustPublish(t, bus, "x", nil, eventbus.Key("k"))
			second := mustPublish(t, bus, "x", nil, eventbus.Key("k"))
			want := []eventbus.DispatchInfo{{Subscription: "a", Targets: []string{"a", "b"}}}
			if isolated {
				want = []eventbus.DispatchInfo{{Subscription: "a", Targets: []string{"a"}}, {Subscription: "b", Targets: []string{"b"}}}
			}
			for id, state := range map[eventbus.EventID]eventbus.DispatchState{first: eventbus.DispatchRunning, second: eventbus.DispatchQueued} {
				status := whereabouts(t, bus, id)
				require.Len(t, status.Dispatches, len(want))
				for i, info := range status.Dispatches {
					require.Equal(t, state, info.State)
					require.Equal(t, want[i].Subscription, info.Subscription)
					require.Equal(t, want[i].Targets, info.Targets)
				}
			}
			close(release)
			shutdown(t, bus)
		}
	})
}

// A delivery that was split off is a dispatch of its own, and an open circuit holds it.
func TestO6_ASplitDeliveryIsSeenBesideTheOthers(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		release := make(chan struct{})
		first := mustSubscribe(t, bus, "*", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "*", until(release), eventbus.Named("second"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, first.Trip())
		id := mustPublish(t, bus, "x", nil)
		status := whereabouts(t, bus, id)
		require.Len(t, status.Dispatches, 2)
		states := make(map[string]eventbus.DispatchInfo)
		for _, info := range status.Dispatches {
			states[info.Subscription] = info
		}
		require.Equal(t, eventbus.ParkCircuit, states["first"].Parked)
		require.Equal(t, eventbus.DispatchRunning, states["second"].State)
		close(release)
		require.NoError(t, first.Reset())
		shutdown(t, bus)
	})
}

func TestO6_WhatOnlyTheStoreHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "a", "x")
		later := mustPublish(t, bus, "a", "y", eventbus.After(time.Hour))
		require.True(t, onlyDispatch(t, bus, later).InStore)
		require.False(t, onlyDispatch(t, bus, id).InStore)
		disk.crash(bus)

		beside, _ := newBus(t, eventbus.WithStore(disk.Open()))
		info := onlyDispatch(t, beside, id)
		require.Equal(t, eventbus.DispatchWaiting, info.State)
		require.Equal(t, "boom", info.LastError)
		require.Equal(t, []string{"mail"}, info.Targets)
		shutdown(t, beside)

		again, _ := disk.open(t) // its subscription does not exist
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(2 * time.Second)
		info = onlyDispatch(t, again, id)
		require.Equal(t, eventbus.DispatchParked, info.State)
		require.Equal(t, eventbus.ParkMissing, info.Parked)
		require.Equal(t, "mail", info.Subscription)
		require.True(t, info.InStore)
		require.NoError(t, again.Shutdown(t.Context()))
		_, err := again.Event(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrStoreClosed)
	})
}

// An event that stays in its place is always found, whatever moves around it.
func TestO6_UnderLoadWhatStaysIsFound(t *testing.T) {
	for name, opts := range map[string][]eventbus.Option{
		"memory": nil, "isolation": {eventbus.WithIsolation()}, "store": nil, "store and isolation": {eventbus.WithIsolation()},
	} {
		t.Run(name, func(t *testing.T) {
			opts := append([]eventbus.Option{eventbus.WithRetry(retry(3, time.Millisecond)), withoutCircuit}, opts...)
			var bus *eventbus.Bus
			if strings.HasPrefix(name, "store") {
				bus, _ = newDisk().open(t, opts...)
			} else {
				bus, _ = newBus(t, opts...)
			}
			underLoadWhatStaysIsFound(t, bus)
		})
	}
}

func underLoadWhatStaysIsFound(t *testing.T, bus *eventbus.Bus) {
	release := make(chan struct{})
	mustSubscribe(t, bus, "stays", until(release), eventbus.Named("stays"), eventbus.Timeout(time.Hour))
	for _, name := range []string{"moves", "moves too"} {
		mustSubscribe(t, bus, "moves.*", func(ctx context.Context, _ eventbus.Event) error {
			if d, _ := eventbus.FromContext(ctx); d.Attempt < 3 {
				return errBoom
			}
			return nil
		}, eventbus.Named(name), eventbus.Concurrency(3))
	}
	require.NoError(t, bus.Start(t.Context()))
	stays := mustPublish(t, bus, "stays", nil)
	later := mustPublish(t, bus, "stays", nil, eventbus.After(time.Hour))
	where := func(id eventbus.EventID) eventbus.DispatchState {
		status, err := bus.Event(context.Background(), id)
		if err != nil || len(status.Dispatches) != 1 {
			t.Errorf("%+v %v", status, err)
			return ""
		}
		return status.Dispatches[0].State
	}
	begun := func() bool { // until then it moves
		status, err := bus.Event(context.Background(), stays)
		return err == nil && len(status.Dispatches) == 1 && status.Dispatches[0].State == eventbus.DispatchRunning
	}
	require.Eventually(t, begun, 10*time.Second, time.Millisecond)
	var publishers, readers sync.WaitGroup
	done := make(chan struct{})
	for i := range 2 {
		publishers.Go(func() {
			for n := range 150 {
				_, _ = bus.Publish(context.Background(), fmt.Sprintf("moves.%d", n%3), n, eventbus.Key(fmt.Sprint(i, n%7)))
				if n%50 == 0 {
					s := bus.Subscription("moves")
					if err := errors.Join(s.Pause(), s.Resume()); err != nil {
						t.Error(err)
					}
				}
			}
		})
		readers.Go(func() {
			for {
				if at := where(stays); at != eventbus.DispatchRunning {
					t.Errorf("what runs is %s", at)
				}
				if at := where(later); at != eventbus.DispatchScheduled {
					t.Errorf("what is scheduled is %s", at)
				}
				if _, err := bus.Dispatches(context.Background(), eventbus.DispatchQuery{}); err != nil {
					t.Error(err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	publishers.Wait()
	close(done)
	readers.Wait()
	close(release)
	require.NoError(t, cancelEvent(t.Context(), bus, later))
	require.Eventually(t, func() bool { return bus.Metrics().Ledger.Waiting == 0 }, 10*time.Second, time.Millisecond)
	shutdown(t, bus)
}

func TestO6_DispatchesInPages(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		release := make(chan struct{})
		mustSubscribe(t, bus, "order.*", until(release), eventbus.Named("orders"))
		mail := mustSubscribe(t, bus, "mail.*", ok, eventbus.Named("mail"))
		require.NoError(t, mail.Pause())
		require.NoError(t, bus.Start(t.Context()))
		var running, parked, scheduled []eventbus.EventID
		for i := range 25 {
			running = append(running, mustPublish(t, bus, "order.placed", i))
			parked = append(parked, mustPublish(t, bus, "mail.sent", i, eventbus.Key(fmt.Sprint(i%5))))
			scheduled = append(scheduled, mustPublish(t, bus, "order.late", i, eventbus.After(time.Hour)))
		}
		time.Sleep(10 * time.Millisecond)
		all := func(q eventbus.DispatchQuery) (ids []eventbus.EventID) {
			for {
				page, err := bus.Dispatches(t.Context(), q)
				require.NoError(t, err)
				require.LessOrEqual(t, len(page.Dispatches), 7)
				for _, info := range page.Dispatches {
					ids = append(ids, info.Event)
				}
				if q.After = page.Next; q.After == "" {
					return ids
				}
			}
		}
		require.Equal(t, running, all(eventbus.DispatchQuery{State: eventbus.DispatchRunning, Limit: 7}))
		require.Equal(t, parked, all(eventbus.DispatchQuery{State: eventbus.DispatchParked, Limit: 7}))
		require.Equal(t, scheduled, all(eventbus.DispatchQuery{State: eventbus.DispatchScheduled, Limit: 7}))
		require.Empty(t, all(eventbus.DispatchQuery{State: eventbus.DispatchQueued, Limit: 7}))
		require.Empty(t, all(eventbus.DispatchQuery{State: eventbus.DispatchWaiting, Limit: 7}))
		require.Len(t, all(eventbus.DispatchQuery{Limit: 7}), 75)
		require.Equal(t, parked, all(eventbus.DispatchQuery{Subscription: "mail", Limit: 7}))
		require.Len(t, all(eventbus.DispatchQuery{Type: "order.*", Limit: 7}), 50)
		require.Len(t, all(eventbus.DispatchQuery{Key: "3", Limit: 7}), 5)

		for _, q := range []eventbus.DispatchQuery{{State: "lost"}, {Limit: -1}, {Limit: 10_001}, {After: "x"}, {State: eventbus.DispatchRunning, After: "x"}} {
			_, err := bus.Dispatches(t.Context(), q)
			require.ErrorIs(t, err, eventbus.ErrInvalidOption, "%+v", q)
		}
		_, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{Type: "["})
		require.ErrorIs(t, err, eventbus.ErrInvalidPattern)
		close(release)
	})
}

func TestO6_CallsThatCannotProceed(t *testing.T) {
	id := eventbus.NewEventID()
	bus, _ := newBus(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func(*eventbus.Bus, context.Context) error{
		"Event": func(b *eventbus.Bus, ctx context.Context) error {
			_, err := b.Event(ctx, id)
			return err
		},
		"Dispatches": func(b *eventbus.Bus, ctx context.Context) error {
			_, err := b.Dispatches(ctx, eventbus.DispatchQuery{})
			return err
		},
	} {
		require.ErrorIs(t, call(nil, t.Context()), eventbus.ErrUninitialized, name)
		require.ErrorIs(t, call(&eventbus.Bus{}, t.Context()), eventbus.ErrUninitialized, name)
		require.ErrorIs(t, call(bus, nil), eventbus.ErrNilContext, name)
		require.ErrorIs(t, call(bus, ended), context.Canceled, name)
		require.ErrorContains(t, call(bus, ended), name, name)
	}
	_, err := bus.Event(t.Context(), id)
	require.ErrorIs(t, err, eventbus.ErrUnknownEvent)
}

// A dispatch has its payload if the query asks for it: what a test looks for that publishes in a transaction or for later.
func TestO6_DispatchesHaveTheirPayloadsWhenAsked(t *testing.T) {
	onBothEncoded(t, func(t *testing.T, bus *eventbus.Bus) {
		sub := mustSubscribe(t, bus, "*", ok, eventbus.Named("mail"))
		require.NoError(t, sub.Pause())
		later := mustPublish(t, bus, "order.reminder", placed{1, 2}, eventbus.After(time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order.placed", placed{3, 4})
		synctest.Wait()
		page, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{})
		require.NoError(t, err)
		require.Len(t, page.Dispatches, 2)
		for _, d := range page.Dispatches {
			require.Nil(t, d.Payload)
		}
		status, err := bus.Event(t.Context(), later)
		require.NoError(t, err)
		require.Nil(t, status.Dispatches[0].Payload)

		page, err = bus.Dispatches(t.Context(), eventbus.DispatchQuery{Type: "order.reminder", Payloads: true})
		require.NoError(t, err)
		require.Len(t, page.Dispatches, 1)
		require.JSONEq(t, `{"Order":1,"Total":2}`, string(page.Dispatches[0].Payload.(json.RawMessage)))
		page, err = bus.Dispatches(t.Context(), eventbus.DispatchQuery{State: eventbus.DispatchParked, Payloads: true})
		require.NoError(t, err)
		require.Len(t, page.Dispatches, 1)
		require.JSONEq(t, `{"Order":3,"Total":4}`, string(page.Dispatches[0].Payload.(json.RawMessage)))
	})
}
