package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
	"github.com/surebus/eventbus/internal/docpage/docpagetest"
	"github.com/surebus/eventbus/retryspec"
)

func TestDocs_Retries(t *testing.T) {
	docpagetest.Page(t, "retries.md",
		docpagetest.InBubble(docsPolicy),
		docpagetest.Code(docsExplain),
		docpagetest.InBubble(docsCharge),
		docpagetest.InBubble(docsLastAttempt),
		docpagetest.InBubble(docsRules),
		docpagetest.InBubble(docsPolicyFile),
	)
}

// Payment is the payload of the page.
type Payment struct{ Order, Account, IdempotencyKey string }

// BusyError says when the bank has time.
type BusyError struct{ Wait time.Duration }

func (e *BusyError) Error() string { return "the bank is busy" }

// Code makes the error one for the rule of the page.
func (e *BusyError) Code() string { return "Bank.Busy" }

// ErrNoAccount is an error that no retry mends.
var (
	ErrNoAccount = errors.New("there is no such account")
	errBusy      = errors.New("busy")
)

// scriptedBank fails with its errors, one a call.
type scriptedBank struct{ errs []error }

func (b *scriptedBank) Charge(context.Context, Payment) error {
	if len(b.errs) == 0 {
		return nil
	}
	err := b.errs[0]
	b.errs = b.errs[1:]
	return err
}

// failing returns a handler of the bank's outcomes, and their recorder.
func failing(errs ...error) (eventbus.Handler, *eventbustest.Recorder) {
	b, rec := &scriptedBank{errs}, new(eventbustest.Recorder)
	return rec.Wrap(func(ctx context.Context, _ eventbus.Event) error { return b.Charge(ctx, Payment{}) }), rec
}

func docsPolicy(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t)
	charge, rec := failing(errBusy, errBusy, errBusy, errBusy, errBusy)
	_, err := bus.Subscribe("payment.*", charge, eventbus.Named("billing"),
		eventbus.Timeout(5*time.Second),
		eventbus.Retry(eventbus.MaxRetries(5), eventbus.BaseDelay(500*time.Millisecond), eventbus.FullJitter))
	if err != nil {
		return err
	}
	result, err := bus.PublishAndWait(ctx, "payment.due", nil)
	require.Equal(t, eventbus.Handled, result.Outcome)
	require.Len(t, rec.Deliveries(), 6)
	return err
}

func docsExplain(t *testing.T) error {
	bus := eventbustest.New(t, eventbus.WithRetry(eventbus.MaxDelay(time.Minute)))
	handler, _ := failing()
	_, err := bus.Subscribe("order.*", handler, eventbus.Named("billing"),
		eventbus.Retry(eventbus.MaxRetries(5), eventbus.BaseDelay(500*time.Millisecond)))
	require.NoError(t, err)
	_, err = bus.Subscribe("**", handler, eventbus.Named("mail"), eventbus.Timeout(5*time.Second),
		eventbus.Retry(eventbus.MaxRetries(2), eventbus.BaseDelay(200*time.Millisecond)))
	require.NoError(t, err)
	fmt.Print(bus.Explain("order.placed"))
	return nil
}

var bank scriptedBank

func charge(ctx context.Context, p Payment) error {
	err := bank.Charge(ctx, p)
	var busy *BusyError
	switch {
	case errors.Is(err, ErrNoAccount):
		return eventbus.Permanent(err) // no retry: a dead letter at once
	case errors.As(err, &busy):
		return eventbus.RetryAfter(err, busy.Wait) // the next attempt after exactly this
	}
	return err // nil, or a retry as the policy says
}

func docsCharge(t *testing.T) error {
	bus := eventbustest.New(t)
	var rec eventbustest.Recorder
	_, err := bus.Subscribe("payment.due", eventbus.Typed(charge), eventbus.Use(rec.Wrap))
	require.NoError(t, err)
	bank.errs = []error{&BusyError{time.Hour}, ErrNoAccount}
	result, err := bus.PublishAndWait(t.Context(), "payment.due", Payment{Order: "o-17", Account: "a-1"})
	require.ErrorIs(t, err, ErrNoAccount)
	require.Equal(t, eventbus.DeadLettered, result.Outcome)
	require.Equal(t, []time.Duration{time.Hour}, rec.Delays(result.ID))
	letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
	require.Equal(t, eventbus.ReasonPermanent, letter.Reason)
	return nil
}

func docsLastAttempt(t *testing.T) error {
	bus := eventbustest.New(t)
	_, err := bus.Subscribe("order.placed", func(ctx context.Context, _ eventbus.Event) error {
		delivery, _ := eventbus.FromContext(ctx)
		if delivery.Attempt == delivery.LastAttempt {
			fmt.Println("attempt", delivery.Attempt, "is the last")
		}
		return errBusy
	}, eventbus.Retry(eventbus.Delays(time.Second, time.Minute)))
	require.NoError(t, err)
	_, err = bus.Publish(t.Context(), "order.placed", nil)
	eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
	return err
}

func docsRules(t *testing.T) error {
	bus := eventbustest.New(t)
	charge, rec := failing(&BusyError{}, &BusyError{}, &BusyError{}, &BusyError{}, &BusyError{}, &BusyError{}, &BusyError{}, &BusyError{})
	rules := []eventbus.RetryRule{{
		Name:     "bank down",
		Match:    eventbus.ErrorMatch{Codes: []string{"Bank.*"}},
		Attempts: 9, BaseDelay: time.Minute,
	}}
	_, err := bus.Subscribe("payment.*", charge, eventbus.Named("billing"), eventbus.RetryRules(rules...))
	require.NoError(t, err)
	result, err := bus.PublishAndWait(t.Context(), "payment.due", nil)
	require.Equal(t, eventbus.Handled, result.Outcome)
	require.Len(t, rec.Deliveries(), 9)
	return err
}

// A document without the names of errors retries hardly any error in Go.
func TestPages_RetriesWithoutIncludeErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for text, attempts := range map[string]int{`{}`: 1, `{"retry": {"include_errors": ["TaskError"]}}`: 2} {
			document, err := retryspec.Parse([]byte(text))
			require.NoError(t, err)
			bus := eventbustest.New(t)
			eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
			handler, rec := failing(errBusy)
			_, err = bus.Subscribe("payment.*", handler, eventbus.Retry(document.Policy()))
			require.NoError(t, err)
			_, err = bus.Publish(t.Context(), "payment.due", nil)
			require.NoError(t, err)
			eventbustest.WaitSettled(t, bus)
			require.Equal(t, attempts, rec.Len(), text)
		}
	})
}

func docsPolicyFile(t *testing.T) error {
	ctx, bus := t.Context(), eventbustest.New(t, eventbus.WithLogger(zap.NewNop()))
	handler, _ := failing()
	billing, err := bus.Subscribe("payment.*", handler, eventbus.Named("billing"))
	require.NoError(t, err)
	policy, err := os.ReadFile("../retryspec/testdata/orders.policy.json")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "orders.policy.json"), policy, 0o600))
	t.Chdir(dir)
	var reported shared[[]error]
	report := func(err error) { reported.do(func(all *[]error) { *all = append(*all, err) }) }

	file, err := retryspec.Open("orders.policy.json", retryspec.Parse)
	if err != nil {
		return err // names the path in the document, the value and what was expected
	}
	if err := file.Follow(func(d retryspec.Document) error { return billing.SetRetry(d.Policy()) }); err != nil {
		return err
	}
	go file.Watch(ctx, 5*time.Second, report) // an invalid file is reported, and the previous policy stays
	require.Contains(t, bus.Explain("payment.due").String(), "MaxRetries = 5  (billing)")
	for _, text := range []string{`{"stop": {"max_attempts": 3}}`, `{"stop": {"max_attempts": "three"}}`} {
		require.NoError(t, os.WriteFile("orders.policy.json", []byte(text), 0o600))
		time.Sleep(6 * time.Second)
		synctest.Wait()
		require.Contains(t, bus.Explain("payment.due").String(), "MaxRetries = 2  (billing)")
	}
	require.Len(t, reported.get(), 2)
	require.NoError(t, reported.get()[0])
	require.ErrorContains(t, reported.get()[1], "max_attempts")
	_, err = bus.PublishAndWait(ctx, "payment.due", nil)
	return err
}
