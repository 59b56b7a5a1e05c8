package retryspec_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/retryspec"
)

type ValueError struct{}

func (ValueError) Error() string { return "a bad value" }

// fault is an error that tells of itself what it is made to.
type fault struct {
	code, name, resultType string
	retryable              bool
}

func (f fault) Error() string      { return "a fault" }
func (f fault) Code() string       { return f.code }
func (f fault) Name() string       { return f.name }
func (f fault) ResultType() string { return f.resultType }
func (f fault) Retryable() bool    { return f.retryable }

// story is what becomes of an event whose handler always fails.
type story struct {
	calls  []time.Duration // when, from publication
	reason eventbus.Reason
	rule   *eventbus.RuleRef
}

// fail runs, in virtual time, a handler that returns what errs returns, for each
// attempt from 1 on, and dies in the end.
func fail(t *testing.T, errs func(attempt int) error, bus []eventbus.Option, sub ...eventbus.SubscribeOption) (s story) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// Always the longest delay, or nearly so.
		b, err := eventbus.New(append([]eventbus.Option{eventbus.WithRandom(func() float64 { return 1 - 1.0/(1<<53) })}, bus...)...)
		require.NoError(t, err)
		began := time.Now()
		_, err = b.Subscribe("*", func(context.Context, eventbus.Event) error {
			s.calls = append(s.calls, time.Since(began).Round(time.Millisecond))
			return errs(len(s.calls))
		}, append([]eventbus.SubscribeOption{eventbus.Circuit(eventbus.NoCircuit())}, sub...)...)
		require.NoError(t, err)
		require.NoError(t, b.Start(t.Context()))
		_, err = b.PublishAndWait(t.Context(), "a", nil)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.Len(t, died.Letters, 1)
		s.reason, s.rule = died.Letters[0].Reason, died.Letters[0].Rule
		require.NoError(t, b.Shutdown(t.Context()))
	})
	return s
}

func always(err error) func(int) error { return func(int) error { return err } }

func after(seconds ...float64) []time.Duration {
	all := make([]time.Duration, len(seconds))
	for i, s := range seconds {
		all[i] = time.Duration(s * float64(time.Second))
	}
	return all
}

func mustParse(t *testing.T, text string) retryspec.Document {
	t.Helper()
	d, err := retryspec.Parse([]byte(text))
	require.NoError(t, err)
	return d
}

func mustParseRules(t *testing.T, text string) retryspec.Rules {
	t.Helper()
	rules, err := retryspec.ParseRules([]byte(text))
	require.NoError(t, err)
	return rules
}

func TestPolicy_OnTheBus(t *testing.T) {
	timeout := errors.Join(errors.New("x"), fmt.Errorf("asking: %w", fault{name: "TimeoutError", retryable: true}))
	for _, c := range []struct {
		document string
		err      error
		calls    []time.Duration
		reason   eventbus.Reason
	}{
		{`{}`, ValueError{}, after(0, 1, 3, 7, 15), eventbus.ReasonExhausted},
		{`{}`, fmt.Errorf("wrapped: %w", &ValueError{}), after(0, 1, 3, 7, 15), eventbus.ReasonExhausted},
		{`{}`, errors.New("another"), after(0), eventbus.ReasonPermanent},
		{`{}`, timeout, after(0), eventbus.ReasonPermanent},
		{`{"retry": {"include_errors": ["TimeoutError"]}, "stop": {"max_attempts": 2}}`, timeout, after(0, 1), eventbus.ReasonExhausted},
		{`{"retry": {"include_errors": ["TimeoutError", "fault"], "exclude_errors": ["TimeoutError"]}}`, timeout, after(0), eventbus.ReasonPermanent},
		{`{"retry": {"include_errors": []}}`, ValueError{}, after(0), eventbus.ReasonPermanent},
		{`{"retry": {"include_errors": ["", "valueerror", "*"]}}`, ValueError{}, after(0), eventbus.ReasonPermanent},
		{`{"stop": {"max_attempts": 1}}`, ValueError{}, after(0), eventbus.ReasonExhausted},
		{`{"wait": {"strategy": "fixed", "delay": 40, "max_delay": 5}, "stop": {"max_attempts": 3}}`, ValueError{}, after(0, 40, 80), eventbus.ReasonExhausted},
		{`{"wait": {"strategy": "fixed", "delay": 10}, "stop": {"max_attempts": null, "max_delay": 35}}`, ValueError{}, after(0, 10, 20, 30), eventbus.ReasonExpired},
		{`{"wait": {"strategy": "fixed", "delay": 0}, "stop": {"max_delay": 0}}`, ValueError{}, after(0), eventbus.ReasonExpired},
		{`{"wait": {"strategy": "fixed", "delay": 0}, "stop": {"max_delay": 1e-10}}`, ValueError{}, after(0), eventbus.ReasonExpired},
		{`{"stop": {"max_delay": 0, "max_attempts": null}}`, ValueError{}, after(0), eventbus.ReasonExpired},
		{`{"wait": {"initial_delay": 0}, "stop": {"max_delay": 0}}`, ValueError{}, after(0), eventbus.ReasonExpired},
		{`{"stop": {"max_delay": 0, "max_attempts": 1}}`, ValueError{}, after(0), eventbus.ReasonExhausted},
		{`{"wait": {"strategy": "exponential", "initial_delay": 2, "multiplier": 3, "max_delay": 10}}`, ValueError{}, after(0, 2, 8, 18, 28), eventbus.ReasonExhausted},
		{`{"wait": {"strategy": "exponential", "initial_delay": 20, "max_delay": 10}, "stop": {"max_attempts": 3}}`, ValueError{}, after(0, 10, 20), eventbus.ReasonExhausted},
		{`{}`, eventbus.Permanent(ValueError{}), after(0), eventbus.ReasonPermanent},
		{`{"stop": {"max_attempts": 2}}`, eventbus.RetryAfter(ValueError{}, time.Minute), after(0, 60), eventbus.ReasonExhausted},
	} {
		p := mustParse(t, c.document).Policy()
		want := story{calls: c.calls, reason: c.reason}
		require.Equal(t, want, fail(t, always(c.err), nil, eventbus.Retry(p)), c.document)
		require.Equal(t, want, fail(t, always(c.err), []eventbus.Option{eventbus.WithRetry(p)}), c.document)
	}
}

// In the orchestrator of these documents, TaskError is the type of every failed task.
func TestPolicy_TaskErrorIncludesEveryError(t *testing.T) {
	for _, include := range []string{`["TaskError"]`, `["OtherError", "TaskError"]`} {
		document := mustParse(t, `{"retry": {"include_errors": `+include+`, "exclude_errors": ["fault"]}, "wait": {"strategy": "fixed"}, "stop": {"max_attempts": 3}}`)
		retried := story{calls: after(0, 1, 2), reason: eventbus.ReasonExhausted}
		for _, err := range []error{ValueError{}, errors.New("without a name"), context.DeadlineExceeded} {
			require.Equal(t, retried, fail(t, always(err), nil, eventbus.Retry(document.Policy())), "%T", err)
		}
		excluded := story{calls: after(0), reason: eventbus.ReasonPermanent}
		require.Equal(t, excluded, fail(t, always(fault{}), nil, eventbus.Retry(document.Policy())))
		require.True(t, document.Retries("AnyError"))
		require.False(t, document.Retries("fault"))
	}
	require.False(t, mustParse(t, `{"retry": {"include_errors": ["taskerror"]}}`).Retries("AnyError"), "names are exact")
}

// Not a field is left to the bus.
func TestPolicy_IsComplete(t *testing.T) {
	other := eventbus.WithRetry(eventbus.MaxRetries(9), eventbus.MaxElapsed(time.Second), eventbus.RetryIf(func(error) bool { return false }),
		eventbus.EqualJitter, eventbus.IncludeErrors(), eventbus.ExcludeErrors("ValueError"), eventbus.BackoffMultiplier(7))
	s := fail(t, always(ValueError{}), []eventbus.Option{other}, eventbus.Retry(retryspec.Default().Policy()))
	require.Equal(t, story{calls: after(0, 1, 3, 7, 15), reason: eventbus.ReasonExhausted}, s)
}

// The format's default retries ValueError alone: the errors of others need its name,
// or one that the document includes.
func TestPolicy_NamesThatAreRegistered(t *testing.T) {
	errBank := errors.New("the bank is busy")
	document := retryspec.Default().Policy()
	require.Len(t, fail(t, always(errBank), nil, eventbus.Retry(document)).calls, 1)
	named := []eventbus.Option{eventbus.WithErrorName(errBank, "ValueError")}
	require.Len(t, fail(t, always(errBank), named, eventbus.Retry(document)).calls, 5)
}

func TestRules_OnTheBus(t *testing.T) {
	rules := mustParseRules(t, `{"policies": [
		{"match": {"codes": ["Bank.*"], "retryable": true}, "attempts": 3, "backoff": {"initial": "PT10S", "rate": 2, "max": "PT15S"}},
		{"match": {"types": ["timeout"]}, "attempts": 2}
	]}`)
	busy, slow := fault{code: "Bank.Busy", retryable: true}, fault{resultType: "timeout"}
	other := eventbus.Retry(eventbus.MaxRetries(1), eventbus.BaseDelay(20*time.Second), eventbus.NoJitter)
	for _, c := range []struct {
		errs  func(int) error
		calls []time.Duration
		rule  *eventbus.RuleRef
	}{
		{always(busy), after(0, 10, 25), &eventbus.RuleRef{Position: 0}},
		{always(slow), after(0, 0), &eventbus.RuleRef{Position: 1}},
		{always(errors.New("x")), after(0, 20), nil},
		// Each counts for itself.
		{func(attempt int) error {
			return []error{busy, slow, busy, errors.New("x"), busy}[attempt-1]
		}, after(0, 10, 10, 25, 45), &eventbus.RuleRef{Position: 0}},
	} {
		s := fail(t, c.errs, nil, eventbus.RetryRules(rules...), other)
		if s.rule != nil {
			s.rule.Subscription = ""
		}
		require.Equal(t, story{c.calls, eventbus.ReasonExhausted, c.rule}, s)
	}
	// No rule matches it, and it says that it must not be retried.
	s := fail(t, always(fault{code: "Bank.Busy"}), nil, eventbus.RetryRules(rules...), other)
	require.Equal(t, story{after(0), eventbus.ReasonPermanent, nil}, s)
}

// Of what a rule does not say, nothing comes from the bus: no jitter, no cap.
func TestRules_InheritNothing(t *testing.T) {
	rules := mustParseRules(t, `{"policies": [{"match": {"codes": ["*"]}, "attempts": 3, "backoff": {"initial": "PT1H"}}]}`)
	bus := []eventbus.Option{eventbus.WithRetry(eventbus.MaxDelay(time.Second), eventbus.FullJitter, eventbus.BackoffMultiplier(3))}
	require.Equal(t, after(0, 3600, 7200), fail(t, always(errors.New("x")), bus, eventbus.RetryRules(rules...)).calls)
}
