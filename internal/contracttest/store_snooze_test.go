package contracttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// The due time of a snooze, and the number of them, survive a crash. Only later events of the key at the subscription wait.
func TestF6_ASnoozeSurvivesACrash(t *testing.T) {
	for _, key := range []string{"", "k"} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			calls := 0
			subscribe := func() *eventbus.Bus {
				bus, _ := disk.open(t)
				disk.handles(t, bus, "mail", func(payload string, _ int) error {
					if calls++; payload == "1" && calls == 1 {
						return eventbus.Snooze(time.Hour)
					}
					return nil
				})
				disk.handles(t, bus, "audit", nil)
				require.NoError(t, bus.Start(t.Context()))
				return bus
			}
			bus := subscribe()
			var opts []eventbus.PublishOption
			if key != "" {
				opts = append(opts, eventbus.Key(key))
			}
			id := mustPublish(t, bus, "a", "1", opts...)
			time.Sleep(30 * time.Minute)
			require.EqualValues(t, 1, bus.Metrics().Ledger.Snoozed)
			disk.crash(bus)

			bus = subscribe()
			mustPublish(t, bus, "a", "2", opts...)
			synctest.Wait()
			want := []string{"mail 1 1", "audit 1 1", "mail 2 1", "audit 2 1"}
			if key != "" {
				want = []string{"mail 1 1", "audit 1 1", "audit 2 1"}
			}
			require.Equal(t, want, disk.took())
			status, err := bus.Event(t.Context(), id)
			require.NoError(t, err)
			require.Len(t, status.Dispatches, 1)
			is := status.Dispatches[0]
			require.Equal(t, 1, is.Snoozes)
			require.WithinDuration(t, time.Now().Add(30*time.Minute), is.Due, time.Millisecond)
			time.Sleep(29 * time.Minute)
			require.Empty(t, disk.took())
			time.Sleep(2 * time.Minute)
			want = []string{"mail 1 1"}
			if key != "" {
				want = append(want, "mail 2 1")
			}
			require.Equal(t, want, disk.took())
			shutdown(t, bus)
			require.Empty(t, disk.Dump().Records)
		})
	}
}

// A store keeps what sleeps beyond the line's capacity. It is no reason for new deliveries to wait.
func TestF6_TheStoreKeepsWhatALineHasNoRoomFor(t *testing.T) {
	ofManyEvents(t)
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		asleep := make(map[string]bool)
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			if strings.HasPrefix(payload, "s") && !asleep[payload] {
				asleep[payload] = true
				return eventbus.Snooze(time.Hour)
			}
			return nil
		}, eventbus.Concurrency(1))
		require.NoError(t, bus.Start(t.Context()))
		const events = eventbus.DefaultLineCapacity + 500
		for i := range events {
			mustPublish(t, bus, "a", fmt.Sprint("s", i))
		}
		synctest.Wait()
		l := bus.Metrics().Ledger
		require.EqualValues(t, eventbus.DefaultLineCapacity, l.Snoozed)
		require.EqualValues(t, 500, l.Stored)
		mustPublish(t, bus, "a", "now")
		synctest.Wait()
		require.Equal(t, "mail now 1", disk.took()[events])
		time.Sleep(2 * time.Hour)
		require.Equal(t, events, len(disk.took())) //nolint:testifylint // Len would print them
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
	})
}

// Shutdown leaves what sleeps to the store, and the next process has it when it is due.
func TestF6_ShutdownLeavesItToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(eventbus.Snooze(time.Hour)))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "1")
		synctest.Wait()
		began := time.Now()
		shutdown(t, bus)
		require.Zero(t, time.Since(began))

		bus, _ = disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Hour - time.Second)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"mail 1 1"}, disk.took())
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
	})
}

// Throttle is not persisted: after a crash the first call hears it again.
func TestF8_ACrashForgetsTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(eventbus.Throttle(errBoom, time.Minute)))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 3 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
			synctest.Wait()
		}
		require.EqualValues(t, 3, bus.Metrics().Ledger.Throttled)
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		disk.crash(bus)

		bus, _ = disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"mail 0 1", "mail 1 1", "mail 2 1"}, disk.took())
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
	})
}

// If a restart isolates a subscription, its snoozed deliveries still sleep, and later deliveries of the key wait behind them.
func TestF6_ASleeperThatIsIsolatedNow(t *testing.T) {
	for _, key := range []string{"", "k"} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			slept := false
			subscribe := func(opts ...eventbus.SubscribeOption) (*eventbus.Bus, *eventbus.Subscription) {
				bus, _ := disk.open(t)
				first := disk.handles(t, bus, "first", nil)
				disk.handles(t, bus, "mail", func(payload string, _ int) error {
					if payload == "1" && !slept {
						slept = true
						return eventbus.Snooze(time.Hour)
					}
					return nil
				}, opts...)
				start(t, bus)
				return bus, first
			}
			bus, first := subscribe()
			require.NoError(t, first.Pause())
			var opts []eventbus.PublishOption
			if key != "" {
				opts = append(opts, eventbus.Key(key))
			}
			id := mustPublish(t, bus, "a", "1", opts...)
			mustPublish(t, bus, "a", "2", opts...)
			time.Sleep(time.Minute)
			want := []string{"mail 1 1", "mail 2 1"}
			require.Equal(t, want[:2-len(key)], disk.took())
			shutdown(t, bus)

			bus, _ = subscribe(eventbus.Isolated())
			time.Sleep(58 * time.Minute)
			require.Empty(t, disk.took())
			status, err := bus.Event(t.Context(), id)
			require.NoError(t, err)
			asleep := slices.IndexFunc(status.Dispatches, func(is eventbus.DispatchInfo) bool { return is.Parked == eventbus.ParkSnoozed })
			require.GreaterOrEqual(t, asleep, 0)
			require.Equal(t, 1, status.Dispatches[asleep].Snoozes)
			time.Sleep(2 * time.Minute)
			if key == "" {
				want = want[:1]
			}
			require.Equal(t, want, disk.took())
			shutdown(t, bus)
		})
	}
}

// A delivery with a key was snoozed in an earlier process. After a restart it stays snoozed, even if other deliveries fill its line.
func TestF6_ASleeperAtAStartWithAFullLine(t *testing.T) {
	for _, parked := range []int{5, 50} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			first, _ := disk.open(t)
			s := disk.handles(t, first, "mail", func(payload string, _ int) error {
				if payload == "sleeps" {
					return eventbus.Snooze(time.Hour)
				}
				return nil
			})
			start(t, first)
			mustPublish(t, first, "a", "sleeps", eventbus.Key("k"))
			require.Equal(t, []string{"mail sleeps 1"}, disk.took())
			require.NoError(t, s.Pause())
			for range parked {
				mustPublish(t, first, "a", "x")
			}
			synctest.Wait()
			shutdown(t, first)

			bus, _ := disk.open(t)
			s = disk.handles(t, bus, "mail", nil, eventbus.LineCapacity(10))
			start(t, bus)
			time.Sleep(time.Second)
			require.NoError(t, s.Resume())
			time.Sleep(time.Second) // the line has room again
			mustPublish(t, bus, "a", "later", eventbus.Key("k"))
			time.Sleep(2 * time.Hour)
			took := slices.DeleteFunc(disk.took(), func(call string) bool { return call == "mail x 1" })
			require.Equal(t, []string{"mail sleeps 1", "mail later 1"}, took)
			require.Empty(t, letters(t, bus))
			shutdown(t, bus)
			require.Empty(t, disk.Dump().Records)
		})
	}
}

// A call that goes on while another subscription takes its name over may postpone its delivery: later ones of the key wait for it.
func TestF6_ASnoozeAcrossATakeOver(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t, eventbus.WithConcurrency(3), eventbus.WithQueueCapacity(10))
			free, goOn := make(chan struct{}), make(chan struct{})
			mustSubscribe(t, bus, "blocks", until(free), eventbus.Named("blocks"), eventbus.Timeout(time.Hour))
			first := mustSubscribe(t, bus, "order", func(context.Context, eventbus.Event) error {
				<-goOn
				return eventbus.Snooze(time.Hour)
			}, eventbus.Named("crm"), eventbus.LineCapacity(10), eventbus.Timeout(time.Hour))
			start(t, bus)
			mustPublish(t, bus, "order", "1", eventbus.Key("k"))
			synctest.Wait()
			if busy { // the feeder has not claimed what may be parked for the name
				for range 20 {
					mustPublish(t, bus, "blocks", nil)
				}
				synctest.Wait()
			}
			require.NoError(t, first.Detach())
			mustSubscribe(t, bus, "order", eventbus.Typed(func(_ context.Context, payload string) error {
				disk.note("%s", payload)
				return nil
			}), eventbus.Named("crm"), eventbus.LineCapacity(10))
			synctest.Wait()
			close(goOn)
			time.Sleep(time.Minute)
			mustPublish(t, bus, "order", "2", eventbus.Key("k"))
			close(free)
			time.Sleep(2 * time.Hour)
			require.Equal(t, []string{"1", "2"}, disk.took())
			shutdown(t, bus)
		})
	}
}

// What sleeps is listed as parked, also by that state, until RetryNow has woken it.
func TestL6_ASleeperIsFoundByItsState(t *testing.T) {
	for _, key := range []string{"", "k"} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			bus, _ := disk.open(t)
			disk.handles(t, bus, "mail", func(string, int) error { return eventbus.Snooze(time.Hour) })
			start(t, bus)
			id := mustPublish(t, bus, "a", "x", eventbus.Key(key))
			synctest.Wait()
			in := func(bus *eventbus.Bus) (all []eventbus.DispatchState) {
				for _, state := range []eventbus.DispatchState{eventbus.DispatchQueued, eventbus.DispatchWaiting, eventbus.DispatchParked} {
					page, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{State: state})
					require.NoError(t, err)
					for _, d := range page.Dispatches {
						require.Equal(t, state, d.State)
						all = append(all, state)
					}
				}
				return all
			}
			parked := []eventbus.DispatchState{eventbus.DispatchParked}
			require.Equal(t, parked, in(bus))
			shutdown(t, bus)
			tool := disk.tool(t)
			require.Equal(t, parked, in(tool))
			_, err := tool.RetryNow(t.Context(), id)
			require.NoError(t, err)
			require.NotEqual(t, parked, in(tool))
			require.Len(t, in(tool), 1)
			shutdown(t, tool)
		})
	}
}

// Drain waits for a retry that only the store has, and for nothing that sleeps there.
func TestF6_DrainAndWhatOnlyTheStoreHas(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disk := newDisk()
			first, _ := disk.open(t)
			disk.handles(t, first, "mail", func(payload string, _ int) error {
				if payload == "sleeps" {
					return eventbus.Snooze(100 * time.Hour)
				}
				return errBoom
			}, eventbus.Retry(retry(5, 5*time.Hour)))
			start(t, first)
			mustPublish(t, first, "a", "sleeps")
			mustPublish(t, first, "a", "sleeps", eventbus.Key("k"))
			if fails {
				mustPublish(t, first, "a", "fails")
			}
			synctest.Wait()
			shutdown(t, first)

			bus, _ := disk.open(t)
			disk.handles(t, bus, "mail", nil)
			start(t, bus)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := bus.Drain(ctx)
			cancel()
			require.Equal(t, fails, err != nil, "%v", err)
			shutdown(t, bus)
		})
	}
}

// A page of a list by state goes on until it is full, past records that have the state only in the store.
func TestL6_APageByStateIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithConcurrency(1))
		fails := mustSubscribe(t, bus, "fails", failing(errBoom), eventbus.Named("fails"), eventbus.Circuit(eventbus.NoCircuit()), eventbus.Retry(retry(5, time.Hour)))
		parks := mustSubscribe(t, bus, "parks", ok, eventbus.Named("parks"))
		blocks := make(chan struct{})
		mustSubscribe(t, bus, "blocks", until(blocks), eventbus.Named("blocks"), eventbus.Timeout(1000*time.Hour))
		start(t, bus)
		require.NoError(t, parks.Pause())
		for range 250 {
			mustPublish(t, bus, "fails", nil)
		}
		for range 3 {
			mustPublish(t, bus, "parks", nil)
		}
		synctest.Wait()
		listed := func(q eventbus.DispatchQuery) (page eventbus.DispatchPage) {
			t.Helper()
			page, err := bus.Dispatches(t.Context(), q)
			require.NoError(t, err)
			for _, d := range page.Dispatches {
				require.Equal(t, q.State, d.State)
			}
			return page
		}
		page := listed(eventbus.DispatchQuery{State: eventbus.DispatchParked, Limit: 2})
		require.Len(t, page.Dispatches, 2)
		last := listed(eventbus.DispatchQuery{State: eventbus.DispatchParked, Limit: 2, After: page.Next})
		require.Len(t, last.Dispatches, 1)
		require.NotEqual(t, page.Dispatches[1].Event, last.Dispatches[0].Event)
		require.Empty(t, last.Next)

		mustPublish(t, bus, "blocks", nil)
		time.Sleep(2 * time.Hour) // the retries are due, and queue for the only worker
		require.Len(t, listed(eventbus.DispatchQuery{State: eventbus.DispatchQueued, Subscription: fails.ID(), Limit: 200}).Dispatches, 200)
		close(blocks)
		shutdown(t, bus)
	})
}
