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
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

// disk is the data of a model store, and what the handlers of its processes have done.
type disk struct {
	*storetest.Model
	mu    sync.Mutex // guards the following
	calls []string
}

func newDisk(opts ...storetest.Option) *disk { return &disk{Model: storetest.NewModel(opts...)} }

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
	store, err := d.Open()
	require.NoError(t, err)
	return newBus(t, append([]eventbus.Option{eventbus.WithStore(store), eventbus.WithRetry(retry(2, time.Second))}, opts...)...)
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

// crash ends the process of a bus as SIGKILL does.
func (d *disk) crash(bus *eventbus.Bus) {
	d.Crash()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = bus.Shutdown(ctx) // its goroutines end; nothing that it does reaches the disk
	synctest.Wait()
}

func always(err error) func(string, int) error {
	return func(string, int) error { return err }
}

func TestS3_WhatWasAcceptedIsHandledAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		for i := range 3 {
			mustPublish(t, bus, "order.placed", fmt.Sprint(i), eventbus.Key("k"), eventbus.Metadata("trace", "7"))
		}
		disk.crash(bus)
		require.Empty(t, disk.took())

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

func TestD7_PublishReturnsWhenTheStoreHasTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(int, *eventbus.Batch) storetest.Fault {
			return storetest.Fault{Delay: time.Second}
		}))
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		began := time.Now()
		mustPublish(t, bus, "a", "x")
		require.Equal(t, time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := bus.Publish(ctx, "a", "y")
		var unknown *eventbus.IndeterminateError
		require.ErrorAs(t, err, &unknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, unknown.ID.IsZero())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 1", "mail y 1"}, disk.took())
		shutdown(t, bus)
	})
}

func TestD3_AttemptsAndFailuresSurviveACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "stock", nil)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"stock x 1", "mail x 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "stock", nil)
		disk.handles(t, again, "mail", always(errBroken))
		require.NoError(t, again.Start(t.Context()))
		require.Empty(t, disk.took(), "the retry keeps its due time")
		time.Sleep(time.Second)
		require.Equal(t, []string{"mail x 2"}, disk.took())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail x 3"}, disk.took())
		l := oneLetter(t, again)
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, []string{"stock"}, l.Succeeded)
		require.Equal(t, 3, l.Attempts)
		require.Len(t, l.Failures, 3)
		require.Equal(t, "boom", l.Failures[0].Error)
		require.Equal(t, "broken", l.Failures[2].Error)
		require.Equal(t, "*errors.errorString", l.Failures[0].Class)
		require.JSONEq(t, `"x"`, string(l.Event.Payload.(json.RawMessage)))
		shutdown(t, again)
	})
}

func TestD5_KeysKeepTheirOrderAcrossACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		fails := func(payload string, attempt int) error {
			if payload == "0" && attempt < 3 {
				return errBoom
			}
			return nil
		}
		disk.handles(t, bus, "mail", fails)
		require.NoError(t, bus.Start(t.Context()))
		for i := range 4 {
			mustPublish(t, bus, "a", fmt.Sprint(i), eventbus.Key("k"))
		}
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", fails)
		require.NoError(t, again.Start(t.Context()))
		mustPublish(t, again, "a", "4", eventbus.Key("k"))
		require.Empty(t, disk.took())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 0 2", "mail 0 3", "mail 1 1", "mail 2 1", "mail 3 1", "mail 4 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestS2_ShutdownLeavesRetriesToTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(errBoom))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		began := time.Now()
		shutdown(t, bus)
		require.Less(t, time.Since(began), time.Second)
		require.EqualValues(t, 3, bus.Metrics().Ledger.Stored)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 0 2", "mail 1 1"}, disk.took())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"mail later 1"}, disk.took())
		for _, r := range disk.Dump().Records {
			require.Zero(t, r.Crashes)
		}
		shutdown(t, again)
	})
}

func TestD5_AShutdownKeepsTheOrderOfAKeyWithARetryInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", func(payload string, attempt int) error {
			if payload == "0" && attempt == 1 {
				return errBoom
			}
			return nil
		})
		mustSubscribe(t, bus, "slow.job", func(ctx context.Context, _ eventbus.Event) error {
			time.Sleep(time.Second)
			_, err := bus.Publish(ctx, "a", "1", eventbus.Key("k"))
			return err
		}, eventbus.Named("slow"))
		require.NoError(t, bus.Start(t.Context()))
		_, err := bus.Publish(t.Context(), "slow.job", "x")
		require.NoError(t, err)
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		time.Sleep(10 * time.Millisecond) // the pool adds a worker
		require.ElementsMatch(t, []string{"mail x 1", "mail 0 1"}, disk.took())
		shutdown(t, bus) // leaves the retry to the store, and waits for the slow handler
		require.Empty(t, disk.took())

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail 0 2", "mail 1 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestD8_TheDiskIsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(1))
		gate := make(chan struct{})
		disk.handles(t, bus, "mail", func(string, int) error { <-gate; return nil })
		require.NoError(t, bus.Start(t.Context()))
		want := map[string][]string{}
		for i := range 100 {
			key := []string{"k", "l"}[i%2]
			mustPublish(t, bus, "a", key+fmt.Sprint(i), eventbus.Key(key))
			want[key] = append(want[key], fmt.Sprintf("mail %s%d 1", key, i))
		}
		require.LessOrEqual(t, bus.Metrics().QueueDepth, 4)
		close(gate)
		got := map[string][]string{}
		for _, call := range disk.took() {
			key := call[len("mail "):][:1]
			got[key] = append(got[key], call)
		}
		require.Equal(t, want, got)
		mustPublish(t, bus, "a", "x")
		require.Equal(t, []string{"mail x 1"}, disk.took())
		l := bus.Metrics().Ledger
		require.Zero(t, l.Stored)
		require.Zero(t, l.Claimed)
		shutdown(t, bus)
	})
}

func TestS3_AMissingSubscriptionHoldsItsOwnDeliveriesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "old", nil)
		disk.handles(t, bus, "mail", nil)
		mustPublish(t, bus, "a", "0", eventbus.Key("k"))
		mustPublish(t, bus, "a", "1", eventbus.Key("k"))
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"mail 0 1", "mail 1 1"}, disk.took())
		disk.handles(t, again, "new", nil, eventbus.Formerly("old"))
		mustPublish(t, again, "a", "2", eventbus.Key("k"))
		require.Equal(t, []string{"new 0 1", "new 1 1", "mail 2 1", "new 2 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestE6_AStoreRemembersIDsAcrossACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		id := eventbus.NewEventID()
		mustPublish(t, bus, "a", "x", eventbus.ID(id))
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, id, mustPublish(t, again, "a", "x", eventbus.ID(id)))
		require.Equal(t, []string{"mail x 1"}, disk.took())
		_, err := again.Publish(t.Context(), "a", "y", eventbus.ID(id))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		time.Sleep(eventbus.DefaultIdempotencyWindow)
		mustPublish(t, again, "a", "y", eventbus.ID(id))
		require.Equal(t, []string{"mail y 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestL3_ReplayAndPurgeOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", always(eventbus.Permanent(errDead)))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 3 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		disk.took()
		disk.crash(bus)

		again, _ := disk.open(t)
		disk.handles(t, again, "mail", nil)
		require.NoError(t, again.Start(t.Context()))
		all := letters(t, again)
		require.Len(t, all, 3)
		require.NoError(t, again.DLQ().Replay(t.Context(), all[0].ID))
		require.ErrorIs(t, again.DLQ().Replay(t.Context(), all[0].ID), eventbus.ErrNotFound)
		require.NoError(t, again.DLQ().Purge(t.Context(), all[1].ID))
		require.ErrorIs(t, again.DLQ().Purge(t.Context(), all[1].ID), eventbus.ErrNotFound)
		report, err := again.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, 1, report.Replayed)
		require.ElementsMatch(t, []string{"mail 0 1", "mail 2 1"}, disk.took())
		require.Empty(t, letters(t, again))
		shutdown(t, again)
	})
}

func TestD7_PublishAndWaitOnAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(1), eventbus.WithConcurrency(1))
		disk.handles(t, bus, "mail", func(payload string, _ int) error {
			time.Sleep(time.Second)
			if payload == "dies" {
				return eventbus.Permanent(errDead)
			}
			return nil
		})
		require.NoError(t, bus.Start(t.Context()))
		var waits sync.WaitGroup
		for i := range 5 { // most of them wait on the disk
			waits.Go(func() {
				r, err := bus.PublishAndWait(t.Context(), "a", fmt.Sprint(i), eventbus.After(time.Duration(i%2)*time.Minute))
				if err != nil || r.Outcome != eventbus.Handled {
					t.Error(r, err)
				}
			})
		}
		waits.Wait()
		_, err := bus.PublishAndWait(t.Context(), "a", "dies")
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		disk.took()
		shutdown(t, bus)
	})
}

func TestE3_APayloadMustEncode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithPayloadLimit(100))
		disk.handles(t, bus, "mail", nil)
		for _, payload := range []any{make(chan int), func() {}, panics{}, string(make([]byte, 100))} {
			_, err := bus.Publish(t.Context(), "a", payload)
			require.ErrorIs(t, err, eventbus.ErrInvalidPayload)
			require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		}
		require.Empty(t, disk.Dump().Records)
		_, err := bus.Subscribe("*", ok)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		require.ErrorContains(t, err, "Named")
	})
}

type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic(errors.New("cannot")) }

// A store that fails at any batch, before or after it has applied it, costs no acknowledged event,
// and the bus goes on by itself.
func TestS3_AStoreFailureRestartsTheBusInPlace(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter} {
		for batch := range 24 {
			t.Run(fmt.Sprint(kind, " ", batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { failAt(t, kind, batch) })
			})
		}
	}
}

func failAt(t *testing.T, kind storetest.FaultKind, batch int) {
	t.Helper()
	disk := newDisk(storetest.WithFaults(func(n int, _ *eventbus.Batch) storetest.Fault {
		if n == batch {
			return storetest.Fault{Kind: kind}
		}
		return storetest.Fault{}
	}))
	bus, logs := disk.open(t, eventbus.WithQueueCapacity(4), eventbus.WithConcurrency(2))
	fails := func(payload string, attempt int) error {
		time.Sleep(10 * time.Millisecond)
		if payload[1]%3 == 0 && attempt == 1 {
			return errBoom
		}
		return nil
	}
	disk.handles(t, bus, "mail", fails)
	disk.handles(t, bus, "stock", fails, eventbus.Concurrency(1))
	require.NoError(t, bus.Start(t.Context()))
	var accepted []string
	for i := range 8 {
		payload := fmt.Sprint([]string{"k", "l"}[i%2], i)
		for {
			_, err := bus.Publish(t.Context(), "a", payload, eventbus.Key(payload[:1]))
			var unknown *eventbus.IndeterminateError
			if err == nil {
				accepted = append(accepted, payload)
			} else if !errors.As(err, &unknown) {
				require.ErrorIs(t, err, eventbus.ErrStoreFailed)
				time.Sleep(time.Second)
				continue
			}
			break
		}
	}
	time.Sleep(time.Minute)
	calls := disk.took()
	defer func() {
		if t.Failed() {
			t.Logf("%+v\n%v", bus.Metrics().Ledger, logs.All())
			for _, r := range disk.Dump().Records {
				t.Logf("%+v", r)
			}
		}
	}()
	for _, payload := range accepted {
		for _, name := range []string{"mail", "stock"} {
			found := 0
			for _, call := range calls {
				if strings.HasPrefix(call, name+" "+payload+" ") {
					found++
				}
			}
			require.Positive(t, found, "%s %s: %v", name, payload, calls)
		}
	}
	for _, name := range []string{"mail k", "mail l", "stock k", "stock l"} {
		last := ""
		for _, call := range calls {
			if strings.HasPrefix(call, name) {
				payload := strings.Fields(call)[1]
				require.LessOrEqual(t, last, payload, "%v", calls)
				last = payload
			}
		}
	}
	require.Empty(t, disk.Dump().Records)
	requireBalanced(t, bus)
	if logs.FilterMessage("store failed: the bus restarts").Len() > 0 {
		require.Equal(t, 1, logs.FilterMessage("store reopened").Len())
	}
	shutdown(t, bus)
}

func TestC6_OperatorsOrdersSurviveACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		paused := disk.handles(t, bus, "paused", nil)
		held := disk.handles(t, bus, "held", nil)
		tripped := disk.handles(t, bus, "tripped", nil)
		resumed := disk.handles(t, bus, "resumed", nil)
		require.NoError(t, paused.Pause(eventbus.By("ann"), eventbus.Because("the disk is full")))
		require.NoError(t, held.HoldUntil(time.Now().Add(time.Hour)))
		require.NoError(t, tripped.Trip())
		require.NoError(t, errors.Join(resumed.Pause(), resumed.Resume()))
		require.ErrorIs(t, resumed.Pause(eventbus.By("\n")), eventbus.ErrInvalidOption)
		disk.crash(bus)
		require.Equal(t, "ann", disk.Dump().Orders[1].By)
		time.Sleep(10 * time.Second)

		again, _ := disk.open(t)
		var subs []*eventbus.Subscription
		for _, name := range []string{"paused", "held", "tripped", "resumed"} {
			subs = append(subs, disk.handles(t, again, name, nil))
		}
		require.NoError(t, again.Start(t.Context()))
		mustPublish(t, again, "a", "x")
		require.Equal(t, []string{"resumed x 1"}, disk.took())
		time.Sleep(19 * time.Second)
		require.Empty(t, disk.took())
		time.Sleep(time.Second)
		require.Equal(t, []string{"tripped x 1"}, disk.took())
		time.Sleep(time.Hour)
		require.Equal(t, []string{"held x 1"}, disk.took())
		require.NoError(t, subs[0].Resume())
		require.Equal(t, []string{"paused x 1"}, disk.took())
		shutdown(t, again)
	})
}

func TestC6_OrdersOfAnotherProcessAreObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		other := disk.Beside()
		order := func(o eventbus.Order) {
			done := make(chan error, 1)
			o.Subscription, o.At = "mail", time.Now()
			other.Submit(&eventbus.Batch{Now: time.Now(), Orders: []eventbus.Order{o}}, func(err error) { done <- err })
			require.NoError(t, <-done)
			time.Sleep(time.Second)
		}
		order(eventbus.Order{Pause: true})
		mustPublish(t, bus, "a", "x")
		require.Empty(t, disk.took())
		order(eventbus.Order{})
		require.Equal(t, []string{"mail x 1"}, disk.took())
		require.NoError(t, other.Close(t.Context()))
		shutdown(t, bus)
	})
}

// In a long attempt, each success is recorded when the handler has returned.
func TestD3_ALongAttemptRecordsItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		takes := func(d time.Duration) func(string, int) error {
			return func(string, int) error { time.Sleep(d); return nil }
		}
		disk.handles(t, bus, "quick", takes(50*time.Millisecond))
		disk.handles(t, bus, "slow", takes(50*time.Millisecond))
		disk.handles(t, bus, "hangs", takes(time.Hour))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", "x")
		time.Sleep(99 * time.Millisecond)
		require.Nil(t, disk.Dump().Records[0].Progress)
		time.Sleep(time.Millisecond)
		require.Equal(t, []string{"quick x 1", "slow x 1", "hangs x 1"}, disk.took())
		require.Equal(t, 2, disk.Dump().Records[0].Progress.Next)
		disk.crash(bus)
		disk.took()

		again, _ := disk.open(t)
		for _, name := range []string{"quick", "slow", "hangs"} {
			disk.handles(t, again, name, nil)
		}
		require.NoError(t, again.Start(t.Context()))
		require.Equal(t, []string{"hangs x 1"}, disk.took())
		shutdown(t, again)
		time.Sleep(time.Hour) // the first process's handler has returned
	})
}

func TestD8_MaxUnsettledBoundsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := newDisk().Open()
		require.NoError(t, err)
		_, err = eventbus.New(eventbus.WithStore(store), eventbus.RefuseWhenFull())
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		require.NoError(t, store.Close(t.Context()))

		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithMaxUnsettled(3))
		disk.handles(t, bus, "mail", func(string, int) error { time.Sleep(time.Second); return nil })
		for range 3 {
			mustPublish(t, bus, "a", "x", eventbus.Key("k"))
		}
		_, err = bus.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		require.NoError(t, bus.Start(t.Context()))
		began := time.Now()
		mustPublish(t, bus, "a", "x", eventbus.Key("k"))
		require.Equal(t, time.Second, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = bus.Publish(ctx, "a", "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		disk.crash(bus)

		again, _ := disk.open(t, eventbus.WithMaxUnsettled(3), eventbus.RefuseWhenFull())
		disk.handles(t, again, "mail", nil)
		_, err = again.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		require.NoError(t, again.Start(t.Context()))
		synctest.Wait()
		mustPublish(t, again, "a", "x", eventbus.After(time.Hour))
		mustPublish(t, again, "a", "x", eventbus.After(time.Hour))
		mustPublish(t, again, "a", "x", eventbus.After(time.Hour))
		_, err = again.Publish(t.Context(), "a", "x")
		require.ErrorIs(t, err, eventbus.ErrQueueFull)
		time.Sleep(time.Hour + time.Second)
		mustPublish(t, again, "a", "x")
		shutdown(t, again)
		disk.took()
	})
}

func TestS3_AnEventThatCrashesTheProcessIsIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		disk.handles(t, bus, "mail", nil)
		const events = 200
		for i := range events {
			payload := fmt.Sprint("fine ", i)
			if i == 120 {
				payload = "poison"
			}
			mustPublish(t, bus, "a", payload, eventbus.Key(fmt.Sprint(i%5)))
		}
		shutdown(t, bus)

		handled := map[string]int{}
		crashes := 0
		var letters []eventbus.DeadLetter
		for alive := true; alive; {
			bus, _ := disk.open(t, eventbus.WithConcurrency(4))
			dead := false // guarded by disk.mu
			mustSubscribe(t, bus, "*", eventbus.Typed(func(ctx context.Context, payload string) error {
				time.Sleep(time.Millisecond)
				disk.mu.Lock()
				if payload == "poison" && !dead {
					dead = true
					disk.Crash()
				}
				if !dead {
					handled[payload]++
				}
				ended := dead
				disk.mu.Unlock()
				if ended {
					<-ctx.Done()
				}
				return nil
			}), eventbus.Named("mail"))
			require.NoError(t, bus.Start(t.Context()))
			time.Sleep(time.Minute)
			disk.mu.Lock()
			alive = dead
			disk.mu.Unlock()
			if alive {
				crashes++
				require.Less(t, crashes, 10)
				disk.crash(bus)
				time.Sleep(time.Hour)
				continue
			}
			letters = append(letters, oneLetter(t, bus))
			shutdown(t, bus)
		}
		require.Equal(t, 5, crashes, "twice in traffic, then in groups of 64, 8 and 1")
		require.Len(t, letters, 1)
		require.Equal(t, eventbus.ReasonCrash, letters[0].Reason)
		require.JSONEq(t, `"poison"`, string(letters[0].Event.Payload.(json.RawMessage)))
		require.Len(t, handled, events-1)
	})
}

func TestD12_TheStoreKeepsWhatALineHasNoRoomFor(t *testing.T) {
	for _, crashes := range []bool{false, true} {
		t.Run(fmt.Sprint("crashes ", crashes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				bus, _ := disk.open(t)
				mail := disk.handles(t, bus, "mail", nil)
				require.NoError(t, mail.Pause())
				require.NoError(t, bus.Start(t.Context()))
				const events = eventbus.DefaultLineCapacity + 3000
				want := map[string][]string{}
				for i := range events {
					var options []eventbus.PublishOption
					key := ""
					if i%3 == 0 {
						key = fmt.Sprint("k", i%7)
						options = append(options, eventbus.Key(key))
					}
					mustPublish(t, bus, "a", fmt.Sprintf("%s/%d", key, i), options...)
					want[key] = append(want[key], fmt.Sprintf("mail %s/%d 1", key, i))
				}
				synctest.Wait()
				l := bus.Metrics().Ledger
				require.EqualValues(t, eventbus.DefaultLineCapacity, l.Held)
				require.EqualValues(t, 3000, l.Stored)
				require.Empty(t, letters(t, bus))
				if crashes {
					disk.crash(bus)
					bus, _ = disk.open(t)
					mail = disk.handles(t, bus, "mail", nil)
					require.NoError(t, bus.Start(t.Context()))
					synctest.Wait()
				}
				require.NoError(t, mail.Resume())
				time.Sleep(time.Minute)
				got := map[string][]string{}
				for _, call := range disk.took() {
					key, _, _ := strings.Cut(strings.TrimPrefix(call, "mail "), "/")
					got[key] = append(got[key], call)
				}
				require.ElementsMatch(t, want[""], got[""])
				delete(want, "")
				delete(got, "")
				require.Equal(t, want, got)
				require.Empty(t, disk.Dump().Records)
				require.Zero(t, bus.Metrics().Ledger.Stored)
				shutdown(t, bus)
			})
		})
	}
}

func TestR5_UnsubscribeDeadLettersWhatTheStoreHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(2), eventbus.WithConcurrency(1))
		gate := make(chan struct{})
		mail := disk.handles(t, bus, "mail", func(string, int) error { <-gate; return nil })
		require.NoError(t, bus.Start(t.Context()))
		for i := range 10 {
			mustPublish(t, bus, "a", fmt.Sprint(i))
		}
		mustPublish(t, bus, "a", "later", eventbus.After(time.Hour))
		synctest.Wait()
		mail.Unsubscribe()
		close(gate)
		require.Equal(t, []string{"mail 0 1"}, disk.took())
		time.Sleep(time.Hour + time.Second)
		all := letters(t, bus)
		require.Len(t, all, 10)
		for i := range all {
			require.Equal(t, eventbus.ReasonUnsubscribed, all[i].Reason)
		}
		shutdown(t, bus)
	})
}

// A publication whose outcome is unknown can be repeated with its id, and is accepted once.
func TestD7_AnUnknownOutcomeCanBeRepeated(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.NoFault, storetest.FailBefore, storetest.FailAfter} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				faults := 0
				disk := newDisk(storetest.WithFaults(func(_ int, b *eventbus.Batch) storetest.Fault {
					if len(b.New) == 0 || faults > 0 {
						return storetest.Fault{}
					}
					faults++
					return storetest.Fault{Kind: kind, Delay: time.Second}
				}))
				bus, _ := disk.open(t)
				disk.handles(t, bus, "mail", nil)
				require.NoError(t, bus.Start(t.Context()))
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				_, err := bus.Publish(ctx, "a", "x")
				var unknown *eventbus.IndeterminateError
				require.ErrorAs(t, err, &unknown)
				for {
					id, err := bus.Publish(t.Context(), "a", "x", eventbus.ID(unknown.ID))
					if err == nil {
						require.Equal(t, unknown.ID, id)
						break
					}
					time.Sleep(time.Second)
				}
				time.Sleep(time.Minute)
				calls := disk.took()
				n := 0
				for _, call := range calls {
					if call == "mail x 1" {
						n++
					}
				}
				require.Equal(t, 1, n, "%v", calls)
				_, err = bus.Publish(t.Context(), "a", "y", eventbus.ID(unknown.ID))
				require.ErrorIs(t, err, eventbus.ErrDuplicateID)
				shutdown(t, bus)
			})
		})
	}
}
