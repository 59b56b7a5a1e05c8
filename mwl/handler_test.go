package mwl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/storetest"
)

// startBus returns a started bus that is shut down at the end of the test, and its log.
func startBus(t *testing.T, options ...eventbus.Option) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithLogger(zap.New(core))}, options...)...)
	require.NoError(t, err)
	require.NoError(t, bus.Start(t.Context()))
	t.Cleanup(func() { _ = bus.Shutdown(context.WithoutCancel(t.Context())) })
	return bus, logs
}

// subscribed subscribes a definition as flow.
func subscribed(t *testing.T, bus *eventbus.Bus, d *mwl.Definition, handler []mwl.HandlerOption, options ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	s, err := d.Subscribe(bus, "order.*", handler, append([]eventbus.SubscribeOption{eventbus.Named("flow")}, options...)...)
	require.NoError(t, err)
	return s
}

func open(t *testing.T, model *storetest.Model) driver.Store {
	t.Helper()
	store := model.Open()
	return store
}

// letters are the dead letters, newest first.
func letters(t *testing.T, bus *eventbus.Bus) []eventbus.DeadLetter {
	t.Helper()
	page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{})
	require.NoError(t, err)
	return page.Letters
}

// returning returns what an expression gives.
func returning(t *testing.T, expression string, parameters ...string) *mwl.Definition {
	t.Helper()
	members := strings.Join(append(parameters, ""), ",")
	return load(t, members+`"entrypoint": "s", "steps": {"s": {"action": "Return", "value": "{{ `+expression+` }}"}}`, nil)
}

// raising raises an envelope.
func raising(t *testing.T, envelope string) *mwl.Definition {
	t.Helper()
	return load(t, `"entrypoint": "s", "steps": {"s": {"action": "Raise", "result": `+envelope+`}}`, nil)
}

// values collects the values of the Results.
func values(into *[]any) mwl.HandlerOption {
	return mwl.OnResult(func(_ context.Context, _ eventbus.Event, v any) error {
		*into = append(*into, v)
		return nil
	})
}

type order struct {
	ID    string `json:"order"`
	Cents int    `json:"cents"`
}

func TestHandler_ThePayloadIsTheInput(t *testing.T) {
	for name, c := range map[string]struct {
		payload any
		want    any
	}{
		"a struct":    {order{"o-1", 7}, map[string]any{"order": "o-1", "cents": 7.0}},
		"a pointer":   {&order{"o-1", 7}, map[string]any{"order": "o-1", "cents": 7.0}},
		"a map":       {map[string]int{"n": 1}, map[string]any{"n": 1.0}},
		"nil":         {nil, nil},
		"raw JSON":    {json.RawMessage(` {"n": 1} `), map[string]any{"n": 1.0}},
		"big integer": {map[string]any{"n": int64(1) << 53}, map[string]any{"n": float64(1 << 53)}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, stored := range []bool{false, true} {
				var options []eventbus.Option
				if stored {
					options = append(options, eventbus.WithStore(open(t, storetest.NewModel())))
				}
				bus, _ := startBus(t, options...)
				var got []any
				subscribed(t, bus, returning(t, "step.input"), []mwl.HandlerOption{values(&got)})
				_, err := bus.PublishAndWait(t.Context(), "order.placed", c.payload)
				require.NoError(t, err)
				require.Equal(t, []any{c.want}, got)
			}
		})
	}
}

// textCodec encodes payloads as JSON behind a mark.
type textCodec struct{}

func (textCodec) Marshal(payload any) ([]byte, error) {
	data, err := json.Marshal(payload)
	return append([]byte("text:"), data...), err
}

func (textCodec) Unmarshal(data []byte, pointer any) error {
	rest, ok := bytes.CutPrefix(data, []byte("text:"))
	if !ok {
		return errors.New("no mark")
	}
	return json.Unmarshal(rest, pointer)
}

func TestHandler_TheBusDecodesAnEncodedPayload(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithStore(open(t, storetest.NewModel())), eventbus.WithCodec(textCodec{}))
	var got []any
	subscribed(t, bus, returning(t, "step.input.order"), []mwl.HandlerOption{values(&got)})
	_, err := bus.PublishAndWait(t.Context(), "order.placed", order{"o-1", 7})
	require.NoError(t, err)
	require.Equal(t, []any{"o-1"}, got)
}

type ticket struct {
	ID   int64   `json:"id"`
	Rate float32 `json:"rate"`
}

// numbers are payloads with numbers, and what a workflow returns or refuses for each.
var numbers = []struct {
	payload     any
	want, words string
}{
	{map[string]any{"n": int64(1<<53 + 1)}, "", "at /n: the integer 9007199254740993 is beyond ±2^53, where a number is no longer exact: carry it as a string"},
	{map[string]any{"n": []uint64{1, 1<<64 - 1}}, "", "at /n/1: the integer 18446744073709551615 is beyond ±2^53"},
	{ticket{ID: -1<<53 - 1}, "", "at /id: the integer -9007199254740993 is beyond ±2^53"},
	{json.RawMessage(`{"a":{"b":[9007199254740993.0]}}`), "", "at /a/b/0: the number 9007199254740993.0 has more digits than a double keeps: carry it as a string"},
	{json.Number("12345678901234567.89"), "", "the number 12345678901234567.89 has more digits"},
	{[]any{json.Number("1e400")}, "", "at /0: the number 1e400 is beyond the range of a double: carry it as a string"},
	{json.RawMessage(`1e-400`), "", "the number 1e-400 is beyond the range of a double"},
	{json.RawMessage(`1e999999999999`), "", "the number 1e999999999999 is beyond the range of a double"},
	{int64(1<<53 + 2), `9007199254740994`, ""},
	{ticket{1 << 60, 0.1}, `{"id":1152921504606847000,"rate":0.1}`, ""},
	{map[string]any{"n": 1e20, "m": 1e21, "f": float32(0.1)}, `{"f":0.1,"m":1e+21,"n":100000000000000000000}`, ""},
	{json.RawMessage(`[-0,1.0,0.1,1e3]`), `[0,1,0.1,1000]`, ""},
}

// What a workflow computes with is what was published, or is refused, in memory as from a store.
func TestHandler_NumbersAreExact(t *testing.T) {
	for name, options := range map[string]func() []eventbus.Option{
		"memory": func() []eventbus.Option { return nil },
		"store":  func() []eventbus.Option { return []eventbus.Option{eventbus.WithStore(open(t, storetest.NewModel()))} },
		"codec": func() []eventbus.Option {
			return []eventbus.Option{eventbus.WithStore(open(t, storetest.NewModel())), eventbus.WithCodec(textCodec{})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bus, _ := startBus(t, append(options(), eventbus.WithCircuit(eventbus.NoCircuit()))...)
			var got []any
			subscribed(t, bus, returning(t, "toJson(step.input)"), []mwl.HandlerOption{values(&got)})
			for _, c := range numbers {
				got = nil
				_, err := bus.PublishAndWait(t.Context(), "order.placed", c.payload)
				if c.words == "" {
					require.NoError(t, err)
					require.Equal(t, []any{c.want}, got)
					continue
				}
				require.ErrorContains(t, err, "the input has no JSON form: not a value of the data model: "+c.words)
				require.Empty(t, got)
				require.Equal(t, eventbus.ReasonPermanent, letters(t, bus)[0].Reason)
			}
		})
	}
}

// A letter that another process exported, and an edited payload, are stored JSON too.
func TestHandler_NumbersOfReplaysAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stored := range []bool{false, true} {
			var options []eventbus.Option
			if stored {
				options = append(options, eventbus.WithStore(open(t, storetest.NewModel())))
			}
			bus, _ := startBus(t, append(options, eventbus.WithCircuit(eventbus.NoCircuit()))...)
			var got []any
			subscribed(t, bus, returning(t, "toJson(step.input)"), []mwl.HandlerOption{values(&got)})
			_, err := bus.PublishAndWait(t.Context(), "order.placed", map[string]any{"n": int64(1<<53 + 1)})
			require.Error(t, err)
			var lines bytes.Buffer
			_, err = bus.DLQ().Export(t.Context(), &lines, eventbus.LetterQuery{})
			require.NoError(t, err)
			require.NoError(t, bus.DLQ().Purge(t.Context(), letters(t, bus)[0].ID))
			_, err = bus.DLQ().Import(t.Context(), &lines)
			require.NoError(t, err)
			for _, edit := range []any{nil, json.RawMessage(`{"n":9007199254740995}`), map[string]any{"n": 7}} {
				l := letters(t, bus)[0]
				if edit == nil {
					require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
				} else {
					require.NoError(t, bus.DLQ().ReplayEdited(t.Context(), l.ID, edit))
				}
				synctest.Wait()
				if _, ok := edit.(map[string]any); ok {
					break
				}
				died := letters(t, bus)
				require.Len(t, died, 1)
				require.Contains(t, died[0].Failures[len(died[0].Failures)-1].Error, "at /n: the integer 900719925474099")
			}
			require.Equal(t, []any{`{"n":7}`}, got)
		}
	})
}

// Arguments and inputs that Go code maps from stored JSON are exact, too.
func TestHandler_MappedNumbersAreExact(t *testing.T) {
	for name, option := range map[string]mwl.HandlerOption{
		"input": mwl.MapInput(func(ctx context.Context, e eventbus.Event) (v any, err error) {
			err = eventbus.Typed(func(_ context.Context, decoded map[string]any) error { v = decoded["n"]; return nil })(ctx, e)
			return v, err
		}),
		"raw input": mwl.MapInput(func(_ context.Context, e eventbus.Event) (any, error) { return e.Payload, nil }),
		"arguments": mwl.MapArguments(func(e eventbus.Event) (members map[string]any, err error) {
			err = eventbus.Typed(func(_ context.Context, decoded map[string]any) error { members = decoded; return nil })(t.Context(), e)
			return members, err
		}),
	} {
		t.Run(name, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithStore(open(t, storetest.NewModel())))
			parameters := `"parameters": {"type": "object", "properties": {"n": {"type": "number"}}}`
			subscribed(t, bus, returning(t, "toJson(step.input)", parameters), []mwl.HandlerOption{option})
			_, err := bus.PublishAndWait(t.Context(), "order.placed", map[string]any{"n": int64(1<<53 + 1)})
			require.ErrorContains(t, err, "the integer 9007199254740993 is beyond ±2^53, where a number is no longer exact: carry it as a string")
			_, err = bus.PublishAndWait(t.Context(), "order.placed", map[string]any{"n": 1 << 53})
			require.NoError(t, err)
		})
	}
}

func TestHandler_APayloadWithoutJSONFormIsPermanent(t *testing.T) {
	bus, _ := startBus(t)
	subscribed(t, bus, returning(t, "step.input"), nil)
	_, err := bus.PublishAndWait(t.Context(), "order.placed", make(chan int))
	require.Error(t, err)
	l := letters(t, bus)[0]
	require.Equal(t, eventbus.ReasonPermanent, l.Reason)
	require.Equal(t, 1, l.Attempts)
	require.Contains(t, l.Failures[0].Error, "System.ParameterValidationFailed: the input has no JSON form")
}

func TestHandler_TheDeliveryIsInThePlatform(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var got []any
		fail := true
		subscribed(t, bus, returning(t, "{'id': execution.id, 'event': execution.platform.event, 'tenant': execution.platform.tenant}"), []mwl.HandlerOption{
			mwl.WithExecuteOptions(mwl.WithPlatform(map[string]any{"tenant": "acme"})),
			mwl.OnResult(func(_ context.Context, _ eventbus.Event, v any) error {
				got = append(got, v)
				if fail {
					return errors.New("not yet")
				}
				return nil
			}),
		}, eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(time.Second), eventbus.NoJitter))
		id, err := bus.Publish(t.Context(), "order.placed", nil, eventbus.Key("o-1"), eventbus.Metadata("traceparent", "00-1"))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		l := letters(t, bus)[0]
		require.Equal(t, eventbus.ReasonExhausted, l.Reason)
		require.Equal(t, "not yet", l.Failures[1].Error)
		fail = false
		require.NoError(t, bus.DLQ().Replay(t.Context(), l.ID))
		synctest.Wait()
		require.Len(t, got, 3)
		want := func(attempt, replays float64, suffix string) map[string]any {
			return map[string]any{
				"tenant": "acme",
				"id":     id.String() + "/flow/" + suffix,
				"event": map[string]any{
					"id": id.String(), "type": "order.placed", "key": "o-1", "metadata": map[string]any{"traceparent": "00-1"},
					"time": l.Event.Time.Format(time.RFC3339Nano), "subscription": "flow", "attempt": attempt, "replays": replays,
				},
			}
		}
		require.Equal(t, want(1, 0, "1"), got[0])
		require.Equal(t, want(2, 0, "2"), got[1])
		require.Equal(t, want(1, 1, "1/replay-1"), got[2])
	})
}

func TestHandler_Arguments(t *testing.T) {
	bus, _ := startBus(t)
	var got []any
	definition := returning(t, "vars.total", `"parameters": {"type": "object", "required": ["total"], "properties": {"total": {"type": "number"}}}`)
	subscribed(t, bus, definition, []mwl.HandlerOption{
		values(&got),
		mwl.MapInput(func(context.Context, eventbus.Event) (any, error) { return "unused", nil }),
		mwl.MapArguments(func(e eventbus.Event) (map[string]any, error) {
			o, ok := e.Payload.(order)
			if !ok {
				return nil, eventbus.Permanent(errors.New("no order"))
			}
			return map[string]any{"total": o.Cents}, nil
		}),
	})
	_, err := bus.PublishAndWait(t.Context(), "order.placed", order{"o-1", 7})
	require.NoError(t, err)
	require.Equal(t, []any{7.0}, got)
	_, err = bus.PublishAndWait(t.Context(), "order.placed", 1)
	require.ErrorContains(t, err, "mwl: arguments of the execution: no order")
	require.Equal(t, eventbus.ReasonPermanent, letters(t, bus)[0].Reason)
}

func TestHandler_OptionsThatCannotBe(t *testing.T) {
	definition := returning(t, "1")
	for option, want := range map[string]mwl.HandlerOption{
		"mwl: Handler: option 1 is nil":                                        nil,
		"mwl: MapInput: the function is nil":                                   mwl.MapInput(nil),
		"mwl: MapArguments: the function is nil":                               mwl.MapArguments(nil),
		"mwl: OnResult: the function is nil":                                   mwl.OnResult(nil),
		"mwl: WithExecuteOptions: option 1 is nil":                             mwl.WithExecuteOptions(nil),
		"mwl: WithExecuteOptions: WithExecutionID has no effect":               mwl.WithExecuteOptions(mwl.WithExecutionID("x")),
		"mwl: WithExecuteOptions: WithArguments has no effect":                 mwl.WithExecuteOptions(mwl.WithArguments(map[string]any{"a": 1})),
		"mwl: WithExecuteOptions: WithPlatform has the member event, which is": mwl.WithExecuteOptions(mwl.WithPlatform(map[string]any{"event": 1})),
	} {
		_, err := definition.Handler(want)
		var refused *mwl.OptionError
		require.ErrorAs(t, err, &refused)
		require.ErrorContains(t, err, option)
	}
	bus, _ := startBus(t)
	_, err := definition.Subscribe(bus, "order.*", []mwl.HandlerOption{nil})
	require.ErrorContains(t, err, "option 1 is nil")
	_, err = definition.Subscribe(bus, "order..x", nil)
	require.ErrorIs(t, err, eventbus.ErrInvalidPattern)
	require.Empty(t, bus.Metrics().Subscriptions)
}

func TestHandler_TheErrorHasTheTraits(t *testing.T) {
	for name, c := range map[string]struct {
		envelope string
		want     eventbus.ErrorTraits
		attempts int
	}{
		"a code": {`{"code": "Order.Refused"}`, eventbus.ErrorTraits{Code: "Order.Refused", Names: []string{"Order.Refused", "Failure"}, ResultType: "error"}, 3},
		"not retryable": {`{"code": "Order.Refused", "retryable": false}`, eventbus.ErrorTraits{
			Code: "Order.Refused", Names: []string{"Order.Refused", "Failure"}, ResultType: "error", Retryable: new(bool),
		}, 1},
		"a timeout": {`{"code": "Bank.Slow", "type": "timeout", "retryable": true}`, eventbus.ErrorTraits{
			Code: "Bank.Slow", Names: []string{"timeout", "Failure"}, ResultType: "timeout", Retryable: yes(),
		}, 3},
		"a type of its own": {`{"code": "Bank.Busy", "type": "Busy"}`, eventbus.ErrorTraits{Code: "Bank.Busy", Names: []string{"Bank.Busy", "Failure"}, ResultType: "Busy"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				subscribed(t, bus, raising(t, c.envelope), nil, eventbus.Retry(eventbus.MaxRetries(2)))
				_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
				var failed *mwl.ExecutionError
				require.ErrorAs(t, err, &failed)
				l := letters(t, bus)[0]
				require.Equal(t, c.attempts, l.Attempts)
				traits := bus.ErrorTraits(l.Failures[0].Err)
				require.JSONEq(t, string(l.Failures[0].Details), string(traits.Details))
				traits.Details = nil
				require.Equal(t, c.want, traits)
				require.Equal(t, "*mwl.ExecutionError", l.Failures[0].Class)
			})
		})
	}
}

func yes() *bool { v := true; return &v }

func TestHandler_DeterministicFailuresAreNotRetried(t *testing.T) {
	step := func(s string) string { return `"entrypoint": "s", "steps": {"s": ` + s + `}` }
	for name, c := range map[string]struct {
		members string
		limits  mwl.Limits
	}{
		"parameters":    {`"parameters": {"type": "object", "required": ["a"], "properties": {"a": {}}}, ` + step(`{"action": "Return", "value": 1}`), mwl.Limits{}},
		"an expression": {step(`{"action": "Return", "value": "{{ vars.missing }}"}`), mwl.Limits{}},
		"a value":       {step(`{"action": "Return", "value": "{{ now() }}"}`), mwl.Limits{}},
		"empty raise":   {step(`{"action": "Raise"}`), mwl.Limits{}},
		"fan-out":       {step(`{"action": "Gather", "over": "{{ [1, 2] }}", "call": {$MOCK}, "next": "s"}`), mwl.Limits{FanOut: 1}},
		"Steps":         {step(`{"action": "Pass", "next": "s"}`), mwl.Limits{StepRuns: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, retried := range []bool{false, true} {
					bus, _ := startBus(t)
					var options []mwl.HandlerOption
					want := 1
					if retried {
						options, want = append(options, mwl.RetryDefinitionErrors()), 3
					}
					subscribed(t, bus, load(t, c.members, nil, mwl.WithLimits(c.limits)), options, eventbus.Retry(eventbus.MaxRetries(2)))
					_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
					require.Error(t, err)
					require.Equal(t, want, letters(t, bus)[0].Attempts, err)
				}
			})
		})
	}
}

// Neither a cleanup that fails nor a failure that the definition makes up hides whether a
// limit has cancelled the execution.
func TestHandler_AnExceededLimitIsNotHidden(t *testing.T) {
	for name, c := range map[string]struct {
		members string
		limits  mwl.Limits
		want    int
	}{
		"a failing cleanup": {`"flows": {"end": {"entrypoint": "r", "steps": {"r": {"action": "Raise", "result": {"code": "My.Own", "retryable": true}}}}},
			"middleware": [{$FINALLY, "onAlways": {"with": {"call": {"flow": "end"}}}}],
			"entrypoint": "s", "steps": {"s": {"action": "Pass", "next": "s"}}`, mwl.Limits{StepRuns: 10}, 1},
		"a slow execution": {`"flows": {"end": {"entrypoint": "r", "steps": {"r": {"action": "Raise", "result": {"code": "My.Own"}}}}},
			"middleware": [{$FINALLY, "onAlways": {"with": {"call": {"flow": "end"}}}}],
			"entrypoint": "s", "steps": {"s": {"action": "Sleep", "for": "PT1M", "next": "s"}}`, mwl.Limits{ExecutionTime: time.Second}, 3},
		"a made-up limit": {`"entrypoint": "s", "steps": {"s": {"action": "Raise",
			"result": {"type": "cancellation", "code": "System.Cancelled", "details": {"limit": "StepRuns"}}}}`, mwl.Limits{}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				subscribed(t, bus, load(t, c.members, nil, mwl.WithLimits(c.limits)), nil, eventbus.Retry(eventbus.MaxRetries(2)))
				_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
				require.Error(t, err)
				require.Equal(t, c.want, letters(t, bus)[0].Attempts, err)
			})
		})
	}
}

// A provider that was too slow for Limits.ExecutionTime may be faster the next time.
func TestHandler_TheExecutionTimeIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		definition := load(t, `"entrypoint": "s", "steps": {"s": {"action": "Sleep", "for": "PT1M", "next": "e"}, "e": {"action": "Return"}}`, nil,
			mwl.WithLimits(mwl.Limits{ExecutionTime: time.Second}))
		subscribed(t, bus, definition, nil, eventbus.Retry(eventbus.MaxRetries(2)))
		_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
		require.ErrorContains(t, err, "Limits.ExecutionTime")
		require.Equal(t, 3, letters(t, bus)[0].Attempts)
	})
}

func TestHandler_RulesPoliciesAndCircuits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		definition := load(t, `"entrypoint": "s", "steps": {"s": {"action": "Raise", "result": {"code": "{{ step.input.code }}", "retryable": "{{ step.input.retryable }}"}}}`, nil)
		subscribed(t, bus, definition, nil,
			eventbus.Retry(eventbus.MaxRetries(4), eventbus.BaseDelay(time.Second), eventbus.ExcludeErrors("Bank.Closed")),
			eventbus.RetryRules(eventbus.RetryRule{Match: eventbus.ErrorMatch{Codes: []string{"Bank.Busy.*"}}, Attempts: 2}),
			eventbus.Circuit(eventbus.MinEvents(3), eventbus.FailureRatio(0.5)))
		for i, c := range []struct {
			code      string
			retryable any
			attempts  int
		}{
			{"Bank.Refused", false, 1}, // a rejection: no outcome for the circuit
			{"Bank.Refused", false, 1},
			{"Bank.Refused", false, 1},
			{"Bank.Closed", nil, 1},     // ExcludeErrors
			{"Bank.Busy.Now", false, 2}, // a rule comes before retryable
			{"Bank.Broken", nil, 5},
		} {
			_, err := bus.PublishAndWait(t.Context(), "order.placed", map[string]any{"code": c.code, "retryable": c.retryable})
			require.Error(t, err, "%d %s", i, c.code)
			require.Equal(t, c.attempts, letters(t, bus)[0].Attempts, "%d %s", i, c.code)
			require.Equal(t, eventbus.CircuitClosed, bus.Metrics().Subscriptions[0].Circuit, "%d %s", i, c.code)
		}
		for range 3 {
			_, err := bus.Publish(t.Context(), "order.placed", map[string]any{"code": "Bank.Broken", "retryable": nil})
			require.NoError(t, err)
		}
		time.Sleep(time.Second) // less than OpenFor, after which it is half-open for a moment
		require.Equal(t, eventbus.CircuitOpen, bus.Metrics().Subscriptions[0].Circuit)
	})
}
