package contracttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/internal/race"
)

// reachable returns how many of the objects are still in use once all goroutines of
// the bubble are blocked.
func reachable[T any](objects []weak.Pointer[T]) (n int) {
	synctest.Wait()
	runtime.GC()
	for _, p := range objects {
		if p.Value() != nil {
			n++
		}
	}
	return n
}

// Errors of handlers.
var (
	errBoom   = errors.New("boom")
	errBroken = errors.New("broken")
	errDead   = errors.New("dead")
)

// newBus makes a bus that logs to what it returns, and shuts it down at the end
// of the test, cutting short what is left.
func newBus(t *testing.T, opts ...eventbus.Option) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	bus, err := eventbus.New(append([]eventbus.Option{eventbus.WithLogger(zap.New(core))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = bus.Shutdown(ctx) // most tests have done so, and looked at the error
	})
	return bus, logs
}

// startBus makes a bus and starts it.
func startBus(t *testing.T, opts ...eventbus.Option) (*eventbus.Bus, *observer.ObservedLogs) {
	t.Helper()
	bus, logs := newBus(t, opts...)
	require.NoError(t, bus.Start(t.Context()))
	return bus, logs
}

func mustSubscribe(t *testing.T, bus *eventbus.Bus, pattern string, h eventbus.Handler, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	s, err := bus.Subscribe(pattern, h, opts...)
	require.NoError(t, err)
	return s
}

func mustPublish(t *testing.T, bus *eventbus.Bus, eventType string, payload any, opts ...eventbus.PublishOption) eventbus.EventID {
	t.Helper()
	id, err := bus.Publish(t.Context(), eventType, payload, opts...)
	require.NoError(t, err)
	require.False(t, id.IsZero())
	return id
}

// cancelEvent cancels an event for whom the report does not matter.
func cancelEvent(ctx context.Context, bus *eventbus.Bus, id eventbus.EventID, opts ...eventbus.ActionOption) error {
	_, err := bus.Cancel(ctx, id, opts...)
	return err
}

// cancelForSure repeats Cancel while the event is on its way from one place to another.
func cancelForSure(bus *eventbus.Bus, id eventbus.EventID) (r eventbus.ActionReport, err error) {
	for {
		if r, err = bus.Cancel(context.Background(), id); !errors.Is(err, eventbus.ErrNothingDone) {
			return r, err
		}
		time.Sleep(time.Microsecond)
	}
}

// nothingLeft reports whether an action has found that the event has settled, as far as it is known.
func nothingLeft(err error) bool {
	return errors.Is(err, eventbus.ErrSettled) || errors.Is(err, eventbus.ErrUnknownEvent)
}

func requireNothingLeft(t *testing.T, err error, text ...any) {
	t.Helper()
	require.Truef(t, nothingLeft(err), "%v %v", err, text)
}

// shutdown ends the bus without cutting anything short, and looks at its books.
func shutdown(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	var left *eventbus.ShutdownError
	if err := bus.Shutdown(context.Background()); errors.As(err, &left) {
		require.NotEmpty(t, left.Abandoned, "%v", err)
		require.Empty(t, left.Unfinished)
		require.NoError(t, left.Cause)
	} else {
		require.NoError(t, err)
	}
	requireBalanced(t, bus)
}

// leftHeld reports whether a shutdown was complete but for what was held, paused or
// published for later.
func leftHeld(err error) bool {
	var left *eventbus.ShutdownError
	return errors.As(err, &left) && left.Cause == nil
}

// requireBalanced is exact only at rest: its caller waits until nothing runs.
func requireBalanced(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	l := bus.Metrics().Ledger
	require.True(t, l.Balanced(), "%+v", l)
}

// letters are all dead letters, newest first.
func letters(t *testing.T, bus *eventbus.Bus) []eventbus.DeadLetter {
	t.Helper()
	page, err := bus.DLQ().List(context.Background(), eventbus.LetterQuery{Limit: 10_000})
	require.NoError(t, err)
	return page.Letters
}

// oneLetter is the only dead letter there is.
func oneLetter(t *testing.T, bus *eventbus.Bus) eventbus.DeadLetter {
	t.Helper()
	all := letters(t, bus)
	require.Len(t, all, 1)
	return all[0]
}

// metricsOf are those of a subscription.
func metricsOf(t *testing.T, bus *eventbus.Bus, subscription string) eventbus.SubscriptionMetrics {
	t.Helper()
	for _, s := range bus.Metrics().Subscriptions {
		if s.Subscription == subscription {
			return s
		}
	}
	require.Fail(t, "no metrics", subscription)
	return eventbus.SubscriptionMetrics{}
}

// retry is a policy without jitter that tries n times more, d apart.
func retry(n int, d time.Duration) eventbus.RetryPolicy {
	return eventbus.RetryPolicy{
		MaxRetries: n, BaseDelay: d, MaxDelay: d, BackoffMultiplier: 1, Jitter: eventbus.NoJitter,
	}
}

// journal collects from many goroutines, in order.
type journal[T any] struct {
	mu      sync.Mutex
	entries []T
}

func (j *journal[T]) add(entry T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
}

func (j *journal[T]) all() []T {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]T(nil), j.entries...)
}

func (j *journal[T]) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

func ok(context.Context, eventbus.Event) error { return nil }

// failing is a handler that always returns err.
func failing(err error) eventbus.Handler {
	return func(context.Context, eventbus.Event) error { return err }
}

// queue is a bus with one worker and events that wait for it. Their handlers ask nothing
// of their contexts but what a test has them ask, so that there is one step from each
// event to the next, from the second one on. Payloads are numbers, from 0 on.
type queue struct {
	bus    *eventbus.Bus
	handle map[int]eventbus.Handler // by payload; without one it succeeds
	ran    journal[int]
}

func newQueue(t *testing.T, opts ...eventbus.Option) *queue {
	t.Helper()
	q := &queue{handle: make(map[int]eventbus.Handler)}
	q.bus, _ = newBus(t, append([]eventbus.Option{eventbus.WithConcurrency(1), eventbus.WithLogger(zap.NewNop())}, opts...)...)
	return q
}

// subscribe adds a subscription that does with each event what is to be done.
func (q *queue) subscribe(t *testing.T, pattern string, opts ...eventbus.SubscribeOption) *eventbus.Subscription {
	t.Helper()
	return mustSubscribe(t, q.bus, pattern, func(ctx context.Context, e eventbus.Event) error {
		q.ran.add(e.Payload.(int))
		if h := q.handle[e.Payload.(int)]; h != nil {
			return h(ctx, e)
		}
		return nil
	}, opts...)
}

// run publishes n events of a type, and has them run.
func (q *queue) run(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		mustPublish(t, q.bus, "order.placed", i)
	}
	require.NoError(t, q.bus.Start(t.Context()))
	synctest.Wait()
}

func count(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// heldBytes returns the size of the reachable heap.
func heldBytes() int64 {
	var m runtime.MemStats
	for range 3 { // a finalizer or a pool releases its objects only at the next collection
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// handlerEndings are the ways in which a handler can end by itself.
var handlerEndings = map[string]eventbus.Handler{
	"ok":        ok,
	"error":     failing(errBroken),
	"permanent": failing(eventbus.Permanent(errBroken)),
	"panic":     func(context.Context, eventbus.Event) error { panic("at the handler") },
	"nil panic": func(context.Context, eventbus.Event) error {
		panic(nil) // as a hostile handler does
	},
	"exit": func(context.Context, eventbus.Event) error {
		runtime.Goexit()
		return nil
	},
	"timeout": func(ctx context.Context, _ eventbus.Event) error {
		<-ctx.Done()
		return ctx.Err()
	},
	"hang, then ok": func(context.Context, eventbus.Event) error {
		time.Sleep(10 * time.Minute)
		return nil
	},
	"hang, then error": func(context.Context, eventbus.Event) error {
		time.Sleep(10 * time.Minute)
		return errBroken
	},
}

var (
	succeed    = eventbus.Handler(ok)
	failBroken = failing(errBroken)
)

// oneAttempt is the policy of tests in which one failure is the end of an event.
var oneAttempt = eventbus.WithRetry(eventbus.MaxRetries(0))

// publishScripts publishes scripts one after the other, each once the one before has
// been dealt with.
func publishScripts(t *testing.T, bus *eventbus.Bus, eventType string, scripts ...eventbus.Handler) {
	t.Helper()
	for _, s := range scripts {
		mustPublish(t, bus, eventType, s)
		synctest.Wait()
	}
}

// tripCircuit opens the circuit of everything that eventType goes to.
func tripCircuit(t *testing.T, bus *eventbus.Bus, eventType string) {
	t.Helper()
	publishScripts(t, bus, eventType, failBroken, failBroken, failBroken, failBroken)
}

var allLetters = eventbus.LetterQuery{All: true}

var withoutCircuit = eventbus.WithCircuit(eventbus.NoCircuit())

// blockWorker keeps the only worker of a bus busy until it is released.
func blockWorker(t *testing.T, bus *eventbus.Bus) (release func()) {
	t.Helper()
	released := make(chan struct{})
	mustSubscribe(t, bus, "block", func(context.Context, eventbus.Event) error { <-released; return nil })
	mustPublish(t, bus, "block", nil)
	synctest.Wait()
	return func() { close(released) }
}

// fill makes n letters of type a, which the subscription "s" did not handle.
func fill(t *testing.T, bus *eventbus.Bus, n int) {
	t.Helper()
	mustSubscribe(t, bus, "a", failing(eventbus.Permanent(errDead)), eventbus.Named("s"))
	for i := range n {
		mustPublish(t, bus, "a", i)
	}
	synctest.Wait()
}

func list(t *testing.T, bus *eventbus.Bus, q eventbus.LetterQuery) eventbus.LetterPage {
	t.Helper()
	page, err := bus.DLQ().List(t.Context(), q)
	require.NoError(t, err)
	return page
}

func payloads(letters []eventbus.DeadLetter) []any {
	var all []any
	for _, l := range letters {
		all = append(all, l.Event.Payload)
	}
	return all
}

func compareIDs(a, b eventbus.EventID) int { return bytes.Compare(a[:], b[:]) }

type key string

func hold(release <-chan struct{}) error {
	<-release
	return nil
}

// holdUp publishes n events of payloads "0", "1", … to a subscription that is
// tripped or paused.
func holdUp(t *testing.T, bus *eventbus.Bus, n int, opts ...eventbus.PublishOption) {
	t.Helper()
	for i := range n {
		mustPublish(t, bus, "x", fmt.Sprint(i), opts...)
	}
	settleWorkers()
}

// silent is for tests that would log a lot.
func silent(opts ...eventbus.Option) []eventbus.Option {
	return append(opts, eventbus.WithLogger(zap.NewNop()))
}

// failureTexts are the parts of failures that a test says exactly.
func failureTexts(all []eventbus.Failure) []string {
	var texts []string
	for _, f := range all {
		texts = append(texts, fmt.Sprintf("%d.%d %s %s", f.Replays, f.Attempt, f.Subscription, f.Error))
	}
	return texts
}

// callLog notes when calls begin and end, as "+1s name:payload" and, for what
// ends, "+2s name:payload done".
type callLog struct {
	journal[string]
	began time.Time
}

func newCallLog() *callLog { return &callLog{began: time.Now()} }

func (c *callLog) note(format string, args ...any) {
	// Queued work may wait for some ticks until the pool adds a worker.
	c.add(fmt.Sprintf("+%s ", time.Since(c.began).Round(100*time.Millisecond)) + fmt.Sprintf(format, args...))
}

// handler notes its calls, and then does what the payload says, if it is a
// handler.
func (c *callLog) handler(name string) eventbus.Handler {
	return func(ctx context.Context, e eventbus.Event) error {
		c.note("%s:%v", name, payloadName(e))
		if s, ok := e.Payload.(*stepScript); ok {
			return s.run(ctx, e)
		}
		return nil
	}
}

// stepScript is a payload that does something else at each of its calls, and
// nothing after the last one.
type stepScript struct {
	name  string
	mu    sync.Mutex
	steps []eventbus.Handler
}

func scripted(name string, steps ...eventbus.Handler) *stepScript {
	return &stepScript{name: name, steps: steps}
}

func (s *stepScript) run(ctx context.Context, e eventbus.Event) error {
	s.mu.Lock()
	step := eventbus.Handler(ok)
	if len(s.steps) > 0 {
		step, s.steps = s.steps[0], s.steps[1:]
	}
	s.mu.Unlock()
	return step(ctx, e)
}

func payloadName(e eventbus.Event) string {
	if s, ok := e.Payload.(*stepScript); ok {
		return s.name
	}
	return fmt.Sprint(e.Payload)
}

// sleepFor is a handler that takes its time, whatever its deadline, but ends with
// the bus.
func sleepFor(d time.Duration) eventbus.Handler {
	return func(ctx context.Context, _ eventbus.Event) error {
		end := time.Now().Add(d)
		select {
		case <-time.After(d):
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), eventbus.ErrShutdown) {
				time.Sleep(time.Until(end))
			}
		}
		return nil
	}
}

// settleWorkers lets the bus do what it can do now. Workers are made at ticks.
func settleWorkers() {
	time.Sleep(3 * time.Millisecond)
	synctest.Wait()
}

// shutdownLeft ends a bus that has something held or scheduled, and returns
// what it left.
func shutdownLeft(t *testing.T, bus *eventbus.Bus) []eventbus.DeadLetter {
	t.Helper()
	err := bus.Shutdown(context.Background())
	var left *eventbus.ShutdownError
	require.ErrorAs(t, err, &left)
	require.NoError(t, left.Cause)
	requireBalanced(t, bus)
	return left.Unfinished
}

// ended is a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// callbackNames are the names of the Observer's callbacks.
func callbackNames() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[eventbus.Observer]()) {
		names = append(names, f.Name)
	}
	return names
}

// observerCalling is an Observer of which the named callbacks, all if there are none,
// call f with their name and argument.
func observerCalling(f func(name string, arg any), names ...string) eventbus.Option {
	if len(names) == 0 {
		names = callbackNames()
	}
	var o eventbus.Observer
	for _, name := range names {
		field := reflect.ValueOf(&o).Elem().FieldByName(name)
		field.Set(reflect.MakeFunc(field.Type(), func(args []reflect.Value) []reflect.Value {
			f(name, args[0].Interface())
			return nil
		}))
	}
	return eventbus.WithObserver(o)
}

// causeEverything has happen whatever an Observer can see. It stops at nothing: an
// observer may have shut the bus down.
func causeEverything(t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	ctx := context.Background()
	fails := mustSubscribe(t, bus, "fails", failing(errDead), eventbus.Retry(eventbus.MaxRetries(1)))
	mustSubscribe(t, bus, "trips", failing(eventbus.Permanent(errDead)), eventbus.Circuit(eventbus.NoCircuit()))
	mustSubscribe(t, bus, "trips", failing(errDead), eventbus.Circuit(eventbus.MinEvents(1)))
	mustSubscribe(t, bus, "slow", func(context.Context, eventbus.Event) error { time.Sleep(20 * time.Second); return nil })
	mustSubscribe(t, bus, "opens", failing(errDead), eventbus.Circuit(eventbus.MinEvents(1)))
	for _, eventType := range []string{"nobody", "fails", "opens", "trips", "slow"} {
		_, _ = bus.Publish(ctx, eventType, nil)
		time.Sleep(time.Minute)
	}
	page, err := bus.DLQ().List(ctx, eventbus.LetterQuery{})
	require.NoError(t, err)
	for _, l := range page.Letters {
		_ = bus.DLQ().Replay(ctx, l.ID)
	}
	time.Sleep(time.Minute)
	fails.Unsubscribe()
}

var observedOptions = []eventbus.Option{
	eventbus.WithRetry(retry(1, time.Second)),
	eventbus.WithDeadLetterCapacity(1),
	eventbus.WithTimeout(30 * time.Second),
}

// anyDuration is a duration of any size, and often of one that matters.
func anyDuration() *rapid.Generator[time.Duration] {
	return rapid.OneOf(
		rapid.SampledFrom([]time.Duration{0, 1, time.Millisecond, time.Second, 30 * time.Second, math.MaxInt64 - 1, math.MaxInt64}),
		rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "nanos") >> rapid.IntRange(0, 62).Draw(t, "shift"))
		}),
	)
}

func anyMultiplier() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.SampledFrom([]float64{1, 1.0000000000000002, 1.5, 2, 10, 1e300, math.MaxFloat64}),
		rapid.Float64Range(1, 4),
		rapid.Float64Range(1, 1.0001),
	)
}

func anyPolicy() *rapid.Generator[eventbus.RetryPolicy] {
	return rapid.Custom(func(t *rapid.T) eventbus.RetryPolicy {
		return eventbus.RetryPolicy{
			MaxRetries:        rapid.SampledFrom([]int{0, 1, 3, eventbus.Unlimited, math.MaxInt32 - 1}).Draw(t, "MaxRetries"),
			BaseDelay:         anyDuration().Draw(t, "BaseDelay"),
			MaxDelay:          anyDuration().Draw(t, "MaxDelay"),
			BackoffMultiplier: anyMultiplier().Draw(t, "BackoffMultiplier"),
			MaxElapsed:        anyDuration().Draw(t, "MaxElapsed"),
			Jitter:            rapid.SampledFrom(jitters).Draw(t, "Jitter"),
		}
	})
}

var jitters = []eventbus.Jitter{
	eventbus.ProportionalJitter, eventbus.NoJitter, eventbus.FullJitter, eventbus.EqualJitter, eventbus.DecorrelatedJitter,
}

// retryOverride is what a subscription of the merge tests sets: nil is not set.
type retryOverride struct {
	MaxRetries                      *int
	BaseDelay, MaxDelay, MaxElapsed *time.Duration
	BackoffMultiplier               *float64
}

func (o retryOverride) options() []eventbus.RetryOption {
	var opts []eventbus.RetryOption
	if o.MaxRetries != nil {
		opts = append(opts, eventbus.MaxRetries(*o.MaxRetries))
	}
	if o.BaseDelay != nil {
		opts = append(opts, eventbus.BaseDelay(*o.BaseDelay))
	}
	if o.MaxDelay != nil {
		opts = append(opts, eventbus.MaxDelay(*o.MaxDelay))
	}
	if o.MaxElapsed != nil {
		opts = append(opts, eventbus.MaxElapsed(*o.MaxElapsed))
	}
	if o.BackoffMultiplier != nil {
		opts = append(opts, eventbus.BackoffMultiplier(*o.BackoffMultiplier))
	}
	return opts
}

func (o retryOverride) String() string {
	s := ""
	for name, v := range map[string]any{
		"MaxRetries": o.MaxRetries, "BaseDelay": o.BaseDelay, "MaxDelay": o.MaxDelay,
		"MaxElapsed": o.MaxElapsed, "BackoffMultiplier": o.BackoffMultiplier,
	} {
		switch v := v.(type) {
		case *int:
			if v != nil {
				s += fmt.Sprintf(" %s=%d", name, *v)
			}
		case *time.Duration:
			if v != nil {
				s += fmt.Sprintf(" %s=%s", name, *v)
			}
		case *float64:
			if v != nil {
				s += fmt.Sprintf(" %s=%g", name, *v)
			}
		}
	}
	return "{" + s + " }"
}

func anyOverrides() *rapid.Generator[[]retryOverride] {
	// Few values, so that ties happen.
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) retryOverride {
		duration := func(label string) *time.Duration {
			return rapid.Ptr(rapid.SampledFrom([]time.Duration{0, 1, 2, time.Second, time.Hour}), true).Draw(t, label)
		}
		return retryOverride{
			MaxRetries:        rapid.Ptr(rapid.SampledFrom([]int{eventbus.Unlimited, 0, 1, 5}), true).Draw(t, "MaxRetries"),
			BaseDelay:         duration("BaseDelay"),
			MaxDelay:          duration("MaxDelay"),
			MaxElapsed:        duration("MaxElapsed"),
			BackoffMultiplier: rapid.Ptr(rapid.SampledFrom([]float64{1, 1.5, 3}), true).Draw(t, "BackoffMultiplier"),
		}
	}), 1, 6)
}

// mergeByTable is the merge as the table of the contract says it, one field after the
// other: collect what is set, and take the best.
func mergeByTable(def eventbus.RetryPolicy, overrides []retryOverride) (eventbus.RetryPolicy, map[string]int) {
	origins := map[string]int{}
	p := def
	p.MaxRetries = bestOf(def.MaxRetries, overrides, origins, "MaxRetries", func(o retryOverride) *int { return o.MaxRetries },
		func(a, b int) bool { return b != eventbus.Unlimited && (a == eventbus.Unlimited || a > b) })
	p.BaseDelay = bestOf(def.BaseDelay, overrides, origins, "BaseDelay", func(o retryOverride) *time.Duration { return o.BaseDelay },
		func(a, b time.Duration) bool { return a < b })
	p.MaxDelay = bestOf(def.MaxDelay, overrides, origins, "MaxDelay", func(o retryOverride) *time.Duration { return o.MaxDelay },
		func(a, b time.Duration) bool { return a > b })
	p.BackoffMultiplier = bestOf(def.BackoffMultiplier, overrides, origins, "BackoffMultiplier", func(o retryOverride) *float64 { return o.BackoffMultiplier },
		func(a, b float64) bool { return a > b })
	p.MaxElapsed = bestOf(def.MaxElapsed, overrides, origins, "MaxElapsed", func(o retryOverride) *time.Duration { return o.MaxElapsed },
		func(a, b time.Duration) bool { return b != 0 && (a == 0 || a > b) })
	return p, origins
}

func bestOf[V any](def V, overrides []retryOverride, origins map[string]int, name string, get func(retryOverride) *V, better func(a, b V) bool) V {
	origins[name] = -1
	best := def
	for i, o := range overrides {
		if v := get(o); v != nil && (origins[name] < 0 || better(*v, best)) {
			best, origins[name] = *v, i
		}
	}
	return best
}

func requireOptionError(t *testing.T, err error, option string) {
	t.Helper()
	require.ErrorIs(t, err, eventbus.ErrInvalidOption)
	var o *eventbus.OptionError
	require.ErrorAs(t, err, &o)
	require.Equal(t, option, o.Option)
	require.NotEmpty(t, o.Reason)
	require.Contains(t, err.Error(), option)
}

// callTimes notes when a handler is called, and fails.
type callTimes struct {
	journal[time.Duration]
	since time.Time
}

func (c *callTimes) failing(err error) eventbus.Handler {
	c.since = time.Now()
	return func(context.Context, eventbus.Event) error {
		c.add(time.Since(c.since))
		return err
	}
}

// apart returns the times between the calls.
func (c *callTimes) apart() []time.Duration {
	all := c.all()
	for i := len(all) - 1; i > 0; i-- {
		all[i] -= all[i-1]
	}
	return all[1:]
}

func inSeconds(seconds ...float64) []time.Duration {
	var all []time.Duration
	for _, s := range seconds {
		all = append(all, time.Duration(s*float64(time.Second)))
	}
	return all
}

// loggedDelays are the delay_ms of all failed attempts.
func loggedDelays(logs *observer.ObservedLogs) []int64 {
	var all []int64
	for _, e := range logs.FilterMessage("handler failed").All() {
		all = append(all, e.ContextMap()["delay_ms"].(int64))
	}
	return all
}

// runScript does what the payload says.
func runScript(ctx context.Context, e eventbus.Event) error {
	return e.Payload.(eventbus.Handler)(ctx, e)
}

// cutShort shuts the bus down without waiting for anything.
func cutShort(t *testing.T, bus *eventbus.Bus) *eventbus.ShutdownError {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := bus.Shutdown(ctx)
	if err == nil {
		return nil
	}
	var s *eventbus.ShutdownError
	require.ErrorAs(t, err, &s)
	return s
}

// lettersOf makes n letters, whose handler fails with err.
func lettersOf(t *testing.T, n int, err error, opts ...eventbus.Option) *eventbus.Bus {
	t.Helper()
	bus, _ := startBus(t, opts...)
	mustSubscribe(t, bus, "order.*", failing(eventbus.Permanent(err)), eventbus.Named("mail"))
	for i := range n {
		mustPublish(t, bus, "order.placed", i)
	}
	synctest.Wait()
	require.Len(t, letters(t, bus), n)
	return bus
}

// ruleError is an error that tells what it is told to.
type ruleError struct {
	code, name, resultType string
	retryable              *bool
	inner                  error
}

func (e *ruleError) Error() string      { return "code " + e.code }
func (e *ruleError) Code() string       { return e.code }
func (e *ruleError) Name() string       { return e.name }
func (e *ruleError) ResultType() string { return e.resultType }
func (e *ruleError) Unwrap() error      { return e.inner }

func (e *ruleError) Retryable() (bool, bool) {
	return e.retryable != nil && *e.retryable, e.retryable != nil
}

func coded(code string) error { return &ruleError{code: code} }

func codes(patterns ...string) eventbus.ErrorMatch { return eventbus.ErrorMatch{Codes: patterns} }

// onCodes is a rule without delay.
func onCodes(attempts int, patterns ...string) eventbus.RetryRule {
	return eventbus.RetryRule{Match: codes(patterns...), Attempts: attempts}
}

// ruleCalls is a handler that fails with each of the errors in turn, with the last one
// again and again, and notes when it is called. nil is success.
func ruleCalls(script ...error) (*callTimes, eventbus.Handler) {
	calls := &callTimes{since: time.Now()}
	return calls, func(context.Context, eventbus.Event) error {
		n := calls.len()
		calls.add(time.Since(calls.since))
		return script[min(n, len(script)-1)]
	}
}

// sequence is a bus with five subscriptions to the same events. Their handlers ask
// nothing of their contexts but what a test has them ask, so that there is one step
// from each to the next, from the second one on.
type sequence struct {
	bus           *eventbus.Bus
	subscriptions [5]*eventbus.Subscription
	handle        [5]eventbus.Handler // nil succeeds
	ran           journal[int]
}

func newSequence(t *testing.T, own map[int]eventbus.SubscribeOption, opts ...eventbus.Option) *sequence {
	s := &sequence{}
	s.bus, _ = startBus(t, opts...)
	for i := range s.handle {
		more := []eventbus.SubscribeOption{eventbus.Named(fmt.Sprint(i))}
		if o := own[i]; o != nil {
			more = append(more, o)
		}
		s.subscriptions[i] = mustSubscribe(t, s.bus, "order.*", func(ctx context.Context, e eventbus.Event) error {
			s.ran.add(i)
			if h := s.handle[i]; h != nil {
				return h(ctx, e)
			}
			return nil
		}, more...)
	}
	return s
}

func (s *sequence) publish(t *testing.T, opts ...eventbus.PublishOption) {
	t.Helper()
	mustPublish(t, s.bus, "order.placed", nil, opts...)
	synctest.Wait()
}

// ofManyEvents skips a test of memory, or of many events, with -short and the race detector, which takes ten times as long for it.
func ofManyEvents(t *testing.T) {
	t.Helper()
	if testing.Short() && race.Enabled {
		t.Skip("it has many events")
	}
}

// searching is n with -search, and fewer without.
func searching(n, fewer int) int {
	if *search {
		return n
	}
	return fewer
}
