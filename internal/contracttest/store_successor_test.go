package contracttest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// What a subscription had when it ended becomes letters, and a new one of its name, made at once, gets what is published
// after that, in memory as with a store, wherever the old deliveries are.
func TestD14_NameIsTakenAtOnce(t *testing.T) {
	for place, prepare := range map[string]func(*testing.T, *eventbus.Bus, *eventbus.Subscription){
		"parked":    func(t *testing.T, _ *eventbus.Bus, s *eventbus.Subscription) { require.NoError(t, s.Pause()) },
		"held":      func(t *testing.T, _ *eventbus.Bus, s *eventbus.Subscription) { require.NoError(t, s.Trip()) },
		"retrying":  func(*testing.T, *eventbus.Bus, *eventbus.Subscription) {},
		"scheduled": func(*testing.T, *eventbus.Bus, *eventbus.Subscription) {},
		"keys":      func(t *testing.T, _ *eventbus.Bus, s *eventbus.Subscription) { require.NoError(t, s.Pause()) },
	} {
		for _, stored := range []bool{false, true} {
			for _, n := range []int{3, eventbus.DefaultLineCapacity + 5} {
				if !stored && n > 3 || n > 3 && place != "parked" {
					continue
				}
				t.Run(fmt.Sprintf("%s, stored %v, %d", place, stored, n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						disk := newDisk()
						var bus *eventbus.Bus
						if stored {
							bus, _ = disk.open(t, eventbus.WithRetry(retry(3, time.Hour)))
						} else {
							bus, _ = newBus(t, eventbus.WithRetry(retry(3, time.Hour)))
						}
						require.NoError(t, bus.Start(t.Context()))
						var opts []eventbus.PublishOption
						switch place {
						case "scheduled":
							opts = append(opts, eventbus.After(time.Minute))
						case "keys":
							opts = append(opts, eventbus.Key("k"))
						}
						old := disk.handles(t, bus, "mail", always(errBroken), eventbus.Circuit(eventbus.MinEvents(1000)))
						prepare(t, bus, old)
						for range n {
							mustPublish(t, bus, "a", "old", opts...)
						}
						synctest.Wait()
						disk.took()

						old.Unsubscribe()
						disk.handles(t, bus, "mail", nil)
						if place == "parked" || place == "held" || place == "keys" {
							require.NoError(t, bus.Subscription("mail").Reset())
							require.NoError(t, bus.Subscription("mail").Resume()) // an order belongs to the name
						}
						mustPublish(t, bus, "a", "new", opts...)
						time.Sleep(2 * time.Hour)
						require.Equal(t, []string{"mail new 1"}, disk.took())
						page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonUnsubscribed, ExactTotal: true})
						require.NoError(t, err)
						require.Equal(t, n, page.Total)
						shutdown(t, bus)
					})
				})
			}
		}
	}
}

// However often the name changes hands, beside publications: each event is handled, or named in a letter, and none that was
// published after a subscription was made goes to an earlier one.
func TestD14_NameChangesHandsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithIsolation())
		require.NoError(t, bus.Start(t.Context()))
		handled := map[string]int{}
		subscribe := func(generation int) *eventbus.Subscription {
			return mustSubscribe(t, bus, "*", eventbus.Typed(func(_ context.Context, payload string) error {
				disk.note("%d %s", generation, payload)
				return nil
			}), eventbus.Named("mail"))
		}
		mustSubscribe(t, bus, "*", ok, eventbus.Named("other"))
		s := subscribe(0)
		const generations, each = 30, 20
		for generation := 1; generation <= generations; generation++ {
			require.NoError(t, s.Pause())
			for i := range each {
				mustPublish(t, bus, "a", fmt.Sprintf("%d-%d", generation-1, i))
			}
			if generation%2 == 0 {
				synctest.Wait()
			}
			s.Unsubscribe()
			s = subscribe(generation)
		}
		require.NoError(t, s.Resume())
		for i := range each {
			mustPublish(t, bus, "a", fmt.Sprintf("%d-%d", generations, i))
		}
		time.Sleep(time.Minute)
		for _, call := range disk.took() {
			var to, from, i int
			_, err := fmt.Sscanf(call, "%d %d-%d", &to, &from, &i)
			require.NoError(t, err)
			require.Equal(t, generations, from, "the others were paused when they ended")
			require.Equal(t, from, to)
			handled[call]++
		}
		require.Len(t, handled, each)
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonUnsubscribed, ExactTotal: true})
		require.NoError(t, err)
		require.Equal(t, generations*each, page.Total)
		shutdown(t, bus)
		require.Empty(t, disk.Dump().Records)
	})
}

// An event for later of the ended subscription becomes due while the bus is behind: its record is made anew in the
// store, after those of the subscription that has the name now.
func TestD14_NameIsTakenBeforeAnEventIsDue(t *testing.T) {
	for _, others := range []bool{false, true} {
		for _, key := range []string{"", "k"} {
			t.Run(fmt.Sprintf("others %v, key %q", others, key), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var slow atomic.Bool
					disk := newDisk(storetest.WithClaimFaults(func(int, driver.ClaimQuery) (f storetest.Fault) {
						if slow.Load() {
							f.Delay = 10 * time.Millisecond
						}
						return f
					}))
					bus, _ := disk.open(t)
					require.NoError(t, bus.Start(t.Context()))
					other := disk.Open()
					if others {
						disk.handles(t, bus, "audit", nil)
					}
					old := disk.handles(t, bus, "mail", nil)
					began := time.Now()
					mustPublish(t, bus, "a", "old", eventbus.After(time.Minute), eventbus.Key(key))
					old.Unsubscribe()
					disk.handles(t, bus, "mail", nil)
					mustPublish(t, bus, "a", "new", eventbus.Key(key))
					slow.Store(true)
					time.Sleep(time.Minute + 5*time.Millisecond - time.Since(began)) // the claim of what is due runs
					done := make(chan error, 1)
					other.Submit(&driver.Batch{Now: time.Now().UTC(), Directives: []driver.Directive{directive(eventbus.Directive{Subscription: "x"})}}, func(err error) { done <- err })
					require.NoError(t, <-done) // the bus is behind
					time.Sleep(time.Minute)
					calls := disk.took()
					require.Contains(t, calls, "mail new 1")
					require.NotContains(t, calls, "mail old 1")
					require.Equal(t, others, slices.Contains(calls, "audit old 1"))
					page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonUnsubscribed})
					require.NoError(t, err)
					require.Len(t, page.Letters, 1)
					require.NoError(t, other.Close(t.Context()))
					shutdown(t, bus)
				})
			})
		}
	}
}

// The store fails when it has accepted the first event of the new subscription. That is the new one's all the same.
func TestD14_NameIsTakenAndTheStoreFails(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var fails atomic.Bool
			disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
				if len(b.New) > 0 && fails.CompareAndSwap(true, false) {
					return storetest.Fault{Kind: storetest.FailAfter}
				}
				return storetest.Fault{}
			}))
			var opts []eventbus.Option
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			bus, _ := disk.open(t, opts...)
			require.NoError(t, bus.Start(t.Context()))
			old := disk.handles(t, bus, "mail", nil)
			require.NoError(t, old.Pause())
			mustPublish(t, bus, "x", "old")
			synctest.Wait()
			old.Unsubscribe()
			disk.handles(t, bus, "mail", nil)
			require.NoError(t, bus.Subscription("mail").Resume())

			fails.Store(true)
			_, err := bus.Publish(t.Context(), "x", "first")
			var unknown *eventbus.IndeterminateError
			require.ErrorAs(t, err, &unknown)
			time.Sleep(time.Minute)
			mustPublish(t, bus, "x", "second")
			time.Sleep(time.Minute)
			require.Equal(t, []string{"mail first 1", "mail second 1"}, disk.took())
			l := oneLetter(t, bus)
			require.Equal(t, eventbus.ReasonUnsubscribed, l.Reason)
			require.JSONEq(t, `"old"`, string(l.Event.Payload.(json.RawMessage)))
			shutdown(t, bus)
		})
	}
}

// The same with a replay: its event is the first of the new subscription.
func TestD14_NameIsTakenAndTheStoreFailsDuringAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if len(b.New) > 0 && fails.CompareAndSwap(true, false) {
				return storetest.Fault{Kind: storetest.FailAfter}
			}
			return storetest.Fault{}
		}))
		bus, _ := disk.open(t, eventbus.WithRetry(retry(0, 0)))
		require.NoError(t, bus.Start(t.Context()))
		old := disk.handles(t, bus, "mail", always(errBroken))
		mustPublish(t, bus, "x", "replayed")
		time.Sleep(time.Minute)
		died := oneLetter(t, bus)
		old.Unsubscribe()
		disk.handles(t, bus, "mail", nil)
		disk.took()

		fails.Store(true)
		require.Error(t, bus.DLQ().Replay(t.Context(), died.ID))
		time.Sleep(time.Minute)
		mustPublish(t, bus, "x", "second")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"mail replayed 1", "mail second 1"}, disk.took())
		require.Empty(t, letters(t, bus))
		shutdown(t, bus)
	})
}
