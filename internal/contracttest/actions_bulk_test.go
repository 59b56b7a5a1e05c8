package contracttest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/storetest"
)

// stuck publishes n events that fail at "fails", and as many that are held at "paused".
func stuck(t *testing.T, bus *eventbus.Bus, n int) (healed *atomic.Bool) {
	t.Helper()
	healed = new(atomic.Bool)
	mustSubscribe(t, bus, "fails", eventbus.Typed(func(_ context.Context, i int) error {
		if healed.Load() {
			return nil
		}
		return fmt.Errorf("customer %d is unknown", i%2)
	}), eventbus.Named("fails"), eventbus.Retry(retry(5, 10*time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
	require.NoError(t, mustSubscribe(t, bus, "paused", ok, eventbus.Named("paused")).Pause())
	require.NoError(t, bus.Start(t.Context()))
	for i := range n {
		mustPublish(t, bus, "fails", i, eventbus.Key(fmt.Sprint("f", i)))
		mustPublish(t, bus, "paused", i)
	}
	time.Sleep(time.Second)
	return healed
}

func TestV4_InBulk(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		healed := stuck(t, bus, 20)
		ann := eventbus.By("ann")
		report, err := bus.CancelMatching(t.Context(), eventbus.DispatchQuery{Error: "customer 1"}, ann, eventbus.DryRun())
		require.NoError(t, err)
		require.Equal(t, eventbus.ActionsReport{Matched: 10}, report)

		var steps []eventbus.BulkProgress
		progress := eventbus.OnProgress(func(p eventbus.BulkProgress) { steps = append(steps, p) })
		began := time.Now()
		report, err = bus.CancelMatching(t.Context(), eventbus.DispatchQuery{Error: "customer 1"}, ann, eventbus.Because("test"), eventbus.Rate(1), progress)
		require.NoError(t, err)
		require.Equal(t, eventbus.ActionsReport{Matched: 10, Done: 10}, report)
		require.Len(t, steps, 10)
		require.Equal(t, 9*time.Second, time.Since(began).Round(time.Second))

		report, err = bus.RetryNowMatching(t.Context(), eventbus.DispatchQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, []int{30, 10, 20}, []int{report.Matched, report.Done, report.Left})
		require.Len(t, report.Reasons, 1)
		time.Sleep(time.Second)
		healed.Store(true)
		report, err = bus.RetryNowMatching(t.Context(), eventbus.DispatchQuery{Subscription: "fails", State: eventbus.DispatchWaiting}, eventbus.Probe())
		require.NoError(t, err)
		require.Equal(t, []int{10, 10}, []int{report.Matched, report.Done})
		time.Sleep(time.Second)
		require.EqualValues(t, 10, bus.Metrics().Ledger.Handled)

		report, err = bus.GiveUpMatching(t.Context(), eventbus.DispatchQuery{Type: "paused"}, ann)
		require.NoError(t, err)
		require.Equal(t, []int{20, 20}, []int{report.Matched, report.Done})
		require.Len(t, letters(t, bus), 20)
		report, err = bus.GiveUpMatching(t.Context(), eventbus.DispatchQuery{Type: "paused"}, ann)
		require.NoError(t, err)
		require.Zero(t, report.Matched)
		entries := audit(t, bus, eventbus.AuditQuery{By: "ann"})
		require.Len(t, entries, 4, "each has one before and one after")
		require.Equal(t, "paused", entries[0].Dispatches.Type)
		require.Equal(t, 20, entries[0].Outcome.Done)
		require.Equal(t, 10, entries[3].Count)
		require.Equal(t, eventbus.AuditCancel, entries[3].Action)
		requireBalanced(t, bus)
	})
}

// The set is fixed: what is published while the operation runs is left alone.
func TestV4_ABulkActionHasAFixedSet(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		stuck(t, bus, 5)
		report, err := bus.GiveUpMatching(t.Context(), eventbus.DispatchQuery{Subscription: "paused"}, eventbus.Rate(1),
			eventbus.OnProgress(func(eventbus.BulkProgress) { mustPublish(t, bus, "paused", 0) }))
		require.NoError(t, err)
		require.Equal(t, []int{5, 5}, []int{report.Matched, report.Done})
		synctest.Wait()
		require.Equal(t, 5, metricsOf(t, bus, "paused").Held)

		ctx, cancel := context.WithCancel(t.Context())
		report, err = bus.CancelMatching(ctx, eventbus.DispatchQuery{Subscription: "paused"}, eventbus.Rate(1), eventbus.OnProgress(func(p eventbus.BulkProgress) {
			if p.Done == 2 {
				cancel()
			}
		}))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []int{5, 2}, []int{report.Matched, report.Done})
		require.Equal(t, 3, metricsOf(t, bus, "paused").Held)
		requireBalanced(t, bus)
	})
}

// A filter by age and one by destination.
func TestV4_BulkFilters(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		s := mustSubscribe(t, bus, "*", ok, eventbus.Named("s"), eventbus.PerDestination(func(e eventbus.Event) string { return e.Metadata.Get("to") }))
		require.NoError(t, bus.Start(t.Context()))
		require.NoError(t, s.Destination("dead").Pause())
		require.NoError(t, s.Destination("ill").Pause())
		to := func(name string) eventbus.PublishOption { return eventbus.Metadata("to", name) }
		for range 3 {
			mustPublish(t, bus, "x", nil, to("dead"))
			mustPublish(t, bus, "x", nil, to("ill"))
		}
		time.Sleep(time.Minute)
		old := time.Now()
		mustPublish(t, bus, "x", nil, to("dead"))
		time.Sleep(time.Second)
		report, err := bus.GiveUpMatching(t.Context(), eventbus.DispatchQuery{Destination: "dead", PublishedUntil: old.Add(-time.Second)})
		require.NoError(t, err)
		require.Equal(t, []int{3, 3}, []int{report.Matched, report.Done})
		for _, l := range letters(t, bus) {
			require.Equal(t, "dead", l.Event.Metadata.Get("to"))
		}
		requireBalanced(t, bus)
	})
}

// Thousands of events, of which memory has a part, from a process without the lease, and from one that holds it for the call.
func TestV4_BulkOnAStoreFromAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithQueueCapacity(200))
		stuck(t, bus, 1200)
		tool := disk.tool(t)
		report, err := tool.CancelMatching(t.Context(), eventbus.DispatchQuery{Subscription: "paused"}, eventbus.By("ann"))
		require.NoError(t, err)
		require.Equal(t, []int{1200, 1200}, []int{report.Matched, report.Done})
		synctest.Wait()
		requireBalanced(t, bus)
		shutdown(t, bus)
		report, err = tool.GiveUpMatching(t.Context(), eventbus.DispatchQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, []int{1200, 1200}, []int{report.Matched, report.Done})
		require.Len(t, letters(t, tool), 1200)
		shutdown(t, tool)
		require.Empty(t, disk.Dump().Records)
	})
}

func TestV4_BadBulkActions(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		stuck(t, bus, 2)
		paused := eventbus.DispatchQuery{Subscription: "paused"}
		for what, call := range map[string]func() (eventbus.ActionsReport, error){
			"DispatchQuery.All": func() (eventbus.ActionsReport, error) {
				return bus.CancelMatching(t.Context(), eventbus.DispatchQuery{})
			},
			"DispatchQuery.Limit": func() (eventbus.ActionsReport, error) {
				return bus.CancelMatching(t.Context(), eventbus.DispatchQuery{All: true, Limit: 5})
			},
			"DispatchQuery.State": func() (eventbus.ActionsReport, error) {
				return bus.CancelMatching(t.Context(), eventbus.DispatchQuery{State: "x"})
			},
			"DispatchQuery.Payloads": func() (eventbus.ActionsReport, error) {
				return bus.CancelMatching(t.Context(), eventbus.DispatchQuery{All: true, Payloads: true})
			},
			"StopAfter": func() (eventbus.ActionsReport, error) {
				return bus.GiveUpMatching(t.Context(), paused, eventbus.StopAfter(1))
			},
			"Probe": func() (eventbus.ActionsReport, error) {
				return bus.GiveUpMatching(t.Context(), paused, eventbus.Probe())
			},
			"Rate": func() (eventbus.ActionsReport, error) {
				return bus.GiveUpMatching(t.Context(), paused, eventbus.Rate(0))
			},
			"By": func() (eventbus.ActionsReport, error) {
				return bus.GiveUpMatching(t.Context(), paused, eventbus.By("\n"))
			},
		} {
			_, err := call()
			var bad *eventbus.OptionError
			require.ErrorAs(t, err, &bad, what)
			require.Equal(t, what, bad.Option)
		}
		_, err := bus.CancelMatching(t.Context(), eventbus.DispatchQuery{Type: "a..b"})
		require.ErrorIs(t, err, eventbus.ErrInvalidPattern)
		require.Equal(t, 2, metricsOf(t, bus, "paused").Held)
		require.Empty(t, letters(t, bus))
	})
}

// A bulk action with a subscription concerns its deliveries, and the event goes on at the others.
func TestV4_BulkOfOneSubscription(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var handled atomic.Int64
		require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named("paused")).Pause())
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			if handled.Load() < 0 {
				handled.Add(1)
				return errBoom
			}
			handled.Add(1)
			return nil
		}, eventbus.Named("other"), eventbus.Retry(retry(2, time.Hour)))
		handled.Store(-3)
		require.NoError(t, bus.Start(t.Context()))
		for range 3 {
			mustPublish(t, bus, "x", nil)
		}
		time.Sleep(time.Second)
		report, err := bus.CancelMatching(t.Context(), eventbus.DispatchQuery{Subscription: "paused"})
		require.NoError(t, err)
		require.Equal(t, []int{3, 3}, []int{report.Matched, report.Done})
		time.Sleep(2 * time.Hour)
		l := bus.Metrics().Ledger
		require.Equal(t, []int64{3, 3}, []int64{l.Handled, l.Cancelled})
		requireBalanced(t, bus)
	})
}

// A preview counts events, whose latest publication fixes the set. It changes nothing.
func TestV4_APreviewFixesTheSet(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		stuck(t, bus, 20)
		p, err := bus.PreviewMatching(t.Context(), eventbus.DispatchQuery{})
		require.NoError(t, err)
		require.Equal(t, 40, p.Matched)
		require.Equal(t, map[eventbus.DispatchState]int{eventbus.DispatchWaiting: 20, eventbus.DispatchParked: 20}, p.States)
		require.Len(t, p.Sample, 10)
		require.Nil(t, p.Sample[0].Payload)
		require.False(t, p.Oldest.After(p.Newest))
		mustPublish(t, bus, "paused", 99)
		time.Sleep(time.Second)
		report, err := bus.GiveUpMatching(t.Context(), eventbus.DispatchQuery{Type: "paused", PublishedUntil: p.Newest})
		require.NoError(t, err)
		require.Equal(t, []int{20, 20}, []int{report.Matched, report.Done})
		p, err = bus.PreviewMatching(t.Context(), eventbus.DispatchQuery{Subscription: "paused"})
		require.NoError(t, err)
		require.Equal(t, 1, p.Matched)
		p, err = bus.PreviewMatching(t.Context(), eventbus.DispatchQuery{Key: "nobody"})
		require.NoError(t, err)
		require.Equal(t, 0, p.Matched)
		for _, q := range []eventbus.DispatchQuery{{Limit: 1}, {After: "x"}, {Payloads: true}, {State: "gone"}} {
			_, err = bus.PreviewMatching(t.Context(), q)
			require.ErrorAs(t, err, new(*eventbus.OptionError))
		}
		_, err = bus.PreviewMatching(t.Context(), eventbus.DispatchQuery{Type: "a..b"})
		require.ErrorAs(t, err, new(*eventbus.PatternError))
		_, err = bus.CancelMatching(t.Context(), eventbus.DispatchQuery{All: true})
		require.NoError(t, err)
	})
}

// An interrupt ends a bulk action between two commits: the report has all that was done.
func TestV4_AnInterruptedBulkActionCountsWhatItDid(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		stuck(t, bus, 600)
		ctx, interrupt := context.WithCancel(t.Context())
		report, err := bus.CancelMatching(ctx, eventbus.DispatchQuery{Type: "paused"}, eventbus.By("ann"), eventbus.OnProgress(func(eventbus.BulkProgress) { interrupt() }))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []int{600, 500}, []int{report.Matched, report.Done})
		left, err := bus.PreviewMatching(t.Context(), eventbus.DispatchQuery{Type: "paused"})
		require.NoError(t, err)
		require.Equal(t, 100, left.Matched)
		_, err = bus.CancelMatching(t.Context(), eventbus.DispatchQuery{All: true})
		require.NoError(t, err)
	})
}

// The report has the part whose commit was in progress at the interrupt.
func TestV4_AnInterruptDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) storetest.Fault {
			if len(b.Delete) < 100 {
				return storetest.Fault{}
			}
			interrupt()
			return storetest.Fault{Delay: 100 * time.Millisecond}
		}))
		bus, _ := disk.open(t)
		stuck(t, bus, 600)
		report, err := bus.CancelMatching(ctx, eventbus.DispatchQuery{Type: "paused"}, eventbus.By("ann"))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []int{600, 500}, []int{report.Matched, report.Done})
		_, err = bus.CancelMatching(t.Context(), eventbus.DispatchQuery{All: true})
		require.NoError(t, err)
		shutdown(t, bus)
	})
}

// A denied bulk action is in the audit with its query, whose texts are cut.
func TestV4_ADeniedBulkAction(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		require.NoError(t, bus.Start(t.Context()))
		denied := eventbus.AuditEntry{Action: eventbus.AuditCancel, By: "eve", Denied: "forbidden", Dispatches: &eventbus.DispatchQuery{Type: "order.*", Error: strings.Repeat("x", 9000)}}
		require.NoError(t, bus.AuditDenied(t.Context(), denied))
		page, err := bus.Audit(t.Context(), eventbus.AuditQuery{Denied: true})
		require.NoError(t, err)
		require.Equal(t, "order.*", page.Entries[0].Dispatches.Type)
		require.Less(t, len(page.Entries[0].Dispatches.Error), 300)
		denied.Dispatches.Type = "a..b"
		require.ErrorAs(t, bus.AuditDenied(t.Context(), denied), new(*eventbus.PatternError))
	})
}
