package eventbus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// A handler's goroutine waits on, with its context, when the handler has returned. What it
// stands behind has ended then, and is not what somebody else stands behind who waits.
func TestD7_WhoStandsBehindAnEndedWaitStandsBehindNobody(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // what is free again is used by the next one
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		inSecond, goOn, end := make(chan bool), make(chan bool), make(chan bool)
		var first, third error
		var ended sync.WaitGroup
		mustSubscribe(t, bus, "first", func(ctx context.Context, _ eventbus.Event) error {
			ended.Go(func() { _, first = bus.PublishAndWait(context.WithoutCancel(ctx), "second", nil) })
			<-inSecond
			return nil
		})
		mustSubscribe(t, bus, "second", func(ctx context.Context, _ eventbus.Event) error {
			inSecond <- true
			<-goOn
			_, third = bus.PublishAndWait(ctx, "third", nil, eventbus.Key("k"))
			return nil
		})
		mustSubscribe(t, bus, "third", ok)
		mustSubscribe(t, bus, "holder", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.PublishAndWait(ctx, "slow", nil)
			return err
		})
		mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error {
			<-end
			return nil
		})
		_, err := bus.PublishAndWait(t.Context(), "first", nil)
		require.NoError(t, err)
		mustPublish(t, bus, "holder", nil, eventbus.Key("k"))
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		close(end)
		ended.Wait()
		require.NoError(t, first)
		require.NoError(t, third, "nobody waits for the holder of the key")
		shutdown(t, bus)
	})
}

// Most events settle before their publisher has begun to wait, and he is told of what was
// held and what died all the same.
func TestD7_WhatSettlesBeforeTheWaitIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithObserver(eventbus.Observer{
			Accepted: func(eventbus.Event) { synctest.Wait() }, // the wait begins after that
		}))
		s := mustSubscribe(t, bus, "x", ok, eventbus.Named("s"), eventbus.HoldCapacity(1))
		mustSubscribe(t, bus, "x", ok)
		require.NoError(t, s.Pause())
		r, err := bus.PublishAndWait(t.Context(), "x", nil)
		require.NoError(t, err)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 1, Held: []string{"s"}}, r)
		r, err = bus.PublishAndWait(t.Context(), "x", nil) // there is no room for it
		l := oneLetter(t, bus)
		require.Equal(t, eventbus.Result{ID: r.ID, Outcome: eventbus.Handled, Attempts: 1, Letters: []eventbus.LetterID{l.ID}}, r)
		var died *eventbus.DeliveryError
		require.ErrorAs(t, err, &died)
		require.Equal(t, []eventbus.DeadLetter{l}, died.Letters)
		require.NoError(t, s.Resume())
		shutdown(t, bus)
	})
}

// Whoever waits is told of his own event, however others end.
func TestD7_EveryWaitHasItsOwnResult(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "{handled,both}", ok)
	mustSubscribe(t, bus, "{dead,both}", failing(eventbus.Permanent(errors.New("bad"))))
	mustSubscribe(t, bus, "asks", func(ctx context.Context, _ eventbus.Event) error {
		r, err := bus.PublishAndWait(ctx, "handled", nil)
		if r.Outcome != eventbus.Handled {
			err = fmt.Errorf("it is %s: %w", r.Outcome, err)
		}
		return err
	})
	held := mustSubscribe(t, bus, "held", ok, eventbus.Named("held"))
	require.NoError(t, held.Pause())
	type result struct {
		outcome       eventbus.Outcome
		attempts      int
		letters, held int
	}
	want := map[string]result{
		"handled": {eventbus.Handled, 1, 0, 0},
		"asks":    {eventbus.Handled, 1, 0, 0},
		"nobody":  {eventbus.Unrouted, 0, 0, 0},
		"held":    {eventbus.Held, 0, 0, 1},
		"dead":    {eventbus.DeadLettered, 1, 1, 0},
		"both":    {eventbus.DeadLettered, 1, 1, 0},
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				for eventType, want := range want {
					r, err := bus.PublishAndWait(t.Context(), eventType, nil)
					assert.Equal(t, want, result{r.Outcome, r.Attempts, len(r.Letters), len(r.Held)}, eventType)
					assert.Equal(t, want.letters > 0, err != nil, eventType)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, held.Resume())
	shutdown(t, bus)
}
