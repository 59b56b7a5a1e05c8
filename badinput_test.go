package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// Fault 12, for the options of New. Those of subscriptions are in
// TestR3_ARefusedSubscriptionChangesNothing.
func TestFault12_BadBusOptions(t *testing.T) {
	var noOption eventbus.Option
	var noRetry eventbus.RetryOption
	var noCircuit eventbus.CircuitOption
	policy := func(change func(*eventbus.RetryPolicy)) eventbus.Option {
		p := eventbus.DefaultRetryPolicy()
		change(&p)
		return eventbus.WithRetry(p)
	}
	for says, opts := range map[string][]eventbus.Option{
		"New(nil)":                           {eventbus.RefuseWhenFull(), noOption},
		"WithLogger(nil)":                    {eventbus.WithLogger(nil)},
		"WithClock(nil)":                     {eventbus.WithClock(nil)},
		"WithMetadataFrom(nil)":              {eventbus.WithMetadataFrom(nil)},
		"WithMiddleware(nil)":                {eventbus.WithMiddleware(nil)},
		"WithTimeout(0s)":                    {eventbus.WithTimeout(0)},
		"WithTimeout(-1ns)":                  {eventbus.WithTimeout(-1)},
		"WithTimeout(-2562047h47m16.8547758": {eventbus.WithTimeout(math.MinInt64)},
		"WithConcurrency(0)":                 {eventbus.WithConcurrency(0)},
		"WithConcurrency(-9":                 {eventbus.WithConcurrency(math.MinInt)},
		"WithQueueCapacity(0)":               {eventbus.WithQueueCapacity(0)},
		"WithQueueCapacity(-1)":              {eventbus.WithQueueCapacity(-1)},
		"WithDeadLetterCapacity(0)":          {eventbus.WithDeadLetterCapacity(0)},
		"WithDeadLetterCapacity(-1)":         {eventbus.WithDeadLetterCapacity(-1)},
		"WithRetry(nil)":                     {eventbus.WithRetry(noRetry)},
		"WithRetry.MaxRetries(-2)":           {eventbus.WithRetry(eventbus.MaxRetries(-2))},
		"WithRetry.MaxRetries(2147483648)":   {eventbus.WithRetry(eventbus.MaxRetries(1 << 31))},
		"WithRetry.BaseDelay(-1ns)":          {eventbus.WithRetry(eventbus.BaseDelay(-1))},
		"WithRetry.MaxDelay(-1ns)":           {eventbus.WithRetry(eventbus.MaxDelay(-1))},
		"WithRetry.MaxElapsed(-1ns)":         {eventbus.WithRetry(eventbus.MaxElapsed(-1))},
		"WithRetry.BackoffMultiplier(0.999)": {eventbus.WithRetry(eventbus.BackoffMultiplier(0.999))},
		"WithRetry.BackoffMultiplier(-1)":    {eventbus.WithRetry(eventbus.BackoffMultiplier(-1))},
		"WithRetry.BackoffMultiplier(NaN)":   {eventbus.WithRetry(eventbus.BackoffMultiplier(math.NaN()))},
		"WithRetry.BackoffMultiplier(+Inf)":  {eventbus.WithRetry(eventbus.BackoffMultiplier(math.Inf(1)))},
		"WithRetry.BackoffMultiplier(-Inf)":  {eventbus.WithRetry(eventbus.BackoffMultiplier(math.Inf(-1)))},
		"WithRetry.BackoffMultiplier(0)":     {eventbus.WithRetry(eventbus.RetryPolicy{MaxRetries: 3})},
		"WithRetry.BaseDelay(-1s)":           {policy(func(p *eventbus.RetryPolicy) { p.BaseDelay = -time.Second })},
		"WithRetry.Jitter(99)":               {policy(func(p *eventbus.RetryPolicy) { p.Jitter = 99 })},
		"WithRetry.Jitter(-1)":               {eventbus.WithRetry(eventbus.Jitter(-1))},
		"WithCircuit(nil)":                   {eventbus.WithCircuit(noCircuit)},
		"WithCircuit.FailureRatio(1)":        {eventbus.WithCircuit(eventbus.FailureRatio(1))},
		"WithCircuit.FailureRatio(-0.1)":     {eventbus.WithCircuit(eventbus.FailureRatio(-0.1))},
		"WithCircuit.FailureRatio(NaN)":      {eventbus.WithCircuit(eventbus.FailureRatio(math.NaN()))},
		"WithCircuit.FailureRatio(+Inf)":     {eventbus.WithCircuit(eventbus.FailureRatio(math.Inf(1)))},
		"WithCircuit.MinEvents(0)":           {eventbus.WithCircuit(eventbus.MinEvents(0))},
		"WithCircuit.Window(0s)":             {eventbus.WithCircuit(eventbus.Window(0))},
		"WithCircuit.OpenFor(-1s)":           {eventbus.WithCircuit(eventbus.OpenFor(-time.Second))},
	} {
		bus, err := eventbus.New(opts...)
		require.Nil(t, bus, says)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption, says)
		require.ErrorContains(t, err, says)
		var offence *eventbus.OptionError
		require.ErrorAs(t, err, &offence)
		require.NotEmpty(t, offence.Reason, says)
	}
}

// Fault 12: what is large is not bad.
func TestFault12_HugeOptionsWork(t *testing.T) {
	bus, _ := startBus(t,
		eventbus.WithTimeout(math.MaxInt64), eventbus.WithConcurrency(math.MaxInt), eventbus.WithQueueCapacity(math.MaxInt),
		eventbus.WithDeadLetterCapacity(math.MaxInt),
		eventbus.WithRetry(eventbus.MaxRetries(math.MaxInt32-1), eventbus.BaseDelay(0), eventbus.MaxDelay(math.MaxInt64),
			eventbus.BackoffMultiplier(math.MaxFloat64), eventbus.MaxElapsed(math.MaxInt64)),
		eventbus.WithCircuit(eventbus.MinEvents(math.MaxInt32), eventbus.Window(math.MaxInt64), eventbus.OpenFor(math.MaxInt64)))
	n := 0
	mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
		deadline, _ := ctx.Deadline()
		if n++; n < 5 {
			return errBoom
		}
		if time.Until(deadline) < time.Hour {
			return eventbus.Permanent(fmt.Errorf("deadline %s", deadline))
		}
		return nil
	})
	r, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err)
	require.Equal(t, 5, r.Attempts)
	shutdown(t, bus)
}

func TestFault12_ARetryInTheFarthestFuture(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "x", failing(eventbus.RetryAfter(errBoom, math.MaxInt64)))
	mustPublish(t, bus, "x", nil)
	require.Eventually(t, func() bool { return bus.Metrics().WaitingRetries == 1 }, time.Second, time.Millisecond)
	require.Error(t, bus.Shutdown(ended()))
	require.Equal(t, 1, oneLetter(t, bus).Attempts)
}

// Fault 17: found by reflection, so that methods that are added are tested too.
func TestFault17_AZeroBusAndANilBus(t *testing.T) {
	var nilBus *eventbus.Bus
	for name, receiver := range map[string]any{
		"zero Bus": &eventbus.Bus{}, "nil Bus": nilBus,
		"DLQ of a zero Bus": (&eventbus.Bus{}).DLQ(), "DLQ of a nil Bus": nilBus.DLQ(), "zero DLQ": &eventbus.DLQ{},
	} {
		v := reflect.ValueOf(receiver)
		require.NotZero(t, v.NumMethod())
		for i := range v.NumMethod() {
			method, called := v.Method(i), fmt.Sprintf("%s: %s", name, v.Type().Method(i).Name)
			var out []reflect.Value
			require.NotPanics(t, func() { out = method.Call(arguments(method.Type())) }, called)
			failed := false
			for _, o := range out {
				switch x := o.Interface().(type) {
				case error:
					require.ErrorIs(t, x, eventbus.ErrUninitialized, called)
					failed = true
				case eventbus.Plan:
					require.ErrorIs(t, x.Err, eventbus.ErrUninitialized, called)
				case *eventbus.DLQ:
					require.NotNil(t, x, called)
				default:
					require.True(t, o.IsZero(), "%s: %v", called, x)
				}
			}
			if n := method.Type().NumOut(); n > 0 && method.Type().Out(n-1) == reflect.TypeFor[error]() {
				require.True(t, failed, called)
			}
		}
	}
}

// arguments are plausible ones, so that it is the bus that is at fault.
func arguments(of reflect.Type) []reflect.Value {
	var in []reflect.Value
	for i := range of.NumIn() {
		if of.IsVariadic() && i == of.NumIn()-1 {
			break
		}
		switch want := of.In(i); want {
		case reflect.TypeFor[context.Context]():
			in = append(in, reflect.ValueOf(context.Background()))
		case reflect.TypeFor[eventbus.Handler]():
			in = append(in, reflect.ValueOf(eventbus.Handler(ok)))
		case reflect.TypeFor[eventbus.LetterQuery]():
			in = append(in, reflect.ValueOf(eventbus.LetterQuery{All: true}))
		case reflect.TypeFor[string]():
			in = append(in, reflect.ValueOf("x"))
		default:
			in = append(in, reflect.Zero(want))
		}
	}
	return in
}

// What prints is printed in logs, where a panic is unwelcome.
func TestStringsOfUnknownValues(t *testing.T) {
	for _, v := range []fmt.Stringer{
		eventbus.Outcome(99), eventbus.Outcome(-1), eventbus.CircuitState(99), eventbus.CircuitState(-1), eventbus.Jitter(99),
	} {
		require.NotPanics(t, func() { require.NotEmpty(t, v.String()) }, "%T", v)
	}
}

func TestErrorsSayWhatTheyMatch(t *testing.T) {
	require.ErrorIs(t, &eventbus.EventError{}, eventbus.ErrInvalidEvent)
	require.ErrorIs(t, &eventbus.PatternError{}, eventbus.ErrInvalidPattern)
	require.ErrorIs(t, &eventbus.OptionError{}, eventbus.ErrInvalidOption)
	require.ErrorIs(t, &eventbus.TimeoutError{}, context.DeadlineExceeded)
	require.NotErrorIs(t, &eventbus.EventError{}, eventbus.ErrInvalidPattern)
	require.NoError(t, errors.Unwrap(&eventbus.PanicError{Value: "text"}))
	require.Equal(t, errBoom, errors.Unwrap(&eventbus.PanicError{Value: errBoom}))
	require.NoError(t, eventbus.RetryAfter(nil, time.Second))
}

// An option by value is one by pointer too, and a pointer may be nil.
func TestR3_NilPointersAsOptions(t *testing.T) {
	bus, _ := newBus(t)
	var (
		policy *eventbus.RetryPolicy
		jitter *eventbus.Jitter
		open   *eventbus.WhenOpen
		mock   *clock.Mock
	)
	for _, opts := range [][]eventbus.SubscribeOption{
		{eventbus.Retry(policy)}, {eventbus.Retry(jitter)}, {open},
	} {
		_, err := bus.Subscribe("a", ok, opts...)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	}
	for _, opt := range []eventbus.Option{eventbus.WithRetry(policy), eventbus.WithClock(mock)} {
		_, err := eventbus.New(opt)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	}
}

// The context's error, and its cause.
func TestE4_AnEndedContextSaysWhy(t *testing.T) {
	bus, _ := startBus(t)
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for name, call := range map[string]func() error{
		"Publish":        func() error { _, err := bus.Publish(ctx, "a", nil); return err },
		"PublishAndWait": func() error { _, err := bus.PublishAndWait(ctx, "a", nil); return err },
		"List":           func() error { _, err := bus.DLQ().List(ctx, eventbus.LetterQuery{}); return err },
		"Get":            func() error { _, err := bus.DLQ().Get(ctx, eventbus.LetterID{}); return err },
		"Replay":         func() error { return bus.DLQ().Replay(ctx, eventbus.LetterID{}) },
		"Purge":          func() error { return bus.DLQ().Purge(ctx, eventbus.LetterID{}) },
		"PurgeUntil":     func() error { _, err := bus.DLQ().PurgeUntil(ctx, time.Now()); return err },
		"PurgeMatching":  func() error { _, err := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{All: true}); return err },
		"ReplayMatching": func() error { _, err := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{All: true}); return err },
	} {
		err := call()
		require.ErrorIs(t, err, context.Canceled, name)
		require.ErrorIs(t, err, why, name)
	}
	_, ok := eventbus.FromContext(nil) //nolint:staticcheck // as a hostile user does
	require.False(t, ok)
	shutdown(t, bus)
}

func TestC1_ASubscriptionCanHaveACircuitOnABusWithout(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithCircuit(eventbus.NoCircuit()))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("none"))
	mustSubscribe(t, bus, "a", ok, eventbus.Named("its own"), eventbus.Circuit(eventbus.MinEvents(2)))
	require.Equal(t, eventbus.CircuitDisabled, metricsOf(t, bus, "none").Circuit)
	require.Equal(t, eventbus.CircuitClosed, metricsOf(t, bus, "its own").Circuit)
}
