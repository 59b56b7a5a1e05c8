package contracttest

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/driver"
)

func TestL4_ThePreviewOfAReplay(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		die := failing(eventbus.Permanent(errDead))
		mail := mustSubscribe(t, bus, "order.*", die, eventbus.Named("mail"))
		mustSubscribe(t, bus, "order.placed", ok, eventbus.Named("stock"), eventbus.DropWhenOpen)
		gone := mustSubscribe(t, bus, "gone", die, eventbus.Named("gone"))
		require.NoError(t, bus.Start(t.Context()))
		for i := range 20 {
			mustPublish(t, bus, "order.placed", i)
			mustPublish(t, bus, "order.paid", i)
		}
		mustPublish(t, bus, "gone", nil)
		synctest.Wait()
		gone.Unsubscribe()
		require.NoError(t, mail.Pause(eventbus.By("ann")))
		require.NoError(t, bus.Subscription("stock").Trip())

		p, err := bus.DLQ().PreviewReplay(t.Context(), eventbus.LetterQuery{Type: "order.placed"})
		require.NoError(t, err)
		require.Equal(t, 20, p.Matched)
		require.Equal(t, 20, p.Examined)
		require.Zero(t, p.Missing)
		require.Len(t, p.Sample, 10)
		require.Equal(t, letters(t, bus)[2].ID, p.Sample[0].ID)
		require.False(t, p.Newest.Before(p.Oldest))
		require.Equal(t, []eventbus.ReplayTarget{
			{Subscription: "mail", Letters: 20, Exists: true, Paused: true, ShutBy: eventbus.ParkPaused, Directive: metricsOf(t, bus, "mail").Directive},
			{
				Subscription: "stock", Letters: 20, Exists: true, Circuit: eventbus.CircuitOpen, WhenOpen: eventbus.DropWhenOpen,
				ShutBy: eventbus.ParkCircuit, Directive: metricsOf(t, bus, "stock").Directive,
			},
		}, p.Targets)

		all, err := bus.DLQ().PreviewReplay(t.Context(), eventbus.LetterQuery{})
		require.NoError(t, err)
		require.Equal(t, 41, all.Matched)
		require.Equal(t, 1, all.Missing)
		require.Equal(t, eventbus.ReplayTarget{Subscription: "gone", Letters: 1}, all.Targets[2])
		require.Len(t, letters(t, bus), 41, "it changes nothing")

		none, err := bus.DLQ().PreviewReplay(t.Context(), eventbus.LetterQuery{Subscription: "nobody"})
		require.NoError(t, err)
		require.Equal(t, eventbus.ReplayPreview{Sample: []eventbus.DeadLetter{}, Targets: []eventbus.ReplayTarget{}}, none)
		for _, q := range []eventbus.LetterQuery{{Limit: 1}, {Before: p.Sample[0].ID}} {
			_, err = bus.DLQ().PreviewReplay(t.Context(), q)
			require.ErrorIs(t, err, eventbus.ErrInvalidOption)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = bus.DLQ().PreviewReplay(ended, eventbus.LetterQuery{})
		require.ErrorIs(t, err, context.Canceled)

		// What was seen is what happens.
		require.NoError(t, mail.Resume())
		require.NoError(t, bus.Subscription("stock").Reset())
		report, err := bus.DLQ().ReplayMatching(t.Context(), eventbus.LetterQuery{All: true})
		require.NoError(t, err)
		require.Equal(t, all.Matched, report.Matched)
		require.Len(t, report.Stayed, all.Missing)
		require.Contains(t, report.Stayed[0].Error, "gone")
		time.Sleep(time.Minute)
		again, err := bus.DLQ().PreviewReplay(t.Context(), eventbus.LetterQuery{Subscription: "mail"})
		require.NoError(t, err)
		require.Equal(t, 40, again.Again)
		shutdown(t, bus)
	})
}

// The preview looks at the newest 10,000 letters, and counts all of them.
func TestL4_ThePreviewOfManyLetters(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithDeadLetterCapacity(20_000), eventbus.WithConcurrency(1), withoutCircuit, eventbus.WithTimeout(time.Hour))
	mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
	const n = 10_500
	for range n {
		mustPublish(t, bus, "a", nil)
	}
	require.NoError(t, bus.Start(t.Context()))
	require.Eventually(t, func() bool { return bus.Metrics().DeadLetters == n }, 30*time.Second, time.Millisecond)
	p, err := bus.DLQ().PreviewReplay(t.Context(), eventbus.LetterQuery{Type: "a"})
	require.NoError(t, err)
	require.Equal(t, n, p.Matched)
	require.Equal(t, 10_000, p.Examined)
	require.Equal(t, 10_000, p.Targets[0].Letters)
	shutdown(t, bus)
}

// The preview names the last death of all letters, also if clocks were set back after it: its Newest as Until does not change the set.
func TestL4_ThePreviewFixesTheSet(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open(eventbus.WithDeadLetterCapacity(20_000))
		require.NoError(t, bus.Start(t.Context()))
		const n = 10_500
		lines := linesOf(0, n, 10)
		died := []byte(`"died_at":"2024-07-28T`)
		lines = bytes.Replace(lines, died, []byte(`"died_at":"2025-07-28T`), 1)
		lines = bytes.Replace(lines, died, []byte(`"died_at":"2025-08-28T`), 1)
		require.Equal(t, n, importLetters(t, bus, lines).Imported)
		for _, q := range []eventbus.LetterQuery{{}, {Error: "dead"}, {Subscription: "s"}, {Type: "a", Since: time.Date(2024, 7, 1, 0, 0, 0, 0, time.UTC)}} {
			p, err := bus.DLQ().PreviewReplay(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, n, p.Matched)
			require.Equal(t, 10_000, p.Examined)
			require.Equal(t, "2025-08-28", p.Newest.Format(time.DateOnly))
			q.Until, q.Limit, q.ExactTotal = p.Newest, 1, true
			page, err := bus.DLQ().List(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, n, page.Total)
		}
		shutdown(t, bus)
	})
}

// counting counts the queries that count all letters that match.
type counting struct {
	driver.Store
	counts int
}

func (s *counting) Letters(ctx context.Context, q driver.LetterQuery) (driver.LetterPage, error) {
	if !q.NoTotal {
		s.counts++
	}
	return s.Store.Letters(ctx, q)
}

// A preview, and each page of the set of an operation: counting again for each takes longer than the rest.
func TestL4_NoPageIsCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: newDisk().Open()}
		bus, _ := newBus(t, eventbus.WithStore(store))
		require.NoError(t, bus.Start(t.Context()))
		importLetters(t, bus, linesOf(0, 2500, 10))
		for _, q := range []eventbus.LetterQuery{{All: true}, {Error: "dead"}, {Reason: eventbus.ReasonExhausted}} {
			store.counts = 0
			p, err := bus.DLQ().PreviewReplay(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, 2500, p.Matched)
			require.Equal(t, 2500, p.Examined)
			require.Equal(t, 1, store.counts, "a preview has the total")
			report, err := bus.DLQ().PurgeMatching(t.Context(), q, eventbus.DryRun())
			require.NoError(t, err)
			require.Equal(t, 2500, report.Matched)
			require.Equal(t, 1, store.counts, "a set has none")
		}
		shutdown(t, bus)
	})
}

// failureLike is an error with details that look like a failure.
type failureLike struct{ text string }

func (e failureLike) Error() string { return e.text }
func (e failureLike) Details() json.RawMessage {
	return json.RawMessage(`{"error":"inner","list":["}"]}`)
}

// Stores compare the encoded letters. What they find is what the letters say, not how they are encoded.
func TestL2_FiltersCompareTexts(t *testing.T) {
	onBothBuses(t, func(t *testing.T, open func(...eventbus.Option) *eventbus.Bus) {
		bus := open()
		mustSubscribe(t, bus, "a", failing(eventbus.Permanent(failureLike{"say \"no\" <b>\n\\ ü\u2028end"})), eventbus.Named("s"))
		require.NoError(t, bus.Start(t.Context()))
		mustPublish(t, bus, "a", nil, eventbus.Metadata("sub\"ject", "<a>"), eventbus.Metadata("idempotency_key", "k"), eventbus.IdempotencyKey("say \"k\""))
		synctest.Wait()
		for want, queries := range [][]eventbus.LetterQuery{
			{
				{Error: "u003c"},
				{Error: "inner"},
				{Error: "SAY"},
				{Error: `\"`},
				{Error: "end "},
				{Error: "no", MetadataName: "subject"},
				{MetadataName: "sub"},
				{MetadataName: `sub\"ject`},
				{MetadataName: "sub\"ject", MetadataValue: "a"},
				{IdempotencyKey: "k"},
				{Replayed: true},
			},
			{
				{Error: `"no" <b>`},
				{Error: "\n\\ ü"},
				{Error: "\u2028"},
				{Error: "end"},
				{MetadataName: "sub\"ject"},
				{MetadataName: "sub\"ject", MetadataValue: "<a>"},
				{IdempotencyKey: `say "k"`},
				{Error: "no", IdempotencyKey: `say "k"`, MetadataName: "idempotency_key", MetadataValue: "k"},
			},
		} {
			for _, q := range queries {
				page, err := bus.DLQ().List(t.Context(), q)
				require.NoError(t, err)
				require.Equal(t, want, page.Total, "%+v", q)
			}
		}
		shutdown(t, bus)
	})
}
