package contracttest

import (
	"context"
	"fmt"
	"strings"
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

// idem is short for the option.
func idem(key string) eventbus.PublishOption { return eventbus.IdempotencyKey(key) }

// noting subscribes a handler that notes payloads.
func noting(t *testing.T, bus *eventbus.Bus, pattern string) *journal[string] {
	t.Helper()
	got := new(journal[string])
	mustSubscribe(t, bus, pattern, eventbus.Typed(func(_ context.Context, payload string) error {
		got.add(payload)
		return nil
	}), eventbus.Named("notes "+pattern))
	return got
}

// A webhook that is delivered again, with another body, is one event and no error.
func TestE8_TheFirstOfAKeyWins(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		first := mustPublish(t, bus, "hook", "body", idem("h-1"))
		require.Equal(t, first, mustPublish(t, bus, "hook", "another body", idem("h-1"), eventbus.Metadata("try", "2")))
		result, err := bus.PublishAndWait(t.Context(), "hook", "a third", idem("h-1"))
		require.NoError(t, err)
		require.Equal(t, eventbus.Repeated, result.Outcome)
		require.Equal(t, first, result.ID)
		other := mustPublish(t, bus, "other.hook", "of another type", idem("h-1"))
		require.NotEqual(t, first, other)
		mustPublish(t, bus, "hook", "another key", idem("h-2"))
		mustPublish(t, bus, "hook", "no key")
		mustPublish(t, bus, "hook", "no key")
		synctest.Wait()
		require.ElementsMatch(t, []string{"body", "of another type", "another key", "no key", "no key"}, got.all())
		requireBalanced(t, bus)
	})
}

// The key with another event key, or with another id than the first event has, is an error. A known key decides before a known id.
func TestE8_AKeyOfAnotherEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		a, b := eventbus.NewEventID(), eventbus.NewEventID()
		require.Equal(t, a, mustPublish(t, bus, "hook", "1", idem("h"), eventbus.ID(a), eventbus.Key("k")))
		refused := func(opts ...eventbus.PublishOption) {
			t.Helper()
			_, err := bus.Publish(t.Context(), "hook", "2", append(opts, idem("h"))...)
			require.ErrorIs(t, err, eventbus.ErrDuplicateID)
			require.ErrorContains(t, err, `the idempotency key "h" was given to`)
		}
		refused()
		refused(eventbus.Key("other"))
		refused(eventbus.Key("k"), eventbus.ID(b))
		require.Equal(t, a, mustPublish(t, bus, "hook", "2", idem("h"), eventbus.Key("k")))
		require.Equal(t, a, mustPublish(t, bus, "hook", "3", idem("h"), eventbus.Key("k"), eventbus.ID(a)), "the payload of the id is not compared")
		_, err := bus.Publish(t.Context(), "hook", "4", idem("new"), eventbus.Key("other"), eventbus.ID(a))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID, "the id is known for another content")
		mustPublish(t, bus, "hook", "5", idem("new"), eventbus.Key("other"), eventbus.ID(b))
		synctest.Wait()
		require.ElementsMatch(t, []string{"1", "5"}, got.all(), "what was refused took no key")
	})
}

// The bus knows a key for its window, in memory as with a store, or for longer with KeepFor.
func TestE8_AKeyHasAWindow(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		day, week := 24*time.Hour, 7*24*time.Hour
		mustPublish(t, bus, "a", "short", idem("short"), eventbus.KeepFor(time.Minute))
		mustPublish(t, bus, "a", "usual", idem("usual"))
		mustPublish(t, bus, "a", "long", idem("long"), eventbus.KeepFor(week))
		again := func(names ...string) {
			t.Helper()
			for _, name := range names {
				mustPublish(t, bus, "a", name+" again", idem(name))
			}
			synctest.Wait()
		}
		time.Sleep(day - time.Second)
		again("short", "usual", "long")
		require.Len(t, got.all(), 3, "KeepFor does not make the window shorter")
		time.Sleep(2 * time.Second)
		again("short", "usual", "long")
		require.ElementsMatch(t, []string{"short", "usual", "long", "short again", "usual again"}, got.all())
		time.Sleep(week - day - 3*time.Second)
		again("long")
		require.Len(t, got.all(), 5)
		time.Sleep(5 * time.Second)
		again("long")
		require.Len(t, got.all(), 6)
	})
}

// Of many publications at once, one happens, and all have its id.
func TestE8_OneOfManyAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		ids := new(journal[eventbus.EventID])
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				id, err := bus.Publish(context.Background(), "hook", fmt.Sprint(i), idem("h"))
				if err != nil {
					panic(err)
				}
				ids.add(id)
			})
		}
		all.Wait()
		synctest.Wait()
		require.Len(t, got.all(), 1)
		for _, id := range ids.all() {
			require.Equal(t, ids.all()[0], id)
		}
		requireBalanced(t, bus)
	})
}

// In a batch the second of a key is a repetition of the first, and both have its id. One that conflicts refuses the batch.
func TestE8_KeysInABatch(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		require.NoError(t, bus.Start(t.Context()))
		known := mustPublish(t, bus, "a", "known", idem("known"))
		of := func(payload, key string, opts ...eventbus.PublishOption) eventbus.Publication {
			return eventbus.Publication{Type: "a", Payload: payload, Options: append(opts, idem(key))}
		}
		ids, err := bus.PublishBatch(t.Context(), []eventbus.Publication{of("1", "k"), of("2", "known"), of("3", "k"), of("4", "l")})
		require.NoError(t, err)
		require.Equal(t, known, ids[1])
		require.Equal(t, ids[0], ids[2])
		require.NotEqual(t, ids[0], ids[3])
		var refused *eventbus.BatchError
		_, err = bus.PublishBatch(t.Context(), []eventbus.Publication{of("5", "m"), of("6", "m", eventbus.Key("other"))})
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 1, refused.Index)
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		_, err = bus.PublishBatch(t.Context(), []eventbus.Publication{of("7", "m"), of("8", "k", eventbus.Key("other"))})
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		synctest.Wait()
		require.ElementsMatch(t, []string{"known", "1", "4"}, got.all())
		mustPublish(t, bus, "a", "9", idem("m"))
		synctest.Wait()
		require.Len(t, got.all(), 4, "a refused batch takes no key")
	})
}

// The key is the event's: handlers, letters and replays have it, and a replay does not take it again.
func TestE8_TheEventHasItsKey(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		seen := new(journal[string])
		mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			d, _ := eventbus.FromContext(ctx)
			require.Equal(t, e.IdempotencyKey, d.Event.IdempotencyKey)
			seen.add(e.IdempotencyKey)
			if d.Replays == 0 {
				return eventbus.Permanent(errBoom)
			}
			return nil
		}, eventbus.Named("a"), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "hook", "1", idem("h-1"))
		mustPublish(t, bus, "hook", "2", idem("h-2"))
		synctest.Wait()
		page := list(t, bus, eventbus.LetterQuery{IdempotencyKey: "h-1"})
		require.Len(t, page.Letters, 1)
		require.Equal(t, id, page.Letters[0].Event.ID)
		require.Equal(t, "h-1", page.Letters[0].Event.IdempotencyKey)
		require.Empty(t, list(t, bus, eventbus.LetterQuery{IdempotencyKey: "h"}).Letters)
		require.NoError(t, bus.DLQ().Replay(t.Context(), page.Letters[0].ID))
		synctest.Wait()
		require.Equal(t, id, mustPublish(t, bus, "hook", "again", idem("h-1")))
		synctest.Wait()
		require.Equal(t, []string{"h-1", "h-2", "h-1"}, seen.all())

		later := mustPublish(t, bus, "hook", "3", idem("h-3"), eventbus.After(time.Hour))
		found, err := bus.Dispatches(t.Context(), eventbus.DispatchQuery{IdempotencyKey: "h-3"})
		require.NoError(t, err)
		require.Len(t, found.Dispatches, 1)
		require.Equal(t, later, found.Dispatches[0].Event)
		require.Equal(t, "h-3", found.Dispatches[0].IdempotencyKey)
		found, err = bus.Dispatches(t.Context(), eventbus.DispatchQuery{IdempotencyKey: "h-4"})
		require.NoError(t, err)
		require.Empty(t, found.Dispatches)
	})
}

// Cancel makes the key of a scheduled event free, also where the event waits to be taken in.
func TestE8_CancelFreesTheKey(t *testing.T) {
	for _, started := range []bool{false, true} {
		onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
			got := noting(t, bus, "*")
			if started {
				require.NoError(t, bus.Start(t.Context()))
			}
			id := mustPublish(t, bus, "a", "1", idem("k"), eventbus.After(time.Hour))
			require.Equal(t, id, mustPublish(t, bus, "a", "2", idem("k")))
			require.NoError(t, cancelEvent(t.Context(), bus, id))
			require.NotEqual(t, id, mustPublish(t, bus, "a", "3", idem("k")))
			if !started {
				require.NoError(t, bus.Start(t.Context()))
			}
			time.Sleep(2 * time.Hour)
			require.Equal(t, []string{"3"}, got.all())
		})
	}
}

// A store knows keys after a crash, on a standby, and of events that were published before Start.
func TestE8_AStoreKnowsKeysAcrossProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		got := noting(t, bus, "*")
		early := mustPublish(t, bus, "a", "early", idem("early"))
		require.Equal(t, early, mustPublish(t, bus, "a", "early again", idem("early")))
		start(t, bus)
		require.Equal(t, early, mustPublish(t, bus, "a", "early again", idem("early")))
		id := mustPublish(t, bus, "a", "1", idem("k"))
		synctest.Wait()
		require.Equal(t, []string{"early", "1"}, got.all())

		standby, _ := disk.open(t, eventbus.WithStandby())
		require.Equal(t, id, mustPublish(t, standby, "a", "2", idem("k")))
		beside := mustPublish(t, standby, "a", "3", idem("l"))
		time.Sleep(time.Second)
		require.Equal(t, beside, mustPublish(t, bus, "a", "4", idem("l")))
		disk.crash(bus)
		again, _ := disk.open(t)
		got = noting(t, again, "*")
		start(t, again)
		require.Equal(t, early, mustPublish(t, again, "a", "5", idem("early")))
		require.Equal(t, id, mustPublish(t, again, "a", "5", idem("k")))
		require.Equal(t, beside, mustPublish(t, again, "a", "5", idem("l")))
		synctest.Wait()
		require.Empty(t, got.all())
		shutdown(t, again)
	})
}

// PublishTx with a known key inserts nothing. Two transactions with one key are one event, and of another event key a letter.
func TestE8_KeysOfTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		got := noting(t, bus, "*")
		start(t, bus)
		publish := func(payload string, opts ...eventbus.PublishOption) (eventbus.EventID, func()) {
			tx := disk.Begin()
			id, err := bus.PublishTx(t.Context(), tx, "a", payload, append(opts, idem("k"))...)
			require.NoError(t, err)
			return id, func() { require.NoError(t, tx.Commit()) }
		}
		first, commit := publish("1")
		second, commitSecond := publish("2")
		_, commitThird := publish("3", eventbus.Key("other"))
		require.NotEqual(t, first, second, "neither is committed")
		commit()
		commitSecond()
		commitThird()
		time.Sleep(time.Second)
		require.Equal(t, []string{"1"}, got.all())
		letter := oneLetter(t, bus)
		require.Equal(t, eventbus.ReasonDuplicate, letter.Reason)
		require.Equal(t, "other", letter.Event.Key)
		require.Contains(t, letter.Failures[0].Error, `the idempotency key "k" was given to an event with key ""`)
		require.EqualValues(t, 1, bus.Metrics().Repetitions)

		known, commit := publish("4")
		require.Equal(t, first, known)
		commit()
		tx := disk.Begin()
		_, err := bus.PublishTx(t.Context(), tx, "a", "5", idem("k"), eventbus.Key("other"))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID)
		require.NoError(t, tx.Rollback())
		time.Sleep(time.Second)
		require.Equal(t, []string{"1"}, got.all())
		shutdown(t, bus)
	})
}

// Bad keys and durations are refused, and change nothing.
func TestE8_BadKeysAreRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := noting(t, bus, "*")
		for _, key := range []string{"", strings.Repeat("x", 256), "a\xff", "a\x00", "a\nb"} {
			_, err := bus.Publish(t.Context(), "a", "x", idem(key))
			var refused *eventbus.EventError
			require.ErrorAs(t, err, &refused, "%q", key)
			require.Equal(t, "idempotency key", refused.Field)
		}
		mustPublish(t, bus, "a", "255 bytes", idem(strings.Repeat("ü", 127)+"x"))
		for _, d := range []time.Duration{-1, 0, time.Microsecond, 400*24*time.Hour + 1} {
			_, err := bus.Publish(t.Context(), "a", "x", idem("k"), eventbus.KeepFor(d))
			requireOptionError(t, err, "KeepFor")
		}
		_, err := bus.Publish(t.Context(), "a", "x", eventbus.KeepFor(time.Hour))
		requireOptionError(t, err, "KeepFor")
		mustPublish(t, bus, "a", "the last key counts", idem("first"), idem("last"), eventbus.KeepFor(time.Hour))
		mustPublish(t, bus, "a", "x", idem("last"))
		require.NoError(t, bus.Start(t.Context()))
		synctest.Wait()
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"255 bytes", "the last key counts"}, got.all())
	})
}

// Memory knows the last 100,000 keys and ids.
func TestE8_MemoryKnowsABoundedNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, silent(eventbus.WithQueueCapacity(200_000))...)
		first := mustPublish(t, bus, "a", nil, idem("first"))
		for i := range 99_999 {
			mustPublish(t, bus, "a", nil, idem(fmt.Sprint(i)))
		}
		require.Equal(t, first, mustPublish(t, bus, "a", nil, idem("first")))
		mustPublish(t, bus, "a", nil, eventbus.ID(eventbus.NewEventID()))
		require.NotEqual(t, first, mustPublish(t, bus, "a", nil, idem("first")))
		shutdown(t, bus)
	})
}

// A child's id is the same in each attempt, and another one for another name, subscription, event and edit.
func TestE8_ChildrenHaveDerivedIDs(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		ids, got := new(journal[eventbus.EventID]), noting(t, bus, "child")
		publishes := func(ctx context.Context, e eventbus.Event) error {
			id := eventbus.ChildID(ctx, "invoice")
			ids.add(id)
			if _, err := bus.Publish(ctx, "child", "of "+e.ID.String(), eventbus.ID(id)); err != nil {
				return err
			}
			d, _ := eventbus.FromContext(ctx)
			if d.Attempt < 3 {
				return errBoom
			}
			require.NotEqual(t, id, eventbus.ChildID(ctx, "mail"))
			return nil
		}
		mustSubscribe(t, bus, "order", publishes, eventbus.Named("one"), eventbus.Retry(eventbus.MaxRetries(9)), eventbus.Circuit(eventbus.NoCircuit()))
		mustSubscribe(t, bus, "order", publishes, eventbus.Named("two"), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "order", nil)
		time.Sleep(time.Minute)
		all := ids.all()
		require.Len(t, all, 4)
		require.Equal(t, all[0], all[1])
		require.Equal(t, all[0], all[2])
		require.NotEqual(t, all[0], all[3])
		require.Len(t, got.all(), 2, "one child of each subscription")
		require.True(t, eventbus.ChildID(t.Context(), "x").IsZero())
		_, err := bus.Publish(t.Context(), "child", "x", eventbus.ID(eventbus.ChildID(t.Context(), "x")))
		require.ErrorContains(t, err, "ChildID is zero outside a handler")
	})
}

// A derived id is a UUID of version 5: that of the example of RFC 9562, appendix A.4.
func TestE8_DerivedIDs(t *testing.T) {
	dns, err := eventbus.ParseEventID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	require.NoError(t, err)
	require.Equal(t, "2ed6657d-e927-568b-95e1-2665a8aea6a2", eventbus.DeriveID(dns, "www.example.com").String())
	require.NotEqual(t, eventbus.DeriveID(dns, ""), eventbus.DeriveID(eventbus.EventID{}, ""))
}

// A key whose first publication has an unknown outcome is decided by what the store has: the repetition waits for that.
func TestE8_AKeyInDoubt(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"slow":   {Delay: 10 * time.Second},
		"before": {Kind: storetest.FailBefore, Delay: 10 * time.Second},
		"after":  {Kind: storetest.FailAfter, Delay: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var armed atomic.Bool
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
					if len(b.New) > 0 && armed.Swap(false) {
						return fault
					}
					return storetest.Fault{}
				}))
				bus, _ := disk.open(t)
				got := noting(t, bus, "*")
				start(t, bus)
				armed.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := bus.Publish(ctx, "a", "first", idem("k"))
				var unknown *eventbus.IndeterminateError
				require.ErrorAs(t, err, &unknown)
				var id eventbus.EventID
				for id.IsZero() { // until the bus has reopened the store
					if id, err = bus.Publish(t.Context(), "a", "second", idem("k")); err != nil {
						require.ErrorIs(t, err, eventbus.ErrStoreFailed)
						time.Sleep(time.Second)
					}
				}
				time.Sleep(time.Minute)
				want := "first"
				if name == "before" {
					want = "second"
				}
				require.Equal(t, []string{want}, got.all())
				require.Equal(t, want == "first", unknown.ID == id)
				shutdown(t, bus)
			})
		})
	}
}

// untilSettled are the options of a key that is known until the event has settled.
func untilSettled(key string, more ...eventbus.PublishOption) []eventbus.PublishOption {
	return append(more, idem(key), eventbus.UntilSettled())
}

// With UntilSettled a key is known while its event is pending, however long, and free when it has settled, be it by a letter.
func TestE8_UntilSettled(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		got := new(journal[string])
		mustSubscribe(t, bus, "*", eventbus.Typed(func(_ context.Context, payload string) error {
			got.add(payload)
			switch payload {
			case "dies":
				return eventbus.Permanent(errBoom)
			case "retries":
				if len(got.all()) < 6 {
					return errBoom
				}
			}
			return nil
		}), eventbus.Named("a"), eventbus.Circuit(eventbus.NoCircuit()),
			eventbus.Retry(eventbus.MaxRetries(9), eventbus.BaseDelay(100*24*time.Hour), eventbus.MaxDelay(100*24*time.Hour), eventbus.NoJitter))
		require.NoError(t, bus.Start(t.Context()))
		publish := func(payload string) eventbus.EventID {
			t.Helper()
			id := mustPublish(t, bus, "a", payload, untilSettled("k")...)
			synctest.Wait()
			return id
		}
		first := publish("1")
		second := publish("2")
		require.NotEqual(t, first, second, "the first is handled")
		publish("dies")
		pending := publish("retries")
		time.Sleep(30 * 24 * time.Hour)
		require.Equal(t, pending, publish("3"))
		result, err := bus.PublishAndWait(t.Context(), "a", "4", untilSettled("k")...)
		require.NoError(t, err)
		require.Equal(t, eventbus.Repeated, result.Outcome)
		require.Equal(t, pending, mustPublish(t, bus, "a", "5", idem("k")), "also without the option")
		time.Sleep(171 * 24 * time.Hour)
		require.NotEqual(t, pending, publish("6"))
		require.Equal(t, []string{"1", "2", "dies", "retries", "retries", "retries", "6"}, got.all())

		later := mustPublish(t, bus, "a", "later", untilSettled("l", eventbus.After(time.Hour))...)
		require.Equal(t, later, mustPublish(t, bus, "a", "x", untilSettled("l")...))
		require.NoError(t, cancelEvent(t.Context(), bus, later))
		require.NotEqual(t, later, mustPublish(t, bus, "a", "7", untilSettled("l")...))
		unrouted := mustPublish(t, bus, "no.subscription", "8", untilSettled("m")...)
		synctest.Wait()
		require.NotEqual(t, unrouted, mustPublish(t, bus, "no.subscription", "9", untilSettled("m")...))
		synctest.Wait()
		requireBalanced(t, bus)
	})
}

// An event of several targets has settled with the last of them: isolated ones, held ones, and a replay that began before.
func TestE8_UntilTheLastTargetHasSettled(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var dies atomic.Bool
		dies.Store(true)
		mustSubscribe(t, bus, "a", ok, eventbus.Named("coupled"))
		held := mustSubscribe(t, bus, "a", ok, eventbus.Named("held"))
		paused := mustSubscribe(t, bus, "a", ok, eventbus.Named("isolated"), eventbus.Isolated())
		dying := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if dies.Load() {
				return eventbus.Permanent(errBoom)
			}
			return nil
		}, eventbus.Named("dying"), eventbus.Isolated(), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, held.Pause())
		require.NoError(t, paused.Pause())
		id := mustPublish(t, bus, "a", "x", untilSettled("k")...)
		pends := func(why string) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, id, mustPublish(t, bus, "a", "y", untilSettled("k")...), why)
		}
		pends("two are held, one is dead")
		require.NoError(t, held.Resume())
		pends("one is held")
		require.NoError(t, dying.Pause())
		dies.Store(false)
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		require.NoError(t, paused.Resume())
		pends("a replay is held")
		require.NoError(t, dying.Resume())
		synctest.Wait()
		other := mustPublish(t, bus, "a", "z", untilSettled("k")...)
		require.NotEqual(t, id, other)
		synctest.Wait()
		require.Empty(t, letters(t, bus))
		requireBalanced(t, bus)
	})
}

// A replay of an event that has settled takes no key, and frees none that another event has.
func TestE8_AReplayTakesNoKey(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var dies atomic.Bool
		dies.Store(true)
		sub := mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if dies.Load() {
				return eventbus.Permanent(errBoom)
			}
			return nil
		}, eventbus.Named("a"), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, bus.Start(t.Context()))
		dead := mustPublish(t, bus, "a", "x", untilSettled("k")...)
		synctest.Wait()
		dies.Store(false)
		require.NoError(t, sub.Pause())
		require.NoError(t, bus.DLQ().Replay(t.Context(), oneLetter(t, bus).ID))
		synctest.Wait()
		id := mustPublish(t, bus, "a", "y", untilSettled("k")...)
		require.NotEqual(t, dead, id)
		require.Equal(t, id, mustPublish(t, bus, "a", "z", untilSettled("k")...))
		require.NoError(t, sub.Resume())
		synctest.Wait()
		require.NotEqual(t, id, mustPublish(t, bus, "a", "z", untilSettled("k")...))
	})
}

// A store knows pending keys across a crash and beside, and frees them in the commit of the settlement.
func TestE8_UntilSettledAcrossProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		require.NoError(t, noted(t, bus).Pause())
		early := mustPublish(t, bus, "a", "early", untilSettled("early")...)
		start(t, bus)
		id := mustPublish(t, bus, "a", "1", untilSettled("k")...)
		tx := disk.Begin()
		inTx, err := bus.PublishTx(t.Context(), tx, "a", "2", untilSettled("tx")...)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		time.Sleep(48 * time.Hour)
		disk.crash(bus)

		again, _ := disk.open(t)
		sub := noted(t, again)
		start(t, again)
		time.Sleep(time.Second)
		for key, want := range map[string]eventbus.EventID{"early": early, "k": id, "tx": inTx} {
			require.Equal(t, want, mustPublish(t, again, "a", "x", untilSettled(key)...), key)
		}
		require.NoError(t, sub.Resume())
		time.Sleep(time.Second)
		require.Empty(t, disk.Dump().Records)
		for key, was := range map[string]eventbus.EventID{"early": early, "k": id, "tx": inTx} {
			require.NotEqual(t, was, mustPublish(t, again, "a", "x", untilSettled(key)...), key)
		}
		time.Sleep(time.Second)
		for _, entry := range disk.Dump().Remembered {
			require.Empty(t, entry.Scope, "a key that nobody has")
		}
		shutdown(t, again)
	})
}

// noted subscribes "a", which directives of an earlier process may hold.
func noted(t *testing.T, bus *eventbus.Bus) *eventbus.Subscription {
	t.Helper()
	return mustSubscribe(t, bus, "a", ok, eventbus.Named("a"))
}

func TestE8_UntilSettledNeedsAKeyAndNoDuration(t *testing.T) {
	bus, _ := newBus(t)
	_, err := bus.Publish(t.Context(), "a", "x", eventbus.UntilSettled())
	requireOptionError(t, err, "UntilSettled")
	_, err = bus.Publish(t.Context(), "a", "x", idem("k"), eventbus.KeepFor(time.Hour), eventbus.UntilSettled())
	requireOptionError(t, err, "KeepFor")
}
