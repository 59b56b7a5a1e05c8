package docs_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
)

func TestDocs_Options(t *testing.T) {
	docpagetest.Page(t, "options.md", docpagetest.Code(docsOptions))
}

func docsOptions(t *testing.T) error {
	ctx := t.Context()
	var rec eventbustest.Recorder
	render := func(ctx context.Context, e eventbus.Event) error {
		deadline, _ := ctx.Deadline()
		require.Greater(t, time.Until(deadline), 30*time.Second) // not the bus's 5 s
		return rec.Handle(ctx, e)
	}
	bus, err := eventbus.New(eventbus.WithTimeout(5*time.Second), eventbus.WithRetry(eventbus.MaxRetries(5)))
	if err != nil {
		return err
	}
	_, err = bus.Subscribe("report.*", render, eventbus.Named("reports"), eventbus.Timeout(time.Minute)) // for this one
	if err != nil {
		return err
	}
	id, err := bus.Publish(ctx, "report.requested", "monthly", eventbus.Key("customer-7"))
	require.NoError(t, err)
	require.Equal(t, 6, bus.Explain("report.requested").Policy.MaxRetries+1)
	require.NoError(t, bus.Start(ctx))
	require.NoError(t, bus.Shutdown(ctx))
	require.Equal(t, id, rec.Deliveries()[0].Event.ID)
	return nil
}

// The page has a row for each option that the package comment lists, and no other.
func TestPages_OptionsAreComplete(t *testing.T) {
	source, err := os.ReadFile("../doc.go")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(source), "\n// # Options\n")
	require.True(t, found)
	section, _, found = strings.Cut(section, "\n// # ")
	require.True(t, found)
	var listed []string
	for _, item := range regexp.MustCompile(`(?m)^//   - .*`).FindAllString(section, -1) {
		for _, link := range regexp.MustCompile(`\[(\w+)\]`).FindAllStringSubmatch(item, -1) {
			listed = append(listed, link[1])
		}
	}
	require.Greater(t, len(listed), 80)
	var shown []string
	for name := range optionRows(t) {
		shown = append(shown, name)
	}
	require.ElementsMatch(t, listed, shown)
}

// optionRows returns the rows of the page's tables, by the names in their first cells.
func optionRows(t *testing.T) map[string]string {
	page, err := os.ReadFile("options.md")
	require.NoError(t, err)
	rows := make(map[string]string)
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || strings.Contains(cells[1], "option") {
			continue
		}
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[1], -1) {
			require.NotContains(t, rows, name[1], "it has two rows")
			rows[name[1]] = line
		}
	}
	return rows
}

// The defaults of the page are those of the package.
func TestPages_OptionsHaveTheirDefaults(t *testing.T) {
	policy := eventbus.DefaultRetryPolicy()
	for name, text := range map[string]struct {
		is, want any
		shown    string
	}{
		"WithConcurrency":        {eventbus.DefaultConcurrency, 10_000, "10,000"},
		"WithQueueCapacity":      {eventbus.DefaultQueueCapacity, 65_536, "65,536"},
		"WithDeadLetterCapacity": {eventbus.DefaultDeadLetterCapacity, 10_000, "10,000"},
		"WithTimeout":            {eventbus.DefaultTimeout, 30 * time.Second, "30 s"},
		"WithPayloadLimit":       {eventbus.DefaultPayloadLimit, 1 << 20, "1 MiB"},
		"WithMaxEmittedBytes":    {eventbus.DefaultMaxEmittedBytes, 16 << 20, "16 MiB"},
		"WithIdempotencyWindow":  {eventbus.DefaultIdempotencyWindow, 24 * time.Hour, "24 h"},
		"WithMaxUnconfirmed":     {[]int{eventbus.DefaultMaxUnconfirmed, eventbus.DefaultMaxUnconfirmedBytes}, []int{65_536, 64 << 20}, "65,536 and 64 MiB"},
		"MaxThrottle":            {eventbus.DefaultMaxThrottle, 15 * time.Minute, "15 min"},
		"MaxAbandoned":           {eventbus.DefaultMaxAbandoned, 100, "100, or"},
		"LineCapacity":           {eventbus.DefaultLineCapacity, 10_000, "10,000"},
		"WhenFull":               {eventbus.WhenFull(0), eventbus.WaitWhenFull, "`WaitWhenFull`"},
		"WhenOpen":               {eventbus.WhenOpen(0), eventbus.HoldWhenOpen, "`HoldWhenOpen`"},
		"MaxRetries":             {policy.MaxRetries, 3, "3"},
		"BaseDelay":              {policy.BaseDelay, time.Second, "1 s"},
		"BackoffMultiplier":      {policy.BackoffMultiplier, 2.0, "2"},
		"MaxDelay":               {policy.MaxDelay, 30 * time.Second, "30 s"},
		"Jitter":                 {policy.Jitter, eventbus.ProportionalJitter, "`ProportionalJitter`: ±10 %"},
	} {
		require.Equal(t, text.want, text.is, name)
		require.True(t, strings.HasPrefix(strings.TrimSpace(strings.Split(optionRows(t)[name], "|")[2]), text.shown), name)
	}
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second},
		[]time.Duration{policy.Delay(2), policy.Delay(3), policy.Delay(4)})
}

// Two equal options add up, or the last one counts, as the page says.
func TestPages_OptionsAdd(t *testing.T) {
	rows := optionRows(t)
	bus := eventbustest.New(t,
		eventbus.WithRetry(eventbus.MaxRetries(7)), eventbus.WithRetry(eventbus.BaseDelay(time.Minute), eventbus.MaxDelay(time.Hour)),
		eventbus.WithTimeout(time.Second), eventbus.WithTimeout(2*time.Second))
	rule := func(name string) eventbus.RetryRule {
		return eventbus.RetryRule{Name: name, Match: eventbus.ErrorMatch{Codes: []string{"*"}}, Attempts: 2}
	}
	_, err := bus.Subscribe("e", eventbustest.Fail(nil), eventbus.Named("a"), eventbus.Named("b"),
		eventbus.Formerly("c"), eventbus.Formerly("d"),
		eventbus.Retry(eventbus.MaxRetries(9)), eventbus.Retry(eventbus.BackoffMultiplier(3)),
		eventbus.RetryRules(rule("first")), eventbus.RetryRules(rule("second")))
	require.NoError(t, err)
	plan := bus.Explain("e")
	require.Equal(t, 9, plan.Policy.MaxRetries)
	require.InEpsilon(t, 3.0, plan.Policy.BackoffMultiplier, 0)
	require.Equal(t, time.Minute, plan.Policy.BaseDelay)
	require.Equal(t, time.Hour, plan.Policy.MaxDelay)
	require.Equal(t, "b", plan.Targets[0].Subscription)
	require.Equal(t, 2*time.Second, plan.Targets[0].Timeout)
	require.Len(t, plan.Targets[0].Rules, 1)
	require.Equal(t, "second", plan.Targets[0].Rules[0].Name)
	require.True(t, bus.Subscription("c").Exists())
	require.True(t, bus.Subscription("d").Exists())
	for name, adds := range map[string]bool{"WithRetry": true, "WithTimeout": false, "Named": false, "Formerly": true, "Retry": true, "RetryRules": false} {
		require.Equal(t, adds, strings.Contains(rows[name], "; adds |"), name)
	}
	values := func(ctx context.Context) context.Context { return ctx }
	_, err = eventbus.New(eventbus.WithContextFrom(values), eventbus.WithContextFrom(values))
	require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	_, err = bus.Publish(t.Context(), "e", nil, eventbus.Key(strings.Repeat("k", 256)))
	require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
}

// The circuit's defaults: it opens when more than half of at least four events of a minute fail, and for 30 s.
func TestPages_OptionsOfCircuitsHaveTheirDefaults(t *testing.T) {
	rows := optionRows(t)
	for name, want := range map[string]string{"FailureRatio": "| 0.5 |", "MinEvents": "| 4 |", "Window": "| 1 min |", "OpenFor": "| 30 s |"} {
		require.Contains(t, rows[name], want)
	}
	for name, test := range map[string]struct {
		fails []bool
		pause time.Duration // before the last event
		opens bool
	}{
		"three failures":            {fails: []bool{true, true, true}},
		"four failures":             {fails: []bool{true, true, true, true}, opens: true},
		"four failures in a minute": {fails: []bool{true, true, true, true}, pause: 50 * time.Second, opens: true},
		"and in more":               {fails: []bool{true, true, true, true}, pause: 61 * time.Second},
		"half of four":              {fails: []bool{false, false, true, true}},
		"more than half":            {fails: []bool{false, false, true, true, true}, opens: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus := eventbustest.New(t, eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithLogger(zap.NewNop()))
				eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
				_, err := bus.Subscribe("e", eventbus.Typed(func(_ context.Context, fails bool) error {
					if fails {
						return errors.New("failed")
					}
					return nil
				}))
				require.NoError(t, err)
				for i, fails := range test.fails {
					if i == len(test.fails)-1 {
						time.Sleep(test.pause)
					}
					_, err := bus.PublishAndWait(t.Context(), "e", fails)
					require.Equal(t, fails, err != nil)
				}
				require.Equal(t, test.opens, bus.Metrics().Subscriptions[0].Circuit == eventbus.CircuitOpen)
				if !test.opens {
					return
				}
				time.Sleep(29 * time.Second)
				require.Equal(t, eventbus.CircuitOpen, bus.Metrics().Subscriptions[0].Circuit)
				time.Sleep(2 * time.Second)
				_, err = bus.PublishAndWait(t.Context(), "e", false) // probes
				require.NoError(t, err)
				require.Equal(t, eventbus.CircuitClosed, bus.Metrics().Subscriptions[0].Circuit)
			})
		})
	}
}
