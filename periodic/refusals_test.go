package periodic_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/periodic"
	"github.com/surebus/eventbus/storetest"
)

func quiet(t *testing.T, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, err := eventbus.New(append(opts, eventbus.WithLogger(zap.NewNop()))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, bus.Shutdown(ctx))
	})
	return bus
}

// A text that is no schedule is a *SpecError that says what would be right.
func TestPeriodic_BadTexts(t *testing.T) {
	bus := quiet(t)
	for spec, reason := range map[string]string{
		"": "is empty", " \t\n": "is empty", "0 8 * *": "five fields", "0 8 * * * * *": "five fields", "a * * * *": "five fields",
		"60 * * * *": "above maximum", "* 24 * * *": "above maximum", "* * 0 * *": "below minimum", "* * * * 7": "above maximum", "*/0 * * * *": "step",
		"5-1 * * * *": "beyond end", "1-2-3 * * * *": "hyphens", "1/2/3 * * * *": "slashes", "-1 * * * *": "five fields",
		", * * * *": "has no value", ", * * * * *": "has no value", "* , * * *": "has no value",
		"0 0 30 2 *": "no tick within five years", "0 0 31 2,4,6,9,11 *": "no tick within five years",
		"@every 1h": "*/5 * * * *", "@EVERY 5m": "no fixed instants", "@reboot": "descriptor", "@": "descriptor", "@Daily": "descriptor",
		"TZ=Europe/Berlin 0 8 * * *": "option In", "CRON_TZ=UTC": "option In", "TZ=": "option In", "tz=": "option In",
		"\x00": "five fields", "99999999999999999999 * * * *": "five fields", strings.Repeat("1,", 200) + "1 * * * *": "255 bytes",
	} {
		_, err := periodic.Every(bus, spec, eventType, nil)
		var refused *periodic.SpecError
		require.ErrorAs(t, err, &refused, "%q", spec)
		require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		require.ErrorContains(t, err, reason, "%q", spec)
		require.ErrorContains(t, err, "periodic.Every: periodic: invalid spec")
		require.Less(t, len(err.Error()), 500)
	}
}

// Other bad input is refused by Every, and not at the first tick.
func TestPeriodic_BadInput(t *testing.T) {
	bus := quiet(t)
	option := func(name string) func(t *testing.T, err error) {
		return func(t *testing.T, err error) {
			var refused *eventbus.OptionError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, name, refused.Option)
			require.NotEmpty(t, refused.Reason)
		}
	}
	is := func(target error) func(t *testing.T, err error) {
		return func(t *testing.T, err error) { require.ErrorIs(t, err, target) }
	}
	for name, c := range map[string]struct {
		bus       *eventbus.Bus
		eventType string
		payload   any
		opt       periodic.Option
		want      func(t *testing.T, err error)
	}{
		"no bus":                   {nil, eventType, nil, nil, option("bus")},
		"a bus that New not made":  {new(eventbus.Bus), eventType, nil, nil, is(eventbus.ErrUninitialized)},
		"a nil option":             {bus, eventType, nil, nil, option("nil")},
		"no location":              {bus, eventType, nil, periodic.In(nil), option("In")},
		"the machine's location":   {bus, eventType, nil, periodic.In(time.Local), option("In")},
		"an empty name":            {bus, eventType, nil, periodic.Named(""), option("Named")},
		"a long name":              {bus, eventType, nil, periodic.Named(strings.Repeat("x", 201)), option("Named")},
		"a name of bad bytes":      {bus, eventType, nil, periodic.Named("\xff"), option("Named")},
		"a name of two lines":      {bus, eventType, nil, periodic.Named("a\nb"), option("Named")},
		"an unknown policy":        {bus, eventType, nil, periodic.CatchUp(7), option("CatchUp")},
		"a nil clock":              {bus, eventType, nil, periodic.WithClock(nil), option("WithClock")},
		"no event type":            {bus, "", nil, periodic.Named("x"), is(eventbus.ErrInvalidEvent)},
		"a pattern":                {bus, "report.*", nil, periodic.Named("x"), is(eventbus.ErrInvalidEvent)},
		"a long type, no name":     {bus, strings.Repeat("x", 200), nil, periodic.In(time.UTC), option("Named")},
		"a bad key":                {bus, eventType, nil, periodic.Key("\xff"), is(eventbus.ErrInvalidEvent)},
		"a reserved metadata name": {bus, eventType, nil, periodic.Metadata("eventbus.x", ""), is(eventbus.ErrInvalidEvent)},
		"a payload of no JSON": {
			quiet(t, eventbus.WithStore(storetest.NewModel().Open())), eventType, make(chan int), periodic.Named("x"),
			func(t *testing.T, err error) {
				var refused *eventbus.PayloadError
				require.ErrorAs(t, err, &refused)
				require.Equal(t, "chan int", refused.GoType)
			},
		},
		"a large payload": {
			quiet(t, eventbus.WithEncodedPayloads(), eventbus.WithPayloadLimit(10)), eventType, strings.Repeat("x", 20), periodic.Named("x"),
			is(eventbus.ErrInvalidPayload),
		},
		"a bus without handlers": {
			quiet(t, eventbus.WithStore(storetest.NewModel().Open()), eventbus.WithoutHandlers()), eventType, nil, periodic.Named("x"),
			is(eventbus.ErrNoHandlers),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := periodic.Every(c.bus, "@daily", c.eventType, c.payload, c.opt)
			require.Nil(t, s)
			require.ErrorContains(t, err, "periodic.Every: ")
			c.want(t, err)
		})
	}
}

// A bus has one schedule of a name, until it is stopped. Another bus may have one too.
func TestPeriodic_TwoSchedulesOfOneName(t *testing.T) {
	bus, other := quiet(t), quiet(t)
	first, err := periodic.Every(bus, "0 8 * * *", eventType, nil)
	require.NoError(t, err)
	require.Equal(t, "report.daily 0 8 * * *", first.Name())
	_, err = periodic.Every(bus, " 0  8 * * * ", eventType, nil)
	var refused *eventbus.OptionError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "Named", refused.Option)
	_, err = periodic.Every(bus, "0 9 * * *", eventType, nil)
	require.NoError(t, err)
	_, err = periodic.Every(bus, "0 8 * * *", eventType, nil, periodic.Named("second"))
	require.NoError(t, err)
	_, err = periodic.Every(other, "0 8 * * *", eventType, nil)
	require.NoError(t, err)
	first.Stop()
	_, err = periodic.Every(bus, "0 8 * * *", eventType, nil)
	require.NoError(t, err)
}

// A name of 200 bytes leaves room for the tick in the key.
func TestPeriodic_TheLongestName(t *testing.T) {
	_, err := periodic.Every(quiet(t), "@hourly", eventType, nil, periodic.Named(strings.Repeat("x", 200)))
	require.NoError(t, err)
}

// The default name of a long event type is too long, and the error says which option helps.
func TestPeriodic_ALongTypeNeedsAName(t *testing.T) {
	bus := quiet(t)
	_, err := periodic.Every(bus, "@hourly", strings.Repeat("x", 255), nil)
	require.ErrorContains(t, err, "set a name")
	_, err = periodic.Every(bus, "@hourly", strings.Repeat("x", 255), nil, periodic.Named("x"))
	require.NoError(t, err)
}
