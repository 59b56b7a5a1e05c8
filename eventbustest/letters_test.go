package eventbustest_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/eventbustest"
)

// dead makes a bus with a dead letter, and a second to come.
func dead(t testing.TB) *eventbus.Bus {
	bus := eventbustest.New(t, seconds)
	eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
	var rec eventbustest.Recorder
	rec.Script(eventbustest.Fail(eventbus.Permanent(errBank)), eventbustest.Panic("no such account"),
		eventbustest.Fail(nil), eventbustest.Overrun, eventbustest.Fail(eventbus.Permanent(errBank)))
	subscribe(t, bus, ok, eventbus.Named("audit"))
	subscribe(t, bus, rec.Handle, eventbus.Named("billing"))
	subscribe(t, bus, ok, eventbus.Named("mail"))
	publish(t, bus, "order.placed", "o-17")
	eventbustest.WaitSettled(t, bus)
	publish(t, bus, "order.paid", struct{ Cents int }{4200})
	return bus
}

func TestDeadLetter_ReturnsTheOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := dead(t)
		letter := eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{Type: "order.paid"}) // and waits for it
		require.Equal(t, 4, letter.Attempts)
		require.Equal(t, []string{"audit"}, letter.Succeeded)

		both := eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonPermanent}, 2)
		require.Equal(t, "order.placed", both[0].Event.Type, "the first to die comes first")
		require.Empty(t, eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{Reason: eventbus.ReasonExpired}, 0))
	})
}

func TestDeadLetter_ShowsWhatThereIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oneFailure(t, func(t testing.TB) {
			eventbustest.DeadLetter(t, dead(t), eventbus.LetterQuery{Type: "order.p*", Subscription: "mail"})
		},
			`want 1 dead letter for LetterQuery{Type: "order.p*", Subscription: "mail"}, got 0, of 2`,
			"order.placed", "permanent at billing after 1 attempt", "payload string o-17",
			"order.paid", "permanent at billing after 4 attempts", "payload struct { Cents int } {Cents:4200}",
			"succeeded at audit", "did not reach mail",
			"attempt 1, billing, 00:00:00.00", ": eventbus: handler panicked: no such account\n        github.com/surebus/eventbus/eventbustest_test.dead.Panic",
			"attempt 2, billing, 00:00:01.00", ": eventbustest: scripted failure",
			"attempt 3, billing, 00:00:33.00", "eventbus: handler of billing overran its timeout of 30s",
			"attempt 4, billing, 00:00:37.00", ": the bank is busy")

		oneFailure(t, func(t testing.TB) {
			eventbustest.DeadLetter(t, dead(t), eventbus.LetterQuery{})
		}, "want 1 dead letter for LetterQuery{}, got 2")
		oneFailure(t, func(t testing.TB) {
			eventbustest.DeadLetter(t, dead(t), eventbus.LetterQuery{
				Event: eventbus.EventID{1}, Key: "o-17", MetadataName: "tenant", MetadataValue: "acme",
				PublishedSince: time.Unix(1, 0).UTC(), PublishedUntil: time.Unix(2, 0).UTC(),
			})
		}, `LetterQuery{Event: 01000000-0000-0000-0000-000000000000, Key: "o-17", MetadataName: "tenant", MetadataValue: "acme", `+
			`PublishedSince: 1970-01-01 00:00:01 +0000 UTC, PublishedUntil: 1970-01-01 00:00:02 +0000 UTC}, got 0`)
		oneFailure(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			subscribe(t, bus, ok)
			publish(t, bus, "order.placed", nil)
			eventbustest.DeadLetter(t, bus, eventbus.LetterQuery{})
		}, "the queue is empty", "Handled:1")
		oneFailure(t, func(t testing.TB) {
			eventbustest.DeadLetter(t, dead(t), eventbus.LetterQuery{Type: "order..placed"})
		}, "invalid pattern")
	})
}

func TestNoDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes(t, func(t testing.TB) {
			bus := eventbustest.New(t)
			subscribe(t, bus, ok)
			publish(t, bus, "order.placed", nil)
			eventbustest.NoDeadLetters(t, bus)
		})
		failures, finished := failuresOf(t, func(t testing.TB) { eventbustest.NoDeadLetters(t, dead(t)) })
		require.True(t, finished)
		require.Len(t, failures, 1)
		require.Contains(t, failures[0], "want no dead letters, got 2")
	})
}

// A thousand letters are not a thousand stories, and are counted all the same.
func TestDeadLetters_Many(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		test := func(want int) func(testing.TB) {
			return func(t testing.TB) {
				bus := eventbustest.New(t, eventbus.WithDeadLetterCapacity(30_000), eventbus.WithCircuit(eventbus.NoCircuit()))
				subscribe(t, bus, eventbustest.Fail(eventbus.Permanent(errBank)))
				eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
				for range 10_001 { // more than a page
					publish(t, bus, "order.placed", strings.Repeat("x", 1000))
				}
				letters := eventbustest.DeadLetters(t, bus, eventbus.LetterQuery{Error: "bank"}, want)
				require.Len(t, letters, want)
			}
		}
		passes(t, test(10_001))
		text := oneFailure(t, test(10_002), "got 10001", "and 9991 more", "x…")
		require.Less(t, len(text), 20_000)
	})
}

// A payload that contains itself cannot be formatted: its type is shown.
func TestDeadLetter_APayloadThatCannotBeShown(t *testing.T) {
	itself := map[string]any{}
	itself["self"] = itself
	for typeName, payload := range map[string]any{"map[string]interface {}": itself, "eventbustest_test.hostile": hostile{}} {
		synctest.Test(t, func(t *testing.T) {
			oneFailure(t, func(t testing.TB) {
				bus := eventbustest.New(t, seconds)
				eventbustest.AllowDeadLetters(t, bus, eventbus.LetterQuery{})
				subscribe(t, bus, func(context.Context, eventbus.Event) error { return eventbus.Permanent(errBank) })
				publish(t, bus, "order.placed", payload)
				eventbustest.NoDeadLetters(t, bus)
			}, "payload "+typeName+" (not shown")
		})
	}
}

type hostile struct{}

func (hostile) MarshalJSON() ([]byte, error) { panic("no JSON") }
