package mwl_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/mwl"
)

func TestResult_ErrHasCodeTypeAndRetryable(t *testing.T) {
	require.NoError(t, returning(t, "1").Execute(t.Context(), nil).Err())

	var failed *mwl.ExecutionError
	require.ErrorAs(t, raising(t, `{"code": "Order.Refused", "type": "Refusal", "retryable": false}`).Execute(t.Context(), nil).Err(), &failed)
	require.Equal(t, "Order.Refused", failed.Code())
	require.Equal(t, "Refusal", failed.ResultType())
	retryable, said := failed.Retryable()
	require.True(t, said)
	require.False(t, retryable)
	require.JSONEq(t, `{"code": "Order.Refused", "type": "Refusal", "retryable": false}`, string(failed.Details()))
	var failure *mwl.Failure
	require.ErrorAs(t, error(failed), &failure)
	require.Equal(t, "Order.Refused", failure.Code)

	require.ErrorAs(t, raising(t, `{"code": "Order.Odd"}`).Execute(t.Context(), nil).Err(), &failed)
	_, said = failed.Retryable()
	require.False(t, said)

	require.ErrorAs(t, returning(t, "vars.missing").Execute(t.Context(), nil).Err(), &failed)
	retryable, said = failed.Retryable()
	require.True(t, said && !retryable, "the same event would fail again")
}

// A handler of your own that executes a definition ends as the handler of the definition does.
func TestResult_ErrOfAHandlerIsJudgedByTheBus(t *testing.T) {
	endless := load(t, `"entrypoint": "s", "steps": {"s": {"action": "Pass", "next": "s"}}`, nil, mwl.WithLimits(mwl.Limits{StepRuns: 10}))
	for name, c := range map[string]struct {
		definition *mwl.Definition
		attempts   int
		reason     eventbus.Reason
	}{
		"declared final":   {raising(t, `{"code": "Order.Refused", "retryable": false}`), 1, eventbus.ReasonPermanent},
		"a limit":          {endless, 1, eventbus.ReasonPermanent},
		"an expression":    {returning(t, "vars.missing"), 1, eventbus.ReasonPermanent},
		"nothing declared": {raising(t, `{"code": "Order.Odd"}`), 3, eventbus.ReasonExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t)
				_, err := bus.Subscribe("order.*", func(ctx context.Context, e eventbus.Event) error {
					return c.definition.Execute(ctx, e.Payload).Err()
				}, eventbus.Retry(eventbus.MaxRetries(2)))
				require.NoError(t, err)
				_, err = bus.PublishAndWait(t.Context(), "order.placed", nil)
				require.Error(t, err)
				l := letters(t, bus)[0]
				require.Equal(t, c.attempts, l.Attempts)
				require.Equal(t, c.reason, l.Reason)
				require.NotEmpty(t, bus.ErrorTraits(l.Failures[0].Err).Code)
				require.NotEmpty(t, l.Failures[0].Details, "the letter has the envelope")
			})
		})
	}
}

// A provider in Go that executes another definition passes its failure on.
func TestResult_ErrOfAProviderIsItsFailure(t *testing.T) {
	inner := raising(t, `{"code": "Provider.Call.Outer.Refused", "retryable": false}`)
	err := inner.Execute(t.Context(), nil).Err()
	var failure *mwl.Failure
	require.ErrorAs(t, err, &failure)
	catalog, err := mwl.NewCatalog(mwl.CallProvider{
		URI: "mwl:provider.call/shop/outer/v1", CodePrefix: "Outer", Failures: mwl.FailureCatalog{Open: []string{"*"}},
		Call: func(ctx context.Context, _ mwl.CallRequest) (mwl.CallResponse, error) {
			result := inner.Execute(ctx, nil)
			return mwl.CallResponse{Value: result.Value}, result.Err()
		},
	})
	require.NoError(t, err)
	outer, err := mwl.Load([]byte(`{"$schema": "https://mwl.dev/v0.1/flow/schema.json", "entrypoint": "s",
		"steps": {"s": {"action": "Call", "call": {"provider": "mwl:provider.call/shop/outer/v1"}, "next": "e"}, "e": {"action": "Return"}}}`), mwl.WithCatalog(catalog))
	require.NoError(t, err)
	result := outer.Execute(t.Context(), nil)
	require.NotNil(t, result.Failure)
	require.Equal(t, failure.Code, result.Failure.Code)
	require.False(t, *result.Failure.Retryable)
}
