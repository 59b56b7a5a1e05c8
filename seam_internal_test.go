package eventbus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/deadline"
	"github.com/surebus/eventbus/internal/lane"
)

// spyStore is the store in memory, and notes what passes the seam.
type spyStore struct {
	*memory
	seen   []string
	refuse error       // of reserve
	left   []*dispatch // for claim
}

func (s *spyStore) reserve(ctx context.Context, to *targets, inside bool) (*opening, error) {
	if s.refuse != nil {
		return nil, s.refuse
	}
	return s.memory.reserve(ctx, to, inside)
}

func (s *spyStore) commit(o *opening) {
	s.seen = append(s.seen, "commit "+o.to.eventType)
	s.memory.commit(o)
}

func (s *spyStore) claim(ctx context.Context) ([]*dispatch, error) {
	s.seen = append(s.seen, "claim")
	_, err := s.memory.claim(ctx)
	return s.left, err
}

func (s *spyStore) settle(d *dispatch, what settlement) *DeadLetter {
	note := fmt.Sprintf("settle %s %s", d.to.eventType, what.outcome)
	if what.outcome == Waiting {
		note += fmt.Sprintf(" at subscription %d", d.next)
	}
	s.seen = append(s.seen, note)
	return s.memory.settle(d, what)
}

func newSpied(t *testing.T, opts ...Option) (*Bus, *spyStore) {
	t.Helper()
	b, err := New(append([]Option{WithRetry(MaxRetries(1), NoJitter)}, opts...)...)
	require.NoError(t, err)
	s := &spyStore{memory: b.store.(*memory)}
	b.store = s
	return b, s
}

// Whatever becomes of an event passes the seam where a durable store will be.
func TestA8_EverythingPassesTheSeam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newSpied(t)
		ctx := t.Context()
		boom := errors.New("boom")
		fails := 1
		subscribe := func(pattern string, h Handler, opts ...SubscribeOption) {
			_, err := b.Subscribe(pattern, h, opts...)
			require.NoError(t, err)
		}
		subscribe("{ok,flaky}", func(context.Context, Event) error { return nil })
		subscribe("flaky", func(context.Context, Event) error {
			if fails--; fails >= 0 {
				return boom
			}
			return nil
		})
		subscribe("dead", func(context.Context, Event) error { return boom }, Circuit(MinEvents(1)), DropWhenOpen)
		require.NoError(t, b.Start(ctx))
		for _, eventType := range []string{"ok", "flaky", "dead", "dead", "nobody"} {
			_, _ = b.PublishAndWait(ctx, eventType, nil)
		}
		page, err := b.DLQ().List(ctx, LetterQuery{})
		require.NoError(t, err)
		require.Empty(t, page.Letters, "the circuit was open at the second attempt, and drops")
		require.NoError(t, b.Shutdown(ctx))
		require.Equal(t, []string{
			"claim",
			"commit ok", "settle ok handled",
			"commit flaky", "settle flaky waiting at subscription 1", "settle flaky handled",
			"commit dead", "settle dead waiting at subscription 0", "settle dead dropped",
			"commit dead", "settle dead dropped",
			"settle nobody unrouted",
		}, s.seen)
	})
}

func TestA8_ALetterPassesTheSeam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newSpied(t)
		_, err := b.Subscribe("dead", func(context.Context, Event) error { return Permanent(errors.New("boom")) })
		require.NoError(t, err)
		require.NoError(t, b.Start(t.Context()))
		_, err = b.PublishAndWait(t.Context(), "dead", nil)
		var died *DeliveryError
		require.ErrorAs(t, err, &died)
		got, ok := s.get(died.Letters[0].ID)
		require.True(t, ok)
		require.Equal(t, ReasonPermanent, got.Reason)
		require.NoError(t, b.Shutdown(t.Context()))
		require.Equal(t, []string{"claim", "commit dead", "settle dead dead-lettered"}, s.seen)
	})
}

// A store that does not append accepts nothing.
func TestD7_WhatTheStoreRefusesIsNotAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newSpied(t)
		_, err := b.Subscribe("*", func(context.Context, Event) error { return nil })
		require.NoError(t, err)
		require.NoError(t, b.Start(t.Context()))
		full := errors.New("disk is full")
		for refusal, want := range map[error]error{full: full, lane.ErrFull: ErrQueueFull, lane.ErrClosed: ErrShutdown} {
			s.refuse = refusal
			_, err = b.Publish(t.Context(), "order.placed", nil)
			require.ErrorIs(t, err, want)
		}
		require.Equal(t, Ledger{}, b.Metrics().Ledger)
		require.Zero(t, b.Metrics().Types["order.placed"].Events)
		require.NoError(t, b.Shutdown(t.Context()))
	})
}

// What an earlier process has left goes on where it was.
func TestS1_StartTakesUpWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newSpied(t)
		var ran []string
		for _, name := range []string{"first", "second"} {
			_, err := b.Subscribe("a", func(ctx context.Context, e Event) error {
				d, _ := FromContext(ctx)
				ran = append(ran, fmt.Sprintf("%s attempt %d", name, d.Attempt))
				return nil
			}, Named(name))
			require.NoError(t, err)
		}
		s.left = []*dispatch{{
			opening: opening{id: b.ids.Next(time.Now().UnixMilli()), to: b.routes.Lookup("a"), wall: b.time.Now().Wall},
			attempt: 1,
			next:    1,
		}}
		require.NoError(t, b.Start(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"second attempt 2"}, ran)
		require.True(t, b.Metrics().Ledger.Balanced())
		require.NoError(t, b.Shutdown(t.Context()))
	})
}

// A dispatch that is lost between two places is in no term of the ledger.
func TestO4_ALostEventUnbalancesTheBooks(t *testing.T) {
	for name, lose := range map[string]func(*Bus, *worker){
		"by a worker": func(b *Bus, w *worker) { w.taken() },
		"in a wait": func(b *Bus, w *worker) {
			b.store.settle(w.taken().moveOut(), settlement{outcome: Waiting})
		},
		"after its handlers": func(b *Bus, w *worker) {
			d := w.taken()
			d.attempt++
			c := b.begin(w, w.visiting(d), d.to.subscriptions[0], gateGeneration)
			_, err := b.handle(w, &c, d.to.subscriptions[0])
			b.conclude(w, c, err, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _ := newSpied(t)
				_, err := b.Subscribe("a", func(context.Context, Event) error { return nil })
				require.NoError(t, err)
				for range 3 {
					_, err = b.Publish(t.Context(), "a", nil)
					require.NoError(t, err)
				}
				require.True(t, b.Metrics().Ledger.Balanced())
				w := b.openWorker()
				require.True(t, b.lanes.TryTake(&w.places[0].opening))
				lose(b, w)
				b.lanes.Finish()
				b.closeWorker(w)
				require.False(t, b.Metrics().Ledger.Balanced())
				require.NoError(t, b.Start(t.Context()))
				synctest.Wait()
				require.False(t, b.Metrics().Ledger.Balanced(), "the others have been handled")
				b.ledger.handled.Add(1) // or Shutdown would wait for it
				require.NoError(t, b.Shutdown(t.Context()))
			})
		})
	}
}

// What there is of for each run of a handler, for each event that is queued, for each
// that is waited for, and for each that waits for a retry, is small: it is most of what the bus costs.
func TestD7_SizesOfWhatThereIsMuchOf(t *testing.T) {
	require.LessOrEqual(t, reflect.TypeFor[call]().Size(), uintptr(24))
	require.LessOrEqual(t, reflect.TypeFor[opening]().Size(), uintptr(80))
	require.LessOrEqual(t, reflect.TypeFor[waiter]().Size(), uintptr(96))
	require.LessOrEqual(t, reflect.TypeFor[outlier]().Size(), uintptr(192))
}

// What handlers ask of their contexts is found at once, however many subscriptions
// the event has.
func TestE4_WhatIsAskedIsSoonFound(t *testing.T) {
	b, err := New()
	require.NoError(t, err)
	var calls []*call
	for range 100 {
		_, err := b.Subscribe("a", func(ctx context.Context, _ Event) error {
			_ = ctx.Done()
			calls = append(calls, callFrom(ctx))
			return nil
		})
		require.NoError(t, err)
	}
	require.NoError(t, b.Start(t.Context()))
	_, err = b.PublishAndWait(t.Context(), "a", nil)
	require.NoError(t, err)
	require.NoError(t, b.Shutdown(context.Background()))
	require.Len(t, calls, 100)
	for _, c := range calls {
		require.NotNil(t, c.cancellation())
		require.Nil(t, c.asked.Load().before)
	}
}

// Contexts that handlers have kept can be asked long after: what one is asked is found
// among that of few others.
func TestE4_WhatIsAskedLateIsSoonFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New()
		require.NoError(t, err)
		var calls []*call
		_, err = b.Subscribe("a", func(ctx context.Context, _ Event) error {
			calls = append(calls, callFrom(ctx))
			return nil
		})
		require.NoError(t, err)
		for range 5000 {
			_, err := b.Publish(context.Background(), "a", nil)
			require.NoError(t, err)
		}
		require.NoError(t, b.Start(t.Context()))
		synctest.Wait()
		require.Len(t, calls, 5000)
		for _, c := range calls {
			<-c.Done()
			require.ErrorIs(t, c.Err(), context.Canceled)
		}
		for _, c := range calls {
			others := 0
			for a := c.asked.Load(); a != nil; a = a.before {
				others++
			}
			require.LessOrEqual(t, others, visitCalls+workerCalls)
		}
		require.NoError(t, b.Shutdown(t.Context()))
	})
}

// Who asks for a context's end between the last look and the step that ends it learns
// of it: here, while the step waits for the key's line at the next subscription.
func TestE4_AskedAtTheLastMomentAContextEnds(t *testing.T) {
	b, err := New()
	require.NoError(t, err)
	var handled atomic.Int32
	second := make(chan *call, 1)
	var subscriptions []*Subscription
	for i := range 4 {
		s, err := b.Subscribe("a", func(ctx context.Context, e Event) error {
			if i == 2 && e.Key != "" {
				second <- callFrom(ctx)
			}
			handled.Add(1)
			return nil
		})
		require.NoError(t, err)
		subscriptions = append(subscriptions, s)
	}
	require.NoError(t, b.Start(t.Context()))
	last := &subscriptions[3].holding
	last.keyed.Store(1)
	last.mu.Lock()
	_, err = b.Publish(t.Context(), "a", nil, Key("k"))
	require.NoError(t, err)
	c := <-second
	for range 1000 {
		runtime.Gosched() // the handler returns, and the step begins
	}
	done := c.Done()
	last.mu.Unlock()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "it has not ended")
	}
	last.keyed.Store(0)
	require.NoError(t, b.Shutdown(t.Context()))
	require.EqualValues(t, 4, handled.Load())
}

// The gate word of a call that can still be given up stays when the next one is made.
func TestC4_TheNextCallLeavesThePassOfTheOneBefore(t *testing.T) {
	w := &worker{slot: new(deadline.Slot[call])}
	at := &visit{}
	for i := range int32(100) {
		c := w.newCall(at, i, w.called)
		pass := c.pass()
		w.newCall(at, -1, ^uint64(0))
		require.Equal(t, pass, c.pass())
		require.Equal(t, i, c.position())
	}
}

// A worker that has ended, or has been given up, keeps nothing for those who keep a context
// of it, but what it ran then, which is somebody else's.
func TestE4_AClosedWorkerKeepsNoCalls(t *testing.T) {
	for _, lost := range []bool{false, true} {
		b, err := New()
		require.NoError(t, err)
		s, err := b.Subscribe("a", func(context.Context, Event) error { return nil })
		require.NoError(t, err)
		_, err = b.Publish(context.WithValue(t.Context(), callKey{}, 1), "a", nil, Metadata("k", "v"))
		require.NoError(t, err)
		w := b.openWorker()
		require.True(t, b.lanes.TryTake(&w.places[0].opening))
		d := w.taken()
		w.putEvent(d, b.time)
		w.to, w.lost = d.to, lost
		c := b.begin(w, w.visiting(d), s, gateGeneration)
		require.True(t, w.slot.End(c.number))
		b.closeWorker(w)
		left := *w
		left.bus, left.slot, left.called, left.renewed, left.wall = nil, nil, 0, 0, 0
		if lost {
			require.NotNil(t, left.places[0].to)
			left.places, left.lost = [2]dispatch{}, false
		}
		require.Equal(t, worker{}, left)
		require.Nil(t, b.watch.StopAll())
	}
}

// Calls to the subscribers of an event that was published with another handler's context
// share an allocation with nothing but each other, and leave the others' as it was.
func TestE4_LinkedCallsAreApart(t *testing.T) {
	w := &worker{slot: new(deadline.Slot[call])}
	targets := &targets{subscriptions: make([]*Subscription, 8)}
	visitTo := func(values context.Context) *visit {
		return &visit{worker: w, dispatch: &dispatch{opening: opening{to: targets}}, values: values}
	}
	plain := visitTo(nil)
	seen := make(map[*batch]*visit)
	whole := 0
	for range 100 {
		for _, at := range []*visit{plain, visitTo(&linkedValues{}), visitTo(&linkedValues{}), plain} {
			for i := range int32(8) {
				c := w.newCall(at, i, 0)
				require.Same(t, c, &w.batch.Calls[c.number-w.batch.First])
				require.Same(t, at, c.visit)
				if of := seen[w.batch]; of != nil {
					require.Same(t, of, at)
				} else if seen[w.batch] = at; len(w.batch.Calls) == workerCalls {
					whole++
				}
			}
			if at != plain {
				require.Len(t, w.batch.Calls, 14, "for eight")
			}
		}
	}
	require.InDelta(t, 100*16/workerCalls, whole, 3, "nothing is left over")
}

// Calls and what the watch has to know of them fill an allocation.
func TestE4_BatchesFillTheirAllocations(t *testing.T) {
	for calls, size := range map[int]int{1: 48, 6: 128, 14: 256, workerCalls: 512} {
		require.Len(t, newBatch(calls).Calls, calls)
		require.EqualValues(t, size, unsafe.Sizeof(batch{})+uintptr(calls)*unsafe.Sizeof(call{}))
	}
	require.Len(t, newBatch(1000).Calls, workerCalls)
}

// Nothing is ever decided about the success of one that has no circuit.
func TestC1_WithoutACircuitSuccessesAreQuietForGood(t *testing.T) {
	b, err := New(WithCircuit(NoCircuit()))
	require.NoError(t, err)
	s, err := b.Subscribe("a", func(context.Context, Event) error { return nil })
	require.NoError(t, err)
	require.True(t, s.circuit.quiet(gateGeneration, int64(1000*time.Hour)))
}
