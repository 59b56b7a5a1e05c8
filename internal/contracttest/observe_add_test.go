package contracttest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

func TestO2_ObserversAreAddedAndRemovedWhileTheBusRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen journal[string]
		accepted := func(name string) eventbus.Observer {
			return eventbus.Observer{Accepted: func(e eventbus.Event) { seen.add(name + " " + e.Payload.(string)) }}
		}
		bus, _ := startBus(t, eventbus.WithObserver(accepted("first")), eventbus.WithObserver(accepted("second")))
		mustSubscribe(t, bus, "a", ok)
		mustPublish(t, bus, "a", "1")
		removeThird := bus.Observe(accepted("third"))
		removeFourth := bus.Observe(accepted("fourth"))
		mustPublish(t, bus, "a", "2")
		removeThird()
		removeThird()
		mustPublish(t, bus, "a", "3")
		removeFourth()
		mustPublish(t, bus, "a", "4")
		require.Equal(t, []string{
			"first 1", "second 1",
			"first 2", "second 2", "third 2", "fourth 2",
			"first 3", "second 3", "fourth 3",
			"first 4", "second 4",
		}, seen.all())
		shutdown(t, bus)
	})
	(*eventbus.Bus)(nil).Observe(eventbus.Observer{})()
	(&eventbus.Bus{}).Observe(eventbus.Observer{})()
}

// An observer sees the end of an attempt only if it saw the begin.
func TestO2_AnObserverSeesWholeAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, others := range []bool{false, true} {
			var opts []eventbus.Option
			if others {
				opts = append(opts, eventbus.WithObserver(eventbus.Observer{AttemptEnded: func(eventbus.EndedAttempt) {}}))
			}
			bus, _ := startBus(t, append(opts, eventbus.WithRetry(retry(1, time.Second)))...)
			release := make(chan struct{})
			mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
				<-release
				return errBoom
			})
			mustPublish(t, bus, "a", nil)
			synctest.Wait()
			var begun, ended journal[int]
			remove := bus.Observe(eventbus.Observer{
				AttemptBegun: func(a eventbus.Attempt) { begun.add(a.Number) },
				AttemptEnded: func(a eventbus.EndedAttempt) { ended.add(a.Number) },
			})
			close(release)
			time.Sleep(time.Minute)
			require.Equal(t, []int{2}, begun.all())
			require.Equal(t, []int{2}, ended.all())
			remove()
			shutdown(t, bus)
		}
	})
}

// Functions may remove their own observer and add others.
func TestO2_AnObserverMayRemoveItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		mustSubscribe(t, bus, "a", ok)
		var calls atomic.Int32
		var remove func()
		remove = bus.Observe(eventbus.Observer{Accepted: func(eventbus.Event) {
			calls.Add(1)
			remove()
			bus.Observe(eventbus.Observer{Accepted: func(eventbus.Event) { calls.Add(100) }})
		}})
		mustPublish(t, bus, "a", nil)
		require.EqualValues(t, 1, calls.Load())
		mustPublish(t, bus, "a", nil)
		require.EqualValues(t, 101, calls.Load())
		shutdown(t, bus)
	})
}

// An observer that was removed is not called for what happens afterwards, and one that stays misses
// nothing, whatever comes and goes.
func TestO2_ObserversComeAndGoUnderLoad(t *testing.T) {
	var total atomic.Int64
	bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{
		Accepted:     func(eventbus.Event) { total.Add(1) },
		AttemptEnded: func(eventbus.EndedAttempt) {},
	}))
	mustSubscribe(t, bus, "*", ok)
	const each, publishers = 300, 3
	var running, watching sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		watching.Go(func() {
			for {
				removed := false // its address is the payload of the later event
				begun := make(map[uint64]bool)
				var mu sync.Mutex
				remove := bus.Observe(eventbus.Observer{
					Accepted: func(e eventbus.Event) {
						if e.Payload == &removed {
							t.Error("a removed observer was called for a later event")
						}
					},
					AttemptBegun: func(a eventbus.Attempt) {
						mu.Lock()
						defer mu.Unlock()
						begun[a.ID] = true
					},
					AttemptEnded: func(a eventbus.EndedAttempt) {
						mu.Lock()
						defer mu.Unlock()
						if !begun[a.ID] {
							t.Error("an attempt ended that had not begun")
						}
					},
				})
				_, _ = bus.Publish(context.Background(), "x", false)
				remove()
				_, _ = bus.Publish(context.Background(), "x", &removed)
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for range publishers {
		running.Go(func() {
			for range each {
				_, _ = bus.Publish(context.Background(), "x", false)
			}
		})
	}
	running.Wait()
	close(done)
	watching.Wait()
	shutdown(t, bus)
	require.Equal(t, bus.Metrics().Ledger.Accepted, total.Load())
}

// Metrics, Explain and the preview of a replay name what keeps deliveries out.
func TestO2_ShutByNamesTheReason(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(0, 0)))
		mail := mustSubscribe(t, bus, "a", failing(errBoom), eventbus.Named("mail"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		isShut := func(by eventbus.ParkReason, text string) {
			t.Helper()
			require.Equal(t, by, metricsOf(t, bus, "mail").ShutBy)
			plan := bus.Explain("a")
			require.Equal(t, by, plan.Targets[0].ShutBy)
			require.Contains(t, plan.String(), text)
			preview, err := bus.DLQ().PreviewReplay(t.Context(), eventbus.LetterQuery{})
			require.NoError(t, err)
			require.Equal(t, by, preview.Targets[0].ShutBy)
		}
		isShut("", "circuit closed, hold when open\n")
		require.NoError(t, mail.Trip())
		isShut(eventbus.ParkCircuit, "circuit open, hold when open\n")
		require.NoError(t, mail.Pause())
		isShut(eventbus.ParkPaused, "circuit open, hold when open, paused\n")
		require.NoError(t, mail.Resume())
		isShut(eventbus.ParkCircuit, "circuit open")
		require.NoError(t, mail.Reset())
		isShut("", "circuit closed")
		shutdown(t, bus)
	})
}

func TestO2_MetricsShowTheLastFailureAndOrder(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithRetry(retry(0, 0)))
		mail := mustSubscribe(t, bus, "a", failing(errBoom), eventbus.Named("mail"), eventbus.Concurrency(7), eventbus.DropNewestWhenFull)
		require.NoError(t, bus.Start(t.Context()))
		require.Nil(t, metricsOf(t, bus, "mail").Directive)
		mustPublish(t, bus, "a", nil)
		synctest.Wait()
		m := metricsOf(t, bus, "mail")
		require.Equal(t, "boom", m.LastError)
		require.WithinDuration(t, time.Now(), m.LastFailed, 10*time.Millisecond)
		require.Equal(t, time.UTC, m.LastFailed.Location())
		require.Equal(t, eventbus.SubscriptionOptions{
			Timeout: eventbus.DefaultTimeout, Concurrency: 7, LineCapacity: eventbus.DefaultLineCapacity, MaxThrottle: eventbus.DefaultMaxThrottle,
			WhenFull: eventbus.DropNewestWhenFull,
		}, m.Options)
		require.NoError(t, mail.Pause(eventbus.By("ann"), eventbus.Because("the mail server moves")))
		order := metricsOf(t, bus, "mail").Directive
		require.Equal(t, &eventbus.Directive{Subscription: "mail", Pause: true, By: "ann", Why: "the mail server moves", At: order.At}, order)
		require.NoError(t, mail.Resume(eventbus.By("bob")))
		require.Equal(t, "bob", metricsOf(t, bus, "mail").Directive.By)
		shutdown(t, bus)
	})
}
