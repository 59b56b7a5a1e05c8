package eventbus

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/lane"
)

// hookAhead has between called by workers that have taken something ahead, before the
// call that runs has ended. None of a worker's first calls is timed: nothing is taken ahead
// before or after one that is.
func hookAhead(b *Bus, between func(payload any)) {
	workers := b.workers()
	open, run := workers.Open, workers.Run
	workers.Open = func() *worker {
		w := open()
		w.called = 0
		return w
	}
	workers.Run = func(w *worker, next func(*opening) bool) {
		run(w, func(place *opening) bool {
			if !next(place) {
				return false
			}
			between(place.payload)
			return true
		})
	}
	b.lanes = lane.New(workers)
	b.store.(*memory).lanes = b.lanes
}

// The watch gives up a call when its handler has returned, and its worker has taken the
// next event already. That is not lost, whatever it is: somebody else runs it.
func TestF1_WhatIsTakenAheadOfAnOverrunRunsElsewhere(t *testing.T) {
	for name, publish := range map[string]func(t *testing.T, b *Bus){
		"a plain event": func(t *testing.T, b *Bus) {
			_, err := b.Publish(t.Context(), "order.placed", 3)
			require.NoError(t, err)
		},
		"an event that is waited for": func(t *testing.T, b *Bus) {
			go func() {
				r, err := b.PublishAndWait(t.Context(), "order.placed", 3)
				assert.NoError(t, err)
				assert.Equal(t, Handled, r.Outcome)
			}()
		},
		"a replay": func(t *testing.T, b *Bus) {
			page, err := b.DLQ().List(t.Context(), LetterQuery{})
			require.NoError(t, err)
			require.Len(t, page.Letters, 1)
			require.NoError(t, b.DLQ().Replay(t.Context(), page.Letters[0].ID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := New(WithConcurrency(1), WithTimeout(10*time.Second), WithRetry(MaxRetries(2), BaseDelay(time.Second), NoJitter))
				require.NoError(t, err)
				overran := 0
				hookAhead(b, func(payload any) {
					if number, is := payload.(int); is && number < 3 || overran > 0 {
						return
					}
					overran++
					time.Sleep(11 * time.Second)
				})
				release := make(chan struct{})
				ran := make(map[int]int)
				_, err = b.Subscribe("order.*", func(_ context.Context, e Event) error {
					number := e.Payload.(int)
					if ran[number]++; number == 0 {
						<-release
					}
					return nil
				})
				require.NoError(t, err)
				_, err = b.Subscribe("bill.*", func(_ context.Context, e Event) error {
					if ran[3]++; ran[3] == 1 {
						return Permanent(context.Canceled)
					}
					return nil
				})
				require.NoError(t, err)
				require.NoError(t, b.Start(t.Context()))
				if name == "a replay" {
					_, err = b.Publish(t.Context(), "bill.sent", 3)
					require.NoError(t, err)
					synctest.Wait()
				}
				for i := range 3 {
					_, err = b.Publish(t.Context(), "order.placed", i)
					require.NoError(t, err)
				}
				synctest.Wait()
				publish(t, b)
				synctest.Wait()
				close(release)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, 1, overran)
				require.Equal(t, 2, ran[2], "its handler has overrun, and it is retried")
				l := b.Metrics().Ledger
				require.True(t, l.Balanced(), "%+v", l)
				require.Zero(t, l.Queued+l.Running+l.Waiting+l.Held)
				require.Empty(t, b.Abandoned())
				require.NoError(t, b.Shutdown(t.Context()))
				if name == "a replay" {
					ran[3]-- // its first dispatch
				}
				require.Equal(t, 1, ran[3])
			})
		})
	}
}

// A cut gives up a call when its handler has returned, and its worker has taken the next
// event already.
func TestS2_WhatIsTakenAheadOfACutIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 8
		b, err := New(WithConcurrency(1))
		require.NoError(t, err)
		ended := make(chan error, 1)
		hookAhead(b, func(payload any) {
			if payload != 5 {
				return
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			go func() { ended <- b.Shutdown(ctx) }()
			time.Sleep(time.Second)
		})
		handled := 0
		_, err = b.Subscribe("order.*", func(context.Context, Event) error { handled++; return nil })
		require.NoError(t, err)
		for i := range n {
			_, err = b.Publish(t.Context(), "order.placed", i)
			require.NoError(t, err)
		}
		require.NoError(t, b.Start(t.Context()))
		require.Error(t, <-ended)
		synctest.Wait()
		require.Equal(t, 5, handled)
		l := b.Metrics().Ledger
		require.True(t, l.Balanced(), "%+v", l)
		require.EqualValues(t, n-4, l.DeadLettered, "what was handled too late, and what was not handled")
		require.EqualValues(t, 4, l.Handled)
	})
}

// Who asks for a context's end when its handler has returned, and the next event has been
// taken, learns of it before that one's handler begins.
func TestE4_AskedWhileTheNextEventIsTakenAContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(WithConcurrency(1))
		require.NoError(t, err)
		var running *call
		var done <-chan struct{}
		asked := 0
		hookAhead(b, func(any) {
			done = running.Done()
			require.NoError(t, running.Err())
			asked++
		})
		_, err = b.Subscribe("order.*", func(ctx context.Context, e Event) error {
			if running != nil {
				require.ErrorIs(t, running.Err(), context.Canceled)
				_, is := FromContext(running)
				require.False(t, is)
			}
			if done != nil {
				<-done
			}
			running = ctx.(*call)
			return nil
		})
		require.NoError(t, err)
		for i := range 10 {
			_, err = b.Publish(context.Background(), "order.placed", i)
			require.NoError(t, err)
		}
		require.NoError(t, b.Start(t.Context()))
		synctest.Wait()
		require.Positive(t, asked)
		require.EqualValues(t, 10, b.Metrics().Ledger.Handled)
		require.NoError(t, b.Shutdown(t.Context()))
	})
}

// C4: what a circuit has met before it was reset is not in its new window, also if that
// happens while the next event is taken.
func TestC4_AResetWhileTheNextEventIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(WithConcurrency(1), WithRetry(MaxRetries(0)), WithCircuit(MinEvents(4)))
		require.NoError(t, err)
		var s *Subscription
		resets := 0
		hookAhead(b, func(any) {
			if resets++; resets == 1 {
				require.NoError(t, s.Trip())
				require.NoError(t, s.Reset())
			}
		})
		s, err = b.Subscribe("a", func(_ context.Context, e Event) error {
			if e.Payload == "fail" {
				return context.Canceled
			}
			return nil
		})
		require.NoError(t, err)
		_, err = b.Subscribe("b", func(context.Context, Event) error { return nil })
		require.NoError(t, err)
		for _, eventType := range []string{"a", "b", "b", "b"} {
			_, err = b.Publish(t.Context(), eventType, nil)
			require.NoError(t, err)
		}
		require.NoError(t, b.Start(t.Context()))
		synctest.Wait()
		require.Positive(t, resets)
		state := func() CircuitState { return b.Metrics().Subscriptions[0].Circuit }
		for range 3 {
			require.Equal(t, CircuitClosed, state())
			_, err = b.PublishAndWait(t.Context(), "a", "fail")
			require.Error(t, err)
		}
		require.Equal(t, CircuitClosed, state(), "3 events since the reset")
		_, err = b.PublishAndWait(t.Context(), "a", "fail")
		require.Error(t, err)
		require.Equal(t, CircuitOpen, state())
		require.NoError(t, b.Shutdown(t.Context()))
	})
}

// An event waits for the one before it with its key, also if it comes to a worker that has
// not ended the call before.
func TestD5_WhatIsTakenAheadWaitsForItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(WithConcurrency(1), WithRetry(MaxRetries(1), BaseDelay(time.Second), NoJitter))
		require.NoError(t, err)
		ahead := 0
		hookAhead(b, func(any) { ahead++ })
		var mu sync.Mutex
		var got []any // guarded by mu
		handled := func() []any {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(got)
		}
		// Its own subscription fails: nothing is taken ahead where a circuit has met a failure.
		_, err = b.Subscribe("fails", func(_ context.Context, e Event) error {
			mu.Lock()
			defer mu.Unlock()
			if got = append(got, e.Payload); len(got) == 1 {
				return context.Canceled
			}
			return nil
		})
		require.NoError(t, err)
		_, err = b.Subscribe("order.*", func(_ context.Context, e Event) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, e.Payload)
			return nil
		})
		require.NoError(t, err)
		for _, e := range []Event{
			{Type: "fails", Key: "k", Payload: 1},
			{Type: "order.placed", Payload: 2},
			{Type: "order.placed", Payload: 3},
			{Type: "order.placed", Payload: 4},
			{Type: "order.placed", Payload: 5},
			{Type: "order.placed", Key: "k", Payload: 6},
			{Type: "order.placed", Payload: 7},
			{Type: "order.placed", Key: "k", Payload: 8},
		} {
			_, err = b.Publish(t.Context(), e.Type, e.Payload, Key(e.Key))
			require.NoError(t, err)
		}
		require.NoError(t, b.Start(t.Context()))
		synctest.Wait()
		require.Equal(t, []any{1, 2, 3, 4, 5, 7}, handled())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []any{1, 2, 3, 4, 5, 7, 1, 6, 8}, handled())
		require.NoError(t, b.Shutdown(t.Context()))
		require.Positive(t, ahead)
	})
}

// An event that has been handled is let go of, also if what was taken ahead of its end has
// been put back.
func TestE4_AHandledEventIsLetGoThoughTheNextIsPutBack(t *testing.T) {
	b, err := New(WithConcurrency(1))
	require.NoError(t, err)
	var s *Subscription
	taken := 0
	hookAhead(b, func(any) {
		if taken++; taken%2 == 0 { // it is in the first place, and the one before in the second
			require.NoError(t, s.Trip())
			require.NoError(t, s.Reset())
		}
	})
	in, release := make(chan struct{}), make(chan struct{})
	s, err = b.Subscribe("order.*", func(context.Context, Event) error { return nil })
	require.NoError(t, err)
	_, err = b.Subscribe("last", func(context.Context, Event) error {
		close(in)
		<-release
		return nil
	})
	require.NoError(t, err)
	var payloads []weak.Pointer[[4096]byte]
	for range 2 {
		payload := new([4096]byte)
		payloads = append(payloads, weak.Make(payload))
		_, err = b.Publish(t.Context(), "order.placed", payload)
		require.NoError(t, err)
	}
	_, err = b.Publish(t.Context(), "last", nil)
	require.NoError(t, err)
	require.NoError(t, b.Start(t.Context()))
	<-in
	for range 3 {
		runtime.GC()
	}
	for i, p := range payloads {
		require.Nil(t, p.Value(), i)
	}
	close(release)
	require.NoError(t, b.Shutdown(context.Background()))
}
