package mwl_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/storetest"
)

// publishing makes the calls one after the other, each with its with, and fails at the
// end while failing is set.
func publishing(t *testing.T, bus *eventbus.Bus, members string) *mwl.Definition {
	t.Helper()
	return load(t, members, []mwl.CatalogEntry{mwl.PublishTo(bus)})
}

const publishURI = `"provider": "mwl:provider.call/eventbus/publish/v1"`

// received are the events that a subscription to a pattern gets.
func received(t *testing.T, bus *eventbus.Bus, pattern string) func() []eventbus.Event {
	t.Helper()
	events := make(chan eventbus.Event, 1000)
	_, err := bus.Subscribe(pattern, func(_ context.Context, e eventbus.Event) error { events <- e; return nil }, eventbus.Named("receiver"))
	require.NoError(t, err)
	return func() (all []eventbus.Event) {
		for len(events) > 0 {
			all = append(all, <-events)
		}
		return all
	}
}

func TestPublish_TheEventHasItsCauseAndTraceHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		got := received(t, bus, "mail.*")
		var results []any
		subscribed(t, bus, publishing(t, bus, `"entrypoint": "p", "steps": {
			"p": {"action": "Call", "input": {"to": "{{ step.input }}"}, "call": {`+publishURI+`, "with": {
				"type": "mail.wanted", "key": "k", "metadata": {"tenant": "acme", "tracestate": "mine"}, "after": "PT1H"}}, "next": "r"},
			"r": {"action": "Return", "value": "{{ step.input }}"}}`), []mwl.HandlerOption{values(&results)})
		id, err := bus.PublishAndWait(t.Context(), "order.placed", "ann", eventbus.Metadata("traceparent", "00-1"), eventbus.Metadata("tracestate", "theirs"))
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, got(), "it is due later")
		time.Sleep(time.Hour)
		synctest.Wait()
		events := got()
		require.Len(t, events, 1)
		e := events[0]
		require.Equal(t, []any{e.ID.String()}, results)
		require.Equal(t, "k", e.Key)
		require.Equal(t, map[string]any{"to": "ann"}, e.Payload)
		require.Equal(t, id.ID.String(), e.Metadata.Get(mwl.CausationID))
		require.Equal(t, "00-1", e.Metadata.Get("traceparent"))
		require.Equal(t, "mine", e.Metadata.Get("tracestate"))
		require.Equal(t, "acme", e.Metadata.Get("tenant"))
	})
}

// A retried flow publishes nothing twice, and nothing that is the same is lost.
func TestPublish_AnotherAttemptPublishesNothingTwice(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var options []eventbus.Option
			if stored {
				options = append(options, eventbus.WithStore(open(t, storetest.NewModel())))
			}
			bus, _ := startBus(t, options...)
			got := received(t, bus, "mail.*")
			var calls atomic.Int64
			entry := do(func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
				if calls.Add(1) < 3 {
					return mwl.CallResponse{}, errors.New("not yet")
				}
				return mwl.CallResponse{}, nil
			})
			d := load(t, `"entrypoint": "same", "steps": {
				"same": {"action": "Gather", "over": ["a", "a", "b"], "call": {`+publishURI+`, "with": {"type": "mail.wanted"}}, "next": "named"},
				"named": {"action": "Call", "input": "{{ string(execution.platform.event.attempt) }}",
					"call": {`+publishURI+`, "with": {"type": "mail.named", "idempotencyKey": "once"}},
					"catch": [{"match": {"codes": ["Provider.Call.Publish.DuplicateID"]}, "next": "last"}], "next": "last"},
				"last": {"action": "Call", "call": {$DO}, "next": "r"},
				"r": {"action": "Return"}}`, []mwl.CatalogEntry{mwl.PublishTo(bus), entry})
			subscribed(t, bus, d, nil, eventbus.Retry(eventbus.MaxRetries(3)))
			_, err := bus.PublishAndWait(t.Context(), "order.placed", nil)
			require.NoError(t, err)
			synctest.Wait()
			require.EqualValues(t, 3, calls.Load())
			require.Len(t, got(), 4, "a, a, b and the named one")
			require.NoError(t, bus.Shutdown(t.Context()))
		})
	}
}

func TestPublish_Failures(t *testing.T) {
	stopped, _ := startBus(t)
	require.NoError(t, stopped.Shutdown(t.Context()))
	full, err := eventbus.New(eventbus.WithQueueCapacity(1), eventbus.RefuseWhenFull())
	require.NoError(t, err)
	_, err = full.Subscribe("*", func(context.Context, eventbus.Event) error { return nil })
	require.NoError(t, err)
	_, err = full.Publish(t.Context(), "x", 1)
	require.NoError(t, err)
	t.Cleanup(func() { _ = full.Shutdown(context.WithoutCancel(t.Context())) })
	known, _ := startBus(t)
	_, err = known.Publish(t.Context(), "a", 1, eventbus.ID(eventbus.EventID{1}))
	require.NoError(t, err)
	id := eventbus.EventID{1}.String()
	for name, c := range map[string]struct {
		bus       *eventbus.Bus
		with      string
		code      string
		retryable *bool
	}{
		"a type":     {known, `{"type": "a\u200bb"}`, mwl.CodePublishInvalidEvent, new(bool)},
		"no type":    {known, `{"type": "{{ 'a..b' }}"}`, mwl.CodeParameterValidationFailed, nil},
		"a name":     {known, `{"type": "a", "metadata": {"eventbus.x": "1"}}`, mwl.CodePublishInvalidEvent, new(bool)},
		"an id":      {known, `{"type": "a", "id": "{{ '7' }}"}`, mwl.CodeParameterValidationFailed, nil},
		"a known id": {known, `{"type": "b", "id": "` + id + `"}`, mwl.CodePublishDuplicateID, new(bool)},
		"shut down":  {stopped, `{"type": "a"}`, mwl.CodePublishShutdown, yes()},
		"full":       {full, `{"type": "a"}`, mwl.CodePublishQueueFull, yes()},
	} {
		t.Run(name, func(t *testing.T) {
			r := publishing(t, c.bus, `"entrypoint": "p", "steps": {
				"p": {"action": "Call", "call": {`+publishURI+`, "with": `+c.with+`}, "next": "r"}, "r": {"action": "Return"}}`).Execute(t.Context(), 1)
			require.NotNil(t, r.Failure)
			require.Equal(t, c.code, r.Failure.Code, r.Failure.Message)
			require.Equal(t, c.retryable, r.Failure.Retryable)
		})
	}
	_, err = mwl.NewCatalog(mwl.PublishTo(nil))
	require.ErrorContains(t, err, "the bus is nil; make one with eventbus.New")
}

// What no bus accepts does not load.
func TestPublish_LiteralArguments(t *testing.T) {
	bus, _ := startBus(t)
	catalog, err := mwl.NewCatalog(mwl.PublishTo(bus))
	require.NoError(t, err)
	for with, place := range map[string]string{
		`{"type": "a..b"}`: "/type",
		`{"type": "a.*"}`:  "/type",
		`{"type": "a b"}`:  "/type",
		`{"type": "a", "metadata": {"causation_id": "x"}}`:                                   "/metadata/causation_id",
		`{"type": "a", "after": "PT1S", "at": "2024-01-15T09:30:00Z"}`:                       "/at",
		`{"type": "a", "id": "7"}`:                                                           "/id",
		`{"type": "a", "id": "123E4567-e89b-12d3-a456-426614174000", "idempotencyKey": "k"}`: "/idempotencyKey",
		`{"type": "a.ö-1_x", "id": "123E4567-e89b-12d3-a456-426614174000", "key": null}`:     "",
	} {
		_, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "p", "steps": {
			"p": {"action": "Call", "call": {`+publishURI+`, "with": `+with+`}, "next": "r"}, "r": {"action": "Return"}}}`), mwl.WithCatalog(catalog))
		if place == "" {
			require.NoError(t, err)
			continue
		}
		problems := problemsOf(t, err)
		require.Len(t, problems, 1)
		require.Equal(t, "/steps/p/call/with"+place, problems[0].Pointer)
		require.NotContains(t, problems[0].Remedy, "failed")
	}
}

// Only a call whose next run has the same id may be repeated when its event may have been accepted.
func TestPublish_AStoreFails(t *testing.T) {
	for _, kind := range []storetest.FaultKind{storetest.FailBefore, storetest.FailAfter} {
		synctest.Test(t, func(t *testing.T) {
			fail := false
			model := storetest.NewModel(storetest.WithFaults(func(_ int, b *driver.Batch) (f storetest.Fault) {
				if len(b.New) > 0 && fail {
					fail = false
					f.Kind = kind
				}
				return f
			}))
			bus, _ := startBus(t, eventbus.WithStore(open(t, model)))
			got := received(t, bus, "mail.*")
			_, err := bus.Subscribe("slow", func(context.Context, eventbus.Event) error { time.Sleep(time.Second); return nil }, eventbus.Named("slow"))
			require.NoError(t, err)
			publish := func(with string) mwl.Result {
				return publishing(t, bus, `"entrypoint": "p", "steps": {
					"p": {"action": "Call", "call": {`+publishURI+`, "with": `+with+`}, "next": "r"},
					"r": {"action": "Return", "value": "{{ step.input }}"}}`).Execute(t.Context(), nil)
			}
			id := eventbus.NewEventID().String()
			for _, c := range []struct {
				with      string
				retryable bool
			}{
				{`{"type": "mail.once"}`, false},
				{`{"type": "mail.again", "id": "` + id + `"}`, true},
			} {
				_, err := bus.Publish(t.Context(), "slow", nil) // the bus waits for its call before it opens the store again
				require.NoError(t, err)
				synctest.Wait()
				fail = true
				f := publish(c.with).Failure
				require.NotNil(t, f)
				require.Equal(t, mwl.CodePublishIndeterminate, f.Code, f.Message)
				require.Equal(t, &c.retryable, f.Retryable)
				require.Contains(t, f.Details, "id")
				f = publish(`{"type": "mail.other"}`).Failure
				require.NotNil(t, f)
				require.Equal(t, mwl.CodePublishStoreFailed, f.Code, f.Message)
				require.Equal(t, yes(), f.Retryable)
				time.Sleep(time.Minute)
			}
			r := publish(`{"type": "mail.again", "id": "` + id + `"}`)
			require.Nil(t, r.Failure)
			require.Equal(t, id, r.Value)
			time.Sleep(time.Minute)
			again := 0
			for _, e := range got() {
				if e.ID.String() == id {
					again++
				}
			}
			require.Equal(t, 1, again)
			require.NoError(t, bus.Shutdown(t.Context()))
		})
	}
}
