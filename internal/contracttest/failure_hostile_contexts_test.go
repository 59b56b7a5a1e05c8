package contracttest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// hostileContext calls asked, which may panic or end the goroutine, before each of its methods.
type hostileContext struct {
	context.Context
	asked func(method string)
}

func (c hostileContext) Done() <-chan struct{} {
	c.asked("Done")
	return c.Context.Done()
}

func (c hostileContext) Err() error {
	c.asked("Err")
	return c.Context.Err()
}

func (c hostileContext) Value(key any) any {
	c.asked("Value")
	return c.Context.Value(key)
}

// hostileEndings are the ways in which user code leaves the bus without returning.
var hostileEndings = map[string]func(){
	"panic": func() { panic("hostile") },
	"exit":  runtime.Goexit,
}

// A context may panic, or end the goroutine of Publish, at each method that the bus calls, also
// when Publish waits for room and the context ends. Publish has then accepted nothing, and keeps no
// lock, no place and no id.
func TestF7_AContextThatPanicsInPublish(t *testing.T) {
	id := eventbus.ID(eventbus.EventID{1})
	calls := map[string]func(*eventbus.Bus, context.Context){
		"Publish": func(bus *eventbus.Bus, ctx context.Context) { _, _ = bus.Publish(ctx, "x", nil, id) },
		"PublishBatch": func(bus *eventbus.Bus, ctx context.Context) { // Shutdown waits for a caller with a scheduled event
			_, _ = bus.PublishBatch(ctx, []eventbus.Publication{
				{Type: "x", Options: []eventbus.PublishOption{eventbus.After(time.Hour)}},
				{Type: "x", Options: []eventbus.PublishOption{id}},
			})
		},
		"PublishAndWait": func(bus *eventbus.Bus, ctx context.Context) { _, _ = bus.PublishAndWait(ctx, "x", nil, id) },
	}
	for _, full := range []string{"queue", "line"} {
		for name, call := range calls {
			for _, method := range []string{"Done", "Err", "Err, ended", "Value", "Value, ended"} {
				for ending, leave := range hostileEndings {
					t.Run(full+", "+name+", "+method+", "+ending, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							leaveFullBus(t, full, func(bus *eventbus.Bus, parent context.Context) {
								call(bus, hostileContext{parent, func(asked string) {
									if parent.Err() != nil {
										asked += ", ended"
									}
									if asked == method {
										leave()
									}
								}})
							})
						})
					})
				}
			}
		}
	}
}

// leaveFullBus runs a call that does not return, while a queue or a line is full and other
// publishers wait before and behind the call. Its context ends meanwhile. The bus must then handle
// every other event, also one with the id that the call used.
func leaveFullBus(t *testing.T, full string, call func(*eventbus.Bus, context.Context)) {
	t.Helper()
	busOptions := []eventbus.Option{eventbus.WithTimeout(time.Hour)}
	options := []eventbus.SubscribeOption{eventbus.Concurrency(1)}
	if full == "queue" {
		busOptions = append(busOptions, eventbus.WithConcurrency(1), eventbus.WithQueueCapacity(2))
	} else {
		options = append(options, eventbus.LineCapacity(2))
	}
	bus, _ := startBus(t, busOptions...)
	var handled journal[any]
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	defer release()
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
		handled.add(e.Payload)
		<-released
		return nil
	}, options...)
	for i := range 3 { // one runs, the others take the only places
		mustPublish(t, bus, "x", i)
		settleWorkers()
	}
	var others sync.WaitGroup
	var published journal[error]
	publish := func(payload any) {
		others.Go(func() {
			_, err := bus.Publish(context.Background(), "x", payload)
			published.add(err)
		})
		synctest.Wait()
	}
	publish("before")
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned := false
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer func() { _ = recover() }()
		call(bus, parent)
		returned = true
	}()
	synctest.Wait()
	publish("behind")
	cancel()
	<-left
	require.False(t, returned, "the context was not asked")
	require.EqualValues(t, 3, bus.Metrics().Ledger.Accepted)
	release()
	others.Wait()
	require.Equal(t, []error{nil, nil}, published.all())
	mustPublish(t, bus, "x", "again", eventbus.ID(eventbus.EventID{1}))
	shutdown(t, bus)
	require.ElementsMatch(t, []any{0, 1, 2, "before", "behind", "again"}, handled.all())
	require.Zero(t, bus.Metrics().QueueDepth)
	require.Empty(t, letters(t, bus))
}

// A handler that asks its context for a value runs the publisher's Value.
func TestF7_AContextThatPanicsInAHandler(t *testing.T) {
	for ending, leave := range hostileEndings {
		t.Run(ending, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := newBus(t, oneAttempt, eventbus.WithContextFrom(itself))
				published := false
				mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
					_ = ctx.Value(key("user"))
					return nil
				}, eventbus.Concurrency(1))
				_, err := bus.Publish(hostileContext{t.Context(), func(method string) {
					if published && method == "Value" {
						leave()
					}
				}}, "x", "hostile")
				require.NoError(t, err)
				published = true // only now a handler runs
				require.NoError(t, bus.Start(t.Context()))
				settleWorkers()
				l := oneLetter(t, bus)
				require.Equal(t, eventbus.ReasonExhausted, l.Reason)
				require.Equal(t, "hostile", l.Event.Payload)
				_, err = bus.PublishAndWait(t.Context(), "x", nil)
				require.NoError(t, err)
				shutdown(t, bus)
			})
		})
	}
}

// contradiction is a context that has ended and has no error, or has one only the first time.
type contradiction struct {
	context.Context
	done  chan struct{}
	asked *atomic.Int32 // nil: never an error
}

func endedWithoutError() context.Context {
	c := contradiction{context.Background(), make(chan struct{}), nil}
	close(c.done)
	return c
}

func (c contradiction) Done() <-chan struct{} { return c.done }

func (c contradiction) Err() error {
	if c.asked != nil && c.asked.Add(1) == 1 {
		return context.Canceled
	}
	return nil
}

// A context without an error has ended all the same: nothing is accepted that had to wait.
func TestF7_AContextThatContradictsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithQueueCapacity(1), eventbus.WithConcurrency(1))
		release := make(chan struct{})
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { <-release; return nil })
		mustPublish(t, bus, "x", nil)
		synctest.Wait()
		mustPublish(t, bus, "x", nil)
		for range 3 {
			_, err := bus.Publish(endedWithoutError(), "x", nil)
			require.ErrorIs(t, err, context.Canceled)
			_, err = bus.PublishAndWait(endedWithoutError(), "x", nil)
			require.ErrorIs(t, err, context.Canceled)
		}
		_, err := bus.Publish(contradiction{context.Background(), make(chan struct{}), new(atomic.Int32)}, "x", nil)
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 2, bus.Metrics().Ledger.Accepted)
		close(release)
		shutdown(t, bus)
	})
}

func TestF7_AWaitEndsWithAContextThatContradictsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		release := make(chan struct{})
		mustSubscribe(t, bus, "*", func(context.Context, eventbus.Event) error { <-release; return nil })
		_, err := bus.PublishAndWait(endedWithoutError(), "x", nil)
		require.ErrorIs(t, err, context.Canceled)
		close(release)
		shutdown(t, bus)
	})
}
