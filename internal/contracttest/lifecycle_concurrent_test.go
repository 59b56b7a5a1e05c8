package contracttest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// Unsubscribe takes held deliveries from its subscription while Shutdown collects what
// it does not wait for. Each delivery must end in exactly one letter, whichever of the
// two calls takes it.
func TestS2_UnsubscribeDuringShutdownLosesNothing(t *testing.T) {
	rounds := searching(1_000, 200)
	for name, subscriptions := range map[string]int{"one subscription": 1, "thirty subscriptions": 30} {
		t.Run(name, func(t *testing.T) {
			for round := range rounds {
				synctest.Test(t, func(t *testing.T) { unsubscribeDuringShutdown(t, round, subscriptions) })
				if t.Failed() {
					t.Fatalf("round %d", round)
				}
			}
		})
	}
}

func unsubscribeDuringShutdown(t *testing.T, round, subscriptions int) {
	const held = 150
	bus, err := eventbus.New(eventbus.WithLogger(zap.NewNop()), eventbus.WithConcurrency(8))
	require.NoError(t, err)
	var all []*eventbus.Subscription
	for n := range subscriptions {
		s, err := bus.Subscribe(fmt.Sprint("a", n), func(context.Context, eventbus.Event) error {
			t.Error("the handler of a paused subscription ran")
			return nil
		}, eventbus.Named(fmt.Sprint("s", n)))
		require.NoError(t, err)
		require.NoError(t, s.Pause())
		all = append(all, s)
	}
	require.NoError(t, bus.Start(t.Context()))
	for n := range held {
		var options []eventbus.PublishOption
		if round%2 == 1 && n%3 == 0 {
			options = append(options, eventbus.Key("k"))
		}
		_, err := bus.Publish(t.Context(), fmt.Sprint("a", n%subscriptions), n, options...)
		require.NoError(t, err)
	}
	time.Sleep(time.Second)
	require.EqualValues(t, held, bus.Metrics().Ledger.Held)

	// The offset between the two calls differs from round to round.
	var ready, done sync.WaitGroup
	together := make(chan struct{})
	var shutdown error
	ready.Add(2)
	release := func(spins int, f func()) {
		done.Go(func() {
			ready.Done()
			<-together
			for range spins {
				runtime.Gosched()
			}
			f()
		})
	}
	release(round%7, func() {
		for _, s := range all {
			s.Unsubscribe()
		}
	})
	release(round%5, func() { shutdown = bus.Shutdown(context.Background()) })
	ready.Wait()
	close(together)
	done.Wait()

	l := bus.Metrics().Ledger
	require.True(t, l.Balanced(), "the books do not balance: %+v", l)
	require.Zero(t, l.Queued+l.Running+l.Waiting+l.Held+l.Scheduled, "something is left in memory: %+v", l)
	unfinished := map[any]bool{}
	var short *eventbus.ShutdownError
	if errors.As(shutdown, &short) {
		for i := range short.Unfinished {
			unfinished[short.Unfinished[i].Event.Payload] = true
		}
	} else {
		require.NoError(t, shutdown)
	}
	page, err := bus.DLQ().List(t.Context(), eventbus.LetterQuery{Limit: 2 * held})
	require.NoError(t, err)
	seen := map[any]bool{}
	for i := range page.Letters {
		l := &page.Letters[i]
		require.False(t, seen[l.Event.Payload], "event %v has two letters", l.Event.Payload)
		seen[l.Event.Payload] = true
		require.Contains(t, []eventbus.Reason{eventbus.ReasonShutdown, eventbus.ReasonUnsubscribed}, l.Reason)
		require.Equal(t, l.Reason == eventbus.ReasonShutdown, unfinished[l.Event.Payload],
			"event %v died with the reason %s, and the error of Shutdown must name what shutdown buries", l.Event.Payload, l.Reason)
	}
	require.Len(t, seen, held, "deliveries without a letter")
}
