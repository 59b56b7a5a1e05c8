package contracttest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// tool opens a bus beside the one that runs the handlers.
func (d *disk) tool(t *testing.T) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(eventbus.WithStore(d.Open()), eventbus.WithoutHandlers())
	require.NoError(t, err)
	return bus
}

func catalog(t *testing.T, bus *eventbus.Bus) eventbus.Catalog {
	t.Helper()
	c, err := bus.Catalog(t.Context())
	require.NoError(t, err)
	return c
}

// subscribeVariously makes subscriptions with every option that a catalog has.
func subscribeVariously(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	mustSubscribe(t, bus, "order.*", ok, eventbus.Named("mail"), eventbus.Formerly("post"), eventbus.Timeout(time.Second),
		eventbus.Concurrency(3), eventbus.LineCapacity(7), eventbus.DropWhenOpen, eventbus.DeadLetterWhenFull,
		eventbus.Circuit(eventbus.FailureRatio(0.25), eventbus.MinEvents(9), eventbus.Window(time.Hour), eventbus.OpenFor(time.Minute)),
		eventbus.Retry(eventbus.MaxRetries(9), eventbus.FullJitter, eventbus.RetryIf(func(error) bool { return false })),
		eventbus.RetryRules(eventbus.RetryRule{Name: "slow down", Match: eventbus.ErrorMatch{Codes: []string{"Busy.*"}}, Attempts: 4}))
	mustSubscribe(t, bus, "order.placed", ok, eventbus.Named("bill"), eventbus.Concurrency(eventbus.Unlimited),
		eventbus.Circuit(eventbus.NoCircuit()), eventbus.Retry(eventbus.IncludeErrors(), eventbus.BaseDelay(time.Minute)), eventbus.RetryRules())
	mustSubscribe(t, bus, "**", ok, eventbus.Named("log"))
}

// What a tool reads is what the bus has.
func TestL6_AToolReadsTheCatalogOfTheBus(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprint("isolated ", isolated), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newDisk()
				opts := []eventbus.Option{
					eventbus.WithTimeout(time.Minute), eventbus.WithConcurrency(50), eventbus.WithQueueCapacity(77), eventbus.WithMaxUnsettled(99),
					eventbus.WithRetry(eventbus.MaxRetries(2), eventbus.RetryIf(func(error) bool { return true })),
					eventbus.WithRetryRules(eventbus.RetryRule{Match: eventbus.ErrorMatch{Types: []string{"timeout"}}, Attempts: 2}),
					eventbus.WithCircuit(eventbus.MinEvents(5)),
				}
				if isolated {
					opts = append(opts, eventbus.WithIsolation())
				}
				bus, _ := disk.open(t, opts...)
				tool := disk.tool(t)
				_, err := tool.Catalog(t.Context())
				require.ErrorIs(t, err, eventbus.ErrNoCatalog)
				require.ErrorIs(t, tool.Explain("order.placed").Err, eventbus.ErrNoHandlers)

				subscribeVariously(t, bus)
				require.NoError(t, bus.Start(t.Context()))
				synctest.Wait()
				at := time.Now().UTC()
				want := catalog(t, bus)
				require.Equal(t, want.At, at)
				require.Equal(t, want, catalog(t, tool))
				require.Len(t, want.Subscriptions, 3)
				mail, bill, all := want.Subscriptions[0], want.Subscriptions[1], want.Subscriptions[2]
				require.Equal(t, eventbus.CatalogSubscription{
					Subscription: "mail", Pattern: "order.*", Formerly: []string{"post"}, Isolated: isolated, Concurrency: 3, MaxThrottle: eventbus.DefaultMaxThrottle, Timeout: time.Second, LineCapacity: 7,
					WhenOpen: eventbus.DropWhenOpen, WhenFull: eventbus.DeadLetterWhenFull,
					Circuit:   eventbus.CircuitSettings{FailureRatio: 0.25, MinEvents: 9, Window: time.Hour, OpenFor: time.Minute},
					Overrides: map[string]string{"MaxRetries": "9", "Jitter": "full", "RetryIf": "a function"},
					Retry:     mail.Retry, Rules: mail.Rules, OwnRules: true,
				}, mail)
				require.Equal(t, 9, mail.Retry.MaxRetries)
				require.Equal(t, "slow down", mail.Rules[0].Name)
				require.True(t, bill.Circuit.Disabled && bill.OwnRules && bill.Rules == nil)
				require.Equal(t, eventbus.Unlimited, bill.Concurrency)
				require.Equal(t, 5, all.Circuit.MinEvents)
				require.Zero(t, all.LineCapacity, "the store is the bound")
				require.Zero(t, all.Concurrency)
				require.False(t, all.OwnRules)
				require.Equal(t, []any{2, true, time.Minute, 50, 77, 99, isolated}, []any{
					want.Policy.MaxRetries, want.RetryIf, want.Timeout, want.Concurrency, want.QueueCapacity, want.MaxUnsettled, want.Isolated,
				})

				// A plan by the catalog is that of the bus, without the states.
				stored := catalog(t, tool)
				for _, typ := range []string{"order.placed", "order.paid", "else"} {
					live, plan := bus.Explain(typ), stored.Explain(typ)
					require.Equal(t, at, plan.CatalogAt)
					require.Contains(t, plan.String(), "catalog of "+at.Format(time.RFC3339))
					plan.CatalogAt = time.Time{}
					require.Equal(t, live.Policy.RetryIf == nil, plan.Policy.RetryIf == nil)
					live.Policy.RetryIf, plan.Policy.RetryIf = nil, nil
					for i := range plan.Targets {
						want := eventbus.CircuitUnknown
						if plan.Targets[i].Subscription == "bill" {
							want = eventbus.CircuitDisabled
						}
						require.Equal(t, want, plan.Targets[i].Circuit)
						plan.Targets[i].Circuit = live.Targets[i].Circuit
					}
					require.Equal(t, live, plan)
				}
				require.ErrorIs(t, stored.Explain("order..placed").Err, eventbus.ErrInvalidEvent)
				stored.Subscriptions[0].Pattern = "["
				require.ErrorIs(t, stored.Explain("order.placed").Err, eventbus.ErrInvalidPattern)
				shutdown(t, bus)
				time.Sleep(time.Hour)
				last := catalog(t, tool)
				require.Equal(t, at, last.At, "its age is seen")
				require.Equal(t, want.Subscriptions, last.Subscriptions)
				shutdown(t, tool)
			})
		})
	}
}

// Changes are recorded together, within a second, and the last one at Shutdown.
func TestL6_TheCatalogFollowsTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var recorded atomic.Int64
		disk := newDisk(storetest.WithApplied(func(_ int, b *driver.Batch) {
			if b.Catalog != nil {
				recorded.Add(1)
			}
		}))
		bus, _ := disk.open(t)
		tool := disk.tool(t)
		mail := disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, recorded.Load(), "nothing has changed")
		names := func() (names []string) {
			for _, s := range catalog(t, tool).Subscriptions {
				names = append(names, s.Subscription)
			}
			return names
		}
		changed := func(change func()) {
			t.Helper()
			before, at := recorded.Load(), time.Now().UTC()
			change()
			require.Less(t, time.Since(at), time.Second)
			time.Sleep(time.Second)
			require.Equal(t, before+1, recorded.Load())
			got := catalog(t, tool)
			require.True(t, got.At.After(at))
			now := catalog(t, bus)
			now.At = got.At
			require.Equal(t, now, got)
		}
		changed(func() {
			for i := range 100 {
				disk.handles(t, bus, fmt.Sprint(i), nil)
			}
		})
		require.Len(t, names(), 101)
		changed(func() { require.NoError(t, mail.SetRetry(eventbus.MaxRetries(7))) })
		changed(func() { require.NoError(t, mail.SetRetryRules()) })
		changed(func() { require.NoError(t, bus.SetRetry(eventbus.MaxRetries(8))) })
		changed(func() { require.NoError(t, bus.SetRetryRules()) })
		changed(func() { mail.Unsubscribe() })
		require.NotContains(t, names(), "mail")
		disk.handles(t, bus, "late", nil)
		require.NotContains(t, names(), "late")
		shutdown(t, bus)
		require.Contains(t, names(), "late", "Shutdown does not wait for a second")
		shutdown(t, tool)
	})
}

// A store that fails while the catalog is recorded has it after its restart.
func TestL6_TheCatalogSurvivesAFailureOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(storetest.WithFaults(func(n int, b *driver.Batch) (f storetest.Fault) {
			if b.Catalog != nil && n < 3 {
				f.Kind = storetest.FailBefore
			}
			return f
		}))
		bus, _ := disk.open(t)
		tool := disk.tool(t)
		disk.handles(t, bus, "mail", nil)
		require.NoError(t, bus.Start(t.Context()))
		time.Sleep(time.Minute)
		require.Len(t, catalog(t, tool).Subscriptions, 1)
		shutdown(t, bus)
		shutdown(t, tool)
	})
}

// The orders in a catalog are those that hold when it is read.
func TestL6_TheCatalogHasTheOrders(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mail := mustSubscribe(t, bus, "a", ok, eventbus.Named("mail"))
		bill := mustSubscribe(t, bus, "a", ok, eventbus.Named("bill"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, errors.Join(mail.Pause(eventbus.By("ann")), bill.HoldUntil(time.Now().Add(time.Minute))))
		orders := catalog(t, bus).Directives
		require.Len(t, orders, 2)
		require.Equal(t, "bill", orders[len(orders)-2].Subscription, "by subscription")
		require.Equal(t, "ann", orders[1].By)
		c := catalog(t, bus)
		for _, target := range c.Explain("a").Targets {
			require.True(t, target.Paused)
		}
		time.Sleep(time.Hour)
		orders = catalog(t, bus).Directives
		require.Len(t, orders, 1, "a pause that has ended does not hold")
		require.NoError(t, mail.Resume())
		require.Empty(t, catalog(t, bus).Directives)
		_, err := bus.Catalog(nil) //nolint:staticcheck // it is refused
		require.ErrorIs(t, err, eventbus.ErrNilContext)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = bus.Catalog(cancelled)
		require.ErrorIs(t, err, context.Canceled)
		_, err = (*eventbus.Bus)(nil).Catalog(t.Context())
		require.ErrorIs(t, err, eventbus.ErrUninitialized)
		shutdown(t, bus)
	})
}

// unhurriedReads reads directives after some time, unless the context has ended.
type unhurriedReads struct{ driver.Store }

func (s unhurriedReads) Directives(ctx context.Context) ([]driver.Directive, error) {
	select {
	case <-time.After(50 * time.Millisecond):
		return s.Store.Directives(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestL6_TheCatalogIsReadDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDisk().Open()
		bus, _ := newBus(t, eventbus.WithStore(unhurriedReads{store}))
		release := make(chan struct{})
		mail := mustSubscribe(t, bus, "a", until(release), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", 1)
		synctest.Wait()
		require.NoError(t, mail.Pause())
		done := make(chan error, 1)
		go func() { done <- bus.Shutdown(t.Context()) }()
		time.Sleep(time.Second)
		require.Len(t, catalog(t, bus).Directives, 1)
		close(release)
		require.NoError(t, <-done)
	})
}

// The end of HoldUntil ends the pause of a directive that also has Trip.
func TestL6_ACatalogHasNoPauseThatHasEnded(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mail := mustSubscribe(t, bus, "x", ok, eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, mail.HoldUntil(time.Now().Add(time.Minute)))
		require.NoError(t, mail.Trip())
		for _, paused := range []bool{true, false} {
			c, err := bus.Catalog(t.Context())
			require.NoError(t, err)
			require.Len(t, c.Directives, 1)
			require.True(t, c.Directives[0].Trip)
			require.Equal(t, paused, c.Directives[0].Pause)
			require.Equal(t, paused, !c.Directives[0].Until.IsZero())
			require.Equal(t, paused, c.Explain("x").Targets[0].Paused)
			require.Equal(t, bus.Explain("x").Targets[0].Paused, paused)
			time.Sleep(2 * time.Minute)
		}
		shutdown(t, bus)
	})
}
