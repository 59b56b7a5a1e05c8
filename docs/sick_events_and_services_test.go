package docs_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_SickEventsAndServices(t *testing.T) {
	docpagetest.Page(t, "sick-events-and-services.md",
		docpagetest.Code(docsSickVerdicts),
		docpagetest.Code(docsSickRules),
		docpagetest.Code(docsSickLetters),
		docpagetest.Code(docsSickService),
		docpagetest.Code(docsSickActions),
	)
}

// quietBus returns a bus in a bubble, whose dead letters the test expects.
func quietBus(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	bus := eventbustest.New(t, append(opts, eventbus.WithLogger(zap.NewNop()))...)
	eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
	return bus
}

func docsSickVerdicts(t *testing.T) error {
	type Order struct{ Number int }
	errRefused, errNoAccount, errBusy := errors.New("refused"), errors.New("no account"), errors.New("busy")
	synctest.Test(t, func(t *testing.T) {
		var answers shared[[]error] // of the bank, one after the other
		next := func() (err error) {
			answers.do(func(all *[]error) {
				if len(*all) > 0 {
					err, *all = (*all)[0], (*all)[1:]
				}
			})
			return err
		}
		bank := func(context.Context, Order) error { return next() }
		charge := func(ctx context.Context, o Order) error {
			err := bank(ctx, o)
			switch {
			case errors.Is(err, errRefused):
				return eventbus.Permanent(err) // this order can never succeed
			case errors.Is(err, errNoAccount):
				return eventbus.Snooze(time.Minute) // another system creates the account in a moment
			case errors.Is(err, errBusy):
				return eventbus.Throttle(err, 30*time.Second) // all orders wait
			}
			return err // nil, or a retry
		}
		var rec eventbustest.Recorder
		bus := quietBus(t, eventbus.WithMiddleware(rec.Wrap), eventbus.WithRetry(eventbus.NoJitter))
		_, err := bus.Subscribe("order.placed", eventbus.Typed(charge), eventbus.Named("billing"))
		require.NoError(t, err)
		publish := func(all ...error) (eventbus.Result, []time.Duration, error) {
			answers.set(all)
			result, err := bus.PublishAndWait(t.Context(), "order.placed", Order{17})
			calls, delays := rec.ByEvent(result.ID), []time.Duration(nil)
			for i := range calls[1:] {
				delays = append(delays, calls[i+1].Begun.Sub(calls[i].EndedAt))
			}
			return result, delays, err
		}
		for range 10 {
			result, _, err := publish(errRefused)
			require.ErrorIs(t, err, errRefused)
			require.Equal(t, 1, result.Attempts)
		}
		require.Equal(t, eventbus.CircuitClosed, bus.Metrics().Subscriptions[0].Circuit)
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonPermanent})
		require.NoError(t, err)
		require.Equal(t, 10, page.Total)

		result, delays, err := publish(errNoAccount, errNoAccount, errBusy, eventbus.RetryAfter(errors.New("later"), time.Hour), errors.New("again"))
		require.NoError(t, err)
		require.Equal(t, 3, result.Attempts)
		require.Equal(t, []time.Duration{time.Minute, time.Minute, 30 * time.Second, time.Hour, 2 * time.Second}, delays)
		require.EqualValues(t, 12, bus.Metrics().Subscriptions[0].Failures) // ten refusals, and the last two

		// After a Throttle, one goes alone, and each call that ends lets twice as many run.
		answers.set([]error{errBusy})
		type load struct{ running, ended, most int }
		var calls shared[load]
		_, err = bus.Subscribe("parcel", func(context.Context, eventbus.Event) error {
			if next() != nil {
				return eventbus.Throttle(errBusy, time.Minute)
			}
			calls.do(func(l *load) {
				l.running++
				l.most = max(l.most, l.running)
				assert.LessOrEqual(t, l.running, 1<<l.ended)
			})
			time.Sleep(time.Second)
			calls.do(func(l *load) { l.running--; l.ended++ })
			return nil
		})
		require.NoError(t, err)
		for range 15 {
			_, err = bus.Publish(t.Context(), "parcel", nil)
			require.NoError(t, err)
			synctest.Wait()
		}
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, 15, calls.get().ended)
		require.GreaterOrEqual(t, calls.get().most, 4)
	})
	return nil
}

func docsSickRules(t *testing.T) error {
	synctest.Test(t, func(t *testing.T) {
		type Order struct{ Number int }
		errLocked, errOther := errors.New("row is locked"), errors.New("other")
		var answers shared[[]error]
		charge := func(context.Context, Order) (err error) {
			answers.do(func(all *[]error) {
				if len(*all) > 0 {
					err, *all = (*all)[0], (*all)[1:]
				}
			})
			return err
		}
		bus := quietBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
		_, err := bus.Subscribe("order.placed", eventbus.Typed(charge), eventbus.Named("billing"), eventbus.RetryRules(
			eventbus.RetryRule{Name: "locked", Match: eventbus.ErrorMatch{Is: []error{errLocked}}, Attempts: 3}, // at once
			eventbus.RetryRule{
				Name: "offline", Match: eventbus.ErrorMatch{Types: []string{"timeout"}},
				Attempts: 9, BaseDelay: time.Minute, BackoffMultiplier: 2, MaxDelay: time.Hour,
			},
		))
		require.NoError(t, err)
		late := context.DeadlineExceeded
		for name, test := range map[string]struct {
			answers  []error
			attempts int
			handled  bool
			rule     string
		}{
			"each budget is its own": {[]error{errLocked, errLocked, late, late, late, late, late, late, late, late, errOther, errOther, errOther}, 14, true, ""},
			"locked":                 {[]error{late, errOther, errLocked, errLocked, errLocked}, 5, false, "locked"},
			"offline":                {[]error{late, late, late, late, late, late, late, late, late}, 9, false, "offline"},
			"policy":                 {[]error{errOther, errOther, errOther, errOther}, 4, false, ""},
		} {
			answers.set(test.answers)
			result, err := bus.PublishAndWait(t.Context(), "order.placed", Order{17})
			require.Equal(t, test.handled, err == nil, name)
			require.Equal(t, test.attempts, result.Attempts, name)
			var died *eventbus.DeliveryError
			if errors.As(err, &died) && test.rule != "" {
				require.Equal(t, test.rule, died.Letters[0].Rule.Name)
			}
		}
	})

	// A rule with one attempt opens the circuit, and Permanent does not.
	synctest.Test(t, func(t *testing.T) {
		bus := quietBus(t)
		errDeclined := errors.New("declined")
		for name, err := range map[string]error{"rule": errDeclined, "permanent": eventbus.Permanent(errDeclined)} {
			_, err := bus.Subscribe("card", func(context.Context, eventbus.Event) error { return err }, eventbus.Named(name), eventbus.Isolated(),
				eventbus.RetryRules(eventbus.RetryRule{Match: eventbus.ErrorMatch{Is: []error{errDeclined}}, Attempts: 1}))
			require.NoError(t, err)
		}
		for range 4 {
			_, err := bus.PublishAndWait(t.Context(), "card", nil)
			require.Error(t, err)
		}
		for _, s := range bus.Metrics().Subscriptions {
			require.Equal(t, s.Subscription == "rule", s.Circuit == eventbus.CircuitOpen, s.Subscription)
		}
	})
	return nil
}

func docsSickLetters(t *testing.T) error {
	type Order struct{ Number, Cents int }
	ctx, bus := t.Context(), quietBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithIsolation())
	var charged shared[[]Order]
	_, err := bus.Subscribe("order.placed", eventbus.Typed(func(_ context.Context, o Order) error {
		if o.Cents <= 0 {
			return fmt.Errorf("order %d: the bank refuses", o.Number)
		}
		charged.do(func(all *[]Order) { *all = append(*all, o) })
		return nil
	}), eventbus.Named("billing"))
	require.NoError(t, err)
	_, err = bus.Subscribe("order.placed", eventbus.Typed(func(_ context.Context, o Order) error {
		if o.Number == 4 {
			return fmt.Errorf("order %d: no such address", o.Number)
		}
		return nil
	}), eventbus.Named("mail"))
	require.NoError(t, err)
	for _, o := range []Order{{1, 10}, {2, 0}, {3, -1}, {4, 10}} {
		_, err := bus.PublishAndWait(ctx, "order.placed", o)
		require.Equal(t, o.Number == 1, err == nil)
	}
	charged.set(nil)
	groups, err := bus.DLQ().Groups(ctx, eventbus.LetterQuery{})
	if err != nil {
		return err
	}
	for _, g := range groups {
		fmt.Println(g.Count, g.Subscription, g.Message) // numbers in texts become #
	}
	page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{Fingerprint: groups[0].Fingerprint})
	if err != nil {
		return err
	}
	fixed := Order{Number: 3, Cents: 4200}
	err = bus.DLQ().ReplayEdited(ctx, page.Letters[0].ID, fixed, eventbus.By("anna"), eventbus.Because("ticket 4711"))
	require.NoError(t, err)
	eventbustest.WaitSettled(t, bus)
	require.Equal(t, []Order{fixed}, charged.get())
	require.Equal(t, 2, bus.Metrics().DeadLetters)
	return nil
}

func docsSickService(t *testing.T) error {
	synctest.Test(t, func(t *testing.T) {
		bus := quietBus(t)
		var answers shared[func() error]
		ship := func(context.Context, eventbus.Event) error { return answers.get()() }
		_, err := bus.Subscribe("parcel.*", ship, eventbus.Named("carrier"),
			eventbus.Isolated(), // the event's other subscriptions do not wait for it
			eventbus.Circuit(eventbus.MinEvents(10), eventbus.OpenFor(time.Minute)),
			eventbus.RateLimit(10, time.Second, 5),                   // its quota
			eventbus.MaxThrottle(time.Hour),                          // longer waits of Throttle are cut
			eventbus.Concurrency(4), eventbus.Timeout(5*time.Second), // a handler looks at its context
			eventbus.MaxAbandoned(20),                                // 20 calls that do not return: hung
			eventbus.LineCapacity(1000), eventbus.DeadLetterWhenFull) // what waits
		require.NoError(t, err)
		metrics := func() eventbus.SubscriptionMetrics { synctest.Wait(); return bus.Metrics().Subscriptions[0] }
		publish := func(n int) {
			for range n {
				_, err := bus.Publish(t.Context(), "parcel.packed", nil)
				require.NoError(t, err)
			}
		}

		// The quota: five at once, then ten a second.
		begun := time.Now()
		answers.set(func() error { return nil })
		publish(25)
		eventbustest.WaitSettled(t, bus)
		require.InDelta(t, 2, time.Since(begun).Seconds(), 0.3)

		// A full line makes dead letters.
		publish(1500)
		require.Equal(t, 1000, metrics().Throttled+metrics().Running)
		eventbustest.WaitSettled(t, bus)
		page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Reason: eventbus.ReasonOverflow})
		require.NoError(t, err)
		require.InDelta(t, 500, page.Total, 10)

		// It hangs, and does not look at its context.
		release := make(chan struct{})
		answers.set(func() error { <-release; return nil })
		publish(30)
		time.Sleep(time.Hour)
		require.True(t, metrics().Hung)
		require.Equal(t, 20, metrics().Abandoned)
		close(release)
		eventbustest.WaitSettled(t, bus)
		require.False(t, metrics().Hung)

		// It fails: the circuit opens, and probes once a minute.
		time.Sleep(2 * time.Minute)
		var calls atomic.Int32
		answers.set(func() error { calls.Add(1); return errors.New("down") })
		publish(20)
		time.Sleep(30 * time.Second)
		require.Equal(t, eventbus.CircuitOpen, metrics().Circuit)
		before := calls.Load()
		time.Sleep(10 * time.Minute)
		require.InDelta(t, 10, calls.Load()-before, 1)
		require.Positive(t, metrics().Held)
		answers.set(func() error { return nil })
		eventbustest.WaitSettled(t, bus)
		require.Equal(t, eventbus.CircuitClosed, metrics().Circuit)
	})

	// Few sick events do not hold up a healthy one.
	synctest.Test(t, func(t *testing.T) {
		bus := quietBus(t)
		_, err := bus.Subscribe("order", eventbus.Typed(func(_ context.Context, sick bool) error {
			if sick {
				return errors.New("sick")
			}
			return nil
		}))
		require.NoError(t, err)
		_, err = bus.PublishAndWait(t.Context(), "order", false)
		require.NoError(t, err)
		for range 6 {
			_, err = bus.Publish(t.Context(), "order", true)
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Equal(t, eventbus.CircuitOpen, bus.Metrics().Subscriptions[0].Circuit)
		healthy, err := bus.Publish(t.Context(), "order", false)
		require.NoError(t, err)
		time.Sleep(90 * time.Second)
		status, err := bus.Event(t.Context(), healthy)
		require.NoError(t, err)
		require.Empty(t, status.Dispatches)
		require.EqualValues(t, 2, bus.Metrics().Subscriptions[0].Successes)
		eventbustest.WaitSettled(t, bus)
	})
	return nil
}

func docsSickActions(t *testing.T) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, bus := t.Context(), quietBus(t, eventbus.WithRetry(eventbus.MaxRetries(0)))
		var up atomic.Bool
		_, suberr := bus.Subscribe("parcel", func(context.Context, eventbus.Event) error {
			if !up.Load() {
				return errors.New("down")
			}
			return nil
		}, eventbus.Named("carrier"))
		require.NoError(t, suberr)
		for range 4 {
			_, err := bus.PublishAndWait(ctx, "parcel", nil)
			require.Error(t, err)
		}
		held, puberr := bus.Publish(ctx, "parcel", nil)
		require.NoError(t, puberr)
		synctest.Wait()
		_, left := bus.RetryNow(ctx, held)
		require.ErrorIs(t, left, eventbus.ErrNothingDone)
		up.Store(true)
		act := func() error {
			report, err := bus.RetryNow(ctx, held, eventbus.Probe(), eventbus.By("anna")) // success closes the circuit
			if err != nil {
				return err
			}
			fmt.Println(report.Deliveries[0].Subscription, "was", report.Deliveries[0].State)
			err = bus.Subscription("carrier").Pause(eventbus.By("anna"), eventbus.Because("maintenance")) // no call begins after this
			return err
		}
		err = act()
		synctest.Wait()
		carrier := bus.Metrics().Subscriptions[0]
		require.Equal(t, eventbus.CircuitClosed, carrier.Circuit)
		require.EqualValues(t, 1, carrier.Successes)
		require.True(t, carrier.Paused)

		given, puberr := bus.Publish(ctx, "parcel", nil)
		require.NoError(t, puberr)
		cancelled, puberr := bus.Publish(ctx, "parcel", nil)
		require.NoError(t, puberr)
		synctest.Wait()
		_, left = bus.RetryNow(ctx, given, eventbus.Probe())
		require.ErrorIs(t, left, eventbus.ErrNothingDone, "a paused one stays held")
		_, given1 := bus.GiveUp(ctx, given)
		require.NoError(t, given1)
		_, cancelled1 := bus.Cancel(ctx, cancelled)
		require.NoError(t, cancelled1)
		require.Equal(t, given, eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonOperator}).Event.ID)
		require.Equal(t, 5, bus.Metrics().DeadLetters)
		require.NoError(t, bus.Subscription("carrier").Resume())
	})
	return err
}
