package contracttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
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
