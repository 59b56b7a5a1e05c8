package contracttest

import (
	"context"
	"fmt"
	"slices"
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

// actionBus has a subscription for each place in which an event may be, all named as their patterns.
type actionBus struct {
	*eventbus.Bus
	release chan struct{} // closed, the calls of runs, limited and hangs return
	calls   *callLog
	waits   atomic.Bool // waits fails until it is false
	snoozes atomic.Bool // snoozed postpones until it is false
}

func newActionBus(t *testing.T, bus *eventbus.Bus) *actionBus {
	t.Helper()
	b := &actionBus{Bus: bus, release: make(chan struct{}), calls: newCallLog()}
	b.waits.Store(true)
	b.snoozes.Store(true)
	subscribe := func(name string, h eventbus.Handler, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
		noted := func(ctx context.Context, e eventbus.Event) error {
			b.calls.note("%s", name)
			return h(ctx, e)
		}
		return mustSubscribe(t, bus, name, noted, append([]eventbus.SubscribeOption{eventbus.Named(name), eventbus.Circuit(eventbus.NoCircuit())}, opts...)...)
	}
	subscribe("runs", until(b.release), eventbus.Timeout(1000*time.Hour))
	subscribe("waits", func(context.Context, eventbus.Event) error {
		if b.waits.Load() {
			return errBoom
		}
		return nil
	}, eventbus.Retry(retry(5, 10*time.Minute)))
	subscribe("snoozed", func(context.Context, eventbus.Event) error {
		if b.snoozes.Load() {
			return eventbus.Snooze(10 * time.Minute)
		}
		return nil
	})
	subscribe("limited", until(b.release), eventbus.Concurrency(1), eventbus.Timeout(1000*time.Hour))
	subscribe("ok", ok)
	require.NoError(t, subscribe("paused", ok).Pause())
	require.NoError(t, bus.Start(t.Context()))
	synctest.Wait()
	return b
}

// publishAll publishes an event for each place, and returns where it is.
func (b *actionBus) publishAll(t *testing.T) map[string]eventbus.EventID {
	t.Helper()
	mustPublish(t, b.Bus, "limited", "first")
	synctest.Wait()
	all := map[string]eventbus.EventID{"scheduled": mustPublish(t, b.Bus, "ok", nil, eventbus.After(time.Hour))}
	for _, name := range []string{"runs", "waits", "snoozed", "limited", "paused"} {
		all[name] = mustPublish(t, b.Bus, name, nil)
	}
	time.Sleep(time.Second)
	return all
}

// found returns what an action has found, in short.
func found(r eventbus.ActionReport) (all []string) {
	for _, d := range r.Deliveries {
		text := fmt.Sprintf("%s %s", d.Subscription, d.State)
		if d.Parked != "" {
			text += " " + string(d.Parked)
		}
		if d.Done {
			text += " done"
		}
		all = append(all, text)
	}
	return all
}

func TestV1_CancelEndsAnEventWhereverItIs(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		all := b.publishAll(t)
		want := map[string]string{
			"scheduled": "ok scheduled done", "runs": "runs running done", "waits": "waits waiting done", "snoozed": "snoozed parked done",
			"limited": "limited parked done", "paused": "paused parked done",
		}
		before := bus.Metrics().Ledger.Cancelled
		for name, id := range all {
			r, err := bus.Cancel(t.Context(), id)
			require.NoError(t, err, name)
			require.Equal(t, []string{want[name]}, found(r), name)
			require.Equal(t, id, r.Event)
			_, err = bus.Cancel(t.Context(), id)
			requireNothingLeft(t, err, name)
		}
		require.EqualValues(t, len(all), bus.Metrics().Ledger.Cancelled-before)
		b.waits.Store(false)
		calls := len(b.calls.all())
		time.Sleep(24 * time.Hour)
		require.NoError(t, bus.Subscription("paused").Resume())
		synctest.Wait()
		require.Len(t, b.calls.all(), calls, "no further call begins")
		require.Empty(t, letters(t, bus))
		close(b.release)
		synctest.Wait()
		requireBalanced(t, bus)
		l := bus.Metrics().Ledger
		require.Zero(t, l.Queued+l.Running+l.Waiting+l.Held+l.Throttled+l.Snoozed+l.Scheduled)
	})
}

// What is queued is cancelled too, also behind an earlier event of its key, whose followers go on in their order.
func TestV1_CancelOfWhatIsQueued(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprint("isolated ", isolated), func(t *testing.T) {
			opts := []eventbus.Option{eventbus.WithConcurrency(2)}
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				var mu sync.Mutex
				var handled []int
				gate := make(chan struct{})
				mustSubscribe(t, bus, "*", eventbus.Typed(func(_ context.Context, i int) error {
					<-gate
					mu.Lock()
					defer mu.Unlock()
					handled = append(handled, i)
					return nil
				}), eventbus.Named("s"), eventbus.Timeout(time.Hour), eventbus.Concurrency(2))
				require.NoError(t, bus.Start(t.Context()))
				var ids []eventbus.EventID
				for i := range 8 {
					ids = append(ids, mustPublish(t, bus, "x", i, eventbus.Key("k")))
				}
				synctest.Wait()
				for _, i := range []int{1, 4, 7} {
					r, err := bus.Cancel(t.Context(), ids[i])
					require.NoError(t, err)
					require.Equal(t, []string{"s queued done"}, found(r))
				}
				close(gate)
				time.Sleep(time.Second)
				mu.Lock()
				require.Equal(t, []int{0, 2, 3, 5, 6}, handled)
				mu.Unlock()
				requireBalanced(t, bus)
			}, opts...)
		})
	}
}

// A running call sees the cause, and what it returns does not count. Until it has returned it is an abandoned call.
func TestV1_ARunningCallIsCancelled(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		causes, goesOn := make(chan error, 1), make(chan struct{})
		mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			<-goesOn
			return errBoom
		}, eventbus.Named("s"), eventbus.Timeout(time.Hour), eventbus.MaxAbandoned(1))
		require.NoError(t, bus.Start(t.Context()))
		got := make(chan error, 1)
		id := eventbus.NewEventID()
		go func() {
			r, err := bus.PublishAndWait(context.WithoutCancel(t.Context()), "x", nil, eventbus.ID(id))
			if r.Outcome != eventbus.Cancelled {
				err = fmt.Errorf("%v: %w", r.Outcome, err)
			}
			got <- err
		}()
		time.Sleep(time.Second)
		r, err := bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.False(t, r.Forgotten, "a call had begun")
		require.ErrorIs(t, <-causes, eventbus.ErrCancelled)
		require.ErrorIs(t, <-got, eventbus.ErrCancelled)
		require.Equal(t, 1, metricsOf(t, bus, "s").Abandoned)
		require.Equal(t, eventbus.ParkHung, metricsOf(t, bus, "s").ShutBy, "it counts for MaxAbandoned")
		close(goesOn)
		synctest.Wait()
		m := metricsOf(t, bus, "s")
		require.Zero(t, m.Abandoned)
		require.Empty(t, m.ShutBy)
		require.Zero(t, m.Failures)
		require.Empty(t, letters(t, bus))
		requireBalanced(t, bus)
	})
}

// A handler cancels its own event, and does not wait for itself.
func TestV1_CancelInTheEventsOwnHandler(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		done := make(chan error, 1)
		calls := newCallLog()
		mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
			_, err := bus.Cancel(ctx, e.ID)
			if err == nil && context.Cause(ctx) != eventbus.ErrCancelled { //nolint:errorlint // it is that one
				err = fmt.Errorf("the cause is %w", context.Cause(ctx))
			}
			done <- err
			return nil
		}, eventbus.Named("cancels"))
		mustSubscribe(t, bus, "*", calls.handler("after it"), eventbus.Named("after"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", nil)
		require.NoError(t, <-done)
		synctest.Wait()
		require.Empty(t, calls.all())
		require.EqualValues(t, 1, bus.Metrics().Ledger.Cancelled)
		require.Zero(t, bus.Metrics().AbandonedHandlers)
		requireBalanced(t, bus)
	})
}

// Of a coupled event, what has succeeded stays so, and the other deliveries end.
func TestV1_CancelOfACoupledEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var first, last atomic.Int64
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { first.Add(1); return nil }, eventbus.Named("first"))
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("fails"), eventbus.Retry(retry(3, time.Hour)))
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { last.Add(1); return nil }, eventbus.Named("last"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()))
		time.Sleep(time.Second)
		r, err := bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []string{"fails waiting done"}, found(r))
		require.Equal(t, []string{"fails", "last"}, r.Deliveries[0].Targets)
		require.False(t, r.Forgotten)
		time.Sleep(5 * time.Hour)
		require.EqualValues(t, 1, first.Load())
		require.Zero(t, last.Load())
		_, err = bus.Publish(t.Context(), "y", nil, eventbus.ID(id))
		require.ErrorIs(t, err, eventbus.ErrDuplicateID, "a call had begun: the id stays known")
		requireBalanced(t, bus)
	})
}

// The id and the key of an event are free again if no call had begun, and otherwise not.
func TestV1_OnlyAnUntouchedEventIsForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		published := func(name string) (func() (eventbus.EventID, error), eventbus.EventID) {
			once := []eventbus.PublishOption{eventbus.IdempotencyKey("once " + name)}
			publish := func() (eventbus.EventID, error) { return bus.Publish(t.Context(), name, nil, once...) }
			id, err := publish()
			require.NoError(t, err)
			time.Sleep(time.Second)
			return publish, id
		}
		for name, forgotten := range map[string]bool{"paused": true, "waits": false, "snoozed": false, "runs": false} {
			again, id := published(name)
			r, err := bus.Cancel(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, forgotten, r.Forgotten, name)
			other, err := again()
			require.NoError(t, err)
			require.Equal(t, forgotten, other != id, name)
		}
		close(b.release)
	})
}

// That holds for each of several isolated subscriptions, too, also when a scheduled event has become due.
func TestV1_AnUntouchedIsolatedEventIsForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		for _, name := range []string{"a", "b"} {
			require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named(name)).Pause())
		}
		require.NoError(t, bus.Start(t.Context()))
		for _, delay := range []time.Duration{0, time.Second} {
			id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()), eventbus.After(delay))
			time.Sleep(2 * time.Second)
			r, err := bus.Cancel(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, []string{"a parked done", "b parked done"}, found(r))
			require.True(t, r.Forgotten)
			_, err = bus.Publish(t.Context(), "y", nil, eventbus.ID(id))
			require.NoError(t, err, "with another type: the id is free")
		}
		synctest.Wait()
		requireBalanced(t, bus)
	}, eventbus.WithIsolation())
}

// Cancel beside workers: each event is handled or cancelled, never both, and never neither.
func TestV1_CancelAgainstRacingSuccesses(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		const n = 300
		var handled, cancelled [n]atomic.Int64
		mustSubscribe(t, bus, "*", eventbus.Typed(func(ctx context.Context, i int) error {
			time.Sleep(time.Duration(i%7) * time.Microsecond)
			if ctx.Err() == nil {
				handled[i].Add(1)
			}
			return nil
		}), eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		var wg sync.WaitGroup
		for i := range n {
			id := mustPublish(t, bus, "x", i, eventbus.ID(eventbus.NewEventID()))
			wg.Go(func() {
				time.Sleep(time.Duration(i%5) * time.Microsecond)
				switch r, err := cancelForSure(bus, id); {
				case err == nil && r.Deliveries[0].Done:
					cancelled[i].Add(1)
				case err != nil && !nothingLeft(err):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.NoError(t, bus.Drain(t.Context()))
		time.Sleep(time.Second) // cancelled calls return
		l, sum := bus.Metrics().Ledger, int64(0)
		for i := range n {
			sum += cancelled[i].Load()
			require.Positive(t, handled[i].Load()+cancelled[i].Load(), "%d", i)
		}
		require.Equal(t, sum, l.Cancelled)
		require.EqualValues(t, n, l.Handled+l.Cancelled)
		requireBalanced(t, bus)
	})
}

func TestV2_RetryNowLetsWaitingDeliveriesGoOn(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		all := b.publishAll(t)
		b.waits.Store(false)
		b.snoozes.Store(false)
		for name, want := range map[string]string{"waits": "waits waiting done", "snoozed": "snoozed parked snoozed done"} {
			began := time.Now()
			r, err := bus.RetryNow(t.Context(), all[name])
			require.NoError(t, err)
			require.Equal(t, []string{want}, found(r))
			time.Sleep(time.Second)
			require.Less(t, time.Since(began), time.Minute)
			_, err = bus.RetryNow(t.Context(), all[name])
			requireNothingLeft(t, err, name)
		}
		require.EqualValues(t, 2, bus.Metrics().Ledger.Handled)
		requireBalanced(t, bus)
		close(b.release)
	})
}

// What runs, is queued or is throttled goes on anyway: nothing is done, and that is no error. What is held is left.
func TestV2_RetryNowOfOthers(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		all := b.publishAll(t)
		for name, want := range map[string]string{"runs": "runs running", "limited": "limited parked throttled"} {
			r, err := bus.RetryNow(t.Context(), all[name])
			require.NoError(t, err, name)
			require.Equal(t, []string{want}, found(r))
			require.Empty(t, r.Deliveries[0].Left)
		}
		for name, says := range map[string]string{"paused": "Resume ends that", "scheduled": "is not due yet"} {
			_, err := bus.RetryNow(t.Context(), all[name], eventbus.Probe())
			require.ErrorIs(t, err, eventbus.ErrNothingDone, name)
			require.ErrorContains(t, err, says)
		}
		close(b.release)
	})
}

// Behind an open circuit, Probe lets the one delivery probe that the operator names. The others wait for its outcome.
func TestV2_ProbeBehindAnOpenCircuit(t *testing.T) {
	for _, heals := range []bool{true, false} {
		t.Run(fmt.Sprint("heals ", heals), func(t *testing.T) {
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				var broken atomic.Bool
				var calls []any
				var mu sync.Mutex
				s := mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
					mu.Lock()
					defer mu.Unlock()
					calls = append(calls, e.Key)
					if broken.Load() {
						return errBoom
					}
					return nil
				}, eventbus.Named("s"), eventbus.Retry(retry(9, time.Second)))
				require.NoError(t, bus.Start(t.Context()))
				require.NoError(t, s.Trip())
				var ids []eventbus.EventID
				for i := range 5 {
					ids = append(ids, mustPublish(t, bus, "x", nil, eventbus.Key(fmt.Sprint(i))))
				}
				behind := mustPublish(t, bus, "x", nil, eventbus.Key("3"))
				synctest.Wait()
				_, err := bus.RetryNow(t.Context(), ids[3])
				require.ErrorIs(t, err, eventbus.ErrNothingDone)
				require.ErrorContains(t, err, "Probe")
				_, err = bus.RetryNow(t.Context(), behind, eventbus.Probe())
				require.ErrorIs(t, err, eventbus.ErrNothingDone, "an earlier one has its key")
				broken.Store(!heals)
				r, err := bus.RetryNow(t.Context(), ids[3], eventbus.Probe())
				require.NoError(t, err)
				require.Equal(t, []string{"s parked circuit_open done"}, found(r))
				synctest.Wait()
				mu.Lock()
				require.Equal(t, "3", calls[0])
				mu.Unlock()
				if !heals {
					require.Len(t, calls, 1)
					require.Equal(t, eventbus.CircuitOpen, metricsOf(t, bus, "s").Circuit)
					require.NoError(t, bus.Drain(t.Context()), "what is held does not count")
					return
				}
				require.NoError(t, bus.Drain(t.Context()))
				require.Len(t, calls, 6)
				requireBalanced(t, bus)
			})
		})
	}
}

// Of a subscription that is hung, Probe admits deliveries as if the calls that hang had returned.
func TestV2_ProbeWhileTheSubscriptionHangs(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		release := make(chan struct{})
		var calls atomic.Int64
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error {
			if calls.Add(1) == 1 {
				<-release
			}
			return nil
		}, eventbus.Named("s"), eventbus.Timeout(time.Second), eventbus.MaxAbandoned(1), eventbus.Retry(retry(1, time.Second)))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "x", "hangs")
		time.Sleep(5 * time.Second)
		id := mustPublish(t, bus, "x", "held")
		time.Sleep(time.Second)
		_, err := bus.RetryNow(t.Context(), id)
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.EqualValues(t, 1, calls.Load())
		_, err = bus.RetryNow(t.Context(), id, eventbus.Probe())
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 3, calls.Load(), "with the retry of the first one")
		close(release)
	})
}

func TestV3_GiveUpMakesLettersOfWhatWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		all := b.publishAll(t)
		_, err := bus.GiveUp(t.Context(), all["runs"])
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.ErrorContains(t, err, "Cancel ends the call")
		delete(all, "runs")
		for name, id := range all {
			_, err := bus.GiveUp(t.Context(), id, eventbus.By("ann"), eventbus.Because("over"))
			require.NoError(t, err, name)
			_, err = bus.GiveUp(t.Context(), id)
			requireNothingLeft(t, err, name)
		}
		require.Len(t, letters(t, bus), len(all))
		for _, l := range letters(t, bus) {
			require.Equal(t, eventbus.ReasonOperator, l.Reason)
		}
		requireBalanced(t, bus)
		b.waits.Store(false)
		b.snoozes.Store(false)
		close(b.release)
		require.NoError(t, bus.Subscription("paused").Resume())
		report, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonOperator})
		require.NoError(t, err)
		require.Equal(t, len(all), report.Replayed)
		time.Sleep(2 * time.Hour)
		require.Empty(t, letters(t, bus))
		requireBalanced(t, bus)
	})
}

// A letter has those that were not reached, and the attempts and failures so far.
func TestV3_TheLetterHasTheStory(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		mustSubscribe(t, bus, "*", ok, eventbus.Named("first"))
		mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("fails"), eventbus.Retry(retry(3, time.Hour)))
		mustSubscribe(t, bus, "*", ok, eventbus.Named("last"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", nil)
		time.Sleep(time.Second)
		_, err := bus.GiveUp(t.Context(), id)
		require.NoError(t, err)
		l := oneLetter(t, bus)
		require.Equal(t, []string{"first"}, l.Succeeded)
		require.Equal(t, "fails", l.Subscription)
		require.Equal(t, []string{"last"}, l.NotReached)
		require.Equal(t, 1, l.Attempts)
		require.Len(t, l.Failures, 1)
		requireBalanced(t, bus)
	})
}

// The letter tells its handlers, in its commit.
func TestV3_GiveUpTellsTheHandlersOfLetters(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		told := make(chan eventbus.DeadLetter, 1)
		_, err := bus.OnDeadLetter("paused", func(_ context.Context, l eventbus.DeadLetter) error { told <- l; return nil }, eventbus.Named("told"))
		require.NoError(t, err)
		id := mustPublish(t, bus, "paused", nil)
		synctest.Wait()
		_, err = bus.GiveUp(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, id, (<-told).Event.ID)
		close(b.release)
		requireBalanced(t, bus)
	})
}

// Each action concerns one subscription's delivery, and the others go on.
func TestV4_OneSubscriptionsDelivery(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprint("isolated ", isolated), func(t *testing.T) {
			var opts []eventbus.Option
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				var last atomic.Int64
				mustSubscribe(t, bus, "*", failing(errBoom), eventbus.Named("fails"), eventbus.Formerly("failed"), eventbus.Retry(retry(3, time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
				mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { last.Add(1); return nil }, eventbus.Named("last"))
				require.NoError(t, bus.Start(t.Context()))
				cancelled, givenUp := mustPublish(t, bus, "x", nil), mustPublish(t, bus, "x", nil)
				time.Sleep(time.Second)
				_, err := bus.Cancel(t.Context(), cancelled, eventbus.OfSubscription("other"))
				requireNothingLeft(t, err)
				r, err := bus.Cancel(t.Context(), cancelled, eventbus.OfSubscription("failed"))
				require.NoError(t, err)
				require.Equal(t, []string{"fails waiting done"}, found(r))
				_, err = bus.GiveUp(t.Context(), givenUp, eventbus.OfSubscription("fails"))
				require.NoError(t, err)
				synctest.Wait()
				require.EqualValues(t, 2, last.Load())
				l := oneLetter(t, bus)
				require.Equal(t, "fails", l.Subscription)
				require.Empty(t, l.NotReached)
				ledger := bus.Metrics().Ledger
				require.Equal(t, []int64{2, 1, 1}, []int64{ledger.Handled, ledger.Cancelled, ledger.DeadLettered})
				requireBalanced(t, bus)
			}, opts...)
		})
	}
}

// A running call of one subscription is cancelled, and the subscriptions after it get the event.
func TestV4_ARunningCallOfOneSubscription(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		var last atomic.Int64
		mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }, eventbus.Named("hangs"), eventbus.Timeout(time.Hour))
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { last.Add(1); return nil }, eventbus.Named("last"))
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", nil)
		time.Sleep(time.Second)
		r, err := bus.Cancel(t.Context(), id, eventbus.OfSubscription("last"))
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.ErrorContains(t, err, "comes after this one")
		require.Equal(t, []string{"hangs running"}, found(r))
		_, err = bus.Cancel(t.Context(), id, eventbus.OfSubscription("hangs"))
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 1, last.Load())
		requireBalanced(t, bus)
	})
}

// The rest of the attempt is the same one after a crash.
func TestV4_TheRestOfACancelledAttemptAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		attempts := make(chan int, 2)
		open := func() *eventbus.Bus {
			bus, _ := disk.open(t)
			hangs := func(ctx context.Context, _ eventbus.Event) error { <-ctx.Done(); return nil }
			mustSubscribe(t, bus, "*", hangs, eventbus.Named("first"), eventbus.Timeout(time.Hour))
			mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
				d, _ := eventbus.FromContext(ctx)
				attempts <- d.Attempt
				return hangs(ctx, e)
			}, eventbus.Named("last"), eventbus.Timeout(time.Hour))
			require.NoError(t, bus.Start(t.Context()))
			return bus
		}
		bus := open()
		id := mustPublish(t, bus, "x", "")
		time.Sleep(time.Second)
		_, err := bus.Cancel(t.Context(), id, eventbus.OfSubscription("first"))
		require.NoError(t, err)
		require.Equal(t, 1, <-attempts)
		disk.crash(bus)
		bus = open()
		require.Equal(t, 1, <-attempts)
		_, err = bus.Cancel(t.Context(), id)
		require.NoError(t, err)
		shutdown(t, bus)
	})
}

// A target that was split off from a dispatch is none of it any more, also after a crash.
func TestV4_WhatWasSplitOffBeforeACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		for _, name := range []string{"first", "paused", "last"} {
			mustSubscribe(t, bus, "*", func(ctx context.Context, _ eventbus.Event) error {
				if name == "last" {
					<-ctx.Done()
				}
				return nil
			}, eventbus.Named(name), eventbus.Timeout(time.Hour))
		}
		require.NoError(t, bus.Subscription("paused").Pause())
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", "")
		time.Sleep(time.Second)
		disk.crash(bus)

		tool := disk.tool(t)
		r, err := tool.GiveUp(t.Context(), id, eventbus.OfSubscription("last"))
		require.NoError(t, err, "%+v", r)
		require.Equal(t, []string{"last queued done"}, found(r))
		require.Equal(t, []string{"last"}, r.Deliveries[0].Targets)
		require.Equal(t, "last", oneLetter(t, tool).Subscription)
		r, err = tool.Cancel(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []string{"paused parked done"}, found(r))
		requireBalanced(t, tool)
		shutdown(t, tool)
	})
}

// With a store, what only the store has is found, and the audit says who did it. From another process it is the same.
func TestV4_FromAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t)
		b := newActionBus(t, bus)
		tool := disk.tool(t)
		all := b.publishAll(t)
		b.waits.Store(false)
		r, err := tool.RetryNow(t.Context(), all["waits"], eventbus.By("ann"), eventbus.Because("try"))
		require.NoError(t, err)
		require.Equal(t, []string{"waits waiting done"}, found(r))
		_, err = tool.GiveUp(t.Context(), all["snoozed"], eventbus.OfSubscription("snoozed"), eventbus.By("ann"))
		require.NoError(t, err)
		_, err = tool.Cancel(t.Context(), all["runs"], eventbus.By("ann"))
		require.NoError(t, err)
		_, err = tool.RetryNow(t.Context(), all["paused"])
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		require.Equal(t, eventbus.ReasonOperator, oneLetter(t, tool).Reason)
		var actions []eventbus.AuditAction
		for _, e := range audit(t, tool, eventbus.AuditQuery{By: "ann"}) {
			actions = append(actions, e.Action)
		}
		require.Equal(t, []eventbus.AuditAction{eventbus.AuditCancel, eventbus.AuditGiveUp, eventbus.AuditRetryNow}, actions)
		close(b.release)
		shutdown(t, bus)

		// Nobody has the lease: the tool does it.
		r, err = tool.Cancel(t.Context(), all["paused"])
		require.NoError(t, err)
		require.Equal(t, []string{"paused parked done"}, found(r))
		r, err = tool.GiveUp(t.Context(), all["scheduled"])
		require.NoError(t, err)
		require.Equal(t, []string{"ok scheduled done"}, found(r))
		requireBalanced(t, tool)
		shutdown(t, tool)
	})
}

// What a bus has left in the store is found by the next one, before and after it was claimed.
func TestV4_AfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		var fails atomic.Bool
		fails.Store(true)
		open := func(named string) *eventbus.Bus {
			bus, _ := disk.open(t)
			if named != "" {
				disk.handles(t, bus, named, func(string, int) error {
					if fails.Load() {
						return errBoom
					}
					return nil
				}, eventbus.Retry(retry(5, 24*time.Hour)), eventbus.Circuit(eventbus.NoCircuit()))
			}
			require.NoError(t, bus.Start(t.Context()))
			return bus
		}
		first := open("mail")
		var ids []eventbus.EventID
		for i := range 6 {
			ids = append(ids, mustPublish(t, first, "a", fmt.Sprint(i)))
		}
		time.Sleep(time.Second)
		shutdown(t, first)
		fails.Store(false)

		orphans := open("") // no subscription: the deliveries are parked for mail
		synctest.Wait()
		_, err := orphans.RetryNow(t.Context(), ids[0])
		require.NoError(t, err, "it waits for its retry")
		time.Sleep(time.Second)
		require.Equal(t, eventbus.ParkMissing, onlyDispatch(t, orphans, ids[0]).Parked)
		_, err = orphans.RetryNow(t.Context(), ids[0])
		require.ErrorIs(t, err, eventbus.ErrNothingDone)
		_, err = orphans.Cancel(t.Context(), ids[0])
		require.NoError(t, err)
		_, err = orphans.GiveUp(t.Context(), ids[1], eventbus.OfSubscription("mail"))
		require.NoError(t, err)
		require.Equal(t, "mail", oneLetter(t, orphans).Subscription)
		requireBalanced(t, orphans)
		shutdown(t, orphans)

		tool := disk.tool(t)
		_, err = tool.RetryNow(t.Context(), ids[2])
		require.NoError(t, err, "the next bus does it")
		second := open("mail")
		time.Sleep(time.Second)
		_, err = second.RetryNow(t.Context(), ids[2])
		requireNothingLeft(t, err)
		_, err = second.RetryNow(t.Context(), ids[3])
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = second.RetryNow(t.Context(), ids[3])
		requireNothingLeft(t, err)
		time.Sleep(48 * time.Hour)
		requireBalanced(t, second)
		shutdown(t, tool)
		shutdown(t, second)
		require.Empty(t, disk.Dump().Records)
	})
}

// Cancel reports all replays of an event that it withdraws.
func TestV1_IncomingReplaysOfAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk()
		bus, _ := disk.open(t, eventbus.WithIsolation())
		for _, name := range []string{"a", "b"} {
			mustSubscribe(t, bus, "*", failing(eventbus.Permanent(errBoom)), eventbus.Named(name))
		}
		require.NoError(t, bus.Start(t.Context()))
		id := mustPublish(t, bus, "x", "")
		time.Sleep(time.Second)
		shutdown(t, bus)
		tool := disk.tool(t)
		page, err := tool.DLQ().List(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		for _, l := range page.Letters {
			require.NoError(t, tool.DLQ().Replay(t.Context(), l.ID))
		}
		r, err := tool.Cancel(t.Context(), id, eventbus.By("ann"))
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"a incoming done", "b incoming done"}, found(r))
		is, err := tool.Event(t.Context(), id)
		require.NoError(t, err)
		var ended []string
		for _, d := range is.Settled {
			if d.EndedBy == "ann" {
				ended = append(ended, d.Subscription)
			}
		}
		require.ElementsMatch(t, []string{"a", "b"}, ended)
		require.Empty(t, is.Dispatches)
		shutdown(t, tool)
	})
}

func TestV4_BadActions(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		id := b.publishAll(t)["paused"]
		for what, opt := range map[string]eventbus.ActionOption{
			"By": eventbus.By("\n"), "OfSubscription": eventbus.OfSubscription(""), "nil": nil, "Probe": eventbus.Probe(),
		} {
			_, err := bus.Cancel(t.Context(), id, opt)
			require.ErrorIs(t, err, eventbus.ErrInvalidOption, what)
			if what != "Probe" {
				_, err = bus.RetryNow(t.Context(), id, opt)
				require.ErrorIs(t, err, eventbus.ErrInvalidOption, what)
			}
			_, err = bus.GiveUp(t.Context(), id, opt)
			require.ErrorIs(t, err, eventbus.ErrInvalidOption, what)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := bus.GiveUp(ended, id)
		require.ErrorIs(t, err, context.Canceled)
		for _, unknown := range []eventbus.EventID{{}, eventbus.NewEventID()} {
			_, err = bus.GiveUp(t.Context(), unknown)
			require.ErrorIs(t, err, eventbus.ErrUnknownEvent)
			require.ErrorContains(t, err, unknown.String())
		}
		require.Equal(t, eventbus.DispatchParked, onlyDispatch(t, bus, id).State)
		require.Empty(t, letters(t, bus))
		close(b.release)
	})
}

// Of an event with several dispatches, one that is in no place, because an observer has it, ends as soon as the observer returns.
func TestV1_WhatIsOnItsWay(t *testing.T) {
	for _, when := range []string{"before the call", "before the retry"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				observed, goOn := make(chan struct{}, 1), make(chan struct{})
				blocks := func(e eventbus.Event) {
					if e.Type == "x" {
						observed <- struct{}{}
						<-goOn
					}
				}
				observer := eventbus.Observer{AttemptBegun: func(a eventbus.Attempt) { blocks(a.Event) }}
				calls := int64(0)
				if when == "before the retry" {
					observer, calls = eventbus.Observer{RetryScheduled: func(r eventbus.ScheduledRetry) { blocks(r.Event) }}, 1
				}
				bus, _ := newBus(t, eventbus.WithObserver(observer), eventbus.WithIsolation())
				var called atomic.Int64
				mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { called.Add(1); return errBoom }, eventbus.Named("s"), eventbus.Retry(retry(3, time.Hour)))
				require.NoError(t, mustSubscribe(t, bus, "*", ok, eventbus.Named("paused")).Pause())
				require.NoError(t, bus.Start(t.Context()))
				id := mustPublish(t, bus, "x", nil, eventbus.ID(eventbus.NewEventID()))
				<-observed
				time.Sleep(time.Second)
				r, err := bus.Cancel(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, []string{"paused parked done"}, found(r))
				require.False(t, r.Forgotten, "not all of its dispatches were found")
				close(goOn)
				time.Sleep(24 * time.Hour)
				require.EqualValues(t, 2, bus.Metrics().Ledger.Cancelled)
				require.Equal(t, calls, called.Load())
				shutdown(t, bus)
			})
		})
	}
}

// A scheduled event becomes one letter, for all of its subscriptions, and is scheduled again when it is replayed.
func TestV3_AScheduledEventIsGivenUp(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprint("isolated ", isolated), func(t *testing.T) {
			var opts []eventbus.Option
			if isolated {
				opts = append(opts, eventbus.WithIsolation())
			}
			onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
				var calls atomic.Int64
				handler := func(context.Context, eventbus.Event) error { calls.Add(1); return nil }
				mustSubscribe(t, bus, "*", handler, eventbus.Named("first"))
				mustSubscribe(t, bus, "*", handler, eventbus.Named("second"))
				require.NoError(t, bus.Start(t.Context()))
				began := time.Now()
				id := mustPublish(t, bus, "x", nil, eventbus.After(time.Hour))
				synctest.Wait()
				r, err := bus.GiveUp(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, []string{"first scheduled done"}, found(r))
				l := oneLetter(t, bus)
				require.Equal(t, []string{"second"}, l.NotReached)
				require.Equal(t, began.Add(time.Hour).UTC(), l.Due.UTC())
				requireBalanced(t, bus)
				require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
				time.Sleep(time.Minute)
				require.Zero(t, calls.Load())
				require.Equal(t, eventbus.DispatchScheduled, onlyDispatch(t, bus, id).State)
				time.Sleep(time.Hour)
				require.EqualValues(t, 2, calls.Load())
				requireBalanced(t, bus)
			}, opts...)
		})
	}
}

// An event that others have not handled yet is not unknown: nothing of it is left for this subscription.
func TestV4_ASubscriptionWithoutADeliveryOfTheEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		for place, id := range b.publishAll(t) {
			if place == "scheduled" { // in a store it has one record, which is left
				continue
			}
			for _, act := range []func(context.Context, eventbus.EventID, ...eventbus.ActionOption) (eventbus.ActionReport, error){bus.Cancel, bus.RetryNow, bus.GiveUp} {
				r, err := act(t.Context(), id, eventbus.OfSubscription("nobody"))
				require.ErrorIs(t, err, eventbus.ErrSettled, place)
				require.ErrorContains(t, err, `settled for the subscription "nobody", and not for others`)
				require.Empty(t, r.Deliveries)
			}
		}
		close(b.release)
	})
}

// The audit has each action once, whatever it found the event in.
func TestV4_ActionsOfEachPlaceAreInTheAudit(t *testing.T) {
	onBoth(t, func(t *testing.T, bus *eventbus.Bus) {
		b := newActionBus(t, bus)
		all := b.publishAll(t)
		want := 0
		for _, name := range []string{"waits", "snoozed"} {
			_, err := bus.RetryNow(t.Context(), all[name], eventbus.By("ann"))
			require.NoError(t, err)
			want++
			time.Sleep(time.Second)
			require.Len(t, audit(t, bus, eventbus.AuditQuery{By: "ann"}), want, "RetryNow of %s", name)
		}
		_, err := bus.RetryNow(t.Context(), all["runs"], eventbus.By("ann"))
		require.NoError(t, err)
		require.Len(t, audit(t, bus, eventbus.AuditQuery{By: "ann"}), want, "nothing was done")
		for name, act := range map[string]func(context.Context, eventbus.EventID, ...eventbus.ActionOption) (eventbus.ActionReport, error){
			"scheduled": bus.Cancel, "runs": bus.Cancel, "waits": bus.GiveUp, "limited": bus.Cancel, "paused": bus.GiveUp,
		} {
			_, err := act(t.Context(), all[name], eventbus.By("ann"))
			require.NoError(t, err)
			want++
			require.Len(t, audit(t, bus, eventbus.AuditQuery{By: "ann"}), want, name)
		}
		close(b.release)
	})
}

// An action that the store has refused did not happen: the event goes on after the restart, and the audit has nothing.
func TestV4_AnActionWhoseCommitFails(t *testing.T) {
	for _, verb := range []eventbus.AuditAction{eventbus.AuditCancel, eventbus.AuditGiveUp} {
		synctest.Test(t, func(t *testing.T) {
			var fails atomic.Bool
			disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
				if fails.Load() && len(b.Audit) > 0 {
					f.Kind = storetest.FailBefore
				}
				return f
			}))
			bus, _ := disk.open(t)
			b := newActionBus(t, bus)
			act := map[eventbus.AuditAction]func(context.Context, eventbus.EventID, ...eventbus.ActionOption) (eventbus.ActionReport, error){
				eventbus.AuditCancel: bus.Cancel, eventbus.AuditGiveUp: bus.GiveUp,
			}[verb]
			id := mustPublish(t, b.Bus, "paused", nil)
			time.Sleep(time.Second)
			fails.Store(true)
			_, err := act(t.Context(), id, eventbus.By("ann"))
			require.Error(t, err)
			fails.Store(false)
			time.Sleep(time.Minute) // it restarts in place
			s, err := bus.Event(t.Context(), id)
			require.NoError(t, err)
			require.Len(t, s.Dispatches, 1)
			require.Empty(t, s.Letters.Letters)
			require.Empty(t, audit(t, bus, eventbus.AuditQuery{By: "ann"}))
			_, err = act(t.Context(), id, eventbus.By("ann"))
			require.NoError(t, err)
			require.Len(t, audit(t, bus, eventbus.AuditQuery{By: "ann"}), 1)
			close(b.release)
			requireBalanced(t, bus)
			shutdown(t, bus)
		})
	}
}

// While the store commits the end of a delivery, later ones of its key wait: the commit may fail, and then it runs before them.
func TestV1_TheOrderOfAKeyIfTheCommitFails(t *testing.T) {
	for _, verb := range []eventbus.AuditAction{eventbus.AuditCancel, eventbus.AuditGiveUp} {
		for _, where := range []string{"queue", "store"} {
			for _, isolated := range []bool{false, true} {
				t.Run(fmt.Sprint(verb, " in the ", where, ", isolated=", isolated), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testOrderAfterFailure(t, verb, where, isolated) })
				})
			}
		}
	}
}

func testOrderAfterFailure(t *testing.T, verb eventbus.AuditAction, where string, isolated bool) {
	t.Helper()
	disk := newDisk(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
		if len(b.Audit) > 0 {
			f = storetest.Fault{Kind: storetest.FailBefore, Delay: time.Second}
		}
		return f
	}))
	capacity := map[string]int{"queue": 100, "store": 1}[where]
	opts := []eventbus.Option{eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(capacity), eventbus.WithMaxUnsettled(100)}
	if isolated {
		opts = append(opts, eventbus.WithIsolation())
	}
	bus, _ := disk.open(t, opts...)
	release, calls := make(chan struct{}), &journal[string]{}
	mustSubscribe(t, bus, "other", until(release), eventbus.Named("other"))
	mustSubscribe(t, bus, "x", eventbus.Typed(func(_ context.Context, n int) error {
		calls.add(fmt.Sprint(n))
		return nil
	}), eventbus.Named("x"))
	require.NoError(t, bus.Start(t.Context()))
	mustPublish(t, bus, "other", nil)
	synctest.Wait() // its handler has the one worker
	for range 2 {
		mustPublish(t, bus, "other", nil)
	}
	first := mustPublish(t, bus, "x", 1, eventbus.Key("k"))
	mustPublish(t, bus, "x", 2, eventbus.Key("k"))
	time.Sleep(time.Second)
	failed := make(chan error, 1)
	go func() {
		act := bus.Cancel
		if verb == eventbus.AuditGiveUp {
			act = bus.GiveUp
		}
		_, err := act(context.WithoutCancel(t.Context()), first, eventbus.By("ann"))
		failed <- err
	}()
	time.Sleep(time.Second / 2)
	close(release)
	require.Error(t, <-failed)
	time.Sleep(time.Minute) // it restarts in place
	require.Equal(t, []string{"1", "2"}, firsts(calls.all()))
	requireBalanced(t, bus)
	shutdown(t, bus)
}

// firsts returns each text once, where it came first.
func firsts(all []string) (once []string) {
	for _, text := range all {
		if !slices.Contains(once, text) {
			once = append(once, text)
		}
	}
	return once
}
