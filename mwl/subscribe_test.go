package mwl_test

import (
	"context"
	"encoding/json"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/storetest"
)

func TestSubscribe_WarnsOfRetriesThatMultiply(t *testing.T) {
	retry := func(attempts string) string {
		return `"middleware": [{$RETRY, "onEntry": {"with": {"policies": [{"match": {"retryable": true}, "attempts": ` + attempts + `}]}}}]`
	}
	flow := func(outer, inner string) string {
		return outer + `"flows": {"tidy": {"entrypoint": "r", "steps": {"r": {"action": "Return"}}}, "inner": {"entrypoint": "c", "steps": {"c": {"action": "Call", "call": {$MOCK}` + inner + `, "next": "r"}, "r": {"action": "Return"}}}},
			"entrypoint": "c", "steps": {"c": {"action": "Call", "call": {"flow": "inner"}, "next": "r"}, "r": {"action": "Return"}}`
	}
	for name, c := range map[string]struct {
		members string
		options []eventbus.SubscribeOption
		product string // "" for no warning
	}{
		"no Retry":                {flow("", ""), nil, ""},
		"no retries":              {flow("", ", "+retry("3")), []eventbus.SubscribeOption{eventbus.Retry(eventbus.MaxRetries(0))}, ""},
		"one attempt":             {flow("", ", "+retry("1")), nil, ""},
		"both":                    {flow("", ", "+retry("3")), nil, "12"},
		"nested":                  {flow(retry("2")+", ", ", "+retry("3")), []eventbus.SubscribeOption{eventbus.Retry(eventbus.MaxRetries(1))}, "12"},
		"unlimited":               {flow("", ", "+retry("3")), []eventbus.SubscribeOption{eventbus.Retry(eventbus.MaxRetries(eventbus.Unlimited))}, "unlimited"},
		"an expression":           {flow("", ", "+retry(`"{{ 2 + 1 }}"`)), nil, "at least 4"},
		"a Finally":               {flow(`"middleware": [{$FINALLY, "onAlways": {"with": {"call": {"flow": "tidy"}, `+retry("3")+`}}}], `, ""), nil, "12"},
		"a huge budget":           {flow("", ", "+retry("1000000000000")), nil, "4000000000000"},
		"a rule with more budget": {flow("", ", "+retry("2")), []eventbus.SubscribeOption{eventbus.RetryRules(eventbus.RetryRule{Match: eventbus.ErrorMatch{Codes: []string{"A"}}, Attempts: 9})}, "18"},
	} {
		t.Run(name, func(t *testing.T) {
			bus, logs := startBus(t)
			s := subscribed(t, bus, load(t, c.members, nil), nil, c.options...)
			require.Contains(t, s.MadeAt(), "handler_test.go", "the caller, not this package")
			found := logs.FilterMessage("retries of the definition and of the subscription multiply").All()
			if c.product == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			fields := found[0].ContextMap()
			require.Equal(t, c.product, fields["product"])
			require.Equal(t, "flow", fields["subscription_id"])
			require.Contains(t, fields["pointer"], "/middleware/0")
		})
	}
}

func TestSubscribe_WarnsOfLongSleepsAndTimeouts(t *testing.T) {
	bus, logs := startBus(t)
	d := load(t, `"middleware": [{$TIMEOUT, "onEntry": {"with": {"duration": "PT5M"}}},
			{$FINALLY, "onAlways": {"with": {"call": {"flow": "cleanup"}}}}],
		"flows": {"cleanup": {"entrypoint": "s", "steps": {"s": {"action": "Sleep", "for": "PT2M", "next": "r"}, "r": {"action": "Return"}}}},
		"entrypoint": "s", "steps": {
			"s": {"action": "Sleep", "for": "PT1M", "next": "t"}, "t": {"action": "Sleep", "for": "{{ 'PT9H' }}", "next": "r"}, "r": {"action": "Return"}}`, nil)
	subscribed(t, bus, d, nil, eventbus.Timeout(time.Minute))
	var pointers []string
	for _, entry := range logs.FilterMessageSnippet("is longer than the subscription's timeout").All() {
		pointers = append(pointers, entry.ContextMap()["pointer"].(string))
	}
	require.Equal(t, []string{"/middleware/0/onEntry/with", "/flows/cleanup/steps/s/for"}, pointers)
}

func TestHandler_TimeoutAndShutdownRunFinally(t *testing.T) {
	for _, cut := range []string{"timeout", "shutdown"} {
		t.Run(cut, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				var cleaned atomic.Int64
				entry := do(func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
					cleaned.Add(1)
					return mwl.CallResponse{}, nil
				})
				d := load(t, `"middleware": [{$FINALLY, "onAlways": {"with": {"call": {$DO}}}}],
					"entrypoint": "s", "steps": {"s": {"action": "Sleep", "for": "PT1H", "next": "r"}, "r": {"action": "Return"}}`, []mwl.CatalogEntry{entry})
				subscribed(t, bus, d, nil, eventbus.Timeout(time.Minute), eventbus.Retry(eventbus.MaxRetries(0)))
				_, err := bus.Publish(t.Context(), "order.placed", nil)
				require.NoError(t, err)
				synctest.Wait()
				if cut == "timeout" {
					time.Sleep(time.Minute + time.Second)
					synctest.Wait()
					require.ErrorAs(t, letters(t, bus)[0].Failures[0].Err, new(*eventbus.TimeoutError))
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					require.Error(t, bus.Shutdown(ctx))
					synctest.Wait()
				}
				require.EqualValues(t, 1, cleaned.Load())
				require.Empty(t, bus.Abandoned())
			})
		})
	}
}

func TestHandler_TheEnvelopeIsInTheLetter(t *testing.T) {
	for _, c := range []struct{ envelope, want string }{
		{
			`{"code": "Order.Refused", "message": "no", "details": {"order": "o-1"}, "retryable": false, "previous": {"type": "error", "code": "Bank.No"}}`,
			`{"type": "error", "code": "Order.Refused", "message": "no", "details": {"order": "o-1"}, "retryable": false, "previous": {"type": "error", "code": "Bank.No"}}`,
		},
		{
			`{"code": "Order.Refused", "details": "` + strings.Repeat("x", 9000) + `", "previous": {"type": "error", "code": "Bank.No", "details": 1}}`,
			`{"type": "error", "code": "Order.Refused", "details": "details omitted: 9002 bytes", "previous": {"type": "error", "code": "Bank.No", "details": 1}}`,
		},
	} {
		model := storetest.NewModel()
		bus, _ := startBus(t, eventbus.WithStore(open(t, model)))
		subscribed(t, bus, raising(t, c.envelope), nil, eventbus.Retry(eventbus.MaxRetries(0)))
		_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
		require.Error(t, err)
		require.NoError(t, bus.Shutdown(t.Context()))

		again, _ := startBus(t, eventbus.WithStore(open(t, model)))
		require.JSONEq(t, c.want, string(letters(t, again)[0].Failures[0].Details))
		require.NoError(t, again.Shutdown(t.Context()))
	}
}

// However large each part of an envelope is, what is left of it fits.
func TestExecutionError_DetailsAlwaysFit(t *testing.T) {
	huge := strings.Repeat("<€", 10_000)
	f := &mwl.Failure{Type: huge, Code: huge, Message: huge, Details: huge}
	for range 40 {
		f = &mwl.Failure{Type: huge, Code: huge, Message: huge, Details: huge, Previous: f}
	}
	for _, f := range []*mwl.Failure{f, {Code: "A", Details: func() {}}} {
		details := (&mwl.ExecutionError{Failure: f}).Details()
		require.True(t, json.Valid(details))
		require.LessOrEqual(t, len(details), 8<<10)
		require.Contains(t, string(details), "details omitted")
	}
}

// What a chain allocates is in proportion to its length, not to the square of that.
func TestFailure_AChainIsEncodedOnce(t *testing.T) {
	huge := strings.Repeat("x", 100_000)
	allocated := func(links int) (bytes uint64) {
		f := &mwl.Failure{Code: "A", Message: huge, Details: huge}
		for range links - 1 {
			f = &mwl.Failure{Code: "A", Message: huge, Details: huge, Previous: f}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := json.Marshal(f)
		require.NoError(t, err)
		(&mwl.ExecutionError{Failure: f}).Details()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	allocated(40) // fills the pools of encoding/json
	require.Less(t, allocated(40), 30*allocated(4))
}

// 1,000 events make 10 executions each: ten subscriptions run the saga.
func TestHandler_TenThousandSagas(t *testing.T) {
	const events, subscriptions = 1_000, 10
	bus, _ := startBus(t, eventbus.WithDeadLetterCapacity(events*subscriptions))
	var charged, refunded, succeeded, compensated atomic.Int64
	entry := do(func(_ context.Context, r mwl.CallRequest) (mwl.CallResponse, error) {
		switch r.With["name"] {
		case "charge":
			charged.Add(1)
		case "refund":
			refunded.Add(1)
		case "ship":
			if n, _ := r.Input.(float64); int(n)%5 == 0 {
				return mwl.CallResponse{}, &mwl.Failure{Code: "Ship.No"}
			}
		}
		return mwl.CallResponse{Value: r.Input}, nil
	})
	d := load(t, `"entrypoint": "charge", "steps": {
		"charge": {"action": "Call", "call": {$DO, "with": {"name": "charge"}}, "assign": {"n": "{{ step.input }}"}, "next": "ship"},
		"ship": {"action": "Call", "call": {$DO, "with": {"name": "ship"}}, "catch": [{"match": {"codes": ["Ship.No"]}, "next": "refund"}], "next": "done"},
		"done": {"action": "Return", "value": "succeeded"},
		"refund": {"action": "Call", "call": {$DO, "with": {"name": "refund"}}, "next": "undone"},
		"undone": {"action": "Match", "cases": [{"when": "{{ vars.n == 0.0 }}", "next": "stuck"}], "default": {"next": "compensated"}},
		"compensated": {"action": "Return", "value": "compensated"},
		"stuck": {"action": "Raise", "result": {"code": "Order.Stuck", "retryable": false}}}`, []mwl.CatalogEntry{entry})
	for i := range subscriptions {
		_, err := d.Subscribe(bus, "order.placed", []mwl.HandlerOption{mwl.OnResult(func(_ context.Context, _ eventbus.Event, v any) error {
			if v == "succeeded" {
				succeeded.Add(1)
			} else {
				compensated.Add(1)
			}
			return nil
		})}, eventbus.Named("saga"+strconv.Itoa(i)), eventbus.Circuit(eventbus.NoCircuit()))
		require.NoError(t, err)
	}
	for i := range events {
		_, err := bus.Publish(t.Context(), "order.placed", i)
		require.NoError(t, err)
	}
	require.NoError(t, bus.Shutdown(t.Context()))
	require.True(t, bus.Metrics().Ledger.Balanced())
	// The event 0 is stuck at its first subscription, and its letter names the others.
	require.EqualValues(t, 800*subscriptions, succeeded.Load())
	require.EqualValues(t, 199*subscriptions, compensated.Load())
	require.EqualValues(t, 999*subscriptions+1, charged.Load())
	require.EqualValues(t, 199*subscriptions+1, refunded.Load())
	require.Equal(t, 1, bus.Metrics().DeadLetters)
}
