package contracttest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// outcomeBus has actionBus's subscriptions on a store, and "dies", whose events become dead letters until it heals.
type outcomeBus struct {
	*actionBus
	dies *eventbus.Subscription
}

func (d *disk) outcomeBus(t *testing.T, heals bool, opts ...eventbus.Option) *outcomeBus {
	t.Helper()
	bus, _ := d.open(t, opts...)
	b := &outcomeBus{dies: mustSubscribe(t, bus, "dies", func(context.Context, eventbus.Event) error {
		if heals {
			return nil
		}
		return eventbus.Permanent(errBoom)
	}, eventbus.Named("dies"))}
	b.actionBus = newActionBus(t, bus)
	return b
}

// replayed returns the event of a letter that an operator has replayed.
func (b *outcomeBus) replayed(t *testing.T, by string) eventbus.EventID {
	t.Helper()
	id := mustPublish(t, b.Bus, "dies", nil)
	synctest.Wait()
	require.NoError(t, b.DLQ().Replay(t.Context(), letterOf(t, b.Bus, id).ID, eventbus.By(by)))
	return id
}

// outcomeCases act upon an event and let it end, and return it with what Event says then, also in another process.
var outcomeCases = map[string]func(t *testing.T, b *outcomeBus) (id eventbus.EventID, want string){
	"replay": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		return b.replayed(t, "ann"), "[dies dead-lettered 1 replay 1 by ann]"
	},
	"cancel": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "waits", nil)
		synctest.Wait()
		_, err := b.Cancel(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		return id, "[waits cancelled 1 ended by ann]"
	},
	"cancel what is scheduled": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "ok", nil, eventbus.After(time.Hour))
		_, err := b.Cancel(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		return id, "[ok cancelled 0 ended by ann]"
	},
	"cancel what runs": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "runs", nil)
		synctest.Wait()
		_, err := b.Cancel(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		return id, "[runs cancelled 1 ended by ann]"
	},
	"cancel many": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "paused", nil)
		synctest.Wait()
		_, err := b.CancelMatching(t.Context(), eventbus.DispatchQuery{Subscription: "paused"}, eventbus.By("ann"))
		require.NoError(t, err)
		require.Len(t, audit(t, b.Bus, eventbus.AuditQuery{By: "ann"}), 2, "one before, and one with the outcome")
		return id, "[paused cancelled 0 ended by ann]"
	},
	"cancel after a replay": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "dies", nil)
		synctest.Wait()
		letter := letterOf(t, b.Bus, id).ID
		require.NoError(t, b.dies.Pause())
		require.NoError(t, b.DLQ().Replay(t.Context(), letter, eventbus.By("ann")))
		synctest.Wait()
		_, err := b.Cancel(t.Context(), id) // by the program
		require.NoError(t, err)
		return id, "[dies cancelled 0 replay 1 by ann]"
	},
	"give up": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "waits", nil)
		synctest.Wait()
		_, err := b.GiveUp(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		return id, "[waits dead-lettered 1 ended by ann]"
	},
	"give up and purge": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "paused", nil)
		synctest.Wait()
		_, err := b.GiveUp(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		require.NoError(t, b.DLQ().Purge(t.Context(), letterOf(t, b.Bus, id).ID, eventbus.By("bob")))
		return id, "[paused dead-lettered 0 ended by ann purged by bob]"
	},
	"retry": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "waits", nil)
		synctest.Wait()
		b.waits.Store(false)
		_, err := b.RetryNow(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		return id, "[waits handled 2 retried by ann]"
	},
	"retry many, cancel": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "waits", nil)
		synctest.Wait()
		_, err := b.RetryNowMatching(t.Context(), eventbus.DispatchQuery{All: true}, eventbus.By("ann"))
		require.NoError(t, err)
		synctest.Wait()
		_, err = b.Cancel(t.Context(), id, eventbus.By("bob"))
		require.NoError(t, err)
		return id, "[waits cancelled 2 retried by ann ended by bob]"
	},
	"retry what is snoozed": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "snoozed", nil)
		synctest.Wait()
		b.snoozes.Store(false)
		_, err := b.RetryNow(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		return id, "[snoozed handled 1 retried by ann]"
	},
	"purge": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "dies", nil)
		synctest.Wait()
		require.NoError(t, b.DLQ().Purge(t.Context(), letterOf(t, b.Bus, id).ID, eventbus.By("ann")))
		return id, "[dies dead-lettered 1 purged by ann]"
	},
	"purge many": func(t *testing.T, b *outcomeBus) (eventbus.EventID, string) {
		id := mustPublish(t, b.Bus, "dies", nil)
		synctest.Wait()
		_, err := b.DLQ().PurgeMatching(t.Context(), eventbus.LetterQuery{All: true}, eventbus.By("ann"))
		require.NoError(t, err)
		return id, "[dies dead-lettered 1 purged by ann]"
	},
}

// With a store, Event knows in any process how what operators have acted upon has ended, and says it once.
func TestV5_WhatOperatorsHaveActedUponIsKnown(t *testing.T) {
	for name, act := range outcomeCases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					if len(b.Outcomes) > 0 {
						f.Delay = 20 * time.Millisecond // memory notes the end later
					}
					return f
				}))
				b := disk.outcomeBus(t, false)
				id, want := act(t, b)
				time.Sleep(time.Second)
				here := endsOf(t, b.Bus, id)
				require.Equal(t, want, fmt.Sprint(here[len(here)-1:]), "in the same process")
				require.Len(t, here, 1+strings.Count(want, "replay"), "each end once")
				settled := must(b.Event(t.Context(), id)).Settled
				tool := disk.tool(t)
				require.Equal(t, want, fmt.Sprint(endsOf(t, tool, id)), "beside it")
				there := must(tool.Event(t.Context(), id))
				require.Equal(t, settled[len(settled)-1:], there.Settled)
				require.Empty(t, there.Dispatches)
				shutdown(t, tool)
				close(b.release)
				shutdown(t, b.Bus)

				tool = disk.tool(t)
				require.Equal(t, want, fmt.Sprint(endsOf(t, tool, id)), "while none runs")
				_, err := tool.Cancel(t.Context(), id)
				require.ErrorIs(t, err, eventbus.ErrSettled)
				shutdown(t, tool)
				next := disk.outcomeBus(t, true)
				require.Equal(t, want, fmt.Sprint(endsOf(t, next.Bus, id)), "after a restart")
				shutdown(t, next.Bus)
			})
		})
	}
}

// A process that ends between the action and the end of the delivery loses nothing of it.
func TestV5_WhatGoesOnInTheNextProcessIsKnown(t *testing.T) {
	for name, test := range map[string]struct {
		event string
		act   func(t *testing.T, b *outcomeBus, id eventbus.EventID)
		want  string
	}{
		"replay": {"dies", func(t *testing.T, b *outcomeBus, id eventbus.EventID) {
			letter := letterOf(t, b.Bus, id).ID
			require.NoError(t, b.dies.Pause())
			require.NoError(t, b.DLQ().Replay(t.Context(), letter, eventbus.By("ann")))
		}, "[dies handled 1 replay 1 by ann]"},
		"retry": {"waits", func(t *testing.T, b *outcomeBus, id eventbus.EventID) {
			_, err := b.RetryNow(t.Context(), id, eventbus.By("ann"))
			require.NoError(t, err)
		}, "[waits handled 2 retried by ann]"},
		"retry of what is snoozed": {"snoozed", func(t *testing.T, b *outcomeBus, id eventbus.EventID) {
			_, err := b.RetryNow(t.Context(), id, eventbus.By("ann"))
			require.NoError(t, err)
		}, "[snoozed handled 1 retried by ann]"},
	} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, crashes: %t", name, crashes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					disk := newDisk()
					b := disk.outcomeBus(t, false, eventbus.WithConcurrency(1))
					id := mustPublish(t, b.Bus, test.event, nil)
					synctest.Wait()
					if test.event != "dies" { // what goes on waits for the only worker
						mustPublish(t, b.Bus, "runs", nil)
						synctest.Wait()
					}
					test.act(t, b, id)
					synctest.Wait()
					require.Len(t, must(b.Event(t.Context(), id)).Dispatches, 1)
					if crashes {
						disk.crash(b.Bus)
					} else {
						ctx, cancel := context.WithTimeout(context.Background(), time.Second)
						_ = b.Shutdown(ctx)
						cancel()
					}
					close(b.release)
					synctest.Wait()

					next, _ := disk.open(t)
					for _, s := range []string{"dies", "waits", "snoozed", "runs"} {
						require.NoError(t, mustSubscribe(t, next, s, ok, eventbus.Named(s)).Resume())
					}
					require.NoError(t, next.Start(t.Context()))
					time.Sleep(time.Second)
					require.Equal(t, test.want, fmt.Sprint(endsOf(t, next, id)))
					shutdown(t, next)
					tool := disk.tool(t)
					require.Equal(t, test.want, fmt.Sprint(endsOf(t, tool, id)))
					shutdown(t, tool)
				})
			})
		}
	}
}

// Who has ordered a probe is known, also if the process ends then.
func TestV5_AProbeIsKnown(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprint("hangs: ", hangs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk, release := newDisk(), make(chan struct{})
				bus, _ := disk.open(t)
				s := mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { <-release; return nil },
					eventbus.Named("s"), eventbus.Retry(retry(9, time.Hour)), eventbus.MaxAbandoned(1), eventbus.Timeout(time.Minute))
				require.NoError(t, bus.Start(t.Context()))
				if hangs {
					mustPublish(t, bus, "x", nil)
					time.Sleep(2 * time.Minute)
				} else {
					require.NoError(t, s.Trip())
				}
				probed, held := mustPublish(t, bus, "x", nil), mustPublish(t, bus, "x", nil)
				synctest.Wait()
				r, err := bus.RetryNow(t.Context(), probed, eventbus.Probe(), eventbus.By("ann"))
				require.NoError(t, err)
				require.Equal(t, eventbus.DispatchParked, r.Deliveries[0].State)
				disk.crash(bus)
				close(release)

				next, _ := disk.open(t)
				mustSubscribe(t, next, "*", ok, eventbus.Named("s"))
				require.NoError(t, next.Start(t.Context()))
				require.NoError(t, next.Subscription("s").Reset())
				time.Sleep(2 * time.Hour)
				require.Equal(t, []string{"s handled 1 retried by ann"}, endsOf(t, next, probed))
				require.Equal(t, []string{"s handled 1"}, endsOf(t, next, held))
				shutdown(t, next)
				require.Len(t, disk.Dump().Outcomes, 1)
			})
		})
	}
}

// The operator who ends a delivery is not named for others of the dispatch.
func TestV5_AnEndedDeliveryBesideAHandledOne(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "*", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("second"), eventbus.Retry(retry(9, time.Hour)))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", nil)
		synctest.Wait()
		_, err := bus.Cancel(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		require.Equal(t, []string{"first handled 1", "second cancelled 1 ended by ann"}, endsOf(t, bus, id))
	})
}

// A letter that cannot be decoded is purged all the same.
func TestV5_APurgeOfADamagedLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		store := disk.Open()
		id := eventbus.NewEventID()
		store.Submit(&driver.Batch{Bury: []*driver.Letter{{ID: driver.ID(id), Details: []byte(`[]`), Failures: []byte(`[]`)}}}, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
		require.NoError(t, store.Close(t.Context()))
		tool := disk.tool(t)
		require.NoError(t, tool.DLQ().Purge(t.Context(), eventbus.LetterID(id), eventbus.By("ann")))
		shutdown(t, tool)
		require.Empty(t, disk.Dump().Letters)
		require.Empty(t, disk.Dump().Outcomes)
	})
}

// Deliveries that Retire ends are known, in memory and with a store.
func TestV5_WhatRetireEndsIsKnown(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Detach())
		id := mustPublish(t, bus, "x", nil)
		synctest.Wait()
		_, err := bus.Retire(t.Context(), "s", eventbus.By("ann"))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"s dead-lettered 0 ended by ann"}, endsOf(t, bus, id))
	})
}

// An event upon which no operator has acted writes nothing. Another process does not know it.
func TestV5_OtherEventsAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		b := disk.outcomeBus(t, false, eventbus.WithLetterRetention(time.Hour))
		handled, dead, cancelled, retried := mustPublish(t, b.Bus, "ok", nil), mustPublish(t, b.Bus, "dies", nil), mustPublish(t, b.Bus, "paused", nil), mustPublish(t, b.Bus, "waits", nil)
		time.Sleep(time.Second)
		_, err := b.Cancel(t.Context(), cancelled)
		require.NoError(t, err)
		b.waits.Store(false)
		_, err = b.RetryNow(t.Context(), retried)
		require.NoError(t, err)
		time.Sleep(24 * time.Hour) // the letter is purged by age
		close(b.release)
		shutdown(t, b.Bus)
		require.Empty(t, disk.Dump().Outcomes)
		tool := disk.tool(t)
		for _, id := range []eventbus.EventID{handled, dead, retried} {
			_, err := tool.Event(t.Context(), id)
			require.ErrorIs(t, err, eventbus.ErrUnknownEvent)
		}
		shutdown(t, tool)
	})
}

// What has not been taken in is cancelled by any process.
func TestV5_ACancelledIncomingEventIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		tool := disk.tool(t)
		id := mustPublish(t, tool, "x", "a", eventbus.After(time.Hour))
		_, err := tool.Cancel(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		other := disk.tool(t)
		require.Equal(t, []string{" cancelled 0 ended by ann"}, endsOf(t, other, id))
		shutdown(t, other)
		shutdown(t, tool)
	})
}

// A standby asks for the action, and both processes know the outcome. A bulk action has its two entries in the audit, and no others.
func TestV5_AnActionOfAStandbyIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		b := disk.outcomeBus(t, false)
		id := mustPublish(t, b.Bus, "paused", nil)
		synctest.Wait()
		tool := disk.tool(t)
		r, err := tool.CancelMatching(t.Context(), eventbus.DispatchQuery{Subscription: "paused"}, eventbus.By("ann"))
		require.NoError(t, err)
		require.Equal(t, 1, r.Done)
		for _, bus := range []*eventbus.Bus{b.Bus, tool} {
			require.Equal(t, []string{"paused cancelled 0 ended by ann"}, endsOf(t, bus, id))
		}
		require.Len(t, audit(t, b.Bus, eventbus.AuditQuery{By: "ann"}), 2)
		close(b.release)
		shutdown(t, tool)
		shutdown(t, b.Bus)
	})
}

// Outcomes are kept until the store has removed the audit entries of their time.
func TestV5_OutcomesArePrunedWithTheAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithAuditKept(2))
		b := disk.outcomeBus(t, false)
		id := b.replayed(t, "ann")
		synctest.Wait()
		letter := letterOf(t, b.Bus, id).ID
		require.NoError(t, b.dies.Pause()) // an entry
		tool := disk.tool(t)
		require.Equal(t, []string{"dies dead-lettered 1 replay 1 by ann"}, endsOf(t, tool, id))
		require.NoError(t, b.dies.Resume())
		require.Empty(t, endsOf(t, tool, id), "only its letter is left")
		require.Equal(t, letter, letterOf(t, tool, id).ID)
		require.Len(t, endsOf(t, b.Bus, id), 2, "this process remembers it")
		close(b.release)
		shutdown(t, tool)
		shutdown(t, b.Bus)
	})
}

// An outcome is in the commit that ends its delivery: of one that fails, nothing is left.
func TestV5_AnOutcomeIsInTheCommitOfTheEnd(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter, storetest.CrashBefore, storetest.CrashAfter} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := false
				disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
					if len(b.Outcomes) > 0 && !failed {
						failed, f.Kind = true, kind
					}
					return f
				}), storetest.WithApplied(func(_ int, b *driver.Batch) {
					if len(b.Outcomes) > len(b.Delete) {
						t.Error("a commit has an outcome, and not the end")
					}
				}))
				b := disk.outcomeBus(t, false)
				id := mustPublish(t, b.Bus, "paused", nil)
				synctest.Wait()
				_, err := b.Cancel(t.Context(), id, eventbus.By("ann"))
				require.Error(t, err)
				synctest.Wait()
				dump := disk.Dump()
				lasts := kind == storetest.FailAfter || kind == storetest.CrashAfter
				require.Equal(t, lasts, len(dump.Outcomes) == 1)
				require.Equal(t, lasts, len(dump.Records) == 0)
				close(b.release)
				disk.crash(b.Bus)

				next := disk.outcomeBus(t, false)
				if !lasts {
					require.Empty(t, endsOf(t, next.Bus, id))
					_, err = next.Cancel(t.Context(), id, eventbus.By("ann"))
					require.NoError(t, err)
				}
				require.Equal(t, []string{"paused cancelled 0 ended by ann"}, endsOf(t, next.Bus, id))
				shutdown(t, next.Bus)
			})
		})
	}
}
