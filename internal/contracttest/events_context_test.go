package contracttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/surebus/eventbus"
)

// itself passes all values of a context on, for WithContextFrom.
func itself(ctx context.Context) context.Context { return ctx }

// What an event is, and what its context says, is its own, whatever the events before and
// after it are.
func TestE4_EachOfManyEventsHasItsOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		const n = 500
		q := newQueue(t, eventbus.WithContextFrom(itself))
		var want []eventbus.Event
		var before context.Context
		seen := 0
		for _, pattern := range []string{"*.placed", "order.*", "{stock,order}.*"} {
			mustSubscribe(t, q.bus, pattern, func(ctx context.Context, e eventbus.Event) error {
				i := e.Payload.(int)
				require.NoError(t, ctx.Err())
				require.Equal(t, want[i].ID, e.ID)
				require.Equal(t, want[i].Type, e.Type)
				require.Equal(t, want[i].Key, e.Key)
				require.WithinDuration(t, want[i].Time, e.Time, time.Millisecond)
				note, _ := e.Metadata.Lookup("note")
				require.Equal(t, i%5 == 2, note == fmt.Sprint(i))
				if i%7 == 3 {
					require.Equal(t, i, ctx.Value(key{}))
				} else {
					require.Nil(t, ctx.Value(key{}))
				}
				if i%6 == 0 { // most are asked nothing while they run
					d, running := eventbus.FromContext(ctx)
					require.True(t, running)
					require.Equal(t, e, d.Event)
					require.Equal(t, pattern, d.Subscription)
					require.Equal(t, 1, d.Attempt)
				}
				if before != nil {
					require.ErrorIs(t, before.Err(), context.Canceled)
					<-before.Done()
				}
				before = nil
				if i%4 != 1 {
					before = ctx
				}
				seen++
				return nil
			}, eventbus.Named(pattern))
		}
		handlers := 0
		for i := range n {
			ctx := t.Context()
			var opts []eventbus.PublishOption
			e := eventbus.Event{Type: []string{"order.placed", "stock.placed", "order.shipped", "bill.placed"}[i/11%4]}
			handlers += []int{3, 2, 2, 1}[i/11%4]
			if i%5 == 2 {
				opts = append(opts, eventbus.Metadata("note", fmt.Sprint(i)))
			}
			if i%7 == 3 {
				ctx = context.WithValue(ctx, key{}, i)
			}
			if i%13 == 6 {
				e.Key = fmt.Sprint(i % 2)
				opts = append(opts, eventbus.Key(e.Key))
			}
			if i%17 == 9 {
				opts = append(opts, eventbus.ID(eventbus.NewEventID()))
			}
			if i%3 == 2 {
				time.Sleep(5 * time.Millisecond)
			}
			e.Time = time.Now()
			var err error
			e.ID, err = q.bus.Publish(ctx, e.Type, i, opts...)
			require.NoError(t, err)
			want = append(want, e)
		}
		require.NoError(t, q.bus.Start(t.Context()))
		synctest.Wait()
		require.Equal(t, handlers, seen)
		shutdown(t, q.bus)
	})
}

// An event that has been handled is let go of, also if the handler of the next one never
// returns, or ends its goroutine and has its context kept.
func TestE4_AHandledEventIsLetGo(t *testing.T) {
	for name, end := range map[string]func(release chan struct{}){
		"the next one hangs": func(release chan struct{}) { <-release },
		"the next one exits": func(chan struct{}) { runtime.Goexit() },
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := newBus(t, eventbus.WithConcurrency(1), eventbus.WithRetry(retry(0, 0)), eventbus.WithLogger(zap.NewNop()))
			in, release := make(chan struct{}), make(chan struct{})
			var kept context.Context
			mustSubscribe(t, bus, "**", func(ctx context.Context, e eventbus.Event) error {
				if e.Type == "last" {
					kept = ctx
					close(in)
					end(release)
				}
				return nil
			})
			var payloads []weak.Pointer[[4096]byte]
			for range 8 { // more than one, because the bus measures only some calls
				payload := new([4096]byte)
				payloads = append(payloads, weak.Make(payload))
				mustPublish(t, bus, "order.placed", payload)
			}
			mustPublish(t, bus, "last", nil)
			require.NoError(t, bus.Start(t.Context()))
			<-in
			require.Zero(t, reachable(payloads), name)
			runtime.KeepAlive(kept)
			close(release)
			shutdown(t, bus)
		})
	}
}

// Two chains of handlers that publish with their contexts, of which one ends its
// goroutine each time: what a worker has run last in its other place is not kept by the
// contexts of the chains.
func TestE4_ChainsOfHandlersKeepLittle(t *testing.T) {
	bus, _ := newBus(t, eventbus.WithConcurrency(1), eventbus.WithCircuit(eventbus.NoCircuit()), eventbus.WithLogger(zap.NewNop()),
		eventbus.WithRetry(eventbus.MaxRetries(0)), eventbus.WithDeadLetterCapacity(1))
	const rounds, startsLate = 1500, 50
	type link struct {
		n       int
		payload *[4096]byte
	}
	type key struct{}
	var payloads []weak.Pointer[[4096]byte]
	next := func(n int) *link {
		payload := new([4096]byte)
		payloads = append(payloads, weak.Make(payload))
		return &link{n, payload}
	}
	publish := func(ctx context.Context, e eventbus.Event) {
		l := e.Payload.(*link)
		ctx = context.WithValue(ctx, key{}, l.n)
		if e.Type == "b" && l.n < startsLate { // so that the chains start afresh at different times
			ctx = t.Context()
		}
		if l.n < rounds {
			_, err := bus.Publish(ctx, e.Type, next(l.n+1))
			require.NoError(t, err)
		}
	}
	kept := make(chan int, 1)
	mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
		publish(ctx, e)
		return nil
	})
	mustSubscribe(t, bus, "b", func(ctx context.Context, e eventbus.Event) error {
		publish(ctx, e)
		if e.Payload.(*link).n < rounds {
			runtime.Goexit()
		}
		runtime.GC()
		runtime.GC()
		n := 0
		for _, p := range payloads {
			if p.Value() != nil {
				n++
			}
		}
		kept <- n
		return nil
	})
	mustPublish(t, bus, "a", next(0))
	mustPublish(t, bus, "b", next(0))
	require.NoError(t, bus.Start(t.Context()))
	require.Less(t, <-kept, rounds/2)
	shutdown(t, bus)
}

// The context's error, and its cause.
func TestE4_AnEndedContextSaysWhy(t *testing.T) {
	bus, _ := startBus(t)
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for name, call := range map[string]func() error{
		"Publish":        func() error { _, err := bus.Publish(ctx, "a", nil); return err },
		"PublishAndWait": func() error { _, err := bus.PublishAndWait(ctx, "a", nil); return err },
		"List":           func() error { _, err := bus.DLQ().List(ctx, eventbus.LetterQuery{}); return err },
		"Get":            func() error { _, err := bus.DLQ().Get(ctx, eventbus.LetterID{}); return err },
		"Replay":         func() error { return bus.DLQ().Replay(ctx, eventbus.LetterID{}) },
		"Purge":          func() error { return bus.DLQ().Purge(ctx, eventbus.LetterID{}) },
		"PurgeUntil":     func() error { _, err := bus.DLQ().PurgeUntil(ctx, time.Now()); return err },
		"PurgeMatching":  func() error { _, err := bus.DLQ().PurgeMatching(ctx, eventbus.LetterQuery{All: true}); return err },
		"ReplayMatching": func() error { _, err := bus.DLQ().ReplayMatching(ctx, eventbus.LetterQuery{All: true}); return err },
	} {
		err := call()
		require.ErrorIs(t, err, context.Canceled, name)
		require.ErrorIs(t, err, why, name)
	}
	_, ok := eventbus.FromContext(nil) //nolint:staticcheck // as a hostile user does
	require.False(t, ok)
	shutdown(t, bus)
}

func TestE4_ValuesReachTheHandlerAndCancellationDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithTimeout(time.Hour), eventbus.WithContextFrom(itself))
		var value any
		var errs []error
		var deadline time.Time
		began := make(chan struct{})
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			close(began)
			time.Sleep(time.Minute) // the publisher's context ends meanwhile
			value = ctx.Value(key("user"))
			deadline, _ = ctx.Deadline()
			select {
			case <-ctx.Done():
				errs = append(errs, errors.New("done"))
			default:
			}
			errs = append(errs, ctx.Err(), context.Cause(ctx))
			derived, cancel := context.WithCancel(ctx)
			errs = append(errs, derived.Err(), context.Cause(derived))
			cancel()
			return nil
		})
		ctx, cancel := context.WithTimeoutCause(context.WithValue(t.Context(), key("user"), "u-1"),
			time.Second, errors.New("the publisher's"))
		published := time.Now()
		_, err := bus.Publish(ctx, "x", nil)
		require.NoError(t, err)
		<-began
		cancel()
		shutdown(t, bus)
		require.Equal(t, "u-1", value)
		require.Equal(t, []error{nil, nil, nil, nil}, errs)
		require.WithinDuration(t, published.Add(time.Hour), deadline, 5*time.Millisecond)
	})
}

func TestE4_AnEndedContextIsRefusedWithItsCause(t *testing.T) {
	bus, _ := startBus(t)
	mustSubscribe(t, bus, "x", ok)
	cause := errors.New("the cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for _, eventType := range []string{"x", "nobody.listens"} {
		_, err := bus.Publish(ctx, eventType, nil)
		require.ErrorIs(t, err, cause)
		_, err = bus.PublishAndWait(ctx, eventType, nil)
		require.ErrorIs(t, err, cause)
	}
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	_, err := bus.Publish(late, "x", nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, eventbus.Ledger{}, bus.Metrics().Ledger)
}

func TestE4_ANilContextIsRefused(t *testing.T) {
	bus, _ := startBus(t)
	var none context.Context
	_, err := bus.Publish(none, "x", nil)
	require.ErrorIs(t, err, eventbus.ErrNilContext)
	_, err = bus.PublishAndWait(none, "x", nil)
	require.ErrorIs(t, err, eventbus.ErrNilContext)
	require.ErrorIs(t, bus.Start(none), eventbus.ErrNilContext)
	require.ErrorIs(t, bus.Shutdown(none), eventbus.ErrNilContext)
	require.Equal(t, eventbus.Ledger{}, bus.Metrics().Ledger)
	_, err = bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err, "the bus was not shut down")
}

func TestE4_ValuesGoThroughChains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithContextFrom(itself))
		var seen []string
		var causes []error
		chain := func(next string, derive func(context.Context) context.Context) eventbus.Handler {
			return func(ctx context.Context, e eventbus.Event) error {
				seen = append(seen, fmt.Sprint(e.Type, ctx.Value(key("first")), ctx.Value(key("second"))))
				// What a context was derived from has ended by now.
				causes = append(causes, ctx.Err(), context.Cause(ctx))
				if next == "" {
					return nil
				}
				_, err := bus.Publish(derive(ctx), next, nil)
				return err
			}
		}
		same := func(ctx context.Context) context.Context { return ctx }
		second := func(ctx context.Context) context.Context { return context.WithValue(ctx, key("second"), "2") }
		mustSubscribe(t, bus, "a", chain("b", same))
		mustSubscribe(t, bus, "b", chain("c", second))
		mustSubscribe(t, bus, "c", chain("d", same))
		mustSubscribe(t, bus, "d", chain("", same))
		_, err := bus.Publish(context.WithValue(t.Context(), key("first"), "1"), "a", nil)
		require.NoError(t, err)
		shutdown(t, bus)
		require.Equal(t, []string{"a1<nil>", "b1<nil>", "c12", "d12"}, seen)
		require.Equal(t, make([]error, 8), causes)
	})
}

// Each link of a chain keeps the event before it alive, so a chain that goes on
// for ever must not be one.
func TestE4_AChainOfDerivedContextsIsBounded(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithContextFrom(itself))
	const links = 1000
	var payloads []weak.Pointer[[1024]byte]
	var afresh []int
	finished := make(chan struct{})
	alive := 0
	mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
		n := len(payloads)
		if n > 0 && ctx.Value(key("link")) == nil {
			afresh = append(afresh, n)
		}
		if n == links {
			runtime.GC()
			for _, p := range payloads {
				if p.Value() != nil {
					alive++
				}
			}
			close(finished)
			return nil
		}
		payload := new([1024]byte)
		payloads = append(payloads, weak.Make(payload))
		_, err := bus.Publish(context.WithValue(ctx, key("link"), n), "x", payload)
		return err
	})
	mustPublish(t, bus, "x", nil)
	<-finished
	shutdown(t, bus)
	require.NotEmpty(t, afresh)
	require.LessOrEqual(t, alive, 250)
	require.GreaterOrEqual(t, afresh[0], 100, "documented: a hundred links have the values")
}

// The handler's own context adds no link.
func TestE4_AnUnchangedContextCanBePassedOnForEver(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithContextFrom(itself))
	n, lost := 0, 0
	mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
		if ctx.Value(key("k")) != "v" {
			lost++
		}
		if n++; n == 1000 {
			return nil
		}
		_, err := bus.Publish(ctx, "x", nil)
		return err
	})
	_, err := bus.Publish(context.WithValue(t.Context(), key("k"), "v"), "x", nil)
	require.NoError(t, err)
	shutdown(t, bus)
	require.Equal(t, 1000, n)
	require.Zero(t, lost)
}

func TestE4_MetadataFromTheContext(t *testing.T) {
	from := func(ctx context.Context) map[string]string {
		trace, _ := ctx.Value(key("trace")).(string)
		if trace == "" {
			return nil
		}
		return map[string]string{"trace": trace, "given": "by the context"}
	}
	bus, _ := startBus(t, eventbus.WithMetadataFrom(from))
	var got []eventbus.EventMetadata
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
		got = append(got, e.Metadata)
		return nil
	})
	ctx := context.WithValue(t.Context(), key("trace"), "t-1")
	for _, opts := range [][]eventbus.PublishOption{nil, {eventbus.Metadata("given", "by Publish"), eventbus.Metadata("own", "")}} {
		_, err := bus.PublishAndWait(ctx, "x", nil, opts...)
		require.NoError(t, err)
	}
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err)

	require.Equal(t, "t-1", got[0].Get("trace"))
	require.Equal(t, "by the context", got[0].Get("given"))
	require.Equal(t, 2, got[0].Len())
	require.Equal(t, "t-1", got[1].Get("trace"))
	require.Equal(t, "by Publish", got[1].Get("given"))
	value, there := got[1].Lookup("own")
	require.True(t, there && value == "")
	require.Equal(t, 3, got[1].Len())
	require.True(t, got[2].IsZero())
	text, err := json.Marshal(got[1])
	require.NoError(t, err)
	require.JSONEq(t, `{"trace": "t-1", "given": "by Publish", "own": ""}`, string(text))
	shutdown(t, bus)
}

func TestE4_MetadataFromTheContextIsChecked(t *testing.T) {
	for _, bad := range []map[string]string{{"": "x"}, {"eventbus.x": ""}, {"k": "\xff"}} {
		bus, _ := startBus(t, eventbus.WithMetadataFrom(func(context.Context) map[string]string { return bad }))
		mustSubscribe(t, bus, "x", ok)
		_, err := bus.Publish(t.Context(), "x", nil)
		require.ErrorIs(t, err, eventbus.ErrInvalidEvent)
		require.Equal(t, eventbus.Ledger{}, bus.Metrics().Ledger)
	}
}

// An option may be used for many events, at once.
func TestE4_MetadataOfOneEventIsNotAnothers(t *testing.T) {
	bus, _ := startBus(t, eventbus.WithConcurrency(4))
	option := eventbus.Metadata("k", "v")
	var lengths journal[int]
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error {
		lengths.add(e.Metadata.Len())
		return nil
	})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			_, _ = bus.Publish(context.Background(), "x", nil, option, eventbus.Metadata(fmt.Sprint(i), ""))
		})
	}
	wg.Wait()
	shutdown(t, bus)
	require.Equal(t, slices.Repeat([]int{2}, 100), lengths.all())
}

// An idle worker keeps neither the payload nor the context of its last event.
func TestE4_ARestingBusKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithContextFrom(itself), eventbus.WithRetry(retry(1, time.Millisecond)))
		type big struct{ _ [1 << 20]byte }
		type key struct{}
		failures := 1
		mustSubscribe(t, bus, "a", func(context.Context, eventbus.Event) error {
			if failures--; failures >= 0 {
				return errBoom
			}
			return nil
		})
		var kept []weak.Pointer[big]
		func() {
			payload, value := new(big), new(big)
			kept = append(kept, weak.Make(payload), weak.Make(value))
			_, err := bus.PublishAndWait(context.WithValue(context.Background(), key{}, value), "a", payload)
			require.NoError(t, err)
		}()
		require.Zero(t, reachable(kept))
		shutdown(t, bus)
	})
}

// A handler that used its context does not keep its event reachable while the worker
// runs further events.
func TestE4_AskedContextsLetGoOfTheirEvents(t *testing.T) {
	for name, ctx := range map[string]context.Context{
		"with values":    context.WithValue(context.Background(), struct{ key int }{}, "value"),
		"without values": context.Background(),
	} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithConcurrency(1), eventbus.WithContextFrom(itself))
			type big struct{ _ [1 << 10]byte }
			var kept []weak.Pointer[big]
			begin, reached, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
			mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
				_, ok := eventbus.FromContext(ctx)
				require.True(t, ok)
				require.NotNil(t, ctx.Done())
				switch e.Payload {
				case "first": // blocks until all are queued: an idle worker would release its events
					<-begin
				case "last":
					close(reached)
					<-release
				}
				return nil
			})
			mustPublish(t, bus, "a", "first")
			const events = 500
			for range events {
				payload := new(big)
				kept = append(kept, weak.Make(payload))
				_, err := bus.Publish(ctx, "a", payload)
				require.NoError(t, err)
			}
			_, err := bus.Publish(ctx, "a", "last")
			require.NoError(t, err)
			close(begin)
			<-reached
			require.Less(t, reachable(kept), events/4, name)
			close(release)
			shutdown(t, bus)
		})
	}
}

// Each handler waits for the next one's event, and gives that up when it has begun.
func TestE4_AChainOfWaitsThatWereGivenUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t, eventbus.WithContextFrom(itself))
		const links = 1000
		var values []weak.Pointer[[1024]byte]
		alive := 0
		finished := make(chan struct{})
		cancel := context.CancelFunc(func() {}) // of the handler before; a payload would keep its context
		mustSubscribe(t, bus, "x", func(ctx context.Context, e eventbus.Event) error {
			cancel()
			if len(values) == links {
				synctest.Wait() // the others have returned, and their workers rest or have left
				runtime.GC()
				for _, v := range values {
					if v.Value() != nil {
						alive++
					}
				}
				close(finished)
				return nil
			}
			value := new([1024]byte)
			values = append(values, weak.Make(value))
			waiting, giveUp := context.WithCancel(context.WithValue(ctx, key("link"), value))
			defer giveUp()
			cancel = giveUp
			_, err := bus.PublishAndWait(waiting, "x", nil)
			if !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
		mustPublish(t, bus, "x", nil)
		<-finished
		shutdown(t, bus)
		require.LessOrEqual(t, alive, links/2) // a hundred each, of the few that something still points to
	})
}

// A chain of handlers that publish with contexts derived from their own keeps a bounded
// part of what was published.
func TestE4_AChainOfDerivedContextsKeepsNoEvents(t *testing.T) {
	type key struct{}
	type big struct {
		link int
		_    [4096]byte
	}
	const links = 20_000
	for _, ask := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			bus, _ := startBus(t, eventbus.WithContextFrom(itself))
			var kept []weak.Pointer[big]
			done, release := make(chan struct{}), make(chan struct{})
			mustSubscribe(t, bus, "a", func(ctx context.Context, e eventbus.Event) error {
				if ask {
					eventbus.FromContext(ctx)
				}
				link := e.Payload.(*big).link
				if link == links {
					close(done)
					<-release // the last call runs while the test counts
					return nil
				}
				payload, value := &big{link: link + 1}, &big{}
				kept = append(kept, weak.Make(payload), weak.Make(value))
				_, err := bus.Publish(context.WithValue(ctx, key{}, value), "a", payload)
				return err
			})
			mustPublish(t, bus, "a", &big{})
			<-done
			require.Less(t, reachable(kept), 2*links/10)
			close(release)
			shutdown(t, bus)
		})
	}
}

func TestE4_AContextHasEndedWhenTheNextHandlerBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence(t, nil)
		for i := 1; i < len(s.handle); i++ {
			var before context.Context
			called := 0
			s.handle = [5]eventbus.Handler{}
			s.handle[i-1] = func(ctx context.Context, _ eventbus.Event) error { before = ctx; return nil }
			s.handle[i] = func(ctx context.Context, _ eventbus.Event) error {
				called++
				require.NoError(t, ctx.Err())
				require.NotSame(t, before, ctx)
				require.ErrorIs(t, before.Err(), context.Canceled)
				require.ErrorIs(t, context.Cause(before), context.Canceled)
				<-before.Done()
				kept, of := eventbus.FromContext(before)
				require.True(t, of)
				require.Equal(t, fmt.Sprint(i-1), kept.Subscription)
				d, running := eventbus.FromContext(ctx)
				require.True(t, running)
				require.Equal(t, fmt.Sprint(i), d.Subscription)
				require.NoError(t, ctx.Err())
				return nil
			}
			s.publish(t)
			require.Equal(t, 1, called)
		}
		// One that was asked while its handler ran ends then too.
		var done <-chan struct{}
		s.handle = [5]eventbus.Handler{
			2: func(ctx context.Context, _ eventbus.Event) error { done = ctx.Done(); return nil },
			3: func(context.Context, eventbus.Event) error { <-done; return nil },
		}
		s.publish(t)
		require.Len(t, s.ran.all(), 5*5)
		shutdown(t, s.bus)
	})
}

// requestContext is a context as web frameworks give it to the handler of a request, and then to the next one.
type requestContext struct {
	context.Context
	user atomic.Pointer[string]
}

func (c *requestContext) serve(user string) { c.user.Store(&user) }

func (c *requestContext) Value(k any) any {
	if k == key("user") {
		return *c.user.Load()
	}
	return c.Context.Value(k)
}

// A handler sees no value of the context given to Publish, which may have those of another request by then.
func TestE4_NoValuesOfAReusedContext(t *testing.T) {
	for name, opts := range map[string][]eventbus.Option{"by default": nil, "copied": {eventbus.WithContextFrom(
		func(ctx context.Context) context.Context {
			return context.WithValue(context.Background(), key("user"), ctx.Value(key("user")))
		},
	)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus, _ := startBus(t, append(opts, eventbus.WithConcurrency(2))...)
				var wrong journal[string]
				mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
					time.Sleep(time.Millisecond)
					var want any
					if opts != nil {
						want = e.Payload
					}
					if got := ctx.Value(key("user")); got != want {
						wrong.add(fmt.Sprintf("%v sees %v", e.Payload, got))
					}
					return nil
				})
				request := &requestContext{Context: t.Context()}
				for i := range 200 {
					user := fmt.Sprint("user ", i)
					request.serve(user)
					publish := func() error { _, err := bus.Publish(request, "x", user); return err }
					if i%3 == 0 {
						publish = func() error {
							_, err := bus.PublishBatch(request, []eventbus.Publication{{Type: "x", Payload: user}})
							return err
						}
					}
					require.NoError(t, publish())
				}
				time.Sleep(time.Minute)
				require.Empty(t, wrong.all())
				shutdown(t, bus)
			})
		})
	}
}

// Not even those of the handler that publishes.
func TestE4_NoValuesThroughHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, _ := startBus(t)
		var seen journal[any]
		mustSubscribe(t, bus, "a", func(ctx context.Context, _ eventbus.Event) error {
			_, err := bus.Publish(context.WithValue(ctx, key("user"), "u"), "b", nil)
			return err
		})
		mustSubscribe(t, bus, "b", func(ctx context.Context, _ eventbus.Event) error {
			seen.add(ctx.Value(key("user")))
			return nil
		})
		_, err := bus.PublishAndWait(context.WithValue(t.Context(), key("user"), "u"), "a", nil)
		require.NoError(t, err)
		shutdown(t, bus)
		require.Equal(t, []any{nil}, seen.all())
	})
}

// WithContextFrom runs during Publish, and may return nothing.
func TestE4_NoValuesOfNoContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls int
		bus, _ := startBus(t, eventbus.WithContextFrom(func(context.Context) context.Context { calls++; return nil }))
		mustSubscribe(t, bus, "x", func(ctx context.Context, _ eventbus.Event) error {
			if v := ctx.Value(key("user")); v != nil {
				return fmt.Errorf("it sees %v", v)
			}
			return nil
		})
		for _, ctx := range []context.Context{context.Background(), context.WithValue(t.Context(), key("user"), "u")} {
			_, err := bus.PublishAndWait(ctx, "x", nil)
			require.NoError(t, err)
		}
		require.Equal(t, 2, calls)
		shutdown(t, bus)
	})
	_, err := eventbus.New(eventbus.WithContextFrom(nil))
	requireOptionError(t, err, "WithContextFrom")
	_, err = eventbus.New(eventbus.WithContextFrom(itself), eventbus.WithContextFrom(itself))
	requireOptionError(t, err, "WithContextFrom")
}

// Several WithMetadataFrom compose. Of a name that several add, the last counts, and Metadata before all.
func TestE4_MetadataFromSeveral(t *testing.T) {
	from := func(pairs map[string]string) eventbus.Option {
		return eventbus.WithMetadataFrom(func(context.Context) map[string]string { return pairs })
	}
	bus, _ := startBus(t, from(map[string]string{"a": "1", "b": "1", "c": "1"}), from(nil), from(map[string]string{"b": "2", "c": "2"}))
	var got eventbus.EventMetadata
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error { got = e.Metadata; return nil })
	_, err := bus.PublishAndWait(t.Context(), "x", nil, eventbus.Metadata("c", "3"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b": "2", "c": "3"}, maps.Collect(got.All()))
	shutdown(t, bus)
}

// What a handler publishes inherits the metadata that was named, in memory and on a store.
func TestE4_InheritedMetadata(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			opts := []eventbus.Option{
				eventbus.WithInheritedMetadata("trace", "tenant"), eventbus.WithInheritedMetadata("absent"),
				eventbus.WithMetadataFrom(func(ctx context.Context) map[string]string {
					if tenant, ok := ctx.Value(key("tenant")).(string); ok {
						return map[string]string{"tenant": tenant}
					}
					return nil
				}),
			}
			if stored {
				store := newDisk().Open()
				opts = append(opts, eventbus.WithStore(store))
			}
			bus, _ := newBus(t, opts...)
			got := map[string]map[string]string{}
			publish := func(next string, with any, opts ...eventbus.PublishOption) eventbus.Handler {
				return func(ctx context.Context, e eventbus.Event) error {
					got[e.Type] = maps.Collect(e.Metadata.All())
					if next == "" {
						return nil
					}
					_, err := bus.PublishAndWait(context.WithValue(ctx, key("tenant"), with), next, nil, opts...)
					return err
				}
			}
			mustSubscribe(t, bus, "a", publish("b", nil), eventbus.Named("a"))
			mustSubscribe(t, bus, "b", publish("c", "of the context"), eventbus.Named("b"))
			mustSubscribe(t, bus, "c", publish("d", "of the context", eventbus.Metadata("trace", "given")), eventbus.Named("c"))
			mustSubscribe(t, bus, "d", publish("", nil), eventbus.Named("d"))
			require.NoError(t, bus.Start(t.Context()))
			_, err := bus.PublishAndWait(t.Context(), "a", nil, eventbus.Metadata("trace", "t"), eventbus.Metadata("tenant", "n"), eventbus.Metadata("own", "o"))
			require.NoError(t, err)
			require.Equal(t, map[string]map[string]string{
				"a": {"trace": "t", "tenant": "n", "own": "o"},
				"b": {"trace": "t", "tenant": "n"},
				"c": {"trace": "t", "tenant": "of the context"},
				"d": {"trace": "given", "tenant": "of the context"},
			}, got)
			shutdown(t, bus)
		})
	}
	for _, names := range [][]string{nil, {""}, {"eventbus.x"}, {"ok", "\xff"}} {
		_, err := eventbus.New(eventbus.WithInheritedMetadata(names...))
		requireOptionError(t, err, "WithInheritedMetadata")
	}
}

// The hook is called before each kind of publication, with the event, and done after it, with the id or the error.
func TestE4_HooksOfPublications(t *testing.T) {
	type told struct {
		method, eventType, key string
		id                     eventbus.EventID
		err                    error
	}
	var calls journal[told]
	hook := func(_ context.Context, method string, e eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
		metadata := map[string]string{"hooked": method + " of " + e.Metadata.Get("own"), "given": "by the hook", "of the context": "by the hook"}
		return metadata, func(id eventbus.EventID, err error) { calls.add(told{method, e.Type, e.Key, id, err}) }
	}
	fromContext := func(context.Context) map[string]string {
		return map[string]string{"of the context": "by the context", "hooked": "by the context"}
	}
	disk := newDisk()
	bus, _ := newBus(t, eventbus.WithStore(disk.Open()), eventbus.WithMetadataFrom(fromContext), eventbus.WithPublishHook(hook))
	var got journal[eventbus.EventMetadata]
	settled := make(chan struct{}, 9)
	mustSubscribe(t, bus, "*", func(ctx context.Context, e eventbus.Event) error {
		got.add(e.Metadata)
		if e.Type == "first" {
			if _, err := eventbus.Emit(ctx, "emitted", nil); err != nil {
				return err
			}
		}
		settled <- struct{}{}
		return nil
	}, eventbus.Named("all"))
	require.NoError(t, bus.Start(t.Context()))

	options := []eventbus.PublishOption{eventbus.Key("k"), eventbus.Metadata("own", "o"), eventbus.Metadata("given", "by Publish")}
	first, err := bus.Publish(t.Context(), "first", nil, options...)
	require.NoError(t, err)
	<-settled
	<-settled
	r, err := bus.PublishAndWait(t.Context(), "waited", nil, options...)
	require.NoError(t, err)
	batch := []eventbus.Publication{{Type: "batch.a"}, {Type: "batch.b", Options: options}}
	ids, err := bus.PublishBatch(t.Context(), batch)
	require.NoError(t, err)
	require.Len(t, batch[1].Options, 3)
	tx := disk.Begin()
	inTx, err := bus.PublishTx(t.Context(), tx, "in.tx", nil)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	_, refused := bus.Publish(t.Context(), "not a type*", nil)
	require.ErrorIs(t, refused, eventbus.ErrInvalidEvent)
	for range 4 {
		<-settled
	}
	shutdown(t, bus)

	all := calls.all()
	if all[0].method == "Emit" { // the handler was faster than the hook of Publish
		all[0], all[1] = all[1], all[0]
	}
	require.Equal(t, told{"Publish", "first", "k", first, nil}, all[0])
	require.Equal(t, "Emit", all[1].method)
	require.False(t, all[1].id.IsZero())
	require.Equal(t, []told{
		{"PublishAndWait", "waited", "k", r.ID, nil},
		{"PublishBatch", "batch.b", "k", ids[1], nil},
		{"PublishBatch", "batch.a", "", ids[0], nil},
		{"PublishTx", "in.tx", "", inTx, nil},
		{"Publish", "not a type*", "", eventbus.EventID{}, refused},
	}, all[2:])
	require.Equal(t, map[string]string{
		"own": "o", "given": "by Publish", "hooked": "Publish of o", "of the context": "by the hook",
	}, maps.Collect(got.all()[0].All()))
	require.Equal(t, "Emit of ", got.all()[1].Get("hooked"))
	require.Len(t, got.all(), 6)
}

// A hook refuses no publication: what an event cannot have is left out.
func TestE4_AHookRefusesNothing(t *testing.T) {
	pairs := map[string]string{"a": "1", "": "x", "eventbus.x": "", "k": "\xff", "long": strings.Repeat("x", 8<<10+1)}
	hook := func(context.Context, string, eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
		return pairs, nil
	}
	bus, _ := startBus(t, eventbus.WithPublishHook(hook))
	var got eventbus.EventMetadata
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error { got = e.Metadata; return nil })
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1"}, maps.Collect(got.All()))

	var full []eventbus.PublishOption
	for i := range 64 {
		full = append(full, eventbus.Metadata(fmt.Sprint("m", i), ""))
	}
	_, err = bus.PublishAndWait(t.Context(), "x", nil, full...)
	require.NoError(t, err)
	require.Equal(t, 64, got.Len())
	require.Empty(t, got.Get("a"))
	shutdown(t, bus)

	_, err = eventbus.New(eventbus.WithPublishHook(nil))
	requireOptionError(t, err, "WithPublishHook")
}

// Several hooks compose: of a name, the last one counts, and their ends come in reverse.
func TestE4_SeveralHooks(t *testing.T) {
	var ends journal[string]
	hook := func(name string, pairs map[string]string) eventbus.Option {
		return eventbus.WithPublishHook(func(context.Context, string, eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
			return pairs, func(eventbus.EventID, error) { ends.add(name) }
		})
	}
	shared := map[string]string{"a": "1", "b": "1"}
	bus, _ := startBus(t, hook("first", shared), hook("second", map[string]string{"b": "2"}), hook("third", nil))
	var got eventbus.EventMetadata
	mustSubscribe(t, bus, "x", func(_ context.Context, e eventbus.Event) error { got = e.Metadata; return nil })
	_, err := bus.PublishAndWait(t.Context(), "x", nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b": "2"}, maps.Collect(got.All()))
	require.Equal(t, []string{"third", "second", "first"}, ends.all())
	require.Equal(t, map[string]string{"a": "1", "b": "1"}, shared)
	shutdown(t, bus)
}

// A hook may return the same map again with other values.
func TestE4_AHookMayReuseItsMap(t *testing.T) {
	pairs := map[string]string{}
	hook := func(_ context.Context, _ string, e eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
		pairs["type"] = e.Type
		return pairs, nil
	}
	bus, _ := newBus(t, eventbus.WithPublishHook(hook))
	var got journal[string]
	mustSubscribe(t, bus, "*", func(_ context.Context, e eventbus.Event) error {
		got.add(e.Type + " " + e.Metadata.Get("type"))
		return nil
	})
	require.NoError(t, bus.Start(t.Context()))
	_, err := bus.PublishBatch(t.Context(), []eventbus.Publication{{Type: "a"}, {Type: "b"}, {Type: "c"}})
	require.NoError(t, err)
	shutdown(t, bus)
	require.ElementsMatch(t, []string{"a a", "b b", "c c"}, got.all())
}

// If a hook panics or ends its goroutine, the hooks before it get their ends.
func TestE4_AHookThatPanics(t *testing.T) {
	var ends journal[string]
	hook := func(name string) eventbus.Option {
		return eventbus.WithPublishHook(func(context.Context, string, eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
			return nil, func(id eventbus.EventID, err error) {
				if id.IsZero() && err != nil {
					ends.add(name)
				}
			}
		})
	}
	var wrong func()
	bus, _ := newBus(t, hook("first"), hook("second"), eventbus.WithPublishHook(func(_ context.Context, _ string, e eventbus.Event) (map[string]string, func(eventbus.EventID, error)) {
		if e.Type == "bad" {
			wrong()
		}
		return nil, nil
	}))
	for _, wrong = range []func(){func() { panic("boom") }, runtime.Goexit} {
		for _, publish := range []func(){
			func() { _, _ = bus.Publish(t.Context(), "bad", nil) },
			func() { _, _ = bus.PublishBatch(t.Context(), []eventbus.Publication{{Type: "bad"}}) },
		} {
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { _ = recover() }()
				publish()
			})
			wg.Wait()
		}
	}
	require.Equal(t, slices.Repeat([]string{"second", "first"}, 4), ends.all())
	require.Zero(t, bus.Metrics().Ledger.Accepted)
}
